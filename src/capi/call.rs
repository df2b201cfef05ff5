//! What happens around every call: panics are caught, errors kept for [`tw_last_error`].
//!
//! [`tw_last_error`]: super::tw_last_error

use core::ffi::CStr;
use core::ptr;

use tilewright_c_kernels::{EXHAUSTED, Threw, keep, protect, reserve, tw_status};

use super::log::{tell, tw_log_level};
use super::status::Failure;

/// Runs the work of a function; keeps its error, and turns a panic into one.
pub(super) fn call(work: impl FnOnce() -> Result<(), Failure>) -> tw_status {
    let work = || {
        if reserve::is_low() {
            return Err(Failure::new(tw_status::TW_OUT_OF_MEMORY, EXHAUSTED));
        }
        work()
    };
    let failure = match protect(work) {
        Ok(Ok(())) => return tw_status::TW_OK,
        Ok(Err(failure)) => failure,
        Err(Threw(text)) => {
            Failure::new(tw_status::TW_INTERNAL, format!("a fault of the library: {text}"))
        }
    };
    keep(format_args!("{}", failure.message));
    tell(tw_log_level::TW_LOG_ERROR, || failure.message);
    failure.status
}

/// What a pointer that must not be NULL points to.
pub(super) fn given<'a, T: ?Sized>(value: Option<&'a T>, name: &str) -> Result<&'a T, Failure> {
    value.ok_or_else(|| Failure::argument(format!("{name} is NULL")))
}

/// Writes a result behind an out-pointer.
///
/// # Safety
/// `out` is NULL or writable for a `T`.
pub(super) unsafe fn put<T>(out: *mut T, name: &str, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: as the caller promises.
    unsafe { out.write(value) };
    Ok(())
}

/// A string that ends with a zero byte.
///
/// # Safety
/// `text` is NULL or points to bytes that end with a zero and stay as they are for `'a`.
pub(super) unsafe fn text<'a>(
    text: *const core::ffi::c_char,
    name: &str,
) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{name} is NULL")));
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// `len` values from a pointer, which may be NULL if there are none.
///
/// # Safety
/// `data` is NULL or readable for `len` values that stay as they are for `'a`.
pub(super) unsafe fn slice<'a, T>(
    data: *const T,
    len: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(Failure::argument(format!("{name} is NULL, but should have {len} elements")));
    }
    if !data.is_aligned() {
        return Err(Failure::argument(format!("{name} is not aligned for its elements")));
    }
    if len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::argument(format!("{name} has {len} elements, more than memory")));
    }
    // SAFETY: not NULL, aligned and of a length that can be; the rest is as the caller promises.
    Ok(unsafe { core::slice::from_raw_parts(data, len) })
}

/// Copies values out by the convention of two calls: `*count` always becomes their number, and with a
/// `capacity` below it (0 and NULL, to ask) nothing else is written.
///
/// # Safety
/// `out` is NULL or writable for `capacity` values, `count` NULL or writable.
pub(super) unsafe fn copy_out<T: Copy>(
    values: &[T],
    out: *mut T,
    capacity: usize,
    count: *mut usize,
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    unsafe { put(count, "count", values.len())? };
    if out.is_null() && capacity == 0 {
        return Ok(());
    }
    if values.len() > capacity {
        let message = format!("room for {capacity} elements, {} are needed", values.len());
        return Err(Failure::new(tw_status::TW_BUFFER_TOO_SMALL, message));
    }
    if out.is_null() {
        return Err(Failure::argument(format!("NULL, with room for {capacity} elements")));
    }
    // SAFETY: there is room for all, as the caller promises.
    unsafe { ptr::copy_nonoverlapping(values.as_ptr(), out, values.len()) };
    Ok(())
}
