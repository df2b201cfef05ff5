//! LFM2 with experts in all layers but the first ones.

use super::{Arch, Builder, Decoder, Shares, lfm2};
use crate::Error;
use crate::graph::TensorId;

pub(super) const LFM2MOE: Arch = Arch { name: "lfm2moe", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&Decoder { experts: Some(Shares::Whole), ..lfm2::BLOCKS })
}
