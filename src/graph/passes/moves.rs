//! Moves of dequantised tensors as moves of their bytes.

use super::super::ops::cont::Cont;
use super::super::ops::dequantize::Dequantize;
use super::super::{Context, GraphError, Op, TensorId};
use super::integer::dequantized;
use super::use_counts;

/// Where elements of a dequantised tensor are only moved (transposed, cut, repeated, copied), moves its bytes and
/// dequantises the result. They are a quarter of the memory, and where the result is quantised with the same
/// scale, that is all there is to do.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub(super) fn move_bytes(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    for id in order {
        let record = cx.record(id);
        match record.op() {
            _ if record.value().is_some() => {}
            Op::Cont(_) => {
                let from = record.src()[0];
                if let Some((op, mut src)) = moved(cx, from)? {
                    let (bytes, name) = (cx.op(Cont, &[src[0]])?, cx.record(id).name().to_owned());
                    cx.set_name(bytes, &name);
                    src[0] = bytes;
                    cx.rewrite(id, op.into(), src)?;
                }
            }
            // What others read as well would be dequantised twice.
            Op::View(_) if record.is_contiguous() && uses[record.src()[0].index()] == 1 => {
                if let Some((op, src)) = moved(cx, id)? {
                    cx.rewrite(id, op.into(), src)?;
                }
            }
            Op::Quantize(op) => {
                let (op, mut src) = (*op, record.src().to_vec());
                if let Some((back, own)) = moved(cx, src[0])? {
                    src[0] = cx.op(back, &own)?;
                    cx.rewrite(id, op.into(), src)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// How a view, or a view of a view, of a dequantised tensor is dequantised from views of its bytes.
fn moved(
    cx: &mut Context,
    id: TensorId,
) -> Result<Option<(Dequantize, Vec<TensorId>)>, GraphError> {
    let (mut views, mut base) = (Vec::new(), id);
    while cx.record(base).view_offset().is_some() && cx.record(base).value().is_none() {
        views.push(base);
        base = cx.record(base).src()[0];
    }
    let Some(x) = dequantized(cx, base) else { return Ok(None) };
    let size = cx.dtype(id).block_bytes();
    if views.is_empty() || cx.dtype(x.x).block_bytes() != 1 || !cx.record(x.x).is_contiguous() {
        return Ok(None);
    }
    let axis = match (x.single(), x.axis) {
        (Some(_), _) => None,
        (None, Some(axis)) if views.len() == 1 => match moved_axis(cx, base, id, axis) {
            None => return Ok(None),
            found => found,
        },
        _ => return Ok(None),
    };
    let mut src = cx.record(base).src().to_vec();
    if axis.is_none() {
        // One of each, of whatever shape.
        for parameter in &mut src[1..] {
            *parameter = cx.reshape(*parameter, &[])?;
        }
    }
    for view in views.into_iter().rev() {
        let record = cx.record(view);
        let offset = record.view_offset().expect("only views are there") / size;
        let strides: Vec<usize> = record.shape().strides().iter().map(|s| s / size).collect();
        src[0] = cx.view(src[0], &record.shape().dims(), &strides, offset)?;
    }
    Ok(Some((Dequantize { axis, block: 0 }, src)))
}

/// Where an axis of a tensor is in a view that has its axes in another order.
fn moved_axis(cx: &Context, base: TensorId, view: TensorId, axis: usize) -> Option<usize> {
    let axes = |id: TensorId| {
        let shape = cx.record(id).shape();
        shape.dims().into_iter().zip(shape.strides()).collect::<Vec<_>>()
    };
    let (own, order) = (axes(base), axes(view));
    let mut places = (0..order.len()).filter(|&i| order[i] == own[axis]);
    let place = places.next()?;
    let all = own.len() == order.len() && own.iter().all(|axis| order.contains(axis));
    (all && places.next().is_none()).then_some(place)
}
