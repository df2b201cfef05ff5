//! Qwen 1.5 and 2 with experts in place of feed-forward networks, whose shares stay what they were among all, and one that
//! all tokens go through beside them.

use super::{Arch, Builder, Decoder, Shares, qwen2};
use crate::Error;
use crate::graph::TensorId;

pub(super) const QWEN2MOE: Arch = Arch { name: "qwen2moe", adjust: |_| {}, build };

const BLOCKS: Decoder = Decoder { experts: Some(Shares::AsTheyAre), ..qwen2::BLOCKS };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&BLOCKS)
}
