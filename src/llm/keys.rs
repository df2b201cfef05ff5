//! The entries of one architecture in the metadata of a file, read and checked.

use super::LlmError;
use super::config::{ExpertConfig, LatentConfig, MemoryConfig, RopeConfig, Scaling, WindowPattern};
use crate::Error;
use crate::import::gguf::{Metadata, Value};
use tilewright_kernels::DeltaRule;

/// Most elements of a head that are believed.
const MAX_HEAD: usize = 1 << 16;

/// Most experts that are believed.
const MAX_EXPERTS: usize = 4096;

/// Most streams of vectors that are believed.
const MAX_STREAMS: usize = 16;

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

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    pub(super) fn wrong(&self, name: &str, found: impl ToString, expected: &str) -> Error {
        let (key, expected) = (self.key(name), expected.to_owned());
        LlmError::Setting { key, found: found.to_string(), expected }.into()
    }

    /// A count; 0 where it is missing.
    pub(super) fn count(&self, name: &str) -> Result<usize, Error> {
        let found = self.metadata.u32(&self.key(name))?.unwrap_or(0);
        usize::try_from(found).map_err(|_| self.wrong(name, found, "less"))
    }

    pub(super) fn needed(&self, name: &str) -> Result<usize, Error> {
        let key = self.key(name);
        match self.count(name)? {
            0 if self.metadata.get(&key).is_none() => Err(LlmError::MissingKey(key).into()),
            0 => Err(self.wrong(name, 0, "more than 0")),
            n => Ok(n),
        }
    }

    /// A count for each layer, where the file has one for all or a list; `None` where it has neither.
    pub(super) fn of_layers(&self, name: &str, layers: usize) -> Result<Option<Vec<usize>>, Error> {
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
    pub(super) fn uniform(&self, name: &str, layers: usize) -> Result<Option<usize>, Error> {
        let Some(list) = self.of_layers(name, layers)? else { return Ok(None) };
        if list.iter().any(|&n| n != list[0]) {
            return Err(self.wrong(name, "a list of different numbers", "one for all layers"));
        }
        Ok(Some(list[0]).filter(|&n| n > 0))
    }

    /// Layers that remember, by the gated delta rule and in place of attending as long as an architecture says
    /// nothing else, where a file has sizes of them.
    pub(super) fn memory(&self) -> Result<Option<MemoryConfig>, Error> {
        let size_name = "ssm.state_size";
        if self.metadata.get(&self.key(size_name)).is_none() {
            return Ok(None);
        }
        let [size, heads_name, group] = [size_name, "ssm.time_step_rank", "ssm.group_count"];
        let (key_size, heads, key_heads) =
            (self.needed(size)?, self.needed(heads_name)?, self.needed(group)?);
        if key_size > MAX_HEAD {
            return Err(self.wrong(size_name, key_size, &format!("at most {MAX_HEAD}")));
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
        let value_size = inner / heads;
        if value_size * heads != inner || value_size > MAX_HEAD || inner > i32::MAX as usize / 8 {
            let expected = format!("that of {heads} heads of up to {MAX_HEAD} elements");
            return Err(self.wrong(inner_name, inner, &expected));
        }
        let rule = DeltaRule::Corrected;
        Ok(Some(MemoryConfig { rule, beside: false, heads, key_heads, key_size, value_size }))
    }

    /// Heads of queries; 0 of a model that remembers, and does not attend at all.
    pub(super) fn heads(&self, layers: usize, remembers: bool) -> Result<usize, Error> {
        let name = "attention.head_count";
        match self.uniform(name, layers)? {
            None if !remembers => Err(LlmError::MissingKey(self.key(name)).into()),
            heads => Ok(heads.unwrap_or(0)),
        }
    }

    /// Heads of keys and values of each layer, and which layers attend: all where it is empty.
    pub(super) fn kv_heads(
        &self,
        layers: usize,
        heads: usize,
        remembers: bool,
    ) -> Result<(Vec<usize>, Vec<bool>), Error> {
        if heads == 0 {
            return Ok((vec![1; layers], vec![false; layers]));
        }
        let name = "attention.head_count_kv";
        let mut kv_heads = self.of_layers(name, layers)?.unwrap_or_else(|| vec![heads; layers]);
        let most = kv_heads.iter().max().copied().unwrap_or(0);
        let attending = match (kv_heads.contains(&0) && most > 0, remembers) {
            (true, _) => kv_heads.iter().map(|&n| n > 0).collect(),
            (false, true) => self.attending(layers)?,
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
    pub(super) fn sharing(&self, layers: usize, all_attend: bool) -> Result<usize, Error> {
        let name = "attention.shared_kv_layers";
        let sharing = self.count(name)?;
        let most = if all_attend { layers - 1 } else { 0 };
        if sharing > most {
            return Err(self.wrong(name, sharing, &format!("at most {most}")));
        }
        Ok(sharing)
    }

    /// Streams of vectors from layer to layer, of which the first is what layers compute; 0 where there is one only.
    pub(super) fn streams(&self) -> Result<usize, Error> {
        let [active, count] = ["altup.active_idx", "altup.num_inputs"];
        if self.count(active)? > 0 {
            return Err(self.wrong(active, self.count(active)?, "0"));
        }
        match self.count(count)? {
            n if n > MAX_STREAMS => Err(self.wrong(count, n, &format!("at most {MAX_STREAMS}"))),
            n => Ok(n),
        }
    }

    /// Numbers, of layers one each; none where there is no list.
    pub(super) fn floats(&self, name: &str) -> Result<Vec<f32>, Error> {
        Ok(self.metadata.f32s(&self.key(name))?.unwrap_or_default())
    }

    /// Experts; each has as much inside as a layer's network has, where the file does not say.
    pub(super) fn experts(&self, feed_forward: usize) -> Result<Option<ExpertConfig>, Error> {
        let [count_name, used_name] = ["expert_count", "expert_used_count"];
        let count = self.count(count_name)?;
        if count == 0 {
            return Ok(None);
        }
        let used = self.needed(used_name)?;
        if used > count || count > MAX_EXPERTS {
            let (name, found, most) = match used > count {
                true => (used_name, used, count),
                false => (count_name, count, MAX_EXPERTS),
            };
            return Err(self.wrong(name, found, &format!("at most {most}")));
        }
        let gating_name = "expert_gating_func";
        let gating = self.count(gating_name)?;
        if gating > 2 {
            return Err(self.wrong(gating_name, gating, "1 (softmax) or 2 (sigmoid)"));
        }
        let (groups, groups_used) = self.expert_groups(count, used)?;
        let inside = self.count("expert_feed_forward_length")?;
        let inside = if inside == 0 { feed_forward } else { inside };
        let shared = self.count("expert_shared_feed_forward_length")?;
        let usual = inside.saturating_mul(self.count("expert_shared_count")?.max(1));
        Ok(Some(ExpertConfig {
            count,
            used,
            feed_forward: inside,
            shared: if shared == 0 { usual } else { shared },
            scale: self.positive("expert_weights_scale")?.unwrap_or(1.0),
            sigmoid: gating == 2,
            groups,
            groups_used,
            normalised: self.metadata.bool(&self.key("expert_weights_norm"))?.unwrap_or(false),
            clamped: false,
            rectified: false,
            squared: false,
        }))
    }

    /// The groups that experts form, and of how many a token's experts are.
    fn expert_groups(&self, count: usize, used: usize) -> Result<(usize, usize), Error> {
        let [groups_name, used_name] = ["expert_group_count", "expert_group_used_count"];
        let groups = self.count(groups_name)?.max(1);
        if groups == 1 {
            return Ok((1, 1));
        }
        let each = count / groups;
        if each < 2 || each * groups != count {
            let expected = format!("a number of groups of two or more of the {count} experts");
            return Err(self.wrong(groups_name, groups, &expected));
        }
        let groups_used = self.needed(used_name)?;
        if groups_used > groups || groups_used * each < used {
            let expected = format!("up to {groups}, with {used} experts or more");
            return Err(self.wrong(used_name, groups_used, &expected));
        }
        Ok((groups, groups_used))
    }

    /// Which layers attend, of a model whose others remember.
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
    pub(super) fn window_pattern(&self, layers: usize) -> Result<Option<WindowPattern>, Error> {
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
    pub(super) fn positive(&self, name: &str) -> Result<Option<f32>, Error> {
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

    /// A text, if there is one.
    pub(super) fn text(&self, name: &str) -> Result<Option<String>, Error> {
        Ok(self.metadata.str(&self.key(name))?.map(str::to_owned))
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
    pub(super) fn head_sizes(
        &self,
        [key, value]: [&str; 2],
        usual: [usize; 2],
    ) -> Result<[usize; 2], Error> {
        let size = |name: &str, usual| match self.count(name)? {
            0 => Ok(usual),
            n if n > MAX_HEAD => Err(self.wrong(name, n, &format!("at most {MAX_HEAD}"))),
            n => Ok::<_, Error>(n),
        };
        Ok([size(key, usual[0])?, size(value, usual[1])?])
    }

    /// Where keys and values come from one vector per token, of which heads of `sizes` are where the file says nothing
    /// else, and `rotated` elements of a key turn.
    pub(super) fn latent(
        &self,
        sizes: [usize; 2],
        rotated: usize,
    ) -> Result<Option<LatentConfig>, Error> {
        let rank = self.count("attention.kv_lora_rank")?;
        if rank == 0 {
            return Ok(None);
        }
        let names = ["attention.key_length_mla", "attention.value_length_mla"];
        let [key_size, value_size] = self.head_sizes(names, sizes)?;
        if key_size <= rotated {
            let expected = format!("more than the {rotated} elements that turn");
            return Err(self.wrong(names[0], key_size, &expected));
        }
        let query_rank = self.count("attention.q_lora_rank")?;
        Ok(Some(LatentConfig { rank, query_rank, key_size, value_size }))
    }

    /// `sizes` of keys are of heads without a window, and with one.
    pub(super) fn rope(&self, sizes: [usize; 2], context: usize) -> Result<RopeConfig, Error> {
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
            finetuned: self.unless_false("rope.scaling.finetuned"),
        })
    }

    /// Whether an entry is anything but false.
    pub(super) fn unless_false(&self, name: &str) -> bool {
        self.metadata.get(&self.key(name)) != Some(&Value::Bool(false))
    }

    /// Refuses models whose tokens see what comes behind them.
    pub(super) fn causal(&self) -> Result<(), Error> {
        let name = "attention.causal";
        if self.metadata.get(&self.key(name)) == Some(&Value::Bool(false)) {
            return Err(self.wrong(name, false, "true: rows see only what is before them"));
        }
        Ok(())
    }

    /// How many tokens there are, where the file says.
    pub(super) fn vocabulary(&self) -> Result<Option<usize>, Error> {
        let count = self.count("vocab_size")?;
        let list = self.metadata.bytes_list("tokenizer.ggml.tokens")?;
        Ok(if count > 0 { Some(count) } else { list.map(|l| l.len()) })
    }
}
