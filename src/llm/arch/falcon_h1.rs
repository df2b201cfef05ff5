//! Falcon-H1 (TII 2025): as Llama, but each layer attends, and remembers by the rule of Mamba-2 beside that.

use super::{Arch, Builder, Decoder, remember};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::rope::RopeStyle;
use crate::llm::Config;

pub(super) const FALCON_H1: Arch = Arch { name: "falcon-h1", adjust, build };

fn adjust(config: &mut Config) {
    remember::by_adding(config);
    config.attending.clear();
    if let Some(memory) = &mut config.memory {
        memory.beside = true;
    }
}

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    b.usual(&Decoder { rope: RopeStyle::Half, ..Decoder::LLAMA })
}
