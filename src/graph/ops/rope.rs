//! Rotary position embeddings (Su et al. 2021).

use tilewright_kernels::{RopeParams, RopePlan};

use super::plan_step::PlanStep;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

pub use tilewright_kernels::RopeStyle;

/// Turns pairs of elements of each head by the angles of a
/// [`RopeTable`](super::rope_table::RopeTable); elements of a head from
/// `rotated` on stay what they are.
///
/// Operands: `x [m, heads * size]` of f32, the table `[m, rotated]`. Result: the shape of `x`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rope {
    /// Which elements turn together.
    pub style: RopeStyle,
    /// Elements of a head.
    pub size: usize,
}

const OP: &str = "rope";

impl Operator for Rope {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "x and a table")?;
        if let Some(bad) = src.iter().find(|s| s.dtype != DType::F32) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        let (x, table) = (&src[0].dims, &src[1].dims);
        let fits = match (&x[..], &table[..]) {
            (&[m, width], &[rows, rotated]) => {
                let whole = self.size > 0 && width.is_multiple_of(self.size);
                m == rows && whole && rotated.is_multiple_of(2) && rotated <= self.size
            }
            _ => false,
        };
        if !fits {
            let rule = "x must have whole heads, and the table a row per row of x, no longer than a \
                        head";
            let shapes = [("x", &x[..]), ("table", table), ("head", &[self.size])];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(DType::F32, x.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, table) = (src[0].slice::<f32>(OP)?, src[1].slice::<f32>(OP)?);
        let (width, rotated) = (src[0].dims[1], src[1].dims[1]);
        let y = dst.slice::<f32>(OP)?;
        y.copy_from_slice(x);
        let pairs = rotated / 2;
        for (i, head) in y.chunks_exact_mut(self.size).enumerate() {
            let row = i / (width / self.size);
            let (cos, sin) = table[row * rotated..][..rotated].split_at(pairs);
            for p in 0..pairs {
                let (a, b) = match self.style {
                    RopeStyle::Interleaved => (2 * p, 2 * p + 1),
                    RopeStyle::Half => (p, p + pairs),
                };
                let (u, v) = (head[a], head[b]);
                head[a] = u * cos[p] - v * sin[p];
                head[b] = u * sin[p] + v * cos[p];
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (&[rows, width], &[_, rotated]) = (&cx.src[0].dims[..], &cx.src[1].dims[..]) else {
            return Ok(None);
        };
        let (style, size, heads) = (self.style, self.size, width / self.size);
        let params = RopeParams { style, rows, heads, size, rotated, strides: [width; 2] };
        Ok(Some(Box::new(PlanStep(RopePlan::new(cx.isa, &params)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::rope_table::RopeTable;
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::tensor::Tensor;
    use core::f64::consts::FRAC_PI_2;
    use tilewright_kernels::Isa;

    fn turned(style: RopeStyle, x: &[f32], size: usize, positions: &[i32]) -> Vec<f32> {
        let mut cx = Context::new();
        let m = positions.len();
        let positions = cx.constant(Tensor::from_slice(&[m], positions).unwrap()).unwrap();
        let angles = cx.constant(Tensor::from_slice(&[2], &[FRAC_PI_2, 0.0]).unwrap()).unwrap();
        let table =
            cx.op(RopeTable { magnitude: 1.0, growth: None }, &[positions, angles]).unwrap();
        let x = cx.constant(Tensor::from_slice(&[m, x.len() / m], x).unwrap()).unwrap();
        let y = cx.op(Rope { style, size }, &[x, table]).unwrap();
        let y = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
        y.into_iter().map(|v| if v.abs() < 1e-6 { 0.0 } else { v }).collect()
    }

    #[test]
    fn pairs_turn_and_the_rest_stays() {
        let x = [1.0, 0.0, 7.0, 8.0, 9.0];
        assert_eq!(turned(RopeStyle::Interleaved, &x, 5, &[1]), [0.0, 1.0, 7.0, 8.0, 9.0]);
        let x = [1.0, 7.0, 2.0, 8.0, 9.0];
        assert_eq!(turned(RopeStyle::Half, &x, 5, &[1]), [-2.0, 7.0, 1.0, 8.0, 9.0]);
        // Two rows of two heads each: each row has its own position.
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].repeat(2);
        let y = turned(RopeStyle::Interleaved, &x, 4, &[0, 2]);
        assert_eq!(y[..8], x[..8]);
        assert_eq!(y[8..], [-1.0, -2.0, 3.0, 4.0, -5.0, -6.0, 7.0, 8.0]);
    }

    #[test]
    fn tables_must_fit() {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::zeros(DType::F32, &[2, 8]).unwrap()).unwrap();
        let style = RopeStyle::Half;
        for (dims, size) in
            [(&[1, 4][..], 4), (&[2, 6], 4), (&[2, 3], 4), (&[2, 4], 3), (&[2, 4], 0)]
        {
            let table = cx.constant(Tensor::zeros(DType::F32, dims).unwrap()).unwrap();
            assert!(cx.op(Rope { style, size }, &[x, table]).is_err(), "{dims:?} {size}");
        }
    }

    #[test]
    fn kernels_agree_with_the_reference() {
        let (rows, heads, size, rotated) = (5, 3, 24, 18);
        let number = |i: usize| ((i * 7919) % 251) as f32 / 125.0 - 1.0;
        let tensor = |width: usize| {
            let data: Vec<f32> = (0..rows * width).map(number).collect();
            Tensor::from_slice(&[rows, width], &data).unwrap()
        };
        let (x, table) = (tensor(heads * size), tensor(rotated));
        for style in [RopeStyle::Interleaved, RopeStyle::Half] {
            let op = Rope { style, size };
            let mut cx = Context::new();
            let src = [&x, &table].map(|t| cx.constant(t.clone()).unwrap());
            let want = cx.op(op, &src).unwrap();
            let want = cx.constant_value(want).unwrap().as_slice::<f32>().unwrap().to_vec();
            for isa in Isa::available() {
                let mut cx = Context::new();
                let src = [&x, &table].map(|t| cx.input("x", DType::F32, &t.dims()).unwrap());
                let y = cx.op(op, &src).unwrap();
                let mut executor = Executor::new(isa, 2).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                let y = executor.run(&plan, &[&x, &table], None).unwrap();
                for (a, b) in y[0].as_slice::<f32>().unwrap().iter().zip(&want) {
                    assert!((a - b).abs() < 1e-6, "{isa} {style:?}: {a} {b}");
                }
            }
        }
    }
}
