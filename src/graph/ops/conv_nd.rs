//! Convolutions that no kernel computes: of more than two spatial dimensions, or of other types.

use super::elements::{checked_count, expect_dtype, unravel};
use super::windows::Windows;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Convolution of `x [n, c, spatial...]` with weights `[k, c / groups, window...]`, or transposed
/// with `[c, k / groups, window...]`, and a bias `[k]` if there is a third operand. Floats are
/// summed in f64, `i32` wraps around.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvNd {
    /// The windows over `x`; transposed: over the result, one for each element of `x`.
    pub windows: Windows,
    /// Spatial extents of the result.
    pub output: Vec<usize>,
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Whether each element of `x` is spread by the weights.
    pub transposed: bool,
}

const OP: &str = "conv_nd";

impl ConvNd {
    /// Channels of the result.
    fn channels(&self, w: &[usize]) -> Option<usize> {
        if self.transposed { w[1].checked_mul(self.groups) } else { Some(w[0]) }
    }

    /// Calls `f(output, input, weight)` with the positions of all factors of each output.
    fn for_each(&self, x: &[usize], w: &[usize], mut f: impl FnMut(usize, usize, usize)) {
        let (k, c) = (self.channels(w).unwrap_or(0), x[1]);
        let (kg, cg) = (k / self.groups, c / self.groups);
        let area = |dims: &[usize]| dims.iter().product::<usize>();
        let (input, output, window) = (area(&x[2..]), area(&self.output), area(&w[2..]));
        // The side on which windows stand, and the side that they cover.
        let (covered, seats) =
            if self.transposed { (&self.output[..], &x[2..]) } else { (&x[2..], &self.output[..]) };
        let mut at = vec![0; covered.len()];
        for n in 0..x[0] {
            for g in 0..self.groups {
                for seat in 0..area(seats) {
                    unravel(seat, seats, &mut at);
                    self.windows.for_each(&at, covered, &mut |tap, cell| {
                        let (xi, yi) = if self.transposed { (seat, cell) } else { (cell, seat) };
                        for ki in 0..kg {
                            for ci in 0..cg {
                                let filter = if self.transposed {
                                    (g * cg + ci) * kg + ki
                                } else {
                                    (g * kg + ki) * cg + ci
                                };
                                f(
                                    (n * k + g * kg + ki) * output + yi,
                                    (n * c + g * cg + ci) * input + xi,
                                    filter * window + tap,
                                );
                            }
                        }
                    });
                }
            }
        }
    }
}

impl Operator for ConvNd {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "x, weights and perhaps a bias")?;
        let (x, w) = (&src[0], &src[1]);
        for s in src {
            let known = matches!(x.dtype, DType::F32 | DType::F64 | DType::I32);
            expect_dtype(OP, s, |d| known && d == x.dtype)?;
        }
        let mismatch = |rule| GraphError::mismatch(OP, rule, &[("x", &x.dims), ("w", &w.dims)]);
        if x.dims.len() < 3 || w.dims.len() != x.dims.len() {
            return Err(mismatch("x and weights must have equally many spatial dimensions"));
        }
        let g = self.groups;
        let k = self.channels(&w.dims).filter(|&k| g > 0 && k.is_multiple_of(g));
        let c = if self.transposed { Some(w.dims[0]) } else { w.dims[1].checked_mul(g) };
        let (Some(k), true) = (k, c == Some(x.dims[1]) && g > 0 && x.dims[1].is_multiple_of(g))
        else {
            return Err(mismatch("channels and groups of x and weights must agree"));
        };
        let (covered, seats) = if self.transposed {
            (&self.output, &x.dims[2..])
        } else {
            (&x.dims[2..].to_vec(), &self.output[..])
        };
        self.windows.check(OP, covered)?;
        if self.windows.size != w.dims[2..] || self.windows.count != seats {
            return Err(mismatch("windows must be those of the weights, one per position"));
        }
        if src.get(2).is_some_and(|b| b.dims != [k]) {
            return Err(mismatch("the bias must have one element per output channel"));
        }
        let dims = [&[x.dims[0], k], &self.output[..]].concat();
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (xd, wd) = (src[0].dims, src[1].dims);
        let (area, channels) = (self.output.iter().product::<usize>(), dst.dims[1]);
        macro_rules! conv {
            ($t:ty, $sum:ty, $zero:expr, $step:expr) => {{
                let (x, w) = (src[0].slice::<$t>(OP)?, src[1].slice::<$t>(OP)?);
                let y = dst.slice::<$t>(OP)?;
                let mut sums: Vec<$sum> = vec![$zero; y.len()];
                if let Some(bias) = src.get(2) {
                    let bias = bias.slice::<$t>(OP)?;
                    let each = sums.iter_mut().enumerate();
                    each.for_each(|(i, s)| *s = <$sum>::from(bias[i / area % channels]));
                }
                self.for_each(xd, wd, |yi, xi, wi| {
                    sums[yi] = $step(sums[yi], <$sum>::from(x[xi]), <$sum>::from(w[wi]));
                });
                y.iter_mut().zip(sums).for_each(|(y, s)| *y = s as $t);
                Ok(())
            }};
        }
        let multiply = |sum: f64, a: f64, b: f64| sum + a * b;
        match dst.dtype {
            DType::F32 => conv!(f32, f64, 0.0, multiply),
            DType::F64 => conv!(f64, f64, 0.0, multiply),
            DType::I32 => {
                conv!(i32, i64, 0, |sum: i64, a: i64, b: i64| sum.wrapping_add(a.wrapping_mul(b)))
            }
            dtype => Err(GraphError::UnsupportedDType { op: OP, dtype }),
        }
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let side = if self.transposed { &src[0] } else { dst };
        let (n, _, area) = side.ncs();
        (src[1].elements() as u64).saturating_mul(n as u64).saturating_mul(area as u64)
    }
}
