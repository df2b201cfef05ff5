//! Products of blocks from the definition of their formats: integers first, then `f64`.

use super::BlockFormat;
use alloc::{vec, vec::Vec};

/// A weight is `scale * q + min`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    pub(super) q: i32,
    pub(super) scale: f64,
    pub(super) min: f64,
}

/// The value of a half, from its bits.
pub(super) fn half(bytes: &[u8]) -> f64 {
    let bits = u16::from_le_bytes([bytes[0], bytes[1]]);
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        31 if mantissa == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// The weights of a block.
pub(super) fn weights(format: BlockFormat, b: &[u8]) -> Vec<Weight> {
    let Some(codes) = format.codes() else {
        return (0..format.elements()).map(|n| weight(format, b, n)).collect();
    };
    // What points of grids mean is checked beside ggml's own values, where the files are read.
    let mut held = vec![0; format.held_bytes()];
    format.recode(b, &mut held);
    let of_codes = |n: usize| {
        let four = |at: usize, i: usize| (held[at + i / 2] >> (i % 2 * 4)) & 15;
        let (group, half) = (n / 32, n % 32 / 16);
        let byte = held[10 + 16 * group + n % 16];
        let code = if half == 0 { byte & 15 } else { byte >> 4 };
        let q = i32::from(codes.values[usize::from(code)]) - codes.zero;
        let odd = 2.0 * f64::from(four(2 + 4 * half, group)) + 1.0;
        Weight { q, scale: self::half(&held) * f64::from(codes.factor) * odd, min: 0.0 }
    };
    (0..format.elements()).map(of_codes).collect()
}

/// Digit `i` of a number of base 3, which is a fraction of 256.
fn digit(byte: u8, i: u32) -> i32 {
    (i32::from(byte) * 3i32.pow(i) % 256 * 3) / 256
}

/// The sixteen scales of 6 bits of a block of `Q3K`.
fn scale_of_six(b: &[u8], i: usize) -> f64 {
    let low = if i < 8 { b[i] & 15 } else { b[i - 8] >> 4 };
    let high = (b[8 + i % 4] >> (2 * (i / 4))) & 3;
    f64::from(low + 16 * high) - 32.0
}

/// Scale and minimum of group `g` of a block of `Q4K` or `Q5K`.
fn pair_of_six(b: &[u8], g: usize) -> [f64; 2] {
    let pair = if g < 4 {
        [b[g] % 64, b[g + 4] % 64]
    } else {
        [b[g + 4] % 16 + b[g - 4] / 64 * 16, b[g + 4] / 16 + b[g] / 64 * 16]
    };
    pair.map(f64::from)
}

/// What indices of 4 bits stand for.
const TABLE: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

fn weight(format: BlockFormat, b: &[u8], n: usize) -> Weight {
    let int = |b: u8| i32::from(b);
    let nibble = |at: usize| int(if n < 16 { b[at + n] % 16 } else { b[at + n - 16] / 16 });
    let fifth = |at: usize| (int(b[at + n / 8]) >> (n % 8) & 1) * 16;
    let (h, t) = (n / 128, n % 128);
    let bits = |at: usize| int(b[at + 32 * h + t % 32]) >> (2 * (t / 32)) & 3;
    let float = |x: f64| Weight { q: 1, scale: x, min: 0.0 };
    let (q, scale, min) = match format {
        BlockFormat::F32 => return float(f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))),
        BlockFormat::F16 => return float(half(b)),
        BlockFormat::Bf16 => return float(f64::from(f32::from_le_bytes([0, 0, b[0], b[1]]))),
        BlockFormat::Q4_0 => (nibble(2) - 8, half(b), 0.0),
        BlockFormat::Q4_1 => (nibble(4), half(b), half(&b[2..])),
        BlockFormat::Q5_0 => (nibble(6) + fifth(2) - 16, half(b), 0.0),
        BlockFormat::Q5_1 => (nibble(8) + fifth(4), half(b), half(&b[2..])),
        BlockFormat::Q8_0 => (i32::from(b[2 + n] as i8), half(b), 0.0),
        BlockFormat::Q2K => {
            let [d, least] = [half(&b[80..]), half(&b[82..])];
            let s = b[n / 16];
            (bits(16), d * f64::from(s % 16), -least * f64::from(s / 16))
        }
        BlockFormat::Q3K => {
            let bit = int(b[n % 32]) >> (n / 32) & 1;
            (bits(32) - 4 + 4 * bit, half(&b[108..]) * scale_of_six(&b[96..], n / 16), 0.0)
        }
        BlockFormat::Q4K | BlockFormat::Q5K => {
            let (g, l) = (n / 32, n % 32);
            let [scale, min] = pair_of_six(&b[4..], g);
            let at = if format == BlockFormat::Q4K { 16 } else { 48 };
            let byte = b[at + g / 2 * 32 + l];
            let low = int(if g % 2 == 0 { byte % 16 } else { byte / 16 });
            let bit = if at == 48 { int(b[16 + l]) >> g & 1 } else { 0 };
            (low + 16 * bit, half(b) * scale, -half(&b[2..]) * min)
        }
        BlockFormat::Q6K => {
            let (quarter, l) = (t / 32, t % 32);
            let byte = b[64 * h + l + quarter % 2 * 32];
            let low = int(if quarter < 2 { byte % 16 } else { byte / 16 });
            let high = int(b[128 + 32 * h + l]) >> (2 * quarter) & 3;
            let scale = f64::from(b[192 + n / 16] as i8);
            (low + 16 * high - 32, half(&b[208..]) * scale, 0.0)
        }
        BlockFormat::Iq4Nl => (TABLE[nibble(2) as usize], half(b), 0.0),
        BlockFormat::Iq4Xs => {
            let (g, l) = (n / 32, n % 32);
            let byte = b[8 + 16 * g + l % 16];
            let index = if l < 16 { byte % 16 } else { byte / 16 };
            let low = b[4 + g / 2] >> (4 * (g % 2)) & 15;
            let high = b[2 + g / 4] >> (2 * (g % 4)) & 3;
            (TABLE[usize::from(index)], half(b) * (f64::from(low + 16 * high) - 32.0), 0.0)
        }
        BlockFormat::Mxfp4 => {
            // A sign, two bits of exponent and one of fraction.
            let bits = nibble(1);
            let (exponent, fraction) = (bits >> 1 & 3, bits & 1);
            let twice = if exponent == 0 { fraction } else { (2 + fraction) << (exponent - 1) };
            let scale = if b[0] == 0 { 0.0 } else { 2f64.powi(i32::from(b[0]) - 128) };
            (if bits & 8 == 0 { twice } else { -twice }, scale, 0.0)
        }
        BlockFormat::U4 => {
            let float =
                |at: usize| f64::from(f32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]));
            let byte = b[8 + n / 2];
            (int(byte >> (n % 2 * 4) & 15), float(0), float(4))
        }
        BlockFormat::Q1_0 => ((int(b[2 + n / 8]) >> (n % 8) & 1) * 2 - 1, half(b), 0.0),
        BlockFormat::Q2_0 => ((int(b[2 + n / 4]) >> (n % 4 * 2) & 3) - 1, half(b), 0.0),
        BlockFormat::Tq2 => (bits(0) - 1, half(&b[64..]), 0.0),
        BlockFormat::Tq1 => {
            let (at, i) = match n {
                0..160 => (n % 32, n / 32),
                160..240 => (32 + n % 16, n / 16 - 10),
                _ => (48 + n % 4, n / 4 - 60),
            };
            (digit(b[at], i as u32) - 1, half(&b[52..]), 0.0)
        }
        _ => unreachable!("{format:?} has points of grids"),
    };
    Weight { q, scale, min }
}

/// Bytes and scale of 32 activations.
pub(super) fn quantized(x: &[f32]) -> (Vec<i32>, f64) {
    let most = x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    if most < 2f32.powi(-100) {
        return (vec![0; x.len()], 0.0);
    }
    let scale = 127.0 / most;
    (x.iter().map(|x| (x * scale).round_ties_even() as i32).collect(), f64::from(most / 127.0))
}

/// The product, and the sum of the magnitudes of what it adds up.
pub(super) fn reference(
    format: BlockFormat,
    w: &[u8],
    x: &[f32],
    k: usize,
    n: usize,
) -> Vec<[f64; 2]> {
    let per_row = k / format.elements();
    let blocks: Vec<_> = w.chunks_exact(format.bytes()).map(|b| weights(format, b)).collect();
    let rows: Vec<Vec<Weight>> =
        (0..n).map(|r| blocks[r * per_row..][..per_row].concat()).collect();
    let mut y = Vec::new();
    for x in x.chunks_exact(k) {
        let groups: Vec<_> = x.chunks_exact(32).map(quantized).collect();
        let halves =
            |(q, scale): &(Vec<i32>, f64)| [(q[..16].to_vec(), *scale), (q[16..].to_vec(), *scale)];
        let halves: Vec<_> = groups.iter().flat_map(halves).collect();
        for row in &rows {
            let mut sum = [0.0; 2];
            let mut add = |term: f64| {
                sum[0] += term;
                sum[1] += term.abs();
            };
            if format == BlockFormat::U4 {
                for (w, x) in row.iter().zip(x).map(|(w, x)| (w, f64::from(*x))) {
                    add(w.scale * f64::from(w.q) * x);
                    add(w.min * x);
                }
            } else if format.elements() == 1 {
                row.iter().zip(x).for_each(|(w, x)| add(w.scale * f64::from(*x)));
            } else {
                for (w, (q, scale)) in row.chunks_exact(16).zip(&halves) {
                    let dot: i32 = w.iter().zip(q).map(|(w, x)| w.q * x).sum();
                    let total: i32 = q.iter().sum();
                    add(w[0].scale * scale * f64::from(dot));
                    add(w[0].min * scale * f64::from(total));
                }
            }
            y.push(sum);
        }
    }
    y
}
