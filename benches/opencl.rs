//! What the OpenCL backend costs and gains, as ratios of measurements that take turns in one run:
//! `cargo bench --bench opencl`. Without a device it says so and ends.
//!
//! Products and convolutions are compared with CLBlast where its library is installed: both send the
//! activations, compute, and get the result back, with weights that lie on the device.

#[path = "opencl/clblast.rs"]
mod clblast;
#[path = "../fuzz/gguf_file.rs"]
mod gguf;
#[path = "opencl/model.rs"]
mod model;

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use clblast::ClBlast;
use tilewright::backend::cpu::Executor;
use tilewright::backend::opencl::{OpenClDevice, Options, Request};
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::{Context, Device, TensorId};
use tilewright::llm::{Llm, LlmOptions, Session};
use tilewright::{DType, Isa, Tensor};

type Outcome<T = ()> = Result<T, Box<dyn core::error::Error>>;

fn main() -> Outcome {
    let options = Options { log: |_| {}, ..Options::from_env()? };
    let device = match OpenClDevice::open(&options) {
        Ok(device) => Arc::new(device),
        Err(e) => {
            println!("skipped: {e}");
            return Ok(());
        }
    };
    println!("{}", device.info().summary());
    // `cargo test --benches` only wants to know that it runs.
    let quick = !std::env::args().any(|a| a == "--bench");
    let wanted = |name: &str| {
        let mut names = std::env::args().skip(1).filter(|a| !a.starts_with('-')).peekable();
        names.peek().is_none() || names.any(|n| n == name)
    };
    if wanted("allocation") {
        allocation(&device, if quick { 1 } else { 100 })?;
    }
    if wanted("clblast") {
        against_clblast(&device, if quick { 1 } else { 15 })?;
    }
    if wanted("tokens") {
        tokens(&options, if quick { 1 } else { 25 })?;
    }
    if wanted("kernels") {
        kernels(&options, if quick { 1 } else { 16 }, if quick { 32 } else { 512 })?;
    }
    Ok(())
}

/// The middle one of some times.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// What a run of a Llama asked of the pool.
const TRACE: &str = include_str!("../tests/data/opencl_pool.txt");

fn allocation(device: &OpenClDevice, rounds: usize) -> Outcome {
    println!(
        "\nmemory taken and given back, ns for both: from the pool; from the driver, without and with the first\n\
         use of the memory; what two locks take alone, which no pool for several threads can be faster than\n\
         {:>12} {:>8} {:>8} {:>7} {:>10} {:>7} {:>7} {:>11}",
        "bytes", "pool", "driver", "ratio", "used", "ratio", "locks", "pool, first"
    );
    let trace = Request::list(TRACE).ok_or("the recorded requests cannot be read")?;
    let pairs = |bytes: usize| [Request::Take(0, bytes), Request::Give(0)].repeat(100);
    let sizes = [4 << 10, 64 << 10, 1 << 20, 16 << 20];
    let lists = sizes.map(|bytes| (bytes.to_string(), pairs(bytes)));
    for (name, list) in lists.into_iter().chain([("a Llama's".to_owned(), trace)]) {
        let mut all: [Vec<Duration>; 5] = Default::default();
        for _ in 0..5 {
            let t = device.allocation_times(&list, rounds)?;
            let sums = [t.pool, t.driver, t.driver_used, t.lock, t.first * rounds as u32];
            for (all, sum) in all.iter_mut().zip(sums) {
                all.push(sum);
            }
        }
        let count = (rounds * list.len() / 2) as f64;
        let [pool, driver, used, lock, first] = all.map(|all| median(all) * 1e9 / count);
        println!(
            "{name:>12} {pool:>8.1} {driver:>8.1} {:>7.1} {used:>10.0} {:>7.0} {lock:>7.1} {first:>11.0}",
            driver / pool,
            used / pool
        );
    }
    Ok(())
}

/// Numbers between -1 and 1.
fn noise(dims: &[usize]) -> Outcome<Tensor> {
    let count: usize = dims.iter().product();
    let value = |i: u32| (i.wrapping_mul(0x9E37_79B9) >> 20) as f32 / 2048.0 - 1.0;
    Ok(Tensor::from_slice(dims, &(0..count as u32).map(value).collect::<Vec<f32>>())?)
}

/// One operation with constant weights on the device, run with its activations.
struct Here {
    executor: Executor,
    plan: tilewright::backend::cpu::Plan,
    x: Tensor,
    results: Vec<Tensor>,
}

impl Here {
    fn new(
        device: &Arc<OpenClDevice>,
        x: Tensor,
        build: impl FnOnce(&mut Context, TensorId) -> Outcome<TensorId>,
    ) -> Outcome<Self> {
        let mut cx = Context::new();
        let id = cx.input("x", DType::F32, &x.dims())?;
        let y = build(&mut cx, id)?;
        let device = Some(device.clone() as Arc<dyn Device>);
        let executor = Executor::new(Isa::best(), 1)?.with_device(device);
        let plan = executor.plan(&mut cx, &[y])?;
        Ok(Self { executor, plan, x, results: Vec::new() })
    }

    fn run(&mut self) -> Outcome<Duration> {
        let begin = Instant::now();
        let given = [&self.x];
        self.executor.run_into(&self.plan, (&given).into(), &mut self.results, None)?;
        Ok(begin.elapsed())
    }

    fn result(&self) -> Outcome<Vec<f32>> {
        Ok(self.results[0].as_slice::<f32>()?.to_vec())
    }
}

/// Runs both in turn; prints their times, and gives how often ours fits into the other.
fn compare(
    name: &str,
    flops: f64,
    rounds: usize,
    here: &mut Here,
    mut there: impl FnMut(&mut [f32]) -> Outcome<Duration>,
) -> Outcome<f64> {
    // The first runs build kernels.
    here.run()?;
    let expected = here.result()?;
    let mut found = vec![0f32; expected.len()];
    there(&mut found)?;
    for (a, b) in found.iter().zip(&expected) {
        if (a - b).abs() > 1e-2 {
            return Err(format!("{name}: {a} and {b} are not the same").into());
        }
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(here.run()?);
        theirs.push(there(&mut found)?);
    }
    let (ours, theirs) = (median(ours), median(theirs));
    let rate = |t: f64| flops / t / 1e9;
    println!("{name:<28} {:>9.1} {:>9.1} {:>7.2}", rate(ours), rate(theirs), theirs / ours);
    Ok(theirs / ours)
}

fn against_clblast(device: &Arc<OpenClDevice>, rounds: usize) -> Outcome {
    let Some(mut other) = ClBlast::open(device.info().index)? else {
        println!("\nskipped: no CLBlast library");
        return Ok(());
    };
    println!(
        "\nagainst CLBlast, GFLOP/s\n{:<28} {:>9} {:>9} {:>7}",
        "", "here", "CLBlast", "ratio"
    );
    let mut ratios = Vec::new();
    let products = [
        [256, 256, 256],
        [512, 512, 512],
        [1024, 1024, 1024],
        [128, 768, 768],
        [128, 2048, 768],
        [197, 768, 3072],
        [1, 2048, 768],
        [49, 1000, 1280],
    ];
    for [m, n, k] in products {
        let (a, b) = (noise(&[m, k])?, noise(&[k, n])?);
        let product = other.product([m, n, k], &b.as_slice::<f32>()?)?;
        let mut here = Here::new(device, a.clone(), |cx, x| {
            let b = cx.constant(b)?;
            Ok(cx.op(MatMul::default(), &[x, b])?)
        })?;
        let flops = 2.0 * (m * n * k) as f64;
        let a = a.as_slice::<f32>()?.to_vec();
        ratios.push(compare(&format!("matmul {m} {n} {k}"), flops, rounds, &mut here, |y| {
            other.run(&product, &a, y)
        })?);
        product.end(&other);
    }
    let products = mean(&ratios);
    // Channels, extent, results, window, stride.
    let convolutions = [
        [3, 224, 64, 7, 2],
        [64, 56, 64, 3, 1],
        [64, 56, 128, 3, 2],
        [128, 28, 128, 3, 1],
        [256, 14, 256, 3, 1],
        [512, 7, 512, 3, 1],
        [32, 112, 64, 1, 1],
        [128, 28, 256, 1, 1],
        [512, 14, 512, 1, 1],
    ];
    let mut ratios = Vec::new();
    for [c, extent, n, window, stride] in convolutions {
        let pad = window / 2;
        let (x, w) = (noise(&[1, c, extent, extent])?, noise(&[n, c, window, window])?);
        let of = [c, extent, n, window, stride, pad];
        let conv = other.convolution(of, &w.as_slice::<f32>()?)?;
        let mut here = Here::new(device, x.clone(), |cx, id| {
            let w = cx.constant(w)?;
            let conv = Conv { stride: [stride; 2], pads: [pad; 4], ..Conv::default() };
            Ok(cx.op(conv, &[id, w])?)
        })?;
        let out = (extent + 2 * pad - window) / stride + 1;
        let flops = 2.0 * (n * out * out * c * window * window) as f64;
        let x = x.as_slice::<f32>()?.to_vec();
        let name = format!("conv {c}x{extent}x{extent} {window}x{window}/{stride} {n}");
        ratios.push(compare(&name, flops, rounds, &mut here, |y| other.run(&conv, &x, y))?);
        conv.end(&other);
    }
    println!("geometric means: products {products:.2}, convolutions {:.2}", mean(&ratios));
    Ok(())
}

/// The geometric mean.
fn mean(ratios: &[f64]) -> f64 {
    (ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64).exp()
}

/// A model on a device, with what a token costs.
struct Model {
    device: Arc<OpenClDevice>,
    session: Session,
    times: Vec<Duration>,
}

impl Model {
    fn new(options: &Options, bytes: &bytes::Bytes, fuse: bool, profile: bool) -> Outcome<Self> {
        let device = Arc::new(OpenClDevice::open(&Options { fuse, profile, ..options.clone() })?);
        let on = Some(device.clone() as Arc<dyn Device>);
        let options = LlmOptions { device: on, context: Some(256), ..LlmOptions::default() };
        let mut session = Llm::from_bytes(bytes.clone(), options)?.session()?;
        session.prompt(&[1, 5, 9, 200, 31, 7, 7, 120, 64])?;
        session.eval(&[3])?;
        Ok(Self { device, session, times: Vec::new() })
    }

    fn token(&mut self) -> Outcome {
        self.session.truncate(10);
        let begin = Instant::now();
        self.session.eval(&[77])?;
        self.times.push(begin.elapsed());
        Ok(())
    }

    /// Kernels and waits of a token.
    fn counts(&mut self) -> Outcome<[u64; 2]> {
        let before = self.device.counts();
        self.token()?;
        let after = self.device.counts();
        self.times.clear();
        Ok([after.kernels - before.kernels, after.waits - before.waits])
    }
}

fn tokens(options: &Options, rounds: usize) -> Outcome {
    println!("\na token of a model of the size of Llama-110M");
    for kind in [model::Kind::Q8_0, model::Kind::F16] {
        let bytes = bytes::Bytes::from(model::llama_110m(kind));
        let mut fused = Model::new(options, &bytes, true, false)?;
        let mut plain = Model::new(options, &bytes, false, false)?;
        let mut timed = Model::new(options, &bytes, true, true)?;
        let [few, waits] = fused.counts()?;
        let [many, _] = plain.counts()?;
        timed.counts()?;
        let mut shares = Vec::new();
        for _ in 0..rounds {
            fused.token()?;
            plain.token()?;
            let before = timed.device.counts().busy;
            timed.token()?;
            let busy = timed.device.counts().busy - before;
            let wall = timed.times[timed.times.len() - 1];
            shares.push(1.0 - busy.as_secs_f64() / wall.as_secs_f64());
        }
        shares.sort_by(f64::total_cmp);
        let outside = shares[shares.len() / 2];
        let (fused, plain) = (median(fused.times) * 1e3, median(plain.times) * 1e3);
        println!("{kind:?}: {few} kernels fused, {many} one by one; {waits} wait for the device");
        println!("  {fused:.2} ms fused, {plain:.2} ms one by one: {:.2} times", plain / fused);
        println!("  outside of kernels: {:.1} % of the time of a token", 100.0 * outside);
    }
    Ok(())
}

/// Where the time of a prompt and of the tokens behind it goes.
fn kernels(options: &Options, tokens: usize, prompt: usize) -> Outcome {
    let device = Arc::new(OpenClDevice::open(&Options { profile: true, ..options.clone() })?);
    let on = Some(device.clone() as Arc<dyn Device>);
    let options = LlmOptions { device: on, context: Some(1024), ..LlmOptions::default() };
    let bytes = bytes::Bytes::from(model::llama_110m(model::Kind::Q8_0));
    let mut session = Llm::from_bytes(bytes, options)?.session()?;
    let ids: Vec<u32> = (0..prompt as u32).map(|i| i * 31 % 30_000).collect();
    // The first runs build kernels.
    session.prompt(&ids)?;
    session.eval(&[3])?;
    session.truncate(0);
    let mut before = device.kernel_times();
    let mut since = |what: &str, wall: Duration, each: u32| {
        let now = device.kernel_times();
        let old = |name: &str| before.iter().find(|(n, ..)| **n == *name);
        let mut all: Vec<(&str, u64, Duration)> = now
            .iter()
            .map(|(name, count, time)| {
                let (_, n, t) = old(name).cloned().unwrap_or_default();
                (&**name, count - n, *time - t)
            })
            .filter(|(_, count, _)| *count > 0)
            .collect();
        all.sort_by_key(|(.., time)| core::cmp::Reverse(*time));
        println!("\n{what}: {:.3} ms, {:.3} ms in kernels", wall.as_secs_f64() * 1e3, {
            all.iter().map(|(.., t)| t.as_secs_f64()).sum::<f64>() * 1e3 / f64::from(each)
        });
        for (name, count, time) in all {
            let time = time.as_secs_f64() * 1e6;
            println!(
                "{:>9.1} us {:>5} times {:>8.1} us each  {name}",
                time / f64::from(each),
                count / u64::from(each),
                time / count as f64
            );
        }
        before = now;
    };
    let begin = Instant::now();
    session.prompt(&ids)?;
    since(&format!("Q8_0, a prompt of {prompt} tokens"), begin.elapsed(), 1);
    let begin = Instant::now();
    for i in 0..tokens {
        session.eval(&[i as u32])?;
    }
    let each = begin.elapsed() / tokens as u32;
    since(&format!("Q8_0, a token behind {prompt}"), each, tokens as u32);
    Ok(())
}
