//! Attention, and what rotates its operands.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::indexing::counting;
use super::{NodeCx, OpRow, Outputs, cast, reduce};
use crate::graph::TensorId;
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::pad::Pad;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::graph::ops::softmax::Softmax;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "Attention",
        (3, 7),
        &[
            Attr::int("is_causal"),
            Attr::int("kv_num_heads"),
            Attr::int("left_window_size").since(25),
            Attr::int("q_num_heads"),
            Attr::int("qk_matmul_output_mode").only(&[0, 1, 2, 3]),
            Attr::int("right_window_size").since(25),
            Attr::float("scale"),
            Attr::float("softcap"),
            Attr::int("softmax_precision"),
        ],
        attention,
    )
    .since(23)
    .outputs(4, 4),
    OpRow::new(
        "RotaryEmbedding",
        (3, 4),
        &[Attr::int("interleaved"), Attr::int("num_heads"), Attr::int("rotary_embedding_dim")],
        rotary_embedding,
    )
    .since(23),
];

/// `[batch, heads, tokens, size]`, from that or from `[batch, tokens, heads * size]`.
fn heads(cx: &mut NodeCx<'_>, i: usize, count: &str) -> Result<TensorId, NodeError> {
    let x = cx.input(i)?;
    let dims = cx.dims(x);
    match dims[..] {
        [_, _, _, _] => Ok(x),
        [batch, tokens, width] => {
            let heads = build::extent(cx.int(count, 0), count)?;
            if heads == 0 || !width.is_multiple_of(heads) {
                return Err(NodeError::invalid(format!("{heads} heads of input {i} {dims:?}")));
            }
            let x = cx.reshape(x, &[batch, tokens, heads, width / heads])?;
            cx.transpose(x, &[0, 2, 1, 3])
        }
        _ => Err(NodeError::invalid(format!("input {i} {dims:?} must have 3 or 4 dimensions"))),
    }
}

/// `softmax(scale * q * k + bias) * v` of each head, with keys and values of the past in front.
fn attention(cx: &mut NodeCx<'_>) -> Outputs {
    let folded = cx.rank(cx.input(0)?) == 3;
    let q = heads(cx, 0, "q_num_heads")?;
    let (mut k, mut v) = (heads(cx, 1, "kv_num_heads")?, heads(cx, 2, "kv_num_heads")?);
    let (dtype, past) = (cx.dtype(q), cx.opt(4));
    if past.is_some() != cx.opt(5).is_some() || (past.is_some() && cx.opt(6).is_some()) {
        let what = "past_key goes with past_value, and not with nonpad_kv_seqlen";
        return Err(NodeError::invalid(what));
    }
    if let (Some(past_k), Some(past_v)) = (past, cx.opt(5)) {
        k = cx.op(Concat { axis: 2 }, &[past_k, k])?;
        v = cx.op(Concat { axis: 2 }, &[past_v, v])?;
    }
    let present = [k, v];
    let (qd, kd) = (cx.dims(q), cx.dims(k));
    let (&[batch, q_heads, rows, size], &[_, kv_heads, columns, _]) = (&qd[..], &kd[..]) else {
        return Err(NodeError::invalid(format!("q {qd:?} and k {kd:?}")));
    };
    (k, v) = (repeated(cx, k, q_heads, kv_heads)?, repeated(cx, v, q_heads, kv_heads)?);
    // Both factors get the root of the scale, so that halves do not overflow.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a head's size"
    )]
    let scale = cx.float("scale", (1.0 / (size as f64).sqrt()) as f32);
    let root = cx.scalar(dtype, f64::from(scale).sqrt())?;
    let scaled_q = cx.binary(BinaryOp::Mul, q, root)?;
    let scaled_k = cx.binary(BinaryOp::Mul, k, root)?;
    let product = MatMul { transposed_b: true, ..MatMul::default() };
    let mut scores = cx.op(product, &[scaled_q, scaled_k])?;
    let mut shown = scores;
    let cap = cx.float("softcap", 0.0);
    if cap > 0.0 {
        let cap = cx.scalar(dtype, f64::from(cap))?;
        let part = cx.binary(BinaryOp::Div, scores, cap)?;
        let part = cx.unary(UnaryOp::Tanh, part)?;
        scores = cx.binary(BinaryOp::Mul, part, cap)?;
    }
    let mode = cx.int("qk_matmul_output_mode", 0);
    if mode == 1 {
        shown = scores;
    }
    let past_tokens = past.map_or(0, |p| cx.dims(p).get(2).copied().unwrap_or(0));
    let bias = bias(cx, dtype, [batch, rows, columns], past_tokens)?;
    if let Some(bias) = bias {
        scores = cx.binary(BinaryOp::Add, scores, bias)?;
    }
    if mode == 2 {
        shown = scores;
    }
    let mut weights = cx.op(Softmax::along(3), &[scores])?;
    if let Some(bias) = bias {
        weights = without_masked_rows(cx, weights, bias, dtype)?;
    }
    if mode == 3 {
        shown = weights;
    }
    // Values may have a type of their own.
    let v = cast::to(cx, v, dtype)?;
    let mut y = cx.op(MatMul::default(), &[weights, v])?;
    if folded {
        let width = cx.dims(y).get(3).copied().unwrap_or(0);
        y = cx.transpose(y, &[0, 2, 1, 3])?;
        let width =
            width.checked_mul(q_heads).ok_or_else(|| NodeError::invalid("too many heads"))?;
        y = cx.reshape(y, &[batch, rows, width])?;
    }
    Ok(vec![y, present[0], present[1], shown])
}

/// Heads of keys or values, each as often as queries use it.
fn repeated(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    wanted: usize,
    heads: usize,
) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    let &[batch, found, tokens, size] = &dims[..] else {
        return Err(NodeError::invalid(format!("keys or values {dims:?}")));
    };
    if found != heads || heads == 0 || !wanted.is_multiple_of(heads) {
        return Err(NodeError::invalid(format!("{wanted} heads of queries use {dims:?}")));
    }
    let times = wanted / heads;
    let wide = cx.reshape(x, &[batch, heads, 1, tokens, size])?;
    let wide = cx.expand(wide, &[batch, heads, times, tokens, size])?;
    cx.reshape(wide, &[batch, wanted, tokens, size])
}

/// What is added to the scores: 0 where a query may see a key, negative infinity elsewhere, and
/// the mask; `None` if every query may see every key.
fn bias(
    cx: &mut NodeCx<'_>,
    dtype: DType,
    [batch, rows, columns]: [usize; 3],
    past: usize,
) -> Result<Option<TensorId>, NodeError> {
    let mut parts = Vec::new();
    if let Some(mask) = cx.opt(3) {
        let mask = as_bias(cx, mask, dtype)?;
        parts.push(padded(cx, mask, columns)?);
    }
    let column = counting(cx, columns)?;
    let lengths = match cx.opt(6) {
        Some(lengths) => {
            let lengths = cast::to(cx, lengths, DType::I64)?;
            Some(cx.reshape(lengths, &[batch, 1, 1, 1])?)
        }
        None => None,
    };
    let row = counting(cx, rows)?;
    let row = cx.reshape(row, &[rows, 1])?;
    #[allow(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    let row = match lengths {
        // Queries are the last of the tokens.
        Some(lengths) => {
            let count = cx.scalar(DType::I64, rows as f64)?;
            let first = cx.binary(BinaryOp::Sub, lengths, count)?;
            cx.binary(BinaryOp::Add, row, first)?
        }
        None => {
            let first = cx.scalar(DType::I64, past as f64)?;
            cx.binary(BinaryOp::Add, row, first)?
        }
    };
    let mut limit = |cx: &mut NodeCx<'_>, op, a, b| {
        let seen = cx.op(Compare { op }, &[a, b])?;
        parts.push(as_bias(cx, seen, dtype)?);
        Ok::<_, NodeError>(())
    };
    if cx.flag("is_causal", false) {
        limit(cx, CompareOp::LessOrEqual, column, row)?;
    }
    for (name, op) in [
        ("left_window_size", CompareOp::LessOrEqual),
        ("right_window_size", CompareOp::GreaterOrEqual),
    ] {
        let size = cx.int(name, -1);
        if size < -1 {
            return Err(NodeError::invalid(format!("{name} {size} is negative")));
        }
        if size >= 0 {
            let sign = if name == "left_window_size" { -1.0 } else { 1.0 };
            #[allow(clippy::cast_precision_loss, reason = "larger windows reach everything anyway")]
            let size = cx.scalar(DType::I64, sign * size.min(1 << 40) as f64)?;
            let end = cx.binary(BinaryOp::Add, row, size)?;
            limit(cx, op, end, column)?;
        }
    }
    if let Some(lengths) = lengths {
        limit(cx, CompareOp::Less, column, lengths)?;
    }
    let mut sum: Option<TensorId> = None;
    for part in parts {
        sum = Some(match sum {
            Some(sum) => cx.binary(BinaryOp::Add, sum, part)?,
            None => part,
        });
    }
    Ok(sum)
}

/// Flags as 0 and negative infinity; numbers as they are.
fn as_bias(cx: &mut NodeCx<'_>, mask: TensorId, dtype: DType) -> Result<TensorId, NodeError> {
    if cx.dtype(mask) != DType::Bool {
        return cast::to(cx, mask, dtype);
    }
    let (zero, never) = (cx.scalar(dtype, 0.0)?, cx.scalar(dtype, f64::NEG_INFINITY)?);
    cx.op(Select, &[mask, zero, never])
}

/// A mask that ends early hides the rest.
fn padded(cx: &mut NodeCx<'_>, mask: TensorId, columns: usize) -> Result<TensorId, NodeError> {
    let dims = cx.dims(mask);
    let Some((&found, outer)) = dims.split_last() else { return Ok(mask) };
    if found >= columns {
        return Ok(mask);
    }
    let never = cx.scalar(cx.dtype(mask), f64::NEG_INFINITY)?;
    let before = vec![0; dims.len()];
    let mut after = vec![0; outer.len()];
    after.push(columns - found);
    cx.op(Pad { before, after }, &[mask, never])
}

/// A query that may see no key gives 0, where a softmax has no value.
fn without_masked_rows(
    cx: &mut NodeCx<'_>,
    weights: TensorId,
    bias: TensorId,
    dtype: DType,
) -> Result<TensorId, NodeError> {
    let Some(last) = cx.rank(bias).checked_sub(1) else { return Ok(weights) };
    let most = reduce::over(cx, ReduceOp::Max, bias, &[last], true)?;
    let never = cx.scalar(dtype, f64::NEG_INFINITY)?;
    let masked = cx.op(Compare { op: CompareOp::Equal }, &[most, never])?;
    let zero = cx.scalar(dtype, 0.0)?;
    cx.op(Select, &[masked, zero, weights])
}

/// Pairs of elements of a head turn by angles, whose cosines and sines are given per position.
fn rotary_embedding(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    // To `[batch, tokens, heads, size]`.
    let x = match dims[..] {
        [_, _, _, _] => cx.transpose(x, &[0, 2, 1, 3])?,
        [batch, tokens, width] => {
            let heads = build::extent(cx.int("num_heads", 0), "num_heads")?;
            if heads == 0 || !width.is_multiple_of(heads) {
                return Err(NodeError::invalid(format!("{heads} heads of x {dims:?}")));
            }
            cx.reshape(x, &[batch, tokens, heads, width / heads])?
        }
        _ => return Err(NodeError::invalid(format!("x {dims:?} must have 3 or 4 dimensions"))),
    };
    let split = cx.dims(x);
    let &[batch, tokens, heads, size] = &split[..] else { return Err(NodeError::NoInput(0)) };
    let turned = match build::extent(cx.int("rotary_embedding_dim", 0), "rotary_embedding_dim")? {
        0 => size,
        n => n,
    };
    if turned > size || !turned.is_multiple_of(2) {
        return Err(NodeError::invalid(format!("{turned} elements of heads of {size} turn")));
    }
    let half = turned / 2;
    let mut angles = Vec::new();
    for i in [1, 2] {
        let mut table = cx.input(i)?;
        if let Some(positions) = cx.opt(3) {
            table = cx.op(Gather { axis: 0 }, &[table, positions])?;
        }
        angles.push(cx.reshape(table, &[batch, tokens, 1, half])?);
    }
    let &[cos, sin] = &angles[..] else { return Err(NodeError::NoInput(1)) };
    let interleaved = cx.flag("interleaved", false);
    let (a, b) = if interleaved {
        (cx.slice(x, 3, 0, half, 2)?, cx.slice(x, 3, usize::from(half > 0), half, 2)?)
    } else {
        (cx.slice(x, 3, 0, half, 1)?, cx.slice(x, 3, half, half, 1)?)
    };
    let mut part = |p, q, r, s, op| {
        let (left, right) = (cx.binary(BinaryOp::Mul, p, q)?, cx.binary(BinaryOp::Mul, r, s)?);
        cx.binary(op, left, right)
    };
    let real = part(cos, a, sin, b, BinaryOp::Sub)?;
    let imaginary = part(sin, a, cos, b, BinaryOp::Add)?;
    let mut parts = Vec::new();
    if interleaved {
        let shape = [batch, tokens, heads, half, 1];
        let (real, imaginary) = (cx.reshape(real, &shape)?, cx.reshape(imaginary, &shape)?);
        let pairs = cx.op(Concat { axis: 4 }, &[real, imaginary])?;
        parts.push(cx.reshape(pairs, &[batch, tokens, heads, turned])?);
    } else {
        parts.extend([real, imaginary]);
    }
    if turned < size {
        parts.push(cx.slice(x, 3, turned, size - turned, 1)?);
    }
    let y = if let [one] = parts[..] { one } else { cx.op(Concat { axis: 3 }, &parts)? };
    if dims.len() == 4 {
        return Ok(vec![cx.transpose(y, &[0, 2, 1, 3])?]);
    }
    Ok(vec![cx.reshape(y, &dims)?])
}
