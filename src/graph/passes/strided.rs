//! Convolutions by filters of one pixel that leave pixels out, as ones of the pixels that are left.

use super::super::ops::conv::Conv;
use super::super::ops::pool::{Pool, PoolKind};
use super::super::ops::qconv::QConv;
use super::super::{Context, GraphError, Op, TensorId};
use super::order::maximum;
use crate::tensor::DType;
use tilewright_kernels::C_BLOCK;

/// Fewest channels of the result for which a pixel that is copied is read often enough.
const CHANNELS: usize = 4 * C_BLOCK;

/// Fewest multiplications that are worth a step of its own.
const LEAST: usize = 1 << 20;

/// Takes the pixels that a 1 x 1 convolution with a stride reads before it, by a maximum of one pixel each: without
/// a stride it is a matrix product, whose tiles are of pixels of several rows, and weights are read once for all.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_dense_pixels(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    // What was taken: of which tensor, how far apart.
    let mut dense: Vec<(TensorId, [usize; 2], TensorId)> = Vec::new();
    for id in cx.build_forward(outputs)? {
        let record = cx.record(id);
        let conv = match (record.op(), record.value()) {
            (Op::Conv(conv), None) if record.dtype() == DType::F32 => conv,
            (Op::QConv(QConv { conv, .. }), None) => conv,
            _ => continue,
        };
        if !leaves_out(cx, conv, record.src())? {
            continue;
        }
        let (stride, near) = (conv.stride, Conv { stride: [1; 2], ..conv.clone() });
        let (op, mut src) = (record.op().clone(), record.src().to_vec());
        let found = dense.iter().find(|(x, apart, _)| (*x, *apart) == (src[0], stride));
        src[0] = match found {
            Some(&(.., pixels)) => pixels,
            None => {
                let pixels = Pool { stride, ..Pool::global(PoolKind::Max, [1; 2]) };
                let pixels: Op = match cx.dtype(src[0]) {
                    DType::F32 => pixels.into(),
                    _ => maximum(&pixels).into(),
                };
                let made = cx.op(pixels, &src[..1])?;
                dense.push((src[0], stride, made));
                made
            }
        };
        let op: Op = match op {
            Op::QConv(op) => QConv { conv: near, ..op }.into(),
            _ => near.into(),
        };
        cx.rewrite(id, op, src)?;
    }
    Ok(())
}

/// Whether a convolution does so, and is large enough.
fn leaves_out(cx: &Context, conv: &Conv, src: &[TensorId]) -> Result<bool, GraphError> {
    let plain = conv.groups == 1 && conv.pads == [0; 4] && conv.transposed.is_none();
    if !plain || conv.stride == [1; 2] {
        return Ok(false);
    }
    let s = conv.sizes(&cx.dims(src[0]), &cx.dims(src[1]))?;
    let work = s.n.saturating_mul(s.output[0] * s.output[1]).saturating_mul(s.c * s.k);
    Ok(s.window == [1; 2] && s.c >= C_BLOCK && s.k >= CHANNELS && work >= LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn pixels_are_taken_once_for_all_that_read_them() {
        let mut cx = Context::new();
        let x = cx.input("x", DType::F32, &[1, 64, 28, 27]).unwrap();
        let w = Tensor::zeros(DType::F32, &[128, 64, 1, 1]).unwrap();
        let w = cx.constant(w).unwrap();
        let mut conv = |stride| cx.op(Conv { stride, ..Conv::default() }, &[x, w]).unwrap();
        let y = [conv([2, 2]), conv([2, 2]), conv([1, 2]), conv([1, 1])];
        use_dense_pixels(&mut cx, &y).unwrap();
        let order = cx.build_forward(&y).unwrap();
        let is_pool = |id: &&TensorId| matches!(cx.record(**id).op(), Op::Pool(_));
        let pools: Vec<_> = order.iter().filter(is_pool).map(|&id| cx.dims(id)).collect();
        assert_eq!(pools, [[1, 64, 14, 14], [1, 64, 28, 14]]);
        assert_eq!(y.map(|y| cx.dims(y)[2..].to_vec()), [[14, 14], [14, 14], [28, 14], [28, 27]]);
        let one = |id: &TensorId| match cx.record(*id).op() {
            Op::Conv(conv) => conv.stride == [1; 2],
            _ => true,
        };
        assert!(order.iter().all(one));
    }
}
