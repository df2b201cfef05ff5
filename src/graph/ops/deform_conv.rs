//! Convolution whose windows bend.

use super::elements::{checked_count, expect_dtype, floats, write_floats};
use super::sampling::{linear, sample, spread};
use super::windows::Windows;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Convolution in two dimensions in which each tap reads `x` at an offset, between elements by
/// linear interpolation, and may be scaled, as ONNX `DeformConv`. Operands: `x [n, c, h, w]`,
/// weights `[k, c / groups, kh, kw]`, offsets `[n, offset_groups * kh * kw * 2, oh, ow]`, then
/// `bias [k]` and a mask `[n, offset_groups * kh * kw, oh, ow]` as flagged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeformConv {
    /// The windows.
    pub windows: Windows,
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Groups of channels of `x` with offsets of their own.
    pub offset_groups: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether there is a mask.
    pub mask: bool,
}

const OP: &str = "deform_conv";

/// The elements of a plane that taps of windows read, with their weights.
#[derive(Default)]
struct Reads {
    cells: Vec<(usize, f64)>,
    /// Where the cells of each end.
    ends: Vec<usize>,
}

impl Reads {
    fn of(&self, i: usize) -> &[(usize, f64)] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.cells[start..self.ends[i]]
    }
}

impl DeformConv {
    /// What each tap of each window reads, all windows of one tap after the other. `offsets` has two
    /// numbers per tap and window: all of one tap's first dimension, then of its second.
    fn place(&self, reads: &mut Reads, spatial: &[usize], seats: &[usize], offsets: &[f64]) {
        let Windows { size, stride, dilation, before, .. } = &self.windows;
        let (width, points) = (seats[1].max(1), seats[0] * seats[1]);
        reads.cells.clear();
        reads.ends.clear();
        for tap in 0..size[0] * size[1] {
            let cell = [tap / size[1], tap % size[1]];
            for point in 0..points {
                let seat = [point / width, point % width];
                let at = [0, 1].map(|d| {
                    let start = (seat[d] * stride[d] + cell[d] * dilation[d]) as f64;
                    let offset = offsets[(tap * 2 + d) * points + point];
                    linear(start - before[d] as f64 + offset, spatial[d])
                });
                spread(spatial, &at, &mut reads.cells);
                reads.ends.push(reads.cells.len());
            }
        }
    }
}

impl Operator for DeformConv {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let count = 3 + usize::from(self.bias) + usize::from(self.mask);
        expect_operands(OP, src, count..=count, "as flagged")?;
        let (x, w, offsets) = (&src[0], &src[1], &src[2]);
        for s in src {
            expect_dtype(OP, s, |d| d == x.dtype && matches!(d, DType::F32 | DType::F64))?;
        }
        let shapes = [("x", &x.dims[..]), ("weights", &w.dims), ("offsets", &offsets.dims)];
        let mismatch = |rule| GraphError::mismatch(OP, rule, &shapes);
        let (&[n, c, h, wide], &[k, cg, kh, kw]) = (&x.dims[..], &w.dims[..]) else {
            return Err(mismatch("x and weights must have two spatial dimensions"));
        };
        self.windows.check(OP, &[h, wide])?;
        let (g, og) = (self.groups, self.offset_groups);
        if g == 0 || og == 0 || cg.checked_mul(g) != Some(c) || k % g != 0 || c % og != 0 {
            return Err(mismatch("channels and groups must agree"));
        }
        let taps = kh.checked_mul(kw).and_then(|t| t.checked_mul(og)).unwrap_or(usize::MAX);
        let [oh, ow] = self.windows.count[..] else { return Err(mismatch("two dimensions")) };
        let mask = src.get(3 + usize::from(self.bias)).filter(|_| self.mask);
        let fits = self.windows.size == [kh, kw]
            && Some(&offsets.dims) == taps.checked_mul(2).map(|t| vec![n, t, oh, ow]).as_ref()
            && mask.is_none_or(|m| m.dims == [n, taps, oh, ow])
            && (!self.bias || src[3].dims == [k]);
        if !fits {
            return Err(mismatch("offsets, mask and bias must fit the windows"));
        }
        checked_count(OP, &[n, k, oh, ow])?;
        Ok(Info::plain(x.dtype, vec![n, k, oh, ow]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (xd, wd) = (src[0].dims, src[1].dims);
        let (x, w, offsets) = (floats(&src[0], OP)?, floats(&src[1], OP)?, floats(&src[2], OP)?);
        let bias = if self.bias { Some(floats(&src[3], OP)?) } else { None };
        let mask = src.get(3 + usize::from(self.bias)).filter(|_| self.mask);
        let mask = mask.map(|m| floats(m, OP)).transpose()?;
        let (c, spatial, taps) = (xd[1], &xd[2..], wd[2] * wd[3]);
        let (k, points) = (wd[0], dst.dims[2] * dst.dims[3]);
        let (cg, kg, per_offset) = (wd[1], k / self.groups, c / self.offset_groups);
        let mut out = vec![0.0; xd[0] * k * points];
        if let Some(bias) = &bias {
            let rows = out.chunks_mut(points.max(1)).enumerate();
            rows.for_each(|(i, row)| row.fill(bias[i % k]));
        }
        let mut reads = Reads::default();
        // What one channel holds at each tap of each window, for all filters.
        let mut held = vec![0.0; taps * points];
        for part in 0..xd[0] * self.offset_groups {
            let (n, first) = (part / self.offset_groups, part % self.offset_groups * per_offset);
            let offsets = &offsets[part * taps * 2 * points..][..taps * 2 * points];
            self.place(&mut reads, spatial, &dst.dims[2..], offsets);
            for channel in first..first + per_offset {
                let area = spatial[0] * spatial[1];
                let plane = &x[(n * c + channel) * area..][..area];
                for (i, held) in held.iter_mut().enumerate() {
                    let scale = mask.as_ref().map_or(1.0, |m| m[part * taps * points + i]);
                    *held = scale * sample(plane, reads.of(i));
                }
                for ki in channel / cg * kg..(channel / cg + 1) * kg {
                    let sums = &mut out[(n * k + ki) * points..][..points];
                    let weights = &w[(ki * cg + channel % cg) * taps..][..taps];
                    for (held, weight) in held.chunks_exact(points.max(1)).zip(weights) {
                        sums.iter_mut().zip(held).for_each(|(sum, held)| *sum += weight * held);
                    }
                }
            }
        }
        write_floats(dst, OP, out)
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let (n, _, area) = dst.ncs();
        (src[1].elements() as u64).saturating_mul(4 * n as u64).saturating_mul(area as u64)
    }
}
