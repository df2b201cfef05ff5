//! Element-wise functions of one operand that no kernel computes.

use super::elements::{expect_dtype, floats, is_integer, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum MathOp {
    Tan,
    Asin,
    Acos,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    /// `x + bias` below `-lambda`, `x - bias` above `lambda`, else 0; also of integers.
    Shrink {
        lambda: f32,
        bias: f32,
    },
}

/// Applies a function to each element, in double precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Math {
    /// The function.
    pub op: MathOp,
}

impl Math {
    fn apply(self, x: f64) -> f64 {
        match self.op {
            MathOp::Tan => libm::tan(x),
            MathOp::Asin => libm::asin(x),
            MathOp::Acos => libm::acos(x),
            MathOp::Sinh => libm::sinh(x),
            MathOp::Cosh => libm::cosh(x),
            MathOp::Asinh => libm::asinh(x),
            MathOp::Acosh => libm::acosh(x),
            MathOp::Atanh => libm::atanh(x),
            MathOp::Shrink { lambda, bias } => {
                let (lambda, bias) = (f64::from(lambda), f64::from(bias));
                match x {
                    x if x < -lambda => x + bias,
                    x if x > lambda => x - bias,
                    _ => 0.0,
                }
            }
        }
    }
}

impl Operator for Math {
    fn name(&self) -> &'static str {
        match self.op {
            MathOp::Tan => "tan",
            MathOp::Asin => "asin",
            MathOp::Acos => "acos",
            MathOp::Sinh => "sinh",
            MathOp::Cosh => "cosh",
            MathOp::Asinh => "asinh",
            MathOp::Acosh => "acosh",
            MathOp::Atanh => "atanh",
            MathOp::Shrink { .. } => "shrink",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "1")?;
        let integral = matches!(self.op, MathOp::Shrink { .. });
        expect_dtype(self.name(), &src[0], |d| d.is_float() || (integral && is_integer(d)))?;
        Ok(Info::plain(src[0].dtype, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        // The usual type, without a copy of doubles.
        if dst.dtype == DType::F32 {
            let x = src[0].slice::<f32>(self.name())?;
            for (y, &x) in dst.slice::<f32>(self.name())?.iter_mut().zip(x) {
                *y = self.apply(x.into()) as f32;
            }
            return Ok(());
        }
        let x = floats(&src[0], self.name())?;
        write_floats(dst, self.name(), x.into_iter().map(|x| self.apply(x)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn functions_of_a_half() {
        let x = 0.5f64;
        for (op, want) in [
            (MathOp::Tan, x.tan()),
            (MathOp::Asin, x.asin()),
            (MathOp::Acos, x.acos()),
            (MathOp::Sinh, x.sinh()),
            (MathOp::Cosh, x.cosh()),
            (MathOp::Asinh, x.asinh()),
            (MathOp::Atanh, x.atanh()),
            (MathOp::Shrink { lambda: 0.25, bias: 0.125 }, 0.375),
            (MathOp::Shrink { lambda: 0.5, bias: 0.125 }, 0.0),
        ] {
            let mut cx = Context::new();
            let x = cx.constant(Tensor::from_slice(&[1], &[x]).unwrap()).unwrap();
            let y = cx.op(Math { op }, &[x]).unwrap();
            let y = cx.constant_value(y).unwrap().as_slice::<f64>().unwrap()[0];
            assert!((y - want).abs() < 1e-14, "{op:?} {y} {want}");
        }
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[2], &[-5i8, 5]).unwrap()).unwrap();
        let y = cx.op(Math { op: MathOp::Shrink { lambda: 1.0, bias: 1.5 } }, &[x]).unwrap();
        assert_eq!(cx.constant_value(y).unwrap().as_slice::<i8>().unwrap()[..], [-3, 3]);
        assert!(cx.op(Math { op: MathOp::Tan }, &[x]).is_err());
    }
}
