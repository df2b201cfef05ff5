//! Ling and Ring 2: experts in groups behind the first layers, norms of queries and keys.

use super::{Arch, Builder, Decoder, Holds, bailingmoe};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const BAILINGMOE2: Arch = Arch { name: "bailingmoe2", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let blocks = Decoder { rope: RopeStyle::Half, head_norms: Holds::Always, ..Decoder::LLAMA };
    bailingmoe::with_experts(b, blocks)
}
