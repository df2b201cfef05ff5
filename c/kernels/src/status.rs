//! Status codes, and types of elements.

use core::ffi::{CStr, c_char};

/// What a function says of its end. Values never change; new ones may be added.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_status {
    /// It is done.
    TW_OK = 0,
    /// A NULL that is not allowed, a number out of range, text that is not UTF-8, options of a size
    /// that no version had.
    TW_INVALID_ARGUMENT = 1,
    /// A file could not be read.
    TW_IO = 2,
    /// A file is damaged, or not of a kind that is known.
    TW_FORMAT = 3,
    /// A model needs what is not supported; the error lists it.
    TW_UNSUPPORTED = 4,
    /// A name or an index that the model does not have.
    TW_NOT_FOUND = 5,
    /// An element type that does not fit.
    TW_TYPE = 6,
    /// A shape that does not fit.
    TW_SHAPE = 7,
    /// The caller's buffer is too small; nothing was written to it.
    TW_BUFFER_TOO_SMALL = 8,
    /// More memory than the limit allows or the system gives.
    TW_OUT_OF_MEMORY = 9,
    /// Another call works on this session.
    TW_BUSY = 10,
    /// Not now: outputs before a run, logits before an evaluation, an input that was never set.
    TW_STATE = 11,
    /// The context of a language model has no room for these tokens; nothing has changed.
    TW_CONTEXT_FULL = 12,
    /// `tw_llm_cancel` ended it.
    TW_CANCELLED = 13,
    /// What was computed is not a number: damaged weights.
    TW_NOT_FINITE = 14,
    /// A fault of the library.
    TW_INTERNAL = 15,
}

/// Names by value.
const NAMES: [&CStr; 16] = [
    c"TW_OK",
    c"TW_INVALID_ARGUMENT",
    c"TW_IO",
    c"TW_FORMAT",
    c"TW_UNSUPPORTED",
    c"TW_NOT_FOUND",
    c"TW_TYPE",
    c"TW_SHAPE",
    c"TW_BUFFER_TOO_SMALL",
    c"TW_OUT_OF_MEMORY",
    c"TW_BUSY",
    c"TW_STATE",
    c"TW_CONTEXT_FULL",
    c"TW_CANCELLED",
    c"TW_NOT_FINITE",
    c"TW_INTERNAL",
];

/// The name of a status: `"TW_OK"` and so on; `"TW_UNKNOWN"` for a number that is none. Never NULL,
/// never to be freed.
///
/// Any thread may call it, several at a time.
#[unsafe(no_mangle)]
pub extern "C" fn tw_status_name(status: i32) -> *const c_char {
    let name = usize::try_from(status).ok().and_then(|i| NAMES.get(i));
    name.copied().unwrap_or(c"TW_UNKNOWN").as_ptr()
}

/// Type of a tensor's elements, in the machine's byte order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_dtype {
    /// `float`.
    TW_F32 = 0,
    /// IEEE half precision, two bytes.
    TW_F16 = 1,
    /// The upper two bytes of a `float`.
    TW_BF16 = 2,
    /// `double`.
    TW_F64 = 3,
    /// `int8_t`.
    TW_I8 = 4,
    /// `uint8_t`.
    TW_U8 = 5,
    /// `int16_t`.
    TW_I16 = 6,
    /// `uint16_t`.
    TW_U16 = 7,
    /// `int32_t`.
    TW_I32 = 8,
    /// `uint32_t`.
    TW_U32 = 9,
    /// `int64_t`.
    TW_I64 = 10,
    /// `uint64_t`.
    TW_U64 = 11,
    /// One byte, 0 or 1.
    TW_BOOL = 12,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn statuses_are_named_by_their_values() {
        let last = tw_status::TW_INTERNAL;
        assert_eq!(NAMES.len(), last as usize + 1);
        assert_eq!(NAMES[last as usize].to_str(), Ok(format!("{last:?}").as_str()));
        let middle = tw_status::TW_BUFFER_TOO_SMALL;
        assert_eq!(NAMES[middle as usize].to_str(), Ok(format!("{middle:?}").as_str()));
        for none in [-1, NAMES.len() as i32, i32::MAX, i32::MIN] {
            // SAFETY: the name lives for ever and ends with a zero.
            assert_eq!(unsafe { CStr::from_ptr(tw_status_name(none)) }, c"TW_UNKNOWN");
        }
    }
}
