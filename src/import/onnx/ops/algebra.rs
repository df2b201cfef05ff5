//! Linear algebra beyond products of two matrices.

use super::{NodeCx, OpRow, Outputs, cast, reduce};
use crate::graph::TensorId;
use crate::graph::ops::det::Det;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::reduce::ReduceOp;
use crate::import::NodeError;
use crate::import::error::short;
use crate::import::onnx::attr::Attr;
use crate::tensor::{DType, MAX_DIMS};

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Det", (1, 1), &[], |cx| {
        let x = cx.input(0)?;
        Ok(vec![cx.op(Det, &[x])?])
    })
    .since(11),
    OpRow::new("Einsum", (1, super::MANY), &[Attr::string("equation").required()], einsum)
        .since(12),
];

/// The letters of an operand or of the result; letters of an ellipsis are digits.
type Term = Vec<char>;

/// A tensor and what its axes are called.
struct Named {
    id: TensorId,
    term: Term,
}

fn malformed(equation: &str) -> NodeError {
    NodeError::invalid(format!("equation \"{}\" does not fit the inputs", short(equation)))
}

/// One letter per axis; an ellipsis stands for those that are left.
fn letters(text: &str, rank: Option<usize>, widest: usize) -> Option<Term> {
    let (front, back) = match text.split_once("...") {
        Some((front, back)) => (front, Some(back)),
        None => (text, None),
    };
    let named = front.chars().chain(back.unwrap_or_default().chars());
    if !named.clone().all(|c| c.is_ascii_alphabetic()) || text.len() > 64 {
        return None;
    }
    let count = named.count();
    let hidden = match (back, rank) {
        (None, rank) => rank.is_none_or(|r| r == count).then_some(0)?,
        (Some(_), Some(rank)) => rank.checked_sub(count)?,
        (Some(_), None) => widest,
    };
    // The last axes of ellipses are aligned.
    let digits = (0..u32::try_from(hidden).ok()?).rev().map(|i| char::from_digit(i, 10));
    let digits = digits.collect::<Option<Vec<_>>>()?;
    Some(front.chars().chain(digits).chain(back.unwrap_or_default().chars()).collect())
}

/// Sums of products over equal letters: operands are multiplied one after another, each time
/// summing up what neither the result nor a later operand has.
fn einsum(cx: &mut NodeCx<'_>) -> Outputs {
    let inputs = cx.inputs()?;
    let equation: String = cx.string("equation", "").split_whitespace().collect();
    let bad = || malformed(&equation);
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (&equation[..], None),
    };
    let texts: Vec<&str> = left.split(',').collect();
    if texts.len() != inputs.len() || inputs.len() > 64 {
        return Err(bad());
    }
    let dtype = cx.dtype(inputs.first().copied().ok_or_else(bad)?);
    // Products of small integers wrap around, so their low bits are those of wider ones.
    let small = matches!(dtype, DType::I8 | DType::U8 | DType::I16 | DType::U16);
    let mut operands = Vec::new();
    for (text, &id) in texts.iter().zip(&inputs) {
        let id = if small { cast::to(cx, id, DType::I32)? } else { id };
        let term = letters(text, Some(cx.rank(id)), 0).ok_or_else(bad)?;
        operands.push(diagonal(cx, Named { id, term })?);
    }
    let digits = |o: &Named| o.term.iter().filter(|c| c.is_ascii_digit()).count();
    let widest = operands.iter().map(digits).max().unwrap_or(0);
    let wanted = match right {
        Some(text) => letters(text, None, widest).ok_or_else(bad)?,
        None => implied(&texts, widest),
    };
    let distinct =
        wanted.iter().enumerate().all(|(i, c)| !wanted.iter().skip(i + 1).any(|d| d == c));
    let exists = |c: &char| operands.iter().any(|o| o.term.contains(c));
    if !distinct || !wanted.iter().all(exists) {
        return Err(bad());
    }
    let mut rest = operands.into_iter();
    let mut sum = rest.next().ok_or_else(bad)?;
    let rest: Vec<Named> = rest.collect();
    for (i, next) in rest.iter().enumerate() {
        let later =
            |c: &char| wanted.contains(c) || rest.iter().skip(i + 1).any(|o| o.term.contains(c));
        let own = |o: &Named, other: &Term| {
            let lost = o.term.iter().filter(|c| !later(c) && !other.contains(c));
            lost.copied().collect::<Vec<char>>()
        };
        let (lost, lost_next) = (own(&sum, &next.term), own(next, &sum.term));
        sum = summed(cx, sum, &lost)?;
        let next = summed(cx, Named { id: next.id, term: next.term.clone() }, &lost_next)?;
        sum = multiplied(cx, sum, next, later, &equation)?;
    }
    let lost: Vec<char> = sum.term.iter().copied().filter(|c| !wanted.contains(c)).collect();
    let sum = summed(cx, sum, &lost)?;
    let order = places(&sum.term, &wanted).ok_or_else(bad)?;
    let y = cx.transpose(sum.id, &order)?;
    Ok(vec![cast::to(cx, y, dtype)?])
}

/// Without an arrow: axes of ellipses, then letters that occur once, in the alphabet's order.
fn implied(texts: &[&str], widest: usize) -> Term {
    let all: Vec<char> = texts.iter().flat_map(|t| t.chars()).collect();
    let letters = ('A'..='Z').chain('a'..='z');
    let once = letters.filter(|c| all.iter().filter(|d| *d == c).count() == 1);
    let digits = (0..u32::try_from(widest).unwrap_or(0)).rev();
    digits.filter_map(|i| char::from_digit(i, 10)).chain(once).collect()
}

/// Where each letter of `wanted` stands in `term`.
fn places(term: &Term, wanted: &[char]) -> Option<Vec<usize>> {
    wanted.iter().map(|c| term.iter().position(|d| d == c)).collect()
}

/// Of axes with one letter only what lies on their diagonal.
fn diagonal(cx: &mut NodeCx<'_>, mut x: Named) -> Result<Named, NodeError> {
    loop {
        let pair =
            x.term.iter().enumerate().find_map(|(i, c)| {
                Some((i, i + 1 + x.term.iter().skip(i + 1).position(|d| d == c)?))
            });
        let Some((first, second)) = pair else { return Ok(x) };
        let dims = cx.dims(x.id);
        let (Some(&n), true) = (dims.get(first), dims.get(first) == dims.get(second)) else {
            return Err(NodeError::invalid(format!("a diagonal of {dims:?}")));
        };
        // Both axes as one at the end, of which every (n + 1)-th element lies on the diagonal.
        let mut order: Vec<usize> =
            (0..dims.len()).filter(|&i| i != first && i != second).collect();
        let mut shape: Vec<usize> = order.iter().filter_map(|&i| dims.get(i).copied()).collect();
        order.extend([first, second]);
        let square =
            n.checked_mul(n).ok_or_else(|| NodeError::invalid("a diagonal is too long"))?;
        shape.push(square);
        let y = cx.transpose(x.id, &order)?;
        let y = cx.reshape(y, &shape)?;
        x.id = cx.slice(y, shape.len() - 1, 0, n, n.saturating_add(1))?;
        let letter = x.term.remove(second);
        x.term.remove(first);
        x.term.push(letter);
    }
}

/// Without the letters `lost`, whose elements are summed up.
fn summed(cx: &mut NodeCx<'_>, x: Named, lost: &[char]) -> Result<Named, NodeError> {
    if lost.is_empty() {
        return Ok(x);
    }
    let axes = x.term.iter().enumerate().filter(|(_, c)| lost.contains(c));
    let axes: Vec<usize> = axes.map(|(i, _)| i).collect();
    let id = reduce::over(cx, ReduceOp::Sum, x.id, &axes, false)?;
    let term = x.term.into_iter().filter(|c| !lost.contains(c)).collect();
    Ok(Named { id, term })
}

/// A batched product of matrices: letters of both that stay are the batch, letters of both that
/// vanish are summed up.
fn multiplied(
    cx: &mut NodeCx<'_>,
    a: Named,
    b: Named,
    stays: impl Fn(&char) -> bool,
    equation: &str,
) -> Result<Named, NodeError> {
    let (mut a, mut b) = (a, b);
    let both = |c: &&char| b.term.contains(c);
    let batch: Term = a.term.iter().filter(both).filter(|c| stays(c)).copied().collect();
    let inner: Term = a.term.iter().filter(both).filter(|c| !stays(c)).copied().collect();
    let rows: Term = a.term.iter().filter(|c| !b.term.contains(c)).copied().collect();
    let columns: Term = b.term.iter().filter(|c| !a.term.contains(c)).copied().collect();
    // Extents of 1 repeat, so both are expanded to what they have in common.
    let mut shared: Vec<usize> = Vec::new();
    for c in batch.iter().chain(&inner) {
        let extent = |o: &Named| {
            let at = o.term.iter().position(|d| d == c)?;
            cx.dims(o.id).get(at).copied()
        };
        shared.push(match (extent(&a), extent(&b)) {
            (Some(x), Some(y)) if x == y || y == 1 => x,
            (Some(1), Some(y)) => y,
            _ => return Err(malformed(equation)),
        });
    }
    let (batch_dims, inner_dims) = shared.split_at_checked(batch.len()).unwrap_or_default();
    let product = |d: &[usize]| {
        let product = d.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        product.ok_or_else(|| malformed(equation))
    };
    // Axes of the batch stay apart, as other operators would have them.
    let flat_batch = [product(batch_dims)?];
    let outer = if batch.len() + 2 > MAX_DIMS { &flat_batch[..] } else { batch_dims };
    // The second operand as it comes, if its last axis is a column.
    let transposed_b = b.term.last().is_none_or(|c| !columns.contains(c));
    let mut own = Vec::new();
    for (o, side, inner_last) in [(&mut a, &rows, true), (&mut b, &columns, transposed_b)] {
        let ends = if inner_last { [side, &inner] } else { [&inner, side] };
        let order: Term = batch.iter().chain(ends.into_iter().flatten()).copied().collect();
        let free = places(&o.term, side).ok_or_else(|| malformed(equation))?;
        let places = places(&o.term, &order).ok_or_else(|| malformed(equation))?;
        let dims = cx.dims(o.id);
        let free: Vec<usize> = free.into_iter().filter_map(|i| dims.get(i).copied()).collect();
        o.id = cx.transpose(o.id, &places)?;
        let ends = if inner_last { [&free, inner_dims] } else { [inner_dims, &free] };
        o.id = cx.expand(o.id, &[batch_dims, &ends.concat()].concat())?;
        let [rows, columns] = ends;
        let flat = [outer, &[product(rows)?, product(columns)?]].concat();
        o.id = cx.reshape(o.id, &flat)?;
        own.push(free);
    }
    let term: Term = batch.into_iter().chain(rows).chain(columns).collect();
    if term.len() > MAX_DIMS
        || !matches!(
            cx.dtype(a.id),
            DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64
        )
    {
        let (rank, dtype) = (term.len(), cx.dtype(a.id));
        return Err(NodeError::unsupported(format!("a product of {rank} axes of {dtype}")));
    }
    let product = MatMul { transposed_b, ..MatMul::default() };
    let y = cx.op(product, &[a.id, b.id])?;
    let own = own.concat();
    let id = cx.reshape(y, &[batch_dims, &own].concat())?;
    Ok(Named { id, term })
}
