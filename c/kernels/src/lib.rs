//! Kernels from C: products, convolutions and pooling with packed weights, without models.
//!
//! What is planned once runs many times and allocates nothing in a run. The crate needs neither `std`
//! nor, for operators on bytes, an allocator: the same functions serve programs under an operating system
//! and on bare metal. Status codes, versions and the last error of the whole C interface are here too, as
//! every part of it has them. `include/tilewright.h` is made of these files and of `src/capi`.
#![no_std]
#![allow(unsafe_code, reason = "pointers of C")]
#![allow(non_camel_case_types, reason = "the names that C programs see")]

#[cfg(feature = "alloc")]
extern crate alloc;
#[cfg(any(feature = "std", test))]
extern crate std;

mod error;
mod gemm;
mod kernel;
mod last;
mod layout;
#[cfg(all(feature = "library", not(feature = "std")))]
mod library;
mod plan;
mod qconv;
#[cfg(feature = "std")]
pub mod reserve;
mod sized;
mod status;
mod version;
mod window;

#[cfg(feature = "std")]
pub use error::{EXHAUSTED, Threw};
pub use error::{Fail, of_kernel, protect};
pub use gemm::*;
pub use kernel::*;
pub use last::{keep, tw_last_error};
pub use layout::*;
pub use qconv::*;
pub use sized::{Wrong, sized};
pub use status::{tw_dtype, tw_status, tw_status_name};
pub use version::{TW_ABI_VERSION, tw_abi_version, tw_version};
pub use window::*;
