//! Gemma 3, its text part: as Gemma 2 without caps, with norms of each head, and five layers with a
//! window and faster angles to each one without.

use super::{Arch, Builder, Decoder, Holds, gemma, gemma2};
use crate::Error;
use crate::graph::TensorId;
use crate::llm::{Config, WindowPattern};

pub(super) const GEMMA3: Arch = Arch { name: "gemma3", adjust, build };

pub(super) const BLOCKS: Decoder =
    Decoder { head_norms: Holds::Always, post_norms: Holds::Always, ..gemma::BLOCKS };

/// Layers of the model of 27 billion parameters.
const LAYERS_27B: usize = 62;

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(6));
    config.rope.base_window.get_or_insert(10_000.0);
    gemma2::scale_of_largest(config, LAYERS_27B);
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let x = gemma::embedding(b)?;
    b.near_and_far(x, &BLOCKS)
}
