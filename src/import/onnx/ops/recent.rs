//! Operators of the newest operator sets, and questions about optional values.

use tilewright_kernels::Activation;
use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs, cast, shape};
use crate::graph::TensorId;
use crate::graph::ops::bit_cast::BitCast;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::conv::Conv;
use crate::graph::ops::linear_attention::LinearAttention;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::computed;
use crate::import::onnx::proto::data_type;
use crate::tensor::DType;

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("BitCast", (1, 1), &[Attr::int("to").required()], bit_cast).since(26),
    OpRow::new(
        "CausalConvWithState",
        (2, 4),
        &[Attr::string("activation").one_of(&["none", "silu", "swish"])],
        causal_conv,
    )
    .since(27)
    .outputs(2, 2),
    OpRow::new(
        "LinearAttention",
        (3, 6),
        &[
            // A hint.
            Attr::int("chunk_size"),
            Attr::int("kv_num_heads").required(),
            Attr::int("q_num_heads").required(),
            Attr::float("scale"),
            Attr::string("update_rule").one_of(&["linear", "gated", "delta", "gated_delta"]),
        ],
        linear_attention,
    )
    .since(27)
    .outputs(2, 2),
    OpRow::new("OptionalGetElement", (1, 1), &[], shape::identity).since(18),
    OpRow::new("OptionalHasElement", (0, 1), &[], |cx| {
        let there = cx.node.inputs.first().is_some_and(Option::is_some);
        Ok(vec![cx.scalar(DType::Bool, f64::from(u8::from(there)))?])
    })
    .since(18),
];

fn bit_cast(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let number = cx.int("to", 0);
    let to = i32::try_from(number).ok().and_then(data_type::to_dtype);
    let to = to.ok_or_else(|| NodeError::unsupported(format!("element type number {number}")))?;
    let y = cx.op(BitCast { to }, &[x])?;
    Ok(vec![cast::to(cx, y, computed(to))?])
}

/// A filter per channel over the past and the present; what the next call needs of them.
pub(super) fn causal_conv(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let (xd, wd) = (cx.dims(x), cx.dims(w));
    let (&[batch, channels, length], &[filters, 1, size]) = (&xd[..], &wd[..]) else {
        return Err(NodeError::invalid(format!("x {xd:?} and weights {wd:?}")));
    };
    let Some(kept) = size.checked_sub(1).filter(|_| filters == channels) else {
        return Err(NodeError::invalid(format!("x {xd:?} and weights {wd:?}")));
    };
    let past = match cx.opt(3) {
        Some(past) => past,
        None => {
            let zero = cx.scalar(cx.dtype(x), 0.0)?;
            cx.expand(zero, &[batch, channels, kept])?
        }
    };
    if cx.dims(past) != [batch, channels, kept] {
        let past = cx.dims(past);
        return Err(NodeError::invalid(format!(
            "past_state {past:?} for x {xd:?}, weights {wd:?}"
        )));
    }
    let all = if kept == 0 { x } else { cx.op(Concat { axis: 2 }, &[past, x])? };
    let bias = cx.opt(2);
    let src: Vec<TensorId> = [all, w].into_iter().chain(bias).collect();
    let op = Conv {
        groups: channels,
        bias: bias.is_some(),
        activation: Activation::None,
        ..Conv::default()
    };
    let mut y = cx.op(op, &src)?;
    if cx.string("activation", "none") != "none" {
        y = cx.unary(UnaryOp::SILU, y)?;
    }
    let state = cx.slice(all, 2, length, kept, 1)?;
    Ok(vec![y, state])
}

pub(super) fn linear_attention(cx: &mut NodeCx<'_>) -> Outputs {
    let rule = cx.string("update_rule", "gated_delta");
    let (gated, delta) = (rule.starts_with("gated"), rule.ends_with("delta"));
    let [past, decay, rate] = [3, 4, 5].map(|i| cx.opt(i));
    if decay.is_some() != gated || rate.is_some() != delta {
        let what = format!("update_rule {rule} with or without a decay and a beta");
        return Err(NodeError::invalid(what));
    }
    let (q, v) = (cx.input(0)?, cx.input(2)?);
    let (qd, vd) = (cx.dims(q), cx.dims(v));
    let heads = build::extent(cx.int("q_num_heads", 0), "q_num_heads")?;
    let kv_heads = build::extent(cx.int("kv_num_heads", 0), "kv_num_heads")?;
    let (&[batch, tokens, width], &[_, _, values]) = (&qd[..], &vd[..]) else {
        return Err(NodeError::invalid(format!("queries {qd:?} and values {vd:?}")));
    };
    if heads == 0 || kv_heads == 0 {
        return Err(NodeError::invalid(format!("{heads} heads of queries, {kv_heads} of keys")));
    }
    let (dk, dv) = (width / heads, values / kv_heads);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a head's size"
    )]
    let scale = match cx.float("scale", 0.0) {
        0.0 => (1.0 / (dk as f64).sqrt()) as f32,
        scale => scale,
    };
    let op = LinearAttention { heads, kv_heads, scale, state: past.is_some(), decay: gated, delta };
    let src: Vec<TensorId> =
        [q, cx.input(1)?, v].into_iter().chain(past).chain(decay).chain(rate).collect();
    // The operator made sure that these do not overflow.
    let both = cx.op(op, &src)?;
    let total = cx.dims(both).first().copied().unwrap_or(0);
    let count = batch * tokens * heads * dv;
    let y = cx.slice(both, 0, 0, count, 1)?;
    let state = cx.slice(both, 0, count, total - count, 1)?;
    let y = cx.reshape(y, &[batch, tokens, heads * dv])?;
    Ok(vec![y, cx.reshape(state, &[batch, kv_heads, dk, dv])?])
}
