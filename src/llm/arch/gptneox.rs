//! GPT-NeoX (Black et al. 2022), such as Pythia: as GPT-2, but that a part of each head turns, and that attention and
//! feed-forward network read the same sum, each through a norm of its own, if the file does not say otherwise.

use super::{Arch, Builder, Decoder, gpt2};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;

pub(super) const GPTNEOX: Arch = Arch { name: "gptneox", adjust: |_| {}, build };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let parallel = b.config().parallel;
    b.usual(&Decoder { rope: RopeStyle::Half, parallel, ..gpt2::BLOCKS })
}
