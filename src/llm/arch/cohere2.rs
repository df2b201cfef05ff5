//! Cohere 2 (Command R7B and later): layer norms, of which attention and feed-forward network share one;
//! a window in three of four layers, and the fourth turns nothing; logits are scaled.

use super::{Arch, Builder, Decoder, Holds};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::norm::NormOp;
use crate::llm::{Config, WindowPattern};

pub(super) const COHERE2: Arch = Arch { name: "cohere2", adjust, build };

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(4));
}

/// The blocks, with and without windows.
pub(super) fn blocks(config: &Config) -> Decoder {
    Decoder {
        norm: NormOp::Layer,
        ffn_norm: Holds::Never,
        logit_scale: config.logit_scale.unwrap_or(1.0),
        ..Decoder::LLAMA
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let x = b.embedding()?;
    b.turned_near(x, &blocks(b.config()))
}
