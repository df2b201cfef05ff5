//! Selection and writing by index, and tensors made from indices.

use tilewright_kernels::template::binary::BinaryOp;

use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::ops::arg_reduce::ArgReduce;
use crate::graph::ops::bits::{Bits, BitsOp};
use crate::graph::ops::gather::Gather;
use crate::graph::ops::gather_elements::GatherElements;
use crate::graph::ops::gather_nd::GatherNd;
use crate::graph::ops::one_hot::OneHot;
use crate::graph::ops::pad::Pad;
use crate::graph::ops::reverse_sequence::ReverseSequence;
use crate::graph::ops::scatter_elements::{Reduction, ScatterElements};
use crate::graph::ops::scatter_nd::ScatterNd;
use crate::graph::ops::trilu::Trilu;
use crate::graph::{GraphError, Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::to_i64s;
use crate::tensor::{DType, Tensor};

const TWO: (u8, u8) = (2, 2);
const THREE: (u8, u8) = (3, 3);
const EXTREME: &[Attr] =
    &[Attr::int("axis"), Attr::int("keepdims"), Attr::int("select_last_index").since(12)];
const REDUCTION: Attr =
    Attr::string("reduction").since(16).one_of(&["none", "add", "mul", "max", "min"]);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("ArgMax", (1, 1), EXTREME, |cx| extreme(cx, false)),
    OpRow::new("ArgMin", (1, 1), EXTREME, |cx| extreme(cx, true)),
    OpRow::new("CenterCropPad", TWO, &[Attr::ints("axes")], center_crop_pad).since(18).known(&[1]),
    OpRow::new("EyeLike", (1, 1), &[Attr::int("dtype"), Attr::int("k")], eye_like).since(9),
    OpRow::new("GatherElements", TWO, &[Attr::int("axis")], |cx| {
        let (x, indices) = (cx.input(0)?, cx.input(1)?);
        let axis = build::axis(cx.int("axis", 0), cx.rank(x))?;
        Ok(vec![match of_slices(cx, x, indices, axis)? {
            Some(indices) => cx.op(Gather { axis }, &[x, indices])?,
            None => cx.op(GatherElements { axis }, &[x, indices])?,
        }])
    })
    .since(11),
    OpRow::new("GatherND", TWO, &[Attr::int("batch_dims").since(12)], |cx| {
        let (x, indices) = (cx.input(0)?, cx.input(1)?);
        let batch_dims = build::extent(cx.int("batch_dims", 0), "batch_dims")?;
        Ok(vec![cx.op(GatherNd { batch_dims }, &[x, indices])?])
    })
    .since(11),
    OpRow::new("Hardmax", (1, 1), &[Attr::int("axis")], hardmax),
    OpRow::new("OneHot", THREE, &[Attr::int("axis")], one_hot).since(9).known(&[1]),
    OpRow::new("ReverseSequence", TWO, &[Attr::int("batch_axis"), Attr::int("time_axis")], |cx| {
        let (x, lengths) = (cx.input(0)?, cx.input(1)?);
        let rank = cx.rank(x);
        let batch = build::axis(cx.int("batch_axis", 1), rank)?;
        let time = build::axis(cx.int("time_axis", 0), rank)?;
        Ok(vec![cx.op(ReverseSequence { batch, time }, &[x, lengths])?])
    })
    .since(10),
    OpRow::new("Scatter", THREE, &[Attr::int("axis")], scatter_elements).since(9).until(10),
    OpRow::new("ScatterElements", THREE, &[Attr::int("axis"), REDUCTION], scatter_elements)
        .since(11),
    OpRow::new("ScatterND", THREE, &[REDUCTION], |cx| {
        let src = cx.inputs()?;
        let reduction = reduction(cx);
        Ok(vec![cx.op(ScatterNd { reduction }, &src)?])
    })
    .since(11),
    OpRow::new(
        "TensorScatter",
        (2, 3),
        &[Attr::int("axis"), Attr::string("mode").one_of(&["linear", "circular"])],
        tensor_scatter,
    )
    .since(24),
    OpRow::new("Trilu", (1, 2), &[Attr::int("upper")], trilu).since(14).known(&[1]),
];

fn extreme(cx: &mut NodeCx<'_>, smallest: bool) -> Outputs {
    let x = cx.input(0)?;
    let mut dims = cx.dims(x);
    let axis = build::axis(cx.int("axis", 0), dims.len())?;
    let last = cx.flag("select_last_index", false);
    let y = cx.op(ArgReduce { axis, smallest, last }, &[x])?;
    if cx.flag("keepdims", true) {
        return Ok(vec![y]);
    }
    dims.remove(axis);
    Ok(vec![cx.reshape(y, &dims)?])
}

/// One at the first of the largest elements, zero elsewhere; up to opset 12 of everything from
/// `axis` on, later along `axis`.
fn hardmax(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (dims, dtype) = (cx.dims(x), cx.dtype(x));
    let old = cx.opset() < 13;
    let axis = match cx.int("axis", if old { 1 } else { -1 }) {
        a if old && usize::try_from(a) == Ok(dims.len()) => dims.len(),
        a => build::axis(a, dims.len())?,
    };
    if dims.contains(&0) {
        return Ok(vec![x]);
    }
    let (x, axis) = if old {
        let (rows, row) = dims.split_at_checked(axis).unwrap_or((&dims, &[]));
        let shape = [rows.iter().product(), row.iter().product()];
        (cx.reshape(x, &shape)?, 1)
    } else {
        (x, axis)
    };
    let mut without = cx.dims(x);
    let depth = without.remove(axis);
    let best = cx.op(ArgReduce { axis, smallest: false, last: false }, &[x])?;
    let best = cx.reshape(best, &without)?;
    let values = Tensor::from_slice(&[2], &[0.0f32, 1.0]).map_err(GraphError::from)?;
    let values = cx.constant(values)?;
    let values = cast::to(cx, values, dtype)?;
    let y = cx.op(OneHot { axis, depth }, &[best, values])?;
    Ok(vec![cx.reshape(y, &dims)?])
}

/// The only element of input `i`, a number of any type that must be known now; fractions drop.
pub(super) fn whole(cx: &mut NodeCx<'_>, i: usize, what: &str) -> Result<i64, NodeError> {
    cx.constant_input(i)?;
    let value = cx.input(i)?;
    let value = cast::to(cx, value, DType::I64)?;
    match cx.value(value).and_then(to_i64s).as_deref() {
        Some(&[v]) => Ok(v),
        _ => Err(NodeError::invalid(format!("{what} must be one number"))),
    }
}

fn one_hot(cx: &mut NodeCx<'_>) -> Outputs {
    let (indices, values) = (cx.input(0)?, cx.input(2)?);
    let depth = build::extent(whole(cx, 1, "depth")?, "depth")?;
    let axis = build::axis(cx.int("axis", -1), cx.rank(indices) + 1)?;
    let indices = cast::to(cx, indices, DType::I64)?;
    Ok(vec![cx.op(OneHot { axis, depth }, &[indices, values])?])
}

/// Ones on a diagonal of zeros, of the shape of `x`.
fn eye_like(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let &[rows, columns] = &dims[..] else {
        return Err(NodeError::invalid(format!("x {dims:?} must be a matrix")));
    };
    let dtype = match cx.int("dtype", 0) {
        0 => cx.dtype(x),
        number => cast::dtype_of(number)?,
    };
    cx.spend(&Info::plain(DType::F64, dims.clone()))?;
    let k = i128::from(cx.int("k", 0));
    let on = |i: usize| (i / columns.max(1)) as i128 + k == (i % columns.max(1)) as i128;
    let values: Vec<u8> = (0..rows * columns).map(|i| u8::from(on(i))).collect();
    let values = Tensor::from_slice(&dims, &values).map_err(GraphError::from)?;
    let values = cx.constant(values)?;
    Ok(vec![cast::to(cx, values, dtype)?])
}

pub(super) fn trilu(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let diagonal = match cx.ints_input(1)?.as_deref() {
        None => 0,
        Some(&[k]) => k,
        Some(_) => return Err(NodeError::invalid("k must be one number")),
    };
    Ok(vec![cx.op(Trilu { upper: cx.flag("upper", true), diagonal }, &[x])?])
}

fn reduction(cx: &NodeCx<'_>) -> Reduction {
    match cx.string("reduction", "none").as_str() {
        "add" => Reduction::Add,
        "mul" => Reduction::Mul,
        "max" => Reduction::Max,
        "min" => Reduction::Min,
        _ => Reduction::Replace,
    }
}

fn scatter_elements(cx: &mut NodeCx<'_>) -> Outputs {
    let src = cx.inputs()?;
    let axis = build::axis(cx.int("axis", 0), cx.rank(cx.input(0)?))?;
    let reduction = reduction(cx);
    if let (0, &[x, indices, updates]) = (axis, &src[..])
        && cx.dims(indices) == cx.dims(updates)
        && let Some(indices) = of_slices(cx, x, indices, axis)?
    {
        let count = cx.dims(indices).iter().product();
        let tuples = cx.reshape(indices, &[count, 1])?;
        return Ok(vec![cx.op(ScatterNd { reduction }, &[x, tuples, updates])?]);
    }
    Ok(vec![cx.op(ScatterElements { axis, reduction }, &src)?])
}

/// One index per slice of `x` along an axis, where those of all elements were made of it by broadcasting, as exporters
/// write the choice of whole slices.
fn of_slices(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    indices: TensorId,
    axis: usize,
) -> Result<Option<TensorId>, NodeError> {
    let (dims, strides) = (cx.dims(indices), cx.ctx.record(indices).shape().strides());
    let others = cx.dims(x).into_iter().zip(&dims).zip(&strides).enumerate();
    let mut others = others.filter(|&(i, _)| i != axis);
    let whole = others.all(|(i, ((extent, &d), &stride))| {
        d == extent && (d == 1 || (i > axis && d > 0 && stride == 0))
    });
    let (true, Some(&count)) = (whole && dims.len() == cx.rank(x), dims.get(axis)) else {
        return Ok(None);
    };
    let record = cx.ctx.record(indices);
    let source = record.src().first().filter(|_| record.view_offset() == Some(0));
    if let Some(&one) = source.filter(|&&one| cx.ctx.record(one).shape().elements() == count) {
        return Ok(Some(cx.reshape(one, &[count])?));
    }
    let mut slices = indices;
    for i in (0..dims.len()).filter(|&i| i != axis) {
        slices = cx.slice(slices, i, 0, 1, 1)?;
    }
    Ok(Some(cx.reshape(slices, &[count])?))
}

/// Writes a run of elements of an axis, from an index per batch on.
fn tensor_scatter(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, update) = (cx.input(0)?, cx.input(1)?);
    let (dims, wanted) = (cx.dims(x), cx.dims(update));
    let axis = build::axis(cx.int("axis", -2), dims.len())?;
    let (Some(&extent), Some(&count), true) =
        (dims.get(axis), wanted.get(axis), dims.len() == wanted.len() && axis > 0)
    else {
        return Err(NodeError::invalid(format!(
            "an update {wanted:?} along axis {axis} of {dims:?}"
        )));
    };
    let steps = counting(cx, count)?;
    let mut shape = vec![1; dims.len()];
    if let Some(slot) = shape.get_mut(axis) {
        *slot = count;
    }
    let mut at = cx.reshape(steps, &shape)?;
    if let Some(first) = cx.opt(2) {
        let mut shape = vec![1; dims.len()];
        if let (Some(slot), Some(&batch)) = (shape.first_mut(), dims.first()) {
            *slot = batch;
        }
        let first = cast::to(cx, first, DType::I64)?;
        let first = cx.reshape(first, &shape)?;
        at = cx.binary(BinaryOp::Add, first, at)?;
    }
    if cx.string("mode", "linear") == "circular" {
        #[allow(clippy::cast_precision_loss, reason = "extents are far below 2^53")]
        let extent = cx.scalar(DType::I64, extent as f64)?;
        at = cx.op(Bits { op: BitsOp::Modulo }, &[at, extent])?;
    }
    let at = cx.expand(at, &wanted)?;
    let op = ScatterElements { axis, reduction: Reduction::Replace };
    Ok(vec![cx.op(op, &[x, at, update])?])
}

/// The numbers from 0 to below `count`, as `i64`.
pub(super) fn counting(cx: &mut NodeCx<'_>, count: usize) -> Result<TensorId, NodeError> {
    cx.spend(&Info::plain(DType::I64, vec![count]))?;
    let values: Vec<i64> = (0i64..).take(count).collect();
    cx.constant(Tensor::from_slice(&[count], &values).map_err(GraphError::from)?)
}

/// Cuts or pads both ends of axes alike; an odd element goes to or comes from the end.
fn center_crop_pad(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let sizes = cx.ints_input(1)?.ok_or(NodeError::NoInput(1))?;
    let axes = match cx.ints("axes") {
        Some(axes) => build::axes(&axes, dims.len())?,
        None => (0..dims.len()).collect(),
    };
    if axes.len() != sizes.len() {
        let (axes, sizes) = (axes.len(), sizes.len());
        return Err(NodeError::invalid(format!("{sizes} sizes for {axes} axes")));
    }
    let mut y = x;
    let (mut before, mut after) = (vec![0; dims.len()], vec![0; dims.len()]);
    for (&axis, &size) in axes.iter().zip(&sizes) {
        let (size, extent) = (build::extent(size, "size")?, dims.get(axis).copied().unwrap_or(0));
        if size <= extent {
            y = cx.slice(y, axis, (extent - size) / 2, size, 1)?;
        } else if let (Some(b), Some(a)) = (before.get_mut(axis), after.get_mut(axis)) {
            *b = (size - extent) / 2;
            *a = size - extent - *b;
        }
    }
    if before.iter().chain(&after).all(|&p| p == 0) {
        return Ok(vec![y]);
    }
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    Ok(vec![cx.op(Pad { before, after }, &[y, zero])?])
}
