//! Versions.

use core::ffi::c_char;

/// The version of the interface that this header describes; see `tw_abi_version`.
pub const TW_ABI_VERSION: u32 = 1;

/// The version of the interface of the library that is linked: programs work with it if it equals
/// `TW_ABI_VERSION`. It grows when a function or a structure changes in a way that old programs cannot
/// use, and not when something is added. Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn tw_abi_version() -> u32 {
    TW_ABI_VERSION
}

/// The version of the library: `"0.1.0"`; that of the header is `TW_VERSION`. Never NULL, never to be freed.
/// Any thread may call it.
#[unsafe(no_mangle)]
pub extern "C" fn tw_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
