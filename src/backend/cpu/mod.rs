//! The CPU backend: plans of steps, and the executor that walks them.

mod memory;
mod plan;
mod pool;

pub use plan::{NodeInfo, Plan};

use core::ops::Range;
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::graph::{Context, Evaluator, GraphError, TensorId, passes};
use crate::tensor::{AlignedBytes, Storage, Tensor, TensorError};
use plan::{Place, Port, Target};
use pool::{Barrier, Pool};
use tilewright_kernels::Isa;

/// Threads and memory to run plans with.
pub struct Executor {
    pool: Pool,
    isa: Isa,
    arena: AlignedBytes,
    scratch: AlignedBytes,
    operands: Operands,
    /// The results of the last run: their memory serves the next one if the caller dropped them.
    kept: Vec<Storage>,
}

/// Addresses of the operands and the result of all steps of a plan, one step's after the other's.
#[derive(Default)]
struct Operands {
    src: Vec<*const u8>,
    dst: Vec<*mut u8>,
}

#[allow(unsafe_code)]
// SAFETY: as for `Base`: addresses only, which are dereferenced under the contract of `Step::run`.
unsafe impl Send for Operands {}
#[allow(unsafe_code)]
// SAFETY: as above.
unsafe impl Sync for Operands {}

impl Operands {
    fn resolve(&mut self, plan: &Plan, arena: Base, inputs: &[Tensor], results: &[Base]) {
        self.src.clear();
        self.src.extend(plan.steps.iter().flat_map(|s| &s.src).map(|place| match place {
            Place::Arena(offset) => arena.at(*offset).cast_const(),
            Place::Input(i, offset) => inputs[*i].bytes().as_ptr().wrapping_add(*offset),
            Place::Result(i, offset) => results[*i].at(*offset).cast_const(),
            Place::Constant(value, offset) => value.bytes().as_ptr().wrapping_add(*offset),
        }));
        self.dst.clear();
        self.dst.extend(plan.steps.iter().map(|step| match step.dst {
            Target::Arena(offset) => arena.at(offset),
            Target::Result(i) => results[i].at(0),
        }));
    }
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

impl Executor {
    /// An executor on `threads` threads, the caller's included.
    ///
    /// # Errors
    /// [`GraphError::Kernel`] if the CPU lacks the instruction set, and
    /// [`TensorError::OutOfMemory`] if the system refuses a thread.
    pub fn new(isa: Isa, threads: usize) -> Result<Self, GraphError> {
        let threads = threads.max(1);
        let pool = Pool::new(threads).map_err(|_| GraphError::Unsupported {
            op: "executor",
            what: format!("starting {threads} threads on this system"),
        })?;
        let (arena, scratch) = (AlignedBytes::default(), AlignedBytes::default());
        Ok(Self { pool, isa, arena, scratch, operands: Operands::default(), kept: Vec::new() })
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Lays a graph out and plans it for this executor.
    ///
    /// # Errors
    /// What passes and lowering refuse.
    pub fn plan(&self, cx: &mut Context, outputs: &[TensorId]) -> Result<Plan, GraphError> {
        let outputs = passes::assign_layouts(cx, outputs)?;
        Plan::new(cx, &outputs, self.isa, self.threads())
    }

    /// Runs a plan on `inputs`, in the order of the plan's leaves as given by
    /// [`Plan::input_names`]; returns the outputs in the order they were asked for. `times` gets
    /// the time of each step added.
    ///
    /// # Errors
    /// A wrong number, type or shape of inputs, data that an operator refuses, lack of memory.
    pub fn run(
        &mut self,
        plan: &Plan,
        inputs: &[&Tensor],
        times: Option<&mut [Duration]>,
    ) -> Result<Vec<Tensor>, GraphError> {
        self.check_inputs(plan, inputs)?;
        let threads = self.pool.threads();
        grow(&mut self.arena, plan.arena_bytes)?;
        grow(&mut self.scratch, plan.scratch_bytes * threads)?;
        let inputs: Vec<Tensor> =
            inputs.iter().map(|t| t.to_aligned()).collect::<Result<_, TensorError>>()?;
        let mut spare = core::mem::take(&mut self.kept).into_iter();
        let mut results = Vec::with_capacity(plan.results.len());
        for &bytes in &plan.results {
            let reclaimed = spare.next().and_then(Storage::reclaim).filter(|b| b.len() == bytes);
            results.push(match reclaimed {
                Some(memory) => memory,
                None => AlignedBytes::zeroed(bytes)?,
            });
        }
        drop(spare);
        self.execute(plan, &inputs, &mut results, times)?;
        let results: Vec<Storage> = results.into_iter().map(Storage::owned).collect();
        let outputs = plan.outputs.iter().map(|port| read(port, &inputs, &results)).collect();
        self.kept = results;
        outputs
    }

    fn check_inputs(&self, plan: &Plan, inputs: &[&Tensor]) -> Result<(), GraphError> {
        if plan.inputs.len() != inputs.len() {
            return Err(GraphError::OperandCount {
                op: "run",
                expected: "as many inputs as the plan has",
                found: inputs.len(),
            });
        }
        for (port, input) in plan.inputs.iter().zip(inputs) {
            if input.dtype() != port.info.dtype || input.dims() != port.info.dims {
                return Err(GraphError::mismatch(
                    "run",
                    "an input must have the type and shape it was planned with",
                    &[(&port.name, &port.info.dims), ("given", &input.dims())],
                ));
            }
        }
        Ok(())
    }

    fn execute(
        &mut self,
        plan: &Plan,
        inputs: &[Tensor],
        results: &mut [AlignedBytes],
        mut times: Option<&mut [Duration]>,
    ) -> Result<(), GraphError> {
        let threads = self.pool.threads();
        let (arena, scratch) = (Base(self.arena.as_mut_ptr()), Base(self.scratch.as_mut_ptr()));
        let results: Vec<Base> = results.iter_mut().map(|r| Base(r.as_mut_ptr())).collect();
        self.operands.resolve(plan, arena, inputs, &results);
        let operands = &self.operands;
        let failure: Mutex<Option<GraphError>> = Mutex::new(None);
        let barrier = Barrier::new(threads);
        let timing = times.is_some();
        let stamps: Mutex<Vec<Instant>> = Mutex::new(Vec::new());
        if timing {
            stamps.lock().unwrap_or_else(PoisonError::into_inner).reserve(plan.steps.len() + 1);
        }
        let stamp = |thread: usize| {
            if timing && thread == 0 {
                stamps.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
        };
        let job = |thread: usize| {
            let _guard = barrier.guard();
            let scratch = scratch.at(thread * plan.scratch_bytes);
            stamp(thread);
            let mut first = 0;
            for (i, planned) in plan.steps.iter().enumerate() {
                let units = planned.step.units();
                let range = if planned.parallel {
                    share(units, thread, threads)
                } else {
                    0..if thread == 0 { units } else { 0 }
                };
                if !range.is_empty() {
                    let src = &operands.src[first..][..planned.src.len()];
                    let dst = operands.dst[i];
                    #[allow(unsafe_code)]
                    // SAFETY: the plan placed operands and result inside the arena and the result
                    // buffers, apart from each other while they live, or operands in constants and
                    // inputs of their size, where no step writes; scratch is this
                    // thread's part; threads get disjoint units and barriers keep steps that
                    // depend on each other apart; the ISA was checked when the plan was made.
                    let outcome = unsafe { planned.step.run(src, dst, scratch, range) };
                    if let Err(e) = outcome {
                        failure
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .get_or_insert(e.at(&planned.node.name));
                    }
                }
                first += planned.src.len();
                // Steps of thread 0 alone need no barrier between them.
                let next = plan.steps.get(i + 1).is_some_and(|s| s.parallel);
                if planned.parallel || next {
                    barrier.wait();
                }
                stamp(thread);
            }
        };
        self.pool.run(&job);
        if let Some(times) = &mut times {
            let stamps = stamps.into_inner().unwrap_or_else(PoisonError::into_inner);
            for (time, pair) in times.iter_mut().zip(stamps.windows(2)) {
                *time += pair[1] - pair[0];
            }
        }
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

/// An output, where it lies if it fills its memory, else a copy.
fn read(port: &Port, inputs: &[Tensor], results: &[Storage]) -> Result<Tensor, GraphError> {
    let Port { info, place, .. } = port;
    let len = info.stored_bytes().expect("the result has a buffer");
    let (storage, offset) = match place {
        Place::Arena(_) => unreachable!("outputs have buffers of their own"),
        Place::Input(i, offset) => (inputs[*i].storage(), *offset),
        Place::Result(i, offset) => (&results[*i], *offset),
        Place::Constant(value, offset) => (value.storage(), *offset),
    };
    if offset == 0 && storage.len() == len {
        return Ok(Tensor::from_storage(info.dtype, &info.dims, storage.clone())?);
    }
    Ok(Tensor::from_bytes(info.dtype, &info.dims, &storage[offset..][..len])?)
}

impl Plan {
    /// Names of the leaves that a run needs, in the order [`Executor::run`] takes them.
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

/// The units of one thread: equal parts in order, so that neighbours stay together.
fn share(units: usize, thread: usize, threads: usize) -> Range<usize> {
    let at = |t: usize| (units as u128 * t as u128 / threads as u128) as usize;
    at(thread)..at(thread + 1)
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
        if *record.op() == crate::graph::Op::Leaf && record.value().is_none() {
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
