//! Language models: tokenizers, architectures, generation of text.
//!
//! [`Llm`] is a model of a GGUF file, [`Session`] a text in the making: tokens go in, logits come out.
//! Several sessions share the weights of one model. [`Session::generate`] is an iterator of tokens.

mod arch;
mod channels;
mod config;
mod error;
mod generate;
mod keys;
mod model;
mod sampler;
mod session;
mod stop;
mod template;
pub mod tokenizer;
mod weights;

pub use arch::names as architectures;
pub use config::{
    Config, ExpertConfig, HeadConfig, LatentConfig, MemoryConfig, RopeConfig, Scaling,
    WindowPattern,
};
pub use error::LlmError;
pub use generate::{Finish, GenerateOptions, Generation, Token};
pub use model::{Llm, LlmOptions, Progress};
pub use sampler::{Sampler, SamplerError, SamplerOptions};
pub use session::Session;
pub use stop::StopStrings;
pub use template::{ChatTemplate, Message, TemplateError};
