//! Block-quantised elements: what their bytes mean, written from the definitions of ggml's layouts.
//!
//! These are references: kernels are tested against them, and they read what no kernel reads. All
//! numbers in a block are little endian; `d` and `m` are its scale and minimum as f16.

use half::{bf16, f16};
use tilewright_kernels::BlockFormat;

use super::{DType, TensorError};

/// The values that an index of [`DType::IQ4_NL`] or [`DType::IQ4_XS`] stands for.
pub const IQ4_NL_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of [`DType::MXFP4`].
const TWICE_MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Elements of a block of the types whose names end in `_K`.
const SUPER: usize = 256;

/// Writes the elements of floating-point or block-quantised `bytes` to `out`.
///
/// Products are rounded to f32 in the order of ggml's own reference, so the results are the same bits.
/// A scale that is not finite gives elements that are not finite.
///
/// # Errors
/// [`TensorError::Length`] if `out` has not as many elements as `bytes`, [`TensorError::DType`] for
/// integers.
pub fn dequantize(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<(), TensorError> {
    let expected = dtype.bytes_of(out.len());
    if expected != Some(bytes.len()) {
        let (dims, expected) = (vec![out.len()], expected.unwrap_or(usize::MAX));
        return Err(TensorError::Length { dims, dtype, expected, found: bytes.len() });
    }
    let blocks = bytes.chunks_exact(dtype.block_bytes());
    let blocks = blocks.zip(out.chunks_exact_mut(dtype.block_elems()));
    // Of these, kernels have the grids.
    #[cfg(feature = "gguf")]
    if let Some(format) = of_few_bits(dtype) {
        for (bytes, out) in blocks {
            format.dequantize_few_bits(bytes, out);
        }
        return Ok(());
    }
    let block: fn(&[u8], &mut [f32]) = match dtype {
        DType::F32 => |b, o| o[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        DType::F16 => |b, o| o[0] = half_at(b, 0),
        DType::BF16 => |b, o| o[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        DType::Q4_0 => q4_0,
        DType::Q4_1 => q4_1,
        DType::Q5_0 => q5_0,
        DType::Q5_1 => q5_1,
        DType::Q8_0 => q8_0,
        DType::Q2_K => q2_k,
        DType::Q3_K => q3_k,
        DType::Q4_K => q4_k,
        DType::Q5_K => q5_k,
        DType::Q6_K => q6_k,
        DType::IQ4_NL => iq4_nl,
        DType::IQ4_XS => iq4_xs,
        DType::MXFP4 => mxfp4,
        DType::U4 => u4,
        found => return Err(TensorError::DType { expected: DType::F32, found }),
    };
    blocks.for_each(|(bytes, out)| block(bytes, out));
    Ok(())
}

/// The kernels' name of a type of weights.
pub(crate) fn format(dtype: DType) -> Option<BlockFormat> {
    Some(match dtype {
        DType::F32 => BlockFormat::F32,
        DType::F16 => BlockFormat::F16,
        DType::BF16 => BlockFormat::Bf16,
        DType::Q4_0 => BlockFormat::Q4_0,
        DType::Q4_1 => BlockFormat::Q4_1,
        DType::Q5_0 => BlockFormat::Q5_0,
        DType::Q5_1 => BlockFormat::Q5_1,
        DType::Q8_0 => BlockFormat::Q8_0,
        DType::Q2_K => BlockFormat::Q2K,
        DType::Q3_K => BlockFormat::Q3K,
        DType::Q4_K => BlockFormat::Q4K,
        DType::Q5_K => BlockFormat::Q5K,
        DType::Q6_K => BlockFormat::Q6K,
        DType::IQ4_NL => BlockFormat::Iq4Nl,
        DType::IQ4_XS => BlockFormat::Iq4Xs,
        DType::MXFP4 => BlockFormat::Mxfp4,
        DType::U4 => BlockFormat::U4,
        _ => return of_few_bits(dtype),
    })
}

/// Types of one to three bits of GGUF files.
fn of_few_bits(dtype: DType) -> Option<BlockFormat> {
    Some(match dtype {
        DType::IQ1_S => BlockFormat::Iq1S,
        DType::IQ1_M => BlockFormat::Iq1M,
        DType::IQ2_XXS => BlockFormat::Iq2Xxs,
        DType::IQ2_XS => BlockFormat::Iq2Xs,
        DType::IQ2_S => BlockFormat::Iq2S,
        DType::IQ3_XXS => BlockFormat::Iq3Xxs,
        DType::IQ3_S => BlockFormat::Iq3S,
        DType::TQ1_0 => BlockFormat::Tq1,
        DType::TQ2_0 => BlockFormat::Tq2,
        DType::Q1_0 => BlockFormat::Q1_0,
        DType::Q2_0 => BlockFormat::Q2_0,
        _ => return None,
    })
}

/// In their order, behind scale and offset.
fn u4(block: &[u8], out: &mut [f32]) {
    let float =
        |at: usize| f32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (scale, offset) = (float(0), float(4));
    for (j, out) in out.iter_mut().enumerate() {
        *out = scale * f32::from(block[8 + j / 2] >> (j % 2 * 4) & 15) + offset;
    }
}

/// The f16 at a byte of a block.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Four bits of element `j` of 32: the low halves of 16 bytes, then the high halves.
fn nibble(qs: &[u8], j: usize) -> u8 {
    if j < 16 { qs[j] & 15 } else { qs[j - 16] >> 4 }
}

/// The fifth bits of 32 elements.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// d @0, four bits each @2.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * (f32::from(nibble(&block[2..], j)) - 8.0);
    }
}

/// d @0, m @2, four bits each @4.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(nibble(&block[4..], j)) + m;
    }
}

/// d @0, fifth bits @2, four bits each @6.
fn q5_0(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(block, 0), fifth_bits(block, 2));
    for (j, out) in out.iter_mut().enumerate() {
        let q = u32::from(nibble(&block[6..], j)) | (high >> j & 1) << 4;
        *out = d * (q as f32 - 16.0);
    }
}

/// d @0, m @2, fifth bits @4, four bits each @8.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), fifth_bits(block, 4));
    for (j, out) in out.iter_mut().enumerate() {
        let q = u32::from(nibble(&block[8..], j)) | (high >> j & 1) << 4;
        *out = d * q as f32 + m;
    }
}

/// d @0, signed bytes @2.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, &q) in out.iter_mut().zip(&block[2..]) {
        *out = d * f32::from(q.cast_signed());
    }
}

/// d @0, indices into a table @2 in the order of Q4_0.
fn iq4_nl(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(IQ4_NL_VALUES[usize::from(nibble(&block[2..], j))]);
    }
}

/// The exponent of the scale @0, floats @1 in the order of Q4_0.
fn mxfp4(block: &[u8], out: &mut [f32]) {
    // Half the scale, as there is twice each value: its two least exponents are subnormal.
    let half = match u32::from(block[0]) {
        small @ 0..2 => 0x0020_0000 << small,
        exponent => (exponent - 1) << 23,
    };
    for (j, out) in out.iter_mut().enumerate() {
        let q = TWICE_MXFP4[usize::from(nibble(&block[1..], j))];
        *out = f32::from_bits(half) * f32::from(q);
    }
}

/// d @0, the upper two bits of eight scales @2, their lower four @4, indices of 32 elements each @8.
fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
    for (n, out) in out.iter_mut().enumerate() {
        let g = n / 32;
        let scale = block[4 + g / 2] >> (4 * (g % 2)) & 15 | ((high >> (2 * g) & 3) << 4) as u8;
        let q = IQ4_NL_VALUES[usize::from(nibble(&block[8 + 16 * g..], n % 32))];
        *out = d * (f32::from(scale) - 32.0) * f32::from(q);
    }
}

/// Two bits of element `n` of 256 from 64 bytes: four rows of 32 elements share 32 bytes.
fn two_bits(qs: &[u8], n: usize) -> u8 {
    qs[32 * (n / 128) + n % 32] >> (2 * (n % 128 / 32)) & 3
}

/// Scale and minimum of 16 elements @0, two bits each @16, d @80, scale of the minima @82.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (n, out) in out.iter_mut().enumerate() {
        let scale = block[n / 16];
        let (s, m) = (d * f32::from(scale & 15), dmin * f32::from(scale >> 4));
        *out = s * f32::from(two_bits(&block[16..], n)) - m;
    }
}

/// Third bits @0 (clear: minus 4), two bits each @32, scales @96, d @108.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 108);
    for (n, out) in out.iter_mut().enumerate() {
        let clear = block[n % 32] >> (n / 32) & 1 == 0;
        let q = i16::from(two_bits(&block[32..], n)) - if clear { 4 } else { 0 };
        let scale = i16::from(q3_k_scale(&block[96..], n / 16)) - 32;
        *out = d * f32::from(scale) * f32::from(q);
    }
}

/// Scale `i` of 16, six bits each, of the 12 bytes of Q3_K: four low bits, then two high bits each.
fn q3_k_scale(bytes: &[u8], i: usize) -> u8 {
    let low = if i < 8 { bytes[i] & 15 } else { bytes[i - 8] >> 4 };
    low | (bytes[8 + i % 4] >> (2 * (i / 4)) & 3) << 4
}

/// Scale and minimum of group `g` of 8, six bits each, of the 12 bytes of Q4_K and Q5_K.
fn scale_and_min(bytes: &[u8], g: usize) -> (u8, u8) {
    if g < 4 {
        (bytes[g] & 63, bytes[g + 4] & 63)
    } else {
        let (low, high) = (bytes[g + 4] & 15, bytes[g + 4] >> 4);
        (low | bytes[g - 4] >> 6 << 4, high | bytes[g] >> 6 << 4)
    }
}

/// Four bits of element `n` of 256: each 32 bytes have 32 elements in the low halves, then 32 in the
/// high halves.
fn super_nibble(qs: &[u8], n: usize) -> u8 {
    let byte = qs[32 * (n / 64) + n % 32];
    if (n / 32).is_multiple_of(2) { byte & 15 } else { byte >> 4 }
}

/// d @0, scale of the minima @2, scales and minima @4, four bits each @16.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (n, out) in out.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..], n / 32);
        let q = f32::from(super_nibble(&block[16..], n));
        *out = d * f32::from(scale) * q - dmin * f32::from(min);
    }
}

/// As Q4_K, with fifth bits @16 and four bits each @48.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    for (n, out) in out.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(&block[4..], n / 32);
        let high = block[16 + n % 32] >> (n / 32) & 1;
        let q = f32::from(super_nibble(&block[48..], n) | high << 4);
        *out = d * f32::from(scale) * q - dmin * f32::from(min);
    }
}

/// Low four bits @0, high two bits @128, signed scales of 16 elements @192, d @208.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 208);
    for (n, out) in out.iter_mut().enumerate() {
        let (half, quarter, l) = (n / 128, n % 128 / 32, n % 32);
        let byte = block[64 * half + 32 * (quarter % 2) + l];
        let low = if quarter < 2 { byte & 15 } else { byte >> 4 };
        let high = block[128 + 32 * half + l] >> (2 * quarter) & 3;
        let scale = block[192 + n / 16].cast_signed();
        *out = d * f32::from(scale) * (f32::from(low | high << 4) - 32.0);
    }
}

/// Quantises a multiple of 32 elements to blocks of [`DType::Q8_0`]: d = max|x| / 127, elements to the
/// nearest, halves away from zero.
///
/// # Errors
/// [`TensorError::Length`] if `out` does not have as many elements.
pub fn quantize_q8_0(x: &[f32], out: &mut [u8]) -> Result<(), TensorError> {
    let expected = DType::Q8_0.bytes_of(x.len());
    if expected != Some(out.len()) {
        let (dims, expected) = (vec![x.len()], expected.unwrap_or(usize::MAX));
        return Err(TensorError::Length { dims, dtype: DType::Q8_0, expected, found: out.len() });
    }
    for (x, out) in x.chunks_exact(32).zip(out.chunks_exact_mut(34)) {
        let (d, q) = quantize_32(x);
        out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
        for (out, q) in out[2..].iter_mut().zip(q) {
            *out = q.cast_unsigned();
        }
    }
    Ok(())
}

/// One block of ggml's Q8_1, what activations become for types with a minimum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Q8_1 {
    /// The scale.
    pub d: f16,
    /// The scale (before it became an f16) times the sum of `q`.
    pub s: f16,
    /// The elements.
    pub q: [i8; 32],
}

/// Quantises 32 elements as [`quantize_q8_0`] does, with their sum.
pub fn quantize_q8_1(x: &[f32; 32]) -> Q8_1 {
    let (d, q) = quantize_32(x);
    let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
    Q8_1 { d: f16::from_f32(d), s: f16::from_f32(d * sum as f32), q }
}

fn quantize_32(x: &[f32]) -> (f32, [i8; 32]) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let d = most / 127.0;
    let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
    let mut q = [0; 32];
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse).round() as i8;
    }
    (d, q)
}

/// One block of ggml's Q8_K, what activations become for the types whose names end in `_K`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Q8K {
    /// The scale.
    pub d: f32,
    /// The elements.
    pub q: [i8; SUPER],
    /// Sums of 16 elements each.
    pub sums: [i16; 16],
}

/// Quantises 256 elements so that the one of the largest magnitude becomes -127; to the nearest, halves
/// to even.
pub fn quantize_q8_k(x: &[f32; SUPER]) -> Q8K {
    let most = x.iter().fold(0.0f32, |most, &x| if x.abs() > most.abs() { x } else { most });
    let mut block = Q8K { d: 0.0, q: [0; SUPER], sums: [0; 16] };
    if most == 0.0 {
        return block;
    }
    let scale = -127.0 / most;
    block.d = 1.0 / scale;
    for (n, x) in x.iter().enumerate() {
        block.q[n] = (scale * x).round_ties_even().min(127.0) as i8;
        block.sums[n / 16] += i16::from(block.q[n]);
    }
    block
}

#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
