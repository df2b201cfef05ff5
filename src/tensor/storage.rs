//! Memory behind tensors.

use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use super::TensorError;

/// One cache line, the unit of allocation.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes that start at a multiple of 64, the width of the widest vector.
#[derive(Default)]
pub struct AlignedBytes {
    memory: Memory,
    len: usize,
}

enum Memory {
    Lines(Vec<Line>),
    /// Pages of its own, which the system makes large ones where it can: touching new memory in
    /// small pages takes ten times as long, and walking through it misses the TLB.
    Pages(memmap2::MmapMut),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Lines(Vec::new())
    }
}

/// From here on memory is mapped: a few large pages.
const MAPPED: usize = 4 << 20;

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if the memory cannot be had.
    pub fn zeroed(len: usize) -> Result<Self, TensorError> {
        if len >= MAPPED {
            let pages =
                memmap2::MmapMut::map_anon(len).map_err(|_| TensorError::OutOfMemory(len))?;
            #[cfg(target_os = "linux")]
            // A hint: without it the pages are small ones.
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Ok(Self { memory: Memory::Pages(pages), len });
        }
        let count = len.div_ceil(size_of::<Line>());
        // `vec![0; n]` gives untouched zero pages but aborts when memory runs out, so ask first.
        let mut probe: Vec<Line> = Vec::new();
        probe.try_reserve_exact(count).map_err(|_| TensorError::OutOfMemory(len))?;
        drop(probe);
        Ok(Self { memory: Memory::Lines(bytemuck::zeroed_vec(count)), len })
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Lines(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Pages(pages) => &pages[..self.len],
        }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Lines(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Pages(pages) => &mut pages[..self.len],
        }
    }
}

/// Immutable shared bytes with an identity: two storages with one id hold the same data, so
/// results derived from them (packed weights, folded constants) can be kept by id.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    id: u64,
    bytes: Bytes,
}

enum Bytes {
    Owned(AlignedBytes),
    Shared(bytes::Bytes),
}

impl Storage {
    /// Storage that owns its bytes.
    pub fn owned(bytes: AlignedBytes) -> Self {
        Self::new(Bytes::Owned(bytes))
    }

    /// Storage over a part of something larger, such as a mapped file. Not necessarily aligned.
    pub fn shared(bytes: bytes::Bytes) -> Self {
        Self::new(Bytes::Shared(bytes))
    }

    /// The bytes, if they are owned and nobody else shares them.
    pub(crate) fn into_unique(self) -> Option<AlignedBytes> {
        match Arc::try_unwrap(self.0).ok()?.bytes {
            Bytes::Owned(bytes) => Some(bytes),
            Bytes::Shared(_) => None,
        }
    }

    /// The identity of the data.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    fn new(bytes: Bytes) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Inner { id: NEXT.fetch_add(1, Ordering::Relaxed), bytes }))
    }
}

impl Deref for Storage {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0.bytes {
            Bytes::Owned(b) => b,
            Bytes::Shared(b) => b,
        }
    }
}
