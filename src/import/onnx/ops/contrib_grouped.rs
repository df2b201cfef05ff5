//! Attention in which several heads of queries use the same keys and values, as `com.microsoft` has it.

use tilewright_kernels::template::binary::BinaryOp;

use super::contrib::row;
use super::contrib_attention::{Scores, attend, refuse, scale};
use super::contrib_rotary::{angles, turned};
use super::indexing::counting;
use super::{NodeCx, OpRow, Outputs};
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::select::Select;
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::to_i64s;
use crate::tensor::{DType, Tensor};

pub(super) const ROWS: &[OpRow] = &[row(
    "GroupQueryAttention",
    (7, 16),
    &[
        Attr::int("causal").only(&[0, 1]),
        Attr::int("do_rotary").only(&[0, 1]),
        Attr::string("k_quant_type").one_of(&["NONE"]),
        Attr::int("kv_cache_bit_width").only(&[0]),
        Attr::int("kv_num_heads").required(),
        Attr::int("local_window_size"),
        Attr::int("num_heads").required(),
        Attr::float("qk_norm_epsilon"),
        Attr::int("qk_output").only(&[0]),
        Attr::int("rotary_interleaved").only(&[0, 1]),
        Attr::float("scale"),
        Attr::int("sliding_window_cache").only(&[0]),
        Attr::int("smooth_softmax").only(&[-1, 0]),
        Attr::float("softcap"),
        Attr::string("v_quant_type").one_of(&["NONE"]),
    ],
    group_query_attention,
)
.outputs(4, 3)
.known(&[5, 6])];

/// What is known of how far each sequence of a batch is.
struct Lengths {
    /// Tokens of the past of each.
    before: Vec<i64>,
    /// All tokens of each.
    all: Vec<i64>,
    /// Most tokens.
    total: usize,
}

/// The lengths of sequences of which `tokens` are new.
fn lengths(cx: &NodeCx<'_>, batch: usize, tokens: usize) -> Result<Lengths, NodeError> {
    let ints = |i| {
        let value = cx.constant_input(i)?.ok_or(NodeError::NoInput(i))?;
        let found = to_i64s(&value).map(|v| v.into_owned());
        found.ok_or_else(|| NodeError::invalid(format!("input {i} must hold integers")))
    };
    let (last, total) = (ints(5)?, ints(6)?);
    let &[total] = &total[..] else {
        return Err(NodeError::invalid(format!("total_sequence_length {total:?}")));
    };
    let total = build::extent(total, "total_sequence_length")?;
    if last.len() != batch {
        return Err(NodeError::invalid(format!("seqlens_k {last:?} for {batch} sequences")));
    }
    let (mut before, mut all) = (Vec::new(), Vec::new());
    for last in last {
        let count = last.checked_add(1).filter(|&n| n > 0);
        let count = count.filter(|&n| usize::try_from(n).is_ok_and(|n| n <= total));
        let new = i64::try_from(tokens).ok();
        // A first text may end early; later ones are all of the length they have.
        let past = if tokens == total { Some(0) } else { count.zip(new).map(|(n, new)| n - new) };
        let (Some(count), Some(past @ 0..)) = (count, past) else {
            let what = format!("seqlens_k {last} with {tokens} new tokens of {total}");
            return Err(NodeError::invalid(what));
        };
        before.push(past);
        all.push(count);
    }
    Ok(Lengths { before, all, total })
}

/// Past, new tokens and zeros of each sequence, one after the other, up to `len`.
fn cached(
    cx: &mut NodeCx<'_>,
    past: Option<TensorId>,
    new: TensorId,
    before: &[i64],
    len: usize,
) -> Result<TensorId, NodeError> {
    let same = before.iter().min() == before.iter().max();
    let mut sequences = Vec::new();
    for (b, &before) in before.iter().enumerate().take(if same { 1 } else { usize::MAX }) {
        let before = build::extent(before, "past")?;
        let one = |cx: &mut NodeCx<'_>, x| if same { Ok(x) } else { cx.slice(x, 0, b, 1, 1) };
        let (mut parts, new) = (Vec::new(), one(cx, new)?);
        let dims = cx.dims(new);
        let &[batch, heads, tokens, size] = &dims[..] else { return Err(NodeError::NoInput(1)) };
        if before > 0 {
            let past = past.filter(|&p| cx.dims(p).get(2).is_some_and(|&n| n >= before));
            let past = past.ok_or_else(|| {
                NodeError::invalid(format!("seqlens_k wants {before} tokens of the past"))
            })?;
            let past = one(cx, past)?;
            parts.push(cx.slice(past, 2, 0, before, 1)?);
        }
        let end = before.checked_add(tokens).filter(|&n| n <= len);
        let end = end.ok_or_else(|| {
            NodeError::invalid(format!("{tokens} tokens after {before} in a cache of {len}"))
        })?;
        parts.push(new);
        if end < len {
            let zero = cx.scalar(DType::F32, 0.0)?;
            parts.push(cx.expand(zero, &[batch, heads, len - end, size])?);
        }
        let whole = if let [one] = parts[..] { one } else { cx.op(Concat { axis: 2 }, &parts)? };
        sequences.push(whole);
    }
    if let [one] = sequences[..] { Ok(one) } else { cx.op(Concat { axis: 0 }, &sequences) }
}

/// A list of integers as a tensor.
fn list(cx: &mut NodeCx<'_>, values: &[i64], dims: &[usize]) -> Result<TensorId, NodeError> {
    cx.constant(Tensor::from_slice(dims, values).map_err(GraphError::from)?)
}

/// Which keys a query sees: none of the future, none beyond its sequence, and none before its window.
fn window(cx: &mut NodeCx<'_>, of: &Scores, at: &Lengths) -> Result<Option<TensorId>, NodeError> {
    let (causal, size) = (cx.flag("causal", true), cx.int("local_window_size", -1));
    if size == 0 || size < -1 || (size > 0 && !causal) {
        return Err(NodeError::unsupported(format!("local_window_size {size}")));
    }
    let short = at.all.iter().any(|&n| usize::try_from(n) != Ok(of.columns));
    let all_seen = !(short || causal && of.rows > 1);
    if all_seen && size < 0 {
        return Ok(None);
    }
    let (column, row) = (counting(cx, of.columns)?, counting(cx, of.rows)?);
    let first = list(cx, &at.before, &[of.batch, 1, 1, 1])?;
    let row = cx.reshape(row, &[of.rows, 1])?;
    let row = cx.binary(BinaryOp::Add, row, first)?;
    let mut limits = vec![(column, list(cx, &at.all, &[of.batch, 1, 1, 1])?, CompareOp::Less)];
    if causal {
        limits.push((column, row, CompareOp::LessOrEqual));
    }
    if size > 0 {
        #[allow(clippy::cast_precision_loss, reason = "larger windows reach everything anyway")]
        let size = cx.scalar(DType::I64, size.min(1 << 40) as f64)?;
        let start = cx.binary(BinaryOp::Sub, row, size)?;
        limits.push((start, column, CompareOp::Less));
    }
    let hidden = cx.scalar(DType::F32, f64::from(f32::MIN))?;
    let mut bias = cx.scalar(DType::F32, 0.0)?;
    for (a, b, op) in limits {
        let seen = cx.op(Compare { op }, &[a, b])?;
        bias = cx.op(Select, &[seen, bias, hidden])?;
    }
    Ok(Some(bias))
}

/// Each head of keys or values as often as queries use it.
fn spread(cx: &mut NodeCx<'_>, x: TensorId, times: usize) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    let &[batch, heads, tokens, size] = &dims[..] else { return Err(NodeError::NoInput(1)) };
    let wide = cx.reshape(x, &[batch, heads, 1, tokens, size])?;
    let wide = cx.expand(wide, &[batch, heads, times, tokens, size])?;
    cx.reshape(wide, &[batch, heads * times, tokens, size])
}

/// Queries, keys and values as `[batch, heads, tokens, size]`, rotated if they are to be.
fn by_head(
    cx: &mut NodeCx<'_>,
    sources: [TensorId; 3],
    [heads, kv_heads]: [usize; 2],
    at: &Lengths,
    [batch, rows]: [usize; 2],
) -> Result<[TensorId; 3], NodeError> {
    let mut parts = Vec::new();
    for (x, heads) in sources.into_iter().zip([heads, kv_heads, kv_heads]) {
        let found = cx.dims(x);
        match found[..] {
            [b, t, w] if b == batch && t == rows && heads > 0 && w.is_multiple_of(heads) => {
                parts.push(cx.reshape(x, &[b, t, heads, w / heads])?);
            }
            _ => return Err(NodeError::invalid(format!("{heads} heads of {found:?}"))),
        }
    }
    if cx.flag("do_rotary", false) {
        refuse(cx, &[(9, "position_ids")])?;
        let positions: Vec<i64> = at.before.iter().flat_map(|&n| (n..).take(rows)).collect();
        let positions = list(cx, &positions, &[batch, rows])?;
        let half = cx.dims(cx.input(7)?).last().copied().unwrap_or(0);
        if parts.iter().take(2).any(|&x| cx.dims(x).last().is_none_or(|&n| n / 2 < half)) {
            let what = format!("cos_cache (input 7) turns {half} pairs of smaller heads");
            return Err(NodeError::invalid(what));
        }
        let angles = angles(cx, [7, 8], positions, half)?;
        let interleaved = cx.flag("rotary_interleaved", false);
        for x in parts.iter_mut().take(2) {
            *x = turned(cx, *x, angles, half, interleaved)?;
        }
    }
    for x in &mut parts {
        *x = cx.transpose(*x, &[0, 2, 1, 3])?;
    }
    <[TensorId; 3]>::try_from(parts).map_err(|_| NodeError::NoInput(2))
}

/// Attention in which several heads of queries use the same keys and values, of which there is a cache.
fn group_query_attention(cx: &mut NodeCx<'_>) -> Outputs {
    refuse(cx, &[(11, "head_sink"), (12, "k_scale"), (13, "v_scale")])?;
    refuse(cx, &[(14, "q_norm_weight"), (15, "k_norm_weight")])?;
    let heads = build::extent(cx.int("num_heads", 0), "num_heads")?;
    let kv_heads = build::extent(cx.int("kv_num_heads", 0), "kv_num_heads")?;
    let query = cx.input(0)?;
    let dims = cx.dims(query);
    let (&[batch, rows, width], true) =
        (&dims[..], kv_heads > 0 && heads.is_multiple_of(kv_heads.max(1)))
    else {
        let what = format!("{heads} heads of query {dims:?}, {kv_heads} of keys");
        return Err(NodeError::invalid(what));
    };
    let sources = match (cx.opt(1), cx.opt(2)) {
        (Some(k), Some(v)) => [query, k, v],
        (None, None) => {
            let size = width / heads.saturating_add(kv_heads.saturating_mul(2)).max(1);
            let (q, k) = (size * heads, size * kv_heads);
            [
                cx.slice(query, 2, 0, q, 1)?,
                cx.slice(query, 2, q, k, 1)?,
                cx.slice(query, 2, q + k, k, 1)?,
            ]
        }
        _ => return Err(NodeError::invalid("key goes with value")),
    };
    let at = lengths(cx, batch, rows)?;
    let [q, k, v] = by_head(cx, sources, [heads, kv_heads], &at, [batch, rows])?;
    let capacity = cx.opt(3).and_then(|p| cx.dims(p).get(2).copied()).unwrap_or(0);
    let len = capacity.max(at.total);
    let (past_k, past_v) = (cx.opt(3), cx.opt(4));
    let k = cached(cx, past_k, k, &at.before, len)?;
    let v = cached(cx, past_v, v, &at.before, len)?;
    let size = cx.dims(q).last().copied().unwrap_or(0);
    let columns = at.total;
    let of = Scores { batch, heads, rows, columns, past: 0, scale: scale(cx, size) };
    let bias: Vec<TensorId> = window(cx, &of, &at)?.into_iter().chain(cx.opt(10)).collect();
    if cx.opt(10).is_some() && cx.float("softcap", 0.0) > 0.0 {
        return Err(NodeError::unsupported("attention_bias (input 10) with softcap"));
    }
    let mut used = |x| {
        let x = cx.slice(x, 2, 0, columns, 1)?;
        spread(cx, x, heads / kv_heads)
    };
    let (used_k, used_v) = (used(k)?, used(v)?);
    Ok(vec![attend(cx, [q, used_k, used_v], &of, &bias)?, k, v])
}
