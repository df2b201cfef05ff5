//! Falcon (Almazrouei et al. 2023), of 7 billion parameters: layer norms, of which attention and a feed-forward network
//! without a gate share one. Larger ones have a norm for each, and are refused for it.

use super::{Arch, Builder, phi2};
use crate::Error;
use crate::graph::TensorId;

pub(super) const FALCON: Arch = Arch { name: "falcon", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&phi2::BLOCKS)
}
