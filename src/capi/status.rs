//! Status codes, and which of them an error is.

use core::ffi::{CStr, c_char};

use crate::Error;
use crate::graph::GraphError;
use crate::import::{ImportError, InputError};
#[cfg(feature = "llm")]
use crate::llm::LlmError;
use crate::tensor::TensorError;
use tilewright_kernels::KernelError;

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
#[unsafe(no_mangle)]
pub extern "C" fn tw_status_name(status: i32) -> *const c_char {
    let name = usize::try_from(status).ok().and_then(|i| NAMES.get(i));
    name.copied().unwrap_or(c"TW_UNKNOWN").as_ptr()
}

/// A failure on its way to C: its code and its line.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: tw_status,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(status: tw_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// An argument that cannot be used.
    pub(super) fn argument(message: impl Into<String>) -> Self {
        Self::new(tw_status::TW_INVALID_ARGUMENT, message)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::new(of_error(&e), e.to_string())
    }
}

fn of_error(e: &Error) -> tw_status {
    match e {
        Error::Import(e) => of_import(e),
        Error::Graph(e) => of_graph(e),
        Error::Kernel(KernelError::UnknownIsa { .. }) => tw_status::TW_INVALID_ARGUMENT,
        Error::Kernel(_) => tw_status::TW_UNSUPPORTED,
        Error::Tensor(e) => of_tensor(e),
        #[cfg(feature = "llm")]
        Error::Llm(e) => of_llm(e),
        Error::UnknownInput { .. } => tw_status::TW_NOT_FOUND,
        Error::MissingInput { .. } => tw_status::TW_STATE,
        Error::RepeatedInput(_) => tw_status::TW_INVALID_ARGUMENT,
        Error::InputType { .. } => tw_status::TW_TYPE,
    }
}

fn of_import(e: &ImportError) -> tw_status {
    match e {
        ImportError::Io { .. } => tw_status::TW_IO,
        ImportError::Unsupported(_) => tw_status::TW_UNSUPPORTED,
        ImportError::Input { source: InputError::Unknown { .. }, .. } => tw_status::TW_NOT_FOUND,
        ImportError::Input { source: InputError::NotGiven, .. } => tw_status::TW_STATE,
        ImportError::Input { .. } => tw_status::TW_SHAPE,
        ImportError::Graph(e) => of_graph(e),
        _ => tw_status::TW_FORMAT,
    }
}

fn of_graph(e: &GraphError) -> tw_status {
    match e {
        GraphError::Memory { .. } => tw_status::TW_OUT_OF_MEMORY,
        GraphError::Tensor(e) => of_tensor(e),
        GraphError::At { source, .. } => of_graph(source),
        GraphError::UnsupportedDType { .. } | GraphError::Unsupported { .. } => {
            tw_status::TW_UNSUPPORTED
        }
        GraphError::Kernel(_) => tw_status::TW_UNSUPPORTED,
        GraphError::UnsetLeaf(_) => tw_status::TW_STATE,
        _ => tw_status::TW_SHAPE,
    }
}

fn of_tensor(e: &TensorError) -> tw_status {
    match e {
        TensorError::OutOfMemory(_) => tw_status::TW_OUT_OF_MEMORY,
        TensorError::DType { .. } => tw_status::TW_TYPE,
        TensorError::Read(_) => tw_status::TW_IO,
        _ => tw_status::TW_SHAPE,
    }
}

#[cfg(feature = "llm")]
fn of_llm(e: &LlmError) -> tw_status {
    match e {
        LlmError::Architecture { .. } => tw_status::TW_UNSUPPORTED,
        LlmError::ContextFull { .. } => tw_status::TW_CONTEXT_FULL,
        LlmError::ContextMemory { .. } => tw_status::TW_OUT_OF_MEMORY,
        LlmError::Cancelled => tw_status::TW_CANCELLED,
        LlmError::NotFinite { .. } => tw_status::TW_NOT_FINITE,
        LlmError::NoTokens | LlmError::Token { .. } | LlmError::Sampler(_) => {
            tw_status::TW_INVALID_ARGUMENT
        }
        _ => tw_status::TW_FORMAT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
