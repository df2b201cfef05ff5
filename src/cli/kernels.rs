//! `tilewright bench --kernels`: single kernels against the peak of the core.

use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tilewright::Isa;
use tilewright::kernel_bench::{self, Case};

use super::Failure;
use super::args::{BenchArgs, Format};
use super::report::{self, Table};

/// Samples of each kernel.
const SAMPLES: usize = 25;

/// A sample repeats a kernel until this many seconds have passed.
const SAMPLE_SECONDS: f64 = 0.5e-3;

/// Steps of the peak loop in one sample: about 0.2 ms.
const PEAK_STEPS: usize = 30_000;

#[derive(Serialize)]
struct Json {
    isa: &'static str,
    threads: usize,
    peak_gflops: f64,
    kernels: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    op: String,
    dtype: &'static str,
    shape: [usize; 3],
    algorithm: &'static str,
    median_us: f64,
    gflops: f64,
    share_of_peak: f64,
}

/// The command, for kernels whose names contain `filter`.
pub(super) fn bench(args: &BenchArgs, filter: &str) -> Result<(), Failure> {
    if args.machine.threads.is_some_and(|n| n != 1) {
        return Err(Failure("kernels are measured on one thread; leave out --threads".into()));
    }
    let isa = Isa::select()?;
    let mut cases = kernel_bench::cases(isa).map_err(tilewright::Error::from)?;
    cases.retain(|case| case.name().contains(filter));
    if cases.is_empty() {
        return Err(Failure(format!("no kernel's name contains `{filter}`")));
    }
    let progress = ProgressBar::new(cases.len() as u64);
    let mut best_peak = 0f64;
    let mut kernels = Vec::with_capacity(cases.len());
    for case in cases {
        let (row, peak) = measure(isa, case)?;
        best_peak = best_peak.max(peak);
        kernels.push(row);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let result = Json { isa: isa.name(), threads: 1, peak_gflops: best_peak, kernels };
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&text(&result)),
    }
}

/// The kernel's row, and the peak that the core reached between its samples.
fn measure(isa: Isa, mut case: Case) -> Result<(Row, f64), Failure> {
    let mut time = |repeats: u32| {
        let start = Instant::now();
        for _ in 0..repeats {
            case.run();
        }
        start.elapsed().as_secs_f64() / f64::from(repeats)
    };
    // The first run allocates the operands.
    time(1);
    let repeats = (SAMPLE_SECONDS / time(2)).clamp(1.0, 1e5) as u32;
    let mut samples = Vec::with_capacity(SAMPLES);
    let mut peak = 0f64;
    for _ in 0..SAMPLES {
        samples.push(time(repeats));
        let start = Instant::now();
        let flop = kernel_bench::peak(isa, PEAK_STEPS).map_err(tilewright::Error::from)?;
        peak = peak.max(flop / start.elapsed().as_secs_f64());
    }
    samples.sort_by(f64::total_cmp);
    let median = samples[SAMPLES / 2];
    let row = Row {
        op: case.op.clone(),
        dtype: "f32",
        shape: case.shape,
        algorithm: case.kernel,
        median_us: median * 1e6,
        gflops: case.flop / median / 1e9,
        share_of_peak: case.flop / median / peak,
    };
    Ok((row, peak / 1e9))
}

fn text(result: &Json) -> String {
    let mut table = Table::new(&["op", "shape", "kernel", ">median", ">GFLOP/s", ">of peak"]);
    for row in &result.kernels {
        let [a, b, c] = row.shape;
        table.row([
            row.op.clone(),
            format!("{a} x {b} x {c}"),
            row.algorithm.into(),
            report::duration(row.median_us / 1e6),
            format!("{:.1}", row.gflops),
            format!("{:.1} %", row.share_of_peak * 100.0),
        ]);
    }
    let mean = result.kernels.iter().map(|r| r.share_of_peak.ln()).sum::<f64>();
    format!(
        "{}geometric mean {:.1} % of the peak, which is {:.1} GFLOP/s on {} (1 thread)\n\
         operations on padding count, as usual, but are not done: small maps may exceed 100 %\n",
        table.text(),
        (mean / result.kernels.len() as f64).exp() * 100.0,
        result.peak_gflops,
        result.isa
    )
}
