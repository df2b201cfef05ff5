//! GPT-OSS: experts with a clamped unit, biases everywhere, scores that take part in softmax without a value, and a
//! window in every other layer.

use super::{Arch, Builder, Decoder, Shares};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::{Config, WindowPattern};

pub(super) const GPT_OSS: Arch = Arch { name: "gpt-oss", adjust, build };

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(2));
    if let Some(experts) = &mut config.experts {
        experts.clamped = true;
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let blocks = Decoder {
        rope: RopeStyle::Half,
        ffn_norm_name: "post_attention_norm",
        experts: Some(Shares::Whole),
        ..Decoder::LLAMA
    };
    let x = b.embedding()?;
    b.windowed(x, &blocks)
}
