//! Tokens that are found in a text before all others.

use super::trie::Trie;
use super::vocab::{TokenKind, Vocabulary};

/// Stands inside what only looks like a control token. A code point that Unicode will never use for
/// text, so that no text is lost by taking it out again.
const SHIELD: char = '\u{fdd0}';

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

/// Finds special tokens: of all that match the leftmost, of those the longest.
#[derive(Debug)]
pub(super) struct Specials {
    /// Tokens that users define; they are pieces of text.
    user: Finder,
    /// Those, and the ones that steer the model.
    all: Finder,
    /// Those that steer the model.
    control: Finder,
    /// Tokens behind which white space is left out.
    strips: Vec<bool>,
}

/// Some tokens, found by their texts.
#[derive(Debug)]
struct Finder(Trie);

/// Where a token is in a text.
struct Found {
    start: usize,
    end: usize,
    id: u32,
}

impl Finder {
    fn new(vocabulary: &Vocabulary<'_>, ids: &[u32]) -> Self {
        let mut trie = Trie::new();
        // Of those with one text the first is kept.
        for id in ids.iter().rev() {
            trie.insert(vocabulary.tokens[*id as usize], *id);
        }
        Self(trie)
    }

    /// The leftmost token in `text` from byte `from` on, and of those there the longest.
    fn find(&self, text: &str, from: usize) -> Option<Found> {
        (from..text.len()).find_map(|start| {
            let (len, id) = self.0.prefixes(&text.as_bytes()[start..]).last()?;
            Some(Found { start, end: start + len, id })
        })
    }
}

impl Specials {
    pub(super) fn new(vocabulary: &Vocabulary<'_>, kinds: &[TokenKind]) -> Self {
        let of_kinds = |wanted: &[TokenKind]| -> Vec<u32> {
            let tokens = vocabulary.tokens.iter().zip(kinds).enumerate();
            let fits = |t: &[u8], k| wanted.contains(k) && core::str::from_utf8(t).is_ok();
            let found = tokens.filter(|(_, (t, k))| !t.is_empty() && fits(t, k));
            found.map(|(id, _)| id as u32).collect()
        };
        let (user, control) = ([TokenKind::UserDefined], [TokenKind::Control, TokenKind::Unknown]);
        let both = [user[0], control[0], control[1]];
        Self {
            user: Finder::new(vocabulary, &of_kinds(&user)),
            all: Finder::new(vocabulary, &of_kinds(&both)),
            control: Finder::new(vocabulary, &of_kinds(&control)),
            strips: strips(vocabulary, &of_kinds(&both)),
        }
    }

    /// The parts of `text`: tokens, and what is between them. Tokens that steer the model are found
    /// only with `control`.
    pub(super) fn parts<'a>(&self, text: &'a str, control: bool) -> Vec<Part<'a>> {
        let finder = if control { &self.all } else { &self.user };
        let mut parts = Vec::new();
        let mut start = 0;
        let mut push = |from: usize, to: usize, token: Option<u32>| {
            let between = text.get(from..to).filter(|t| !t.is_empty());
            parts.extend(between.map(Part::Text));
            parts.extend(token.map(Part::Token));
        };
        while let Some(found) = finder.find(text, start) {
            push(start, found.start, Some(found.id));
            start = found.end;
            if self.strips.get(found.id as usize).copied().unwrap_or(false) {
                let rest = text.get(start..).unwrap_or_default();
                let space = |c: char| c.is_ascii_whitespace() || c == '\u{b}';
                start = text.len() - rest.trim_start_matches(space).len();
            }
        }
        push(start, text.len(), None);
        parts
    }

    /// `text` changed such that no token that steers the model is found in it; tokenizing takes the
    /// change back.
    pub(super) fn shield(&self, text: &str) -> String {
        let text = unshield(text);
        let mut out = String::with_capacity(text.len());
        let mut start = 0;
        while let Some(found) = self.control.find(&text, start) {
            let first = text[found.start..].chars().next().map_or(1, char::len_utf8);
            out.push_str(&text[start..found.start + first]);
            out.push(SHIELD);
            start = found.start + first;
        }
        out + &text[start..]
    }
}

/// The text without what [`Specials::shield`] put into it.
pub(super) fn unshield(text: &str) -> String {
    text.replace(SHIELD, "")
}

/// Tokens behind which white space is left out: files do not say, but Phi-3 was trained so.
fn strips(vocabulary: &Vocabulary<'_>, special: &[u32]) -> Vec<bool> {
    let name = vocabulary.name.unwrap_or_default().to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return Vec::new();
    }
    let mut strips = vec![false; vocabulary.tokens.len()];
    for id in special.iter().map(|id| *id as usize) {
        let exceptions: [&[u8]; 3] = [b"<unk>", b"<s>", b"<|endoftext|>"];
        strips[id] = !exceptions.contains(&vocabulary.tokens[id]);
    }
    if let Some(eos) = vocabulary.tokens.iter().position(|t| *t == b"</s>") {
        strips[eos] = true;
    }
    strips
}
