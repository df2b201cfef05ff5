//! Padding.

use super::{NodeCx, OpRow, Outputs, select};
use crate::graph::TensorId;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::pad::Pad;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

pub(super) const MODE: Attr = Attr::string("mode").one_of(&["constant", "reflect", "edge", "wrap"]);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Pad", (1, 1), &[MODE, Attr::ints("pads").required(), Attr::float("value")], pad)
        .until(10),
    OpRow::new("Pad", (2, 3), &[MODE], pad).since(11).until(17).known(&[1]),
    OpRow::new("Pad", (2, 4), &[MODE], pad).since(18).known(&[1, 3]),
];

/// Begins of all axes, then ends; negative ones crop.
pub(super) fn pad(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let pads = cx.ints_attr_or_input("pads", 1)?.ok_or(NodeError::NoInput(1))?;
    let axes = match cx.ints_input(3)? {
        Some(axes) => build::axes(&axes, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    if pads.len() != 2 * axes.len() {
        let n = axes.len();
        return Err(NodeError::invalid(format!("pads {pads:?} must have {} elements", 2 * n)));
    }
    let (begins, ends) = pads.split_at_checked(axes.len()).unwrap_or_default();
    let mode = cx.string("mode", "constant");
    let mut y = x;
    let mut constant = (vec![0; dims.len()], vec![0; dims.len()]);
    for ((&axis, &begin), &end) in axes.iter().zip(begins).zip(ends) {
        let extent = *dims.get(axis).unwrap_or(&0);
        let (cut_begin, cut_end) = (crop(begin), crop(end));
        let left = extent.checked_sub(cut_begin).and_then(|e| e.checked_sub(cut_end));
        let (add_begin, add_end) = (grow(begin)?, grow(end)?);
        match left {
            Some(left) if mode == "constant" => {
                y = cx.slice(y, axis, cut_begin, left, 1)?;
                if let (Some(b), Some(e)) = (constant.0.get_mut(axis), constant.1.get_mut(axis)) {
                    (*b, *e) = (add_begin, add_end);
                }
            }
            Some(left) => {
                y = cx.slice(y, axis, cut_begin, left, 1)?;
                y = repeat(cx, y, axis, &mode, [add_begin, left, add_end])?;
            }
            None => {
                let what = format!("pads {begin} and {end} cut more than an extent of {extent}");
                return Err(NodeError::invalid(what));
            }
        }
    }
    let (before, after) = constant;
    if before.iter().chain(&after).all(|&p| p == 0) {
        return Ok(vec![y]);
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

/// Padding whose elements come from the tensor: `[begin, extent, end]`.
fn repeat(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    axis: usize,
    mode: &str,
    [begin, extent, end]: [usize; 3],
) -> Result<TensorId, NodeError> {
    if begin == 0 && end == 0 {
        return Ok(x);
    }
    if extent == 0 {
        return Err(NodeError::invalid(format!("mode {mode} on an empty axis")));
    }
    let positions = |from: usize, count: usize| {
        (from..from + count).map(move |i| source(mode, i, begin, extent))
    };
    let mut parts = Vec::new();
    if begin > 0 {
        parts.push(select::take(cx, x, axis, positions(0, begin), begin)?);
    }
    parts.push(x);
    if end > 0 {
        parts.push(select::take(cx, x, axis, positions(begin + extent, end), end)?);
    }
    cx.op(Concat { axis }, &parts)
}

/// Which element stands at position `i` of the padded axis.
fn source(mode: &str, i: usize, begin: usize, extent: usize) -> usize {
    match mode {
        "reflect" if extent > 1 => {
            // Back and forth without repeating the ends.
            let period = 2 * (extent - 1);
            let at = (i + period - begin % period) % period;
            at.min(period - at)
        }
        "wrap" => (i + extent - begin % extent) % extent,
        _ => i.saturating_sub(begin).min(extent - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::source;

    fn padded(mode: &str, begin: usize, extent: usize, end: usize) -> Vec<usize> {
        (0..begin + extent + end).map(|i| source(mode, i, begin, extent)).collect()
    }

    #[test]
    fn modes_as_numpy_pads() {
        assert_eq!(padded("edge", 2, 3, 2), [0, 0, 0, 1, 2, 2, 2]);
        assert_eq!(padded("reflect", 2, 3, 2), [2, 1, 0, 1, 2, 1, 0]);
        assert_eq!(padded("reflect", 5, 3, 3), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(padded("reflect", 2, 1, 1), [0, 0, 0, 0]);
        assert_eq!(padded("wrap", 2, 3, 4), [1, 2, 0, 1, 2, 0, 1, 2, 0]);
    }
}
