//! Convolution and maximum pooling in one pass.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::template::conv_pool::{ConvPoolParams, ConvPoolPlan};
use tilewright_kernels::{KernelError, Workload};

use super::conv::Conv;
use super::conv::lower::{Packing, conv_params, pack};
use super::pool::{Pool, PoolKind};
use super::{LayoutRule, Operator, RuleCx};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::AlignedBytes;

/// Whether this build computes the two by themselves, one after the other.
pub(crate) const FEW: bool = cfg!(feature = "few-kernels");

/// A convolution and the largest value of each window of its result. Windows do not overlap; pixels that
/// do not fill one are left out. Operands are those of the convolution, which has no residual and is not
/// transposed.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvPool {
    /// The convolution.
    pub conv: Conv,
    /// Rows and columns of a window.
    pub window: [usize; 2],
}

impl ConvPool {
    fn pool(&self) -> Pool {
        let (window, stride) = (self.window, self.window);
        Pool { kind: PoolKind::Max, window, stride, ..Pool::global(PoolKind::Max, window) }
    }
}

impl Operator for ConvPool {
    fn name(&self) -> &'static str {
        "conv_max_pool"
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        if self.conv.residual || self.conv.transposed.is_some() {
            let (op, attribute) = (self.name(), "residual, transposed");
            let reason = "must be absent".to_owned();
            return Err(GraphError::InvalidAttribute { op, attribute, reason });
        }
        self.pool().infer(&[self.conv.infer(src)?])
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        through(&self.conv, src, |between| self.pool().eval(&[between], dst))
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if FEW || cx.dst.layout != Layout::Blocked {
            return Ok(None);
        }
        let sizes = self.conv.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
        let conv = conv_params(&self.conv, &sizes, cx.src[0].layout);
        let params = ConvPoolParams { conv, window: self.window };
        let plan = cx.tuned(
            &Workload::conv(&params.conv),
            |choice| ConvPoolPlan::with_choice(cx.isa, &params, choice),
            || ConvPoolPlan::new(cx.isa, &params),
        );
        let plan = match plan {
            Err(KernelError::Unsupported { .. }) => return Ok(None),
            plan => plan?,
        };
        let filter = pack(&self.conv, &sizes, cx, 1, Packing::Conv(plan.conv()))?;
        Ok(Some(Box::new(Run { plan, filter })))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let packed = self.conv.is_constant(cx.constant);
        if FEW || !packed { LayoutRule::Plain } else { self.conv.usual_layouts(cx) }
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        self.conv.infer(src).map_or(0, |between| self.conv.macs(src, &between))
    }
}

/// Computes an operator by its reference, and hands the result to another.
pub(super) fn through(
    first: &dyn Operator,
    src: &[View<'_>],
    second: impl FnOnce(View<'_>) -> Result<(), GraphError>,
) -> Result<(), GraphError> {
    let infos: Vec<Info> = src.iter().map(|s| Info::plain(s.dtype, s.dims.to_vec())).collect();
    let Info { dtype, dims, .. } = first.infer(&infos)?;
    let bytes = Info::plain(dtype, dims.clone()).stored_bytes();
    let too_large =
        || GraphError::mismatch(first.name(), "sizes must not overflow", &[("result", &dims)]);
    let mut between = AlignedBytes::zeroed(bytes.ok_or_else(too_large)?)?;
    first.eval(src, &mut ViewMut { dtype, dims: &dims, bytes: &mut between })?;
    second(View { dtype, dims: &dims, bytes: &between })
}

struct Run {
    plan: ConvPoolPlan,
    /// Weights and bias.
    filter: [Arc<AlignedBytes>; 2],
}

impl Step for Run {
    fn kernel(&self) -> String {
        self.plan.kernel_names().join(" + ")
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

    fn workload(&self) -> Option<Workload> {
        Some(Workload::conv(self.plan.conv().params()))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let [weights, bias] = self.filter.each_ref().map(|f| f.as_ptr().cast());
        // SAFETY: the plan was made for the extents and layouts of operand and result, and packed weights
        // and bias itself, so every buffer has the length it asks for; scratch, units and CPU are as the
        // caller of this function promises.
        unsafe { self.plan.run(src[0].cast(), weights, bias, dst.cast(), scratch.cast(), units) };
        Ok(())
    }
}
