//! Qwen 3.5 with experts in place of feed-forward networks, and one that all tokens go through beside them.

use super::{Arch, Builder, Decoder, Shares, qwen35};
use crate::Error;
use crate::graph::TensorId;

pub(super) const QWEN35MOE: Arch = Arch { name: "qwen35moe", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&Decoder { experts: Some(Shares::Whole), ..qwen35::BLOCKS })
}
