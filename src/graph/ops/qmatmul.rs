//! Matrix products of bytes.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::{MatmulParams, QmatmulParams, QmatmulPlan};

use super::binary::Broadcast;
use super::byte_product::Product;
use super::matmul::{MatMul, Sizes, batches};
use super::requantize::{Requantize, as_bytes, bias, byte, is_bytes, kernel_type, small_b, words};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Product of bytes over the last two dimensions, exact, as ONNX `QLinearMatMul` and
/// `MatMulInteger`; the dimensions before them broadcast.
///
/// Operands: `a [..., m, k]`, `b [..., k, n]` (or `[..., n, k]` if [`MatMul::transposed_b`]), each
/// of `i8` or `u8`; then `bias [n]` of `i32` if [`MatMul::bias`].
#[derive(Clone, Debug, PartialEq)]
pub struct QMatMul {
    /// Order of `b`, and whether there is a bias; without an activation.
    pub product: MatMul,
    /// How sums become results; weights are `b`, output channels its columns.
    pub quant: Requantize,
}

const OP: &str = "qmatmul";

impl Operator for QMatMul {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "a, b and a bias as flagged")?;
        if let Some(bad) = src[..2].iter().find(|s| !is_bytes(s.dtype)) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        let s = self.product.sizes(&src[0].dims, &src[1].dims)?;
        self.quant.check(OP, s.n)?;
        if self.product.bias && (src[2].dims != [s.n] || src[2].dtype != DType::I32) {
            return Err(GraphError::mismatch(
                OP,
                "the bias must have one i32 per column",
                &[("b", &src[1].dims), ("bias", &src[2].dims)],
            ));
        }
        let mut dims = s.batch;
        dims.extend([s.m, s.n]);
        Ok(Info::plain(self.quant.to, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let s = self.product.sizes(src[0].dims, src[1].dims)?;
        let bias = if self.product.bias { Some(src[2].slice::<i32>(OP)?) } else { None };
        let (ab, bb): (Broadcast, Broadcast) = batches(src[0].dims, src[1].dims, &s.batch);
        let plane = s.m * s.n;
        self.quant.write(OP, dst, |i| {
            let (row, col, p) = (i % plane / s.n, i % s.n, i / plane);
            let (a, b) = ((ab.index(p) * s.m + row) * s.k, bb.index(p) * s.k * s.n);
            let (a_zero, b_zero) =
                (i64::from(self.quant.x_zero), i64::from(self.quant.w_zero(col)));
            let terms = (0..s.k).map(|k| {
                let at = if self.product.transposed_b { col * s.k + k } else { k * s.n + col };
                (byte(&src[0], a + k) - a_zero) * (byte(&src[1], b + at) - b_zero)
            });
            (terms.sum::<i64>() + bias.map_or(0, |b| i64::from(b[col])), col)
        })
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (a, b) = (&cx.src[0].dims, &cx.src[1].dims);
        let s = self.product.sizes(a, b)?;
        let known = cx.values[1..].iter().all(Option::is_some) && b.len() == 2;
        // Sizes for which a sum cannot leave the range of its type.
        let short = s.k <= i32::MAX as usize / (255 * 255);
        if s.k == 0 || !short {
            return Ok(None);
        }
        if !known {
            return self.lower_free(cx, &s);
        }
        let rows = s.batch.iter().product::<usize>() * s.m;
        let mut sizes = MatmulParams::new(rows, s.k, s.n);
        if self.product.transposed_b {
            sizes = sizes.b_transposed();
        }
        let q = &self.quant;
        let [a, b] = [0, 1].map(|i| kernel_type(cx.src[i].dtype));
        let b_zero_point = q.w_zeros.iter().any(|z| *z != 0);
        let small = small_b(cx)?;
        let params = QmatmulParams { sizes, a, b, b_zero_point, small, output: q.output() };
        let plan = Arc::new(QmatmulPlan::new(cx.isa, &params)?);
        let bias = bias(cx, self.product.bias.then_some(2))?;
        let (isa, zeros, transposed) = (cx.isa, &q.w_zeros, self.product.transposed_b);
        let format = format!("qmatmul {isa} {zeros:?} t{transposed} {:?} {a:?}", plan.packing());
        let weights =
            cx.pack(1, &format, plan.weights_len() * size_of::<i32>(), &|source, out| {
                let out = bytemuck::cast_slice_mut(out);
                Ok(plan.pack_weights(as_bytes(source), zeros, out)?)
            })?;
        let columns = words(plan.columns_len(), |out| {
            Ok(plan.pack_columns(bytemuck::cast_slice(&weights), &q.columns(&bias), out)?)
        })?;
        Ok(Some(Box::new(Product { plan, weights, columns })))
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        self.product.macs(src, dst)
    }
}

impl QMatMul {
    /// The kernel for a `b` that is known only at run time: one for all rows, or one for each of the products.
    fn lower_free(&self, cx: &LowerCx<'_>, s: &Sizes) -> Result<Option<Box<dyn Step>>, GraphError> {
        let bias_known = !self.product.bias || cx.values[2].is_some();
        let [a, b] = [0, 1].map(|i| &cx.src[i].dims[..cx.src[i].dims.len() - 2]);
        // Rows of `a` that follow each other and meet the same `b` are one product.
        let missing = s.batch.len() - b.len();
        let own = |i: &usize| *i >= missing && b[*i - missing] == s.batch[*i];
        let each =
            (0..s.batch.len()).rev().find(|i| own(i) && s.batch[*i] > 1).map_or(0, |i| i + 1);
        let [batch, shared] =
            [&s.batch[..each], &s.batch[each..]].map(|d| d.iter().product::<usize>());
        if *a != s.batch[..] || b.iter().product::<usize>() != batch || !bias_known {
            return Ok(None);
        }
        let m = shared * s.m;
        let mut sizes = MatmulParams::new(m, s.k, s.n);
        if self.product.transposed_b {
            sizes = sizes.b_transposed();
        }
        let quant = self.quant.clone();
        let [a, b] = [0, 1].map(|i| kernel_type(cx.src[i].dtype));
        let b_zero_point = quant.w_zeros.iter().any(|z| *z != 0);
        let (sizes, output) = (sizes.batch(batch), quant.output());
        let params = QmatmulParams { sizes, a, b, b_zero_point, small: false, output };
        let plan = QmatmulPlan::new(cx.isa, &params)?;
        let bias = bias(cx, self.product.bias.then_some(2))?;
        plan.check_run(&quant.w_zeros, &quant.columns(&bias))?;
        Ok(Some(Box::new(Free(Arc::new(Planned { plan, quant, bias })))))
    }
}

/// A plan and what it needs to prepare its operands in a run.
struct Planned {
    plan: QmatmulPlan,
    quant: Requantize,
    bias: Vec<i32>,
}

impl Planned {
    /// Where in what is prepared columns and converted activations begin, behind the packed weights, and
    /// where it ends: in words, whole cache lines.
    fn parts(&self) -> [usize; 3] {
        let mut end = 0;
        [self.plan.weights_len(), self.plan.columns_len(), self.plan.scratch_len()].map(|len| {
            end += len.next_multiple_of(16);
            end
        })
    }
}

/// Products of two operands that are known only at run time.
struct Free(Arc<Planned>);

impl Step for Free {
    fn kernel(&self) -> String {
        self.0.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.0.plan.units()
    }

    fn reads(&self, i: usize) -> bool {
        i < 2
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let words = self.0.parts()[2];
        Some((Box::new(Prepare(self.0.clone())), words * size_of::<i32>()))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let weights = src[src.len() - 1].cast::<i32>();
        let [columns, converted, _] = self.0.parts().map(|at| weights.wrapping_add(at));
        // SAFETY: the plan was made for operands and result; the step before has written its packed
        // weights, columns and converted activations there; units and CPU are as the caller promises.
        unsafe { self.0.plan.run(src[0], converted, weights, columns, dst, units) };
        Ok(())
    }
}

/// Packs each `b` and its columns, and brings `a` into the form that the kernel reads.
struct Prepare(Arc<Planned>);

impl Step for Prepare {
    fn kernel(&self) -> String {
        "pack_bytes".to_owned()
    }

    fn units(&self) -> usize {
        self.0.plan.b_count() + self.0.plan.convert_units()
    }

    fn reads(&self, i: usize) -> bool {
        i < 2
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Planned { plan, quant, bias } = &*self.0;
        let weights = dst.cast::<i32>();
        let [columns, converted, _] = self.0.parts().map(|at| weights.wrapping_add(at));
        let (count, panels) = (plan.b_count(), plan.pack_units() / plan.b_count());
        let known = quant.columns(bias);
        for batch in units.start.min(count)..units.end.min(count) {
            // SAFETY: operands and result have the lengths of the plan, which took zero points and
            // columns when the step was made; each product has panels and columns of its own, and its
            // columns are prepared behind its panels on the same thread.
            unsafe {
                let panels = batch * panels..(batch + 1) * panels;
                plan.run_pack(src[1], &quant.w_zeros, weights, panels);
                plan.run_columns(weights, &known, columns, batch..batch + 1);
            }
        }
        let rest = units.start.max(count) - count..units.end.max(count) - count;
        // SAFETY: behind the columns there is room for the converted activations; units and CPU are as
        // the caller promises.
        unsafe { plan.run_convert(src[0], converted, rest) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::graph::ops::elements::as_defined;
    use crate::tensor::Tensor;
    use tilewright_kernels::Isa;

    #[test]
    fn operands_of_a_run_give_what_the_definition_says() {
        for (i, [batch, m, k, n]) in
            [[1, 5, 3, 2], [3, 7, 33, 20], [2, 20, 64, 37], [12, 9, 12, 9]].into_iter().enumerate()
        {
            let (a_type, b_type) =
                if i % 2 == 0 { (DType::U8, DType::U8) } else { (DType::I8, DType::I8) };
            let quant = Requantize {
                x_zero: 11,
                w_zeros: if i == 1 { Vec::new() } else { vec![100] },
                scales: vec![0.003],
                to: DType::U8,
                zero: 128,
                bounds: [0, 255],
            };
            let product = MatMul { transposed_b: i == 2, ..MatMul::default() };
            let op = QMatMul { product, quant };
            let dims =
                [vec![batch, m, k], if i == 2 { vec![batch, n, k] } else { vec![batch, k, n] }];
            let data = [a_type, b_type].into_iter().zip(&dims).map(|(dtype, dims)| {
                let bytes: Vec<u8> =
                    (0..dims.iter().product()).map(|j: usize| (j * 7919 % 251) as u8).collect();
                Tensor::from_bytes(dtype, dims, &bytes).unwrap()
            });
            let data: Vec<Tensor> = data.collect();
            let mut cx = Context::new();
            let a = cx.input("a", a_type, &dims[0]).unwrap();
            let b = cx.input("b", b_type, &dims[1]).unwrap();
            let y = cx.op(op.clone(), &[a, b]).unwrap();
            let mut executor = Executor::new(Isa::best(), 2).unwrap();
            let plan = executor.plan(&mut cx, &[y]).unwrap();
            assert!(plan.nodes().all(|n| n.kernel != "reference"), "a kernel computes it");
            let found = executor.run(&plan, &[&data[0], &data[1]], None).unwrap();
            let mut all = Context::new();
            let src: Vec<_> = data.into_iter().map(|t| all.constant(t).unwrap()).collect();
            let wanted = all.op(op, &src).unwrap();
            assert_eq!(found[0].bytes(), all.constant_value(wanted).unwrap().bytes(), "{i}");
        }
    }

    #[test]
    fn one_operand_may_serve_several_products() {
        let quant = Requantize {
            x_zero: 7,
            w_zeros: vec![90],
            scales: vec![0.004],
            to: DType::I8,
            zero: -3,
            bounds: [-128, 127],
        };
        let bytes = |dims: &[usize]| {
            let all: Vec<u8> =
                (0..dims.iter().product::<usize>()).map(|j| (j * 73 % 251) as u8).collect();
            Tensor::from_bytes(DType::U8, dims, &all).unwrap()
        };
        for (transposed_b, a, b, has_kernel) in [
            (false, &[2, 3, 5, 9][..], &[2, 1, 9, 4][..], true),
            (true, &[2, 3, 5, 9], &[1, 1, 4, 9], true),
            (false, &[2, 3, 5, 9], &[9, 4], true),
            (true, &[1, 3, 5, 9], &[3, 4, 9], true),
            (false, &[2, 1, 5, 9], &[2, 1, 9, 4], true),
            (false, &[2, 3, 5, 9], &[3, 9, 4], false),
            (false, &[1, 5, 9], &[3, 9, 4], false),
        ] {
            let product = MatMul { transposed_b, ..MatMul::default() };
            let op = QMatMul { product, quant: quant.clone() };
            let kernels = as_defined(&op, &[bytes(a), bytes(b)]);
            assert_eq!(kernels != "reference", has_kernel, "{a:?} {b:?}: {kernels}");
        }
    }
}
