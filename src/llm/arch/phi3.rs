//! Phi 3, 3.5 and 4: one matrix for queries, keys and values, one for gate and up, and angles divided
//! by one list of factors for short contexts and another for long ones (LongRoPE, Ding et al. 2024).
//! The window that the metadata name is not used, as in llama.cpp.

use super::{Arch, Builder, Decoder, Place};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const PHI3: Arch = Arch { name: "phi3", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder { rope: RopeStyle::Half, ..Decoder::LLAMA };

/// The angles for the context that there is.
pub(super) fn table(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let long = b.capacity() > b.config().rope.original_context;
    let factors =
        b.factors(if long { "rope_factors_long.weight" } else { "rope_factors_short.weight" })?;
    b.factored_table(factors.as_deref(), None)
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let (table, x) = (table(b)?, b.embedding()?);
    b.decoder(x, &BLOCKS, &|_| Place::turned(table))
}
