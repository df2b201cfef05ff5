//! Runs of models whose shapes depend on what is computed: stages, each with a plan of its own.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use super::moved::Moved;
use super::planned;
use crate::Error;
use crate::backend::cpu::{Executor, Inputs, Plan};
use crate::graph::{ConstCache, Context};
use crate::import::ImportError;
use crate::import::onnx::{After, Runner, Stage, StageKey};
use crate::tensor::Tensor;

/// Plans of stages a session keeps; the one unused longest goes first.
const MAX_STAGES: usize = 256;

/// Stages met so far, those used last in front.
#[derive(Default)]
pub(super) struct Stages {
    entries: VecDeque<Box<Entry>>,
    /// Runs of the model begun.
    run: u64,
}

/// A stage that was planned.
pub(super) struct Entry {
    key: StageKey,
    pub(super) plan: Plan,
    /// For each leaf of the plan, the position of its value in the key.
    order: Vec<usize>,
    after: Arc<After>,
    pub(super) times: Vec<Duration>,
    pub(super) runs: u64,
    /// The run of the model that used it last.
    run: u64,
}

impl Stages {
    /// Begins a run.
    pub(super) fn begin(&mut self) {
        self.run += 1;
    }

    /// The stages of the last run, in the order in which they were used last.
    pub(super) fn last_run(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev().map(|e| &**e).filter(|e| e.run == self.run)
    }
}

/// Plans and runs stages for a session.
pub(super) struct StageRunner<'a> {
    pub(super) executor: &'a mut Executor,
    pub(super) stages: &'a mut Stages,
    pub(super) cache: &'a Arc<ConstCache>,
    pub(super) moved: Option<&'a Moved>,
    pub(super) profile: bool,
}

impl StageRunner<'_> {
    fn plan(
        &self,
        key: &StageKey,
        build: &dyn Fn(&mut Context) -> Result<Stage, ImportError>,
    ) -> Result<Entry, Error> {
        let mut cx = Context::with_cache(self.cache.clone());
        cx.keep_quantized();
        let stage = build(&mut cx)?;
        let plan = planned(self.executor, &mut cx, stage.outputs, self.moved)?;
        let order = plan.input_names().map(|n| n.parse().expect("leaves are numbered")).collect();
        drop(cx);
        self.cache.release();
        let times = vec![Duration::ZERO; plan.nodes().count()];
        let after = Arc::new(stage.after.unwrap_or_default());
        Ok(Entry { key: key.clone(), plan, order, after, times, runs: 0, run: 0 })
    }
}

impl Runner for StageRunner<'_> {
    type Error = Error;

    fn run(
        &mut self,
        key: &StageKey,
        inputs: &[&Tensor],
        build: &dyn Fn(&mut Context) -> Result<Stage, ImportError>,
    ) -> Result<(Vec<Tensor>, Arc<After>), Error> {
        let found = self.stages.entries.iter().position(|e| e.key == *key);
        let entry = match found.and_then(|i| self.stages.entries.remove(i)) {
            Some(entry) => entry,
            None => {
                let entry = Box::new(self.plan(key, build)?);
                self.stages.entries.truncate(MAX_STAGES - 1);
                entry
            }
        };
        self.stages.entries.push_front(entry);
        let entry = &mut self.stages.entries[0];
        entry.runs += 1;
        entry.run = self.stages.run;
        if entry.plan.outputs() == 0 {
            return Ok((Vec::new(), entry.after.clone()));
        }
        let inputs = Inputs { given: inputs, order: Some(&entry.order) };
        let times = self.profile.then_some(&mut entry.times[..]);
        let results = self.executor.run(&entry.plan, inputs, times)?;
        Ok((results, entry.after.clone()))
    }
}
