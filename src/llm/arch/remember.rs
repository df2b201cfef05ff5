//! Layers that remember in a matrix per head (gated delta networks, Yang et al. 2024).

use super::Builder;
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::kv_delta::KvDelta;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::unary::UnaryOp;
use crate::llm::config::DeltaConfig;
use crate::tensor::Tensor;

impl Builder<'_> {
    /// What a layer has in place of attention: queries, keys and values convolved along the positions, queries
    /// and keys of length 1, the delta rule over the matrices of the layer, its results normalised and let
    /// through by a gate; of the tokens that are wanted.
    pub(super) fn remembered(
        &mut self,
        x: TensorId,
        layer: usize,
        delta: DeltaConfig,
    ) -> Result<TensorId, Error> {
        let DeltaConfig { heads, key_heads, size } = delta;
        let (keys, values) = (key_heads * size, heads * size);
        let name = |part: &str| format!("blk.{layer}.{part}");
        let mixed = self.linear(x, &name("attn_qkv"), delta.width())?;
        let mixed = self.taps(mixed, layer, "ssm_conv1d")?;
        let mixed = self.unary("silu", UnaryOp::Silu, mixed)?;
        let [q, k] = [self.columns(mixed, 0, keys)?, self.columns(mixed, keys, keys)?];
        let v = self.columns(mixed, 2 * keys, values)?;
        // Results are scaled by the root of a head's size, as scores of attention are.
        let length = 1.0 / (size as f32).sqrt();
        let [q, k] = [self.heads_of_length(q, size, length)?, self.heads_of_length(k, size, 1.0)?];
        let decay = self.decay(x, layer, heads)?;
        let rate = self.linear(x, &name("ssm_beta"), heads)?;
        let rate = self.unary("rate", UnaryOp::Sigmoid, rate)?;
        let op = KvDelta { key_heads, cache: self.matrices(layer) };
        let positions = self.positions();
        let y = self.op(&name("delta"), op, &[q, k, v, decay, rate, positions])?;
        let y = self.mixed(layer, y)?;
        let y = self.head_norm(y, &name("ssm_norm"), size, NormOp::Rms)?;
        let gate = self.wanted(layer, x)?;
        let gate = self.linear(gate, &name("attn_gate"), values)?;
        self.op("gate", Glu { op: GluOp::Silu }, &[gate, y])
    }

    /// The factor of each head's matrix: a number to a power that the token and a bias give.
    fn decay(&mut self, x: TensorId, layer: usize, heads: usize) -> Result<TensorId, Error> {
        let [bias, rate] = ["ssm_dt.bias", "ssm_a"]
            .map(|part| self.vector(&format!("blk.{layer}.{part}"), &[heads]));
        let (bias, rate) = (bias?, rate?);
        let step = self.linear(x, &format!("blk.{layer}.ssm_alpha"), heads)?;
        let step = self.sum("step", step, bias)?;
        let step = self.unary("step", UnaryOp::Softplus, step)?;
        let power = self.product("decay", step, rate)?;
        self.unary("decay", UnaryOp::Exp, power)
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
