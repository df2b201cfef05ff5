//! Padding.

use super::{NodeCx, OpRow, Outputs};
use crate::graph::ops::extend::{Extend, Extension};
use crate::graph::ops::pad::Pad;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

pub(super) const MODE: Attr = Attr::string("mode").one_of(&["constant", "reflect", "edge", "wrap"]);

const VALUE: Attr = Attr::float("value");

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Pad", (1, 1), &[MODE, Attr::ints("paddings").required(), VALUE], pad).until(1),
    OpRow::new("Pad", (1, 1), &[MODE, Attr::ints("pads").required(), VALUE], pad)
        .since(2)
        .until(10),
    OpRow::new("Pad", (2, 3), &[MODE], pad).since(11).until(17).known(&[1]),
    OpRow::new("Pad", (2, 4), &[MODE], pad).since(18).known(&[1, 3]),
];

/// Begins of all axes, then ends; negative ones crop.
pub(super) fn pad(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let name = if cx.opset() < 2 { "paddings" } else { "pads" };
    let pads = cx.ints_attr_or_input(name, 1)?.ok_or(NodeError::NoInput(1))?;
    let axes = match cx.ints_input(3)? {
        Some(axes) => build::axes(&axes, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    if pads.len() != 2 * axes.len() {
        let n = axes.len();
        return Err(NodeError::invalid(format!("pads {pads:?} must have {} elements", 2 * n)));
    }
    let (begins, ends) = pads.split_at_checked(axes.len()).unwrap_or_default();
    let mut y = x;
    let (mut before, mut after) = (vec![0; dims.len()], vec![0; dims.len()]);
    for ((&axis, &begin), &end) in axes.iter().zip(begins).zip(ends) {
        let extent = *dims.get(axis).unwrap_or(&0);
        let (cut_begin, cut_end) = (crop(begin), crop(end));
        let Some(left) = extent.checked_sub(cut_begin).and_then(|e| e.checked_sub(cut_end)) else {
            let what = format!("pads {begin} and {end} cut more than an extent of {extent}");
            return Err(NodeError::invalid(what));
        };
        y = cx.slice(y, axis, cut_begin, left, 1)?;
        if let (Some(b), Some(e)) = (before.get_mut(axis), after.get_mut(axis)) {
            (*b, *e) = (grow(begin)?, grow(end)?);
        }
    }
    if before.iter().chain(&after).all(|&p| p == 0) {
        return Ok(vec![y]);
    }
    let mode = match cx.string("mode", "constant").as_str() {
        "edge" => Some(Extension::Edge),
        "reflect" => Some(Extension::Reflect),
        "wrap" => Some(Extension::Wrap),
        _ => None,
    };
    if let Some(mode) = mode {
        return Ok(vec![cx.op(Extend { mode, before, after }, &[y])?]);
    }
    let dtype = cx.dtype(x);
    let value = match cx.opt(2) {
        Some(value) => cx.reshape(value, &[])?,
        None => {
            let value = f64::from(cx.float("value", 0.0));
            cx.scalar(dtype, value)?
        }
    };
    Ok(vec![cx.op(Pad { before, after }, &[y, value])?])
}

/// Elements that a negative pad removes.
fn crop(pad: i64) -> usize {
    if pad < 0 { usize::try_from(pad.unsigned_abs()).unwrap_or(usize::MAX) } else { 0 }
}

/// Elements that a positive pad adds.
fn grow(pad: i64) -> Result<usize, NodeError> {
    /// More than any memory holds; keeps sums far from overflow.
    const MOST: i64 = 1 << 40;
    match pad {
        ..=0 => Ok(0),
        1..=MOST => build::extent(pad, "pad"),
        _ => Err(NodeError::invalid(format!("pad {pad} is too large"))),
    }
}
