//! Versions, the last error, and handles that one call at a time may use.

use core::ffi::c_char;
use std::sync::{Mutex, MutexGuard, TryLockError};

use super::call::last_error;
use super::status::{Failure, tw_status};

/// The version of the interface that this header describes; see `tw_abi_version`.
pub const TW_ABI_VERSION: u32 = 1;

/// The version of the interface of the library that is linked: programs work with it if it equals
/// `TW_ABI_VERSION`. It grows when a function or a structure changes in a way that old programs cannot
/// use, and not when something is added.
#[unsafe(no_mangle)]
pub extern "C" fn tw_abi_version() -> u32 {
    TW_ABI_VERSION
}

/// The version of the library: `"0.1.0"`. Never NULL, never to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn tw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// What was wrong in the last call of this thread that failed: one line without a line end, empty
/// before the first. Never NULL; valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn tw_last_error() -> *const c_char {
    last_error()
}

/// What a handle holds that one call at a time may use.
pub(super) struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// The value, if no other call has it. One that a fault of the library left half-done is lost.
    pub(super) fn take(&self) -> Result<MutexGuard<'_, T>, Failure> {
        self.0.try_lock().map_err(|e| match e {
            TryLockError::WouldBlock => {
                Failure::new(tw_status::TW_BUSY, "another call works on this session")
            }
            TryLockError::Poisoned(_) => Failure::new(
                tw_status::TW_INTERNAL,
                "a fault of the library has spoiled this session; free it",
            ),
        })
    }
}

/// A handle for C.
pub(super) fn into_handle<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// Frees a handle.
///
/// # Safety
/// `handle` is NULL or came from [`into_handle`], and nothing uses it any more.
pub(super) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // A drop that panics must not unwind into C.
        let _ = super::call::call(|| {
            // SAFETY: as the caller promises.
            drop(unsafe { Box::from_raw(handle) });
            Ok(())
        });
    }
}
