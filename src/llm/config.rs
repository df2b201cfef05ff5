//! Hyper-parameters from the metadata of a file.

use super::LlmError;
use super::keys::Keys;
use crate::Error;
use tilewright_kernels::DeltaRule;

/// Most layers that are believed.
const MAX_LAYERS: usize = 4096;

/// Most taps of a layer that convolves that are believed.
const MAX_TAPS: usize = 64;

/// How positions beyond those of the training are treated.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// All angles divided by a factor (1: not at all).
    Linear(f64),
    /// YaRN (Peng et al. 2023): fast pairs stay as they are, slow ones are divided by the factor.
    Yarn {
        /// The factor.
        factor: f64,
        /// Context of the training.
        original: f64,
        /// Turns within the original context from which on pairs stay as they are.
        fast: f64,
        /// Turns below which pairs are divided by the whole factor.
        slow: f64,
        /// `yarn_log_multiplier`: rotated elements grow by the logarithm of the factor, over so many times that; 0: not
        /// divided.
        log_multiplier: f64,
    },
}

impl Scaling {
    /// What YaRN multiplies with for a factor, so many times its logarithm.
    pub(super) fn grown(factor: f64, times: f64) -> f64 {
        1.0 + 0.1 * times * factor.ln().max(0.0)
    }
}

/// Settings of rotary positions.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Elements of a head that turn.
    pub rotated: usize,
    /// The same in layers with a window.
    pub rotated_window: usize,
    /// Angles fall from 1 to about one over this.
    pub base: f64,
    /// `rope.freq_base_swa`: the base of layers with a window, where the file names one.
    pub base_window: Option<f64>,
    /// Beyond the context of the training.
    pub scaling: Scaling,
    /// Factor of the rotated elements.
    pub attention_factor: f32,
    /// Context of the training, before any scaling.
    pub original_context: usize,
    /// `rope.scaling.finetuned`, which some architectures set to false where nothing turns.
    pub finetuned: bool,
}

/// Which layers have the window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowPattern {
    /// Of each run of so many layers, all but the last.
    AllButLast(usize),
    /// Of each run of so many layers, all but the first.
    AllButFirst(usize),
    /// Those that are true.
    Layers(Vec<bool>),
}

/// Heads of keys and values of a layer that attends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadConfig {
    /// How many there are; a number that divides that of the queries' heads.
    pub count: usize,
    /// Elements of a query or key of one head.
    pub key_size: usize,
    /// Elements of a value of one head.
    pub value_size: usize,
}

/// Experts, of which each token goes through some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertConfig {
    /// `expert_count`: how many a layer has.
    pub count: usize,
    /// `expert_used_count`: how many a token goes through.
    pub used: usize,
    /// `expert_feed_forward_length`: elements inside each.
    pub feed_forward: usize,
    /// `expert_shared_feed_forward_length`: elements inside the one that all tokens go through, if there is one.
    pub shared: usize,
    /// `expert_weights_scale`: a factor of their shares.
    pub scale: f32,
    /// `expert_gating_func`: whether shares come from logits by themselves, and not by softmax.
    pub sigmoid: bool,
    /// `expert_group_count`: groups that they form, side by side; 1 if choosing does not heed them.
    pub groups: usize,
    /// `expert_group_used_count`: of how many groups, those with the largest sums of two, a token's experts are.
    pub groups_used: usize,
    /// `expert_weights_norm`: whether the shares of the chosen ones are divided by their sum, for architectures of which
    /// some models do so.
    pub normalised: bool,
    /// Whether they have the clamped unit of GPT-OSS, of which a file says nothing.
    pub clamped: bool,
    /// Whether their gates are rectified: what is negative becomes 0.
    pub rectified: bool,
    /// Whether they have no gate and square what is positive, as in Nemotron 3, of which a file says nothing either.
    pub squared: bool,
}

/// Attention whose keys and values come from one short vector per token (multi-head latent attention: DeepSeek-AI 2024).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentConfig {
    /// `attention.kv_lora_rank`: elements of that vector.
    pub rank: usize,
    /// `attention.q_lora_rank`: elements of the vector that queries come from; 0 if they come from the activations.
    pub query_rank: usize,
    /// `attention.key_length_mla`: elements of a query or key of a head, of which `rope.dimension_count` turn.
    pub key_size: usize,
    /// `attention.value_length_mla`: elements of a value of a head.
    pub value_size: usize,
}

/// Layers that remember in a matrix per head, in place of attending or beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// What a token adds to the matrices.
    pub rule: DeltaRule,
    /// Whether layers that attend remember too.
    pub beside: bool,
    /// `ssm.time_step_rank`: heads of values.
    pub heads: usize,
    /// `ssm.group_count`: heads of queries and keys.
    pub key_heads: usize,
    /// `ssm.state_size`: elements of a query or key of one head.
    pub key_size: usize,
    /// `ssm.inner_size`, divided by the heads: elements of a value of one head.
    pub value_size: usize,
}

impl MemoryConfig {
    /// Elements of the queries or keys of a token, and of its values.
    pub(super) fn widths(&self) -> [usize; 2] {
        [self.key_heads * self.key_size, self.heads * self.value_size]
    }

    /// Elements of queries, keys and values, which are convolved along the positions.
    pub(super) fn width(&self) -> usize {
        let [keys, values] = self.widths();
        2 * keys + values
    }
}

/// Hyper-parameters of a model, as most architectures have them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub arch: String,
    /// Blocks of attention and feed-forward network.
    pub layers: usize,
    /// `nextn_predict_layers`: blocks behind them that guess further tokens, and are not computed.
    pub guessing: usize,
    /// Elements of a token's vector.
    pub embedding: usize,
    /// Elements inside the feed-forward network of each layer.
    pub feed_forward: Vec<usize>,
    /// `embedding_length_per_layer_input`: elements of the vectors that a token has for each layer beside that of
    /// the first; 0 if it has none.
    pub layer_embedding: usize,
    /// `altup.num_inputs`: streams of vectors that go from layer to layer, where those are more than one; 0 if the file
    /// says nothing of them.
    pub streams: usize,
    /// `activation_sparsity_scale`: by how many standard deviations a gate has to be above their mean to count, in each
    /// of the first layers; not finite where all count.
    pub sparsity: Vec<f32>,
    /// Heads of queries; 1 where no layer attends.
    pub heads: usize,
    /// Heads of keys and values of each layer; of one that does not attend, whatever others have.
    pub kv_heads: Vec<usize>,
    /// `attention.shared_kv_layers`: how many layers at the end attend to what earlier ones have kept.
    pub sharing: usize,
    /// Which layers attend; all where it is empty. The others have 0 in `attention.head_count_kv`, or are those
    /// that [`Config::memory`] is for.
    pub attending: Vec<bool>,
    /// `shortconv.l_cache` or `ssm.conv_kernel`: taps of the layers that convolve; 0 if there are none.
    pub taps: usize,
    /// Experts of the layers that have some.
    pub experts: Option<ExpertConfig>,
    /// What layers do that do not attend, if they do more than to convolve.
    pub memory: Option<MemoryConfig>,
    /// Of models whose layers do one thing each: which neither attend nor remember, but feed forward.
    pub feeding: Vec<bool>,
    /// Where keys and values come from one vector per token.
    pub latent: Option<LatentConfig>,
    /// Elements of a query or key of one head, and of a value.
    pub head_sizes: [usize; 2],
    /// The same in layers with a window.
    pub head_sizes_window: [usize; 2],
    /// Tokens there are.
    pub vocabulary: usize,
    /// Positions of the training.
    pub context: usize,
    /// Added under the root of norms.
    pub epsilon: f32,
    /// Rotary positions.
    pub rope: RopeConfig,
    /// `attention.sliding_window`, if not 0.
    pub window: Option<usize>,
    /// `attention.sliding_window_pattern`.
    pub window_pattern: Option<WindowPattern>,
    /// `use_parallel_residual`, which some architectures set to false where blocks feed forward what attention has
    /// been added to.
    pub parallel: bool,
    /// `attention.scale`, if not 0.
    pub attention_scale: Option<f32>,
    /// `hidden_activation`: what gates go through, which architectures heed whose models differ in it.
    pub activation: Option<String>,
    /// `attention.temperature_scale`, if not 0, for those whose queries grow with their position.
    pub temperature_scale: Option<f32>,
    /// `attn_logit_softcapping`, if not 0.
    pub attention_softcap: Option<f32>,
    /// `final_logit_softcapping`, if not 0.
    pub final_softcap: Option<f32>,
    /// `embedding_scale`, if not 0, which architectures use that scale the vectors of tokens by it.
    pub embedding_scale: Option<f32>,
    /// `residual_scale`, if not 0, for those that scale what blocks add.
    pub residual_scale: Option<f32>,
    /// `logit_scale`, if not 0, for those that multiply logits with it, or divide them.
    pub logit_scale: Option<f32>,
}

impl Config {
    /// The hyper-parameters in the metadata. `rows` are those of the embedding, which count the tokens
    /// where nothing else does.
    pub(super) fn read(keys: &Keys<'_>, rows: usize) -> Result<Self, Error> {
        let blocks = keys.needed("block_count")?;
        if blocks > MAX_LAYERS {
            return Err(keys.wrong("block_count", blocks, &format!("at most {MAX_LAYERS}")));
        }
        let guessing_name = "nextn_predict_layers";
        let guessing = keys.count(guessing_name)?;
        let layers = blocks.saturating_sub(guessing);
        if layers == 0 {
            let expected = format!("less than the {blocks} blocks");
            return Err(keys.wrong(guessing_name, guessing, &expected));
        }
        let embedding = keys.needed("embedding_length")?;
        let heads_name = "attention.head_count";
        let memory = keys.memory()?;
        let heads = keys.heads(layers, memory.is_some())?;
        let (kv_heads, attending) = keys.kv_heads(layers, heads, memory.is_some())?;
        let heads = heads.max(1);
        let sharing = keys.sharing(layers, attending.is_empty())?;
        let [key_name, value_name] = ["attention.key_length", "attention.value_length"];
        let usual = embedding / heads;
        if keys.count(key_name)?.min(keys.count(value_name)?) == 0 && usual * heads != embedding {
            let expected = format!("a number that divides the embedding of {embedding}");
            return Err(keys.wrong(heads_name, heads, &expected));
        }
        let head_sizes = keys.head_sizes([key_name, value_name], [usual; 2])?;
        let names = ["attention.key_length_swa", "attention.value_length_swa"];
        let head_sizes_window = keys.head_sizes(names, head_sizes)?;
        let largest = head_sizes.into_iter().chain(head_sizes_window).max();
        let width = largest.and_then(|largest| heads.checked_mul(largest));
        if width.is_none_or(|w| w > i32::MAX as usize / 4) {
            return Err(keys.wrong(heads_name, heads, "less"));
        }
        let context = keys.needed("context_length")?;
        let ff_name = "feed_forward_length";
        // Of models that remember, some have layers without.
        let feed_forward = keys.of_layers(ff_name, layers)?;
        let feed_forward = feed_forward.filter(|list| memory.is_some() || !list.contains(&0));
        let experts = keys.experts(feed_forward.as_ref().map_or(0, |list| list[0]))?;
        // Where all layers have experts, some files say nothing of others.
        let feed_forward = feed_forward.or_else(|| experts.map(|_| vec![0; layers]));
        let [rms, layer] = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
        let epsilon = match keys.positive(rms)? {
            Some(epsilon) => Some(epsilon),
            None => keys.positive(layer)?,
        };
        let window_pattern = keys.window_pattern(layers)?;
        let taps_name = if memory.is_some() { "ssm.conv_kernel" } else { "shortconv.l_cache" };
        let taps = if attending.is_empty() { 0 } else { keys.needed(taps_name)? };
        if taps > MAX_TAPS {
            return Err(keys.wrong(taps_name, taps, &format!("at most {MAX_TAPS}")));
        }
        keys.causal()?;
        let rope = keys.rope([head_sizes[0], head_sizes_window[0]], context)?;
        Ok(Self {
            arch: keys.arch().to_owned(),
            layers,
            guessing,
            embedding,
            feed_forward: feed_forward.ok_or_else(|| LlmError::MissingKey(keys.key(ff_name)))?,
            layer_embedding: keys.count("embedding_length_per_layer_input")?,
            streams: keys.streams()?,
            sparsity: keys.floats("activation_sparsity_scale")?,
            heads,
            kv_heads,
            sharing,
            attending,
            taps,
            experts,
            memory,
            feeding: Vec::new(),
            head_sizes,
            head_sizes_window,
            vocabulary: keys.vocabulary()?.unwrap_or(rows),
            context,
            epsilon: epsilon.ok_or_else(|| LlmError::MissingKey(keys.key(rms)))?,
            latent: keys.latent(head_sizes, rope.rotated)?,
            rope,
            window: Some(keys.count("attention.sliding_window")?).filter(|&n| n > 0),
            window_pattern,
            parallel: keys.unless_false("use_parallel_residual"),
            attention_scale: keys.positive("attention.scale")?,
            activation: keys.text("hidden_activation")?,
            temperature_scale: keys.positive("attention.temperature_scale")?,
            attention_softcap: keys.positive("attn_logit_softcapping")?,
            final_softcap: keys.positive("final_logit_softcapping")?,
            embedding_scale: keys.positive("embedding_scale")?,
            residual_scale: keys.positive("residual_scale")?,
            logit_scale: keys.positive("logit_scale")?,
        })
    }

    /// Angles per position of each pair of so many elements; `factors` divide them, one per pair.
    pub(super) fn angles(
        rotated: usize,
        base: f64,
        scaling: &Scaling,
        factors: Option<&[f32]>,
    ) -> Vec<f64> {
        let (pairs, rotated) = (0..rotated / 2, rotated as f64);
        let factor = |i: usize| factors.map_or(1.0, |f| f64::from(f[i]));
        let fast = |i: usize| base.powf(-2.0 * i as f64 / rotated) / factor(i);
        match *scaling {
            Scaling::Linear(by) => pairs.map(|i| fast(i) / by).collect(),
            Scaling::Yarn { factor: by, original, fast: most, slow: least, .. } => {
                // The pair that turns so many times within the original context.
                let pair = |turns: f64| {
                    let turn = original / (turns * core::f64::consts::TAU);
                    rotated * turn.ln() / (2.0 * base.ln())
                };
                let first = pair(most).floor().max(0.0);
                let last = pair(least).ceil().min(rotated - 1.0);
                let mixed = |i: usize| {
                    let way = (i as f64 - first) / (last - first).max(0.001);
                    let kept = 1.0 - way.clamp(0.0, 1.0);
                    fast(i) / by * (1.0 - kept) + fast(i) * kept
                };
                pairs.map(mixed).collect()
            }
        }
    }

    /// The factor of rotated elements.
    pub(super) fn magnitude(&self, scaling: &Scaling) -> f32 {
        let yarn = match *scaling {
            Scaling::Linear(_) => 1.0,
            Scaling::Yarn { factor, log_multiplier, .. } => {
                Scaling::grown(factor, 1.0) / Scaling::grown(factor, log_multiplier)
            }
        };
        self.rope.attention_factor * yarn as f32
    }

    /// Whether a layer attends, and does not convolve instead.
    pub(super) fn attends(&self, layer: usize) -> bool {
        self.attending.get(layer).copied().unwrap_or(true)
    }

    /// Whether a layer has matrices that it remembers in.
    pub(super) fn remembers(&self, layer: usize) -> bool {
        self.memory.is_some_and(|memory| memory.beside || !self.attends(layer))
            && !self.feeds(layer)
    }

    /// Whether a layer does nothing but feed forward.
    pub(super) fn feeds(&self, layer: usize) -> bool {
        self.feeding.get(layer).copied().unwrap_or(false)
    }

    /// Heads of keys and values of a layer, which attends.
    ///
    /// # Panics
    /// If there is no such layer.
    pub fn heads_of(&self, layer: usize) -> HeadConfig {
        let [key_size, value_size] = match self.window_of(layer) {
            Some(_) => self.head_sizes_window,
            None => self.head_sizes,
        };
        HeadConfig { count: self.kv_heads[layer], key_size, value_size }
    }

    /// Layers with a cache of their own, which come first.
    pub(super) fn keeping(&self) -> usize {
        self.layers - self.sharing
    }

    /// The layer whose cache a layer attends to: its own, or the last of those before that has a window if it has one.
    pub(super) fn cache_of(&self, layer: usize) -> Option<usize> {
        let alike = |at: &usize| self.window_of(*at).is_some() == self.window_of(layer).is_some();
        if layer < self.keeping() { Some(layer) } else { (0..self.keeping()).rfind(alike) }
    }

    /// The window of a layer, if it has one; all layers have one where there is no pattern.
    pub(super) fn window_of(&self, layer: usize) -> Option<usize> {
        self.window.filter(|_| match &self.window_pattern {
            None | Some(WindowPattern::AllButLast(0) | WindowPattern::AllButFirst(0)) => true,
            Some(WindowPattern::AllButLast(run)) => layer % run < run - 1,
            Some(WindowPattern::AllButFirst(run)) => !layer.is_multiple_of(*run),
            Some(WindowPattern::Layers(list)) => list.get(layer).is_some_and(|&windowed| windowed),
        })
    }
}
