//! Copies that bring channels behind or before the pixels, as networks do around operators of tokens.

use super::super::ops::cont::StridedCopy;
use super::super::{Context, Layout, Op, TensorId};
use super::pattern::reshaped;

/// The tensor whose memory, channels last, holds the elements of `id` as they are before a copy brought the
/// channels to the front. Of rank 3 or more.
pub(super) fn before_copy(cx: &Context, id: TensorId) -> Option<TensorId> {
    let copy = reshaped(cx, id);
    let (base, [n, c, space]) = copied(cx, copy)?;
    let info = cx.record(id).info();
    (info.dims.len() >= 3 && info.ncs() == (n, c, space)).then_some(base)
}

/// The tensor whose channels a copy brings behind its pixels.
pub(super) fn behind_copy(cx: &Context, id: TensorId) -> Option<TensorId> {
    let (base, [n, space, c]) = copied(cx, id)?;
    let info = cx.record(base).info();
    (info.dims.len() >= 3 && info.ncs() == (n, c, space)).then_some(base)
}

/// The tensor whose elements `id` has in the same order, as its copy undoes what another did.
pub(super) fn undone(cx: &Context, id: TensorId) -> Option<TensorId> {
    let (first, [n, rows, columns]) = copied(cx, id)?;
    let (source, before) = copied(cx, reshaped(cx, first))?;
    (before == [n, columns, rows]).then_some(source)
}

/// Whether a copy of `view` brings the channels of `of` behind its pixels, and nothing else reads it.
pub(super) fn reads_behind(
    cx: &Context,
    readers: &dyn Fn(TensorId) -> Vec<TensorId>,
    view: TensorId,
    of: TensorId,
) -> bool {
    let list = readers(view);
    !list.is_empty()
        && list.iter().all(|&reader| match cx.record(reader).op() {
            Op::View(_) => reads_behind(cx, readers, reader, of),
            _ => behind_copy(cx, reader) == Some(of),
        })
}

/// What a copy reads that transposes matrices: the tensor, dense and plain, and the copy's extents, of which the
/// last two are the other way round in the tensor.
fn copied(cx: &Context, copy: TensorId) -> Option<(TensorId, [usize; 3])> {
    let record = cx.record(copy);
    if !matches!(record.op(), Op::Cont(_)) || record.value().is_some() {
        return None;
    }
    let mut base = record.src()[0];
    let shape = cx.record(base).shape();
    while let (Some(0), &[source]) = (cx.record(base).view_offset(), cx.record(base).src()) {
        base = source;
    }
    let from = cx.record(base);
    let whole = from.is_contiguous()
        && from.layout() == Layout::Plain
        && from.view_offset().is_none()
        && from.shape().elements() == shape.elements();
    let copy = StridedCopy::new(record.dtype(), shape).ok().filter(|_| whole)?;
    Some((base, copy.transposed()?))
}
