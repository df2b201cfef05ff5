//! Quantised and dequantised at once.

use core::ops::Range;

use tilewright_kernels::template::fake_quantize::{FAKE_QUANTIZE_FAR, fake_quantize};

use super::elements::expect_dtype;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Numbers as they are once they were integers of some type: `(clamp(round(x / scale) + zero_point) - zero_point) *
/// scale`, of `f32`, ties to even, as ONNX `QuantizeLinear` and then `DequantizeLinear` give. NaN is 0.
///
/// What quantised networks hold in integers of 16 bits, for which there are no products, is computed as these
/// numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FakeQuantize {
    /// Finite and above 0.
    pub scale: f32,
    /// Least and greatest integer, less the zero point: at most 2^21 from 0.
    pub range: [i32; 2],
}

const OP: &str = "fake_quantize";

/// Elements of a unit.
const UNIT: usize = 8192;

/// The greatest distance from 0 of a range.
const FAR: i32 = FAKE_QUANTIZE_FAR as i32;

impl FakeQuantize {
    /// That of integers from `low` to `high` with a zero point.
    pub fn new(scale: f32, zero: i32, [low, high]: [i32; 2]) -> Self {
        Self { scale, range: [low - zero, high - zero] }
    }
}

impl Operator for FakeQuantize {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        expect_dtype(OP, &src[0], |d| d == DType::F32)?;
        let [low, high] = self.range;
        let invalid = |attribute, reason: String| {
            Err(GraphError::InvalidAttribute { op: OP, attribute, reason })
        };
        if !(self.scale.is_finite() && self.scale > 0.0) {
            return invalid("scale", format!("{} is not finite and above 0", self.scale));
        }
        if !(-FAR <= low && low <= high && high <= FAR) {
            return invalid("range", format!("{low} to {high} is not in order or too far from 0"));
        }
        Ok(Info::plain(DType::F32, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        fake_quantize(src[0].slice::<f32>(OP)?, dst.slice::<f32>(OP)?, self.scale, self.range);
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        // Lanes of blocks that are no channels are rounded too, which does no harm.
        let len = cx.dst.stored_elements().filter(|&n| n > 0);
        Ok(len.map(|len| Box::new(Run { op: *self, len }) as Box<dyn Step>))
    }

    fn layout_rule(&self, _cx: &RuleCx<'_>) -> LayoutRule {
        LayoutRule::Follow(vec![0])
    }
}

struct Run {
    op: FakeQuantize,
    len: usize,
}

impl Step for Run {
    fn kernel(&self) -> String {
        OP.to_owned()
    }

    fn units(&self) -> usize {
        self.len.div_ceil(UNIT)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let elements = units.start * UNIT..self.len.min(units.end * UNIT);
        // SAFETY: operand and result have `len` elements, of which these are the units' alone; addresses
        // are multiples of 64.
        let (x, y) = unsafe {
            (
                core::slice::from_raw_parts(
                    src[0].cast::<f32>().add(elements.start),
                    elements.len(),
                ),
                core::slice::from_raw_parts_mut(
                    dst.cast::<f32>().add(elements.start),
                    elements.len(),
                ),
            )
        };
        fake_quantize(x, y, self.op.scale, self.op.range);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::graph::ops::dequantize::Dequantize;
    use crate::graph::ops::elements::as_defined;
    use crate::graph::ops::quantize::Quantize;
    use crate::tensor::Tensor;

    #[test]
    fn as_one_after_the_other() {
        for (to, zero, range) in [
            (DType::U16, 40_000, [0, 65_535]),
            (DType::U16, 0, [0, 65_535]),
            (DType::I16, -20_000, [-32_768, 32_767]),
            (DType::U8, 128, [0, 255]),
            (DType::I8, -3, [-128, 127]),
        ] {
            for scale in [0.25f32, 0.3, 1e-3, 7.1e-5, 3e4] {
                let mut x: Vec<f32> = (-9000..9000)
                    .map(|i| i as f32 * scale * 3.7 + scale * (i % 5) as f32 * 0.125)
                    .collect();
                x.extend([
                    f32::INFINITY,
                    f32::NEG_INFINITY,
                    f32::NAN,
                    f32::MAX,
                    f32::MIN,
                    0.0,
                    -0.0,
                ]);
                x.extend((0..1000).map(|i| (i as f32 + 0.5) * scale));
                let x = Tensor::from_slice(&[x.len()], &x).unwrap();
                let mut cx = Context::new();
                let id = cx.constant(x.clone()).unwrap();
                let s = cx.constant(Tensor::from_slice(&[], &[scale]).unwrap()).unwrap();
                let z = match to {
                    DType::U16 => Tensor::from_slice(&[], &[zero as u16]),
                    DType::I16 => Tensor::from_slice(&[], &[zero as i16]),
                    DType::U8 => Tensor::from_slice(&[], &[zero as u8]),
                    _ => Tensor::from_slice(&[], &[zero as i8]),
                };
                let z = cx.constant(z.unwrap()).unwrap();
                let q = cx.op(Quantize { axis: None, block: 0, to }, &[id, s, z]).unwrap();
                let d = cx.op(Dequantize { axis: None, block: 0 }, &[q, s, z]).unwrap();
                let op = FakeQuantize::new(scale, zero, range);
                let y = cx.op(op, &[id]).unwrap();
                let [d, y] = [d, y].map(|id| cx.constant_value(id).unwrap().bytes());
                assert!(d == y, "{to} {zero} {scale}");
                assert_eq!(as_defined(&op, &[x]), OP);
            }
        }
    }

    #[test]
    fn attributes_are_checked() {
        let infer =
            |scale, range| FakeQuantize { scale, range }.infer(&[Info::plain(DType::F32, vec![3])]);
        assert!(infer(0.1, [-5, 5]).is_ok());
        for (scale, range) in
            [(0.0, [0, 1]), (f32::NAN, [0, 1]), (1.0, [2, 1]), (1.0, [0, 1 << 22])]
        {
            assert!(infer(scale, range).is_err());
        }
    }
}
