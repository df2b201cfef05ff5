//! The pieces that architectures are built from.

use std::sync::Arc;

use crate::Error;
use crate::graph::kv_cache::KvCache;
use crate::graph::ops::binary::Binary;
use crate::graph::ops::block_matmul::BlockMatMul;
use crate::graph::ops::embedding::Embedding;
use crate::graph::ops::kv_attention::KvAttention;
use crate::graph::ops::kv_conv::KvConv;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::unary::{Unary, UnaryOp};
use crate::graph::{Context, Op, TensorId};
use crate::llm::LlmError;
use crate::llm::config::{Config, HeadConfig};
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

/// Scores of a layer's heads that take part in softmax without a value.
const SINKS: &str = "attn_sinks.weight";

/// Builds the graph for a number of tokens. Activations are `[tokens, elements]`.
pub(in crate::llm) struct Builder<'a> {
    cx: &'a mut Context,
    config: &'a Config,
    weights: &'a Weights,
    caches: &'a [Arc<KvCache>],
    /// Positions the session keeps.
    capacity: usize,
    rows: Rows,
    tokens: TensorId,
    positions: TensorId,
    /// Whether attention may round to bf16.
    pub(in crate::llm) bf16: bool,
    /// Keys and values of each layer so far that attends to its own.
    kept: Vec<[TensorId; 2]>,
    /// What the last layer that keeps something has attended to, or convolved.
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
            tokens,
            positions,
            bf16: false,
            kept: Vec::new(),
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
        self.caches[self.config.layers + self.remembering(layer)].clone()
    }

    /// The rows of a layer that convolves, which are behind all matrices if it attends as well.
    fn kept_rows(&self, layer: usize) -> Arc<KvCache> {
        let layers = self.config.layers;
        let beside = || layers + self.remembering(layers) + layer;
        self.caches[if self.config.attends(layer) { beside() } else { layer }].clone()
    }

    /// How many layers before this one remember.
    fn remembering(&self, layer: usize) -> usize {
        (0..layer).filter(|&i| self.config.remembers(i)).count()
    }

    /// All tensors.
    pub(super) fn weights(&self) -> &'a Weights {
        self.weights
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

    pub(super) fn width(&self, x: TensorId) -> usize {
        self.cx.dims(x).last().copied().unwrap_or(0)
    }

    /// The vectors of the tokens.
    pub(super) fn embedding(&mut self) -> Result<TensorId, Error> {
        self.looked_up("token_embd", self.config.embedding)
    }

    /// The rows of the tokens in a matrix.
    pub(super) fn looked_up(&mut self, name: &str, width: usize) -> Result<TensorId, Error> {
        self.rows_of(name, [self.config.vocabulary, width], self.tokens)
    }

    /// The rows of a matrix that integers name.
    pub(super) fn rows_of(
        &mut self,
        name: &str,
        dims: [usize; 2],
        which: TensorId,
    ) -> Result<TensorId, Error> {
        let weight = format!("{name}.weight");
        let matrix = self.weights.get(&weight, &dims)?;
        let matrix = self.constant(&weight, matrix)?;
        self.op(name, Embedding, &[matrix, which])
    }

    /// A product of elements.
    pub(super) fn product(
        &mut self,
        name: &str,
        a: TensorId,
        b: TensorId,
    ) -> Result<TensorId, Error> {
        self.op(name, Binary::new(BinaryOp::Mul), &[a, b])
    }

    /// A sum of elements.
    pub(super) fn sum(&mut self, name: &str, a: TensorId, b: TensorId) -> Result<TensorId, Error> {
        self.op(name, Binary::new(BinaryOp::Add), &[a, b])
    }

    /// A function of elements.
    pub(super) fn unary(
        &mut self,
        name: &str,
        op: UnaryOp,
        x: TensorId,
    ) -> Result<TensorId, Error> {
        self.op(name, Unary::new(op), &[x])
    }

    /// A tensor times a number.
    pub(super) fn scaled(&mut self, x: TensorId, by: f32) -> Result<TensorId, Error> {
        if by == 1.0 {
            return Ok(x);
        }
        let by = self.constant("", Tensor::from_slice(&[1], &[by])?)?;
        self.product("scaled", x, by)
    }

    /// A sum, of which the second operand is scaled.
    pub(super) fn add_scaled(
        &mut self,
        a: TensorId,
        b: TensorId,
        by: f32,
    ) -> Result<TensorId, Error> {
        let b = self.scaled(b, by)?;
        self.sum("residual", a, b)
    }

    /// Normalises rows, with the scale of a tensor, of whose name some files leave the end away, and its bias, if it
    /// has one.
    pub(super) fn norm(&mut self, x: TensorId, name: &str, op: NormOp) -> Result<TensorId, Error> {
        let dims = [self.width(x)];
        let weight = format!("{name}.weight");
        let short = self.weights.has(name) && !self.weights.has(&weight);
        let mut src = vec![x, self.vector(if short { name } else { &weight }, &dims)?];
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

    /// Normalises each head of `size` elements by itself. The scale is the same for all heads, or has a row for
    /// each.
    pub(super) fn head_norm(
        &mut self,
        x: TensorId,
        name: &str,
        size: usize,
        op: NormOp,
    ) -> Result<TensorId, Error> {
        let heads = self.width(x) / size;
        let weight = format!("{name}.weight");
        let own = self.weights.any(&weight).is_some_and(|w| w.dims().len() > 1);
        let dims = if own { vec![heads, size] } else { vec![size] };
        let scale = self.vector(&weight, &dims)?;
        let epsilon = self.config.epsilon;
        self.normed_heads(x, Some(scale), name, size, Norm { op, axis: 2, epsilon, by_parts: own })
    }

    /// The norm of each head, with a scale or without.
    pub(super) fn normed_heads(
        &mut self,
        x: TensorId,
        scale: Option<TensorId>,
        name: &str,
        size: usize,
        norm: Norm,
    ) -> Result<TensorId, Error> {
        let mut src = vec![self.split_heads(x, size)?];
        src.extend(scale);
        let y = self.op(name, norm, &src)?;
        self.joined_heads(y)
    }

    /// `[tokens, width]` as `[tokens, heads, size]`.
    pub(super) fn split_heads(&mut self, x: TensorId, size: usize) -> Result<TensorId, Error> {
        let (tokens, heads) = (self.cx.dims(x)[0], self.width(x) / size);
        Ok(self.cx.reshape(x, &[tokens, heads, size])?)
    }

    /// All elements as rows of `width`.
    pub(super) fn as_rows(&mut self, x: TensorId, width: usize) -> Result<TensorId, Error> {
        let count: usize = self.cx.dims(x).iter().product();
        Ok(self.cx.reshape(x, &[count / width, width])?)
    }

    /// `[rows, width]` as `[rows / by, by, width]`.
    pub(super) fn split_rows(&mut self, x: TensorId, by: usize) -> Result<TensorId, Error> {
        let (rows, width) = (self.cx.dims(x)[0], self.width(x));
        Ok(self.cx.reshape(x, &[rows / by, by, width])?)
    }

    /// Rows of a matrix.
    pub(super) fn rows(&self, x: TensorId) -> usize {
        self.cx.dims(x)[0]
    }

    /// Rows of heads, all tokens of each behind each other, as `[tokens, width]`.
    pub(super) fn by_tokens(
        &mut self,
        x: TensorId,
        [heads, tokens, size]: [usize; 3],
    ) -> Result<TensorId, Error> {
        let x = self.cx.reshape(x, &[heads, tokens, size])?;
        let x = self.cx.transpose(x, &[1, 0, 2])?;
        let x = self.cx.cont(x)?;
        self.joined_heads(x)
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

    /// A product with the matrix of a tensor, whose rows become `n` columns, times its scale and plus its bias, if it has
    /// them.
    pub(super) fn linear(&mut self, x: TensorId, name: &str, n: usize) -> Result<TensorId, Error> {
        let weight = format!("{name}.weight");
        let matrix = self.weights.get(&weight, &[n, self.width(x)])?;
        let mut src = vec![x, self.constant(&weight, matrix)?];
        let [bias, scale] = ["bias", "scale"].map(|part| format!("{name}.{part}"));
        let bias = if self.weights.has(&bias) { Some(self.vector(&bias, &[n])?) } else { None };
        // Routers have one of this name for what goes in.
        if self.weights.any(&scale).is_none_or(|scale| scale.dims() != [1]) {
            src.extend(bias);
            return self.op(name, BlockMatMul { bias: bias.is_some() }, &src);
        }
        let scale = self.vector(&scale, &[1])?;
        let product = self.op(name, BlockMatMul::default(), &src)?;
        let scaled = self.product(name, product, scale)?;
        bias.map_or(Ok(scaled), |bias| self.sum(name, scaled, bias))
    }

    /// A product with a vector, of which there is one number per row, `[rows, 1]`.
    pub(super) fn column(&mut self, x: TensorId, name: &str) -> Result<TensorId, Error> {
        let width = self.width(x);
        let vector = self.weights.get(&format!("{name}.weight"), &[width])?;
        let matrix = Tensor::from_storage(vector.dtype(), &[1, width], vector.storage().clone())?;
        let matrix = self.constant(name, matrix)?;
        self.op(name, BlockMatMul::default(), &[x, matrix])
    }

    /// As [`Builder::linear`] with one of several matrices that the file keeps in one tensor of `all`
    /// rows: `n` of them from `first` on.
    pub(super) fn linear_part(
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

    /// Queries, perhaps with gates behind each head, and keys and values of a layer that keeps them, whether the
    /// file has a matrix for each or one for all. Of `keys_only`, keys are the values where it has none for these.
    pub(super) fn qkv(
        &mut self,
        x: TensorId,
        layer: usize,
        gates: bool,
        keys_only: bool,
    ) -> Result<(TensorId, Option<[TensorId; 2]>), Error> {
        let HeadConfig { count, key_size, value_size } = self.config.heads_of(layer);
        let query = if gates { 2 * key_size } else { key_size };
        let [q, k, v] = [self.config.heads * query, count * key_size, count * value_size];
        let keeps = layer < self.config.keeping();
        if self.has(layer, "attn_qkv.weight") {
            let all = q + k + v;
            let name = format!("blk.{layer}.attn_qkv");
            let mut part = |first, n| self.linear_part(x, &name, all, first, n);
            let queries = part(0, q)?;
            let kept = if keeps { Some([part(q, k)?, part(q + k, v)?]) } else { None };
            return Ok((queries, kept));
        }
        let mut one = |name: &str, n| self.linear(x, &format!("blk.{layer}.attn_{name}"), n);
        let queries = one("q", q)?;
        if !keeps {
            // Some files have what is not read.
            let unread = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"];
            unread.iter().for_each(|name| self.weights.pass_over(&format!("blk.{layer}.{name}")));
            return Ok((queries, None));
        }
        let keys = one("k", k)?;
        let values = match keys_only && k == v && !self.has(layer, "attn_v.weight") {
            true => keys,
            false => self.linear(x, &format!("blk.{layer}.attn_v"), v)?,
        };
        Ok((queries, Some([keys, values])))
    }

    /// Attention of a layer to the positions so far, with a window if one is given; `kept` are its keys and values,
    /// or none if it attends to those of an earlier layer.
    pub(super) fn attention(
        &mut self,
        layer: usize,
        q: TensorId,
        kept: Option<[TensorId; 2]>,
        window: Option<usize>,
    ) -> Result<TensorId, Error> {
        let config = self.config;
        let key = || format!("{}.attention.shared_kv_layers", config.arch);
        let found = || config.sharing.to_string();
        let expected = || format!("fewer: no layer before them is like layer {layer}");
        let none = || LlmError::Setting { key: key(), found: found(), expected: expected() };
        let source = config.cache_of(layer).ok_or_else(none)?;
        let [k, v] = match kept {
            Some(kept) => {
                self.kept.push(kept);
                kept
            }
            // They are stored again, which changes nothing, and costs little.
            None => {
                let [k, v] = self.kept[source];
                [self.needed(layer, k)?, self.needed(layer, v)?]
            }
        };
        let size = config.heads_of(layer).key_size;
        let op = KvAttention {
            heads: config.heads,
            scale: config.attention_scale.unwrap_or(1.0 / (size as f32).sqrt()),
            softcap: config.attention_softcap,
            window,
            bf16: self.bf16,
            cache: self.caches[source].clone(),
        };
        let positions = self.needed(layer, self.positions)?;
        let mut src = vec![q, k, v, positions];
        if self.has(layer, SINKS) {
            src.push(self.vector(&format!("blk.{layer}.{SINKS}"), &[config.heads])?);
        }
        let a = self.op(&format!("blk.{layer}.attention"), op, &src)?;
        self.mixed(layer, a)
    }

    /// The first and the last elements of each head.
    pub(super) fn parts_of_heads(
        &mut self,
        x: TensorId,
        [first, last]: [usize; 2],
    ) -> Result<[TensorId; 2], Error> {
        let heads = self.split_heads(x, first + last)?;
        let mut part = |from, size| {
            let part = self.cx.slice(heads, 2, from, size, 1)?;
            let part = self.cx.cont(part)?;
            self.joined_heads(part)
        };
        Ok([part(0, first)?, part(first, last)?])
    }

    /// As much of `x` as gates let through.
    pub(super) fn opened(&mut self, x: TensorId, gate: TensorId) -> Result<TensorId, Error> {
        let open = self.unary("open", UnaryOp::Sigmoid, gate)?;
        self.product("gate", x, open)
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

    /// A convolution of each column with taps of its own, over the positions up to each row's; plus a bias, if the file
    /// has one.
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
        let op = KvConv { cache: self.kept_rows(layer) };
        let positions = self.positions;
        let y = self.op(&name, op, &[x, weight, positions])?;
        let bias = format!("{name}.bias");
        if !self.weights.has(&bias) {
            return Ok(y);
        }
        let bias = self.vector(&bias, &dims[..1])?;
        self.sum(&name, y, bias)
    }

    /// What a layer without attention has in its place: a convolution along the positions of one part of
    /// `x` times another, times a third; of the tokens that are wanted.
    pub(super) fn convolved(&mut self, x: TensorId, layer: usize) -> Result<TensorId, Error> {
        let n = self.config.embedding;
        let all = n.saturating_mul(3);
        let name = format!("blk.{layer}.shortconv.in_proj");
        let mut part = |i: usize| self.linear_part(x, &name, all, i * n, n);
        let [before, after, x] = [part(0)?, part(1)?, part(2)?];
        let x = self.product("gate", before, x)?;
        let y = self.taps(x, layer, "shortconv.conv")?;
        let y = self.product("gate", after, y)?;
        let y = self.mixed(layer, y)?;
        self.layer_linear(y, layer, "shortconv.out_proj")
    }

    /// The rows that are wanted of what a layer has attended to, or has in place of that; those of the last
    /// layer that keeps something are what fills the caches.
    pub(super) fn mixed(&mut self, layer: usize, y: TensorId) -> Result<TensorId, Error> {
        let y = self.wanted(layer, y)?;
        if layer + 1 == self.config.keeping() {
            self.attended = Some(y);
        }
        Ok(y)
    }

    /// Behind the attention of the last layer that keeps something, the rows that logits are wanted of; anywhere
    /// else all.
    pub(super) fn wanted(&mut self, layer: usize, x: TensorId) -> Result<TensorId, Error> {
        let rows = self.cx.dims(x)[0];
        if layer + 1 < self.config.keeping() || self.rows == Rows::All || rows == 1 {
            return Ok(x);
        }
        Ok(self.cx.slice(x, 0, rows - 1, 1, 1)?)
    }

    /// Of a layer that keeps nothing the rows that are wanted; of another one all, which it keeps.
    pub(super) fn needed(&mut self, layer: usize, x: TensorId) -> Result<TensorId, Error> {
        if layer < self.config.keeping() { Ok(x) } else { self.wanted(layer, x) }
    }

    /// The logits: products with the output matrix, or with the embedding where there is none, under
    /// the cap of the metadata.
    pub(super) fn logits(&mut self, x: TensorId) -> Result<TensorId, Error> {
        let n = self.config.vocabulary;
        let own = self.weights.has("output.weight");
        let y = self.linear(x, if own { "output" } else { "token_embd" }, n)?;
        let Some(cap) = self.config.final_softcap else { return Ok(y) };
        let y = self.scaled(y, 1.0 / cap)?;
        let y = self.unary("softcap", UnaryOp::Tanh, y)?;
        self.scaled(y, cap)
    }
}
