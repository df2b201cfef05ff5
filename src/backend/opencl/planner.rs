//! What planning a graph knows of its tensors, and asks of operators.

use std::sync::Arc;

use super::Shared;
use super::fuse::{Group, Turned};
use super::ops::matmul::{self, Together};
use super::ops::{self, Lower, attention};
use super::program::{OnHost, Place};
use super::weights::Constant;
use crate::backend::cpu::{Executor, Span};
use crate::graph::ops::kv_attention::KvAttention;
use crate::graph::{Choices, Context, GraphError, Host, Info, Op, PerRecord, TensorId};
use crate::tensor::{Shape, ShapeError, Tensor};

/// Most bytes of an input that is sent in one piece with others: a command costs as much as some ten thousand.
const TOGETHER: usize = 4 << 10;

pub(super) fn overflow(cx: &Context, id: TensorId) -> GraphError {
    let dims = cx.record(id).shape().dims();
    GraphError::Shape { op: "opencl", source: ShapeError::Overflow(dims) }
}

/// The tensor that a view looks at in the end, and from which byte on.
pub(super) fn root(cx: &Context, mut id: TensorId) -> (TensorId, usize) {
    let mut offset = 0;
    while let Some(more) = cx.record(id).view_offset() {
        if cx.record(id).value().is_some() {
            break;
        }
        offset += more;
        id = cx.record(id).src()[0];
    }
    (id, offset)
}

/// The tensors that kernels read, as their arguments count them, and those that they make.
pub(super) struct Ports {
    pub(super) src: Vec<TensorId>,
    pub(super) dst: Vec<TensorId>,
}

/// What planning knows so far.
pub(super) struct Planner<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) cx: &'a Context,
    pub(super) host: Host,
    pub(super) choices: Option<&'a dyn Choices>,
    pub(super) inputs: PerRecord<usize>,
    /// Results of early steps.
    pub(super) early: PerRecord<usize>,
    /// Spans of results, inputs and early results on the device, and where in them those begin.
    pub(super) span_of: PerRecord<(usize, usize)>,
    pub(super) spans: Vec<Span>,
    /// The span of what is sent in one piece, and how many bytes that are.
    pub(super) sent: Option<(usize, usize)>,
    pub(super) constants: PerRecord<Constant>,
}

impl Planner<'_> {
    /// Where an operand is found on the host's side of things.
    pub(super) fn find(&self, id: TensorId) -> (TensorId, Place) {
        let (root, offset) = root(self.cx, id);
        let place = if let Some(&i) = self.inputs.get(root) {
            Place::Input(i, offset)
        } else if let Some(&i) = self.early.get(root) {
            Place::Early(i, offset)
        } else if self.cx.record(root).value().is_some() {
            Place::Constant(root, offset)
        } else {
            Place::Device(offset)
        };
        (root, place)
    }

    /// Says that step `now` uses what `id` looks at on the device, which gets a span if it has none.
    pub(super) fn use_on_device(&mut self, id: TensorId, now: usize) -> Result<(), GraphError> {
        let (root, _) = root(self.cx, id);
        let record = self.cx.record(root);
        if let Some(value) = record.value() {
            if !self.constants.contains(root) {
                let constant = self.shared.constant(value)?;
                self.constants.insert(root, constant);
            }
            return Ok(());
        }
        if let Some(&(span, _)) = self.span_of.get(root) {
            self.spans[span].last = self.spans[span].last.max(now);
            return Ok(());
        }
        // Sent before the first step.
        let sent = self.inputs.contains(root) || self.early.contains(root);
        let bytes = record.info().stored_bytes().ok_or_else(|| overflow(self.cx, root))?;
        let own = self.span(bytes, if sent { 0 } else { now }, now);
        if !sent || bytes > TOGETHER {
            self.span_of.insert(root, (self.spans.len(), 0));
            self.spans.push(own);
            return Ok(());
        }
        let (span, end) = *self.sent.get_or_insert((self.spans.len(), 0));
        if span == self.spans.len() {
            self.spans.push(own);
        }
        let at = end.next_multiple_of(record.dtype().block_bytes());
        let all = self.span(at + bytes, 0, now.max(self.spans[span].last));
        self.spans[span] = all;
        self.sent = Some((span, at + bytes));
        self.span_of.insert(root, (span, at));
        Ok(())
    }

    /// Where the result, input or early result is, once spans have places.
    pub(super) fn offset(&self, offsets: &[usize], id: TensorId) -> usize {
        let (span, inside) = self.span_of[id];
        offsets[span] + inside
    }

    /// A span whose size is a multiple of what parts of the device's memory are aligned to.
    pub(super) fn span(&self, bytes: usize, first: usize, last: usize) -> Span {
        let align = self.shared.info.align;
        Span { bytes: bytes.max(1).next_multiple_of(align), first, last }
    }

    /// A plan of the CPU for one operation.
    pub(super) fn on_host(&self, id: TensorId) -> Result<OnHost, GraphError> {
        let record = self.cx.record(id);
        let mut cx = Context::with_cache(self.cx.cache().clone());
        let (mut src, mut operands) = (Vec::new(), Vec::new());
        for &s in record.src() {
            let source = self.cx.record(s);
            let (root, place) = self.find(s);
            if let Some(value) = self.cx.constant_value(s) {
                src.push(cx.constant(value.clone())?);
                continue;
            }
            let info = source.info();
            src.push(cx.input(&operands.len().to_string(), info.dtype, &info.dims)?);
            operands.push((place, info, root));
        }
        let output = cx.op(record.op().clone(), &src)?;
        let executor = Executor::new(self.host.isa, self.host.threads)?;
        let plan = executor.plan(&mut cx, &[output])?;
        // The plan has its leaves in an order of its own; one that nobody reads is not there.
        let order = plan.input_names().map(|n| n.parse::<usize>().expect("leaves are numbered"));
        let ordered: Vec<_> = order.map(|i| operands[i].clone()).collect();
        let roots = ordered.iter().map(|(.., root)| *root).collect();
        let operands = ordered.into_iter().map(|(place, info, _)| (place, info)).collect();
        Ok(OnHost { plan, operands, roots })
    }

    /// What `lower` makes of operands and the first result.
    pub(super) fn lower(
        &self,
        ports: &Ports,
        lower: impl FnOnce(&Lower<'_>) -> ops::Result,
    ) -> Result<Option<ops::Lowered>, GraphError> {
        let record = |&s: &TensorId| self.cx.record(s);
        let infos: Vec<Info> = ports.src.iter().map(|s| record(s).info()).collect();
        let shapes: Vec<Shape> = ports.src.iter().map(|s| *record(s).shape()).collect();
        let values: Vec<Option<&Tensor>> =
            ports.src.iter().map(|&s| self.cx.constant_value(s)).collect();
        let dst = record(&ports.dst[0]).info();
        let (src, shapes, values) = (&infos[..], &shapes[..], &values[..]);
        lower(&Lower { shared: self.shared, choices: self.choices, src, shapes, values, dst: &dst })
    }

    /// Operands and results of an operation, or of a group of them.
    pub(super) fn ports(&self, id: TensorId, group: Option<&Group>) -> Ports {
        let src_of = |id: TensorId| self.cx.record(id).src();
        let Some(group) = group else {
            return Ports { src: src_of(id).to_vec(), dst: vec![id] };
        };
        let x = src_of(group.products[0])[0];
        let mut src = vec![group.norm.map_or(x, |(norm, _)| src_of(norm)[0])];
        src.extend(group.products.iter().map(|&p| src_of(p)[1]));
        src.extend(group.products.iter().filter_map(|&p| src_of(p).get(2)));
        src.extend(group.norm.map(|(norm, _)| src_of(norm)[1]));
        src.extend(group.sum.map(|(_, other)| other));
        Ports { src, dst: group.results() }
    }

    /// Operands of attention with its rotations: as its own, but before they are turned, and the table. With
    /// the products before, those of the products, positions and the table.
    pub(super) fn turned_ports(&self, id: TensorId, turned: &Turned) -> Ports {
        let own = self.cx.record(id).src();
        let mut src = match &turned.products {
            Some(group) => self.ports(group.products[0], Some(group)).src,
            None => turned.ropes.iter().map(|&r| self.cx.record(r).src()[0]).collect(),
        };
        src.extend(if turned.products.is_some() { &own[3..4] } else { &own[2..] });
        src.push(turned.table);
        Ports { src, dst: vec![id] }
    }

    /// What lowering a group is told of it.
    fn together(&self, group: &Group) -> Together {
        Together {
            matrices: group.products.len(),
            bias: self.cx.record(group.products[0]).src().len() > 2,
            norm: group.norm.map(|(_, epsilon)| epsilon),
            gate: group.gate.map(|(_, op)| op),
            sum: group.sum.is_some(),
        }
    }

    /// Attention with what was found before it.
    pub(super) fn lower_turned(
        &self,
        op: &KvAttention,
        turned: &Turned,
        ports: &Ports,
    ) -> Result<Option<ops::Lowered>, GraphError> {
        let Op::Rope(rope) = self.cx.record(turned.ropes[0]).op() else { return Ok(None) };
        self.lower(ports, |cx| match &turned.products {
            Some(group) => attention::layer(&self.together(group), op, rope, cx),
            None => attention::turned(op, rope, cx),
        })
    }

    pub(super) fn lower_group(
        &self,
        group: &Group,
        ports: &Ports,
    ) -> Result<Option<ops::Lowered>, GraphError> {
        let op = self.together(group);
        self.lower(ports, |cx| matmul::together(&op, cx))
    }
}
