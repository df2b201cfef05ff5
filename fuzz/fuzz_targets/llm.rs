//! Loads small language models and uses them: vocabulary, chat template, a plan and its run:
//! `cargo +nightly fuzz run llm`.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the builder is shared, and each user needs a part of it")]
#[path = "../gguf.rs"]
mod gguf;
#[path = "../llm.rs"]
mod llm;

fuzz_target!(|data: &[u8]| {
    if let Ok((bytes, said)) = llm::model(&mut Unstructured::new(data)) {
        llm::try_out(bytes, &said);
    }
});
