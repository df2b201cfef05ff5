//! Architectures with parts of their own, on small files of random weights: they load, a text is the same
//! whatever it is cut into, and files that a graph would misread are refused.

#![cfg(feature = "llm")]

use tilewright::llm::{Llm, LlmOptions, Session};
use tilewright::{DType, Error};

#[path = "llm_architectures/files.rs"]
mod files;

use files::*;

const TOKENS: [u32; 12] = [1, 5, 9, 30, 31, 7, 7, 12, 0, 3, 22, 8];

fn options() -> LlmOptions {
    // A cache of f16 rounds what differs in the last bit, as sums of other orders do, to numbers 0.001 apart.
    LlmOptions { threads: Some(1), cache_type: DType::F32, ..LlmOptions::default() }
}

fn load(arch: &str, parts: &Parts) -> Result<Llm, Error> {
    Llm::from_bytes(model(arch, parts), options())
}

/// Logits behind each token, however many of them are given at once.
fn logits(session: &mut Session, at_once: usize) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    for tokens in TOKENS.chunks(at_once) {
        session.eval_all(tokens, |_, row| rows.push(row.to_vec())).unwrap();
    }
    rows
}

fn close(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
    a.len() == b.len() && a.iter().flatten().zip(b.iter().flatten()).all(near)
}

#[test]
fn a_text_is_the_same_whatever_it_is_cut_into() {
    let of_heads = Parts { attending: OF_HEADS, ..LLAMA };
    let scales = Parts {
        numbers: &[("embedding_scale", 2.0), ("residual_scale", 0.5), ("logit_scale", 3.0)],
        ..LLAMA
    };
    let models = [
        ("llama", LLAMA),
        ("granite", scales),
        ("minicpm", LLAMA),
        (
            "mistral3",
            Parts {
                numbers: &[("attention.temperature_scale", 0.5)],
                counts: &[("rope.scaling.original_context_length", 3)],
                ..LLAMA
            },
        ),
        ("ernie4_5", LLAMA),
        ("internlm2", LLAMA),
        ("olmo2", OLMO2),
        // Olmo 3.
        ("olmo2", Parts { counts: &[("attention.sliding_window", 4)], ..OLMO2 }),
        ("exaone4", Parts { attending: OF_HEADS, vectors: BEHIND, ..LLAMA }),
        ("hunyuan-dense", of_heads),
        ("qwen3vl", Parts { attending: OF_HEADS, ..LLAMA }),
        ("qwen2vl", LLAMA),
        (
            "cohere2",
            Parts {
                vectors: &[("attn_norm", WIDTH)],
                counts: &[("attention.sliding_window", 4)],
                ..LLAMA
            },
        ),
        ("lfm2", LFM2),
        ("lfm2", Parts { kv_heads: [0, 0, 1], ..LFM2 }),
        ("qwen35", QWEN35),
        ("granitehybrid", GRANITEHYBRID),
        ("falcon-h1", FALCON_H1),
        ("gemma4", GEMMA4),
        ("gemma3n", GEMMA3N),
        ("qwen3moe", QWEN3MOE),
        ("olmoe", Parts { attending: OLMO2.attending, ..QWEN3MOE }),
        ("arcee", Parts { plain: true, ..LLAMA }),
        ("nemotron", Parts { plain: true, ..LLAMA }),
        ("starcoder2", Parts { plain: true, ..LLAMA }),
        ("gptneox", Parts { plain: true, ..LLAMA }),
        ("phi2", Parts { plain: true, vectors: &[("attn_norm", WIDTH)], ..LLAMA }),
        ("gpt2", Parts { plain: true, placed: true, ..LLAMA }),
        ("glm4", Parts { vectors: GLM4, ..LLAMA }),
        ("qwen2moe", Parts { attending: &[], ..QWEN3MOE }),
        ("ernie4_5-moe", Parts { attending: &[], ..QWEN3MOE }),
        ("gpt-oss", GPT_OSS),
        ("smallthinker", SMALLTHINKER),
        ("nemotron_h", NEMOTRON_H),
        ("mamba2", MAMBA2),
        ("deepseek2", DEEPSEEK2),
        ("command-r", Parts { vectors: &[("attn_norm", WIDTH)], ..LLAMA }),
        ("falcon", Parts { plain: true, vectors: &[("attn_norm", WIDTH)], ..LLAMA }),
        ("starcoder", Parts { plain: true, placed: true, ..LLAMA }),
        ("seed_oss", Parts { vectors: SEED_OSS, ..LLAMA }),
    ];
    let mut all: Vec<Vec<Vec<f32>>> = Vec::new();
    for (arch, parts) in models {
        let llm = load(arch, &parts).unwrap_or_else(|e| panic!("{arch}: {e}"));
        let mut session = llm.session().unwrap();
        let whole = logits(&mut session, TOKENS.len());
        assert!(whole.iter().flatten().all(|y| y.is_finite()), "{arch}");
        for at_once in [1, 2, 5] {
            session.truncate(0);
            assert!(close(&whole, &logits(&mut session, at_once)), "{arch} by {at_once}");
        }
        // Going back, and going on in another session.
        for kept in [0, 1, 2, 3, 7] {
            session.truncate(kept);
            let mut other = session.fork().unwrap();
            for session in [&mut session, &mut other] {
                let last = session.prompt(&TOKENS).unwrap().to_vec();
                assert!(close(&[last], &whole[TOKENS.len() - 1..]), "{arch} from {kept}");
            }
        }
        // No two are computed in the same way, but those that are Llama, Phi 2, GPT-2 and Qwen 2 by other names.
        let same = all.iter().filter(|other| close(other, &whole)).count();
        let expected = match arch {
            "internlm2" => 2,
            "ernie4_5" | "falcon" | "starcoder" | "seed_oss" => 1,
            _ => 0,
        };
        assert_eq!(same, expected, "{arch}");
        all.push(whole);
    }
}

/// Two products read the rows of experts, which are quantised once.
#[test]
fn rows_of_experts_are_quantised_once() {
    let options = LlmOptions { threads: Some(1), profile: true, ..LlmOptions::default() };
    let llm = Llm::from_bytes(model("qwen3moe", &QWEN3MOE), options).unwrap();
    let mut session = llm.session().unwrap();
    session.eval(&TOKENS).unwrap();
    let steps = |part: &str| {
        let name = format!("blk.1.ffn_{part}_exps");
        session.profile().iter().filter(|row| row.name == name).count()
    };
    assert_eq!([steps("gate"), steps("up"), steps("down")], [2, 1, 2]);
}

#[test]
fn weights_are_brought_into_order_once() {
    let options = LlmOptions { threads: Some(1), profile: true, ..LlmOptions::default() };
    let mut session = Llm::from_bytes(model("lfm2", &LFM2), options).unwrap().session().unwrap();
    session.eval(&TOKENS[..1]).unwrap();
    let ops: Vec<String> = session.profile().into_iter().map(|row| row.op).collect();
    assert!(ops.iter().any(|op| op == "kv_conv") && !ops.iter().any(|op| op == "cont"), "{ops:?}");
}

/// Layers that convolve keep some rows only, and those that remember what they know behind the last token: a text
/// that goes back further is computed again.
#[test]
fn a_text_goes_back_as_far_as_it_likes() {
    goes_back("lfm2", &LFM2);
    goes_back("qwen35", &QWEN35);
    goes_back("granitehybrid", &GRANITEHYBRID);
    goes_back("falcon-h1", &FALCON_H1);
    goes_back("gemma4", &GEMMA4);
    goes_back("gemma3n", &GEMMA3N);
}

/// Of layers that keep nothing only the rows are computed that somebody wants.
#[test]
fn layers_that_share_compute_one_row_of_a_prompt() {
    let options = LlmOptions { threads: Some(1), profile: true, ..LlmOptions::default() };
    let llm = Llm::from_bytes(model("gemma4", &GEMMA4), options).unwrap();
    let mut session = llm.session().unwrap();
    let macs = |session: &Session, layer: usize| {
        let name = format!("blk.{layer}.ffn_down");
        session.profile().iter().filter(|row| row.name == name).map(|row| row.macs).sum::<u64>()
    };
    session.eval(&TOKENS).unwrap();
    let of_one = (WIDTH * HIDDEN) as u64;
    assert_eq!(macs(&session, 0), of_one * TOKENS.len() as u64);
    assert_eq!(macs(&session, 2), of_one);
    assert_eq!((llm.config().sharing, llm.config().heads_of(1).key_size), (1, 2 * HEAD));
    assert_eq!((llm.config().heads_of(1).count, llm.config().heads_of(2).count), (1, 2));
}

fn goes_back(arch: &str, parts: &Parts) {
    let llm = load(arch, parts).unwrap();
    let mut session = llm.session().unwrap();
    let tokens: Vec<u32> = (0..700).map(|i| (i * i + 3 * i) % VOCABULARY as u32).collect();
    let mut rows = Vec::new();
    session.eval_all(&tokens, |_, row| rows.push(row.to_vec())).unwrap();
    for kept in [699, 500, 446, 445, 443, 200, 3, 1, 0, 650] {
        session.truncate(kept);
        let mut other = session.fork().unwrap();
        for session in [&mut session, &mut other] {
            // Another token in place of the next one, then that.
            session.eval(&[5]).unwrap();
            session.truncate(kept);
            let row = session.eval(&tokens[kept..=kept]).unwrap().to_vec();
            assert!(close(&[row], &rows[kept..=kept]), "from {kept}");
            let row = session.prompt(&tokens).unwrap().to_vec();
            assert!(close(&[row], &rows[699..]), "to the end from {kept}");
        }
    }
    // Stopped while it is computed again: what is in the context is what was computed.
    session.truncate(100);
    session.cancel_flag().store(true, core::sync::atomic::Ordering::Relaxed);
    assert!(session.eval(&[5]).is_err());
    session.cancel_flag().store(false, core::sync::atomic::Ordering::Relaxed);
    let row = session.prompt(&tokens[..300]).unwrap().to_vec();
    assert!(close(&[row], &rows[299..300]));
}

/// A conversation goes on from what was saved behind most of a prompt, whatever it turns out to be then.
#[test]
fn a_prompt_that_ends_otherwise_goes_on_from_what_was_saved() {
    goes_on_from_what_was_saved("qwen35", &QWEN35);
    goes_on_from_what_was_saved("falcon-h1", &FALCON_H1);
}

fn goes_on_from_what_was_saved(arch: &str, parts: &Parts) {
    let llm = load(arch, parts).unwrap();
    let tokens: Vec<u32> = (0..200).map(|i| (i * i + 3 * i) % VOCABULARY as u32).collect();
    let fresh = |tokens: &[u32]| llm.session().unwrap().prompt(tokens).unwrap().to_vec();
    // Where the second prompt differs: in the part behind what was saved, before it, and in the first token.
    for differs in [199, 190, 184, 183, 100, 0] {
        let mut session = llm.session().unwrap();
        session.prompt(&tokens).unwrap();
        for token in [7, 8, 9] {
            session.eval(&[token]).unwrap();
        }
        let mut second = tokens.clone();
        second[differs] = (second[differs] + 1) % VOCABULARY as u32;
        second.extend([3, 1, 4]);
        let mut other = session.fork().unwrap();
        for session in [&mut session, &mut other] {
            let row = session.prompt(&second).unwrap().to_vec();
            assert!(close(&[row], &[fresh(&second)]), "{differs}");
            assert_eq!(session.tokens(), second);
            // And a third one, shorter.
            let row = session.prompt(&second[..50]).unwrap().to_vec();
            assert!(close(&[row], &[fresh(&second[..50])]), "{differs}");
        }
    }
}

/// What counts layers that remember, and lists them; blocks that guess further tokens are left out.
#[test]
fn layers_that_remember_are_as_the_file_says() {
    let with = |more: &'static [(&'static str, u32)]| {
        let counts: Vec<_> = QWEN35.counts.iter().chain(more).copied().collect();
        Parts { counts: counts.leak(), ..QWEN35 }
    };
    let plain = load("qwen35", &QWEN35).unwrap();
    let config = plain.config();
    assert_eq!(config.attending, [false, true, false]);
    assert_eq!((config.layers, config.guessing, config.taps), (3, 0, 4));
    let wanted = logits(&mut plain.session().unwrap(), 5);
    // A fourth block, which is not there and not missed.
    let bytes = model("qwen35", &with(&[("nextn_predict_layers", 1), ("block_count", 4)]));
    let llm = Llm::from_bytes(bytes, options()).unwrap();
    assert_eq!((llm.config().layers, llm.config().guessing), (3, 1));
    assert!(close(&wanted, &logits(&mut llm.session().unwrap(), 5)));
    let refused = |parts: Parts, why: &[&str]| {
        let e = load("qwen35", &parts).map(|_| ()).unwrap_err().to_string();
        assert!(why.iter().all(|why| e.contains(why)), "{e}");
    };
    refused(
        with(&[("nextn_predict_layers", 3)]),
        &["nextn_predict_layers", "less than the 3 blocks"],
    );
    refused(with(&[("ssm.inner_size", 33)]), &["ssm.inner_size", "that of 4 heads"]);
    refused(with(&[("ssm.group_count", 3)]), &["ssm.group_count", "divides the 4 heads"]);
    refused(with(&[("ssm.state_size", u32::MAX)]), &["ssm.state_size", "at most"]);
    refused(with(&[("ssm.conv_kernel", 0)]), &["ssm.conv_kernel", "more than 0"]);
    refused(with(&[("full_attention_interval", 0)]), &["full_attention_interval", "more than 0"]);
    refused(with(&[("full_attention_interval", 1)]), &["blk.0.attn_qkv.weight"]);
    refused(Parts { counts: &[], ..QWEN35 }, &["blk.0.attn_qkv.weight"]);
}

#[test]
fn files_that_a_graph_would_misread_are_refused() {
    let refused = |arch: &str, parts: Parts, why: &[&str]| {
        let Err(e) = load(arch, &parts) else { panic!("{arch} is not refused for {why:?}") };
        let e = e.to_string();
        assert!(why.iter().all(|why| e.contains(why)), "{arch}: {e}");
    };
    refused("olmo2", Parts { attending: OF_HEADS, ..OLMO2 }, &["blk.0.attn_q_norm.weight"]);
    refused(
        "hunyuan-dense",
        Parts { attending: OLMO2.attending, ..LLAMA },
        &["attn_q_norm.weight"],
    );
    // Norms that it has no use for.
    refused("granite", Parts { attending: OF_HEADS, ..LLAMA }, &["attn_q_norm.weight"]);
    refused("exaone4", LLAMA, &["attn_q_norm.weight"]);
    // Layers that neither attend nor convolve, and layers that differ, which they may.
    let few = Parts { kv_heads: [2, 2, 2], ..LFM2 };
    assert!(load("lfm2", &few).is_ok());
    assert!(load("lfm2", &Parts { kv_heads: [2, 1, 0], ..LFM2 }).is_ok());
    refused("lfm2", Parts { kv_heads: [2, 3, 0], ..LFM2 }, &["lfm2.attention.head_count_kv"]);
    let taps: &[_] = &[("shortconv.l_cache", 65)];
    refused("lfm2", Parts { counts: taps, ..LFM2 }, &["lfm2.shortconv.l_cache", "at most 64"]);
    let taps: &[_] = &[("shortconv.l_cache", 4)];
    refused("lfm2", Parts { counts: taps, ..LFM2 }, &["blk.0.shortconv.conv.weight"]);
    refused("lfm2", Parts { counts: &[], ..LFM2 }, &["lfm2.shortconv.l_cache"]);
    refused("llama", LFM2, &["output_norm.weight"]);
    let with = |more: &'static [(&'static str, u32)]| {
        let counts: Vec<_> = GEMMA4.counts.iter().chain(more).copied().collect();
        Parts { counts: counts.leak(), ..GEMMA4 }
    };
    let shared = "attention.shared_kv_layers";
    refused("gemma4", with(&[("attention.shared_kv_layers", 3)]), &[shared, "at most 2"]);
    refused("gemma4", with(&[("attention.shared_kv_layers", 2)]), &[shared, "like layer 1"]);
    refused("gemma4", with(&[("attention.shared_kv_layers", 0)]), &["blk.2.attn_k.weight"]);
    refused("gemma4", with(&[("attention.key_length_swa", 1 << 20)]), &["key_length_swa"]);
    refused("gemma4", with(&[("rope.dimension_count_swa", 10)]), &["dimension_count_swa", "8"]);
    refused("gemma4", with(&[("attention.value_length", 8)]), &["blk.1.attn_v.weight"]);
    refused("gemma4", with(&[("embedding_length_per_layer_input", 5)]), &["per_layer_token_embd"]);
    refused("gemma4", with(&[("embedding_length_per_layer_input", 0)]), &["no use for 12"]);
    refused("gemma4", with(&[("embedding_length_per_layer_input", u32::MAX)]), &["per_layer_"]);
    let with = |more: &'static [(&'static str, u32)]| {
        let counts: Vec<_> = GEMMA3N.counts.iter().chain(more).copied().collect();
        Parts { counts: counts.leak(), ..GEMMA3N }
    };
    refused("gemma3n", with(&[("altup.num_inputs", 17)]), &["altup.num_inputs", "at most 16"]);
    refused("gemma3n", with(&[("altup.num_inputs", 1)]), &["altup_proj.weight"]);
    refused("gemma3n", with(&[("altup.num_inputs", 0)]), &["altup_proj.weight"]);
    refused("gemma3n", with(&[("altup.active_idx", 1)]), &["altup.active_idx"]);
    refused(
        "gemma3n",
        with(&[("embedding_length_per_layer_input", 0)]),
        &["embedding_length_per_layer_input"],
    );
    let scale = "activation_sparsity_scale";
    refused(
        "gemma3n",
        Parts { numbers: &[("activation_sparsity_scale", 1.0)], ..GEMMA3N },
        &[scale],
    );
    let far = Parts { windowed: &[true, true, false], ..GEMMA4 };
    refused("gemma4", far, &[shared, "like layer 2"]);
    let with = |more: &'static [(&'static str, u32)]| {
        let counts: Vec<_> = QWEN3MOE.counts.iter().chain(more).copied().collect();
        Parts { counts: counts.leak(), ..QWEN3MOE }
    };
    refused("qwen3moe", with(&[("expert_count", 0)]), &["expert_count"]);
    refused("qwen3moe", with(&[("expert_count", 4)]), &["blk.1.ffn_gate_inp.weight"]);
    refused("qwen3moe", with(&[("expert_count", u32::MAX)]), &["expert_count", "at most 4096"]);
    refused("qwen3moe", with(&[("expert_used_count", 6)]), &["expert_used_count", "at most 5"]);
    refused("qwen3moe", with(&[("expert_used_count", 0)]), &["expert_used_count"]);
    refused("qwen3moe", with(&[("expert_gating_func", 3)]), &["expert_gating_func", "sigmoid"]);
    refused(
        "qwen3moe",
        with(&[("expert_feed_forward_length", 7)]),
        &["blk.1.ffn_gate_exps.weight"],
    );
    refused("qwen3", QWEN3MOE, &["blk.1.ffn_up.weight"]);
    refused("llama", Parts { plain: true, ..LLAMA }, &["blk.0.ffn_up.weight"]);
    refused("arcee", LLAMA, &["no use for 3", "blk.0.ffn_gate.weight"]);
    refused("gpt2", Parts { plain: true, ..LLAMA }, &["position_embd.weight"]);
    // A model of another name has no use for the tensors.
    refused("gemma3", GEMMA4, &["blk.1.attn_v.weight"]);
    let lists = Parts { kv_heads: [2, 1, 3], list: true, ..LLAMA };
    refused("llama", lists, &["head_count_kv", "divides the 4 heads"]);
    assert!(load("llama", &Parts { kv_heads: [2, 1, 4], list: true, ..LLAMA }).is_ok());
    refused("lfm2", Parts { kv_heads: [0; 3], ..LFM2 }, &["lfm2.attention.head_count_kv"]);
    let scaled = Parts { numbers: &[("residual_scale", f32::NAN)], ..LLAMA };
    refused("granite", scaled, &["granite.residual_scale", "finite"]);
}
