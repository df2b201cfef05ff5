//! How kernels of devices are shaped.

use core::fmt;
use core::str::FromStr;

/// Largest number in a [`Way`].
const MOST: usize = 4096;

/// How a kernel of a device computes: the shape of its tiles and work-groups. A kernel uses those of the
/// numbers that it knows; the others are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// Elements of a vector.
    pub vec: usize,
    /// Rows of a tile, and its columns (vectors of them, where rows are contiguous).
    pub tile: [usize; 2],
    /// Steps of the reduction in one COMPUTE.
    pub unroll: usize,
    /// Work-items that share a sum.
    pub lanes: usize,
    /// Tiles that a work-group computes at a time, and how often.
    pub items: [usize; 2],
    /// Work-items of a group, where none is given by what they share.
    pub group: usize,
}

impl Default for Way {
    fn default() -> Self {
        Self { vec: 1, tile: [1; 2], unroll: 1, lanes: 1, items: [1; 2], group: 1 }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vec, tile: [rows, columns], unroll, lanes, items: [at_once, turns], group } =
            self;
        write!(
            f,
            "vec {vec} tile {rows}x{columns} unroll {unroll} lanes {lanes} items {at_once}x{turns} \
             group {group}"
        )
    }
}

/// A text that is no [`Way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseWayError;

impl fmt::Display for ParseWayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected `vec V tile RxC unroll U lanes L items IxT group G`, numbers from 1 to 4096",
        )
    }
}

impl core::error::Error for ParseWayError {}

impl FromStr for Way {
    type Err = ParseWayError;

    fn from_str(text: &str) -> Result<Self, ParseWayError> {
        let number = |text: &str| text.parse().ok().filter(|n| (1..=MOST).contains(n));
        let pair = |text: &str| {
            let (a, b) = text.split_once('x')?;
            Some([number(a)?, number(b)?])
        };
        let parse = || {
            let words: Vec<&str> = text.split_ascii_whitespace().collect();
            let &[
                "vec",
                vec,
                "tile",
                tile,
                "unroll",
                unroll,
                "lanes",
                lanes,
                "items",
                items,
                "group",
                group,
            ] = &words[..]
            else {
                return None;
            };
            Some(Self {
                vec: number(vec)?,
                tile: pair(tile)?,
                unroll: number(unroll)?,
                lanes: number(lanes)?,
                items: pair(items)?,
                group: number(group)?,
            })
        };
        parse().ok_or(ParseWayError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let way = Way { vec: 16, tile: [8, 2], unroll: 4, lanes: 32, items: [1, 16], group: 64 };
        assert_eq!(way.to_string().parse(), Ok(way));
        let text = way.to_string();
        for wrong in [
            "",
            "vec 16",
            &text.replace("16", "0"),
            &text.replace("8x2", "8"),
            &(text.clone() + " x"),
        ] {
            assert_eq!(wrong.parse::<Way>(), Err(ParseWayError), "{wrong}");
        }
        assert!(text.replace("group 64", "group 5000").parse::<Way>().is_err());
    }
}
