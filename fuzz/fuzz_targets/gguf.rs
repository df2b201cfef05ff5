//! Reads GGUF files whose fields are mostly right: `cargo +nightly fuzz run gguf`. Inputs that begin as
//! a GGUF file does are taken as they are, so that real files can be seeds.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the builder is shared, and each user needs a part of it")]
#[path = "../gguf.rs"]
mod gguf;

fuzz_target!(|data: &[u8]| {
    if data.starts_with(b"GGUF") {
        gguf::try_out(data.to_vec());
    } else if let Ok(bytes) = gguf::file(&mut Unstructured::new(data)) {
        gguf::try_out(bytes);
    }
});
