//! Handles that one call at a time may use.

use std::sync::{Mutex, MutexGuard, TryLockError};

use tilewright_c_kernels::tw_status;

use super::status::Failure;

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
        let _ = tilewright_c_kernels::protect(|| {
            // SAFETY: as the caller promises.
            drop(unsafe { Box::from_raw(handle) });
        });
    }
}
