//! Speed of attention on one thread: prompts by chunks of 512 rows in GFLOP/s and as a share of the
//! peak that a loop of multiply-adds reaches, and single rows in GB/s of the cache, beside what a loop
//! reads that does nothing else, in the same process.
//!
//! `cargo bench -p tilewright-kernels --bench attention [PART OF A NAME]...` prints one table per
//! available instruction set, or for the one that `TILEWRIGHT_ISA` names.

use core::hint::black_box;
use std::time::Instant;
use tilewright_kernels::bench_attention::{Layer, caches, pairs};
use tilewright_kernels::{AttentionParams, CacheType, Dtype, Isa, bench, bench_dot};

/// Heads, kv heads and their size.
const SHAPES: [[usize; 3]; 4] = [[32, 8, 64], [12, 12, 64], [32, 8, 128], [8, 4, 256]];

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn prompt(isa: Isa, [heads, kv_heads, size]: [usize; 3], length: usize, bf16: bool) {
    let params =
        AttentionParams { bf16, ..AttentionParams::new(512, [heads, kv_heads, size], length) };
    let layer = |i| Layer::new(isa, &params, i * 512).expect("the sizes are right");
    let mut layers: Vec<Layer> = (0..length / 512).map(layer).collect();
    let mut cache = caches(layers[0].cache_len());
    let flop = |past: usize| 4.0 * (heads * size) as f64 * pairs(past, 512);
    let (mut best, mut peak, mut half) = (vec![f64::INFINITY; layers.len()], 0.0f64, 0.0f64);
    for _ in 0..if length > 1024 { 5 } else { 21 } {
        for (layer, best) in layers.iter_mut().zip(&mut best) {
            *best = best.min(seconds(|| layer.run(&mut cache, 0)));
            let mut count = 0.0;
            let time = seconds(|| count = bench::peak(black_box(isa), 20_000).unwrap());
            peak = peak.max(count / time / 1e9);
            let time =
                seconds(|| count = bench_dot::peak(black_box(isa), Dtype::Bf16, 20_000).unwrap());
            half = half.max(count / time / 1e9);
        }
    }
    let total: f64 = best.iter().sum();
    let all: f64 = (0..layers.len()).map(|i| flop(i * 512)).sum();
    let last = flop(length - 512) / best[layers.len() - 1] / 1e9;
    let speed = all / total / 1e9;
    println!(
        "pp{length} {heads}/{kv_heads}x{size} {}: {:.2} ms, {speed:.1} GFLOP/s = {:.1} % of f32, {:.1} % of \
         bf16 peak ({peak:.0}, {half:.0}); last chunk {last:.1}",
        if bf16 { "bf16" } else { "f32" },
        total * 1e3,
        speed / peak * 100.0,
        speed / half * 100.0,
    );
}

fn decode(isa: Isa, shape: [usize; 3], past: usize, cache: CacheType) {
    let params = AttentionParams { cache, ..AttentionParams::new(1, shape, past + 1) };
    let mut layer = Layer::new(isa, &params, past).expect("the sizes are right");
    let bytes = 4 * layer.cache_len();
    let layers = ((256 << 20) / bytes).clamp(1, 64);
    let mut memory = caches(bytes / 4 * layers);
    let (mut best, mut read) = (f64::INFINITY, 0.0f64);
    let all = bytes * layers;
    for _ in 0..9 {
        let time = seconds(|| (0..layers).for_each(|i| layer.run(&mut memory, i)));
        best = best.min(time);
        let time = seconds(|| {
            bench::read(isa, &memory).unwrap();
        });
        read = read.max(all as f64 / time / 1e9);
    }
    let speed = all as f64 / best / 1e9;
    println!(
        "tg at {past} {}/{}x{} {}: {:.3} ms for {:.0} MB, {speed:.1} GB/s = {:.1} % of read ({read:.1})",
        shape[0],
        shape[1],
        shape[2],
        cache.name(),
        best * 1e3,
        all as f64 / 1e6,
        speed / read * 100.0
    );
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let filters: Vec<&String> = args.iter().filter(|a| !a.starts_with('-')).collect();
    let chosen = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(*f));
    let isas: Vec<Isa> = if std::env::var_os("TILEWRIGHT_ISA").is_some() {
        vec![Isa::select().expect("TILEWRIGHT_ISA names an available instruction set")]
    } else {
        Isa::available().filter(|&isa| isa != Isa::Scalar).collect()
    };
    for isa in isas {
        println!("{isa}");
        for shape in SHAPES {
            let name = format!("{}/{}x{}", shape[0], shape[1], shape[2]);
            for length in [512, 4096] {
                for bf16 in [false, true] {
                    if chosen(&format!("pp{length} {name} {}", if bf16 { "bf16" } else { "f32" })) {
                        prompt(isa, shape, length, bf16);
                    }
                }
            }
            for cache in [CacheType::F16, CacheType::Q8_0, CacheType::F32] {
                for past in [100, 4095] {
                    if chosen(&format!("tg at {past} {name} {}", cache.name())) {
                        decode(isa, shape, past, cache);
                    }
                }
            }
        }
    }
}
