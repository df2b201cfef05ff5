//! Finding out by measurement how ops of given sizes are computed best on this machine.
//!
//! Plans of convolutions and products choose their algorithm, tile and blocking by rules. A
//! [`Tuner`] measures all the choices there are and keeps the fastest in a [`Table`]; a session
//! that is given the table ([`Tuning`]) chooses what it says. Results stay within the errors that
//! the kernels state, but may differ in the last bits from those without a table.
//!
//! ```
//! use core::time::Duration;
//! use tilewright::Isa;
//! use tilewright::tune::{Key, Table, Tuner};
//!
//! let workload = "matmul 4x32x32".parse().unwrap();
//! let mut tuner = Tuner::new(Isa::Scalar, 1)?;
//! let report = tuner.tune(&workload, 1, Duration::from_millis(20))?;
//! let mut table = Table::new();
//! table.insert(Key::here(Isa::Scalar, 1, &workload), report.entry());
//! print!("{table}");
//! # Ok::<(), tilewright::Error>(())
//! ```

mod cpu;
#[cfg(feature = "opencl")]
mod device;
mod search;
mod table;

pub use cpu::{cpu_model, cpu_name};
#[cfg(feature = "opencl")]
pub use device::DeviceTuner;
pub use search::{Measured, Ranking, search};
pub use table::{Entry, Key, TABLE_VARIABLE, Table, TableError};

pub use crate::graph::Way;
pub use tilewright_kernels::{Choice, Workload};

use core::time::Duration;
use std::sync::Arc;

use crate::Error;
use crate::backend::cpu::{Executor, Trial};
use crate::graph::Choices;
use tilewright_kernels::Isa;

/// A sample repeats a run until about so much time has passed: many times the cost of reading a
/// clock, and short enough for the machine to be left alone most of the time.
const SAMPLE: Duration = Duration::from_micros(300);

/// Most runs of one sample.
const MAX_REPEATS: f64 = 1e5;

/// Relative difference from which on something [does not hold](Check::holds) any more.
pub const TOLERANCE: f64 = 0.10;

/// Which tuning table a session uses.
#[derive(Clone, Debug, Default)]
pub enum Tuning {
    /// That of the user: see [`Table::default_path`]. One that cannot be used is left alone, and
    /// [`Session::table_problem`](crate::Session::table_problem) says why.
    #[cfg(feature = "tune")]
    #[default]
    User,
    /// None; the default of builds without the feature `tune`, which have no other.
    #[cfg_attr(not(feature = "tune"), default)]
    Off,
    /// This one.
    #[cfg(feature = "tune")]
    Table(Arc<Table>),
}

impl Tuning {
    /// What the table chooses, if there is one that can be used, or why it cannot.
    pub(crate) fn choices(self) -> (Option<Arc<dyn Choices>>, Option<TableError>) {
        match self {
            Self::Off => (None, None),
            #[cfg(feature = "tune")]
            Self::Table(table) => (Some(table), None),
            #[cfg(feature = "tune")]
            Self::User => match Table::default_path().map(|path| Table::load(&path)) {
                Some(Ok(table)) => (Some(Arc::new(table)), None),
                Some(Err(problem)) => (None, Some(problem)),
                None => (None, None),
            },
        }
    }
}

/// Measures workloads.
pub struct Tuner {
    executor: Executor,
}

/// What was measured of a workload.
#[derive(Clone, Debug)]
pub struct Report<C = Choice> {
    /// The ways of computing it, the one chosen without a table first.
    pub candidates: Vec<C>,
    /// How they compare.
    pub ranking: Ranking,
}

impl<C: Copy> Report<C> {
    /// What a table should say.
    pub fn entry(&self) -> Entry<C> {
        let micros = |i: usize| self.ranking.measured[i].best() * 1e6;
        Entry {
            choice: self.candidates[self.ranking.fastest],
            time_us: micros(self.ranking.fastest),
            analytic_us: micros(0),
        }
    }

    /// How many times as long it takes without a table.
    pub fn gain(&self) -> f64 {
        self.entry().analytic_us / self.entry().time_us
    }
}

/// What a second measurement says of an entry.
#[derive(Clone, Debug)]
pub struct Check<C = Choice> {
    /// The measurement; `None` if the entry's choice is none for this workload any more.
    pub report: Option<Report<C>>,
    /// Time of the entry's choice now, in microseconds.
    pub time_us: Option<f64>,
    /// Time of the fastest candidate now.
    pub fastest_us: Option<f64>,
    /// Whether the choice still is within [`TOLERANCE`] of the fastest, and its time within the
    /// same of the one that the entry has.
    pub holds: bool,
}

impl Tuner {
    /// A tuner for ops that up to `threads` threads share.
    ///
    /// # Errors
    /// As [`Executor::new`].
    pub fn new(isa: Isa, threads: usize) -> Result<Self, Error> {
        Ok(Self { executor: Executor::new(isa, threads)? })
    }

    /// Instruction set that is measured.
    pub fn isa(&self) -> Isa {
        self.executor.isa()
    }

    /// Most threads that share an op.
    pub fn threads(&self) -> usize {
        self.executor.threads()
    }

    /// Compares all ways of computing a workload on `threads` threads.
    ///
    /// # Errors
    /// Sizes that the kernels refuse, lack of memory.
    pub fn tune(
        &mut self,
        workload: &Workload,
        threads: usize,
        budget: Duration,
    ) -> Result<Report, Error> {
        let candidates = workload.candidates(self.isa())?;
        let trials = self.executor.trials(workload, &candidates, threads)?;
        let ranking = self.compare(&trials, budget)?;
        Ok(Report { candidates, ranking })
    }

    /// Measures a workload again and says whether an entry of a table still holds. What seems not
    /// to hold is measured up to three times.
    ///
    /// # Errors
    /// As [`tune`](Self::tune).
    pub fn check(
        &mut self,
        workload: &Workload,
        threads: usize,
        entry: &Entry,
        budget: Duration,
    ) -> Result<Check, Error> {
        let candidates = workload.candidates(self.isa())?;
        if !candidates.contains(&entry.choice) {
            return Ok(Check::unknown());
        }
        let trials = self.executor.trials(workload, &candidates, threads)?;
        Check::of(candidates, entry, budget, |budget| self.compare(&trials, budget))
    }

    fn compare(&mut self, trials: &[Trial], budget: Duration) -> Result<Ranking, Error> {
        let executor = &mut self.executor;
        compare(trials.len(), budget, |i, repeats| Ok(executor.time(&trials[i], repeats)?))
    }
}

/// Ranks candidates by `time(candidate, repeats)`, the time of so many runs.
fn compare(
    count: usize,
    budget: Duration,
    mut time: impl FnMut(usize, u32) -> Result<Duration, Error>,
) -> Result<Ranking, Error> {
    let mut repeats = vec![0; count];
    search(count, budget, |i| {
        if repeats[i] == 0 {
            // The first call touches memory for the first time.
            time(i, 1)?;
            let once = time(i, 1)?.as_secs_f64();
            repeats[i] = (SAMPLE.as_secs_f64() / once).clamp(1.0, MAX_REPEATS) as u32;
        }
        Ok(time(i, repeats[i])?.as_secs_f64() / f64::from(repeats[i]))
    })
}

impl<C: Copy + PartialEq> Check<C> {
    /// What there is to say of a choice that is none any more.
    fn unknown() -> Self {
        Self { report: None, time_us: None, fastest_us: None, holds: false }
    }

    /// Compares candidates by `rank`, up to three times while the entry's choice, which is one of them, does
    /// not seem to hold.
    fn of(
        candidates: Vec<C>,
        entry: &Entry<C>,
        budget: Duration,
        mut rank: impl FnMut(Duration) -> Result<Ranking, Error>,
    ) -> Result<Self, Error> {
        const ATTEMPTS: u32 = 3;
        let mut check = Self::unknown();
        let Some(own) = candidates.iter().position(|c| *c == entry.choice) else {
            return Ok(check);
        };
        let mut best = vec![f64::INFINITY; candidates.len()];
        for _ in 0..ATTEMPTS {
            let ranking = rank(budget / ATTEMPTS)?;
            for (best, measured) in best.iter_mut().zip(&ranking.measured) {
                *best = measured.best().min(*best);
            }
            let time = best[own] * 1e6;
            let fastest = best.iter().fold(f64::INFINITY, |a, b| a.min(*b)) * 1e6;
            let near = |a: f64, b: f64| a <= b * (1.0 + TOLERANCE) && b <= a * (1.0 + TOLERANCE);
            check.report = Some(Report { candidates: candidates.clone(), ranking });
            (check.time_us, check.fastest_us) = (Some(time), Some(fastest));
            check.holds = near(time, fastest) && near(time, entry.time_us);
            if check.holds {
                break;
            }
        }
        Ok(check)
    }
}
