//! Models: the weights of a file, checked against the architecture that it names.

use core::fmt;
use std::path::Path;
use std::sync::Arc;

use super::arch::{Arch, Builder, Rows};
use super::keys::Keys;
use super::tokenizer::Tokenizer;
use super::weights::Weights;
use super::{Config, HeadConfig, LlmError, MemoryConfig, Session};
use crate::Error;
use crate::backend::cpu::{Executor, Plan};
use crate::graph::kv_cache::{KvCache, KvShape};
use crate::graph::ops::kv_delta::KvDelta;
use crate::graph::{Choices, ConstCache, Context, Device, TensorId};
use crate::import::Mapping;
use crate::import::gguf::{Gguf, Metadata};
use crate::tensor::DType;
use crate::tune::{TableError, Tuning};
use tilewright_kernels::Isa;

/// Most positions of a session that asks for no number of them.
const CONTEXT: usize = 4096;

/// Rows that layers keep which convolve. To go back further than that, a text is computed again from its beginning.
const ROWS: usize = 256;

/// How a model is loaded and how its sessions run.
#[derive(Clone, Debug)]
pub struct LlmOptions {
    /// Threads of a session; `None` for one per core.
    pub threads: Option<usize>,
    /// Instruction set; `None` for the best of this machine, or what `TILEWRIGHT_ISA` says.
    pub isa: Option<Isa>,
    /// Positions that a session keeps; `None` for those of the training, at most 4096.
    pub context: Option<usize>,
    /// Type of the cache of keys and values: f16, f32 or q8_0.
    pub cache_type: DType,
    /// Whether attention over several tokens may round its operands to bf16, where the instruction
    /// set multiplies those faster: an error of about 0.3 % of what attention gives. With weights of
    /// Q2_K to Q6_K that stays below what 8-bit activations cost.
    pub bf16: bool,
    /// Whether sessions time each operation.
    pub profile: bool,
    /// Whether weights are used as they lie in the file, without repacking them.
    pub no_repack: bool,
    /// Whether repacking waits until a first, short prompt has been computed from weights as they lie in
    /// the file: its result is there sooner, what follows later. Sessions then do not find out when they
    /// are made whether there is memory for repacked weights.
    pub repack_later: bool,
    /// Bytes that a session may take for its cache, intermediate tensors and packed weights; `None`
    /// for 80 % of what the machine has free when the session is made.
    pub memory_limit: Option<usize>,
    /// Table that says how operations are computed best.
    pub tuning: Tuning,
    /// Device that takes the operations it can; the CPU computes the others, and what fails there.
    pub device: Option<Arc<dyn Device>>,
    /// Told how far repacking is, which the first session does.
    pub progress: Option<Progress>,
}

/// A function that is told bytes of weights: those repacked so far, and those of all matrices.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(usize, usize) + Send + Sync>);

impl Progress {
    /// Calls `tell` after each matrix, on the thread that makes the session.
    pub fn new(tell: impl Fn(usize, usize) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

impl Default for LlmOptions {
    fn default() -> Self {
        Self {
            threads: None,
            isa: None,
            context: None,
            cache_type: DType::F16,
            bf16: false,
            profile: false,
            no_repack: false,
            repack_later: false,
            memory_limit: None,
            tuning: Tuning::User,
            device: None,
            progress: None,
        }
    }
}

/// A language model. A clone shares everything.
///
/// ```no_run
/// use tilewright::llm::{Llm, LlmOptions};
///
/// let llm = Llm::load("model.gguf", LlmOptions::default())?;
/// let mut session = llm.session()?;
/// let logits = session.eval(&[1, 403, 407])?;
/// println!("{} logits", logits.len());
/// # Ok::<(), tilewright::Error>(())
/// ```
#[derive(Clone)]
pub struct Llm(pub(super) Arc<Inner>);

/// What sessions share.
pub(super) struct Inner {
    pub(super) config: Config,
    pub(super) options: LlmOptions,
    arch: Arch,
    weights: Arc<Weights>,
    metadata: Metadata,
    cache: Arc<ConstCache>,
    /// The files, where weights are read in place.
    mappings: Vec<Mapping>,
    /// The tuning table, or why the user's cannot be used.
    choices: Option<Arc<dyn Choices>>,
    table_problem: Option<Arc<TableError>>,
    /// Keeps the weights on the device that the model was moved to.
    _held: Option<Plan>,
}

impl Llm {
    /// Loads a GGUF file, and the others of the model if it is one of several. Weights are read in
    /// place from the mapped file, which must not change while the model is in use.
    ///
    /// # Errors
    /// [`Error::Import`] if the file cannot be read or is not a GGUF file, [`Error::Llm`] if its
    /// architecture is not known or settings and tensors do not fit it.
    pub fn load(path: impl AsRef<Path>, options: LlmOptions) -> Result<Self, Error> {
        Self::new(&Gguf::open(path)?, options)
    }

    /// Reads a model from the bytes of a GGUF file.
    ///
    /// # Errors
    /// As [`Llm::load`].
    pub fn from_bytes(bytes: impl Into<bytes::Bytes>, options: LlmOptions) -> Result<Self, Error> {
        Self::new(&Gguf::from_bytes(bytes.into())?, options)
    }

    fn new(gguf: &Gguf, options: LlmOptions) -> Result<Self, Error> {
        let keys = Keys::new(gguf.metadata())?;
        let arch = Arch::find(keys.arch())?;
        let rows = gguf.tensor("token_embd.weight").and_then(|t| t.dims.get(1).copied());
        let mut config = Config::read(&keys, rows.unwrap_or(0))?;
        arch.adjust(&mut config);
        let cache = Arc::new(ConstCache::default());
        if options.no_repack || options.repack_later && options.device.is_none() {
            cache.leave_in_place();
        }
        let weights = Weights::new(gguf, cache.clone())?;
        if let Some(Progress(tell)) = options.progress.clone() {
            let (mut done, total) = (0, weights.matrix_bytes());
            cache.report(Some(Box::new(move |bytes| {
                done += bytes;
                tell(done, total);
            })));
        }
        let metadata = gguf.metadata().clone();
        let weights = Arc::new(weights);
        let (choices, table_problem) = options.tuning.clone().choices();
        let table_problem = table_problem.map(Arc::new);
        let inner = Inner {
            config,
            options,
            arch,
            weights,
            metadata,
            cache,
            mappings: gguf.mappings().to_vec(),
            choices,
            table_problem,
            _held: None,
        };
        // Building the graph asks for all tensors, so that a wrong one is found now.
        inner.graph(&mut inner.context(), &inner.caches(1)?, 1, Rows::Last)?;
        let Config { layers, guessing, .. } = inner.config;
        let left_over = inner.weights.left_over(layers..layers.saturating_add(guessing));
        let names: Vec<String> = left_over.into_iter().map(str::to_owned).collect();
        if !names.is_empty() {
            let arch = inner.config.arch.clone();
            return Err(LlmError::UnknownTensors { arch, names }.into());
        }
        Ok(Self(Arc::new(inner)))
    }

    /// This model on a device: its sessions are computed there. The weights are moved now, once, and stay
    /// there as long as the model does, not only while it has sessions.
    ///
    /// ```no_run
    /// # #[cfg(feature = "opencl")] {
    /// use std::sync::Arc;
    /// use tilewright::backend::opencl::{OpenClDevice, Options};
    /// use tilewright::llm::{Llm, LlmOptions};
    ///
    /// let device = Arc::new(OpenClDevice::open(&Options::from_env()?)?);
    /// let llm = Llm::load("model.gguf", LlmOptions::default())?.to(device)?;
    /// let mut session = llm.session()?;
    /// # }
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What planning a token there meets, lack of memory among it.
    pub fn to(&self, device: Arc<dyn Device>) -> Result<Self, Error> {
        let Inner { config, options, arch, weights, metadata, cache, mappings, .. } = &*self.0;
        let Inner { choices, table_problem, .. } = &*self.0;
        let options = LlmOptions { device: Some(device.clone()), ..options.clone() };
        let inner = Inner {
            config: config.clone(),
            options,
            arch: *arch,
            weights: weights.clone(),
            metadata: metadata.clone(),
            cache: cache.clone(),
            mappings: mappings.clone(),
            choices: choices.clone(),
            table_problem: table_problem.clone(),
            _held: None,
        };
        // What a plan reads stays where it is while the plan does.
        let isa = inner.options.isa.map_or_else(Isa::select, Ok)?;
        let executor =
            Executor::new(isa, 1)?.with_device(Some(device)).with_choices(inner.choices());
        let mut cx = inner.context();
        let logits = inner.graph(&mut cx, &inner.caches(1)?, 1, Rows::Last)?;
        let _held = Some(executor.plan(&mut cx, &[logits])?);
        Ok(Self(Arc::new(Inner { _held, ..inner })))
    }

    /// A new session, with nothing in its context.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the instruction set is not available, [`LlmError::ContextMemory`] and
    /// others if there is too little memory.
    pub fn session(&self) -> Result<Session, Error> {
        Session::new(self.0.clone())
    }

    /// Why the user's tuning table is not used, if it cannot be.
    pub fn table_problem(&self) -> Option<&TableError> {
        self.0.table_problem.as_deref()
    }

    /// Hyper-parameters.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The file's vocabulary, made ready: some ten milliseconds for a large one.
    ///
    /// # Errors
    /// [`LlmError::Tokenizer`] if the vocabulary is damaged, or of a kind that is not supported.
    pub fn tokenizer(&self) -> Result<Tokenizer, Error> {
        Ok(Tokenizer::from_gguf(self.metadata()).map_err(LlmError::from)?)
    }

    /// The metadata of the file.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Bytes of the tensors in the file.
    pub fn weight_bytes(&self) -> usize {
        self.0.weights.bytes()
    }

    /// Positions that a session keeps.
    pub fn context(&self) -> usize {
        self.0.positions()
    }
}

impl Inner {
    /// Who is asked how operations are computed best.
    pub(super) fn choices(&self) -> Option<Arc<dyn Choices>> {
        self.choices.clone()
    }

    /// Positions that a session keeps.
    pub(super) fn positions(&self) -> usize {
        self.options.context.unwrap_or(self.config.context.min(CONTEXT)).max(1)
    }

    /// Whether the caches have what positions from this one on need, if some up to `newest` were computed: those of
    /// layers that convolve keep the last rows only, and matrices what they are behind the last position.
    pub(super) fn can_go_on(&self, position: usize, newest: usize) -> bool {
        if self.config.memory.is_some() {
            return position == newest;
        }
        let needed = position - position.min(self.config.taps.saturating_sub(1));
        let all = self.config.attending.iter().all(|&attends| attends);
        all || newest <= needed.saturating_add(self.kept_rows(self.positions()))
    }

    /// Whether a cache of [`Inner::cache_shapes`] has only what comes behind the last position, so that copies are
    /// worth their memory.
    pub(super) fn is_saved(&self, cache: usize) -> bool {
        let of_layer = cache < self.config.layers;
        self.config.memory.is_some() && !(of_layer && self.config.attends(cache))
    }

    /// Rows that a layer keeps which convolves, in a session of so many positions.
    fn kept_rows(&self, positions: usize) -> usize {
        // Matrices do not go back, so rows need not.
        if self.config.memory.is_some() {
            return self.config.taps;
        }
        positions.min(ROWS).max(self.config.taps)
    }

    /// Sizes of the caches of all layers that keep something, then those of the matrices of those that have some, then
    /// those of the rows that layers convolve which also attend.
    pub(super) fn cache_shapes(&self, capacity: usize) -> impl Iterator<Item = KvShape> {
        let Config { embedding, layers, memory, .. } = self.config;
        let dtype = self.options.cache_type;
        let width = memory.map_or(embedding, |memory| memory.width());
        let rows = KvShape {
            heads: 1,
            key_size: width.saturating_add(1),
            value_size: 0,
            capacity: self.kept_rows(capacity),
            dtype: DType::F32,
        };
        let of_layer = move |layer| {
            if self.config.feeds(layer) {
                return KvShape { key_size: 1, ..rows };
            }
            if !self.config.attends(layer) {
                return rows;
            }
            let HeadConfig { count, key_size, value_size } = self.config.heads_of(layer);
            KvShape { heads: count, key_size, value_size, capacity, dtype }
        };
        let remembering = (0..layers).filter(|&i| self.config.remembers(i));
        let matrix = |m: MemoryConfig| KvDelta::shape(m.heads, m.key_size, m.value_size);
        let matrices = remembering.clone().filter_map(move |_| memory.map(matrix));
        let beside = remembering.filter(|&i| self.config.attends(i)).map(move |_| rows);
        (0..self.config.keeping()).map(of_layer).chain(matrices).chain(beside)
    }

    /// Caches of these sizes, with nothing in them.
    pub(super) fn caches(&self, capacity: usize) -> Result<Vec<Arc<KvCache>>, Error> {
        self.cache_shapes(capacity).map(|shape| Ok(Arc::new(KvCache::new(shape)?))).collect()
    }

    /// An empty graph that shares packed weights with all others of the model.
    pub(super) fn context(&self) -> Context {
        Context::with_cache(self.cache.clone())
    }

    /// The graph for `count` tokens; gives its result: logits, or, if none are wanted, as much as
    /// fills the caches.
    pub(super) fn graph(
        &self,
        cx: &mut Context,
        caches: &[Arc<KvCache>],
        count: usize,
        rows: Rows,
    ) -> Result<TensorId, Error> {
        let mut builder = Builder::new(cx, &self.config, &self.weights, caches, count, rows)?;
        builder.bf16 = self.options.bf16;
        let logits = self.arch.build(&mut builder)?;
        Ok(match rows {
            Rows::None => builder.attended().unwrap_or(logits),
            Rows::Last | Rows::All => logits,
        })
    }

    /// Whether plans leave the weights where they are.
    pub(super) fn in_place(&self) -> bool {
        self.cache.is_in_place()
    }

    /// Plans that are made from now on pack the weights, which they read from the file: what is mapped of it would
    /// take as much memory again.
    pub(super) fn pack_from_now_on(&self) {
        self.cache.pack_from_now_on();
        self.mappings.iter().for_each(Mapping::let_go);
    }

    /// Checks that tokens are in the vocabulary.
    pub(super) fn check(&self, tokens: &[u32]) -> Result<(), LlmError> {
        let vocabulary = self.config.vocabulary;
        match tokens.iter().find(|&&id| id as usize >= vocabulary) {
            Some(&id) => Err(LlmError::Token { id, vocabulary }),
            None if tokens.is_empty() => Err(LlmError::NoTokens),
            None => Ok(()),
        }
    }
}
