//! What passes ask when they look for a pattern of operators.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::{Activation, template::unary::UnaryOp};

use super::super::{Context, Op, TensorId};
use super::integer::parameters;
use crate::tensor::DType;

/// The value of a constant of one f32 element.
pub(super) fn scalar(cx: &Context, id: TensorId) -> Option<f32> {
    let value = cx.constant_value(id)?;
    // Asked first: elements of a mapped file are copied where they are not aligned, and this is asked of all weights.
    if (value.dtype(), value.shape().elements()) != (DType::F32, 1) {
        return None;
    }
    value.as_slice::<f32>().ok()?.first().copied()
}

/// Whether a number is `wanted`, rounded to f32 in whatever way.
pub(super) fn close(value: f32, wanted: f64) -> bool {
    (f64::from(value) - wanted).abs() <= 1e-6 * wanted.abs()
}

/// The operands of a binary operator without activation, if that computes `id` at run time.
pub(super) fn binary(cx: &Context, id: TensorId, op: BinaryOp) -> Option<[TensorId; 2]> {
    let record = cx.record(id);
    match (record.op(), record.src()) {
        (Op::Binary(b), &[x, y])
            if b.op == op && b.activation == Activation::None && record.value().is_none() =>
        {
            Some([x, y])
        }
        _ => None,
    }
}

/// The operand of a unary operator, if that computes `id` at run time.
pub(super) fn unary(cx: &Context, id: TensorId, op: UnaryOp) -> Option<TensorId> {
    let record = cx.record(id);
    match (record.op(), record.src()) {
        (Op::Unary(u), &[x]) if u.op == op && record.value().is_none() => Some(x),
        _ => None,
    }
}

/// The tensor whose dense elements `id` shows in another shape.
pub(super) fn reshaped(cx: &Context, mut id: TensorId) -> TensorId {
    while let (Some(0), &[source]) = (cx.record(id).view_offset(), cx.record(id).src()) {
        let (view, from) = (cx.record(id), cx.record(source));
        let same = view.shape().elements() == from.shape().elements();
        if !(same && view.is_contiguous() && from.is_contiguous() && view.value().is_none()) {
            break;
        }
        id = source;
    }
    id
}

/// Of results that are numbers, perhaps activated, and then quantised, the least step of that, by record; infinite for
/// others.
pub(super) fn steps(cx: &Context, order: &[TensorId]) -> Vec<f32> {
    let mut steps = vec![f32::INFINITY; cx.len()];
    for &id in order.iter().filter(|&&id| matches!(cx.record(id).op(), Op::Quantize(_))) {
        let Some((scales, _)) = parameters(cx, id) else { continue };
        let mut y = cx.record(id).src()[0];
        while let Op::Unary(op) = cx.record(y).op()
            && op.op.activation().is_some()
        {
            y = cx.record(y).src()[0];
        }
        let step = &mut steps[y.index()];
        *step = scales.into_iter().fold(*step, f32::min);
    }
    steps
}
