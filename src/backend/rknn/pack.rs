//! Operands in the layouts of the NPU, and results out of them.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::chip::{Blocks, Numbers};
use super::{RknnError, Rows};
use core::ops::Range;

/// Rows of activations whose largest element lies outside are scaled by a power of two: above, sums
/// of half precision overflow, below, elements lose bits.
const LARGE: f32 = 16384.0;
const SMALL: f32 = 1.0 / 64.0;

/// Activations of one segment of K.
pub(super) struct PackedA {
    /// In the native layout, rows past the last are zeros.
    pub(super) bytes: Vec<u8>,
    /// What each row of the result is multiplied by.
    pub(super) scales: Vec<f32>,
    /// The elements as the NPU sees them, `[m, k]`, for check sums.
    pub(super) values: Vec<f32>,
}

/// Weights of one segment and slice.
pub(super) struct PackedB {
    /// What each column of the result is multiplied by.
    pub(super) scales: Vec<f32>,
    /// Per row of B the sum of its elements as the NPU sees them, and of their sizes.
    pub(super) sums: Vec<f64>,
    pub(super) sizes: Vec<f64>,
}

/// A power of two that brings elements of this size near 1.
fn power_of_two(max: f32) -> f32 {
    if max == 0.0 || (SMALL..=LARGE).contains(&max) {
        return 1.0;
    }
    // 2^e from its bits: subnormal sizes are brought up as far as the exponent reaches.
    let e = ((max.to_bits() >> 23) as i32 - 127).clamp(-125, 125);
    f32::from_bits(((e + 127) as u32) << 23)
}

/// The largest size of an element. Bits of sizes are ordered as the sizes are, those of what is not a
/// number last.
fn largest(row: &[f32]) -> Result<f32, RknnError> {
    let bits = row.iter().fold(0u32, |max, x| max.max(x.to_bits() & 0x7fff_ffff));
    let max = f32::from_bits(bits);
    max.is_finite().then_some(max).ok_or(RknnError::NotFinite)
}

/// Rows of A that are packed together, so that whole cache lines are written.
const TOGETHER: usize = 8;

/// Packs rows `x`, of `width` elements each, of which those in `k` are taken, zeros behind `width`.
///
/// # Errors
/// Elements that are not finite.
pub(super) fn pack_a(
    x: &[f32],
    width: usize,
    k: &Range<usize>,
    bucket: usize,
    numbers: Numbers,
    blocks: Blocks,
) -> Result<PackedA, RknnError> {
    let rows = x.len() / width;
    let size = numbers.bytes();
    let mut bytes = vec![0; bucket * k.len() * size];
    let mut values = vec![0f32; rows * k.len()];
    let mut scales = Vec::with_capacity(rows);
    let mut lines = vec![0u8; TOGETHER * k.len() * size];
    let taken = k.start..k.end.min(width);
    let groups = x.chunks(TOGETHER * width).zip(values.chunks_mut(TOGETHER * k.len()));
    for (group, (x, values)) in groups.enumerate() {
        let each = values.chunks_exact_mut(k.len()).zip(lines.chunks_exact_mut(k.len() * size));
        for (row, (values, line)) in x.chunks_exact(width).zip(each) {
            let values = &mut values[..taken.len()];
            values.copy_from_slice(&row[taken.clone()]);
            scales.push(convert(values, line, numbers)?);
        }
        let (first, lines) = (group * TOGETHER, &lines[..x.len() / width * k.len() * size]);
        match blocks.a * size {
            16 => interleave::<16>(lines, k.len() * size, first, bucket, &mut bytes),
            _ => interleave::<8>(lines, k.len() * size, first, bucket, &mut bytes),
        }
    }
    Ok(PackedA { bytes, scales, values })
}

/// Writes cells of several lines, each `width` bytes, as `[cell, row]`, from row `first` of `rows` on.
fn interleave<const CELL: usize>(
    lines: &[u8],
    width: usize,
    first: usize,
    rows: usize,
    out: &mut [u8],
) {
    let (cells, _) = lines.as_chunks::<CELL>();
    let (out, _) = out.as_chunks_mut::<CELL>();
    let (each, count) = (width / CELL, lines.len() / width);
    for (i, column) in out.chunks_exact_mut(rows).enumerate() {
        for (to, line) in column[first..first + count].iter_mut().zip(cells.chunks_exact(each)) {
            *to = line[i];
        }
    }
}

/// Rounds elements to what the NPU reads, writes that as bytes and leaves it in `values`; what they
/// were divided by. Bytes behind them become zeros.
fn convert(values: &mut [f32], line: &mut [u8], numbers: Numbers) -> Result<f32, RknnError> {
    let max = largest(values)?;
    line[values.len() * numbers.bytes()..].fill(0);
    match numbers {
        Numbers::F16 => {
            let scale = power_of_two(max);
            if scale != 1.0 {
                let inverse = 1.0 / scale;
                values.iter_mut().for_each(|v| *v *= inverse);
            }
            to_halves(values, line);
            Ok(scale)
        }
        Numbers::I8 => {
            let scale = max / 127.0;
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            for (v, to) in values.iter_mut().zip(line) {
                *v = nearest(*v * inverse);
                *to = *v as i8 as u8;
            }
            Ok(scale)
        }
    }
}

/// The nearest whole number, ties to even, of at most 127 in size: in single precision, adding 1.5 *
/// 2^23 leaves no bits for fractions.
fn nearest(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    ((x + SHIFT) - SHIFT).clamp(-127.0, 127.0)
}

/// Rounds elements to halves, writes them as bytes, and leaves what they have become.
fn to_halves(values: &mut [f32], bytes: &mut [u8]) {
    let mut halves = [f16::ZERO; 256];
    for (values, bytes) in values.chunks_mut(256).zip(bytes.chunks_mut(512)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        halves.convert_to_f32_slice(values);
        let (bytes, _) = bytes.as_chunks_mut::<2>();
        bytes.iter_mut().zip(halves).for_each(|(to, half)| *to = half.to_le_bytes());
    }
}

/// Packs columns `n` and rows `k` of a matrix; what reaches past its ends becomes zeros.
///
/// # Errors
/// Weights that cannot be read or are not finite.
pub(super) fn pack_b(
    source: &dyn Rows,
    k: &Range<usize>,
    n: &Range<usize>,
    numbers: Numbers,
    blocks: Blocks,
    bytes: &mut [u8],
) -> Result<PackedB, RknnError> {
    let (size, Blocks { sn, sk, .. }) = (numbers.bytes(), blocks);
    let (k_end, n_end) = (k.end.min(source.k()), n.end.min(source.n()));
    let mut row = vec![0f32; source.k()];
    let mut line = vec![0u8; k.len() * size];
    let mut packed =
        PackedB { scales: vec![0.0; n.len()], sums: vec![0.0; k.len()], sizes: vec![0.0; k.len()] };
    // Of few columns single precision loses nothing that matters, and is faster.
    let (mut sums, mut sizes) = (vec![0f32; k.len()], vec![0f32; k.len()]);
    for (i, column) in n.clone().enumerate() {
        if column < n_end {
            source.row(column, &mut row)?;
            let values = &mut row[k.start..k_end];
            packed.scales[i] = convert(values, &mut line, numbers)?;
            for ((sum, size), v) in sums.iter_mut().zip(&mut sizes).zip(&*values) {
                *sum += v;
                *size += v.abs();
            }
        } else {
            line.fill(0);
        }
        if i % TOGETHER == TOGETHER - 1 || i + 1 == n.len() {
            add_and_clear(&mut packed.sums, &mut sums);
            add_and_clear(&mut packed.sizes, &mut sizes);
        }
        let first = i / sn * k.len().div_ceil(sk);
        for (block, run) in line.chunks_exact(sk * size).enumerate() {
            let at = ((first + block) * sn + i % sn) * sk * size;
            bytes[at..][..sk * size].copy_from_slice(run);
        }
    }
    Ok(packed)
}

fn add_and_clear(to: &mut [f64], from: &mut [f32]) {
    to.iter_mut().zip(&*from).for_each(|(to, from)| *to += f64::from(*from));
    from.fill(0.0);
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
    let cell = blocks.c * 4;
    for (m, out) in out.chunks_exact_mut(columns).enumerate() {
        for (i, out) in out.chunks_exact_mut(blocks.c).enumerate() {
            let from = bytes[(i * bucket + m) * cell..][..cell].chunks_exact(4);
            for (out, b) in out.iter_mut().zip(from) {
                let word = [b[0], b[1], b[2], b[3]];
                *out = match numbers {
                    Numbers::F16 => f32::from_le_bytes(word),
                    Numbers::I8 => i32::from_le_bytes(word) as f32,
                };
            }
        }
    }
    out
}

/// The first row of a result (before it is scaled) whose sum is not the product of the row of A with
/// the sums of B: more than rounding can explain.
///
/// The bound is `(k + 8) u` times the sum of the sizes of all products of the row, `u = 2^-24`, for both
/// types: a single element that is wrong by less may hide.
pub(super) fn wrong_row(a: &PackedA, b: &PackedB, c: &[f32], columns: usize) -> Option<usize> {
    let k = b.sums.len();
    let unit = f64::from(f32::EPSILON) / 2.0;
    let rows = a.values.chunks_exact(k).zip(c.chunks_exact(columns));
    rows.enumerate().find_map(|(i, (a, c))| {
        let (mut sum, mut size) = (0f64, 0f64);
        for ((&a, &s), &z) in a.iter().zip(&b.sums).zip(&b.sizes) {
            sum += f64::from(a) * s;
            size += f64::from(a.abs()) * z;
        }
        let found: f64 = c.iter().map(|&c| f64::from(c)).sum();
        let bound = (k + 8) as f64 * unit * size;
        // Also what is not a number is not within the bound.
        let good = (found - sum).abs() <= bound;
        (!good).then_some(i)
    })
}
