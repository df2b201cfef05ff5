//! GLM 4 of 2025: as before ([`super::chatglm`]), with norms behind attention and feed-forward network, too.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;

pub(super) const GLM4: Arch = Arch { name: "glm4", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder { post_norms: Holds::Always, ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
