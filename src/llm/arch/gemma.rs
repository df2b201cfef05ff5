//! Gemma 1: vectors of tokens scaled, GELU as the gate, the embedding as the output matrix. The norms
//! in GGUF files have the 1 that the model adds to them already.

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const GEMMA: Arch = Arch { name: "gemma", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
    let x = b.embedding()?;
    let mut x = b.scaled(x, (b.config().embedding as f32).sqrt())?;
    for layer in 0..b.layers() {
        let h = b.layer_norm(x, layer, "attn_norm", NormOp::Rms)?;
        let [q, k, v] = b.qkv(h, layer)?;
        let q = b.rope(q, table, RopeStyle::Half)?;
        let k = b.rope(k, table, RopeStyle::Half)?;
        let a = b.attention(layer, [q, k, v], None)?;
        let (a, rest) = (b.wanted(layer, a)?, b.wanted(layer, x)?);
        let a = b.layer_linear(a, layer, "attn_output")?;
        x = b.add(rest, a)?;
        let h = b.layer_norm(x, layer, "ffn_norm", NormOp::Rms)?;
        let h = b.gated(h, layer, GluOp::GeluTanh)?;
        x = b.add(x, h)?;
    }
    let x = b.norm(x, "output_norm", NormOp::Rms)?;
    b.logits(x)
}
