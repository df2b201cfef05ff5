//! Sequences: lists of tensors, resolved while the graph is built.
//!
//! No graph has a sequence: a value that is one stands for the tensors in it ([`Built::Sequence`]).
//! How many there are, and which one a node takes, must be known then.

use std::sync::Arc;

use super::{MANY, NodeCx, OpRow, Outputs, unroll};
use crate::graph::ops::concat::Concat;
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::stage::Built;
use crate::tensor::Tensor;

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "ConcatFromSequence",
        (1, 1),
        &[Attr::int("axis").required(), Attr::int("new_axis").only(&[0, 1])],
        concat,
    )
    .since(11),
    OpRow::new("SequenceAt", (2, 2), &[], at).since(11).known(&[1]),
    OpRow::new("SequenceConstruct", (1, MANY), &[], construct).since(11),
    // The type of what is not there yet.
    OpRow::new("SequenceEmpty", (0, 0), &[Attr::int("dtype")], |cx| give(cx, Vec::new())).since(11),
    OpRow::new("SequenceErase", (1, 2), &[], erase).since(11).known(&[1]),
    OpRow::new("SequenceInsert", (2, 3), &[], insert).since(11).known(&[2]),
    OpRow::new("SequenceLength", (1, 1), &[], length).since(11),
    OpRow::new("SequenceMap", (1, MANY), &[Attr::graph("body").required()], unroll::map)
        .since(17)
        .outputs(MANY, MANY),
    OpRow::new("SplitToSequence", (1, 2), &[Attr::int("axis"), Attr::int("keepdims")], split)
        .since(11)
        .known(&[1]),
];

/// Most parts of one tensor: each is a record of the graph.
const MAX_PARTS: usize = 1 << 16;

/// Whether input `i` must be a sequence; `None` if it may be one.
pub(in crate::import::onnx) fn takes(row: &OpRow, i: usize) -> Option<bool> {
    if !row.domain.is_empty() {
        return Some(false);
    }
    match row.name {
        "ConcatFromSequence" | "SequenceAt" | "SequenceErase" | "SequenceInsert"
        | "SequenceLength" => Some(i == 0),
        "SequenceMap" if i > 0 => None,
        "SequenceMap" => Some(true),
        "Identity" | "OptionalGetElement" | "OptionalHasElement" => None,
        "Loop" if i > 1 => None,
        _ => Some(false),
    }
}

/// Whether all outputs are sequences.
pub(in crate::import::onnx) fn gives(row: &OpRow) -> bool {
    let names = [
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceMap",
        "SplitToSequence",
    ];
    row.domain.is_empty() && names.contains(&row.name)
}

/// The tensors of a sequence that is an input.
pub(super) fn members(cx: &NodeCx<'_>, i: usize) -> Result<Arc<[TensorId]>, NodeError> {
    match cx.built(i)? {
        Built::Sequence(members) => Ok(members),
        Built::Tensor(_) => Err(NodeError::invalid(format!("input {i} is no sequence"))),
    }
}

/// Makes a sequence the only output. All tensors of a sequence have one type.
fn give(cx: &mut NodeCx<'_>, members: Vec<TensorId>) -> Outputs {
    cx.budget.list(members.len())?;
    let mut types = members.iter().map(|&id| cx.dtype(id));
    if let Some(first) = types.next()
        && let Some(other) = types.find(|&t| t != first)
    {
        return Err(NodeError::invalid(format!("a sequence of {first} and {other}")));
    }
    cx.give(0, Built::Sequence(members.into()));
    Ok(Vec::new())
}

fn construct(cx: &mut NodeCx<'_>) -> Outputs {
    let members = cx.inputs()?;
    give(cx, members)
}

/// A position in `len` tensors, counted from the end if negative; the one that input `i` says.
fn position(cx: &NodeCx<'_>, i: usize, len: usize) -> Result<Option<usize>, NodeError> {
    let at = match cx.ints_input(i)?.as_deref() {
        None => return Ok(None),
        Some(&[at]) => at,
        Some(v) => {
            let n = v.len();
            return Err(NodeError::invalid(format!("input {i} must be one position, found {n}")));
        }
    };
    let count = i64::try_from(len).unwrap_or(i64::MAX);
    let from_front = if at < 0 { at.checked_add(count) } else { Some(at) };
    let found = from_front.and_then(|p| usize::try_from(p).ok()).filter(|&p| p <= len);
    let outside = || NodeError::invalid(format!("position {at} in a sequence of {len}"));
    found.ok_or_else(outside).map(Some)
}

/// The position of a tensor that is there; the last one if input `i` is absent.
fn existing(cx: &NodeCx<'_>, i: usize, len: usize) -> Result<usize, NodeError> {
    let at = position(cx, i, len)?.or_else(|| len.checked_sub(1)).filter(|&p| p < len);
    at.ok_or_else(|| {
        NodeError::invalid(format!("a position beyond the end of a sequence of {len}"))
    })
}

fn at(cx: &mut NodeCx<'_>) -> Outputs {
    let members = members(cx, 0)?;
    let at = existing(cx, 1, members.len())?;
    members.get(at).map(|&id| vec![id]).ok_or(NodeError::NoInput(0))
}

fn insert(cx: &mut NodeCx<'_>) -> Outputs {
    let members = members(cx, 0)?;
    let at = position(cx, 2, members.len())?.unwrap_or(members.len());
    let (before, after) = members.split_at_checked(at).unwrap_or((&members, &[]));
    let new = cx.input(1)?;
    give(cx, before.iter().copied().chain([new]).chain(after.iter().copied()).collect())
}

fn erase(cx: &mut NodeCx<'_>) -> Outputs {
    let members = members(cx, 0)?;
    let at = existing(cx, 1, members.len())?;
    let others = members.iter().enumerate().filter(|(i, _)| *i != at).map(|(_, &id)| id);
    give(cx, others.collect())
}

fn length(cx: &mut NodeCx<'_>) -> Outputs {
    let len = i64::try_from(members(cx, 0)?.len()).unwrap_or(i64::MAX);
    let len = Tensor::from_slice(&[], &[len]).map_err(GraphError::from)?;
    Ok(vec![cx.constant(len)?])
}

/// Joins the tensors along an axis that they have, or along a new one.
fn concat(cx: &mut NodeCx<'_>) -> Outputs {
    let members = members(cx, 0)?;
    let joined = join(cx, &members, cx.int("axis", 0), cx.flag("new_axis", false))?;
    Ok(vec![joined])
}

/// The tensors along an axis that they have, or along a new one.
pub(super) fn join(
    cx: &mut NodeCx<'_>,
    members: &[TensorId],
    axis: i64,
    new_axis: bool,
) -> Result<TensorId, NodeError> {
    let &first =
        members.first().ok_or_else(|| NodeError::invalid("an empty sequence cannot be joined"))?;
    let axis = build::axis(axis, cx.rank(first) + usize::from(new_axis))?;
    cx.budget.list(members.len())?;
    let mut members = members.to_vec();
    if new_axis {
        cx.budget.build(members.len())?;
        for member in &mut members {
            let mut dims = cx.dims(*member);
            if axis > dims.len() {
                let what = format!("axis {axis} of a tensor of rank {}", dims.len() + 1);
                return Err(NodeError::invalid(what));
            }
            dims.insert(axis, 1);
            *member = cx.reshape(*member, &dims)?;
        }
    }
    match members[..] {
        [only] => Ok(only),
        _ => cx.op(Concat { axis }, &members),
    }
}

/// Parts of one size (the last may be smaller), of the sizes listed, or of 1.
fn split(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let mut dims = cx.dims(x);
    let axis = build::axis(cx.int("axis", 0), dims.len())?;
    let extent = dims.get(axis).copied().unwrap_or(0);
    let equal = |size: usize| {
        let count = extent.checked_div(size).map(|n| n + usize::from(!extent.is_multiple_of(size)));
        let count = count.ok_or_else(|| NodeError::invalid("parts of 0"))?;
        few(count)?;
        let start = |i: usize| i.saturating_mul(size).min(extent);
        Ok::<Vec<usize>, NodeError>((0..count).map(|i| start(i + 1) - start(i)).collect())
    };
    let scalar = cx.opt(1).is_some_and(|id| cx.rank(id) == 0);
    // Where sizes are given, `keepdims` has no meaning; but exporters write what gives each element by itself
    // with a size of 1, too, and other runtimes read it so.
    let keep = cx.flag("keepdims", true);
    let (sizes, squeeze) = match cx.ints_input(1)?.as_deref() {
        None => (equal(1)?, !keep),
        Some(&[size]) if scalar => (equal(build::extent(size, "part")?)?, size == 1 && !keep),
        Some(sizes) => {
            few(sizes.len())?;
            let sizes: Result<_, _> = sizes.iter().map(|&s| build::extent(s, "part")).collect();
            (sizes?, false)
        }
    };
    let total = sizes.iter().try_fold(0usize, |a, &s| a.checked_add(s));
    if total != Some(extent) {
        let what = format!("parts {sizes:?} of an extent of {extent}");
        return Err(NodeError::invalid(what));
    }
    if squeeze {
        dims.remove(axis);
    }
    cx.budget.build(sizes.len())?;
    let (mut start, mut parts) = (0, Vec::new());
    for size in sizes {
        let part = cx.slice(x, axis, start, size, 1)?;
        parts.push(if squeeze { cx.reshape(part, &dims)? } else { part });
        start += size;
    }
    give(cx, parts)
}

fn few(parts: usize) -> Result<(), NodeError> {
    if parts <= MAX_PARTS {
        return Ok(());
    }
    Err(NodeError::unsupported(format!("a tensor in {parts} parts (at most {MAX_PARTS})")))
}
