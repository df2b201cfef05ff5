//! The blocks that nearly all architectures are made of, and how they differ.

use super::Builder;
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

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

/// What the blocks of an architecture do: normalise, attend, add, normalise, feed forward, add.
#[derive(Clone, Copy)]
pub(super) struct Decoder {
    /// Kind of all norms.
    pub(super) norm: NormOp,
    /// Which elements of a head turn together.
    pub(super) rope: RopeStyle,
    /// What the gate of the feed-forward network goes through.
    pub(super) gate: GluOp,
    /// Norms of each head of queries and keys, before they turn.
    pub(super) head_norms: Holds,
    /// The norm before the feed-forward network, which without it reads what attention reads.
    pub(super) ffn_norm: Holds,
    /// Norms behind attention and feed-forward network.
    pub(super) post_norms: Holds,
}

impl Decoder {
    /// The blocks of Llama, which the others are said to differ from.
    pub(super) const LLAMA: Self = Self {
        norm: NormOp::Rms,
        rope: RopeStyle::Interleaved,
        gate: GluOp::Silu,
        head_norms: Holds::Never,
        ffn_norm: Holds::Always,
        post_norms: Holds::Never,
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
}

impl Builder<'_> {
    /// All blocks, the last norm and the logits; `x` are the vectors of the tokens, `place` gives
    /// table and window of a block.
    pub(super) fn decoder(
        &mut self,
        mut x: TensorId,
        blocks: &Decoder,
        place: impl Fn(usize) -> Place,
    ) -> Result<TensorId, Error> {
        for layer in 0..self.layers() {
            let h = self.layer_norm(x, layer, "attn_norm", blocks.norm)?;
            let a = self.attended_heads(h, layer, blocks, place(layer))?;
            let rest = self.wanted(layer, x)?;
            let a = self.layer_linear(a, layer, "attn_output")?;
            let normed =
                self.norm_if(blocks.post_norms, a, layer, "post_attention_norm", blocks)?;
            x = self.add(rest, normed.unwrap_or(a))?;
            let h = match self.norm_if(blocks.ffn_norm, x, layer, "ffn_norm", blocks)? {
                Some(normed) => normed,
                None => self.wanted(layer, h)?,
            };
            let h = self.gated(h, layer, blocks.gate)?;
            let normed = self.norm_if(blocks.post_norms, h, layer, "post_ffw_norm", blocks)?;
            x = self.add(x, normed.unwrap_or(h))?;
        }
        let x = self.norm(x, "output_norm", blocks.norm)?;
        self.logits(x)
    }

    /// Queries, keys and values of `h`, turned; what they attend to, of the tokens that are wanted.
    fn attended_heads(
        &mut self,
        h: TensorId,
        layer: usize,
        blocks: &Decoder,
        place: Place,
    ) -> Result<TensorId, Error> {
        let [mut q, mut k, v] = self.qkv(h, layer)?;
        for (x, name) in [(&mut q, "attn_q_norm"), (&mut k, "attn_k_norm")] {
            if self.holds(blocks.head_norms, layer, name) {
                *x = self.head_norm(*x, layer, name, blocks.norm)?;
            }
            if let Some(table) = place.table {
                *x = self.rope(*x, table, blocks.rope)?;
            }
        }
        let a = self.attention(layer, [q, k, v], place.window)?;
        self.wanted(layer, a)
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
