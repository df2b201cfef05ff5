//! Whether an NPU computes what it should, before anybody relies on it.

use core::time::Duration;
use std::fs;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Description, Npu, Numbers, Options, RknnError, Rows, Weights};

/// By which people tell versions of the vendor's library apart.
fn sha256(path: &Path) -> Option<String> {
    let digest = Sha256::digest(fs::read(path).ok()?);
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Sizes of the product: none is a multiple of what the NPU computes in, and every core has a part.
const ROWS: usize = 33;
const K: usize = 1000;
const N: usize = 500;

/// Runs of which the fastest counts.
const RUNS: usize = 5;

/// What a test found.
#[derive(Clone, Debug, PartialEq)]
pub struct SelfTest {
    /// The NPU.
    pub description: Description,
    /// Per form of the operands: the time of a product with 33 rows, 1000 sums and 500 columns the
    /// first time, contexts and packing included, and the shortest after that.
    pub times: Vec<(Numbers, Duration, Duration)>,
    /// The same shortest time for each core alone, by its number.
    pub cores: Vec<(usize, Numbers, Duration)>,
    /// Per form of the operands: multiply-adds per second of all cores, in a product with 256 rows, 2048
    /// sums and 2048 columns.
    pub rates: Vec<(Numbers, f64)>,
}

impl SelfTest {
    /// As an object, with the digest of the library.
    pub fn to_json(&self) -> Value {
        let about = &self.description;
        let gflops = |numbers| {
            let rate = self.rates.iter().find(|(other, _)| *other == numbers);
            rate.map(|(_, macs)| (macs * 2e-9 * 10.0).round() / 10.0)
        };
        let time = |(numbers, first, again): &(Numbers, Duration, Duration)| {
            json!({
                "type": numbers.name(),
                "first_us": first.as_micros() as u64,
                "again_us": again.as_micros() as u64,
                "gflops": gflops(*numbers),
            })
        };
        let core = |(core, numbers, again): &(usize, Numbers, Duration)| json!({"core": core, "type": numbers.name(), "again_us": again.as_micros() as u64});
        let [api, driver] = about.versions.clone().unwrap_or_default();
        json!({
            "cores": about.cores,
            "library": about.library.display().to_string(),
            "library_bytes": fs::metadata(&about.library).map(|m| m.len()).ok(),
            "library_sha256": sha256(&about.library),
            "interface": format!("{:?}", about.interface),
            "api_version": api,
            "driver_version": driver,
            "times": self.times.iter().map(time).collect::<Vec<_>>(),
            "per_core": self.cores.iter().map(core).collect::<Vec<_>>(),
        })
    }
}

/// Whole numbers from -8 to 8 with a pattern that no layout repeats: their products are exact in every
/// form.
fn element(i: usize) -> f32 {
    let mixed = (i as u32).wrapping_mul(0x9E37_79B9) >> 16;
    (mixed % 17) as f32 - 8.0
}

struct Pattern;

impl Rows for Pattern {
    fn k(&self) -> usize {
        K
    }

    fn n(&self) -> usize {
        N
    }

    fn row(&self, column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        out.iter_mut().enumerate().for_each(|(i, x)| *x = element(column * K + i + 7));
        Ok(())
    }
}

/// Opens the NPU with these options and computes a product in each form, which must be exact.
///
/// A library may crash or hang where it does not fit its driver: call this in a process of its own.
///
/// # Errors
/// What [`Npu::open`] and [`Npu::multiply`] return, and [`RknnError::WrongResult`].
pub fn self_test(options: &Options) -> Result<SelfTest, RknnError> {
    let x: Vec<f32> = (0..ROWS * K).map(element).collect();
    let mut columns = vec![0f32; N * K];
    for (column, out) in columns.chunks_exact_mut(K).enumerate() {
        Pattern.row(column, out)?;
    }
    let run = |npu: &Npu| {
        let weights = Weights::new(Pattern);
        let mut spent = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let (mut y, begin) = (vec![f32::NAN; ROWS * N], Instant::now());
            npu.multiply(&weights, &x, &mut y)?;
            spent.push(begin.elapsed());
            compare(&x, &columns, &y, npu.numbers())?;
        }
        Ok::<_, RknnError>([spent[0], spent[1..].iter().min().copied().unwrap_or_default()])
    };
    let (mut times, mut cores, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let mut described = None;
    for numbers in [Numbers::F16, Numbers::I8] {
        let npu = Npu::open(Options { numbers, ..options.clone() })?;
        let [first, again] = run(&npu)?;
        times.push((numbers, first, again));
        rates.push((numbers, rate(&npu)?));
        described = Some(npu.description().clone());
        drop(npu);
        let all = described.as_ref().map_or(0, |d| d.cores);
        for first_core in (0..all).filter(|_| all > 1) {
            let one = Options { numbers, first_core, cores: 1, ..options.clone() };
            cores.push((first_core, numbers, run(&Npu::open(one)?)?[1]));
        }
    }
    let description = described.ok_or(RknnError::Unavailable)?;
    Ok(SelfTest { description, times, cores, rates })
}

struct Zeros;

const SIZE: usize = 2048;

impl Rows for Zeros {
    fn k(&self) -> usize {
        SIZE
    }

    fn n(&self) -> usize {
        SIZE
    }

    fn row(&self, _column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        out.fill(0.0);
        Ok(())
    }
}

/// Multiply-adds per second of a large product, the second time.
fn rate(npu: &Npu) -> Result<f64, RknnError> {
    const ROWS: usize = 256;
    let weights = Weights::new(Zeros);
    let (x, mut y) = (vec![1f32; ROWS * SIZE], vec![0f32; ROWS * SIZE]);
    npu.multiply(&weights, &x, &mut y)?;
    let begin = Instant::now();
    npu.multiply(&weights, &x, &mut y)?;
    Ok((ROWS * SIZE * SIZE) as f64 / begin.elapsed().as_secs_f64())
}

fn compare(x: &[f32], w: &[f32], y: &[f32], numbers: Numbers) -> Result<(), RknnError> {
    for (row, (x, y)) in x.chunks_exact(K).zip(y.chunks_exact(N)).enumerate() {
        for (w, y) in w.chunks_exact(K).zip(y) {
            let sum: f32 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            // Bytes are rounded to 127 parts of 8, halves hold these numbers as they are.
            let size: f32 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
            let bound = match numbers {
                Numbers::F16 => 0.0,
                Numbers::I8 => size * 0.05,
                Numbers::I4 => size,
            };
            // What is not a number is not within the bound.
            let good = (y - sum).abs() <= bound;
            if !good {
                return Err(RknnError::WrongResult { core: 0, row });
            }
        }
    }
    Ok(())
}
