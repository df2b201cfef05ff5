//! Tests for numbers that are none, or infinite.

use super::elements::{expect_dtype, floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Whether each float is one of the chosen special values; the result is `bool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    /// NaN.
    pub nan: bool,
    /// Positive infinity.
    pub positive: bool,
    /// Negative infinity.
    pub negative: bool,
}

const OP: &str = "special";

impl Operator for Special {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        expect_dtype(OP, &src[0], DType::is_float)?;
        Ok(Info::plain(DType::Bool, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        if src[0].dtype == DType::F32 {
            let x = src[0].slice::<f32>(OP)?;
            for (y, x) in dst.bytes.iter_mut().zip(x) {
                let found = (self.nan & x.is_nan())
                    | (self.positive & (*x == f32::INFINITY))
                    | (self.negative & (*x == f32::NEG_INFINITY));
                *y = u8::from(found);
            }
            return Ok(());
        }
        for (y, x) in dst.bytes.iter_mut().zip(floats(&src[0], OP)?) {
            let found = (self.nan && x.is_nan())
                || (self.positive && x == f64::INFINITY)
                || (self.negative && x == f64::NEG_INFINITY);
            *y = u8::from(found);
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
    fn each_value_is_found_alone_in_each_type() {
        let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 0.0];
        let wide = x.map(f64::from);
        let tensors = [Tensor::from_slice(&[5], &x), Tensor::from_slice(&[5], &wide)];
        for x in tensors {
            let mut cx = Context::new();
            let x = cx.constant(x.unwrap()).unwrap();
            for place in 0..3 {
                let op = Special { nan: place == 0, positive: place == 1, negative: place == 2 };
                let y = cx.op(op, &[x]).unwrap();
                let found = cx.constant_value(y).unwrap().bytes().to_vec();
                let want: Vec<u8> = (0..5).map(|i| u8::from(i == place)).collect();
                assert_eq!(found, want, "{op:?}");
            }
        }
    }
}
