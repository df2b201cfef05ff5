//! Qwen 2 and 2.5: as Llama, with biases of queries, keys and values, and halves that turn together.

use super::{Arch, Builder, Decoder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const QWEN2: Arch = Arch { name: "qwen2", adjust: |_| {}, build };

pub(super) const BLOCKS: Decoder = Decoder { rope: RopeStyle::Half, ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
