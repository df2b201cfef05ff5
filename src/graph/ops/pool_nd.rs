//! Pooling over any number of spatial dimensions, in all types, and where maxima are.

use core::ops::Range;

use super::cast::Number;
use super::elements::{
    checked_count, expect_dtype, floats, in_order, is_nan, narrow, unravel, write_floats,
};
use super::windows::Windows;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut, with_element};
use crate::tensor::DType;

/// How a window becomes one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolNdKind {
    /// The largest value; padding never wins.
    Max,
    /// The position of the first largest value in the whole operand (`i64`), its rows counted
    /// along the last dimension, or along the first spatial one if `columns`.
    Position {
        /// Whether the first spatial dimension is the fastest.
        columns: bool,
    },
    /// The mean; `include_pad` counts padding cells as zeros instead of leaving them out.
    Average {
        /// Whether padding counts.
        include_pad: bool,
    },
    /// The root of the sum of powers of magnitudes.
    Norm {
        /// The power.
        p: u32,
    },
}

/// Pooling of `x [n, c, spatial...]`, as ONNX `MaxPool`, `AveragePool` and `LpPool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolNd {
    /// What is computed.
    pub kind: PoolNdKind,
    /// The windows.
    pub windows: Windows,
}

const OP: &str = "pool_nd";

impl PoolNd {
    /// The position in the operand, with the spatial dimensions the other way round.
    fn by_columns(spatial: &[usize], position: usize) -> usize {
        let area: usize = spatial.iter().product();
        let mut at = vec![0; spatial.len()];
        unravel(position % area, spatial, &mut at);
        let column = at.iter().zip(spatial).rev().fold(0, |sum, (a, d)| sum * d + a);
        position / area * area + column
    }

    /// Where the largest element of each window is, if the window has elements.
    fn maxima<T: PartialOrd>(&self, dims: &[usize], x: &[T]) -> Vec<Option<usize>> {
        let spatial = &dims[2..];
        let (area, windows) =
            (spatial.iter().product::<usize>(), self.windows.count.iter().product::<usize>());
        let mut at = vec![0; spatial.len()];
        let largest = |i: usize| {
            unravel(i % windows, &self.windows.count, &mut at);
            let first = i / windows * area;
            let mut best: Option<usize> = None;
            self.windows.for_each(&at, spatial, &mut |_, cell| {
                let larger = |b: &T| x[first + cell] > *b || is_nan(&x[first + cell]) && !is_nan(b);
                if best.is_none_or(|b| larger(&x[b])) {
                    best = Some(first + cell);
                }
            });
            best
        };
        (0..dims[0] * dims[1] * windows).map(largest).collect()
    }

    /// The same for a tensor: what a wider type holds exactly is in its order, and needs no code of its own.
    fn maxima_of(&self, x: &View<'_>) -> Result<Vec<Option<usize>>, GraphError> {
        Ok(match x.dtype {
            DType::F64 => self.maxima(x.dims, &floats(x, OP)?),
            DType::Bool | DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                self.maxima(x.dims, &in_order(x, OP)?)
            }
            _ => self.maxima(x.dims, &narrow(x, OP)?),
        })
    }

    fn sums(&self, x: &View<'_>) -> Result<Vec<f64>, GraphError> {
        let (values, spatial) = (floats(x, OP)?, &x.dims[2..]);
        let windows: usize = self.windows.count.iter().product();
        let area: usize = spatial.iter().product();
        let mut at = vec![0; spatial.len()];
        let mut out = Vec::new();
        for i in 0..x.dims[0] * x.dims[1] * windows {
            unravel(i % windows, &self.windows.count, &mut at);
            let first = i / windows * area;
            let (mut sum, mut count) = (0.0, 0usize);
            self.windows.for_each(&at, spatial, &mut |_, cell| {
                let v = values[first + cell];
                sum += match self.kind {
                    PoolNdKind::Norm { p: 1 } => v.abs(),
                    PoolNdKind::Norm { p: 2 } => v * v,
                    PoolNdKind::Norm { p } => v.abs().powf(f64::from(p)),
                    _ => v,
                };
                count += 1;
            });
            out.push(match self.kind {
                PoolNdKind::Norm { p: 1 } => sum,
                PoolNdKind::Norm { p: 2 } => sum.sqrt(),
                PoolNdKind::Norm { p } => sum.powf(1.0 / f64::from(p)),
                PoolNdKind::Average { include_pad: true } => {
                    let cells = (0..at.len())
                        .map(|d| self.windows.inside_padding(d, at[d], spatial[d]) as f64);
                    sum / cells.product::<f64>()
                }
                _ => sum / count as f64,
            });
        }
        Ok(out)
    }
}

impl Operator for PoolNd {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "x")?;
        let x = &src[0];
        let most = matches!(self.kind, PoolNdKind::Max | PoolNdKind::Position { .. });
        expect_dtype(OP, x, |d| d.is_float() || (most && d != DType::Bool))?;
        if x.dims.len() < 3 {
            let rule = "x must have spatial dimensions";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
        }
        self.windows.check(OP, &x.dims[2..])?;
        let dims = [&x.dims[..2], &self.windows.count].concat();
        checked_count(OP, &dims)?;
        let position = matches!(self.kind, PoolNdKind::Position { .. });
        Ok(Info::plain(if position { DType::I64 } else { x.dtype }, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, dims) = (&src[0], src[0].dims);
        match self.kind {
            PoolNdKind::Max => {
                let low = with_element!(x.dtype, OP, T => Ok(bytemuck::bytes_of(
                    &if T::FLOAT { T::from_float(f64::NEG_INFINITY) } else { T::LEAST }
                ).to_vec()))?;
                let out = dst.bytes.chunks_exact_mut(low.len());
                for (out, at) in out.zip(self.maxima_of(x)?) {
                    out.copy_from_slice(
                        at.map_or(&low, |at| &x.bytes[at * low.len()..][..low.len()]),
                    );
                }
                Ok(())
            }
            PoolNdKind::Position { columns } => {
                for (out, at) in dst.slice::<i64>(OP)?.iter_mut().zip(self.maxima_of(x)?) {
                    let place = |at| if columns { Self::by_columns(&dims[2..], at) } else { at };
                    *out = at.map_or(0, place) as i64;
                }
                Ok(())
            }
            _ => write_floats(dst, OP, self.sums(x)?),
        }
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (x, rank) = (&cx.src[0], self.windows.size.len());
        let area = x.dims[2..].iter().product::<usize>();
        if self.kind != (PoolNdKind::Position { columns: false })
            || x.dtype != DType::F32
            || rank > 2
            || u32::try_from(area).is_err()
        {
            return Ok(None);
        }
        let pair = |list: &[usize], missing| {
            if rank == 2 { [list[0], list[1]] } else { [missing, list[0]] }
        };
        let w = &self.windows;
        let windows = Windows {
            size: pair(&w.size, 1).to_vec(),
            stride: pair(&w.stride, 1).to_vec(),
            dilation: pair(&w.dilation, 1).to_vec(),
            before: pair(&w.before, 0).to_vec(),
            after: pair(&w.after, 0).to_vec(),
            count: pair(&w.count, 1).to_vec(),
        };
        let planes = x.dims[0] * x.dims[1];
        Ok(Some(Box::new(Positions { windows, planes, input: pair(&x.dims[2..], 1) })))
    }

    fn macs(&self, _src: &[Info], dst: &Info) -> u64 {
        let cells = self.windows.size.iter().fold(1u64, |n, &s| n.saturating_mul(s as u64));
        cells.saturating_mul(dst.elements() as u64)
    }
}

/// Where the maxima of f32 windows over pictures are. A unit is a row of one plane of the result.
struct Positions {
    windows: Windows,
    planes: usize,
    input: [usize; 2],
}

/// The cell that a window without one names.
const NONE: u32 = u32::MAX;

/// Takes `x` if it is larger, or the first of its window; `cell` is its place in its plane.
#[inline(always)]
fn take(best: &mut f32, at: &mut u32, x: f32, cell: u32) {
    let larger = (x > *best) | (*at == NONE);
    *best = if larger { x } else { *best };
    *at = if larger { cell } else { *at };
}

/// [`take`] for windows `S` elements from one another, of which `row` is the first's and what follows, from
/// place `cell` of the plane on.
#[inline(always)]
fn take_row<const S: usize>(best: &mut [f32], at: &mut [u32], row: &[f32], cell: u32) {
    let (whole, rest) = row.as_chunks::<S>();
    let n = whole.len().min(best.len());
    // By one index, of slices of one length: else there are no vectors.
    {
        let (best, at, whole) = (&mut best[..n], &mut at[..n], &whole[..n]);
        for i in 0..n {
            take(&mut best[i], &mut at[i], whole[i][0], cell + (i * S) as u32);
        }
    }
    if let (Some(best), Some(at), Some(&x)) = (best.get_mut(n), at.get_mut(n), rest.first()) {
        take(best, at, x, cell + (n * S) as u32);
    }
}

impl Positions {
    /// The windows of row `y` of plane `x`.
    fn row(&self, x: &[f32], y: usize, best: &mut [f32], at: &mut [u32]) {
        let (w, [height, width]) = (&self.windows, self.input);
        let (stride, before) = (w.stride[1], w.before[1]);
        best.fill(f32::NEG_INFINITY);
        at.fill(NONE);
        let (_, first, rows) = w.inside(0, y, height);
        for row in (0..rows).map(|i| first + i * w.dilation[0]) {
            for tap in (0..w.size[1]).map(|i| i * w.dilation[1]) {
                // The windows whose tap is inside of the row.
                let low = before.saturating_sub(tap).div_ceil(stride);
                let high = (width + before).saturating_sub(tap).div_ceil(stride).min(best.len());
                if low >= high {
                    continue;
                }
                let cell = row * width + low * stride + tap - before;
                let (best, at) = (&mut best[low..high], &mut at[low..high]);
                let x = &x[cell..(row + 1) * width];
                match stride {
                    1 => take_row::<1>(best, at, x, cell as u32),
                    2 => take_row::<2>(best, at, x, cell as u32),
                    _ => {
                        let cells = (cell..).step_by(stride);
                        let each = best.iter_mut().zip(at).zip(x.iter().step_by(stride));
                        each.zip(cells)
                            .for_each(|(((best, at), &x), cell)| take(best, at, x, cell as u32));
                    }
                }
            }
        }
    }
}

impl Step for Positions {
    fn kernel(&self) -> String {
        "max_positions_f32".to_owned()
    }

    fn units(&self) -> usize {
        self.planes * self.windows.count[0]
    }

    fn scratch_bytes(&self) -> usize {
        2 * size_of::<f32>() * self.windows.count[1]
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (rows, row) = (self.windows.count[0], self.windows.count[1]);
        let area = self.input[0] * self.input[1];
        // SAFETY: the scratch memory is for a row of values and one of places, and of this call alone; any bits
        // are such.
        let (best, at) = unsafe {
            let best = core::slice::from_raw_parts_mut(scratch.cast::<f32>(), row);
            (best, core::slice::from_raw_parts_mut(scratch.cast::<u32>().add(row), row))
        };
        for unit in units {
            let first = unit / rows * area;
            // SAFETY: the operand has this plane, and the result this row, which is this call's alone.
            let (x, y) = unsafe {
                (
                    core::slice::from_raw_parts(src[0].cast::<f32>().add(first), area),
                    core::slice::from_raw_parts_mut(dst.cast::<i64>().add(unit * row), row),
                )
            };
            self.row(x, unit % rows, best, at);
            for (y, &at) in y.iter_mut().zip(&*at) {
                *y = if at == NONE { 0 } else { first as i64 + i64::from(at) };
            }
        }
        Ok(())
    }
}
