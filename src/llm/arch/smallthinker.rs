//! SmallThinker, made for machines with slow memory: routers read what a block is given, so that it is known before
//! attention which experts it will take; experts are rectified; of four layers the first sees everything and turns nothing
//! (Song et al. 2025, "SmallThinker: A Family of Efficient Large Language Models Natively Trained for Local Deployment").

use super::{Arch, Builder, Decoder, Shares};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::{Config, WindowPattern};

pub(super) const SMALLTHINKER: Arch = Arch { name: "smallthinker", adjust, build };

fn adjust(config: &mut Config) {
    // What others say of the last layer of a run is said of the first one here.
    config.window_pattern = match config.window_pattern.take() {
        None => Some(WindowPattern::AllButFirst(4)),
        Some(WindowPattern::AllButLast(run)) => Some(WindowPattern::AllButFirst(run)),
        other => other,
    };
    if let Some(experts) = &mut config.experts {
        experts.rectified = true;
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let blocks = Decoder {
        rope: RopeStyle::Half,
        experts: Some(Shares::Whole),
        early_router: true,
        ..Decoder::LLAMA
    };
    b.turned_near_if_any(&blocks)
}
