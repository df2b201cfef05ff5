//! Networks of operators, operands and attributes drawn by chance: each becomes a result or an error.
//! `fuzz/fuzz_targets/graph.rs` looks for them with more thought; this needs no nightly compiler.
//!
//! `TILEWRIGHT_NETWORKS=FIRST..END` says which numbers to try instead of the first few. A number that
//! ends the program is printed before.

use arbitrary::Unstructured;
use prost::Message;

#[path = "../fuzz/network.rs"]
mod network;

/// Bytes that look random, the same on every machine.
fn noise(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..300).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes()
    });
    words.collect()
}

#[test]
fn random_networks_are_computed_or_refused() {
    let asked = std::env::var("TILEWRIGHT_NETWORKS").ok();
    let range = asked.as_deref().and_then(|text| {
        let (first, end) = text.split_once("..")?;
        Some(first.parse().ok()?..end.parse().ok()?)
    });
    let mut reached = [0; 4];
    for number in range.unwrap_or(0..1000u64) {
        let bytes = noise(number);
        let proto = network::network(&mut Unstructured::new(&bytes)).unwrap();
        let bytes = proto.encode_to_vec();
        if let Some(path) = std::env::var_os("TILEWRIGHT_FUZZ_SAVE") {
            std::fs::write(path, &bytes).unwrap();
        }
        let outcome = std::panic::catch_unwind(|| network::try_out(bytes));
        reached[outcome.unwrap_or_else(|_| panic!("network {number}"))] += 1;
    }
    println!("refused, loaded, planned, run: {reached:?}");
}
