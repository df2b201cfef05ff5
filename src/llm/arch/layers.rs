//! The pieces that architectures are built from.

use std::sync::Arc;

use crate::Error;
use crate::graph::kv_cache::KvCache;
use crate::graph::ops::binary::Binary;
use crate::graph::ops::block_matmul::BlockMatMul;
use crate::graph::ops::embedding::Embedding;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::kv_attention::KvAttention;
use crate::graph::ops::kv_conv::KvConv;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::rope::{Rope, RopeStyle};
use crate::graph::ops::rope_table::{Growth, RopeTable};
use crate::graph::ops::unary::{Unary, UnaryOp};
use crate::graph::{Context, Op, TensorId};
use crate::llm::config::{Config, Scaling};
use crate::llm::weights::Weights;
use crate::tensor::{DType, Tensor};
use tilewright_kernels::template::binary::BinaryOp;

/// Of which tokens logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::llm) enum Rows {
    /// Of none: only the cache is filled.
    None,
    /// Of the last one.
    Last,
    /// Of all.
    All,
}

/// Names of the inputs.
pub(in crate::llm) const TOKENS: &str = "tokens";
pub(in crate::llm) const POSITIONS: &str = "positions";

/// Builds the graph for a number of tokens. Activations are `[tokens, elements]`.
pub(in crate::llm) struct Builder<'a> {
    cx: &'a mut Context,
    config: &'a Config,
    weights: &'a Weights,
    caches: &'a [Arc<KvCache>],
    /// Positions the session keeps.
    capacity: usize,
    rows: Rows,
    count: usize,
    tokens: TensorId,
    positions: TensorId,
    /// Whether attention may round to bf16.
    pub(in crate::llm) bf16: bool,
    /// What the last layer has attended to, or convolved.
    attended: Option<TensorId>,
}

impl<'a> Builder<'a> {
    /// Begins the graph for `count` tokens.
    pub(in crate::llm) fn new(
        cx: &'a mut Context,
        config: &'a Config,
        weights: &'a Weights,
        caches: &'a [Arc<KvCache>],
        count: usize,
        rows: Rows,
    ) -> Result<Self, Error> {
        let tokens = cx.input(TOKENS, DType::I32, &[count])?;
        let positions = cx.input(POSITIONS, DType::I32, &[count])?;
        let capacity = caches.first().map_or(0, |c| c.shape().capacity);
        Ok(Self {
            cx,
            config,
            weights,
            caches,
            capacity,
            rows,
            count,
            tokens,
            positions,
            bf16: false,
            attended: None,
        })
    }

    /// Of a graph that gives no logits, what is computed instead: as much as fills the cache.
    pub(in crate::llm) fn attended(&self) -> Option<TensorId> {
        self.attended
    }

    /// The hyper-parameters.
    pub(super) fn config(&self) -> &'a Config {
        self.config
    }

    /// Number of layers.
    pub(super) fn layers(&self) -> usize {
        self.config.layers
    }

    /// Positions the session keeps.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The positions of the tokens.
    pub(super) fn positions(&self) -> TensorId {
        self.positions
    }

    /// The matrices of a layer that remembers.
    pub(super) fn matrices(&self, layer: usize) -> Arc<KvCache> {
        let before = (0..layer).filter(|&i| !self.config.attends(i)).count();
        self.caches[self.config.layers + before].clone()
    }

    /// Whether a layer has this tensor.
    pub(super) fn has(&self, layer: usize, name: &str) -> bool {
        self.weights.has(&format!("blk.{layer}.{name}"))
    }

    pub(super) fn op(
        &mut self,
        name: &str,
        op: impl Into<Op>,
        src: &[TensorId],
    ) -> Result<TensorId, Error> {
        let id = self.cx.op(op, src)?;
        self.cx.set_name(id, name);
        Ok(id)
    }

    pub(super) fn constant(&mut self, name: &str, value: Tensor) -> Result<TensorId, Error> {
        let id = self.cx.constant(value)?;
        self.cx.set_name(id, name);
        Ok(id)
    }

    fn width(&self, x: TensorId) -> usize {
        self.cx.dims(x).last().copied().unwrap_or(0)
    }

    /// The vectors of the tokens.
    pub(super) fn embedding(&mut self) -> Result<TensorId, Error> {
        let dims = [self.config.vocabulary, self.config.embedding];
        let name = "token_embd.weight";
        let matrix = self.weights.get(name, &dims)?;
        let matrix = self.constant(name, matrix)?;
        let tokens = self.tokens;
        self.op("token_embd", Embedding, &[matrix, tokens])
    }

    /// A tensor times a number.
    pub(super) fn scaled(&mut self, x: TensorId, by: f32) -> Result<TensorId, Error> {
        if by == 1.0 {
            return Ok(x);
        }
        let by = self.constant("", Tensor::from_slice(&[1], &[by])?)?;
        self.op("scaled", Binary::new(BinaryOp::Mul), &[x, by])
    }

    /// A sum, of which the second operand is scaled.
    pub(super) fn add_scaled(
        &mut self,
        a: TensorId,
        b: TensorId,
        by: f32,
    ) -> Result<TensorId, Error> {
        let b = self.scaled(b, by)?;
        self.op("residual", Binary::new(BinaryOp::Add), &[a, b])
    }

    /// Normalises rows, with the scale of a tensor and its bias, if it has one.
    pub(super) fn norm(&mut self, x: TensorId, name: &str, op: NormOp) -> Result<TensorId, Error> {
        let dims = [self.width(x)];
        let mut src = vec![x, self.vector(&format!("{name}.weight"), &dims)?];
        let bias = format!("{name}.bias");
        if self.weights.has(&bias) {
            src.push(self.vector(&bias, &dims)?);
        }
        let norm = Norm { op, axis: 1, epsilon: self.config.epsilon, by_parts: false };
        self.op(name, norm, &src)
    }

    /// [`Builder::norm`] with a tensor of a layer.
    pub(super) fn layer_norm(
        &mut self,
        x: TensorId,
        layer: usize,
        name: &str,
        op: NormOp,
    ) -> Result<TensorId, Error> {
        self.norm(x, &format!("blk.{layer}.{name}"), op)
    }

    /// Normalises each head by itself. The scale is the same for all heads, or has a row for each.
    pub(super) fn head_norm(
        &mut self,
        x: TensorId,
        layer: usize,
        name: &str,
        op: NormOp,
    ) -> Result<TensorId, Error> {
        let size = self.config.key_size;
        let heads = self.width(x) / size;
        let name = format!("blk.{layer}.{name}");
        let weight = format!("{name}.weight");
        let own = self.weights.any(&weight).is_some_and(|w| w.dims().len() > 1);
        let dims = if own { vec![heads, size] } else { vec![size] };
        let scale = self.vector(&weight, &dims)?;
        let split = self.split_heads(x, size)?;
        let norm = Norm { op, axis: 2, epsilon: self.config.epsilon, by_parts: own };
        let y = self.op(&name, norm, &[split, scale])?;
        self.joined_heads(y)
    }

    /// `[tokens, width]` as `[tokens, heads, size]`.
    pub(super) fn split_heads(&mut self, x: TensorId, size: usize) -> Result<TensorId, Error> {
        let (tokens, heads) = (self.cx.dims(x)[0], self.width(x) / size);
        Ok(self.cx.reshape(x, &[tokens, heads, size])?)
    }

    /// `[tokens, heads, size]` as `[tokens, width]`.
    pub(super) fn joined_heads(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let dims = self.cx.dims(x).to_vec();
        Ok(self.cx.reshape(x, &[dims[0], dims[1..].iter().product()])?)
    }

    /// A tensor of f32, as norms and biases are.
    pub(super) fn vector(&mut self, name: &str, dims: &[usize]) -> Result<TensorId, Error> {
        let value = self.weights.get(name, dims)?;
        self.constant(name, value)
    }

    /// A product with the matrix of a tensor, whose rows become `n` columns, plus its bias, if it has
    /// one.
    pub(super) fn linear(&mut self, x: TensorId, name: &str, n: usize) -> Result<TensorId, Error> {
        let weight = format!("{name}.weight");
        let matrix = self.weights.get(&weight, &[n, self.width(x)])?;
        let mut src = vec![x, self.constant(&weight, matrix)?];
        let bias = format!("{name}.bias");
        if self.weights.has(&bias) {
            src.push(self.vector(&bias, &[n])?);
        }
        self.op(name, BlockMatMul { bias: src.len() > 2 }, &src)
    }

    /// As [`Builder::linear`] with one of several matrices that the file keeps in one tensor of `all`
    /// rows: `n` of them from `first` on.
    fn linear_part(
        &mut self,
        x: TensorId,
        name: &str,
        all: usize,
        first: usize,
        n: usize,
    ) -> Result<TensorId, Error> {
        let weight = format!("{name}.weight");
        let matrix = self.weights.rows(&weight, &[all, self.width(x)], first, n)?;
        let mut src = vec![x, self.constant(&weight, matrix)?];
        let bias = format!("{name}.bias");
        if self.weights.has(&bias) {
            let part = self.weights.rows(&bias, &[all], first, n)?;
            src.push(self.constant(&bias, part)?);
        }
        self.op(name, BlockMatMul { bias: src.len() > 2 }, &src)
    }

    /// A product that leads back to the width of the embedding.
    pub(super) fn layer_linear(
        &mut self,
        x: TensorId,
        layer: usize,
        name: &str,
    ) -> Result<TensorId, Error> {
        self.linear(x, &format!("blk.{layer}.{name}"), self.config.embedding)
    }

    /// Queries, perhaps with gates behind each head, keys and values, whether the file has a matrix for each or
    /// one for all.
    pub(super) fn qkv(
        &mut self,
        x: TensorId,
        layer: usize,
        gates: bool,
    ) -> Result<[TensorId; 3], Error> {
        let Config { heads, kv_heads, key_size, value_size, .. } = *self.config;
        let query = if gates { 2 * key_size } else { key_size };
        let widths = [heads * query, kv_heads * key_size, kv_heads * value_size];
        if !self.has(layer, "attn_qkv.weight") {
            let mut one = |name: &str, n| self.linear(x, &format!("blk.{layer}.attn_{name}"), n);
            return Ok([one("q", widths[0])?, one("k", widths[1])?, one("v", widths[2])?]);
        }
        let all = widths.iter().sum();
        let name = format!("blk.{layer}.attn_qkv");
        let mut part = |first, n| self.linear_part(x, &name, all, first, n);
        let [q, k, v] = widths;
        Ok([part(0, q)?, part(q, k)?, part(q + k, v)?])
    }

    /// The feed-forward network with a gate, whether the file has a matrix for the gate or its rows
    /// before those of the other.
    pub(super) fn gated(
        &mut self,
        x: TensorId,
        layer: usize,
        op: GluOp,
    ) -> Result<TensorId, Error> {
        let n = self.config.feed_forward;
        let up_name = format!("blk.{layer}.ffn_up");
        let (gate, up) = if self.has(layer, "ffn_gate.weight") {
            let gate = self.linear(x, &format!("blk.{layer}.ffn_gate"), n)?;
            (gate, self.linear(x, &up_name, n)?)
        } else {
            let all = n.saturating_mul(2);
            let gate = self.linear_part(x, &up_name, all, 0, n)?;
            (gate, self.linear_part(x, &up_name, all, n, n)?)
        };
        let h = self.op(&format!("blk.{layer}.glu"), Glu { op }, &[gate, up])?;
        self.layer_linear(h, layer, "ffn_down")
    }

    /// The angles of the positions as the metadata and `rope_freqs` say.
    pub(super) fn rope_table(&mut self) -> Result<TensorId, Error> {
        self.grown_table(None)
    }

    /// As [`Builder::rope_table`], for queries that grow.
    pub(super) fn grown_table(&mut self, growth: Option<Growth>) -> Result<TensorId, Error> {
        let (rope, factors) = (&self.config.rope, self.factors("rope_freqs.weight")?);
        self.table_of(rope.base, &rope.scaling, factors.as_deref(), growth)
    }

    /// The angles of the positions for a base and a scaling; `factors` divide those of each pair.
    pub(super) fn table(
        &mut self,
        base: f64,
        scaling: &Scaling,
        factors: Option<&[f32]>,
    ) -> Result<TensorId, Error> {
        self.table_of(base, scaling, factors, None)
    }

    fn table_of(
        &mut self,
        base: f64,
        scaling: &Scaling,
        factors: Option<&[f32]>,
        growth: Option<Growth>,
    ) -> Result<TensorId, Error> {
        let angles = self.config.angles(base, scaling, factors);
        let angles = self.constant("", Tensor::from_slice(&[angles.len()], &angles)?)?;
        let positions = self.positions;
        let magnitude = self.config.magnitude(scaling);
        self.op("rope_table", RopeTable { magnitude, growth }, &[positions, angles])
    }

    /// Factors of the angles that a tensor holds, if it is there.
    pub(super) fn factors(&self, name: &str) -> Result<Option<Vec<f32>>, Error> {
        if !self.weights.has(name) {
            return Ok(None);
        }
        let factors = self.weights.get(name, &[self.config.rope.rotated / 2])?;
        Ok(Some(factors.as_slice::<f32>()?.to_vec()))
    }

    /// Turns heads by the angles of a table.
    pub(super) fn rope(
        &mut self,
        x: TensorId,
        table: TensorId,
        style: RopeStyle,
    ) -> Result<TensorId, Error> {
        let size = self.config.key_size;
        self.op("rope", Rope { style, size }, &[x, table])
    }

    /// Attention of a layer to the positions so far, with a window if one is given.
    pub(super) fn attention(
        &mut self,
        layer: usize,
        [q, k, v]: [TensorId; 3],
        window: Option<usize>,
    ) -> Result<TensorId, Error> {
        let config = self.config;
        let op = KvAttention {
            heads: config.heads,
            scale: config.attention_scale.unwrap_or(1.0 / (config.key_size as f32).sqrt()),
            softcap: config.attention_softcap,
            window,
            bf16: self.bf16,
            cache: self.caches[layer].clone(),
        };
        let positions = self.positions;
        let a = self.op(&format!("blk.{layer}.attention"), op, &[q, k, v, positions])?;
        self.mixed(layer, a)
    }

    /// The first and the second half of each head.
    pub(super) fn halves_of_heads(&mut self, x: TensorId) -> Result<[TensorId; 2], Error> {
        let size = self.config.key_size;
        let heads = self.split_heads(x, 2 * size)?;
        let mut half = |first| {
            let half = self.cx.slice(heads, 2, first, size, 1)?;
            let half = self.cx.cont(half)?;
            self.joined_heads(half)
        };
        Ok([half(0)?, half(size)?])
    }

    /// As much of `x` as gates let through.
    pub(super) fn opened(&mut self, x: TensorId, gate: TensorId) -> Result<TensorId, Error> {
        let open = self.op("open", Unary::new(UnaryOp::Sigmoid), &[gate])?;
        self.op("gate", Binary::new(BinaryOp::Mul), &[x, open])
    }

    /// Columns `first` to `first + n` of a tensor.
    pub(super) fn columns(
        &mut self,
        x: TensorId,
        first: usize,
        n: usize,
    ) -> Result<TensorId, Error> {
        let part = self.cx.slice(x, 1, first, n, 1)?;
        Ok(self.cx.cont(part)?)
    }

    /// A convolution of each column with taps of its own, over the positions up to each row's.
    pub(super) fn taps(
        &mut self,
        x: TensorId,
        layer: usize,
        name: &str,
    ) -> Result<TensorId, Error> {
        let name = format!("blk.{layer}.{name}");
        let dims = [self.width(x), self.config.taps];
        let weight = self.vector(&format!("{name}.weight"), &dims)?;
        let by_tap = self.cx.transpose(weight, &[1, 0])?;
        let weight = self.cx.cont(by_tap)?;
        let op = KvConv { cache: self.caches[layer].clone() };
        let positions = self.positions;
        self.op(&name, op, &[x, weight, positions])
    }

    /// What a layer without attention has in its place: a convolution along the positions of one part of
    /// `x` times another, times a third; of the tokens that are wanted.
    pub(super) fn convolved(&mut self, x: TensorId, layer: usize) -> Result<TensorId, Error> {
        let n = self.config.embedding;
        let all = n.saturating_mul(3);
        let name = format!("blk.{layer}.shortconv.in_proj");
        let mut part = |i: usize| self.linear_part(x, &name, all, i * n, n);
        let [before, after, x] = [part(0)?, part(1)?, part(2)?];
        let x = self.op("gate", Binary::new(BinaryOp::Mul), &[before, x])?;
        let y = self.taps(x, layer, "shortconv.conv")?;
        let y = self.op("gate", Binary::new(BinaryOp::Mul), &[after, y])?;
        self.mixed(layer, y)
    }

    /// The rows that are wanted of what a layer has attended to, or has in place of that; those of the last
    /// layer are what fills the caches.
    pub(super) fn mixed(&mut self, layer: usize, y: TensorId) -> Result<TensorId, Error> {
        let y = self.wanted(layer, y)?;
        if layer + 1 == self.config.layers {
            self.attended = Some(y);
        }
        Ok(y)
    }

    /// Behind the attention of the last layer, the rows that logits are wanted of; anywhere else all.
    pub(super) fn wanted(&mut self, layer: usize, x: TensorId) -> Result<TensorId, Error> {
        if layer + 1 < self.config.layers || self.rows == Rows::All || self.count == 1 {
            return Ok(x);
        }
        Ok(self.cx.slice(x, 0, self.count - 1, 1, 1)?)
    }

    /// The logits: products with the output matrix, or with the embedding where there is none, under
    /// the cap of the metadata.
    pub(super) fn logits(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let n = self.config.vocabulary;
        let own = self.weights.has("output.weight");
        let y = self.linear(x, if own { "output" } else { "token_embd" }, n)?;
        let Some(cap) = self.config.final_softcap else { return Ok(y) };
        let y = self.scaled(y, 1.0 / cap)?;
        let y = self.op("softcap", Unary::new(UnaryOp::Tanh), &[y])?;
        self.scaled(y, cap)
    }
}
