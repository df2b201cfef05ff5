//! Comparisons and logic of two operands.

use super::binary::rows;
use super::elements::{in_order, narrow};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
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
        // What is greater than another is what the other is less than: one loop for both.
        let (op, a, b) = match self.op {
            CompareOp::Greater => (CompareOp::Less, &src[1], &src[0]),
            CompareOp::GreaterOrEqual => (CompareOp::LessOrEqual, &src[1], &src[0]),
            op => (op, &src[0], &src[1]),
        };
        let dims = [a.dims, b.dims];
        if op.is_logic() {
            let (x, y) = (a.slice::<u8>(OP)?, b.slice::<u8>(OP)?);
            let holds = |a, b| match op {
                CompareOp::And => (a != 0) & (b != 0),
                CompareOp::Or => (a != 0) | (b != 0),
                _ => (a != 0) != (b != 0),
            };
            return rows(OP, x, y, dims, dst, |a, b| u8::from(holds(a, b)));
        }
        let less = u8::from(op != CompareOp::Equal);
        let equal = u8::from(op != CompareOp::Less);
        macro_rules! compared {
            ($x:expr, $y:expr) => {
                rows(OP, $x, $y, dims, dst, |a, b| {
                    (u8::from(a < b) & less) | (u8::from(a == b) & equal)
                })
            };
        }
        // What a wider type holds exactly is in its order, and needs no loop of its own.
        match a.dtype {
            DType::F64 => compared!(a.slice::<f64>(OP)?, b.slice::<f64>(OP)?),
            // What masks are made of: wider ones of many would take longer to make than to compare.
            DType::I64 => compared!(a.slice::<i64>(OP)?, b.slice::<i64>(OP)?),
            DType::I32 => compared!(a.slice::<i32>(OP)?, b.slice::<i32>(OP)?),
            DType::Bool | DType::U32 | DType::U64 => {
                compared!(&in_order(a, OP)?, &in_order(b, OP)?)
            }
            _ => compared!(&narrow(a, OP)?, &narrow(b, OP)?),
        }
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

    #[test]
    fn long_rows_and_single_elements() {
        type Shapes = (&'static [usize], &'static [usize]);
        let shapes: [Shapes; 4] =
            [(&[2, 150], &[2, 150]), (&[2, 150], &[]), (&[2, 1], &[150]), (&[1], &[2, 150])];
        // And with short rows.
        let short = compare(
            CompareOp::Less,
            Tensor::from_slice(&[3, 1], &[1i64, 2, 3]).unwrap(),
            Tensor::from_slice(&[1, 3], &[0i64, 2, 4]).unwrap(),
        );
        assert_eq!(short.unwrap(), [0, 1, 1, 0, 0, 1, 0, 0, 1]);
        for (a_dims, b_dims) in shapes {
            let values = |dims: &[usize], seed: usize| -> Vec<i64> {
                (0..dims.iter().product()).map(|i: usize| ((i + seed) * 31 % 7) as i64).collect()
            };
            let (a, b) = (values(a_dims, 1), values(b_dims, 5));
            let pick = |v: &[i64], dims: &[usize], i: usize| match *dims {
                [2, 150] => v[i],
                [2, 1] => v[i / 150],
                [150] => v[i % 150],
                _ => v[0],
            };
            let tensor = |dims: &[usize], v: &[i64]| Tensor::from_slice(dims, v).unwrap();
            for (op, holds) in [
                (CompareOp::Equal, i64::eq as fn(&i64, &i64) -> bool),
                (CompareOp::Less, i64::lt),
                (CompareOp::LessOrEqual, i64::le),
                (CompareOp::Greater, i64::gt),
                (CompareOp::GreaterOrEqual, i64::ge),
            ] {
                let found = compare(op, tensor(a_dims, &a), tensor(b_dims, &b)).unwrap();
                assert_eq!(found.len(), 300);
                let narrow = |dims: &[usize], v: &[i64]| {
                    Tensor::from_slice(dims, &v.iter().map(|&v| v as i32).collect::<Vec<_>>())
                };
                let unsigned = |dims: &[usize], v: &[i64]| {
                    Tensor::from_slice(dims, &v.iter().map(|&v| v as u64).collect::<Vec<_>>())
                };
                let others = [
                    [narrow(a_dims, &a), narrow(b_dims, &b)],
                    [unsigned(a_dims, &a), unsigned(b_dims, &b)],
                ];
                for [a, b] in others {
                    assert_eq!(compare(op, a.unwrap(), b.unwrap()).unwrap(), found);
                }
                for (i, found) in found.into_iter().enumerate() {
                    let wanted = holds(&pick(&a, a_dims, i), &pick(&b, b_dims, i));
                    assert_eq!(found, u8::from(wanted), "{op:?} {a_dims:?} {b_dims:?} {i}");
                }
            }
        }
    }
}
