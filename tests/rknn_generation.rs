//! A text of 200 tokens made on an emulated NPU that fails at every place there is: always the CPU's tokens.
#![cfg(all(feature = "rknn", feature = "llm", target_os = "linux"))]

use core::sync::atomic::{AtomicI64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use rknnrt::{Instance, Version};
use tilewright::backend::rknn::{Npu, Options, Report, RknnDevice, RknnError};
use tilewright::graph::Device;
use tilewright::llm::{Llm, LlmOptions};

const WIDTH: usize = 64;
const HEAD: usize = 32;
const HIDDEN: usize = 96;
const VOCABULARY: usize = 96;
const PROMPT: [u32; 5] = [1, 17, 60, 33, 8];
const TOKENS: usize = 200;

/// Of the model's weights. With this one no choice of a token is a close one, and about half of the tokens are
/// not those that weights without a text before them would choose.
const SEED: u32 = 19;

/// Numbers of the emulator's counters.
const CONTEXTS: i32 = 0;
const MEMORIES: i32 = 1;
const RUNS: i32 = 3;
const BREACHES: i32 = 4;
const CREATED: i32 = 5;
const BOUND: i32 = 6;

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn array<const N: usize>(kind: u32, elements: impl Iterator<Item = [u8; N]>) -> Vec<u8> {
    let elements: Vec<[u8; N]> = elements.collect();
    [&kind.to_le_bytes()[..], &(elements.len() as u64).to_le_bytes(), &elements.concat()].concat()
}

/// A GGUF file of a Llama with one layer and weights in halves, which the NPU multiplies as they are.
fn model(seed: u32) -> Vec<u8> {
    let (u32s, f32s, strings, arrays) = (4u32, 6u32, 8u32, 9u32);
    let mut metadata = vec![
        ("general.architecture", strings, text("llama")),
        ("llama.attention.layer_norm_rms_epsilon", f32s, 1e-5f32.to_le_bytes().to_vec()),
        ("tokenizer.ggml.model", strings, text("llama")),
        ("tokenizer.ggml.scores", arrays, array(f32s, (0..VOCABULARY).map(|_| [0; 4]))),
        ("tokenizer.ggml.token_type", arrays, array(5, (0..VOCABULARY).map(|_| [1, 0, 0, 0]))),
    ];
    let names: Vec<u8> = (0..VOCABULARY).flat_map(|i| text(&format!("t{i}"))).collect();
    let head = [strings.to_le_bytes().to_vec(), (VOCABULARY as u64).to_le_bytes().to_vec(), names];
    metadata.push(("tokenizer.ggml.tokens", arrays, head.concat()));
    for (name, value) in [
        ("llama.block_count", 1),
        ("llama.embedding_length", WIDTH),
        ("llama.feed_forward_length", HIDDEN),
        ("llama.attention.head_count", WIDTH / HEAD),
        ("llama.attention.head_count_kv", 1),
        ("llama.context_length", 256),
        ("llama.rope.dimension_count", HEAD),
    ] {
        metadata.push((name, u32s, (value as u32).to_le_bytes().to_vec()));
    }
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let matrices = [
        ("token_embd", WIDTH, VOCABULARY, 16.0),
        ("output", WIDTH, VOCABULARY, 2.0),
        ("blk.0.attn_q", WIDTH, WIDTH, 2.0),
        ("blk.0.attn_k", WIDTH, HEAD, 2.0),
        ("blk.0.attn_v", WIDTH, HEAD, 6.0),
        ("blk.0.attn_output", WIDTH, WIDTH, 5.0),
        ("blk.0.ffn_gate", WIDTH, HIDDEN, 4.0),
        ("blk.0.ffn_up", WIDTH, HIDDEN, 4.0),
        ("blk.0.ffn_down", HIDDEN, WIDTH, 3.0),
    ];
    let mut tensors: Vec<(&str, u32, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut embedding: Vec<f32> = Vec::new();
    for (name, k, n, scale) in matrices {
        let scale = scale / (k as f32).sqrt();
        let mut values: Vec<f32> = (0..k * n).map(|_| draw() * scale).collect();
        match name {
            "token_embd" => embedding.clone_from(&values),
            // Each token has one that it is followed by for the most part.
            "output" => {
                for (token, row) in embedding.chunks(WIDTH).enumerate() {
                    let next = (13 * token + 1) % VOCABULARY * WIDTH;
                    let likely = values[next..][..WIDTH].iter_mut().zip(row);
                    likely.for_each(|(to, from)| *to += 0.5 * from);
                }
            }
            _ => {}
        }
        let halves = values.iter().map(|value| half::f16::from_f32(*value).to_le_bytes());
        tensors.push((name, 1, vec![k, n], halves.flatten().collect()));
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        let ones = core::iter::repeat_n(1f32.to_le_bytes(), WIDTH).flatten();
        tensors.push((name, 0, vec![WIDTH], ones.collect()));
    }
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((metadata.len() as u64).to_le_bytes());
    for (key, kind, value) in metadata {
        file.extend([text(key), kind.to_le_bytes().to_vec(), value].concat());
    }
    let mut data = Vec::new();
    for (name, kind, dims, bytes) in tensors {
        file.extend(text(&format!("{name}.weight")));
        file.extend((dims.len() as u32).to_le_bytes());
        file.extend(dims.iter().flat_map(|&d| (d as u64).to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    [file, data].concat()
}

/// Greedy tokens, and the logits behind each position.
#[derive(Clone, Default)]
struct Text {
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

impl Text {
    fn new(model: &[u8], device: Option<Arc<dyn Device>>) -> Self {
        let options = LlmOptions { threads: Some(1), device, ..LlmOptions::default() };
        let llm = Llm::from_bytes(model.to_vec(), options).unwrap();
        let mut session = llm.session().unwrap();
        let mut text = Self::default();
        let mut more = &PROMPT[..];
        while text.tokens.len() < TOKENS {
            let logits = session.eval(more).unwrap();
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            text.tokens.push(best.unwrap() as u32);
            text.logits.push(logits.to_vec());
            more = &text.tokens[text.tokens.len() - 1..];
        }
        text
    }

    /// The least distance of the two largest logits of a position.
    fn margin(&self) -> f32 {
        let gap = |logits: &Vec<f32>| {
            let mut sorted = logits.clone();
            sorted.sort_by(f32::total_cmp);
            sorted[VOCABULARY - 1] - sorted[VOCABULARY - 2]
        };
        self.logits.iter().map(gap).fold(f32::INFINITY, f32::min)
    }

    /// The largest distance of a logit from that of another text.
    fn distance(&self, other: &Self) -> f32 {
        let pairs = self.logits.iter().flatten().zip(other.logits.iter().flatten());
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }
}

/// What a generation on the NPU came to.
struct Ran {
    text: Text,
    report: Report,
    /// Contexts and pieces of memory that are left, and breaches of the contract.
    left: [i64; 3],
}

/// A copy of the library, the model, and what the CPU makes of it.
struct Place {
    emulator: Instance,
    model: Vec<u8>,
    cpu: Text,
    /// The least distance of two logits of which the larger is chosen, and how far logits of the NPU are from
    /// those of the CPU if nothing fails.
    margin: f32,
    usual: f32,
}

impl Place {
    fn new(settings: &str, version: Option<Version>) -> Self {
        let (emulator, model) = (Instance::new("", version).unwrap(), model(SEED));
        let cpu = Text::new(&model, None);
        let (margin, usual) = (cpu.margin(), f32::INFINITY);
        let mut place = Self { emulator, model, cpu, margin, usual };
        place.usual = place.generate(settings, 1, None).unwrap().text.distance(&place.cpu);
        place
    }

    /// Generates with these settings of the emulator; the error of an NPU that cannot be opened.
    fn generate(
        &self,
        settings: &str,
        cores: usize,
        deadline: Option<u64>,
    ) -> Result<Ran, RknnError> {
        self.emulator.configure(settings).unwrap();
        let npu = Arc::new(Npu::open(Options {
            library: Some(self.emulator.path().to_owned()),
            chip: Some("rk3588".to_owned()),
            emulator: true,
            cores,
            min_rows: Some(1),
            weight_bytes: Some(64 << 20),
            // Without one no core is given up, however busy the machine is.
            deadline: Some(Duration::from_millis(deadline.unwrap_or(300_000))),
            log: |_| {},
            lock: None,
            ..Options::default()
        })?);
        let text = Text::new(&self.model, Some(Arc::new(RknnDevice::new(npu.clone()))));
        let report = npu.report();
        drop(npu);
        let left = [CONTEXTS, MEMORIES, BREACHES].map(|which| self.emulator.counter(which));
        Ok(Ran { text, report, left })
    }

    /// The CPU's tokens, by logits that are nowhere near another choice.
    fn same(&self, ran: &Ran, what: &str) {
        assert_eq!(ran.text.tokens, self.cpu.tokens, "{what}");
        let off = ran.text.distance(&self.cpu);
        assert!(off <= self.usual * 4.0, "{what}: logits differ by {off}, not {}", self.usual);
        assert!(off * CLEAR <= self.margin, "{what}: logits differ by {off} of {}", self.margin);
        assert_eq!(ran.report.products + ran.report.failures, PRODUCTS, "{what}");
    }

    /// That, and nothing left behind.
    fn check(&self, ran: &Ran, what: &str) {
        self.same(ran, what);
        assert_eq!(ran.left, [0; 3], "{what}");
    }
}

/// Whether every fault is tried at every position, which takes long: `TILEWRIGHT_RKNN_SWEEP=full`.
fn full_sweep() -> bool {
    std::env::var_os("TILEWRIGHT_RKNN_SWEEP").is_some_and(|v| v == "full")
}

/// How many times as far as what the NPU changes the best two logits of each position are apart.
const CLEAR: f32 = 16.0;

/// Products of a token, those of the layer and that with the vocabulary, and of all.
const PER_TOKEN: usize = 8;
const PRODUCTS: u64 = (PER_TOKEN * TOKENS) as u64;

/// Does `work` for the numbers from 1 to `last`, by so many threads, each in a place of its own.
fn each(last: i64, threads: usize, work: impl Fn(&Place, i64) + Sync) {
    let next = AtomicI64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let place = Place::new("", None);
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number > last {
                        break;
                    }
                    work(&place, number);
                }
            });
        }
    });
}

/// Calls of a generation in which nothing fails, by the number of their counter.
fn calls(which: i32) -> i64 {
    let place = Place::new("", None);
    let ran = place.generate("", 1, None).unwrap();
    place.check(&ran, "no fault");
    assert_eq!(ran.report.products, PRODUCTS);
    place.emulator.counter(which)
}

#[test]
fn tokens_are_those_of_the_cpu_by_a_clear_margin() {
    let place = Place::new("", None);
    let mut distinct = place.cpu.tokens.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() >= 8, "a text that repeats itself shows little: {:?}", place.cpu.tokens);
    for cores in 1..=3 {
        let ran = place.generate("", cores, None).unwrap();
        place.check(&ran, "no fault");
        assert_eq!(ran.report.failures, 0);
        println!("{cores} cores: margin {}, logits within {}", place.margin, place.usual);
    }
    for (settings, version) in [
        ("RKNN_EMU_VERSION=1.6.0", Version::V1_6),
        ("RKNN_EMU_VERSION=2.0.0b0", Version::V2_0),
        ("RKNN_EMU_VERSION=2.1.0", Version::V2_1),
    ] {
        let place = Place::new(settings, Some(version));
        for fault in ["", "\nRKNN_EMU_FAULT=run:every=8:rc=-1"] {
            let ran = place.generate(&format!("{settings}{fault}"), 3, None).unwrap();
            place.check(&ran, settings);
            assert_eq!(ran.report.failures > 0, !fault.is_empty(), "{settings}{fault}");
        }
    }
}

/// Failures after which a core is used again: one in eight calls of a generation at a time.
#[test]
fn failures_that_pass() {
    const APART: i64 = 8;
    let (runs, bound) = (calls(RUNS), calls(BOUND));
    // What is bound goes to the device, each result goes there marked and comes back: no more than these.
    let sites = [(runs, "run"), (bound, "set_io"), (2 * runs + bound, "sync")];
    each(APART, 2, |place, first| {
        for (calls, site) in sites {
            for action in ["rc=-1", "rc=-2", "rc=-4", "rc=7"] {
                let places = (first..=calls).step_by(APART as usize);
                let faults: Vec<String> =
                    places.map(|nth| format!("{site}:nth={nth}:{action}")).collect();
                let settings = format!("RKNN_EMU_FAULT={}", faults.join(";"));
                let ran = place.generate(&settings, 1, None).unwrap();
                let what = format!("{site}, {action}, from {first}");
                place.check(&ran, &what);
                // A call that failed is followed by fewer of the same product.
                let failures = faults.len() as u64;
                let least = if site == "run" { failures } else { failures / 3 };
                assert!(
                    (least..=failures).contains(&ran.report.failures),
                    "{what}: {:?}",
                    ran.report
                );
            }
        }
    });
}

/// Everything that is made fails to be: what the NPU is opened with, each context, each piece of memory.
#[test]
fn failures_of_what_is_made() {
    let faults = [
        "create:nth=N:rc=-4",
        "create:nth=N:rc=-1",
        "core_mask:nth=N:rc=-1",
        "create_mem:nth=N:null",
        "create_mem:nth=N:oom",
    ];
    let made = calls(CREATED);
    each(faults.len() as i64, 2, |place, number| {
        let fault = faults[number as usize - 1];
        let mut met = 0;
        // More than there are: contexts with two pieces of memory each, weights.
        for nth in 1..=2 * made + 8 {
            let what = fault.replace('N', &nth.to_string());
            match place.generate(&format!("RKNN_EMU_FAULT={what}"), 1, None) {
                Ok(ran) => {
                    place.check(&ran, &what);
                    met += i64::from(ran.report.failures > 0);
                }
                // There is no NPU to go on with, and nobody has begun.
                Err(e) => {
                    assert!(e.to_string().starts_with("rknn_matmul_"), "{what}: {e}");
                    met += 1;
                }
            }
        }
        assert!(met >= 5, "{fault}: {met}");
    });
}

/// Failures after which the core is not used again: at every token each of them, in another of its products
/// than at the token before, so that each run of the generation fails once.
#[test]
fn failures_for_good() {
    let faults: [&str; PER_TOKEN] = [
        "run:nth=N:dead",
        "run:nth=N:rc=-3",
        "run:after=N:rc=-1",
        "run:nth=N:wrong=zero",
        "run:nth=N:wrong=stale",
        "run:nth=N:wrong=nan",
        "run:nth=N:wrong=flip1",
        "run:nth=N:wrong=scale",
    ];
    let runs = calls(RUNS);
    let kinds = if full_sweep() { faults.len() as i64 } else { 1 };
    each(runs * kinds, 2, |place, number| {
        let (nth, kind) = ((number - 1) % runs + 1, ((number - 1) / runs) as usize);
        let (token, product) = ((nth - 1) as usize / PER_TOKEN, (nth - 1) as usize % PER_TOKEN);
        let fault = faults[(token + product + kind) % faults.len()];
        let what = fault.replace('N', &nth.to_string());
        let ran = place.generate(&format!("RKNN_EMU_FAULT={what}"), 1, None).unwrap();
        if fault.contains("dead") {
            // Nothing can be given back to a device that is gone.
            place.same(&ran, &what);
        } else {
            place.check(&ran, &what);
        }
        // All products from there on: that of the run, or the next one.
        let last = PRODUCTS as i64;
        let met = ran.report.failures as i64;
        assert_eq!(met, last - nth + i64::from(!fault.contains("after")), "{what}");
    });
}

/// A core that does not answer in time is given up, at every token, in another of its products each time.
#[test]
fn cores_that_hang() {
    const DEADLINE: u64 = 60;
    let kinds = if full_sweep() { PER_TOKEN as i64 } else { 1 };
    each(TOKENS as i64 * kinds, 16, |place, number| {
        let (token, kind) = ((number - 1) % TOKENS as i64 + 1, (number - 1) / TOKENS as i64);
        let nth = (token - 1) * PER_TOKEN as i64 + (token + kind) % PER_TOKEN as i64 + 1;
        let settings = format!("RKNN_EMU_FAULT=run:nth={nth}:hang={}", 4 * DEADLINE);
        let begin = Instant::now();
        let ran = place.generate(&settings, 1, Some(DEADLINE)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60), "{nth}");
        place.same(&ran, &settings);
        assert!(ran.report.reasons[0].contains("did not answer in "), "{:?}", ran.report);
        // When it answers after all, its thread gives back what it owns.
        while [CONTEXTS, MEMORIES].map(|which| place.emulator.counter(which)) != [0, 0] {
            assert!(begin.elapsed() < Duration::from_secs(60), "{nth}");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(place.emulator.counter(BREACHES), 0, "{nth}");
    });
}

/// One core of three computes something else; the other two go on.
#[test]
fn one_core_of_three_that_is_wrong() {
    // Of the runs of a core, of which each token has about as many as it has products.
    let step: i64 = if full_sweep() { 1 } else { 41 };
    each(3 * TOKENS as i64 / step, 2, |place, number| {
        for core in 0..3 {
            let what = format!("run:core={core}:nth={}:wrong=nan", number * step);
            let ran = place.generate(&format!("RKNN_EMU_FAULT={what}"), 3, None).unwrap();
            place.check(&ran, &what);
            // Queries, keys and values are on their way together: what the core has of them is not trusted
            // any more, either.
            assert!((1..=3).contains(&ran.report.failures), "{what}: {:?}", ran.report);
        }
    });
}
