//! MiniCPM 3: the scales of MiniCPM, the latent attention of DeepSeek V2, and factors of angles as Phi 3.

use super::{Arch, Builder, Decoder, Place, phi3};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const MINICPM3: Arch = Arch { name: "minicpm3", adjust: |_| {}, build };

/// Scales of which files say nothing.
const EMBEDDING: f32 = 12.0;
const DEPTH: f32 = 1.4;
/// The width that they were chosen at.
const BASE: f32 = 256.0;

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    let blocks = Decoder {
        rope: RopeStyle::Half,
        residual_scale: DEPTH / (config.layers as f32).sqrt(),
        logit_scale: BASE / config.embedding as f32,
        ..Decoder::LLAMA
    };
    let (table, x) = (phi3::table(b)?, b.embedding()?);
    let x = b.scaled(x, EMBEDDING)?;
    b.decoder(x, &blocks, &|_| Place::turned(table))
}
