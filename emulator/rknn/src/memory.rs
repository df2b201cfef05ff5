//! Memory that the CPU and the device see each in its own way.

use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use std::alloc::{alloc, dealloc};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Alignment of what the CPU sees.
const PAGE: usize = 4096;

/// Bytes before and behind a buffer that nobody may write, and what is in them.
const GUARD: usize = 64;
const GUARD_BYTE: u8 = 0x5A;

/// What is in memory that nobody has written.
const FRESH: u8 = 0xA5;

/// An allocation.
#[derive(Debug)]
pub(crate) struct Buffer {
    /// The page before the first byte that the CPU sees.
    start: NonNull<u8>,
    pub(crate) size: usize,
    pub(crate) fd: i32,
    pub(crate) domain: i32,
    /// What the device sees.
    device: Mutex<Vec<u8>>,
    pub(crate) freed: AtomicBool,
}

// SAFETY: `start` is the buffer's own allocation; bytes of it are only copied, as a device would do,
// at the times that the interface's contract gives to the library.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(size: usize, fd: i32, domain: i32) -> Option<Self> {
        let layout = Self::layout(size)?;
        // SAFETY: the layout is larger than a page.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the allocation has a page, `size` bytes and a guard.
        unsafe {
            start.write_bytes(GUARD_BYTE, layout.size());
            start.add(PAGE).write_bytes(FRESH, size);
        }
        let device = Mutex::new(vec![FRESH; size]);
        Some(Self { start, size, fd, domain, device, freed: AtomicBool::new(false) })
    }

    fn layout(size: usize) -> Option<Layout> {
        Layout::from_size_align(size.checked_add(PAGE + GUARD)?, PAGE).ok()
    }

    /// Where the CPU sees the first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        // SAFETY: the allocation is longer than a page.
        unsafe { self.start.add(PAGE) }.as_ptr()
    }

    /// Whether the bytes around the buffer are as they were.
    pub(crate) fn is_intact(&self) -> bool {
        let whole = |at: *const u8| {
            // SAFETY: both guards lie in the allocation.
            (0..GUARD).all(|i| unsafe { at.add(i).read_volatile() } == GUARD_BYTE)
        };
        let first = self.address().cast_const();
        whole(first.wrapping_sub(GUARD)) && whole(first.wrapping_add(self.size))
    }

    fn device(&self) -> MutexGuard<'_, Vec<u8>> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of bytes that the CPU sees; the range lies in the buffer.
    pub(crate) fn cpu(&self, offset: usize, bytes: usize) -> Vec<u8> {
        assert!(offset + bytes <= self.size, "checked when bound");
        let mut copy = vec![0; bytes];
        // SAFETY: the range lies in the buffer, `copy` is as long.
        unsafe { self.address().add(offset).copy_to_nonoverlapping(copy.as_mut_ptr(), bytes) };
        copy
    }

    /// Writes bytes where the CPU sees them; the range lies in the buffer.
    pub(crate) fn write_cpu(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.size, "checked when bound");
        // SAFETY: the range lies in the buffer, which no slice of ours overlaps.
        unsafe { self.address().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// A copy of bytes that the device sees.
    pub(crate) fn of_device(&self, offset: usize, bytes: usize) -> Vec<u8> {
        self.device()[offset..][..bytes].to_vec()
    }

    /// Writes bytes where the device sees them.
    pub(crate) fn write_device(&self, offset: usize, bytes: &[u8]) {
        self.device()[offset..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Makes the device see what the CPU sees.
    pub(crate) fn flush(&self, offset: usize, bytes: usize) {
        let copy = self.cpu(offset, bytes);
        self.write_device(offset, &copy);
    }

    /// Makes the CPU see what the device sees.
    pub(crate) fn invalidate(&self, offset: usize, bytes: usize) {
        let copy = self.of_device(offset, bytes);
        self.write_cpu(offset, &copy);
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.freed.load(Ordering::Relaxed)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let layout = Self::layout(self.size).expect("it was made with it");
        // SAFETY: allocated with this layout, and nobody else frees it.
        unsafe { dealloc(self.start.as_ptr(), layout) };
    }
}
