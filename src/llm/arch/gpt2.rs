//! GPT-2 (Radford et al. 2019): layer norms, biases, a feed-forward network without a gate, and a vector for each position,
//! which is added to that of the token; nothing turns.

use super::{Arch, Builder, Decoder, Place};
use crate::Error;
use crate::graph::TensorId;
use crate::graph::ops::norm::NormOp;
use crate::graph::ops::unary::UnaryOp;
use crate::llm::LlmError;

pub(super) const GPT2: Arch = Arch { name: "gpt2", adjust: |_| {}, build };

pub(super) const BLOCKS: Decoder =
    Decoder { norm: NormOp::Layer, plain: &[UnaryOp::GeluTanh], ..Decoder::LLAMA };

fn build(b: &mut Builder<'_>) -> Result<TensorId, Error> {
    let config = b.config();
    if b.capacity() > config.context {
        let key = format!("{}.context_length", config.arch);
        let expected = format!("at least {}, the positions of the session", b.capacity());
        let found = config.context.to_string();
        return Err(LlmError::Setting { key, found, expected }.into());
    }
    let x = b.embedding()?;
    let positions = b.positions();
    let own = b.rows_of("position_embd", [config.context, config.embedding], positions)?;
    let x = b.sum("placed", x, own)?;
    b.decoder(x, &BLOCKS, &|_| Place { table: None, window: None })
}
