//! Gated linear units: a function of one half times the other (Shazeer 2020, "GLU variants improve
//! transformer").

use tilewright_kernels::{GluParams, GluPlan};

use super::plan_step::PlanStep;
use super::unary::{UnaryOp, apply};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

pub use tilewright_kernels::GluOp;

/// `op(gate) * up`, element by element.
///
/// Operands of f32: `gate` and `up` of one shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glu {
    /// The function of the gate.
    pub op: GluOp,
}

const OP: &str = "glu";

/// The function of the gate.
pub(crate) fn function(op: GluOp) -> UnaryOp {
    match op {
        GluOp::Silu => UnaryOp::SILU,
        GluOp::GeluTanh => UnaryOp::GeluTanh,
        GluOp::Gelu => UnaryOp::Gelu,
    }
}

impl Operator for Glu {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "gate and up")?;
        let (gate, up) = (&src[0], &src[1]);
        if let Some(bad) = src.iter().find(|s| s.dtype != DType::F32) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        if gate.dims != up.dims {
            let rule = "gate and up must have the same shape";
            return Err(GraphError::mismatch(OP, rule, &[("gate", &gate.dims), ("up", &up.dims)]));
        }
        Ok(Info::plain(DType::F32, gate.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (gate, up) = (src[0].slice::<f32>(OP)?, src[1].slice::<f32>(OP)?);
        let function = function(self.op);
        for ((y, &gate), &up) in dst.slice::<f32>(OP)?.iter_mut().zip(gate).zip(up) {
            *y = (apply(function, f64::from(gate)) * f64::from(up)) as f32;
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let params = GluParams::new(self.op, 1, cx.dst.elements());
        Ok(Some(Box::new(PlanStep(GluPlan::new(cx.isa, &params)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::tensor::Tensor;
    use tilewright_kernels::Isa;

    fn glu(op: GluOp, gate: &[f32], up: &[f32]) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let gate = cx.constant(Tensor::from_slice(&[gate.len()], gate)?)?;
        let up = cx.constant(Tensor::from_slice(&[up.len()], up)?)?;
        let y = cx.op(Glu { op }, &[gate, up])?;
        Ok(cx.constant_value(y).unwrap().as_slice().unwrap().to_vec())
    }

    #[test]
    fn the_gate_scales() {
        let e = 1f64.exp();
        let silu = (e / (e + 1.0)) as f32;
        assert_eq!(glu(GluOp::Silu, &[1.0, 0.0], &[3.0, 5.0]).unwrap(), [3.0 * silu, 0.0]);
        let y = glu(GluOp::GeluTanh, &[1.0, -1.0], &[2.0, 1.0]).unwrap();
        assert!((y[0] - 1.682_384).abs() < 1e-6 && (y[1] + 0.158_808).abs() < 1e-6, "{y:?}");
        let y = glu(GluOp::Gelu, &[1.0], &[1.0]).unwrap();
        assert!((y[0] - 0.841_345).abs() < 1e-6, "{y:?}");
        assert!(glu(GluOp::Silu, &[1.0], &[1.0, 2.0]).is_err());
    }

    #[test]
    fn kernels_agree_with_the_reference() {
        let tensor = |seed: usize| {
            let number = |i: usize| ((i * 7919 + seed) % 251) as f32 / 25.0 - 5.0;
            let data: Vec<f32> = (0..3 * 37).map(number).collect();
            Tensor::from_slice(&[3, 37], &data).unwrap()
        };
        let (gate, up) = (tensor(0), tensor(77));
        for op in [GluOp::Silu, GluOp::GeluTanh, GluOp::Gelu] {
            let gate_up = [&gate, &up].map(|t| t.as_slice::<f32>().unwrap());
            let want = glu(op, &gate_up[0], &gate_up[1]).unwrap();
            for isa in Isa::available() {
                let mut cx = Context::new();
                let src = [&gate, &up].map(|t| cx.input("x", DType::F32, &t.dims()).unwrap());
                let y = cx.op(Glu { op }, &src).unwrap();
                let mut executor = Executor::new(isa, 2).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                let y = executor.run(&plan, &[&gate, &up], None).unwrap();
                for (a, b) in y[0].as_slice::<f32>().unwrap().iter().zip(&want) {
                    assert!((a - b).abs() < 1e-5 * b.abs().max(1.0), "{isa} {op:?}: {a} {b}");
                }
            }
        }
    }
}
