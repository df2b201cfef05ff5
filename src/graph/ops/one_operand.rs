//! The step of kernels that read one operand and nothing packed.

use core::ops::Range;

use tilewright_kernels::template::layout::LayoutPlan;
use tilewright_kernels::template::pool::PoolPlan;
use tilewright_kernels::template::reduce::ReducePlan;
use tilewright_kernels::template::softmax::SoftmaxPlan;
use tilewright_kernels::template::unary::UnaryPlan;

use crate::graph::{GraphError, Step};

/// A kernel plan of one operand.
pub(super) trait OneOperandPlan: Send + Sync {
    /// Whether the result may lie in the operand's memory.
    const IN_PLACE: bool;

    fn kernel_name(&self) -> &'static str;

    fn units(&self) -> usize;

    /// # Safety
    /// - `x` is readable and `y` writable for the plan's lengths; they do not overlap, save that
    ///   they may be equal where [`OneOperandPlan::IN_PLACE`].
    /// - `units` lies within `0..self.units()`, and no other thread runs one of them.
    /// - The CPU has the instruction set that the plan was made for.
    #[allow(unsafe_code, reason = "kernels take pointers; the duties are above")]
    unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>);
}

macro_rules! plans {
    ($($plan:ty: in place $in_place:literal),* $(,)?) => { $(
        impl OneOperandPlan for $plan {
            const IN_PLACE: bool = $in_place;

            fn kernel_name(&self) -> &'static str {
                self.kernel_name()
            }

            fn units(&self) -> usize {
                self.units()
            }

            #[allow(unsafe_code)]
            unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>) {
                // SAFETY: the plan's duties are those of this function.
                unsafe { self.run(x, y, units) }
            }
        }
    )* };
}
plans! {
    LayoutPlan: in place false,
    PoolPlan: in place false,
    ReducePlan: in place false,
    SoftmaxPlan: in place true,
    UnaryPlan: in place true,
}

/// Runs a plan that was made for the extents and layouts of a step's operand and result.
pub(super) struct OneOperand<P>(pub(super) P);

impl<P: OneOperandPlan> Step for OneOperand<P> {
    fn kernel(&self) -> String {
        self.0.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.0.units()
    }

    fn may_overwrite(&self, _i: usize) -> bool {
        P::IN_PLACE
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the plan was made for operand and result, so both buffers have its lengths;
        // whether they may be one, units and CPU are as the caller of this function promises.
        unsafe { self.0.run(src[0].cast(), dst.cast(), units) };
        Ok(())
    }
}
