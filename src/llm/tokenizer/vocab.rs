//! The vocabulary as the file has it, checked.

use super::TokenizerError;
use super::pieces::Pieces;

/// The arrays and settings of a vocabulary, as entries `tokenizer.ggml.*` of a file say them.
#[derive(Clone, Debug, Default)]
pub struct Vocabulary<'a> {
    /// `model`: `llama`, `gpt2`, `gemma4`, `t5` or `bert`.
    pub model: &'a str,
    /// `pre`: how text is cut before merging, for `gpt2`.
    pub pre: Option<&'a str>,
    /// `general.name`.
    pub name: Option<&'a str>,
    /// `tokens`: texts, in the form that the model says.
    pub tokens: Vec<&'a [u8]>,
    /// `scores`: one per token.
    pub scores: Option<Vec<f32>>,
    /// `token_type`: one per token.
    pub types: Option<Vec<i32>>,
    /// `merges`, for `gpt2` and `gemma4`: pairs with a space between them, the first to be merged first.
    pub merges: Option<Vec<&'a [u8]>>,
    /// `precompiled_charsmap`: the normalisation of characters, for `t5`.
    pub charsmap: Option<Vec<u8>>,
    /// `bos_token_id`: begins a text.
    pub bos: Option<u32>,
    /// `eos_token_id`: ends a text.
    pub eos: Option<u32>,
    /// `eot_token_id`: ends a turn of a conversation.
    pub eot: Option<u32>,
    /// `eom_token_id`: ends a message.
    pub eom: Option<u32>,
    /// `unknown_token_id`: for what cannot be expressed.
    pub unknown: Option<u32>,
    /// `seperator_token_id` (so spelt in files): between two texts.
    pub separator: Option<u32>,
    /// `padding_token_id`.
    pub padding: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`.
    pub remove_extra_spaces: Option<bool>,
    /// `normalizer.lowercase`, for `bert`.
    pub lowercase: Option<bool>,
    /// `normalizer.strip_accents`, for `bert`.
    pub strip_accents: Option<bool>,
}

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// A piece of text.
    Normal,
    /// Stands for what cannot be expressed.
    Unknown,
    /// Steers the model; never made from a user's text.
    Control,
    /// A piece of text that is found before all others.
    UserDefined,
    /// In the vocabulary, but not in use.
    Unused,
    /// A single byte.
    Byte,
}

impl TokenKind {
    /// The kind with this number in a file.
    fn from_number(n: i32) -> Option<Self> {
        Some(match n {
            // 0 is "undefined", which older files have for ordinary tokens.
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }

    /// Whether it can be a piece of ordinary text.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Normal | Self::UserDefined | Self::Unused)
    }
}

/// U+2581, which stands for a space in the vocabularies of SentencePiece.
pub(super) const SPACE: &str = "\u{2581}";

impl Vocabulary<'_> {
    /// Checks what all kinds of vocabularies have in common, and gives the kinds of the tokens.
    pub(super) fn check(&self) -> Result<Vec<TokenKind>, TokenizerError> {
        let count = self.tokens.len();
        if count == 0 || count > (1 << 28) {
            return Err(TokenizerError::Tokens(count));
        }
        let length = |key, found| {
            if found == count {
                return Ok(());
            }
            Err(TokenizerError::Length { key, found, tokens: count })
        };
        if let Some(scores) = &self.scores {
            length("tokenizer.ggml.scores", scores.len())?;
            if let Some(bad) = scores.iter().position(|s| !s.is_finite()) {
                return Err(TokenizerError::Score(bad as u32));
            }
        }
        let kinds = match &self.types {
            None => vec![TokenKind::Normal; count],
            Some(types) => {
                length("tokenizer.ggml.token_type", types.len())?;
                let kind = |(id, n): (usize, &i32)| {
                    let wrong = TokenizerError::TokenType { id: id as u32, found: *n };
                    TokenKind::from_number(*n).ok_or(wrong)
                };
                types.iter().enumerate().map(kind).collect::<Result<_, _>>()?
            }
        };
        for (key, id) in self.special() {
            if let Some(id) = id.filter(|id| *id as usize >= count) {
                return Err(TokenizerError::SpecialId { key, id, tokens: count });
            }
        }
        Ok(kinds)
    }

    fn special(&self) -> [(&'static str, Option<u32>); 7] {
        [
            (keys::BOS, self.bos),
            (keys::EOS, self.eos),
            (keys::EOT, self.eot),
            (keys::EOM, self.eom),
            (keys::UNKNOWN, self.unknown),
            (keys::SEPARATOR, self.separator),
            (keys::PADDING, self.padding),
        ]
    }

    /// The score of a token, 0 where the file has none.
    pub(super) fn score(&self, id: u32) -> f32 {
        // The sum makes 0 of -0, so that they are equal as bits too.
        self.scores.as_ref().and_then(|s| s.get(id as usize)).map_or(0.0, |s| s + 0.0)
    }

    /// All texts as they are in the file, those of kinds that `searched` says in the index. Texts
    /// that are twice among all are an error; empty ones are never found.
    pub(super) fn index(
        &self,
        kinds: &[TokenKind],
        searched: impl Fn(TokenKind) -> bool,
    ) -> Result<Pieces, TokenizerError> {
        let mut pieces = Pieces::with_capacity(self.tokens.len());
        let mut others = Pieces::with_capacity(0);
        for (id, (text, kind)) in self.tokens.iter().zip(kinds).enumerate() {
            let number = pieces.push(text).ok_or(TokenizerError::Tokens(id))?;
            if !text.is_empty()
                && searched(*kind)
                && let Some(first) = pieces.enter(number)
            {
                return Err(duplicate(text, first, number));
            }
        }
        let rest = self.tokens.iter().zip(kinds).enumerate();
        let mut ids = Vec::new();
        for (id, (text, _)) in rest.filter(|(_, (t, k))| !t.is_empty() && !searched(**k)) {
            let id = id as u32;
            let number = others.push(text).ok_or(TokenizerError::Tokens(ids.len()))?;
            ids.push(id);
            let twin = others.enter(number).map(|n| ids[n as usize]);
            if let Some(first) = twin.or_else(|| pieces.get(text)) {
                return Err(duplicate(text, first.min(id), first.max(id)));
            }
        }
        Ok(pieces)
    }
}

pub(super) fn duplicate(text: &[u8], first: u32, second: u32) -> TokenizerError {
    let text = String::from_utf8_lossy(text).into_owned();
    TokenizerError::Duplicate { text, first, second }
}

/// The byte that a token `<0x0A>` stands for.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let hex = core::str::from_utf8(hex).ok().filter(|h| h.len() == 2)?;
    let digits = hex.bytes().all(|b| b.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// Names of entries.
pub(super) mod keys {
    pub(in crate::llm::tokenizer) const BOS: &str = "tokenizer.ggml.bos_token_id";
    pub(in crate::llm::tokenizer) const EOS: &str = "tokenizer.ggml.eos_token_id";
    pub(in crate::llm::tokenizer) const EOT: &str = "tokenizer.ggml.eot_token_id";
    pub(in crate::llm::tokenizer) const EOM: &str = "tokenizer.ggml.eom_token_id";
    pub(in crate::llm::tokenizer) const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";
    pub(in crate::llm::tokenizer) const SEPARATOR: &str = "tokenizer.ggml.seperator_token_id";
    pub(in crate::llm::tokenizer) const PADDING: &str = "tokenizer.ggml.padding_token_id";
    pub(in crate::llm::tokenizer) const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
    pub(in crate::llm::tokenizer) const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
    pub(in crate::llm::tokenizer) const TOKENS: &str = "tokenizer.ggml.tokens";
    pub(in crate::llm::tokenizer) const MERGES: &str = "tokenizer.ggml.merges";
    pub(in crate::llm::tokenizer) const SCORES: &str = "tokenizer.ggml.scores";
    pub(in crate::llm::tokenizer) const TYPES: &str = "tokenizer.ggml.token_type";
    pub(in crate::llm::tokenizer) const MODEL: &str = "tokenizer.ggml.model";
}
