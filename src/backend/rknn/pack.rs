//! Operands in the layouts of the NPU, and results out of them.
//!
//! All that is converted goes through kernels of the CPU ([`CellsPlan`]): A is a matrix of cells, and each
//! block of columns of B is one, too.

use core::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;
use tilewright_kernels::{CellsParams, CellsPlan, Isa, KernelError};

use super::chip::{Blocks, Numbers};
use super::{RknnError, Rows};
use crate::backend::cpu::{Job, Pool};
use crate::tensor::AlignedBytes;

/// Bytes of activations from which on threads share the packing: handing it out costs some microseconds.
const SHARED: usize = 256 << 10;

/// Bytes of packed activations from which on they go past the caches: no core has as much of its own.
const PAST_CACHES: usize = 2 << 20;

/// Most buffers of activations that are kept: one per segment of K.
const SPARE: usize = 16;

/// Most columns of weights that are added in single precision, in which integers lose nothing.
const SUMMED: usize = 64;

/// Threads that pack activations, and memory that they have packed into before: fresh memory of this size
/// costs more than the packing.
pub(super) struct Packer {
    isa: Isa,
    pool: Pool,
    spare: Vec<AlignedBytes>,
}

/// Activations of one segment of K.
pub(super) struct PackedA {
    /// In the native layout, rows past the last are zeros.
    pub(super) bytes: AlignedBytes,
    /// What each row of the result is multiplied by.
    pub(super) scales: Vec<f32>,
    /// Rows of the layout, elements of a cell, and what they are.
    bucket: usize,
    cell: usize,
    numbers: Numbers,
}

/// Weights of one segment and slice.
pub(super) struct PackedB {
    /// What each column of the result is multiplied by.
    pub(super) scales: Vec<f32>,
    /// Per row of B the sum of its elements as the NPU sees them, and of their sizes.
    pub(super) sums: Vec<f64>,
    pub(super) sizes: Vec<f64>,
    /// Squares of what rounding to integers has changed, and of the elements.
    pub(super) lost: [f64; 2],
}

fn failed(e: KernelError) -> RknnError {
    RknnError::Weights(e.to_string())
}

impl Packer {
    /// Starts threads.
    pub(super) fn new(isa: Isa, threads: usize) -> Result<Self, RknnError> {
        let pool = Pool::new(threads).map_err(|_| RknnError::Unavailable)?;
        Ok(Self { isa, pool, spare: Vec::new() })
    }

    /// Takes memory back.
    pub(super) fn reuse(&mut self, packed: PackedA) {
        if self.spare.len() == SPARE {
            // Of sizes that are asked for no more, perhaps.
            self.spare.swap_remove(0);
        }
        self.spare.push(packed.bytes);
    }

    /// Packs rows `x`, of `width` elements each, of which those in `k` are taken, zeros behind `width`.
    ///
    /// # Errors
    /// Elements that are not finite.
    pub(super) fn pack_a(
        &mut self,
        x: &[f32],
        width: usize,
        k: &Range<usize>,
        bucket: usize,
        numbers: Numbers,
        blocks: Blocks,
    ) -> Result<PackedA, RknnError> {
        let (rows, cell) = (x.len() / width, blocks.a);
        let taken = k.start.min(width)..k.end.min(width);
        let plan = CellsPlan::new(
            self.isa,
            &CellsParams {
                rows,
                k: taken.len(),
                padded: k.len(),
                height: bucket,
                cell,
                form: numbers.form(),
                past_caches: numbers.bytes(k.len() * bucket) >= PAST_CACHES,
            },
        )
        .map_err(failed)?;
        let fits = self.spare.iter().position(|spare| spare.len() == plan.out_len());
        let mut bytes = match fits {
            Some(i) => self.spare.swap_remove(i),
            None => AlignedBytes::zeroed(plan.out_len())
                .map_err(|_| RknnError::Memory { needed: plan.out_len() })?,
        };
        let mut scales = vec![0f32; rows];
        if taken.is_empty() {
            bytes.fill(0);
        } else {
            let x = &x[taken.start..];
            if rows * taken.len() * size_of::<f32>() < SHARED {
                plan.compute(x, width, &mut bytes, &mut scales).map_err(failed)?;
            } else {
                let (out, scales) = (bytes.as_mut_ptr(), scales.as_mut_ptr());
                let threads = self.pool.threads();
                self.pool.run(&Cells { plan: &plan, x, width, out, scales, threads });
            }
            for column in bytes.chunks_exact_mut(numbers.bytes(bucket * cell)) {
                column[numbers.bytes(rows * cell)..].fill(0);
            }
        }
        if scales.iter().any(|scale| scale.is_nan()) {
            self.spare.push(bytes);
            return Err(RknnError::NotFinite);
        }
        Ok(PackedA { bytes, scales, bucket, cell, numbers })
    }
}

/// Rows that threads pack together.
struct Cells<'a> {
    plan: &'a CellsPlan,
    x: &'a [f32],
    width: usize,
    out: *mut u8,
    scales: *mut f32,
    threads: usize,
}

#[allow(unsafe_code, reason = "the pool shares a job among threads")]
// SAFETY: the pointers are to vectors that `Packer::pack_a` borrows until all threads are done; units of
// a plan write bytes of their own.
unsafe impl Sync for Cells<'_> {}

impl Job for Cells<'_> {
    fn phases(&self) -> usize {
        1
    }

    fn parts(&self, _phase: usize) -> (usize, usize) {
        (self.plan.units().clamp(1, 4 * self.threads), self.threads)
    }

    fn run(&self, phase: usize, part: usize, _thread: usize) {
        let (units, parts) = (self.plan.units(), self.parts(phase).0);
        let units = part * units / parts..(part + 1) * units / parts;
        #[allow(unsafe_code, reason = "kernels take pointers")]
        // SAFETY: `pack_a` made the plan for these rows, whose lengths follow from the slice; the vectors
        // have the plan's lengths; parts do not overlap.
        unsafe {
            self.plan.run(self.x.as_ptr(), self.width, self.out, self.scales, units);
        }
    }

    fn end(&self, _phase: usize) {}
}

/// Packs columns `n` and rows `k` of a matrix; `bytes` are zeros where it does not reach.
///
/// # Errors
/// Weights that cannot be read or are not finite.
pub(super) fn pack_b(
    isa: Isa,
    source: &dyn Rows,
    k: &Range<usize>,
    n: &Range<usize>,
    numbers: Numbers,
    blocks: Blocks,
    bytes: &mut [u8],
) -> Result<PackedB, RknnError> {
    let Blocks { sn, sk, .. } = blocks;
    let width = source.k();
    let taken = k.start.min(width)..k.end.min(width);
    let mut packed = PackedB {
        scales: vec![0.0; n.len()],
        sums: vec![0.0; k.len()],
        sizes: vec![0.0; k.len()],
        lost: [0.0; 2],
    };
    let mut rows = Vec::new();
    let (mut sums, mut sizes, mut summed) = (vec![0f32; k.len()], vec![0f32; k.len()], 0);
    let block = numbers.bytes(sn * k.len());
    let blocks = bytes.chunks_exact_mut(block).zip(packed.scales.chunks_mut(sn));
    for (i, (bytes, scales)) in blocks.enumerate() {
        let first = n.start + i * sn;
        let columns = first..(first + sn).min(source.n());
        if columns.is_empty() || taken.is_empty() {
            break;
        }
        let plan = CellsPlan::new(
            isa,
            &CellsParams {
                rows: columns.len(),
                k: taken.len(),
                padded: k.len(),
                height: sn,
                cell: sk,
                form: numbers.form(),
                // The NPU reads them, and the CPU does not.
                past_caches: true,
            },
        )
        .map_err(failed)?;
        let given = match source.slice(columns.clone()) {
            Some(slice) => slice,
            None => {
                rows.resize(columns.len() * width, 0.0);
                source.rows(columns, &mut rows)?;
                &rows[..]
            }
        };
        let x = &given[taken.start..];
        let lost = plan.compute_summed(x, width, bytes, scales, &mut sums, &mut sizes);
        let lost = lost.map_err(failed)?;
        if scales.iter().any(|scale| scale.is_nan()) {
            return Err(RknnError::NotFinite);
        }
        if numbers.most().is_some() {
            packed.lost.iter_mut().zip(lost).for_each(|(all, more)| *all += more);
        }
        summed += sn;
        if summed + sn > SUMMED {
            add_and_clear(&mut packed.sums, &mut sums);
            add_and_clear(&mut packed.sizes, &mut sizes);
            summed = 0;
        }
    }
    add_and_clear(&mut packed.sums, &mut sums);
    add_and_clear(&mut packed.sizes, &mut sizes);
    Ok(packed)
}

fn add_and_clear(to: &mut [f64], from: &mut [f32]) {
    to.iter_mut().zip(&*from).for_each(|(to, from)| *to += f64::from(*from));
    from.fill(0.0);
}

/// What marks elements of a result that nobody has written: of f32 not a number, of i32 and i16 one like any other,
/// so that it counts only where all that were marked have it.
const MARK: [u8; 4] = [0xa5, 0xa5, 0xc5, 0xff];

/// Marks elements of a native result before it is computed, those of [`ends`]. The check sum of a row tells almost
/// all wrong results, but those of the same product of a step before may have the same.
pub(super) fn mark(bytes: &mut [u8], ends: impl Iterator<Item = usize>, numbers: Numbers) {
    let mark = &MARK[..numbers.result_bytes()];
    for at in ends {
        bytes[at..][..mark.len()].copy_from_slice(mark);
    }
}

/// Whether all that was marked is still there: nobody has written the result.
pub(super) fn is_marked(
    bytes: &[u8],
    mut ends: impl Iterator<Item = usize>,
    numbers: Numbers,
) -> bool {
    let mark = &MARK[..numbers.result_bytes()];
    ends.all(|at| &bytes[at..][..mark.len()] == mark)
}

/// At which bytes the first and last element of each row of a native result lie.
pub(super) fn ends(
    rows: usize,
    bucket: usize,
    columns: usize,
    numbers: Numbers,
    blocks: Blocks,
) -> impl Iterator<Item = usize> + Clone {
    let (size, cell) = (numbers.result_bytes(), blocks.c);
    let last = columns.saturating_sub(1);
    let element = move |row: usize, column: usize| {
        ((column / cell * bucket + row) * cell + column % cell) * size
    };
    (0..rows).flat_map(move |row| [element(row, 0), element(row, last)])
}

/// Takes `rows` rows out of a native result of `bucket` rows: `[m, n]`, not scaled yet.
pub(super) fn unpack_c(
    bytes: &[u8],
    rows: usize,
    bucket: usize,
    columns: usize,
    numbers: Numbers,
    blocks: Blocks,
) -> Vec<f32> {
    let mut out = vec![0f32; rows * columns];
    let size = numbers.result_bytes();
    let cell = blocks.c * size;
    for (m, out) in out.chunks_exact_mut(columns).enumerate() {
        for (i, out) in out.chunks_exact_mut(blocks.c).enumerate() {
            let from = bytes[(i * bucket + m) * cell..][..cell].chunks_exact(size);
            for (out, b) in out.iter_mut().zip(from) {
                *out = match numbers {
                    Numbers::F16 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                    Numbers::I8 => i32::from_le_bytes([b[0], b[1], b[2], b[3]]) as f32,
                    Numbers::I4 => f32::from(i16::from_le_bytes([b[0], b[1]])),
                };
            }
        }
    }
    out
}

/// The first row of a result (before it is scaled) whose sum is not the product of the row of A with
/// the sums of B: more than rounding can explain.
///
/// The bound is `(k + 64) u` times the sum of the sizes of all products of the row, `u = 2^-24`, for both
/// types: `k` sums of the NPU's, and those of columns of weights. A single element that is wrong by less may
/// hide.
pub(super) fn wrong_row(a: &PackedA, b: &PackedB, c: &[f32], columns: usize) -> Option<usize> {
    let k = b.sums.len();
    let unit = f64::from(f32::EPSILON) / 2.0;
    let expected = expected_sums(a, b);
    c.chunks_exact(columns).zip(expected).position(|(c, [sum, size])| {
        let found: f64 = c.iter().map(|&c| f64::from(c)).sum();
        let bound = (k + SUMMED) as f64 * unit * size;
        // Also what is not a number is not within the bound.
        let good = (found - sum).abs() <= bound;
        !good
    })
}

/// Per row of A, as the NPU sees it, its product with the sums of B, and with those of sizes.
fn expected_sums(a: &PackedA, b: &PackedB) -> Vec<[f64; 2]> {
    let rows = a.scales.len();
    let mut expected = vec![[0f64; 2]; rows];
    let mut values = vec![0f32; rows * a.cell];
    let column = a.numbers.bytes(a.bucket * a.cell);
    let of_b = b.sums.chunks_exact(a.cell).zip(b.sizes.chunks_exact(a.cell));
    for (bytes, (sums, sizes)) in a.bytes.chunks_exact(column).zip(of_b) {
        match a.numbers {
            Numbers::F16 => halves(&bytes[..values.len() * 2], &mut values),
            Numbers::I8 => {
                values.iter_mut().zip(bytes).for_each(|(v, &b)| *v = f32::from(b as i8));
            }
            Numbers::I4 => {
                for (v, &b) in values.chunks_exact_mut(2).zip(bytes) {
                    v[0] = f32::from((b << 4) as i8 >> 4);
                    v[1] = f32::from(b as i8 >> 4);
                }
            }
        }
        for (values, [sum, size]) in values.chunks_exact(a.cell).zip(&mut expected) {
            for ((&v, s), z) in values.iter().zip(sums).zip(sizes) {
                *sum += f64::from(v) * s;
                *size += f64::from(v.abs()) * z;
            }
        }
    }
    expected
}

fn halves(bytes: &[u8], values: &mut [f32]) {
    let mut buffer = [f16::ZERO; 256];
    for (bytes, values) in bytes.chunks(512).zip(values.chunks_mut(256)) {
        let buffer = &mut buffer[..values.len()];
        let (pairs, _) = bytes.as_chunks::<2>();
        buffer.iter_mut().zip(pairs).for_each(|(to, b)| *to = f16::from_le_bytes(*b));
        buffer.convert_to_f32_slice(values);
    }
}
