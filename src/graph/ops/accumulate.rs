//! Running sums and products along an axis.

use bytemuck::{cast_slice, cast_slice_mut};

use super::cast::Number;
use super::elements::{around, expect_dtype, floats, low_bits, write_floats, write_low_bits};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Each element becomes the sum (or product) of those up to it along an axis, as ONNX `CumSum` and
/// `CumProd`. Integers wrap around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accumulate {
    /// The axis, from the slowest.
    pub axis: usize,
    /// Products instead of sums.
    pub product: bool,
    /// Leaves out the element itself.
    pub exclusive: bool,
    /// From the end of the axis to its start.
    pub reverse: bool,
}

const OP: &str = "accumulate";

/// Lanes, neighbours behind the axis, that are summed together: long runs of memory, of which the sums stay in the
/// first-level cache.
const LANES: usize = 1024;

impl Operator for Accumulate {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d != DType::Bool)?;
        if self.axis >= x.dims.len() {
            return Err(GraphError::mismatch(OP, "the axis must exist", &[("x", &x.dims)]));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (outer, extent, inner) = around(src[0].dims, self.axis);
        let extents = [outer, extent, inner];
        let count = dst.dims.iter().product();
        macro_rules! lanes {
            // Kept in f64, and rounded once per element.
            (floats $t:ty, $x:expr, $y:expr) => {{
                let step = |a: f64, x: $t| {
                    if self.product { a * x.to_float() } else { a + x.to_float() }
                };
                let start = f64::from(u8::from(self.product));
                self.lanes::<$t, _>($x, $y, extents, start, step, <$t>::from_float);
            }};
            // Low bits are all that counts, which are the same without a sign.
            (integers $t:ty, $x:expr, $y:expr) => {{
                let step = |a: $t, x: $t| {
                    if self.product { a.wrapping_mul(x) } else { a.wrapping_add(x) }
                };
                self.lanes::<$t, _>($x, $y, extents, <$t>::from(self.product), step, |a| a);
            }};
        }
        match src[0].dtype {
            DType::F32 => lanes!(floats f32, cast_slice(src[0].bytes), cast_slice_mut(dst.bytes)),
            DType::I32 | DType::U32 => {
                lanes!(integers i32, cast_slice(src[0].bytes), cast_slice_mut(dst.bytes));
            }
            DType::I64 | DType::U64 => {
                lanes!(integers i64, cast_slice(src[0].bytes), cast_slice_mut(dst.bytes));
            }
            dtype if dtype.is_float() => {
                let mut y = vec![0.0; count];
                lanes!(floats f64, &floats(&src[0], OP)?, &mut y);
                write_floats(dst, OP, y)?;
            }
            DType::Bool => {
                return Err(GraphError::UnsupportedDType { op: OP, dtype: src[0].dtype });
            }
            _ => {
                let mut y = vec![0; count];
                lanes!(integers i64, &low_bits(&src[0], OP)?, &mut y);
                write_low_bits(dst, OP, &y)?;
            }
        }
        Ok(())
    }
}

impl Accumulate {
    /// Neighbours behind the axis are looked at together, so that elements are read in their order.
    fn lanes<T: Copy, A: Copy>(
        &self,
        x: &[T],
        y: &mut [T],
        [outer, extent, inner]: [usize; 3],
        start: A,
        step: impl Fn(A, T) -> A,
        rounded: impl Fn(A) -> T,
    ) {
        let place = |i: usize| if self.reverse { extent - 1 - i } else { i };
        let next = |sum: &mut A, x: T, y: &mut T| {
            let before = *sum;
            *sum = step(before, x);
            *y = rounded(if self.exclusive { before } else { *sum });
        };
        let mut sums = [start; LANES];
        for o in 0..outer {
            let first = o * extent * inner;
            if inner == 1 {
                let mut sum = start;
                for at in (0..extent).map(|i| first + place(i)) {
                    next(&mut sum, x[at], &mut y[at]);
                }
                continue;
            }
            for from in (0..inner).step_by(LANES) {
                let count = LANES.min(inner - from);
                sums[..count].fill(start);
                for at in (0..extent).map(|i| first + place(i) * inner + from) {
                    let pairs = x[at..][..count].iter().zip(&mut y[at..][..count]);
                    sums.iter_mut().zip(pairs).for_each(|(sum, (x, y))| next(sum, *x, y));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn lanes_behind_the_axis_as_one_by_one() {
        const EXTENT: usize = 5;
        for (inner, product, exclusive, reverse) in [
            (1, false, false, false),
            (40, false, true, false),
            (LANES + 6, true, false, true),
            (3, true, true, true),
        ] {
            let values: Vec<i64> =
                (0..2 * EXTENT * inner).map(|i| (i as i64 * 31) % 7 - 3).collect();
            let floats: Vec<f32> = values.iter().map(|&v| v as f32).collect();
            let dims = [2, EXTENT, inner];
            let mut cx = Context::new();
            let whole = cx.constant(Tensor::from_slice(&dims, &values).unwrap()).unwrap();
            let float = cx.constant(Tensor::from_slice(&dims, &floats).unwrap()).unwrap();
            let op = Accumulate { axis: 1, product, exclusive, reverse };
            let [whole, float] = [whole, float].map(|x| cx.op(op, &[x]).unwrap());
            let [whole, float] = [whole, float].map(|y| cx.constant_value(y).unwrap());
            let (whole, float) =
                (whole.as_slice::<i64>().unwrap(), float.as_slice::<f32>().unwrap());
            for (at, (&found, &float)) in whole.iter().zip(float.iter()).enumerate() {
                let (o, step, i) = (at / inner / EXTENT, at / inner % EXTENT, at % inner);
                let taken = (0..EXTENT).filter(|&j| {
                    let before = if reverse { j > step } else { j < step };
                    before || (j == step && !exclusive)
                });
                let taken = taken.map(|j| values[(o * EXTENT + j) * inner + i]);
                let want: i64 = if product { taken.product() } else { taken.sum() };
                assert_eq!((found, float), (want, want as f32), "{op:?} {at}");
            }
        }
    }
}
