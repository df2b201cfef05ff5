//! Layouts of activations, and the conversions at the borders.

use std::sync::Arc;

use super::super::ops::relayout::{Relayout, has_layouts, is_word};
use super::super::ops::{LayoutRule, Operator, RuleCx};
use super::super::{Context, GraphError, Info, Layout, Op, TensorId};
use super::channels_last::{before_copy, behind_copy, reads_behind, undone};
use tilewright_kernels::C_BLOCK;

/// Chooses the layout of each tensor and inserts conversions where producer and consumer differ.
///
/// Operators with blocked kernels get blocked operands; element-wise operators follow their
/// operands; all else, and every output, is plain. A tensor is converted to a layout once, however
/// many want it so. Copies that bring channels behind the pixels or back are part of such a conversion, or
/// views where one undoes another. Returns the outputs, some of which may now be conversions.
///
/// # Errors
/// [`GraphError::Full`].
pub fn assign_layouts(cx: &mut Context, outputs: &[TensorId]) -> Result<Vec<TensorId>, GraphError> {
    let mut pass = Pass { converted: Vec::new() };
    let order = cx.build_forward(outputs)?;
    let readers = readers(cx, &order);
    for id in order {
        let record = cx.record(id);
        if record.value().is_some() {
            continue;
        }
        let src = record.src().to_vec();
        let Some(operator) = record.op().operator() else {
            if !src.is_empty() {
                let plain = pass.convert(cx, src[0], Layout::Plain)?;
                cx.records[id.index()].src[0] = plain;
            }
            continue;
        };
        if let Some(source) = undone(cx, id) {
            cx.rewrite_as_view(id, "reshape", source);
            continue;
        }
        if let Some(blocks) = blocks_behind(cx, id) {
            let last = pass.convert(cx, blocks, Layout::Interleaved)?;
            cx.rewrite_as_view(id, "relabel", last);
            continue;
        }
        let infos: Vec<Info> = src.iter().map(|&s| seen(cx, s)).collect();
        let constant: Vec<bool> = src.iter().map(|&s| cx.record(s).is_constant()).collect();
        let plain_result = &|| readers.want_plain(cx, id, READERS);
        let rule = RuleCx { src: &infos, dst: &record.info(), constant: &constant, plain_result };
        let (wishes, result) = match rule_of(operator, &rule) {
            LayoutRule::Plain => (Vec::new(), Layout::Plain),
            LayoutRule::Blocked(wishes) => (wishes, Layout::Blocked),
            LayoutRule::Follow(list) => {
                let blocked = |&i: &usize| infos[i].layout == Layout::Blocked;
                let copied = |&i: &usize| infos[i].layout == Layout::Interleaved;
                if list.iter().any(blocked) || list.iter().all(copied) && !plain_result() {
                    (list.into_iter().map(|i| (i, Layout::Blocked)).collect(), Layout::Blocked)
                } else {
                    (Vec::new(), Layout::Plain)
                }
            }
        };
        for (i, &s) in src.iter().enumerate() {
            let wish = wishes.iter().find(|w| w.0 == i).map_or(Layout::Plain, |w| w.1);
            let converted = pass.convert(cx, s, wish)?;
            cx.records[id.index()].src[i] = converted;
        }
        cx.records[id.index()].layout = result;
    }
    outputs.iter().map(|&id| pass.convert(cx, id, Layout::Plain)).collect()
}

/// Whether only a copy made a tensor plain that its way into blocks does not need.
fn by_copy(cx: &Context, id: TensorId) -> bool {
    let record = cx.record(id);
    let plain = record.layout() == Layout::Plain;
    plain && is_word(record.dtype()) && before_copy(cx, id).is_some()
}

/// What an operator is told of an operand: that it is interleaved, if it is plain by a copy alone.
fn seen(cx: &Context, id: TensorId) -> Info {
    let info = cx.record(id).info();
    let many = info.dims.get(1).is_some_and(|&c| c >= C_BLOCK);
    let layout = if many && by_copy(cx, id) { Layout::Interleaved } else { info.layout };
    Info { layout, ..info }
}

/// The tensor in blocks whose channels a copy brings behind its pixels, once it is plain.
fn blocks_behind(cx: &Context, id: TensorId) -> Option<TensorId> {
    let plain = cx.record(behind_copy(cx, id)?);
    let blocks = *plain.src().first()?;
    let turns = matches!(plain.op(), Op::Relayout(Relayout { to: Layout::Plain }));
    (turns && cx.record(blocks).layout() == Layout::Blocked && is_word(cx.dtype(id)))
        .then_some(blocks)
}

/// What an operator wishes; what is of a type that has no other layouts stays plain, whatever it would follow.
fn rule_of(operator: &dyn Operator, cx: &RuleCx<'_>) -> LayoutRule {
    match operator.layout_rule(cx) {
        LayoutRule::Follow(list)
            if !list.iter().map(|&i| &cx.src[i]).chain([cx.dst]).all(|t| has_layouts(t.dtype)) =>
        {
            LayoutRule::Plain
        }
        rule => rule,
    }
}

/// Element-wise operators behind each other that are looked through for who reads a result.
const READERS: usize = 4;

/// Who reads each tensor.
struct Readers {
    /// The records and the position among their operands, by the tensor.
    of: Vec<Vec<(TensorId, usize)>>,
}

fn readers(cx: &Context, order: &[TensorId]) -> Readers {
    let mut of = vec![Vec::new(); cx.len()];
    for &id in order {
        for (i, &src) in cx.record(id).src().iter().enumerate() {
            of[src.index()].push((id, i));
        }
    }
    Readers { of }
}

impl Readers {
    /// Whether all that read a result would have it plain: outputs of the graph, views, operators
    /// without kernels of blocks, and what follows its operands to such.
    fn want_plain(&self, cx: &Context, id: TensorId, depth: usize) -> bool {
        self.of.get(id.index()).is_none_or(|list| {
            list.iter().all(|&(reader, i)| self.wants_plain(cx, reader, i, depth))
        })
    }

    fn wants_plain(&self, cx: &Context, id: TensorId, operand: usize, depth: usize) -> bool {
        let record = cx.record(id);
        let Some(operator) = record.op().operator() else {
            let readers = |id: TensorId| {
                self.of.get(id.index()).into_iter().flatten().map(|&(reader, _)| reader).collect()
            };
            return !reads_behind(cx, &readers, id, record.src()[0]);
        };
        let infos: Vec<Info> = record.src().iter().map(|&s| cx.record(s).info()).collect();
        let constant: Vec<bool> =
            record.src().iter().map(|&s| cx.record(s).is_constant()).collect();
        let dst = record.info();
        let rule = RuleCx { src: &infos, dst: &dst, constant: &constant, plain_result: &|| false };
        match rule_of(operator, &rule) {
            LayoutRule::Plain => true,
            LayoutRule::Blocked(wishes) => {
                wishes.iter().all(|&(i, layout)| i != operand || layout == Layout::Plain)
            }
            LayoutRule::Follow(list) => {
                let plain = |&i: &usize| infos[i].layout != Layout::Blocked;
                !list.contains(&operand)
                    || list.iter().all(plain) && depth > 0 && self.want_plain(cx, id, depth - 1)
            }
        }
    }
}

struct Pass {
    /// What there is of each tensor in other layouts.
    converted: Vec<Vec<(Layout, TensorId)>>,
}

impl Pass {
    fn convert(
        &mut self,
        cx: &mut Context,
        id: TensorId,
        to: Layout,
    ) -> Result<TensorId, GraphError> {
        let record = cx.record(id);
        if record.layout() == to {
            return Ok(id);
        }
        let known = self.converted.get(id.index()).and_then(|of| of.iter().find(|c| c.0 == to));
        if let Some(&(_, found)) = known {
            return Ok(found);
        }
        let made = match same_bytes(cx, id, to) {
            Some(source) => cx.alias(source, id, to)?,
            // What a copy brought to the front goes into blocks in one step.
            None if to == Layout::Blocked && by_copy(cx, id) => {
                let last = self.convert(cx, id, Layout::Interleaved)?;
                cx.relayout(last, to)?
            }
            None => cx.relayout(id, to)?,
        };
        if self.converted.len() <= id.index() {
            self.converted.resize_with(cx.len(), Vec::new);
        }
        self.converted[id.index()].push((to, made));
        Ok(made)
    }
}

/// A tensor whose memory, read in layout `to`, already is `id`: nothing has to move.
fn same_bytes(cx: &Context, id: TensorId, to: Layout) -> Option<TensorId> {
    let record = cx.record(id);
    let info = record.info();
    let (n, c, space) = info.ncs();
    match (info.layout, to) {
        // One channel, or one pixel: both orders are the same.
        (Layout::Plain, Layout::Interleaved) if c == 1 || space == 1 => Some(id),
        // One pixel: blocks follow each other as channels do; unused lanes lie behind the last
        // channel, where only one image may be.
        (Layout::Blocked, Layout::Plain) if space == 1 && (n == 1 || c % C_BLOCK == 0) => Some(id),
        (Layout::Plain, Layout::Blocked) if space == 1 && c % C_BLOCK == 0 => Some(id),
        // A copy that undoes a picture's channels-last order: use the picture as it came.
        (Layout::Plain, Layout::Interleaved) => before_copy(cx, id),
        _ => None,
    }
}

impl Context {
    /// A record that reads the memory of `source` as the tensor `id` in another layout.
    fn alias(
        &mut self,
        source: TensorId,
        id: TensorId,
        layout: Layout,
    ) -> Result<TensorId, GraphError> {
        let mut record = self.record(id).clone();
        record.op = Arc::new(Op::View("relabel"));
        (record.src, record.offset, record.layout) = (vec![source], 0, layout);
        record.shape = crate::tensor::Shape::contiguous(record.dtype, &record.shape.dims())
            .map_err(super::super::shape_error("relabel"))?;
        (record.value, record.constant) = (None, false);
        record.name = Arc::default();
        self.push(record)
    }

    /// A record that converts a tensor.
    fn relayout(&mut self, id: TensorId, to: Layout) -> Result<TensorId, GraphError> {
        let mut record = self.record(id).clone();
        if !has_layouts(record.dtype) {
            return Err(GraphError::UnsupportedDType { op: "relayout", dtype: record.dtype });
        }
        record.op = Arc::new(Relayout { to }.into());
        (record.src, record.offset, record.layout) = (vec![id], 0, to);
        (record.value, record.constant) = (None, false);
        record.name = Arc::default();
        self.push(record)
    }
}
