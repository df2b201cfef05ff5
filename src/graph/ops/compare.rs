//! Comparisons and logic of two operands.

use super::binary::Broadcast;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::{DType, broadcast};

/// What is asked of two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CompareOp {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Of `bool` only, like the two below.
    And,
    Or,
    Xor,
}

impl CompareOp {
    fn is_logic(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor)
    }

    fn holds<T: PartialOrd>(self, a: T, b: T, zero: T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
            Self::And => a != zero && b != zero,
            Self::Or => a != zero || b != zero,
            Self::Xor => (a != zero) != (b != zero),
        }
    }
}

/// Compares elements of one type, broadcasting as ONNX does; the result is `bool`. Nothing but
/// inequality holds of a NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare {
    /// What is asked.
    pub op: CompareOp,
}

const OP: &str = "compare";

impl Operator for Compare {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (a, b) = (&src[0], &src[1]);
        let logic = self.op.is_logic();
        if a.dtype != b.dtype || !a.dtype.is_plain() || (logic && a.dtype != DType::Bool) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: b.dtype });
        }
        let dims = broadcast(&a.dims, &b.dims).ok_or_else(|| {
            let rule = "the operands' shapes must broadcast";
            GraphError::mismatch(OP, rule, &[("a", &a.dims), ("b", &b.dims)])
        })?;
        Ok(Info::plain(DType::Bool, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let dims = dst.dims;
        let (ia, ib) = (Broadcast::new(src[0].dims, dims), Broadcast::new(src[1].dims, dims));
        with_element!(src[0].dtype, OP, T => {
            let (a, b) = (src[0].slice::<T>(OP)?, src[1].slice::<T>(OP)?);
            let row = dims.last().copied().unwrap_or(1).max(1);
            for (r, y) in dst.slice::<u8>(OP)?.chunks_exact_mut(row).enumerate() {
                let ((a0, da), (b0, db)) = (ia.row(r * row), ib.row(r * row));
                for (i, y) in y.iter_mut().enumerate() {
                    let holds = self.op.holds(a[a0 + i * da], b[b0 + i * db], T::default());
                    *y = u8::from(holds);
                }
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

    fn compare(op: CompareOp, a: Tensor, b: Tensor) -> Result<Vec<u8>, GraphError> {
        let mut cx = Context::new();
        let (a, b) = (cx.constant(a)?, cx.constant(b)?);
        let y = cx.op(Compare { op }, &[a, b])?;
        Ok(cx.constant_value(y).unwrap().bytes().to_vec())
    }

    #[test]
    fn comparisons_broadcast_and_nan_is_unordered() {
        let a = || Tensor::from_slice(&[2, 1], &[1.0f32, f32::NAN]).unwrap();
        let b = || Tensor::from_slice(&[3], &[0.0f32, 1.0, 2.0]).unwrap();
        for (op, want) in [
            (CompareOp::Equal, [0, 1, 0, 0, 0, 0]),
            (CompareOp::Less, [0, 0, 1, 0, 0, 0]),
            (CompareOp::LessOrEqual, [0, 1, 1, 0, 0, 0]),
            (CompareOp::Greater, [1, 0, 0, 0, 0, 0]),
            (CompareOp::GreaterOrEqual, [1, 1, 0, 0, 0, 0]),
        ] {
            assert_eq!(compare(op, a(), b()).unwrap(), want, "{op:?}");
        }
    }

    #[test]
    fn logic_is_for_bool() {
        let flags = |v: &[u8]| Tensor::from_bytes(DType::Bool, &[v.len()], v).unwrap();
        let (a, b) = (flags(&[0, 0, 1, 1]), flags(&[0, 1, 0, 1]));
        let with = |op| compare(op, a.clone(), b.clone()).unwrap();
        assert_eq!(with(CompareOp::And), [0, 0, 0, 1]);
        assert_eq!(with(CompareOp::Or), [0, 1, 1, 1]);
        assert_eq!(with(CompareOp::Xor), [0, 1, 1, 0]);
        assert_eq!(with(CompareOp::Equal), [1, 0, 0, 1]);
        let x = Tensor::from_slice(&[1], &[1.0f32]).unwrap();
        assert!(compare(CompareOp::And, x.clone(), x).is_err());
    }
}
