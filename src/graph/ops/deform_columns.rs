//! What the windows of a convolution read where they bend.

use super::elements::{checked_count, expect_dtype, floats, write_floats};
use super::sampling::{Planes, SampleStep, Sampler};
use super::windows::Windows;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;
use tilewright_kernels::C_BLOCK;

/// The taps of windows in two dimensions, each of which reads `x` at an offset, between elements by linear
/// interpolation, and may be scaled: ONNX `DeformConv` is a convolution of 1 x 1 over them. Operands: `x [n, c,
/// h, w]`, offsets `[n, offset_groups * kh * kw * 2, oh, ow]`, then a mask `[n, offset_groups * kh * kw, oh, ow]`
/// as flagged. Result: `[n, groups * kh * kw * (c / groups), oh, ow]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeformColumns {
    /// The windows.
    pub windows: Windows,
    /// Groups of channels that do not mix: all taps of one come before those of the next.
    pub groups: usize,
    /// Groups of channels of `x` with offsets of their own.
    pub offset_groups: usize,
    /// Whether there is a mask.
    pub mask: bool,
}

const OP: &str = "deform_columns";

/// Channels that share a group and offsets. Parts are those of a picture and tap: pictures, channels and taps,
/// from the slowest.
#[derive(Clone, Copy, Debug)]
struct Runs {
    channels: usize,
    taps: usize,
    /// Channels of a group, with offsets of their own, and of both at once.
    group: usize,
    bent: usize,
    run: usize,
}

impl Runs {
    fn new(op: &DeformColumns, channels: usize) -> Self {
        let taps = op.windows.size.iter().product();
        let (group, bent) = (channels / op.groups, channels / op.offset_groups);
        let (mut run, mut rest) = (group, bent);
        while rest != 0 {
            (run, rest) = (rest, run % rest);
        }
        Self { channels, taps, group, bent, run }
    }

    fn parts(self, pictures: usize) -> usize {
        pictures * self.channels / self.run.max(1) * self.taps
    }

    /// Picture, first channel and tap of a part.
    fn part(self, part: usize) -> (usize, usize, usize) {
        let (run, tap) = (part / self.taps, part % self.taps);
        let runs = self.channels / self.run;
        (run / runs, run % runs * self.run, tap)
    }

    fn planes(self, part: usize) -> Planes {
        let (n, channel, tap) = self.part(part);
        let (group, inside) = (channel / self.group, channel % self.group);
        let to = (group * self.taps + tap) * self.group + inside;
        Planes { from: (n, channel), to: (n, to), count: self.run }
    }
}

impl DeformColumns {
    /// Calls `read` with the elements that a tap of a window reads, and their weights.
    fn reads(
        &self,
        [h, w]: [usize; 2],
        tap: usize,
        point: usize,
        [down, right, scale]: [f64; 3],
        mut read: impl FnMut(usize, f64),
    ) {
        let Windows { size, stride, dilation, before, count, .. } = &self.windows;
        let at = |d: usize, seat: usize, tap: usize| {
            (seat * stride[d] + tap * dilation[d]) as f64 - before[d] as f64
        };
        let y = at(0, point / count[1], tap / size[1]) + down;
        let x = at(1, point % count[1], tap % size[1]) + right;
        if !(y > -1.0 && y < h as f64 && x > -1.0 && x < w as f64) {
            return;
        }
        // Whole numbers below the position, which is above -1; one more, for there is no negative index.
        let (top, left) = ((y + 1.0) as usize, (x + 1.0) as usize);
        let (below, beside) = (y + 1.0 - top as f64, x + 1.0 - left as f64);
        for (row, weight) in [(top, 1.0 - below), (top + 1, below)] {
            for (column, share) in [(left, 1.0 - beside), (left + 1, beside)] {
                let inside = (1..=h).contains(&row) && (1..=w).contains(&column);
                if inside && weight * share != 0.0 {
                    read((row - 1) * w + column - 1, weight * share * scale);
                }
            }
        }
    }

    /// Where a part's offsets begin, down and right, and its mask: in elements of `points`.
    fn places(&self, runs: Runs, part: usize) -> [usize; 3] {
        let (n, channel, tap) = runs.part(part);
        let bent = n * self.offset_groups + channel / runs.bent;
        let first = bent * runs.taps + tap;
        [2 * first, 2 * first + 1, first]
    }
}

impl Operator for DeformColumns {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let count = 2 + usize::from(self.mask);
        expect_operands(OP, src, count..=count, "as flagged")?;
        let (x, offsets) = (&src[0], &src[1]);
        for s in src {
            expect_dtype(OP, s, |d| d == x.dtype && matches!(d, DType::F32 | DType::F64))?;
        }
        let shapes = [("x", &x.dims[..]), ("offsets", &offsets.dims)];
        let mismatch = |rule| GraphError::mismatch(OP, rule, &shapes);
        let &[n, c, h, wide] = &x.dims[..] else {
            return Err(mismatch("x must have two spatial dimensions"));
        };
        self.windows.check(OP, &[h, wide])?;
        let (g, og) = (self.groups, self.offset_groups);
        if g == 0 || og == 0 || c % g != 0 || c % og != 0 {
            return Err(mismatch("channels and groups must agree"));
        }
        let taps = self.windows.size.iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        let taps = taps.ok_or_else(|| mismatch("the window is too large"))?;
        let [oh, ow] = self.windows.count[..] else { return Err(mismatch("two dimensions")) };
        let of = |each: usize| Some(vec![n, taps.checked_mul(og)?.checked_mul(each)?, oh, ow]);
        let mask = src.get(2).filter(|_| self.mask);
        if Some(&offsets.dims) != of(2).as_ref()
            || mask.is_some_and(|m| Some(&m.dims) != of(1).as_ref())
        {
            return Err(mismatch("offsets and mask must fit the windows"));
        }
        let columns = taps.checked_mul(c).ok_or_else(|| mismatch("the window is too large"))?;
        checked_count(OP, &[n, columns, oh, ow])?;
        Ok(Info::plain(x.dtype, vec![n, columns, oh, ow]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let &[n, c, h, w] = src[0].dims else { return Ok(()) };
        let (x, offsets) = (floats(&src[0], OP)?, floats(&src[1], OP)?);
        let mask = src.get(2).map(|m| floats(m, OP)).transpose()?;
        let (runs, points) = (Runs::new(self, c), dst.dims[2] * dst.dims[3]);
        let mut out = vec![0.0; dst.dims.iter().product()];
        for part in 0..runs.parts(n) {
            let [down, right, scale] = self.places(runs, part).map(|at| at * points);
            let Planes { from, to, count } = runs.planes(part);
            for point in 0..points {
                let scale = mask.as_ref().map_or(1.0, |m| m[scale + point]);
                let bend = [offsets[down + point], offsets[right + point], scale];
                self.reads([h, w], part % runs.taps, point, bend, |at, weight| {
                    for i in 0..count {
                        let x = x[(from.0 * c + from.1 + i) * h * w + at];
                        out[(to.0 * dst.dims[1] + to.1 + i) * points + point] += weight * x;
                    }
                });
            }
        }
        write_floats(dst, OP, out)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (x, dst) = (&cx.src[0], cx.dst);
        if dst.dtype != DType::F32 {
            return Ok(None);
        }
        let runs = Runs::new(self, x.dims[1]);
        let area = [x.dims[2], x.dims[3]];
        let bends = Bends { op: self.clone(), runs, area };
        Ok(SampleStep::boxed(OP, Box::new(bends), runs.parts(x.dims[0]), [x, dst]))
    }

    /// Blocks of channels are read at once where each has one group and one set of offsets.
    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let runs = Runs::new(self, cx.src[0].dims[1]);
        if cx.dst.dtype == DType::F32 && runs.run > 0 && runs.run.is_multiple_of(C_BLOCK) {
            LayoutRule::Blocked(vec![(0, Layout::Blocked)])
        } else {
            LayoutRule::Plain
        }
    }

    fn macs(&self, _src: &[Info], dst: &Info) -> u64 {
        (dst.elements() as u64).saturating_mul(4)
    }
}

/// What the taps of all windows read.
#[derive(Debug)]
struct Bends {
    op: DeformColumns,
    runs: Runs,
    area: [usize; 2],
}

impl Sampler for Bends {
    #[allow(unsafe_code)]
    unsafe fn planes(&self, _src: &[*const u8], part: usize) -> Result<Planes, GraphError> {
        Ok(self.runs.planes(part))
    }

    #[allow(unsafe_code)]
    unsafe fn reads(
        &self,
        src: &[*const u8],
        part: usize,
        point: usize,
        read: &mut dyn FnMut(usize, f32),
    ) {
        let points = self.op.windows.count.iter().product::<usize>();
        let [down, right, scale] = self.op.places(self.runs, part).map(|at| at * points + point);
        // SAFETY: offsets and mask, f32, have these elements for each part and point.
        let of = |operand: usize, at: usize| unsafe { *src[operand].cast::<f32>().add(at) };
        let scale = if self.op.mask { of(2, scale) } else { 1.0 };
        let bend = [of(1, down), of(1, right), scale].map(f64::from);
        self.op.reads(self.area, part % self.runs.taps, point, bend, |at, w| read(at, w as f32));
    }
}
