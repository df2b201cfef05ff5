//! Probabilities of classes, of comparisons of each two.

use super::elements::{expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// The probability of each class, from a score for each two classes in each row, as classifiers of the domain
/// `ai.onnx.ml` give it. The first of two classes has the probability `1 / (1 + e^(score * a + b))`.
///
/// Source: Wu, Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling" (2004),
/// algorithm 2, with the limits of LIBSVM.
#[derive(Clone, Debug, PartialEq)]
pub struct Coupling {
    /// Number of classes.
    pub classes: usize,
    /// A factor per pair.
    pub a: Vec<f32>,
    /// An offset per pair.
    pub b: Vec<f32>,
}

const OP: &str = "coupling";

impl Coupling {
    fn row(&self, scores: &[f64]) -> Vec<f64> {
        let n = self.classes;
        let mut r = vec![0.0; n * n];
        let mut pairs = scores.iter().zip(self.a.iter().zip(&self.b));
        for i in 0..n {
            for j in i + 1..n {
                let Some((score, (&a, &b))) = pairs.next() else { continue };
                let p = 1.0 / (1.0 + (score * f64::from(a) + f64::from(b)).exp());
                r[i * n + j] = p.clamp(1e-7, 1.0 - 1e-7);
                r[j * n + i] = 1.0 - r[i * n + j];
            }
        }
        let mut q = vec![0.0; n * n];
        for i in 0..n {
            for j in (0..n).filter(|&j| j != i) {
                q[i * n + i] += r[j * n + i] * r[j * n + i];
                q[i * n + j] = -r[j * n + i] * r[i * n + j];
            }
        }
        let mut p = vec![1.0 / n as f64; n];
        for _ in 0..100 {
            let mut qp: Vec<f64> = q
                .chunks_exact(n)
                .map(|line| line.iter().zip(&p).map(|(q, p)| q * p).sum())
                .collect();
            let mut pqp: f64 = p.iter().zip(&qp).map(|(p, v)| p * v).sum();
            if qp.iter().all(|v| (v - pqp).abs() < 0.005 / n as f64) {
                break;
            }
            for i in 0..n {
                let own = q[i * n + i];
                let step = (pqp - qp[i]) / own;
                p[i] += step;
                pqp = (pqp + step * (step * own + 2.0 * qp[i])) / ((1.0 + step) * (1.0 + step));
                for j in 0..n {
                    qp[j] = (qp[j] + step * q[i * n + j]) / (1.0 + step);
                    p[j] /= 1.0 + step;
                }
            }
        }
        p
    }
}

impl Operator for Coupling {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d == DType::F32)?;
        let pairs = self.classes.checked_sub(1).and_then(|n| n.checked_mul(self.classes));
        let pairs =
            pairs.map(|n| n / 2).filter(|&n| n > 0 && [self.a.len(), self.b.len()] == [n; 2]);
        match x.dims[..] {
            [rows, columns] if Some(columns) == pairs => {
                Ok(Info::plain(DType::F32, vec![rows, self.classes]))
            }
            _ => {
                let rule = "scores, factors and offsets must be those of each two classes";
                let shapes = [("scores", &x.dims[..]), ("classes", &[self.classes])];
                Err(GraphError::mismatch(OP, rule, &shapes))
            }
        }
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x = floats(&src[0], OP)?;
        write_floats(dst, OP, x.chunks_exact(self.a.len()).flat_map(|row| self.row(row)))
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        // Some rounds of steps through a matrix of all pairs.
        (src[0].elements() as u64).saturating_mul(200)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up() {
        let two = Coupling { classes: 2, a: vec![-1.0], b: vec![0.0] };
        let p = two.row(&[3f64.ln()]);
        assert!((p[0] - 0.75).abs() < 1e-3 && (p[0] + p[1] - 1.0).abs() < 1e-12, "{p:?}");
        let three = Coupling { classes: 3, a: vec![-1.0; 3], b: vec![0.0; 3] };
        // Shares of 4 : 2 : 1.
        let p = three.row(&[2f64.ln(), 4f64.ln(), 2f64.ln()]);
        let want = [4.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0];
        assert!(p.iter().zip(want).all(|(p, w)| (p - w).abs() < 5e-3), "{p:?}");
    }

    #[test]
    fn shapes() {
        let op = Coupling { classes: 3, a: vec![-1.0; 3], b: vec![0.0; 3] };
        let infer =
            |op: &Coupling, dims: &[usize]| op.infer(&[Info::plain(DType::F32, dims.to_vec())]);
        assert_eq!(infer(&op, &[5, 3]).unwrap().dims, [5, 3]);
        assert!(infer(&op, &[5, 2]).is_err() && infer(&op, &[3]).is_err());
        assert!(infer(&Coupling { b: vec![0.0; 2], ..op.clone() }, &[5, 3]).is_err());
        for classes in [0, 1, usize::MAX] {
            assert!(infer(&Coupling { classes, ..op.clone() }, &[5, 3]).is_err());
        }
    }
}
