//! The CPU backend: plans of steps, and the executor that walks them.

mod ahead;
mod lower;
mod memory;
mod place;
mod plan;
mod pool;
mod product;
mod reference;
mod slots;
mod trial;

#[cfg(feature = "opencl")]
pub(crate) use memory::{Span, place};
pub use plan::{NodeInfo, Plan};
pub use product::Products;
pub use trial::Trial;

use core::ops::Range;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::graph::{Choices, Context, Device, Evaluator, GraphError, Host, TensorId, passes};
use crate::tensor::{AlignedBytes, Storage, Tensor, TensorError};
use plan::{Place, Port};
#[cfg(feature = "rknn")]
pub(crate) use pool::{Job, Pool};
#[cfg(not(feature = "rknn"))]
use pool::{Job, Pool};
use tilewright_kernels::Isa;

/// Threads and memory to run plans with.
pub struct Executor {
    pool: Pool,
    isa: Isa,
    arena: AlignedBytes,
    scratch: AlignedBytes,
    operands: Operands,
    /// Results of the last run that had to make some. Once the caller has dropped them, their memory
    /// serves again: new memory costs more than many a step that writes it, since the system clears
    /// each page when it is touched first.
    spare: Vec<Tensor>,
    choices: Option<Arc<dyn Choices>>,
    device: Option<Arc<dyn Device>>,
    memory_limit: usize,
}

/// What a caller gives to a run.
#[derive(Clone, Copy, Default)]
pub struct Inputs<'a> {
    /// The caller's tensors.
    pub given: &'a [&'a Tensor],
    /// For each leaf of the plan, in the order of [`Plan::input_names`], which of `given` it is;
    /// `None` if they are in that order.
    pub order: Option<&'a [usize]>,
}

impl<'a> From<&'a [&'a Tensor]> for Inputs<'a> {
    fn from(given: &'a [&'a Tensor]) -> Self {
        Self { given, order: None }
    }
}

impl<'a, const N: usize> From<&'a [&'a Tensor; N]> for Inputs<'a> {
    fn from(given: &'a [&'a Tensor; N]) -> Self {
        Self { given, order: None }
    }
}

impl<'a> From<&'a Vec<&'a Tensor>> for Inputs<'a> {
    fn from(given: &'a Vec<&'a Tensor>) -> Self {
        Self { given, order: None }
    }
}

impl<'a> Inputs<'a> {
    /// The tensor for leaf `i`.
    #[inline]
    fn leaf(&self, i: usize) -> &'a Tensor {
        self.given[self.order.map_or(i, |order| order[i])]
    }

    fn len(&self) -> usize {
        self.order.map_or(self.given.len(), <[usize]>::len)
    }

    fn leaves(&self) -> impl Iterator<Item = &'a Tensor> + use<'a> {
        let all = *self;
        (0..all.len()).map(move |i| all.leaf(i))
    }
}

/// Addresses of the operands of all steps of a plan, one step's after the other's, of the steps'
/// results, and of those of the plan.
#[derive(Default)]
struct Operands {
    src: Vec<*const u8>,
    dst: Vec<*mut u8>,
    results: Vec<*mut u8>,
}

#[allow(unsafe_code)]
// SAFETY: as for `Base`: addresses only, which are dereferenced under the contract of `Step::run`.
unsafe impl Send for Operands {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Sync for Operands {}

impl Operands {
    fn resolve(&mut self, plan: &Plan, arena: Base, inputs: Inputs<'_>, results: &mut [Tensor]) {
        let start =
            |t: &mut Tensor| t.bytes_mut().map_or(core::ptr::null_mut(), <[u8]>::as_mut_ptr);
        self.results.clear();
        self.results.extend(results.iter_mut().map(start));
        let results = &self.results;
        self.dst.clear();
        self.src.clear();
        // Loops, as chains of iterators are calls for each operand unless a build joins its parts.
        for step in &plan.steps {
            self.dst.push(match &step.dst {
                Place::Arena(offset) => arena.at(*offset),
                Place::Output { index, offset } => results[*index].wrapping_add(*offset),
                Place::Constant(..) | Place::Input { .. } => unreachable!("steps write results"),
            });
            for place in &step.src {
                self.src.push(match place {
                    Place::Arena(offset) => arena.at(*offset).cast_const(),
                    Place::Constant(value, offset) => value.bytes().as_ptr().wrapping_add(*offset),
                    Place::Input { index, offset, arena: copy } => {
                        let given = inputs.leaf(*index).bytes().as_ptr();
                        let start =
                            if aligned(given) { given } else { arena.at(*copy).cast_const() };
                        start.wrapping_add(*offset)
                    }
                    Place::Output { index, offset } => {
                        results[*index].cast_const().wrapping_add(*offset)
                    }
                });
            }
        }
    }
}

/// Whether data lie as kernels need them.
fn aligned(p: *const u8) -> bool {
    p.addr().is_multiple_of(memory::ALIGN)
}

/// Bytes that several threads write, each where no other does.
#[derive(Clone, Copy)]
struct Base(*mut u8);

#[allow(unsafe_code)]
// SAFETY: the pointer is only used to derive addresses; who writes where is the business of
// `Step::run`, whose contract keeps threads apart.
unsafe impl Send for Base {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Sync for Base {}

impl Base {
    /// Address `offset` bytes on.
    fn at(self, offset: usize) -> *mut u8 {
        self.0.wrapping_add(offset)
    }
}

/// One run of a plan, as the threads of the pool see it.
struct Walk<'a> {
    plan: &'a Plan,
    phases: &'a [Range<usize>],
    operands: &'a Operands,
    scratch: Base,
    /// The first thing that went wrong.
    failure: Mutex<Option<GraphError>>,
    /// When the run began, and when each phase was done, if somebody wants to know.
    stamps: Option<Mutex<Vec<Instant>>>,
}

impl Job for Walk<'_> {
    fn phases(&self) -> usize {
        self.phases.len()
    }

    fn parts(&self, phase: usize) -> (usize, usize) {
        self.plan.steps[self.phases[phase].start].parts
    }

    fn run(&self, phase: usize, part: usize, thread: usize) {
        let scratch = self.scratch.at(thread * self.plan.scratch_bytes);
        for step in self.phases[phase].clone() {
            let planned = &self.plan.steps[step];
            let units = share(planned.step.units(), part, planned.parts.0);
            let src = &self.operands.src[planned.first_src..][..planned.src.len()];
            let dst = self.operands.dst[step];
            #[allow(unsafe_code)]
            // SAFETY: the plan placed operands and result inside the arena, apart from each other
            // while they live, or in constants, inputs and outputs of their size, which the caller
            // of `execute` keeps; scratch is this thread's part; the pool runs every part once, so
            // threads get disjoint units, and a phase when all of the one before is done; the ISA
            // was checked when the plan was made.
            let outcome = unsafe { planned.step.run(src, dst, scratch, units) };
            if let Err(e) = outcome {
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(e.at(&planned.node.name));
            }
        }
    }

    fn end(&self, _phase: usize) {
        if let Some(stamps) = &self.stamps {
            stamps.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
        }
    }
}

impl Executor {
    /// An executor on `threads` threads, the caller's included.
    ///
    /// # Errors
    /// [`GraphError::Kernel`] if the CPU lacks the instruction set, and
    /// [`GraphError::Threads`] if the system refuses a thread, or there are more than 4096.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, GraphError> {
        isa.require()?;
        let threads = threads.max(1);
        let pool = Pool::new(threads)
            .map_err(|e| GraphError::Threads { threads, reason: e.to_string() })?;
        let (arena, scratch) = (AlignedBytes::default(), AlignedBytes::default());
        let (operands, spare) = (Operands::default(), Vec::new());
        let (choices, device, memory_limit) = (None, None, usize::MAX);
        Ok(Self { pool, isa, arena, scratch, operands, spare, choices, device, memory_limit })
    }

    /// This executor, which refuses plans whose runs take more than `bytes` for intermediate
    /// tensors, results, scratch memory and packed weights.
    #[must_use]
    pub fn with_memory_limit(self, bytes: usize) -> Self {
        Self { memory_limit: bytes, ..self }
    }

    /// This executor, which asks `choices` how to compute ops before it decides by itself.
    #[must_use]
    pub fn with_choices(self, choices: Option<Arc<dyn Choices>>) -> Self {
        Self { choices, ..self }
    }

    /// This executor, which gives operations to `device` that it takes.
    #[must_use]
    pub fn with_device(self, device: Option<Arc<dyn Device>>) -> Self {
        Self { device, ..self }
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Whether a device computes graphs as a whole: what pays on the CPU only need not be done to them.
    pub fn leaves_the_cpu(&self) -> bool {
        self.device.as_ref().is_some_and(|d| d.takes_whole_graphs())
    }

    /// Lays a graph out and plans it for this executor.
    ///
    /// # Errors
    /// What passes and lowering refuse; [`GraphError::Memory`].
    pub fn plan(&self, cx: &mut Context, outputs: &[TensorId]) -> Result<Plan, GraphError> {
        let host = Host { isa: self.isa, threads: self.threads() };
        let (choices, device) = (self.choices.as_deref(), self.device.as_deref());
        if let Some(program) = device.and_then(|d| d.program(cx, outputs, host, choices)) {
            return Ok(Plan::on_device(program?));
        }
        let outputs = passes::assign_layouts(cx, outputs)?;
        let limit = self.memory_limit;
        let plan = Plan::new(cx, &outputs, host, limit, choices, device)?;
        let constants = plan.constant_bytes().saturating_add(cx.cache().packed_bytes());
        let needed = plan.run_bytes(self.threads()).saturating_add(constants);
        if needed > self.memory_limit {
            return Err(GraphError::Memory { needed, limit: self.memory_limit });
        }
        Ok(plan)
    }

    /// Runs a plan; gives the outputs in the order they were asked for. `times` gets the time of each
    /// step added.
    ///
    /// # Errors
    /// As [`Executor::run_into`].
    pub fn run<'a>(
        &mut self,
        plan: &Plan,
        inputs: impl Into<Inputs<'a>>,
        times: Option<&mut [Duration]>,
    ) -> Result<Vec<Tensor>, GraphError> {
        let mut results = self.spare();
        self.run_into(plan, inputs.into(), &mut results, times)?;
        self.keep(&results);
        Ok(results)
    }

    /// Tensors for [`Executor::run_into`] to write results into.
    pub fn spare(&mut self) -> Vec<Tensor> {
        core::mem::take(&mut self.spare)
    }

    /// Makes the memory of `results` serve again once the caller has dropped them.
    pub fn keep(&mut self, results: &[Tensor]) {
        self.spare = results.to_vec();
    }

    /// As [`Executor::run`], with the outputs in place of what `results` held: the memory of tensors
    /// there that have the right type and shape, and that nobody shares, is written again. A run that
    /// finds all of them, and whose plan was the last one's too, allocates nothing.
    ///
    /// # Errors
    /// A wrong number, type or shape of inputs, data that an operator refuses, lack of memory. What
    /// `results` hold is then unspecified.
    pub fn run_into(
        &mut self,
        plan: &Plan,
        inputs: Inputs<'_>,
        results: &mut Vec<Tensor>,
        times: Option<&mut [Duration]>,
    ) -> Result<(), GraphError> {
        check_inputs(plan, inputs)?;
        results.truncate(plan.outputs.len());
        for (i, port) in plan.outputs.iter().enumerate() {
            match results.get_mut(i) {
                Some(result) if fits(result, port) => {}
                Some(result) => *result = result_memory(port)?,
                None => results.push(result_memory(port)?),
            }
        }
        if let Some(program) = &plan.program {
            let given: Vec<&Tensor> = inputs.leaves().collect();
            return program.run(&given, results, times);
        }
        let threads = self.pool.threads();
        grow(&mut self.arena, plan.arena_bytes)?;
        grow(&mut self.scratch, plan.scratch_bytes * threads)?;
        for (port, input) in plan.inputs.iter().zip(inputs.leaves()) {
            if let Place::Input { arena, .. } = port.place
                && !aligned(input.bytes().as_ptr())
            {
                self.arena[arena..arena + input.bytes().len()].copy_from_slice(input.bytes());
            }
        }
        self.execute(plan, inputs, results, times)?;
        self.copy_results(plan, inputs, results);
        Ok(())
    }

    fn execute(
        &mut self,
        plan: &Plan,
        inputs: Inputs<'_>,
        results: &mut [Tensor],
        mut times: Option<&mut [Duration]>,
    ) -> Result<(), GraphError> {
        let (arena, scratch) = (Base(self.arena.as_mut_ptr()), Base(self.scratch.as_mut_ptr()));
        self.operands.resolve(plan, arena, inputs, results);
        // A profile wants to know of each step when it was done.
        let single: Vec<Range<usize>> = match times {
            Some(_) => (0..plan.steps.len()).map(|i| i..i + 1).collect(),
            None => Vec::new(),
        };
        let stamps = times.is_some().then(|| {
            let mut stamps = Vec::with_capacity(single.len() + 1);
            stamps.push(Instant::now());
            Mutex::new(stamps)
        });
        let walk = Walk {
            plan,
            phases: if stamps.is_some() { &single } else { &plan.phases },
            operands: &self.operands,
            scratch,
            failure: Mutex::new(None),
            stamps,
        };
        self.pool.run(&walk);
        let Walk { failure, stamps, .. } = walk;
        if let (Some(times), Some(stamps)) = (&mut times, stamps) {
            let stamps = stamps.into_inner().unwrap_or_else(PoisonError::into_inner);
            for (time, pair) in times.iter_mut().zip(stamps.windows(2)) {
                *time += pair[1] - pair[0];
            }
        }
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Copies the results that no step has written where the caller gets them.
    fn copy_results(&self, plan: &Plan, inputs: Inputs<'_>, results: &mut [Tensor]) {
        for (i, port) in plan.outputs.iter().enumerate() {
            let (before, rest) = results.split_at_mut(i);
            let [result, after @ ..] = rest else { return };
            let (from, offset) = match &port.place {
                Place::Output { index, .. } if *index == i => continue,
                Place::Arena(offset) => (&self.arena[..], *offset),
                Place::Constant(value, offset) => (value.bytes(), *offset),
                Place::Input { index, offset, .. } => (inputs.leaf(*index).bytes(), *offset),
                Place::Output { index, offset } => {
                    let other = if *index < i { &before[*index] } else { &after[*index - i - 1] };
                    (other.bytes(), *offset)
                }
            };
            let to = result.bytes_mut().expect("results are nobody else's");
            to.copy_from_slice(&from[offset..][..to.len()]);
        }
    }
}

fn check_inputs(plan: &Plan, inputs: Inputs<'_>) -> Result<(), GraphError> {
    if plan.inputs.len() != inputs.len() {
        return Err(GraphError::OperandCount {
            op: "run",
            expected: "as many inputs as the plan has",
            found: inputs.len(),
        });
    }
    for (port, input) in plan.inputs.iter().zip(inputs.leaves()) {
        if input.dtype() != port.info.dtype || !input.shape().has_dims(&port.info.dims) {
            return Err(GraphError::mismatch(
                "run",
                "an input must have the type and shape it was planned with",
                &[(&port.name, &port.info.dims), ("given", &input.dims())],
            ));
        }
    }
    Ok(())
}

/// Whether a result can be written into a tensor that the caller gave.
fn fits(tensor: &Tensor, port: &Port) -> bool {
    tensor.dtype() == port.info.dtype
        && tensor.shape().has_dims(&port.info.dims)
        && tensor.storage().is_owned()
        && tensor.storage().is_unique()
}

/// A tensor for a result.
fn result_memory(port: &Port) -> Result<Tensor, TensorError> {
    let bytes = AlignedBytes::zeroed(port.bytes())?;
    Tensor::from_storage(port.info.dtype, &port.info.dims, Storage::owned(bytes))
}

impl Plan {
    /// Names of the leaves that a run needs, in the order of [`Inputs::order`].
    pub fn input_names(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|p| p.name.as_str())
    }
}

/// Makes sure there are `bytes` bytes.
fn grow(memory: &mut AlignedBytes, bytes: usize) -> Result<(), TensorError> {
    if memory.len() < bytes {
        *memory = AlignedBytes::default();
        *memory = AlignedBytes::zeroed(bytes)?;
    }
    Ok(())
}

/// The units of one part: equal parts in order, so that neighbours stay together.
fn share(units: usize, part: usize, parts: usize) -> Range<usize> {
    if parts == 1 {
        return 0..units;
    }
    // `units * p / parts` without an overflow.
    let (each, rest) = (units / parts, units % parts);
    let at = |p: usize| each * p + rest * p / parts;
    at(part)..at(part + 1)
}

/// Computes `outputs` of a context whose leaves have values, on `threads` threads. Nothing is
/// fused, so the results have the bits of immediate mode.
///
/// # Errors
/// [`GraphError::UnsetLeaf`] for a leaf without a value, and what planning and running meet.
pub fn compute(
    cx: &Context,
    outputs: &[TensorId],
    isa: Isa,
    threads: usize,
) -> Result<Vec<Tensor>, GraphError> {
    for id in cx.build_forward(outputs)? {
        let record = cx.record(id);
        if record.is_unset() {
            return Err(GraphError::UnsetLeaf(record.name().to_owned()));
        }
    }
    let mut cx = cx.clone();
    let contiguous: Vec<TensorId> =
        outputs.iter().map(|&id| cx.cont_lazily(id)).collect::<Result<_, _>>()?;
    let mut executor = Executor::new(isa, threads)?;
    let plan = executor.plan(&mut cx, &contiguous)?;
    executor.run(&plan, &[], None)
}

/// An evaluator for [`Context::immediate`] that computes with this backend's kernels on one
/// thread.
pub fn evaluator(isa: Isa) -> Evaluator {
    Arc::new(move |cx: &Context, id| {
        let mut results = compute(cx, &[id], isa, 1)?;
        Ok(results.remove(0))
    })
}
