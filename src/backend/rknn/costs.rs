//! Whether the NPU or the CPU is faster: times of both from a table of rates, shipped or measured.

use core::time::Duration;
use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value, json};
use tilewright_kernels::Isa;

use super::chip::{Chip, Numbers};
use super::planner::{Cut, bucket};
use super::{Npu, RknnError, Rows, Want, Weights};
use crate::backend::cpu::Products;
use crate::tensor::DType;

/// Rates of a machine. Bytes and multiply-adds are per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Seconds that each run of a core costs, with all that the CPU does for it.
    pub run_s: f64,
    /// Bytes of weights that one core of the NPU reads, and all of them.
    pub npu_bytes: [f64; 2],
    /// Multiply-adds of one core of the NPU, on halves; twice as many on bytes.
    pub npu_macs: f64,
    /// Bytes of activations and results that the CPU converts for the NPU.
    pub convert_bytes: f64,
    /// Bytes of weights that the CPU reads.
    pub cpu_bytes: f64,
    /// Multiply-adds of all of the CPU's cores.
    pub cpu_macs: f64,
}

/// The keys of a file, in the order of the fields.
const KEYS: [&str; 7] = [
    "run_s",
    "npu_bytes_core",
    "npu_bytes_all",
    "npu_macs",
    "convert_bytes",
    "cpu_bytes",
    "cpu_macs",
];

/// How much faster the NPU must be estimated to get a product: a table knows little of what else reads
/// memory, and where the two are close, what the NPU gains is less than what a wrong estimate loses.
const CLEARLY: f64 = 1.25;

impl Costs {
    /// What is known of a chip from public reports. The CPU's figures are those of its fast cores.
    pub(super) fn of(chip: &Chip) -> Self {
        // RK3588: 33 us a run, 11.1 GB/s of a core and 26.6 GB/s of three, against 22.9 GB/s of the CPU.
        let rk3588 = Self {
            run_s: 33e-6,
            npu_bytes: [11.1e9, 26.6e9],
            npu_macs: 0.35e12,
            convert_bytes: 4e9,
            cpu_bytes: 22.9e9,
            cpu_macs: 75e9,
        };
        match chip.name {
            "rk3588" => rk3588,
            "rk3576" => {
                Self { npu_bytes: [11.1e9, 15e9], cpu_bytes: 15e9, cpu_macs: 40e9, ..rk3588 }
            }
            // One core of a third of the speed beside slow processors.
            _ => Self {
                npu_bytes: [5e9, 5e9],
                npu_macs: 0.12e12,
                convert_bytes: 1e9,
                cpu_bytes: 6e9,
                cpu_macs: 15e9,
                ..rk3588
            },
        }
    }

    /// Reads a file that [`Costs::to_json`] made.
    ///
    /// # Errors
    /// [`RknnError::CostFile`] with what is wrong.
    pub fn read(path: &Path) -> Result<Self, RknnError> {
        let fail = |reason: String| RknnError::CostFile { path: path.to_owned(), reason };
        let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
        let file: Value = serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?;
        let mut found = [0.0; KEYS.len()];
        for (to, key) in found.iter_mut().zip(KEYS) {
            let number =
                file.get(key).and_then(Value::as_f64).filter(|n| n.is_finite() && *n > 0.0);
            *to = number.ok_or_else(|| fail(format!("`{key}` is not a number above 0")))?;
        }
        let [run_s, core, all, npu_macs, convert_bytes, cpu_bytes, cpu_macs] = found;
        Ok(Self { run_s, npu_bytes: [core, all], npu_macs, convert_bytes, cpu_bytes, cpu_macs })
    }

    /// As an object that [`Costs::read`] takes.
    pub fn to_json(&self) -> Value {
        let [core, all] = self.npu_bytes;
        let values = [
            self.run_s,
            core,
            all,
            self.npu_macs,
            self.convert_bytes,
            self.cpu_bytes,
            self.cpu_macs,
        ];
        let mut object = Map::new();
        for (key, value) in KEYS.iter().zip(values) {
            object.insert((*key).to_owned(), json!(value));
        }
        Value::Object(object)
    }

    /// Whether a product is computed clearly faster by so many cores of the NPU than by the CPU.
    pub(super) fn prefers_npu(
        &self,
        chip: &Chip,
        numbers: Numbers,
        cores: usize,
        want: &Want<'_>,
    ) -> bool {
        self.npu_time(chip, numbers, cores, want) * CLEARLY < self.cpu_time(want)
    }

    fn npu_time(&self, chip: &Chip, numbers: Numbers, cores: usize, want: &Want<'_>) -> f64 {
        let &Want { rows, k, n, .. } = want;
        let cut = Cut::new(chip, numbers, k, n, cores);
        let cores = cores.clamp(1, cut.slices.len());
        let elements = k as f64 * n as f64;
        let passes = rows.div_ceil(super::MAX_ROWS);
        let runs = cut.segments.len() * cut.slices.len().div_ceil(cores) * passes;
        let reading = elements * numbers.bytes(2) as f64 / 2.0 * passes as f64;
        let reading = reading / (self.npu_bytes[0] * cores as f64).min(self.npu_bytes[1]);
        let macs = self.npu_macs * if numbers == Numbers::F16 { 1.0 } else { 2.0 };
        let padded = if rows > super::MAX_ROWS { rows } else { bucket(rows) } as f64;
        let computing = padded * elements / (macs * cores as f64);
        // Activations are read and written, results twice.
        let converted = rows as f64 * (6.0 * k as f64 + 12.0 * n as f64);
        self.run_s * runs as f64 + reading.max(computing) + converted / self.convert_bytes
    }

    fn cpu_time(&self, want: &Want<'_>) -> f64 {
        let macs = want.rows as f64 * want.k as f64 * want.n as f64;
        (want.stored_bytes as f64 / self.cpu_bytes).max(macs / self.cpu_macs)
    }

    /// Measures both.
    ///
    /// # Errors
    /// What products return.
    pub fn measure(npu: &Npu) -> Result<Self, RknnError> {
        const K: usize = 2048;
        const N: usize = 2048;
        let shipped = Self::of(npu.chip);
        let least = |work: &mut dyn FnMut() -> Result<(), RknnError>| -> Result<f64, RknnError> {
            let mut best = Duration::MAX;
            for _ in 0..5 {
                let begin = Instant::now();
                work()?;
                best = best.min(begin.elapsed());
            }
            Ok(best.as_secs_f64())
        };
        let on_npu = |k: usize, n: usize, rows: usize| {
            let weights = Weights::new(Ones { k, n });
            let (x, mut y) = (vec![1f32; rows * k], vec![0f32; rows * n]);
            npu.multiply(&weights, &x, &mut y)?;
            least(&mut || npu.multiply(&weights, &x, &mut y))
        };
        let element = npu.numbers().bytes(2) as f64 / 2.0;
        let size = (K * N) as f64;
        let run_s = on_npu(super::chip::K_UNIT, 64, 1)?;
        let one = (on_npu(K, N, 1)? - run_s).max(1e-9);
        let many = (on_npu(K, N, 256)? - run_s).max(1e-9);
        let cores = npu.description().cores as f64;
        let all = size * element / one;
        let faster = if npu.numbers() == Numbers::F16 { 1.0 } else { 2.0 };
        let mut products = Products::new(Isa::select()?, cpus()).map_err(kernel)?;
        // Blocks of zeros: their scales are, too.
        let weights = vec![0u8; DType::Q8_0.bytes_of(K * N).unwrap_or(0)];
        let mut on_cpu = |rows: usize| {
            let (x, mut y) = (vec![1f32; rows * K], vec![0f32; rows * N]);
            least(&mut || products.multiply(DType::Q8_0, &weights, K, &x, &mut y).map_err(kernel))
        };
        Ok(Self {
            run_s,
            npu_bytes: [all / cores, all],
            npu_macs: 256.0 * size / many / cores / faster,
            convert_bytes: shipped.convert_bytes,
            cpu_bytes: weights.len() as f64 / on_cpu(1)?,
            cpu_macs: 256.0 * size / on_cpu(256)?,
        })
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn kernel(e: crate::graph::GraphError) -> RknnError {
    RknnError::Weights(e.to_string())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoding_stays_on_the_cpu_and_prompts_do_not() {
        for name in ["rk3588", "rk3576", "rk3568", "rk3562"] {
            let chip = Chip::find(Some(name)).unwrap();
            let costs = Costs::of(chip);
            for (k, n) in [(64, 64), (2048, 256), (2048, 5632), (5632, 2048), (2048, 32000)] {
                for cores in 1..=chip.cores {
                    for numbers in [Numbers::F16, Numbers::I8] {
                        let stored_bytes = k * n * 34 / 32;
                        let want = |rows| Want { rows, k, n, name: None, stored_bytes };
                        let prefers = |rows| costs.prefers_npu(chip, numbers, cores, &want(rows));
                        let what = format!("{name} {cores} {k} {n}");
                        assert!(!prefers(1), "{what}: a token");
                        if k * n > 1 << 20 {
                            assert!(prefers(256), "{what}: a prompt");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn tables_are_read_back_and_checked() {
        let costs = Costs::of(Chip::find(Some("rk3588")).unwrap());
        let path = std::env::temp_dir().join(format!("tilewright-costs-{}", std::process::id()));
        std::fs::write(&path, costs.to_json().to_string()).unwrap();
        assert_eq!(Costs::read(&path).unwrap(), costs);
        std::fs::write(&path, r#"{"run_s": 0}"#).unwrap();
        let error = Costs::read(&path).unwrap_err().to_string();
        std::fs::remove_file(&path).unwrap();
        assert!(error.contains("`run_s` is not a number above 0"), "{error}");
    }
}
