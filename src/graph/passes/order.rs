//! What follows from the order of bytes, which is that of the numbers they stand for: maxima and bounds.

use tilewright_kernels::Activation;
use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::binary::Binary;
use super::super::ops::dequantize::Dequantize;
use super::super::ops::pool::{Pool, PoolKind};
use super::super::ops::qpool::QPool;
use super::super::ops::requantize::is_bytes;
use super::super::{Context, GraphError, Op, TensorId};
use super::integer::{Replacement, dequantized, integers};
use super::lookup;

/// The maximum of bytes without a scale, for which there are kernels too.
pub(super) fn largest_bytes(cx: &Context, id: TensorId) -> Option<QPool> {
    is_bytes(cx.dtype(id)).then(|| largest(cx, id))?
}

/// The maximum that a record is, of bytes.
fn largest(cx: &Context, id: TensorId) -> Option<QPool> {
    let record = cx.record(id);
    let Op::Pool(pool) = record.op() else { return None };
    let found = pool.kind == PoolKind::Max && record.value().is_none();
    found.then(|| maximum(pool))
}

/// A maximum of bytes, whatever they stand for.
pub(super) fn maximum(pool: &Pool) -> QPool {
    QPool { pool: pool.clone(), x_zero: 0, zero: 0, scale: 1.0 }
}

/// Whether no window lies in padding alone, where a maximum is no number that bytes stand for.
pub(super) fn has_pixels(pool: &Pool) -> bool {
    let inside = |i: usize| pool.pads[i].max(pool.pads[i + 2]) < pool.window[i];
    pool.dilation == [1; 2] && inside(0) && inside(1)
}

/// The maximum of dequantised bytes, as the bytes of the maximum: numbers grow with their bytes.
pub(super) fn largest_dequantized(
    cx: &mut Context,
    id: TensorId,
) -> Result<Option<(Dequantize, Vec<TensorId>)>, GraphError> {
    let Some(op) = largest(cx, id) else { return Ok(None) };
    let from = cx.record(id).src()[0];
    let (Op::Dequantize(back), Some(x)) = (cx.record(from).op().clone(), dequantized(cx, from))
    else {
        return Ok(None);
    };
    if !has_pixels(&op.pool) || x.single().is_none() || !is_bytes(cx.dtype(x.x)) {
        return Ok(None);
    }
    let mut src = cx.record(from).src().to_vec();
    let name = cx.record(id).name().to_owned();
    src[0] = cx.op(op, &src[..1])?;
    cx.set_name(src[0], &name);
    Ok(Some((back, src)))
}

/// The larger or smaller of bytes and a constant, as bounds of the operator that makes the bytes, or as a table: what
/// exporters write for results of fewer than eight bits.
pub(super) fn clipped(
    cx: &Context,
    uses: &[usize],
    id: TensorId,
) -> Result<Replacement, GraphError> {
    let record = cx.record(id);
    let &Op::Binary(Binary { op, activation: Activation::None }) = record.op() else {
        return Ok(None);
    };
    let is_bound = matches!(op, BinaryOp::Max | BinaryOp::Min);
    if !is_bound || !is_bytes(record.dtype()) || record.value().is_some() {
        return Ok(None);
    }
    let bound = |id: TensorId| integers(cx.constant_value(id)?).filter(|v| v.len() == 1);
    let src = record.src();
    let (x, bound) = match (bound(src[0]), bound(src[1])) {
        (None, Some(bound)) => (src[0], bound[0]),
        (Some(bound), None) => (src[1], bound[0]),
        _ => return Ok(None),
    };
    let made = cx.record(x);
    let within = |[low, high]: [i32; 2]| match op {
        BinaryOp::Max => [low.max(bound), high.max(bound)],
        _ => [low.min(bound), high.min(bound)],
    };
    let sole = uses.get(x.index()) == Some(&1) && made.value().is_none();
    let same = cx.dims(x) == cx.dims(id);
    let bounded: Option<Op> = match made.op().clone() {
        _ if !sole || !same => None,
        Op::QConv(mut op) => {
            op.quant.bounds = within(op.quant.bounds);
            Some(op.into())
        }
        Op::QMatMul(mut op) => {
            op.quant.bounds = within(op.quant.bounds);
            Some(op.into())
        }
        Op::QBinary(mut op) => {
            op.bounds = within(op.bounds);
            Some(op.into())
        }
        _ => None,
    };
    if let Some(op) = bounded {
        return Ok(Some((op, made.src().to_vec())));
    }
    Ok(lookup::table(cx, id)?.map(|(table, x)| (table.into(), vec![x])))
}
