//! BPE over bytes, or over characters: text is cut by rules, and in each piece the pair with the lowest rank is
//! merged first.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::TokenizerError;
use super::pieces::{Pieces, Seeded};
use super::pre::Splitter;
use super::spm::{byte_tokens, with_marks};
use super::vocab::{TokenKind, Vocabulary, duplicate, keys};

/// Tables for one vocabulary of kind `gpt2` or `gemma4`.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    /// Whether characters are merged rather than bytes, and tokens are written as themselves, with a mark for spaces.
    characters: bool,
    /// What is merged to tokens: what they stand for, or how they are written. Results of merges that are no tokens
    /// come after the tokens.
    pieces: Pieces,
    tokens: u32,
    /// Symbol of each byte, or its token; [`NONE`] if it has none.
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
    /// Of kind `gpt2`.
    pub(super) fn of_bytes(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
        splitter: Splitter,
    ) -> Result<Self, TokenizerError> {
        let alphabet = Alphabet::new();
        let pieces = decoded(vocabulary, kinds, &alphabet)?;
        let mut this =
            Self::merging(vocabulary, splitter, pieces, &|text, out| alphabet.decode(text, out))?;
        let symbols = (0..=255).map(|b| symbol(&mut this.pieces, &[b])).collect::<Option<Vec<_>>>();
        this.bytes = symbols.ok_or(TokenizerError::Tokens(this.tokens as usize))?;
        Ok(this)
    }

    /// Of kind `gemma4`.
    pub(super) fn of_characters(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
        splitter: Splitter,
    ) -> Result<Self, TokenizerError> {
        let pieces = vocabulary.index(kinds, TokenKind::is_text)?;
        let mut this = Self::merging(vocabulary, splitter, pieces, &|text, out| {
            out.extend_from_slice(text);
            Some(())
        })?;
        this.characters = true;
        let bytes = byte_tokens(vocabulary, kinds)?;
        this.bytes = bytes.into_iter().map(|token| token.unwrap_or(NONE)).collect();
        Ok(this)
    }

    /// With the merges of a vocabulary, whose texts `read` reads, and no symbols of bytes.
    fn merging(
        vocabulary: &Vocabulary<'_>,
        splitter: Splitter,
        mut pieces: Pieces,
        read: &Read<'_>,
    ) -> Result<Self, TokenizerError> {
        let list = vocabulary.merges.as_ref().ok_or(TokenizerError::Missing(keys::MERGES))?;
        let tokens = pieces.len() as u32;
        let mut merges = HashMap::with_capacity_and_hasher(list.len(), Seeded::default());
        let mut joined = Vec::new();
        for (rank, text) in list.iter().enumerate() {
            joined.clear();
            let (left, right) = parts(text, read, &mut joined).ok_or_else(|| {
                let text = String::from_utf8_lossy(text).into_owned();
                TokenizerError::Merge { index: rank, text }
            })?;
            let mut symbol = |bytes: &[u8]| symbol(&mut pieces, bytes);
            let both = (symbol(&joined[left]), symbol(&joined[right]), symbol(&joined));
            let (Some(left), Some(right), Some(result)) = both else {
                return Err(TokenizerError::Tokens(tokens as usize));
            };
            merges.entry(key(left, right)).or_insert((rank as u32, result));
        }
        let (characters, bytes, unknown) = (false, Vec::new(), vocabulary.unknown);
        Ok(Self { splitter, characters, pieces, tokens, bytes, merges, unknown })
    }

    /// Whether tokens are written with a mark for spaces.
    pub(super) fn writes_marks(&self) -> bool {
        self.characters
    }

    /// What a token stands for, or how it is written.
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
        let marked = self.characters.then(|| with_marks(text, false));
        let text = marked.as_deref().unwrap_or(text);
        for range in self.splitter.split(text) {
            let piece = &text[range];
            // Runs of line breaks, where lines are not cut any further.
            let breaks = self.characters && piece.starts_with('\n');
            let whole = (breaks || self.splitter.whole_pieces())
                .then(|| self.pieces.get(piece.as_bytes()))
                .flatten();
            match whole.filter(|id| *id < self.tokens) {
                Some(id) => out.push(id),
                None if self.characters => self.merge_characters(piece, &mut work, out),
                None => {
                    work.symbols.clear();
                    piece.bytes().for_each(|b| work.push(self.bytes[usize::from(b)]));
                    self.merge(&mut work, out);
                }
            }
        }
    }

    /// Nothing is merged over a character that neither tokens nor merges have.
    fn merge_characters(&self, text: &str, work: &mut Work, out: &mut Vec<u32>) {
        work.symbols.clear();
        for (at, c) in text.char_indices() {
            let bytes = &text.as_bytes()[at..at + c.len_utf8()];
            match self.pieces.get(bytes) {
                Some(piece) => work.push(piece),
                None => {
                    self.merge(work, out);
                    work.symbols.clear();
                    self.spell(bytes, out);
                }
            }
        }
        self.merge(work, out);
    }

    /// Merges symbols that come one behind the other, and adds their tokens.
    fn merge(&self, work: &mut Work, out: &mut Vec<u32>) {
        let Work { symbols, heap } = work;
        heap.clear();
        if let Some(last) = symbols.last_mut() {
            last.next = NONE;
        }
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

    /// The token, or those of the bytes of a result that is none.
    fn emit(&self, piece: u32, out: &mut Vec<u32>) {
        match piece < self.tokens {
            true => out.push(piece),
            false => self.spell(self.pieces.text(piece), out),
        }
    }

    /// The tokens of bytes. Those without token become the unknown token; without one they are left out, as other
    /// programs do.
    fn spell(&self, bytes: &[u8], out: &mut Vec<u32>) {
        for byte in bytes {
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

impl Work {
    /// Adds a symbol behind the others.
    fn push(&mut self, piece: u32) {
        let at = self.symbols.len() as u32;
        self.symbols.push(Symbol { piece, previous: at.wrapping_sub(1), next: at + 1 });
    }
}

/// Reads the text of a token into bytes that are merged; `None` if it cannot be one.
type Read<'a> = dyn Fn(&[u8], &mut Vec<u8>) -> Option<()> + 'a;

/// The number of a text, which is entered if it is not there; `None` if there is no room.
fn symbol(pieces: &mut Pieces, bytes: &[u8]) -> Option<u32> {
    pieces.get(bytes).or_else(|| {
        let piece = pieces.push(bytes)?;
        pieces.enter(piece);
        Some(piece)
    })
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
    read: &Read<'_>,
    joined: &mut Vec<u8>,
) -> Option<(core::ops::Range<usize>, core::ops::Range<usize>)> {
    let space = text.iter().skip(1).position(|b| *b == b' ')? + 1;
    read(text.get(..space)?, joined)?;
    let middle = joined.len();
    read(text.get(space + 1..)?, joined)?;
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
