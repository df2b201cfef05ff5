//! Numbers as integers with a scale.

use super::cast::Number;
use super::dequantize::{scale_dims, scale_position};
use super::elements::{expect_dtype, floats};
use super::{LayoutRule, Operator, RuleCx, expect_operands, quantization};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut, with_element};
use crate::tensor::DType;

/// `round(x / scale) + zero_point`, ties to even, saturated, as ONNX `QuantizeLinear`.
///
/// Operands: `x` (floats or `i32`), `scale` (floats), and a `zero_point` of the result's type and
/// the shape of `scale`, if there is one. The quotient is computed in f32; what NaN becomes is not specified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantize {
    /// The axis that has one scale per index (or block); `None` for one scale of everything.
    pub axis: Option<usize>,
    /// Indices of the axis that share a scale; 0 when each has its own.
    pub block: usize,
    /// Type of the result, of at most 16 bits.
    pub to: DType,
}

const OP: &str = "quantize";

impl Operator for Quantize {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "x, scale and perhaps a zero point")?;
        let (x, scale, zero) = (&src[0], &src[1], src.get(2));
        expect_dtype(OP, x, |d| d.is_float() || d == DType::I32)?;
        expect_dtype(OP, scale, DType::is_float)?;
        if let Some(zero) = zero {
            expect_dtype(OP, zero, |d| d == self.to)?;
        }
        if !matches!(self.to, DType::I8 | DType::U8 | DType::I16 | DType::U16) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: self.to });
        }
        let wanted = scale_dims(&x.dims, self.axis, self.block);
        let fits = |s: &Info| {
            wanted.as_ref().is_some_and(|w| *w == s.dims || (self.axis.is_none() && s.dims == [1]))
        };
        if !fits(scale) || !zero.is_none_or(fits) {
            let rule = "scale and zero point must have one element, or one per index of the axis";
            let zero = zero.map_or(&[][..], |z| &z.dims);
            let shapes = [("x", &x.dims[..]), ("scale", &scale.dims), ("zero point", zero)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(self.to, x.dims.clone()))
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        quantization::lower_quantize(cx, self.axis, self.block)
    }

    fn layout_rule(&self, _cx: &RuleCx<'_>) -> LayoutRule {
        // One scale for all fits every layout of the types that have layouts.
        if self.axis.is_none() { LayoutRule::Follow(vec![0]) } else { LayoutRule::Plain }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, scales) = (floats(&src[0], OP)?, floats(&src[1], OP)?);
        let at = scale_position(src[0].dims, self.axis, self.block);
        with_element!(dst.dtype, OP, T => {
            let zeros = match src.get(2) {
                Some(zero) => Some(zero.slice::<T>(OP)?),
                None => None,
            };
            for (i, (y, x)) in dst.slice::<T>(OP)?.iter_mut().zip(x).enumerate() {
                let at = at(i);
                let zero = zeros.map_or(0.0, |z| z[at].to_int() as f64);
                let quotient = (x as f32 / scales[at] as f32).round_ties_even();
                let quotient = if quotient.is_nan() { 0.0 } else { f64::from(quotient) };
                // Conversions saturate.
                *y = T::from_float(quotient + zero);
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

    #[test]
    fn ties_saturation_and_axes() {
        let mut cx = Context::new();
        let x = [0.5f32, 1.5, -0.5, 1000.0, -1000.0, f32::NAN];
        let x = cx.constant(Tensor::from_slice(&[2, 3], &x).unwrap()).unwrap();
        let one = cx.constant(Tensor::from_slice(&[], &[1.0f32]).unwrap()).unwrap();
        let zero = cx.constant(Tensor::from_slice(&[], &[3i8]).unwrap()).unwrap();
        let op = Quantize { axis: None, block: 0, to: DType::I8 };
        let y = cx.op(op, &[x, one, zero]).unwrap();
        let value = cx.constant_value(y).unwrap().as_slice::<i8>().unwrap().to_vec();
        assert_eq!(value, [3, 5, 3, 127, -128, 3]);
        let scales = cx.constant(Tensor::from_slice(&[2], &[0.5f32, 100.0]).unwrap()).unwrap();
        let op = Quantize { axis: Some(0), block: 0, to: DType::U8 };
        let y = cx.op(op, &[x, scales]).unwrap();
        assert_eq!(cx.constant_value(y).unwrap().bytes(), [1, 3, 0, 10, 0, 0]);
        assert!(cx.op(Quantize { axis: Some(1), ..op }, &[x, scales]).is_err());
        assert!(cx.op(Quantize { axis: Some(9), ..op }, &[x, scales]).is_err());
        assert!(cx.op(Quantize { to: DType::I64, ..op }, &[x, scales]).is_err());
    }
}
