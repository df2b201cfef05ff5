//! The line of the last failure, per thread: by the standard library if it is there, by the threads of C
//! else, and on machines without threads simply one.

use core::ffi::c_char;
use core::fmt;

/// What was wrong in the last call of this thread that failed: one line without a line end, empty
/// before the first. Never NULL, never to be freed; valid until the next call of this thread that fails.
/// Libraries without an operating system have one for all threads.
#[unsafe(no_mangle)]
pub extern "C" fn tw_last_error() -> *const c_char {
    line()
}

/// Keeps a line. What is below a space becomes one.
pub fn keep(message: fmt::Arguments<'_>) {
    keep_line(message);
}

/// Bytes of a line where it has a fixed place.
#[cfg(not(feature = "std"))]
const ROOM: usize = 512;

/// Writes into a fixed place, and leaves out what has no room.
#[cfg(not(feature = "std"))]
struct Line<'a> {
    place: &'a mut [u8; ROOM],
    used: usize,
}

#[cfg(not(feature = "std"))]
impl fmt::Write for Line<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // The last one stays a zero.
            if let Some(place) = self.place[..ROOM - 1].get_mut(self.used) {
                *place = byte.max(b' ');
                self.used += 1;
            }
        }
        Ok(())
    }
}

#[cfg(not(feature = "std"))]
fn write(place: &mut [u8; ROOM], message: fmt::Arguments<'_>) {
    place.fill(0);
    // Writing there does not fail.
    let _ = fmt::write(&mut Line { place, used: 0 }, message);
}

#[cfg(feature = "std")]
mod by_std {
    use core::cell::RefCell;
    use core::ffi::c_char;
    use core::fmt;
    use std::ffi::CString;
    use std::string::ToString;
    use std::vec::Vec;

    std::thread_local! {
        static LAST: RefCell<CString> = RefCell::default();
    }

    pub(super) fn line() -> *const c_char {
        // A thread that is ending has no line any more.
        LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
    }

    pub(super) fn keep_line(message: fmt::Arguments<'_>) {
        let line: Vec<u8> = message.to_string().bytes().map(|b| b.max(b' ')).collect();
        // No byte is a zero: those below a space are spaces.
        let line = CString::new(line).unwrap_or_default();
        let _ = LAST.try_with(|last| last.replace(line));
    }
}
#[cfg(feature = "std")]
use by_std::{keep_line, line};

#[cfg(all(not(feature = "std"), unix))]
mod by_threads_of_c {
    use super::{ROOM, write};
    use core::ffi::{c_char, c_int, c_uint, c_void};
    use core::fmt;
    use core::ptr;
    use core::sync::atomic::{AtomicUsize, Ordering};

    unsafe extern "C" {
        fn pthread_key_create(key: *mut c_uint, end: unsafe extern "C" fn(*mut c_void)) -> c_int;
        fn pthread_key_delete(key: c_uint) -> c_int;
        fn pthread_getspecific(key: c_uint) -> *mut c_void;
        fn pthread_setspecific(key: c_uint, value: *const c_void) -> c_int;
        fn malloc(bytes: usize) -> *mut c_void;
        fn free(memory: *mut c_void);
    }

    /// The key and one; 0 before the first use.
    static KEY: AtomicUsize = AtomicUsize::new(0);

    fn key() -> Option<c_uint> {
        let known = KEY.load(Ordering::Acquire);
        if known != 0 {
            return Some((known - 1) as c_uint);
        }
        let mut key = 0;
        // SAFETY: the place is writable; `free` is what ends the memory that is kept there.
        if unsafe { pthread_key_create(&mut key, free) } != 0 {
            return None;
        }
        let made = key as usize + 1;
        match KEY.compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(key),
            Err(other) => {
                // SAFETY: this key was made above, and nobody knows it.
                unsafe { pthread_key_delete(key) };
                Some((other - 1) as c_uint)
            }
        }
    }

    pub(super) fn line() -> *const c_char {
        // SAFETY: the key was made.
        let found = key().map_or(ptr::null_mut(), |key| unsafe { pthread_getspecific(key) });
        if found.is_null() { c"".as_ptr() } else { found.cast_const().cast() }
    }

    pub(super) fn keep_line(message: fmt::Arguments<'_>) {
        let Some(key) = key() else { return };
        // SAFETY: the key was made; what is kept under it are `ROOM` bytes of `malloc`, of this thread.
        unsafe {
            let mut place = pthread_getspecific(key);
            if place.is_null() {
                place = malloc(ROOM);
                if place.is_null() {
                    return;
                }
                place.cast::<u8>().write_bytes(0, ROOM);
                if pthread_setspecific(key, place) != 0 {
                    free(place);
                    return;
                }
            }
            write(&mut *place.cast::<[u8; ROOM]>(), message);
        }
    }
}
#[cfg(all(not(feature = "std"), unix))]
use by_threads_of_c::{keep_line, line};

#[cfg(all(not(feature = "std"), not(unix)))]
mod for_all {
    use super::{ROOM, write};
    use core::cell::UnsafeCell;
    use core::ffi::c_char;
    use core::fmt;

    struct Place(UnsafeCell<[u8; ROOM]>);

    // SAFETY: machines without an operating system call the library from one thread at a time, as the
    // header says.
    unsafe impl Sync for Place {}

    static LAST: Place = Place(UnsafeCell::new([0; ROOM]));

    pub(super) fn line() -> *const c_char {
        LAST.0.get().cast_const().cast()
    }

    pub(super) fn keep_line(message: fmt::Arguments<'_>) {
        // SAFETY: there is one thread, and nothing else has a reference to the line.
        write(unsafe { &mut *LAST.0.get() }, message);
    }
}
#[cfg(all(not(feature = "std"), not(unix)))]
use for_all::{keep_line, line};
