//! Products: begun, computed by the cores, and finished.

use core::ops::Range;
use core::time::Duration;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use super::owner::{Job, Reply};
use super::pack::PackedA;
use super::planner::{self, Cut, MAX_ROWS};
use super::{Npu, RknnError, Weights, lock};

/// Time that a core gets at least; the library itself may wait 20 s for a lost interrupt.
pub(super) const LEAST_DEADLINE: Duration = Duration::from_secs(2);

/// Times that a core may take as long as predicted.
const PATIENCE: u32 = 20;

/// What the time of a run is predicted from: its fixed cost, bytes of weights per second, and
/// multiply-adds per second of one core, of half precision; and how fast weights are packed.
const FIXED: Duration = Duration::from_micros(33);
const WEIGHT_RATE: f64 = 8.9e9;
const MAC_RATE: f64 = 0.35e12;
const PACK_RATE: f64 = 0.1e9;

/// A product that cores are computing: [`Npu::finish`] waits for it. What nobody waits for is computed and
/// forgotten. It has a copy of the activations, and the result goes nowhere before it is finished.
pub struct Pending {
    /// Or what was wrong from the start.
    parts: Result<Vec<Part>, RknnError>,
    rows: usize,
    n: usize,
}

/// At most [`MAX_ROWS`] rows of one.
struct Part {
    rows: usize,
    begun: Instant,
    /// Cores that have not answered.
    waiting: Vec<usize>,
    /// By when they must have.
    end: Instant,
    replies: Receiver<Reply>,
    a: Arc<Vec<PackedA>>,
}

impl Npu {
    /// `y = x * w`: `x` is `[rows, k]`, `y` `[rows, n]`, both row-major. `y` is written only if all
    /// went well.
    ///
    /// # Errors
    /// What the cores answer; then `y` is as it was, and the core may be left alone for a time.
    pub fn multiply(&self, w: &Weights, x: &[f32], y: &mut [f32]) -> Result<(), RknnError> {
        self.finish(self.begin(w, x), y)
    }

    /// Begins a product of `x`, `[rows, k]`, which is packed now: the cores compute while the caller does
    /// something else.
    pub fn begin(&self, w: &Weights, x: &[f32]) -> Pending {
        let (k, n) = w.sizes();
        let rows = x.len().checked_div(k).unwrap_or(0);
        let parts = match x.len() == rows * k {
            true if rows * n == 0 => Ok(Vec::new()),
            true => x.chunks(MAX_ROWS * k).map(|x| self.begin_rows(w, x)).collect(),
            false => Err(RknnError::Sizes { expected: rows * k, found: x.len() }),
        };
        Pending { parts, rows, n }
    }

    /// Waits for a product and writes it to `y`, `[rows, n]`, if all went well.
    ///
    /// # Errors
    /// As [`Npu::multiply`].
    pub fn finish(&self, pending: Pending, y: &mut [f32]) -> Result<(), RknnError> {
        let outcome = self.wait(pending, y);
        let mut report = lock(&self.report);
        match &outcome {
            Ok(()) => report.products += 1,
            Err(e) => {
                report.failures += 1;
                let reason = e.to_string();
                if !report.reasons.contains(&reason) {
                    (self.options.log)(&format!("{reason}; the CPU computes instead"));
                    report.reasons.push(reason);
                }
            }
        }
        outcome
    }

    /// Packs rows and hands them to the cores.
    fn begin_rows(&self, w: &Weights, x: &[f32]) -> Result<Part, RknnError> {
        let ((k, n), numbers) = (w.sizes(), self.options.numbers);
        let mut cores = lock(&self.cores);
        let now = Instant::now();
        let usable: Vec<usize> =
            (0..cores.breakers.len()).filter(|&i| cores.breakers[i].allows(now)).collect();
        if usable.is_empty() {
            return Err(RknnError::Unavailable);
        }
        let cut = Cut::new(self.chip, numbers, k, n, usable.len());
        let rows = x.len() / k;
        let bucket = planner::bucket(rows);
        let blocks = self.chip.blocks(numbers);
        let packer = &mut cores.packer;
        let pack = |segment: &Range<usize>| packer.pack_a(x, k, segment, bucket, numbers, blocks);
        let a = Arc::new(cut.segments.iter().map(pack).collect::<Result<Vec<_>, _>>()?);
        let segments = Arc::new(cut.segments);
        let (reply, replies) = mpsc::channel();
        let mut waiting = Vec::new();
        let mut end = now;
        for (i, &core) in usable.iter().enumerate() {
            let slices: Vec<Range<usize>> =
                cut.slices.iter().skip(i).step_by(usable.len()).cloned().collect();
            if slices.is_empty() {
                continue;
            }
            let wide = slices.iter().map(ExactSizeIterator::len).sum();
            let job = Job {
                weight: w.id,
                source: w.source.clone(),
                numbers,
                a: a.clone(),
                segments: segments.clone(),
                slices,
                rows,
                bucket,
                verify: self.options.verify,
                reply: reply.clone(),
            };
            cores.owners[core].send(job)?;
            waiting.push(core);
            // What it was given before comes first.
            let time = self.options.deadline.unwrap_or_else(|| deadline(bucket, k, wide));
            cores.ends[core] = cores.ends[core].max(now) + time;
            end = end.max(cores.ends[core]);
        }
        Ok(Part { rows, begun: now, waiting, end, replies, a })
    }

    fn wait(&self, pending: Pending, y: &mut [f32]) -> Result<(), RknnError> {
        let Pending { parts, rows, n } = pending;
        let parts = parts?;
        if y.len() != rows * n {
            return Err(RknnError::Sizes { expected: rows * n, found: y.len() });
        }
        // Nothing is written before all parts are there.
        let mut result = vec![0f32; y.len()];
        let mut left = &mut result[..];
        let mut first = None;
        for part in parts {
            let (now, later) = left.split_at_mut(part.rows * n);
            left = later;
            if let Err(e) = self.wait_for(part, n, now) {
                first.get_or_insert(e);
            }
        }
        first.map_or(Ok(()), Err)?;
        y.copy_from_slice(&result);
        Ok(())
    }

    /// Waits for the answers of all cores.
    fn wait_for(&self, part: Part, n: usize, y: &mut [f32]) -> Result<(), RknnError> {
        let Part { begun, mut waiting, end, replies, a, .. } = part;
        let mut first = None;
        while !waiting.is_empty() {
            // A core that was given up since answers no more.
            let given_up = {
                let cores = lock(&self.cores);
                waiting.iter().all(|&place| cores.owners[place].is_given_up())
            };
            let left = match given_up {
                true => Duration::ZERO,
                false => end.saturating_duration_since(Instant::now()),
            };
            let Reply { core, outcome, lost: more } = match replies.recv_timeout(left) {
                Ok(reply) => reply,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            };
            lock(&self.lost).iter_mut().zip(more).for_each(|(all, more)| *all += more);
            let place = self.place(core);
            waiting.retain(|&other| other != place);
            let mut cores = lock(&self.cores);
            // What it had begun before it was found to be wrong is not trusted.
            let broken = cores.breakers[place].broken().cloned();
            let outcome = outcome.and_then(|pieces| broken.map_or(Ok(pieces), Err));
            cores.breakers[place].note(outcome.as_ref().map(|_| ()), Instant::now());
            if cores.ends[place] <= end {
                // It was given nothing since.
                cores.ends[place] = Instant::now();
            }
            drop(cores);
            match outcome {
                Ok(pieces) => pieces.iter().for_each(|piece| piece.copy(n, y)),
                Err(e) => {
                    first.get_or_insert(e);
                }
            }
        }
        let mut cores = lock(&self.cores);
        // Who has not answered hangs, or its thread has ended.
        for place in waiting {
            let core = place + self.options.first_core;
            let lost = RknnError::Timeout { core, after: begun.elapsed() };
            cores.owners[place].abandon();
            cores.breakers[place].note(Err(&lost), Instant::now());
            first.get_or_insert(lost);
        }
        // A core that was given up may still read them.
        if let Ok(all) = Arc::try_unwrap(a) {
            all.into_iter().for_each(|packed| cores.packer.reuse(packed));
        }
        first.map_or(Ok(()), Err)
    }
}

/// How long a core may take for so many columns, packing included.
fn deadline(rows: usize, k: usize, columns: usize) -> Duration {
    let elements = (k * columns) as f64;
    let run = (elements * 2.0 / WEIGHT_RATE).max(rows as f64 * elements / MAC_RATE);
    let predicted = FIXED + Duration::from_secs_f64(run);
    LEAST_DEADLINE.max(PATIENCE * predicted) + Duration::from_secs_f64(elements / PACK_RATE)
}
