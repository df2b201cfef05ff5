//! Gemma 2: norms behind attention and feed-forward network too, caps on scores and logits, and a
//! window in every other layer, the first one included.

use super::{Arch, Builder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::Config;

pub(super) const GEMMA2: Arch = Arch { name: "gemma2", adjust, build };

/// Layers of the model of 27 billion parameters, whose scores are scaled by the size that its heads
/// would have if they shared the embedding.
const LAYERS_27B: usize = 46;

fn adjust(config: &mut Config) {
    config.window = config.window.or(Some(4096));
    config.window_pattern = config.window_pattern.or(Some(2));
    config.attention_softcap = config.attention_softcap.or(Some(50.0));
    config.final_softcap = config.final_softcap.or(Some(30.0));
    if config.layers == LAYERS_27B {
        let size = config.embedding as f32 / config.heads as f32;
        config.attention_scale = config.attention_scale.or(Some(1.0 / size.sqrt()));
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
    let x = b.embedding()?;
    let mut x = b.scaled(x, (b.config().embedding as f32).sqrt())?;
    for layer in 0..b.layers() {
        let h = b.layer_norm(x, layer, "attn_norm", NormOp::Rms)?;
        let [q, k, v] = b.qkv(h, layer)?;
        let q = b.rope(q, table, RopeStyle::Half)?;
        let k = b.rope(k, table, RopeStyle::Half)?;
        let window = b.config().window_of(layer);
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
