//! Mixtures of experts, as `com.microsoft` has them.
//!
//! Source: the text of `MoE` in ONNX Runtime.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::contrib::row;
use super::{NodeCx, OpRow, Outputs, recent, reduce};
use crate::graph::TensorId;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::gather_elements::GatherElements;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::scatter_elements::{Reduction, ScatterElements};
use crate::graph::ops::softmax::Softmax;
use crate::graph::ops::topk::TopK;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

pub(super) const ROWS: &[OpRow] = &[
    row(
        "CausalConvWithState",
        (2, 4),
        &[
            Attr::string("activation").one_of(&["none", "silu", "swish"]),
            Attr::int("channels_last").only(&[0]),
            Attr::int("dilation").only(&[1]),
            Attr::int("ndim").only(&[1]),
            Attr::int("state_window").only(&[0, 1]),
        ],
        recent::causal_conv,
    )
    .outputs(2, 2),
    row(
        "LinearAttention",
        (3, 6),
        &[
            // A hint.
            Attr::int("chunk_size"),
            Attr::int("kv_num_heads").required(),
            Attr::int("q_num_heads").required(),
            Attr::float("scale"),
            Attr::int("state_window").only(&[0, 1]),
            Attr::string("update_rule").one_of(&["linear", "gated", "delta", "gated_delta"]),
        ],
        recent::linear_attention,
    )
    .outputs(2, 2),
    row(
        "MoE",
        (5, 8),
        &[
            Attr::float("activation_alpha"),
            Attr::float("activation_beta"),
            Attr::string("activation_type").one_of(&["relu", "gelu", "silu", "swiglu", "identity"]),
            Attr::int("k"),
            Attr::int("normalize_routing_weights"),
            Attr::int("swiglu_fusion").only(&[0, 1, 2]),
            Attr::float("swiglu_limit"),
            Attr::int("use_sparse_mixer").only(&[0]),
        ],
        mixture,
    ),
];

/// Which experts a token goes to, and how much each counts: positions and weights, `[tokens, k]`.
fn routes(cx: &mut NodeCx<'_>, k: usize) -> Result<[TensorId; 2], NodeError> {
    let scores = cx.input(1)?;
    let shares = cx.op(Softmax::along(1), &[scores])?;
    let at = cx.op(TopK { axis: 1, k, largest: true, positions: true }, &[shares])?;
    let mut weights = cx.op(GatherElements { axis: 1 }, &[shares, at])?;
    if cx.flag("normalize_routing_weights", false) {
        let sum = reduce::over(cx, ReduceOp::Sum, weights, &[1], true)?;
        weights = cx.binary(BinaryOp::Div, weights, sum)?;
    }
    Ok([at, weights])
}

/// `x * w + bias`, where each expert has `[outputs, inputs]` and a bias: of all experts, or of those that a list names.
fn layer(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    [w, bias]: [usize; 2],
    chosen: Option<TensorId>,
) -> Result<TensorId, NodeError> {
    let of = |cx: &mut NodeCx<'_>, all| match chosen {
        Some(at) => cx.op(Gather { axis: 0 }, &[all, at]),
        None => Ok(all),
    };
    let all = cx.input(w)?;
    if cx.rank(all) != 3 {
        let dims = cx.dims(all);
        return Err(NodeError::invalid(format!("weights (input {w}) {dims:?} of experts")));
    }
    let w = of(cx, all)?;
    let mut y = cx.op(MatMul { transposed_b: true, ..MatMul::default() }, &[x, w])?;
    if let Some(bias) = cx.opt(bias) {
        let bias = of(cx, bias)?;
        let &[experts, width] = &cx.dims(bias)[..] else {
            return Err(NodeError::invalid(format!("bias {:?} of experts", cx.dims(bias))));
        };
        let bias = cx.reshape(bias, &[experts, 1, width])?;
        y = cx.binary(BinaryOp::Add, y, bias)?;
    }
    Ok(y)
}

/// The function between the layers. One with a gate takes half of the columns, or the third layer, `more`.
fn activated(
    cx: &mut NodeCx<'_>,
    y: TensorId,
    more: Option<TensorId>,
) -> Result<TensorId, NodeError> {
    let kind = cx.string("activation_type", "relu");
    if kind == "swiglu" {
        let width = cx.dims(y).last().copied().unwrap_or(0);
        let (gate, linear) = match (cx.int("swiglu_fusion", 0), more) {
            (0, Some(more)) => (y, more),
            (_, None) if !width.is_multiple_of(2) => {
                return Err(NodeError::invalid(format!("{width} columns have no halves")));
            }
            (1, None) if width > 0 => {
                (cx.slice(y, 2, 0, width / 2, 2)?, cx.slice(y, 2, 1, width / 2, 2)?)
            }
            (2, None) => {
                (cx.slice(y, 2, 0, width / 2, 1)?, cx.slice(y, 2, width / 2, width / 2, 1)?)
            }
            (n, _) => {
                return Err(NodeError::unsupported(format!("swiglu_fusion {n} of these layers")));
            }
        };
        return gated(cx, gate, linear);
    }
    let y = match kind.as_str() {
        "relu" => cx.unary(UnaryOp::Relu, y)?,
        "gelu" => cx.unary(UnaryOp::GeluTanh, y)?,
        "silu" => cx.unary(UnaryOp::SILU, y)?,
        _ => y,
    };
    match more {
        Some(more) => cx.binary(BinaryOp::Mul, y, more),
        None => Ok(y),
    }
}

/// `g * sigmoid(alpha * g) * (l + beta)`, of numbers within a limit.
fn gated(cx: &mut NodeCx<'_>, gate: TensorId, linear: TensorId) -> Result<TensorId, NodeError> {
    let (mut g, mut l) = (gate, linear);
    if cx.has("swiglu_limit") {
        let limit = cx.float("swiglu_limit", f32::INFINITY);
        g = cx.unary(UnaryOp::Clip { min: f32::NEG_INFINITY, max: limit }, g)?;
        l = cx.unary(UnaryOp::Clip { min: -limit, max: limit }, l)?;
    }
    let (alpha, beta) = (cx.float("activation_alpha", 1.0), cx.float("activation_beta", 0.0));
    let scaled = cx.unary(UnaryOp::Affine { scale: alpha, shift: 0.0 }, g)?;
    let open = cx.unary(UnaryOp::Sigmoid, scaled)?;
    let g = cx.binary(BinaryOp::Mul, g, open)?;
    let l = cx.unary(UnaryOp::Affine { scale: 1.0, shift: beta }, l)?;
    cx.binary(BinaryOp::Mul, g, l)
}

/// The sum of what the best experts of each token make of it.
fn mixture(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, scores) = (cx.input(0)?, cx.input(1)?);
    let (xd, sd) = (cx.dims(x), cx.dims(scores));
    let k = build::extent(cx.int("k", 1), "k")?;
    let (Some((&width, outer)), &[tokens, experts]) = (xd.split_last(), &sd[..]) else {
        return Err(NodeError::invalid(format!("input {xd:?} with router_probs {sd:?}")));
    };
    let count = outer.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    if count != Some(tokens) || k == 0 || k > experts {
        let what = format!("input {xd:?} with router_probs {sd:?}, of which the {k} best");
        return Err(NodeError::invalid(what));
    }
    let [at, weights] = routes(cx, k)?;
    // Few tokens read the weights of few experts; many go through all experts, which are then read once.
    let routed = tokens.checked_mul(k).filter(|&n| n <= experts);
    let (input, chosen) = match routed {
        Some(n) => {
            let each = cx.reshape(x, &[tokens, 1, width])?;
            let each = cx.expand(each, &[tokens, k, width])?;
            (cx.reshape(each, &[n, 1, width])?, Some(cx.reshape(at, &[n])?))
        }
        None => {
            let all = cx.reshape(x, &[1, tokens, width])?;
            (cx.expand(all, &[experts, tokens, width])?, None)
        }
    };
    let y = layer(cx, input, [2, 3], chosen)?;
    let more = match cx.opt(6) {
        Some(_) => Some(layer(cx, input, [6, 7], chosen)?),
        None => None,
    };
    let y = activated(cx, y, more)?;
    let y = layer(cx, y, [4, 5], chosen)?;
    let (y, weights, axis) = match routed {
        Some(_) => {
            let y = cx.reshape(y, &[tokens, k, width])?;
            (y, cx.reshape(weights, &[tokens, k, 1])?, 1)
        }
        None => {
            let zero = cx.scalar(cx.dtype(weights), 0.0)?;
            let none = cx.expand(zero, &[tokens, experts])?;
            let op = ScatterElements { axis: 1, reduction: Reduction::Replace };
            let all = cx.op(op, &[none, at, weights])?;
            let all = cx.transpose(all, &[1, 0])?;
            (y, cx.reshape(all, &[experts, tokens, 1])?, 0)
        }
    };
    let y = cx.binary(BinaryOp::Mul, y, weights)?;
    let y = reduce::over(cx, ReduceOp::Sum, y, &[axis], false)?;
    Ok(vec![cx.reshape(y, &xd)?])
}
