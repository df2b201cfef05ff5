//! From records to a flat list of steps.

use core::any::Any;
use core::ops::Range;
use std::collections::HashSet;
use std::sync::Arc;

use super::ahead::Ahead;
use super::lower::{Lowered, estimate, lower_all};
use super::pool::MAX_PARTS;
use super::slots::{Homes, Made, Slots, viewed};
use crate::graph::{
    Choices, Context, Device, GraphError, Host, Info, Layout, Op, PerRecord, Program, ProgramNode,
    Step, TensorId,
};
use crate::tensor::{DType, Tensor};
use tilewright_kernels::Workload;

/// Least estimated time of a part of a step, and most parts per thread: several, so that others can take
/// over from a thread that the system has stopped. They wait so long before they do, and the more parts
/// there are, the more often weights are read.
const PART_NS: u64 = 20_000;
const PARTS: u64 = 4;

/// The share of a step that parts repeat from which on there is one part per thread.
const REPEATED: f64 = 0.005;

/// Most steps that stand for one that puts their results together without copying anything. Who reads that has
/// all of them as inputs.
const MOST_LISTED: usize = 256;

/// Where an operand is found when a plan runs.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Bytes from the start of the arena.
    Arena(usize),
    /// In a tensor that is there before the run, this many bytes from its start.
    Constant(Tensor, usize),
    /// In what the caller gave as an input, `offset` bytes from its start; `arena` is where the
    /// input is copied to if it does not lie as kernels need it.
    Input { index: usize, offset: usize, arena: usize },
    /// In the memory of a result of the run, `offset` bytes from its start.
    Output { index: usize, offset: usize },
}

/// A leaf that the caller fills, or a result that the caller reads.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) info: Info,
    pub(super) place: Place,
}

impl Port {
    /// Bytes of its data.
    pub(super) fn bytes(&self) -> usize {
        self.info.stored_bytes().expect("it has a buffer")
    }
}

/// One step with its operands.
pub(super) struct PlannedStep {
    pub(super) step: Box<dyn Step>,
    pub(super) src: Vec<Place>,
    /// Position of the first operand among those of all steps.
    pub(super) first_src: usize,
    pub(super) dst: Place,
    /// Into how many parts the units are divided, and how many threads share them.
    pub(super) parts: (usize, usize),
    pub(super) node: NodeInfo,
}

/// What is known of one step of a plan, for listings and profiles.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeInfo {
    /// The tensor's name.
    pub name: String,
    /// The operator.
    pub op: String,
    /// The kernel.
    pub kernel: String,
    /// Type, extents and layout of the result.
    pub info: Info,
    /// Multiply-adds.
    pub macs: u64,
    /// Bytes of operands and result, each counted once.
    pub bytes: usize,
    /// Steps whose results it reads.
    pub inputs: Vec<usize>,
    /// Threads that share it.
    pub threads: usize,
    /// What can be tuned, if there is more than one way of computing it.
    pub workload: Option<Workload>,
}

/// A graph made ready to run: steps in order, and where everything lies.
pub struct Plan {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    pub(super) arena_bytes: usize,
    arena_bound: usize,
    constant_bytes: usize,
    pub(super) scratch_bytes: usize,
    weight_bytes: usize,
    /// Steps that run one after the other without a meeting of all threads.
    pub(super) phases: Vec<Range<usize>>,
    /// What computes all of it on a device, in place of steps.
    pub(super) program: Option<Box<dyn Program>>,
    /// The operations of that program.
    listed: Vec<NodeInfo>,
}

impl Plan {
    /// Plans what `outputs` need. Layouts must have been assigned. `choices` is asked how ops are
    /// computed best, `device` which of them it takes. No result may have more than `limit` bytes.
    ///
    /// # Errors
    /// What lowering refuses, and sizes that overflow; [`GraphError::Memory`].
    pub fn new(
        cx: &Context,
        outputs: &[TensorId],
        host: Host,
        limit: usize,
        choices: Option<&dyn Choices>,
        device: Option<&dyn Device>,
    ) -> Result<Self, GraphError> {
        let isa = host.isa;
        let order = cx.build_forward(outputs)?;
        let mut lowered = lower_all(cx, &order, host, limit, choices, device)?;
        let ahead = Ahead::new(cx, order, &lowered);
        let order = &ahead.order;
        let leaves = order.iter().copied().filter(|&id| cx.record(id).is_unset()).enumerate();
        let leaves: PerRecord<usize> = leaves.map(|(i, id)| (id, i)).collect();
        // The step that computes an output writes it where the caller gets it.
        let mut direct = PerRecord::default();
        for (index, &id) in outputs.iter().enumerate() {
            let (root, offset) = viewed(cx, id);
            let [whole, part] = [root, id].map(|id| cx.record(id).info());
            let plain = whole.layout == Layout::Plain && part.layout == Layout::Plain;
            let same = offset == 0 && whole.stored_bytes() == part.stored_bytes();
            if lowered.contains(root) && plain && same {
                direct.slot(root).get_or_insert(index);
            }
        }
        let made = Made { cx, ahead: &ahead, lowered: &lowered, outputs, direct: &direct };
        let homes = Homes::new(made)?;
        let slots = Slots::new(made, &homes)?;
        let mut constants = PerRecord::default();
        let mut place = |id: TensorId| -> Result<Place, GraphError> {
            let (root, offset) = homes.of(cx, id);
            if let Some(&index) = direct.get(root) {
                return Ok(Place::Output { index, offset });
            }
            if let Some(&index) = leaves.get(root) {
                return Ok(Place::Input { index, offset, arena: slots.offset(root) });
            }
            match cx.record(root).value() {
                Some(value) => {
                    let known: &mut Option<Tensor> = constants.slot(root);
                    let aligned = match known.clone() {
                        Some(aligned) => aligned,
                        None => cx.cache().aligned(value)?,
                    };
                    *known = Some(aligned.clone());
                    Ok(Place::Constant(aligned, offset))
                }
                None => Ok(Place::Arena(slots.offset(root) + offset)),
            }
        };
        let mut steps = Steps::default();
        let mut steps_of: Vec<Vec<usize>> = vec![Vec::new(); cx.len()];
        // Steps before others by the span of their result, which several may read.
        let mut prepared: Vec<Option<usize>> = vec![None; slots.spans()];
        let mut inputs = Vec::new();
        for (position, &id) in order.iter().enumerate() {
            let record = cx.record(id);
            match record.op() {
                _ if record.value().is_some() => {}
                Op::Leaf => inputs.push(Port {
                    name: record.name().to_owned(),
                    info: record.info(),
                    place: place(id)?,
                }),
                Op::View(_) => {}
                op => {
                    let lowered = lowered.remove(id).expect("every operator was lowered");
                    let inputs = record.src().iter().map(|&s| &steps_of[viewed(cx, s).0.index()]);
                    let inputs: Vec<usize> = inputs.flatten().copied().collect();
                    if inputs.len() <= MOST_LISTED && homes.done(cx, id, &*lowered.step) {
                        steps_of[id.index()] = inputs;
                        continue;
                    }
                    // What was packed ahead has no place; nobody looks for it there.
                    let read = |i: usize| {
                        let before = lowered.before.iter().any(|(step, _)| step.reads(i));
                        before || lowered.step.reads(i)
                    };
                    let operand = |(i, &s): (usize, &TensorId)| match read(i) {
                        true => place(s),
                        false => Ok(Place::Arena(0)),
                    };
                    let mut src: Vec<Place> =
                        record.src().iter().enumerate().map(operand).collect::<Result<_, _>>()?;
                    let dst = place(id)?;
                    let Lowered { step, before, macs, bytes, cost, threads } = lowered;
                    let mut node = NodeInfo {
                        name: record.name().to_owned(),
                        op: op.name().to_owned(),
                        kernel: step.kernel(),
                        info: record.info(),
                        macs,
                        bytes,
                        inputs,
                        threads: 1,
                        workload: step.workload(),
                    };
                    let mut first = 0;
                    if ahead.position(id).is_some() {
                        src.push(Place::Arena(slots.workspace(id, 0).1));
                        first = 1;
                    }
                    for (i, (before, bytes)) in before.into_iter().enumerate() {
                        let (span, offset) = slots.workspace(id, first + i);
                        let workspace = Place::Arena(offset);
                        if let Some(at) = prepared[span] {
                            node.inputs = vec![at];
                            src.push(workspace);
                            continue;
                        }
                        let prepare = prepare(&*before, bytes, &node);
                        let cost = match before.is_main() {
                            true => cost,
                            false => estimate(isa, 0, 2 * bytes as u64),
                        };
                        let (src_now, cost) = (src.clone(), (cost, threads));
                        let at = steps.push(before, src_now, workspace.clone(), prepare, cost);
                        prepared[span] = Some(at);
                        node.inputs = vec![at];
                        src.push(workspace);
                    }
                    let at = steps.push(step, src, dst, node, (cost, threads));
                    steps_of[id.index()] = vec![at];
                }
            }
            for later in ahead.behind(position) {
                let Some(lowered) = lowered.get_mut(later) else { continue };
                let (begin, bytes) = lowered.before.remove(0);
                let record = cx.record(later);
                let operand = |(i, &s): (usize, &TensorId)| match i {
                    0 => place(s),
                    _ => Ok(Place::Arena(0)),
                };
                let src: Vec<Place> =
                    record.src().iter().enumerate().map(operand).collect::<Result<_, _>>()?;
                let node = NodeInfo {
                    name: record.name().to_owned(),
                    op: String::new(),
                    kernel: String::new(),
                    info: record.info(),
                    macs: 0,
                    bytes: 0,
                    inputs: steps_of[viewed(cx, record.src()[0]).0.index()].clone(),
                    threads: 1,
                    workload: None,
                };
                let node = prepare(&*begin, bytes, &node);
                let dst = Place::Arena(slots.workspace(later, 0).1);
                steps.push(begin, src, dst, node, (0, 1));
            }
        }
        let steps = steps.all;
        let outputs = outputs
            .iter()
            .map(|&id| {
                let record = cx.record(id);
                Ok(Port { name: record.name().to_owned(), info: record.info(), place: place(id)? })
            })
            .collect::<Result<_, GraphError>>()?;
        let mut seen = HashSet::new();
        let constant_bytes = constants
            .values()
            .filter(|t: &&Tensor| t.storage().is_owned() && seen.insert(t.storage().id()))
            .map(|t| t.bytes().len())
            .sum();
        let scratch_bytes = steps.iter().map(|s| s.step.scratch_bytes()).max().unwrap_or(0);
        let weight_bytes = order
            .iter()
            .filter(|&&id| cx.record(id).is_constant())
            .map(|&id| cx.record(id).shape().bytes(cx.dtype(id)))
            .sum();
        Ok(Self {
            phases: phases(&steps),
            steps,
            inputs,
            outputs,
            arena_bytes: slots.arena_bytes,
            arena_bound: slots.arena_bound,
            constant_bytes,
            scratch_bytes: scratch_bytes.next_multiple_of(super::memory::ALIGN),
            weight_bytes,
            program: None,
            listed: Vec::new(),
        })
    }

    /// One step without inputs or outputs that anybody sees.
    pub(super) fn single(step: PlannedStep, arena_bytes: usize) -> Self {
        let scratch_bytes = step.step.scratch_bytes().next_multiple_of(super::memory::ALIGN);
        let (steps, phases) = (vec![step], core::iter::once(0..1).collect());
        let (inputs, outputs) = (Vec::new(), Vec::new());
        let (arena_bound, constant_bytes, weight_bytes) = (arena_bytes, 0, 0);
        Self {
            steps,
            inputs,
            outputs,
            arena_bytes,
            arena_bound,
            constant_bytes,
            scratch_bytes,
            weight_bytes,
            phases,
            program: None,
            listed: Vec::new(),
        }
    }

    /// A plan that a device computes as a whole.
    pub(super) fn on_device(program: Box<dyn Program>) -> Self {
        let port = |(index, (name, info)): (usize, &(String, Info))| Port {
            name: name.clone(),
            info: info.clone(),
            place: Place::Input { index, offset: 0, arena: 0 },
        };
        let listed = program.nodes().iter().map(|node| {
            let ProgramNode { name, op, kernel, info, macs, bytes, inputs } = node.clone();
            let (threads, workload) = (1, None);
            NodeInfo { name, op, kernel, info, macs, bytes, inputs, threads, workload }
        });
        Self {
            steps: Vec::new(),
            inputs: program.inputs().iter().enumerate().map(port).collect(),
            outputs: program.outputs().iter().enumerate().map(port).collect(),
            arena_bytes: program.bytes(),
            arena_bound: program.bytes(),
            constant_bytes: 0,
            scratch_bytes: 0,
            weight_bytes: program.constant_bytes(),
            phases: Vec::new(),
            listed: listed.collect(),
            program: Some(program),
        }
    }

    /// The steps in order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.steps.iter().map(|s| &s.node).chain(&self.listed)
    }

    /// What keeps constants on the device that computes it, if one computes it as a whole.
    pub(crate) fn kept(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        self.program.as_ref().map_or_else(Vec::new, |program| program.kept())
    }

    /// Number of results.
    pub fn outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Bytes of the arena that holds inputs and intermediate tensors.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// The largest sum of tensors of the arena that must exist at one time: no arena is smaller.
    pub fn arena_bound(&self) -> usize {
        self.arena_bound
    }

    /// Bytes of the constants that steps read as they are, and that do not lie in a mapped file.
    pub fn constant_bytes(&self) -> usize {
        self.constant_bytes
    }

    /// Bytes that a run on `threads` threads takes: arena, scratch memory, results.
    pub fn run_bytes(&self, threads: usize) -> usize {
        let results = self.outputs.iter().map(Port::bytes).fold(0, usize::saturating_add);
        let scratch = self.scratch_bytes.saturating_mul(threads);
        self.arena_bytes.saturating_add(scratch).saturating_add(results)
    }

    /// Bytes of the constants the plan uses, before packing.
    pub fn weight_bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Multiply-adds of one run.
    pub fn macs(&self) -> u64 {
        self.nodes().map(|n| n.macs).sum()
    }
}

/// The steps of a plan in the making.
#[derive(Default)]
struct Steps {
    all: Vec<PlannedStep>,
    first_src: usize,
}

impl Steps {
    /// Adds a step of some cost that so many threads are worth; gives its number.
    fn push(
        &mut self,
        step: Box<dyn Step>,
        src: Vec<Place>,
        dst: Place,
        node: NodeInfo,
        (cost, threads): (u64, usize),
    ) -> usize {
        let parts = parts(&*step, cost, threads);
        let node = NodeInfo { threads: parts.1, ..node };
        let first_src = self.first_src;
        self.first_src += src.len();
        self.all.push(PlannedStep { step, src, first_src, dst, parts, node });
        self.all.len() - 1
    }
}

/// What is known of a step before the one of `node`.
fn prepare(step: &dyn Step, bytes: usize, node: &NodeInfo) -> NodeInfo {
    NodeInfo {
        op: "prepare".to_owned(),
        kernel: step.kernel(),
        info: Info::plain(DType::U8, vec![bytes]),
        macs: 0,
        bytes: 2 * bytes,
        workload: None,
        ..node.clone()
    }
}

/// Into how many parts a step is divided, and how many threads share them.
pub(super) fn parts(step: &dyn Step, cost: u64, threads: usize) -> (usize, usize) {
    let units = step.units();
    let threads = threads.min(units).max(1);
    if threads == 1 {
        return (1, 1);
    }
    let most = if step.repeated() > REPEATED { 1 } else { PARTS };
    let each = (cost / threads as u64 / PART_NS).clamp(1, most) as usize;
    ((threads * each).min(units).min(MAX_PARTS), threads)
}

/// Steps of one thread that follow each other make one phase, other steps a phase each.
fn phases(steps: &[PlannedStep]) -> Vec<Range<usize>> {
    let mut phases: Vec<Range<usize>> = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let alone = step.parts.1 == 1;
        match phases.last_mut() {
            Some(last) if alone && steps[last.start].parts.1 == 1 => last.end = i + 1,
            _ => phases.push(i..i + 1),
        }
    }
    phases
}
