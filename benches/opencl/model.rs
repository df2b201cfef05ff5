//! A model of the size of Llama-110M with weights of no meaning.

use super::gguf::{ARRAY, F32, File, I32, STRING, U32, array, text, texts};

/// A type of weights, by its number in files.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    F16 = 1,
    Q8_0 = 8,
}

const WIDTH: usize = 768;
const HIDDEN: usize = 2048;
const HEADS: usize = 12;
const LAYERS: usize = 12;
const VOCABULARY: usize = 32_000;

/// Weights of `count` elements: small numbers that repeat.
fn weights(kind: Kind, count: usize) -> Vec<u8> {
    let byte = |i: usize| (i.wrapping_mul(0x9E37_79B9) >> 13) as u8;
    let scale = half::f16::from_f32(0.0003).to_le_bytes();
    match kind {
        Kind::Q8_0 => (0..count / 32)
            .flat_map(|block| scale.into_iter().chain((0..32).map(move |i| byte(32 * block + i))))
            .collect(),
        Kind::F16 => (0..count)
            .flat_map(|i| half::f16::from_f32(f32::from(byte(i) as i8) * 0.0003).to_le_bytes())
            .collect(),
    }
}

/// The bytes of the file.
pub(super) fn llama_110m(kind: Kind) -> Vec<u8> {
    let mut file = File::new().with("general.architecture", STRING, text("llama"));
    for (name, value) in [
        ("block_count", LAYERS),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HIDDEN),
        ("attention.head_count", HEADS),
        ("context_length", 1024),
        ("rope.dimension_count", WIDTH / HEADS),
    ] {
        file = file.with(&format!("llama.{name}"), U32, (value as u32).to_le_bytes());
    }
    file = file.with("llama.attention.layer_norm_rms_epsilon", F32, 1e-5f32.to_le_bytes());
    let tokens: Vec<String> = (0..VOCABULARY).map(|i| format!("t{i}")).collect();
    let zeros = vec![0u8; 4 * VOCABULARY];
    let types: Vec<u8> = (0..VOCABULARY).flat_map(|_| 1i32.to_le_bytes()).collect();
    file = file
        .with("tokenizer.ggml.model", STRING, text("llama"))
        .with("tokenizer.ggml.tokens", ARRAY, texts(&tokens))
        .with("tokenizer.ggml.scores", ARRAY, array(F32, VOCABULARY as u64, &zeros))
        .with("tokenizer.ggml.token_type", ARRAY, array(I32, VOCABULARY as u64, &types));
    let ones: Vec<u8> = (0..WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
    let matrix = |file: File, name: &str, k: usize, n: usize| {
        file.tensor(name, kind as u32, &[k as u64, n as u64], &weights(kind, k * n))
    };
    let norm = |file: File, name: &str| file.tensor(name, 0, &[WIDTH as u64], &ones);
    file = matrix(file, "token_embd.weight", WIDTH, VOCABULARY);
    file = norm(file, "output_norm.weight");
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            file = matrix(file, &name(part), WIDTH, WIDTH);
        }
        file = matrix(file, &name("ffn_gate"), WIDTH, HIDDEN);
        file = matrix(file, &name("ffn_up"), WIDTH, HIDDEN);
        file = matrix(file, &name("ffn_down"), HIDDEN, WIDTH);
        file = norm(file, &name("attn_norm"));
        file = norm(file, &name("ffn_norm"));
    }
    file.bytes()
}
