//! Rotation of heads by their positions, as `com.microsoft` has it.

use tilewright_kernels::template::binary::BinaryOp;

use super::contrib::row;
use super::indexing::counting;
use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::TensorId;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::gather::Gather;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

pub(super) const ROWS: &[OpRow] = &[row(
    "RotaryEmbedding",
    (4, 4),
    &[
        Attr::int("interleaved").only(&[0, 1]),
        Attr::int("is_packed_batching").only(&[0]),
        Attr::int("num_heads"),
        Attr::int("rotary_embedding_dim"),
        Attr::float("scale"),
    ],
    rotary_embedding,
)];

/// Rows of the tables of cosines and sines, as `[.., tokens, 1, half]`.
pub(super) fn angles(
    cx: &mut NodeCx<'_>,
    tables: [usize; 2],
    at: TensorId,
    half: usize,
) -> Result<[TensorId; 2], NodeError> {
    let [cos, sin] = tables;
    let found = |cx: &mut NodeCx<'_>, i| {
        let table = cx.input(i)?;
        let dims = cx.dims(table);
        if !matches!(dims[..], [_, n] if n == half) {
            let what = format!("table (input {i}) {dims:?} for {half} pairs that turn");
            return Err(NodeError::unsupported(what));
        }
        let rows = cx.op(Gather { axis: 0 }, &[table, at])?;
        let dims = cx.dims(rows);
        let (half, outer) = dims.split_last().ok_or(NodeError::NoInput(i))?;
        let shape = [outer, &[1, *half]].concat();
        cx.reshape(rows, &shape)
    };
    Ok([found(cx, cos)?, found(cx, sin)?])
}

/// Turns the first elements of heads in `[batch, tokens, heads, size]`.
pub(super) fn turned(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    [cos, sin]: [TensorId; 2],
    half: usize,
    interleaved: bool,
) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    let &[batch, tokens, heads, size] = &dims[..] else { return Err(NodeError::NoInput(0)) };
    let (second, step) = if interleaved { (usize::from(half > 0), 2) } else { (half, 1) };
    let (a, b) = (cx.slice(x, 3, 0, half, step)?, cx.slice(x, 3, second, half, step)?);
    let mut part = |p, q, r, s, op| {
        let (left, right) = (cx.binary(BinaryOp::Mul, p, q)?, cx.binary(BinaryOp::Mul, r, s)?);
        cx.binary(op, left, right)
    };
    let real = part(cos, a, sin, b, BinaryOp::Sub)?;
    let imaginary = part(sin, a, cos, b, BinaryOp::Add)?;
    let mut parts = vec![real, imaginary];
    if interleaved {
        for part in &mut parts {
            *part = cx.reshape(*part, &[batch, tokens, heads, half, 1])?;
        }
        let pairs = cx.op(Concat { axis: 4 }, &parts)?;
        parts = vec![cx.reshape(pairs, &[batch, tokens, heads, 2 * half])?];
    }
    if 2 * half < size {
        parts.push(cx.slice(x, 3, 2 * half, size - 2 * half, 1)?);
    }
    if let [one] = parts[..] { Ok(one) } else { cx.op(Concat { axis: 3 }, &parts) }
}

/// Pairs of elements of a head turn by angles, whose cosines and sines are given per position.
fn rotary_embedding(cx: &mut NodeCx<'_>) -> Outputs {
    let factor = cx.float("scale", 1.0);
    if factor.to_bits() != 1.0f32.to_bits() {
        return Err(NodeError::unsupported(format!("scale {factor}")));
    }
    let (x, at) = (cx.input(0)?, cx.input(1)?);
    let dims = cx.dims(x);
    let wanted = build::extent(cx.int("rotary_embedding_dim", 0), "rotary_embedding_dim")?;
    // To `[batch, tokens, heads, size]`.
    let split = match dims[..] {
        [_, _, _, _] => cx.transpose(x, &[0, 2, 1, 3])?,
        [batch, tokens, width] => {
            let heads = match build::extent(cx.int("num_heads", 0), "num_heads")? {
                // Tables are as wide as half a head.
                0 if wanted == 0 => match cx.dims(cx.input(2)?)[..] {
                    [_, half] if half > 0 => width / half / 2,
                    _ => 0,
                },
                heads => heads,
            };
            if heads == 0 || !width.is_multiple_of(heads) {
                return Err(NodeError::invalid(format!("{heads} heads of x {dims:?}")));
            }
            cx.reshape(x, &[batch, tokens, heads, width / heads])?
        }
        _ => return Err(NodeError::invalid(format!("x {dims:?} must have 3 or 4 dimensions"))),
    };
    let by_token = cx.dims(split);
    let &[batch, tokens, _, size] = &by_token[..] else { return Err(NodeError::NoInput(0)) };
    let turning = if wanted == 0 { size } else { wanted };
    if turning > size || !turning.is_multiple_of(2) {
        return Err(NodeError::invalid(format!("{turning} elements of heads of {size} turn")));
    }
    // One position is that of the first token.
    let found = cx.dims(at);
    let at = match found[..] {
        [1] => {
            let count = counting(cx, tokens)?;
            let at = cast::to(cx, at, DType::I64)?;
            cx.binary(BinaryOp::Add, at, count)?
        }
        [b, t] if b == batch && t == tokens => at,
        _ => return Err(NodeError::invalid(format!("position_ids {found:?} for x {dims:?}"))),
    };
    let angles = angles(cx, [2, 3], at, turning / 2)?;
    let y = turned(cx, split, angles, turning / 2, cx.flag("interleaved", false))?;
    if dims.len() == 4 {
        return Ok(vec![cx.transpose(y, &[0, 2, 1, 3])?]);
    }
    Ok(vec![cx.reshape(y, &dims)?])
}
