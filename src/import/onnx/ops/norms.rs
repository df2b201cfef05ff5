//! Normalisations by statistics of the input itself.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs, cast, reduce};
use crate::graph::TensorId;
use crate::graph::ops::compare::{Compare, CompareOp};
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::pad::Pad;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::select::Select;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::order::sort;
use crate::tensor::DType;

/// Statistics are computed in f32 whatever the type of the input, so this asks for nothing else.
const STASH: Attr = Attr::int("stash_type").only(&[1]);
const EPSILON: Attr = Attr::float("epsilon");

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "GroupNormalization",
        (3, 3),
        &[EPSILON, Attr::int("num_groups").required(), STASH.since(21)],
        group_normalization,
    )
    .since(18),
    OpRow::new("InstanceNormalization", (3, 3), &[EPSILON], instance_normalization),
    OpRow::new(
        "LRN",
        (1, 1),
        &[
            Attr::float("alpha"),
            Attr::float("beta"),
            Attr::float("bias"),
            Attr::int("size").required(),
        ],
        local_response,
    ),
    OpRow::new("LayerNormalization", (2, 3), &[Attr::int("axis"), EPSILON, STASH], |cx| {
        layer_normalization(cx, NormOp::Layer)
    })
    // The specification has it from operator set 17 on; ONNX Runtime writes it into models of earlier ones.
    .outputs(3, 3),
    OpRow::new("LpNormalization", (1, 1), &[Attr::int("axis"), Attr::int("p").only(&[1, 2])], lp),
    OpRow::new("MeanVarianceNormalization", (1, 1), &[Attr::ints("axes")], mean_variance).since(9),
    OpRow::new("RMSNormalization", (2, 2), &[Attr::int("axis"), EPSILON, STASH], |cx| {
        layer_normalization(cx, NormOp::Rms)
    })
    .since(23),
    // As ONNX Runtime writes the operator above into models of earlier operator sets.
    OpRow::new(
        "SimplifiedLayerNormalization",
        (2, 2),
        &[Attr::int("axis"), EPSILON, STASH],
        |cx| layer_normalization(cx, NormOp::Rms),
    )
    .outputs(2, 2),
];

/// Rows from `axis` on. Scale and bias that are not of a row's extents are broadcast to the input.
fn layer_normalization(cx: &mut NodeCx<'_>, op: NormOp) -> Outputs {
    let x = cx.input(0)?;
    let (dims, dtype) = (cx.dims(x), cx.dtype(x));
    let axis = build::axis(cx.int("axis", -1), dims.len())?;
    let (_, row) = dims.split_at_checked(axis).unwrap_or_default();
    let mut operands = vec![x];
    for i in 1..cx.input_count() {
        if let Some(id) = cx.opt(i) {
            operands.push(cast::to(cx, id, dtype)?);
        }
    }
    let fits = |cx: &NodeCx<'_>, id: TensorId| {
        let own = cx.dims(id);
        own.len() <= dims.len()
            && own.ends_with(row)
            && own.iter().product::<usize>() == row.iter().product::<usize>()
    };
    let norm = Norm { op, axis, epsilon: cx.float("epsilon", 1e-5), by_parts: false };
    let affine = operands.get(1..).unwrap_or_default().to_vec();
    let y = if affine.iter().all(|&id| fits(cx, id)) {
        for id in operands.iter_mut().skip(1) {
            *id = cx.reshape(*id, row)?;
        }
        cx.op(norm, &operands)?
    } else {
        let mut y = cx.op(norm, &[x])?;
        for (id, op) in affine.into_iter().zip([BinaryOp::Mul, BinaryOp::Add]) {
            y = cx.binary(op, y, id)?;
        }
        if cx.dims(y) != dims {
            let what = format!("scale and bias must broadcast to x {dims:?}");
            return Err(NodeError::invalid(what));
        }
        y
    };
    let mut outputs = vec![y];
    if op == NormOp::Layer && cx.output_count() > 1 {
        let axes: Vec<usize> = (axis..dims.len()).collect();
        let mean = reduce::over(cx, ReduceOp::Mean, x, &axes, true)?;
        let (_, variance) = deviations(cx, x, mean, &axes)?;
        let epsilon = cx.scalar(dtype, f64::from(norm.epsilon))?;
        let variance = cx.binary(BinaryOp::Add, variance, epsilon)?;
        let deviation = cx.unary(UnaryOp::Sqrt, variance)?;
        let deviation = cx.unary(UnaryOp::Reciprocal, deviation)?;
        // Whatever the type of the data.
        outputs.extend([cast::to(cx, mean, DType::F32)?, cast::to(cx, deviation, DType::F32)?]);
    }
    if op == NormOp::Rms && cx.output_count() > 1 {
        let axes: Vec<usize> = (axis..dims.len()).collect();
        let square = cx.unary(UnaryOp::Square, x)?;
        let mean = reduce::over(cx, ReduceOp::Mean, square, &axes, true)?;
        let epsilon = cx.scalar(dtype, f64::from(norm.epsilon))?;
        let mean = cx.binary(BinaryOp::Add, mean, epsilon)?;
        let root = cx.unary(UnaryOp::Sqrt, mean)?;
        outputs.push(cx.unary(UnaryOp::Reciprocal, root)?);
    }
    Ok(outputs)
}

/// `x - mean`, and the mean of its square over axes that stay as extents of 1.
pub(super) fn deviations(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    mean: TensorId,
    axes: &[usize],
) -> Result<(TensorId, TensorId), NodeError> {
    let d = cx.binary(BinaryOp::Sub, x, mean)?;
    let square = cx.unary(UnaryOp::Square, d)?;
    Ok((d, reduce::over(cx, ReduceOp::Mean, square, axes, true)?))
}

/// Rows are the pixels of a channel.
fn instance_normalization(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let channels = cx.dims(x).get(1).copied().unwrap_or(0);
    let affine = [cx.input(1)?, cx.input(2)?];
    Ok(vec![by_groups(cx, x, affine, channels, 1)?])
}

/// Rows are the pixels of several channels; scale and bias are per group up to opset 20.
fn group_normalization(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let channels = cx.dims(x).get(1).copied().unwrap_or(0);
    let groups = groups(cx, "num_groups", channels)?;
    let parts = if cx.opset() < 21 { 1 } else { channels / groups };
    let affine = [cx.input(1)?, cx.input(2)?];
    Ok(vec![by_groups(cx, x, affine, groups, parts)?])
}

/// The attribute that says into how many groups channels are divided.
pub(super) fn groups(cx: &NodeCx<'_>, name: &str, channels: usize) -> Result<usize, NodeError> {
    let groups = build::extent(cx.int(name, 0), name)?;
    if groups == 0 || !channels.is_multiple_of(groups) {
        let what = format!("{name} {groups} must divide the {channels} channels");
        return Err(NodeError::invalid(what));
    }
    Ok(groups)
}

/// Normalises `groups` rows per picture, each with `parts` numbers of scale and bias.
pub(super) fn by_groups(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    affine: [TensorId; 2],
    groups: usize,
    parts: usize,
) -> Result<TensorId, NodeError> {
    let (dims, dtype) = (cx.dims(x), cx.dtype(x));
    let &[n, channels, ref space @ ..] = &dims[..] else {
        return Err(NodeError::invalid(format!("x {dims:?} has no channels")));
    };
    let row = channels.checked_div(groups).unwrap_or(0) * space.iter().product::<usize>();
    let mut operands = vec![cx.reshape(x, &[n, groups, row])?];
    for (id, name) in affine.into_iter().zip(["scale", "bias"]) {
        if cx.dims(id) != [groups * parts] {
            let (found, wanted) = (cx.dims(id), groups * parts);
            let what = format!("{name} must have {wanted} elements, found {found:?}");
            return Err(NodeError::invalid(what));
        }
        let id = cast::to(cx, id, dtype)?;
        operands.push(cx.reshape(id, &[groups, parts])?);
    }
    let epsilon = cx.float("epsilon", 1e-5);
    let y = cx.op(Norm { op: NormOp::Layer, axis: 2, epsilon, by_parts: true }, &operands)?;
    cx.reshape(y, &dims)
}

/// `(x - mean) / (deviation + 1e-9)` over the batch and the pixels of each channel, or other axes.
fn mean_variance(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let axes = cx.ints("axes").unwrap_or_else(|| vec![0, 2, 3]);
    let mut axes = build::axes(&axes, cx.rank(x))?;
    sort(&mut axes, Ord::cmp);
    let mean = reduce::over(cx, ReduceOp::Mean, x, &axes, true)?;
    let (d, variance) = deviations(cx, x, mean, &axes)?;
    let deviation = cx.unary(UnaryOp::Sqrt, variance)?;
    let epsilon = cx.scalar(cx.dtype(x), 1e-9)?;
    let deviation = cx.binary(BinaryOp::Add, deviation, epsilon)?;
    Ok(vec![cx.binary(BinaryOp::Div, d, deviation)?])
}

/// `x` divided by its norm along an axis; 0 where that is 0.
fn lp(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let axis = build::axis(cx.int("axis", -1), cx.rank(x))?;
    let op = if cx.int("p", 2) == 1 { ReduceOp::L1 } else { ReduceOp::L2 };
    let norm = reduce::over(cx, op, x, &[axis], true)?;
    let (zero, one) = (cx.scalar(cx.dtype(x), 0.0)?, cx.scalar(cx.dtype(x), 1.0)?);
    let is_zero = cx.op(Compare { op: CompareOp::Equal }, &[norm, zero])?;
    // Then all of the axis is 0, or so small that it counts as that.
    let divisor = cx.op(Select, &[is_zero, one, norm])?;
    Ok(vec![cx.binary(BinaryOp::Div, x, divisor)?])
}

/// `x / (bias + alpha / size * s)^beta` with `s` the sum of squares of `size` neighbouring channels.
fn local_response(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (dims, dtype) = (cx.dims(x), cx.dtype(x));
    let Some(&channels) = dims.get(1) else {
        return Err(NodeError::invalid(format!("x {dims:?} has no channels")));
    };
    let size = build::extent(cx.int("size", 0), "size")?;
    if size == 0 || channels == 0 {
        return Err(NodeError::invalid(format!("size {size} of {channels} channels")));
    }
    let alpha = cx.float("alpha", 1e-4) / size as f32;
    let (bias, beta) = (cx.float("bias", 1.0), cx.float("beta", 0.75));
    // What lies beyond all channels adds nothing.
    let before = ((size - 1) / 2).min(channels - 1);
    let after = (size / 2).min(channels - 1);
    let square = cx.unary(UnaryOp::Square, x)?;
    let pads =
        |n: usize| dims.iter().enumerate().map(|(i, _)| if i == 1 { n } else { 0 }).collect();
    let zero = cx.scalar(dtype, 0.0)?;
    let padded = cx.op(Pad { before: pads(before), after: pads(after) }, &[square, zero])?;
    let sum = window_sums(cx, padded, channels, before + after + 1)?;
    let base = cx.unary(UnaryOp::Affine { scale: alpha, shift: bias }, sum)?;
    // AlexNet's: the product of its root and the root of that.
    let divisor = if beta.to_bits() == 0.75f32.to_bits() {
        let root = cx.unary(UnaryOp::Sqrt, base)?;
        let fourth = cx.unary(UnaryOp::Sqrt, root)?;
        cx.binary(BinaryOp::Mul, root, fourth)?
    } else {
        let beta = cx.scalar(dtype, f64::from(beta))?;
        cx.binary(BinaryOp::Pow, base, beta)?
    };
    Ok(vec![cx.binary(BinaryOp::Div, x, divisor)?])
}

/// The sums of `size` neighbours along axis 1, at `count` positions: sums of 2, 4, 8, ... of them by
/// doubling, and the window from those of its binary digits.
fn window_sums(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    count: usize,
    size: usize,
) -> Result<TensorId, NodeError> {
    let (mut power, mut width, mut at) = (x, 1, 0);
    let mut sum = None;
    loop {
        if size & width != 0 {
            let part = cx.slice(power, 1, at, count, 1)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => cx.binary(BinaryOp::Add, sum, part)?,
            });
            at += width;
        }
        if let (true, Some(sum)) = (size < 2 * width, sum) {
            return Ok(sum);
        }
        let len = count + size - 2 * width;
        let (low, high) = (cx.slice(power, 1, 0, len, 1)?, cx.slice(power, 1, width, len, 1)?);
        power = cx.binary(BinaryOp::Add, low, high)?;
        width *= 2;
    }
}
