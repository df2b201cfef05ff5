//! The step of windows on plain tensors: depthwise convolution and max pooling where converting to
//! blocks and back would cost more than the op.

use core::ops::Range;
use core::ptr;
use std::sync::Arc;

use tilewright_kernels::template::plane::PlanePlan;

use crate::graph::{GraphError, Step};
use crate::tensor::AlignedBytes;

/// Runs a plan that was made for the extents of a step's operand and result.
pub(super) struct Plane {
    pub(super) plan: PlanePlan,
    /// Weights and bias of a convolution.
    pub(super) filter: Option<[Arc<AlignedBytes>; 2]>,
}

impl Step for Plane {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn scratch_bytes(&self) -> usize {
        self.plan.scratch_len() * size_of::<f32>()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let [weights, bias] = match &self.filter {
            Some(filter) => filter.each_ref().map(|f| f.as_ptr().cast()),
            None => [ptr::null(); 2],
        };
        let (x, y) = (src[0].cast(), dst.cast());
        // SAFETY: the plan was made for operand and result, weights and bias are copies as long as
        // it asks for, a pooling reads none; scratch, units and CPU are as the caller promises.
        unsafe { self.plan.run(x, weights, bias, y, scratch.cast(), units) };
        Ok(())
    }
}
