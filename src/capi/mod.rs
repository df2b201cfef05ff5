//! The C interface: networks and language models behind `tw_` functions.
//!
//! `include/tilewright.h` is made of these files (`tests/header.rs`) and says the same. What holds for
//! all functions:
//!
//! - A function that can fail gives a [`tw_status`]; after any but `TW_OK`, [`tw_last_error`] is one
//!   line that says what was wrong, on the thread that called. Results behind out-pointers are only
//!   written on `TW_OK`, unless the function says otherwise.
//! - Handles are opaque. Each has one `_free`, for which NULL is nothing to do. They may be freed in any
//!   order: a session keeps alive what it needs of its model.
//! - A model may be used by many threads at once. A session may be handed from thread to thread; while
//!   one call works on it, any other gives `TW_BUSY` at once, but for `tw_llm_cancel`.
//! - Strings are UTF-8. Those that go in end with a zero byte, or come with their length.
//! - Nothing is printed, no signal handler, locale or environment variable is touched, and nothing
//!   unwinds into the caller.
//! - Memory for results, packed weights and activations is asked for with its size known, and refused
//!   with `TW_OUT_OF_MEMORY` where it is more than the limit or more than the system gives. Small pieces
//!   that the system refuses come from a reserve (`tilewright_c_kernels::reserve`) if the library's own
//!   allocator is in use, as in `c/library`; calls that begin while it is in use are refused.
#![allow(unsafe_code, reason = "pointers of C")]
#![allow(non_camel_case_types, reason = "the names that C programs see")]

mod backend;
mod call;
mod handle;
#[cfg(feature = "llm")]
mod llm;
#[cfg(feature = "llm")]
mod llm_text;
mod log;
mod model;
mod options;
mod session;
mod status;
mod tensor;

#[cfg(feature = "llm")]
pub use llm::*;
#[cfg(feature = "llm")]
pub use llm_text::*;
pub use log::{tw_log_fn, tw_log_level, tw_set_log};
pub use model::*;
pub use options::*;
pub use session::*;
pub use tensor::*;
pub use tilewright_c_kernels::{
    TW_ABI_VERSION, tw_abi_version, tw_dtype, tw_last_error, tw_status, tw_status_name, tw_version,
};
