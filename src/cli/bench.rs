//! `tilewright bench`: how fast a network runs here.

use core::time::Duration;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;

use super::args::{BenchArgs, Format};
use super::model::{self, Network};
use super::report;
use super::run::borrowed;
use super::{Failure, inputs, inspect_gguf, kernels};
use crate::order::sort;

/// Runs before measuring.
const WARM_UP: usize = 3;

/// Fewest and most measured runs, whatever the time.
const RUNS: [usize; 2] = [5, 100_000];

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    isa: &'static str,
    threads: usize,
    backend: &'a str,
    runs: usize,
    /// Reading the model and planning it.
    load_ms: f64,
    median_us: f64,
    min_us: f64,
    gflops: f64,
    shapes: Vec<Shape>,
}

#[derive(Serialize)]
struct Shape {
    name: String,
    shape: Vec<usize>,
}

/// The command.
pub(super) fn bench(args: &BenchArgs) -> Result<(), Failure> {
    if let Some(filter) = &args.kernels {
        return kernels::bench(args, filter);
    }
    if let Some(path) = args.model.as_deref().filter(|p| inspect_gguf::is_gguf(p)) {
        #[cfg(feature = "llm")]
        return super::llm::bench::bench(args, path);
        #[cfg(not(feature = "llm"))]
        return Err(inspect_gguf::no_language_models(path));
    }
    #[cfg(feature = "llm")]
    if args.llm.says_something() {
        return Err(Failure(
            "--prompt-length, --generate-length, --depth, --cache-type, --bf16 and --no-repack are for GGUF \
             files; what is measured of a network is said by --shape"
                .into(),
        ));
    }
    let start = Instant::now();
    let network = Network::load(args.model.as_deref())?;
    let read = start.elapsed();
    let given = if network.is_embedded && args.shapes.is_empty() {
        vec![inputs::embedded_input(&network)?]
    } else {
        inputs::random(&network, &args.shapes)?
    };
    let borrowed = borrowed(&given);
    let start = Instant::now();
    let mut session = network.session(&args.machine, false)?;
    let unplanned = |e| inputs::unplanned(&network, &given, &args.shapes, e);
    let macs = session.prepare(&borrowed).map_err(unplanned)?.macs;
    let load = read + start.elapsed();
    for _ in 0..WARM_UP {
        session.run(&borrowed)?;
    }
    let progress = ProgressBar::new_spinner().with_message("measuring");
    let limit = Duration::from_secs_f64(args.time);
    let (begin, mut samples) = (Instant::now(), Vec::new());
    while samples.len() < RUNS[1] && (samples.len() < RUNS[0] || begin.elapsed() < limit) {
        let start = Instant::now();
        session.run(&borrowed)?;
        samples.push(start.elapsed().as_secs_f64());
        progress.tick();
    }
    progress.finish_and_clear();
    sort(&mut samples, f64::total_cmp);
    let median = samples[samples.len() / 2];
    let result = Json {
        model: &network.name,
        isa: session.isa().name(),
        threads: session.threads(),
        backend: &args.machine.backend,
        runs: samples.len(),
        load_ms: load.as_secs_f64() * 1e3,
        median_us: median * 1e6,
        min_us: samples[0] * 1e6,
        gflops: 2.0 * macs as f64 / median / 1e9,
        shapes: given
            .iter()
            .map(|(name, t)| Shape { name: name.clone(), shape: t.dims() })
            .collect(),
    };
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&text(&result)),
    }
}

fn text(result: &Json<'_>) -> String {
    let shapes: Vec<String> =
        result.shapes.iter().map(|s| format!("{} {:?}", s.name, s.shape)).collect();
    format!(
        "model   {}\ninput   {}\nready   in {}\nmedian  {} ({} runs)\nfastest {}\nspeed   {:.1} GFLOP/s on {}{} \
         ({} thread{})\n",
        result.model,
        shapes.join(", "),
        report::duration(result.load_ms / 1e3),
        report::duration(result.median_us / 1e6),
        result.runs,
        report::duration(result.min_us / 1e6),
        result.gflops,
        model::device_before(result.backend),
        result.isa,
        result.threads,
        if result.threads == 1 { "" } else { "s" },
    )
}
