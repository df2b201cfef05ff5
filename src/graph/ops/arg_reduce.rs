//! Positions of extremes.

use super::cast::Number;
use super::elements::{around, expect_dtype};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::DType;

/// The index of the largest or smallest element along an axis, which becomes an extent of 1, as
/// ONNX `ArgMax` and `ArgMin`. The result is `i64`. A NaN wins over every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgReduce {
    /// The axis, from the slowest; not empty.
    pub axis: usize,
    /// The smallest instead of the largest.
    pub smallest: bool,
    /// Of equal elements the last instead of the first.
    pub last: bool,
}

const OP: &str = "arg_reduce";

impl ArgReduce {
    /// Whether `a` is to be chosen rather than `b`, which stands before it.
    fn wins<T: PartialOrd>(&self, a: T, b: T) -> bool {
        let better = if self.smallest { a < b } else { a > b };
        let nan = a.partial_cmp(&a).is_none();
        let best_is_nan = b.partial_cmp(&b).is_none();
        better || (nan && !best_is_nan) || (self.last && (a == b || (nan && best_is_nan)))
    }
}

impl Operator for ArgReduce {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d != DType::Bool)?;
        let mut dims = x.dims.clone();
        match dims.get_mut(self.axis) {
            Some(extent) if *extent > 0 => *extent = 1,
            _ => {
                let rule = "the axis must exist and have elements";
                return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
            }
        }
        Ok(Info::plain(DType::I64, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (_, extent, inner) = around(src[0].dims, self.axis);
        with_element!(src[0].dtype, OP, T => {
            let x = src[0].slice::<T>(OP)?;
            for (lane, y) in dst.slice::<i64>(OP)?.iter_mut().enumerate() {
                let first = lane / inner * extent * inner + lane % inner;
                let mut best = 0;
                for i in 1..extent {
                    let (a, b) = (x[first + i * inner], x[first + best * inner]);
                    let wins = if T::FLOAT {
                        self.wins(a.to_float(), b.to_float())
                    } else {
                        self.wins(a.to_int(), b.to_int())
                    };
                    if wins {
                        best = i;
                    }
                }
                *y = best as i64;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn ties_and_nan() {
        let x = [1.0f32, 3.0, 3.0, f32::NAN, 1.0, f32::NAN];
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[2, 3], &x).unwrap()).unwrap();
        let mut run = |smallest, last| {
            let y = cx.op(ArgReduce { axis: 1, smallest, last }, &[x]).unwrap();
            cx.constant_value(y).unwrap().as_slice::<i64>().unwrap().to_vec()
        };
        assert_eq!(run(false, false), [1, 0]);
        assert_eq!(run(false, true), [2, 2]);
        assert_eq!(run(true, false), [0, 0]);
        let empty = cx.constant(Tensor::from_slice::<f32>(&[2, 0], &[]).unwrap()).unwrap();
        let op = |axis| ArgReduce { axis, smallest: false, last: false };
        assert!(cx.op(op(1), &[empty]).is_err() && cx.op(op(2), &[empty]).is_err());
    }
}
