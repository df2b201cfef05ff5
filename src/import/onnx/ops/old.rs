//! Operators of the first operator sets, in forms that later ones do not have. What only gained or lost an
//! attribute is with the operator of today.
//!
//! The last six were experiments of ONNX, which dropped them with operator set 10; converters from
//! Core ML and Caffe2 wrote them.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs, activation, cast, matmul, resize, shape, slice};
use crate::graph::GraphError;
use crate::import::NodeError;
use crate::import::error::short;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::proto::data_type;
use crate::tensor::Tensor;

const ONE: (u8, u8) = (1, 1);
const ALPHA: Attr = Attr::float("alpha");
const BETA: Attr = Attr::float("beta");

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Cast", ONE, &[Attr::string("to").required()], cast_by_name).until(5),
    OpRow::new("PRelu", (2, 2), &[], prelu).until(6),
    OpRow::new("Tile", (3, 3), &[], tile).until(5).known(&[1, 2]),
    OpRow::new(
        "Upsample",
        ONE,
        &[
            Attr::float("height_scale").required(),
            resize::MODE,
            Attr::float("width_scale").required(),
        ],
        resize::old,
    )
    .until(6),
    OpRow::new("Affine", ONE, &[ALPHA, BETA], |cx| {
        let (scale, shift) = (cx.float("alpha", 1.0), cx.float("beta", 0.0));
        activation::plain(cx, UnaryOp::Affine { scale, shift })
    })
    .until(9),
    OpRow::new("Crop", ONE, &[Attr::ints("border").required(), Attr::ints("scale")], crop).until(9),
    OpRow::new("DynamicSlice", (3, 4), &[], slice::slice).until(9).known(&[1, 2, 3]),
    OpRow::new("ImageScaler", ONE, &[Attr::floats("bias"), Attr::float("scale")], image_scaler)
        .until(9),
    OpRow::new("ParametricSoftplus", ONE, &[ALPHA, BETA], |cx| scaled(cx, UnaryOp::Softplus))
        .until(9),
    OpRow::new("ScaledTanh", ONE, &[ALPHA, BETA], |cx| scaled(cx, UnaryOp::Tanh)).until(9),
];

/// The type is given by its name.
fn cast_by_name(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, to) = (cx.input(0)?, cx.string("to", ""));
    let number = (1..=16).find(|&n| data_type::name(n).eq_ignore_ascii_case(&to));
    let Some(number) = number else {
        return Err(NodeError::invalid(format!("there is no type {}", short(&to))));
    };
    Ok(vec![cast::to(cx, x, cast::dtype_of(i64::from(number))?)?])
}

/// One slope per channel, the second dimension, or one for all.
fn prelu(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, slope) = (cx.input(0)?, cx.input(1)?);
    let mut dims = cx.dims(slope);
    if matches!(dims[..], [n] if n != 1) {
        dims.resize(cx.rank(x).saturating_sub(1).max(1), 1);
    }
    let slope = cx.reshape(slope, &dims)?;
    activation::prelu_of(cx, x, slope)
}

/// How often one axis is repeated, and which.
fn tile(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    // They have the type of `x`, or are the integers that they stand for.
    let number = |i: usize| {
        let Some(id) = cx.opt(i) else { return Err(NodeError::NoInput(i)) };
        if !cx.dtype(id).is_float() {
            return match cx.ints_input(i)?.as_deref() {
                Some(&[n]) => Ok(n),
                _ => Err(NodeError::invalid(format!("input {i} must be one number"))),
            };
        }
        #[allow(
            clippy::cast_possible_truncation,
            reason = "what does not fit is refused as an axis or a size"
        )]
        Ok(cx.float_input(i)?.unwrap_or(0.0) as i64)
    };
    let (tiles, axis) = (number(1)?, number(2)?);
    let mut repeats = vec![1; rank];
    if let Some(slot) = repeats.get_mut(build::axis(axis, rank)?) {
        *slot = tiles;
    }
    Ok(vec![shape::repeated(cx, x, &repeats)?])
}

/// What is left of a picture without a border: left, top, right, bottom; or so many rows and columns of it.
fn crop(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let (border, scale) = (cx.ints("border").unwrap_or_default(), cx.ints("scale"));
    let (&[_, _, height, width], &[left, top, right, bottom]) = (&dims[..], &border[..]) else {
        let what =
            format!("x {dims:?} has no four dimensions, or border {border:?} no four numbers");
        return Err(NodeError::invalid(what));
    };
    let size = match scale.as_deref() {
        None => [None; 2],
        Some(&[rows, columns]) => [Some(rows), Some(columns)],
        Some(other) => {
            return Err(NodeError::invalid(format!("scale {other:?} has no two numbers")));
        }
    };
    let mut y = x;
    let axes = [(2, height, top, bottom, size[0]), (3, width, left, right, size[1])];
    for (axis, extent, before, after, len) in axes {
        let before = build::extent(before, "border")?;
        let len = match len {
            Some(len) => Some(build::extent(len, "scale")?),
            None => extent
                .checked_sub(before)
                .and_then(|left| left.checked_sub(usize::try_from(after).ok()?)),
        };
        let fits = |len: &usize| before.checked_add(*len).is_some_and(|end| end <= extent);
        let Some(len) = len.filter(fits) else {
            let what = format!("border {border:?} with scale {scale:?} does not fit {dims:?}");
            return Err(NodeError::invalid(what));
        };
        y = cx.slice(y, axis, before, len, 1)?;
    }
    Ok(vec![y])
}

/// `scale * x + bias` with one bias per channel.
fn image_scaler(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, scale) = (cx.input(0)?, cx.float("scale", 1.0));
    let mut y = cx.unary(UnaryOp::Affine { scale, shift: 0.0 }, x)?;
    if let Some(bias) = cx.floats("bias") {
        let (dims, n) = (cx.dims(x), bias.len());
        if dims.get(1) != Some(&n) {
            return Err(NodeError::invalid(format!("{n} biases for the channels of x {dims:?}")));
        }
        let mut shape = vec![n];
        shape.resize(dims.len().saturating_sub(1), 1);
        let bias = Tensor::from_slice(&shape, &bias).map_err(GraphError::from)?;
        let bias = cx.constant(bias)?;
        y = cx.binary(BinaryOp::Add, y, bias)?;
    }
    Ok(vec![y])
}

/// `alpha * f(beta * x)`.
fn scaled(cx: &mut NodeCx<'_>, f: UnaryOp) -> Outputs {
    let (alpha, beta) = (cx.float("alpha", 1.0), cx.float("beta", 1.0));
    let mut y = cx.input(0)?;
    y = matmul::scaled(cx, y, beta)?;
    y = cx.unary(f, y)?;
    Ok(vec![matmul::scaled(cx, y, alpha)?])
}
