//! Functions of one tensor, element by element.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs};
use crate::graph::TensorId;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::tensor::DType;

const ONE: (u8, u8) = (1, 1);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Abs", ONE, &[], |cx| plain(cx, UnaryOp::Abs)),
    OpRow::new("Ceil", ONE, &[], |cx| plain(cx, UnaryOp::Ceil)),
    OpRow::new("Celu", ONE, &[Attr::float("alpha")], celu).since(12),
    OpRow::new("Clip", ONE, &[Attr::float("min"), Attr::float("max")], clip).until(10),
    OpRow::new("Clip", (1, 3), &[], clip).since(11),
    OpRow::new("Elu", ONE, &[Attr::float("alpha")], elu),
    OpRow::new("Erf", ONE, &[], |cx| plain(cx, UnaryOp::Erf)).since(9),
    OpRow::new("Exp", ONE, &[], |cx| plain(cx, UnaryOp::Exp)),
    OpRow::new("Floor", ONE, &[], |cx| plain(cx, UnaryOp::Floor)),
    OpRow::new("Gelu", ONE, &[Attr::string("approximate").one_of(&["none", "tanh"])], gelu)
        .since(20),
    OpRow::new("HardSigmoid", ONE, &[Attr::float("alpha"), Attr::float("beta")], hard_sigmoid),
    OpRow::new("HardSwish", ONE, &[], |cx| plain(cx, UnaryOp::HardSwish)).since(14),
    OpRow::new("LeakyRelu", ONE, &[Attr::float("alpha")], leaky_relu),
    OpRow::new("Log", ONE, &[], |cx| plain(cx, UnaryOp::Log)),
    OpRow::new("Mish", ONE, &[], |cx| plain(cx, UnaryOp::Mish)).since(18),
    OpRow::new("Neg", ONE, &[], |cx| plain(cx, UnaryOp::Neg)),
    OpRow::new("PRelu", (2, 2), &[], prelu).since(7),
    OpRow::new("Reciprocal", ONE, &[], |cx| plain(cx, UnaryOp::Reciprocal)),
    OpRow::new("Relu", ONE, &[], |cx| plain(cx, UnaryOp::Relu)),
    OpRow::new("Round", ONE, &[], |cx| plain(cx, UnaryOp::Round)).since(11),
    OpRow::new("Selu", ONE, &[Attr::float("alpha"), Attr::float("gamma")], selu),
    OpRow::new("Sigmoid", ONE, &[], |cx| plain(cx, UnaryOp::Sigmoid)),
    OpRow::new("Sign", ONE, &[], |cx| plain(cx, UnaryOp::Sign)).since(9),
    OpRow::new("Softplus", ONE, &[], |cx| plain(cx, UnaryOp::Softplus)),
    OpRow::new("Softsign", ONE, &[], |cx| plain(cx, UnaryOp::Softsign)),
    OpRow::new("Sqrt", ONE, &[], |cx| plain(cx, UnaryOp::Sqrt)),
    OpRow::new("Swish", ONE, &[Attr::float("alpha")], swish).since(24),
    OpRow::new("Tanh", ONE, &[], |cx| plain(cx, UnaryOp::Tanh)),
    OpRow::new("ThresholdedRelu", ONE, &[Attr::float("alpha")], thresholded_relu),
];

pub(super) fn plain(cx: &mut NodeCx<'_>, op: UnaryOp) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![cx.unary(op, x)?])
}

fn celu(cx: &mut NodeCx<'_>) -> Outputs {
    let alpha = cx.float("alpha", 1.0);
    plain(cx, UnaryOp::Celu { alpha })
}

fn elu(cx: &mut NodeCx<'_>) -> Outputs {
    let alpha = cx.float("alpha", 1.0);
    plain(cx, UnaryOp::Elu { alpha })
}

fn gelu(cx: &mut NodeCx<'_>) -> Outputs {
    let tanh = cx.string("approximate", "none") == "tanh";
    plain(cx, if tanh { UnaryOp::GeluTanh } else { UnaryOp::Gelu })
}

fn hard_sigmoid(cx: &mut NodeCx<'_>) -> Outputs {
    let (alpha, beta) = (cx.float("alpha", 0.2), cx.float("beta", 0.5));
    plain(cx, UnaryOp::HardSigmoid { alpha, beta })
}

fn leaky_relu(cx: &mut NodeCx<'_>) -> Outputs {
    let alpha = cx.float("alpha", 0.01);
    plain(cx, UnaryOp::LeakyRelu { alpha })
}

/// Defaults as the operator's text gives them.
fn selu(cx: &mut NodeCx<'_>) -> Outputs {
    let alpha = cx.float("alpha", 1.673_263_2);
    let gamma = cx.float("gamma", 1.050_701);
    plain(cx, UnaryOp::Selu { alpha, gamma })
}

fn thresholded_relu(cx: &mut NodeCx<'_>) -> Outputs {
    let alpha = cx.float("alpha", 1.0);
    plain(cx, UnaryOp::ThresholdedRelu { alpha })
}

/// `x * sigmoid(alpha * x)`.
fn swish(cx: &mut NodeCx<'_>) -> Outputs {
    let alpha = cx.float("alpha", 1.0);
    plain(cx, UnaryOp::Silu { alpha })
}

fn prelu(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, slope) = (cx.input(0)?, cx.input(1)?);
    prelu_of(cx, x, slope)
}

/// `max(x, 0) + slope * min(x, 0)`; the slope broadcasts to `x`.
pub(super) fn prelu_of(cx: &mut NodeCx<'_>, x: TensorId, slope: TensorId) -> Outputs {
    if cx.value(slope).is_some_and(|s| s.shape().elements() == 1)
        && cx.dtype(x) == DType::F32
        && let Some(alpha) = cx.float_input(1)?
        && cx.rank(slope) <= cx.rank(x)
    {
        return Ok(vec![cx.unary(UnaryOp::LeakyRelu { alpha }, x)?]);
    }
    let y = if cx.dtype(x) == DType::F32 && BinaryOp::PRelu.has_kernel() {
        cx.binary(BinaryOp::PRelu, x, slope)?
    } else {
        let zero = cx.scalar(cx.dtype(x), 0.0)?;
        let positive = cx.binary(BinaryOp::Max, x, zero)?;
        let negative = cx.binary(BinaryOp::Min, x, zero)?;
        let negative = cx.binary(BinaryOp::Mul, negative, slope)?;
        cx.binary(BinaryOp::Add, positive, negative)?
    };
    if cx.dims(y) != cx.dims(x) {
        return Err(NodeError::invalid(format!(
            "slope {:?} does not broadcast to x {:?}",
            cx.dims(slope),
            cx.dims(x)
        )));
    }
    Ok(vec![y])
}

/// `min(max(x, min), max)`: bounds are attributes up to opset 10, then optional inputs.
fn clip(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (low, high) = (cx.opt(1), cx.opt(2));
    let known = |cx: &NodeCx<'_>, id: Option<_>| id.is_none_or(|id| cx.value(id).is_some());
    if cx.dtype(x) == DType::F32 && known(cx, low) && known(cx, high) {
        let min = match cx.float_input(1)? {
            Some(v) => v,
            None => cx.float("min", f32::NEG_INFINITY),
        };
        let max = match cx.float_input(2)? {
            Some(v) => v,
            None => cx.float("max", f32::INFINITY),
        };
        return Ok(vec![cx.unary(UnaryOp::Clip { min, max }, x)?]);
    }
    let dtype = cx.dtype(x);
    let mut y = x;
    for (input, attribute, op) in [(1, "min", BinaryOp::Max), (2, "max", BinaryOp::Min)] {
        let bound = match cx.opt(input) {
            Some(bound) => bound,
            None if cx.has(attribute) => {
                let bound = f64::from(cx.float(attribute, 0.0));
                cx.scalar(dtype, bound)?
            }
            None => continue,
        };
        if cx.dims(bound).iter().any(|&d| d != 1) {
            return Err(NodeError::invalid(format!("bound {attribute} must be one number")));
        }
        let bound = cx.reshape(bound, &[])?;
        y = cx.binary(op, y, bound)?;
    }
    Ok(vec![y])
}
