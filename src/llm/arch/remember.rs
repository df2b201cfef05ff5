//! Layers that remember in a matrix per head: gated delta networks (Yang et al. 2024) and Mamba-2 (Dao and Gu 2024).

use super::Builder;
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::kv_delta::KvDelta;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::unary::UnaryOp;
use crate::llm::config::{Config, MemoryConfig};
use crate::tensor::Tensor;
use tilewright_kernels::DeltaRule;

/// Says of a model that what it remembers is added to.
pub(super) fn by_adding(config: &mut Config) {
    if let Some(memory) = &mut config.memory {
        memory.rule = DeltaRule::Added;
    }
}

impl Builder<'_> {
    /// What a layer remembers for the tokens that are wanted, by the rule of the model.
    pub(super) fn remembered(
        &mut self,
        x: TensorId,
        layer: usize,
        memory: MemoryConfig,
    ) -> Result<TensorId, Error> {
        let y = match memory.rule {
            DeltaRule::Corrected => self.corrected(x, layer, memory)?,
            DeltaRule::Added => self.added(x, layer, memory)?,
        };
        self.layer_linear(y, layer, "ssm_out")
    }

    /// Queries, keys and values convolved along the positions, queries and keys of length 1, the delta rule over the
    /// matrices of the layer, its results normalised and let through by a gate.
    fn corrected(
        &mut self,
        x: TensorId,
        layer: usize,
        memory: MemoryConfig,
    ) -> Result<TensorId, Error> {
        let MemoryConfig { heads, key_size, value_size, .. } = memory;
        let [keys, values] = memory.widths();
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mixed = self.linear(x, &name("attn_qkv"), memory.width())?;
        let mixed = self.activated_taps(mixed, layer)?;
        let [q, k] = [self.columns(mixed, 0, keys)?, self.columns(mixed, keys, keys)?];
        let v = self.columns(mixed, 2 * keys, values)?;
        // Results are scaled by the root of a head's size, as scores of attention are.
        let length = 1.0 / (key_size as f32).sqrt();
        let [q, k] =
            [self.heads_of_length(q, key_size, length)?, self.heads_of_length(k, key_size, 1.0)?];
        let rate = self.vector(&name("ssm_a"), &[heads])?;
        let step = self.linear(x, &name("ssm_alpha"), heads)?;
        let [decay, _] = self.decay(step, layer, heads, rate)?;
        let share = self.linear(x, &name("ssm_beta"), heads)?;
        let share = self.unary("rate", UnaryOp::Sigmoid, share)?;
        let y = self.memory(layer, memory, [q, k, v, decay, share])?;
        let y = self.mixed(layer, y)?;
        let y = self.head_norm(y, &name("ssm_norm"), value_size, NormOp::Rms)?;
        let gate = self.wanted(layer, x)?;
        let gate = self.linear(gate, &name("attn_gate"), values)?;
        self.op("gate", Glu { op: GluOp::Silu }, &[gate, y])
    }

    /// Values, keys and queries convolved along the positions, the rule of Mamba-2 over the matrices of the layer, to
    /// its results as much of the values as each head says; let through by a gate, and normalised by the heads of
    /// the keys if the file has a scale for that.
    fn added(
        &mut self,
        x: TensorId,
        layer: usize,
        memory: MemoryConfig,
    ) -> Result<TensorId, Error> {
        let MemoryConfig { heads, key_heads, value_size, .. } = memory;
        let [keys, values] = memory.widths();
        let name = |part: &str| format!("blk.{layer}.{part}");
        let (inside, all) = (name("ssm_in"), values + memory.width() + heads);
        let mixed = self.linear_part(x, &inside, all, values, memory.width())?;
        let mixed = self.activated_taps(mixed, layer)?;
        let v = self.columns(mixed, 0, values)?;
        let [k, q] =
            [self.columns(mixed, values, keys)?, self.columns(mixed, values + keys, keys)?];
        let rate = self.vector(&name("ssm_a"), &[heads, 1])?;
        let rate = self.as_rows(rate, heads)?;
        let step = self.linear_part(x, &inside, all, all - heads, heads)?;
        let [decay, step] = self.decay(step, layer, heads, rate)?;
        let y = self.memory(layer, memory, [q, k, v, decay, step])?;
        let y = self.mixed(layer, y)?;
        let own = self.wanted(layer, v)?;
        let own = self.split_heads(own, value_size)?;
        let by = self.vector(&name("ssm_d"), &[heads, 1])?;
        let own = self.product("own", own, by)?;
        let own = self.joined_heads(own)?;
        let y = self.sum("own", y, own)?;
        let gate = self.wanted(layer, x)?;
        let gate = self.linear_part(gate, &inside, all, 0, values)?;
        let y = self.op("gate", Glu { op: GluOp::Silu }, &[gate, y])?;
        if !self.has(layer, "ssm_norm.weight") {
            return Ok(y);
        }
        self.head_norm(y, &name("ssm_norm"), values / key_heads, NormOp::Rms)
    }

    /// The convolution of a layer that remembers, activated.
    fn activated_taps(&mut self, x: TensorId, layer: usize) -> Result<TensorId, Error> {
        let x = self.taps(x, layer, "ssm_conv1d")?;
        self.unary("silu", UnaryOp::SILU, x)
    }

    /// What the matrices of a layer give: of queries, keys, values, decay and share.
    fn memory(
        &mut self,
        layer: usize,
        MemoryConfig { rule, key_heads, .. }: MemoryConfig,
        [q, k, v, decay, share]: [TensorId; 5],
    ) -> Result<TensorId, Error> {
        let op = KvDelta { rule, key_heads, cache: self.matrices(layer) };
        let positions = self.positions();
        self.op(&format!("blk.{layer}.memory"), op, &[q, k, v, decay, share, positions])
    }

    /// The factor of each head's matrix: a number to a power that the token and a bias give; and that step.
    fn decay(
        &mut self,
        step: TensorId,
        layer: usize,
        heads: usize,
        rate: TensorId,
    ) -> Result<[TensorId; 2], Error> {
        let bias = self.vector(&format!("blk.{layer}.ssm_dt.bias"), &[heads])?;
        let step = self.sum("step", step, bias)?;
        let step = self.unary("step", UnaryOp::Softplus, step)?;
        let power = self.product("decay", step, rate)?;
        Ok([self.unary("decay", UnaryOp::Exp, power)?, step])
    }

    /// Heads divided by their lengths and multiplied with `length`. A head shorter than the epsilon of norms
    /// stays short.
    fn heads_of_length(
        &mut self,
        x: TensorId,
        size: usize,
        length: f32,
    ) -> Result<TensorId, Error> {
        let root = (size as f32).sqrt();
        let scale = Tensor::from_slice(&[size], &vec![length / root; size])?;
        let scale = self.constant("", scale)?;
        let epsilon = self.config().epsilon.powi(2) / size as f32;
        let norm = Norm { op: NormOp::Rms, axis: 2, epsilon, by_parts: false };
        self.normed_heads(x, Some(scale), "l2_norm", size, norm)
    }
}
