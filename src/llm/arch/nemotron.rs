//! Nemotron 4 and Minitron: layer norms, of which a part of each head turns, and a feed-forward network that has no gate,
//! and squares what is positive.

use super::decoder::SQUARED;
use super::{Arch, Builder, Decoder, gpt2};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const NEMOTRON: Arch = Arch { name: "nemotron", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder { rope: RopeStyle::Half, plain: SQUARED, ..gpt2::BLOCKS };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
