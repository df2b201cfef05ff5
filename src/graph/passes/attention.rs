//! Recognition of attention in the operators that exporters write it in.

use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::attention::{Attention, Rows};
use super::super::ops::matmul::MatMul;
use super::super::ops::softmax::Softmax;
use super::super::ops::special::Special;
use super::super::{Context, GraphError, Op, TensorId};
use super::pattern::{binary, reshaped, scalar};
use super::use_counts;
use crate::tensor::DType;

/// Makes one operator of `softmax(scale * q * k^T + masks) * v` of several heads. It reads q, k and v where the
/// products leave them, so the copies that order them by heads vanish, and so does the one that brings the
/// result back to `[batch, tokens, heads, size]`, if there is one. Where NaN becomes 0 in the result of a softmax,
/// the softmax does it, in attention or not.
///
/// Results change by rounding only.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_attention(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    for id in order {
        if let Some((op, x)) = guarded(cx, id, &uses) {
            cx.rewrite(id, op.into(), vec![x])?;
        }
    }
    // Copies first: a product that one of them orders by tokens is then used no more.
    for find in [ordered_by_tokens, Found::of_product] {
        let order = cx.build_forward(outputs)?;
        let uses = use_counts(cx, &order, outputs);
        for id in order {
            if let Some(found) = find(cx, id, &uses) {
                found.replace(cx, id)?;
            }
        }
    }
    Ok(())
}

/// Attention, its operands, and the extents that its masks have in four dimensions.
struct Found {
    op: Attention,
    rows: [TensorId; 3],
    masks: Vec<(TensorId, Vec<usize>)>,
}

/// The copy that orders the product of weights and values by tokens.
fn ordered_by_tokens(cx: &Context, id: TensorId, uses: &[usize]) -> Option<Found> {
    if !matches!(cx.record(id).op(), Op::Cont(_)) {
        return None;
    }
    let mut whole = resolve(cx, cx.record(id).src()[0], None);
    let mut found = Found::of_product(cx, whole.root, uses)?;
    whole.axes = in_four(whole.axes)?;
    let Attention { batch, heads, queries, values, .. } = found.op;
    let steps = found.op.result_steps();
    let turned = whole.is(&[batch, queries, heads, values], &[steps[0], values, steps[1], 1], 0);
    found.op.by_head = false;
    (turned && uses[whole.root.index()] == 1).then_some(found)
}

impl Found {
    /// Attention whose last product is `id`.
    fn of_product(cx: &Context, id: TensorId, uses: &[usize]) -> Option<Self> {
        let (false, [weights, v]) = matmul(cx, id)? else { return None };
        let (scores, guarded) = softmax(cx, weights, uses)?;
        let [batch, heads, queries, keys] = extents(&cx.dims(weights))?;
        let [.., values] = extents(&cx.dims(id))?;
        let full = [batch, heads, queries, keys];
        let (mut scale, plain, masks) = unmasked(cx, scores, full, 2)?;
        let (transposed, [q, k]) = matmul(cx, plain)?;
        let [mut q, mut k, mut v] = [
            resolve(cx, q, Some(&mut scale)),
            resolve(cx, k, Some(&mut scale)),
            resolve(cx, v, None),
        ];
        if !transposed {
            let rank = k.axes.len();
            k.axes.swap(rank.checked_sub(2)?, rank - 1);
        }
        for operand in [&mut q, &mut k, &mut v] {
            operand.axes = in_four(core::mem::take(&mut operand.axes))?;
        }
        let size = q.axes[3].0;
        let rows = [
            q.rows([batch, heads, queries, size])?,
            k.rows([batch, heads, keys, size])?,
            v.rows([batch, heads, keys, values])?,
        ];
        let roots = [q.root, k.root, v.root];
        let known = roots.iter().all(|&r| cx.dtype(r) == DType::F32);
        // Products with constants have weights packed ahead.
        let computed = roots[1..].iter().all(|&r| cx.constant_value(r).is_none());
        let empty = [batch, heads, queries, keys, size, values].contains(&0);
        let by_head = true;
        let op =
            Attention { batch, heads, queries, keys, size, values, rows, scale, by_head, guarded };
        (known && computed && !empty && scale.is_finite()).then_some(Self {
            op,
            rows: roots,
            masks,
        })
    }

    /// Computes `id` so.
    fn replace(self, cx: &mut Context, id: TensorId) -> Result<(), GraphError> {
        let (count, name) = (cx.len(), cx.record(id).name.clone());
        let mut src = self.rows.to_vec();
        for (mask, dims) in self.masks {
            src.push(if cx.dims(mask) == dims { mask } else { cx.reshape(mask, &dims)? });
        }
        if cx.dims(id).len() == 4 {
            cx.rewrite(id, self.op.into(), src)?;
        } else {
            let result = cx.op(self.op, &src)?;
            cx.rewrite_as_view(id, "reshape", result);
        }
        cx.name_since(count, &name);
        Ok(())
    }
}

/// The extents of three to five dimensions as batch, heads, rows and columns.
fn extents(dims: &[usize]) -> Option<[usize; 4]> {
    match *dims {
        [heads, rows, columns] => Some([1, heads, rows, columns]),
        [batch, heads, rows, columns] => Some([batch, heads, rows, columns]),
        [a, b, heads, rows, columns] => Some([a.checked_mul(b)?, heads, rows, columns]),
        _ => None,
    }
}

/// Axes of three to five dimensions, extents and strides, as [`extents`] has them.
fn in_four(mut axes: Vec<(usize, usize)>) -> Option<Vec<(usize, usize)>> {
    match axes.len() {
        3 => axes.insert(0, (1, 0)),
        5 => {
            let (outer, (extent, step)) = (axes.remove(0), axes[0]);
            axes[0] = match (outer, extent) {
                ((1, _), _) => (extent, step),
                (outer, 1) => outer,
                ((count, by), _) if extent.checked_mul(step)? == by => (count * extent, step),
                _ => return None,
            };
        }
        _ => {}
    }
    (axes.len() == 4).then_some(axes)
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

/// What a softmax over the last axis is taken of, and whether it is guarded; nothing else may use the weights.
fn softmax(cx: &Context, id: TensorId, uses: &[usize]) -> Option<(TensorId, bool)> {
    let record = cx.record(id);
    let Op::Softmax(op) = record.op() else { return None };
    let last = op.axis + 1 == cx.dims(id).len();
    let fits = last && !op.log && uses[id.index()] == 1 && record.value().is_none();
    fits.then(|| Some((*record.src().first()?, op.guarded)))?
}

/// A softmax in whose result NaN is replaced by 0, as PyTorch's exporter writes it for masks that may hide all
/// keys, and its operand.
fn guarded(cx: &Context, id: TensorId, uses: &[usize]) -> Option<(Softmax, TensorId)> {
    let (Op::Select(_), &[wrong, zero, weights]) = (cx.record(id).op(), cx.record(id).src()) else {
        return None;
    };
    let special = Special { nan: true, positive: false, negative: false };
    let guards = matches!(cx.record(wrong).op(), Op::Special(op) if *op == special)
        && cx.record(wrong).src() == [weights]
        && scalar(cx, zero) == Some(0.0)
        && [(wrong, 1), (weights, 2)].into_iter().all(|(id, times)| uses[id.index()] == times);
    let (Op::Softmax(op), &[x]) = (cx.record(weights).op(), cx.record(weights).src()) else {
        return None;
    };
    let same = cx.dims(id) == cx.dims(x) && cx.record(id).value().is_none();
    (guards && same).then_some((Softmax { guarded: true, ..*op }, x))
}

/// Scores before masks are added and before they are scaled: the scale, the product, and the masks with
/// extents that broadcast to four dimensions.
type Unmasked = (f32, TensorId, Vec<(TensorId, Vec<usize>)>);

/// Scores as a scaled product and up to `masks` terms that are added to it.
fn unmasked(cx: &Context, scores: TensorId, full: [usize; 4], masks: usize) -> Option<Unmasked> {
    let scores = reshaped(cx, scores);
    let dims = cx.dims(scores);
    if extents(&dims)? != full {
        return None;
    }
    let (factor, product) = scaled(cx, scores).unwrap_or((1.0, scores));
    let product = reshaped(cx, product);
    if matmul(cx, product).is_some() {
        let fits = extents(&cx.dims(product)) == Some(full);
        return fits.then(|| (factor, product, Vec::new()));
    }
    let [a, b] = binary(cx, scores, BinaryOp::Add)?;
    [(a, b), (b, a)].into_iter().find_map(|(x, mask)| {
        let shape = mask_extents(&cx.dims(mask), &dims)?;
        let (factor, product, mut found) = unmasked(cx, x, full, masks.checked_sub(1)?)?;
        found.push((mask, shape));
        Some((factor, product, found))
    })
}

/// The extents of a mask of scores of `dims` that broadcast to [`extents`] of these, if it has all keys.
fn mask_extents(mask: &[usize], dims: &[usize]) -> Option<Vec<usize>> {
    if mask.last() != dims.last() || mask.len() > dims.len() {
        return None;
    }
    if dims.len() < 5 {
        return Some(mask.to_vec());
    }
    let mut padded = vec![1; dims.len() - mask.len()];
    padded.extend(mask);
    let of = padded.split_off(2);
    let batch = match &padded[..] {
        own if own == &dims[..2] => extents(dims)?[0],
        [1, 1] => 1,
        _ => return None,
    };
    Some([&[batch], &of[..]].concat())
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
