//! `tilewright bench` on GGUF files: tokens per second, of prompts and of generated text.

use core::time::Duration;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tilewright::llm::Session;

use super::args::LlmArgs;
use super::{Ready, rate};
use crate::cli::args::{BenchArgs, Format};
use crate::cli::{Failure, report};
use crate::order::sort;

/// Fewest measured runs of each kind.
const RUNS: usize = 3;

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    isa: &'static str,
    threads: usize,
    load_ms: f64,
    /// Tokens in the context before each run.
    depth: usize,
    runs: [usize; 2],
    /// Tokens per second by the length of the prompt: medians.
    pp: BTreeMap<String, f64>,
    /// Tokens per second by how many are generated: medians.
    tg: BTreeMap<String, f64>,
}

/// The command.
pub(crate) fn bench(args: &BenchArgs, path: &Path) -> Result<(), Failure> {
    if !args.shapes.is_empty() || args.machine.table.is_some() {
        return Err(Failure(
            "--shape and --table are for ONNX files; what is measured of a GGUF file is said by \
             --prompt-length, --generate-length and --depth"
                .into(),
        ));
    }
    let machine = LlmArgs {
        threads: args.machine.threads,
        backend: args.machine.backend.clone(),
        device: args.machine.device.clone(),
        ctx: None,
        cache_type: args.llm.cache_type,
        bf16: args.llm.bf16,
        no_repack: args.llm.no_repack,
        memory_limit: args.machine.memory_limit,
    };
    let (prompt, generated) = (args.llm.prompt_length, args.llm.generate_length);
    let context = args.llm.depth.saturating_add(prompt.max(generated)).max(1);
    let mut ready = Ready::load(Some(path), &machine, Some(context), false)?;
    let vocabulary = ready.llm.config().vocabulary as u64;
    let mut state = 1u64;
    // Any tokens will do: speed does not depend on them.
    let mut token = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % vocabulary.max(1)) as u32
    };
    let tokens: Vec<u32> = (0..context).map(|_| token()).collect();
    let progress = ProgressBar::new_spinner().with_message("measuring");
    progress.enable_steady_tick(Duration::from_millis(100));
    let session = &mut ready.session;
    if args.llm.depth > 0 {
        session.eval(&tokens[..args.llm.depth])?;
    }
    let limit = Duration::from_secs_f64(args.time);
    let pp = |session: &mut Session| session.eval(&tokens[..prompt]).map(|_| ());
    let tg = |session: &mut Session| {
        tokens[..generated].iter().try_for_each(|t| session.eval(&[*t]).map(|_| ()))
    };
    let pp = measure(session, args.llm.depth, prompt, limit, pp)?;
    let tg = measure(session, args.llm.depth, generated, limit, tg)?;
    progress.finish_and_clear();
    let median = |count: usize, times: &[Duration]| {
        let time = times.get(times.len() / 2).copied();
        let mut rates = BTreeMap::new();
        rates.extend(time.map(|t| (count.to_string(), rate(count, t))));
        rates
    };
    let result = Json {
        model: &ready.name,
        isa: ready.session.isa().name(),
        threads: ready.session.threads(),
        load_ms: ready.load.as_secs_f64() * 1e3,
        depth: args.llm.depth,
        runs: [pp.len(), tg.len()],
        pp: median(prompt, &pp),
        tg: median(generated, &tg),
    };
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&shown(&result)),
    }
}

/// Times of runs that begin at `depth`, sorted: one to warm up is left out.
fn measure(
    session: &mut Session,
    depth: usize,
    count: usize,
    limit: Duration,
    mut run: impl FnMut(&mut Session) -> Result<(), tilewright::Error>,
) -> Result<Vec<Duration>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    run(session)?;
    let (begin, mut times) = (Instant::now(), Vec::new());
    while times.len() < RUNS || begin.elapsed() < limit {
        session.truncate(depth);
        let start = Instant::now();
        run(session)?;
        times.push(start.elapsed());
    }
    session.truncate(depth);
    sort(&mut times, Ord::cmp);
    Ok(times)
}

fn shown(result: &Json<'_>) -> String {
    let mut text = format!(
        "model    {}\nready    in {}\non       {} ({} thread{})\n",
        result.model,
        report::duration(result.load_ms / 1e3),
        result.isa,
        result.threads,
        if result.threads == 1 { "" } else { "s" },
    );
    let behind = match result.depth {
        0 => String::new(),
        n => format!(" behind {n}"),
    };
    for (count, speed) in &result.pp {
        text += &format!("prompt   {speed:.1} tokens/s ({count} tokens{behind})\n");
    }
    for (count, speed) in &result.tg {
        text += &format!("generate {speed:.1} tokens/s ({count} tokens{behind})\n");
    }
    text
}
