//! Operations that somebody else computes: begun as early as they can be, waited for as late as possible.

use super::lower::Lowered;
use super::slots::viewed;
use crate::graph::{Context, PerRecord, TensorId};

/// An order of operations, and what begins where.
pub(super) struct Ahead {
    pub(super) order: Vec<TensorId>,
    /// The operations that are begun before they are computed, and the position behind which each is.
    begun: Vec<(TensorId, usize)>,
}

/// An order in which nothing waits while there is something else to do: records that `begins` says are waited
/// for come when all that is left needs one of them, the first of them first.
fn late(cx: &Context, order: Vec<TensorId>, begins: impl Fn(TensorId) -> bool) -> Vec<TensorId> {
    let mut missing: PerRecord<()> = order.iter().map(|&id| (id, ())).collect();
    let (mut sorted, mut rest) = (Vec::with_capacity(order.len()), order);
    while !rest.is_empty() {
        rest.retain(|&id| {
            let ready = cx.record(id).src().iter().all(|&s| !missing.contains(s));
            let now = ready && !begins(id);
            if now {
                missing.remove(id);
                sorted.push(id);
            }
            !now
        });
        // The first one left reads nothing that is left.
        if !rest.is_empty() {
            let first = rest.remove(0);
            missing.remove(first);
            sorted.push(first);
        }
    }
    sorted
}

impl Ahead {
    pub(super) fn new(cx: &Context, order: Vec<TensorId>, lowered: &PerRecord<Lowered>) -> Self {
        let begins = |id: TensorId| {
            let first = lowered.get(id).and_then(|l| l.before.first());
            first.is_some_and(|(step, _)| step.begins())
        };
        let mut begun = Vec::new();
        if !order.iter().copied().any(begins) {
            return Self { order, begun };
        }
        let order = late(cx, order, begins);
        let places: PerRecord<usize> = order.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        for id in order.iter().copied().filter(|&id| begins(id)) {
            let operand = viewed(cx, cx.record(id).src()[0]).0;
            let at = places.get(operand).copied().unwrap_or(0);
            begun.push((id, at));
        }
        Self { order, begun }
    }

    /// Behind which position an operation is begun, if it is begun before it is computed.
    pub(super) fn position(&self, id: TensorId) -> Option<usize> {
        self.begun.iter().find(|(begun, _)| *begun == id).map(|(_, at)| *at)
    }

    /// The operations that are begun behind a position.
    pub(super) fn behind(&self, position: usize) -> impl Iterator<Item = TensorId> {
        self.begun.iter().filter(move |(_, at)| *at == position).map(|(id, _)| *id)
    }
}
