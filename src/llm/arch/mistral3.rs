//! Ministral 3: Llama, whose queries grow beyond the context of the training (Llama 4's rule).

use super::{Arch, Builder, Decoder};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope_table::Growth;

pub(super) const MISTRAL3: Arch = Arch { name: "mistral3", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    let every = config.rope.original_context;
    let growth = config.temperature_scale.map(|scale| Growth { scale, every });
    let query_table = growth.map(|growth| b.grown_table(Some(growth))).transpose()?;
    b.usual(&Decoder { query_table, ..Decoder::LLAMA })
}
