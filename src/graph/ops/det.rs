//! Determinants.

use super::elements::{expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The determinant of each square matrix in the last two axes, which vanish, as ONNX `Det`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Det;

const OP: &str = "det";

impl Operator for Det {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d.is_float())?;
        match x.dims[..] {
            [ref outer @ .., rows, columns] if rows == columns => {
                Ok(Info::plain(x.dtype, outer.to_vec()))
            }
            _ => Err(GraphError::mismatch(OP, "matrices must be square", &[("x", &x.dims)])),
        }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, n) = (floats(&src[0], OP)?, src[0].dims[src[0].dims.len() - 1]);
        let count: usize = dst.dims.iter().product();
        let one = |i: usize| determinant(x[i * n * n..][..n * n].to_vec(), n);
        write_floats(dst, OP, (0..count).map(one))
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let n = src[0].dims.last().copied().unwrap_or(0) as u64;
        (src[0].elements() as u64).saturating_mul(n)
    }
}

/// The row from `k` on whose element of column `k` is the largest.
pub(super) fn pivot(m: &[f64], n: usize, k: usize) -> usize {
    let size = |row: &usize| m[row * n + k].abs();
    (k..n).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap_or(k)
}

/// By elimination with the largest pivot of each column.
fn determinant(mut m: Vec<f64>, n: usize) -> f64 {
    let mut product = 1.0;
    for k in 0..n {
        let pivot = pivot(&m, n, k);
        if m[pivot * n + k] == 0.0 {
            return 0.0;
        }
        if pivot != k {
            (0..n).for_each(|c| m.swap(k * n + c, pivot * n + c));
            product = -product;
        }
        product *= m[k * n + k];
        for row in k + 1..n {
            let factor = m[row * n + k] / m[k * n + k];
            for c in k..n {
                m[row * n + c] -= factor * m[k * n + c];
            }
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::determinant;

    #[test]
    fn pivots_and_singular_matrices() {
        assert_eq!(determinant(vec![0.0, 2.0, 3.0, 4.0], 2), -6.0);
        assert_eq!(determinant(vec![1.0, 2.0, 2.0, 4.0], 2), 0.0);
        assert_eq!(determinant(vec![], 0), 1.0);
        let m = vec![2.0, 0.0, 1.0, 1.0, 3.0, 0.0, 0.0, 1.0, 4.0];
        assert!((determinant(m, 3) - 25.0).abs() < 1e-12);
    }
}
