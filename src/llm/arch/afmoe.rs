//! Arcee's Trinity: a window in three of four layers, and the fourth turns nothing; what heads attend to is let through by
//! gates, and normalised as what experts give is.

use super::{Arch, Builder, Decoder, Holds, Shares, gemma};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::{Config, WindowPattern};

pub(super) const AFMOE: Arch = Arch { name: "afmoe", adjust, build };

fn adjust(config: &mut Config) {
    config.window_pattern.get_or_insert(WindowPattern::AllButLast(4));
    // Whether the file says so or not.
    if let Some(experts) = &mut config.experts {
        experts.sigmoid = true;
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    let blocks = Decoder {
        rope: RopeStyle::Half,
        head_norms: Holds::Always,
        post_norms: Holds::Always,
        experts: config.experts.map(Shares::of_file),
        ..Decoder::LLAMA
    };
    let x = gemma::embedding(b)?;
    b.turned_near(x, &blocks)
}
