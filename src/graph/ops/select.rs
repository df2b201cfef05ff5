//! Choice between two operands.

use super::binary::Broadcast;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::{DType, broadcast};

/// Element by element the second operand where the first (`bool`) is true, else the third; all
/// three broadcast, as ONNX `Where`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select;

const OP: &str = "where";

impl Operator for Select {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=3, "3")?;
        let (c, a, b) = (&src[0], &src[1], &src[2]);
        if c.dtype != DType::Bool {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: c.dtype });
        }
        if a.dtype != b.dtype || !a.dtype.is_plain() {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: b.dtype });
        }
        let dims = broadcast(&a.dims, &b.dims).and_then(|d| broadcast(&c.dims, &d));
        let dims = dims.ok_or_else(|| {
            let rule = "the operands' shapes must broadcast";
            let shapes = [("condition", &c.dims[..]), ("a", &a.dims), ("b", &b.dims)];
            GraphError::mismatch(OP, rule, &shapes)
        })?;
        Ok(Info::plain(a.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let size = dst.dtype.block_bytes();
        let [c, a, b] = [0, 1, 2].map(|i| Broadcast::new(src[i].dims, dst.dims));
        let row = dst.dims.last().copied().unwrap_or(1).max(1);
        for (r, y) in dst.bytes.chunks_exact_mut(row * size).enumerate() {
            let [(c0, dc), (a0, da), (b0, db)] = [&c, &a, &b].map(|o| o.row(r * row));
            for (i, y) in y.chunks_exact_mut(size).enumerate() {
                let (from, at) = if src[0].bytes[c0 + i * dc] != 0 {
                    (src[1].bytes, a0 + i * da)
                } else {
                    (src[2].bytes, b0 + i * db)
                };
                y.copy_from_slice(&from[at * size..][..size]);
            }
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
    fn all_three_broadcast() {
        let mut cx = Context::new();
        let c = Tensor::from_bytes(DType::Bool, &[2, 1], &[1, 0]).unwrap();
        let c = cx.constant(c).unwrap();
        let a = cx.constant(Tensor::from_slice(&[3], &[1i64, 2, 3]).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[], &[-1i64]).unwrap()).unwrap();
        let y = cx.op(Select, &[c, a, b]).unwrap();
        let y = cx.constant_value(y).unwrap();
        assert_eq!(y.dims(), [2, 3]);
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [1, 2, 3, -1, -1, -1]);
        assert!(cx.op(Select, &[a, a, b]).is_err());
    }
}
