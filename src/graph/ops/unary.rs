//! Element-wise functions of one operand.

use tilewright_kernels::Activation;
pub use tilewright_kernels::template::unary::UnaryOp;
use tilewright_kernels::template::unary::{UnaryParams, UnaryPlan};

use super::elements::{floats, write_floats};
use super::plan_step::PlanStep;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Applies a function to each element. Floats of any width; integers where the function is
/// defined on them (neg, abs, relu, sign, square; of unsigned ones abs and sign), wrapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unary {
    /// The function.
    pub op: UnaryOp,
}

impl Unary {
    /// The operator for a function.
    pub fn new(op: UnaryOp) -> Self {
        Self { op }
    }

    /// Whether a kernel computes it for this result.
    fn has_kernel(&self, dst: &Info) -> bool {
        dst.dtype == DType::F32 && self.op.has_kernel()
    }
}

/// The reference of an activation.
pub(crate) fn activate(activation: Activation, x: f32) -> f32 {
    UnaryOp::from_activation(activation).map_or(x, |op| apply(op, f64::from(x)) as f32)
}

/// The function from its definition, in double precision.
pub(crate) fn apply(op: UnaryOp, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let positive = |x: f64| if x < 0.0 { 0.0 } else { x };
    let softplus = |x: f64| positive(x) + (-x.abs()).exp().ln_1p();
    let elu = |x: f64, alpha: f64| if x > 0.0 { x } else { alpha * x.exp_m1() };
    let clip = |x: f64, min: f32, max: f32| {
        let low = if x < f64::from(min) { f64::from(min) } else { x };
        if low > f64::from(max) { f64::from(max) } else { low }
    };
    match op {
        UnaryOp::Relu => positive(x),
        UnaryOp::LeakyRelu { alpha } => {
            if x > 0.0 {
                x
            } else {
                x * f64::from(alpha)
            }
        }
        UnaryOp::Clip { min, max } => clip(x, min, max),
        UnaryOp::Sigmoid => sigmoid(x),
        UnaryOp::HardSigmoid { alpha, beta } => {
            clip(f64::from(alpha) * x + f64::from(beta), 0.0, 1.0)
        }
        UnaryOp::HardSwish => x * clip(x / 6.0 + 0.5, 0.0, 1.0),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Sign => match x.partial_cmp(&0.0) {
            Some(order) => f64::from(order as i8),
            None => x,
        },
        UnaryOp::Square => x * x,
        UnaryOp::Erf => libm::erf(x),
        UnaryOp::Gelu => x / 2.0 * (1.0 + libm::erf(x * core::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::GeluTanh => {
            let inner = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            x / 2.0 * (1.0 + inner.tanh())
        }
        UnaryOp::Silu { alpha } => x * sigmoid(f64::from(alpha) * x),
        UnaryOp::Softplus => softplus(x),
        UnaryOp::Softsign => x / (1.0 + x.abs()),
        UnaryOp::Mish => x * softplus(x).tanh(),
        UnaryOp::Elu { alpha } => elu(x, f64::from(alpha)),
        UnaryOp::Celu { alpha } => {
            let alpha = f64::from(alpha);
            if x > 0.0 { x } else { alpha * (x / alpha).exp_m1() }
        }
        UnaryOp::Selu { alpha, gamma } => f64::from(gamma) * elu(x, f64::from(alpha)),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::ThresholdedRelu { alpha } => {
            if x > f64::from(alpha) {
                x
            } else {
                0.0
            }
        }
        UnaryOp::Affine { scale, shift } => x * f64::from(scale) + f64::from(shift),
        _ => f64::NAN,
    }
}

fn name(op: UnaryOp) -> &'static str {
    match op {
        UnaryOp::Relu => "relu",
        UnaryOp::LeakyRelu { .. } => "leaky_relu",
        UnaryOp::Clip { .. } => "clip",
        UnaryOp::Sigmoid => "sigmoid",
        UnaryOp::HardSigmoid { .. } => "hard_sigmoid",
        UnaryOp::HardSwish => "hard_swish",
        UnaryOp::Tanh => "tanh",
        UnaryOp::Exp => "exp",
        UnaryOp::Log => "log",
        UnaryOp::Sqrt => "sqrt",
        UnaryOp::Reciprocal => "reciprocal",
        UnaryOp::Neg => "neg",
        UnaryOp::Abs => "abs",
        UnaryOp::Floor => "floor",
        UnaryOp::Ceil => "ceil",
        UnaryOp::Round => "round",
        UnaryOp::Sign => "sign",
        UnaryOp::Square => "square",
        UnaryOp::Erf => "erf",
        UnaryOp::Gelu => "gelu",
        UnaryOp::GeluTanh => "gelu_tanh",
        UnaryOp::Silu { .. } => "silu",
        UnaryOp::Softplus => "softplus",
        UnaryOp::Softsign => "softsign",
        UnaryOp::Mish => "mish",
        UnaryOp::Elu { .. } => "elu",
        UnaryOp::Celu { .. } => "celu",
        UnaryOp::Selu { .. } => "selu",
        UnaryOp::Sin => "sin",
        UnaryOp::Cos => "cos",
        UnaryOp::Atan => "atan",
        UnaryOp::ThresholdedRelu { .. } => "thresholded_relu",
        UnaryOp::Affine { .. } => "affine",
        _ => "unary",
    }
}

impl Operator for Unary {
    fn name(&self) -> &'static str {
        name(self.op)
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "1")?;
        let dtype = src[0].dtype;
        let integral = matches!(
            self.op,
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Relu | UnaryOp::Sign | UnaryOp::Square
        );
        let integer = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
        // Unsigned numbers are their magnitudes, and have signs.
        let unsigned = matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::U64)
            && matches!(self.op, UnaryOp::Abs | UnaryOp::Sign);
        if !(dtype.is_float() || (integral && integer) || unsigned) {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype });
        }
        Ok(Info::plain(dtype, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (name, op) = (self.name(), self.op);
        macro_rules! map {
            ($t:ty, $f:expr) => {{
                let x = src[0].slice::<$t>(name)?;
                for (y, &x) in dst.slice::<$t>(name)?.iter_mut().zip(x) {
                    *y = $f(x);
                }
                Ok(())
            }};
        }
        macro_rules! integers {
            ($t:ty) => {
                match op {
                    UnaryOp::Neg => map!($t, <$t>::wrapping_neg),
                    UnaryOp::Abs => map!($t, <$t>::wrapping_abs),
                    UnaryOp::Relu => map!($t, |x: $t| x.max(0)),
                    UnaryOp::Sign => map!($t, <$t>::signum),
                    _ => map!($t, |x: $t| x.wrapping_mul(x)),
                }
            };
        }
        macro_rules! unsigned {
            ($t:ty) => {
                map!($t, |x: $t| if op == UnaryOp::Sign { x.min(1) } else { x })
            };
        }
        match dst.dtype {
            DType::U8 => unsigned!(u8),
            DType::U16 => unsigned!(u16),
            DType::U32 => unsigned!(u32),
            DType::U64 => unsigned!(u64),
            DType::F32 => map!(f32, |x| apply(op, f64::from(x)) as f32),
            DType::F64 | DType::F16 | DType::BF16 => {
                let values = floats(&src[0], name)?;
                write_floats(dst, name, values.into_iter().map(|x| apply(op, x)))
            }
            DType::I8 => integers!(i8),
            DType::I16 => integers!(i16),
            DType::I32 => integers!(i32),
            DType::I64 => integers!(i64),
            dtype => Err(GraphError::UnsupportedDType { op: name, dtype }),
        }
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if !self.has_kernel(cx.dst) {
            return Ok(None);
        }
        let len = cx.dst.stored_elements().expect("the result has a buffer");
        Ok(Some(Box::new(PlanStep(UnaryPlan::new(cx.isa, &UnaryParams { op: self.op, len })?))))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if self.has_kernel(cx.dst) { LayoutRule::Follow(vec![0]) } else { LayoutRule::Plain }
    }
}
