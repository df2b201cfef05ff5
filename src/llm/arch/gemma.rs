//! Gemma 1: vectors of tokens scaled, GELU as the gate, the embedding as the output matrix. The norms
//! in GGUF files have the 1 that the model adds to them already.

use super::{Arch, Builder, Decoder, Place};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::glu::GluOp;
use crate::graph::ops::rope::RopeStyle;

pub(super) const GEMMA: Arch = Arch { name: "gemma", adjust: |_| {}, build };

/// As blocks of Llama, with GELU as the gate.
pub(super) const BLOCKS: Decoder =
    Decoder { rope: RopeStyle::Half, gate: GluOp::GeluTanh, ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
    let x = embedding(b)?;
    b.decoder(x, &BLOCKS, &|_| Place::turned(table))
}

/// Vectors of the tokens times the root of their size.
pub(super) fn embedding(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let x = b.embedding()?;
    scaled(b, x)
}

pub(super) fn scaled(b: &mut Builder<'_>, x: TensorId) -> Result<TensorId, Error> {
    b.scaled(x, (b.config().embedding as f32).sqrt())
}
