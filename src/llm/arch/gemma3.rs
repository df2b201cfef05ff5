//! Gemma 3, its text part: as Gemma 2 without caps, with norms of each head, and five layers with a
//! window and faster angles to each one without.

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::Config;
use crate::llm::config::Scaling;

pub(super) const GEMMA3: Arch = Arch { name: "gemma3", adjust, build };

/// Layers of the model of 27 billion parameters; see Gemma 2.
const LAYERS_27B: usize = 62;

fn adjust(config: &mut Config) {
    config.window_pattern = config.window_pattern.or(Some(6));
    if config.layers == LAYERS_27B {
        let size = config.embedding as f32 / config.heads as f32;
        config.attention_scale = config.attention_scale.or(Some(1.0 / size.sqrt()));
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let far = b.rope_table()?;
    let near = b.table(b.config().rope.base_window.unwrap_or(10_000.0), &Scaling::Linear(1.0), None)?;
    let x = b.embedding()?;
    let mut x = b.scaled(x, (b.config().embedding as f32).sqrt())?;
    for layer in 0..b.layers() {
        let window = b.config().window_of(layer);
        let table = if window.is_some() { near } else { far };
        let h = b.layer_norm(x, layer, "attn_norm", NormOp::Rms)?;
        let [q, k, v] = b.qkv(h, layer)?;
        let q = b.head_norm(q, layer, "attn_q_norm", NormOp::Rms)?;
        let k = b.head_norm(k, layer, "attn_k_norm", NormOp::Rms)?;
        let q = b.rope(q, table, RopeStyle::Half)?;
        let k = b.rope(k, table, RopeStyle::Half)?;
        let a = b.attention(layer, [q, k, v], window)?;
        let (a, rest) = (b.wanted(layer, a)?, b.wanted(layer, x)?);
        let a = b.layer_linear(a, layer, "attn_output")?;
        let a = b.layer_norm(a, layer, "post_attention_norm", NormOp::Rms)?;
        x = b.add(rest, a)?;
        let h = b.layer_norm(x, layer, "ffn_norm", NormOp::Rms)?;
        let h = b.gated(h, layer, GluOp::GeluTanh)?;
        let h = b.layer_norm(h, layer, "post_ffw_norm", NormOp::Rms)?;
        x = b.add(x, h)?;
    }
    let x = b.norm(x, "output_norm", NormOp::Rms)?;
    b.logits(x)
}
