//! The product of bytes from its definition, in `i64`.

use super::qmatmul::QmatmulParams;
use crate::quant::{Bytes, QuantColumns, QuantOutput};
use alloc::{vec, vec::Vec};

/// The results of all products, dense `[batch, m, n]`, before an activation; bytes and sums exactly,
/// `f32` as its value. `b_zero_points` as for the plan.
///
/// Shares no code with the kernels; they are tested against it.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn reference(
    p: &QmatmulParams,
    a: Bytes<'_>,
    b: Bytes<'_>,
    b_zero_points: &[i32],
    columns: &QuantColumns<'_>,
) -> Vec<f64> {
    let s = &p.sizes;
    let mut c = vec![0.0; s.batch * s.m * s.n];
    for (i, c) in c.iter_mut().enumerate() {
        let (batch, row, column) = (i / s.n / s.m, i / s.n % s.m, i % s.n);
        let zero_b = match b_zero_points {
            [] => 0,
            [one] => *one,
            all => all[column],
        };
        let mut sum = columns.bias.get(column).map_or(0, |b| i64::from(*b));
        for k in 0..s.k {
            let at = if s.b_transposed { column * s.b_row + k } else { k * s.b_row + column };
            let x = i64::from(a.get(batch * s.a_batch + row * s.a_row + k) - columns.zero_point);
            sum += x * i64::from(b.get(batch * s.b_batch + at) - zero_b);
        }
        let scale = match columns.scales {
            [] => 0.0,
            [one] => *one,
            all => all[column],
        };
        *c = finish(p.output, sum, scale, columns.shifts.get(column).copied().unwrap_or(0.0));
    }
    c
}

/// The nearest integer, of two the even one: `f32::round_ties_even`, which `core` lacks.
fn half_to_even(x: f32) -> i64 {
    let whole = x as i64;
    let rest = f64::from(x) - whole as f64;
    let away = rest.abs() > 0.5 || rest.abs() == 0.5 && whole % 2 != 0;
    whole + i64::from(away) * if rest > 0.0 { 1 } else { -1 }
}

/// What becomes of a sum.
pub(crate) fn finish(output: QuantOutput, sum: i64, scale: f32, shift: f32) -> f64 {
    let product = sum as f32 * scale;
    let quantised = |zero: i64, min: i64, max: i64| {
        // A product beyond 2^40 is clamped in any case.
        let rounded = half_to_even(product.clamp(-1e12, 1e12));
        (rounded + zero).clamp(min, max) as f64
    };
    match output {
        QuantOutput::I32 => sum as f64,
        QuantOutput::F32 => f64::from(product + shift),
        QuantOutput::I8 { zero_point, min, max } => {
            quantised(zero_point.into(), min.into(), max.into())
        }
        QuantOutput::U8 { zero_point, min, max } => {
            quantised(zero_point.into(), min.into(), max.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    #[test]
    fn matches_a_hand_computed_product() {
        let p = QmatmulParams { b_zero_point: true, ..QmatmulParams::new(1, 2, 2, Dtype::U8) };
        let (a, b) = ([3u8, 255], [1i8, -2, 5, 7]);
        let columns = QuantColumns { bias: &[10, 0], zero_point: 5, ..QuantColumns::default() };
        // (-2)(1 - 1) + 250 (5 - 1) + 10; (-2)(-2 + 3) + 250 (7 + 3).
        let sums = reference(&p, Bytes::U8(&a), Bytes::I8(&b), &[1, -3], &columns);
        assert_eq!(sums, [1010.0, 2498.0]);
        let p = QmatmulParams { output: QuantOutput::i8(-1), ..p };
        let columns = QuantColumns { scales: &[0.05, 1e-3], ..columns };
        // 50.5 rounds to 50, 2.498 to 2.
        assert_eq!(reference(&p, Bytes::U8(&a), Bytes::I8(&b), &[1, -3], &columns), [49.0, 1.0]);
    }
}
