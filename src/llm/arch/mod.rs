//! Architectures: one file each, which builds the graph from the pieces in `decoder.rs` and `layers.rs`.
//!
//! Adding one means writing its file and naming it in the list at the end of this one.

mod decoder;
mod experts;
mod latent;
mod layers;
mod remember;
mod turn;

use super::{Config, LlmError};
use crate::Error;
use crate::graph::TensorId;
use decoder::{Decoder, HeadNorm, Holds, Place};
use experts::Shares;
pub(super) use layers::{Builder, POSITIONS, Rows, TOKENS};

/// An architecture.
#[derive(Clone, Copy)]
pub(super) struct Arch {
    /// What `general.architecture` says.
    name: &'static str,
    /// Settings that have other defaults than most architectures have.
    adjust: fn(&mut Config),
    /// The graph from tokens to logits.
    build: fn(&mut Builder<'_>) -> Result<TensorId, Error>,
}

impl Arch {
    /// The architecture that a file names.
    pub(super) fn find(name: &str) -> Result<Self, LlmError> {
        let known = || ALL.iter().map(|a| a.name).collect();
        let found = ALL.iter().find(|a| a.name == name);
        found
            .copied()
            .ok_or_else(|| LlmError::Architecture { found: name.to_owned(), known: known() })
    }

    /// Sets what the metadata may leave out.
    pub(super) fn adjust(&self, config: &mut Config) {
        (self.adjust)(config);
    }

    /// Adds the graph; gives the logits.
    pub(super) fn build(&self, builder: &mut Builder<'_>) -> Result<TensorId, Error> {
        (self.build)(builder)
    }
}

/// Names of all architectures.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|a| a.name)
}

macro_rules! architectures {
    ($($file:ident :: $name:ident),* $(,)?) => {
        $(mod $file;)*

        const ALL: &[Arch] = &[$($file::$name),*];
    };
}

architectures! {
    afmoe::AFMOE,
    arcee::ARCEE,
    bailingmoe::BAILINGMOE,
    bailingmoe2::BAILINGMOE2,
    bitnet::BITNET,
    chatglm::CHATGLM,
    cohere2::COHERE2,
    command_r::COMMAND_R,
    deepseek::DEEPSEEK,
    deepseek2::DEEPSEEK2,
    ernie4_5::ERNIE4_5,
    ernie4_5_moe::ERNIE4_5_MOE,
    exaone::EXAONE,
    exaone4::EXAONE4,
    falcon::FALCON,
    falcon_h1::FALCON_H1,
    gemma::GEMMA,
    gemma2::GEMMA2,
    gemma3::GEMMA3,
    gemma3n::GEMMA3N,
    gemma4::GEMMA4,
    glm4::GLM4,
    gpt2::GPT2,
    gptneox::GPTNEOX,
    gpt_oss::GPT_OSS,
    granite::GRANITE,
    granitehybrid::GRANITEHYBRID,
    granitemoe::GRANITEMOE,
    hunyuan::HUNYUAN,
    internlm2::INTERNLM2,
    lfm2::LFM2,
    lfm2moe::LFM2MOE,
    llama::LLAMA,
    mamba2::MAMBA2,
    minicpm::MINICPM,
    minicpm3::MINICPM3,
    mistral3::MISTRAL3,
    nemotron::NEMOTRON,
    nemotron_h::NEMOTRON_H,
    nemotron_h_moe::NEMOTRON_H_MOE,
    olmo2::OLMO2,
    olmoe::OLMOE,
    phi2::PHI2,
    phi3::PHI3,
    qwen2::QWEN2,
    qwen2moe::QWEN2MOE,
    qwen2vl::QWEN2VL,
    qwen3::QWEN3,
    qwen35::QWEN35,
    qwen35moe::QWEN35MOE,
    qwen3moe::QWEN3MOE,
    qwen3vl::QWEN3VL,
    seed_oss::SEED_OSS,
    smallthinker::SMALLTHINKER,
    smollm3::SMOLLM3,
    stablelm::STABLELM,
    starcoder::STARCODER,
    starcoder2::STARCODER2,
}
