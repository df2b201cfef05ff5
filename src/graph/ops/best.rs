//! The largest elements of rows, with where they are, in one tensor: what sampling needs of logits.

use super::topk::{TopK, key};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// The `k` largest elements of each row, best first, of equal ones the first first.
///
/// Operand: `x [rows, n]` of f32, `n` at most 2^24. Result: `[rows, 2, k]` of f32: the positions, which f32
/// holds exactly up to there, and the elements, so that one transfer from a device brings both. What is not a
/// number counts as infinity, and is given as that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Best {
    /// How many.
    pub k: usize,
}

const OP: &str = "best";

/// Most elements of a row: f32 counts that far.
pub const MOST: usize = 1 << 24;

impl Operator for Best {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        if x.dtype != DType::F32 {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: x.dtype });
        }
        match x.dims[..] {
            [rows, n] if self.k <= n && n <= MOST => {
                Ok(Info::plain(DType::F32, vec![rows, 2, self.k]))
            }
            _ => {
                let shapes = [("x", &x.dims[..]), ("k", &[self.k])];
                Err(GraphError::mismatch(OP, "rows must have k to 2^24 elements", &shapes))
            }
        }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let number = |&v: &f32| if v.is_nan() { f32::INFINITY } else { v };
        let x: Vec<f32> = src[0].slice::<f32>(OP)?.iter().map(number).collect();
        let y = dst.slice::<f32>(OP)?;
        let top = TopK { axis: 1, k: self.k, largest: true, positions: false };
        let keys = |first: usize, _, keys: &mut [u64]| {
            keys.iter_mut().zip(&x[first..]).for_each(|(to, &v)| *to = key(v));
        };
        top.lines(src[0].dims, &keys, &mut |to, at, from| {
            let first = 2 * (to - to % self.k) + to % self.k;
            (y[first], y[first + self.k]) = (at as f32, x[from]);
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn best(k: usize, dims: &[usize], x: &[f32]) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(dims, x).unwrap())?;
        let y = cx.op(Best { k }, &[x])?;
        Ok(cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec())
    }

    #[test]
    fn positions_come_before_values() {
        let x = [1.0, 3.0, 3.0, -1.0, f32::NAN, 2.0];
        let expected = [1.0, 2.0, 3.0, 3.0, 1.0, 2.0, f32::INFINITY, 2.0];
        assert_eq!(best(2, &[2, 3], &x).unwrap(), expected);
        assert!(best(4, &[2, 3], &x).is_err());
        assert!(best(1, &[6], &x).is_err());
    }
}
