//! Sessions: texts in the making.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

use super::LlmError;
use super::arch::{POSITIONS, Rows, TOKENS};
use super::model::{Inner, Llm};
use super::sampler::Candidate;
use crate::Error;
use crate::ProfileRow;
use crate::backend::cpu::{Executor, Inputs, NodeInfo, Plan};
use crate::graph::kv_cache::{KvCache, KvShape};
use crate::graph::ops::best::{self, Best};
use crate::tensor::{DType, Tensor, available_memory};
use tilewright_kernels::Isa;

/// Most tokens that are computed together.
const CHUNK: usize = 512;

/// Most logits that are computed together: 64 MiB.
const LOGITS: usize = 16 << 20;

/// Most tokens of a first prompt that is computed from weights as they lie in the file, if
/// [`LlmOptions::repack_later`](super::LlmOptions::repack_later) asks for that.
const SHORT: usize = 128;

/// Positions from which on caches are worth large pages.
const LONG: usize = 512;

/// Tokens at the end of a prompt that are computed by themselves, where caches cannot go back: the next prompt of
/// a conversation often differs in those that only ask for an answer.
const TAIL: usize = 16;

/// Plans that a session keeps, one per number of tokens; the one unused longest goes first.
const MAX_PLANS: usize = 8;

/// A text in the making over the weights of an [`Llm`], with threads and a cache of its own.
///
/// Decoding a token neither builds a graph nor plans, and allocates nothing but what choosing experts takes.
pub struct Session {
    model: Arc<Inner>,
    executor: Executor,
    caches: Vec<Arc<KvCache>>,
    /// Whether they lie in large pages.
    large_pages: bool,
    /// The last one used comes first.
    plans: VecDeque<Entry>,
    /// Tokens in the cache.
    history: Vec<u32>,
    /// Most positions that were computed since the first one was.
    newest: usize,
    /// Copies of what some caches held behind an earlier position of the history, where they cannot go back.
    saved: Option<Saved>,
    cancel: Arc<AtomicBool>,
    /// The tokens that [`Session::best`] has found.
    best: Vec<Candidate>,
}

/// Caches as they were behind a position.
struct Saved {
    position: usize,
    caches: Vec<Arc<KvCache>>,
}

/// What a plan gives.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Logits of these tokens.
    Logits(Rows),
    /// Of the last token's logits so many of the largest, with their tokens.
    Best(usize),
}

/// The plan for a number of tokens.
struct Entry {
    want: Want,
    plan: Plan,
    /// For each leaf of the plan, which of `inputs` it is.
    order: Vec<usize>,
    /// Tokens and positions.
    inputs: [Tensor; 2],
    results: Vec<Tensor>,
    /// Of each step, if somebody wants to know.
    times: Vec<Duration>,
    runs: u64,
}

impl Session {
    pub(super) fn new(model: Arc<Inner>) -> Result<Self, Error> {
        let isa = model.options.isa.map_or_else(Isa::select, Ok)?;
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = model.options.threads.unwrap_or_else(cores);
        let context = model.positions();
        let most = || available_memory().map_or(usize::MAX, |free| free / 5 * 4);
        let limit = model.options.memory_limit.unwrap_or_else(most);
        let bytes = |sum: usize, shape: KvShape| sum.checked_add(shape.bytes()?);
        let saved = model.cache_shapes(context).enumerate().filter(|(i, _)| model.is_saved(*i));
        let saved = saved.map(|(_, shape)| shape);
        let needed = model.cache_shapes(context).chain(saved).try_fold(0, bytes);
        let left = needed.and_then(|needed| limit.checked_sub(needed));
        let Some(left) = left.filter(|_| i32::try_from(context).is_ok()) else {
            let needed = needed.unwrap_or(usize::MAX);
            return Err(LlmError::ContextMemory { context, needed, limit }.into());
        };
        let executor = Executor::new(isa, threads)?
            .with_memory_limit(left)
            .with_device(model.options.device.clone())
            .with_choices(model.choices());
        let caches = model.caches(context)?;
        let mut history = Vec::new();
        history.try_reserve_exact(context).map_err(|_| {
            let needed = context.saturating_mul(size_of::<u32>());
            LlmError::ContextMemory { context, needed, limit }
        })?;
        let (plans, cancel) = (VecDeque::with_capacity(MAX_PLANS + 1), Arc::default());
        let best = Vec::new();
        let large_pages = executor.leaves_the_cpu();
        let mut session = Self {
            model,
            executor,
            caches,
            large_pages,
            plans,
            history,
            newest: 0,
            saved: None,
            cancel,
            best,
        };
        // Packs the weights, and finds out whether everything can be computed.
        if !session.repacks_later() {
            session.entry(1, Want::Logits(Rows::Last))?;
        }
        Ok(session)
    }

    /// Whether weights wait to be packed.
    fn repacks_later(&self) -> bool {
        let options = &self.model.options;
        options.repack_later && !options.no_repack && self.model.in_place()
    }

    /// Another session that begins with all that this one has in its context.
    ///
    /// # Errors
    /// As [`Llm::session`].
    pub fn fork(&self) -> Result<Self, Error> {
        let mut other = Self::new(self.model.clone())?;
        for (to, from) in other.caches.iter().zip(&self.caches) {
            to.copy_from(from)?;
        }
        other.history.extend_from_slice(&self.history);
        other.newest = self.newest;
        if let Some(Saved { position, caches }) = &self.saved {
            other.saved = Some(Saved { position: *position, caches: other.copied(caches)? });
        }
        Ok(other)
    }

    /// The model.
    pub fn model(&self) -> Llm {
        Llm(self.model.clone())
    }

    /// Instruction set in use.
    pub fn isa(&self) -> Isa {
        self.executor.isa()
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.executor.threads()
    }

    /// Positions there are.
    pub fn context(&self) -> usize {
        self.model.positions()
    }

    /// Positions in use: where the next token goes.
    pub fn position(&self) -> usize {
        self.history.len()
    }

    /// The tokens in the context.
    pub fn tokens(&self) -> &[u32] {
        &self.history
    }

    /// A flag that stops the session when somebody sets it: what it is doing then ends with
    /// [`LlmError::Cancelled`], within a token or a chunk of a prompt. It has to be reset.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        self.cancel.clone()
    }

    /// Forgets all positions from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.history.truncate(position);
        if self.saved.as_ref().is_some_and(|saved| saved.position > position) {
            self.saved = None;
        }
    }

    /// Adds tokens to the context; gives the logits behind the last one.
    ///
    /// ```no_run
    /// # use tilewright::llm::{Llm, LlmOptions};
    /// # let mut session = Llm::load("model.gguf", LlmOptions::default())?.session()?;
    /// let mut token = 1;
    /// for _ in 0..64 {
    ///     let logits = session.eval(&[token])?;
    ///     let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    ///     token = best.unwrap_or(0) as u32;
    /// }
    /// # Ok::<(), tilewright::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`LlmError::NoTokens`], [`LlmError::Token`] and [`LlmError::ContextFull`], with nothing
    /// changed; [`LlmError::Cancelled`], with the chunks before in the context;
    /// [`LlmError::NotFinite`]; what planning and running meet.
    pub fn eval(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        self.last(tokens, Want::Logits(Rows::Last))
    }

    /// As [`Session::eval`], but finds the `k` largest logits where they are computed, which spares a device
    /// to send all: gives them with their tokens, the best first.
    pub(super) fn best(&mut self, tokens: &[u32], k: usize) -> Result<&[Candidate], Error> {
        let mut best = core::mem::take(&mut self.best);
        let pairs = self.last(tokens, Want::Best(k))?;
        let (ids, logits) = pairs.split_at(k);
        let found = ids.iter().zip(logits).map(|(&id, &logit)| Candidate { logit, id: id as u32 });
        best.clear();
        best.extend(found);
        self.best = best;
        Ok(&self.best)
    }

    /// Whether [`Session::best`] spares more than it costs.
    pub(super) fn finds_best(&self) -> bool {
        self.executor.leaves_the_cpu() && self.model.config.vocabulary <= best::MOST
    }

    /// Adds tokens to the context; gives what is wanted of the last one.
    fn last(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], Error> {
        self.check(tokens)?;
        let mut rest = tokens;
        while rest.len() > CHUNK {
            let (now, later) = rest.split_at(CHUNK);
            self.step(now, Want::Logits(Rows::None))?;
            rest = later;
        }
        if self.model.config.memory.is_some() && rest.len() > 2 * TAIL {
            let (now, later) = rest.split_at(rest.len() - TAIL);
            self.step(now, Want::Logits(Rows::None))?;
            self.save()?;
            rest = later;
        }
        self.step(rest, want)
    }

    /// Copies what caches hold that cannot go back.
    fn save(&mut self) -> Result<(), Error> {
        // The memory of the last copies is that of these.
        let caches = match self.saved.take() {
            Some(saved) => saved.caches,
            None => self.copied(&self.of_saved(&self.caches))?,
        };
        for (to, from) in caches.iter().zip(self.of_saved(&self.caches)) {
            to.copy_from(&from)?;
        }
        self.saved = Some(Saved { position: self.history.len(), caches });
        Ok(())
    }

    /// Of the caches of all layers those that cannot go back.
    fn of_saved(&self, caches: &[Arc<KvCache>]) -> Vec<Arc<KvCache>> {
        let saved = caches.iter().enumerate().filter(|(i, _)| self.model.is_saved(*i));
        saved.map(|(_, cache)| cache.clone()).collect()
    }

    fn copied(&self, caches: &[Arc<KvCache>]) -> Result<Vec<Arc<KvCache>>, Error> {
        let copy = |from: &Arc<KvCache>| {
            let to = KvCache::new(*from.shape())?;
            to.copy_from(from)?;
            Ok(Arc::new(to))
        };
        caches.iter().map(copy).collect()
    }

    /// Computes the history again, from where its beginning was saved, if it was.
    fn refill(&mut self) -> Result<(), Error> {
        let (history, mut from) = (self.history.clone(), 0);
        if let Some(Saved { position, caches }) = &self.saved {
            for (from, to) in caches.iter().zip(self.of_saved(&self.caches)) {
                to.copy_from(from)?;
            }
            from = *position;
        }
        self.newest = from;
        self.history.truncate(from);
        match &history[from..] {
            [] => Ok(()),
            rest => self.fill(rest),
        }
    }

    /// Adds tokens to the context, for whose logits nobody asks.
    pub(super) fn fill(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.check(tokens)?;
        for chunk in tokens.chunks(CHUNK) {
            self.step(chunk, Want::Logits(Rows::None))?;
        }
        Ok(())
    }

    /// Adds tokens to the context; calls `each` with the position and the logits behind each one.
    ///
    /// # Errors
    /// As [`Session::eval`].
    pub fn eval_all(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.check(tokens)?;
        let vocabulary = self.model.config.vocabulary.max(1);
        for chunk in tokens.chunks((LOGITS / vocabulary).clamp(1, CHUNK)) {
            let first = self.history.len();
            let logits = self.step(chunk, Want::Logits(Rows::All))?;
            for (i, row) in logits.chunks_exact(vocabulary).enumerate() {
                each(first + i, row);
            }
        }
        Ok(())
    }

    /// Makes the context begin with `tokens`, of which as many are kept as it begins with already:
    /// the prefix that two turns of a conversation share is not computed again. Gives the logits
    /// behind the last one.
    ///
    /// # Errors
    /// As [`Session::eval`].
    pub fn prompt(&mut self, tokens: &[u32]) -> Result<&[f32], Error> {
        let kept = self.rewind(tokens)?;
        self.eval(&tokens[kept..])
    }

    /// Forgets what is not the beginning of `tokens`; gives how many of them stay.
    pub(super) fn rewind(&mut self, tokens: &[u32]) -> Result<usize, Error> {
        let same = self.history.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        // The last one is computed in any case: it is its logits that are wanted.
        let kept = same.min(tokens.len().saturating_sub(1));
        self.model.check(tokens)?;
        let context = self.context();
        if tokens.len() > context {
            let (used, more) = (kept, tokens.len() - kept);
            return Err(LlmError::ContextFull { used, more, context }.into());
        }
        self.truncate(kept);
        Ok(kept)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        self.model.check(tokens)?;
        let (used, more, context) = (self.history.len(), tokens.len(), self.context());
        if more > context - used {
            return Err(LlmError::ContextFull { used, more, context }.into());
        }
        Ok(())
    }

    /// Computes tokens behind the context, and adds them to it; gives what is wanted.
    fn step(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], Error> {
        if self.cancel.load(Ordering::Relaxed) {
            return Err(LlmError::Cancelled.into());
        }
        if self.history.is_empty() {
            self.newest = 0;
        }
        if !self.model.can_go_on(self.history.len(), self.newest) {
            // The caches no longer have what comes before.
            self.refill()?;
        }
        let short = self.history.is_empty() && (2..=SHORT).contains(&tokens.len());
        if !short && self.repacks_later() {
            self.model.pack_from_now_on();
            self.plans.clear();
        }
        if !self.large_pages && self.history.len() + tokens.len() > LONG {
            self.caches.iter().for_each(|cache| cache.use_large_pages());
            self.large_pages = true;
        }
        self.entry(tokens.len(), want)?;
        let Entry { plan, order, inputs, results, times, runs, .. } = &mut self.plans[0];
        let first = self.history.len();
        self.newest = self.newest.max(first + tokens.len());
        let values = [
            &mut tokens.iter().map(|&t| t as i32) as &mut dyn Iterator<Item = i32>,
            &mut (0..tokens.len()).map(|i| (first + i) as i32),
        ];
        for (input, values) in inputs.iter_mut().zip(values) {
            let bytes = input.bytes_mut().expect("inputs are nobody else's");
            for (to, value) in bytemuck::cast_slice_mut::<u8, i32>(bytes).iter_mut().zip(values) {
                *to = value;
            }
        }
        let given = [&inputs[0], &inputs[1]];
        let times = self.model.options.profile.then_some(&mut times[..]);
        let inputs = Inputs { given: &given, order: Some(order) };
        self.executor.run_into(plan, inputs, results, times)?;
        *runs += 1;
        self.history.extend_from_slice(tokens);
        let found: &[f32] = bytemuck::cast_slice(results[0].bytes());
        let finite = match want {
            Want::Logits(Rows::None) => true,
            Want::Logits(_) => all_finite(found),
            // What is not a number comes first.
            Want::Best(k) => found[k].is_finite(),
        };
        if !finite {
            return Err(LlmError::NotFinite { position: first + tokens.len() - 1 }.into());
        }
        Ok(found)
    }

    /// Makes the plan for so many tokens the first one.
    fn entry(&mut self, count: usize, want: Want) -> Result<(), Error> {
        let fits =
            |e: &Entry| e.want == want && e.inputs[0].bytes().len() == count * size_of::<i32>();
        if let Some(at) = self.plans.iter().position(fits) {
            if at > 0
                && let Some(entry) = self.plans.remove(at)
            {
                self.plans.push_front(entry);
            }
            return Ok(());
        }
        let mut cx = self.model.context();
        let rows = match want {
            Want::Logits(rows) => rows,
            Want::Best(_) => Rows::Last,
        };
        let mut output = self.model.graph(&mut cx, &self.caches, count, rows)?;
        if let Want::Best(k) = want {
            output = cx.op(Best { k }, &[output])?;
        }
        let plan = self.executor.plan(&mut cx, &[output])?;
        let place = |name: &str| usize::from(name == POSITIONS);
        debug_assert!(plan.input_names().all(|n| n == TOKENS || n == POSITIONS));
        let order = plan.input_names().map(place).collect();
        let input = || Tensor::zeros(DType::I32, &[count]);
        let inputs = [input()?, input()?];
        self.plans.truncate(MAX_PLANS - 1);
        let times = vec![Duration::ZERO; plan.nodes().count()];
        let (results, runs) = (Vec::new(), 0);
        self.plans.push_front(Entry { want, plan, order, inputs, results, times, runs });
        Ok(())
    }

    /// Times of the operations of the last plan used, if [`LlmOptions::profile`] is set.
    ///
    /// [`LlmOptions::profile`]: super::LlmOptions::profile
    pub fn profile(&self) -> Vec<ProfileRow> {
        let Some(Entry { plan, times, runs, .. }) = self.plans.front() else { return Vec::new() };
        let row = |(node, time): (&NodeInfo, &Duration)| ProfileRow {
            name: node.name.clone(),
            op: node.op.clone(),
            kernel: node.kernel.clone(),
            seconds: time.as_secs_f64(),
            calls: *runs,
            macs: node.macs,
        };
        plan.nodes().zip(times).map(row).collect()
    }
}

/// Whether there is neither an infinity nor a NaN. Looks at all, which is faster than to stop at one.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    let wrong = values.iter().fold(0, |w, v| w | u32::from(v.to_bits() & EXPONENT == EXPONENT));
    wrong == 0
}
