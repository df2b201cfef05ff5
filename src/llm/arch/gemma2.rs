//! Gemma 2: norms behind attention and feed-forward network too, caps on scores and logits, and a
//! window in every other layer, the first one included.

use super::{Arch, Builder, Decoder, Holds, gemma};
use crate::Error;
use crate::graph::TensorId;
use crate::llm::{Config, WindowPattern};

pub(super) const GEMMA2: Arch = Arch { name: "gemma2", adjust, build };

const BLOCKS: Decoder = Decoder { post_norms: Holds::Always, ..gemma::BLOCKS };

/// Layers of the model of 27 billion parameters.
const LAYERS_27B: usize = 46;

fn adjust(config: &mut Config) {
    config.window = config.window.or(Some(4096));
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(2));
    config.attention_softcap = config.attention_softcap.or(Some(50.0));
    config.final_softcap = config.final_softcap.or(Some(30.0));
    scale_of_largest(config, LAYERS_27B);
}

/// The model of so many layers scales its scores by the size that its heads would have if they shared
/// the embedding.
pub(super) fn scale_of_largest(config: &mut Config, layers: usize) {
    if config.layers == layers {
        let size = config.embedding as f32 / config.heads as f32;
        config.attention_scale = config.attention_scale.or(Some(1.0 / size.sqrt()));
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let x = gemma::embedding(b)?;
    b.windowed(x, &BLOCKS)
}
