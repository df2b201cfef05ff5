//! The texts of a vocabulary, one after the other, and the way from a text to its token.

use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;

/// Strings of bytes by number, with an index over those that were entered into it.
///
/// One allocation for all texts and one for the index: a vocabulary of 128,000 tokens is ready in
/// some milliseconds.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// End of each text in `bytes`.
    ends: Vec<u32>,
    /// Open addressing: numbers of texts, [`EMPTY`] where there is none.
    slots: Vec<u32>,
    entered: usize,
    /// From the system, so that nobody can prepare texts that collide.
    seed: u64,
}

const EMPTY: u32 = u32::MAX;

impl Pieces {
    /// Room for about `count` texts.
    pub(super) fn with_capacity(count: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(count.saturating_mul(7)),
            ends: Vec::with_capacity(count),
            slots: vec![EMPTY; (count.saturating_mul(2)).next_power_of_two().max(16)],
            entered: 0,
            seed: RandomState::new().build_hasher().finish(),
        }
    }

    /// Number of texts.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Adds a text without entering it into the index, and returns its number; `None` if there is
    /// no room for it in 4 GB.
    pub(super) fn push(&mut self, text: &[u8]) -> Option<u32> {
        let number = u32::try_from(self.ends.len()).ok().filter(|n| *n != EMPTY)?;
        let end = u32::try_from(self.bytes.len().checked_add(text.len())?).ok()?;
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        Some(number)
    }

    /// The text with this number, empty if there is none.
    pub(super) fn text(&self, number: u32) -> &[u8] {
        let i = number as usize;
        let start = if i == 0 { 0 } else { self.ends.get(i - 1).map_or(0, |e| *e as usize) };
        let end = self.ends.get(i).map_or(start, |e| *e as usize);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Enters a text that is here already into the index. If an equal one is there, that stays, and
    /// its number is returned.
    pub(super) fn enter(&mut self, number: u32) -> Option<u32> {
        if self.entered * 2 >= self.slots.len() {
            self.grow();
        }
        let hash = hash(self.seed, self.text(number));
        let slot = self.slot(hash, self.text(number));
        if self.slots[slot] != EMPTY {
            return Some(self.slots[slot]);
        }
        self.slots[slot] = number;
        self.entered += 1;
        None
    }

    /// The number of an entered text.
    pub(super) fn get(&self, text: &[u8]) -> Option<u32> {
        let number = self.slots[self.slot(hash(self.seed, text), text)];
        (number != EMPTY).then_some(number)
    }

    /// Where `text` is, or would be.
    fn slot(&self, hash: u64, text: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        // At most half of the slots are taken, so this ends.
        while self.slots[at] != EMPTY && self.text(self.slots[at]) != text {
            at = (at + 1) & mask;
        }
        at
    }

    fn grow(&mut self) {
        let old = core::mem::take(&mut self.slots);
        self.slots = vec![EMPTY; old.len() * 2];
        for number in old.into_iter().filter(|n| *n != EMPTY) {
            let slot = self.slot(hash(self.seed, self.text(number)), self.text(number));
            self.slots[slot] = number;
        }
    }
}

/// Folds a product of 128 bits, which mixes every bit of both factors.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

fn hash(seed: u64, text: &[u8]) -> u64 {
    let mut state = seed ^ (text.len() as u64).wrapping_mul(ODD);
    let (words, rest) = text.as_chunks::<8>();
    for word in words {
        state = fold(state ^ u64::from_le_bytes(*word), ODD);
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    fold(state ^ u64::from_le_bytes(last), ODD | seed << 1)
}

/// Hashes keys of at most 8 bytes, such as pairs of token numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Mix;

    fn build_hasher(&self) -> Mix {
        Mix(self.0)
    }
}

/// See [`Seeded`].
#[derive(Debug)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash(self.0, bytes);
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = fold(self.0 ^ n, ODD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_again_and_duplicates_reported() {
        let mut pieces = Pieces::with_capacity(2);
        for i in 0..10_000u32 {
            let text = format!("{i:x}").repeat(1 + i as usize % 4);
            assert_eq!(pieces.push(text.as_bytes()), Some(i));
        }
        for i in 0..10_000 {
            let first = pieces.enter(i);
            assert_eq!(pieces.text(first.unwrap_or(i)), pieces.text(i));
        }
        assert_eq!(pieces.len(), 10_000);
        assert_eq!(pieces.get(b"270f"), None, "written four times");
        assert_eq!(pieces.get(b"270f270f270f270f"), Some(9999));
        assert_eq!(pieces.push(b"0"), Some(10_000));
        assert_eq!(pieces.enter(10_000), Some(0));
        assert_eq!(pieces.text(20_000), b"");
        assert_eq!(pieces.get(b""), None);
    }
}
