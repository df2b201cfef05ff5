//! Qwen 3: as Qwen 2, without biases; queries and keys of each head are normalised before they turn.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const QWEN3: Arch = Arch { name: "qwen3", adjust: |_| {}, build };

pub(super) const BLOCKS: Decoder =
    Decoder { rope: RopeStyle::Half, head_norms: Holds::Always, ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
