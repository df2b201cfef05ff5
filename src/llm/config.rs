//! Hyper-parameters from the metadata of a file.

use super::LlmError;
use crate::Error;
use crate::import::gguf::{Metadata, Value};

/// Most layers that are believed.
const MAX_LAYERS: usize = 4096;

/// Most elements of a head that are believed.
const MAX_HEAD: usize = 1 << 16;

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

/// Layers that remember in a matrix per head, by the gated delta rule, in place of attending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaConfig {
    /// `ssm.time_step_rank`: heads of values.
    pub heads: usize,
    /// `ssm.group_count`: heads of queries and keys.
    pub key_heads: usize,
    /// `ssm.state_size`: elements of a query, key or value of one head.
    pub size: usize,
}

impl DeltaConfig {
    /// Elements of the queries, keys and values of a token, which are convolved along the positions.
    pub(super) fn width(&self) -> usize {
        (2 * self.key_heads + self.heads) * self.size
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
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values of each layer; of one that does not attend, whatever others have.
    pub kv_heads: Vec<usize>,
    /// `attention.shared_kv_layers`: how many layers at the end attend to what earlier ones have kept.
    pub sharing: usize,
    /// Which layers attend; all where it is empty. The others have 0 in `attention.head_count_kv`, or are those
    /// that [`Config::delta`] is for.
    pub attending: Vec<bool>,
    /// `shortconv.l_cache` or `ssm.conv_kernel`: taps of the layers that convolve; 0 if there are none.
    pub taps: usize,
    /// What layers do that do not attend, if they do more than to convolve.
    pub delta: Option<DeltaConfig>,
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
    /// `attention.scale`, if not 0.
    pub attention_scale: Option<f32>,
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

/// The entries of one architecture.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl<'a> Keys<'a> {
    pub(super) fn new(metadata: &'a Metadata) -> Result<Self, Error> {
        let arch = metadata.str("general.architecture")?.ok_or(LlmError::NoArchitecture)?;
        Ok(Self { metadata, arch })
    }

    pub(super) fn arch(&self) -> &'a str {
        self.arch
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    fn wrong(&self, name: &str, found: impl ToString, expected: &str) -> Error {
        let (key, expected) = (self.key(name), expected.to_owned());
        LlmError::Setting { key, found: found.to_string(), expected }.into()
    }

    /// A count; 0 where it is missing.
    fn count(&self, name: &str) -> Result<usize, Error> {
        let found = self.metadata.u32(&self.key(name))?.unwrap_or(0);
        usize::try_from(found).map_err(|_| self.wrong(name, found, "less"))
    }

    fn needed(&self, name: &str) -> Result<usize, Error> {
        let key = self.key(name);
        match self.count(name)? {
            0 if self.metadata.get(&key).is_none() => Err(LlmError::MissingKey(key).into()),
            0 => Err(self.wrong(name, 0, "more than 0")),
            n => Ok(n),
        }
    }

    /// A count for each layer, where the file has one for all or a list; `None` where it has neither.
    fn of_layers(&self, name: &str, layers: usize) -> Result<Option<Vec<usize>>, Error> {
        let key = self.key(name);
        let Some(Value::Array(_)) = self.metadata.get(&key) else {
            let found = Some(self.count(name)?).filter(|_| self.metadata.get(&key).is_some());
            return Ok(found.map(|n| vec![n; layers]));
        };
        let list = self.metadata.u32s(&key)?.unwrap_or_default();
        if list.len() < layers {
            let expected = format!("one of {layers} numbers");
            return Err(self.wrong(name, format!("a list of {}", list.len()), &expected));
        }
        Ok(Some(list[..layers].iter().map(|&n| n as usize).collect()))
    }

    /// The same, where it must be one number for all; `None` where there is none, or 0.
    fn uniform(&self, name: &str, layers: usize) -> Result<Option<usize>, Error> {
        let Some(list) = self.of_layers(name, layers)? else { return Ok(None) };
        if list.iter().any(|&n| n != list[0]) {
            return Err(self.wrong(name, "a list of different numbers", "one for all layers"));
        }
        Ok(Some(list[0]).filter(|&n| n > 0))
    }

    /// Layers that remember by the delta rule, where a file has sizes of them.
    fn delta(&self) -> Result<Option<DeltaConfig>, Error> {
        let size_name = "ssm.state_size";
        if self.metadata.get(&self.key(size_name)).is_none() {
            return Ok(None);
        }
        let [size, heads_name, group] = [size_name, "ssm.time_step_rank", "ssm.group_count"];
        let (size, heads, key_heads) =
            (self.needed(size)?, self.needed(heads_name)?, self.needed(group)?);
        if size > MAX_HEAD {
            return Err(self.wrong(size_name, size, &format!("at most {MAX_HEAD}")));
        }
        if !heads.is_multiple_of(key_heads) {
            return Err(self.wrong(
                group,
                key_heads,
                &format!("a number that divides the {heads} heads"),
            ));
        }
        let inner_name = "ssm.inner_size";
        let inner = self.needed(inner_name)?;
        if heads.checked_mul(size) != Some(inner) || inner > i32::MAX as usize / 8 {
            let expected = format!("that of {heads} heads of {size} elements");
            return Err(self.wrong(inner_name, inner, &expected));
        }
        Ok(Some(DeltaConfig { heads, key_heads, size }))
    }

    /// Heads of keys and values of each layer, and which layers attend: all where it is empty.
    fn kv_heads(
        &self,
        layers: usize,
        heads: usize,
        remembers: bool,
    ) -> Result<(Vec<usize>, Vec<bool>), Error> {
        let name = "attention.head_count_kv";
        let mut kv_heads = self.of_layers(name, layers)?.unwrap_or_else(|| vec![heads; layers]);
        let most = kv_heads.iter().max().copied().unwrap_or(0);
        let attending = match (remembers, kv_heads.contains(&0) && most > 0) {
            (true, _) => self.attending(layers)?,
            (false, true) => kv_heads.iter().map(|&n| n > 0).collect(),
            (false, false) => Vec::new(),
        };
        kv_heads.iter_mut().filter(|n| **n == 0).for_each(|n| *n = most);
        if let Some(wrong) = kv_heads.iter().find(|&&n| n == 0 || !heads.is_multiple_of(n)) {
            let expected = format!("a number that divides the {heads} heads");
            return Err(self.wrong(name, wrong, &expected));
        }
        Ok((kv_heads, attending))
    }

    /// How many layers attend to what others have kept; `all_attend`: whether there are but such as attend.
    fn sharing(&self, layers: usize, all_attend: bool) -> Result<usize, Error> {
        let name = "attention.shared_kv_layers";
        let sharing = self.count(name)?;
        let most = if all_attend { layers - 1 } else { 0 };
        if sharing > most {
            return Err(self.wrong(name, sharing, &format!("at most {most}")));
        }
        Ok(sharing)
    }

    /// Which layers attend, of a model whose others remember by the delta rule.
    fn attending(&self, layers: usize) -> Result<Vec<bool>, Error> {
        let listed = self.of_each("attention.recurrent_layers", layers)?;
        if let Some(recurrent) = listed {
            return Ok(recurrent.into_iter().map(|is| !is).collect());
        }
        let name = "full_attention_interval";
        let run = match self.metadata.get(&self.key(name)) {
            None => 4,
            Some(_) => self.needed(name)?,
        };
        Ok((1..=layers).map(|layer| layer.is_multiple_of(run)).collect())
    }

    /// Which layers have a window: a number, or a list of booleans, one per layer.
    fn window_pattern(&self, layers: usize) -> Result<Option<WindowPattern>, Error> {
        let name = "attention.sliding_window_pattern";
        if let Some(list) = self.of_each(name, layers)? {
            return Ok(Some(WindowPattern::Layers(list)));
        }
        match self.metadata.get(&self.key(name)) {
            None => Ok(None),
            Some(_) => Ok(Some(WindowPattern::AllButLast(self.needed(name)?))),
        }
    }

    /// A list of booleans, one per layer; `None` where there is none or it is a number.
    fn of_each(&self, name: &str, layers: usize) -> Result<Option<Vec<bool>>, Error> {
        let Some(Value::Array(list)) = self.metadata.get(&self.key(name)) else { return Ok(None) };
        let is = |value| match value {
            Value::Bool(is) => Some(is),
            Value::Integer { value, .. } => Some(value != 0),
            _ => None,
        };
        let list: Option<Vec<bool>> = list.values().map(is).collect();
        let found = list.as_ref().map_or(0, Vec::len);
        match list.filter(|list| list.len() >= layers) {
            Some(list) => Ok(Some(list)),
            None => {
                let expected = format!("one of {layers} booleans");
                Err(self.wrong(name, format!("a list of {found}"), &expected))
            }
        }
    }

    /// A finite number.
    fn number(&self, name: &str) -> Result<Option<f32>, Error> {
        let found = self.metadata.f32(&self.key(name))?;
        match found {
            Some(x) if !x.is_finite() => Err(self.wrong(name, x, "a finite number")),
            found => Ok(found),
        }
    }

    /// A number above 0; one of 0 is as none.
    fn positive(&self, name: &str) -> Result<Option<f32>, Error> {
        match self.number(name)?.filter(|&x| x != 0.0) {
            Some(x) if x < 0.0 => Err(self.wrong(name, x, "a number above 0")),
            found => Ok(found),
        }
    }

    fn scaling(&self, original: usize) -> Result<Scaling, Error> {
        let kind = self.metadata.str(&self.key("rope.scaling.type"))?.unwrap_or("linear");
        let factor = match self.positive("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => self.positive("rope.scale_linear")?,
        };
        let factor = f64::from(factor.unwrap_or(1.0));
        match kind {
            "none" => Ok(Scaling::Linear(1.0)),
            "linear" | "longrope" => Ok(Scaling::Linear(factor)),
            "yarn" => {
                let turns = |name: &str, default: f32| {
                    Ok::<_, Error>(f64::from(self.positive(name)?.unwrap_or(default)))
                };
                let fast = turns("rope.scaling.yarn_beta_fast", 32.0)?;
                let slow = turns("rope.scaling.yarn_beta_slow", 1.0)?;
                let log_multiplier = turns("rope.scaling.yarn_log_multiplier", 0.0)?;
                let original = original as f64;
                Ok(Scaling::Yarn { factor, original, fast, slow, log_multiplier })
            }
            other => Err(self.wrong("rope.scaling.type", other, "none, linear, yarn or longrope")),
        }
    }

    /// Elements of heads of `size` that turn; `usual` of them where the file does not say.
    fn rotated(&self, name: &str, size: usize, usual: usize) -> Result<usize, Error> {
        let rotated = Some(self.count(name)?).filter(|&n| n > 0).unwrap_or(usual);
        if rotated > size || !rotated.is_multiple_of(2) {
            let expected = format!("an even number up to the {size} elements of a head");
            return Err(self.wrong(name, rotated, &expected));
        }
        Ok(rotated)
    }

    /// Sizes of keys and values of a head; `usual` where the file does not say.
    fn head_sizes(&self, [key, value]: [&str; 2], usual: [usize; 2]) -> Result<[usize; 2], Error> {
        let size = |name: &str, usual| match self.count(name)? {
            0 => Ok(usual),
            n if n > MAX_HEAD => Err(self.wrong(name, n, &format!("at most {MAX_HEAD}"))),
            n => Ok::<_, Error>(n),
        };
        Ok([size(key, usual[0])?, size(value, usual[1])?])
    }

    /// `sizes` of keys are of heads without a window, and with one.
    fn rope(&self, sizes: [usize; 2], context: usize) -> Result<RopeConfig, Error> {
        let rotated = self.rotated("rope.dimension_count", sizes[0], sizes[0])?;
        let usual = if sizes[0] == sizes[1] { rotated } else { sizes[1] };
        let rotated_window = self.rotated("rope.dimension_count_swa", sizes[1], usual)?;
        let original = self.count("rope.scaling.original_context_length")?;
        let original_context = if original == 0 { context } else { original };
        Ok(RopeConfig {
            rotated,
            rotated_window,
            base: self.positive("rope.freq_base")?.unwrap_or(10_000.0).into(),
            base_window: self.positive("rope.freq_base_swa")?.map(f64::from),
            scaling: self.scaling(original_context)?,
            attention_factor: self.positive("rope.scaling.attn_factor")?.unwrap_or(1.0),
            original_context,
            finetuned: self.metadata.get(&self.key("rope.scaling.finetuned"))
                != Some(&Value::Bool(false)),
        })
    }

    fn vocabulary(&self) -> Result<Option<usize>, Error> {
        let count = self.count("vocab_size")?;
        let list = self.metadata.bytes_list("tokenizer.ggml.tokens")?;
        Ok(if count > 0 { Some(count) } else { list.map(|l| l.len()) })
    }
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
        let heads = keys.uniform(heads_name, layers)?;
        let heads = heads.ok_or_else(|| LlmError::MissingKey(keys.key(heads_name)))?;
        let delta = keys.delta()?;
        let (kv_heads, attending) = keys.kv_heads(layers, heads, delta.is_some())?;
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
        let feed_forward = keys.of_layers(ff_name, layers)?.filter(|list| !list.contains(&0));
        let [rms, layer] = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
        let epsilon = match keys.positive(rms)? {
            Some(epsilon) => Some(epsilon),
            None => keys.positive(layer)?,
        };
        let window_pattern = keys.window_pattern(layers)?;
        let taps_name = if delta.is_some() { "ssm.conv_kernel" } else { "shortconv.l_cache" };
        let taps = if attending.is_empty() { 0 } else { keys.needed(taps_name)? };
        if taps > MAX_TAPS {
            return Err(keys.wrong(taps_name, taps, &format!("at most {MAX_TAPS}")));
        }
        let causal = "attention.causal";
        if keys.metadata.get(&keys.key(causal)) == Some(&Value::Bool(false)) {
            return Err(keys.wrong(causal, false, "true: rows see only what is before them"));
        }
        Ok(Self {
            arch: keys.arch.to_owned(),
            layers,
            guessing,
            embedding,
            feed_forward: feed_forward.ok_or_else(|| LlmError::MissingKey(keys.key(ff_name)))?,
            layer_embedding: keys.count("embedding_length_per_layer_input")?,
            heads,
            kv_heads,
            sharing,
            attending,
            taps,
            delta,
            head_sizes,
            head_sizes_window,
            vocabulary: keys.vocabulary()?.unwrap_or(rows),
            context,
            epsilon: epsilon.ok_or_else(|| LlmError::MissingKey(keys.key(rms)))?,
            rope: keys.rope([head_sizes[0], head_sizes_window[0]], context)?,
            window: Some(keys.count("attention.sliding_window")?).filter(|&n| n > 0),
            window_pattern,
            attention_scale: keys.positive("attention.scale")?,
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
                let grown = |times: f64| 1.0 + 0.1 * times * factor.ln().max(0.0);
                grown(1.0) / grown(log_multiplier)
            }
        };
        self.rope.attention_factor * yarn as f32
    }

    /// Whether a layer attends, and does not convolve instead.
    pub(super) fn attends(&self, layer: usize) -> bool {
        self.attending.get(layer).copied().unwrap_or(true)
    }

    /// Heads of keys and values of a layer, which attends.
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
            None | Some(WindowPattern::AllButLast(0)) => true,
            Some(WindowPattern::AllButLast(run)) => layer % run < run - 1,
            Some(WindowPattern::Layers(list)) => list.get(layer).is_some_and(|&windowed| windowed),
        })
    }
}
