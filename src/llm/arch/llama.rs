//! Llama 1, 2 and 3, and what has its shape: TinyLlama, Mistral, Mixtral, SmolLM (Touvron et al. 2023). A window
//! in the metadata is not used, as in llama.cpp.

use super::{Arch, Builder, Decoder, Shares};
use crate::Error;
use crate::graph::TensorId;

pub(super) const LLAMA: Arch = Arch { name: "llama", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    // Mixtral.
    b.usual(&Decoder { experts: Some(Shares::Whole), ..Decoder::LLAMA })
}
