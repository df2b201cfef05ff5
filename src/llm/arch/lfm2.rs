//! LFM2 (Liquid AI 2025): as Qwen 3, but most layers convolve along the positions in place of attending.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const LFM2: Arch = Arch { name: "lfm2", adjust: |_| {}, build };

pub(super) const BLOCKS: Decoder = Decoder {
    rope: RopeStyle::Half,
    head_norms: Holds::Always,
    last_norm: "token_embd_norm",
    ..Decoder::LLAMA
};

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
