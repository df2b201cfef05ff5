//! Threads that run one job together.
//!
//! Layers of a small network take tens of microseconds, so handing out work must cost well under
//! one: a job is a pointer that waiting threads find by polling an epoch counter for a while before
//! they go to sleep, and steps of one job are kept apart by a barrier that threads poll too.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Polls before a thread that waits gives up its time slice, and before a worker goes to sleep.
const SPINS: usize = 2_000;
const YIELDS: usize = 200;

/// A job as workers see it: a function of the thread's number.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

#[allow(unsafe_code)]
// SAFETY: the function behind the pointer is `Sync`, and `Pool::run` keeps it alive until every
// worker has finished with it.
unsafe impl Send for Job {}

#[derive(Default)]
struct Slot {
    job: Option<Job>,
    stop: bool,
}

#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    /// Number of jobs handed out.
    epoch: Padded<AtomicUsize>,
    /// Workers that have finished the job of this epoch.
    done: Padded<AtomicUsize>,
    panicked: AtomicBool,
    slot: Mutex<Slot>,
    wake: Condvar,
}

/// Worker threads, one fewer than the threads of a job: the caller takes part as number 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool for jobs of `threads` threads; 1 starts none.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            epoch: Padded::default(),
            done: Padded::default(),
            panicked: AtomicBool::new(false),
            slot: Mutex::default(),
            wake: Condvar::new(),
        });
        let mut pool = Self { shared, workers: Vec::new() };
        for number in 1..threads {
            let shared = pool.shared.clone();
            let name = format!("tilewright-{number}");
            let work = move || worker(&shared, number);
            pool.workers.push(std::thread::Builder::new().name(name).spawn(work)?);
        }
        Ok(pool)
    }

    /// Threads that take part in a job.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `job(0)` here and `job(1)`, ... on the workers, and returns when all are done.
    ///
    /// # Panics
    /// If the job panicked on any thread.
    pub(crate) fn run(&mut self, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            job(0);
            return;
        }
        let shared = &*self.shared;
        shared.done.0.store(0, Ordering::Relaxed);
        {
            let mut slot = shared.slot.lock().unwrap_or_else(PoisonError::into_inner);
            // The pointer outlives its use: this function waits for every worker below, also when
            // the caller's own part panics.
            let job: *const (dyn Fn(usize) + Sync + '_) = job;
            #[allow(unsafe_code)]
            // SAFETY: only the lifetime bound of the trait object changes; see above.
            let job = unsafe {
                core::mem::transmute::<
                    *const (dyn Fn(usize) + Sync + '_),
                    *const (dyn Fn(usize) + Sync + 'static),
                >(job)
            };
            slot.job = Some(Job(job));
            shared.epoch.0.fetch_add(1, Ordering::Release);
        }
        shared.wake.notify_all();
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        wait_until(|| shared.done.0.load(Ordering::Acquire) == self.workers.len());
        shared.slot.lock().unwrap_or_else(PoisonError::into_inner).job = None;
        if let Err(payload) = own {
            shared.panicked.store(false, Ordering::Relaxed);
            resume_unwind(payload);
        }
        let panicked = shared.panicked.swap(false, Ordering::Relaxed);
        assert!(!panicked, "a worker thread panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.slot.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.shared.epoch.0.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of jobs, so there is nothing to learn from the result.
            let _ = worker.join();
        }
    }
}

fn worker(shared: &Shared, number: usize) {
    let mut seen = 0;
    loop {
        let changed = || shared.epoch.0.load(Ordering::Acquire) != seen;
        let mut polls = 0;
        while !changed() && polls < SPINS + YIELDS {
            pause(polls);
            polls += 1;
        }
        let job = {
            let mut slot = shared.slot.lock().unwrap_or_else(PoisonError::into_inner);
            while !changed() {
                slot = shared.wake.wait(slot).unwrap_or_else(PoisonError::into_inner);
            }
            if slot.stop {
                return;
            }
            seen = shared.epoch.0.load(Ordering::Acquire);
            slot.job
        };
        let Some(Job(job)) = job else { continue };
        #[allow(unsafe_code)]
        // SAFETY: `Pool::run` set the pointer for this epoch, and returns only after this worker
        // has counted itself as done.
        let job = unsafe { &*job };
        if catch_unwind(AssertUnwindSafe(|| job(number))).is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.done.0.fetch_add(1, Ordering::Release);
    }
}

/// Waits politely: first on the spot, then giving way to other threads of the machine.
fn wait_until(condition: impl Fn() -> bool) {
    let mut polls = 0;
    while !condition() {
        pause(polls);
        polls += 1;
    }
}

fn pause(polls: usize) {
    if polls < SPINS {
        core::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

/// Where the threads of a job wait for each other.
pub(crate) struct Barrier {
    threads: usize,
    arrived: Padded<AtomicUsize>,
    round: Padded<AtomicUsize>,
    broken: AtomicBool,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: Padded::default(),
            round: Padded::default(),
            broken: AtomicBool::new(false),
        }
    }

    /// Returns when all threads have called it. What they wrote before is then visible to all.
    ///
    /// # Panics
    /// If another thread broke the barrier by panicking.
    pub(crate) fn wait(&self) {
        if self.threads == 1 {
            return;
        }
        let round = self.round.0.load(Ordering::Acquire);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.round.0.store(round.wrapping_add(1), Ordering::Release);
            return;
        }
        wait_until(|| {
            self.round.0.load(Ordering::Acquire) != round || self.broken.load(Ordering::Relaxed)
        });
        assert!(!self.broken.load(Ordering::Relaxed), "another thread panicked");
    }

    /// Lets the threads that wait go on if the calling one panics before the guard is dropped.
    pub(crate) fn guard(&self) -> BreakOnPanic<'_> {
        BreakOnPanic(self)
    }
}

pub(crate) struct BreakOnPanic<'a>(&'a Barrier);

impl Drop for BreakOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_runs_every_job_once() {
        let mut pool = Pool::new(3).unwrap();
        let counts = [const { AtomicUsize::new(0) }; 3];
        for _ in 0..200 {
            pool.run(&|t| {
                counts[t].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 200));
    }

    #[test]
    fn a_barrier_separates_steps() {
        let mut pool = Pool::new(4).unwrap();
        let barrier = Barrier::new(4);
        let (sum, wrong) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(&|_| {
            for step in 1..=50 {
                sum.fetch_add(1, Ordering::Relaxed);
                barrier.wait();
                if sum.load(Ordering::Relaxed) != 4 * step {
                    wrong.fetch_add(1, Ordering::Relaxed);
                }
                barrier.wait();
            }
        });
        assert_eq!(wrong.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let mut pool = Pool::new(2).unwrap();
        for thread in 0..2 {
            let barrier = Barrier::new(2);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|t| {
                    let _guard = barrier.guard();
                    assert!(t != thread, "expected by this test");
                    barrier.wait();
                });
            }));
            assert!(outcome.is_err());
        }
        pool.run(&|_| {});
    }
}
