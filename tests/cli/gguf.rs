//! GGUF files.

use serde_json::json;

use crate::support::Bench;
use file::{ARRAY, F32, File, STRING, U32, array, text, texts};

#[allow(dead_code, reason = "the builder is shared, and each user needs a part of it")]
#[path = "../../fuzz/gguf.rs"]
mod file;

fn model() -> File {
    File::new()
        .with("general.architecture", STRING, text("llama"))
        .with("llama.block_count", U32, 2u32.to_le_bytes())
        .with("llama.eps", F32, 1e-5f32.to_le_bytes())
        .with("tokenizer.ggml.tokens", ARRAY, texts((0..40).map(|i| format!("t{i}"))))
        .with("tokenizer.chat_template", STRING, text("line\nline \u{1b}[1m"))
        .with("odd", ARRAY, array(F32, 1, &f32::NAN.to_le_bytes()))
        .tensor("token_embd.weight", 8, &[32, 40], &[1; 34 * 40])
        .tensor("blk.0.w.weight", 2, &[32, 64], &[1; 18 * 64])
        .tensor("output_norm.weight", 0, &[32], &[0; 128])
}

#[test]
fn gguf_files_are_inspected_without_their_weights() {
    let bench = Bench::new();
    std::fs::write(bench.path("m.gguf"), model().bytes()).unwrap();
    let json = bench.run(&["inspect", "m.gguf", "--format", "json"]).json();
    for key in ["model", "inputs", "outputs", "nodes", "arena_bytes"] {
        assert!(json.as_object().unwrap().contains_key(key), "{key} in {json}");
    }
    assert_eq!(json["parameters"], 32 * 40 + 32 * 64 + 32);
    // The embedding is the output matrix too.
    assert_eq!(json["macs"], 32 * 40 + 32 * 64);
    assert_eq!(json["weight_bytes"], 34 * 40 + 18 * 64 + 128);
    assert_eq!(json["outputs"][0]["shape"], json!(["n", 40]));
    assert_eq!(json["hyperparameters"], json!({"block_count": 2, "eps": 1e-5}));
    assert_eq!(json["metadata"]["tokenizer.ggml.tokens"], json!({"type": "string", "length": 40}));
    assert_eq!(json["metadata"]["odd"], json!([null]));
    assert_eq!(
        json["tensors"][1],
        json!({"name": "blk.0.w.weight", "dtype": "q4_0", "shape": [64, 32], "bytes": 18 * 64})
    );
    assert_eq!(json["types"]["q8_0"]["tensors"], 1);
    let text = bench.run(&["inspect", "m.gguf"]).done();
    assert!(text.contains("GGUF version 3, 1 file\n") && text.contains("40 elements"), "{text}");
    assert!(text.contains("line\\nline") && !text.contains('\u{1b}'), "{text}");
    let separate = model().tensor("output.weight", 0, &[32, 40], &[0; 32 * 40 * 4]);
    std::fs::write(bench.path("s"), separate.bytes()).unwrap();
    let json = bench.run(&["inspect", "s", "--format", "json"]).json();
    assert_eq!(json["macs"], 32 * 40 + 32 * 64);
}

#[test]
fn wrong_gguf_files_are_one_clear_error() {
    let bench = Bench::new();
    let cases = [
        ("empty", File { alignment: 0, ..File::new() }.bytes()[..3].to_vec(), "ends inside"),
        ("old", File { version: 1, ..model() }.bytes(), "convert the model again"),
        ("big", File { version: 3 << 24, ..model() }.bytes(), "big-endian"),
        ("new", model().tensor("x", 40, &[256], &[0; 144]).bytes(), "type nvfp4 (1x: x)"),
        ("other", b"PK\x03\x04 not a model".to_vec(), "not a GGUF file"),
    ];
    for (name, bytes, expected) in cases {
        let name = format!("{name}.gguf");
        std::fs::write(bench.path(&name), bytes).unwrap();
        let error = bench.run(&["inspect", &name]).error();
        assert!(error.contains(expected), "{error}");
    }
    std::fs::write(bench.path("m.gguf"), model().bytes()).unwrap();
    for command in ["inspect", "bench"] {
        assert!(bench.run(&[command, "m.gguf", "--shape", "1"]).error().contains("ONNX"));
    }
    assert!(bench.run(&["inspect", "absent.gguf"]).error().contains("absent.gguf"));
}
