//! Integers with a scale, as numbers.

use super::{LayoutRule, Operator, RuleCx, expect_operands, quantization};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// `(x - zero_point) * scale`, as ONNX `DequantizeLinear`; the result has the scale's type.
///
/// Operands: `x` of integers, `scale` of floats, and a `zero_point` of the type of `x` and the
/// shape of `scale`, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dequantize {
    /// The axis that has one scale per index (or block); `None` for one scale of everything.
    pub axis: Option<usize>,
    /// Indices of the axis that share a scale; 0 when each has its own.
    pub block: usize,
}

const OP: &str = "dequantize";

/// Extents that a scale must have; `None` if the axis does not exist.
pub(super) fn scale_dims(x: &[usize], axis: Option<usize>, block: usize) -> Option<Vec<usize>> {
    let Some(axis) = axis else { return Some(Vec::new()) };
    let extent = *x.get(axis)?;
    if block == 0 {
        return Some(vec![extent]);
    }
    let mut dims = x.to_vec();
    dims[axis] = extent.div_ceil(block);
    Some(dims)
}

/// From the position of an element to that of its scale.
pub(super) fn scale_position(
    x: &[usize],
    axis: Option<usize>,
    block: usize,
) -> impl Fn(usize) -> usize {
    // One scale of everything has no blocks.
    let (extent, inner, block) = match axis {
        Some(axis) => (x[axis], x[axis + 1..].iter().product::<usize>(), block),
        None => (1, usize::MAX, 0),
    };
    let blocks = if block == 0 { extent } else { extent.div_ceil(block) };
    move |i| {
        let index = i / inner % extent;
        match block {
            0 => index,
            block => (i / inner / extent * blocks + index / block) * inner + i % inner,
        }
    }
}

impl Operator for Dequantize {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "x, scale and perhaps a zero point")?;
        let (x, scale, zero) = (&src[0], &src[1], src.get(2));
        let known = matches!(x.dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32);
        if !known {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: x.dtype });
        }
        if !matches!(scale.dtype, DType::F32 | DType::F16 | DType::BF16) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: scale.dtype });
        }
        if let Some(zero) = zero.filter(|z| z.dtype != x.dtype) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: zero.dtype });
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
        Ok(Info::plain(scale.dtype, x.dims.clone()))
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        quantization::lower_dequantize(cx, self.axis, self.block)
    }

    fn layout_rule(&self, _cx: &RuleCx<'_>) -> LayoutRule {
        // One scale for all fits every layout of the types that have layouts.
        if self.axis.is_none() { LayoutRule::Follow(vec![0]) } else { LayoutRule::Plain }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let at = scale_position(src[0].dims, self.axis, self.block);
        let scales: Vec<f32> = match src[1].dtype {
            DType::F32 => src[1].slice::<f32>(OP)?.to_vec(),
            DType::F16 => src[1].slice::<half::f16>(OP)?.iter().map(|s| s.to_f32()).collect(),
            _ => src[1].slice::<half::bf16>(OP)?.iter().map(|s| s.to_f32()).collect(),
        };
        macro_rules! write {
            ($t:ty, $from:expr) => {{
                let values = values(src, &at, &scales)?;
                dst.slice::<$t>(OP)?.iter_mut().zip(values).for_each(|(y, v)| *y = $from(v));
                Ok(())
            }};
        }
        match dst.dtype {
            DType::F32 => write!(f32, |v| v),
            DType::F16 => write!(half::f16, half::f16::from_f32),
            DType::BF16 => write!(half::bf16, half::bf16::from_f32),
            dtype => Err(GraphError::UnsupportedDType { op: OP, dtype }),
        }
    }
}

/// The result as f32.
fn values(
    src: &[View<'_>],
    at: &dyn Fn(usize) -> usize,
    scales: &[f32],
) -> Result<Vec<f32>, GraphError> {
    macro_rules! read {
        ($t:ty) => {{
            let zeros = match src.get(2) {
                Some(zero) => Some(zero.slice::<$t>(OP)?),
                None => None,
            };
            let x = src[0].slice::<$t>(OP)?.iter().enumerate();
            let values = x.map(|(i, &x)| {
                let at = at(i);
                let zero = zeros.map_or(0, |z| i64::from(z[at]));
                (i64::from(x) - zero) as f32 * scales[at]
            });
            Ok(values.collect())
        }};
    }
    match src[0].dtype {
        DType::I8 => read!(i8),
        DType::U8 => read!(u8),
        DType::I16 => read!(i16),
        DType::U16 => read!(u16),
        DType::I32 => read!(i32),
        dtype => Err(GraphError::UnsupportedDType { op: OP, dtype }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn dequantize(op: Dequantize, src: Vec<Tensor>) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let src: Vec<_> = src.into_iter().map(|t| cx.constant(t).unwrap()).collect();
        let y = cx.op(op, &src)?;
        Ok(cx.constant_value(y).unwrap().as_slice().unwrap().to_vec())
    }

    #[test]
    fn one_scale_one_per_index_one_per_block() {
        let x = || Tensor::from_slice(&[2, 4], &[0u8, 1, 2, 3, 252, 253, 254, 255]).unwrap();
        let f32s = |dims: &[usize], v: &[f32]| Tensor::from_slice(dims, v).unwrap();
        let zero = Tensor::from_slice(&[], &[2u8]).unwrap();
        let all = Dequantize { axis: None, block: 0 };
        let y = dequantize(all, vec![x(), f32s(&[], &[0.5]), zero]).unwrap();
        assert_eq!(y, [-1.0, -0.5, 0.0, 0.5, 125.0, 125.5, 126.0, 126.5]);
        let rows = Dequantize { axis: Some(0), block: 0 };
        let y = dequantize(rows, vec![x(), f32s(&[2], &[1.0, 2.0])]).unwrap();
        assert_eq!(y, [0.0, 1.0, 2.0, 3.0, 504.0, 506.0, 508.0, 510.0]);
        let blocks = Dequantize { axis: Some(1), block: 2 };
        let zeros = Tensor::from_slice(&[2, 2], &[0u8, 2, 252, 0]).unwrap();
        let scale = f32s(&[2, 2], &[1.0, 10.0, 2.0, 1.0]);
        let y = dequantize(blocks, vec![x(), scale, zeros]).unwrap();
        assert_eq!(y, [0.0, 1.0, 0.0, 10.0, 0.0, 2.0, 254.0, 255.0]);
        let y = dequantize(Dequantize { axis: None, block: 3 }, vec![x(), f32s(&[], &[1.0])]);
        assert_eq!(y.unwrap()[7], 255.0);
        assert!(dequantize(rows, vec![x(), f32s(&[3], &[1.0; 3])]).is_err());
        assert!(dequantize(all, vec![x(), f32s(&[], &[1.0]), f32s(&[], &[0.0])]).is_err());
    }
}
