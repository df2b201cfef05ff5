//! Takes small networks of all operators through shape inference, passes, planning and a run:
//! `cargo +nightly fuzz run graph fuzz/corpus/graph fuzz/seeds/graph`.
//!
//! With `TILEWRIGHT_FUZZ_SAVE=FILE` the network of the input is written as an ONNX file first.
#![no_main]

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use prost::Message;

#[path = "../network.rs"]
mod network;

fuzz_target!(|data: &[u8]| {
    let Ok(proto) = network::network(&mut Unstructured::new(data)) else { return };
    let bytes = proto.encode_to_vec();
    if let Some(path) = std::env::var_os("TILEWRIGHT_FUZZ_SAVE") {
        std::fs::write(path, &bytes).expect("the file can be written");
    }
    network::try_out(bytes);
});
