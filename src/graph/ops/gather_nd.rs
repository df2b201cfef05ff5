//! Selection of slices by tuples of indices.

use super::elements::{checked_count, expect_dtype, integers, is_index, position};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The last axis of the second operand (`i64` or `i32`) holds tuples of indices into the first
/// operand, behind `batch_dims` axes that both share, as ONNX `GatherND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherNd {
    /// Leading axes that are walked together.
    pub batch_dims: usize,
}

const OP: &str = "gather_nd";

/// Bytes from the start of `dims` to the slice that a tuple of indices names, in elements.
pub(super) fn offset(op: &'static str, tuple: &[i64], dims: &[usize]) -> Result<usize, GraphError> {
    let mut at = 0;
    for (&index, &extent) in tuple.iter().zip(dims) {
        at = at * extent + position(op, index, extent)?;
    }
    Ok(at * dims[tuple.len()..].iter().product::<usize>())
}

impl Operator for GatherNd {
    fn name(&self) -> &'static str {
        OP
    }

    fn looks_up(&self) -> bool {
        true
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, indices, b) = (&src[0], &src[1], self.batch_dims);
        expect_dtype(OP, x, |_| true)?;
        expect_dtype(OP, indices, is_index)?;
        let shared = indices.dims.len() > b && x.dims.get(..b) == indices.dims.get(..b);
        let tuple = indices.dims.last().copied().unwrap_or(0);
        let (true, Some(rest)) = (shared, b.checked_add(tuple).and_then(|i| x.dims.get(i..)))
        else {
            let rule = "batch extents must be equal, and tuples not longer than the rest";
            let shapes = [("x", &x.dims[..]), ("indices", &indices.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        };
        let dims = [&indices.dims[..indices.dims.len() - 1], rest].concat();
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, size, b) = (&src[0], dst.dtype.block_bytes(), self.batch_dims);
        let tuple = src[1].dims[src[1].dims.len() - 1];
        let inner = &x.dims[b..];
        let run = inner[tuple..].iter().product::<usize>() * size;
        let per_batch: usize = src[1].dims[b..src[1].dims.len() - 1].iter().product();
        let block = inner.iter().product::<usize>();
        if run == 0 || dst.bytes.is_empty() {
            return Ok(());
        }
        let indices = integers(&src[1], OP)?;
        for (i, y) in dst.bytes.chunks_exact_mut(run).enumerate() {
            let at = offset(OP, &indices[i * tuple..][..tuple], inner)?;
            y.copy_from_slice(&x.bytes[(i / per_batch * block + at) * size..][..run]);
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
    fn tuples_name_slices() {
        let mut cx = Context::new();
        let x = Tensor::from_slice(&[2, 2, 2], &[0i32, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let x = cx.constant(x).unwrap();
        let mut run = |batch_dims, dims: &[usize], v: &[i64]| {
            let i = cx.constant(Tensor::from_slice(dims, v)?)?;
            let y = cx.op(GatherNd { batch_dims }, &[x, i])?;
            let y = cx.constant_value(y).unwrap();
            Ok::<_, GraphError>((y.dims(), y.as_slice::<i32>()?.to_vec()))
        };
        assert_eq!(run(0, &[2, 1], &[1, 0]).unwrap().1, [4, 5, 6, 7, 0, 1, 2, 3]);
        assert_eq!(run(0, &[2], &[-1, 0]).unwrap(), (vec![2], vec![4, 5]));
        assert_eq!(run(1, &[2, 1], &[1, 0]).unwrap(), (vec![2, 2], vec![2, 3, 4, 5]));
        assert!(run(0, &[1, 1], &[2]).is_err() && run(0, &[1, 4], &[0; 4]).is_err());
        assert!(run(1, &[3, 1], &[0; 3]).is_err() && run(3, &[2, 2, 2], &[0; 8]).is_err());
    }
}
