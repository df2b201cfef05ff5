//! What can be wrong with a vocabulary.

use core::fmt;

use crate::import::ImportError;

/// Why a file's vocabulary cannot be used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum TokenizerError {
    /// An entry of the metadata has the wrong type.
    Metadata(ImportError),
    /// An entry that the vocabulary needs is missing.
    Missing(&'static str),
    /// A kind of tokenizer that is not supported.
    UnsupportedModel(String),
    /// A way of cutting text before merging that is not known.
    UnsupportedPre(String),
    /// There are no tokens, or more than can be numbered.
    Tokens(usize),
    /// Two arrays that belong together have different lengths.
    Length {
        /// The entry.
        key: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        tokens: usize,
    },
    /// Two tokens have the same text.
    Duplicate {
        /// The text, bytes outside UTF-8 replaced.
        text: String,
        /// The first token.
        first: u32,
        /// The second token.
        second: u32,
    },
    /// The id of a special token is not one of a token.
    SpecialId {
        /// The entry.
        key: &'static str,
        /// Its value.
        id: u32,
        /// The number of tokens.
        tokens: usize,
    },
    /// A special token must be added to every text, but is not named.
    NoSpecial {
        /// The entry that asks for it.
        wanted: &'static str,
        /// The entry that should name it.
        key: &'static str,
    },
    /// A score is not a finite number.
    Score(u32),
    /// A type of a token is not one that there is.
    TokenType {
        /// The token.
        id: u32,
        /// Its type.
        found: i32,
    },
    /// A byte token is not written as one.
    ByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A merge is not two parts with a space between them.
    Merge {
        /// Its number, from 0.
        index: usize,
        /// Its text.
        text: String,
    },
    /// There is neither a token for every byte nor one for what is unknown.
    NoFallback,
    /// The table for normalising characters is damaged.
    Charsmap(&'static str),
    /// The tables for searching the vocabulary cannot be made.
    Tables(String),
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metadata(e) => e.fmt(f),
            Self::Missing(key) => write!(f, "the file has no entry {key}"),
            Self::UnsupportedModel(name) => {
                write!(f, "tokenizers of kind \"{}\" are not supported", short(name))
            }
            Self::UnsupportedPre(name) => write!(
                f,
                "the vocabulary is for text cut in the way \"{}\" (tokenizer.ggml.pre), which is not \
                 supported",
                short(name)
            ),
            Self::Tokens(0) => f.write_str("the vocabulary has no tokens"),
            Self::Tokens(n) => {
                write!(f, "the vocabulary has too many tokens or too long ones ({n})")
            }
            Self::Length { key, found, tokens } => {
                write!(f, "{key} has {found} elements for {tokens} tokens")
            }
            Self::Duplicate { text, first, second } => {
                write!(f, "tokens {first} and {second} are both \"{}\"", short(text))
            }
            Self::SpecialId { key, id, tokens } => {
                write!(f, "{key} is {id}, but there are {tokens} tokens")
            }
            Self::NoSpecial { wanted, key } => {
                write!(f, "{wanted} is true, but {key} is not set")
            }
            Self::Score(id) => write!(f, "the score of token {id} is not a finite number"),
            Self::TokenType { id, found } => write!(f, "token {id} has the unknown type {found}"),
            Self::ByteToken { id, text } => write!(
                f,
                "token {id} is for a byte, but its text is \"{}\", not of the form <0x0A>",
                short(text)
            ),
            Self::Merge { index, text } => {
                write!(f, "merge {index}, \"{}\", is not two parts and a space", short(text))
            }
            Self::NoFallback => f.write_str(
                "the vocabulary has neither a token for every byte nor one for unknown characters",
            ),
            Self::Charsmap(what) => write!(f, "tokenizer.ggml.precompiled_charsmap: {what}"),
            Self::Tables(what) => write!(f, "the vocabulary cannot be searched: {what}"),
        }
    }
}

/// A text from a file, fit for one line of a message.
fn short(text: &str) -> String {
    const LIMIT: usize = 60;
    let mut out: String = text.chars().take(LIMIT).flat_map(char::escape_debug).collect();
    if text.chars().nth(LIMIT).is_some() {
        out.push_str("...");
    }
    out
}

impl core::error::Error for TokenizerError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Metadata(e) => Some(e),
            _ => None,
        }
    }
}

impl From<ImportError> for TokenizerError {
    fn from(e: ImportError) -> Self {
        Self::Metadata(e)
    }
}
