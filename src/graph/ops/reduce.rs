//! Reductions of rows.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// How a row becomes one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum ReduceOp {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
}

/// Reduces the last axis. Floats are accumulated in f64, integers wrap around. Without elements a
/// sum is 0, a product 1, a mean NaN (0 for integers), a maximum or minimum the type's least or
/// greatest value. A maximum or minimum with a NaN is NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// How.
    pub op: ReduceOp,
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        match self.op {
            ReduceOp::Sum => "reduce_sum",
            ReduceOp::Mean => "reduce_mean",
            ReduceOp::Prod => "reduce_prod",
            ReduceOp::Max => "reduce_max",
            ReduceOp::Min => "reduce_min",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "1")?;
        let x = &src[0];
        let logic = matches!(self.op, ReduceOp::Max | ReduceOp::Min);
        if !x.dtype.is_plain() || (x.dtype == DType::Bool && !logic) {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: x.dtype });
        }
        match x.dims.split_last() {
            Some((_, dims)) => Ok(Info::plain(x.dtype, dims.to_vec())),
            None => Err(GraphError::mismatch(
                self.name(),
                "x must have a last axis",
                &[("x", &x.dims)],
            )),
        }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, name, op) = (&src[0], self.name(), self.op);
        let row = x.dims[x.dims.len() - 1];
        macro_rules! reduce {
            ($t:ty, $f:expr) => {{
                let (x, f) = (x.slice::<$t>(name)?, $f);
                for (i, y) in dst.slice::<$t>(name)?.iter_mut().enumerate() {
                    *y = f(&x[i * row..][..row]);
                }
                Ok(())
            }};
        }
        macro_rules! float {
            ($t:ty, $from:expr) => {
                reduce!($t, |r: &[$t]| $from(floats(op, r.iter().map(|&v| f64::from(v)), r.len())))
            };
        }
        macro_rules! int {
            ($t:ty) => {
                reduce!($t, |r: &[$t]| match op {
                    ReduceOp::Sum => r.iter().fold(0, |a: $t, &v| a.wrapping_add(v)),
                    ReduceOp::Mean => {
                        let sum: i128 = r.iter().map(|&v| i128::from(v)).sum();
                        (sum / (r.len().max(1) as i128)) as $t
                    }
                    ReduceOp::Prod => r.iter().fold(1, |a: $t, &v| a.wrapping_mul(v)),
                    ReduceOp::Max => r.iter().copied().max().unwrap_or(<$t>::MIN),
                    ReduceOp::Min => r.iter().copied().min().unwrap_or(<$t>::MAX),
                })
            };
        }
        match x.dtype {
            DType::F32 => float!(f32, |v: f64| v as f32),
            DType::F64 => float!(f64, |v: f64| v),
            DType::F16 => float!(half::f16, half::f16::from_f64),
            DType::BF16 => float!(half::bf16, half::bf16::from_f64),
            DType::Bool => reduce!(u8, |r: &[u8]| match op {
                ReduceOp::Max => u8::from(r.contains(&1)),
                _ => u8::from(!r.contains(&0)),
            }),
            DType::I8 => int!(i8),
            DType::U8 => int!(u8),
            DType::I16 => int!(i16),
            DType::U16 => int!(u16),
            DType::I32 => int!(i32),
            DType::U32 => int!(u32),
            DType::I64 => int!(i64),
            DType::U64 => int!(u64),
            dtype => Err(GraphError::UnsupportedDType { op: name, dtype }),
        }
    }
}

fn floats(op: ReduceOp, row: impl Iterator<Item = f64>, len: usize) -> f64 {
    match op {
        ReduceOp::Sum => row.sum(),
        ReduceOp::Mean => row.sum::<f64>() / len as f64,
        ReduceOp::Prod => row.product(),
        ReduceOp::Max => {
            row.fold(f64::NEG_INFINITY, |a, v| if v > a || v.is_nan() { v } else { a })
        }
        ReduceOp::Min => row.fold(f64::INFINITY, |a, v| if v < a || v.is_nan() { v } else { a }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn reduce(op: ReduceOp, x: Tensor) -> Tensor {
        let mut cx = Context::new();
        let x = cx.constant(x).unwrap();
        let y = cx.op(Reduce { op }, &[x]).unwrap();
        cx.constant_value(y).unwrap().clone()
    }

    #[test]
    fn rows_of_floats() {
        let x = || Tensor::from_slice(&[2, 3], &[1f32, 2.0, 6.0, -1.0, 0.5, 4.0]).unwrap();
        for (op, want) in [
            (ReduceOp::Sum, [9.0, 3.5]),
            (ReduceOp::Mean, [3.0, 3.5 / 3.0]),
            (ReduceOp::Prod, [12.0, -2.0]),
            (ReduceOp::Max, [6.0, 4.0]),
            (ReduceOp::Min, [1.0, -1.0]),
        ] {
            let y = reduce(op, x());
            assert_eq!((y.dims(), y.as_slice::<f32>().unwrap().to_vec()), (vec![2], want.to_vec()));
        }
    }

    #[test]
    fn empty_rows_and_nan() {
        let x = || Tensor::from_slice::<f32>(&[1, 0], &[]).unwrap();
        let value = |op| reduce(op, x()).as_slice::<f32>().unwrap()[0];
        assert_eq!((value(ReduceOp::Sum), value(ReduceOp::Prod)), (0.0, 1.0));
        assert_eq!((value(ReduceOp::Max), value(ReduceOp::Min)), (f32::NEG_INFINITY, f32::INFINITY));
        assert!(value(ReduceOp::Mean).is_nan());
        let x = Tensor::from_slice(&[3], &[1.0, f32::NAN, 2.0]).unwrap();
        assert!(reduce(ReduceOp::Max, x).as_slice::<f32>().unwrap()[0].is_nan());
        let x = Tensor::from_slice(&[3], &[i32::MAX, 1, 1]).unwrap();
        assert_eq!(reduce(ReduceOp::Sum, x).as_slice::<i32>().unwrap()[..], [i32::MIN + 1]);
        let x = Tensor::from_bytes(DType::Bool, &[2, 2], &[0, 1, 0, 0]).unwrap();
        assert_eq!(reduce(ReduceOp::Max, x).bytes(), [1, 0]);
    }
}
