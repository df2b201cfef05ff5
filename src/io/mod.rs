//! Files that hold inputs and outputs: arrays, pictures and sounds.
//!
//! The readers work on bytes in memory, compare every size in a header with what is there before
//! they allocate, and never panic on any bytes. Arrays (`.npy`) are always available; pictures and
//! sounds come with the feature `media`. To add a format, write `read(&[u8]) -> Result<..>` in a
//! file of its own; which file name means which format is the program's business.

pub mod npy;
#[cfg(feature = "media")]
pub mod picture;
#[cfg(feature = "media")]
pub mod wav;

/// A decoded picture: rows from the top, samples of one pixel side by side, 8 bits each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Samples per pixel: 1 grey, 3 red-green-blue, 4 with alpha (not premultiplied).
    pub channels: usize,
    /// `height * width * channels` samples.
    pub samples: Vec<u8>,
}
