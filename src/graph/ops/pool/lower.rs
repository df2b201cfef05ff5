//! The pooling kernel.

use tilewright_kernels::template::plane::PlanePlan;
use tilewright_kernels::template::pool::{PoolOp, PoolParams, PoolPlan};
use tilewright_kernels::template::reduce::{ReduceOp, ReduceParams, ReducePlan};

use super::super::plan_step::PlanStep;
use super::super::plane::Plane;
use super::{Pool, PoolKind, spatial};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step};
use crate::tensor::DType;

pub(super) fn lower(op: &Pool, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
    let params = || op.params(&cx.src[0].dims, &cx.dst.dims);
    if cx.dst.layout == Layout::Blocked {
        return Ok(Some(Box::new(PlanStep(PoolPlan::new(cx.isa, &params())?))));
    }
    if let Some(rows) = rows(op, &cx.src[0], cx.dst) {
        return Ok(Some(Box::new(PlanStep(ReducePlan::new(cx.isa, &rows)?))));
    }
    if !on_planes(op, &cx.src[0], cx.dst) {
        return Ok(None);
    }
    let plan = PlanePlan::max_pool(cx.isa, &params())?;
    Ok(Some(Box::new(Plane { plan, filter: None })))
}

impl Pool {
    /// The parameters of the kernels for an operand and a result of these extents.
    pub(in crate::graph::ops) fn params(&self, x: &[usize], y: &[usize]) -> PoolParams {
        let ([h_in, w_in], [h_out, w_out]) = (spatial(x), spatial(y));
        PoolParams {
            op: match self.kind {
                PoolKind::Max => PoolOp::Max,
                PoolKind::Average { include_pad } => {
                    PoolOp::Average { count_include_pad: include_pad }
                }
            },
            n: x[0],
            c: x[1],
            h_in,
            w_in,
            h_out,
            w_out,
            kernel: self.window,
            stride: self.stride,
            dilation: self.dilation,
            pads: self.pads,
        }
    }
}

/// Whether there is a kernel for plain tensors. Averages are computed on blocks, whose order of sums they keep.
pub(super) fn is_for_plain(op: &Pool, x: &Info, y: &Info) -> bool {
    rows(op, x, y).is_some() || on_planes(op, x, y)
}

/// The largest values of whole maps: the reduction of rows, which are maps. The smallest libraries have no kernels for
/// plain tensors, and must see here that they need none.
#[inline(always)]
fn rows(op: &Pool, x: &Info, y: &Info) -> Option<ReduceParams> {
    if !cfg!(feature = "ops-more") || x.dtype != DType::F32 || y.elements() == 0 {
        return None;
    }
    let [h, w] = spatial(&x.dims);
    (*op == Pool::global(PoolKind::Max, [h, w])).then(|| ReduceParams {
        op: ReduceOp::Max,
        outer: x.dims[0] * x.dims[1],
        axis: h * w,
        inner: 1,
    })
}

fn on_planes(op: &Pool, x: &Info, y: &Info) -> bool {
    x.dtype == DType::F32
        && y.elements() > 0
        && PlanePlan::max_pool_pays(&op.params(&x.dims, &y.dims))
}
