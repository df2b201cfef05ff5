//! Tuning of devices: kernels of given sizes, shaped in all the ways that there are.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use super::{Check, Entry, Key, Report, Way, compare};
use crate::Error;
use crate::backend::opencl::{Bench, OpenClDevice, Trial, Workload};
use crate::graph::GraphError;

/// Measures workloads on a device.
///
/// ```no_run
/// use core::time::Duration;
/// use std::sync::Arc;
/// use tilewright::backend::opencl::{OpenClDevice, Options};
/// use tilewright::tune::{DeviceTuner, Table};
///
/// let device = Arc::new(OpenClDevice::open(&Options::from_env()?)?);
/// let tuner = DeviceTuner::new(device);
/// let workload = "gemm 1x128x768x768".parse()?;
/// let report = tuner.tune(&workload, Duration::from_secs(5))?;
/// let mut table = Table::new();
/// table.insert_on_device(tuner.key(&workload), report.entry());
/// print!("{table}");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub struct DeviceTuner {
    device: Arc<OpenClDevice>,
}

fn on_device(e: impl Into<GraphError>) -> Error {
    Error::Graph(e.into())
}

impl DeviceTuner {
    /// A tuner for a device.
    pub fn new(device: Arc<OpenClDevice>) -> Self {
        Self { device }
    }

    /// Where a table keeps a workload of this device.
    pub fn key(&self, workload: &Workload) -> Key {
        Key::on_device(self.device.identity(), self.units(), &workload.to_string())
    }

    /// Whether an entry of a table is of this device, its driver and this library.
    pub fn has(&self, key: &Key) -> bool {
        key.is_on_device(self.device.identity(), self.units())
    }

    fn units(&self) -> usize {
        usize::try_from(self.device.info().units).unwrap_or(usize::MAX)
    }

    /// Compares the ways of shaping the kernel of a workload: first tiles, then, with the best of them, the
    /// rest. Building a kernel takes longer than to run it; what half of the time does not suffice for is
    /// left out, beginning with what is least like the usual way.
    ///
    /// # Errors
    /// Too little memory, a usual way that the driver refuses, what the device meets.
    pub fn tune(&self, workload: &Workload, budget: Duration) -> Result<Report<Way>, Error> {
        let bench = self.device.bench(workload).map_err(on_device)?;
        let tiles = self.compare(&bench, bench.tiles(), budget / 2)?;
        let best = tiles.entry().choice;
        let usual = tiles.candidates[0];
        let mut rest = vec![usual];
        rest.extend(Some(best).filter(|best| *best != usual));
        rest.extend(bench.variants(&best));
        if rest.len() < 2 {
            return Ok(tiles);
        }
        self.compare(&bench, rest, budget / 2)
    }

    /// Measures a workload again and says whether an entry of a table still holds, as
    /// [`Tuner::check`](super::Tuner::check) does.
    ///
    /// # Errors
    /// As [`DeviceTuner::tune`].
    pub fn check(
        &self,
        workload: &Workload,
        entry: &Entry<Way>,
        budget: Duration,
    ) -> Result<Check<Way>, Error> {
        let bench = self.device.bench(workload).map_err(on_device)?;
        if bench.trial(entry.choice).is_err() {
            return Ok(Check::unknown());
        }
        let mut all = bench.tiles();
        all.insert(1, entry.choice);
        all.extend(bench.variants(&entry.choice));
        let mut ways: Vec<Way> = Vec::new();
        for way in all {
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        let (ways, trials) = self.build(&bench, ways, budget / 2)?;
        Check::of(ways, entry, budget / 2, |budget| self.rank(&bench, &trials, budget))
    }

    fn compare(
        &self,
        bench: &Bench,
        ways: Vec<Way>,
        budget: Duration,
    ) -> Result<Report<Way>, Error> {
        let (candidates, trials) = self.build(bench, ways, budget / 2)?;
        let ranking = self.rank(bench, &trials, budget / 2)?;
        Ok(Report { candidates, ranking })
    }

    /// The ways for which there was time and whose kernels work. The first two are tried in any case, and the
    /// first must work.
    fn build(
        &self,
        bench: &Bench,
        ways: Vec<Way>,
        budget: Duration,
    ) -> Result<(Vec<Way>, Vec<Trial>), Error> {
        let begin = Instant::now();
        let (mut good, mut trials) = (Vec::new(), Vec::new());
        for (i, way) in ways.into_iter().enumerate() {
            if i > 1 && begin.elapsed() > budget {
                break;
            }
            // Some drivers build a kernel when it first runs, or find only then that registers are too few.
            let tried = bench.trial(way).and_then(|trial| bench.time(&trial, 1).map(|_| trial));
            match tried {
                Ok(trial) => {
                    good.push(way);
                    trials.push(trial);
                }
                Err(e) if i == 0 => return Err(on_device(e)),
                Err(_) => {}
            }
        }
        Ok((good, trials))
    }

    fn rank(
        &self,
        bench: &Bench,
        trials: &[Trial],
        budget: Duration,
    ) -> Result<super::Ranking, Error> {
        compare(trials.len(), budget, |i, repeats| {
            bench.time(&trials[i], repeats).map_err(on_device)
        })
    }
}
