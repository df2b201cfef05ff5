//! What can go wrong with a language model.

use core::fmt;

use super::SamplerError;
use super::tokenizer::TokenizerError;

/// An error of a language model or one of its sessions.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum LlmError {
    /// The file does not say which architecture it has.
    NoArchitecture,
    /// An architecture that none of the files under `llm/arch` builds.
    Architecture {
        /// The name in the file.
        found: String,
        /// The names that there are.
        known: Vec<&'static str>,
    },
    /// The metadata lack a setting.
    MissingKey(String),
    /// A setting has a value that the architecture does not allow.
    Setting {
        /// The key.
        key: String,
        /// The value.
        found: String,
        /// What it must be.
        expected: String,
    },
    /// A tensor that the architecture needs is not there.
    MissingTensor(String),
    /// Tensors that the architecture has no use for: without them the model would be another one.
    UnknownTensors {
        /// The architecture.
        arch: String,
        /// The names, in order.
        names: Vec<String>,
    },
    /// A tensor has other extents than the settings say.
    TensorShape {
        /// The tensor.
        tensor: String,
        /// Extents by the settings, fastest first.
        expected: Vec<usize>,
        /// Extents in the file, fastest first.
        found: Vec<usize>,
    },
    /// A token is not in the vocabulary.
    Token {
        /// The token.
        id: u32,
        /// Tokens in the vocabulary.
        vocabulary: usize,
    },
    /// There is nothing to evaluate.
    NoTokens,
    /// The context has no room for the tokens.
    ContextFull {
        /// Positions in use.
        used: usize,
        /// Tokens that were to be added.
        more: usize,
        /// Positions there are.
        context: usize,
    },
    /// The context asked for needs more memory than may be taken.
    ContextMemory {
        /// Positions asked for.
        context: usize,
        /// Bytes of the cache for them.
        needed: usize,
        /// Bytes that may be taken.
        limit: usize,
    },
    /// A result is not a number: the weights hold infinities or NaN.
    NotFinite {
        /// The position whose result it is.
        position: usize,
    },
    /// The vocabulary of the file cannot be used.
    Tokenizer(TokenizerError),
    /// No token can be chosen.
    Sampler(SamplerError),
    /// Somebody asked to stop.
    Cancelled,
}

impl fmt::Display for LlmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArchitecture => f.write_str(
                "the file does not say which architecture it has (general.architecture)",
            ),
            Self::Architecture { found, known } => {
                let known = known.join(", ");
                write!(f, "architecture {found:?} is not supported (supported are: {known})")
            }
            Self::MissingKey(key) => write!(f, "the metadata lack {key}"),
            Self::Setting { key, found, expected } => {
                write!(f, "{key} is {found}, expected {expected}")
            }
            Self::MissingTensor(name) => write!(f, "tensor {name} is missing"),
            Self::UnknownTensors { arch, names } => {
                let shown = names.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
                let more = if names.len() > 3 { ", ..." } else { "" };
                let count = names.len();
                write!(
                    f,
                    "architecture {arch} has no use for {count} of the tensors: {shown}{more}"
                )
            }
            Self::TensorShape { tensor, expected, found } => {
                write!(f, "tensor {tensor}: expected extents {expected:?}, found {found:?}")
            }
            Self::Token { id, vocabulary } => {
                write!(f, "token {id} is not in the vocabulary of {vocabulary}")
            }
            Self::NoTokens => f.write_str("there are no tokens to evaluate"),
            Self::ContextFull { used, more, context } => write!(
                f,
                "the context of {context} tokens is full: {used} are in use, {more} more do not fit; \
                 ask for a larger context"
            ),
            Self::ContextMemory { context, needed, limit } => write!(
                f,
                "a context of {context} tokens needs {needed} bytes of memory, more than the limit \
                 of {limit}; ask for a smaller context"
            ),
            Self::NotFinite { position } => write!(
                f,
                "the result at position {position} is not a number: the file's weights are damaged"
            ),
            Self::Tokenizer(e) => e.fmt(f),
            Self::Sampler(e) => e.fmt(f),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl core::error::Error for LlmError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Tokenizer(e) => Some(e),
            Self::Sampler(e) => Some(e),
            _ => None,
        }
    }
}

impl From<TokenizerError> for LlmError {
    fn from(e: TokenizerError) -> Self {
        Self::Tokenizer(e)
    }
}

impl From<SamplerError> for LlmError {
    fn from(e: SamplerError) -> Self {
        Self::Sampler(e)
    }
}
