//! Tokens that are found in a text before all others.

use regex_automata::meta::Regex;

use super::TokenizerError;
use super::vocab::{TokenKind, Vocabulary};
use crate::order::sort;

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

/// For an automaton, in bytes. Thousands of special tokens are usual, and take a few hundred for each.
const MEMORY: usize = 1 << 28;

#[derive(Debug)]
struct Finder {
    pattern: Option<Regex>,
    /// Of each pattern the token.
    ids: Vec<u32>,
}

impl Finder {
    fn new(vocabulary: &Vocabulary<'_>, mut ids: Vec<u32>) -> Result<Self, TokenizerError> {
        let text = |id: &u32| {
            let bytes = vocabulary.tokens.get(*id as usize);
            bytes.and_then(|t| core::str::from_utf8(t).ok()).unwrap_or_default()
        };
        // Where several begin, the first pattern that matches is taken.
        sort(&mut ids, |a, b| text(b).len().cmp(&text(a).len()));
        let literals = ids.iter().map(|id| {
            text(id).chars().map(|c| format!("\\x{{{:x}}}", u32::from(c))).collect::<String>()
        });
        let literals: Vec<String> = literals.collect();
        let config = Regex::config().nfa_size_limit(Some(MEMORY));
        let build = || {
            let pattern = Regex::builder().configure(config).build_many(&literals);
            pattern.map_err(|e| TokenizerError::Tables(e.to_string()))
        };
        let pattern = if ids.is_empty() { None } else { Some(build()?) };
        Ok(Self { pattern, ids })
    }
}

impl Specials {
    pub(super) fn new(
        vocabulary: &Vocabulary<'_>,
        kinds: &[TokenKind],
    ) -> Result<Self, TokenizerError> {
        let of_kinds = |wanted: &[TokenKind]| -> Vec<u32> {
            let tokens = vocabulary.tokens.iter().zip(kinds).enumerate();
            let fits = |t: &[u8], k| wanted.contains(k) && core::str::from_utf8(t).is_ok();
            let found = tokens.filter(|(_, (t, k))| !t.is_empty() && fits(t, k));
            found.map(|(id, _)| id as u32).collect()
        };
        let (user, control) = ([TokenKind::UserDefined], [TokenKind::Control, TokenKind::Unknown]);
        let both = [user[0], control[0], control[1]];
        Ok(Self {
            user: Finder::new(vocabulary, of_kinds(&user))?,
            all: Finder::new(vocabulary, of_kinds(&both))?,
            control: Finder::new(vocabulary, of_kinds(&control))?,
            strips: strips(vocabulary, &of_kinds(&both)),
        })
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
        for m in finder.pattern.iter().flat_map(|p| p.find_iter(text)) {
            // White space that the token before has taken may hold the beginning of this one.
            let Some(&id) = finder.ids.get(m.pattern().as_usize()) else { continue };
            if m.start() < start {
                continue;
            }
            push(start, m.start(), Some(id));
            start = m.end();
            if self.strips.get(id as usize).copied().unwrap_or(false) {
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
        let mut rest = text.as_str();
        while let Some(m) = self.control.pattern.as_ref().and_then(|p| p.find(rest)) {
            let first = rest[m.start()..].chars().next().map_or(1, char::len_utf8);
            out.push_str(&rest[..m.start() + first]);
            out.push(SHIELD);
            rest = &rest[m.start() + first..];
        }
        out + rest
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
