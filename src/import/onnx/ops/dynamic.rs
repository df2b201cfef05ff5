//! Operators whose results have shapes that depend on what is in their operands.

use super::{HostCx, NodeCx, OpRow, Outputs, Tensors};
use crate::graph::dynamic::{NonMaxSuppression, compress, non_max_suppression, nonzero, unique};
use crate::graph::ops::gather_elements::GatherElements;
use crate::graph::ops::topk::TopK;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::{to_f32s, to_i64s};

pub(super) const ROWS: &[OpRow] = &[
    OpRow::on_host("Compress", (2, 2), &[Attr::int("axis")], compressed).since(9),
    OpRow::on_host("NonMaxSuppression", (2, 5), &[Attr::int("center_point_box")], boxes).since(10),
    OpRow::on_host("NonZero", (1, 1), &[], |cx| Ok(vec![nonzero(cx.input(0)?)?])).since(9),
    OpRow::new("TopK", (1, 1), &[Attr::int("axis"), Attr::int("k").required()], top)
        .until(9)
        .outputs(2, 2),
    OpRow::new(
        "TopK",
        (2, 2),
        &[Attr::int("axis"), Attr::int("largest").since(11), Attr::int("sorted").since(11)],
        top,
    )
    .since(10)
    .outputs(2, 2)
    .known(&[1]),
    OpRow::on_host("Unique", (1, 1), &[Attr::int("axis"), Attr::int("sorted")], different)
        .since(11)
        .outputs(4, 4),
];

/// An axis that may be left out.
fn axis(cx: &HostCx<'_>, rank: usize) -> Result<Option<usize>, NodeError> {
    cx.int("axis").map(|a| build::axis(a, rank)).transpose()
}

fn compressed(cx: &HostCx<'_>) -> Tensors {
    let (x, condition) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![compress(x, condition, axis(cx, x.dims().len())?)?])
}

fn different(cx: &HostCx<'_>) -> Tensors {
    let x = cx.input(0)?;
    let u = unique(x, axis(cx, x.dims().len())?, cx.int("sorted").unwrap_or(1) != 0)?;
    Ok(vec![u.values, u.first, u.inverse, u.counts])
}

fn boxes(cx: &HostCx<'_>) -> Tensors {
    let float = |i: usize| match cx.opt(i).map(to_f32s) {
        None => Ok(None),
        Some(Some(v)) if v.len() == 1 => Ok(v.first().copied()),
        Some(_) => Err(NodeError::invalid(format!("input {i} must be one float"))),
    };
    let most = match cx.opt(2).map(to_i64s) {
        None => 0,
        // None are kept for negative numbers, too.
        Some(Some(v)) if v.len() == 1 => v.first().map_or(0, |&n| usize::try_from(n).unwrap_or(0)),
        Some(_) => return Err(NodeError::invalid("input 2 must be one integer")),
    };
    let p = NonMaxSuppression {
        center_point: cx.int("center_point_box").unwrap_or(0) != 0,
        most,
        iou: float(3)?.unwrap_or(0.0),
        score: float(4)?,
    };
    Ok(vec![non_max_suppression(cx.input(0)?, cx.input(1)?, &p)?])
}

/// Values and positions of the best elements.
fn top(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let k = match cx.ints_input(1)?.as_deref() {
        None => cx.int("k", 0),
        Some(&[k]) => k,
        Some(list) => return Err(NodeError::invalid(format!("k must be one number: {list:?}"))),
    };
    let k = build::extent(k, "k")?;
    let axis = build::axis(cx.int("axis", -1), cx.rank(x))?;
    let op = TopK { axis, k, largest: cx.flag("largest", true), positions: false };
    if !cx.wants(1) {
        return Ok(vec![cx.op(op, &[x])?]);
    }
    // To look for them is what takes time.
    let at = cx.op(TopK { positions: true, ..op }, &[x])?;
    Ok(vec![cx.op(GatherElements { axis }, &[x, at])?, at])
}
