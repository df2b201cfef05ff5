//! What a static library needs that has neither the standard library nor a program of Rust around it.

/// A fault of the library: all arguments are checked before anything is done. Nothing can be told to the
/// caller here, so nothing goes on.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(unix)]
    {
        unsafe extern "C" {
            fn abort() -> !;
        }
        // SAFETY: it may be called at any time.
        unsafe { abort() }
    }
    #[cfg(not(unix))]
    loop {
        core::hint::spin_loop();
    }
}

/// What the core library, which was built for unwinding, refers to where a linker keeps all of it. Nothing unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Memory of plans: that of C.
#[cfg(all(feature = "alloc", unix))]
mod memory {
    use core::alloc::{GlobalAlloc, Layout};
    use core::ffi::{c_int, c_void};

    unsafe extern "C" {
        fn malloc(bytes: usize) -> *mut c_void;
        fn realloc(memory: *mut c_void, bytes: usize) -> *mut c_void;
        fn posix_memalign(memory: *mut *mut c_void, align: usize, bytes: usize) -> c_int;
        fn free(memory: *mut c_void);
    }

    struct OfC;

    /// What `malloc` aligns to.
    const ALIGN: usize = 2 * size_of::<usize>();

    // SAFETY: the functions of C give memory of the size asked for, aligned to what is asked for by
    // `posix_memalign` and to `ALIGN` by the others, and take back what any of them gave.
    unsafe impl GlobalAlloc for OfC {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let mut found = core::ptr::null_mut();
            // SAFETY: as above; the place for the pointer is writable.
            unsafe {
                if layout.align() <= ALIGN {
                    return malloc(layout.size()).cast();
                }
                posix_memalign(&mut found, layout.align(), layout.size());
            }
            found.cast()
        }

        unsafe fn dealloc(&self, memory: *mut u8, _: Layout) {
            // SAFETY: as the caller promises, it came from here.
            unsafe { free(memory.cast()) }
        }

        unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            // SAFETY: as the caller promises, it came from here.
            unsafe {
                if layout.align() <= ALIGN {
                    return realloc(memory.cast(), size).cast();
                }
                let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                if !new.is_null() {
                    new.copy_from_nonoverlapping(memory, size.min(layout.size()));
                    free(memory.cast());
                }
                new
            }
        }
    }

    #[global_allocator]
    static OF_C: OfC = OfC;
}
