//! What the tests need where there is no operating system under `std`: `wasm32-unknown-unknown`,
//! run by `xtask/port/wasm.mjs`.
#![allow(unsafe_code)]

use alloc::{boxed::Box, string::ToString};
use core::sync::atomic::{AtomicU32, Ordering};

#[link(wasm_import_module = "host")]
unsafe extern "C" {
    /// Prints a line of UTF-8.
    fn log(text: *const u8, len: usize);
}

/// Prints a line.
fn say(line: &str) {
    // SAFETY: the host only reads the bytes, before it returns.
    unsafe { log(line.as_ptr(), line.len()) };
}

/// Says that a conformance test of a file begins.
pub(super) fn begin(file: &str, isa: &str) {
    let name = file.rsplit('/').next().unwrap_or(file).trim_end_matches(".rs");
    say(&std::format!("begin {name} {isa}"));
}

/// Runs before the program: from then on, panics are printed.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        std::panic::set_hook(Box::new(|info| say(&info.to_string())));
    }
    begin
};

/// Seeds of random shapes: the same in each run, as there is no source of others.
#[unsafe(no_mangle)]
unsafe extern "Rust" fn __getrandom_v03_custom(
    dest: *mut u8,
    len: usize,
) -> Result<(), getrandom::Error> {
    static STATE: AtomicU32 = AtomicU32::new(1);
    for i in 0..len {
        let x = STATE.load(Ordering::Relaxed).wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        STATE.store(x, Ordering::Relaxed);
        // SAFETY: the caller passes `len` writable bytes.
        unsafe { dest.add(i).write((x >> 24) as u8) };
    }
    Ok(())
}
