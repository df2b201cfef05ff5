//! Parts of a picture, resampled to one size.

use super::elements::{
    checked_count, expect_dtype, floats, integers, is_index, position, write_floats,
};
use super::sampling::{Planes, SampleStep, Sampler};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Boxes `[r, 4]` (left, top, right, bottom) of pictures `x [n, c, h, w]`, whose numbers are in the
/// third operand `[r]` (`i64` or `i32`), as `[r, c, height, width]`, as ONNX `RoiAlign`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoiAlign {
    /// Rows and columns of the result.
    pub output: [usize; 2],
    /// Samples per row and column of a cell; 0 for as many as it covers elements.
    pub samples: usize,
    /// Elements of `x` per unit of the boxes.
    pub scale: f32,
    /// Whether coordinates are those of half elements.
    pub half_pixel: bool,
    /// The largest product of element and weight instead of the mean.
    pub max: bool,
}

/// Two elements beside a position, and their weights; `None` outside of the axis.
type Neighbours = Option<[(usize, f64); 2]>;

const OP: &str = "roi_align";

/// Where the samples of a box's cells lie, along an axis.
#[derive(Clone, Copy)]
struct Span {
    start: f64,
    cell: f64,
    samples: usize,
}

impl Span {
    /// What sample `s` of cell `p` lies between.
    fn at(self, p: usize, s: usize, extent: usize) -> Neighbours {
        let within = (s as f64 + 0.5) * self.cell / self.samples as f64;
        RoiAlign::neighbours(self.start + p as f64 * self.cell + within, extent)
    }
}

/// Samples per axis that the kernel takes at most.
const KERNEL_SAMPLES: usize = 4;

/// Samples of a cell that are taken at most.
const MOST: f64 = 65536.0;

impl RoiAlign {
    /// Positions up to an element outside of the axis count as its end.
    fn neighbours(at: f64, extent: usize) -> Neighbours {
        if !(-1.0..=extent as f64).contains(&at) || extent == 0 {
            return None;
        }
        let (at, last) = (at.max(0.0), extent - 1);
        let low = at as usize;
        if low >= last {
            return Some([(last, 1.0), (last, 0.0)]);
        }
        let part = at - low as f64;
        Some([(low, 1.0 - part), (low + 1, part)])
    }

    /// The samples of a box that reaches from `start` to `end`, in so many cells.
    fn span(&self, [start, end]: [f64; 2], cells: usize) -> Result<Span, GraphError> {
        let offset = if self.half_pixel { 0.5 } else { 0.0 };
        let [start, end] = [start, end].map(|at| at * f64::from(self.scale) - offset);
        let size = end - start;
        // Without half pixels, boxes that are too small get the size of an element.
        let size = if self.half_pixel { size } else { size.max(1.0) };
        let cell = size / cells as f64;
        let samples = if self.samples > 0 { self.samples as f64 } else { cell.ceil() };
        if samples > MOST {
            let what = format!("a box of {size} elements");
            return Err(GraphError::Unsupported { op: OP, what });
        }
        Ok(Span { start, cell, samples: samples.max(0.0) as usize })
    }

    fn has_kernel(&self, dst: &Info) -> bool {
        let fits = (1..=KERNEL_SAMPLES).contains(&self.samples);
        fits && !self.max && dst.dtype == DType::F32 && dst.elements() > 0
    }

    /// The value of a cell from the samples' positions.
    fn cell(&self, x: &[f64], w: usize, rows: &[Neighbours], columns: &[Neighbours]) -> f64 {
        let (mut sum, mut most): (f64, Option<f64>) = (0.0, None);
        for row in rows {
            for column in columns {
                for r in 0..2 {
                    for c in 0..2 {
                        let product = match (row, column) {
                            (Some(row), Some(column)) => {
                                row[r].1 * column[c].1 * x[row[r].0 * w + column[c].0]
                            }
                            _ => 0.0,
                        };
                        sum += product;
                        most = Some(most.map_or(product, |m| m.max(product)));
                    }
                }
            }
        }
        let count = (rows.len() * columns.len()).max(1);
        if self.max { most.unwrap_or(0.0) } else { sum / count as f64 }
    }
}

impl Operator for RoiAlign {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=3, "3")?;
        let (x, boxes, batch) = (&src[0], &src[1], &src[2]);
        expect_dtype(OP, x, |d| d.is_float())?;
        expect_dtype(OP, boxes, |d| d == x.dtype)?;
        expect_dtype(OP, batch, is_index)?;
        let count = batch.dims.first().copied().unwrap_or(0);
        if x.dims.len() != 4 || boxes.dims != [count, 4] || batch.dims.len() != 1 {
            let rule = "there must be four numbers and a picture for each box";
            let shapes = [("x", &x.dims[..]), ("boxes", &boxes.dims), ("batch", &batch.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        let dims = vec![count, x.dims[1], self.output[0], self.output[1]];
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, boxes, batch) =
            (floats(&src[0], OP)?, floats(&src[1], OP)?, integers(&src[2], OP)?);
        let &[n, c, h, w] = src[0].dims else { return Ok(()) };
        let mut out = Vec::with_capacity(dst.dims.iter().product());
        for (roi, &picture) in boxes.chunks_exact(4).zip(&batch) {
            let picture = position(OP, picture, n)?;
            let mut axes = Vec::new();
            for (d, extent) in [(1, h), (0, w)] {
                let span = self.span([roi[d], roi[d + 2]], self.output[1 - d])?;
                let axis = |p: usize| (0..span.samples).map(|s| span.at(p, s, extent)).collect();
                axes.push((0..self.output[1 - d]).map(axis).collect::<Vec<Vec<_>>>());
            }
            for channel in 0..c {
                let plane = &x[(picture * c + channel) * h * w..][..h * w];
                for rows in &axes[0] {
                    out.extend(axes[1].iter().map(|columns| self.cell(plane, w, rows, columns)));
                }
            }
        }
        write_floats(dst, OP, out)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (x, dst) = (&cx.src[0], cx.dst);
        if !self.has_kernel(dst) {
            return Ok(None);
        }
        let cells = Cells { op: *self, dims: x.dims.clone(), batch: cx.src[2].dtype };
        Ok(SampleStep::boxed(OP, Box::new(cells), dst.dims[0], [x, dst]))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if self.has_kernel(cx.dst) { LayoutRule::Follow(vec![0]) } else { LayoutRule::Plain }
    }
}

/// What the cells of boxes read: the mean of their samples.
#[derive(Debug)]
struct Cells {
    op: RoiAlign,
    dims: Vec<usize>,
    batch: DType,
}

impl Sampler for Cells {
    #[allow(unsafe_code)]
    unsafe fn planes(&self, src: &[*const u8], part: usize) -> Result<Planes, GraphError> {
        // SAFETY: the third operand has a number of this type for each box.
        let picture = unsafe {
            match self.batch {
                DType::I32 => i64::from(*src[2].cast::<i32>().add(part)),
                _ => *src[2].cast::<i64>().add(part),
            }
        };
        let picture = position(OP, picture, self.dims[0])?;
        Ok(Planes { from: (picture, 0), to: (part, 0), count: self.dims[1] })
    }

    #[allow(unsafe_code)]
    unsafe fn reads(
        &self,
        src: &[*const u8],
        part: usize,
        point: usize,
        read: &mut dyn FnMut(usize, f32),
    ) {
        // SAFETY: the second operand, f32, has four numbers for each box.
        let roi: [f32; 4] = unsafe { *src[1].cast::<[f32; 4]>().add(part) };
        let (area, output) = ([self.dims[2], self.dims[3]], self.op.output);
        let cell = [point / output[1], point % output[1]];
        let span = |d: usize| self.op.span([roi[1 - d], roi[3 - d]].map(f64::from), output[d]);
        // Only boxes that say themselves how many samples they have may have too many.
        let (Ok(down), Ok(right)) = (span(0), span(1)) else { return };
        let share = 1.0 / (down.samples * right.samples) as f64;
        for row in 0..down.samples {
            let Some(rows) = down.at(cell[0], row, area[0]) else { continue };
            for column in 0..right.samples {
                let Some(columns) = right.at(cell[1], column, area[1]) else { continue };
                for (y, weight) in rows {
                    for (x, part) in columns.into_iter().filter(|&(_, part)| part * weight != 0.0) {
                        read(y * area[1] + x, (weight * part * share) as f32);
                    }
                }
            }
        }
    }
}
