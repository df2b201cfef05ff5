//! What `tilewright tune` tunes: the processor, or an OpenCL device.

use core::fmt::Display;
use core::str::FromStr;
use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use tilewright::graph::Device;
use tilewright::tune::{
    Check, Choice, Entry, Key, Report, Table, Tuner, Tuning, Workload, cpu_model,
};
use tilewright::{Error, Isa, Session, SessionOptions, Tensor};

use super::model::Network;
use super::run::borrowed;
use super::{Failure, chosen_isa};

/// Operations with the threads that share them.
pub(super) type Tasks<W> = Vec<(W, usize)>;

/// Entries of a table, and how many others it has.
pub(super) type Entries<W> = (Vec<(Key, Entry<W>)>, usize);

/// What is tuned.
pub(super) trait Subject {
    /// An operation of given sizes.
    type Work: FromStr<Err: Display> + Display;
    /// How one is computed.
    type Way: Copy + Display;

    /// Its name, as tables have it.
    fn name(&self) -> &str;

    /// Its instruction set, as tables have it.
    fn isa(&self) -> &'static str;

    /// Threads that operations are tuned for.
    fn threads(&self) -> usize;

    /// A session there.
    fn session(&self, network: &Network, tuning: Tuning) -> Result<Session, Failure>;

    /// What a network's plan for these inputs would look up.
    fn of_network(
        &self,
        network: &Network,
        given: &[(String, Tensor)],
    ) -> Result<Tasks<Self::Work>, Failure>;

    /// What a language model's plans would look up.
    fn of_language_model(&self, path: &Path) -> Result<Tasks<Self::Work>, Failure>;

    /// Before the first measurement, of operations that up to `threads` threads share.
    fn begin(&mut self, threads: usize) -> Result<(), Error>;

    /// After the last.
    fn end(&mut self);

    /// See [`Tuner::tune`].
    fn tune(
        &mut self,
        work: &Self::Work,
        threads: usize,
        budget: Duration,
    ) -> Result<Report<Self::Way>, Error>;

    /// See [`Tuner::check`].
    fn check(
        &mut self,
        work: &Self::Work,
        threads: usize,
        entry: &Entry<Self::Way>,
        budget: Duration,
    ) -> Result<Check<Self::Way>, Error>;

    /// Puts an entry into a table.
    fn insert(&self, table: &mut Table, work: &Self::Work, threads: usize, entry: Entry<Self::Way>);

    /// The entries of a table that are of this machine and library, and how many others there are.
    fn entries(&self, table: &Table) -> Entries<Self::Way>;
}

/// Those that `is_here` says are ours, and the number of all others.
fn ours<'a, W: Copy + 'a>(
    table: &Table,
    entries: impl Iterator<Item = (&'a Key, &'a Entry<W>)>,
    is_here: impl Fn(&Key) -> bool,
) -> Entries<W> {
    let here: Vec<_> =
        entries.filter(|(key, _)| is_here(key)).map(|(key, entry)| (key.clone(), *entry)).collect();
    let all = table.entries().count() + table.device_entries().count();
    let others = all - here.len();
    (here, others)
}

/// The processor.
pub(super) struct Cpu {
    isa: Isa,
    threads: usize,
    /// While it measures: its threads wait for work.
    tuner: Option<Tuner>,
}

impl Cpu {
    pub(super) fn new(threads: Option<u16>) -> Result<Self, Failure> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.map_or_else(cores, usize::from);
        Ok(Self { isa: chosen_isa()?, threads, tuner: None })
    }

    fn tuner(&mut self) -> &mut Tuner {
        self.tuner.as_mut().expect("measuring has begun")
    }
}

impl Subject for Cpu {
    type Work = Workload;
    type Way = Choice;

    fn name(&self) -> &str {
        cpu_model()
    }

    fn isa(&self) -> &'static str {
        self.isa.name()
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn session(&self, network: &Network, tuning: Tuning) -> Result<Session, Failure> {
        session(network, Some((self.isa, self.threads)), tuning, None)
    }

    fn of_network(
        &self,
        network: &Network,
        given: &[(String, Tensor)],
    ) -> Result<Tasks<Workload>, Failure> {
        let plan = self.session(network, Tuning::Off)?.prepare(&borrowed(given))?;
        Ok(plan.nodes.into_iter().filter_map(|n| Some((n.workload?, n.threads))).collect())
    }

    fn of_language_model(&self, path: &Path) -> Result<Tasks<Workload>, Failure> {
        Err(Failure(format!(
            "{}: language models have nothing to tune on the CPU; --backend opencl tunes them for a \
             device",
            path.display()
        )))
    }

    fn begin(&mut self, threads: usize) -> Result<(), Error> {
        self.tuner = Some(Tuner::new(self.isa, threads)?);
        Ok(())
    }

    fn end(&mut self) {
        self.tuner = None;
    }

    fn tune(&mut self, work: &Workload, threads: usize, budget: Duration) -> Result<Report, Error> {
        self.tuner().tune(work, threads, budget)
    }

    fn check(
        &mut self,
        work: &Workload,
        threads: usize,
        entry: &Entry,
        budget: Duration,
    ) -> Result<Check, Error> {
        self.tuner().check(work, threads, entry, budget)
    }

    fn insert(&self, table: &mut Table, work: &Workload, threads: usize, entry: Entry) {
        table.insert(Key::here(self.isa, threads, work), entry);
    }

    fn entries(&self, table: &Table) -> Entries<Choice> {
        ours(table, table.entries(), |key| key.is_here(self.isa))
    }
}

/// A session with a choice of instruction set and threads.
fn session(
    network: &Network,
    cpu: Option<(Isa, usize)>,
    tuning: Tuning,
    device: Option<Arc<dyn Device>>,
) -> Result<Session, Failure> {
    let (isa, threads) = cpu.unzip();
    let options = SessionOptions { threads, isa, tuning, device, ..SessionOptions::default() };
    Ok(Session::new(network.model.clone(), options)?)
}

#[cfg(feature = "opencl")]
pub(super) use device::OpenCl;

#[cfg(feature = "opencl")]
mod device {
    use tilewright::backend::opencl::{OpenClDevice, Workload};
    use tilewright::tune::{DeviceTuner, Way};

    use super::*;

    /// Tokens of a prompt that a language model is tuned for, beside single ones.
    #[cfg(feature = "llm")]
    const PROMPT: usize = 128;

    /// An OpenCL device.
    pub(in super::super) struct OpenCl {
        device: Arc<OpenClDevice>,
        tuner: DeviceTuner,
    }

    impl OpenCl {
        pub(in super::super) fn new(which: Option<&str>) -> Result<Self, Failure> {
            let device = super::super::model::opencl(which)?;
            Ok(Self { tuner: DeviceTuner::new(device.clone()), device })
        }

        /// What plans have looked up since the start.
        fn asked(&self) -> Tasks<Workload> {
            self.device.workloads().into_iter().map(|w| (w, self.threads())).collect()
        }
    }

    impl Subject for OpenCl {
        type Work = Workload;
        type Way = Way;

        fn name(&self) -> &str {
            self.device.identity()
        }

        fn isa(&self) -> &'static str {
            "opencl"
        }

        fn threads(&self) -> usize {
            usize::try_from(self.device.info().units).unwrap_or(usize::MAX)
        }

        fn session(&self, network: &Network, tuning: Tuning) -> Result<Session, Failure> {
            session(network, None, tuning, Some(self.device.clone()))
        }

        fn of_network(
            &self,
            network: &Network,
            given: &[(String, Tensor)],
        ) -> Result<Tasks<Workload>, Failure> {
            self.session(network, Tuning::Off)?.prepare(&borrowed(given))?;
            Ok(self.asked())
        }

        #[cfg(feature = "llm")]
        fn of_language_model(&self, path: &Path) -> Result<Tasks<Workload>, Failure> {
            use tilewright::llm::{Llm, LlmOptions};
            let options = LlmOptions {
                tuning: Tuning::Off,
                device: Some(self.device.clone()),
                context: Some(PROMPT + 1),
                ..LlmOptions::default()
            };
            let named = |e: Error| Failure::new(path.display(), e);
            let mut session = Llm::load(path, options).and_then(|m| m.session()).map_err(named)?;
            session.eval(&[0; PROMPT]).map_err(named)?;
            session.eval(&[0]).map_err(named)?;
            Ok(self.asked())
        }

        #[cfg(not(feature = "llm"))]
        fn of_language_model(&self, path: &Path) -> Result<Tasks<Workload>, Failure> {
            Err(crate::cli::inspect_gguf::no_language_models(path))
        }

        fn begin(&mut self, _threads: usize) -> Result<(), Error> {
            Ok(())
        }

        fn end(&mut self) {}

        fn tune(
            &mut self,
            work: &Workload,
            _threads: usize,
            budget: Duration,
        ) -> Result<Report<Way>, Error> {
            self.tuner.tune(work, budget)
        }

        fn check(
            &mut self,
            work: &Workload,
            _threads: usize,
            entry: &Entry<Way>,
            budget: Duration,
        ) -> Result<Check<Way>, Error> {
            self.tuner.check(work, entry, budget)
        }

        fn insert(&self, table: &mut Table, work: &Workload, _threads: usize, entry: Entry<Way>) {
            table.insert_on_device(self.tuner.key(work), entry);
        }

        fn entries(&self, table: &Table) -> Entries<Way> {
            ours(table, table.device_entries(), |key| self.tuner.has(key))
        }
    }
}
