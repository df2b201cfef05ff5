//! Recognition of attention in the operators that exporters write it in.

use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::attention::{Attention, Rows};
use super::super::ops::matmul::MatMul;
use super::super::{Context, GraphError, Op, TensorId};
use super::pattern::{binary, scalar};
use super::use_counts;
use crate::tensor::DType;

/// Makes one operator of `softmax(scale * q * k^T + mask) * v` of several heads whose result is
/// brought back to `[batch, tokens, heads, size]`. It reads q, k and v where the products leave them, so
/// the copies that order them by heads vanish.
///
/// Results change by rounding only.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_attention(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    for id in order {
        if let Some((op, src)) = attention(cx, id, &uses) {
            cx.rewrite(id, op.into(), src)?;
        }
    }
    Ok(())
}

fn attention(cx: &Context, id: TensorId, uses: &[usize]) -> Option<(Attention, Vec<TensorId>)> {
    if !matches!(cx.record(id).op(), Op::Cont(_)) || cx.dtype(id) != DType::F32 {
        return None;
    }
    let whole = resolve(cx, cx.record(id).src()[0], None);
    let product = whole.root;
    let &[batch, heads, queries, values] = &cx.dims(product)[..] else { return None };
    let by_token = [heads * queries * values, values, queries * values, 1];
    let turned = whole.is(&[batch, queries, heads, values], &by_token, 0);
    let (false, [weights, v]) = matmul(cx, product)? else { return None };
    let single = |id: TensorId| uses[id.index()] == 1;
    let scores = softmax(cx, weights)?;
    if !turned || !single(product) || !single(weights) {
        return None;
    }
    let dims = cx.dims(weights);
    let &[.., keys] = &dims[..] else { return None };
    if dims != [batch, heads, queries, keys] || cx.dims(v) != [batch, heads, keys, values] {
        return None;
    }
    let (mut scale, plain, mask) = unmasked(cx, scores, &dims)?;
    let (transposed, [q, k]) = matmul(cx, plain)?;
    let [q, mut k, v] =
        [resolve(cx, q, Some(&mut scale)), resolve(cx, k, Some(&mut scale)), resolve(cx, v, None)];
    if !transposed {
        let rank = k.axes.len();
        if rank == 4 {
            k.axes.swap(rank - 2, rank - 1);
        }
    }
    let &[_, _, _, (size, _)] = &q.axes[..] else { return None };
    let rows = [
        q.rows([batch, heads, queries, size])?,
        k.rows([batch, heads, keys, size])?,
        v.rows([batch, heads, keys, values])?,
    ];
    let roots = [q.root, k.root, v.root];
    let known = roots.iter().all(|&r| cx.dtype(r) == DType::F32);
    let op = Attention { batch, heads, queries, keys, size, values, rows, scale };
    let src = roots.into_iter().chain(mask).collect();
    (known && scale.is_finite()).then_some((op, src))
}

/// The operands of a product without bias, residual and activation, and whether its second is
/// transposed.
fn matmul(cx: &Context, id: TensorId) -> Option<(bool, [TensorId; 2])> {
    let record = cx.record(id);
    match (record.op(), record.src()) {
        (Op::MatMul(op), &[a, b]) if record.value().is_none() => {
            let plain = MatMul { transposed_b: op.transposed_b, ..MatMul::default() };
            (*op == plain).then_some((op.transposed_b, [a, b]))
        }
        _ => None,
    }
}

/// What a softmax over the last axis is taken of.
fn softmax(cx: &Context, id: TensorId) -> Option<TensorId> {
    let record = cx.record(id);
    let Op::Softmax(op) = record.op() else { return None };
    let last = op.axis + 1 == cx.dims(id).len();
    (last && !op.log && record.value().is_none()).then(|| record.src().first().copied())?
}

/// Scores before a mask is added and before they are scaled: the scale, the product, the mask.
fn unmasked(
    cx: &Context,
    scores: TensorId,
    dims: &[usize],
) -> Option<(f32, TensorId, Option<TensorId>)> {
    if let Some((factor, product)) =
        scaled(cx, scores).or_else(|| matmul(cx, scores).map(|_| (1.0, scores)))
    {
        return Some((factor, product, None));
    }
    let [a, b] = binary(cx, scores, BinaryOp::Add)?;
    [(a, b), (b, a)].into_iter().find_map(|(x, mask)| {
        let (factor, product) = scaled(cx, x).or_else(|| matmul(cx, x).map(|_| (1.0, x)))?;
        let shape = cx.dims(mask);
        let fits = shape.len() <= 4
            && shape.last() == dims.last()
            && shape.iter().rev().zip(dims.iter().rev()).all(|(m, d)| m == d || *m == 1);
        (fits && cx.dims(product) == dims).then_some((factor, product, Some(mask)))
    })
}

/// The factor and the tensor that a product of a number and a tensor, or a quotient, is made of.
fn scaled(cx: &Context, id: TensorId) -> Option<(f32, TensorId)> {
    let same = |x: TensorId| (cx.dims(x) == cx.dims(id)).then_some(x);
    if let Some([x, by]) = binary(cx, id, BinaryOp::Div) {
        return Some((1.0 / scalar(cx, by)?, same(x)?));
    }
    let [a, b] = binary(cx, id, BinaryOp::Mul)?;
    match (scalar(cx, a), scalar(cx, b)) {
        (_, Some(factor)) => Some((factor, same(a)?)),
        (Some(factor), None) => Some((factor, same(b)?)),
        _ => None,
    }
}

/// A tensor as extents and strides in another, in elements.
struct Strided {
    root: TensorId,
    offset: usize,
    axes: Vec<(usize, usize)>,
}

impl Strided {
    /// Whether extents, offset and the strides of axes that have any are these.
    fn is(&self, dims: &[usize], strides: &[usize], offset: usize) -> bool {
        let same = |(&(extent, step), (&d, &s)): (&(usize, usize), (&usize, &usize))| {
            extent == d && (step == s || d == 1)
        };
        self.offset == offset
            && self.axes.len() == dims.len()
            && self.axes.iter().zip(dims.iter().zip(strides)).all(same)
    }

    /// As rows of neighbouring elements that do not overlap.
    fn rows(&self, dims: [usize; 4]) -> Option<Rows> {
        let &[(b, batch), (h, head), (r, row), (c, element)] = &self.axes[..] else { return None };
        let row = if r == 1 { row.max(c) } else { row };
        let fits = [b, h, r, c] == dims && (c == 1 || element == 1) && row >= c;
        fits.then_some(Rows { offset: self.offset, batch, head, row })
    }
}

/// Looks through views and copies, and with a `scale` through products with a number, to the tensor
/// that was computed.
fn resolve(cx: &Context, id: TensorId, mut scale: Option<&mut f32>) -> Strided {
    let mut found = of_memory(cx, id);
    loop {
        let record = cx.record(found.root);
        if record.value().is_some() {
            return found;
        }
        if let Op::Cont(_) = record.op() {
            let from = of_memory(cx, record.src()[0]);
            let Some((offset, axes)) = compose(&found, &from) else { return found };
            found = Strided { root: from.root, offset, axes };
        } else if let (Some(scale), Some((factor, x))) = (&mut scale, scaled(cx, found.root)) {
            // Operands of operators are dense.
            let from = of_memory(cx, x);
            **scale *= factor;
            found.root = from.root;
            found.offset += from.offset;
        } else {
            return found;
        }
    }
}

/// A tensor in the one whose memory it shares.
fn of_memory(cx: &Context, id: TensorId) -> Strided {
    let record = cx.record(id);
    let element = record.dtype().block_bytes().max(1);
    let (mut root, mut offset) = (id, 0);
    while let Some(more) = cx.record(root).view_offset() {
        offset += more / element;
        root = cx.record(root).src()[0];
    }
    let strides = record.shape().strides();
    let axes = record.shape().dims().into_iter().zip(strides.into_iter().map(|s| s / element));
    Strided { root, offset, axes: axes.collect() }
}

/// What is strided in a dense copy of `from`, as offset and axes in the memory of `from`; `None` if
/// some axis crosses axes of `from` that do not run on.
fn compose(inner: &Strided, from: &Strided) -> Option<(usize, Vec<(usize, usize)>)> {
    // Extent, stride in the copy, stride in the memory; fastest first, what runs on merged.
    let (mut parts, mut dense) = (Vec::<[usize; 3]>::new(), 1usize);
    for &(extent, step) in from.axes.iter().rev().filter(|a| a.0 != 1) {
        match parts.last_mut() {
            Some([e, _, s]) if e.checked_mul(*s)? == step => *e = e.checked_mul(extent)?,
            _ => parts.push([extent, dense, step]),
        }
        dense = dense.checked_mul(extent)?;
    }
    let mut reach: Vec<usize> =
        parts.iter().map(|[extent, step, _]| inner.offset / step % extent).collect();
    let start = reach.iter().zip(&parts).map(|(at, part)| at * part[2]).sum::<usize>();
    let mut axes = Vec::new();
    for &(extent, step) in &inner.axes {
        if extent == 1 {
            axes.push((1, 0));
            continue;
        }
        let at = parts.iter().rposition(|part| part[1] <= step)?;
        let times = (step % parts[at][1] == 0).then_some(step / parts[at][1])?;
        reach[at] = (extent - 1).checked_mul(times)?.checked_add(reach[at])?;
        axes.push((extent, times * parts[at][2]));
    }
    let inside = reach.iter().zip(&parts).all(|(at, part)| *at < part[0]);
    (inside && inner.offset < dense).then_some((from.offset + start, axes))
}
