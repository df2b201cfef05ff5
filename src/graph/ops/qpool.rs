//! Pooling of bytes.

use tilewright_kernels::{QpoolParams, QpoolPlan};

use super::plan_step::PlanStep;
use super::pool::{Pool, PoolKind};
use super::requantize::{byte, is_bytes, kernel_type};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Pooling of bytes. A maximum is the greatest byte. An average is
/// `clamp(round(s * (scale / n)) + zero)`: `s` is the sum of the pixels less their zero point, `n`
/// the number of those that count, ties to even (ONNX Runtime's `QLinearAveragePool` and
/// `QLinearGlobalAveragePool`).
///
/// Operand: `x [n, c, spatial...]` of `i8` or `u8`; the result has its type.
#[derive(Clone, Debug, PartialEq)]
pub struct QPool {
    /// The windows.
    pub pool: Pool,
    /// Of an average: the zero point of the operand. Padding that counts is that.
    pub x_zero: i32,
    /// Of an average: the zero point of the result.
    pub zero: i32,
    /// Of an average: the scale of the operand over that of the result.
    pub scale: f32,
}

const OP: &str = "qpool";

impl QPool {
    fn has_kernel(&self, x: &Info, dst: &Info) -> bool {
        // A window that sees padding only has no average.
        let window: usize = self.pool.window.iter().product();
        is_bytes(x.dtype) && dst.elements() > 0 && x.elements() > 0 && window < 65_794
    }
}

impl Operator for QPool {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        if !is_bytes(src[0].dtype) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: src[0].dtype });
        }
        if !self.scale.is_finite() {
            let (attribute, reason) = ("scale", "must be finite".to_owned());
            return Err(GraphError::InvalidAttribute { op: OP, attribute, reason });
        }
        // The windows know nothing of types.
        let floats = Info { dtype: DType::F32, ..src[0].clone() };
        let dims = self.pool.infer(&[floats])?.dims;
        Ok(Info::plain(src[0].dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x: Vec<i64> = (0..src[0].bytes.len()).map(|i| byte(&src[0], i)).collect();
        let mut y = vec![0i64; dst.bytes.len()];
        let [low, high] = if dst.dtype == DType::I8 { [-128, 127] } else { [0, 255] };
        let zero = i64::from(self.x_zero);
        self.pool.eval_as(src[0].dims, &x, &mut y, |values, counted| match self.pool.kind {
            PoolKind::Max => values.max().unwrap_or(low),
            PoolKind::Average { .. } => {
                let sum: i64 = values.map(|v| v - zero).sum();
                let mean = sum as f32 * (self.scale / counted as f32);
                (mean.round_ties_even() as i64 + i64::from(self.zero)).clamp(low, high)
            }
        })?;
        // The low byte is that of either type.
        dst.bytes.iter_mut().zip(y).for_each(|(to, v)| *to = v as u8);
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if cx.dst.layout != Layout::Blocked || !self.has_kernel(&cx.src[0], cx.dst) {
            return Ok(None);
        }
        let params = QpoolParams {
            pool: self.pool.params(&cx.src[0].dims, &cx.dst.dims),
            dtype: kernel_type(cx.dst.dtype),
            x_zero_point: self.x_zero,
            y_zero_point: self.zero,
            scale: self.scale,
        };
        Ok(Some(Box::new(PlanStep(QpoolPlan::new(cx.isa, &params)?))))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if self.has_kernel(&cx.src[0], cx.dst) {
            LayoutRule::Blocked(vec![(0, Layout::Blocked)])
        } else {
            LayoutRule::Plain
        }
    }
}
