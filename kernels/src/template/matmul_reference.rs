//! The matrix product from its definition, in `f64`.

use super::matmul::{MatmulForm, MatmulParams};
use alloc::{vec, vec::Vec};

/// `C = A * B + bias` (no epilogue) of all products, dense `[batch, m, n]` whatever the form; `bias`
/// `[n]` (by rows `[m]`) or empty.
///
/// Shares no code with the kernels; they are tested against it.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn reference(p: &MatmulParams, a: &[f32], b: &[f32], bias: &[f32]) -> Vec<f64> {
    let mut c = vec![0.0; p.batch * p.m * p.n];
    for (i, c) in c.iter_mut().enumerate() {
        let (batch, row, column) = (i / p.n / p.m, i / p.n % p.m, i % p.n);
        let of = if p.form == MatmulForm::RowBias { row } else { column };
        *c = bias.get(of).map_or(0.0, |&b| f64::from(b));
        for k in 0..p.k {
            let at = if p.b_transposed { column * p.b_row + k } else { k * p.b_row + column };
            let a_at = match p.form {
                MatmulForm::Blocked => k / 16 * p.a_row + row * 16 + k % 16,
                _ if p.a_transposed => k * p.a_row + row,
                _ => row * p.a_row + k,
            };
            let a = a[batch * p.a_batch + a_at];
            *c += f64::from(a) * f64::from(b[batch * p.b_batch + at]);
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_a_hand_computed_product() {
        let p = MatmulParams::new(2, 3, 2);
        let (a, b) = ([1., 2., 3., 4., 5., 6.], [1., 2., 3., 4., 5., 6.]);
        assert_eq!(reference(&p, &a, &b, &[1., 10.]), [23., 38., 50., 74.]);
        assert_eq!(reference(&p.clone().b_transposed(), &a, &b, &[]), [14., 32., 32., 77.]);
        assert_eq!(reference(&p.a_transposed(), &a, &b, &[]), [35., 44., 44., 56.]);
    }
}
