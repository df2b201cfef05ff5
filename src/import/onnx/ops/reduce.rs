//! Reductions over axes.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::{NodeCx, OpRow, Outputs};
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
            .since($last + 1),
        ]
    };
}

pub(super) const ROWS: &[OpRow] = {
    const ALL: [[OpRow; 2]; 10] = [
        rows!("ReduceL1", 17, |cx| {
            with(cx, |cx, x, axes| {
                let x = cx.unary(UnaryOp::Abs, x)?;
                keep(cx, ReduceOp::Sum, x, axes)
            })
        }),
        rows!("ReduceL2", 17, |cx| {
            with(cx, |cx, x, axes| {
                let x = cx.binary(BinaryOp::Mul, x, x)?;
                let y = keep(cx, ReduceOp::Sum, x, axes)?;
                cx.unary(UnaryOp::Sqrt, y)
            })
        }),
        rows!("ReduceLogSum", 17, |cx| {
            with(cx, |cx, x, axes| {
                let y = keep(cx, ReduceOp::Sum, x, axes)?;
                cx.unary(UnaryOp::Log, y)
            })
        }),
        rows!("ReduceLogSumExp", 17, |cx| with(cx, log_sum_exp)),
        rows!("ReduceMax", 17, |cx| with(cx, |cx, x, axes| keep(cx, ReduceOp::Max, x, axes))),
        rows!("ReduceMean", 17, |cx| with(cx, |cx, x, axes| keep(cx, ReduceOp::Mean, x, axes))),
        rows!("ReduceMin", 17, |cx| with(cx, |cx, x, axes| keep(cx, ReduceOp::Min, x, axes))),
        rows!("ReduceProd", 17, |cx| with(cx, |cx, x, axes| keep(cx, ReduceOp::Prod, x, axes))),
        rows!("ReduceSum", 12, |cx| with(cx, |cx, x, axes| keep(cx, ReduceOp::Sum, x, axes))),
        rows!("ReduceSumSquare", 17, |cx| {
            with(cx, |cx, x, axes| {
                let x = cx.binary(BinaryOp::Mul, x, x)?;
                keep(cx, ReduceOp::Sum, x, axes)
            })
        }),
    ];
    ALL.as_flattened()
};

/// Reads which axes to reduce, has `f` reduce them to extents of 1, and drops them if asked to.
fn with(
    cx: &mut NodeCx<'_>,
    f: impl Fn(&mut NodeCx<'_>, TensorId, &[usize]) -> Result<TensorId, NodeError>,
) -> Outputs {
    let x = cx.input(0)?;
    let rank = cx.rank(x);
    let mut axes = build::axes(&cx.ints_attr_or_input("axes", 1)?.unwrap_or_default(), rank)?;
    if axes.is_empty() && !cx.flag("noop_with_empty_axes", false) {
        axes = (0..rank).collect();
    }
    axes.sort_unstable();
    let y = f(cx, x, &axes)?;
    if cx.flag("keepdims", true) {
        return Ok(vec![y]);
    }
    let dims = cx.dims(y);
    let kept = dims.iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, &d)| d);
    let kept: Vec<usize> = kept.collect();
    Ok(vec![cx.reshape(y, &kept)?])
}

fn keep(
    cx: &mut NodeCx<'_>,
    op: ReduceOp,
    x: TensorId,
    axes: &[usize],
) -> Result<TensorId, NodeError> {
    over(cx, op, x, axes, true)
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
    if axes.is_empty() {
        return Ok(x);
    }
    if let Some(pool) = as_global_pool(cx, op, x, axes) {
        let y = cx.op(pool, &[x])?;
        return cx.reshape(y, &out);
    }
    // Reduced axes go to the end and become one.
    let mut order: Vec<usize> = (0..dims.len()).filter(|&i| !is_reduced(i)).collect();
    let extent = |i: &usize| dims.get(*i).copied().unwrap_or(1);
    let outer: usize = order.iter().map(extent).product();
    let row: usize = axes.iter().map(extent).product();
    order.extend_from_slice(axes);
    let x = cx.transpose(x, &order)?;
    let x = cx.reshape(x, &[outer, row])?;
    let y = cx.op(Reduce { op }, &[x])?;
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

/// `m + log(sum(exp(x - m)))`, where `m` is the largest finite element.
fn log_sum_exp(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    axes: &[usize],
) -> Result<TensorId, NodeError> {
    let dtype = cx.dtype(x);
    let m = keep(cx, ReduceOp::Max, x, axes)?;
    // Infinite maxima would give inf - inf.
    let low = cx.scalar(dtype, f64::from(f32::MIN))?;
    let high = cx.scalar(dtype, f64::from(f32::MAX))?;
    let m = cx.binary(BinaryOp::Max, m, low)?;
    let m = cx.binary(BinaryOp::Min, m, high)?;
    let x = cx.binary(BinaryOp::Sub, x, m)?;
    let x = cx.unary(UnaryOp::Exp, x)?;
    let y = keep(cx, ReduceOp::Sum, x, axes)?;
    let y = cx.unary(UnaryOp::Log, y)?;
    cx.binary(BinaryOp::Add, y, m)
}
