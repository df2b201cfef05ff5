//! Where the threads of a pool run.
//!
//! A system that puts two of them on one core lets them take turns of milliseconds, while another
//! core has nothing to do; some leave it so for a tenth of a second, longer than many networks run. So
//! a worker that wakes where another thread of its pool is moves on, and is then free to be moved
//! again: nothing stays pinned.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::time::Instant;

/// A worker looks for another core no more often than this: on a busy machine it may be moved back.
const AGAIN: Duration = Duration::from_millis(5);

/// The core of one thread, as far as it is known.
#[derive(Debug)]
pub(super) struct Place(AtomicUsize);

impl Default for Place {
    fn default() -> Self {
        Self(AtomicUsize::new(Self::NOWHERE))
    }
}

impl Place {
    const NOWHERE: usize = usize::MAX;

    /// The calling thread, whose place this is, runs here.
    pub(super) fn mark(&self) {
        let core = system::core().unwrap_or(Self::NOWHERE);
        if self.0.load(Ordering::Relaxed) != core {
            self.0.store(core, Ordering::Relaxed);
        }
    }

    /// The thread is about to sleep.
    pub(super) fn clear(&self) {
        self.0.store(Self::NOWHERE, Ordering::Relaxed);
    }
}

/// When a worker last looked for another core.
#[derive(Default)]
pub(super) struct Mover(Option<Instant>);

impl Mover {
    /// Marks the place of the calling thread, after moving it to another core if one of `others` has
    /// this one.
    pub(super) fn settle<'a>(
        &mut self,
        mine: &Place,
        others: impl Iterator<Item = &'a Place> + Clone,
    ) {
        mine.mark();
        let core = mine.0.load(Ordering::Relaxed);
        if core == Place::NOWHERE {
            return;
        }
        let taken = others.map(|place| place.0.load(Ordering::Relaxed));
        let recently = self.0.is_some_and(|last| last.elapsed() < AGAIN);
        if !recently && taken.clone().any(|other| other == core) {
            self.0 = Some(Instant::now());
            system::leave(taken);
            mine.mark();
        }
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// The core that the calling thread runs on.
    pub(super) fn core() -> Option<usize> {
        Some(sched_getcpu())
    }

    /// Moves the calling thread to a core that is not `taken`, if it may run on one. A system that
    /// refuses leaves it where it is.
    pub(super) fn leave(taken: impl Iterator<Item = usize>) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut free: CpuSet = allowed;
        taken.filter(|&core| core < CpuSet::MAX_CPU).for_each(|core| free.unset(core));
        if free.count() > 0 && sched_setaffinity(None, &free).is_ok() {
            // What it was allowed before it is allowed again.
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod system {
    pub(super) fn core() -> Option<usize> {
        None
    }

    pub(super) fn leave(_taken: impl Iterator<Item = usize>) {}
}

#[cfg(all(test, target_os = "linux", not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_a_core_that_is_taken_and_stays_free_to_run_anywhere() {
        use rustix::thread::sched_getaffinity;
        let before = sched_getaffinity(None).unwrap();
        let (mine, other) = (Place::default(), Place::default());
        other.mark();
        let mut mover = Mover::default();
        mover.settle(&mine, [&other].into_iter());
        let after = sched_getaffinity(None).unwrap();
        assert!((0..rustix::thread::CpuSet::MAX_CPU).all(|i| before.is_set(i) == after.is_set(i)));
        assert_ne!(mine.0.load(Ordering::Relaxed), Place::NOWHERE);
        mine.clear();
        assert_eq!(mine.0.load(Ordering::Relaxed), Place::NOWHERE);
    }
}
