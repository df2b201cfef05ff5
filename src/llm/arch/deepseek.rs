//! DeepSeek's first models with experts, behind the first layer: as Llama, with one that all tokens go through beside them.

use super::{Arch, Builder, Decoder, Shares};
use crate::Error;
use crate::graph::TensorId;

pub(super) const DEEPSEEK: Arch = Arch { name: "deepseek", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&Decoder { experts: Some(Shares::AsTheyAre), ..Decoder::LLAMA })
}
