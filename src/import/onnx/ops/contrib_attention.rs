//! Operators of the domain `com.microsoft` that a fused transformer consists of: embedding, attention, rotation.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::contrib::row;
use super::indexing::counting;
use super::{NodeCx, OpRow, Outputs, cast, contrib, matmul, quantize, reduce};
use crate::graph::TensorId;
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::concat::Concat;
use crate::graph::ops::gather::Gather;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::graph::ops::softmax::Softmax;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

pub(super) const ROWS: &[OpRow] = &[
    row(
        "Attention",
        (2, 7),
        &[
            Attr::int("do_rotary").only(&[0]),
            Attr::float("mask_filter_value"),
            Attr::int("num_heads").required(),
            Attr::int("past_present_share_buffer").only(&[0]),
            Attr::ints("qkv_hidden_sizes"),
            Attr::int("rotary_embedding_dim"),
            Attr::float("scale"),
            Attr::int("unidirectional").only(&[0, 1]),
        ],
        attention,
    )
    .outputs(2, 2),
    row(
        "EmbedLayerNormalization",
        (7, 9),
        &[Attr::float("epsilon"), Attr::int("mask_index_type")],
        embed_layer_normalization,
    )
    .outputs(3, 3),
    row(
        "MultiHeadAttention",
        (1, 10),
        &[
            Attr::float("mask_filter_value"),
            Attr::int("num_heads").required(),
            Attr::float("scale"),
            Attr::int("unidirectional").only(&[0, 1]),
        ],
        multi_head_attention,
    )
    .outputs(4, 3),
    row(
        "QAttention",
        (5, 9),
        &[
            Attr::int("do_rotary").only(&[0]),
            Attr::float("mask_filter_value"),
            Attr::int("num_heads").required(),
            Attr::int("past_present_share_buffer").only(&[0]),
            Attr::float("scale"),
            Attr::int("unidirectional").only(&[0, 1]),
        ],
        quantized_attention,
    )
    .outputs(2, 2),
];

/// Inputs that are not supported are refused by name.
pub(super) fn refuse(cx: &NodeCx<'_>, inputs: &[(usize, &str)]) -> Result<(), NodeError> {
    match inputs.iter().find(|(i, _)| cx.opt(*i).is_some()) {
        Some((i, name)) => Err(NodeError::unsupported(format!("input {i} ({name})"))),
        None => Ok(()),
    }
}

/// Words, positions and segments looked up and added, and the sum normalised; the number of words of a row.
fn embed_layer_normalization(cx: &mut NodeCx<'_>) -> Outputs {
    let (gamma, beta) = (cx.input(5)?, cx.input(6)?);
    let tables = [2, 3, 4].map(|i| cx.opt(i));
    let look_up = |cx: &mut NodeCx<'_>, table, at| cx.op(Gather { axis: 0 }, &[table, at]);
    embedded(cx, tables, [gamma, beta], [7, 8], look_up)
}

/// As [`embed_layer_normalization`], with tables of words, positions and segments from which `look_up` reads rows;
/// the number of the input that says which words count.
pub(super) fn embedded<T: Copy>(
    cx: &mut NodeCx<'_>,
    [words, positions, segments]: [Option<T>; 3],
    [gamma, beta]: [TensorId; 2],
    [mask, at]: [usize; 2],
    look_up: impl Fn(&mut NodeCx<'_>, T, TensorId) -> Result<TensorId, NodeError>,
) -> Outputs {
    let ids = cx.input(0)?;
    let (Some(words), Some(positions)) = (words, positions) else {
        return Err(NodeError::NoInput(2));
    };
    let dims = cx.dims(ids);
    let &[batch, tokens] = &dims[..] else {
        return Err(NodeError::invalid(format!("input_ids {dims:?} must have 2 dimensions")));
    };
    let mut sum = look_up(cx, words, ids)?;
    let shape = cx.dims(sum);
    let at = match cx.opt(at) {
        Some(at) => at,
        None => counting(cx, tokens)?,
    };
    let mut parts = vec![(positions, at)];
    match (segments, cx.opt(1)) {
        (Some(table), Some(ids)) => parts.push((table, ids)),
        // All words are in the first segment.
        (Some(table), None) => parts.push((table, cx.scalar(DType::I64, 0.0)?)),
        (None, None) => {}
        (None, Some(_)) => {
            return Err(NodeError::invalid("segment_ids without segment_embedding"));
        }
    }
    for (table, at) in parts {
        let part = look_up(cx, table, at)?;
        sum = cx.binary(BinaryOp::Add, sum, part)?;
    }
    if cx.dims(sum) != shape {
        let found = cx.dims(sum);
        return Err(NodeError::invalid(format!("embeddings {shape:?} sum up to {found:?}")));
    }
    let epsilon = cx.float("epsilon", 1e-12);
    let op = Norm { op: NormOp::Layer, axis: 2, epsilon, by_parts: false };
    let y = cx.op(op, &[sum, gamma, beta])?;
    let count = match cx.opt(mask) {
        Some(mask) => {
            let one = cx.scalar(cx.dtype(mask), 1.0)?;
            let is_word = cx.op(Compare { op: CompareOp::Equal }, &[mask, one])?;
            let is_word = cast::to(cx, is_word, DType::I32)?;
            reduce::over(cx, ReduceOp::Sum, is_word, &[1], false)?
        }
        None => {
            let zero = cx.scalar(DType::I32, 0.0)?;
            cx.expand(zero, &[batch])?
        }
    };
    Ok(vec![y, count, sum])
}

/// Extents of queries and keys, and what is known of which queries see which keys.
pub(super) struct Scores {
    pub(super) batch: usize,
    pub(super) heads: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Keys of the past, which stand in front.
    pub(super) past: usize,
    pub(super) scale: f32,
}

/// `[batch, heads, tokens, size]` of `[batch, tokens, heads * size]`.
fn by_head(cx: &mut NodeCx<'_>, x: TensorId, heads: usize) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    match dims[..] {
        [batch, tokens, width] if heads > 0 && width.is_multiple_of(heads) => {
            let x = cx.reshape(x, &[batch, tokens, heads, width / heads])?;
            cx.transpose(x, &[0, 2, 1, 3])
        }
        _ => Err(NodeError::invalid(format!("{heads} heads of {dims:?}"))),
    }
}

/// The scale of scores; 0 stands for that of the heads' size.
pub(super) fn scale(cx: &NodeCx<'_>, size: usize) -> f32 {
    match cx.float("scale", 0.0) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "a head's size"
        )]
        0.0 => (1.0 / (size as f64).sqrt()) as f32,
        scale => scale,
    }
}

/// `softmax(scale * q * k + bias) * v` of each head, as `[batch, rows, heads * size]`.
pub(super) fn attend(
    cx: &mut NodeCx<'_>,
    [q, k, v]: [TensorId; 3],
    of: &Scores,
    bias: &[TensorId],
) -> Result<TensorId, NodeError> {
    let scores = cx.op(MatMul { transposed_b: true, ..MatMul::default() }, &[q, k])?;
    let mut scores = matmul::scaled(cx, scores, of.scale)?;
    let cap = cx.float("softcap", 0.0);
    if cap > 0.0 {
        scores = matmul::scaled(cx, scores, 1.0 / cap)?;
        scores = cx.unary(UnaryOp::Tanh, scores)?;
        scores = matmul::scaled(cx, scores, cap)?;
    }
    // One bias for all heads, so that it is added where scores are made.
    if let Some((&first, more)) = bias.split_first() {
        let mut sum = first;
        for &part in more {
            sum = cx.binary(BinaryOp::Add, sum, part)?;
        }
        let shape = cx.dims(scores);
        scores = cx.binary(BinaryOp::Add, scores, sum)?;
        if cx.dims(scores) != shape {
            let found = cx.dims(sum);
            return Err(NodeError::invalid(format!("masks {found:?} for scores {shape:?}")));
        }
    }
    let weights = cx.op(Softmax::along(3), &[scores])?;
    let y = cx.op(MatMul::default(), &[weights, v])?;
    let dims = cx.dims(y);
    let &[_, _, _, size] = &dims[..] else { return Err(NodeError::NoInput(2)) };
    let width = size.checked_mul(of.heads).ok_or_else(|| NodeError::invalid("too many heads"))?;
    let y = cx.transpose(y, &[0, 2, 1, 3])?;
    cx.reshape(y, &[of.batch, of.rows, width])
}

/// 0 where a flag is set, `hidden` elsewhere.
fn bias_of(cx: &mut NodeCx<'_>, seen: TensorId, hidden: f32) -> Result<TensorId, NodeError> {
    let (zero, hidden) = (cx.scalar(DType::F32, 0.0)?, cx.scalar(DType::F32, f64::from(hidden))?);
    cx.op(Select, &[seen, zero, hidden])
}

/// A query sees no key after its own position.
fn causal(cx: &mut NodeCx<'_>, of: &Scores) -> Result<Option<TensorId>, NodeError> {
    if !cx.flag("unidirectional", false) || of.columns <= of.past.saturating_add(1) {
        return Ok(None);
    }
    let (column, row) = (counting(cx, of.columns)?, counting(cx, of.rows)?);
    let row = cx.reshape(row, &[of.rows, 1])?;
    #[allow(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
    let first = cx.scalar(DType::I64, of.past as f64)?;
    let row = cx.binary(BinaryOp::Add, row, first)?;
    let seen = cx.op(Compare { op: CompareOp::LessOrEqual }, &[column, row])?;
    Ok(Some(bias_of(cx, seen, f32::MIN)?))
}

/// Whether a list of `n` numbers begins with how many keys each of a batch has: they stand alone, before where the
/// keys begin, or before where queries and keys begin in a tensor without padding.
fn lengths(n: usize, batch: usize) -> bool {
    n == batch
        || Some(n) == batch.checked_mul(2)
        || Some(n) == batch.checked_mul(3).and_then(|n| n.checked_add(2))
}

/// What a mask of keys adds to scores: it has flags, or the number of keys of each batch, or where they end and begin.
fn masked(cx: &mut NodeCx<'_>, i: usize, of: &Scores) -> Result<Option<TensorId>, NodeError> {
    let Some(mut mask) = cx.opt(i) else { return Ok(None) };
    let &Scores { batch, rows, columns, past, .. } = of;
    let hidden = cx.float("mask_filter_value", -10_000.0);
    let dims = cx.dims(mask);
    let shape = match dims[..] {
        [n] if lengths(n, batch) => {
            let ends = cast::to(cx, mask, DType::I64)?;
            let column = counting(cx, columns)?;
            let end = cx.slice(ends, 0, 0, batch, 1)?;
            let end = cx.reshape(end, &[batch, 1, 1, 1])?;
            let before_end = cx.op(Compare { op: CompareOp::Less }, &[column, end])?;
            let mut bias = bias_of(cx, before_end, hidden)?;
            if Some(n) == batch.checked_mul(2) {
                let start = cx.slice(ends, 0, batch, batch, 1)?;
                let start = cx.reshape(start, &[batch, 1, 1, 1])?;
                let from = cx.op(Compare { op: CompareOp::LessOrEqual }, &[start, column])?;
                let hidden = cx.scalar(DType::F32, f64::from(hidden))?;
                bias = cx.op(Select, &[from, bias, hidden])?;
            }
            return Ok(Some(bias));
        }
        [b, c] if b == batch && c == columns => [batch, 1, 1, columns],
        // One flag for all keys moves all scores of a query alike, which a softmax does not see.
        [b, 1] if b == batch || b == 1 => return Ok(None),
        [b, r, c] if b == batch && r == rows && c == columns => [batch, 1, rows, columns],
        // Of all positions that there may be.
        [b, 1, r, c]
            if b == batch && r == c && c >= columns && r.checked_sub(past) >= Some(rows) =>
        {
            mask = cx.slice(mask, 2, past, rows, 1)?;
            mask = cx.slice(mask, 3, 0, columns, 1)?;
            [batch, 1, rows, columns]
        }
        _ => {
            let what = format!(
                "mask (input {i}) {dims:?} for {batch} x {rows} queries and {columns} keys"
            );
            return Err(NodeError::unsupported(what));
        }
    };
    let mask = cx.reshape(mask, &shape)?;
    let zero = cx.scalar(cx.dtype(mask), 0.0)?;
    let seen = cx.op(Compare { op: CompareOp::Less }, &[zero, mask])?;
    Ok(Some(bias_of(cx, seen, hidden)?))
}

/// Mask, order of positions and a given bias, whatever there is.
fn biases(
    cx: &mut NodeCx<'_>,
    mask: usize,
    given: usize,
    of: &Scores,
) -> Result<Vec<TensorId>, NodeError> {
    let parts = [masked(cx, mask, of)?, causal(cx, of)?, cx.opt(given)];
    Ok(parts.into_iter().flatten().collect())
}

/// Past and new tokens of each head, one after the other.
fn grown(
    cx: &mut NodeCx<'_>,
    past: Option<TensorId>,
    new: TensorId,
) -> Result<TensorId, NodeError> {
    match past {
        Some(past) => cx.op(Concat { axis: 2 }, &[past, new]),
        None => Ok(new),
    }
}

/// Queries, keys and values of each head, from a tensor in which they stand side by side.
fn split(cx: &mut NodeCx<'_>, qkv: TensorId, heads: usize) -> Result<[TensorId; 3], NodeError> {
    let dims = cx.dims(qkv);
    let &[_, _, width] = &dims[..] else {
        return Err(NodeError::invalid(format!("queries, keys and values {dims:?}")));
    };
    let sizes = match cx.ints("qkv_hidden_sizes") {
        Some(sizes) => {
            let sizes = sizes.into_iter().map(|n| build::extent(n, "qkv_hidden_sizes"));
            sizes.collect::<Result<Vec<_>, _>>()?
        }
        None => vec![width / 3; 3],
    };
    let fits = match sizes[..] {
        [q, k, v] => q == k && q.checked_mul(2).and_then(|n| n.checked_add(v)) == Some(width),
        _ => false,
    };
    let (&[q, k, v], true) = (&sizes[..], fits) else {
        return Err(NodeError::invalid(format!("qkv_hidden_sizes {sizes:?} for {width}")));
    };
    let mut part = |start, len| {
        let part = cx.slice(qkv, 2, start, len, 1)?;
        by_head(cx, part, heads)
    };
    Ok([part(0, q)?, part(q, k)?, part(q + k, v)?])
}

/// Attention of a tensor to itself, with the product that makes queries, keys and values of it.
fn attention(cx: &mut NodeCx<'_>) -> Outputs {
    refuse(cx, &[(6, "past_sequence_length")])?;
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let mut qkv = matmul::product(cx, x, w)?;
    if let Some(bias) = cx.opt(2) {
        qkv = cx.binary(BinaryOp::Add, qkv, bias)?;
    }
    self_attention(cx, qkv, [3, 4, 5])
}

/// No input has this number.
pub(super) const ABSENT: usize = usize::MAX;

/// As [`attention`], of bytes: scales stand in inputs 3 and 4, zero points in 6 and 7.
fn quantized_attention(cx: &mut NodeCx<'_>) -> Outputs {
    let acc = quantize::product(cx, [0, 6], [1, 7])?;
    let (x, w) = (cx.input(3)?, cx.input(4)?);
    let shape = cx.dims(acc);
    let qkv = contrib::scaled_to_float(cx, acc, [x, w], 2)?;
    if cx.dims(qkv) != shape {
        let (w, qkv) = (cx.dims(w), cx.dims(qkv));
        let what = format!("weight_scale {w:?} and bias make {qkv:?} of products {shape:?}");
        return Err(NodeError::invalid(what));
    }
    self_attention(cx, qkv, [5, 8, ABSENT])
}

/// Attention of queries, keys and values that stand side by side; the numbers of the inputs that have a mask, keys
/// and values of the past, and what is added to scores.
fn self_attention(cx: &mut NodeCx<'_>, qkv: TensorId, [mask, past, given]: [usize; 3]) -> Outputs {
    let heads = build::extent(cx.int("num_heads", 0), "num_heads")?;
    let [q, mut k, mut v] = split(cx, qkv, heads)?;
    let (qd, vd) = (cx.dims(q), cx.dims(v));
    let &[batch, _, rows, size] = &qd[..] else { return Err(NodeError::NoInput(0)) };
    // Keys and values of the past are one tensor.
    if (cx.opt(past).is_some() || cx.wants(1)) && qd != vd {
        let what = "past or present (output 1) with values of another width than keys";
        return Err(NodeError::unsupported(what));
    }
    let mut before = 0;
    if let Some(past) = cx.opt(past) {
        let dims = cx.dims(past);
        let (Some((2, each)), &[.., tokens, _]) = (dims.split_first(), &dims[..]) else {
            return Err(NodeError::invalid(format!("past {dims:?} must begin with 2")));
        };
        before = tokens;
        for (i, new) in [&mut k, &mut v].into_iter().enumerate() {
            let half = cx.slice(past, 0, i, 1, 1)?;
            let half = cx.reshape(half, each)?;
            *new = grown(cx, Some(half), *new)?;
        }
    }
    let kd = cx.dims(k);
    let columns = kd.get(2).copied().unwrap_or(0);
    let of = Scores { batch, heads, rows, columns, past: before, scale: scale(cx, size) };
    let bias = biases(cx, mask, given, &of)?;
    let mut out = vec![attend(cx, [q, k, v], &of, &bias)?];
    if cx.wants(1) {
        let shape = [&[1], &kd[..]].concat();
        let (k, v) = (cx.reshape(k, &shape)?, cx.reshape(v, &shape)?);
        out.push(cx.op(Concat { axis: 0 }, &[k, v])?);
    }
    Ok(out)
}

/// Queries, keys and values, of which the last two or all may be one tensor, by head.
fn unpacked(cx: &mut NodeCx<'_>) -> Result<[TensorId; 3], NodeError> {
    let first = cx.input(0)?;
    let (packed, parts) = match (cx.opt(1), cx.opt(2)) {
        (Some(k), Some(v)) if cx.rank(first) == 3 => return Ok([first, k, v]),
        (Some(kv), None) if cx.rank(first) == 3 => (kv, 2),
        (None, None) => (first, 3),
        _ => {
            return Err(NodeError::invalid(
                "value (input 2) without key, or both with packed queries",
            ));
        }
    };
    let dims = cx.dims(packed);
    let &[batch, tokens, heads, found, size] = &dims[..] else {
        return Err(NodeError::invalid(format!("packed keys and values {dims:?}")));
    };
    let wanted = usize::try_from(cx.int("num_heads", 0)) == Ok(heads);
    let width = heads.checked_mul(size).filter(|_| found == parts && wanted);
    let width = width.ok_or_else(|| NodeError::invalid(format!("{parts} parts of {dims:?}")))?;
    let mut out = if parts == 2 { vec![first] } else { Vec::new() };
    for i in 0..parts {
        let part = cx.slice(packed, 3, i, 1, 1)?;
        out.push(cx.reshape(part, &[batch, tokens, width])?);
    }
    <[TensorId; 3]>::try_from(out).map_err(|_| NodeError::NoInput(2))
}

/// Attention of queries to keys and values, which are products already; their bias may be still to add.
fn multi_head_attention(cx: &mut NodeCx<'_>) -> Outputs {
    refuse(cx, &[(8, "past_sequence_length"), (9, "cache_indirection")])?;
    let sources = unpacked(cx)?;
    if cx.opt(6).is_some() != cx.opt(7).is_some() {
        return Err(NodeError::invalid("past_key goes with past_value"));
    }
    let heads = build::extent(cx.int("num_heads", 0), "num_heads")?;
    let (mut parts, mut start) = (Vec::new(), 0);
    for mut x in sources {
        // Keys and values of another network come by head, and have their bias.
        if cx.rank(x) == 4 {
            parts.push(x);
            continue;
        }
        let width = cx.dims(x).last().copied().unwrap_or(0);
        if let Some(bias) = cx.opt(3) {
            let bias = cx.slice(bias, 0, start, width, 1)?;
            x = cx.binary(BinaryOp::Add, x, bias)?;
        }
        start += width;
        parts.push(by_head(cx, x, heads)?);
    }
    let &[q, k, v] = &parts[..] else { return Err(NodeError::NoInput(2)) };
    let past = cx.opt(6).and_then(|p| cx.dims(p).get(2).copied()).unwrap_or(0);
    let (past_k, past_v) = (cx.opt(6), cx.opt(7));
    let (k, v) = (grown(cx, past_k, k)?, grown(cx, past_v, v)?);
    let (qd, kd) = (cx.dims(q), cx.dims(k));
    let (&[batch, _, rows, size], &[_, _, columns, _]) = (&qd[..], &kd[..]) else {
        return Err(NodeError::invalid(format!("queries {qd:?} and keys {kd:?}")));
    };
    if cx.flag("unidirectional", false) && columns != past.saturating_add(rows) {
        let what =
            format!("unidirectional with {rows} queries and {columns} keys, {past} of the past");
        return Err(NodeError::unsupported(what));
    }
    let of = Scores { batch, heads, rows, columns, past, scale: scale(cx, size) };
    let bias = biases(cx, 4, 5, &of)?;
    Ok(vec![attend(cx, [q, k, v], &of, &bias)?, k, v])
}
