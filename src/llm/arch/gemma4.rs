//! Gemma 4, its text part: as Gemma 3, but that layers without a window have larger heads, and often no values but
//! their keys; that the last layers may attend to what earlier ones have kept; that each layer of the small models has a
//! vector for each token; and that layers of one model have experts beside their network.

use super::{Arch, Builder, Decoder, Shares, gemma, gemma3};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::norm::NormOp;
use crate::llm::Config;

pub(super) const GEMMA4: Arch = Arch { name: "gemma4", adjust, build };

const BLOCKS: Decoder = Decoder {
    experts: Some(Shares::Whole),
    beside: true,
    value_norms: true,
    layer_scales: true,
    ..gemma3::BLOCKS
};

fn adjust(config: &mut Config) {
    // The norms of queries and keys have learned the scale.
    config.attention_scale = Some(1.0);
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let raw = b.embedding()?;
    let layer_inputs = layer_inputs(b, raw)?;
    let x = gemma::scaled(b, raw)?;
    b.near_and_far(x, &Decoder { layer_inputs, ..BLOCKS })
}

/// For each layer the sum of a vector of the token and a normalised one, which is computed from `x`, the token's vector
/// without the factor that it has in the first layer: it would be divided by that again.
pub(super) fn layer_inputs(b: &mut Builder<'_>, x: TensorId) -> Result<Option<TensorId>, Error> {
    let n = b.config().layer_embedding;
    if n == 0 {
        return Ok(None);
    }
    let all = n.saturating_mul(b.layers());
    let own = b.looked_up("per_layer_token_embd", all)?;
    let own = b.scaled(own, (n as f32).sqrt())?;
    let common = b.linear(x, "per_layer_model_proj", all)?;
    let common = b.head_norm(common, "per_layer_proj_norm", n, NormOp::Rms)?;
    let sum = b.sum("layer_inputs", own, common)?;
    b.scaled(sum, core::f32::consts::FRAC_1_SQRT_2).map(Some)
}
