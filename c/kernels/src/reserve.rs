//! Memory for the moment when the system gives no more.
//!
//! A library of Rust asks for small pieces of memory all the time, and ends the process if one is refused.
//! So an allocator of the library takes them from here then, and calls that begin while much of it is in use
//! are refused (`error::call`): the call that met the limit still finds its way out, with a status.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes: pages of the process's image that are not touched before they are needed.
const BYTES: usize = 8 << 20;

/// Bytes of a piece.
const GRAIN: usize = 64;

/// Longest piece.
const LONGEST: usize = 2 << 20;

/// Bytes in use from which on calls are refused.
const LOW: usize = 64 << 10;

const GRAINS: usize = BYTES / GRAIN;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; BYTES]>);

// SAFETY: pieces that do not overlap are handed out; the bytes are not read here.
unsafe impl Sync for Memory {}

struct Map(UnsafeCell<[u64; GRAINS / 64]>);

// SAFETY: who holds `LOCK` has it alone.
unsafe impl Sync for Map {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; BYTES]));
/// A bit for each grain in use.
static MAP: Map = Map(UnsafeCell::new([0; GRAINS / 64]));
static LOCK: AtomicBool = AtomicBool::new(false);
static USED: AtomicUsize = AtomicUsize::new(0);

fn locked<R>(work: impl FnOnce(&mut [u64; GRAINS / 64]) -> R) -> R {
    while LOCK.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        core::hint::spin_loop();
    }
    // SAFETY: who set the lock has the map alone, until it is cleared.
    let result = work(unsafe { &mut *MAP.0.get() });
    LOCK.store(false, Ordering::Release);
    result
}

fn set(map: &mut [u64; GRAINS / 64], grain: usize, used: bool) {
    let bit = 1 << (grain % 64);
    if used {
        map[grain / 64] |= bit;
    } else {
        map[grain / 64] &= !bit;
    }
}

/// A piece, or NULL: aligned to at most 4096 bytes.
pub fn alloc(bytes: usize, align: usize) -> *mut u8 {
    let count = bytes.div_ceil(GRAIN).max(1);
    if bytes > LONGEST || align > 4096 {
        return core::ptr::null_mut();
    }
    let step = (align / GRAIN).max(1);
    let found = locked(|map| {
        let free = |map: &[u64], g: usize| map[g / 64] & (1 << (g % 64)) == 0;
        let first = (0..=GRAINS - count)
            .step_by(step)
            .find(|&first| (first..first + count).all(|g| free(map, g)))?;
        (first..first + count).for_each(|g| set(map, g, true));
        Some(first)
    });
    let Some(first) = found else { return core::ptr::null_mut() };
    USED.fetch_add(count * GRAIN, Ordering::Relaxed);
    MEMORY.0.get().cast::<u8>().wrapping_add(first * GRAIN)
}

/// Whether a piece is from here.
pub fn owns(memory: *const u8) -> bool {
    memory.addr().wrapping_sub(MEMORY.0.get().addr()) < BYTES
}

/// Takes a piece of so many bytes back.
///
/// # Safety
/// It came from [`alloc()`] for as many bytes, and nothing uses it any more.
pub unsafe fn free(memory: *mut u8, bytes: usize) {
    let first = (memory.addr() - MEMORY.0.get().addr()) / GRAIN;
    let count = bytes.div_ceil(GRAIN).max(1);
    locked(|map| (first..first + count).for_each(|g| set(map, g, false)));
    USED.fetch_sub(count * GRAIN, Ordering::Relaxed);
}

/// Whether so much is in use that no call should begin.
pub fn is_low() -> bool {
    USED.load(Ordering::Relaxed) >= LOW
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn pieces_do_not_overlap_and_come_back() {
        assert!(alloc(LONGEST + 1, 8).is_null() && alloc(1, 8192).is_null());
        let sizes = [1usize, 64, 65, 4096, 100, 7000];
        let mut pieces = Vec::new();
        for (i, &bytes) in sizes.iter().cycle().take(60).enumerate() {
            let memory = alloc(bytes, if i % 7 == 0 { 4096 } else { 8 });
            assert!(!memory.is_null() && owns(memory));
            assert!(i % 7 != 0 || memory.addr().is_multiple_of(4096));
            // SAFETY: the piece has as many bytes.
            unsafe { memory.write_bytes(i as u8, bytes) };
            pieces.push((memory, bytes, i as u8));
        }
        assert!(is_low());
        for (memory, bytes, value) in pieces {
            for at in 0..bytes {
                // SAFETY: as above.
                assert_eq!(unsafe { *memory.add(at) }, value);
            }
            // SAFETY: it came from `alloc`.
            unsafe { free(memory, bytes) };
        }
        assert!(!is_low() && USED.load(Ordering::Relaxed) == 0);
        let all: Vec<_> = core::iter::from_fn(|| {
            let memory = alloc(LONGEST, 8);
            (!memory.is_null()).then_some(memory)
        })
        .collect();
        assert_eq!(all.len(), BYTES / LONGEST);
        // SAFETY: they came from `alloc`.
        all.into_iter().for_each(|memory| unsafe { free(memory, LONGEST) });
        assert!(!owns(&raw const LOCK as *const u8) || BYTES == 0);
    }
}
