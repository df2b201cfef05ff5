//! Sums of bytes.

use tilewright_kernels::{QaddParams, QaddPlan};

use super::plan_step::PlanStep;
use super::requantize::{byte, is_bytes, kernel_type, output};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Sum of two tensors of bytes of one shape, signed or not: `clamp(round((a - a_zero) * (a_scale / y_scale)
/// + (b - b_zero) * (b_scale / y_scale)) + y_zero)`, each operation in f32, ties to even (ONNX
/// Runtime's `QLinearAdd`, within one step).
#[derive(Clone, Debug, PartialEq)]
pub struct QAdd {
    /// Scales of the operands and of the result.
    pub scales: [f32; 3],
    /// Zero points of the same.
    pub zeros: [i32; 3],
    /// Type of the result: `i8` or `u8`.
    pub to: DType,
    /// Bounds of the result: those of the type, or of an activation.
    pub bounds: [i32; 2],
}

const OP: &str = "qadd";

impl Operator for QAdd {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let types = [src[0].dtype, src[1].dtype, self.to];
        if let Some(&dtype) = types.iter().find(|&&dtype| !is_bytes(dtype)) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype });
        }
        if src[0].dims != src[1].dims {
            let shapes = [("a", &src[0].dims[..]), ("b", &src[1].dims)];
            return Err(GraphError::mismatch(OP, "both must have one shape", &shapes));
        }
        let [a, b, y] = self.scales;
        let ok = |s: f32| s.is_finite() && s > 0.0;
        if ![a, b, y, a / y, b / y].into_iter().all(ok) {
            let reason = "must be above 0, and finite over each other".to_owned();
            return Err(GraphError::InvalidAttribute { op: OP, attribute: "scales", reason });
        }
        let range = |dtype| if dtype == DType::I8 { -128..=127 } else { 0..=255 };
        let inside =
            types.iter().zip(&self.zeros).all(|(&dtype, zero)| range(dtype).contains(zero));
        let ([low, high], y) = (self.bounds, range(self.to));
        if !inside || low > high || low < *y.start() || high > *y.end() {
            let (attribute, reason) =
                ("zero points and bounds", "must be in the range of the type".to_owned());
            return Err(GraphError::InvalidAttribute { op: OP, attribute, reason });
        }
        Ok(Info::plain(self.to, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let [a, b, y] = self.scales;
        let [a_zero, b_zero, zero] = self.zeros.map(i64::from);
        let [low, high] = self.bounds.map(i64::from);
        for (i, to) in dst.bytes.iter_mut().enumerate() {
            let left = (byte(&src[0], i) - a_zero) as f32 * (a / y);
            let right = (byte(&src[1], i) - b_zero) as f32 * (b / y);
            let sum = (left + right).round_ties_even() as i64;
            *to = (sum + zero).clamp(low, high) as u8;
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        // Lanes of blocks that are no channels are added too, which does no harm.
        let Some(len) = cx.dst.stored_elements().filter(|&n| n > 0) else { return Ok(None) };
        let [a_zero, b_zero, zero] = self.zeros;
        let params = QaddParams {
            len,
            dtypes: [0, 1].map(|i| kernel_type(cx.src[i].dtype)),
            scales: self.scales,
            zero_points: [a_zero, b_zero],
            output: output(self.to, zero, self.bounds),
        };
        Ok(Some(Box::new(PlanStep(QaddPlan::new(cx.isa, &params)?))))
    }

    fn layout_rule(&self, _cx: &RuleCx<'_>) -> LayoutRule {
        LayoutRule::Follow(vec![0, 1])
    }
}
