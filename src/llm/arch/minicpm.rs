//! MiniCPM 1 and 2 (Hu et al. 2024): as Granite, with scales that files may leave out.

use super::{Arch, granite};
use crate::llm::Config;

pub(super) const MINICPM: Arch = Arch { name: "minicpm", adjust, build: granite::build };

/// The width that the scales were chosen at.
const BASE: f32 = 256.0;

fn adjust(config: &mut Config) {
    // Positions always turn heads here.
    config.rope.finetuned = true;
    config.embedding_scale.get_or_insert(12.0);
    config.residual_scale.get_or_insert(1.4 / (config.layers as f32).sqrt());
    config.logit_scale.get_or_insert(config.embedding as f32 / BASE);
}
