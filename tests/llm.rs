//! A language model that others trained, against recorded results of another runtime.
//!
//! The model lies beside the repository, or where `TILEWRIGHT_MODELS` says; without it the tests pass
//! and say so.

#![cfg(all(feature = "cli", feature = "llm"))]

#[path = "llm/simulation.rs"]
mod simulation;

use core::sync::atomic::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use simulation::Simulation;
use tilewright::io::npy;
use tilewright::llm::{Llm, LlmError, LlmOptions, Session};
use tilewright::{DType, Error, Isa};

fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models");
    let folder = std::env::var_os("TILEWRIGHT_MODELS").map_or(beside, PathBuf::from);
    let folder = folder.join("stories260k");
    if folder.join("expected.json").is_file() {
        return Some(folder);
    }
    println!("skipped: no model in {}", folder.display());
    None
}

fn expected(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("expected.json")).unwrap()).unwrap()
}

fn tokens(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
}

fn load(path: &Path, options: LlmOptions) -> Session {
    Llm::load(path, options).unwrap().session().unwrap()
}

fn threads(threads: usize) -> LlmOptions {
    LlmOptions { threads: Some(threads), ..LlmOptions::default() }
}

/// The token with the largest logit, the first of equal ones.
fn best(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().rev().max_by(|a, b| a.1.total_cmp(b.1));
    best.unwrap().0 as u32
}

fn greedy(session: &mut Session, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut next = best(session.prompt(prompt).unwrap());
    let mut made = vec![next];
    while made.len() < count {
        next = best(session.eval(&[next]).unwrap());
        made.push(next);
    }
    made
}

/// The negative logarithm of the probability of a token.
fn nll(logits: &[f32], token: u32) -> f64 {
    let most = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - most).exp()).sum();
    sum.ln() + most - f64::from(logits[token as usize])
}

#[test]
fn a_story_is_told_as_expected() {
    let Some(folder) = folder() else { return };
    let expected = expected(&folder);
    let (prompt, text) = (tokens(&expected["prompt_tokens"]), tokens(&expected["nll_tokens"]));
    for (name, model) in expected["models"].as_object().unwrap() {
        // Activations of 8 bits draw other tokens where two are close: the model's card says which.
        let (exact, loss) = match name {
            n if n.contains("q4_0") => (24, 5e-3),
            n if n.contains("q8_0") => (64, 5e-3),
            _ => (64, 5e-4),
        };
        // A cache of f16 would round what the files of floats do not.
        let exactly = || LlmOptions { cache_type: DType::F32, ..threads(1) };
        let mut session = load(&folder.join(name), exactly());
        let made = greedy(&mut session, &prompt, exact);
        assert_eq!(made, tokens(&model["greedy_tokens"])[..exact], "{name}");
        let mut sum = 0.0;
        session.truncate(0);
        let count = text.len() - 1;
        session.eval_all(&text[..count], |at, logits| sum += nll(logits, text[at + 1])).unwrap();
        let (mean, want) = (sum / count as f64, model["mean_nll"].as_f64().unwrap());
        assert!((mean - want).abs() < loss * want, "{name}: {mean} instead of {want}");
    }
}

/// Logits against recorded ones of floats for the files of floats, and for the files of blocks against
/// a simulation in f64 that rounds what the kernels round: all instruction sets, all tokens of the
/// prompt at once and one by one.
#[test]
fn the_first_logits_are_exact() {
    let Some(folder) = folder() else { return };
    let expected = expected(&folder);
    let prompt = tokens(&expected["prompt_tokens"]);
    for name in expected["models"].as_object().unwrap().keys() {
        let (path, recorded) = (folder.join(name), name.replace(".gguf", ".first_logits.npy"));
        let first: Vec<f64> = if name.contains("q4_0") || name.contains("q8_0") {
            Simulation::open(&path).last_logits(&prompt)
        } else {
            let recorded = npy::read(&fs::read(folder.join(recorded)).unwrap()).unwrap();
            recorded.as_slice::<f32>().unwrap().iter().map(|&x| x.into()).collect()
        };
        for isa in Isa::available() {
            let exactly = LlmOptions { cache_type: DType::F32, isa: Some(isa), ..threads(1) };
            let mut session = load(&path, exactly);
            let differs = |logits: &[f32]| {
                assert_eq!(logits.len(), first.len());
                let pairs = logits.iter().zip(&first);
                pairs.map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max)
            };
            let at_once = differs(session.prompt(&prompt).unwrap());
            session.truncate(0);
            let mut one_by_one = f64::INFINITY;
            for &token in &prompt {
                one_by_one = differs(session.eval(&[token]).unwrap());
            }
            println!("{name}, {isa}: {at_once:.1e} at once, {one_by_one:.1e} one by one");
            assert!(at_once < 1e-4 && one_by_one < 1e-4, "{name}, {isa}: {at_once}, {one_by_one}");
        }
    }
}

#[test]
fn threads_chunks_and_ways_there_change_nothing() {
    let Some(folder) = folder() else { return };
    let expected = expected(&folder);
    let text = tokens(&expected["nll_tokens"]);
    for name in ["stories260k.f32.gguf", "stories260k.q8_0.gguf"] {
        let path = folder.join(name);
        // A cache of f16 rounds keys that all tokens at once would read unrounded.
        let exact = name.contains("f32");
        let cache_type = if exact { DType::F32 } else { DType::F16 };
        let threads = |n| LlmOptions { cache_type, ..threads(n) };
        let all = |options: LlmOptions| {
            let mut rows = Vec::new();
            load(&path, options).eval_all(&text, |_, row| rows.extend_from_slice(row)).unwrap();
            rows
        };
        let one = all(threads(1));
        assert_eq!(one, all(threads(2)), "{name}: two threads");
        let mut session = load(&path, threads(2));
        // Token by token: sums in another order. Once that rounds an activation of 8 bits to its other
        // neighbour, all later ones round anew; only what the file of floats gives can be compared.
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-4);
        for (i, &token) in text.iter().enumerate() {
            let logits = session.eval(&[token]).unwrap();
            assert!(!exact || close(logits, &one[i * logits.len()..]), "{name}: token {i}");
        }
        // A turn that goes on from a common prefix gives the bits of a session that never was elsewhere.
        let mut other = text.clone();
        other.truncate(20);
        other.extend([5, 6, 7]);
        session.prompt(&other).unwrap();
        assert_eq!((session.position(), session.tokens()), (23, &other[..]));
        let mut straight = load(&path, threads(2));
        for &token in &text[..20] {
            straight.eval(&[token]).unwrap();
        }
        let turn = session.prompt(&text).unwrap().to_vec();
        assert_eq!(turn, straight.eval(&text[20..]).unwrap(), "{name}: turn");
        assert!(!exact || close(&turn, &one[one.len() - 512..]), "{name}: turn");
        let mut fork = session.fork().unwrap();
        assert_eq!(fork.eval(&[3]).unwrap(), session.eval(&[3]).unwrap(), "{name}: fork");
    }
}

#[test]
fn what_cannot_be_evaluated_is_one_error() {
    let Some(folder) = folder() else { return };
    let path = folder.join("stories260k.q8_0.gguf");
    let llm = Llm::load(&path, LlmOptions { context: Some(8), ..threads(1) }).unwrap();
    let (mut session, mut other) = (llm.session().unwrap(), llm.session().unwrap());
    let error = |e: Error| match e {
        Error::Llm(e) => e,
        e => panic!("{e}"),
    };
    let outside = error(session.eval(&[1, 512]).unwrap_err());
    assert_eq!(outside, LlmError::Token { id: 512, vocabulary: 512 });
    assert_eq!(error(session.eval(&[]).unwrap_err()), LlmError::NoTokens);
    session.eval(&[1, 2, 3, 4, 5]).unwrap();
    let full = LlmError::ContextFull { used: 5, more: 4, context: 8 };
    assert_eq!(error(session.eval(&[1; 4]).unwrap_err()), full);
    session.eval(&[1; 3]).unwrap();
    assert!(session.eval(&[1]).is_err() && session.prompt(&[1; 9]).is_err());
    session.truncate(2);
    assert_eq!((session.position(), session.eval(&[7]).is_ok()), (2, true));
    session.cancel_flag().store(true, Ordering::Relaxed);
    assert_eq!(error(session.eval(&[1]).unwrap_err()), LlmError::Cancelled);
    // Sessions do not know of each other.
    assert!(other.position() == 0 && other.eval(&[1]).is_ok());
    let large = LlmOptions { context: Some(1 << 40), ..LlmOptions::default() };
    let refused = Llm::load(&path, large).unwrap().session().err().unwrap();
    assert!(matches!(error(refused), LlmError::ContextMemory { .. }));
    // Heads of 8 elements are not blocks of 32.
    let blocks = LlmOptions { cache_type: DType::Q8_0, ..LlmOptions::default() };
    assert!(Llm::load(&path, blocks).is_err());
}

/// A damaged file is an error, and never a wrong result.
#[test]
fn damaged_weights_are_noticed() {
    let Some(folder) = folder() else { return };
    let bytes = fs::read(folder.join("stories260k.f32.gguf")).unwrap();
    let load = |bytes: Vec<u8>| Llm::from_bytes(bytes, threads(1));
    let mut nan = bytes.clone();
    let at = nan.len() - 4096;
    nan[at..].chunks_exact_mut(4).for_each(|v| v.copy_from_slice(&f32::NAN.to_le_bytes()));
    let found = load(nan).and_then(|llm| llm.session()?.eval(&[1]).map(<[f32]>::to_vec));
    assert_eq!(found, Err(LlmError::NotFinite { position: 0 }.into()));
    let rename = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|w| w == from).unwrap();
        let mut bytes = bytes.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        load(bytes).err().unwrap().to_string()
    };
    let missing = rename(b"blk.3.attn_k.weight", b"blk.3.attn_x.weight");
    assert_eq!(missing, "tensor blk.3.attn_k.weight is missing");
    let missing = rename(b"llama.block_count", b"llama.block_kount");
    assert_eq!(missing, "the metadata lack llama.block_count");
    let at = b"llama.feed_forward_length\x04\0\0\0";
    let shape = rename(at, b"llama.feed_forward_length\x04\0\0\0\xad");
    assert_eq!(shape, "tensor blk.0.ffn_gate.weight: expected extents [64, 173], found [64, 172]");
}
