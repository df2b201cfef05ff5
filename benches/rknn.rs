//! What the NPU backend itself costs, and what an RK3588 would gain, as far as a model of its times
//! says: `cargo bench --bench rknn`.

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("the emulator of the NPU's library is opened on Linux only");
}

#[cfg(target_os = "linux")]
fn main() -> Result<(), Box<dyn core::error::Error>> {
    packing()?;
    overhead()?;
    timeline()
}

#[cfg(target_os = "linux")]
use bench::{overhead, packing, timeline};

#[cfg(target_os = "linux")]
mod bench {
    use core::time::Duration;
    use std::time::Instant;

    use rknnrt::Instance;
    use tilewright::backend::rknn::{Npu, Numbers, Options, RknnError, Rows, Weights, pack_rates};

    type Outcome = Result<(), Box<dyn core::error::Error>>;

    struct Ones {
        k: usize,
        n: usize,
    }

    impl Rows for Ones {
        fn k(&self) -> usize {
            self.k
        }

        fn n(&self) -> usize {
            self.n
        }

        fn row(&self, _column: usize, out: &mut [f32]) -> Result<(), RknnError> {
            out.fill(1.0);
            Ok(())
        }
    }

    fn npu(emulator: &Instance, cores: usize, numbers: Numbers) -> Result<Npu, RknnError> {
        Npu::open(Options {
            library: Some(emulator.path().to_owned()),
            chip: Some("rk3588".to_owned()),
            emulator: true,
            numbers,
            cores,
            weight_bytes: Some(1 << 30),
            // The emulator leaves results as they are.
            verify: false,
            lock: None,
            ..Options::default()
        })
    }

    /// Least and median time of a product after the first.
    fn times(npu: &Npu, w: &Weights, rows: usize, runs: usize) -> Result<[f64; 2], RknnError> {
        let (k, n) = w.sizes();
        let (x, mut y) = (vec![1f32; rows * k], vec![0f32; rows * n]);
        npu.multiply(w, &x, &mut y)?;
        let mut all: Vec<Duration> = Vec::with_capacity(runs);
        for _ in 0..runs {
            let begin = Instant::now();
            npu.multiply(w, &x, &mut y)?;
            all.push(begin.elapsed());
        }
        all.sort();
        Ok([all[0], all[runs / 2]].map(|time| time.as_secs_f64() * 1e6))
    }

    pub(crate) fn packing() -> Outcome {
        println!("packing of operands larger than caches, GB/s read and written");
        for threads in [1, 2] {
            for (numbers, name) in [(Numbers::F16, "f16"), (Numbers::I8, "i8")] {
                let rates = pack_rates("rk3588", numbers, threads)?;
                let share = |rate: f64| 100.0 * rate / rates.copy;
                println!(
                    "  {threads} threads  {name:3}  copy {:5.1}  A {:5.1} ({:3.0} %)  B {:5.1} ({:3.0} %)",
                    rates.copy,
                    rates.a,
                    share(rates.a),
                    rates.b,
                    share(rates.b)
                );
            }
        }
        Ok(())
    }

    pub(crate) fn overhead() -> Outcome {
        println!(
            "\na product of 1 x 512 by 512 x 512 that costs the NPU nothing, us (least, median)"
        );
        let emulator = Instance::new("RKNN_EMU_COMPUTE=0\nRKNN_EMU_SYNC=lenient", None)?;
        let weights = Weights::new(Ones { k: 512, n: 512 });
        for cores in 1..=3 {
            let npu = npu(&emulator, cores, Numbers::F16)?;
            let [least, median] = times(&npu, &weights, 1, 2000)?;
            println!("  {cores} cores  {least:6.1}  {median:6.1}");
        }
        Ok(())
    }

    /// Seconds that all threads of this process have computed for.
    fn processor_time() -> Result<f64, Box<dyn core::error::Error>> {
        let mut time = 0.0;
        for task in std::fs::read_dir("/proc/self/task")?.flatten() {
            // Nanoseconds that the thread has run; one that has ended since has no file.
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let nanoseconds = text.split(' ').next().and_then(|n| n.parse::<f64>().ok());
            time += nanoseconds.unwrap_or(0.0) * 1e-9;
        }
        Ok(time)
    }

    /// The products of a layer of a Llama of 1.1 billion parameters: k, n.
    const LAYER: [(usize, usize); 7] = [
        (2048, 2048),
        (2048, 256),
        (2048, 256),
        (2048, 2048),
        (2048, 5632),
        (2048, 5632),
        (5632, 2048),
    ];
    const LAYERS: f64 = 22.0;

    pub(crate) fn timeline() -> Outcome {
        println!(
            "\nsimulated: tokens/s of a prompt of 128 tokens, products of TinyLlama 1.1B only"
        );
        println!(
            "  (33 us per run, 11.1 GB/s per core, 26.6 GB/s in all, 0.7 TFLOPS f16 per core)\n  \
             and the share of that time in which all threads of the processor are free for other work"
        );
        let settings = "RKNN_EMU_COMPUTE=0\nRKNN_EMU_SYNC=lenient\nRKNN_EMU_LATENCY=33,11.1,26.6";
        let emulator = Instance::new(settings, None)?;
        for (numbers, name) in [(Numbers::F16, "f16"), (Numbers::I8, "i8")] {
            for cores in 1..=3 {
                let npu = npu(&emulator, cores, numbers)?;
                let weights: Vec<Weights> =
                    LAYER.iter().map(|&(k, n)| Weights::new(Ones { k, n })).collect();
                let mut layer = 0.0;
                for weights in &weights {
                    layer += times(&npu, weights, 128, 5)?[0];
                }
                let (begin, busy) = (Instant::now(), processor_time()?);
                for weights in weights.iter().cycle().take(LAYER.len() * 10) {
                    times(&npu, weights, 128, 1)?;
                }
                let spent = processor_time()? - busy;
                // More threads than the processor has are ready at times.
                let free = (1.0 - spent / begin.elapsed().as_secs_f64()).max(0.0);
                let rate = 128.0 / (layer * 1e-6 * LAYERS);
                println!("  {name:3}  {cores} cores  {rate:7.1}  {:4.0} %", 100.0 * free);
            }
        }
        Ok(())
    }
}
