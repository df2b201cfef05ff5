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
use crate::graph::{GraphError, Info, Layout, LowerCx, Step};
use crate::tensor::AlignedBytes;

/// Position of the bias among the operands, if there is one.
const BIAS: usize = 2;

/// Whether this build has kernels for convolutions whose weights a run computes.
pub(super) const RUN_TIME: bool = cfg!(feature = "ops-more");

pub(super) fn lower(op: &Conv, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
    let s = op.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
    let mut params = conv_params(op, &s, cx.src[0].layout);
    // To transform what is used once costs more than it saves.
    params.winograd = !RUN_TIME || cx.values[1].is_some();
    let plan = if cx.dst.layout != Layout::Blocked {
        let constant: Vec<bool> = cx.values.iter().map(Option::is_some).collect();
        if !op.has_kernel(&constant, cx.dst) {
            return Ok(None);
        }
        if (!RUN_TIME || op.is_constant(&constant)) && op.on_planes(&s) {
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
    let known = |i: usize| !RUN_TIME || cx.values[i].is_some();
    let (weights, bias) = (known(1), !op.bias || known(BIAS));
    let filter = match plan.packing() {
        packing if weights && bias => pack(op, &s, cx, 1, packing)?.map(Some),
        packing => [
            weights.then(|| pack_weights(op, &s, cx, 1, packing)).transpose()?,
            bias.then(|| pack_bias(op, cx, BIAS, packing)).transpose()?,
        ],
    };
    let lens = [1, BIAS].map(|i| cx.src.get(i).filter(|_| RUN_TIME).map_or(0, Info::elements));
    let residual = op.residual_operand();
    Ok(Some(Box::new(Run(Arc::new(Planned { plan, filter, lens, residual })))))
}

/// Packed weights and bias of a convolution whose weights are operand `at`, and whose bias follows them.
pub(in crate::graph::ops) fn pack(
    op: &Conv,
    s: &Sizes,
    cx: &LowerCx<'_>,
    at: usize,
    plan: Packing<'_>,
) -> Result<[Arc<AlignedBytes>; 2], GraphError> {
    Ok([pack_weights(op, s, cx, at, plan)?, pack_bias(op, cx, at + 1, plan)?])
}

fn pack_weights(
    op: &Conv,
    s: &Sizes,
    cx: &LowerCx<'_>,
    at: usize,
    plan: Packing<'_>,
) -> Result<Arc<AlignedBytes>, GraphError> {
    let format = format!("{} g{} {}", plan.key(), op.groups, op.phase_key(s));
    cx.pack_f32(at, &format, plan.weights_len(), &|from, to| Ok(plan.pack_weights(from, to)?))
}

fn pack_bias(
    op: &Conv,
    cx: &LowerCx<'_>,
    at: usize,
    plan: Packing<'_>,
) -> Result<Arc<AlignedBytes>, GraphError> {
    if op.bias {
        cx.pack_f32(at, "bias", plan.bias_len(), &|from, to| Ok(plan.pack_bias(from, to)?))
    } else {
        Ok(Arc::new(AlignedBytes::zeroed(plan.bias_len() * size_of::<f32>())?))
    }
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
    let weights = cx.pack_f32(1, "plane", plan.weights_len(), &copy)?;
    let bias = if op.bias {
        cx.pack_f32(2, "plane", plan.bias_len(), &copy)?
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

/// A plan, with what it packed of weights and bias. What a run computes of them is packed in each run.
struct Planned {
    plan: Plan,
    filter: [Option<Arc<AlignedBytes>>; 2],
    /// Elements of weights and bias.
    lens: [usize; 2],
    residual: Option<usize>,
}

impl Planned {
    /// Elements for the packed weights and the packed bias in what the step before writes, each in whole cache
    /// lines.
    fn rooms(&self) -> [usize; 2] {
        if !RUN_TIME {
            return [0; 2];
        }
        let packing = self.plan.packing();
        let [weights, bias] = [packing.weights_len(), packing.bias_len()];
        let room = |i: usize, len: usize| {
            if self.filter[i].is_some() { 0 } else { len.next_multiple_of(16) }
        };
        [room(0, weights), room(1, bias)]
    }
}

struct Run(Arc<Planned>);

impl Step for Run {
    fn kernel(&self) -> String {
        self.0.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        each!(&self.0.plan, p => p.units())
    }

    fn repeated(&self) -> f64 {
        match &self.0.plan {
            Plan::Conv(p) => p.repeated(),
            Plan::Depthwise(_) | Plan::First(_) | Plan::Pointwise(_) => 0.0,
        }
    }

    fn reads(&self, i: usize) -> bool {
        i == 0 || Some(i) == self.0.residual
    }

    fn scratch_bytes(&self) -> usize {
        match &self.0.plan {
            Plan::Conv(p) => p.scratch_len() * size_of::<f32>(),
            Plan::Pointwise(p) => p.scratch_len() * size_of::<f32>(),
            Plan::First(p) => p.scratch_len() * size_of::<f32>(),
            Plan::Depthwise(_) => 0,
        }
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let len: usize = self.0.rooms().iter().sum();
        let packed = || -> Box<dyn Step> { Box::new(Pack(self.0.clone())) };
        (RUN_TIME && len > 0).then(|| (packed(), len * size_of::<f32>()))
    }

    fn workload(&self) -> Option<Workload> {
        match &self.0.plan {
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
        let Planned { plan, filter, residual, .. } = &*self.0;
        let x = src[0].cast();
        let written: *const f32 = src.last().filter(|_| RUN_TIME).map_or(ptr::null(), |p| p.cast());
        let [weights, bias] = filter.each_ref().map(|f| f.as_ref().map(|f| f.as_ptr().cast()));
        let weights = weights.unwrap_or(written);
        let bias = bias.unwrap_or_else(|| written.wrapping_add(self.0.rooms()[0]));
        let residual = residual.map_or(ptr::null(), |i| src[i].cast());
        let (y, scratch) = (dst.cast(), scratch.cast());
        // SAFETY: the plan was made for the extents and layouts of operands and result, and weights and bias
        // were packed by it, when it was made or by the step before, so every buffer has the length it asks
        // for; scratch, units and CPU are as the caller of this function promises.
        unsafe {
            match plan {
                Plan::Conv(p) => p.run(x, weights, bias, residual, y, scratch, units),
                Plan::Depthwise(p) => p.run(x, weights, bias, residual, y, units),
                Plan::First(p) => p.run(x, weights, bias, y, scratch, units),
                Plan::Pointwise(p) => p.run(x, weights, bias, residual, y, scratch, units),
            }
        }
        Ok(())
    }
}

/// Packs the weights, or the bias, or both, that a run computes.
struct Pack(Arc<Planned>);

impl Step for Pack {
    fn kernel(&self) -> String {
        "pack_weights".to_owned()
    }

    fn reads(&self, i: usize) -> bool {
        let missing = |filter: usize| self.0.filter[filter].is_none();
        i == 1 && missing(0) || i == BIAS && missing(1)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Planned { plan, filter, lens, .. } = &*self.0;
        let rooms = self.0.rooms();
        // SAFETY: the result has this length, by `before`, and any bytes are floats.
        let out = unsafe { core::slice::from_raw_parts_mut(dst.cast(), rooms.iter().sum()) };
        out.fill(0.0);
        let (weights, bias) = out.split_at_mut(rooms[0]);
        if filter[0].is_none() {
            // SAFETY: this operand has so many elements, and is no part of the result.
            let from = unsafe { core::slice::from_raw_parts(src[1].cast(), lens[0]) };
            plan.packing().pack_weights(from, weights)?;
        }
        if filter[1].is_none() {
            // SAFETY: as above.
            let from = unsafe { core::slice::from_raw_parts(src[BIAS].cast(), lens[1]) };
            plan.packing().pack_bias(from, bias)?;
        }
        Ok(())
    }
}

#[cfg(all(test, feature = "ops-more"))]
mod tests {
    use super::super::super::elements::as_defined;
    use super::*;
    use crate::tensor::Tensor;

    /// Small numbers, whose sums are the same in any order.
    fn numbers(dims: &[usize], seed: usize) -> Tensor {
        let count = dims.iter().product::<usize>();
        let values: Vec<f32> =
            (0..count).map(|i| ((i * 31 + seed) * 7919 % 23) as f32 - 11.0).collect();
        Tensor::from_slice(dims, &values).unwrap()
    }

    #[test]
    fn weights_that_a_run_computes_are_packed_in_it() {
        let same = |pad: usize| Conv { pads: [pad; 4], bias: true, ..Conv::default() };
        let across = Conv { stride: [1, 2], pads: [0, 1, 0, 1], ..Conv::default() };
        let spread =
            Conv { transposed: Some([1; 2]), stride: [2; 2], pads: [1; 4], bias: true, ..same(1) };
        let cases: [(Conv, &[usize], &[usize]); 9] = [
            (same(1), &[1, 16, 9, 10], &[32, 16, 3, 3]),
            (same(1), &[2, 19, 7, 5], &[37, 19, 3, 3]),
            // Images of few channels.
            (Conv { stride: [2; 2], ..same(1) }, &[1, 3, 33, 32], &[24, 3, 3, 3]),
            (same(2), &[1, 1, 8, 8], &[5, 1, 5, 5]),
            // A product, a column of windows, one filter per channel, groups as of images.
            (same(0), &[1, 48, 6, 6], &[20, 48, 1, 1]),
            (across, &[2, 12, 40], &[18, 12, 4]),
            (Conv { groups: 40, ..same(1) }, &[1, 40, 11, 12], &[40, 1, 3, 3]),
            (Conv { groups: 2, ..same(1) }, &[1, 24, 8, 8], &[36, 12, 3, 3]),
            (spread, &[1, 20, 5, 6], &[20, 18, 3, 3]),
        ];
        for (op, x, w) in &cases {
            let k = if op.transposed.is_some() { w[1] * op.groups } else { w[0] };
            let mut operands = vec![numbers(x, 1), numbers(w, 2)];
            operands.extend(op.bias.then(|| numbers(&[k], 3)));
            let kernels = as_defined(op, &operands);
            assert!(kernels.contains("pack_weights"), "{op:?}: {kernels}");
            assert!(!kernels.contains("reference"), "{op:?}: {kernels}");
        }
    }

    #[test]
    fn a_run_packs_what_is_no_constant() {
        use crate::backend::cpu::Executor;
        use crate::graph::Context;

        let op = Conv { pads: [1; 4], bias: true, ..Conv::default() };
        let [x, w, bias] =
            [numbers(&[1, 32, 6, 7], 1), numbers(&[24, 32, 3, 3], 2), numbers(&[24], 3)];
        for (known, exact) in [(1, false), (2, true), (3, false)] {
            // Weights, bias or both are constants; twice, as the memory is then what a run left.
            let mut cx = Context::new();
            let place = |cx: &mut Context, name: &str, value: &Tensor, constant: bool| {
                let id = if constant {
                    cx.constant(value.clone())
                } else {
                    cx.input(name, value.dtype(), &value.dims())
                };
                id.unwrap()
            };
            let ids = [
                place(&mut cx, "x", &x, false),
                place(&mut cx, "w", &w, known & 1 > 0),
                place(&mut cx, "bias", &bias, known & 2 > 0),
            ];
            let y = cx.op(op.clone(), &ids).unwrap();
            let mut executor = Executor::new(tilewright_kernels::Isa::best(), 2).unwrap();
            let plan = executor.plan(&mut cx, &[y]).unwrap();
            let packs = plan.nodes().any(|node| node.kernel == "pack_weights");
            assert_eq!(packs, known != 3);
            let mut given = vec![&x];
            given.extend((known & 1 == 0).then_some(&w));
            given.extend((known & 2 == 0).then_some(&bias));
            let mut all = Context::new();
            let ids = [&x, &w, &bias].map(|value| all.constant(value.clone()).unwrap());
            let wanted = all.op(op.clone(), &ids).unwrap();
            let wanted = all.constant_value(wanted).unwrap().as_slice::<f32>().unwrap().to_vec();
            for _ in 0..2 {
                let found = executor.run(&plan, &given, None).unwrap();
                let found = found[0].as_slice::<f32>().unwrap();
                // Winograd's algorithm, where weights are known, rounds.
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= if exact { 0.0 } else { 0.05 };
                assert!(found.iter().zip(&wanted).all(near), "{known}");
            }
        }
    }
}
