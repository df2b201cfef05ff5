//! SentencePiece's unigram model: of all ways to write a text as tokens, the one with the highest sum
//! of scores.

use super::TokenizerError;
use super::charsmap::Charsmap;
use super::spm::byte_tokens;
use super::trie::Trie;
use super::vocab::{SPACE, TokenKind, Vocabulary, keys};

/// How much worse than the worst token an unknown character is.
const PENALTY: f64 = 10.0;

/// Tables for one vocabulary of kind `t5`.
#[derive(Debug)]
pub(super) struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown: u32,
    unknown_score: f64,
    /// Token of each byte, where the vocabulary has one for each.
    bytes: Option<Vec<u32>>,
    charsmap: Option<Charsmap>,
    add_space: bool,
    remove_extra_spaces: bool,
}

/// The best way found to a place in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    token: u32,
    start: usize,
}

impl Unigram {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        let Some(scores) = &vocabulary.scores else {
            return Err(TokenizerError::Missing(keys::SCORES));
        };
        // Checks that no text is twice.
        vocabulary.index(kinds, TokenKind::is_text)?;
        let mut trie = Trie::new();
        let mut worst = 0.0f64;
        let mut used = Vec::with_capacity(scores.len());
        for (id, ((text, kind), score)) in
            vocabulary.tokens.iter().zip(kinds).zip(scores).enumerate()
        {
            if kind.is_text() && !text.is_empty() {
                trie.insert(text, id as u32);
            }
            if *kind == TokenKind::Normal {
                worst = worst.min(f64::from(*score));
            }
            // What users define is as good as certain.
            used.push(if *kind == TokenKind::UserDefined { 0.0 } else { f64::from(*score) });
        }
        let bytes = byte_tokens(vocabulary, kinds)?.into_iter().collect();
        let unknown = unknown.ok_or(TokenizerError::NoFallback)?;
        Ok(Self {
            trie,
            scores: used,
            unknown,
            unknown_score: worst - PENALTY,
            bytes,
            charsmap: vocabulary.charsmap.as_deref().map(Charsmap::new).transpose()?,
            add_space: vocabulary.add_space_prefix.unwrap_or(false),
            remove_extra_spaces: vocabulary.remove_extra_spaces.unwrap_or(false),
        })
    }

    /// Adds the tokens of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let text = self.normalized(text);
        let unreached = Best { score: f64::NEG_INFINITY, token: self.unknown, start: 0 };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        for (start, c) in text.char_indices() {
            let here = best[start].score;
            let mut improve = |len: usize, token, score: f64| {
                let there = &mut best[start + len];
                if here + score > there.score {
                    *there = Best { score: here + score, token, start };
                }
            };
            let mut whole = false;
            for (len, token) in self.trie.prefixes(&text.as_bytes()[start..]) {
                whole |= len == c.len_utf8();
                improve(len, token, self.scores.get(token as usize).copied().unwrap_or(0.0));
            }
            if !whole {
                improve(c.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        let mut path: Vec<(u32, usize, usize)> = Vec::new();
        let mut end = text.len();
        while end > 0 {
            let Best { token, start, .. } = best[end];
            path.push((token, start, end));
            end = start;
        }
        let mut after_unknown = false;
        for (token, start, end) in path.into_iter().rev() {
            let unknown = token == self.unknown;
            match &self.bytes {
                Some(bytes) if unknown => {
                    out.extend(text.as_bytes()[start..end].iter().map(|b| bytes[usize::from(*b)]));
                }
                _ if unknown && after_unknown => {}
                _ => out.push(token),
            }
            after_unknown = unknown;
        }
    }

    /// The text with its characters normalised and its spaces as tokens have them.
    fn normalized(&self, text: &str) -> String {
        let mapped = match &self.charsmap {
            Some(map) => map.apply(text),
            None => text.to_owned(),
        };
        let mut out = String::with_capacity(mapped.len() * 2);
        let (mut begun, mut in_word) = (false, false);
        for c in mapped.chars() {
            if c == ' ' {
                in_word = false;
                if !self.remove_extra_spaces {
                    out.push_str(SPACE);
                }
                continue;
            }
            if !in_word && (self.remove_extra_spaces || (self.add_space && !begun)) {
                out.push_str(SPACE);
                begun = true;
            }
            in_word = true;
            out.push(c);
        }
        out
    }
}
