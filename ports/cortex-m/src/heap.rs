//! Memory for plans and operands: a stack of allocations, given back when all are.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};

const SIZE: usize = 3 << 20;

#[repr(align(64))]
struct Heap {
    memory: UnsafeCell<[u8; SIZE]>,
    used: AtomicUsize,
    alive: AtomicUsize,
}

// SAFETY: the memory is only handed out in pieces that do not overlap; there is one core, and no
// interrupt handler allocates.
unsafe impl Sync for Heap {}

// SAFETY: `alloc` returns pieces of `memory` that are aligned, inside it and do not overlap, as `used`
// only falls when none is alive.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let start = self.used.load(Ordering::Relaxed).next_multiple_of(layout.align());
        if layout.align() > 64 || layout.size() > SIZE.saturating_sub(start) {
            return core::ptr::null_mut();
        }
        self.used.store(start + layout.size(), Ordering::Relaxed);
        self.alive.fetch_add(1, Ordering::Relaxed);
        self.memory.get().cast::<u8>().wrapping_add(start)
    }

    unsafe fn dealloc(&self, _memory: *mut u8, _layout: Layout) {
        if self.alive.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.used.store(0, Ordering::Relaxed);
        }
    }
}

#[global_allocator]
static HEAP: Heap = Heap {
    memory: UnsafeCell::new([0; SIZE]),
    used: AtomicUsize::new(0),
    alive: AtomicUsize::new(0),
};
