//! Speed of block-quantised weights on one thread: a single column against a plain loop that reads the
//! same memory, and many columns against the peak of the dot product, in the same run.
//!
//! `cargo bench -p tilewright-kernels --bench blocks [decode|prefill] [in-place] [FORMAT]... [COLUMNS]` prints
//! one table per available instruction set, or for the one that `TILEWRIGHT_ISA` names. `in-place`: of weights
//! in the order of the file.

use core::hint::black_box;
use std::time::Instant;
use tilewright_kernels::{
    BlockFormat, BlockMatmulParams, BlockMatmulPlan, Dtype, Isa, KernelError, bench_block,
    bench_dot,
};

/// Bytes of weights: beyond any cache.
const WEIGHTS: usize = 544 << 20;

/// Weights of all matrices, on large pages if the system gives them.
struct Memory(Vec<u8>, usize);

impl Memory {
    fn new(len: usize) -> Self {
        let page = 2 << 20;
        let mut bytes = Vec::<u8>::with_capacity(len + page);
        let start = bytes.as_ptr().align_offset(page);
        #[cfg(target_os = "linux")]
        // SAFETY: advice on memory that the vector has allocated; it changes no contents.
        unsafe {
            libc::madvise(bytes.as_mut_ptr().add(start).cast(), len, libc::MADV_HUGEPAGE);
        }
        bytes.resize(len + start, 0);
        Self(bytes, start)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..]
    }
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

/// Packed weights with scales of a usual size, as many matrices as fit.
fn fill(plan: &BlockMatmulPlan, memory: &mut [u8]) -> usize {
    let one = plan.packed_bytes();
    let count = memory.len() / one;
    let packed = bench_block::packed(plan);
    memory.chunks_exact_mut(one).for_each(|matrix| matrix.copy_from_slice(&packed));
    count
}

/// One pass over all matrices.
fn pass(plan: &BlockMatmulPlan, memory: &[u8], x: &[f32], words: &mut [Vec<f32>; 3]) {
    let [workspace, scratch, y] = words;
    for weights in memory.chunks_exact(plan.packed_bytes()) {
        plan.compute(black_box(x), weights, &[], workspace, scratch, y)
            .expect("lengths of the plan");
    }
    black_box(y);
}

fn operands(plan: &BlockMatmulPlan) -> (Vec<f32>, [Vec<f32>; 3]) {
    let x = (0..plan.x_len()).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    (x, [plan.workspace_len(), plan.scratch_len(), plan.y_len()].map(|len| vec![0.0; len]))
}

fn read(isa: Isa, memory: &[u8]) {
    bench_block::read(isa, memory).expect("an available instruction set");
}

/// A plan for packed weights or for those of a file.
type Planned = fn(Isa, &BlockMatmulParams) -> Result<BlockMatmulPlan, KernelError>;

fn decode(planned: Planned, isa: Isa, format: BlockFormat, m: usize, memory: &mut [u8]) {
    let params = BlockMatmulParams::new(m, 8192, 2048, format);
    let plan = planned(isa, &params).expect("an available instruction set");
    let count = fill(&plan, memory);
    let memory = &memory[..count * plan.packed_bytes()];
    let (x, mut words) = operands(&plan);
    let (mut reads, mut passes, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..9 {
        let before = seconds(|| {
            read(isa, memory);
        });
        let run = seconds(|| pass(&plan, memory, &x, &mut words));
        let after = seconds(|| {
            read(isa, memory);
        });
        reads.extend([before, after]);
        passes.push(run);
        ratios.push((before + after) / 2.0 / run);
    }
    let median = |x: &mut Vec<f64>| {
        x.sort_by(f64::total_cmp);
        x[x.len() / 2]
    };
    let size = memory.len() as f64 / 1e9;
    println!(
        "decode  {:28} m {m:3}  {:6.1} GB/s of {:6.1} read, median ratio {:.3}",
        plan.kernel_name(),
        size / median(&mut passes),
        size / median(&mut reads),
        median(&mut ratios)
    );
}

fn prefill(planned: Planned, isa: Isa, params: &BlockMatmulParams, memory: &mut [u8]) {
    let &BlockMatmulParams { m, n, k, .. } = params;
    let plan = planned(isa, params).expect("an available instruction set");
    fill(&plan, memory);
    let (x, mut words) = operands(&plan);
    let (one, each) = (plan.packed_bytes(), 4 * 2048 * 2048 / (n * k).min(4 * 2048 * 2048));
    let (mut best, mut peak, mut at) = (f64::INFINITY, 0.0f64, 0);
    for _ in 0..9 {
        if at + each * one > memory.len() {
            at = 0;
        }
        let start = Instant::now();
        peak = peak
            .max(bench_dot::peak(isa, Dtype::I8, 200_000).unwrap() / start.elapsed().as_secs_f64());
        best = best.min(
            seconds(|| pass(&plan, &memory[at..at + each * one], &x, &mut words)) / each as f64,
        );
        at += each * one;
    }
    let speed = (2 * m * n * k) as f64 / best;
    let workspace = words[0].as_mut_ptr();
    // SAFETY: both operands have the lengths of the plan.
    let prepare =
        || seconds(|| unsafe { plan.prepare(x.as_ptr(), workspace, 0..plan.prepare_units()) });
    let prepare = (0..9).map(|_| prepare()).fold(f64::INFINITY, f64::min);
    println!(
        "prefill {:28} m {m:3} {n:5} x {k:5}  {:7.1} GOP/s, {:5.1} % of {:7.1}",
        plan.kernel_name(),
        speed / 1e9,
        speed / peak * 100.0,
        peak / 1e9
    );
    println!("        quantised in {:.1} % of that", prepare / best * 100.0);
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if !args.iter().any(|arg| arg == "--bench") {
        return;
    }
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let planned: Planned =
        if has("in-place") { BlockMatmulPlan::in_place } else { BlockMatmulPlan::new };
    let both = !has("decode") && !has("prefill");
    let named: Vec<_> = BlockFormat::ALL.into_iter().filter(|f| has(f.name())).collect();
    let formats = if named.is_empty() { BlockFormat::ALL.to_vec() } else { named };
    let columns: Vec<usize> = args.iter().filter_map(|arg| arg.parse().ok()).collect();
    let isas = match std::env::var_os("TILEWRIGHT_ISA") {
        Some(_) => vec![Isa::select().expect("an available instruction set")],
        None => Isa::available().filter(|&isa| isa != Isa::Scalar).collect(),
    };
    let mut memory = Memory::new(WEIGHTS);
    for isa in isas {
        println!("{isa}");
        for &format in &formats {
            let list = |default: &[usize]| {
                if columns.is_empty() { default.to_vec() } else { columns.clone() }
            };
            if both || has("decode") {
                list(&[1])
                    .into_iter()
                    .for_each(|m| decode(planned, isa, format, m, memory.bytes()));
            }
            if both || has("prefill") {
                for m in list(&[512]) {
                    for [n, k] in [[2048, 2048], [8192, 2048], [2048, 8192]] {
                        let params = BlockMatmulParams::new(m, n, k, format);
                        prefill(planned, isa, &params, memory.bytes());
                    }
                }
            }
        }
    }
}
