//! Granite 3: as Llama; vectors of tokens and what blocks add are multiplied with numbers of the
//! metadata, logits are divided by one.

use super::{Arch, Builder, Decoder, Place, Shares};
use crate::Error;
use crate::graph::TensorId;

pub(super) const GRANITE: Arch = Arch { name: "granite", adjust: |_| {}, build };

/// The graph with the scales of the metadata.
pub(super) fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    let blocks = Decoder {
        residual_scale: config.residual_scale.unwrap_or(1.0),
        logit_scale: 1.0 / config.logit_scale.unwrap_or(1.0),
        experts: Some(Shares::Whole),
        ..Decoder::LLAMA
    };
    let table = Some(b.rope_table()?).filter(|_| config.rope.finetuned);
    let x = b.embedding()?;
    let x = b.scaled(x, config.embedding_scale.unwrap_or(1.0))?;
    b.decoder(x, &blocks, &|_| Place { table, window: None })
}
