//! The pooling kernel.

use core::ops::Range;

use tilewright_kernels::template::pool::{PoolOp, PoolParams, PoolPlan};

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
    Ok(Some(Box::new(Run(PoolPlan::new(cx.isa, &params)?))))
}

struct Run(PoolPlan);

impl Step for Run {
    fn kernel(&self) -> String {
        self.0.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.0.units()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the plan was made for the operand's and the result's extents in the blocked
        // layout, so both buffers have its lengths; units and CPU are as the caller promises.
        unsafe { self.0.run(src[0].cast(), dst.cast(), units) };
        Ok(())
    }
}
