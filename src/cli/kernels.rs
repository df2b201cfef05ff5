//! `tilewright bench --kernels`: single kernels against the peak of the core.

use std::fs;
use std::path::Path;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Serialize;
use tilewright::Isa;
use tilewright::kernel_bench::{self, Case, Dtype};

use super::args::{BenchArgs, Format};
use super::output::Pending;
use super::report::{self, Table};
use super::roofline;
use super::{Failure, chosen_isa};
use crate::order::sort;

/// Samples of each kernel.
const SAMPLES: usize = 25;

/// A sample repeats a kernel until this many seconds have passed.
const SAMPLE_SECONDS: f64 = 0.5e-3;

/// Bytes that one sample reads of a level of memory, and samples of each.
const READ_BYTES: u64 = 64 << 20;
const READ_SAMPLES: usize = 5;

/// Steps of the peak loop in one sample: about 0.2 ms.
const PEAK_STEPS: usize = 30_000;

#[derive(Serialize)]
pub(super) struct Json {
    pub(super) isa: &'static str,
    threads: usize,
    pub(super) peak_gflops: f64,
    /// What can be read from each level of memory, nearest first.
    pub(super) memory: Vec<Level>,
    pub(super) kernels: Vec<Row>,
}

/// A level of memory.
#[derive(Serialize)]
pub(super) struct Level {
    pub(super) name: String,
    /// Its size; none for what comes after all caches.
    pub(super) bytes: Option<u64>,
    pub(super) gb_s: f64,
}

#[derive(Serialize)]
pub(super) struct Row {
    pub(super) op: String,
    dtype: &'static str,
    pub(super) shape: [usize; 3],
    pub(super) algorithm: &'static str,
    median_us: f64,
    pub(super) gflops: f64,
    pub(super) share_of_peak: f64,
    /// Operations per byte of operands and result; none where the bytes are not known.
    pub(super) intensity: Option<f64>,
    /// The level that holds operands and result.
    level: Option<String>,
    /// What operands and result are moved at, in 1e9 bytes per second.
    gb_s: Option<f64>,
    /// The roofline: what peak and the bandwidth of that level allow.
    bound_gflops: Option<f64>,
    share_of_bound: Option<f64>,
}

/// The command, for kernels whose names contain `filter`.
pub(super) fn bench(args: &BenchArgs, filter: &str) -> Result<(), Failure> {
    if args.machine.threads.is_some_and(|n| n != 1) {
        return Err(Failure("kernels are measured on one thread; leave out --threads".into()));
    }
    let isa = chosen_isa()?;
    let mut cases = kernel_bench::all_cases(isa).map_err(tilewright::Error::from)?;
    // The table writes shapes with spaces, names have none.
    let wanted: String = filter.split_whitespace().collect();
    cases.retain(|case| case.name().contains(&wanted));
    if cases.is_empty() {
        return Err(Failure(format!(
            "no kernel contains `{filter}` in OPERATION/SHAPE/NAME; `--kernels` alone measures all of them"
        )));
    }
    let progress = ProgressBar::new(cases.len() as u64);
    let memory = memory(isa)?;
    let mut best_peak = 0f64;
    let mut kernels = Vec::with_capacity(cases.len());
    for case in cases {
        let (row, peak) = measure(isa, case, &memory)?;
        if row.dtype == "f32" {
            best_peak = best_peak.max(peak);
        }
        kernels.push(row);
        progress.inc(1);
    }
    progress.finish_and_clear();
    if best_peak == 0.0 {
        best_peak = peak(isa, Dtype::F32)? / 1e9;
    }
    let result = Json { isa: isa.name(), threads: 1, peak_gflops: best_peak, memory, kernels };
    if let Some(path) = &args.roofline {
        Pending::new(path, roofline::svg(&result).as_bytes())?.finish()?;
        report::note(&format!("wrote {}", path.display()));
    }
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&text(&result)),
    }
}

/// The kernel's row, and the peak that the core reached between its samples.
fn measure(isa: Isa, mut case: Case, memory: &[Level]) -> Result<(Row, f64), Failure> {
    let dtype = case.dtype;
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
        peak = peak.max(peak_once(isa, dtype)?);
    }
    sort(&mut samples, f64::total_cmp);
    let median = samples[SAMPLES / 2];
    let bytes = case.bytes;
    let level = memory.iter().find(|l| l.bytes.is_none_or(|size| case.resident <= size as f64));
    let level = level.filter(|_| bytes > 0.0);
    let intensity = (bytes > 0.0).then_some(case.flop / bytes);
    let bound = level.map(|l| (case.flop / bytes * l.gb_s * 1e9).min(peak));
    let row = Row {
        op: case.op.clone(),
        dtype: dtype.name(),
        shape: case.shape,
        algorithm: case.kernel,
        median_us: median * 1e6,
        gflops: case.flop / median / 1e9,
        share_of_peak: case.flop / median / peak,
        intensity,
        level: level.map(|l| l.name.clone()),
        gb_s: (bytes > 0.0).then_some(bytes / median / 1e9),
        bound_gflops: bound.map(|b| b / 1e9),
        share_of_bound: bound.map(|b| case.flop / median / b),
    };
    Ok((row, peak / 1e9))
}

/// The caches of the first core by their size in bytes, nearest first, where the system tells.
fn caches() -> Vec<u64> {
    let folder = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let size = |i: u32| {
        let field = |name| fs::read_to_string(folder.join(format!("index{i}/{name}")));
        if field("type").is_ok_and(|kind| kind.trim() == "Instruction") {
            return Some(None);
        }
        let text = field("size").ok()?;
        let text = text.trim();
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let unit = match unit {
            "K" => 1 << 10,
            "M" => 1 << 20,
            _ => return None,
        };
        Some(Some(number.parse::<u64>().ok()? * unit))
    };
    let sizes: Vec<u64> = (0..8).map_while(size).flatten().collect();
    if sizes.is_empty() { vec![32 << 10, 512 << 10, 8 << 20] } else { sizes }
}

/// The most that the core does with a type in a second, in additions and multiplications.
pub(super) fn peak(isa: Isa, dtype: Dtype) -> Result<f64, Failure> {
    let mut peak = 0f64;
    for _ in 0..SAMPLES {
        peak = peak.max(peak_once(isa, dtype)?);
    }
    Ok(peak)
}

fn peak_once(isa: Isa, dtype: Dtype) -> Result<f64, Failure> {
    let start = Instant::now();
    let done = kernel_bench::peak_of(isa, dtype, PEAK_STEPS).map_err(tilewright::Error::from)?;
    Ok(done / start.elapsed().as_secs_f64())
}

/// The levels of memory, each with what can be read from it when it is half full.
pub(super) fn memory(isa: Isa) -> Result<Vec<Level>, Failure> {
    let caches = caches();
    let beyond = caches.last().map_or(64 << 20, |last| (4 * last).clamp(64 << 20, 256 << 20));
    let sets = caches.iter().map(|size| size / 2).chain([beyond]);
    let data = vec![1f32; beyond as usize / size_of::<f32>()];
    sets.enumerate()
        .map(|(i, set)| {
            let data = &data[..set as usize / size_of::<f32>()];
            let repeats = (READ_BYTES / set).max(1);
            let mut best = f64::INFINITY;
            for _ in 0..READ_SAMPLES {
                let start = Instant::now();
                for _ in 0..repeats {
                    kernel_bench::read(isa, data).map_err(tilewright::Error::from)?;
                }
                best = best.min(start.elapsed().as_secs_f64());
            }
            let name = if i < caches.len() { format!("L{}", i + 1) } else { "memory".into() };
            let gb_s = (set * repeats) as f64 / best / 1e9;
            Ok(Level { name, bytes: caches.get(i).copied(), gb_s })
        })
        .collect()
}

fn text(result: &Json) -> String {
    let mut table = Table::new(&[
        "op",
        "shape",
        "kernel",
        ">median",
        ">GFLOP/s",
        ">of peak",
        ">FLOP/byte",
        ">GB/s",
        "from",
        ">of bound",
    ]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for row in &result.kernels {
        let [a, b, c] = row.shape;
        table.row([
            row.op.clone(),
            format!("{a} x {b} x {c}"),
            row.algorithm.into(),
            report::duration(row.median_us / 1e6),
            format!("{:.1}", row.gflops),
            format!("{:.1} %", row.share_of_peak * 100.0),
            or_none(row.intensity.map(|i| format!("{i:.1}"))),
            or_none(row.gb_s.map(|speed| format!("{speed:.1}"))),
            or_none(row.level.clone()),
            or_none(row.share_of_bound.map(|share| format!("{:.1} %", share * 100.0))),
        ]);
    }
    let levels: Vec<String> =
        result.memory.iter().map(|l| format!("{} {:.0}", l.name, l.gb_s)).collect();
    let mean = result.kernels.iter().map(|r| r.share_of_peak.ln()).sum::<f64>();
    format!(
        "{}geometric mean {:.1} % of the peak, which is {:.1} GFLOP/s on {} (1 thread)\n\
         read GB/s: {}; the bound of a kernel is the peak, or what the level that holds its \
         operands lets through\n\
         operations on padding count, as usual, but are not done: small maps may exceed 100 %\n",
        table.text(),
        (mean / result.kernels.len() as f64).exp() * 100.0,
        result.peak_gflops,
        result.isa,
        levels.join(", "),
    )
}
