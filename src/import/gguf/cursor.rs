//! Reading numbers and texts one after the other, with every length checked first.

use bytes::Bytes;

use super::GgufError;

/// A position in the bytes of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a Bytes) -> Self {
        Self { bytes, at: 0 }
    }

    /// The position in bytes.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes after the position.
    pub(super) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes of something called `what`.
    pub(super) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], GgufError> {
        let found = usize::try_from(len).ok().and_then(|n| {
            let end = self.at.checked_add(n)?;
            Some((end, self.bytes.get(self.at..end)?))
        });
        let Some((end, found)) = found else {
            let (offset, left) = (self.at, self.left());
            return Err(GgufError::Truncated { what, offset, needed: len, left });
        };
        self.at = end;
        Ok(found)
    }

    /// Bytes that were taken, sharing the file's memory.
    pub(super) fn shared(&self, taken: &'a [u8]) -> Bytes {
        self.bytes.slice_ref(taken)
    }

    /// What was read since position `start`, sharing the file's memory.
    pub(super) fn since(&self, start: usize) -> Bytes {
        self.bytes.slice(start.min(self.at)..self.at)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    pub(super) fn magic(&mut self) -> Result<[u8; 4], GgufError> {
        self.array("the header")
    }

    /// A text: its length in 64 bits, then its bytes, of which there may be `most`.
    pub(super) fn text(&mut self, what: &'static str, most: u64) -> Result<&'a [u8], GgufError> {
        let offset = self.at;
        let len = self.u64(what)?;
        if len > most {
            return Err(GgufError::Length { what, offset, found: len, most });
        }
        self.take(len, what)
    }

    /// A count, checked against what the rest of the file can hold when each item has at least
    /// `smallest` bytes, and against `most`.
    pub(super) fn check_count(
        &self,
        what: &'static str,
        found: u64,
        smallest: u64,
        most: u64,
    ) -> Result<(), GgufError> {
        let most = most.min(self.left() as u64 / smallest);
        if found > most {
            return Err(GgufError::Count { what, found, most });
        }
        Ok(())
    }
}
