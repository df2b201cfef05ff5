//! From text to tokens and back, as the vocabulary of a GGUF file says.
//!
//! | kind in the file | here |
//! |---|---|
//! | `llama` | `spm.rs`: SentencePiece's BPE, by scores |
//! | `gpt2` | `bpe.rs`: byte-level BPE, by ranks; `pre.rs` has the rules for cutting text, one row each |
//! | `gemma4` | the same over characters, with SentencePiece's marks for spaces |
//! | `t5` | `unigram.rs`: SentencePiece's unigram model; `charsmap.rs` normalises characters |
//! | `bert` | `wordpiece.rs` |
//!
//! Special tokens are found first (`special.rs`). All of it takes time that is linear in the text, or
//! a logarithm more, whatever the text is.

mod bpe;
mod charsmap;
mod decoder;
mod error;
mod pieces;
mod pre;
mod special;
mod spm;
mod trie;
mod unigram;
mod vocab;
mod wordpiece;

use std::collections::BTreeSet;

pub use decoder::Decoder;
pub use error::TokenizerError;
pub use vocab::{TokenKind, Vocabulary};

use crate::import::gguf::{Metadata, Value};
use bpe::Bpe;
use pieces::Pieces;
use pre::Splitter;
use special::{Part, Specials};
use spm::Spm;
use unigram::Unigram;
use vocab::{SPACE, byte_of, keys};
use wordpiece::WordPiece;

/// Texts of tokens that end a turn or a text, the usual one for a turn first.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<|eom_id|>",
    "</s>",
    "<eos>",
    "[EOS]",
    "<|return|>",
    "<|call|>",
    "<|tool_response>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// How many of [`ENDS`] can end a turn of a conversation.
const TURN_ENDS: usize = 12;

/// How many bytes a vocabulary may lack without a warning.
const RARE_BYTES: usize = 45;

/// A vocabulary, ready for use. It does not change, and threads may share it.
#[derive(Debug)]
pub struct Tokenizer {
    model: Model,
    kinds: Vec<TokenKind>,
    specials: Specials,
    /// What tokens stand for, unless the model has that.
    texts: Option<Pieces>,
    ids: SpecialIds,
    ends: BTreeSet<u32>,
    channels: Option<ChannelIds>,
    add_bos: bool,
    add_eos: bool,
    add_separator: bool,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Model {
    Spm(Spm),
    Bpe(Bpe),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

/// Tokens of texts that consist of parts with channels: OpenAI's Harmony format.
#[derive(Clone, Copy, Debug)]
pub(in crate::llm) struct ChannelIds {
    /// Begins a part.
    pub(in crate::llm) start: u32,
    /// Begins the name of its channel.
    pub(in crate::llm) channel: u32,
    /// Begins what it says.
    pub(in crate::llm) message: u32,
    /// Ends it.
    pub(in crate::llm) end: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct SpecialIds {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    unknown: Option<u32>,
    separator: Option<u32>,
}

impl Tokenizer {
    /// The vocabulary of a file.
    ///
    /// # Errors
    /// [`TokenizerError`] if an entry is missing, of the wrong type, or does not fit the others.
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let u32 = |key| metadata.u32(key);
        let bool = |name: &str| metadata.bool(&format!("tokenizer.ggml.{name}"));
        let model = metadata.str(keys::MODEL)?.ok_or(TokenizerError::Missing(keys::MODEL))?;
        let tokens = metadata.bytes_list(keys::TOKENS)?;
        Self::new(&Vocabulary {
            model,
            pre: metadata.str("tokenizer.ggml.pre")?,
            name: metadata.str("general.name").unwrap_or_default(),
            tokens: tokens.ok_or(TokenizerError::Missing(keys::TOKENS))?.collect(),
            scores: metadata.f32s(keys::SCORES)?,
            types: metadata.i32s(keys::TYPES)?,
            merges: metadata.bytes_list(keys::MERGES)?.map(Iterator::collect),
            charsmap: charsmap(metadata)?,
            bos: u32(keys::BOS)?,
            eos: u32(keys::EOS)?,
            eot: u32(keys::EOT)?,
            eom: u32(keys::EOM)?,
            unknown: u32(keys::UNKNOWN)?,
            separator: u32(keys::SEPARATOR)?,
            padding: u32(keys::PADDING)?,
            add_bos: metadata.bool(keys::ADD_BOS)?,
            add_eos: metadata.bool(keys::ADD_EOS)?,
            add_space_prefix: bool("add_space_prefix")?,
            remove_extra_spaces: bool("remove_extra_whitespaces")?,
            lowercase: bool("normalizer.lowercase")?,
            strip_accents: bool("normalizer.strip_accents")?,
        })
    }

    /// From arrays and settings.
    ///
    /// # Errors
    /// As [`Tokenizer::from_gguf`].
    pub fn new(vocabulary: &Vocabulary<'_>) -> Result<Self, TokenizerError> {
        let mut kinds = vocabulary.check()?;
        // Some files call the tokens that end a text ordinary ones; no user shall write one.
        let found = found_ends(vocabulary, &kinds);
        for id in found.iter().flatten() {
            kinds[*id as usize] = TokenKind::Control;
        }
        let mut warnings = Vec::new();
        let ids = special_ids(vocabulary, &found);
        let (mut bos, eos) = match vocabulary.model {
            "llama" => (true, false),
            "t5" => (false, true),
            _ => (false, false),
        };
        let model = match vocabulary.model {
            "llama" => Model::Spm(Spm::new(vocabulary, &kinds, ids.unknown)?),
            "t5" => Model::Unigram(Unigram::new(vocabulary, &kinds, ids.unknown)?),
            "bert" => Model::WordPiece(WordPiece::new(vocabulary, &kinds, ids.unknown)?),
            "gpt2" => {
                let splitter = Splitter::named(vocabulary.pre.unwrap_or("default"))?;
                if vocabulary.pre.is_none() {
                    warnings.push(
                        "the file does not say how its vocabulary cuts text \
                         (tokenizer.ggml.pre); the rules of older files are used, and tokens may \
                         differ from those the model was trained with"
                            .to_owned(),
                    );
                }
                bos = splitter.bos();
                let bpe = Bpe::of_bytes(vocabulary, &kinds, splitter)?;
                // Vocabularies in use lack some that hardly occur: control characters, and bytes
                // that are never part of a character.
                if bpe.missing_bytes() > RARE_BYTES && vocabulary.unknown.is_none() {
                    warnings.push(format!(
                        "the vocabulary has no token for {} of the 256 bytes; characters that \
                         need them are left out",
                        bpe.missing_bytes()
                    ));
                }
                Model::Bpe(bpe)
            }
            "gemma4" => {
                let splitter = Splitter::named("gemma4")?;
                bos = splitter.bos();
                Model::Bpe(Bpe::of_characters(vocabulary, &kinds, splitter)?)
            }
            other => return Err(TokenizerError::UnsupportedModel(other.to_owned())),
        };
        let is_bert = matches!(model, Model::WordPiece(_));
        let this = Self {
            specials: Specials::new(vocabulary, &kinds),
            texts: match &model {
                Model::Bpe(bpe) if !bpe.writes_marks() => None,
                _ => Some(texts(vocabulary, &kinds)?),
            },
            ends: ends(vocabulary, &found, &ids),
            channels: channels(vocabulary, &found),
            model,
            kinds,
            ids,
            add_bos: is_bert || vocabulary.add_bos.unwrap_or(bos),
            add_eos: vocabulary.add_eos.unwrap_or(eos),
            add_separator: is_bert,
            warnings,
        };
        let named = |add: bool, id: Option<u32>, wanted, key| match (add, id) {
            (true, None) => Err(TokenizerError::NoSpecial { wanted, key }),
            _ => Ok(()),
        };
        named(this.add_bos, this.ids.bos, keys::ADD_BOS, keys::BOS)?;
        named(this.add_eos, this.ids.eos, keys::ADD_EOS, keys::EOS)?;
        named(this.add_separator, this.ids.separator, "the need for a separator", keys::SEPARATOR)?;
        Ok(this)
    }

    /// The tokens of `text`, and nothing else. With `special`, what looks like a token that steers
    /// the model is one; without, it is text like all other. Tokens that users define are found in
    /// both cases.
    #[must_use]
    pub fn encode(&self, text: &str, special: bool) -> Vec<u32> {
        let mut out = Vec::new();
        let mut first = true;
        for part in self.specials.parts(text, special) {
            match part {
                Part::Token(id) => out.push(id),
                Part::Text(text) if special => {
                    self.encode_text(&special::unshield(text), first, &mut out);
                }
                Part::Text(text) => self.encode_text(text, first, &mut out),
            }
            first = matches!(part, Part::Token(_));
        }
        out
    }

    /// The tokens of `text` between those that belong around a text by itself, such as the one that
    /// begins it.
    #[must_use]
    pub fn encode_whole(&self, text: &str, special: bool) -> Vec<u32> {
        let mut out = Vec::new();
        out.extend(self.ids.bos.filter(|_| self.add_bos));
        out.extend(self.encode(text, special));
        out.extend(self.ids.eos.filter(|_| self.add_eos));
        out.extend(self.ids.separator.filter(|_| self.add_separator));
        out
    }

    fn encode_text(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        match &self.model {
            Model::Spm(m) => m.encode(text, first, out),
            Model::Bpe(m) => m.encode(text, out),
            Model::Unigram(m) => m.encode(text, out),
            Model::WordPiece(m) => m.encode(text, out),
        }
    }

    /// `text` changed such that [`Tokenizer::encode`] with `special` finds no token in it that
    /// steers the model, and otherwise the same tokens. For what users say inside of a text with
    /// special tokens.
    #[must_use]
    pub fn shield(&self, text: &str) -> String {
        self.specials.shield(text)
    }

    /// What a token stands for: bytes, not always whole characters. Empty for what is no token.
    #[must_use]
    pub fn piece(&self, id: u32) -> &[u8] {
        match (&self.texts, &self.model) {
            (Some(texts), _) => texts.text(id),
            (None, Model::Bpe(m)) => m.piece(id),
            _ => &[],
        }
    }

    /// The text of some tokens, without those that steer the model. Bytes outside UTF-8 become
    /// U+FFFD.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut decoder = Decoder::new();
        let mut text: String = ids.iter().map(|id| decoder.push(self, *id)).collect();
        text += &decoder.finish();
        text
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kinds.len()
    }

    /// Never: a vocabulary without tokens is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.is_empty()
    }

    /// What a token is for.
    #[must_use]
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// Whether a token steers the model, and is no text.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        matches!(self.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// Whether a token ends what is generated: a text or a turn.
    #[must_use]
    pub fn is_eog(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The token that begins a text.
    #[must_use]
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The token that ends a text.
    #[must_use]
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// The token that ends a turn of a conversation.
    #[must_use]
    pub fn eot(&self) -> Option<u32> {
        self.ids.eot
    }

    /// Whether a text begins with [`Tokenizer::bos`].
    #[must_use]
    pub fn add_bos(&self) -> bool {
        self.add_bos
    }

    /// The tokens of parts with channels, if texts have such parts.
    pub(in crate::llm) fn channels(&self) -> Option<ChannelIds> {
        self.channels
    }

    /// What should be said to who uses this vocabulary.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

/// For each of [`ENDS`] the token with this text, if it is not one that is not in use.
fn found_ends(vocabulary: &Vocabulary<'_>, kinds: &[TokenKind]) -> [Option<u32>; ENDS.len()] {
    let mut found = [None; ENDS.len()];
    let mut begins = [false; 256];
    ENDS.iter().for_each(|text| begins[usize::from(text.as_bytes()[0])] = true);
    // A vocabulary is long: one look at each token, and a second one at few.
    let candidates = vocabulary.tokens.iter().enumerate();
    for (id, token) in
        candidates.filter(|(_, t)| t.first().is_some_and(|b| begins[usize::from(*b)]))
    {
        if let Some(at) = ENDS.iter().position(|text| text.as_bytes() == *token)
            && found[at].is_none()
        {
            found[at] = Some(id as u32);
        }
    }
    // In vocabularies of this kind it is a piece of HTML.
    let is_text = |id: u32| {
        vocabulary.model == "gemma4" && vocabulary.tokens.get(id as usize) == Some(&&b"</s>"[..])
    };
    let is_used = |id: u32| kinds.get(id as usize) != Some(&TokenKind::Unused);
    found.map(|id| id.filter(|&id| is_used(id) && !is_text(id)))
}

/// Special tokens, where the file does not say by what is usual for the kind. `found`: the tokens of
/// [`ENDS`].
fn special_ids(vocabulary: &Vocabulary<'_>, found: &[Option<u32>]) -> SpecialIds {
    let usual = |id: u32| Some(id).filter(|id| (*id as usize) < vocabulary.tokens.len());
    let [bos, eos, unknown, separator] = match vocabulary.model {
        "llama" => [usual(1), usual(2), usual(0), None],
        "t5" => [None, usual(1), usual(2), None],
        "bert" => [usual(101), None, usual(100), usual(102)],
        _ => [None; 4],
    };
    let eot = || found[..TURN_ENDS].iter().find_map(|id| *id);
    SpecialIds {
        bos: vocabulary.bos.or(bos),
        eos: vocabulary.eos.or(eos),
        eot: vocabulary.eot.or_else(eot),
        unknown: vocabulary.unknown.or(unknown),
        separator: vocabulary.separator.or(separator),
    }
}

/// The token of [`ENDS`] that ends a part, and no text: there is one where calls and returns have tokens of their own.
fn part_end(found: &[Option<u32>]) -> Option<u32> {
    let of = |text| ENDS.iter().position(|t| *t == text).and_then(|at| found[at]);
    of("<|return|>").and(of("<|call|>")).and(of("<|end|>"))
}

/// The tokens of parts with channels.
fn channels(vocabulary: &Vocabulary<'_>, found: &[Option<u32>]) -> Option<ChannelIds> {
    let end = part_end(found)?;
    let of = |text: &str| {
        let at = vocabulary.tokens.iter().position(|token| *token == text.as_bytes());
        at.map(|id| id as u32)
    };
    let [start, channel, message] = ["<|start|>", "<|channel|>", "<|message|>"].map(of);
    Some(ChannelIds { start: start?, channel: channel?, message: message?, end })
}

/// Tokens that end what is generated. `found`: the tokens of [`ENDS`].
fn ends(vocabulary: &Vocabulary<'_>, found: &[Option<u32>], ids: &SpecialIds) -> BTreeSet<u32> {
    // One by one: `collect` would sort them first, 3 KB of code for each type.
    let mut ends = BTreeSet::new();
    ends.extend(found.iter().flatten());
    ends.extend([ids.eos, ids.eot, vocabulary.eom].into_iter().flatten());
    if let Some(part) = part_end(found).filter(|id| ids.eos != Some(*id)) {
        ends.remove(&part);
    }
    ends
}

/// What the tokens of SentencePiece, of WordPiece and of those like SentencePiece's stand for.
fn texts(vocabulary: &Vocabulary<'_>, kinds: &[TokenKind]) -> Result<Pieces, TokenizerError> {
    let mut texts = Pieces::with_capacity(vocabulary.tokens.len());
    let mut spaced = Vec::new();
    for (id, (text, kind)) in vocabulary.tokens.iter().zip(kinds).enumerate() {
        let pushed = match (kind, byte_of(text)) {
            (TokenKind::Byte, Some(byte)) => texts.push(&[byte]),
            (TokenKind::Normal | TokenKind::Unused, _) => {
                with_spaces(text, &mut spaced);
                texts.push(&spaced)
            }
            _ => texts.push(text),
        };
        pushed.ok_or(TokenizerError::Tokens(id))?;
    }
    Ok(texts)
}

/// `text` with spaces where it has U+2581, into `out`.
fn with_spaces(text: &[u8], out: &mut Vec<u8>) {
    out.clear();
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(SPACE.as_bytes()) {
            out.push(b' ');
            rest = after;
        } else {
            out.push(*byte);
            rest = after;
        }
    }
}

/// The bytes of the table for normalising characters.
fn charsmap(metadata: &Metadata) -> Result<Option<Vec<u8>>, TokenizerError> {
    let Some(value) = metadata.get("tokenizer.ggml.precompiled_charsmap") else { return Ok(None) };
    let byte = |value| match value {
        // Some writers store the bytes with a sign.
        Value::Integer { value, .. } if (-128..256).contains(&value) => Some((value & 0xff) as u8),
        _ => None,
    };
    let wrong = TokenizerError::Charsmap("it is not an array of bytes");
    let Value::Array(array) = value else { return Err(wrong) };
    let bytes: Vec<u8> = array.values().map_while(byte).collect();
    if bytes.len() == array.len() { Ok(Some(bytes)) } else { Err(wrong) }
}
