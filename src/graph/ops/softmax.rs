//! Softmax along an axis.

use tilewright_kernels::KernelError;
use tilewright_kernels::template::softmax::{SoftmaxParams, SoftmaxPlan};

use super::elements::{floats, write_floats};
use super::plan_step::PlanStep;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// `exp(x - m) / sum(exp(x - m))` along an axis, `m` being its largest element; or the logarithm
/// of that. An axis with a NaN, with infinity or of -infinity only becomes NaN, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax {
    /// The axis, from the slowest.
    pub axis: usize,
    /// Whether the result is the logarithm.
    pub log: bool,
    /// Whether an axis becomes 0 instead of NaN.
    pub guarded: bool,
}

impl Softmax {
    /// The plain one.
    pub const fn along(axis: usize) -> Self {
        Self { axis, log: false, guarded: false }
    }

    fn params(&self, dims: &[usize]) -> SoftmaxParams {
        SoftmaxParams {
            outer: dims[..self.axis].iter().product(),
            axis: dims[self.axis],
            inner: dims[self.axis + 1..].iter().product(),
            log: self.log,
            guarded: self.guarded,
        }
    }
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
        if self.axis >= x.dims.len() {
            let rule = "the axis must exist";
            return Err(GraphError::mismatch(self.name(), rule, &[("x", &x.dims)]));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let SoftmaxParams { outer, axis, inner, log, guarded } = self.params(src[0].dims);
        let mut values = floats(&src[0], self.name())?;
        for (o, i) in (0..outer).flat_map(|o| (0..inner).map(move |i| (o, i))) {
            let at = |k: usize| (o * axis + k) * inner + i;
            let largest = (0..axis).fold(f64::NEG_INFINITY, |most, k| most.max(values[at(k)]));
            let sum: f64 = (0..axis).map(|k| (values[at(k)] - largest).exp()).sum();
            for k in 0..axis {
                let shifted = values[at(k)] - largest;
                let value = if log { shifted - sum.ln() } else { shifted.exp() / sum };
                values[at(k)] = if guarded && value.is_nan() { 0.0 } else { value };
            }
        }
        write_floats(dst, self.name(), values)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if cx.dst.dtype != DType::F32 {
            return Ok(None);
        }
        match SoftmaxPlan::new(cx.isa, &self.params(&cx.dst.dims)) {
            Err(KernelError::Unsupported { .. }) => Ok(None),
            plan => Ok(Some(Box::new(PlanStep(plan?)))),
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
        let y = cx.op(Softmax { log, ..Softmax::along(dims.len() - 1) }, &[x]).unwrap();
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

    #[test]
    fn any_axis() {
        let mut cx = Context::new();
        let x = [0.0, 3f32.ln(), 3f32.ln(), 0.0, 0.0, 0.0, 0.0, 0.0];
        let x = cx.constant(Tensor::from_slice(&[2, 2, 2], &x).unwrap()).unwrap();
        let y = cx.op(Softmax::along(1), &[x]).unwrap();
        let y = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
        let want = [0.25, 0.75, 0.75, 0.25, 0.5, 0.5, 0.5, 0.5];
        assert!(y.iter().zip(want).all(|(y, w)| (y - w).abs() < 1e-6), "{y:?}");
        assert!(cx.op(Softmax::along(3), &[x]).is_err());
    }
}
