//! Writing of single elements along an axis.

use super::cast::Number;
use super::elements::{expect_dtype, integers, is_index, position, row_start, strides};
use super::gather_elements::fits;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::DType;

/// What becomes of an element that an update meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Reduction {
    Replace,
    Add,
    Mul,
    Min,
    Max,
}

impl Reduction {
    /// An element after an update. Integers wrap around.
    pub(super) fn apply<T: Number>(self, old: T, new: T) -> T {
        if self == Self::Replace {
            return new;
        }
        if T::FLOAT {
            let (a, b) = (old.to_float(), new.to_float());
            return T::from_float(match self {
                Self::Add => a + b,
                Self::Mul => a * b,
                Self::Min if b < a || b.is_nan() => b,
                Self::Max if b > a || b.is_nan() => b,
                _ => a,
            });
        }
        let (a, b) = (old.to_int(), new.to_int());
        match self {
            Self::Add => T::from_int(a.wrapping_add(b)),
            Self::Mul => T::from_int(a.wrapping_mul(b)),
            Self::Min if new < old => new,
            Self::Max if new > old => new,
            _ => old,
        }
    }

    /// The first operand with runs of so many elements of the third written at places, in order.
    pub(super) fn scatter(
        self,
        op: &'static str,
        src: &[View<'_>],
        dst: &mut ViewMut<'_>,
        places: &[usize],
        run: usize,
    ) -> Result<(), GraphError> {
        dst.bytes.copy_from_slice(src[0].bytes);
        if self == Self::Replace {
            let size = dst.dtype.block_bytes();
            for (&to, update) in places.iter().zip(src[2].bytes.chunks_exact(run * size)) {
                dst.bytes[to * size..][..run * size].copy_from_slice(update);
            }
            return Ok(());
        }
        with_element!(dst.dtype, op, T => {
            let (updates, y) = (src[2].slice::<T>(op)?, dst.slice::<T>(op)?);
            for (&to, update) in places.iter().zip(updates.chunks_exact(run)) {
                for (y, &u) in y[to..][..run].iter_mut().zip(update) {
                    *y = self.apply(*y, u);
                }
            }
            Ok(())
        })
    }

    /// Whether elements of a type can be combined so.
    pub(super) fn allows(self, dtype: DType) -> bool {
        dtype != DType::Bool || !matches!(self, Self::Add | Self::Mul)
    }
}

/// The first operand with the third's elements written at the indices of the second (`i64` or
/// `i32`; negative ones count from the end) along an axis, in order, as ONNX `ScatterElements`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterElements {
    /// The axis, from the slowest.
    pub axis: usize,
    /// How updates are combined with what is there.
    pub reduction: Reduction,
}

const OP: &str = "scatter_elements";

impl Operator for ScatterElements {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=3, "3")?;
        let (x, indices, updates) = (&src[0], &src[1], &src[2]);
        expect_dtype(OP, x, |d| self.reduction.allows(d))?;
        expect_dtype(OP, indices, is_index)?;
        expect_dtype(OP, updates, |d| d == x.dtype)?;
        if !fits(&x.dims, &indices.dims, self.axis) || indices.dims != updates.dims {
            let rule = "indices and updates must lie within x but for an existing axis";
            let shapes =
                [("x", &x.dims[..]), ("indices", &indices.dims), ("updates", &updates.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (extent, steps) = (src[0].dims[self.axis], strides(src[0].dims));
        let (dims, indices) = (src[1].dims, integers(&src[1], OP)?);
        let mut places = Vec::with_capacity(indices.len());
        for (r, indices) in indices.chunks_exact(dims[dims.len() - 1].max(1)).enumerate() {
            let (start, own) = row_start(r, dims, &steps, self.axis);
            for (j, &index) in indices.iter().enumerate() {
                places.push(start + position(OP, index, extent)? * steps[self.axis] + j * own);
            }
        }
        self.reduction.scatter(OP, src, dst, &places, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn reductions_and_refusals() {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[1, 3], &[1i32, 2, 3]).unwrap()).unwrap();
        let mut run = |reduction, axis, v: &[i64]| {
            let i = cx.constant(Tensor::from_slice(&[1, v.len()], v)?)?;
            let updates = vec![5i32; v.len()];
            let u = cx.constant(Tensor::from_slice(&[1, v.len()], &updates)?)?;
            let y = cx.op(ScatterElements { axis, reduction }, &[x, i, u])?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<i32>()?.to_vec())
        };
        assert_eq!(run(Reduction::Replace, 1, &[-1]).unwrap(), [1, 2, 5]);
        assert_eq!(run(Reduction::Add, 1, &[0, 0]).unwrap(), [11, 2, 3]);
        assert_eq!(run(Reduction::Mul, 1, &[0, 0]).unwrap(), [25, 2, 3]);
        assert_eq!(run(Reduction::Min, 1, &[0, 2]).unwrap(), [1, 2, 3]);
        assert_eq!(run(Reduction::Max, 1, &[0, 2]).unwrap(), [5, 2, 5]);
        assert!(run(Reduction::Add, 1, &[3]).is_err() && run(Reduction::Add, 2, &[0]).is_err());
        assert!(run(Reduction::Add, 0, &[1]).is_err());
    }
}
