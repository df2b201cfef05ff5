//! Threads that compute the phases of one job together.
//!
//! Layers of a small network take tens of microseconds, so handing out work must cost well under
//! one, and on a machine that is busy with other things no thread may have to wait for one that
//! does not run. A *job* is a sequence of *phases*, a phase a number of *parts* that may run at
//! the same time; the next phase begins when all parts of the last one are done. Each thread has
//! its own share of the parts, always the same one, so that data stay in the cache of its core, and
//! takes parts of other shares when its own are gone and others are late with theirs. Nobody waits
//! long for a thread, only for parts that a thread has begun.
//!
//! Two words matter. The *call* says which phase it is and how its parts are shared out; the thread
//! that finishes the last part of a phase writes the call for the next. The *claim* of a thread says
//! which parts of its share nobody has begun; one of an earlier phase means all of them. Parts are
//! taken by exchanging the claim. A thread that slept meanwhile cannot take part in a phase that is
//! over: every share of it was claimed to its end, and so its claim is of that phase or a later one.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use core::time::Duration;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread, ThreadId};
use std::time::Instant;

use super::place::{Mover, Place};

/// How long a thread that has nothing to do looks out for work before it goes to sleep.
const WATCH: Duration = Duration::from_micros(150);

/// How long it does nothing else meanwhile; afterwards it offers its core to others now and then.
const SPIN: Duration = Duration::from_micros(10);

/// An offer of the core that takes longer than this has been accepted: the machine is busy.
const TAKEN: Duration = Duration::from_micros(20);

/// How long the owner of parts may take before others begin those that it has not begun. Their
/// operands are most likely in the owner's cache: fetched from there, what takes the owner a
/// microsecond takes another core ten.
const LATE: Duration = Duration::from_micros(20);

/// What threads compute together.
pub(crate) trait Job: Sync {
    /// Phases, one after the other.
    fn phases(&self) -> usize;

    /// Parts of a phase, at least one, and how many threads share them.
    fn parts(&self, phase: usize) -> (usize, usize);

    /// Computes a part, as thread `thread`.
    fn run(&self, phase: usize, part: usize, thread: usize);

    /// Called once after the last part of a phase, before the next phase begins.
    fn end(&self, phase: usize);
}

/// Most parts of a phase.
pub(crate) const MAX_PARTS: usize = Word::MAX as usize;

/// A call: the number of a phase, its parts, the threads that share them. A claim: the number of a
/// phase, first and end of the parts of a share that nobody has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word {
    /// Counts all phases that the pool has begun.
    phase: u64,
    a: u64,
    b: u64,
}

impl Word {
    const BITS: u32 = 12;
    const MAX: u64 = (1 << Self::BITS) - 1;

    fn pack(self) -> u64 {
        self.phase << (2 * Self::BITS) | self.a << Self::BITS | self.b
    }

    fn unpack(word: u64) -> Self {
        let (a, b) = (word >> Self::BITS & Self::MAX, word & Self::MAX);
        Self { phase: word >> (2 * Self::BITS), a, b }
    }

    /// Of a call: the claim of a thread that has not begun.
    fn share(self, thread: usize) -> Self {
        let (parts, threads) = (self.a, self.b.max(1));
        let at = |t: u64| t.min(threads) * parts / threads;
        Self { phase: self.phase, a: at(thread as u64), b: at(thread as u64 + 1) }
    }
}

/// One cache line pair, the unit in which cores take data from each other.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

/// What the pool knows of one thread.
#[derive(Default)]
struct Seat {
    /// Stays in the cache of its thread as long as nobody else looks at it.
    claim: Padded<AtomicU64>,
    /// Set by the thread before it sleeps, reset by whoever wakes it.
    asleep: Padded<AtomicBool>,
    place: Padded<Place>,
    thread: Mutex<Option<Thread>>,
}

/// What changes between two phases. It lies in one cache line, since what costs time there is that
/// lines go from core to core.
#[derive(Default)]
struct Board {
    call: AtomicU64,
    /// Parts of this phase that are not done.
    left: AtomicU64,
}

#[derive(Default)]
struct Shared {
    board: Padded<Board>,
    seats: Vec<Seat>,
    job: Padded<JobSlot>,
    /// Set once a part has panicked; the others are then counted without being run.
    panicked: AtomicBool,
    /// What the first of them said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

/// The job, valid while a part of it is claimed and not done.
#[derive(Default)]
struct JobSlot {
    /// Points to a reference to the job.
    job: AtomicPtr<&'static dyn Job>,
    /// Number of its first phase.
    first: AtomicU64,
}

/// Worker threads, one fewer than the threads of a job: the caller takes part as number 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Phases begun so far.
    phase: u64,
    /// Who called last, and so sits at number 0.
    caller: Option<ThreadId>,
    /// The process that has the workers: a child of it has none of them.
    process: u32,
}

/// More than any machine has cores for. Each has a seat that others look at.
const MOST_THREADS: usize = 4096;

impl Pool {
    /// A pool for jobs of `threads` threads; 1 starts none.
    ///
    /// # Errors
    /// If the system refuses a thread, or they are too many.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        if threads > MOST_THREADS {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        let seats = (0..threads.max(1)).map(|_| Seat::default()).collect();
        let shared = Arc::new(Shared { seats, ..Shared::default() });
        let process = std::process::id();
        let mut pool = Self { shared, workers: Vec::new(), phase: 0, caller: None, process };
        for number in 1..threads {
            let shared = pool.shared.clone();
            let name = format!("tilewright-{number}");
            let work = move || shared.work(number);
            let builder = std::thread::Builder::new().name(name);
            let worker = crate::spawn::thread(builder, work)?;
            pool.shared.seats[number].sit(worker.thread().clone());
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that take part in a job.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs all phases of a job, with this thread as number 0.
    ///
    /// # Panics
    /// If the job panicked on any thread.
    pub(crate) fn run(&mut self, job: &dyn Job) {
        let alone = |phase: usize| self.workers.is_empty() || job.parts(phase).1 == 1;
        if (0..job.phases()).all(alone) {
            for phase in 0..job.phases() {
                (0..job.parts(phase).0).for_each(|part| job.run(phase, part, 0));
                job.end(phase);
            }
            return;
        }
        let shared = &*self.shared;
        let last = self.phase + job.phases() as u64;
        #[allow(unsafe_code)]
        // SAFETY: only the lifetime changes. The reference is used by threads that have claimed a
        // part and not finished it, and `take_part` returns after all parts are done.
        let job: &'static dyn Job = unsafe { core::mem::transmute::<&dyn Job, _>(job) };
        shared.job.0.job.store(ptr::from_ref(&job).cast_mut(), Ordering::Relaxed);
        shared.job.0.first.store(self.phase + 1, Ordering::Relaxed);
        let caller = std::thread::current();
        if self.caller != Some(caller.id()) {
            self.caller = Some(caller.id());
            shared.seats[0].sit(caller);
        }
        shared.seats[0].place.0.mark();
        // Also what panics is counted as done, so this comes to an end.
        shared.begin(self.phase + 1, job.parts(0));
        self.phase = last + 1;
        shared.take_part(0, |call| call.phase > last);
        shared.job.0.job.store(ptr::null_mut(), Ordering::Relaxed);
        if shared.panicked.swap(false, Ordering::Relaxed)
            && let Some(panic) = lock(&shared.panic).take()
        {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // Nobody would ever answer. Parts of a job are done by whoever comes, so jobs still run.
            self.workers.drain(..).for_each(core::mem::forget);
            return;
        }
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.publish(Word { phase: self.phase + 1, a: 0, b: 0 });
        for worker in self.workers.drain(..) {
            // A worker catches the panics of jobs, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

/// What a mutex holds is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    fn sit(&self, thread: Thread) {
        *lock(&self.thread) = Some(thread);
    }

    fn wake(&self) {
        if self.asleep.0.swap(false, Ordering::Relaxed)
            && let Some(thread) = &*lock(&self.thread)
        {
            thread.unpark();
        }
    }
}

impl Shared {
    /// A worker's life.
    fn work(&self, number: usize) {
        self.take_part(number, |_| self.stop.load(Ordering::Relaxed));
    }

    /// Begins a phase with parts.
    fn begin(&self, phase: u64, (parts, threads): (usize, usize)) {
        debug_assert!((1..=MAX_PARTS).contains(&parts));
        self.board.0.left.store(parts as u64, Ordering::Relaxed);
        let threads = threads.clamp(1, self.seats.len());
        self.publish(Word { phase, a: parts as u64, b: threads as u64 });
    }

    /// Writes the call, which makes all that was done before visible to those who claim, and wakes
    /// sleepers who have a share. Without parts it is the end of a job: those wake who must know,
    /// the caller and, if the pool stops, the workers.
    fn publish(&self, call: Word) {
        // Either a thread that goes to sleep sees the call, or this sees below that it sleeps: all
        // four accesses are in one order.
        self.board.0.call.swap(call.pack(), Ordering::SeqCst);
        let stop = call.a == 0 && self.stop.load(Ordering::Relaxed);
        for (t, seat) in self.seats.iter().enumerate() {
            let share = call.share(t);
            let concerned = share.b > share.a || (call.a == 0 && (t == 0 || stop));
            if concerned && seat.asleep.0.load(Ordering::SeqCst) {
                seat.wake();
            }
        }
    }

    /// Computes parts and waits for more of them until the call is one that is `over`.
    fn take_part(&self, number: usize, over: impl Fn(Word) -> bool) {
        let mut watch = Watch::new();
        let mut mover = Mover::default();
        // The last phase in which this thread has waited for others long enough.
        let mut late = 0;
        loop {
            let word = self.board.0.call.load(Ordering::Acquire);
            let call = Word::unpack(word);
            if over(call) {
                return;
            }
            if let Some(part) = self.take_first(call, number) {
                self.compute(call.phase, part, number);
                watch = Watch::new();
                continue;
            }
            // Others are about to begin theirs, so first this waits for a moment.
            let changed = || self.board.0.call.load(Ordering::Acquire) != word;
            let tired = watch.wait(changed);
            if !changed() && watch.longer_than(LATE) {
                late = call.phase;
            }
            if changed() {
                watch = Watch::new();
            } else if let Some(part) = self.take_other(call, number, late) {
                late = call.phase;
                self.compute(call.phase, part, number);
                watch = Watch::new();
            } else if tired {
                self.sleep(number, word);
                if number > 0 {
                    self.settle(number, &mut mover);
                }
                watch = Watch::new();
            }
        }
    }

    /// Takes the first part of the own share.
    fn take_first(&self, call: Word, number: usize) -> Option<u64> {
        self.take(call, number, |claim| (claim.a, Word { a: claim.a + 1, ..claim }))
    }

    /// Takes the last part of a share that is not the own one. Its owner has been `late` in this phase,
    /// or was so in the one before, also in that of an earlier job, and has not begun this one.
    fn take_other(&self, call: Word, number: usize, late: u64) -> Option<u64> {
        let absent = |other: usize| {
            let claim = Word::unpack(self.seats[other].claim.0.load(Ordering::Relaxed));
            late > 0
                && late + 2 >= call.phase
                && (claim.phase < call.phase || claim.a == call.share(other).a)
        };
        let others = (0..self.seats.len()).filter(|&t| t != number);
        others.into_iter().filter(|&t| late == call.phase || absent(t)).find_map(|other| {
            self.take(call, other, |claim| (claim.b - 1, Word { b: claim.b - 1, ..claim }))
        })
    }

    /// Takes a part of somebody's share if there is one left: `split` gives it and the rest.
    fn take(&self, call: Word, whose: usize, split: impl Fn(Word) -> (u64, Word)) -> Option<u64> {
        let share = call.share(whose);
        if share.a == share.b {
            return None;
        }
        let claim = &self.seats[whose].claim.0;
        let mut word = claim.load(Ordering::Relaxed);
        loop {
            let found = Word::unpack(word);
            let left = if found.phase < call.phase { share } else { found };
            if left.phase > call.phase || left.a == left.b {
                return None;
            }
            let (part, rest) = split(left);
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            match claim.compare_exchange_weak(word, rest.pack(), success, failure) {
                Ok(_) => return Some(part),
                Err(current) => word = current,
            }
        }
    }

    /// Computes a claimed part; the last one of a phase begins the next phase.
    fn compute(&self, phase: u64, part: u64, number: usize) {
        let slot = &self.job.0;
        let first = slot.first.load(Ordering::Relaxed);
        #[allow(unsafe_code)]
        // SAFETY: `Pool::run` wrote the pointer before it called for the phases of this job, and
        // who claims a part has acquired the call. It points to a local variable of `run`, which
        // does not return before all claimed parts are counted as done, this one below.
        let job: &dyn Job = unsafe { *slot.job.load(Ordering::Relaxed) };
        let index = (phase - first) as usize;
        let run = || {
            if !self.panicked.load(Ordering::Relaxed) {
                job.run(index, part as usize, number);
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            lock(&self.panic).get_or_insert(panic);
            self.panicked.store(true, Ordering::Relaxed);
        }
        // What all threads wrote in this phase is acquired with the last count.
        if self.board.0.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        job.end(index);
        if index + 1 < job.phases() {
            self.begin(phase + 1, job.parts(index + 1));
        } else {
            // The caller may return from now on: `job` is not used any more.
            self.publish(Word { phase: phase + 1, a: 0, b: 0 });
        }
    }

    /// Sleeps until the call is not `word`.
    fn sleep(&self, number: usize, word: u64) {
        let asleep = &self.seats[number].asleep.0;
        self.seats[number].place.0.clear();
        asleep.store(true, Ordering::SeqCst);
        if self.board.0.call.load(Ordering::SeqCst) == word {
            // May return early; then the loop around finds nothing to do and comes back.
            std::thread::park();
        }
        asleep.store(false, Ordering::Relaxed);
    }

    /// Moves a worker that has woken on the core of another thread.
    fn settle(&self, number: usize, mover: &mut Mover) {
        let place = |t: usize| &self.seats[t].place.0;
        let others = (0..self.seats.len()).filter(|&t| t != number);
        mover.settle(place(number), others.map(place));
    }
}

/// The patience of a thread that has nothing to do.
struct Watch {
    since: Option<Instant>,
}

impl Watch {
    /// Polls between two looks at the clock: less than a microsecond. Few of them pause, which
    /// takes long on some processors.
    const POLLS: u32 = 256;

    fn new() -> Self {
        Self { since: None }
    }

    fn longer_than(&self, time: Duration) -> bool {
        self.since.is_some_and(|since| since.elapsed() > time)
    }

    /// Polls for a short time; says whether it is time to sleep.
    fn wait(&mut self, done: impl Fn() -> bool) -> bool {
        for i in 0..Self::POLLS {
            if done() {
                return false;
            }
            if i % 16 == 15 {
                core::hint::spin_loop();
            }
        }
        let now = Instant::now();
        let waited = now - *self.since.get_or_insert(now);
        if waited > WATCH {
            return true;
        }
        if waited > SPIN {
            std::thread::yield_now();
            // Whoever took the core wants more of it.
            return now.elapsed() > TAKEN && !done();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicUsize;

    /// Phases of a function of phase, part and thread.
    struct Each<'a, F: Fn(usize, usize, usize) + Sync>(&'a [(usize, usize)], F);

    impl<F: Fn(usize, usize, usize) + Sync> Job for Each<'_, F> {
        fn phases(&self) -> usize {
            self.0.len()
        }

        fn parts(&self, phase: usize) -> (usize, usize) {
            self.0[phase]
        }

        fn run(&self, phase: usize, part: usize, thread: usize) {
            self.1(phase, part, thread);
        }

        fn end(&self, _phase: usize) {}
    }

    /// Repetitions, fewer where an interpreter runs the tests.
    const RUNS: usize = if cfg!(miri) { 3 } else { 200 };

    #[test]
    fn every_part_runs_once_and_after_all_of_the_phase_before() {
        let phases = [(1, 1), (7, 3), (2, 2), (1, 1), (12, 4), (3, 3)];
        for threads in [1, 2, 4] {
            let mut pool = Pool::new(threads).unwrap();
            for _ in 0..RUNS {
                let counts = phases.map(|(parts, _)| (parts, AtomicUsize::new(0)));
                let wrong = AtomicUsize::new(0);
                let seen: Vec<AtomicUsize> = (0..6 * 12).map(|_| AtomicUsize::new(0)).collect();
                let job = Each(&phases, |phase: usize, part: usize, thread: usize| {
                    let before = phase == 0 || {
                        let (parts, count) = &counts[phase - 1];
                        count.load(Ordering::Relaxed) == *parts
                    };
                    let first = seen[phase * 12 + part].fetch_add(1, Ordering::Relaxed) == 0;
                    if !before || !first || thread >= threads || part >= phases[phase].0 {
                        wrong.fetch_add(1, Ordering::Relaxed);
                    }
                    counts[phase].1.fetch_add(1, Ordering::Relaxed);
                });
                pool.run(&job);
                assert_eq!(wrong.load(Ordering::Relaxed), 0);
                assert!(counts.iter().all(|(n, c)| c.load(Ordering::Relaxed) == *n));
            }
        }
    }

    #[test]
    fn what_a_phase_wrote_is_seen_by_the_next() {
        let mut pool = Pool::new(3).unwrap();
        let cells: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
        let phases = [(8, 3); 20];
        let wrong = AtomicUsize::new(0);
        for run in 0..RUNS {
            let job = Each(&phases, |phase: usize, part: usize, _| {
                // Relaxed: it is the pool that keeps phases apart.
                let other = cells[(part + 1) % 8].load(Ordering::Relaxed);
                let expected = run * 20 + phase;
                if other != expected && other != expected + 1 {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
                cells[part].store(expected + 1, Ordering::Relaxed);
            });
            pool.run(&job);
        }
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_begun_nothing() {
        let mut pool = Pool::new(2).unwrap();
        let (late, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        // The worker is busy with a part until all the others are done.
        let job = Each(&[(8, 2)], |_, _, thread: usize| {
            if thread == 1 {
                late.store(true, Ordering::Relaxed);
                while done.load(Ordering::Relaxed) < 7 {
                    std::thread::yield_now();
                }
            } else {
                while !late.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            done.fetch_add(1, Ordering::Relaxed);
        });
        pool.run(&job);
        assert_eq!(done.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn sleepers_wake() {
        let mut pool = Pool::new(3).unwrap();
        for _ in 0..RUNS.min(20) {
            std::thread::sleep(3 * WATCH);
            let threads = AtomicUsize::new(0);
            pool.run(&Each(&[(3, 3), (1, 1), (3, 3)], |phase, _, thread: usize| {
                threads.fetch_or(1 << thread, Ordering::Relaxed);
                // Whoever has a part of the last phase keeps it until every thread has one.
                while phase == 2 && threads.load(Ordering::Relaxed) != 7 {
                    std::thread::yield_now();
                }
            }));
            assert_eq!(threads.load(Ordering::Relaxed), 7);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let mut pool = Pool::new(2).unwrap();
        for bad in 0..4 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&Each(&[(4, 2), (4, 2)], |_, part, _| {
                    assert!(part != bad, "expected by this test");
                }));
            }));
            assert!(outcome.unwrap_err().is::<&str>());
            pool.run(&Each(&[(4, 2)], |_, _, _| {}));
        }
    }
}
