//! Cutting and joining.

use super::{MANY, NodeCx, OpRow, Outputs, select};
use crate::graph::ops::concat::Concat;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "Concat",
        (1, MANY),
        &[Attr::int("axis").since(4).required(), Attr::int("axis").until(3)],
        concat,
    ),
    OpRow::new(
        "Slice",
        (1, 1),
        &[Attr::ints("axes"), Attr::ints("ends").required(), Attr::ints("starts").required()],
        slice,
    )
    .until(9),
    OpRow::new("Slice", (3, 5), &[], slice).since(10).known(&[1, 2, 3, 4]),
    OpRow::new("Split", (1, 2), &[Attr::int("axis"), Attr::ints("split")], split)
        .until(1)
        .outputs(MANY, MANY)
        .known(&[1]),
    OpRow::new("Split", (1, 1), &[Attr::int("axis"), Attr::ints("split")], split)
        .since(2)
        .until(12)
        .outputs(MANY, MANY),
    OpRow::new("Split", (1, 2), &[Attr::int("axis"), Attr::int("num_outputs").since(18)], split)
        .since(13)
        .outputs(MANY, MANY)
        .known(&[1]),
];

fn concat(cx: &mut NodeCx<'_>) -> Outputs {
    let inputs = cx.inputs()?;
    let &first = inputs.first().ok_or(NodeError::NoInput(0))?;
    let axis = build::axis(cx.int("axis", 1), cx.rank(first))?;
    if inputs.len() == 1 {
        return Ok(vec![first]);
    }
    Ok(vec![cx.op(Concat { axis }, &inputs)?])
}

/// `(start, count)` of a slice with the given step: bounds are clamped to the axis.
fn clamped(start: i64, end: i64, step: i64, extent: usize) -> (i64, usize) {
    let n = i64::try_from(extent).unwrap_or(i64::MAX);
    let wrapped = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
    let (start, distance) = if step > 0 {
        let start = wrapped(start).clamp(0, n);
        (start, wrapped(end).clamp(0, n) - start)
    } else {
        let last = n.saturating_sub(1);
        let start = wrapped(start).min(last).max(0);
        // The largest numbers stand for the end of the axis in both directions.
        let open = end == i64::MAX || end == i64::from(i32::MAX);
        let end = if open { -1 } else { wrapped(end).clamp(-1, last) };
        (start, if n == 0 { 0 } else { start - end })
    };
    let count = match u64::try_from(distance) {
        Ok(distance) => distance.div_ceil(step.unsigned_abs()),
        Err(_) => 0,
    };
    (start, usize::try_from(count).unwrap_or(0))
}

pub(super) fn slice(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let starts = cx.ints_attr_or_input("starts", 1)?.ok_or(NodeError::NoInput(1))?;
    let ends = cx.ints_attr_or_input("ends", 2)?.ok_or(NodeError::NoInput(2))?;
    let axes = match cx.ints_attr_or_input("axes", 3)? {
        Some(axes) => build::axes(&axes, rank)?,
        None => (0..starts.len()).collect(),
    };
    let steps = cx.ints_input(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let n = starts.len();
    if ends.len() != n || axes.len() != n || steps.len() != n || n > rank {
        let what =
            format!("{n} starts, {} ends, {} axes, {} steps", ends.len(), axes.len(), steps.len());
        return Err(NodeError::invalid(format!("{what} do not fit {rank} dimensions")));
    }
    let mut y = x;
    for (((&axis, &start), &end), &step) in axes.iter().zip(&starts).zip(&ends).zip(&steps) {
        if step == 0 {
            return Err(NodeError::invalid("a step of 0"));
        }
        let extent = cx.dims(y).get(axis).copied().unwrap_or(0);
        let (start, count) = clamped(start, end, step, extent);
        let first = usize::try_from(start).unwrap_or(0);
        let stride = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
        y = if count == 0 {
            cx.slice(y, axis, 0, 0, 1)?
        } else if step > 0 || count == 1 {
            cx.slice(y, axis, first, count, stride)?
        } else {
            // Views only go forward.
            let back = (0..count).map(|i| first.saturating_sub(i.saturating_mul(stride)));
            select::take(cx, y, axis, back, count)?
        };
    }
    Ok(vec![y])
}

fn split(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let axis = build::axis(cx.int("axis", 0), dims.len())?;
    let extent = dims.get(axis).copied().unwrap_or(0);
    let parts = cx.output_count();
    let sizes: Vec<usize> = match cx.ints_attr_or_input("split", 1)? {
        Some(sizes) => {
            sizes.iter().map(|&s| build::extent(s, "split")).collect::<Result<_, _>>()?
        }
        None => {
            let declared = build::extent(cx.int("num_outputs", 0), "num_outputs")?;
            if declared != 0 && declared != parts {
                let what = format!("num_outputs is {declared}, but there are {parts} outputs");
                return Err(NodeError::invalid(what));
            }
            if declared == 0 && !extent.is_multiple_of(parts) {
                let what = format!("an extent of {extent} does not divide by {parts}");
                return Err(NodeError::invalid(what));
            }
            // The last part may be smaller.
            let size = extent.div_ceil(parts);
            let start = |i: usize| i.saturating_mul(size).min(extent);
            (0..parts).map(|i| start(i + 1) - start(i)).collect()
        }
    };
    let total = sizes.iter().try_fold(0usize, |a, &s| a.checked_add(s));
    if sizes.len() != parts || total != Some(extent) {
        let what = format!("parts {sizes:?} for {parts} outputs of an extent of {extent}");
        return Err(NodeError::invalid(what));
    }
    let mut start = 0;
    let mut out = Vec::new();
    for size in sizes {
        out.push(cx.slice(x, axis, start, size, 1)?);
        start += size;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::clamped;

    #[test]
    fn bounds_are_clamped() {
        assert_eq!(clamped(1, 3, 1, 5), (1, 2));
        assert_eq!(clamped(-2, i64::MAX, 1, 5), (3, 2));
        assert_eq!(clamped(0, 5, 2, 5), (0, 3));
        assert_eq!(clamped(4, 1, 1, 5), (4, 0));
        assert_eq!(clamped(100, 200, 1, 5), (5, 0));
        assert_eq!(clamped(i64::MIN, i64::MAX, 1, 5), (0, 5));
        assert_eq!(clamped(-1, i64::MIN, -1, 5), (4, 5));
        assert_eq!(clamped(20, 0, -4, 20), (19, 5));
        assert_eq!(clamped(0, 3, -1, 5), (0, 0));
        assert_eq!(clamped(0, 1, 1, 0), (0, 0));
        assert_eq!(clamped(0, i64::MIN, -1, 0), (0, 0));
        assert_eq!(clamped(-9, i64::MIN, -1, 5), (0, 1));
        assert_eq!(clamped(9, i64::MAX, -2, 5), (4, 3));
        assert_eq!(clamped(0, i64::MAX, i64::MAX, 5), (0, 1));
        assert_eq!(clamped(4, i64::MIN, i64::MIN, 5), (4, 1));
    }
}
