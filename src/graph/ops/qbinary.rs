//! Sums and products of bytes.

use tilewright_kernels::{C_BLOCK, QbinaryOp, QbinaryParams, QbinaryPlan};

use super::binary::pixel_wide;
use super::plan_step::PlanStep;
use super::requantize::{byte, is_bytes, kernel_type, output};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Sum or product of two tensors of bytes, signed or not, of one shape or of a second one that repeats
/// over axes next to each other. Each operation is in f32, ties to even.
///
/// * A sum (ONNX Runtime's `QLinearAdd`, within one step): `clamp(round((a - a_zero) * (a_scale / y_scale) +
///   (b - b_zero) * (b_scale / y_scale)) + y_zero)`.
/// * A product (`QLinearMul`): `clamp(round((a - a_zero) * (b - b_zero) * (a_scale * b_scale / y_scale)) + y_zero)`.
#[derive(Clone, Debug, PartialEq)]
pub struct QBinary {
    /// What is computed.
    pub op: QbinaryOp,
    /// Scales of the operands and of the result. A difference is the sum with a negative scale.
    pub scales: [f32; 3],
    /// Zero points of the same.
    pub zeros: [i32; 3],
    /// Type of the result: `i8` or `u8`.
    pub to: DType,
    /// Bounds of the result: those of the type, or of an activation.
    pub bounds: [i32; 2],
}

/// Extents `[outer, repeats, inner]` of a tensor of `full`, of which a tensor of `narrow` has the first and the last
/// where it broadcasts by repeating over axes next to each other.
pub(crate) fn repeated(full: &[usize], narrow: &[usize]) -> Option<[usize; 3]> {
    let missing = full.len().checked_sub(narrow.len())?;
    let own = |i: usize| i.checked_sub(missing).map_or(1, |i| narrow[i]);
    let differs = |&i: &usize| own(i) != full[i];
    let product = |dims: &[usize]| dims.iter().product();
    let Some(first) = (0..full.len()).find(differs) else { return Some([1, 1, product(full)]) };
    let end = (first..full.len()).rfind(differs)? + 1;
    let alone = (first..end).all(|i| own(i) == 1);
    alone.then(|| [&full[..first], &full[first..end], &full[end..]].map(product))
}

impl QBinary {
    /// Whether scales are as kernels take them.
    pub(crate) fn is_sound(&self) -> bool {
        let factors = self.op.factors(self.scales);
        let numbers = self.scales.iter().chain(&factors).all(|s| s.is_finite() && *s != 0.0);
        numbers && self.scales[2] > 0.0
    }
}

impl Operator for QBinary {
    fn name(&self) -> &'static str {
        match self.op {
            QbinaryOp::Add => "qadd",
            QbinaryOp::Mul => "qmul",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let op = self.name();
        expect_operands(op, src, 2..=2, "2")?;
        let types = [src[0].dtype, src[1].dtype, self.to];
        if let Some(&dtype) = types.iter().find(|&&dtype| !is_bytes(dtype)) {
            return Err(GraphError::UnsupportedDType { op, dtype });
        }
        if repeated(&src[0].dims, &src[1].dims).is_none() {
            let shapes = [("a", &src[0].dims[..]), ("b", &src[1].dims)];
            let rule = "b must have a's shape, or repeat over axes next to each other";
            return Err(GraphError::mismatch(op, rule, &shapes));
        }
        if !self.is_sound() {
            let reason = "must be finite, also over each other, and not 0; that of y above 0";
            let reason = reason.to_owned();
            return Err(GraphError::InvalidAttribute { op, attribute: "scales", reason });
        }
        let range = |dtype| if dtype == DType::I8 { -128..=127 } else { 0..=255 };
        let inside =
            types.iter().zip(&self.zeros).all(|(&dtype, zero)| range(dtype).contains(zero));
        let ([low, high], y) = (self.bounds, range(self.to));
        if !inside || low > high || low < *y.start() || high > *y.end() {
            let (attribute, reason) =
                ("zero points and bounds", "must be in the range of the type".to_owned());
            return Err(GraphError::InvalidAttribute { op, attribute, reason });
        }
        Ok(Info::plain(self.to, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let [a_factor, b_factor] = self.op.factors(self.scales);
        let [a_zero, b_zero, zero] = self.zeros.map(i64::from);
        let [low, high] = self.bounds.map(i64::from);
        let [_, repeats, inner] = repeated(src[0].dims, src[1].dims).unwrap_or([1; 3]);
        for (i, to) in dst.bytes.iter_mut().enumerate() {
            let a = (byte(&src[0], i) - a_zero) as f32;
            let b = (byte(&src[1], i / inner / repeats * inner + i % inner) - b_zero) as f32;
            let result = match self.op {
                QbinaryOp::Add => a * a_factor + b * b_factor,
                QbinaryOp::Mul => a * b * a_factor,
            };
            *to = (result.round_ties_even() as i64 + zero).clamp(low, high) as u8;
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let [a, b] = [0, 1].map(|i| &cx.src[i]);
        // Lanes of blocks that are no channels are computed too, which does no harm.
        let len = cx.dst.stored_elements().expect("the result has a buffer");
        let dims = match cx.dst.layout {
            _ if a.dims == b.dims => Some([1, 1, len]),
            Layout::Blocked => {
                let (n, c, space) = a.ncs();
                Some([n * c.div_ceil(C_BLOCK), space, C_BLOCK])
            }
            _ => repeated(&a.dims, &b.dims),
        };
        let Some(dims) = dims else { return Ok(None) };
        let [a_zero, b_zero, zero] = self.zeros;
        let params = QbinaryParams {
            op: self.op,
            dims,
            dtypes: [a, b].map(|info| kernel_type(info.dtype)),
            scales: self.scales,
            zero_points: [a_zero, b_zero],
            output: output(self.to, zero, self.bounds),
        };
        Ok(Some(Box::new(PlanStep(QbinaryPlan::new(cx.isa, &params)?))))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let [a, b] = [0, 1].map(|i| &cx.src[i].dims);
        if a == b || a.len() > 2 && pixel_wide(b, a) {
            LayoutRule::Follow(vec![0, 1])
        } else {
            LayoutRule::Plain
        }
    }
}
