//! Softmax of rows.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// `exp(x - m) / sum(exp(x - m))` over the last axis, `m` being its largest element; or the
/// logarithm of that. A row with a NaN or without any finite element becomes NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// Whether the result is the logarithm.
    pub log: bool,
}

impl Operator for Softmax {
    fn name(&self) -> &'static str {
        if self.log { "log_softmax" } else { "softmax" }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "1")?;
        let x = &src[0];
        if !x.dtype.is_float() {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: x.dtype });
        }
        if x.dims.is_empty() {
            let rule = "x must have a last axis";
            return Err(GraphError::mismatch(self.name(), rule, &[("x", &x.dims)]));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, name, log) = (&src[0], self.name(), self.log);
        let row = x.dims[x.dims.len() - 1];
        if x.is_empty() {
            return Ok(());
        }
        macro_rules! rows {
            ($t:ty, $to:expr) => {{
                let y = dst.slice::<$t>(name)?.chunks_exact_mut(row);
                for (y, x) in y.zip(x.slice::<$t>(name)?.chunks_exact(row)) {
                    let largest = x.iter().map(|&v| f64::from(v)).fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = x.iter().map(|&v| (f64::from(v) - largest).exp()).sum();
                    for (y, &x) in y.iter_mut().zip(x) {
                        let shifted = f64::from(x) - largest;
                        *y = $to(if log { shifted - sum.ln() } else { shifted.exp() / sum });
                    }
                }
                Ok(())
            }};
        }
        match x.dtype {
            DType::F32 => rows!(f32, |v: f64| v as f32),
            DType::F64 => rows!(f64, |v: f64| v),
            DType::F16 => rows!(half::f16, half::f16::from_f64),
            DType::BF16 => rows!(half::bf16, half::bf16::from_f64),
            dtype => Err(GraphError::UnsupportedDType { op: name, dtype }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn softmax(log: bool, dims: &[usize], x: &[f32]) -> Vec<f32> {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(dims, x).unwrap()).unwrap();
        let y = cx.op(Softmax { log }, &[x]).unwrap();
        cx.constant_value(y).unwrap().as_slice().unwrap().to_vec()
    }

    #[test]
    fn rows_sum_to_one_and_do_not_overflow() {
        let y = softmax(false, &[2, 2], &[0.0, 3f32.ln(), 1000.0, 1000.0]);
        let want = [0.25, 0.75, 0.5, 0.5];
        assert!(y.iter().zip(want).all(|(y, w)| (y - w).abs() < 1e-6), "{y:?}");
        let y = softmax(true, &[1, 2], &[0.0, 3f32.ln()]);
        assert!((y[0] - 0.25f32.ln()).abs() < 1e-6 && (y[1] - 0.75f32.ln()).abs() < 1e-6, "{y:?}");
        assert!(softmax(false, &[2, 0], &[]).is_empty());
        assert_eq!(softmax(false, &[1, 2], &[f32::NEG_INFINITY, 0.0]), [0.0, 1.0]);
        assert!(softmax(false, &[2], &[f32::NAN, 0.0]).iter().all(|v| v.is_nan()));
    }
}
