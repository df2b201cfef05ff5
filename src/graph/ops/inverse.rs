//! Inverse matrices.

use super::det::pivot;
use super::elements::{expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The inverse of each square matrix in the last two axes, as ONNX Runtime's `Inverse` (domain `com.microsoft`).
/// That of a singular matrix is not a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inverse;

const OP: &str = "inverse";

impl Operator for Inverse {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d.is_float())?;
        match x.dims[..] {
            [.., rows, columns] if rows == columns => Ok(Info::plain(x.dtype, x.dims.clone())),
            _ => Err(GraphError::mismatch(OP, "matrices must be square", &[("x", &x.dims)])),
        }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, n) = (floats(&src[0], OP)?, src[0].dims[src[0].dims.len() - 1]);
        if n == 0 {
            return Ok(());
        }
        write_floats(dst, OP, x.chunks_exact(n * n).flat_map(|m| inverse(m.to_vec(), n)))
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let n = src[0].dims.last().copied().unwrap_or(0) as u64;
        (src[0].elements() as u64).saturating_mul(2).saturating_mul(n)
    }
}

/// By elimination with the largest pivot of each column, above it as well as below.
fn inverse(mut m: Vec<f64>, n: usize) -> Vec<f64> {
    let mut y: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i / n == i % n))).collect();
    for k in 0..n {
        let pivot = pivot(&m, n, k);
        let divisor = m[pivot * n + k];
        if divisor == 0.0 {
            return vec![f64::NAN; n * n];
        }
        for c in 0..n {
            m.swap(k * n + c, pivot * n + c);
            y.swap(k * n + c, pivot * n + c);
            m[k * n + c] /= divisor;
            y[k * n + c] /= divisor;
        }
        for row in (0..n).filter(|&row| row != k) {
            let factor = m[row * n + k];
            for c in 0..n {
                m[row * n + c] -= factor * m[k * n + c];
                y[row * n + c] -= factor * y[k * n + c];
            }
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn pivots_and_singular_matrices() {
        assert_eq!(inverse(vec![0.0, 2.0, 4.0, 0.0], 2), [0.0, 0.25, 0.5, 0.0]);
        assert_eq!(inverse(vec![2.0, 1.0, 1.0, 1.0], 2), [1.0, -1.0, -1.0, 2.0]);
        assert!(inverse(vec![1.0, 2.0, 2.0, 4.0], 2).iter().all(|v| v.is_nan()));
    }

    #[test]
    fn shapes() {
        let mut cx = Context::new();
        let mut run = |dims: &[usize]| {
            let x = Tensor::from_slice(dims, &vec![1.0f32; dims.iter().product()]).unwrap();
            let x = cx.constant(x).unwrap();
            cx.op(Inverse, &[x]).map(|y| cx.dims(y))
        };
        assert_eq!(run(&[2, 1, 1]).unwrap(), [2, 1, 1]);
        assert_eq!(run(&[2, 0, 0]).unwrap(), [2, 0, 0]);
        assert!(run(&[2, 3]).is_err() && run(&[3]).is_err());
    }
}
