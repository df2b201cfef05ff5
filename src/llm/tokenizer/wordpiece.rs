//! WordPiece: text is normalised and cut into words, and each word is written by the longest tokens
//! that fit, from its beginning.

use core::fmt;

use regex_automata::util::syntax;
use regex_syntax::hir::{Class, ClassUnicode, HirKind};
use unicode_normalization::UnicodeNormalization;

use super::TokenizerError;
use super::trie::Trie;
use super::vocab::{SPACE, TokenKind, Vocabulary};

/// Tables for one vocabulary of kind `bert`. Tokens that begin a word have U+2581 before them.
pub(super) struct WordPiece {
    trie: Trie,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
    /// Characters that are left out; those that are words of their own.
    classes: [ClassUnicode; 2],
    mark: ClassUnicode,
}

impl fmt::Debug for WordPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WordPiece").field("unknown", &self.unknown).finish_non_exhaustive()
    }
}

impl WordPiece {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        vocabulary.index(kinds, TokenKind::is_text)?;
        let mut trie = Trie::new();
        for (id, (text, kind)) in vocabulary.tokens.iter().zip(kinds).enumerate() {
            if kind.is_text() && !text.is_empty() {
                trie.insert(text, id as u32);
            }
        }
        let lowercase = vocabulary.lowercase.unwrap_or(true);
        // The ranges of Chinese characters are those of BERT's own program.
        let words = concat!(
            r"[\p{P}[\p{S}&&\p{ASCII}]\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{20000}-\u{2a6df}",
            r"\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{f900}-\u{faff}",
            r"\u{2f800}-\u{2fa1f}]"
        );
        Ok(Self {
            trie,
            unknown: unknown.ok_or(TokenizerError::NoFallback)?,
            lowercase,
            strip_accents: vocabulary.strip_accents.unwrap_or(lowercase),
            classes: [class(r"[\p{C}\u{fffd}]")?, class(words)?],
            mark: class(r"\p{Mn}")?,
        })
    }

    /// Adds the tokens of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut word = String::new();
        for c in text.chars() {
            if self.strip_accents && !c.is_ascii() {
                let parts: Vec<char> = core::iter::once(c).nfd().collect();
                parts.into_iter().for_each(|part| self.take(part, &mut word, out));
            } else {
                self.take(c, &mut word, out);
            }
        }
        self.finish(&mut word, out);
    }

    /// One character, normalised but for case.
    fn take(&self, c: char, word: &mut String, out: &mut Vec<u32>) {
        if c.is_ascii_alphanumeric() {
            word.push(if self.lowercase { c.to_ascii_lowercase() } else { c });
            return;
        }
        if c.is_whitespace() {
            self.finish(word, out);
            return;
        }
        let [left_out, alone] = &self.classes;
        if contains(left_out, c) || (self.strip_accents && contains(&self.mark, c)) {
            return;
        }
        let alone = contains(alone, c);
        if alone {
            self.finish(word, out);
        }
        match self.lowercase {
            true => word.extend(c.to_lowercase()),
            false => word.push(c),
        }
        if alone {
            self.finish(word, out);
        }
    }

    /// The tokens of a word, or the unknown token if it cannot be written by tokens.
    fn finish(&self, word: &mut String, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        word.insert_str(0, SPACE);
        let begin = out.len();
        let mut rest = word.as_bytes();
        while !rest.is_empty() {
            let Some((len, token)) = self.trie.prefixes(rest).last() else {
                out.truncate(begin);
                out.push(self.unknown);
                break;
            };
            out.push(token);
            rest = rest.get(len..).unwrap_or_default();
        }
        word.clear();
    }
}

/// The characters that a class of regular expressions contains.
fn class(pattern: &str) -> Result<ClassUnicode, TokenizerError> {
    let parsed = syntax::parse(pattern).map_err(|e| TokenizerError::Tables(e.to_string()))?;
    match parsed.into_kind() {
        HirKind::Class(Class::Unicode(class)) => Ok(class),
        _ => Err(TokenizerError::Tables(format!("{pattern} is not a class of characters"))),
    }
}

/// Whether a class, whose ranges ascend, contains a character.
fn contains(class: &ClassUnicode, c: char) -> bool {
    let ranges = class.ranges();
    let after = ranges.partition_point(|range| range.start() <= c);
    after.checked_sub(1).and_then(|i| ranges.get(i)).is_some_and(|range| c <= range.end())
}
