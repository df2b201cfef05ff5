//! Normalisations.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::shape::IS_TEST;
use super::{NodeCx, OpRow, Outputs, cast, norms, reduce};
use crate::graph::TensorId;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::softmax::Softmax;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

/// Whether this build has the reductions that training mode takes.
const TRAINING: bool = cfg!(feature = "ops-more");

const TRAINING_MODE: Attr = {
    let attr = Attr::int("training_mode").since(14);
    if TRAINING { attr } else { attr.only(&[0]) }
};

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "BatchNormalization",
        (5, 5),
        &[
            Attr::float("epsilon"),
            IS_TEST,
            Attr::float("momentum"),
            Attr::int("spatial").until(8).only(&[1]),
            TRAINING_MODE,
        ],
        batch_normalization,
    )
    .outputs(5, 1),
    OpRow::new("LogSoftmax", (1, 1), &[Attr::int("axis")], |cx| softmax(cx, true)),
    OpRow::new("Softmax", (1, 1), &[Attr::int("axis")], |cx| softmax(cx, false)),
];

/// `x * s + t` per channel with `s = scale / sqrt(var + epsilon)`, `t = bias - mean * s`. With
/// constant statistics `s` and `t` are constants. In training mode, which exporters use for weights that are
/// standardised, the statistics are those of `x`; running ones are no result here.
fn batch_normalization(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (dims, dtype) = (cx.dims(x), cx.dtype(x));
    let Some(&channels) = dims.get(1) else {
        return Err(NodeError::invalid(format!("x {dims:?} has no channels")));
    };
    let mut stats = Vec::new();
    for (i, name) in [(1, "scale"), (2, "B"), (3, "mean"), (4, "var")] {
        let id = cx.input(i)?;
        if cx.dims(id) != [channels] {
            let found = cx.dims(id);
            let what = format!("{name} must have {channels} elements, found {found:?}");
            return Err(NodeError::invalid(what));
        }
        stats.push(id);
    }
    let &[scale, bias, mut mean, mut var] = &stats[..] else { return Err(NodeError::NoInput(1)) };
    if TRAINING && cx.flag("training_mode", false) {
        let axes: Vec<usize> = (0..dims.len()).filter(|&axis| axis != 1).collect();
        let means = reduce::over(cx, ReduceOp::Mean, x, &axes, true)?;
        let variances = norms::deviations(cx, x, means, &axes)?.1;
        mean = cx.reshape(means, &[channels])?;
        var = cx.reshape(variances, &[channels])?;
    }
    let epsilon = cx.scalar(cx.dtype(var), f64::from(cx.float("epsilon", 1e-5)))?;
    let var = cx.binary(BinaryOp::Add, var, epsilon)?;
    let deviation = cx.unary(UnaryOp::Sqrt, var)?;
    let deviation = cast::to(cx, deviation, cx.dtype(scale))?;
    let s = cx.binary(BinaryOp::Div, scale, deviation)?;
    let mean = cast::to(cx, mean, cx.dtype(s))?;
    let offset = cx.binary(BinaryOp::Mul, mean, s)?;
    let t = cx.binary(BinaryOp::Sub, bias, offset)?;
    let mut shape = vec![channels];
    shape.resize(dims.len().saturating_sub(1), 1);
    let mut y = x;
    for (op, id) in [(BinaryOp::Mul, s), (BinaryOp::Add, t)] {
        let id = cast::to(cx, id, dtype)?;
        let id = cx.reshape(id, &shape)?;
        y = cx.binary(op, y, id)?;
    }
    Ok(vec![y])
}

/// Up to opset 12 everything from `axis` on is one row, later only `axis` itself.
fn softmax(cx: &mut NodeCx<'_>, log: bool) -> Outputs {
    let (x, old) = (cx.input(0)?, cx.opset() < 13);
    let axis = cx.int("axis", if old { 1 } else { -1 });
    Ok(vec![softmax_of(cx, x, axis, old, log)?])
}

/// As the operator of up to opset 12 (`old`) or of later ones.
pub(super) fn softmax_of(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    axis: i64,
    old: bool,
    log: bool,
) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    let rank = dims.len();
    if rank == 0 {
        let one = cx.reshape(x, &[1])?;
        let y = cx.op(Softmax { log, ..Softmax::along(0) }, &[one])?;
        return cx.reshape(y, &[]);
    }
    let axis = match axis {
        // One past the end: rows of one element.
        a if old && usize::try_from(a) == Ok(rank) => rank,
        a => build::axis(a, rank)?,
    };
    if old {
        let (rows, row) = dims.split_at_checked(axis).unwrap_or((&dims, &[]));
        let shape = [rows.iter().product(), row.iter().product()];
        let flat = cx.reshape(x, &shape)?;
        let y = cx.op(Softmax { log, ..Softmax::along(1) }, &[flat])?;
        return cx.reshape(y, &dims);
    }
    cx.op(Softmax { log, ..Softmax::along(axis) }, &[x])
}
