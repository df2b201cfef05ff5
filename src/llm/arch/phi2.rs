//! Phi 1.5 and 2: layer norms, biases, also of the logits, a part of each head that turns, and a feed-forward network without a
//! gate that reads what attention reads.

use super::{Arch, Builder, Decoder, Holds, gpt2};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const PHI2: Arch = Arch { name: "phi2", adjust: |_| {}, build };

pub(super) const BLOCKS: Decoder =
    Decoder { rope: RopeStyle::Half, ffn_norm: Holds::Never, ..gpt2::BLOCKS };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
