//! DeepSeek V2 and what has its layers (Moonlight, GLM 4.7 Flash, Youtu): keys and values come from one short vector
//! per token, and layers have experts behind the first few.

use super::{Arch, Builder, Decoder, bailingmoe};
use crate::Error;
use crate::graph::TensorId;
use crate::llm::config::Scaling;
use crate::llm::{Config, LlmError};

pub(super) const DEEPSEEK2: Arch = Arch { name: "deepseek2", adjust, build };

/// Layers, with those that only guess, and tokens of GLM 4.7 Flash, of which some files do not say how experts are chosen.
const FLASH: (core::ops::RangeInclusive<usize>, usize) = (47..=48, 154_880);

fn adjust(config: &mut Config) {
    if let Some(experts) = &mut config.experts
        && FLASH.0.contains(&config.layers)
        && FLASH.1 == config.vocabulary
    {
        experts.sigmoid = true;
    }
    // Scores grow by what YaRN lets the rotated elements grow, and those do not then.
    let mut growth = config.rope.attention_factor;
    if let Scaling::Yarn { factor, log_multiplier, .. } = &mut config.rope.scaling {
        let times = if *log_multiplier == 0.0 {
            1.0
        } else {
            // Files have a tenth of it.
            10.0 * core::mem::replace(log_multiplier, 1.0)
        };
        growth *= Scaling::grown(*factor, times) as f32;
    }
    let size = config.latent.map_or(config.head_sizes[0], |latent| latent.key_size);
    config.attention_scale = Some(growth * growth / (size as f32).sqrt());
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    if let Some(scale) = config.temperature_scale {
        let key = format!("{}.attention.temperature_scale", config.arch);
        let (found, expected) = (scale.to_string(), "none: queries that grow are not known here");
        return Err(LlmError::Setting { key, found, expected: expected.to_owned() }.into());
    }
    bailingmoe::with_experts(b, Decoder::LLAMA)
}
