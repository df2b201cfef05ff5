//! Reductions over axes.

use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::TensorId;
use crate::graph::ops::pool::{Pool, PoolKind};
use crate::graph::ops::reduce::{Reduce, ReduceOp};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

/// Axes are an attribute up to opset 17, but for `ReduceSum` only up to 12.
macro_rules! rows {
    ($name:literal, $last:literal, $build:expr) => {
        [
            OpRow::new($name, (1, 1), &[Attr::ints("axes"), Attr::int("keepdims")], $build)
                .until($last),
            OpRow::new(
                $name,
                (1, 2),
                &[Attr::int("keepdims"), Attr::int("noop_with_empty_axes")],
                $build,
            )
            .since($last + 1)
            .known(&[1]),
        ]
    };
}

pub(super) const ROWS: &[OpRow] = {
    const ALL: [[OpRow; 2]; 10] = [
        rows!("ReduceL1", 17, |cx| with(cx, ReduceOp::L1)),
        rows!("ReduceL2", 17, |cx| with(cx, ReduceOp::L2)),
        rows!("ReduceLogSum", 17, |cx| {
            let dtype = cx.dtype(cx.input(0)?);
            let y = with(cx, ReduceOp::Sum)?;
            let log = |y| {
                let y = if dtype.is_float() { y } else { cast::to(cx, y, DType::F64)? };
                let y = cx.unary(UnaryOp::Log, y)?;
                cast::to(cx, y, dtype)
            };
            y.into_iter().map(log).collect()
        }),
        rows!("ReduceLogSumExp", 17, |cx| with(cx, ReduceOp::LogSumExp)),
        rows!("ReduceMax", 17, |cx| with(cx, ReduceOp::Max)),
        rows!("ReduceMean", 17, |cx| with(cx, ReduceOp::Mean)),
        rows!("ReduceMin", 17, |cx| with(cx, ReduceOp::Min)),
        rows!("ReduceProd", 17, |cx| with(cx, ReduceOp::Prod)),
        rows!("ReduceSum", 12, |cx| with(cx, ReduceOp::Sum)),
        rows!("ReduceSumSquare", 17, |cx| with(cx, ReduceOp::SumSquare)),
    ];
    ALL.as_flattened()
};

/// Reads which axes to reduce, and whether to keep them as extents of 1.
fn with(cx: &mut NodeCx<'_>, op: ReduceOp) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let given = build::axes(&cx.ints_attr_or_input("axes", 1)?.unwrap_or_default(), rank)?;
    let all = given.is_empty() && !cx.flag("noop_with_empty_axes", false);
    let axes: Vec<usize> = (0..rank).filter(|i| all || given.contains(i)).collect();
    Ok(vec![over(cx, op, x, &axes, cx.flag("keepdims", true))?])
}

/// Reduces sorted axes, which become extents of 1 if `keep`, else vanish.
pub(super) fn over(
    cx: &mut NodeCx<'_>,
    op: ReduceOp,
    x: TensorId,
    axes: &[usize],
    keep: bool,
) -> Result<TensorId, NodeError> {
    let dims = cx.dims(x);
    let is_reduced = |i: usize| axes.contains(&i);
    let out: Vec<usize> = dims
        .iter()
        .enumerate()
        .filter_map(|(i, &d)| match (is_reduced(i), keep) {
            (false, _) => Some(d),
            (true, true) => Some(1),
            (true, false) => None,
        })
        .collect();
    if let Some(pool) = as_global_pool(cx, op, x, axes) {
        let y = cx.op(pool, &[x])?;
        return cx.reshape(y, &out);
    }
    // Axes that are not neighbours are brought together at the end.
    let first = axes.first().copied().unwrap_or(0);
    let neighbours = axes.iter().enumerate().all(|(i, &a)| a == first + i);
    let (x, axis) = if neighbours {
        (x, first)
    } else {
        let mut order: Vec<usize> = (0..dims.len()).filter(|&i| !is_reduced(i)).collect();
        let axis = order.len();
        order.extend_from_slice(axes);
        (cx.transpose(x, &order)?, axis)
    };
    let y = cx.op(Reduce { op, axis, count: axes.len() }, &[x])?;
    cx.reshape(y, &out)
}

/// Mean or maximum over the spatial dimensions of a picture is a pool over the whole map.
fn as_global_pool(cx: &NodeCx<'_>, op: ReduceOp, x: TensorId, axes: &[usize]) -> Option<Pool> {
    let kind = match op {
        ReduceOp::Mean => PoolKind::Average { include_pad: false },
        ReduceOp::Max => PoolKind::Max,
        _ => return None,
    };
    let dims = cx.dims(x);
    let map = match (&dims[..], axes) {
        (&[_, _, w], [2]) => [1, w],
        (&[_, _, h, w], [2, 3]) => [h, w],
        _ => return None,
    };
    (cx.dtype(x) == DType::F32 && !map.contains(&0)).then(|| Pool::global(kind, map))
}
