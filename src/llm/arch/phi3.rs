//! Phi 3, 3.5 and 4: one matrix for queries, keys and values, one for gate and up, and angles divided
//! by one list of factors for short contexts and another for long ones (LongRoPE, Ding et al. 2024).
//! The window that the metadata name is not used, as in llama.cpp.

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const PHI3: Arch = Arch { name: "phi3", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    let long = b.capacity() > config.rope.original_context;
    let factors =
        b.factors(if long { "rope_factors_long.weight" } else { "rope_factors_short.weight" })?;
    let table = b.table(config.rope.base, &config.rope.scaling, factors.as_deref())?;
    let mut x = b.embedding()?;
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
        let h = b.gated(h, layer, GluOp::Silu)?;
        x = b.add(x, h)?;
    }
    let x = b.norm(x, "output_norm", NormOp::Rms)?;
    b.logits(x)
}
