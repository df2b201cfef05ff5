//! Products that are computed in one kernel with what is before and behind them.
//!
//! Products that read the same rows become one call, so do the two halves of a gated unit with its gate, and
//! a product with the sum behind it. A norm before them is computed by the kernels of all that read it,
//! where there are few rows: what a work-group then does once more costs less than a kernel of its own.
//! Queries and keys are turned by the kernel that puts keys and values into their cache; of one row, it computes
//! the attention too, and on processors the products before.

use super::Shared;
use super::ops::{self, attention, matmul};
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::{Context, Op, PerRecord, TensorId};
use crate::tensor::DType;
use tilewright_kernels::Activation;
use tilewright_kernels::template::binary::BinaryOp;

/// Most matrices that one call multiplies with.
const TOGETHER: usize = 3;

/// Products of the same rows, and what is computed with them.
pub(super) struct Group {
    pub(super) products: Vec<TensorId>,
    /// The norm whose result the products read.
    pub(super) norm: Option<(TensorId, f32)>,
    /// The gated unit of the two products.
    pub(super) gate: Option<(TensorId, GluOp)>,
    /// The sum of the product with another tensor.
    pub(super) sum: Option<(TensorId, TensorId)>,
}

impl Group {
    /// What a call has as its results.
    pub(super) fn results(&self) -> Vec<TensorId> {
        match (self.gate, self.sum) {
            (Some((gate, _)), _) => vec![gate],
            (_, Some((sum, _))) => vec![sum],
            _ => self.products.clone(),
        }
    }

    /// All operations that the call computes.
    pub(super) fn members(&self) -> Vec<TensorId> {
        let mut all: Vec<TensorId> = self.norm.iter().map(|(norm, _)| *norm).collect();
        all.extend(&self.products);
        all.extend(self.gate.map(|(gate, _)| gate));
        all.extend(self.sum.map(|(sum, _)| sum));
        all
    }
}

/// Attention over a cache with the rotations of its queries and keys, by one table.
pub(super) struct Turned {
    /// Rotations of queries and keys.
    pub(super) ropes: [TensorId; 2],
    pub(super) table: TensorId,
    /// The products that queries, keys and values are, if one kernel computes all of it.
    pub(super) products: Option<Group>,
}

/// The groups of a graph.
#[derive(Default)]
pub(super) struct Fused {
    /// By the operation at whose place in the order a group is computed.
    pub(super) groups: PerRecord<Group>,
    /// By attention.
    pub(super) turned: PerRecord<Turned>,
    /// What some group computes.
    pub(super) members: PerRecord<()>,
}

struct Finder<'a> {
    cx: &'a Context,
    users: PerRecord<Vec<TensorId>>,
    outputs: &'a [TensorId],
}

impl Finder<'_> {
    /// The only operation that reads a tensor.
    fn user(&self, id: TensorId) -> Option<TensorId> {
        match self.users.get(id).map(Vec::as_slice) {
            Some(&[user]) if !self.outputs.contains(&id) => Some(user),
            _ => None,
        }
    }

    fn src(&self, id: TensorId) -> &[TensorId] {
        self.cx.record(id).src()
    }

    /// Whether an operation is a product with constants that kernels compute.
    fn is_product(&self, id: TensorId) -> bool {
        let record = self.cx.record(id);
        let Op::BlockMatMul(_) = record.op() else { return false };
        let src = record.src();
        let constant = src[1..].iter().all(|&s| self.cx.constant_value(s).is_some());
        let x = self.cx.record(src[0]).info();
        let fits = [&x, &record.info()].iter().all(|info| ops::fits(info));
        let known = matmul::format(self.cx.record(src[1]).dtype(), x.dims[1]).is_some();
        constant && fits && known && record.value().is_none()
    }

    /// Products that may share a call have these in common.
    fn kind(&self, id: TensorId) -> (TensorId, DType, usize) {
        let src = self.src(id);
        (src[0], self.cx.record(src[1]).dtype(), src.len())
    }

    /// The gated unit that alone reads a product, with its two products.
    fn gate(&self, id: TensorId) -> Option<(TensorId, GluOp, [TensorId; 2])> {
        let gate = self.user(id)?;
        let Op::Glu(op) = self.cx.record(gate).op() else { return None };
        let &[a, b] = self.src(gate) else { return None };
        let both = a != b && self.is_product(a) && self.is_product(b);
        let alone = self.user(a) == Some(gate) && self.user(b) == Some(gate);
        (both && alone && self.kind(a) == self.kind(b)).then_some((gate, op.op, [a, b]))
    }

    /// The sum that alone reads a product, with what is added.
    fn sum(&self, id: TensorId) -> Option<(TensorId, TensorId)> {
        let sum = self.user(id)?;
        let Op::Binary(op) = self.cx.record(sum).op() else { return None };
        let plain = op.op == BinaryOp::Add && op.activation == Activation::None;
        let &[a, b] = self.src(sum) else { return None };
        let other = if a == id { b } else { a };
        let same = self.cx.dims(other) == self.cx.dims(id) && other != id;
        (plain && same).then_some((sum, other))
    }

    /// The rotations whose results only this attention reads.
    fn turned(&self, id: TensorId) -> Option<Turned> {
        let Op::KvAttention(op) = self.cx.record(id).op() else { return None };
        let &[q, k, v, positions] = self.src(id) else { return None };
        let rope = |id: TensorId| match self.cx.record(id).op() {
            Op::Rope(rope) => Some((rope, self.src(id)[1])),
            _ => None,
        };
        let ((of_q, table), (of_k, other)) = (rope(q)?, rope(k)?);
        let alone = q != k && [q, k].into_iter().all(|r| self.user(r) == Some(id));
        let same = of_q == of_k && table == other && of_q.size == op.cache.shape().key_size;
        let all = [q, k, v, positions, table, id, self.src(q)[0], self.src(k)[0]];
        let fits = all.iter().all(|&t| ops::fits(&self.cx.record(t).info()));
        let known = [q, k].iter().all(|&t| self.cx.record(t).value().is_none());
        let takes = attention::takes(op.cache.shape());
        let made = Turned { ropes: [q, k], table, products: None };
        (alone && same && fits && known && takes).then_some(made)
    }

    /// Whether one kernel computes attention and these products, which are its queries, keys and values.
    fn layer(&self, id: TensorId, turned: &Turned, group: &Group, shared: &Shared) -> bool {
        let Op::KvAttention(op) = self.cx.record(id).op() else { return false };
        let ([q, k], v) = (turned.ropes, self.src(id)[2]);
        let read = [(self.src(q)[0], q), (self.src(k)[0], k), (v, id)];
        let same = group.products == read.map(|(product, _)| product);
        let alone = read.iter().all(|&(product, by)| self.user(product) == Some(by));
        let (x, dtype, _) = self.kind(group.products[0]);
        let dims = self.cx.dims(x);
        let prepares = dims[0] == 1 && matmul::prepares(shared, 1, dims[1]);
        let something = group.norm.is_some() || !dtype.is_plain();
        let takes = attention::takes_layer(shared, op.cache.shape());
        same && alone && prepares && something && group.sum.is_none() && takes
    }

    /// The norm of whole rows that a tensor is, if all who read it are products that can compute it.
    fn norm(&self, id: TensorId, shared: &Shared) -> Option<f32> {
        let Op::Norm(norm) = self.cx.record(id).op() else { return None };
        let src = self.src(id);
        let constant = src.len() == 2 && self.cx.constant_value(src[1]).is_some();
        let dims = self.cx.dims(src[0]);
        let whole = norm.op == NormOp::Rms && !norm.by_parts && norm.axis == 1 && dims.len() == 2;
        let floats = src.iter().all(|&s| self.cx.record(s).dtype() == DType::F32);
        let products = self.users.get(id)?.iter().all(|&u| self.is_product(u));
        let read = !self.outputs.contains(&id);
        let fits = whole && matmul::prepares(shared, dims[0], dims[1]);
        (constant && fits && floats && products && read).then_some(norm.epsilon)
    }
}

/// Finds what is computed together.
pub(super) fn find(
    shared: &Shared,
    cx: &Context,
    order: &[TensorId],
    outputs: &[TensorId],
) -> Fused {
    let mut users = PerRecord::default();
    for &id in order {
        for &s in cx.record(id).src() {
            users.slot(s).get_or_insert_with(Vec::new).push(id);
        }
    }
    let finder = Finder { cx, users, outputs };
    let mut fused = Fused::default();
    // Groups that others may join, by what they read: the first product of each.
    let mut open = PerRecord::default();
    for &id in order {
        if let Some(mut turned) = finder.turned(id) {
            turned.ropes.into_iter().for_each(|rope| fused.members.insert(rope, ()));
            let first = finder.src(turned.ropes[0])[0];
            if fused.groups.get(first).is_some_and(|g| finder.layer(id, &turned, g, shared)) {
                turned.products = fused.groups.remove(first);
            }
            fused.turned.insert(id, turned);
        }
        if fused.members.contains(id) || !finder.is_product(id) {
            continue;
        }
        let kind = finder.kind(id);
        let alike = open.slot(kind.0).get_or_insert_with(Vec::new);
        let last = alike.iter().copied().rfind(|&first| finder.kind(first) == kind);
        if let Some(group) = last.and_then(|at| fused.groups.get_mut(at))
            && group.products.len() < TOGETHER
            && finder.gate(id).is_none()
            && finder.sum(id).is_none()
        {
            group.products.push(id);
            fused.members.insert(id, ());
            continue;
        }
        let x = kind.0;
        let norm = finder.norm(x, shared).map(|epsilon| (x, epsilon));
        let mut group = Group { products: vec![id], norm, gate: None, sum: None };
        let at = if let Some((gate, op, products)) = finder.gate(id) {
            group.products = products.to_vec();
            group.gate = Some((gate, op));
            gate
        } else if let Some((sum, other)) = finder.sum(id) {
            group.sum = Some((sum, other));
            sum
        } else {
            alike.push(id);
            id
        };
        group.members().into_iter().for_each(|id| fused.members.insert(id, ()));
        fused.groups.insert(at, group);
    }
    fused
}
