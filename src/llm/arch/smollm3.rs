//! SmolLM 3: as Llama, but every fourth layer turns nothing. (SmolLM 1 and 2 call themselves Llama.)

use super::{Arch, Builder, Decoder, Place};
use crate::Error;
use crate::graph::TensorId;

pub(super) const SMOLLM3: Arch = Arch { name: "smollm3", adjust: |_| {}, build };

/// Of so many layers, the last knows no positions.
const WITHOUT: usize = 4;

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let table = b.rope_table()?;
    let x = b.embedding()?;
    b.decoder(x, &Decoder::LLAMA, &|layer| {
        let table = Some(table).filter(|_| (layer + 1) % WITHOUT != 0);
        Place { table, window: None }
    })
}
