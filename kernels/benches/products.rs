//! Matrix products on the parts of the machine: every way of computing a product side by side,
//! products of few rows beside a pure read of their weights, and two threads beside one.
//!
//! `cargo bench -p tilewright-kernels --bench products -- [choices | stream | pack | threads] [MxKxN ...]`,
//! after `choices` also choices as a tuning table writes them.
//! Samples are interleaved with the loop that shows the peak of the core.

use core::hint::black_box;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tilewright_kernels::{Choice, Isa, MatmulParams, MatmulPlan, bench};

/// Operands of one product, each from a cache line on.
struct Product {
    plan: MatmulPlan,
    plain: bool,
    operands: [Vec<f32>; 5],
}

fn aligned(data: &[f32]) -> *const f32 {
    data.as_ptr().wrapping_add(data.as_ptr().align_offset(64))
}

impl Product {
    fn new(plan: MatmulPlan, plain: bool) -> Self {
        let (b, scratch) = match plain {
            true => (plan.b_len(), plan.plain_scratch_len()),
            false => (plan.weights_len(), plan.scratch_len()),
        };
        let scratch = 2 * scratch.next_multiple_of(16);
        let sizes = [plan.a_len(), b, plan.bias_len(), plan.c_len(), scratch];
        let operands =
            sizes.map(|len| (0..len + 16).map(|i| (i % 17) as f32 * 0.125 - 1.0).collect());
        Self { plan, plain, operands }
    }

    fn run(&self, part: usize, parts: usize) {
        let [a, b, bias, c, scratch] = &self.operands;
        let half = (scratch.len() - 16) / 2 * part;
        let (c, scratch) = (aligned(c).cast_mut(), aligned(scratch).wrapping_add(half).cast_mut());
        let (a, b, bias, none) = (aligned(a), aligned(b), aligned(bias), core::ptr::null());
        let units = self.plan.units();
        let units = part * units / parts..(part + 1) * units / parts;
        // SAFETY: the operands have the lengths that the plan asks for, one scratch memory per part;
        // parts are disjoint ranges of units, and nothing else uses the memory meanwhile.
        unsafe {
            match self.plain {
                true => self.plan.run_plain(a, b, bias, none, black_box(c), scratch, units),
                false => self.plan.run(a, b, bias, none, black_box(c), scratch, units),
            }
        }
    }
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Peak in FLOP/s.
fn peak(isa: Isa) -> f64 {
    let mut flop = 0.0;
    let time = seconds(|| flop = bench::peak(isa, 20_000).expect("an available set"));
    flop / time
}

fn samples(flop: f64) -> usize {
    ((2e10 / flop) as usize).clamp(7, 200)
}

/// Every candidate, packed and plain, in shares of the peak.
fn choices(isa: Isa, [m, k, n]: [usize; 3], given: &[Choice]) {
    let params = MatmulParams::new(m, k, n);
    let mut list = MatmulPlan::candidates(isa, &params).expect("a valid product");
    if !given.is_empty() {
        list = given.to_vec();
    }
    let plan = |choice| MatmulPlan::with_choice(isa, &params, choice).expect("a candidate");
    let flop = (2 * m * k * n) as f64;
    let repeats = (1e8 / flop).max(1.0) as usize;
    let mut shares = vec![[const { Vec::new() }; 2]; list.len()];
    let mut best = 0.0f64;
    let products: Vec<_> =
        list.iter().map(|c| [false, true].map(|plain| Product::new(plan(c), plain))).collect();
    for _ in 0..samples(flop * repeats as f64 * list.len() as f64).max(12) {
        for (products, shares) in products.iter().zip(&mut shares) {
            for (product, shares) in products.iter().zip(shares) {
                // The others have taken the caches.
                product.run(0, 1);
                let before = peak(isa);
                let time = seconds(|| (0..repeats).for_each(|_| product.run(0, 1)));
                let beside = before.max(peak(isa));
                shares.push(flop * repeats as f64 / time / beside);
                best = best.max(beside);
            }
        }
    }
    println!(
        "{m}x{k}x{n}: median shares of the peak ({:.1} GFLOP/s): packed B, plain B",
        best / 1e9
    );
    for (choice, shares) in list.iter().zip(&mut shares) {
        let [packed, plain] = shares.each_mut().map(|shares| median(shares) * 100.0);
        println!("  {choice:45} {packed:6.1} % {plain:6.1} %");
    }
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Products of few rows beside a pure read of B.
fn stream(isa: Isa, [m, k, n]: [usize; 3]) {
    let params = MatmulParams::new(m, k, n);
    let list = MatmulPlan::candidates(isa, &params).expect("a valid product");
    for choice in list {
        let plan = MatmulPlan::with_choice(isa, &params, &choice).expect("a candidate");
        let product = Product::new(plan, false);
        let data = &product.operands[1];
        let (mut shares, mut peaks) = (Vec::new(), Vec::new());
        let mut times = [f64::MAX; 2];
        for _ in 0..((1 << 32) / (k * n)).clamp(60, 400) {
            // Each after one like itself: the caches are as it leaves them.
            product.run(0, 1);
            let time = seconds(|| product.run(0, 1));
            bench::read(isa, data).expect("an available set");
            let read = seconds(|| _ = bench::read(isa, data));
            shares.push(read / time);
            peaks.push((2 * m * k * n) as f64 / time / peak(isa));
            times = [times[0].min(time), times[1].min(read)];
        }
        let gigabytes = times.map(|t| (k * n * 4) as f64 / t / 1e9);
        println!(
            "{m}x{k}x{n} {choice:42} {:8.4} ms {:6.1} GB/s, read {:6.1}: median {:5.1} %; of peak {:5.1} %",
            times[0] * 1e3,
            gigabytes[0],
            gigabytes[1],
            median(&mut shares) * 100.0,
            median(&mut peaks) * 100.0
        );
    }
}

/// Packing B, as it lies and transposed, beside the product with a packed B.
fn pack(isa: Isa, [m, k, n]: [usize; 3]) {
    for transposed in [false, true] {
        let params = MatmulParams::new(m, k, n);
        let params = if transposed { params.b_transposed() } else { params };
        let plan = MatmulPlan::new(isa, &params).expect("a valid product");
        let product = Product::new(plan, false);
        let b: Vec<f32> = (0..k * n + 16).map(|i| (i % 17) as f32).collect();
        let repeats = (1 << 22) / (k * n) + 1;
        let mut times = [f64::MAX; 2];
        for _ in 0..20 {
            let (plan, to) = (&product.plan, aligned(&product.operands[1]).cast_mut());
            let run = || {
                for _ in 0..repeats {
                    // SAFETY: both hold a B, the second one its packed form; nothing else uses them.
                    unsafe { plan.run_pack(aligned(&b), to, 0..plan.pack_units()) };
                }
            };
            times[0] = times[0].min(seconds(run) / repeats as f64);
            let run = || (0..repeats).for_each(|_| product.run(0, 1));
            times[1] = times[1].min(seconds(run) / repeats as f64);
        }
        println!(
            "{m}x{k}x{n} transposed {transposed}: pack {:.4} ms, {:.1} GB/s, {:.2} times the product",
            times[0] * 1e3,
            (k * n * 8) as f64 / times[0] / 1e9,
            times[0] / times[1]
        );
    }
}

/// Two threads, each with half of the units, beside one.
fn threads(isa: Isa, [m, k, n]: [usize; 3]) {
    let params = MatmulParams::new(m, k, n);
    for plain in [false, true] {
        let product = Product::new(MatmulPlan::new(isa, &params).expect("a valid product"), plain);
        let flop = (2 * m * k * n) as f64;
        let repeats = (1e7 / flop).max(1.0) as usize;
        // The second thread spins between its parts, as those of a session do.
        let (given, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let count = samples(flop * repeats as f64);
        let mut ratios = Vec::new();
        let mut times = [f64::MAX; 2];
        let wait = |counter: &AtomicUsize, value| {
            while counter.load(Ordering::Acquire) < value {
                core::hint::spin_loop();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for i in 1..=count * repeats {
                    wait(&given, i);
                    product.run(1, 2);
                    done.store(i, Ordering::Release);
                }
            });
            for i in 0..count {
                product.run(0, 1);
                let one = seconds(|| (0..repeats).for_each(|_| product.run(0, 1)));
                let two = seconds(|| {
                    for i in i * repeats + 1..=(i + 1) * repeats {
                        given.store(i, Ordering::Release);
                        product.run(0, 2);
                        wait(&done, i);
                    }
                });
                ratios.push(one / two);
                times = [times[0].min(one / repeats as f64), times[1].min(two / repeats as f64)];
            }
        });
        let kind = if plain { "plain" } else { "packed" };
        println!(
            "{m}x{k}x{n} {kind}: {:.4} ms, two threads {:.4} ms: {:.2} times in the median",
            times[0] * 1e3,
            times[1] * 1e3,
            median(&mut ratios)
        );
    }
}

fn shapes(args: &[String], usual: &[[usize; 3]]) -> Vec<[usize; 3]> {
    let given: Vec<[usize; 3]> = args
        .iter()
        .filter_map(|arg| {
            let mut sizes = arg.split('x').map(|n| n.parse().ok());
            Some([sizes.next()??, sizes.next()??, sizes.next()??])
        })
        .collect();
    if given.is_empty() { usual.to_vec() } else { given }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let measured = args.iter().any(|arg| arg == "--bench");
    let isa = Isa::select().expect("an instruction set");
    let given: Vec<Choice> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let asked = |name: &str| measured && args.iter().any(|arg| arg == name);
    if !measured {
        choices(isa, [16, 16, 16], &[]);
    }
    if asked("choices") {
        shapes(&args, &[64, 96, 128, 192, 256, 384, 512, 768, 1024].map(|n| [n; 3]))
            .into_iter()
            .for_each(|shape| choices(isa, shape, &given));
    }
    if asked("stream") {
        shapes(&args, &[[1, 2048, 2048], [1, 4096, 4096], [4, 2048, 2048], [4, 4096, 4096]])
            .into_iter()
            .for_each(|shape| stream(isa, shape));
    }
    if asked("pack") {
        shapes(&args, &[128, 256, 512, 1024, 2048].map(|n| [1, n, n]))
            .into_iter()
            .for_each(|shape| pack(isa, shape));
    }
    if asked("threads") {
        shapes(&args, &[64, 128, 256, 512, 768, 1024].map(|n| [n; 3]))
            .into_iter()
            .for_each(|shape| threads(isa, shape));
    }
}
