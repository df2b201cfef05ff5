//! The product of 16-bit floats from its definition, in `f64`.

use super::half_matmul::HalfMatmulParams;
use crate::Dtype;
use alloc::{vec, vec::Vec};

/// `A * B + bias` (no activation) of all products, dense `[batch, m, n]`; `bias` `[n]` or empty.
///
/// Shares no code with the kernels; they are tested against it.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn reference(p: &HalfMatmulParams, a: &[u16], b: &[u16], bias: &[f32]) -> Vec<f64> {
    let s = &p.sizes;
    let mut c = vec![0.0; s.batch * s.m * s.n];
    for (i, c) in c.iter_mut().enumerate() {
        let (batch, row, column) = (i / s.n / s.m, i / s.n % s.m, i % s.n);
        *c = bias.get(column).map_or(0.0, |&b| f64::from(b));
        for k in 0..s.k {
            let at = if s.b_transposed { column * s.b_row + k } else { k * s.b_row + column };
            let a = value(p.dtype, a[batch * s.a_batch + row * s.a_row + k]);
            *c += a * value(p.dtype, b[batch * s.b_batch + at]);
        }
    }
    c
}

/// The value of a number of so many bits of exponent and mantissa, from its definition.
pub(crate) fn value(dtype: Dtype, bits: u16) -> f64 {
    let mantissa_bits = if dtype == Dtype::F16 { 10 } else { 7 };
    let bias = if dtype == Dtype::F16 { 15 } else { 127 };
    let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
    let exponent = i32::from((bits & 0x7fff) >> mantissa_bits);
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let power = |n: i32| (0..n.abs()).fold(1.0, |x, _| if n < 0 { x / 2.0 } else { x * 2.0 });
    sign * match exponent {
        0 => mantissa * power(1 - bias),
        e if e == 2 * bias + 1 && mantissa == 0.0 => f64::INFINITY,
        e if e == 2 * bias + 1 => f64::NAN,
        e => (1.0 + mantissa) * power(e - bias),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_formats() {
        for bits in 0..=u16::MAX {
            let bf16 = f64::from(f32::from_bits(u32::from(bits) << 16));
            let ours = value(Dtype::Bf16, bits);
            assert!(ours == bf16 || ours.is_nan() && bf16.is_nan(), "{bits:x}: {ours} {bf16}");
        }
        let known =
            [(0x3c00, 1.0), (0xc500, -5.0), (0x0001, 1.0 / 16_777_216.0), (0x7bff, 65504.0)];
        for (bits, x) in known {
            assert_eq!(value(Dtype::F16, bits), x);
        }
    }
}
