//! Elementary functions, bits, remainders and running sums.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::activation::plain;
use super::{NodeCx, OpRow, Outputs};
use crate::graph::ops::accumulate::Accumulate;
use crate::graph::ops::bits::{Bits, BitsOp};
use crate::graph::ops::math::{Math, MathOp};
use crate::graph::ops::special::Special;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

const ONE: (u8, u8) = (1, 1);
const TWO: (u8, u8) = (2, 2);
const CUMULATIVE: &[Attr] = &[Attr::int("exclusive"), Attr::int("reverse")];

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("Acos", ONE, &[], |cx| math(cx, MathOp::Acos)).since(7),
    OpRow::new("Acosh", ONE, &[], |cx| math(cx, MathOp::Acosh)).since(9),
    OpRow::new("Asin", ONE, &[], |cx| math(cx, MathOp::Asin)).since(7),
    OpRow::new("Asinh", ONE, &[], |cx| math(cx, MathOp::Asinh)).since(9),
    OpRow::new("Atan", ONE, &[], |cx| plain(cx, UnaryOp::Atan)).since(7),
    OpRow::new("Atanh", ONE, &[], |cx| math(cx, MathOp::Atanh)).since(9),
    OpRow::new(
        "BitShift",
        TWO,
        &[Attr::string("direction").required().one_of(&["LEFT", "RIGHT"])],
        |cx| {
            let left = cx.string("direction", "") == "LEFT";
            bits(cx, if left { BitsOp::ShiftLeft } else { BitsOp::ShiftRight })
        },
    )
    .since(11),
    OpRow::new("BitwiseAnd", TWO, &[], |cx| bits(cx, BitsOp::And)).since(18),
    OpRow::new("BitwiseNot", ONE, &[], bitwise_not).since(18),
    OpRow::new("BitwiseOr", TWO, &[], |cx| bits(cx, BitsOp::Or)).since(18),
    OpRow::new("BitwiseXor", TWO, &[], |cx| bits(cx, BitsOp::Xor)).since(18),
    OpRow::new("Cos", ONE, &[], |cx| plain(cx, UnaryOp::Cos)).since(7),
    OpRow::new("Cosh", ONE, &[], |cx| math(cx, MathOp::Cosh)).since(9),
    OpRow::new("CumProd", TWO, CUMULATIVE, |cx| accumulate(cx, true)).since(26).known(&[1]),
    OpRow::new("CumSum", TWO, CUMULATIVE, |cx| accumulate(cx, false)).since(11).known(&[1]),
    OpRow::new("IsInf", ONE, &[Attr::int("detect_negative"), Attr::int("detect_positive")], |cx| {
        let (positive, negative) =
            (cx.flag("detect_positive", true), cx.flag("detect_negative", true));
        special(cx, Special { nan: false, positive, negative })
    })
    .since(10),
    OpRow::new("IsNaN", ONE, &[], |cx| {
        special(cx, Special { nan: true, positive: false, negative: false })
    })
    .since(9),
    OpRow::new("Mod", TWO, &[Attr::int("fmod")], |cx| {
        let truncated = cx.flag("fmod", false);
        bits(cx, if truncated { BitsOp::Remainder } else { BitsOp::Modulo })
    })
    .since(10),
    OpRow::new("Shrink", ONE, &[Attr::float("bias"), Attr::float("lambd")], |cx| {
        let (lambda, bias) = (cx.float("lambd", 0.5), cx.float("bias", 0.0));
        math(cx, MathOp::Shrink { lambda, bias })
    })
    .since(9),
    OpRow::new("Sin", ONE, &[], |cx| plain(cx, UnaryOp::Sin)).since(7),
    OpRow::new("Sinh", ONE, &[], |cx| math(cx, MathOp::Sinh)).since(9),
    OpRow::new("SwiGLU", TWO, &[Attr::float("alpha")], swiglu).since(28),
    OpRow::new("Tan", ONE, &[], |cx| math(cx, MathOp::Tan)).since(7),
];

fn math(cx: &mut NodeCx<'_>, op: MathOp) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![cx.op(Math { op }, &[x])?])
}

fn special(cx: &mut NodeCx<'_>, op: Special) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![cx.op(op, &[x])?])
}

fn bits(cx: &mut NodeCx<'_>, op: BitsOp) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![cx.op(Bits { op }, &[a, b])?])
}

/// In two's complement, `-x - 1`.
fn bitwise_not(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dtype = cx.dtype(x);
    if dtype.is_float() || dtype == DType::Bool {
        return Err(NodeError::unsupported(format!("an x of {dtype}")));
    }
    let (zero, one) = (cx.scalar(dtype, 0.0)?, cx.scalar(dtype, 1.0)?);
    let negative = cx.binary(BinaryOp::Sub, zero, x)?;
    Ok(vec![cx.binary(BinaryOp::Sub, negative, one)?])
}

fn accumulate(cx: &mut NodeCx<'_>, product: bool) -> Outputs {
    let x = cx.input(0)?;
    let axis = match cx.ints_input(1)?.as_deref() {
        Some(&[axis]) => build::axis(axis, cx.rank(x))?,
        _ => return Err(NodeError::invalid("axis must be one number")),
    };
    let (exclusive, reverse) = (cx.flag("exclusive", false), cx.flag("reverse", false));
    Ok(vec![cx.op(Accumulate { axis, product, exclusive, reverse }, &[x])?])
}

/// `a * sigmoid(alpha * a) * b`.
fn swiglu(cx: &mut NodeCx<'_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    if cx.dims(a) != cx.dims(b) {
        let (a, b) = (cx.dims(a), cx.dims(b));
        return Err(NodeError::invalid(format!("a {a:?} and b {b:?} must have one shape")));
    }
    let alpha = cx.float("alpha", 1.0);
    let scaled = cx.unary(UnaryOp::Affine { scale: alpha, shift: 0.0 }, a)?;
    let gate = cx.unary(UnaryOp::Sigmoid, scaled)?;
    let gated = cx.binary(BinaryOp::Mul, a, gate)?;
    Ok(vec![cx.binary(BinaryOp::Mul, gated, b)?])
}
