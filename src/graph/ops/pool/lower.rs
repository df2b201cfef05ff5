//! The pooling kernel.

use tilewright_kernels::template::pool::{PoolOp, PoolParams, PoolPlan};

use super::super::one_operand::OneOperand;
use super::{Pool, PoolKind, spatial};
use crate::graph::{GraphError, Layout, LowerCx, Step};

pub(super) fn lower(op: &Pool, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
    if cx.dst.layout != Layout::Blocked {
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
    Ok(Some(Box::new(OneOperand(PoolPlan::new(cx.isa, &params)?))))
}
