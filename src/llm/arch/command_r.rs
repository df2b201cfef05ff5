//! Cohere's Command R and Aya: as Cohere 2, but that no layer has a window, and all turn.

use super::{Arch, Builder, cohere2};
use crate::Error;
use crate::graph::TensorId;

pub(super) const COMMAND_R: Arch = Arch { name: "command-r", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&cohere2::blocks(b.config()))
}
