//! OLMoE (Muennighoff et al. 2024): as Llama, with experts; queries and keys of all heads are normalised as one vector.

use super::{Arch, Builder, Decoder, HeadNorm, Holds, Shares};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const OLMOE: Arch = Arch { name: "olmoe", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&Decoder {
        rope: RopeStyle::Half,
        head_norms: Holds::Always,
        head_norm: HeadNorm::Joint,
        experts: Some(Shares::AsTheyAre),
        ..Decoder::LLAMA
    })
}
