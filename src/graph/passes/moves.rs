//! Moves of dequantised tensors as moves of their bytes.

use super::super::ops::cont::Cont;
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
                if let Some((bytes, scaled)) = moved(cx, from)? {
                    let (bytes, name) = (cx.op(Cont, &[bytes])?, cx.record(id).name().to_owned());
                    cx.set_name(bytes, &name);
                    dequantize_instead(cx, id, bytes, scaled)?;
                }
            }
            // What others read as well would be dequantised twice.
            Op::View(_) if record.is_contiguous() && uses[record.src()[0].index()] == 1 => {
                if let Some((bytes, scaled)) = moved(cx, id)? {
                    dequantize_instead(cx, id, bytes, scaled)?;
                }
            }
            Op::Quantize(op) => {
                let (op, mut src) = (*op, record.src().to_vec());
                if let Some((bytes, scaled)) = moved(cx, src[0])? {
                    let (dequantize, mut own) = dequantization(cx, scaled);
                    own[0] = bytes;
                    src[0] = cx.op(dequantize, &own)?;
                    cx.rewrite(id, op.into(), src)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// The bytes of a view, or of a view of a view, of a dequantised tensor, and that tensor.
fn moved(cx: &mut Context, id: TensorId) -> Result<Option<(TensorId, TensorId)>, GraphError> {
    let (mut views, mut base) = (Vec::new(), id);
    while cx.record(base).view_offset().is_some() && cx.record(base).value().is_none() {
        views.push(base);
        base = cx.record(base).src()[0];
    }
    let Some(x) = dequantized(cx, base).filter(|x| x.single().is_some()) else { return Ok(None) };
    let size = cx.dtype(id).block_bytes();
    if views.is_empty() || cx.dtype(x.x).block_bytes() != 1 || !cx.record(x.x).is_contiguous() {
        return Ok(None);
    }
    let mut bytes = x.x;
    for view in views.into_iter().rev() {
        let record = cx.record(view);
        let offset = record.view_offset().expect("only views are there") / size;
        let strides: Vec<usize> = record.shape().strides().iter().map(|s| s / size).collect();
        bytes = cx.view(bytes, &record.shape().dims(), &strides, offset)?;
    }
    Ok(Some((bytes, base)))
}

/// How a tensor is dequantised.
fn dequantization(cx: &Context, id: TensorId) -> (Op, Vec<TensorId>) {
    (cx.record(id).op().clone(), cx.record(id).src().to_vec())
}

/// Computes a tensor by dequantising bytes as another tensor is.
fn dequantize_instead(
    cx: &mut Context,
    id: TensorId,
    bytes: TensorId,
    like: TensorId,
) -> Result<(), GraphError> {
    let (op, mut src) = dequantization(cx, like);
    src[0] = bytes;
    cx.rewrite(id, op, src)
}
