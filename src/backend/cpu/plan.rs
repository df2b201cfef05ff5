//! From records to a flat list of steps.

use core::ops::Range;
use std::collections::HashMap;

use super::memory::{Span, place};
use super::pool::MAX_PARTS;
use crate::graph::{
    Choices, ConstCache, Context, GraphError, Info, Layout, LowerCx, Op, Step, TensorId, View,
    ViewMut,
};
use crate::tensor::{Shape, ShapeError, Tensor};
use tilewright_kernels::{Isa, Workload};

/// Least estimated time of a step per thread that takes part in it, in nanoseconds. Sharing costs
/// a few hundred, and data that change cores as much again.
const SHARE_NS: u64 = 5_000;

/// Least estimated time of a part of a step, and most parts per thread: several, so that others
/// can take over from a thread that the system has stopped.
const PART_NS: u64 = 3_000;
const PARTS: u64 = 4;

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
    pub(super) scratch_bytes: usize,
    weight_bytes: usize,
    /// Steps that run one after the other without a meeting of all threads.
    pub(super) phases: Vec<Range<usize>>,
}

impl Plan {
    /// Plans what `outputs` need. Layouts must have been assigned. `choices` is asked how ops are
    /// computed best.
    ///
    /// # Errors
    /// What lowering refuses, and sizes that overflow.
    pub fn new(
        cx: &Context,
        outputs: &[TensorId],
        isa: Isa,
        threads: usize,
        choices: Option<&dyn Choices>,
    ) -> Result<Self, GraphError> {
        let order = cx.build_forward(outputs)?;
        let mut lowered = HashMap::new();
        for &id in &order {
            let record = cx.record(id);
            if record.value().is_none() && record.op().operator().is_some() {
                let step = lower(cx, id, isa, threads, choices).map_err(|e| e.at(record.name()))?;
                lowered.insert(id, step);
            }
        }
        let slots = Slots::new(cx, &order, outputs, &lowered)?;
        let is_input =
            |id: &TensorId| *cx.record(*id).op() == Op::Leaf && cx.record(*id).value().is_none();
        let leaves = order.iter().copied().filter(is_input).enumerate();
        let leaves: HashMap<TensorId, usize> = leaves.map(|(i, id)| (id, i)).collect();
        // The step that computes an output writes it where the caller gets it.
        let mut direct = HashMap::new();
        for (index, &id) in outputs.iter().enumerate() {
            let (root, offset) = root(cx, id);
            let [whole, part] = [root, id].map(|id| cx.record(id).info());
            let plain = whole.layout == Layout::Plain && part.layout == Layout::Plain;
            let same = offset == 0 && whole.stored_bytes() == part.stored_bytes();
            if lowered.contains_key(&root) && plain && same {
                direct.entry(root).or_insert(index);
            }
        }
        let mut constants = HashMap::new();
        let mut place = |id: TensorId| -> Result<Place, GraphError> {
            let (root, offset) = root(cx, id);
            if let Some(&index) = direct.get(&root) {
                return Ok(Place::Output { index, offset });
            }
            if let Some(&index) = leaves.get(&root) {
                return Ok(Place::Input { index, offset, arena: slots.offset(root) });
            }
            match cx.record(root).value() {
                Some(value) => {
                    let aligned = match constants.entry(root) {
                        std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
                        std::collections::hash_map::Entry::Vacant(e) => {
                            e.insert(value.to_aligned()?)
                        }
                    };
                    Ok(Place::Constant(aligned.clone(), offset))
                }
                None => Ok(Place::Arena(slots.offset(root) + offset)),
            }
        };
        let mut steps: Vec<PlannedStep> = Vec::new();
        let mut first_src = 0;
        let mut inputs = Vec::new();
        for &id in &order {
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
                    let src: Vec<Place> =
                        record.src().iter().map(|&s| place(s)).collect::<Result<_, _>>()?;
                    let dst = place(id)?;
                    let Lowered { step, macs, cost, threads } =
                        lowered.remove(&id).expect("every operator was lowered");
                    let parts = parts(step.units(), cost, threads);
                    let node = NodeInfo {
                        name: record.name().to_owned(),
                        op: op.name().to_owned(),
                        kernel: step.kernel(),
                        info: record.info(),
                        macs,
                        threads: parts.1,
                        workload: step.workload(),
                    };
                    let operands = src.len();
                    steps.push(PlannedStep { step, src, first_src, dst, parts, node });
                    first_src += operands;
                }
            }
        }
        let outputs = outputs
            .iter()
            .map(|&id| {
                let record = cx.record(id);
                Ok(Port { name: record.name().to_owned(), info: record.info(), place: place(id)? })
            })
            .collect::<Result<_, GraphError>>()?;
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
            scratch_bytes: scratch_bytes.next_multiple_of(super::memory::ALIGN),
            weight_bytes,
        })
    }

    /// One step without inputs or outputs that anybody sees.
    pub(super) fn single(step: PlannedStep, arena_bytes: usize) -> Self {
        let scratch_bytes = step.step.scratch_bytes().next_multiple_of(super::memory::ALIGN);
        let (steps, phases) = (vec![step], core::iter::once(0..1).collect());
        let (inputs, outputs) = (Vec::new(), Vec::new());
        Self { steps, inputs, outputs, arena_bytes, scratch_bytes, weight_bytes: 0, phases }
    }

    /// The steps in order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.steps.iter().map(|s| &s.node)
    }

    /// Bytes of the arena that holds inputs and intermediate tensors.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
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

/// Into how many parts a step is divided, and how many threads share them.
pub(super) fn parts(units: usize, cost: u64, threads: usize) -> (usize, usize) {
    let threads = threads.min(units).max(1);
    if threads == 1 {
        return (1, 1);
    }
    let each = (cost / threads as u64 / PART_NS).clamp(1, PARTS) as usize;
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

/// The record whose memory a tensor lies in, and the bytes from its start.
fn root(cx: &Context, mut id: TensorId) -> (TensorId, usize) {
    let mut offset = 0;
    while let Some(more) = cx.record(id).view_offset() {
        offset += more;
        id = cx.record(id).src()[0];
    }
    (id, offset)
}

/// Where the results of a graph lie.
struct Slots {
    /// Per record: index of its span.
    span: Vec<Option<usize>>,
    offsets: Vec<usize>,
    arena_bytes: usize,
}

impl Slots {
    fn new(
        cx: &Context,
        order: &[TensorId],
        outputs: &[TensorId],
        lowered: &HashMap<TensorId, Lowered>,
    ) -> Result<Self, GraphError> {
        let overflow = |id: TensorId| GraphError::Shape {
            op: cx.record(id).op().name(),
            source: ShapeError::Overflow(cx.dims(id)),
        };
        // Last step (position in `order`) that reads each root.
        let mut last = vec![0; cx.len()];
        for (step, &id) in order.iter().enumerate() {
            for &s in cx.record(id).src() {
                last[root(cx, s).0.index()] = step;
            }
        }
        for &output in outputs {
            last[root(cx, output).0.index()] = usize::MAX;
        }
        let mut spans: Vec<Span> = Vec::new();
        let mut span = vec![None; cx.len()];
        for (step, &id) in order.iter().enumerate() {
            let record = cx.record(id);
            if record.value().is_some() || record.view_offset().is_some() {
                continue;
            }
            let bytes = record.info().stored_bytes().ok_or_else(|| overflow(id))?;
            let last = last[id.index()].max(step);
            let reused = lowered.get(&id).and_then(|l| {
                reusable(cx, id, &*l.step, bytes, |s| {
                    let i: usize = span[s.index()]?;
                    (spans[i].last == step && spans[i].bytes == bytes).then_some(i)
                })
            });
            span[id.index()] = Some(if let Some(i) = reused {
                spans[i].last = last;
                i
            } else {
                // The caller fills leaves before the first step.
                let first = if *record.op() == Op::Leaf { 0 } else { step };
                spans.push(Span { bytes, first, last });
                spans.len() - 1
            });
        }
        let (offsets, arena_bytes) =
            place(&spans).ok_or_else(|| overflow(*order.last().expect("spans")))?;
        Ok(Self { span, offsets, arena_bytes })
    }

    fn offset(&self, root: TensorId) -> usize {
        self.offsets[self.span[root.index()].expect("every result has a span")]
    }
}

/// The span of an operand that the step may write its result into. `dying` gives the span of a
/// record that is needed by nobody after this step.
fn reusable(
    cx: &Context,
    id: TensorId,
    step: &dyn Step,
    bytes: usize,
    dying: impl Fn(TensorId) -> Option<usize>,
) -> Option<usize> {
    let record = cx.record(id);
    record.src().iter().enumerate().find_map(|(i, &s)| {
        let (root, offset) = root(cx, s);
        let whole = offset == 0
            && cx.record(s).info().stored_bytes() == Some(bytes)
            && cx.record(s).layout() == record.layout();
        // Another operand may be a part of the same memory that the kernel reads later.
        let alone = record
            .src()
            .iter()
            .enumerate()
            .all(|(j, &t)| i == j || s == t || self::root(cx, t).0 != root);
        (step.may_overwrite(i) && whole && alone).then(|| dying(root)).flatten()
    })
}

/// What a record becomes.
struct Lowered {
    step: Box<dyn Step>,
    macs: u64,
    /// Rough time of the step on one thread, in nanoseconds.
    cost: u64,
    /// Threads that it is worth.
    threads: usize,
}

/// Rough time of a step on one thread, in nanoseconds, from its multiply-adds and the bytes of
/// operands and result.
pub(super) fn estimate(isa: Isa, macs: u64, bytes: u64) -> u64 {
    let macs_per_ns = match isa {
        Isa::Scalar => 2,
        Isa::Neon => 12,
        Isa::Avx2 => 50,
        Isa::Avx512 => 100,
        // Those that add kernels of other types: as what they build on.
        other => return other.base().map_or(macs / 2, |base| estimate(base, macs, bytes)),
    };
    macs / macs_per_ns + bytes / 16
}

fn lower(
    cx: &Context,
    id: TensorId,
    isa: Isa,
    threads: usize,
    choices: Option<&dyn Choices>,
) -> Result<Lowered, GraphError> {
    let record = cx.record(id);
    let operator = record.op().operator().expect("leaves and views have no step");
    let src: Vec<Info> = record.src().iter().map(|&s| cx.record(s).info()).collect();
    let shapes: Vec<Shape> = record.src().iter().map(|&s| *cx.record(s).shape()).collect();
    let values: Vec<Option<&Tensor>> = record.src().iter().map(|&s| cx.constant_value(s)).collect();
    let dst = record.info();
    let cache: &ConstCache = cx.cache();
    let macs = operator.macs(&src, &dst);
    let bytes: usize = src.iter().chain([&dst]).filter_map(|i| i.stored_bytes()).sum();
    let cost = estimate(isa, macs, bytes as u64);
    let worth = usize::try_from(cost / SHARE_NS).unwrap_or(usize::MAX);
    let threads = threads.min(worth).max(1);
    let lowering = LowerCx {
        isa,
        threads,
        src: &src,
        shapes: &shapes,
        values: &values,
        dst: &dst,
        cache,
        choices,
    };
    let step = match operator.lower(&lowering)? {
        Some(step) => step,
        None => Box::new(Reference { op: record.op().clone(), src, dst }),
    };
    Ok(Lowered { step, macs, cost, threads })
}

/// Computes an operator with its reference.
struct Reference {
    op: Op,
    src: Vec<Info>,
    dst: Info,
}

impl Step for Reference {
    fn kernel(&self) -> String {
        "reference".to_owned()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let bytes = |info: &Info| info.stored_bytes().expect("the tensor has a buffer");
        // A run should not allocate, and few operators have more operands than this.
        let mut few = [View { dtype: self.dst.dtype, dims: &[], bytes: &[] }; 8];
        let mut many = Vec::new();
        let views = if src.len() <= few.len() {
            &mut few[..src.len()]
        } else {
            many.resize(src.len(), few[0]);
            &mut many
        };
        for ((slot, info), &p) in views.iter_mut().zip(&self.src).zip(src) {
            // SAFETY: the caller vouches for the whole operand.
            let bytes = unsafe { core::slice::from_raw_parts(p, bytes(info)) };
            *slot = View { dtype: info.dtype, dims: &info.dims, bytes };
        }
        // SAFETY: the caller vouches for the whole result. It overlaps no operand, as this step may
        // overwrite none.
        let bytes = unsafe { core::slice::from_raw_parts_mut(dst, bytes(&self.dst)) };
        let mut result = ViewMut { dtype: self.dst.dtype, dims: &self.dst.dims, bytes };
        self.op.operator().expect("an operator").eval(views, &mut result)
    }
}
