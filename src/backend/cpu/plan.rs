//! From records to a flat list of steps.

use core::ops::Range;
use std::collections::HashMap;

use super::memory::{Span, place};
use crate::graph::{
    ConstCache, Context, GraphError, Info, LowerCx, Op, Step, TensorId, View, ViewMut,
};
use crate::tensor::{Shape, ShapeError, Tensor};
use tilewright_kernels::Isa;

/// Below this estimate of its time a step runs on one thread, in nanoseconds: handing it out would
/// cost as much.
const SERIAL_BELOW_NS: u64 = 8_000;

/// Where an operand is found when a plan runs.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// Bytes from the start of the arena.
    Arena(usize),
    /// In the input of this number, so many bytes from its start. Nothing is written there.
    Input(usize, usize),
    /// In the result buffer of this number, so many bytes from its start.
    Result(usize, usize),
    /// In a tensor that is there before the run, this many bytes from its start.
    Constant(Tensor, usize),
}

/// Where a step writes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// At this byte of the arena.
    Arena(usize),
    /// In the result buffer of this number.
    Result(usize),
}

/// A leaf that the caller fills, or a result that the caller reads.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) name: String,
    pub(super) info: Info,
    pub(super) place: Place,
}

/// One step with its operands.
pub(super) struct PlannedStep {
    pub(super) step: Box<dyn Step>,
    pub(super) src: Vec<Place>,
    pub(super) dst: Target,
    /// Whether threads share the step.
    pub(super) parallel: bool,
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
}

/// A graph made ready to run: steps in order, and where everything lies.
pub struct Plan {
    pub(super) steps: Vec<PlannedStep>,
    pub(super) inputs: Vec<Port>,
    pub(super) outputs: Vec<Port>,
    /// Bytes of each result buffer. Outputs are computed in place there: the caller keeps them.
    pub(super) results: Vec<usize>,
    pub(super) arena_bytes: usize,
    pub(super) scratch_bytes: usize,
    weight_bytes: usize,
}

impl Plan {
    /// Plans what `outputs` need. Layouts must have been assigned.
    ///
    /// # Errors
    /// What lowering refuses, and sizes that overflow.
    pub fn new(
        cx: &Context,
        outputs: &[TensorId],
        isa: Isa,
        threads: usize,
    ) -> Result<Self, GraphError> {
        let order = cx.build_forward(outputs)?;
        let mut lowered = HashMap::new();
        for &id in &order {
            let record = cx.record(id);
            if record.value().is_none() && record.op().operator().is_some() {
                let step = lower(cx, id, isa, threads).map_err(|e| e.at(record.name()))?;
                lowered.insert(id, step);
            }
        }
        let slots = Slots::new(cx, &order, outputs, &lowered)?;
        let leaf = |&&id: &&TensorId| {
            let record = cx.record(id);
            record.value().is_none() && *record.op() == Op::Leaf
        };
        let leaves: HashMap<TensorId, usize> =
            order.iter().filter(leaf).enumerate().map(|(i, &id)| (id, i)).collect();
        let mut constants = HashMap::new();
        let mut place = |id: TensorId| -> Result<Place, GraphError> {
            let (root, offset) = root(cx, id);
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
                None => Ok(match leaves.get(&root) {
                    Some(&input) => Place::Input(input, offset),
                    None => slots.place(root, offset),
                }),
            }
        };
        let mut steps = Vec::new();
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
                    let src = record.src().iter().map(|&s| place(s)).collect::<Result<_, _>>()?;
                    let dst = slots.target(id);
                    let Lowered { step, macs, cost } =
                        lowered.remove(&id).expect("every operator was lowered");
                    let node = NodeInfo {
                        name: record.name().to_owned(),
                        op: op.name().to_owned(),
                        kernel: step.kernel(),
                        info: record.info(),
                        macs,
                    };
                    let parallel = threads > 1 && step.units() > 1 && cost >= SERIAL_BELOW_NS;
                    steps.push(PlannedStep { step, src, dst, parallel, node });
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
            steps,
            inputs,
            outputs,
            results: slots.results,
            arena_bytes: slots.arena_bytes,
            scratch_bytes: scratch_bytes.next_multiple_of(super::memory::ALIGN),
            weight_bytes,
        })
    }

    /// The steps in order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeInfo> {
        self.steps.iter().map(|s| &s.node)
    }

    /// Bytes of the arena that holds intermediate tensors.
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

/// The record whose memory a tensor lies in, and the bytes from its start.
fn root(cx: &Context, mut id: TensorId) -> (TensorId, usize) {
    let mut offset = 0;
    while let Some(more) = cx.record(id).view_offset() {
        offset += more;
        id = cx.record(id).src()[0];
    }
    (id, offset)
}

/// Where the results of the operators lie.
struct Slots {
    /// Per record: index of its span.
    span: Vec<Option<usize>>,
    /// Per span.
    places: Vec<Target>,
    /// Bytes of the result buffers.
    results: Vec<usize>,
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
            let computed = record.value().is_none() && record.view_offset().is_none();
            if !computed || *record.op() == Op::Leaf {
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
                spans.push(Span { bytes, first: step, last });
                spans.len() - 1
            });
        }
        // What the caller keeps is computed where the caller will find it.
        let (kept, inner): (Vec<usize>, Vec<usize>) =
            (0..spans.len()).partition(|&i| spans[i].last == usize::MAX);
        let arena: Vec<Span> = inner.iter().map(|&i| spans[i]).collect();
        let (offsets, arena_bytes) =
            place(&arena).ok_or_else(|| overflow(*order.last().expect("spans")))?;
        let mut places = vec![Target::Arena(0); spans.len()];
        for (&i, &offset) in inner.iter().zip(&offsets) {
            places[i] = Target::Arena(offset);
        }
        for (result, &i) in kept.iter().enumerate() {
            places[i] = Target::Result(result);
        }
        let results = kept.iter().map(|&i| spans[i].bytes).collect();
        Ok(Self { span, places, results, arena_bytes })
    }

    fn target(&self, root: TensorId) -> Target {
        self.places[self.span[root.index()].expect("every result has a span")]
    }

    fn place(&self, root: TensorId, offset: usize) -> Place {
        match self.target(root) {
            Target::Arena(at) => Place::Arena(at + offset),
            Target::Result(result) => Place::Result(result, offset),
        }
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
}

fn lower(cx: &Context, id: TensorId, isa: Isa, threads: usize) -> Result<Lowered, GraphError> {
    let record = cx.record(id);
    let operator = record.op().operator().expect("leaves and views have no step");
    let src: Vec<Info> = record.src().iter().map(|&s| cx.record(s).info()).collect();
    let shapes: Vec<Shape> = record.src().iter().map(|&s| *cx.record(s).shape()).collect();
    let values: Vec<Option<&Tensor>> = record.src().iter().map(|&s| cx.constant_value(s)).collect();
    let dst = record.info();
    let cache: &ConstCache = cx.cache();
    let lowering =
        LowerCx { isa, threads, src: &src, shapes: &shapes, values: &values, dst: &dst, cache };
    let macs = operator.macs(&src, &dst);
    let moved: usize =
        src.iter().chain([&dst]).map(|i| i.stored_bytes().unwrap_or(usize::MAX) / 16).sum();
    let step = match operator.lower(&lowering)? {
        Some(step) => step,
        None => Box::new(Reference { op: record.op().clone(), src, dst }),
    };
    Ok(Lowered { step, macs, cost: macs / 64 + moved as u64 })
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
