//! Matrix products.

use tilewright_kernels::template::binary::BinaryOp;

use super::{NodeCx, OpRow, Outputs};
use crate::graph::TensorId;
use crate::graph::ops::matmul::MatMul;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "Gemm",
        (2, 3),
        &[
            Attr::float("alpha"),
            Attr::float("beta"),
            Attr::int("broadcast").until(6),
            Attr::int("transA"),
            Attr::int("transB"),
        ],
        gemm,
    ),
    OpRow::new("MatMul", (2, 2), &[], matmul),
];

/// NumPy's product: a vector on the left is a row, one on the right a column.
fn matmul(cx: &mut NodeCx<'_>) -> Outputs {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    Ok(vec![product(cx, a, b)?])
}

/// The product of two tensors.
pub(super) fn product(
    cx: &mut NodeCx<'_>,
    mut a: TensorId,
    mut b: TensorId,
) -> Result<TensorId, NodeError> {
    let (row, column) = (cx.rank(a) == 1, cx.rank(b) == 1);
    if row {
        let dims = [&[1], &cx.dims(a)[..]].concat();
        a = cx.reshape(a, &dims)?;
    }
    if column {
        let dims = [&cx.dims(b)[..], &[1]].concat();
        b = cx.reshape(b, &dims)?;
    }
    let y = cx.op(MatMul::default(), &[a, b])?;
    let mut dims = cx.dims(y);
    if column {
        dims.pop();
    }
    if row && let Some(at) = dims.len().checked_sub(if column { 1 } else { 2 }) {
        dims.remove(at);
    }
    cx.reshape(y, &dims)
}

/// `alpha * a * b + beta * c`.
pub(super) fn gemm(cx: &mut NodeCx<'_>) -> Outputs {
    let (mut a, mut b) = (cx.input(0)?, cx.input(1)?);
    for (name, id) in [("a", a), ("b", b)] {
        if cx.rank(id) != 2 {
            let dims = cx.dims(id);
            return Err(NodeError::invalid(format!("{name} must be a matrix, found {dims:?}")));
        }
    }
    let (alpha, beta) = (cx.float("alpha", 1.0), cx.float("beta", 1.0));
    if cx.flag("transA", false) {
        a = cx.transpose(a, &[1, 0])?;
    }
    let transposed_b = cx.flag("transB", false);
    // Scaling the smaller or constant operand once is cheaper than scaling the result.
    if cx.value(b).is_some() {
        b = scaled(cx, b, alpha)?;
    }
    let product = |cx: &mut NodeCx<'_>, bias: Option<TensorId>| {
        let src: Vec<_> = [a, b].into_iter().chain(bias).collect();
        let op = MatMul { transposed_b, bias: bias.is_some(), ..MatMul::default() };
        cx.op(op, &src)
    };
    let alpha_done = cx.value(b).is_some() || alpha.to_bits() == 1.0f32.to_bits();
    let c = match cx.opt(2) {
        Some(c) if beta != 0.0 => Some(scaled(cx, c, beta)?),
        _ => None,
    };
    let columns = cx.dims(b).get(usize::from(!transposed_b)).copied().unwrap_or(0);
    // A constant with one element per column can be added while the product is in registers.
    if let Some(c) = c.filter(|&c| alpha_done && cx.value(c).is_some()) {
        let dims = cx.dims(c);
        let per_column = matches!(dims[..], [] | [_] | [1, _])
            && dims.last().is_none_or(|&n| n == columns || n == 1);
        if per_column {
            let flat: Vec<usize> = dims.last().copied().into_iter().collect();
            let c = cx.reshape(c, &flat)?;
            let c = cx.expand(c, &[columns])?;
            return Ok(vec![product(cx, Some(c))?]);
        }
    }
    let mut y = product(cx, None)?;
    if !alpha_done {
        y = scaled(cx, y, alpha)?;
    }
    if let Some(c) = c {
        let shape = cx.dims(y);
        let sum = cx.binary(BinaryOp::Add, y, c)?;
        if cx.dims(sum) != shape {
            let found = cx.dims(c);
            let what = format!("c {found:?} does not broadcast to the product {shape:?}");
            return Err(NodeError::invalid(what));
        }
        y = sum;
    }
    Ok(vec![y])
}

/// `x * factor`, `x` itself if the factor is 1.
pub(super) fn scaled(cx: &mut NodeCx<'_>, x: TensorId, factor: f32) -> Result<TensorId, NodeError> {
    if factor.to_bits() == 1.0f32.to_bits() {
        return Ok(x);
    }
    let dtype = cx.dtype(x);
    if !dtype.is_float() && factor.fract() != 0.0 {
        return Err(NodeError::unsupported(format!("a factor with a fraction for {dtype}")));
    }
    let factor = cx.scalar(dtype, f64::from(factor))?;
    cx.binary(BinaryOp::Mul, x, factor)
}
