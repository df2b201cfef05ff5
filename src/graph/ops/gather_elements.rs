//! Selection of single elements along an axis.

use super::elements::{expect_dtype, integers, is_index, position, strides, unravel};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The element at the same position as each index (`i64` or `i32`; negative ones count from the
/// end), but for `axis`, where the index stands, as ONNX `GatherElements`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherElements {
    /// The axis, from the slowest.
    pub axis: usize,
}

const OP: &str = "gather_elements";

/// Whether positions of `indices` are positions of `x`, but along `axis`.
pub(super) fn fits(x: &[usize], indices: &[usize], axis: usize) -> bool {
    let inside = |(i, (x, n)): (usize, (&usize, &usize))| i == axis || n <= x;
    x.len() == indices.len() && axis < x.len() && x.iter().zip(indices).enumerate().all(inside)
}

impl Operator for GatherElements {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, indices) = (&src[0], &src[1]);
        expect_dtype(OP, x, |_| true)?;
        expect_dtype(OP, indices, is_index)?;
        if !fits(&x.dims, &indices.dims, self.axis) {
            let rule = "the indices must lie within x but for an existing axis";
            let shapes = [("x", &x.dims[..]), ("indices", &indices.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(x.dtype, indices.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, size) = (&src[0], dst.dtype.block_bytes());
        let (steps, mut at) = (strides(x.dims), vec![0; x.dims.len()]);
        let indices = integers(&src[1], OP)?.into_iter().enumerate();
        for ((i, index), y) in indices.zip(dst.bytes.chunks_exact_mut(size)) {
            unravel(i, src[1].dims, &mut at);
            at[self.axis] = position(OP, index, x.dims[self.axis])?;
            let from: usize = at.iter().zip(&steps).map(|(a, s)| a * s).sum();
            y.copy_from_slice(&x.bytes[from * size..][..size]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn indices_are_checked() {
        let mut cx = Context::new();
        let x = Tensor::from_slice(&[2, 3], &[1i16, 2, 3, 4, 5, 6]).unwrap();
        let x = cx.constant(x).unwrap();
        let mut run = |axis, dims: &[usize], v: &[i64]| {
            let i = cx.constant(Tensor::from_slice(dims, v)?)?;
            let y = cx.op(GatherElements { axis }, &[x, i])?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<i16>()?.to_vec())
        };
        assert_eq!(run(1, &[2, 2], &[0, -1, 2, 1]).unwrap(), [1, 3, 6, 5]);
        assert_eq!(run(0, &[1, 2], &[1, 0]).unwrap(), [4, 2]);
        assert!(run(1, &[1, 1], &[3]).is_err() && run(1, &[1, 1], &[i64::MIN]).is_err());
        assert!(run(1, &[3, 1], &[0; 3]).is_err() && run(2, &[1, 1], &[0]).is_err());
    }
}
