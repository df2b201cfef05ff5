//! Small language models with something wrong in them: each is whole, or one error that says what is
//! wrong. `fuzz/fuzz_targets/llm.rs` looks for them with more thought; this needs no nightly compiler.

#![cfg(feature = "llm")]

use arbitrary::Unstructured;
use gguf::{ARRAY, BOOL, F32, File, STRING, U32, array, text};
use tilewright::Error;
use tilewright::llm::{Llm, LlmError, LlmOptions, WindowPattern};

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

/// A model of two layers that see a window of 3, with norms of other names than the usual ones.
fn model_of(arch: &str, norms: &[&str]) -> File {
    let mut file = File::new().with("general.architecture", STRING, text(arch));
    let settings = [
        ("block_count", 2u32),
        ("embedding_length", 32),
        ("feed_forward_length", 32),
        ("attention.head_count", 2),
        ("context_length", 16),
        ("attention.sliding_window", 3),
    ];
    for (name, value) in settings {
        file = file.with(&format!("{arch}.{name}"), U32, value.to_le_bytes());
    }
    let epsilon = 1e-5f32.to_le_bytes();
    file = file.with(&format!("{arch}.attention.layer_norm_rms_epsilon"), F32, epsilon);
    file = matrix(matrix(file, "token_embd.weight", &[32, 7]), "output_norm.weight", &[32]);
    for i in 0..2 {
        for norm in ["attn_norm", "ffn_norm"].iter().chain(norms) {
            file = matrix(file, &format!("blk.{i}.{norm}.weight"), &[32]);
        }
        let names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        for name in names {
            file = matrix(file, &format!("blk.{i}.{name}.weight"), &[32, 32]);
        }
    }
    file
}

fn small() -> File {
    model_of("llama", &[])
}

/// Numbers that look random, those of a name.
fn matrix(file: File, name: &str, dims: &[u64]) -> File {
    let count = dims.iter().product::<u64>() as u32;
    let mut random = drawn(name.bytes().map(u64::from).sum());
    let values: Vec<u8> =
        (0..count).flat_map(|_| (f32::from(random()) / 256.0 - 0.5).to_le_bytes()).collect();
    file.tensor(name, 0, dims, &values)
}

fn load(file: &File) -> Result<Llm, Error> {
    Llm::from_bytes(file.bytes(), LlmOptions { threads: Some(1), ..Default::default() })
}

#[test]
fn what_would_make_it_another_model_is_refused() {
    assert!(load(&small()).is_ok());
    // Factors of positions that are not asked for are left alone.
    assert!(load(&matrix(small(), "blk.1.rope_freqs.weight", &[8])).is_ok());
    let more =
        ["blk.1.attn_q_norm.weight", "foo", "blk.0.ffn_gate_inp.weight", "blk.9.attn_norm.weight"];
    let file = more.iter().fold(small(), |file, name| matrix(file, name, &[32]));
    let Err(Error::Llm(e @ LlmError::UnknownTensors { .. })) = load(&file) else {
        panic!("tensors that nobody knows were taken");
    };
    let wanted = "architecture llama has no use for 4 of the tensors: blk.0.ffn_gate_inp.weight, \
                  blk.1.attn_q_norm.weight, blk.9.attn_norm.weight, ...";
    assert_eq!(e.to_string(), wanted);
    let both_ways = small().with("llama.attention.causal", BOOL, [0]);
    assert!(matches!(load(&both_ways), Err(Error::Llm(LlmError::Setting { .. }))));
    assert!(load(&small().with("llama.attention.causal", BOOL, [1])).is_ok());
}

#[test]
fn layers_with_a_window_may_be_listed() {
    let small = || model_of("gemma2", &["post_attention_norm", "post_ffw_norm"]);
    let key = "gemma2.attention.sliding_window_pattern";
    let listed =
        |layers: &[u8]| load(&small().with(key, ARRAY, array(BOOL, layers.len() as u64, layers)));
    let logits = |llm: &Llm| {
        let mut session = llm.session().unwrap();
        session.eval(&[1, 2, 3, 4, 5, 6, 1, 2]).unwrap().to_vec()
    };
    let first = listed(&[1, 0]).unwrap();
    assert_eq!(first.config().window_pattern, Some(WindowPattern::Layers(vec![true, false])));
    // As of runs of two layers, all but the last of which have it; not as of any other list.
    let runs = load(&small().with(key, U32, 2u32.to_le_bytes())).unwrap();
    assert_eq!(logits(&first), logits(&runs));
    for other in [[1, 1], [0, 0], [0, 1]] {
        assert_ne!(logits(&listed(&other).unwrap()), logits(&first), "{other:?}");
    }
    assert!(matches!(listed(&[1]), Err(Error::Llm(LlmError::Setting { .. }))));
}
