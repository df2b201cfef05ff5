//! What tilewright's plug-ins for stock llama.cpp have in common: a device that computes products of
//! matrices for it, whose weights stay where the CPU can read them too.
//!
//! [`Engine`] is what a plug-in supplies; [`start`] makes of it what `ggml_backend_init` returns. Nothing
//! of ggml is linked: `abi.rs` declares its structures, `host.rs` finds its functions in the process
//! and refuses a version whose structures differ, `buffer.rs` has the memory of weights, `device.rs` the
//! rest. A panic ends in the error that ggml has for a failed computation.
#![cfg(target_os = "linux")]
#![deny(missing_docs)]
#![allow(unsafe_code, reason = "the interface is one of C")]

#[allow(missing_docs, reason = "the names are ggml's")]
mod abi;
mod buffer;
mod device;
mod host;

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use tilewright::DType;

pub use buffer::Memory;

/// Sizes of a product, and what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape<'a> {
    /// Type of the weights.
    pub dtype: DType,
    /// Rows of weights, columns of the result.
    pub n: usize,
    /// Elements that are summed.
    pub k: usize,
    /// Rows of activations.
    pub rows: usize,
    /// Products of this shape in one operation.
    pub batch: usize,
    /// Whether the weights lie in memory of ours that holds constants.
    pub constant: bool,
    /// Name of the result.
    pub name: &'a str,
}

/// Weights of a product: `n` rows of `k` elements.
pub struct Weights<'a> {
    /// Their type.
    pub dtype: DType,
    /// Rows.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// All of them, as a GGUF file has them.
    pub bytes: &'a [u8],
    /// Where they lie, if in memory of ours, and at which byte.
    pub place: Option<(Arc<Memory>, usize)>,
}

/// What computes the products of a plug-in.
pub trait Engine: Send + Sync {
    /// Name of backend and device.
    fn name(&self) -> &'static CStr;

    /// What it is, in a line.
    fn description(&self) -> String;

    /// Sixteen bytes that tell it from other backends.
    fn guid(&self) -> [u8; 16];

    /// Whether memory that ggml has mapped itself may hold weights: only if the engine keeps no pointer to
    /// it behind a product's back.
    fn maps(&self) -> bool;

    /// Whether it takes a product. The answer depends on nothing but its argument.
    fn supports(&self, shape: &Shape<'_>) -> bool;

    /// `y = x * w^T`: `x` is `[rows, k]`, `y` `[rows, n]`, both row-major.
    ///
    /// # Errors
    /// In a sentence, where the result cannot be had; ggml then ends its computation with an error.
    fn multiply(&self, w: &Weights<'_>, x: &[f32], y: &mut [f32]) -> Result<(), String>;

    /// Threads that it may use, as the program says.
    fn set_threads(&self, threads: usize);
}

/// What `ggml_backend_init` returns: the record of a backend with one device, or null where ggml is a
/// version that does not fit, or where `make` fails; standard error then says why.
pub fn start(make: impl FnOnce() -> Result<Box<dyn Engine>, String>) -> *mut c_void {
    let made = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let host = host::host()?;
        Ok(device::register(host, make()?))
    }));
    match made.unwrap_or_else(|_| Err("it panicked".to_owned())) {
        Ok(reg) => reg.cast(),
        Err(reason) => {
            eprintln!("tilewright's plug-in is not used: {reason}");
            core::ptr::null_mut()
        }
    }
}
