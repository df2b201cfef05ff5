//! StableLM: layer norms with biases, of which only a part of each head turns. The 12B model has norms
//! of each head, and its feed-forward network reads what attention reads.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const STABLELM: Arch = Arch { name: "stablelm", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder {
    norm: NormOp::Layer,
    rope: RopeStyle::Half,
    head_norms: Holds::AsFile,
    ffn_norm: Holds::AsFile,
    ..Decoder::LLAMA
};

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
