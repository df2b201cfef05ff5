//! Where the segments of a convolution of bytes begin.

use crate::KernelError;

/// Where the segments of a reduction begin, in words: a list with an allocator, else one of a fixed size.
#[cfg(any(feature = "alloc", test))]
pub(super) type Segments = alloc::vec::Vec<isize>;

#[cfg(any(feature = "alloc", test))]
pub(super) fn push(segments: &mut Segments, at: isize) -> Result<(), KernelError> {
    segments.push(at);
    Ok(())
}

/// Most segments without an allocator: a 3 x 3 filter over 1280 channels, one of 3 x 3 with gaps over 448.
#[cfg(not(any(feature = "alloc", test)))]
const MOST: usize = 256;

#[cfg(not(any(feature = "alloc", test)))]
#[derive(Clone, Debug)]
pub(super) struct Segments {
    list: [isize; MOST],
    len: usize,
}

#[cfg(not(any(feature = "alloc", test)))]
impl Default for Segments {
    fn default() -> Self {
        Self { list: [0; MOST], len: 0 }
    }
}

#[cfg(not(any(feature = "alloc", test)))]
impl core::ops::Deref for Segments {
    type Target = [isize];

    fn deref(&self) -> &[isize] {
        &self.list[..self.len]
    }
}

#[cfg(not(any(feature = "alloc", test)))]
pub(super) fn push(segments: &mut Segments, at: isize) -> Result<(), KernelError> {
    let what =
        "a filter of more than 256 rows of taps times blocks of channels, without an allocator,";
    let full = KernelError::Unsupported { op: "qconv", what };
    *segments.list.get_mut(segments.len).ok_or(full)? = at;
    segments.len += 1;
    Ok(())
}
