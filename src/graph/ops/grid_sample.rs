//! Sampling at computed positions.

use super::elements::{checked_count, expect_dtype, floats, write_floats};
use super::sampling::{Planes, SampleStep, Sampler, Taps, inside, spread};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// How values between elements are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum GridMode {
    Nearest,
    Linear,
    /// Keys' filter with a = -0.75.
    Cubic,
}

/// What lies outside of the operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    Zeros,
    /// The nearest element.
    Border,
    /// The operand mirrored at its border.
    Reflection,
}

/// The first operand `[n, c, spatial...]` at positions `[n, out..., spatial dimensions]`, whose
/// coordinates go from -1 to 1, the fastest dimension first, as ONNX `GridSample`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GridSample {
    /// Between elements.
    pub mode: GridMode,
    /// Outside.
    pub padding: GridPadding,
    /// Whether -1 and 1 are the centres of the outermost elements instead of their outer borders.
    pub align_corners: bool,
}

const OP: &str = "grid_sample";

/// Spatial dimensions that the kernel knows.
const AXES: usize = 3;

/// The whole number below, of one so far from 0 any: that is on no axis. A call of the C library else.
fn floor(x: f64) -> f64 {
    let whole = x as i64 as f64;
    if whole > x { whole - 1.0 } else { whole }
}

/// Mirrors a position at `low` and `high` until it lies between them.
fn reflect(at: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 {
        return low;
    }
    let distance = if at < low { low - at } else { at - high };
    if at >= low && at <= high || !distance.is_finite() {
        return if distance.is_nan() { low } else { at.clamp(low, high) };
    }
    let rest = distance % range;
    let even = (distance / range).floor() % 2.0 == 0.0;
    if (at < low) == even { low + rest } else { high - rest }
}

impl GridSample {
    fn has_kernel(self, src: &[Info], dst: &Info) -> bool {
        dst.dims.len() <= 2 + AXES
            && dst.elements() > 0
            && [&src[1], dst].iter().all(|info| info.dtype == DType::F32)
    }

    /// The lowest and the highest position that is not padding.
    fn border(self, extent: usize) -> (f64, f64) {
        let extent = extent as f64;
        if self.align_corners { (0.0, extent - 1.0) } else { (-0.5, extent - 0.5) }
    }

    /// The position along an axis in elements. In f32: ties depend on it.
    fn position(self, at: f64, extent: usize) -> f64 {
        let (at, n) = (at as f32, extent as f32);
        let x = if self.align_corners {
            (at + 1.0) / 2.0 * (n - 1.0)
        } else {
            ((at + 1.0) * n - 1.0) / 2.0
        };
        let x = if self.mode == GridMode::Nearest { x.round_ties_even() } else { x };
        let (x, (low, high)) = (f64::from(x), self.border(extent));
        match self.padding {
            // Each element that the filter reads is moved by itself: beyond this all are the border.
            GridPadding::Border if self.mode == GridMode::Cubic => {
                x.clamp(-3.0, f64::from(n) + 2.0)
            }
            GridPadding::Border => x.clamp(0.0, f64::from(n) - 1.0),
            GridPadding::Reflection => reflect(x, low, high),
            GridPadding::Zeros => x,
        }
    }

    /// The element at a whole position, if there is one.
    fn element(self, at: f64, extent: usize) -> Option<usize> {
        match self.padding {
            GridPadding::Zeros => inside(at, extent),
            GridPadding::Border => inside(at.clamp(0.0, extent as f64 - 1.0), extent),
            GridPadding::Reflection => {
                let (low, high) = self.border(extent);
                inside(reflect(at, low, high).trunc(), extent)
            }
        }
    }

    /// The neighbours of a position and their weights.
    fn neighbours(self, at: f64, extent: usize) -> [(Option<usize>, f64); 2] {
        let x = self.position(at, extent);
        if x.is_nan() {
            return [(Some(0), f64::NAN), (None, 0.0)];
        }
        let low = floor(x);
        let t = x - low;
        [(self.element(low, extent), 1.0 - t), (self.element(low + 1.0, extent), t)]
    }

    fn taps(self, at: f64, extent: usize) -> Taps {
        if self.mode == GridMode::Linear {
            return self.neighbours(at, extent).into_iter().collect();
        }
        let x = self.position(at, extent);
        if x.is_nan() {
            return Taps::from_iter([(Some(0), f64::NAN)]);
        }
        if self.mode == GridMode::Nearest {
            return Taps::from_iter([(self.element(x.round_ties_even(), extent), 1.0)]);
        }
        let low = floor(x);
        let t = x - low;
        let weights = [far(1.0 + t), near(t), near(1.0 - t), far(2.0 - t)];
        let each = (-1i8..).zip(weights);
        each.map(|(i, w)| (self.element(low + f64::from(i), extent), w)).collect()
    }

    /// Calls `put` with the place of each result and its value.
    fn sample_all(
        self,
        from: &[usize],
        to: &[usize],
        grid: &[f64],
        x: impl Fn(usize) -> f64,
        mut put: impl FnMut(usize, f64),
    ) {
        let (c, spatial) = (to[1], &from[2..]);
        let area: usize = spatial.iter().product();
        let points: usize = to[2..].iter().product();
        let (mut taps, mut cells) = (Vec::new(), Vec::new());
        for (point, at) in grid.chunks_exact(spatial.len()).enumerate() {
            let axes = at.iter().rev().zip(spatial);
            taps.clear();
            taps.extend(axes.map(|(&at, &extent)| self.taps(at, extent)));
            // The same cells of each channel.
            cells.clear();
            spread(spatial, &taps, &mut |at, w| cells.push((at, w)));
            let (batch, point) = (point / points, point % points);
            for plane in batch * c..(batch + 1) * c {
                let value = cells.iter().fold(0.0, |sum, &(at, w)| sum + w * x(plane * area + at));
                put(plane * points + point, value);
            }
        }
    }
}

/// What the points of a grid read.
#[derive(Debug)]
struct Points {
    op: GridSample,
    spatial: Vec<usize>,
    channels: usize,
    points: usize,
}

impl Sampler for Points {
    #[allow(unsafe_code)]
    unsafe fn planes(&self, _src: &[*const u8], part: usize) -> Result<Planes, GraphError> {
        Ok(Planes { from: (part, 0), to: (part, 0), count: self.channels })
    }

    #[allow(unsafe_code)]
    unsafe fn reads(
        &self,
        src: &[*const u8],
        part: usize,
        point: usize,
        read: &mut dyn FnMut(usize, f32),
    ) {
        let rank = self.spatial.len();
        // SAFETY: the grid, f32, has a position for each part and point.
        let at = unsafe {
            let first = (part * self.points + point) * rank;
            core::slice::from_raw_parts(src[1].cast::<f32>().add(first), rank)
        };
        // As nearly all are, without the detour that the others take.
        if let (GridMode::Linear, &[x, y], &[h, w]) = (self.op.mode, at, &self.spatial[..]) {
            let columns = self.op.neighbours(f64::from(x), w);
            for (row, part) in self.op.neighbours(f64::from(y), h) {
                let Some(row) = row.filter(|_| part != 0.0) else { continue };
                for (column, weight) in columns {
                    if let Some(column) = column.filter(|_| weight != 0.0) {
                        read(row * w + column, (part * weight) as f32);
                    }
                }
            }
            return;
        }
        let mut taps = [Taps::default(); AXES];
        for (taps, (&at, &extent)) in taps.iter_mut().zip(at.iter().rev().zip(&self.spatial)) {
            *taps = self.op.taps(f64::from(at), extent);
        }
        spread(&self.spatial, &taps[..rank], &mut |at, weight| read(at, weight as f32));
    }
}

/// Keys' filter at a distance of at most 1.
fn near(x: f64) -> f64 {
    (1.25 * x - 2.25) * x * x + 1.0
}

/// Keys' filter at a distance from 1 to 2.
fn far(x: f64) -> f64 {
    ((-0.75 * x + 3.75) * x - 6.0) * x + 3.0
}

impl Operator for GridSample {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, grid) = (&src[0], &src[1]);
        expect_dtype(OP, x, |d| d.is_float())?;
        expect_dtype(OP, grid, |d| d.is_float())?;
        let spatial = x.dims.len().saturating_sub(2);
        let fits = spatial > 0
            && grid.dims.len() == x.dims.len()
            && grid.dims[0] == x.dims[0]
            && grid.dims.last() == Some(&spatial);
        if !fits || x.dims[2..].contains(&0) {
            let rule = "the grid must hold a position in x for each output of each batch";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims), ("grid", &grid.dims)]));
        }
        let dims = [&x.dims[..2], &grid.dims[1..grid.dims.len() - 1]].concat();
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let grid = floats(&src[1], OP)?;
        if src[0].dtype == DType::F32 {
            let x = src[0].slice::<f32>(OP)?;
            let dims = dst.dims;
            let y = dst.slice::<f32>(OP)?;
            self.sample_all(
                src[0].dims,
                dims,
                &grid,
                |at| f64::from(x[at]),
                |at, v| y[at] = v as f32,
            );
            return Ok(());
        }
        let x = floats(&src[0], OP)?;
        let mut out = vec![0.0; dst.dims.iter().product()];
        self.sample_all(src[0].dims, dst.dims, &grid, |at| x[at], |at, v| out[at] = v);
        write_floats(dst, OP, out)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (x, dst) = (&cx.src[0], cx.dst);
        if !self.has_kernel(cx.src, dst) {
            return Ok(None);
        }
        let points = Points {
            op: *self,
            spatial: x.dims[2..].to_vec(),
            channels: x.dims[1],
            points: dst.dims[2..].iter().product(),
        };
        Ok(SampleStep::boxed(OP, Box::new(points), x.dims[0], [x, dst]))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if self.has_kernel(cx.src, cx.dst) && cx.dst.dims.len() == 4 {
            LayoutRule::Follow(vec![0])
        } else {
            LayoutRule::Plain
        }
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let taps: u64 = if self.mode == GridMode::Cubic { 4 } else { 2 };
        let spatial = u32::try_from(src[0].dims.len()).unwrap_or(0).saturating_sub(2);
        taps.saturating_pow(spatial).saturating_mul(dst.elements() as u64)
    }
}
