//! Arcee's AFM: as Llama, but that the feed-forward network has no gate, and squares what is positive.

use super::decoder::SQUARED;
use super::{Arch, Builder, Decoder};
use crate::Error;
use crate::graph::TensorId;

pub(super) const ARCEE: Arch = Arch { name: "arcee", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder { plain: SQUARED, ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
