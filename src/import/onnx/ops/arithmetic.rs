//! Functions of two or more tensors, element by element.

use tilewright_kernels::template::binary::BinaryOp;

use super::{MANY, NodeCx, OpRow, Outputs};
use crate::graph::TensorId;
use crate::import::NodeError;
use crate::tensor::DType;

const TWO: (u8, u8) = (2, 2);
const SOME: (u8, u8) = (1, MANY);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Add", TWO, &[], |cx| two(cx, BinaryOp::Add)),
    OpRow::new("Div", TWO, &[], |cx| two(cx, BinaryOp::Div)),
    OpRow::new("Max", SOME, &[], |cx| fold(cx, BinaryOp::Max)),
    OpRow::new("Mean", SOME, &[], mean),
    OpRow::new("Min", SOME, &[], |cx| fold(cx, BinaryOp::Min)),
    OpRow::new("Mul", TWO, &[], |cx| two(cx, BinaryOp::Mul)),
    OpRow::new("Pow", TWO, &[], pow),
    OpRow::new("Sub", TWO, &[], |cx| two(cx, BinaryOp::Sub)),
    OpRow::new("Sum", SOME, &[], |cx| fold(cx, BinaryOp::Add)),
];

fn two(cx: &mut NodeCx<'_>, op: BinaryOp) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![cx.binary(op, a, b)?])
}

fn all(cx: &mut NodeCx<'_>, op: BinaryOp) -> Result<TensorId, NodeError> {
    let mut inputs = cx.inputs()?.into_iter();
    let mut y = inputs.next().ok_or(NodeError::NoInput(0))?;
    for x in inputs {
        y = cx.binary(op, y, x)?;
    }
    Ok(y)
}

fn fold(cx: &mut NodeCx<'_>, op: BinaryOp) -> Outputs {
    Ok(vec![all(cx, op)?])
}

fn mean(cx: &mut NodeCx<'_>) -> Outputs {
    let sum = all(cx, BinaryOp::Add)?;
    #[allow(clippy::cast_precision_loss, reason = "a count of inputs")]
    let count = cx.input_count() as f64;
    let count = cx.scalar(cx.dtype(sum), count)?;
    Ok(vec![cx.binary(BinaryOp::Div, sum, count)?])
}

/// The exponent may have another type than the base, whose type the result has.
fn pow(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, exponent) = (cx.input(0)?, cx.input(1)?);
    let dtype = cx.dtype(x);
    // Squares are what the operator is mostly used for.
    if dtype == DType::F32
        && let Some(value) = cx.value(exponent)
        && value.shape().elements() == 1
        && cx.rank(exponent) <= cx.rank(x)
        && crate::import::onnx::data::to_f32s(value).is_some_and(|v| v.first() == Some(&2.0))
    {
        use tilewright_kernels::template::unary::UnaryOp;
        return Ok(vec![cx.unary(UnaryOp::Square, x)?]);
    }
    if !dtype.is_float() && cx.dtype(exponent).is_float() {
        // Powers of integers that are none are cut off.
        let (x, exponent) =
            (super::cast::to(cx, x, DType::F64)?, super::cast::to(cx, exponent, DType::F64)?);
        let y = cx.binary(BinaryOp::Pow, x, exponent)?;
        return Ok(vec![super::cast::to(cx, y, dtype)?]);
    }
    let exponent = super::cast::to(cx, exponent, dtype)?;
    Ok(vec![cx.binary(BinaryOp::Pow, x, exponent)?])
}
