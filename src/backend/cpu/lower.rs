//! From records to steps: choosing kernels, and packing what they read.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::reference::Reference;
use crate::graph::{
    Choices, ConstCache, Context, Device, GraphError, Host, Info, LowerCx, PerRecord, Step,
    TensorId,
};
use crate::order::sort_indices;
use crate::tensor::{Shape, Tensor};
use tilewright_kernels::Isa;

/// Least estimated time of a step per thread that takes part in it, in nanoseconds. Sharing costs
/// a few hundred, and data that change cores as much again.
const SHARE_NS: u64 = 2_000;

/// Bytes of weights from which on threads share the packing: starting one costs some 50 us.
const SHARED: usize = 1 << 20;

/// Lowers all operators of `order`, of which none may have a result of more than `limit` bytes, for threads that
/// also share the work: of a large network nearly all of it is packing weights.
///
/// # Errors
/// What lowering refuses; of several errors the first in the order.
pub(super) fn lower_all(
    cx: &Context,
    order: &[TensorId],
    Host { isa, threads }: Host,
    limit: usize,
    choices: Option<&dyn Choices>,
    device: Option<&dyn Device>,
) -> Result<PerRecord<Lowered>, GraphError> {
    let is_step = |id: &TensorId| {
        let record = cx.record(*id);
        record.value().is_none() && record.op().operator().is_some()
    };
    let constants = |id: TensorId| {
        let src = cx.record(id).src().iter();
        src.filter_map(|&s| cx.constant_value(s)).map(|t| t.storage().len()).sum::<usize>()
    };
    let steps = order.iter().copied().filter(is_step);
    let steps: Vec<(TensorId, usize)> = steps.map(|id| (id, constants(id))).collect();
    // Plans have tables of what they divide, so not even a plan is made for what there is no room for.
    for (id, _) in &steps {
        let needed = cx.record(*id).info().stored_bytes().unwrap_or(usize::MAX);
        if needed > limit {
            return Err(GraphError::Memory { needed, limit });
        }
    }
    let all: usize = steps.iter().map(|(_, bytes)| bytes).sum();
    // The largest first, so that no thread is left with one when the others are done.
    let mut work: Vec<usize> = (0..steps.len()).collect();
    sort_indices(&mut work, &mut |a, b| steps[b].1.cmp(&steps[a].1));
    let mut slots = Vec::with_capacity(work.len());
    slots.resize_with(work.len(), || None);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(slots));
    let share = || {
        while let Some(&i) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let id = steps[i].0;
            let made = lower(cx, id, isa, threads, choices, device);
            let made = made.map_err(|e| e.at(cx.record(id).name()));
            done.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some((id, made));
        }
    };
    let helpers = if all < SHARED { 0 } else { threads.min(work.len()).saturating_sub(1) };
    thread::scope(|scope| {
        for _ in 0..helpers {
            // Without a helper there is more to do for the others.
            let _ = crate::spawn::scoped(scope, share);
        }
        share();
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().flatten().map(|(id, made)| Ok((id, made?))).collect()
}

/// What a record becomes.
pub(super) struct Lowered {
    pub(super) step: Box<dyn Step>,
    /// Steps that must be complete before, in order, and the bytes of their results.
    pub(super) before: Vec<(Box<dyn Step>, usize)>,
    pub(super) macs: u64,
    pub(super) bytes: usize,
    /// Rough time of the step on one thread, in nanoseconds.
    pub(super) cost: u64,
    /// Threads that it is worth.
    pub(super) threads: usize,
}

/// Rough time of a step on one thread, in nanoseconds, from its multiply-adds and the bytes of
/// operands and result.
pub(super) fn estimate(isa: Isa, macs: u64, bytes: u64) -> u64 {
    let macs_per_ns = match isa {
        Isa::Scalar => 2,
        Isa::Neon => 12,
        Isa::Sse41 => 20,
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
    device: Option<&dyn Device>,
) -> Result<Lowered, GraphError> {
    let record = cx.record(id);
    let operator = record.op().operator().expect("leaves and views have no step");
    let src: Vec<Info> = record.src().iter().map(|&s| cx.record(s).info()).collect();
    let shapes: Vec<Shape> = record.src().iter().map(|&s| *cx.record(s).shape()).collect();
    let values: Vec<Option<&Tensor>> = record.src().iter().map(|&s| cx.constant_value(s)).collect();
    let dst = record.info();
    let cache: &ConstCache = cx.cache();
    let macs = operator.macs(&src, &dst);
    let result = dst.stored_bytes().unwrap_or(0);
    let mut read: Vec<usize> = src.iter().filter_map(Info::stored_bytes).collect();
    if let Some(table) = read.first_mut().filter(|_| operator.looks_up()) {
        *table = result.min(*table);
    }
    let bytes = read.iter().sum::<usize>() + result;
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
    let kernel = if dst.elements() == 0 { None } else { operator.lower(&lowering)? };
    let step = match kernel {
        Some(step) => step,
        None => {
            let (src, dst) = (src.clone(), dst.clone());
            Box::new(Reference { op: record.shared_op(), src, dst })
        }
    };
    let step = match device {
        Some(device) => device.take(record.op(), &lowering, step),
        None => step,
    };
    let mut before = Vec::new();
    let mut next = step.before();
    while let Some((step, bytes)) = next {
        next = step.before();
        before.push((step, bytes));
    }
    before.reverse();
    Ok(Lowered { step, before, macs, bytes, cost, threads })
}
