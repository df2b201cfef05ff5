//! Recognition of layer and RMS normalisation in the operators that exporters write them in.

use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::norm::{Norm, NormOp};
use super::super::ops::pool::{Pool, PoolKind};
use super::super::ops::reduce::ReduceOp;
use super::super::ops::unary::UnaryOp;
use super::super::{Context, GraphError, Op, TensorId};
use super::pattern::{binary, reshaped, scalar, unary};
use super::use_counts;
use crate::tensor::DType;

/// Makes one operator of `(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon)` over the last axes, and of
/// `x / sqrt(mean(x^2) + epsilon)`, and gives it the constants that it is then multiplied with and that are added.
///
/// Results change by rounding only. What else reads the parts still finds them.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_layer_norm(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    for id in order {
        if cx.dtype(id) != DType::F32 {
            continue;
        }
        let found = match normalized(cx, id) {
            Some((norm, x)) => Some((norm, vec![x])),
            None => affine(cx, id, BinaryOp::Mul, 1, &uses)
                .or_else(|| affine(cx, id, BinaryOp::Add, 2, &uses)),
        };
        if let Some((norm, src)) = found {
            cx.rewrite(id, norm.into(), src)?;
        }
    }
    Ok(())
}

/// The norm without scale, and its operand.
fn normalized(cx: &Context, id: TensorId) -> Option<(Norm, TensorId)> {
    let (of, sum) = over_root(cx, id)?;
    let [variance, epsilon] = binary(cx, sum, BinaryOp::Add)?;
    let (variance, epsilon) = match (scalar(cx, epsilon), scalar(cx, variance)) {
        (Some(value), _) => (variance, value),
        (None, Some(value)) => (epsilon, value),
        _ => return None,
    };
    let (squares, axis) = mean(cx, variance)?;
    let is_square = match unary(cx, squares, UnaryOp::Square) {
        Some(x) => x == of,
        None => binary(cx, squares, BinaryOp::Mul) == Some([of; 2]),
    };
    let centred = binary(cx, of, BinaryOp::Sub)
        .and_then(|[x, middle]| (mean(cx, middle) == Some((x, axis))).then_some(x));
    let (op, x) = centred.map_or((NormOp::Rms, of), |x| (NormOp::Layer, x));
    let valid = epsilon.is_finite() && epsilon >= 0.0 && cx.dims(x) == cx.dims(id);
    (is_square && valid).then_some((Norm { op, axis, epsilon, by_parts: false }, x))
}

/// `x` and `v` of `x / sqrt(v)`, `x * (1 / sqrt(v))` or `x * v^-0.5`.
fn over_root(cx: &Context, id: TensorId) -> Option<(TensorId, TensorId)> {
    if let Some([x, root]) = binary(cx, id, BinaryOp::Div) {
        return Some((x, unary(cx, root, UnaryOp::Sqrt)?));
    }
    let [a, b] = binary(cx, id, BinaryOp::Mul)?;
    let is = |id, value| scalar(cx, id) == Some(value);
    [(a, b), (b, a)].into_iter().find_map(|(x, factor)| {
        let one_over = |[one, root]: [TensorId; 2]| is(one, 1.0).then_some(root);
        let root = unary(cx, factor, UnaryOp::Reciprocal)
            .or_else(|| binary(cx, factor, BinaryOp::Div).and_then(one_over));
        let v = match root {
            Some(root) => unary(cx, root, UnaryOp::Sqrt)?,
            None => binary(cx, factor, BinaryOp::Pow)
                .and_then(|[v, exponent]| is(exponent, -0.5).then_some(v))?,
        };
        Some((x, v))
    })
}

/// What `id` is the mean of, with extents of 1 for the axes it was taken over: all from which on.
fn mean(cx: &Context, id: TensorId) -> Option<(TensorId, usize)> {
    let source = reshaped(cx, id);
    let record = cx.record(source);
    let &[x] = record.src() else { return None };
    let dims = cx.dims(x);
    let axis = match record.op() {
        Op::Reduce(r) if r.op == ReduceOp::Mean && r.axis + r.count == dims.len() => r.axis,
        Op::Pool(pool) => {
            let map = match dims[..] {
                [_, _, w] => [1, w],
                [_, _, h, w] => [h, w],
                _ => return None,
            };
            let PoolKind::Average { .. } = pool.kind else { return None };
            (*pool == Pool::global(pool.kind, map)).then_some(2)?
        }
        _ => return None,
    };
    let kept = dims
        .iter()
        .enumerate()
        .all(|(i, &d)| cx.dims(id).get(i) == Some(if i < axis { &d } else { &1 }));
    (kept && cx.dims(id).len() == dims.len()).then_some((x, axis))
}

/// A norm with `operands` operands that only `id` reads, and the constant of a row's extents that
/// `id` joins it with.
fn affine(
    cx: &Context,
    id: TensorId,
    op: BinaryOp,
    operands: usize,
    uses: &[usize],
) -> Option<(Norm, Vec<TensorId>)> {
    let [a, b] = binary(cx, id, op)?;
    [(a, b), (b, a)].into_iter().find_map(|(x, constant)| {
        let record = cx.record(x);
        let Op::Norm(norm) = record.op() else { return None };
        let row = cx.dims(x).split_off(norm.axis);
        let fits = !norm.by_parts
            && record.src().len() == operands
            && record.value().is_none()
            && uses[x.index()] == 1
            && cx.constant_value(constant).is_some()
            && cx.dims(constant) == row;
        let src = record.src().iter().copied().chain([constant]).collect();
        fits.then_some((*norm, src))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ops::binary::Binary;
    use crate::graph::ops::reduce::Reduce;
    use crate::graph::ops::unary::Unary;
    use crate::tensor::Tensor;

    fn op(cx: &mut Context, op: BinaryOp, a: TensorId, b: TensorId) -> TensorId {
        cx.op(Binary::new(op), &[a, b]).unwrap()
    }

    fn constant(cx: &mut Context, values: &[f32]) -> TensorId {
        let dims = if values.len() == 1 { vec![] } else { vec![values.len()] };
        cx.constant(Tensor::from_slice(&dims, values).unwrap()).unwrap()
    }

    fn mean_of(cx: &mut Context, x: TensorId, pooled: bool) -> TensorId {
        let kind = PoolKind::Average { include_pad: false };
        let y = if pooled {
            cx.op(Pool::global(kind, [1, 3]), &[x]).unwrap()
        } else {
            cx.op(Reduce { op: ReduceOp::Mean, axis: 2, count: 1 }, &[x]).unwrap()
        };
        cx.reshape(y, &[1, 2, 1]).unwrap()
    }

    fn written_out(cx: &mut Context, pooled: bool) -> (TensorId, TensorId) {
        let x = cx.input("x", DType::F32, &[1, 2, 3]).unwrap();
        let middle = mean_of(cx, x, pooled);
        let centred = op(cx, BinaryOp::Sub, x, middle);
        let square = cx.op(Unary::new(UnaryOp::Square), &[centred]).unwrap();
        let variance = mean_of(cx, square, pooled);
        let epsilon = constant(cx, &[1e-5]);
        let sum = op(cx, BinaryOp::Add, variance, epsilon);
        let root = cx.op(Unary::new(UnaryOp::Sqrt), &[sum]).unwrap();
        (x, op(cx, BinaryOp::Div, centred, root))
    }

    #[test]
    fn norm_with_scale_and_bias() {
        for pooled in [false, true] {
            let mut cx = Context::new();
            let (x, y) = written_out(&mut cx, pooled);
            let (scale, bias) =
                (constant(&mut cx, &[1.0, 2.0, 3.0]), constant(&mut cx, &[4.0, 5.0, 6.0]));
            let y = op(&mut cx, BinaryOp::Mul, scale, y);
            let y = op(&mut cx, BinaryOp::Add, y, bias);
            use_layer_norm(&mut cx, &[y]).unwrap();
            let norm = Norm { op: NormOp::Layer, axis: 2, epsilon: 1e-5, by_parts: false };
            assert_eq!(*cx.record(y).op(), Op::Norm(norm));
            assert_eq!(cx.record(y).src(), [x, scale, bias]);
        }
    }

    /// As decoders write it: the root's reciprocal in any of three ways, with a scale.
    #[test]
    fn root_mean_square() {
        let dims = [1, 2, 3];
        for (way, exponent, found) in
            [(0, 0.0, true), (1, 0.0, true), (2, -0.5, true), (2, -1.0, false)]
        {
            let mut cx = Context::new();
            let x = cx.input("x", DType::F32, &dims).unwrap();
            let square = op(&mut cx, BinaryOp::Mul, x, x);
            let variance = mean_of(&mut cx, square, false);
            let epsilon = constant(&mut cx, &[1e-6]);
            let sum = op(&mut cx, BinaryOp::Add, epsilon, variance);
            let one = constant(&mut cx, &[if way == 2 { exponent } else { 1.0 }]);
            let factor = if way == 2 {
                op(&mut cx, BinaryOp::Pow, sum, one)
            } else {
                let root = cx.op(Unary::new(UnaryOp::Sqrt), &[sum]).unwrap();
                if way == 0 {
                    op(&mut cx, BinaryOp::Div, one, root)
                } else {
                    cx.op(Unary::new(UnaryOp::Reciprocal), &[root]).unwrap()
                }
            };
            let y = op(&mut cx, BinaryOp::Mul, x, factor);
            let scale = constant(&mut cx, &[1.0, 2.0, 3.0]);
            let y = op(&mut cx, BinaryOp::Mul, scale, y);
            use_layer_norm(&mut cx, &[y]).unwrap();
            let norm = Norm { op: NormOp::Rms, axis: 2, epsilon: 1e-6, by_parts: false };
            assert_eq!(*cx.record(y).op() == Op::Norm(norm), found, "{way}");
            assert_eq!(cx.record(y).src() == [x, scale], found, "{way}");
        }
    }

    #[test]
    fn what_others_read_stays() {
        let mut cx = Context::new();
        let (x, y) = written_out(&mut cx, false);
        let scale = constant(&mut cx, &[1.0, 2.0, 3.0]);
        let scaled = op(&mut cx, BinaryOp::Mul, y, scale);
        use_layer_norm(&mut cx, &[scaled, y]).unwrap();
        assert!(matches!(cx.record(y).op(), Op::Norm(_)) && cx.record(y).src() == [x]);
        assert!(matches!(cx.record(scaled).op(), Op::Binary(_)));
    }
}
