//! Speed of the kernels, on one thread: GFLOP/s, and the share of the FMA peak that a loop in the
//! same process reaches at the same time.
//!
//! `cargo bench -p tilewright-kernels` prints one table per available instruction set (one only if
//! `TILEWRIGHT_ISA` is set) and then runs criterion over the same cases, for comparisons between
//! builds. Arguments select cases by a part of their name; `table` skips criterion.

use core::hint::black_box;
use core::time::Duration;
use criterion::{Criterion, Throughput};
use std::time::Instant;
use tilewright_kernels::Isa;
use tilewright_kernels::bench::{self, Case};

/// GFLOP/s of the peak loop, over about 0.2 ms.
fn peak(isa: Isa) -> f64 {
    let start = Instant::now();
    let flop = bench::peak(black_box(isa), 30_000).expect("the instruction set is available");
    flop / start.elapsed().as_secs_f64() / 1e9
}

fn time(case: &mut Case, repeats: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..repeats {
        case.run();
    }
    start.elapsed().as_secs_f64() / f64::from(repeats)
}

/// Minimum and median of 25 samples, and the best peak measured between them.
fn measure(isa: Isa, case: &mut Case) -> (f64, f64, f64) {
    // The first run allocates the operands.
    case.run();
    let once = time(case, 3);
    let repeats = (0.5e-3 / once).clamp(1.0, 1e5) as u32;
    let (mut samples, mut best_peak) = (Vec::new(), 0.0f64);
    for _ in 0..25 {
        samples.push(time(case, repeats));
        best_peak = best_peak.max(peak(isa));
    }
    samples.sort_by(f64::total_cmp);
    (samples[0], samples[samples.len() / 2], best_peak)
}

/// What streams its weights, beside a pure read of as many bytes.
fn beside_read(isa: Isa, elements: usize, seconds: f64) {
    let data: Vec<f32> = (0..elements).map(|i| (i % 17) as f32).collect();
    let repeats = (1 << 20) / elements + 1;
    let mut read = f64::MAX;
    for _ in 0..25 {
        let start = Instant::now();
        for _ in 0..repeats {
            bench::read(isa, &data).expect("the instruction set is available");
        }
        read = read.min(start.elapsed().as_secs_f64() / repeats as f64);
    }
    let [product, read] = [seconds, read].map(|t| elements as f64 * 4.0 / t / 1e9);
    println!(
        "{:55} {product:9.1} GB/s, a pure read {read:.1} GB/s: {:.1} %",
        "",
        product / read * 100.0
    );
}

fn table(isa: Isa, cases: &mut [Case]) {
    println!("{isa}: min ms, median ms, GFLOP/s, share of peak");
    let mut means = [("conv3x3", 0.0, 0), ("conv3x3_direct", 0.0, 0)];
    for case in cases {
        let (min, median, peak) = measure(isa, case);
        let gflops = case.flop / min / 1e9;
        println!(
            "{:55} {:9.4} {:9.4} {gflops:8.1} {:6.1} %",
            case.name(),
            min * 1e3,
            median * 1e3,
            gflops / peak * 100.0
        );
        if let ("matmul", [1, k, n]) = (case.op.as_str(), case.shape) {
            beside_read(isa, k * n, min);
        }
        for (op, product, count) in &mut means {
            if case.op == *op {
                *product += (gflops / peak).ln();
                *count += 1;
            }
        }
    }
    for (op, product, count) in means.iter().filter(|mean| mean.2 > 0) {
        let mean = (product / f64::from(*count)).exp() * 100.0;
        println!("{isa}: geometric mean of {op} {mean:.1} %");
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let bench = args.iter().any(|arg| arg == "--bench");
    let table_only = args.iter().any(|arg| arg == "table");
    let filters: Vec<&String> =
        args.iter().filter(|a| !a.starts_with('-') && *a != "table").collect();
    let forced = std::env::var_os("TILEWRIGHT_ISA").is_some();
    let isas: Vec<Isa> = if forced {
        vec![Isa::select().expect("TILEWRIGHT_ISA names an available instruction set")]
    } else {
        Isa::available().filter(|&isa| isa != Isa::Scalar || !bench).collect()
    };
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .sample_size(20);
    for isa in isas {
        let mut cases = bench::cases(isa).expect("the instruction set is available");
        cases.retain(|c| {
            filters.is_empty() || filters.iter().any(|f| c.name().contains(f.as_str()))
        });
        if !bench {
            // As a test: each case once.
            cases.iter_mut().for_each(Case::run);
            continue;
        }
        table(isa, &mut cases);
        for case in if table_only { &mut [] } else { &mut cases[..] } {
            let mut group = criterion.benchmark_group("kernels");
            group.throughput(Throughput::Elements(case.flop as u64));
            group.bench_function(case.name(), |b| b.iter(|| case.run()));
        }
    }
}
