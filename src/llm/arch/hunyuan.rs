//! Hunyuan, the dense ones: as Llama; queries and keys of each head are normalised after they have
//! turned.

use super::{Arch, Builder, Decoder, HeadNorm, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const HUNYUAN: Arch = Arch { name: "hunyuan-dense", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder {
    rope: RopeStyle::Half,
    head_norms: Holds::Always,
    head_norm: HeadNorm::AfterTurn,
    ..Decoder::LLAMA
};

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
