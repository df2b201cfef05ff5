//! SentencePiece's BPE: neighbours that together are a token are merged, the highest score first.

use core::cmp::Reverse;
use std::collections::BinaryHeap;

use super::TokenizerError;
use super::pieces::Pieces;
use super::vocab::{SPACE, TokenKind, Vocabulary, byte_of, keys};

/// Tables for one vocabulary of kind `llama`.
#[derive(Debug)]
pub(super) struct Spm {
    /// Texts as in the file, those that can come from text in the index.
    pieces: Pieces,
    /// Scores as numbers that are ordered like them.
    ranks: Vec<i32>,
    /// Token of each byte.
    bytes: Vec<Option<u32>>,
    unknown: Option<u32>,
    longest: usize,
    add_space: bool,
}

/// A piece of the text, in a chain of those that are left.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    len: usize,
    previous: usize,
    next: usize,
    token: Option<u32>,
}

/// No neighbour.
const NONE: usize = usize::MAX;

/// Two neighbours that can be merged: the higher score first, then the one farther to the left.
type Pair = (i32, Reverse<usize>, usize, u32);

impl Spm {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
        unknown: Option<u32>,
    ) -> Result<Self, TokenizerError> {
        if vocabulary.scores.is_none() {
            return Err(TokenizerError::Missing(keys::SCORES));
        }
        let bytes = byte_tokens(vocabulary, kinds)?;
        if unknown.is_none() && bytes.iter().any(Option::is_none) {
            return Err(TokenizerError::NoFallback);
        }
        let pieces = vocabulary.index(kinds, TokenKind::is_text)?;
        let count = vocabulary.tokens.len() as u32;
        Ok(Self {
            pieces,
            ranks: (0..count).map(|id| ordered(vocabulary.score(id))).collect(),
            bytes,
            unknown,
            longest: vocabulary.tokens.iter().map(|t| t.len()).max().unwrap_or(0),
            add_space: vocabulary.add_space_prefix.unwrap_or(true),
        })
    }

    pub(super) fn byte(&self, byte: u8) -> Option<u32> {
        self.bytes.get(usize::from(byte)).copied().flatten()
    }

    /// Adds the tokens of `text`; `first` if nothing or a special token is before it.
    pub(super) fn encode(&self, text: &str, first: bool, out: &mut Vec<u32>) {
        self.merge(&with_marks(text, first && self.add_space), out);
    }

    fn merge(&self, text: &str, out: &mut Vec<u32>) {
        let mut symbols = self.characters(text);
        let mut heap: BinaryHeap<Pair> = BinaryHeap::with_capacity(symbols.len());
        for left in 1..symbols.len() {
            heap.extend(self.pair(text, &symbols, left - 1, left));
        }
        while let Some((_, Reverse(left), len, token)) = heap.pop() {
            let right = symbols[left].next;
            // Pairs stay in the heap when one of the two is merged with another neighbour.
            if right == NONE
                || symbols[left].len == 0
                || symbols[left].len + symbols[right].len != len
            {
                continue;
            }
            let next = symbols[right].next;
            symbols[right].len = 0;
            symbols[left] = Symbol { len, next, token: Some(token), ..symbols[left] };
            if next != NONE {
                symbols[next].previous = left;
                heap.extend(self.pair(text, &symbols, left, next));
            }
            if symbols[left].previous != NONE {
                heap.extend(self.pair(text, &symbols, symbols[left].previous, left));
            }
        }
        for symbol in symbols.iter().filter(|s| s.len > 0) {
            match symbol.token {
                Some(token) => out.push(token),
                None => self.fall_back(&text.as_bytes()[symbol.start..][..symbol.len], out),
            }
        }
    }

    fn characters(&self, text: &str) -> Vec<Symbol> {
        let mut symbols = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let (len, i) = (c.len_utf8(), symbols.len());
            let token = self.pieces.get(&text.as_bytes()[start..start + len]);
            let previous = if i == 0 { NONE } else { i - 1 };
            symbols.push(Symbol { start, len, previous, next: i + 1, token });
        }
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
        symbols
    }

    fn pair(&self, text: &str, symbols: &[Symbol], left: usize, right: usize) -> Option<Pair> {
        let len = symbols[left].len + symbols[right].len;
        if len > self.longest {
            return None;
        }
        let token = self.pieces.get(&text.as_bytes()[symbols[left].start..][..len])?;
        let rank = self.ranks.get(token as usize)?;
        Some((*rank, Reverse(left), len, token))
    }

    /// A character that is no token, as bytes, or as unknown if a byte has no token.
    fn fall_back(&self, bytes: &[u8], out: &mut Vec<u32>) {
        if bytes.iter().all(|b| self.byte(*b).is_some()) {
            out.extend(bytes.iter().filter_map(|b| self.byte(*b)));
        } else {
            out.extend(self.unknown);
        }
    }
}

/// `text` with U+2581 where it has spaces, and before it if there is a `first`.
pub(super) fn with_marks(text: &str, first: bool) -> String {
    let mut marked = String::with_capacity(text.len() + text.len() / 2 + SPACE.len());
    if first {
        marked.push_str(SPACE);
    }
    for (i, part) in text.split(' ').enumerate() {
        if i > 0 {
            marked.push_str(SPACE);
        }
        marked.push_str(part);
    }
    marked
}

/// The tokens of single bytes.
pub(super) fn byte_tokens(
    vocabulary: &Vocabulary<'_>,
    kinds: &[TokenKind],
) -> Result<Vec<Option<u32>>, TokenizerError> {
    let mut bytes = vec![None; 256];
    for (id, (text, kind)) in vocabulary.tokens.iter().zip(kinds).enumerate() {
        if *kind != TokenKind::Byte {
            continue;
        }
        let id = id as u32;
        let wrong = || {
            let text = String::from_utf8_lossy(text).into_owned();
            TokenizerError::ByteToken { id, text }
        };
        bytes[usize::from(byte_of(text).ok_or_else(wrong)?)] = Some(id);
    }
    Ok(bytes)
}

/// A number that is ordered like the finite number `x`.
fn ordered(x: f32) -> i32 {
    let bits = x.to_bits() as i32;
    if bits < 0 { !(bits & i32::MAX) } else { bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_ordered_like_scores() {
        let scores = [f32::MIN, -1e9, -2.5, -1e-30, 0.0, 1e-30, 1.0, f32::MAX];
        assert!(scores.windows(2).all(|w| ordered(w[0]) < ordered(w[1])));
    }
}
