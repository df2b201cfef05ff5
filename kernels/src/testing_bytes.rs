//! Guarded buffers of bytes, for operands that are not `f32`.

use crate::testing::{Guarded, Place};
use core::ops::{Deref, DerefMut};

/// Bytes between poisoned margins, which are compared when it is dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    words: Guarded,
    len: usize,
}

impl Buffer {
    /// What fills an output.
    pub(crate) const FILL: u8 = 0xa5;

    /// An operand with these bytes.
    pub(crate) fn new(bytes: &[u8], place: Place) -> Self {
        let mut buffer = Self::output(bytes.len(), place);
        buffer.copy_from_slice(bytes);
        buffer
    }

    /// An output of so many bytes. They end where the words end that hold them, so that the byte
    /// after the last is a margin or has no access; the bytes before the first are compared.
    pub(crate) fn output(len: usize, place: Place) -> Self {
        let mut words = Guarded::output(len.div_ceil(4), place);
        let fill = u32::from_ne_bytes([Self::FILL; 4]);
        words.fill(f32::from_bits(fill));
        Self { words, len }
    }

    fn spare(&self) -> usize {
        self.words.len() * 4 - self.len
    }

    fn all(&self) -> &[u8] {
        // SAFETY: all bytes of the words are initialised.
        unsafe { core::slice::from_raw_parts(self.words.as_ptr().cast(), self.words.len() * 4) }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.all()[self.spare()..]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (spare, len) = (self.spare(), self.words.len() * 4);
        let words = self.words.as_mut_ptr().cast::<u8>();
        // SAFETY: as in `all`, borrowed mutably with `self`.
        unsafe { &mut core::slice::from_raw_parts_mut(words, len)[spare..] }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.all()[..self.spare()].iter().all(|b| *b == Self::FILL), "written before");
        }
    }
}
