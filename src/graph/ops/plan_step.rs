//! The step of kernels that read their operands as they are, and nothing packed.

use core::ops::Range;
use core::ptr;

use tilewright_kernels::template::convert::ConvertPlan;
use tilewright_kernels::template::glu::GluPlan;
use tilewright_kernels::template::layout::LayoutPlan;
use tilewright_kernels::template::layout_bytes::ByteLayoutPlan;
use tilewright_kernels::template::lookup::LookupPlan;
use tilewright_kernels::template::norm::NormPlan;
use tilewright_kernels::template::pool::PoolPlan;
use tilewright_kernels::template::qbinary::QbinaryPlan;
use tilewright_kernels::template::qpool::QpoolPlan;
use tilewright_kernels::template::reduce::ReducePlan;
use tilewright_kernels::template::rope::RopePlan;
use tilewright_kernels::template::softmax::SoftmaxPlan;
use tilewright_kernels::template::unary::UnaryPlan;

use crate::graph::{GraphError, Step};

/// Runs a plan that was made for the extents, types and layouts of a step's operands and result.
pub(super) struct PlanStep<P>(pub(super) P);

/// Steps of plans: the operands that the plan takes, in its order (a null pointer for one that the
/// record leaves out), and those in whose memory the result may lie.
macro_rules! steps {
    ($($plan:ty: $($operand:literal),+ $(; over $over:pat)?),+ $(,)?) => { $(
        impl Step for PlanStep<$plan> {
            fn kernel(&self) -> String {
                self.0.kernel_name().to_owned()
            }

            fn units(&self) -> usize {
                self.0.units()
            }

            $(fn may_overwrite(&self, i: usize) -> bool {
                matches!(i, $over)
            })?

            #[allow(unsafe_code)]
            unsafe fn run(
                &self,
                src: &[*const u8],
                dst: *mut u8,
                _scratch: *mut u8,
                units: Range<usize>,
            ) -> Result<(), GraphError> {
                // SAFETY: the plan was made for operands and result, so their buffers have its
                // lengths, and it reads no operand that is not there; which buffers may be one,
                // units and CPU are as the caller of this function promises.
                unsafe {
                    self.0.run(
                        $(src.get($operand).map_or(ptr::null(), |p| p.cast()),)+
                        dst.cast(),
                        units,
                    );
                }
                Ok(())
            }
        }
    )+ };
}
steps! {
    ByteLayoutPlan: 0,
    ConvertPlan: 0,
    GluPlan: 0, 1; over 0 | 1,
    LayoutPlan: 0,
    LookupPlan: 0; over 0,
    NormPlan: 0, 1, 2; over 0,
    PoolPlan: 0,
    QbinaryPlan: 0, 1; over 0 | 1,
    QpoolPlan: 0,
    ReducePlan: 0,
    RopePlan: 0, 1; over 0,
    SoftmaxPlan: 0; over 0,
    UnaryPlan: 0; over 0,
}
