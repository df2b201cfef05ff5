//! StableLM: layer norms with biases, of which only a part of each head turns. The 12B model has norms
//! of each head, and its feed-forward network reads what attention reads.

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const STABLELM: Arch = Arch { name: "stablelm", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
    let mut x = b.embedding()?;
    for layer in 0..b.layers() {
        let h = b.layer_norm(x, layer, "attn_norm", NormOp::Layer)?;
        let [mut q, mut k, v] = b.qkv(h, layer)?;
        if b.has(layer, "attn_q_norm.weight") {
            q = b.head_norm(q, layer, "attn_q_norm", NormOp::Layer)?;
        }
        if b.has(layer, "attn_k_norm.weight") {
            k = b.head_norm(k, layer, "attn_k_norm", NormOp::Layer)?;
        }
        let q = b.rope(q, table, RopeStyle::Half)?;
        let k = b.rope(k, table, RopeStyle::Half)?;
        let a = b.attention(layer, [q, k, v], None)?;
        let (a, rest) = (b.wanted(layer, a)?, b.wanted(layer, x)?);
        let a = b.layer_linear(a, layer, "attn_output")?;
        x = b.add(rest, a)?;
        let h = if b.has(layer, "ffn_norm.weight") {
            b.layer_norm(x, layer, "ffn_norm", NormOp::Layer)?
        } else {
            b.wanted(layer, h)?
        };
        let h = b.gated(h, layer, GluOp::Silu)?;
        x = b.add(x, h)?;
    }
    let x = b.norm(x, "output_norm", NormOp::Layer)?;
    b.logits(x)
}
