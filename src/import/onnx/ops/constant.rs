//! Values that come from the model, or from shapes.

use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::GraphError;
use crate::graph::ops::dequantize::Dequantize;
use crate::import::onnx::attr::{Attr, Attrs};
use crate::import::onnx::build;
use crate::import::{DataError, NodeError};
use crate::tensor::{DType, Tensor};

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "Constant",
        (0, 0),
        &[
            Attr::tensor("value"),
            Attr::float("value_float").since(12),
            Attr::floats("value_floats").since(12),
            Attr::int("value_int").since(12),
            Attr::ints("value_ints").since(12),
        ],
        |_| Err(NodeError::unsupported("a constant without a value")),
    ),
    OpRow::new("ConstantOfShape", (1, 1), &[Attr::tensor("value")], constant_of_shape)
        .since(9)
        .known(&[0]),
    OpRow::new(
        "DequantizeLinear",
        (2, 3),
        &[
            Attr::int("axis").since(13),
            Attr::int("block_size").since(21),
            Attr::int("output_dtype").since(23),
        ],
        dequantize_linear,
    )
    .since(10),
];

/// The value of a `Constant` node, if a supported attribute gives one.
pub(super) fn value(attrs: &Attrs) -> Option<Result<Tensor, DataError>> {
    let made = if let Some(t) = attrs.tensor("value") {
        Ok(t.clone())
    } else if let Some(v) = attrs.float("value_float") {
        Tensor::from_slice(&[], &[v])
    } else if let Some(v) = attrs.floats("value_floats") {
        Tensor::from_slice(&[v.len()], v)
    } else if let Some(v) = attrs.int("value_int") {
        Tensor::from_slice(&[], &[v])
    } else if let Some(v) = attrs.ints("value_ints") {
        Tensor::from_slice(&[v.len()], v)
    } else {
        return None;
    };
    Some(made.map_err(DataError::from))
}

/// A tensor of one value everywhere, f32 zero unless told otherwise.
fn constant_of_shape(cx: &mut NodeCx<'_>) -> Outputs {
    let shape = cx.ints_input(0)?.ok_or(NodeError::NoInput(0))?;
    let dims = shape.iter().map(|&d| build::extent(d, "extent")).collect::<Result<Vec<_>, _>>()?;
    let value = match cx.tensor("value") {
        Some(t) if t.shape().elements() == 1 => {
            let t = t.reshaped(&[]).map_err(GraphError::from)?;
            cx.constant(t)?
        }
        Some(t) => {
            let found = t.dims();
            return Err(NodeError::invalid(format!("value must be one number, found {found:?}")));
        }
        None => cx.scalar(DType::F32, 0.0)?,
    };
    Ok(vec![cx.expand(value, &dims)?])
}

/// `(x - zero_point) * scale`, with one scale, one per index of an axis, or one per block of it.
pub(super) fn dequantize_linear(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let dims = cx.dims(x);
    let block = build::extent(cx.int("block_size", 0), "block_size")?;
    let axis = if cx.rank(scale) == 0 || cx.dims(scale) == [1] && block == 0 {
        None
    } else {
        Some(build::axis(cx.int("axis", 1), dims.len())?)
    };
    let to = match cx.int("output_dtype", 0) {
        0 => cx.dtype(scale),
        number => cast::dtype_of(number)?,
    };
    let mut src = vec![x, scale];
    src.extend(cx.opt(2));
    let y = cx.op(Dequantize { axis, block }, &src)?;
    Ok(vec![cast::to(cx, y, to)?])
}
