//! EXAONE 4: norms behind attention and feed-forward network and none before them, and norms of each
//! head. The largest model has a window in three of four layers, and the fourth turns nothing.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::{Config, WindowPattern};

pub(super) const EXAONE4: Arch = Arch { name: "exaone4", adjust, build };

const BLOCKS: Decoder = Decoder {
    rope: RopeStyle::Half,
    head_norms: Holds::Always,
    pre_norms: false,
    ffn_norm: Holds::Never,
    post_norms: Holds::Always,
    ..Decoder::LLAMA
};

/// Layers of the model of 32 billion parameters; only it has a window.
const LAYERS_32B: usize = 64;

fn adjust(config: &mut Config) {
    if config.layers == LAYERS_32B {
        config.window = config.window.or(Some(4096));
        config.window_pattern.get_or_insert(WindowPattern::AllButLast(4));
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.turned_near_if_any(&BLOCKS)
}
