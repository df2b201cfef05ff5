//! OLMo 2: norms behind attention and feed-forward network and none before them; queries and keys of
//! all heads are normalised as one vector. Olmo 3 has the same name, and in three of four layers a window, in which
//! positions are as they were before the context was extended.

use super::{Arch, Builder, Decoder, HeadNorm, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::{Config, WindowPattern};

pub(super) const OLMO2: Arch = Arch { name: "olmo2", adjust, build };

const BLOCKS: Decoder = Decoder {
    rope: RopeStyle::Half,
    head_norms: Holds::Always,
    head_norm: HeadNorm::Joint,
    pre_norms: false,
    ffn_norm: Holds::Never,
    post_norms: Holds::Always,
    ..Decoder::LLAMA
};

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(4));
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    if b.config().window.is_none() {
        return b.usual(&BLOCKS);
    }
    let x = b.embedding()?;
    b.near_and_far(x, &BLOCKS)
}
