//! Qwen 2 and 2.5: as Llama, with biases of queries, keys and values, and halves that turn together.

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const QWEN2: Arch = Arch { name: "qwen2", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
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
