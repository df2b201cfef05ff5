//! OLMo 2: norms behind attention and feed-forward network and none before them; queries and keys of
//! all heads are normalised as one vector. Olmo 3 has the same name, and a window.

use super::{Arch, Builder, Decoder, HeadNorm, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::LlmError;

pub(super) const OLMO2: Arch = Arch { name: "olmo2", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder {
    rope: RopeStyle::Half,
    head_norms: Holds::Always,
    head_norm: HeadNorm::Joint,
    pre_norms: false,
    ffn_norm: Holds::Never,
    post_norms: Holds::Always,
    ..Decoder::LLAMA
};

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    if let Some(window) = b.config().window {
        return Err(LlmError::Setting {
            key: "olmo2.attention.sliding_window".to_owned(),
            found: window.to_string(),
            expected: "0: OLMo 2 is supported, Olmo 3 is not".to_owned(),
        }
        .into());
    }
    b.usual(&BLOCKS)
}
