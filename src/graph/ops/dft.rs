//! The discrete Fourier transform.

use core::f64::consts::TAU;

use super::elements::{around, checked_count, expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The transform of an axis, as ONNX `DFT`. The last axis of the operand has the real part of each
/// number, or the real and the imaginary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dft {
    /// The axis, from the slowest; not the last one.
    pub axis: usize,
    /// Elements of the transform: the axis is cut, or continued with zeros.
    pub length: usize,
    /// From frequencies to a signal.
    pub inverse: bool,
    /// Leaves out the frequencies that follow from the others when signals are real. The result of
    /// an inverse transform is real then.
    pub onesided: bool,
}

const OP: &str = "dft";

impl Dft {
    /// Extents of the transformed and of the last axis of the result.
    fn extents(&self) -> (usize, usize) {
        match (self.onesided, self.inverse) {
            (true, false) => (self.length / 2 + 1, 2),
            (true, true) => (self.length, 1),
            _ => (self.length, 2),
        }
    }

    /// One transform of complex numbers.
    fn transform(&self, x: &[(f64, f64)], turns: &[(f64, f64)]) -> Vec<(f64, f64)> {
        let n = self.length;
        let at = |k: usize| {
            // Element j is turned by j k modulo n; a division for each would take longer than all else.
            let mut turn = 0;
            let term = |&(re, im): &(f64, f64)| {
                let (cos, sin) = turns[turn];
                turn += k;
                turn -= if turn >= n { n } else { 0 };
                let sin = if self.inverse { sin } else { -sin };
                (re * cos - im * sin, re * sin + im * cos)
            };
            let sum = x.iter().map(term);
            let (re, im) = sum.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let scale = if self.inverse { 1.0 / n as f64 } else { 1.0 };
            (re * scale, im * scale)
        };
        (0..self.extents().0).map(at).collect()
    }
}

impl Operator for Dft {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d.is_float())?;
        let complex = matches!(x.dims.last(), Some(1 | 2));
        let real = x.dims.last() == Some(&1);
        // Frequencies that are left out follow from the others of a real signal only.
        let fits = !self.onesided || self.inverse || real;
        if !complex || !fits || self.length == 0 || self.axis + 1 >= x.dims.len() {
            let rule = "there must be an axis in front of real and imaginary parts";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
        }
        let (count, parts) = self.extents();
        let mut dims = x.dims.clone();
        let last = dims.len() - 1;
        (dims[self.axis], dims[last]) = (count, parts);
        checked_count(OP, &dims)?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, dims) = (floats(&src[0], OP)?, src[0].dims);
        let parts = dims[dims.len() - 1];
        let (outer, extent, inner) = around(&dims[..dims.len() - 1], self.axis);
        let (count, out_parts) = self.extents();
        let turn = |j: usize| {
            let angle = TAU * j as f64 / self.length as f64;
            (libm::cos(angle), libm::sin(angle))
        };
        let turns: Vec<(f64, f64)> = (0..self.length).map(turn).collect();
        let mut out = vec![0.0; outer * count * inner * out_parts];
        let used = if self.inverse && self.onesided { self.length / 2 + 1 } else { self.length };
        for lane in 0..outer * inner {
            let (o, i) = (lane / inner, lane % inner);
            let number = |j: usize| {
                let at = ((o * extent + j) * inner + i) * parts;
                (x[at], if parts == 2 { x[at + 1] } else { 0.0 })
            };
            let mut line: Vec<_> = (0..extent.min(used)).map(number).collect();
            if self.inverse && self.onesided {
                line.resize(used, (0.0, 0.0));
                // The other frequencies mirror these; those without a mirror are real.
                for j in used..self.length {
                    let (re, im) = line[self.length - j];
                    line.push((re, -im));
                }
                line[0].1 = 0.0;
                if self.length.is_multiple_of(2)
                    && let Some(middle) = line.get_mut(self.length / 2)
                {
                    middle.1 = 0.0;
                }
            }
            for (k, (re, im)) in self.transform(&line, &turns).into_iter().enumerate() {
                let at = ((o * count + k) * inner + i) * out_parts;
                out[at] = re;
                if out_parts == 2 {
                    out[at + 1] = im;
                }
            }
        }
        write_floats(dst, OP, out)
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let used = src[0].dims[self.axis].min(self.length) as u64;
        (dst.elements() as u64).saturating_mul(used).saturating_mul(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn there_and_back() {
        let x: Vec<f32> = vec![1.0, -2.0, 3.5, 0.25, 4.0];
        let mut cx = Context::new();
        for length in [5usize, 4] {
            let id = cx.constant(Tensor::from_slice(&[1, 5, 1], &x).unwrap()).unwrap();
            let to = Dft { axis: 1, length, inverse: false, onesided: true };
            let y = cx.op(to, &[id]).unwrap();
            assert_eq!(cx.dims(y), [1, 3, 2]);
            let z = cx.op(Dft { inverse: true, ..to }, &[y]).unwrap();
            let z = cx.constant_value(z).unwrap();
            assert_eq!(z.dims(), [1, length, 1]);
            let z = z.as_slice::<f32>().unwrap();
            assert!(z.iter().zip(&x).all(|(a, b)| (a - b).abs() < 1e-5), "{z:?}");
        }
        let id = cx.constant(Tensor::from_slice(&[1, 5, 1], &x).unwrap()).unwrap();
        for (axis, length) in [(2, 4), (1, 0), (1, usize::MAX)] {
            assert!(cx.op(Dft { axis, length, inverse: true, onesided: false }, &[id]).is_err());
        }
    }
}
