//! Graphs as lists of kernels, and their runs.

use core::any::Any;
use std::sync::{Arc, Mutex};

use super::fuse::{self, Fused, Group};
use super::ops::{self, Arg, Call, Check};
use super::planner::{Planner, Ports, overflow, root};
use super::sys::{Launch, Recorded, Value};
use super::weights::Constant;
use super::{OpenClError, Region, Shared, lock};
use crate::backend::cpu::{Executor, Plan, place};
use crate::graph::{
    Choices, Context, GraphError, Host, Info, Op, PerRecord, ProgramNode, TensorId,
};
use crate::tensor::Tensor;

/// Where a tensor is found.
#[derive(Clone)]
pub(super) enum Place {
    /// In the plan's memory on the device, so many bytes from the start of a tensor that has a place there,
    /// or, once everything has one, from its own.
    Device(usize),
    /// Among constants on the device, from a byte on.
    Constant(TensorId, usize),
    /// In input `i` of the run, from a byte on; on the device too, if a kernel reads it there.
    Input(usize, usize),
    /// In what an early step has computed on the host, from a byte on.
    Early(usize, usize),
}

/// An operation that the CPU computes.
pub(super) struct OnHost {
    pub(super) plan: Plan,
    /// Operands that are not constants, in the order of the plan's leaves, with their tensors.
    pub(super) operands: Vec<(Place, Info)>,
    /// The tensors that the operands look at.
    pub(super) roots: Vec<TensorId>,
}

/// What happens in a run after the inputs were sent.
pub(super) enum Step {
    /// Kernels, one after the other.
    Kernels(Vec<Arc<Launch>>),
    /// An operation on the CPU, whose result goes to a place on the device.
    Host(Box<OnHost>, usize),
}

/// A graph made ready to run on a device.
pub(super) struct Planned {
    pub(super) shared: Arc<Shared>,
    pub(super) inputs: Vec<(String, Info)>,
    pub(super) output_infos: Vec<(String, Info)>,
    pub(super) nodes: Vec<ProgramNode>,
    /// All kernels of the steps, if there are no others and the driver has recorded them.
    pub(super) recorded: Option<Recorded>,
    /// Steps with the number of their node.
    pub(super) steps: Vec<(usize, Step)>,
    /// Operations on the CPU that need nothing of the device: they come before all others.
    pub(super) early: Vec<(usize, OnHost)>,
    /// Inputs, and results of early steps, that kernels read: where they go on the device.
    pub(super) uploads: Vec<(Place, usize, usize)>,
    /// Small ones of them.
    pub(super) sent: Option<Sent>,
    pub(super) checks: Vec<(usize, Check)>,
    pub(super) outputs: Vec<Place>,
    pub(super) arena: Region,
    pub(super) constants: PerRecord<Constant>,
    pub(super) values: PerRecord<Tensor>,
    /// What steps read beside constants as they are: packed ones, and caches.
    pub(super) keep: Vec<Arc<dyn Any + Send + Sync>>,
    /// Computes what the device does not. Held by the run in progress: the memory is used by one at a time.
    pub(super) host: Mutex<Working>,
}

/// Small inputs, which are sent by one command.
pub(super) struct Sent {
    /// Where they go on the device.
    pub(super) at: usize,
    pub(super) bytes: usize,
    /// What, at which byte of them, and how many bytes.
    pub(super) parts: Vec<(Place, usize, usize)>,
}

/// What a run works with on the host.
pub(super) struct Working {
    pub(super) executor: Executor,
    /// The bytes of [`Sent`].
    pub(super) sent: Vec<u8>,
}

/// An operation that was lowered, before anything has a place.
enum Made {
    Kernels { calls: Vec<Call>, temps: Vec<usize>, ports: Ports },
    Host(Box<OnHost>),
}

impl Planned {
    pub(super) fn new(
        shared: &Arc<Shared>,
        cx: &Context,
        outputs: &[TensorId],
        host: Host,
        choices: Option<&dyn Choices>,
    ) -> Result<Self, GraphError> {
        let order = cx.build_forward(outputs)?;
        let is_leaf =
            |id: &TensorId| *cx.record(*id).op() == Op::Leaf && cx.record(*id).value().is_none();
        let leaves: Vec<TensorId> = order.iter().copied().filter(is_leaf).collect();
        let mut planner = Planner {
            shared,
            cx,
            host,
            choices,
            inputs: leaves.iter().enumerate().map(|(i, &id)| (id, i)).collect(),
            early: PerRecord::default(),
            span_of: PerRecord::default(),
            spans: Vec::new(),
            sent: None,
            constants: PerRecord::default(),
        };
        let is_step = |id: &TensorId| {
            cx.record(*id).value().is_none() && cx.record(*id).op().operator().is_some()
        };
        let (mut made, mut nodes, mut early, mut checks) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut keep: Vec<Arc<dyn Any + Send + Sync>> = Vec::new();
        let mut node_of = PerRecord::default();
        let mut on_cpu: Vec<(String, usize)> = Vec::new();
        let mut temp_spans: Vec<Vec<usize>> = Vec::new();
        let Fused { groups, turned, members } = match shared.fuse {
            true => fuse::find(shared, cx, &order, outputs),
            false => Fused::default(),
        };
        for id in order.iter().copied().filter(is_step) {
            let record = cx.record(id);
            let now = made.len();
            let group = groups.get(id);
            if group.is_none() && members.contains(id) {
                continue;
            }
            let rotations = turned.get(id);
            let ports = match rotations {
                Some(turned) => planner.turned_ports(id, turned),
                None => planner.ports(id, group),
            };
            let lowered = match (group, rotations, record.op()) {
                (Some(group), ..) => planner.lower_group(group, &ports),
                (None, Some(turned), Op::KvAttention(op)) => {
                    planner.lower_turned(op, turned, &ports)
                }
                _ => planner.lower(&ports, |cx| ops::lower(record.op(), cx)),
            };
            let lowered = lowered.map_err(|e| e.at(record.name()))?;
            let alone = group.is_none() && rotations.is_none();
            debug_assert!(alone || lowered.is_some(), "groups are made of what fits");
            // What is to be checked must be known on the host before the run.
            let lowered = lowered.filter(|l| {
                l.check.is_none_or(|check| {
                    matches!(planner.find(record.src()[check.operand]).1, Place::Input(..))
                })
            });
            let mut mine = group.map_or_else(|| vec![id], Group::members);
            if let Some(turned) = rotations {
                let products = turned.products.iter().flat_map(Group::members);
                mine.splice(0..0, products.chain(turned.ropes));
            }
            let node = node(cx, &mine, &ports.src, &node_of, lowered.as_ref());
            mine.iter().for_each(|&id| node_of.insert(id, nodes.len()));
            nodes.push(node);
            match lowered {
                Some(lowered) => {
                    if let Some(check) = lowered.check {
                        let Place::Input(input, _) = planner.find(record.src()[check.operand]).1
                        else {
                            continue;
                        };
                        checks.push((input, check));
                    }
                    let reads = lowered.calls.iter().flat_map(|c| &c.args);
                    for i in reads.filter_map(|arg| match arg {
                        Arg::Src(i) | Arg::Part(i, _) => Some(*i),
                        _ => None,
                    }) {
                        planner.use_on_device(ports.src[i], now)?;
                    }
                    for &result in &ports.dst {
                        planner.use_on_device(result, now)?;
                    }
                    keep.extend(lowered.keep);
                    // A launch has the handle only, whose memory serves others once the region has ended.
                    let regions = lowered.calls.iter().flat_map(|c| &c.args);
                    keep.extend(regions.filter_map(|arg| match arg {
                        Arg::Memory(region) => Some(region.clone() as Arc<dyn Any + Send + Sync>),
                        _ => None,
                    }));
                    temp_spans.push(
                        lowered
                            .temps
                            .iter()
                            .map(|&bytes| {
                                planner.spans.push(planner.span(bytes, now, now));
                                planner.spans.len() - 1
                            })
                            .collect(),
                    );
                    let (calls, temps) = (lowered.calls, lowered.temps);
                    made.push((id, Made::Kernels { calls, temps, ports }));
                }
                None => {
                    let step = planner.on_host(id).map_err(|e| e.at(record.name()))?;
                    let known = |(place, _): &(Place, Info)| !matches!(place, Place::Device(_));
                    if step.operands.iter().all(known) {
                        planner.early.insert(id, early.len());
                        early.push((nodes.len() - 1, step));
                        continue;
                    }
                    match on_cpu.iter_mut().find(|(op, _)| op == record.op().name()) {
                        Some((_, count)) => *count += 1,
                        None => on_cpu.push((record.op().name().to_owned(), 1)),
                    }
                    for &s in record.src() {
                        if matches!(planner.find(s).1, Place::Device(_)) {
                            planner.use_on_device(s, now)?;
                        }
                    }
                    planner.use_on_device(id, now)?;
                    temp_spans.push(Vec::new());
                    made.push((id, Made::Host(Box::new(step))));
                }
            }
        }
        let end = made.len();
        for &id in outputs {
            if matches!(planner.find(id).1, Place::Device(_)) {
                planner.use_on_device(id, end)?;
            }
        }
        let Some((offsets, bytes)) = place(&planner.spans) else {
            return Err(overflow(cx, outputs[0]));
        };
        let arena = shared.pool.take(bytes.max(1))?;
        let steps = {
            let binder = Binder { planner: &planner, offsets: &offsets, arena: &arena };
            let bound = made.into_iter().zip(&temp_spans).map(|((id, made), temps)| {
                let node = node_of[id];
                let step = match made {
                    Made::Kernels { calls, temps: sizes, ports } => {
                        debug_assert_eq!(sizes.len(), temps.len());
                        let launches = calls
                            .into_iter()
                            .map(|call| binder.bind(&ports, call, temps).map(Arc::new));
                        Step::Kernels(launches.collect::<Result<_, GraphError>>()?)
                    }
                    Made::Host(step) => {
                        Step::Host(Box::new(binder.placed(*step)), binder.offset_of(id))
                    }
                };
                Ok((node, step))
            });
            bound.collect::<Result<Vec<_>, GraphError>>().map_err(|e| e.at("opencl"))?
        };
        let mut uploads = Vec::new();
        let mut sent =
            planner.sent.map(|(span, bytes)| Sent { at: offsets[span], bytes, parts: Vec::new() });
        for &id in &order {
            let Some(&(span, inside)) = planner.span_of.get(id) else { continue };
            let place = planner.find(id).1;
            let bytes = cx.record(id).info().stored_bytes();
            let (Place::Input(..) | Place::Early(..), Some(bytes)) = (&place, bytes) else {
                continue;
            };
            match &mut sent {
                Some(sent) if planner.sent.is_some_and(|(of, _)| of == span) => {
                    sent.parts.push((place, inside, bytes));
                }
                _ => uploads.push((place, offsets[span], bytes)),
            }
        }
        let on_device = |id: TensorId| {
            let (root, found) = planner.find(id);
            match found {
                Place::Device(offset) => Place::Device(planner.offset(&offsets, root) + offset),
                other => other,
            }
        };
        let outputs_at = outputs.iter().map(|&id| on_device(id)).collect();
        let described = |id: &TensorId| (cx.record(*id).name().to_owned(), cx.record(*id).info());
        let mut values = PerRecord::default();
        let wanted = outputs.iter().map(|&id| planner.find(id).0);
        for root in wanted {
            if let Some(value) = cx.record(root).value() {
                values.insert(root, value.clone());
            }
        }
        report(shared, nodes.len(), on_cpu);
        let recorded = recorded(shared, &steps);
        let only_early = !steps.iter().any(|(_, s)| matches!(s, Step::Host(..)));
        let threads = if only_early { 1 } else { host.threads };
        let bytes = vec![0; sent.as_ref().map_or(0, |sent| sent.bytes)];
        Ok(Self {
            shared: shared.clone(),
            inputs: leaves.iter().map(described).collect(),
            output_infos: outputs.iter().map(described).collect(),
            nodes,
            recorded,
            steps,
            early,
            uploads,
            sent,
            checks,
            outputs: outputs_at,
            arena,
            constants: planner.constants,
            values,
            keep,
            host: Mutex::new(Working { executor: Executor::new(host.isa, threads)?, sent: bytes }),
        })
    }
}

/// The kernels of steps, recorded where the driver can and will.
fn recorded(shared: &Shared, steps: &[(usize, Step)]) -> Option<Recorded> {
    let recorder = shared.recorder?;
    let mut launches = Vec::new();
    for (_, step) in steps {
        match step {
            Step::Kernels(more) => launches.extend(more.iter().cloned()),
            Step::Host(..) => return None,
        }
    }
    match Recorded::new(recorder, &shared.queue, launches) {
        Ok(recorded) => Some(recorded),
        Err(e) => {
            shared.log.line(&format!("opencl: kernels are submitted one by one: {e}"));
            None
        }
    }
}

/// Counts the operations of a plan, and says which go to the CPU.
fn report(shared: &Shared, operations: usize, on_cpu: Vec<(String, usize)>) {
    let mut counts = lock(&shared.counts);
    counts.operations += operations;
    if on_cpu.is_empty() {
        return;
    }
    let total: usize = on_cpu.iter().map(|(_, n)| n).sum();
    let list: Vec<String> = on_cpu.iter().map(|(op, n)| format!("{op} ({n})")).collect();
    let mut new = false;
    for (op, n) in on_cpu {
        match counts.on_cpu.iter_mut().find(|(known, _)| *known == op) {
            Some((_, count)) => *count += n,
            None => {
                new = true;
                counts.on_cpu.push((op, n));
            }
        }
    }
    drop(counts);
    if new {
        shared.log.line(&format!(
            "opencl: the CPU computes {total} of {operations} operations, which no kernel does: {}",
            list.join(", ")
        ));
    }
}

/// The line of a profile for operations that are computed together from `src`.
fn node(
    cx: &Context,
    members: &[TensorId],
    src: &[TensorId],
    node_of: &PerRecord<usize>,
    lowered: Option<&ops::Lowered>,
) -> ProgramNode {
    let record = cx.record(members[members.len() - 1]);
    let info = record.info();
    let names: Vec<&str> = members.iter().map(|&m| cx.record(m).op().name()).collect();
    let macs = |&id: &TensorId| {
        let record = cx.record(id);
        let src: Vec<Info> = record.src().iter().map(|&s| cx.record(s).info()).collect();
        record.op().operator().map_or(0, |op| op.macs(&src, &record.info()))
    };
    let kernel = match lowered.map(|l| &l.calls[..]) {
        Some([call]) => format!("opencl {}", call.kernel),
        Some(calls) => {
            let names: Vec<&str> = calls.iter().map(|c| c.kernel).collect();
            format!("opencl {}", names.join("+"))
        }
        None => "cpu".to_owned(),
    };
    let inputs = src.iter().filter_map(|&s| node_of.get(root(cx, s).0).copied());
    let read = src.iter().map(|&s| cx.record(s).info());
    ProgramNode {
        name: record.name().to_owned(),
        op: names.join("+"),
        kernel,
        macs: members.iter().map(macs).sum(),
        bytes: read.chain([info.clone()]).filter_map(|i| i.stored_bytes()).sum(),
        inputs: inputs.collect(),
        info,
    }
}

/// A call with the arguments that `place` makes of its own.
///
/// # Safety
/// With these arguments, the kernel reads and writes only inside their memory.
#[allow(unsafe_code, reason = "kernels take memory; who knows its sizes answers for them")]
pub(super) unsafe fn launch(
    shared: &Shared,
    call: Call,
    place: impl FnMut(Arg) -> Value,
) -> Result<Launch, OpenClError> {
    let Call { family, definitions, kernel, args, global, local } = call;
    let program = shared.programs.get(&shared.context, &shared.device, family, &definitions)?;
    // SAFETY: the caller's duty.
    let launch = unsafe {
        Launch::new(&program, kernel, args.into_iter().map(place).collect(), global, local)
    }?;
    Ok(match shared.queue.is_timed() {
        true => launch.named(&format!("{kernel} {definitions} items {global:?}")),
        false => launch,
    })
}

/// Turns arguments into memory and numbers.
struct Binder<'a> {
    planner: &'a Planner<'a>,
    offsets: &'a [usize],
    arena: &'a Region,
}

impl Binder<'_> {
    fn offset_of(&self, id: TensorId) -> usize {
        self.planner.offset(self.offsets, id)
    }

    fn operand(&self, id: TensorId) -> Value {
        let (root, found) = self.planner.find(id);
        match found {
            Place::Constant(_, offset) => {
                let constant = &self.planner.constants[root];
                Value::Memory(constant.memory().clone(), offset as u64)
            }
            Place::Device(offset) | Place::Input(_, offset) | Place::Early(_, offset) => {
                let at = self.offset_of(root) + offset;
                Value::Memory(self.arena.memory().clone(), at as u64)
            }
        }
    }

    fn bind(&self, ports: &Ports, call: Call, temps: &[usize]) -> Result<Launch, GraphError> {
        let Ports { src, dst } = ports;
        let arena = |at: usize| Value::Memory(self.arena.memory().clone(), at as u64);
        let place = |arg| match arg {
            Arg::Src(i) => self.operand(src[i]),
            Arg::Part(i, more) => match self.operand(src[i]) {
                Value::Memory(memory, at) => Value::Memory(memory, at + more as u64),
                other => other,
            },
            Arg::Dst | Arg::Absent => arena(self.offset_of(dst[0])),
            Arg::Other(i) => arena(self.offset_of(dst[i])),
            Arg::Temp(i) => arena(self.offsets[temps[i]]),
            Arg::Memory(region) => Value::Memory(region.memory().clone(), 0),
            Arg::Int(v) => Value::Int(v),
            Arg::Float(v) => Value::Float(v),
            Arg::Local(bytes) => Value::Local(bytes),
            Arg::Numbers(bytes) => Value::Numbers(bytes),
        };
        #[allow(unsafe_code, reason = "kernels take memory; the duties are below")]
        // SAFETY: `ops` made the sizes among the arguments from the shapes of the operands and of the
        // result, whose whole memory these arguments are; kernels stay inside those sizes, and numbers
        // that choose places are clamped to them.
        let launch = unsafe { launch(self.planner.shared, call, place) };
        Ok(launch?)
    }

    /// A step on the CPU with the final places of its operands.
    fn placed(&self, mut step: OnHost) -> OnHost {
        for ((place, _), root) in step.operands.iter_mut().zip(&step.roots) {
            if let Place::Device(offset) = place {
                *offset += self.offset_of(*root);
            }
        }
        step
    }
}
