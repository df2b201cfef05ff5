//! Ling and Ring, of the first generation: as Llama, with experts.

use super::{Arch, Builder, Decoder, Shares};
use crate::Error;
use crate::graph::TensorId;

pub(super) const BAILINGMOE: Arch = Arch { name: "bailingmoe", adjust: |_| {}, build };

/// With experts whose shares are what the file says.
pub(super) fn with_experts(b: &mut Builder<'_>, blocks: Decoder) -> Result<TensorId, Error> {
    let experts = b.config().experts.map(Shares::of_file);
    b.usual(&Decoder { experts, ..blocks })
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    with_experts(b, Decoder::LLAMA)
}
