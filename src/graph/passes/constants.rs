//! Folding of what is constant.

use std::sync::Arc;

use super::super::{Context, GraphError, Op, TensorId};

/// Computes what depends on constants only, also views of them; nearly all of it is folded when it
/// is added to a context already, and what is left are weights that
/// [`Context::keep_quantized`] kept as integers and no integer operator took.
///
/// # Errors
/// What the operators refuse.
pub fn fold_constants(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    for id in cx.build_forward(outputs)? {
        let record = cx.record(id);
        let foldable = record.value().is_none()
            && !record.src().is_empty()
            && record.src().iter().all(|&s| cx.record(s).is_constant());
        if !foldable {
            continue;
        }
        let (src, info) = (record.src().to_vec(), record.info());
        let value = match record.shared_op() {
            op if matches!(*op, Op::View(_)) => {
                cx.fold_view(src[0], &record.shape, record.offset)?
            }
            op => cx.fold(&op, &src, &info)?,
        };
        let record = &mut cx.records[id.index()];
        record.shape = *value.shape();
        (record.op, record.src, record.offset) = (Arc::new(Op::Leaf), Vec::new(), 0);
        (record.value, record.constant) = (Some(value), true);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ops::dequantize::Dequantize;
    use crate::tensor::{DType, Tensor};

    #[test]
    fn views_of_kept_weights_are_folded() {
        let mut cx = Context::new();
        cx.keep_quantized();
        let w = cx.constant(Tensor::from_slice(&[2, 2], &[1i8, 2, 3, 4]).unwrap()).unwrap();
        let scale = cx.constant(Tensor::from_slice(&[], &[0.5f32]).unwrap()).unwrap();
        let real = cx.op(Dequantize { axis: None, block: 0 }, &[w, scale]).unwrap();
        assert!(cx.constant_value(real).is_none());
        let turned = cx.transpose(real, &[1, 0]).unwrap();
        let turned = cx.cont(turned).unwrap();
        fold_constants(&mut cx, &[turned]).unwrap();
        let value = cx.constant_value(turned).unwrap();
        assert_eq!((value.dtype(), value.dims()), (DType::F32, vec![2, 2]));
        assert_eq!(value.as_slice::<f32>().unwrap()[..], [0.5, 1.5, 1.0, 2.0]);
    }
}
