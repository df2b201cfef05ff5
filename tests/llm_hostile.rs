//! Small language models with something wrong in them: each is whole, or one error that says what is
//! wrong. `fuzz/fuzz_targets/llm.rs` looks for them with more thought; this needs no nightly compiler.

#![cfg(feature = "llm")]

use arbitrary::Unstructured;

#[allow(dead_code, reason = "shared with other tests, which use other parts")]
#[path = "../fuzz/gguf.rs"]
mod gguf;
#[path = "../fuzz/llm.rs"]
mod llm;

#[test]
fn models_that_bytes_decide_about_load_or_say_why_not() {
    let mut random = drawn(0x5eed);
    let (mut made, mut whole) = (0, 0);
    while made < 300 {
        let bytes: Vec<u8> = (0..1024).map(|_| random()).collect();
        let Ok((file, said)) = llm::model(&mut Unstructured::new(&bytes)) else { continue };
        made += 1;
        whole += usize::from(llm::try_out(file, &said));
    }
    assert!((10..290).contains(&whole), "{whole} of {made} are whole: too many, or too few");
}

/// Bytes that are the same in each run.
fn drawn(seed: u64) -> impl FnMut() -> u8 {
    let mut state = seed;
    move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    }
}
