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

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a table, in the order of Kanda's `Darts-clone`: a node's children lie at its base,
    /// exclusive-or their bytes, the value of a node that ends a sequence at the base itself.
    fn table(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut replacements = Vec::new();
        let pairs: Vec<(&[u8], usize)> = pairs
            .iter()
            .map(|(from, to)| {
                let at = replacements.len();
                replacements.extend([to.as_bytes(), b"\0"].concat());
                (from.as_bytes(), at)
            })
            .collect();
        let (mut units, mut used) = (vec![0u32; 1 << 12], vec![false; 1 << 12]);
        used[0] = true;
        let mut nodes = vec![(0usize, Vec::new())];
        while let Some((node, prefix)) = nodes.pop() {
            let value = pairs.iter().find(|p| p.0 == prefix).map(|p| p.1);
            let longer =
                pairs.iter().filter(|p| p.0.starts_with(&prefix) && p.0.len() > prefix.len());
            let mut next: Vec<u8> = longer.map(|p| p.0[prefix.len()]).collect();
            next.sort_unstable();
            next.dedup();
            let places = |base: usize| {
                let children = next.iter().map(move |b| (node ^ base) ^ usize::from(*b));
                children.chain(value.map(|_| node ^ base))
            };
            let free = |base: &usize| places(*base).all(|at| !used[at]);
            let base = (1..1 << 11).find(free).unwrap();
            places(base).for_each(|at| used[at] = true);
            units[node] |= (base as u32) << 10;
            if let Some(value) = value {
                units[node] |= 1 << 8;
                units[node ^ base] = value as u32 | 1 << 31;
            }
            for byte in next {
                let child = node ^ base ^ usize::from(byte);
                units[child] = u32::from(byte);
                nodes.push((child, [&prefix[..], &[byte]].concat()));
            }
        }
        let words = units.iter().flat_map(|u| u.to_le_bytes());
        let mut bytes = ((units.len() * 4) as u32).to_le_bytes().to_vec();
        bytes.extend(words.chain(replacements));
        bytes
    }

    #[test]
    fn longest_sequences_are_replaced() {
        let pairs = [
            ("\u{fb01}", "fi"),
            ("\u{2460}", "1"),
            ("e\u{301}", "\u{e9}"),
            ("e", "E"),
            ("\u{a0}", " "),
            ("\u{200b}", ""),
            ("abc", "x"),
        ];
        let map = Charsmap::new(&table(&pairs)).unwrap();
        let cases = [
            ("", ""),
            ("\u{fb01}n", "fin"),
            ("\u{2460}\u{a0}\u{2460}", "1 1"),
            ("e\u{301}e", "\u{e9}E"),
            ("a\u{200b}b", "ab"),
            ("ababcab", "abxab"),
            ("z\u{1f600}\0y", "z\u{1f600}\0y"),
            ("e\u{302}", "E\u{302}"),
        ];
        for (text, want) in cases {
            assert_eq!(map.apply(text), want, "{text:?}");
        }
    }

    #[test]
    fn tables_that_lead_nowhere_change_nothing() {
        let whole = table(&[("a", "b"), ("cd", "e")]);
        let units = u32::from_le_bytes(whole[..4].try_into().unwrap()) as usize;
        // Every word of the array that is used, one bit or all of it wrong.
        for at in (4..4 + units).step_by(4).filter(|&at| whole[at..at + 4] != [0; 4]) {
            for change in (0..32).map(|bit| 1u32 << bit).chain([u32::MAX]) {
                let mut bytes = whole.clone();
                for (byte, change) in bytes[at..at + 4].iter_mut().zip(change.to_le_bytes()) {
                    *byte ^= change;
                }
                let text = Charsmap::new(&bytes).unwrap().apply("xacdx");
                assert!(text.starts_with('x') && text.ends_with('x'), "{text:?}");
            }
        }
    }
}
