//! Writing of slices at tuples of indices.

use super::elements::{expect_dtype, integers, is_index};
use super::gather_nd::offset;
use super::scatter_elements::Reduction;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The first operand with the third's slices written where tuples of indices in the last axis of
/// the second (`i64` or `i32`) say, in order, as ONNX `ScatterND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScatterNd {
    /// How updates are combined with what is there.
    pub reduction: Reduction,
}

const OP: &str = "scatter_nd";

impl Operator for ScatterNd {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=3, "3")?;
        let (x, indices, updates) = (&src[0], &src[1], &src[2]);
        expect_dtype(OP, x, |d| self.reduction.allows(d))?;
        expect_dtype(OP, indices, is_index)?;
        expect_dtype(OP, updates, |d| d == x.dtype)?;
        let wanted = indices
            .dims
            .split_last()
            .and_then(|(&tuple, tuples)| Some([tuples, x.dims.get(tuple..)?].concat()));
        if wanted.as_ref() != Some(&updates.dims) {
            let rule = "updates must have one slice of x for each tuple of indices";
            let shapes =
                [("x", &x.dims[..]), ("indices", &indices.dims), ("updates", &updates.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let dims = src[0].dims;
        let tuple = src[1].dims[src[1].dims.len() - 1];
        let run: usize = dims[tuple..].iter().product();
        if run == 0 || src[2].is_empty() {
            dst.bytes.copy_from_slice(src[0].bytes);
            return Ok(());
        }
        let indices = integers(&src[1], OP)?;
        let tuples = (0..src[2].bytes.len() / src[2].dtype.block_bytes() / run)
            .map(|i| offset(OP, &indices[i * tuple..][..tuple], dims));
        let places = tuples.collect::<Result<Vec<_>, _>>()?;
        self.reduction.scatter(OP, src, dst, &places, run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn slices_and_refusals() {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap()).unwrap();
        let mut run = |dims: &[usize], v: &[i64], updates: &[usize]| {
            let i = cx.constant(Tensor::from_slice(dims, v)?)?;
            let count = updates.iter().product();
            let u = cx.constant(Tensor::from_slice(updates, &vec![10f32; count])?)?;
            let y = cx.op(ScatterNd { reduction: Reduction::Add }, &[x, i, u])?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<f32>()?.to_vec())
        };
        assert_eq!(run(&[2, 1], &[1, 1], &[2, 2]).unwrap(), [1.0, 2.0, 23.0, 24.0]);
        assert_eq!(run(&[1, 2], &[0, -1], &[1]).unwrap(), [1.0, 12.0, 3.0, 4.0]);
        assert!(run(&[1, 1], &[2], &[1, 2]).is_err() && run(&[1, 1], &[0], &[1]).is_err());
        assert!(run(&[1, 3], &[0; 3], &[1]).is_err());
    }
}
