//! `libggml_tilewright.so`: tilewright's kernels compute the products of a stock llama.cpp.
//!
//! `TILEWRIGHT_GGML_MIN_ROWS` is the fewest rows of activations of a product that is taken, by itself as
//! many as make it faster than ggml's own;
//! `TILEWRIGHT_ISA` chooses a lower instruction set.
#![cfg(target_os = "linux")]

use core::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use tilewright::backend::cpu::Products;
use tilewright::{DType, Isa};
use tilewright_ggml::{Engine, Shape, Weights, start};

/// Fewest rows of activations with which products are faster here than in ggml's own kernels
/// (`tests/ggml_plugins.py --bench TILEWRIGHT`): weights lie as in the file, so they are packed each time.
fn fewest(dtype: DType) -> usize {
    if dtype.is_float() { 128 } else { 16 }
}

struct Cpu {
    isa: Isa,
    min_rows: Option<usize>,
    products: Mutex<Products>,
}

impl Cpu {
    fn new() -> Result<Self, String> {
        let isa = Isa::select().map_err(|e| e.to_string())?;
        let min_rows = match std::env::var("TILEWRIGHT_GGML_MIN_ROWS") {
            Ok(text) => Some(text.parse().map_err(|_| {
                format!("TILEWRIGHT_GGML_MIN_ROWS is `{text}`, which must be a number of rows")
            })?),
            Err(_) => None,
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let products = Mutex::new(Products::new(isa, threads).map_err(|e| e.to_string())?);
        Ok(Self { isa, min_rows, products })
    }

    fn products(&self) -> std::sync::MutexGuard<'_, Products> {
        self.products.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for Cpu {
    fn name(&self) -> &'static CStr {
        c"TILEWRIGHT"
    }

    fn description(&self) -> String {
        format!("tilewright {} kernels ({})", env!("CARGO_PKG_VERSION"), self.isa)
    }

    fn guid(&self) -> [u8; 16] {
        *b"tilewright-cpu-1"
    }

    fn maps(&self) -> bool {
        true
    }

    fn supports(&self, shape: &Shape<'_>) -> bool {
        shape.rows >= self.min_rows.unwrap_or(fewest(shape.dtype))
            && Products::takes(self.isa, shape.dtype, shape.n, shape.k)
    }

    fn multiply(&self, w: &Weights<'_>, x: &[f32], y: &mut [f32]) -> Result<(), String> {
        self.products().multiply(w.dtype, w.bytes, w.k, x, y).map_err(|e| e.to_string())
    }

    fn set_threads(&self, threads: usize) {
        let mut products = self.products();
        if products.threads() != threads {
            match Products::new(self.isa, threads) {
                Ok(fresh) => *products = fresh,
                Err(e) => {
                    eprintln!("tilewright's plug-in keeps {} threads: {e}", products.threads())
                }
            }
        }
    }
}

/// What ggml calls when it has loaded the library: the record of this backend, or null.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "a name that ggml looks for")]
pub extern "C" fn ggml_backend_init() -> *mut c_void {
    start(|| Ok(Box::new(Cpu::new()?)))
}

/// How well it fits this machine; there is nothing that it cannot run on.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "a name that ggml looks for")]
pub extern "C" fn ggml_backend_score() -> c_int {
    1
}
