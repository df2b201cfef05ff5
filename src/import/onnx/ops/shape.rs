//! What changes shapes, moves elements or tells about shapes.

use super::{NodeCx, OpRow, Outputs};
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::{DType, Tensor, broadcast};

const ONE: (u8, u8) = (1, 1);
const TWO: (u8, u8) = (2, 2);

/// Up to opset 6 nodes that compute something else in training say that this is not training. Without it, too, the
/// outputs tell: one is that of inference.
pub(super) const IS_TEST: Attr = Attr::int("is_test").until(6);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Dropout", ONE, &[IS_TEST, Attr::float("ratio")], dropout).until(11).outputs(2, 2),
    // The inputs are a ratio and a flag, which is off outside of training.
    OpRow::new("Dropout", (1, 3), &[Attr::int("seed")], dropout)
        .since(12)
        .outputs(2, 2)
        .known(&[2]),
    OpRow::new("Expand", TWO, &[], expand).since(8).known(&[1]),
    OpRow::new("Flatten", ONE, &[Attr::int("axis")], flatten),
    OpRow::new("Identity", ONE, &[], identity),
    OpRow::new("Reshape", ONE, &[Attr::ints("shape")], reshape).until(4),
    OpRow::new("Reshape", TWO, &[Attr::int("allowzero").since(14)], reshape).since(5).known(&[1]),
    OpRow::new("Shape", ONE, &[Attr::int("start").since(15), Attr::int("end").since(15)], shape),
    OpRow::new("Size", ONE, &[], size),
    OpRow::new("Squeeze", ONE, &[Attr::ints("axes")], squeeze).until(12),
    OpRow::new("Squeeze", (1, 2), &[], squeeze).since(13).known(&[1]),
    OpRow::new("Tile", TWO, &[], tile).since(6).known(&[1]),
    OpRow::new("Transpose", ONE, &[Attr::ints("perm")], transpose),
    OpRow::new("Unsqueeze", ONE, &[Attr::ints("axes").required()], unsqueeze).until(12),
    OpRow::new("Unsqueeze", TWO, &[], unsqueeze).since(13).known(&[1]),
];

/// Of sequences, too.
pub(super) fn identity(cx: &mut NodeCx<'_>) -> Outputs {
    let same = cx.built(0)?;
    cx.give(0, same);
    Ok(Vec::new())
}

/// 0 keeps an extent (unless `allowzero`), one -1 takes what is left.
fn reshape(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let wanted = cx.ints_attr_or_input("shape", 1)?.ok_or(NodeError::NoInput(1))?;
    let allow_zero = cx.flag("allowzero", false);
    let invalid =
        |what: &str| Err(NodeError::invalid(format!("{what} when {dims:?} becomes {wanted:?}")));
    let (mut out, mut open) = (Vec::new(), None);
    for (i, &w) in wanted.iter().enumerate() {
        match w {
            0 if !allow_zero => match dims.get(i) {
                Some(&d) => out.push(d),
                None => return invalid("extent 0 has nothing to keep"),
            },
            -1 if open.is_none() => {
                open = Some(i);
                out.push(1);
            }
            -1 => return invalid("only one extent may be -1"),
            w => out.push(build::extent(w, "extent")?),
        }
    }
    if let Some(slot) = open.and_then(|i| out.get_mut(i)) {
        *slot = 1;
        let known = out.iter().try_fold(1usize, |a, &d| a.checked_mul(d));
        let total: usize = dims.iter().product();
        let left = match known {
            Some(0) => None,
            Some(known) if total.is_multiple_of(known) => Some(total / known),
            _ => None,
        };
        let Some(left) = left else { return invalid("the element counts cannot be equal") };
        if let Some(slot) = open.and_then(|i| out.get_mut(i)) {
            *slot = left;
        }
    }
    Ok(vec![cx.reshape(x, &out)?])
}

/// Two dimensions: all before `axis`, all from it on.
fn flatten(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let axis = match cx.int("axis", 1) {
        a if usize::try_from(a) == Ok(dims.len()) => dims.len(),
        a => build::axis(a, dims.len())?,
    };
    let (rows, row) = dims.split_at_checked(axis).unwrap_or((&dims, &[]));
    let shape = [rows.iter().product(), row.iter().product()];
    Ok(vec![cx.reshape(x, &shape)?])
}

fn transpose(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let perm = match cx.ints("perm") {
        Some(perm) => build::axes(&perm, rank)?,
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.transpose(x, &perm)?])
}

fn squeeze(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let axes = match cx.ints_attr_or_input("axes", 1)? {
        Some(axes) => Some(build::axes(&axes, dims.len())?),
        None => None,
    };
    let mut out = Vec::new();
    for (i, &d) in dims.iter().enumerate() {
        match &axes {
            Some(axes) if axes.contains(&i) => {
                if d != 1 {
                    let what = format!("axis {i} of {dims:?} cannot be removed");
                    return Err(NodeError::invalid(what));
                }
            }
            None if d == 1 => {}
            _ => out.push(d),
        }
    }
    Ok(vec![cx.reshape(x, &out)?])
}

/// Axes count in the result.
fn unsqueeze(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let axes = cx.ints_attr_or_input("axes", 1)?.ok_or(NodeError::NoInput(1))?;
    let dims = cx.dims(x);
    let axes = build::axes(&axes, dims.len() + axes.len())?;
    let mut rest = dims.iter().copied();
    let out: Vec<usize> = (0..dims.len() + axes.len())
        .map(|i| if axes.contains(&i) { 1 } else { rest.next().unwrap_or(1) })
        .collect();
    Ok(vec![cx.reshape(x, &out)?])
}

fn expand(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let wanted = cx.ints_input(1)?.ok_or(NodeError::NoInput(1))?;
    let dims = cx.dims(x);
    let shape =
        wanted.iter().map(|&d| build::extent(d, "extent")).collect::<Result<Vec<_>, _>>()?;
    let Some(shape) = broadcast(&dims, &shape) else {
        return Err(NodeError::invalid(format!("{dims:?} does not broadcast to {shape:?}")));
    };
    Ok(vec![cx.expand(x, &shape)?])
}

/// Repeats the whole tensor along each axis.
fn tile(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let repeats = cx.ints_input(1)?.ok_or(NodeError::NoInput(1))?;
    Ok(vec![repeated(cx, x, &repeats)?])
}

/// Each axis as often as `repeats` says.
pub(super) fn repeated(
    cx: &mut NodeCx<'_>,
    mut y: TensorId,
    repeats: &[i64],
) -> Result<TensorId, NodeError> {
    let mut dims = cx.dims(y);
    if repeats.len() != dims.len() {
        let what = format!("repeats {repeats:?} must have one number per extent of {dims:?}");
        return Err(NodeError::invalid(what));
    }
    for (axis, &r) in repeats.iter().enumerate() {
        let r = build::extent(r, "repeat")?;
        let (before, rest) = dims.split_at_checked(axis).unwrap_or_default();
        let (&[d, ref after @ ..], true) = (rest, r != 1) else { continue };
        // [outer, d, inner] -> [outer, r, d, inner].
        let (outer, inner) = (before.iter().product(), after.iter().product());
        let flat = cx.reshape(y, &[outer, 1, d, inner])?;
        let wide = cx.expand(flat, &[outer, r, d, inner])?;
        let total = d.checked_mul(r);
        let total = total.ok_or_else(|| NodeError::invalid(format!("repeat {r} is too large")))?;
        if let Some(slot) = dims.get_mut(axis) {
            *slot = total;
        }
        y = cx.reshape(wide, &dims)?;
    }
    Ok(y)
}

fn shape(cx: &mut NodeCx<'_>) -> Outputs {
    let dims = cx.dims(cx.input(0)?);
    let rank = i64::try_from(dims.len()).unwrap_or(i64::MAX);
    let clamp = |v: i64| if v < 0 { v.saturating_add(rank) } else { v }.clamp(0, rank);
    let (start, end) = (clamp(cx.int("start", 0)), clamp(cx.int("end", rank)));
    let out: Vec<i64> = (0i64..)
        .zip(&dims)
        .filter(|(i, _)| (start..end).contains(i))
        .map(|(_, &d)| i64::try_from(d).unwrap_or(i64::MAX))
        .collect();
    let out = Tensor::from_slice(&[out.len()], &out).map_err(GraphError::from)?;
    Ok(vec![cx.constant(out)?])
}

fn size(cx: &mut NodeCx<'_>) -> Outputs {
    let count: usize = cx.dims(cx.input(0)?).iter().product();
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let out = Tensor::from_slice(&[], &[count]).map_err(GraphError::from)?;
    Ok(vec![cx.constant(out)?])
}

/// Nothing drops out after training: the result is `x`, the mask is all true.
fn dropout(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    if let Some(training) = cx.constant_input(2)?
        && training.bytes().iter().any(|&b| b != 0)
    {
        return Err(NodeError::unsupported("training_mode"));
    }
    let mut out = vec![x];
    if cx.output_count() > 1 {
        let dims = cx.dims(x);
        let yes = cx.scalar(DType::Bool, 1.0)?;
        out.push(cx.expand(yes, &dims)?);
    }
    Ok(out)
}
