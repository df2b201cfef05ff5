//! Selection of elements, comparison and logic.

use super::arithmetic::{OPERANDS, operands};
use super::{NodeCx, OpRow, Outputs};
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::gather::Gather;
use crate::graph::ops::select::Select;
use crate::graph::{GraphError, Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::to_i64s;
use crate::tensor::{DType, Tensor};

const TWO: (u8, u8) = (2, 2);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("And", TWO, OPERANDS, |cx| compare(cx, CompareOp::And)),
    OpRow::new("Equal", TWO, OPERANDS, |cx| compare(cx, CompareOp::Equal)),
    OpRow::new("Gather", TWO, &[Attr::int("axis")], gather),
    OpRow::new("Greater", TWO, OPERANDS, |cx| compare(cx, CompareOp::Greater)),
    OpRow::new("GreaterOrEqual", TWO, &[], |cx| compare(cx, CompareOp::GreaterOrEqual)).since(12),
    OpRow::new("Less", TWO, OPERANDS, |cx| compare(cx, CompareOp::Less)),
    OpRow::new("LessOrEqual", TWO, &[], |cx| compare(cx, CompareOp::LessOrEqual)).since(12),
    OpRow::new("Not", (1, 1), &[], not),
    OpRow::new("Or", TWO, OPERANDS, |cx| compare(cx, CompareOp::Or)),
    OpRow::new("Where", (3, 3), &[], choose).since(9),
    OpRow::new("Xor", TWO, OPERANDS, |cx| compare(cx, CompareOp::Xor)),
];

fn compare(cx: &mut NodeCx<'_>, op: CompareOp) -> Outputs {
    let (a, b) = operands(cx)?;
    Ok(vec![cx.op(Compare { op }, &[a, b])?])
}

fn not(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let yes = cx.scalar(DType::Bool, 1.0)?;
    Ok(vec![cx.op(Compare { op: CompareOp::Xor }, &[x, yes])?])
}

fn choose(cx: &mut NodeCx<'_>) -> Outputs {
    let (condition, yes, no) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    Ok(vec![cx.op(Select, &[condition, yes, no])?])
}

/// Slices of an axis by index; negative indices count from the end.
fn gather(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let dims = cx.dims(x);
    let axis = build::axis(cx.int("axis", 0), dims.len())?;
    // One index known ahead is a view.
    if cx.value(x).is_none()
        && let Some(value) = cx.value(indices)
        && value.shape().elements() == 1
        && let Some(&[index]) = to_i64s(value).as_deref()
    {
        let extent = dims.get(axis).copied().unwrap_or(0);
        let start = build::axis(index, extent).map_err(|_| {
            NodeError::invalid(format!("index {index} is outside an axis of {extent}"))
        })?;
        let (before, after) = (dims.get(..axis), dims.get(axis + 1..));
        let middle = cx.dims(indices);
        let shape = [before.unwrap_or_default(), &middle[..], after.unwrap_or_default()].concat();
        let y = cx.slice(x, axis, start, 1, 1)?;
        return Ok(vec![cx.reshape(y, &shape)?]);
    }
    Ok(vec![cx.op(Gather { axis }, &[x, indices])?])
}

/// The elements of an axis at positions that are known now.
pub(super) fn take(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    axis: usize,
    positions: impl Iterator<Item = usize>,
    count: usize,
) -> Result<TensorId, NodeError> {
    cx.spend(&Info::plain(DType::I32, vec![count]))?;
    let positions: Vec<i32> = positions.map(|p| i32::try_from(p).unwrap_or(i32::MAX)).collect();
    let indices = Tensor::from_slice(&[positions.len()], &positions).map_err(GraphError::from)?;
    let indices = cx.constant(indices)?;
    cx.op(Gather { axis }, &[x, indices])
}
