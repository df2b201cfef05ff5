//! Memory for many parts that live together, such as the packed weights of a model.

use core::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapMut, MmapRaw};

use super::TensorError;

/// A large page of most machines.
const PAGE: usize = 2 << 20;

/// Bytes that are mapped at a time; what is not touched of them takes no memory.
const REGION: usize = 64 << 20;

/// Parts start at multiples of this: the width of the widest vector, and a cache line.
const ALIGN: usize = 64;

/// Gives out parts of large pages, one behind the other. A mapping for each part would begin and end in
/// small pages, which take ten times as long to be touched.
#[derive(Default)]
pub(crate) struct Regions(Mutex<Option<Open>>);

/// The region that parts are taken from.
struct Open {
    pages: Arc<MmapRaw>,
    /// Bytes from its start that are given out.
    used: usize,
}

impl Regions {
    /// `len` zero bytes. A region is unmapped when the last of its parts is dropped.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if the memory cannot be had.
    pub(crate) fn part(&self, len: usize) -> Result<Part, TensorError> {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = |open: &Open| (len <= open.room()).then(|| (open.pages.clone(), open.used));
        let (pages, start) = match open.as_ref().and_then(from) {
            Some(found) => found,
            None => {
                let (pages, start) = map(len).ok_or(TensorError::OutOfMemory(len))?;
                (Arc::new(pages), start)
            }
        };
        let used = (start + len).next_multiple_of(ALIGN);
        let next = Open { pages: pages.clone(), used };
        // Of a new region and the old one, the one with more room goes on.
        if open.as_ref().is_none_or(|o| Arc::ptr_eq(&o.pages, &pages) || o.room() < next.room()) {
            *open = Some(next);
        }
        Ok(Part { pages, start, len })
    }
}

impl Open {
    fn room(&self) -> usize {
        self.pages.len().saturating_sub(self.used)
    }
}

/// A new mapping with room for `len` bytes, and where in it the first large page begins.
fn map(len: usize) -> Option<(MmapRaw, usize)> {
    let room = len.max(REGION).checked_add(PAGE)?;
    let pages = MmapMut::map_anon(room).ok()?;
    #[cfg(target_os = "linux")]
    // A hint: without it the pages are small ones.
    let _ = pages.advise(memmap2::Advice::HugePage);
    let start = (pages.as_ptr() as usize).wrapping_neg() % PAGE;
    Some((pages.into(), start))
}

/// Bytes of a region that nobody else has.
pub(crate) struct Part {
    pages: Arc<MmapRaw>,
    start: usize,
    len: usize,
}

#[allow(unsafe_code)]
impl Deref for Part {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `Regions` gives out each byte once, inside the mapping, which lives as long as
        // `pages`; mapped bytes are zero until they are written, only through `deref_mut` below.
        unsafe { core::slice::from_raw_parts(self.pages.as_ptr().add(self.start), self.len) }
    }
}

#[allow(unsafe_code)]
impl DerefMut for Part {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the exclusive borrow of the part is one of its bytes.
        unsafe {
            core::slice::from_raw_parts_mut(self.pages.as_mut_ptr().add(self.start), self.len)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_zero_aligned_and_apart() {
        let regions = Regions::default();
        let sizes = [1, 64, 100, 3 << 20, 0, REGION - 1, REGION + 5, 7, 7];
        let mut parts: Vec<Part> = sizes.iter().map(|&n| regions.part(n).unwrap()).collect();
        for (i, part) in parts.iter_mut().enumerate() {
            assert_eq!(part.as_ptr() as usize % ALIGN, 0);
            assert!(part.len() == sizes[i] && part.iter().all(|&b| b == 0));
            part.fill(i as u8 + 1);
        }
        let all = |i: usize, part: &Part| part.iter().all(|&b| b == i as u8 + 1);
        assert!(parts.iter().enumerate().all(|(i, part)| all(i, part)));
        // Without the rest of its region a part is what it was.
        parts.truncate(3);
        drop(regions);
        assert!(parts.iter().enumerate().all(|(i, part)| all(i, part)));
    }

    #[test]
    fn too_much_is_an_error() {
        let regions = Regions::default();
        for len in [usize::MAX, usize::MAX - PAGE, usize::MAX / 2] {
            assert_eq!(regions.part(len).err(), Some(TensorError::OutOfMemory(len)));
        }
        // What was there before is still given out.
        assert_eq!(regions.part(5).unwrap().len(), 5);
    }
}
