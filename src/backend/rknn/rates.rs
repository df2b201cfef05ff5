//! How fast operands are packed, beside how fast memory is copied.

use core::hint::black_box;
use core::ops::Range;
use core::time::Duration;
use std::thread;
use std::time::Instant;

use super::chip::{Chip, Numbers};
use super::pack::{Packer, pack_b};
use super::{RknnError, Rows};
use crate::tensor::AlignedBytes;
use tilewright_kernels::Isa;

/// Rows of A, elements that are summed, columns of B.
const ROWS: usize = 512;
const K: usize = 4096;
const N: usize = 1024;

/// As many operands of each kind are packed in turn that none is found in a cache.
const OPERANDS: usize = 16;

/// Repetitions of which the fastest counts.
const TRIES: usize = 7;

/// GB/s, bytes read and written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackRates {
    /// A plain copy of as much memory as the operands have, by as many threads.
    pub copy: f64,
    /// Activations, from f32 to the form of the NPU.
    pub a: f64,
    /// Weights, from f32 to the form of the NPU, with their check sums.
    pub b: f64,
}

struct Floats<'a>(&'a [f32]);

impl Rows for Floats<'_> {
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

    fn slice(&self, columns: Range<usize>) -> Option<&[f32]> {
        Some(&self.0[columns.start * K..columns.end * K])
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

/// Measures packing for a chip by so many threads, the operands being larger than caches.
///
/// # Errors
/// [`RknnError::Setting`] for an unknown chip, [`RknnError::Unavailable`] for threads that cannot start.
pub fn pack_rates(chip: &str, numbers: Numbers, threads: usize) -> Result<PackRates, RknnError> {
    let (blocks, isa) = (Chip::find(Some(chip))?.blocks(numbers), Isa::select()?);
    let threads = threads.max(1);
    let floats = |len: usize| -> Vec<Vec<f32>> {
        let one: Vec<f32> = (0..len).map(|i| (i % 251) as f32 / 125.0 - 1.0).collect();
        vec![one; OPERANDS]
    };
    let x = floats(ROWS * K);
    let mut copied = x.clone();
    let copy = fastest(|| {
        shared(threads, x.iter().zip(&mut copied), |(from, to)| {
            to.copy_from_slice(black_box(from));
            Ok(())
        })
    })?;
    drop(copied);
    // One operand after the other, each by all threads.
    let mut packer = Packer::new(isa, threads)?;
    let mut packed = Vec::new();
    let a = fastest(|| {
        packed.drain(..).for_each(|old| packer.reuse(old));
        for x in &x {
            packed.push(packer.pack_a(black_box(x), K, &(0..K), ROWS, numbers, blocks)?);
        }
        Ok(())
    })?;
    drop((x, packed));
    // Each operand by one thread, as cores have one each.
    let source = floats(N * K);
    let one = numbers.bytes(N * K);
    let memory = || AlignedBytes::zeroed(one).map_err(|_| RknnError::Memory { needed: one });
    let mut packed = (0..OPERANDS).map(|_| memory()).collect::<Result<Vec<_>, _>>()?;
    let b = fastest(|| {
        shared(threads, source.iter().zip(&mut packed), |(from, to)| {
            pack_b(isa, &Floats(black_box(from)), &(0..K), &(0..N), numbers, blocks, to).map(drop)
        })
    })?;
    let rate = |elements: usize, out: usize, time: Duration| {
        (OPERANDS * (elements * 4 + out)) as f64 / time.as_secs_f64() / 1e9
    };
    Ok(PackRates {
        copy: rate(ROWS * K, ROWS * K * 4, copy),
        a: rate(ROWS * K, numbers.bytes(ROWS * K), a),
        b: rate(N * K, numbers.bytes(N * K), b),
    })
}

/// Does all work with so many threads.
fn shared<T: Send>(
    threads: usize,
    work: impl Iterator<Item = T>,
    each: impl Fn(T) -> Result<(), RknnError> + Sync,
) -> Result<(), RknnError> {
    let all: Vec<T> = work.collect();
    let mut parts: Vec<Vec<T>> = (0..threads).map(|_| Vec::new()).collect();
    all.into_iter().enumerate().for_each(|(i, work)| parts[i % threads].push(work));
    thread::scope(|scope| {
        let each = &each;
        let start =
            |part: Vec<T>| crate::spawn::scoped(scope, move || part.into_iter().try_for_each(each));
        let started: Vec<_> = parts.into_iter().map(start).collect();
        started.into_iter().try_for_each(|one| {
            let one = one.map_err(|_| RknnError::Unavailable)?;
            one.join().unwrap_or(Err(RknnError::Unavailable))
        })
    })
}
