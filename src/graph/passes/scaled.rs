//! Products of bytes that were quantised at run time, with what makes numbers of their sums.

use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::scaled_matmul::ScaledMatMul;
use super::super::{Context, GraphError, Op, TensorId};
use super::pattern::{binary, reshaped};
use super::use_counts;
use crate::tensor::DType;

/// Lets a product of bytes multiply its sums by the scales: exporters write `Cast` and `Mul` behind it.
/// Every bit stays what it is.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_scaled_products(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    for id in order {
        let Some([x, y]) = binary(cx, id, BinaryOp::Mul) else { continue };
        let found = [(x, y), (y, x)].into_iter().find_map(|(sums, factor)| {
            let (op, src) = sums_of(cx, sums, &uses)?;
            let (scale, scales) = scales(cx, factor, *cx.dims(sums).last()?)?;
            (cx.dims(sums) == cx.dims(id)).then_some((op, src, scale, scales))
        });
        if let Some((op, mut src, scale, scales)) = found {
            src.push(scale);
            cx.rewrite(id, ScaledMatMul { scales, ..op }.into(), src)?;
        }
    }
    Ok(())
}

/// The product whose sums a tensor holds as f32, if nobody else reads them.
fn sums_of(cx: &Context, id: TensorId, uses: &[usize]) -> Option<(ScaledMatMul, Vec<TensorId>)> {
    let alone = |id: TensorId| uses.get(id.index()) == Some(&1) && cx.record(id).value().is_none();
    let (Op::Cast(_), DType::F32, true) = (cx.record(id).op(), cx.dtype(id), alone(id)) else {
        return None;
    };
    let sums = cx.record(id).src()[0];
    match cx.record(sums).op() {
        Op::ScaledMatMul(op) if op.scales.is_empty() && alone(sums) => {
            Some((op.clone(), cx.record(sums).src().to_vec()))
        }
        _ => None,
    }
}

/// A scale of one element, and constant scales of columns, whose product a factor is.
fn scales(cx: &Context, id: TensorId, columns: usize) -> Option<(TensorId, Vec<f32>)> {
    if cx.dtype(id) != DType::F32 {
        return None;
    }
    let single =
        |id: TensorId| cx.record(id).shape().elements() == 1 && cx.record(id).is_contiguous();
    if let Some([x, y]) = binary(cx, reshaped(cx, id), BinaryOp::Mul) {
        let per_column = |id: TensorId| {
            let dims = cx.dims(id);
            let row = dims.iter().rev().skip(1).all(|&d| d == 1);
            let values = cx.constant_value(id)?.as_slice::<f32>().ok()?.to_vec();
            let fits = row && (values.len() == 1 || values.len() == columns);
            (fits && values.iter().all(|s| s.is_finite())).then_some(values)
        };
        let parts = [(x, y), (y, x)].into_iter();
        let mut found = parts.filter(|(scale, _)| single(*scale));
        if let Some(found) = found.find_map(|(scale, w)| Some((scale, per_column(w)?))) {
            return Some(found);
        }
    }
    single(id).then(|| (id, vec![1.0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::ops::binary::Binary;
    use crate::graph::ops::cast::Cast;
    use crate::graph::passes::{fuse, optimize};
    use crate::tensor::Tensor;
    use tilewright_kernels::{Activation, Isa};

    /// `relu(cast(sums) * (scale * w) + bias)`, with one factor or one per column.
    fn net(cx: &mut Context, w: &[f32]) -> TensorId {
        let a = cx.input("a", DType::U8, &[2, 3]).unwrap();
        let zero = cx.input("zero", DType::U8, &[]).unwrap();
        let scale = cx.input("scale", DType::F32, &[]).unwrap();
        let mut constant = |t: Result<Tensor, _>| cx.constant(t.unwrap()).unwrap();
        let b = constant(Tensor::from_slice(&[3, 2], &[1i8, -2, 3, -4, 5, -128]));
        let w = constant(Tensor::from_slice(&[w.len()], w));
        let bias = constant(Tensor::from_slice(&[2], &[0.25f32, -1.0]));
        let sums = cx.op(ScaledMatMul::default(), &[a, b, zero]).unwrap();
        let sums = cx.op(Cast { to: DType::F32 }, &[sums]).unwrap();
        let factor = cx.op(Binary::new(BinaryOp::Mul), &[scale, w]).unwrap();
        let y = cx.op(Binary::new(BinaryOp::Mul), &[sums, factor]).unwrap();
        let y = cx.op(Binary::new(BinaryOp::Add), &[bias, y]).unwrap();
        cx.op(crate::graph::ops::unary::Unary::new(crate::graph::ops::unary::UnaryOp::Relu), &[y])
            .unwrap()
    }

    fn run(cx: &mut Context, y: TensorId) -> Vec<f32> {
        let mut executor = Executor::new(Isa::best(), 1).unwrap();
        let plan = executor.plan(cx, &[y]).unwrap();
        let a = Tensor::from_slice(&[2, 3], &[0u8, 255, 7, 130, 11, 200]).unwrap();
        let zero = Tensor::from_slice(&[], &[130u8]).unwrap();
        let scale = Tensor::from_slice(&[], &[0.3f32]).unwrap();
        let found = executor.run(&plan, &[&a, &zero, &scale], None).unwrap();
        found[0].as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn one_step_and_the_same_bits() {
        for w in [&[0.01f32][..], &[0.013, 0.7]] {
            let mut plain = Context::new();
            let y = net(&mut plain, w);
            let wanted = run(&mut plain, y);
            let mut cx = Context::new();
            let y = net(&mut cx, w);
            optimize(&mut cx, &[y], 1).unwrap();
            let Op::ScaledMatMul(op) = cx.record(y).op() else { panic!("{:?}", cx.record(y).op()) };
            assert_eq!((&op.scales[..], op.bias, op.activation), (w, true, Activation::Relu));
            assert_eq!(run(&mut cx, y), wanted);
        }
    }

    #[test]
    fn sums_that_others_read_stay() {
        let mut cx = Context::new();
        let y = net(&mut cx, &[0.5]);
        let order = cx.build_forward(&[y]).unwrap();
        let is_cast = |&id: &TensorId| matches!(cx.record(id).op(), Op::Cast(_));
        let cast = order.into_iter().find(is_cast).unwrap();
        use_scaled_products(&mut cx, &[y, cast]).unwrap();
        fuse(&mut cx, &[y, cast]).unwrap();
        assert!(matches!(cx.record(cast).op(), Op::Cast(_)));
        assert!(!matches!(cx.record(y).op(), Op::ScaledMatMul(_)));
    }
}
