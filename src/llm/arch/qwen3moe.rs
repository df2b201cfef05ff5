//! Qwen 3 with experts in place of feed-forward networks.

use super::{Arch, Builder, Decoder, Shares, qwen3};
use crate::Error;
use crate::graph::TensorId;

pub(super) const QWEN3MOE: Arch = Arch { name: "qwen3moe", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&Decoder { experts: Some(Shares::Whole), ..qwen3::BLOCKS })
}
