//! Windows of any number of dimensions: what the kernels of convolutions and pools do not compute.

use super::{NodeCx, OpRow, Outputs, cast, conv, volume};
use crate::graph::TensorId;
use crate::graph::ops::col2im::Col2Im;
use crate::graph::ops::conv::Conv;
use crate::graph::ops::conv_nd::ConvNd;
use crate::graph::ops::deform_columns::DeformColumns;
use crate::graph::ops::pad::Pad;
use crate::graph::ops::pool::PoolKind;
use crate::graph::ops::pool_nd::{PoolNd, PoolNdKind};
use crate::graph::ops::scatter_elements::{Reduction, ScatterElements};
use crate::graph::ops::windows::{Windows, count_along};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

const AUTO_PAD: Attr =
    Attr::string("auto_pad").one_of(&["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]);

/// Small builds compute volumes by the definition, which is there anyway.
const VOLUMES: bool = cfg!(feature = "ops-more");

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "Col2Im",
        (3, 3),
        &[Attr::ints("dilations"), Attr::ints("pads"), Attr::ints("strides")],
        col2im,
    )
    .since(18)
    .known(&[1, 2]),
    OpRow::new(
        "DeformConv",
        (3, 5),
        &[
            Attr::ints("dilations"),
            Attr::int("group"),
            Attr::ints("kernel_shape"),
            Attr::int("offset_group"),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        deform_conv,
    )
    .since(19),
    OpRow::new(
        "GlobalLpPool",
        (1, 1),
        &[Attr::int("p").since(2), Attr::float("p").until(1)],
        |cx| {
            let x = cx.input(0)?;
            let size = cx.dims(x).get(2..).unwrap_or_default().to_vec();
            let kind = norm(cx)?;
            let windows = placed(cx, &size, size.clone(), false)?;
            Ok(vec![cx.op(PoolNd { kind, windows }, &[x])?])
        },
    ),
    OpRow::new(
        "LpPool",
        (1, 1),
        &[
            AUTO_PAD,
            Attr::int("ceil_mode").since(18),
            Attr::ints("dilations").since(18),
            Attr::ints("kernel_shape").required(),
            Attr::int("p").since(2),
            Attr::float("p").until(1),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        |cx| {
            let (x, kind) = (cx.input(0)?, norm(cx)?);
            Ok(vec![pool(cx, x, kind)?])
        },
    ),
    OpRow::new(
        "MaxUnpool",
        (2, 3),
        &[Attr::ints("kernel_shape").required(), Attr::ints("pads"), Attr::ints("strides")],
        max_unpool,
    )
    .since(9)
    .known(&[2]),
];

fn too_large() -> NodeError {
    NodeError::invalid("the window or its distances are too large")
}

fn norm(cx: &NodeCx<'_>) -> Result<PoolNdKind, NodeError> {
    // A float in the first operator set.
    #[allow(clippy::cast_possible_truncation, reason = "what does not fit is not equal")]
    let p = match cx.float("p", 2.0) {
        p if (p as i64) as f32 == p => cx.int("p", p as i64),
        p => return Err(NodeError::unsupported(format!("p {p}, which is no integer"))),
    };
    match u32::try_from(p) {
        Ok(p) if p > 0 => Ok(PoolNdKind::Norm { p }),
        _ => Err(NodeError::invalid(format!("p {p} must be positive"))),
    }
}

/// Two halves of padding; an odd cell goes to the end if `upper`.
fn halves(total: usize, upper: bool) -> (usize, usize) {
    let (small, large) = (total / 2, total - total / 2);
    if upper { (small, large) } else { (large, small) }
}

/// Cells from the first of a window to one past its last.
fn reach(windows: &Windows, i: usize) -> Option<usize> {
    let (size, dilation) = (*windows.size.get(i)?, *windows.dilation.get(i)?);
    size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
}

/// Whether padding is derived so that there is a window per stride of the input.
pub(super) fn same(cx: &NodeCx<'_>) -> bool {
    cx.string("auto_pad", "NOTSET").starts_with("SAME")
}

/// The attributes that windows of all operators share. They stand nowhere yet.
fn read(cx: &NodeCx<'_>, size: Vec<usize>) -> Result<Windows, NodeError> {
    let rank = size.len();
    if rank == 0 || size.contains(&0) {
        return Err(NodeError::invalid(format!("a window of {size:?} cells")));
    }
    let stride = conv::list(cx, "strides", rank, 1, false)?;
    let dilation = conv::list(cx, "dilations", rank, 1, false)?;
    let pads = if cx.string("auto_pad", "NOTSET") == "NOTSET" {
        conv::list(cx, "pads", 2 * rank, 0, true)?
    } else {
        vec![0; 2 * rank]
    };
    let (before, after) = pads.split_at_checked(rank).unwrap_or_default();
    let (before, after) = (before.to_vec(), after.to_vec());
    Ok(Windows { size, stride, dilation, before, after, count: Vec::new() })
}

/// Windows over spatial extents; with `ceil` the last may reach past the padding.
fn placed(
    cx: &NodeCx<'_>,
    input: &[usize],
    size: Vec<usize>,
    ceil: bool,
) -> Result<Windows, NodeError> {
    if size.len() != input.len() {
        return Err(NodeError::invalid(format!("window {size:?} does not fit {input:?}")));
    }
    let mut w = read(cx, size)?;
    let (same, upper) = (same(cx), cx.string("auto_pad", "NOTSET") == "SAME_UPPER");
    for (i, &extent) in input.iter().enumerate() {
        let (reach, stride) = (reach(&w, i).ok_or_else(too_large)?, w.stride.get(i).copied());
        let stride = stride.unwrap_or(1);
        let (Some(before), Some(after)) = (w.before.get_mut(i), w.after.get_mut(i)) else { break };
        if same {
            let last = extent.div_ceil(stride).saturating_sub(1).checked_mul(stride);
            let total = last.and_then(|l| l.checked_add(reach)).ok_or_else(too_large)?;
            (*before, *after) = halves(total.saturating_sub(extent), upper);
        }
        let count = count_along(extent, [*before, *after], reach, stride, ceil && !same);
        w.count.push(count.ok_or_else(|| {
            NodeError::invalid(format!("a window of {reach} cells does not fit {extent}"))
        })?);
    }
    Ok(w)
}

/// A pool of `x` with the node's attributes.
pub(super) fn pool(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    kind: PoolNdKind,
) -> Result<TensorId, NodeError> {
    let size = cx.ints("kernel_shape").unwrap_or_default();
    let size: Result<Vec<usize>, NodeError> =
        size.iter().map(|&d| build::extent(d, "kernel_shape")).collect();
    let dims = cx.dims(x);
    let ceil = cx.flag("ceil_mode", false);
    let windows = placed(cx, dims.get(2..).unwrap_or_default(), size?, ceil)?;
    let with_kernel = match kind {
        PoolNdKind::Max => Some(PoolKind::Max),
        PoolNdKind::Average { include_pad } => Some(PoolKind::Average { include_pad }),
        PoolNdKind::Norm { .. } | PoolNdKind::Position { .. } => None,
    };
    if let (true, Some(kind)) = (VOLUMES, with_kernel) {
        // With derived padding the rounding is part of the derivation.
        let ceil = ceil && !same(cx);
        if let Some(y) = volume::pool(cx, x, &windows, kind, ceil)? {
            return Ok(y);
        }
    }
    cx.op(PoolNd { kind, windows }, &[x])
}

/// A convolution of `src`: x, weights, perhaps a bias.
pub(super) fn convolution(
    cx: &mut NodeCx<'_>,
    src: &[TensorId],
    groups: usize,
) -> Result<TensorId, NodeError> {
    let [input, window] = spatial(cx, src)?;
    let windows = placed(cx, &input, window, false)?;
    if VOLUMES && let Some(y) = volume::convolution(cx, src, &windows, groups)? {
        return Ok(y);
    }
    let output = windows.count.clone();
    cx.op(ConvNd { windows, output, groups, transposed: false }, src)
}

/// Spatial extents of x and weights, which a declared window must fit.
fn spatial(cx: &NodeCx<'_>, src: &[TensorId]) -> Result<[Vec<usize>; 2], NodeError> {
    let &[x, w, ..] = src else { return Err(NodeError::NoInput(1)) };
    let (x, w) = (cx.dims(x), cx.dims(w));
    let (Some(input), Some(window), true) = (x.get(2..), w.get(2..), x.len() == w.len()) else {
        return Err(NodeError::invalid(format!("x {x:?} and weights {w:?}")));
    };
    if let Some(declared) = cx.ints("kernel_shape") {
        let same = declared.len() == window.len()
            && declared.iter().zip(window).all(|(&d, &s)| usize::try_from(d) == Ok(s));
        if !same {
            let what = format!("kernel_shape {declared:?} differs from the weights' {window:?}");
            return Err(NodeError::invalid(what));
        }
    }
    Ok([input.to_vec(), window.to_vec()])
}

/// A transposed convolution of the node's inputs; padding as `conv_transpose` derives it.
pub(super) fn transposed(cx: &mut NodeCx<'_>, groups: usize) -> Outputs {
    let src: Vec<TensorId> = [cx.input(0)?, cx.input(1)?].into_iter().chain(cx.opt(2)).collect();
    let [input, window] = spatial(cx, &src)?;
    let rank = input.len();
    let mut w = read(cx, window)?;
    let extra = conv::list(cx, "output_padding", rank, 0, true)?;
    let auto = cx.string("auto_pad", "NOTSET");
    let shape = match cx.ints("output_shape") {
        Some(shape) => {
            let spatial = shape.get(shape.len().saturating_sub(rank)..).unwrap_or_default();
            let spatial = spatial.iter().map(|&d| build::extent(d, "output_shape"));
            Some(spatial.collect::<Result<Vec<_>, _>>()?)
        }
        None => None,
    };
    let mut output = Vec::new();
    for (i, &extent) in input.iter().enumerate() {
        let stride = w.stride.get(i).copied().unwrap_or(1);
        let full = (|| {
            let span = extent.checked_sub(1)?.checked_mul(stride)?;
            span.checked_add(reach(&w, i)?)?.checked_add(*extra.get(i)?)
        })();
        let full = full.ok_or_else(too_large)?;
        let wanted = match &shape {
            Some(shape) => Some(*shape.get(i).ok_or_else(too_large)?),
            None if same(cx) => Some(extent.checked_mul(stride).ok_or_else(too_large)?),
            None => None,
        };
        let (Some(before), Some(after)) = (w.before.get_mut(i), w.after.get_mut(i)) else { break };
        output.push(match wanted {
            Some(wanted) => {
                (*before, *after) = halves(full.saturating_sub(wanted), auto == "SAME_UPPER");
                wanted
            }
            None => {
                let pads = before.checked_add(*after).ok_or_else(too_large)?;
                full.checked_sub(pads).ok_or_else(too_large)?
            }
        });
    }
    w.count = input;
    if let Some(y) = volume::transposed(cx, &src, &w, &output, groups)? {
        return Ok(vec![y]);
    }
    Ok(vec![cx.op(ConvNd { windows: w, output, groups, transposed: true }, &src)?])
}

fn deform_conv(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w, offsets) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let [input, window] = spatial(cx, &[x, w])?;
    if input.len() != 2 {
        let rank = input.len();
        return Err(NodeError::unsupported(format!("{rank} spatial dimensions")));
    }
    let cells = window.iter().fold(1usize, |cells, &size| cells.saturating_mul(size));
    let windows = placed(cx, &input, window, false)?;
    let output = windows.count.clone();
    let groups = build::extent(cx.int("group", 1), "group")?;
    let offset_groups = build::extent(cx.int("offset_group", 1), "offset_group")?;
    let (bias, mask) = (cx.opt(3), cx.opt(4));
    let &[k, per_group, ..] = &cx.dims(w)[..] else { return Err(NodeError::NoInput(1)) };
    if Some(&per_group.saturating_mul(groups)) != cx.dims(x).get(1) {
        let (x, w) = (cx.dims(x), cx.dims(w));
        let what = format!("x {x:?} and weights {w:?} in {groups} groups");
        return Err(NodeError::invalid(what));
    }
    let op = DeformColumns { windows, groups, offset_groups, mask: mask.is_some() };
    let src: Vec<TensorId> = [x, offsets].into_iter().chain(mask).collect();
    let columns = cx.op(op, &src)?;
    // All taps of a window are the channels of a pixel.
    let w = cx.transpose(w, &[0, 2, 3, 1])?;
    let taps = cells.saturating_mul(per_group);
    let w = cx.reshape(w, &[k, taps, 1, 1])?;
    let src: Vec<TensorId> = [columns, w].into_iter().chain(bias).collect();
    if !conv::without_kernel(cx, x) {
        let op = Conv { groups, bias: bias.is_some(), ..Conv::default() };
        return Ok(vec![cx.op(op, &src)?]);
    }
    let (one, zero) = (vec![1; 2], vec![0; 2]);
    let pixel = Windows {
        size: one.clone(),
        stride: one.clone(),
        dilation: one,
        before: zero.clone(),
        after: zero,
        count: output.clone(),
    };
    Ok(vec![cx.op(ConvNd { windows: pixel, output, groups, transposed: false }, &src)?])
}

fn col2im(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let extents = |i: usize| -> Result<Vec<usize>, NodeError> {
        let list = cx.ints_input(i)?.ok_or(NodeError::NoInput(i))?;
        list.iter().map(|&d| build::extent(d, "extent")).collect()
    };
    let (image, block) = (extents(1)?, extents(2)?);
    let windows = placed(cx, &image, block, false)?;
    Ok(vec![cx.op(Col2Im { image, windows }, &[x])?])
}

/// Values at positions of a larger tensor of zeros.
fn max_unpool(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, indices) = (cx.input(0)?, cx.input(1)?);
    let dims = cx.dims(x);
    let size = cx.ints("kernel_shape").unwrap_or_default();
    let size: Result<Vec<usize>, NodeError> =
        size.iter().map(|&d| build::extent(d, "kernel_shape")).collect();
    let w = read(cx, size?)?;
    let (outer, input) = dims.split_at_checked(2).unwrap_or((&dims, &[]));
    if input.len() != w.size.len() || cx.dims(indices) != dims {
        let (found, window) = (cx.dims(indices), w.size);
        let what = format!("x {dims:?}, indices {found:?} and a window {window:?}");
        return Err(NodeError::invalid(what));
    }
    let mut output = outer.to_vec();
    let each = input.iter().zip(&w.stride).zip(&w.size).zip(w.before.iter().zip(&w.after));
    for (((&extent, &stride), &size), (&before, &after)) in each {
        let extent = (|| {
            let span = extent.checked_sub(1)?.checked_mul(stride)?.checked_add(size)?;
            span.checked_sub(before)?.checked_sub(after)
        })();
        output.push(extent.ok_or_else(too_large)?);
    }
    let total = output.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
    let count = dims.iter().product();
    let zero = cx.scalar(cx.dtype(x), 0.0)?;
    let zeros = cx.expand(zero, &[total])?;
    let (flat, at) = (cx.reshape(x, &[count])?, cx.reshape(indices, &[count])?);
    let at = cast::to(cx, at, DType::I64)?;
    let op = ScatterElements { axis: 0, reduction: Reduction::Replace };
    let y = cx.op(op, &[zeros, at, flat])?;
    let y = cx.reshape(y, &output)?;
    let Some(wanted) = cx.ints_input(2)? else { return Ok(vec![y]) };
    let after = wanted.iter().zip(&output).map(|(&wanted, &found)| {
        let wanted = build::extent(wanted, "output_shape")?;
        wanted.checked_sub(found).ok_or_else(|| {
            NodeError::invalid(format!("output_shape {wanted} is less than {found}"))
        })
    });
    let after = after.collect::<Result<Vec<_>, _>>()?;
    if wanted.len() != output.len() {
        return Err(NodeError::invalid(format!("output_shape {wanted:?} for {output:?}")));
    }
    if after.iter().all(|&a| a == 0) {
        return Ok(vec![y]);
    }
    Ok(vec![cx.op(Pad { before: vec![0; after.len()], after }, &[y, zero])?])
}
