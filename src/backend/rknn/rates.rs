//! How fast operands are packed, beside how fast memory is copied.

use core::hint::black_box;
use core::time::Duration;
use std::time::Instant;

use super::chip::{Chip, Numbers};
use super::pack::{pack_a, pack_b};
use super::{RknnError, Rows};

/// Rows of A, elements that are summed, columns of B.
const ROWS: usize = 512;
const K: usize = 4096;
const N: usize = 1024;

/// Repetitions of which the fastest counts.
const TRIES: usize = 7;

/// GB/s on one thread, bytes read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackRates {
    /// A plain copy of as much memory as A.
    pub copy: f64,
    /// Activations, from f32 to the form of the NPU.
    pub a: f64,
    /// Weights, from f32 to the form of the NPU.
    pub b: f64,
}

struct Floats(Vec<f32>);

impl Rows for Floats {
    fn k(&self) -> usize {
        K
    }

    fn n(&self) -> usize {
        N
    }

    fn row(&self, column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        out.copy_from_slice(&self.0[column * K..][..K]);
        Ok(())
    }
}

fn fastest(mut work: impl FnMut() -> Result<(), RknnError>) -> Result<Duration, RknnError> {
    let mut best = Duration::MAX;
    for _ in 0..TRIES {
        let begin = Instant::now();
        work()?;
        best = best.min(begin.elapsed());
    }
    Ok(best)
}

/// Measures packing for a chip, the operands being larger than caches.
///
/// # Errors
/// [`RknnError::Setting`] for an unknown chip.
pub fn pack_rates(chip: &str, numbers: Numbers) -> Result<PackRates, RknnError> {
    let blocks = Chip::find(Some(chip))?.blocks(numbers);
    let x: Vec<f32> = (0..ROWS * K).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
    let mut copied = vec![0f32; x.len()];
    let copy = fastest(|| {
        copied.copy_from_slice(black_box(&x));
        black_box(&mut copied);
        Ok(())
    })?;
    let a = fastest(|| {
        black_box(pack_a(black_box(&x), K, &(0..K), ROWS, numbers, blocks)?);
        Ok(())
    })?;
    let source = Floats((0..N * K).map(|i| (i % 241) as f32 / 120.0 - 1.0).collect());
    let mut packed = vec![0u8; N * K * numbers.bytes()];
    let b = fastest(|| {
        pack_b(&source, &(0..K), &(0..N), numbers, blocks, black_box(&mut packed))?;
        Ok(())
    })?;
    let rate = |elements: usize, out: usize, time: Duration| {
        (elements * (4 + out)) as f64 / time.as_secs_f64() / 1e9
    };
    Ok(PackRates {
        copy: rate(ROWS * K, 4, copy),
        a: rate(ROWS * K, numbers.bytes(), a),
        b: rate(N * K, numbers.bytes(), b),
    })
}
