//! What a plan may choose, and how a tuning table writes it down.

use core::fmt;
use core::str::FromStr;

/// How the result of an op is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// From the operands as they are: direct convolution; a product that reads A where it lies.
    Direct,
    /// A product that copies A into tiles first and blocks all three dimensions for the caches.
    Packed,
    /// Winograd's F(2x2, 3x3).
    Winograd2,
    /// Winograd's F(4x4, 3x3).
    Winograd4,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Packed, Self::Winograd2, Self::Winograd4];

    /// The name in tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Packed => "packed",
            Self::Winograd2 => "winograd2",
            Self::Winograd4 => "winograd4",
        }
    }
}

/// One way of computing an op of given sizes: a candidate of the tuner, the decision of a plan.
///
/// Sizes that an op does not have are 0. Written as `direct 1x12x32 chunk 256 block 0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Rows, pixels (rows of A) and channels (columns) of the tile that does most of the work.
    pub tile: [usize; 3],
    /// Length of the reduction between two visits of the output: input channels, or kc.
    pub chunk: usize,
    /// Rows of A, or Winograd tiles, that one pass over the weights serves.
    pub block: usize,
}

/// Sorts the few items that a plan chooses among: stable, and much smaller than the sort for many.
#[cfg(any(feature = "alloc", test))]
pub(crate) fn sort_few<T>(items: &mut [T], before: impl Fn(&T, &T) -> bool) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && before(&items[at], &items[at - 1]) {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, w_ob, c_ob] = self.tile;
        let (name, chunk, block) = (self.algorithm.name(), self.chunk, self.block);
        write!(f, "{name} {rows}x{w_ob}x{c_ob} chunk {chunk} block {block}")
    }
}

/// A text that is no [`Choice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseChoiceError;

impl fmt::Display for ParseChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a choice like `direct 1x12x32 chunk 256 block 0`")
    }
}

impl core::error::Error for ParseChoiceError {}

impl FromStr for Choice {
    type Err = ParseChoiceError;

    fn from_str(text: &str) -> Result<Self, ParseChoiceError> {
        let number = |s: Option<&str>| s?.parse().ok();
        let parse = || {
            let mut words = text.split_ascii_whitespace();
            let name = words.next()?;
            let algorithm = Algorithm::ALL.into_iter().find(|a| a.name() == name)?;
            let mut sizes = words.next()?.split('x');
            let tile = [number(sizes.next())?, number(sizes.next())?, number(sizes.next())?];
            let (chunk, chunk_size) = (words.next()?, number(words.next())?);
            let (block, block_size) = (words.next()?, number(words.next())?);
            let whole = sizes.next().is_none() && words.next().is_none();
            let named = chunk == "chunk" && block == "block";
            (whole && named).then_some(Self {
                algorithm,
                tile,
                chunk: chunk_size,
                block: block_size,
            })
        };
        parse().ok_or(ParseChoiceError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn what_is_written_is_read_again() {
        for algorithm in Algorithm::ALL {
            let choice = Choice { algorithm, tile: [2, 6, 32], chunk: 256, block: 13 };
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "direct",
            "direct 1x12x32",
            "indirect 1x12x32 chunk 256 block 0",
            "direct 1x12 chunk 256 block 0",
            "direct 1x12x32x4 chunk 256 block 0",
            "direct 1x12x32 chunk 256 block 0 0",
            "direct 1x12x32 chunk -1 block 0",
            "direct 1x12x32 block 256 chunk 0",
            "direct 1x12x32 chunk 99999999999999999999999 block 0",
        ] {
            assert_eq!(text.parse::<Choice>(), Err(ParseChoiceError), "{text}");
        }
    }
}
