//! The convolution kernels.

use core::ops::Range;
use core::ptr;
use std::sync::Arc;

use tilewright_kernels::template::conv_first::FirstConvPlan;
use tilewright_kernels::template::depthwise::{DepthwiseParams, DepthwisePlan};
use tilewright_kernels::template::plane::PlanePlan;
use tilewright_kernels::template::pointwise::PointwisePlan;
use tilewright_kernels::{ConvParams, ConvPlan, Epilogue, InputLayout, KernelError, Workload};

use super::super::plane::Plane;
use super::{Conv, Sizes};
use crate::graph::{GraphError, Layout, LowerCx, Step};
use crate::tensor::AlignedBytes;

pub(super) fn lower(op: &Conv, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
    let s = op.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
    let params = conv_params(op, &s, cx.src[0].layout);
    let plan = if cx.dst.layout != Layout::Blocked {
        let constant: Vec<bool> = cx.values.iter().map(Option::is_some).collect();
        if !op.has_kernel(&constant, cx.dst) {
            return Ok(None);
        }
        if op.on_planes(&s) {
            return lower_on_planes(op, &s, cx);
        }
        if !PointwisePlan::supports(&params) {
            return Ok(None);
        }
        Plan::Pointwise(Box::new(cx.tuned(
            &Workload::pointwise(&params),
            |choice| PointwisePlan::with_choice(cx.isa, &params, choice),
            || PointwisePlan::new(cx.isa, &params),
        )?))
    } else if op.is_depthwise(&s) {
        Plan::Depthwise(Box::new(DepthwisePlan::new(cx.isa, &depthwise_params(op, &s))?))
    } else if cx.src[0].layout == Layout::Plain && op.is_first(&s) {
        Plan::First(Box::new(FirstConvPlan::new(cx.isa, &params)?))
    } else {
        Plan::Conv(Box::new(cx.tuned(
            &Workload::conv(&params),
            |choice| ConvPlan::with_choice(cx.isa, &params, choice),
            || ConvPlan::new(cx.isa, &params),
        )?))
    };
    let [weights, bias] = pack(op, &s, cx, 1, plan.packing())?;
    Ok(Some(Box::new(Run { plan, weights, bias, residual: op.residual_operand() })))
}

/// Packed weights and bias of a convolution whose weights are operand `at`, and whose bias follows them.
pub(in crate::graph::ops) fn pack(
    op: &Conv,
    s: &Sizes,
    cx: &LowerCx<'_>,
    at: usize,
    plan: Packing<'_>,
) -> Result<[Arc<AlignedBytes>; 2], GraphError> {
    let format = format!("{} g{} {}", plan.key(), op.groups, op.phase_key(s));
    let weights =
        cx.pack_f32(at, &format, plan.weights_len(), |from, to| Ok(plan.pack_weights(from, to)?))?;
    let bias = if op.bias {
        cx.pack_f32(at + 1, "bias", plan.bias_len(), |from, to| Ok(plan.pack_bias(from, to)?))?
    } else {
        Arc::new(AlignedBytes::zeroed(plan.bias_len() * size_of::<f32>())?)
    };
    Ok([weights, bias])
}

/// A depthwise convolution of a plain tensor.
fn lower_on_planes(
    op: &Conv,
    s: &Sizes,
    cx: &LowerCx<'_>,
) -> Result<Option<Box<dyn Step>>, GraphError> {
    let plan = PlanePlan::depthwise(cx.isa, &depthwise_params(op, s))?;
    let copy = |from: &[f32], to: &mut [f32]| {
        to.copy_from_slice(from);
        Ok(())
    };
    let weights = cx.pack_f32(1, "plane", plan.weights_len(), copy)?;
    let bias = if op.bias {
        cx.pack_f32(2, "plane", plan.bias_len(), copy)?
    } else {
        Arc::new(AlignedBytes::zeroed(plan.bias_len() * size_of::<f32>())?)
    };
    Ok(Some(Box::new(Plane { plan, filter: Some([weights, bias]) })))
}

impl Conv {
    fn epilogue(&self) -> Epilogue {
        Epilogue { activation: self.activation, residual: self.residual }
    }

    /// What the packed order of a transposed convolution's weights depends on besides the tile:
    /// which output phases there are, and which taps each has.
    fn phase_key(&self, s: &Sizes) -> String {
        match self.transposed {
            Some(_) => {
                let phases = [0, 1].map(|i| self.stride[i].min(s.output[i]));
                format!("t{phases:?}{:?}{:?}{:?}", self.stride, self.dilation, self.pads)
            }
            None => String::new(),
        }
    }
}

pub(in crate::graph::ops) fn depthwise_params(op: &Conv, s: &Sizes) -> DepthwiseParams {
    DepthwiseParams {
        n: s.n,
        c: s.c,
        h_in: s.input[0],
        w_in: s.input[1],
        h_out: s.output[0],
        w_out: s.output[1],
        kernel: s.window,
        stride: op.stride,
        dilation: op.dilation,
        pads: op.pads,
        epilogue: op.epilogue(),
    }
}

pub(in crate::graph::ops) fn conv_params(op: &Conv, s: &Sizes, x: Layout) -> ConvParams {
    ConvParams {
        n: s.n,
        c_in: s.c,
        c_out: s.k,
        groups: op.groups,
        h_in: s.input[0],
        w_in: s.input[1],
        h_out: s.output[0],
        w_out: s.output[1],
        kernel: s.window,
        stride: op.stride,
        dilation: op.dilation,
        pads: op.pads,
        transposed: op.transposed.is_some(),
        input: if x == Layout::Interleaved {
            InputLayout::Interleaved
        } else {
            InputLayout::Blocked
        },
        winograd: true,
        epilogue: op.epilogue(),
    }
}

enum Plan {
    Conv(Box<ConvPlan>),
    Depthwise(Box<DepthwisePlan>),
    First(Box<FirstConvPlan>),
    Pointwise(Box<PointwisePlan>),
}

macro_rules! each {
    ($self:expr, $plan:ident => $body:expr) => {
        match $self {
            Plan::Conv($plan) => $body,
            Plan::Depthwise($plan) => $body,
            Plan::First($plan) => $body,
            Plan::Pointwise($plan) => $body,
        }
    };
}

impl Plan {
    fn kernel_name(&self) -> &'static str {
        each!(self, p => p.kernel_name())
    }

    fn packing(&self) -> Packing<'_> {
        match self {
            Plan::Conv(p) => Packing::Conv(p),
            Plan::Depthwise(p) => Packing::Depthwise(p),
            Plan::First(p) => Packing::First(p),
            Plan::Pointwise(p) => Packing::Pointwise(p),
        }
    }
}

/// The plan that packs a filter.
#[derive(Clone, Copy)]
pub(in crate::graph::ops) enum Packing<'a> {
    Conv(&'a ConvPlan),
    Depthwise(&'a DepthwisePlan),
    First(&'a FirstConvPlan),
    Pointwise(&'a PointwisePlan),
}

macro_rules! packing {
    ($self:expr, $plan:ident => $body:expr) => {
        match $self {
            Packing::Conv($plan) => $body,
            Packing::Depthwise($plan) => $body,
            Packing::First($plan) => $body,
            Packing::Pointwise($plan) => $body,
        }
    };
}

impl Packing<'_> {
    /// What the packed order of the weights depends on: algorithm, widths of the tiles, layout of
    /// the input.
    fn key(&self) -> String {
        match self {
            Packing::Conv(p) => {
                let choice = p.choice();
                let (name, width, input) =
                    (choice.algorithm.name(), choice.tile[2], p.params().input);
                format!("{name} {width} {} {input:?}", p.isa())
            }
            Packing::Depthwise(p) => p.kernel_name().to_owned(),
            Packing::First(_) => "first".to_owned(),
            Packing::Pointwise(p) => format!("pointwise {} {}", p.packing(), p.isa()),
        }
    }

    fn weights_len(&self) -> usize {
        packing!(self, p => p.weights_len())
    }

    fn bias_len(&self) -> usize {
        packing!(self, p => p.bias_len())
    }

    fn pack_weights(&self, from: &[f32], to: &mut [f32]) -> Result<(), KernelError> {
        packing!(self, p => p.pack_weights(from, to))
    }

    fn pack_bias(&self, from: &[f32], to: &mut [f32]) -> Result<(), KernelError> {
        packing!(self, p => p.pack_bias(from, to))
    }
}

struct Run {
    plan: Plan,
    weights: Arc<AlignedBytes>,
    bias: Arc<AlignedBytes>,
    residual: Option<usize>,
}

impl Step for Run {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        each!(&self.plan, p => p.units())
    }

    fn repeated(&self) -> f64 {
        match &self.plan {
            Plan::Conv(p) => p.repeated(),
            Plan::Depthwise(_) | Plan::First(_) | Plan::Pointwise(_) => 0.0,
        }
    }

    fn reads(&self, i: usize) -> bool {
        i == 0 || Some(i) == self.residual
    }

    fn scratch_bytes(&self) -> usize {
        match &self.plan {
            Plan::Conv(p) => p.scratch_len() * size_of::<f32>(),
            Plan::Pointwise(p) => p.scratch_len() * size_of::<f32>(),
            Plan::First(p) => p.scratch_len() * size_of::<f32>(),
            Plan::Depthwise(_) => 0,
        }
    }

    fn workload(&self) -> Option<Workload> {
        match &self.plan {
            Plan::Conv(p) => Some(Workload::conv(p.params())),
            Plan::Pointwise(p) => Some(Workload::pointwise(p.params())),
            Plan::Depthwise(_) | Plan::First(_) => None,
        }
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let x = src[0].cast();
        let (weights, bias) = (self.weights.as_ptr().cast(), self.bias.as_ptr().cast());
        let residual = self.residual.map_or(ptr::null(), |i| src[i].cast());
        let (y, scratch) = (dst.cast(), scratch.cast());
        // SAFETY: the plan was made for the extents and layouts of operands and result, and packed
        // weights and bias itself, so every buffer has the length it asks for; scratch, units and
        // CPU are as the caller of this function promises.
        unsafe {
            match &self.plan {
                Plan::Conv(p) => p.run(x, weights, bias, residual, y, scratch, units),
                Plan::Depthwise(p) => p.run(x, weights, bias, residual, y, units),
                Plan::First(p) => p.run(x, weights, bias, y, scratch, units),
                Plan::Pointwise(p) => p.run(x, weights, bias, residual, y, scratch, units),
            }
        }
        Ok(())
    }
}
