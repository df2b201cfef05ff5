//! What the library tells while it works: nothing, unless it is asked.

use core::ffi::{c_char, c_void};
use std::ffi::CString;
use std::sync::{PoisonError, RwLock};

/// How important a line is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_log_level {
    /// A call failed; the line is that of `tw_last_error`.
    TW_LOG_ERROR = 0,
    /// Something works otherwise than asked, such as a device that left an operation to the CPU.
    TW_LOG_WARNING = 1,
    /// What was loaded and made.
    TW_LOG_INFO = 2,
}

/// Is given a line without a line end, valid during the call. Any thread may call it, several at a time. It
/// must not call the library, and must return: neither `longjmp` nor exceptions may pass through.
pub type tw_log_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, line: *const c_char)>;

#[derive(Clone, Copy)]
struct Log {
    tell: unsafe extern "C" fn(*mut c_void, i32, *const c_char),
    user: *mut c_void,
}

// SAFETY: who sets it promises that any thread may call the function with the pointer.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

static LOG: RwLock<Option<Log>> = RwLock::new(None);

/// Sets what is called with lines about the library's work, in the whole process; NULL for nothing, as it is
/// at first. When it returns no thread is in the function that was set before. Any thread may call it, but
/// not from that function. Without a function the library writes nothing anywhere.
///
/// # Safety
/// `tell` may be called with `user` by any thread, until it is replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_set_log(tell: tw_log_fn, user: *mut c_void) {
    let mut log = LOG.write().unwrap_or_else(PoisonError::into_inner);
    *log = tell.map(|tell| Log { tell, user });
}

/// Tells a line, if somebody wants to hear it. What costs time to say is said by `line`.
pub(super) fn tell(level: tw_log_level, line: impl FnOnce() -> String) {
    let log = LOG.read().unwrap_or_else(PoisonError::into_inner);
    let Some(log) = *log else { return };
    log.line(level, line());
}

impl Log {
    fn line(&self, level: tw_log_level, line: String) {
        let bytes: Vec<u8> = line.bytes().map(|b| b.max(b' ')).collect();
        // No byte is a zero.
        let line = CString::new(bytes).unwrap_or_default();
        // SAFETY: who set it allows the call; the line lives until it returns.
        unsafe { (self.tell)(self.user, level as i32, line.as_ptr()) };
    }
}
