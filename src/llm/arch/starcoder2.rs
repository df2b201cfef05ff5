//! StarCoder 2: layer norms, biases, and a feed-forward network without a gate.

use super::{Arch, Builder, Decoder, gpt2};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const STARCODER2: Arch = Arch { name: "starcoder2", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder { rope: RopeStyle::Half, ..gpt2::BLOCKS };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
