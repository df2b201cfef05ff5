//! Seed-OSS: as Llama, with biases, and another name for the norm before the feed-forward network.

use super::{Arch, Builder, Decoder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const SEED_OSS: Arch = Arch { name: "seed_oss", adjust: |_| {}, build };

const BLOCKS: Decoder =
    Decoder { rope: RopeStyle::Half, ffn_norm_name: "post_attention_norm", ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
