//! Byte-level BPE: text is cut by rules, and in each piece the pair with the lowest rank is merged
//! first.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::TokenizerError;
use super::pieces::{Pieces, Seeded};
use super::pre::Splitter;
use super::vocab::{TokenKind, Vocabulary, duplicate, keys};

/// Tables for one vocabulary of kind `gpt2`.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    /// What tokens stand for, as bytes. Results of merges that are no tokens come after the tokens.
    pieces: Pieces,
    tokens: u32,
    /// Symbol of each byte.
    bytes: Vec<u32>,
    /// Rank and result of merging two symbols.
    merges: HashMap<u64, (u32, u32), Seeded>,
    unknown: Option<u32>,
}

#[derive(Clone, Copy)]
struct Symbol {
    /// Number of its text.
    piece: u32,
    previous: u32,
    next: u32,
}

/// No neighbour; as a piece, merged into the one before.
const NONE: u32 = u32::MAX;

impl Bpe {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
        splitter: Splitter,
    ) -> Result<Self, TokenizerError> {
        let merges = vocabulary.merges.as_ref().ok_or(TokenizerError::Missing(keys::MERGES))?;
        let alphabet = Alphabet::new();
        let mut pieces = decoded(vocabulary, kinds, &alphabet)?;
        let tokens = pieces.len() as u32;
        let full = || TokenizerError::Tokens(tokens as usize);
        let mut symbol = |bytes: &[u8]| match pieces.get(bytes) {
            Some(piece) => Some(piece),
            None => {
                let piece = pieces.push(bytes)?;
                pieces.enter(piece);
                Some(piece)
            }
        };
        let bytes = (0..=255).map(|b| symbol(&[b])).collect::<Option<Vec<u32>>>();
        let bytes = bytes.ok_or_else(full)?;
        let mut ranks = HashMap::with_capacity_and_hasher(merges.len(), Seeded::default());
        let mut joined = Vec::new();
        for (rank, text) in merges.iter().enumerate() {
            joined.clear();
            let (left, right) = parts(text, &alphabet, &mut joined).ok_or_else(|| {
                let text = String::from_utf8_lossy(text).into_owned();
                TokenizerError::Merge { index: rank, text }
            })?;
            let both = (symbol(&joined[left]), symbol(&joined[right]), symbol(&joined));
            let (Some(left), Some(right), Some(result)) = both else { return Err(full()) };
            ranks.entry(key(left, right)).or_insert((rank as u32, result));
        }
        Ok(Self { splitter, pieces, tokens, bytes, merges: ranks, unknown: vocabulary.unknown })
    }

    /// What a token stands for.
    pub(super) fn piece(&self, id: u32) -> &[u8] {
        if id < self.tokens { self.pieces.text(id) } else { &[] }
    }

    /// Bytes that no token stands for alone.
    pub(super) fn missing_bytes(&self) -> usize {
        self.bytes.iter().filter(|b| **b >= self.tokens).count()
    }

    /// Adds the tokens of `text`.
    pub(super) fn encode(&self, text: &str, out: &mut Vec<u32>) {
        let mut work = Work::default();
        for range in self.splitter.split(text) {
            let piece = &text.as_bytes()[range];
            let whole = self.splitter.whole_pieces().then(|| self.pieces.get(piece)).flatten();
            match whole.filter(|id| *id < self.tokens) {
                Some(id) => out.push(id),
                None => self.merge(piece, &mut work, out),
            }
        }
    }

    fn merge(&self, text: &[u8], work: &mut Work, out: &mut Vec<u32>) {
        let Work { symbols, heap } = work;
        symbols.clear();
        heap.clear();
        symbols.extend(text.iter().enumerate().map(|(i, b)| {
            let i = i as u32;
            Symbol {
                piece: self.bytes[usize::from(*b)],
                previous: i.wrapping_sub(1),
                next: if i as usize + 1 == text.len() { NONE } else { i + 1 },
            }
        }));
        for left in 1..symbols.len() as u32 {
            heap.extend(self.pair(symbols, left - 1, left));
        }
        while let Some(Reverse((rank, left))) = heap.pop() {
            let Symbol { piece, next: right, .. } = symbols[left as usize];
            if piece == NONE || right == NONE {
                continue;
            }
            // Pairs stay in the heap when one of the two is merged with another neighbour.
            let found = self.merges.get(&key(piece, symbols[right as usize].piece));
            let Some((_, result)) = found.filter(|(r, _)| *r == rank) else { continue };
            let next = symbols[right as usize].next;
            symbols[right as usize].piece = NONE;
            symbols[left as usize].piece = *result;
            symbols[left as usize].next = next;
            if next != NONE {
                symbols[next as usize].previous = left;
                heap.extend(self.pair(symbols, left, next));
            }
            let previous = symbols[left as usize].previous;
            if previous != NONE {
                heap.extend(self.pair(symbols, previous, left));
            }
        }
        for symbol in symbols.iter().filter(|s| s.piece != NONE) {
            self.emit(symbol.piece, out);
        }
    }

    fn pair(&self, symbols: &[Symbol], left: u32, right: u32) -> Option<Reverse<(u32, u32)>> {
        let pair = key(symbols[left as usize].piece, symbols[right as usize].piece);
        self.merges.get(&pair).map(|(rank, _)| Reverse((*rank, left)))
    }

    /// The token, or those of the bytes of a result that is none. Bytes without token become the
    /// unknown token; without one they are left out, as other programs do.
    fn emit(&self, piece: u32, out: &mut Vec<u32>) {
        if piece < self.tokens {
            out.push(piece);
            return;
        }
        for byte in self.pieces.text(piece) {
            let token = Some(self.bytes[usize::from(*byte)]).filter(|t| *t < self.tokens);
            out.extend(token.or(self.unknown));
        }
    }
}

/// Memory used again for every piece of a text.
#[derive(Default)]
struct Work {
    symbols: Vec<Symbol>,
    /// Lowest rank first, then farthest to the left.
    heap: BinaryHeap<Reverse<(u32, u32)>>,
}

fn key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// What the tokens stand for. Texts made of other characters than those for bytes, and those that
/// are not made by merging, stand for themselves.
fn decoded(
    vocabulary: &Vocabulary<'_>,
    kinds: &[TokenKind],
    alphabet: &Alphabet,
) -> Result<Pieces, TokenizerError> {
    let mut pieces = Pieces::with_capacity(vocabulary.tokens.len());
    let mut literal = Vec::new();
    let mut bytes = Vec::new();
    for (id, (text, kind)) in vocabulary.tokens.iter().zip(kinds).enumerate() {
        bytes.clear();
        let merged = matches!(kind, TokenKind::Normal | TokenKind::Unused | TokenKind::Byte);
        let decodes = merged && alphabet.decode(text, &mut bytes).is_some();
        let stands_for = if decodes { &bytes } else { &text[..] };
        let id = pieces.push(stands_for).ok_or(TokenizerError::Tokens(id))?;
        if decodes && !text.is_empty() {
            if let Some(first) = pieces.enter(id) {
                return Err(duplicate(text, first, id));
            }
        } else {
            literal.push(id);
        }
    }
    let mut others = Pieces::with_capacity(literal.len());
    for (n, id) in literal.iter().enumerate() {
        let text = pieces.text(*id).to_vec();
        let number = others.push(&text).ok_or(TokenizerError::Tokens(n))?;
        let twin = if text.is_empty() { None } else { others.enter(number) };
        if let Some(first) = twin.and_then(|t| literal.get(t as usize)) {
            return Err(duplicate(&text, *first, *id));
        }
        // Found before all others in a text, but merges may make it too.
        if kinds.get(*id as usize) == Some(&TokenKind::UserDefined) && !text.is_empty() {
            pieces.enter(*id);
        }
    }
    Ok(pieces)
}

/// The two parts of a merge, as ranges of the bytes added to `joined`.
fn parts(
    text: &[u8],
    alphabet: &Alphabet,
    joined: &mut Vec<u8>,
) -> Option<(core::ops::Range<usize>, core::ops::Range<usize>)> {
    let space = text.iter().skip(1).position(|b| *b == b' ')? + 1;
    alphabet.decode(text.get(..space)?, joined)?;
    let middle = joined.len();
    alphabet.decode(text.get(space + 1..)?, joined)?;
    let end = joined.len();
    (middle > 0 && end > middle).then_some((0..middle, middle..end))
}

/// The characters that byte-level vocabularies write for bytes (GPT-2's table): printable ones stand
/// for themselves, the others for the characters from U+0100 on.
struct Alphabet {
    bytes: [Option<u8>; 0x144],
}

impl Alphabet {
    fn new() -> Self {
        let mut bytes = [None; 0x144];
        let mut other = 0x100;
        for byte in 0..=255u8 {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let at = if printable { usize::from(byte) } else { other };
            other += usize::from(!printable);
            if let Some(slot) = bytes.get_mut(at) {
                *slot = Some(byte);
            }
        }
        Self { bytes }
    }

    /// Adds the bytes that `text` stands for to `out`; `None` if a character stands for none.
    fn decode(&self, text: &[u8], out: &mut Vec<u8>) -> Option<()> {
        for c in core::str::from_utf8(text).ok()?.chars() {
            out.push(self.bytes.get(c as usize).copied().flatten()?);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_every_byte_once() {
        let alphabet = Alphabet::new();
        let mut bytes: Vec<u8> = alphabet.bytes.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        let mut out = Vec::new();
        assert!(alphabet.decode("ĠHi\u{10a}\u{143}".as_bytes(), &mut out).is_some());
        assert_eq!(out, b" Hi\n\xad");
        assert!(alphabet.decode("漢".as_bytes(), &mut out).is_none());
        assert!(alphabet.decode(b" ", &mut out).is_none());
    }
}
