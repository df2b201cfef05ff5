//! Products with weights of four bits that a file dequantises in blocks.

use super::super::ops::block_matmul::BlockMatMul;
use super::super::ops::matmul::MatMul;
use super::super::ops::nibbles_to_blocks::NibblesToBlocks;
use super::super::{Context, GraphError, Op, TensorId};
use crate::tensor::DType;

/// Lets products multiply packed weights where a constant of four bits is dequantised for them, in blocks along what they
/// add up: as floats it would be eight times as large.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_nibbles(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    for id in cx.build_forward(outputs)? {
        let Some((op, src, x, bias)) = product(cx, id) else { continue };
        let dims = cx.dims(x);
        let k = dims.last().copied().unwrap_or_default();
        let rows = cx.record(x).shape().elements().checked_div(k).unwrap_or_default();
        let x = cx.reshape(x, &[rows, k])?;
        let w = cx.op(op, &src)?;
        let y =
            cx.op(BlockMatMul { bias: bias.is_some() }, &[&[x, w][..], bias.as_slice()].concat())?;
        cx.rewrite_as_view(id, "reshape", y);
    }
    Ok(())
}

type Product = (NibblesToBlocks, Vec<TensorId>, TensorId, Option<TensorId>);

/// How packed weights are made for a product, of what, the other operand, and its bias.
fn product(cx: &Context, id: TensorId) -> Option<Product> {
    let record = cx.record(id);
    let (Op::MatMul(op), &[x, w, ref bias @ ..], None) =
        (record.op(), record.src(), record.value())
    else {
        return None;
    };
    let plain = MatMul { transposed_b: op.transposed_b, bias: op.bias, ..MatMul::default() };
    if *op != plain || cx.dtype(x) != DType::F32 {
        return None;
    }
    let (w, turned) = turned(cx, w);
    let Op::Dequantize(from) = cx.record(w).op() else { return None };
    let op = NibblesToBlocks { axis: usize::from(op.transposed_b != turned), block: from.block };
    let src = cx.record(w).src().to_vec();
    let mut known = src.iter().enumerate().map(|(i, &s)| Some((i, cx.constant_value(s)?)));
    let four_bits = known.all(|value| match value {
        Some((1, scale)) => scale.dtype() == DType::F32,
        value => value.is_some_and(|(_, numbers)| NibblesToBlocks::holds(numbers)),
    });
    let fits = from.axis == Some(op.axis) && op.rows(&cx.dims(w)).is_some() && four_bits;
    fits.then(|| (op, src, x, bias.first().copied()))
}

/// The matrix that a tensor shows with rows as columns, if it does; and whether.
fn turned(cx: &Context, id: TensorId) -> (TensorId, bool) {
    let view = match (cx.record(id).op(), cx.record(id).src()) {
        (Op::Cont(_), &[view]) => view,
        _ => id,
    };
    let shape = cx.record(view).shape();
    let (Some(0), &[from]) = (cx.record(view).view_offset(), cx.record(view).src()) else {
        return (id, false);
    };
    let reversed = |v: Vec<usize>| v.into_iter().rev().collect::<Vec<_>>();
    let of = cx.record(from).shape();
    let is = of.rank() == 2
        && of.dims() == reversed(shape.dims())
        && of.strides() == reversed(shape.strides());
    if is { (from, true) } else { (id, false) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::ops::dequantize::Dequantize;
    use crate::graph::passes::optimize;
    use crate::tensor::Tensor;
    use tilewright_kernels::Isa;

    const K: usize = 64;
    const N: usize = 20;

    /// `x [2, 3, k]` times weights whose blocks lie along `axis`, of numbers up to `most`.
    fn net(cx: &mut Context, axis: usize, view: bool, bias: bool, most: u8) -> TensorId {
        let x = cx.input("x", DType::F32, &[2, 3, K]).unwrap();
        let (dims, scales) = if axis == 0 { ([K, N], [2, N]) } else { ([N, K], [N, 2]) };
        let q: Vec<u8> = (0..K * N).map(|i| (i * 7 % 16) as u8).map(|q| q.max(most)).collect();
        let s: Vec<f32> = (0..2 * N).map(|i| 0.01 * (i % 5) as f32).collect();
        let mut constant = |t: Result<Tensor, _>| cx.constant(t.unwrap()).unwrap();
        let src = [
            constant(Tensor::from_slice(&dims, &q)),
            constant(Tensor::from_slice(&scales, &s)),
            constant(Tensor::from_slice(&scales, &[8u8; 2 * N])),
        ];
        let added = constant(Tensor::from_slice(&[N], &[0.5f32; N]));
        let mut w = cx.op(Dequantize { axis: Some(axis), block: 32 }, &src).unwrap();
        if view {
            w = cx.transpose(w, &[1, 0]).unwrap();
        }
        let product = MatMul { transposed_b: (axis == 1) != view, bias, ..MatMul::default() };
        let src = if bias { vec![x, w, added] } else { vec![x, w] };
        cx.op(product, &src).unwrap()
    }

    fn run(cx: &mut Context, y: TensorId) -> Vec<f32> {
        let mut executor = Executor::new(Isa::best(), 1).unwrap();
        let plan = executor.plan(cx, &[y]).unwrap();
        let x: Vec<f32> = (0..6 * K).map(|i| (i % 11) as f32 - 5.0).collect();
        let x = Tensor::from_slice(&[2, 3, K], &x).unwrap();
        executor.run(&plan, &[&x], None).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    }

    fn is_packed(cx: &Context, y: TensorId) -> bool {
        let order = cx.build_forward(&[y]).unwrap();
        order.iter().any(|&id| matches!(cx.record(id).op(), Op::BlockMatMul(_)))
    }

    #[test]
    fn weights_of_four_bits_stay_packed() {
        for (axis, view, bias) in
            [(0, false, false), (1, false, true), (1, true, true), (0, true, false)]
        {
            let mut plain = Context::new();
            let y = net(&mut plain, axis, view, bias, 0);
            let wanted = run(&mut plain, y);
            let mut cx = Context::new();
            cx.keep_quantized();
            let y = net(&mut cx, axis, view, bias, 0);
            optimize(&mut cx, &[y], 1).unwrap();
            assert!(is_packed(&cx, y), "axis {axis}, view {view}");
            for (found, wanted) in run(&mut cx, y).iter().zip(wanted) {
                assert!((found - wanted).abs() < 1e-4, "axis {axis}: {found} instead of {wanted}");
            }
        }
    }

    #[test]
    fn larger_numbers_stay_as_they_are() {
        let mut cx = Context::new();
        cx.keep_quantized();
        let y = net(&mut cx, 0, false, false, 16);
        optimize(&mut cx, &[y], 1).unwrap();
        assert!(!is_packed(&cx, y));
    }
}
