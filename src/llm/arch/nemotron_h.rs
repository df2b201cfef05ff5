//! Nemotron-H (NVIDIA 2025): layers that do one thing each: remember by the rule of Mamba-2, attend without turning, or
//! feed forward, with experts or without.

use super::decoder::SQUARED;
use super::{Arch, Builder, Decoder, Place, Shares, remember};
use crate::Error;
use crate::graph::TensorId;
use crate::llm::Config;

pub(super) const NEMOTRON_H: Arch = Arch { name: "nemotron_h", adjust, build };

pub(super) fn adjust(config: &mut Config) {
    remember::by_adding(config);
    if let Some(experts) = &mut config.experts {
        // Whether the file says so or not.
        (experts.squared, experts.sigmoid) = (true, true);
    }
    let feeds = |layer| !config.attends(layer) && config.feed_forward[layer] > 0;
    config.feeding = (0..config.layers).map(feeds).collect();
}

pub(super) fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let (config, blocks) = (b.config(), Decoder::LLAMA);
    let mut x = b.embedding()?;
    for layer in 0..b.layers() {
        let h = b.layer_norm(x, layer, "attn_norm", blocks.norm)?;
        let memory = config.memory.filter(|_| config.remembers(layer));
        let y = match memory {
            Some(memory) => b.remembered(h, layer, memory)?,
            None if config.attends(layer) => {
                b.attended_heads(h, layer, &blocks, Place { table: None, window: None })?
            }
            None => {
                let h = b.mixed(layer, h)?;
                let shares = config.experts.map(Shares::of_file);
                match shares.filter(|_| b.has(layer, "ffn_gate_inp.weight")) {
                    Some(shares) => b.mixture([h, h], layer, blocks.gate, shares)?,
                    None => b.plain(h, layer, SQUARED)?,
                }
            }
        };
        let rest = b.wanted(layer, x)?;
        x = b.add_scaled(rest, y, 1.0)?;
    }
    let x = b.norm(x, blocks.last_norm, blocks.norm)?;
    b.logits(x)
}
