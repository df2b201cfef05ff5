//! Gemma 3, its text part: as Gemma 2 without caps, with norms of each head, and five layers with a
//! window and faster angles to each one without.

use super::{Arch, Builder, Decoder, Holds, Place, gemma, gemma2};
use crate::Error;
use crate::graph::TensorId;
use crate::llm::{Config, WindowPattern};
use crate::llm::config::Scaling;

pub(super) const GEMMA3: Arch = Arch { name: "gemma3", adjust, build };

const BLOCKS: Decoder =
    Decoder { head_norms: Holds::Always, post_norms: Holds::Always, ..gemma::BLOCKS };

/// Layers of the model of 27 billion parameters.
const LAYERS_27B: usize = 62;

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(6));
    gemma2::scale_of_largest(config, LAYERS_27B);
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    let far = b.rope_table()?;
    let near = b.table(config.rope.base_window.unwrap_or(10_000.0), &Scaling::Linear(1.0), None)?;
    let x = gemma::embedding(b)?;
    b.decoder(x, &BLOCKS, &|layer| {
        let window = config.window_of(layer);
        Place { table: Some(if window.is_some() { near } else { far }), window }
    })
}
