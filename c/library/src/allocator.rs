//! Where the library's memory comes from.

use core::alloc::{GlobalAlloc, Layout};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::alloc::System;

use tilewright_c_kernels::{keep, reserve, sized, tw_status};

/// Gives `bytes` bytes aligned to `align`, a power of two, or NULL. Any thread may call it, several at a
/// time; it must not call the library.
pub type tw_alloc_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, bytes: usize, align: usize) -> *mut c_void>;

/// Takes back what the other function gave, with the same numbers.
pub type tw_free_fn = Option<
    unsafe extern "C" fn(user: *mut c_void, memory: *mut c_void, bytes: usize, align: usize),
>;

/// Functions that give memory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_allocator {
    /// `sizeof (tw_allocator)`.
    pub size: usize,
    /// Gives memory.
    pub alloc: tw_alloc_fn,
    /// Takes it back.
    pub free: tw_free_fn,
    /// Is given to both.
    pub user: *mut c_void,
}

type Alloc = unsafe extern "C" fn(*mut c_void, usize, usize) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, usize);

/// Set once, before the first piece is given: `ALLOC` last.
static ALLOC: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static FREE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static USER: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// Pieces in use.
static PIECES: AtomicUsize = AtomicUsize::new(0);

struct Allocator;

fn hooks() -> Option<(Alloc, Free, *mut c_void)> {
    let alloc = ALLOC.load(Ordering::Acquire);
    if alloc.is_null() {
        return None;
    }
    let free = FREE.load(Ordering::Relaxed);
    // SAFETY: `tw_set_allocator` stored functions of these types there, before it stored the first.
    let functions = unsafe {
        (
            core::mem::transmute::<*mut c_void, Alloc>(alloc),
            core::mem::transmute::<*mut c_void, Free>(free),
        )
    };
    Some((functions.0, functions.1, USER.load(Ordering::Relaxed)))
}

// SAFETY: pieces come from the system, from the functions of a program, which promises the same, or from the
// reserve, and go back where they came from.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (bytes, align) = (layout.size(), layout.align());
        PIECES.fetch_add(1, Ordering::Relaxed);
        let found = match hooks() {
            // SAFETY: the program allows the call.
            Some((alloc, _, user)) => unsafe { alloc(user, bytes, align) }.cast(),
            // SAFETY: as the caller promises.
            None => unsafe { System.alloc(layout) },
        };
        let found = if found.is_null() { reserve::alloc(bytes, align) } else { found };
        if found.is_null() {
            PIECES.fetch_sub(1, Ordering::Relaxed);
        }
        found
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let (bytes, align) = (layout.size(), layout.align());
        // SAFETY: as the caller promises it came from `alloc`, which took it from one of these.
        unsafe {
            if reserve::owns(memory) {
                reserve::free(memory, bytes);
            } else {
                match hooks() {
                    Some((_, free, user)) => free(user, memory.cast(), bytes, align),
                    None => System.dealloc(memory, layout),
                }
            }
        }
        PIECES.fetch_sub(1, Ordering::Relaxed);
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // The system's own is faster for large pieces: pages that it has just made are zero.
        if hooks().is_none() {
            // SAFETY: as the caller promises.
            let found = unsafe { System.alloc_zeroed(layout) };
            if !found.is_null() {
                PIECES.fetch_add(1, Ordering::Relaxed);
                return found;
            }
        }
        // SAFETY: as the caller promises; the piece has as many bytes.
        unsafe {
            let found = self.alloc(layout);
            if !found.is_null() {
                found.write_bytes(0, layout.size());
            }
            found
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as the caller promises; the new piece has the bytes that are copied.
        unsafe {
            if hooks().is_none() && !reserve::owns(memory) {
                let found = System.realloc(memory, layout, size);
                if !found.is_null() {
                    return found;
                }
            }
            let found = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !found.is_null() {
                found.copy_from_nonoverlapping(memory, size.min(layout.size()));
                self.dealloc(memory, layout);
            }
            found
        }
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Sets the functions that give all memory of the library: that of models, sessions and results. Code of
/// others that it calls (threads and mapped files of the system, an NPU's library) has its own. To be called
/// first of all, before any other function of the library and from one thread; without it, it is `malloc`.
/// Where the function gives none, a call ends with `TW_OUT_OF_MEMORY`.
///
/// Gives `TW_INVALID_ARGUMENT` if a function is NULL, `TW_STATE` if the library has memory already.
///
/// # Safety
/// `allocator` is NULL or as its type says; its functions may be called by any thread, until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_set_allocator(allocator: *const tw_allocator) -> tw_status {
    // SAFETY: as the caller promises; any bytes of this header's size are functions or NULL.
    let found = unsafe { sized(allocator, size_of::<tw_allocator>()) };
    let found = match found {
        Ok(Some(found)) => found,
        Ok(None) => {
            keep(format_args!("allocator is NULL"));
            return tw_status::TW_INVALID_ARGUMENT;
        }
        Err(wrong) => {
            keep(format_args!("allocator {wrong}"));
            return tw_status::TW_INVALID_ARGUMENT;
        }
    };
    let (Some(alloc), Some(free)) = (found.alloc, found.free) else {
        keep(format_args!("allocator.alloc or allocator.free is NULL"));
        return tw_status::TW_INVALID_ARGUMENT;
    };
    if PIECES.load(Ordering::Relaxed) != 0 || hooks().is_some() {
        keep(format_args!("the allocator must be set before anything else is called"));
        return tw_status::TW_STATE;
    }
    FREE.store(free as *mut c_void, Ordering::Relaxed);
    USER.store(found.user, Ordering::Relaxed);
    ALLOC.store(alloc as *mut c_void, Ordering::Release);
    tw_status::TW_OK
}
