//! SentencePiece's table for normalising characters: a double array (Kanda et al., "Space- and
//! time-efficient string dictionaries", 2018) from character sequences to their replacements.

use super::TokenizerError;

/// The table, with the replacements behind it.
#[derive(Debug)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    /// Replacements, each with a zero byte behind it.
    replacements: Vec<u8>,
}

impl Charsmap {
    /// From the bytes in a file: the length of the array in bytes, the array, the replacements.
    pub(super) fn new(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let short = || TokenizerError::Charsmap("it is shorter than it says");
        let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (units, replacements) = rest.split_at_checked(length).ok_or_else(short)?;
        let (units, odd) = units.as_chunks::<4>();
        if !odd.is_empty() || units.is_empty() {
            return Err(TokenizerError::Charsmap("its array is not of 32-bit words"));
        }
        if replacements.last() != Some(&0) {
            return Err(TokenizerError::Charsmap("its last replacement does not end"));
        }
        if core::str::from_utf8(replacements).is_err() {
            return Err(TokenizerError::Charsmap("its replacements are not UTF-8"));
        }
        let units = units.iter().map(|u| u32::from_le_bytes(*u)).collect();
        Ok(Self { units, replacements: replacements.to_vec() })
    }

    /// `text` with every longest sequence that the table has replaced.
    pub(super) fn apply(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let taken = match self.longest(rest.as_bytes()) {
                Some((len, replacement)) if rest.is_char_boundary(len) => {
                    out.push_str(replacement);
                    len
                }
                _ => {
                    out.push(c);
                    c.len_utf8()
                }
            };
            rest = rest.get(taken..).unwrap_or_default();
        }
        out
    }

    /// Length and replacement of the longest sequence at the beginning of `text`.
    fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let mut found = None;
        let mut at = self.base(0)?;
        for (i, byte) in text.iter().enumerate() {
            at ^= u32::from(*byte);
            let unit = *self.units.get(at as usize)?;
            if *byte == 0 || unit & (1 << 31 | 0xff) != u32::from(*byte) {
                break;
            }
            let base = self.base(at)?;
            at ^= base;
            if unit >> 8 & 1 == 1 {
                let value = *self.units.get(at as usize)? & !(1 << 31);
                found = self.replacement(value as usize).map(|r| (i + 1, r)).or(found);
            }
        }
        found
    }

    fn base(&self, at: u32) -> Option<u32> {
        let unit = *self.units.get(at as usize)?;
        Some((unit >> 10) << ((unit & 1 << 9) >> 6))
    }

    fn replacement(&self, at: usize) -> Option<&str> {
        let rest = self.replacements.get(at..)?;
        let end = rest.iter().position(|b| *b == 0)?;
        core::str::from_utf8(&rest[..end]).ok()
    }
}
