//! Qwen 3.5: of four layers three remember by the gated delta rule, and one attends as in Qwen 3, with gates
//! behind its results. Only the part for text: pictures, and blocks that guess further tokens, are not computed.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const QWEN35: Arch = Arch { name: "qwen35", adjust: |_| {}, build };

pub(super) const BLOCKS: Decoder = Decoder {
    rope: RopeStyle::Half,
    head_norms: Holds::Always,
    ffn_norm_name: "post_attention_norm",
    output_gates: true,
    ..Decoder::LLAMA
};

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
