//! One op alone, on operands of no meaning: what a tuner measures.

use core::ops::Range;
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::plan::{NodeInfo, PlannedStep};
use super::pool::Job;
use super::{Executor, Inputs, Place, Plan, grow, lower, plan};
use crate::graph::{GraphError, Info, Step};
use crate::tensor::{AlignedBytes, DType};
use tilewright_kernels::{Choice, WorkPlan, Workload};

/// A way of computing a workload, ready to run on the threads of an [`Executor`].
pub struct Trial {
    plan: Plan,
    choice: Choice,
}

impl Trial {
    /// How it computes.
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// The microkernel that does most of the work.
    pub fn kernel(&self) -> String {
        self.plan.steps[0].step.kernel()
    }
}

struct Run {
    plan: WorkPlan,
    /// Packed weights, then the bias.
    constants: Arc<AlignedBytes>,
    bias: usize,
}

impl Step for Run {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn repeated(&self) -> f64 {
        self.plan.repeated()
    }

    fn scratch_bytes(&self) -> usize {
        self.plan.scratch_len() * size_of::<f32>()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let weights = self.constants.as_ptr();
        let (bias, scratch) = (weights.wrapping_add(self.bias).cast(), scratch.cast());
        let (x, weights, y) = (src[0].cast(), weights.cast(), dst.cast());
        // SAFETY: `Executor::trials` made constants, input and result as long as the plan asks, the
        // constants for weights and bias; scratch, units and CPU are as the caller promises.
        unsafe { self.plan.run(x, weights, bias, y, scratch, units) };
        Ok(())
    }
}

/// Bytes of so many elements, up to the next multiple of the alignment of operands.
fn bytes(elements: usize) -> usize {
    (elements * size_of::<f32>()).next_multiple_of(super::memory::ALIGN)
}

impl Executor {
    /// A workload computed by each of some choices, on `threads` threads or as many as this has.
    /// The trials share one set of operands: values do not matter to the time of a kernel. They
    /// are good until this executor runs something else.
    ///
    /// # Errors
    /// Sizes or choices that the kernels refuse, lack of memory.
    pub fn trials(
        &mut self,
        workload: &Workload,
        choices: &[Choice],
        threads: usize,
    ) -> Result<Vec<Trial>, GraphError> {
        let plans: Vec<WorkPlan> = choices
            .iter()
            .map(|choice| workload.plan(self.isa, choice))
            .collect::<Result<_, _>>()?;
        let most =
            [0, 1, 2, 3].map(|i| plans.iter().map(|plan| bytes(plan.lens()[i])).max().unwrap_or(0));
        let bias = most[1];
        let mut constants = AlignedBytes::zeroed(bias + most[2])?;
        fill(&mut constants);
        let constants = Arc::new(constants);
        grow(&mut self.arena, most[0] + most[3])?;
        fill(&mut self.arena[..most[0]]);
        let trial = |(plan, choice): (WorkPlan, &Choice)| {
            let lens = plan.lens();
            let step = Run { plan, constants: constants.clone(), bias };
            let cost =
                lower::estimate(self.isa, (workload.flop() / 2.0) as u64, workload.bytes() as u64);
            let parts = plan::parts(&step, cost, threads.min(self.threads()));
            let node = NodeInfo {
                name: workload.to_string(),
                op: String::new(),
                kernel: step.kernel(),
                info: Info::plain(DType::F32, vec![lens[3]]),
                macs: (workload.flop() / 2.0) as u64,
                bytes: 0,
                inputs: Vec::new(),
                threads: parts.1,
                workload: None,
            };
            let dst = most[0];
            let step = PlannedStep {
                step: Box::new(step),
                src: vec![Place::Arena(0)],
                first_src: 0,
                dst: Place::Arena(dst),
                parts,
                node,
            };
            let plan = Plan::single(step, dst + bytes(lens[3]));
            Trial { plan, choice: *choice }
        };
        Ok(plans.into_iter().zip(choices).map(trial).collect())
    }

    /// Runs a trial, for the caches, then so many times more; returns the time of those.
    ///
    /// # Errors
    /// Lack of memory.
    pub fn time(&mut self, trial: &Trial, repeats: u32) -> Result<Duration, GraphError> {
        grow(&mut self.arena, trial.plan.arena_bytes)?;
        let threads = self.threads();
        grow(&mut self.scratch, trial.plan.scratch_bytes * threads)?;
        self.execute(&trial.plan, Inputs::default(), &mut [], None)?;
        let start = Instant::now();
        for _ in 0..repeats {
            self.execute(&trial.plan, Inputs::default(), &mut [], None)?;
        }
        Ok(start.elapsed())
    }
}

/// Phases in which each thread does the same once.
struct Equal<'a> {
    phases: usize,
    threads: usize,
    work: &'a (dyn Fn() + Sync),
}

impl Job for Equal<'_> {
    fn phases(&self) -> usize {
        self.phases
    }

    fn parts(&self, _phase: usize) -> (usize, usize) {
        (self.threads, self.threads)
    }

    fn run(&self, _phase: usize, _part: usize, _thread: usize) {
        (self.work)();
    }

    fn end(&self, _phase: usize) {}
}

impl Executor {
    /// Lets each thread do `work` once, `phases` times over, and returns the time of all of it:
    /// what it takes longer than one thread alone is the cost of the pool.
    pub fn time_sharing(&mut self, phases: usize, work: &(dyn Fn() + Sync)) -> Duration {
        let threads = self.threads();
        let start = Instant::now();
        self.pool.run(&Equal { phases, threads, work });
        start.elapsed()
    }
}

/// Small numbers of both signs: results stay finite and no value is denormal.
fn fill(bytes: &mut [u8]) {
    let values: &mut [f32] = bytemuck::cast_slice_mut(bytes);
    for (i, value) in values.iter_mut().enumerate() {
        *value = (i % 17) as f32 * 0.125 - 1.0;
    }
}
