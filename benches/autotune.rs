//! All ways of computing an op side by side, and which of them is chosen without a table.
//!
//! `cargo bench --bench autotune [FILTER]`: one group per op and number of threads, one entry per
//! candidate; the one that the analytic rule takes is marked with a star. Without a filter this
//! measures a dozen ops; the text of any op (see `tilewright tune --help`) in
//! `TILEWRIGHT_AUTOTUNE`, one per line, replaces them.

use core::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use tilewright::Isa;
use tilewright::backend::cpu::Executor;
use tilewright::tune::Workload;

const WORKLOADS: &str = "\
conv 16x48x48 to 16 window 3 pad 1
conv 64x24x24 to 64 window 3 pad 1
conv 128x6x6 to 256 window 3 pad 1
conv 256x12x12 to 256 window 3 pad 1
conv 512x13x13 to 1024 window 3 pad 1
conv 32x208x208 to 64 window 3 pad 1
conv 64x56x56 to 128 window 1
conv 3x224x224 to 32 window 3 stride 2 pad 1 interleaved
matmul 1x2048x2048
matmul 4x2048x2048
matmul 32x1024x1024
matmul 256x256x256";

fn main() {
    let list = std::env::var("TILEWRIGHT_AUTOTUNE").unwrap_or_else(|_| WORKLOADS.to_owned());
    let isa = Isa::select().expect("TILEWRIGHT_ISA names an available instruction set");
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .configure_from_args();
    for threads in if cores > 1 { vec![1, cores] } else { vec![1] } {
        let mut executor = Executor::new(isa, threads).expect("the system has threads");
        for line in list.lines().filter(|line| !line.trim().is_empty()) {
            let workload: Workload = line.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            let choices = workload.candidates(isa).unwrap_or_else(|e| panic!("{line}: {e}"));
            let trials = executor.trials(&workload, &choices, threads).expect("there is memory");
            let name = format!("{workload}, {isa}, {threads} threads");
            let mut group = criterion.benchmark_group(name);
            group.throughput(Throughput::Elements(workload.flop() as u64));
            for (i, trial) in trials.iter().enumerate() {
                let star = if i == 0 { "* " } else { "" };
                let id = BenchmarkId::from_parameter(format!("{star}{}", trial.choice()));
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|repeats| {
                        let repeats = u32::try_from(repeats).unwrap_or(u32::MAX);
                        executor.time(trial, repeats).expect("there is memory")
                    });
                });
            }
            group.finish();
        }
    }
    criterion.final_summary();
}
