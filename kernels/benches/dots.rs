//! Speed of the products of bytes and of bf16 on one thread: GOP/s, the share of the peak that a loop
//! of the same instructions reaches, and the ratio to the peak of `f32`, in the same process.
//!
//! `cargo bench -p tilewright-kernels --bench dots [PART OF A NAME]...` prints one table per available
//! instruction set, or for the one that `TILEWRIGHT_ISA` names.

use core::hint::black_box;
use std::time::Instant;
use tilewright_kernels::bench::{self, Case};
use tilewright_kernels::{Dtype, Isa, KernelError, bench_dot};

/// Operations per second, in units of 1e9.
fn rate(run: impl FnOnce() -> Result<f64, KernelError>) -> f64 {
    let start = Instant::now();
    let count = run().expect("the instruction set is available");
    count / start.elapsed().as_secs_f64() / 1e9
}

fn time(case: &mut Case, repeats: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..repeats {
        case.run();
    }
    start.elapsed().as_secs_f64() / f64::from(repeats)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let bench = args.iter().any(|arg| arg == "--bench");
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let forced = std::env::var_os("TILEWRIGHT_ISA").is_some();
    let isas: Vec<Isa> = if forced {
        vec![Isa::select().expect("TILEWRIGHT_ISA names an available instruction set")]
    } else {
        Isa::available().filter(|&isa| isa != Isa::Scalar).collect()
    };
    for isa in if bench { isas } else { vec![] } {
        println!("{isa}: min ms, median ms, GOP/s, share of peak, of the f32 peak");
        let cases = bench_dot::cases(isa).expect("the instruction set is available");
        let chosen = |c: &Case| filters.is_empty() || filters.iter().any(|f| c.name().contains(*f));
        for mut case in cases.into_iter().filter(chosen) {
            let dtype = if case.op.contains("bf16") { Dtype::Bf16 } else { Dtype::I8 };
            case.run();
            let repeats = (0.5e-3 / time(&mut case, 1)).clamp(1.0, 1e5) as u32;
            let (mut samples, mut peak, mut float) = (Vec::new(), 0.0f64, 0.0f64);
            for _ in 0..21 {
                peak = peak.max(rate(|| bench_dot::peak(black_box(isa), dtype, 20_000)));
                samples.push(time(&mut case, repeats));
                float = float.max(rate(|| bench::peak(black_box(isa), 20_000)));
            }
            samples.sort_by(f64::total_cmp);
            let speed = case.flop / samples[0] / 1e9;
            println!(
                "{:60} {:9.4} {:9.4} {speed:8.1} {:6.1} % {:6.2}",
                case.name(),
                samples[0] * 1e3,
                samples[samples.len() / 2] * 1e3,
                speed / peak * 100.0,
                speed / float
            );
        }
    }
}
