//! A text of 200 tokens whose products an emulated NPU computes, with each fault at many places: the same
//! tokens as the CPU's, every time.
//!
//! `TILEWRIGHT_RKNN_FAULTS=all` tries every place, which takes hours.
#![cfg(all(feature = "rknn", feature = "llm", target_os = "linux"))]

use core::time::Duration;
use std::path::Path;
use std::sync::Arc;

use rknnrt::Instance;
use tilewright::backend::rknn::{Npu, Options, Report, RknnDevice};
use tilewright::graph::Device;
use tilewright::llm::{GenerateOptions, Llm, LlmOptions, SamplerOptions};

const TOKENS: usize = 200;

/// Numbers of the emulator's counters.
const CONTEXTS: i32 = 0;
const MEMORIES: i32 = 1;
const RUNS: i32 = 3;
const BREACHES: i32 = 4;

fn generate(device: Option<Arc<dyn Device>>) -> Vec<u32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/manual/manual.gguf");
    let llm =
        Llm::load(path, LlmOptions { threads: Some(1), device, ..Default::default() }).unwrap();
    let tokenizer = llm.tokenizer().unwrap();
    let prompt = tokenizer.encode("How do I run a model?", true);
    let mut session = llm.session().unwrap();
    let options = GenerateOptions {
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        sampler: SamplerOptions { temperature: 0.0, ..Default::default() },
        ..Default::default()
    };
    let tokens = session.generate(&tokenizer, &prompt, options).unwrap();
    tokens.map(|token| token.unwrap().id).collect()
}

/// The tokens with a fault in the emulator, what the NPU did, and what the emulator counted.
fn with_fault(fault: &str) -> (Vec<u32>, Report, Instance) {
    let emulator = Instance::new(&format!("RKNN_EMU_FAULT={fault}"), None).unwrap();
    let options = Options {
        library: Some(emulator.path().to_owned()),
        chip: Some("rk3588".to_owned()),
        emulator: true,
        // Every token, not the prompt only.
        min_rows: Some(1),
        weight_bytes: Some(256 << 20),
        deadline: Some(Duration::from_millis(if fault.contains("hang") { 300 } else { 20_000 })),
        lock: None,
        log: |_| {},
        ..Options::default()
    };
    let device = Arc::new(RknnDevice::new(Arc::new(Npu::open(options).unwrap())));
    let tokens = generate(Some(device.clone()));
    let report = device.npu().report();
    (tokens, report, emulator)
}

#[test]
fn a_text_is_the_same_whatever_fails() {
    let expected = generate(None);
    assert_eq!(expected.len(), TOKENS);
    let (tokens, report, emulator) = with_fault("");
    assert_eq!(tokens, expected, "without a fault");
    assert_eq!(report.failures, 0, "{report:?}");
    let runs = u64::try_from(emulator.counter(RUNS)).unwrap();
    assert!(runs > 3 * TOKENS as u64, "{runs}");
    let all = std::env::var("TILEWRIGHT_RKNN_FAULTS").is_ok_and(|v| v == "all");
    // One failure, each kind of damage, a core that hangs, memory that ends, a device that goes.
    let kinds = [
        "run:nth=N:rc=-1",
        "run:nth=N:wrong=zero",
        "run:nth=N:wrong=nan",
        "run:nth=N:wrong=stale",
        "run:nth=N:hang=0",
        "run:nth=N:dead",
        "run:after=N:rc=-2",
        "set_io:nth=N:rc=-4",
        "sync:nth=N:rc=-1",
        "create_mem:nth=N:oom",
        "create:nth=N:rc=-1",
    ];
    for (i, kind) in kinds.into_iter().enumerate() {
        let sampled = [7 + i as u64, runs / 5 + i as u64 * 101];
        let places: Vec<u64> = if all { (1..=runs).collect() } else { sampled.to_vec() };
        for place in places {
            // Contexts and memory are made for the first token.
            let early = kind.starts_with("create");
            let fault =
                kind.replace('N', &if early { place.min(30) + 5 } else { place }.to_string());
            let (tokens, report, emulator) = with_fault(&fault);
            assert_eq!(tokens, expected, "{fault}");
            assert!(report.failures > 0, "{fault} was not met: {report:?}");
            assert_eq!(emulator.counter(BREACHES), 0, "{fault}");
            // What was made has been ended, save what hangs and a device that is gone.
            if !fault.contains("hang") && !fault.contains("dead") {
                let left = (emulator.counter(CONTEXTS), emulator.counter(MEMORIES));
                assert_eq!(left, (0, 0), "{fault}");
            }
        }
    }
}
