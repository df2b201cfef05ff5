//! Functions of two or more tensors, element by element.

use tilewright_kernels::template::binary::BinaryOp;

use super::{MANY, NodeCx, OpRow, Outputs};
use crate::graph::TensorId;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

const TWO: (u8, u8) = (2, 2);
const SOME: (u8, u8) = (1, MANY);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Add", TWO, OPERANDS, |cx| two(cx, BinaryOp::Add)),
    OpRow::new("Div", TWO, OPERANDS, |cx| two(cx, BinaryOp::Div)),
    OpRow::new("Max", SOME, &[], |cx| fold(cx, BinaryOp::Max)),
    OpRow::new("Mean", SOME, &[], mean),
    OpRow::new("Min", SOME, &[], |cx| fold(cx, BinaryOp::Min)),
    OpRow::new("Mul", TWO, OPERANDS, |cx| two(cx, BinaryOp::Mul)),
    OpRow::new("Pow", TWO, OPERANDS, pow),
    OpRow::new("Sub", TWO, OPERANDS, |cx| two(cx, BinaryOp::Sub)),
    OpRow::new("Sum", SOME, &[], |cx| fold(cx, BinaryOp::Add)),
];

/// Attributes of functions of two tensors in old operator sets: see [`operands`].
pub(super) const OPERANDS: &[Attr] = &[Attr::int("axis").until(6), Attr::int("broadcast").until(6)];

/// The operands of a function of two tensors. Before opset 7 a node says whether the second is broadcast to
/// the first, and at which axis of the first its own begin; without an axis they are the last.
pub(super) fn operands(cx: &mut NodeCx<'_>) -> Result<(TensorId, TensorId), NodeError> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    if cx.opset() >= 7 {
        return Ok((a, b));
    }
    let (whole, mut part) = (cx.dims(a), cx.dims(b));
    if whole == part {
        return Ok((a, b));
    }
    if !cx.flag("broadcast", false) {
        let what = format!("{whole:?} and {part:?} differ, and `broadcast` is not set");
        return Err(NodeError::invalid(what));
    }
    let end = match cx.has("axis") {
        true => build::axis(cx.int("axis", 0), whole.len())? + part.len(),
        false => whole.len(),
    };
    let Some(behind) = whole.len().checked_sub(end).filter(|_| part.len() <= whole.len()) else {
        return Err(NodeError::invalid(format!("{part:?} does not broadcast to {whole:?}")));
    };
    part.resize(part.len() + behind, 1);
    let b = cx.reshape(b, &part)?;
    Ok((a, b))
}

fn two(cx: &mut NodeCx<'_>, op: BinaryOp) -> Outputs {
    let (a, b) = operands(cx)?;
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
    let (x, exponent) = operands(cx)?;
    let dtype = cx.dtype(x);
    // Squares and cubes are what the operator is mostly used for.
    if dtype == DType::F32
        && let Some(value) = cx.value(exponent)
        && value.shape().elements() == 1
        && cx.rank(exponent) <= cx.rank(x)
        && let Some(&[power @ (2.0 | 3.0)]) = crate::import::onnx::data::to_f32s(value).as_deref()
    {
        use tilewright_kernels::template::unary::UnaryOp;
        let square = cx.unary(UnaryOp::Square, x)?;
        let y = if power == 2.0 { square } else { cx.binary(BinaryOp::Mul, square, x)? };
        return Ok(vec![y]);
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
