//! What becomes `libtilewright.a` and `libtilewright.so`: the C interface of `tilewright`, and the allocator
//! that only a library by itself can have.
#![allow(unsafe_code, reason = "memory")]
#![allow(non_camel_case_types, reason = "the names that C programs see")]

mod allocator;

pub use allocator::{tw_alloc_fn, tw_allocator, tw_free_fn, tw_set_allocator};
pub use tilewright::capi::*;
pub use tilewright_c_kernels::*;
