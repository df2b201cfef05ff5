//! The pooling kernel.

use tilewright_kernels::template::plane::PlanePlan;
use tilewright_kernels::template::pool::{PoolOp, PoolParams, PoolPlan};

use super::super::one_operand::OneOperand;
use super::super::plane::{self, Plane};
use super::{Pool, PoolKind, spatial};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step};
use crate::tensor::DType;

pub(super) fn lower(op: &Pool, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
    let plane = on_planes(op, &cx.src[0], cx.dst);
    if cx.dst.layout != Layout::Blocked && !plane {
        return Ok(None);
    }
    let (x, y) = (&cx.src[0].dims, &cx.dst.dims);
    let ([h_in, w_in], [h_out, w_out]) = (spatial(x), spatial(y));
    let params = PoolParams {
        op: match op.kind {
            PoolKind::Max => PoolOp::Max,
            PoolKind::Average { include_pad } => PoolOp::Average { count_include_pad: include_pad },
        },
        n: x[0],
        c: x[1],
        h_in,
        w_in,
        h_out,
        w_out,
        kernel: op.window,
        stride: op.stride,
        dilation: op.dilation,
        pads: op.pads,
    };
    if cx.dst.layout == Layout::Plain {
        let plan = PlanePlan::max_pool(cx.isa, &params)?;
        return Ok(Some(Box::new(Plane { plan, filter: None })));
    }
    Ok(Some(Box::new(OneOperand(PoolPlan::new(cx.isa, &params)?))))
}

/// Whether there is a kernel for plain tensors. Averages are computed on blocks.
pub(super) fn on_planes(op: &Pool, x: &Info, y: &Info) -> bool {
    let reach = op.dilation[1].saturating_mul(op.window[1]);
    op.kind == PoolKind::Max
        && x.dtype == DType::F32
        && y.elements() > 0
        && plane::pays(op.stride, [spatial(&x.dims)[1], spatial(&y.dims)[1]], op.pads, reach)
}
