//! The blocks that nearly all architectures are made of, and how they differ.

use super::{Builder, Shares};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::{Glu, GluOp};
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::rope::RopeStyle;
use crate::graph::ops::unary::UnaryOp;
use crate::llm::{Config, HeadConfig};

/// Whether blocks have a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// No block has it; a file that does is not read for it.
    Never,
    /// All have it; a file without it is refused.
    Always,
    /// Those have it for which the file has it.
    AsFile,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadNorm {
    /// Of each head, before it turns.
    BeforeTurn,
    /// Of each head, after it has turned.
    AfterTurn,
    /// Of all heads as one vector, before they turn.
    Joint,
}

/// What the blocks of an architecture do: normalise, attend, add, normalise, feed forward, add.
#[derive(Clone, Copy)]
pub(super) struct Decoder {
    /// Kind of all norms.
    pub(super) norm: NormOp,
    /// Which elements of a head turn together.
    pub(super) rope: RopeStyle,
    /// What the gate of the feed-forward network goes through.
    pub(super) gate: GluOp,
    /// What the feed-forward network goes through, one after the other, where it has no gate.
    pub(super) plain: &'static [UnaryOp],
    /// Norms of queries and keys.
    pub(super) head_norms: Holds,
    /// What those norms are of, and when.
    pub(super) head_norm: HeadNorm,
    /// Norms before attention and feed-forward network; without them both read the sum so far.
    pub(super) pre_norms: bool,
    /// The norm before the feed-forward network, which without it reads what attention reads.
    pub(super) ffn_norm: Holds,
    /// Whether that norm is of what the block was given, and not of the sum with attention.
    pub(super) parallel: bool,
    /// The name of that norm.
    pub(super) ffn_norm_name: &'static str,
    /// Whether each head of queries has as many elements behind it that say how much of its result passes.
    pub(super) output_gates: bool,
    /// Norms behind attention and feed-forward network.
    pub(super) post_norms: Holds,
    /// The norm behind all blocks.
    pub(super) last_norm: &'static str,
    /// What the results of both are multiplied with before they are added to the sum.
    pub(super) residual_scale: f32,
    /// What logits are multiplied with.
    pub(super) logit_scale: f32,
    /// Angles that queries turn by, where those of keys are others.
    pub(super) query_table: Option<TensorId>,
    /// Of layers with experts, what becomes of their shares; without it there are none.
    pub(super) experts: Option<Shares>,
    /// Whether the router of experts reads what the block was given, and not what they read.
    pub(super) early_router: bool,
    /// Whether layers have a network beside their experts.
    pub(super) beside: bool,
    /// Whether values are normalised by heads, without a scale, and are the keys before their norm where a layer has
    /// no matrix for them.
    pub(super) value_norms: bool,
    /// Vectors that tokens have for each layer, behind each other.
    pub(super) layer_inputs: Option<TensorId>,
    /// Whether layers may multiply what they give to the next one with a number.
    pub(super) layer_scales: bool,
    /// Norms before the last matrices of attention and of the feed-forward network, and whether the gate of that squares
    /// what is positive.
    pub(super) sub_norms: Option<bool>,
}

/// What feed-forward networks without a gate have that square what is positive (So et al. 2021, Primer).
pub(super) const SQUARED: &[UnaryOp] = &[UnaryOp::Relu, UnaryOp::Square];

impl Decoder {
    /// The blocks of Llama, which the others are said to differ from.
    pub(super) const LLAMA: Self = Self {
        norm: NormOp::Rms,
        rope: RopeStyle::Interleaved,
        gate: GluOp::Silu,
        plain: &[],
        head_norms: Holds::Never,
        head_norm: HeadNorm::BeforeTurn,
        pre_norms: true,
        ffn_norm: Holds::Always,
        parallel: false,
        ffn_norm_name: "ffn_norm",
        output_gates: false,
        post_norms: Holds::Never,
        last_norm: "output_norm",
        residual_scale: 1.0,
        logit_scale: 1.0,
        query_table: None,
        experts: None,
        early_router: false,
        beside: false,
        value_norms: false,
        layer_inputs: None,
        layer_scales: false,
        sub_norms: None,
    };
}

/// What attention of one block knows of positions.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Angles that queries and keys turn by, if they do.
    pub(super) table: Option<TensorId>,
    /// How far back it sees, if not to the beginning.
    pub(super) window: Option<usize>,
}

impl Place {
    /// Turned by a table, and without a window.
    pub(super) fn turned(table: TensorId) -> Self {
        Self { table: Some(table), window: None }
    }

    /// Turned by the first table if the layer has a window, and by the second one if it has none.
    pub(super) fn near_or_far(config: &Config, layer: usize, [near, far]: [TensorId; 2]) -> Self {
        let window = config.window_of(layer);
        Self { table: Some(if window.is_some() { near } else { far }), window }
    }
}

impl Builder<'_> {
    /// [`Builder::decoder`] for vectors of tokens as they are, turned by one table in all blocks.
    pub(super) fn usual(&mut self, blocks: &Decoder) -> Result<TensorId, Error> {
        let table = self.rope_table()?;
        let x = self.embedding()?;
        self.decoder(x, blocks, &|_| Place::turned(table))
    }

    /// [`Builder::decoder`] where some layers have a window, and all turn by one table.
    pub(super) fn windowed(&mut self, x: TensorId, blocks: &Decoder) -> Result<TensorId, Error> {
        let (config, table) = (self.config(), self.rope_table()?);
        let place = |layer| Place { table: Some(table), window: config.window_of(layer) };
        self.decoder(x, blocks, &place)
    }

    /// [`Builder::decoder`] where layers without a window turn nothing.
    pub(super) fn turned_near(&mut self, x: TensorId, blocks: &Decoder) -> Result<TensorId, Error> {
        let (config, table) = (self.config(), self.rope_table()?);
        self.decoder(x, blocks, &|layer| {
            let window = config.window_of(layer);
            Place { table: Some(table).filter(|_| window.is_some()), window }
        })
    }

    /// [`Builder::decoder`] for vectors of tokens as they are, where layers without a window turn nothing if others have
    /// one, and all turn if none has.
    pub(super) fn turned_near_if_any(&mut self, blocks: &Decoder) -> Result<TensorId, Error> {
        match self.config().window {
            None => self.usual(blocks),
            Some(_) => {
                let x = self.embedding()?;
                self.turned_near(x, blocks)
            }
        }
    }

    /// [`Builder::decoder`] where layers with a window turn by angles of their own.
    pub(super) fn near_and_far(
        &mut self,
        x: TensorId,
        blocks: &Decoder,
    ) -> Result<TensorId, Error> {
        let (config, tables) = (self.config(), [self.near_table()?, self.rope_table()?]);
        self.decoder(x, blocks, &|layer| Place::near_or_far(config, layer, tables))
    }

    /// All blocks, the last norm and the logits; `x` are the vectors of the tokens, `place` gives
    /// table and window of a block.
    pub(super) fn decoder(
        &mut self,
        mut x: TensorId,
        blocks: &Decoder,
        // Not a parameter of a type: all of this would be there once per architecture.
        place: &dyn Fn(usize) -> Place,
    ) -> Result<TensorId, Error> {
        for layer in 0..self.layers() {
            let h = match blocks.pre_norms {
                true => self.layer_norm(x, layer, "attn_norm", blocks.norm)?,
                false => x,
            };
            let config = self.config();
            let memory = config.memory.filter(|_| config.remembers(layer));
            let a = match (config.attends(layer), memory) {
                (true, None) => self.attended_heads(h, layer, blocks, place(layer))?,
                (false, None) => self.convolved(h, layer)?,
                (false, Some(memory)) => self.remembered(h, layer, memory)?,
                (true, Some(memory)) => {
                    let attended = self.attended_heads(h, layer, blocks, place(layer))?;
                    let remembered = self.remembered(h, layer, memory)?;
                    let both = self.sum("mixed", attended, remembered)?;
                    self.mixed(layer, both)?
                }
            };
            let rest = self.wanted(layer, x)?;
            let normed =
                self.norm_if(blocks.post_norms, a, layer, "post_attention_norm", blocks)?;
            x = self.add_scaled(rest, normed.unwrap_or(a), blocks.residual_scale)?;
            let from = if blocks.parallel { rest } else { x };
            let name = blocks.ffn_norm_name;
            let h = match self.norm_if(blocks.ffn_norm, from, layer, name, blocks)? {
                Some(normed) => normed,
                None if blocks.pre_norms => self.wanted(layer, h)?,
                None => x,
            };
            let h = match blocks.experts.filter(|_| self.has_experts(layer)) {
                Some(shares) if blocks.beside => self.beside(x, h, layer, blocks.gate, shares)?,
                Some(shares) => {
                    let routed = if blocks.early_router { rest } else { h };
                    self.mixture([h, routed], layer, blocks.gate, shares)?
                }
                None => match blocks.sub_norms {
                    Some(squared) => self.normed_network(h, layer, squared)?,
                    None if blocks.plain.is_empty() => self.gated(h, layer, blocks.gate)?,
                    None => self.plain(h, layer, blocks.plain)?,
                },
            };
            let normed = self.norm_if(blocks.post_norms, h, layer, "post_ffw_norm", blocks)?;
            x = self.add_scaled(x, normed.unwrap_or(h), blocks.residual_scale)?;
            if let Some(inputs) = blocks.layer_inputs {
                let h = self.layer_input(x, layer, inputs)?;
                x = self.add_scaled(x, h, 1.0)?;
            }
            if blocks.layer_scales && self.has(layer, "layer_output_scale.weight") {
                let by = self.vector(&format!("blk.{layer}.layer_output_scale.weight"), &[1])?;
                x = self.product("scaled", x, by)?;
            }
        }
        let x = self.norm(x, blocks.last_norm, blocks.norm)?;
        let x = self.scaled(x, blocks.logit_scale)?;
        self.logits(x)
    }

    /// Whether a layer has a router, of a model with experts or without a network for it.
    fn has_experts(&self, layer: usize) -> bool {
        let expected = self.config().experts.is_some() || !self.has(layer, "ffn_gate.weight");
        expected && self.has(layer, "ffn_gate_inp.weight")
    }

    /// What queries, keys and values of `h`, turned, make of it, of the tokens that are wanted.
    pub(super) fn attended_heads(
        &mut self,
        h: TensorId,
        layer: usize,
        blocks: &Decoder,
        place: Place,
    ) -> Result<TensorId, Error> {
        if let Some(latent) = self.config().latent {
            return self.latent(h, layer, blocks, place, latent);
        }
        let keys_only = blocks.value_norms;
        let (mut q, mut kept) = self.qkv(h, layer, blocks.output_gates, keys_only)?;
        let HeadConfig { key_size, value_size, .. } = self.config().heads_of(layer);
        let mut gate = None;
        if blocks.output_gates {
            let [heads, open] = self.parts_of_heads(q, [key_size; 2])?;
            (q, gate) = (heads, Some(open));
        } else if self.has(layer, "attn_gate.weight") {
            let n = self.config().heads.saturating_mul(value_size);
            gate = Some(self.linear(h, &format!("blk.{layer}.attn_gate"), n)?);
        }
        let query_table = place.table.and(blocks.query_table).or(place.table);
        let mut operands = vec![(&mut q, "attn_q_norm", query_table)];
        if let Some([k, v]) = &mut kept {
            if blocks.value_norms {
                let (op, epsilon) = (blocks.norm, self.config().epsilon);
                let norm = Norm { op, axis: 2, epsilon, by_parts: false };
                *v = self.normed_heads(*v, None, "value_norm", value_size, norm)?;
            }
            operands.push((k, "attn_k_norm", place.table));
        }
        for (x, part, table) in operands {
            let norm =
                Some(blocks.head_norm).filter(|_| self.holds(blocks.head_norms, layer, part));
            let name = format!("blk.{layer}.{part}");
            match norm {
                Some(HeadNorm::BeforeTurn) => {
                    *x = self.head_norm(*x, &name, key_size, blocks.norm)?;
                }
                Some(HeadNorm::Joint) => *x = self.norm(*x, &name, blocks.norm)?,
                Some(HeadNorm::AfterTurn) | None => {}
            }
            if let Some(table) = table {
                let table = self.needed(layer, table)?;
                *x = self.rope(*x, table, blocks.rope, key_size)?;
            }
            if norm == Some(HeadNorm::AfterTurn) {
                *x = self.head_norm(*x, &name, key_size, blocks.norm)?;
            }
        }
        let mut a = self.attention(layer, q, kept, place.window)?;
        if let Some(gate) = gate {
            let gate = self.wanted(layer, gate)?;
            a = self.opened(a, gate)?;
        }
        if blocks.sub_norms.is_some() {
            a = self.layer_norm(a, layer, "attn_sub_norm", blocks.norm)?;
        }
        self.layer_linear(a, layer, "attn_output")
    }

    /// What a layer makes of the vector that the tokens have for it; `x` is what it gives.
    pub(super) fn layer_input(
        &mut self,
        x: TensorId,
        layer: usize,
        inputs: TensorId,
    ) -> Result<TensorId, Error> {
        let n = self.config().layer_embedding;
        let gate = self.linear(x, &format!("blk.{layer}.inp_gate"), n)?;
        let inputs = self.wanted(layer, inputs)?;
        let own = self.columns(inputs, layer * n, n)?;
        let h = self.op("layer_input", Glu { op: GluOp::GeluTanh }, &[gate, own])?;
        let h = self.layer_linear(h, layer, "proj")?;
        self.layer_norm(h, layer, "post_norm", NormOp::Rms)
    }

    /// The feed-forward network with a gate, whether the file has a matrix for the gate or its rows
    /// before those of the other.
    pub(super) fn gated(
        &mut self,
        x: TensorId,
        layer: usize,
        op: GluOp,
    ) -> Result<TensorId, Error> {
        self.gated_by(x, layer, "", self.config().feed_forward[layer], op)
    }

    /// The same with tensors whose names end so, and `n` elements inside.
    pub(super) fn gated_by(
        &mut self,
        x: TensorId,
        layer: usize,
        end: &str,
        n: usize,
        op: GluOp,
    ) -> Result<TensorId, Error> {
        let halves = self.gate_and_up(x, layer, end, n)?;
        let h = self.op(&format!("blk.{layer}.glu"), Glu { op }, &halves)?;
        self.layer_linear(h, layer, &format!("ffn_down{end}"))
    }

    /// What goes into the function of a gate, and what it scales.
    pub(super) fn gate_and_up(
        &mut self,
        x: TensorId,
        layer: usize,
        end: &str,
        n: usize,
    ) -> Result<[TensorId; 2], Error> {
        let up_name = format!("blk.{layer}.ffn_up{end}");
        let gate_name = format!("ffn_gate{end}");
        if self.has(layer, &format!("{gate_name}.weight")) {
            let gate = self.linear(x, &format!("blk.{layer}.{gate_name}"), n)?;
            return Ok([gate, self.linear(x, &up_name, n)?]);
        }
        let all = n.saturating_mul(2);
        let gate = self.linear_part(x, &up_name, all, 0, n)?;
        Ok([gate, self.linear_part(x, &up_name, all, n, n)?])
    }

    /// The feed-forward network without a gate, whose elements go through some functions.
    pub(super) fn plain(
        &mut self,
        x: TensorId,
        layer: usize,
        functions: &[UnaryOp],
    ) -> Result<TensorId, Error> {
        self.plain_by(x, layer, "", self.config().feed_forward[layer], functions)
    }

    /// The same with tensors whose names end so, and `n` elements inside.
    pub(super) fn plain_by(
        &mut self,
        x: TensorId,
        layer: usize,
        end: &str,
        n: usize,
        functions: &[UnaryOp],
    ) -> Result<TensorId, Error> {
        let h = self.linear(x, &format!("blk.{layer}.ffn_up{end}"), n)?;
        let h = self.activated(h, functions)?;
        self.layer_linear(h, layer, &format!("ffn_down{end}"))
    }

    /// Functions of elements, one after the other.
    pub(super) fn activated(
        &mut self,
        x: TensorId,
        functions: &[UnaryOp],
    ) -> Result<TensorId, Error> {
        functions.iter().try_fold(x, |x, &function| self.unary("plain", function, x))
    }

    /// A norm of a block, if it has one.
    fn norm_if(
        &mut self,
        holds: Holds,
        x: TensorId,
        layer: usize,
        name: &str,
        blocks: &Decoder,
    ) -> Result<Option<TensorId>, Error> {
        if !self.holds(holds, layer, name) {
            return Ok(None);
        }
        self.layer_norm(x, layer, name, blocks.norm).map(Some)
    }

    fn holds(&self, holds: Holds, layer: usize, name: &str) -> bool {
        match holds {
            Holds::Never => false,
            Holds::Always => true,
            Holds::AsFile => self.has(layer, &format!("{name}.weight")),
        }
    }
}
