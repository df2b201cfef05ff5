//! Operators of the domain `com.microsoft` of which optimised diffusion models consist.
//!
//! Source: the texts of the operators in ONNX Runtime, which has kernels of them for GPUs only.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::contrib::{by_pixel, row};
use super::{NodeCx, OpRow, Outputs, conv, norms};
use crate::graph::TensorId;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;

const GROUP_NORM: &[Attr] = &[
    Attr::int("activation").required().only(&[0, 1]),
    Attr::int("channels_last").only(&[0, 1]),
    Attr::float("epsilon"),
    Attr::int("groups").required(),
];

pub(super) const ROWS: &[OpRow] = &[
    row("BiasAdd", (3, 3), &[], |cx| {
        let (x, bias, skip) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        Ok(vec![summed(cx, x, &[bias, skip])?])
    }),
    row("BiasSplitGelu", (2, 2), &[], bias_split_gelu),
    row("GroupNorm", (3, 3), GROUP_NORM, |cx| {
        let x = cx.input(0)?;
        Ok(vec![group_norm(cx, x)?])
    }),
    row(
        "NhwcConv",
        (2, 3),
        &[
            conv::AUTO_PAD,
            Attr::ints("dilations"),
            Attr::int("group"),
            Attr::ints("kernel_shape"),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        nhwc_conv,
    ),
    row("SkipGroupNorm", (4, 5), GROUP_NORM, skip_group_norm).outputs(2, 2),
];

/// `x` and what is added to it, which must not make it larger.
fn summed(cx: &mut NodeCx<'_>, x: TensorId, parts: &[TensorId]) -> Result<TensorId, NodeError> {
    let mut sum = x;
    for &part in parts {
        sum = cx.binary(BinaryOp::Add, sum, part)?;
    }
    if cx.dims(sum) != cx.dims(x) {
        let (x, sum) = (cx.dims(x), cx.dims(sum));
        return Err(NodeError::invalid(format!("sums of x {x:?} are {sum:?}")));
    }
    Ok(sum)
}

/// The first half of each row times the GELU of the second.
fn bias_split_gelu(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, bias) = (cx.input(0)?, cx.input(1)?);
    let x = summed(cx, x, &[bias])?;
    let dims = cx.dims(x);
    let (Some(last), Some(&width)) = (dims.len().checked_sub(1), dims.last()) else {
        return Err(NodeError::invalid("x must have a dimension"));
    };
    if !width.is_multiple_of(2) {
        return Err(NodeError::invalid(format!("x {dims:?} has rows that cannot be halved")));
    }
    let half = width / 2;
    let (a, b) = (cx.slice(x, last, 0, half, 1)?, cx.slice(x, last, half, half, 1)?);
    let gate = cx.unary(UnaryOp::Gelu, b)?;
    Ok(vec![cx.binary(BinaryOp::Mul, a, gate)?])
}

/// Rows are the pixels of several channels; perhaps a function of the result.
fn group_norm(cx: &mut NodeCx<'_>, x: TensorId) -> Result<TensorId, NodeError> {
    let affine = [cx.input(1)?, cx.input(2)?];
    let last = cx.flag("channels_last", true);
    by_pixel(cx, x, last, |cx, x| {
        let channels = cx.dims(x).get(1).copied().unwrap_or(0);
        let groups = norms::groups(cx, "groups", channels)?;
        let y = norms::by_groups(cx, x, affine, groups, channels / groups)?;
        if cx.flag("activation", false) { cx.unary(UnaryOp::SILU, y) } else { Ok(y) }
    })
}

/// As [`group_norm`], of a sum, which is the second output.
fn skip_group_norm(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, mut skip) = (cx.input(0)?, cx.input(3)?);
    let last = cx.flag("channels_last", true);
    // A number per channel, of all pixels.
    if let &[n, c] = &cx.dims(skip)[..] {
        skip = cx.reshape(skip, &if last { [n, 1, 1, c] } else { [n, c, 1, 1] })?;
    }
    let mut parts = vec![skip];
    if let Some(bias) = cx.opt(4) {
        let &[c] = &cx.dims(bias)[..] else {
            return Err(NodeError::invalid(format!("bias {:?}", cx.dims(bias))));
        };
        parts.push(if last { bias } else { cx.reshape(bias, &[c, 1, 1])? });
    }
    let sum = summed(cx, x, &parts)?;
    Ok(vec![group_norm(cx, sum)?, sum])
}

/// A convolution of `[n, h, w, c]` with filters `[m, h, w, c]`.
fn nhwc_conv(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w, bias) = (cx.input(0)?, cx.input(1)?, cx.opt(2));
    if cx.rank(x) != 4 || cx.rank(w) != 4 {
        let (x, w) = (cx.dims(x), cx.dims(w));
        return Err(NodeError::unsupported(format!("x {x:?} with filters {w:?}")));
    }
    let w = cx.transpose(w, &[0, 3, 1, 2])?;
    let y = by_pixel(cx, x, true, |cx, x| {
        let op = conv::operator(cx, &cx.dims(x), &cx.dims(w), bias.is_some())?;
        let src: Vec<TensorId> = [x, w].into_iter().chain(bias).collect();
        cx.op(op, &src)
    })?;
    Ok(vec![y])
}
