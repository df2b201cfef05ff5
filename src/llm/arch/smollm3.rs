//! SmolLM 3: as Llama, but every fourth layer turns nothing. (SmolLM 1 and 2 call themselves Llama.)

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const SMOLLM3: Arch = Arch { name: "smollm3", adjust: |_| {}, build };

/// Of so many layers, the last knows no positions.
const WITHOUT: usize = 4;

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
    let mut x = b.embedding()?;
    for layer in 0..b.layers() {
        let h = b.layer_norm(x, layer, "attn_norm", NormOp::Rms)?;
        let [mut q, mut k, v] = b.qkv(h, layer)?;
        if (layer + 1) % WITHOUT != 0 {
            q = b.rope(q, table, RopeStyle::Interleaved)?;
            k = b.rope(k, table, RopeStyle::Interleaved)?;
        }
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
