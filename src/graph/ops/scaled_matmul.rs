//! Matrix products of bytes that were quantised at run time.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::{
    Activation, Dtype, Epilogue, MatmulParams, QmatmulParams, QmatmulPlan, QuantColumns,
    QuantOutput,
};

use super::binary::Broadcast;
use super::matmul::{MatMul, Sizes, batches};
use super::requantize::{as_bytes, byte, integer, is_bytes, kernel_type, small_b};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::{AlignedBytes, DType};

/// Product of bytes over the last two dimensions, whose zero point and scale of the left operand are
/// operands too: what ONNX writes as `DynamicQuantizeLinear`, `MatMulInteger`, `Cast`, `Mul`, `Add`.
///
/// Operands: `a [..., m, k]`, `b [..., k, n]` (or `[..., n, k]`), each of `i8` or `u8`; `a_zero`, one
/// element of `a`'s type. With [`ScaledMatMul::scales`] then `a_scale`, one element of f32, and `bias
/// [n]` of f32 if [`ScaledMatMul::bias`].
///
/// Result: sums of `(a - a_zero) * (b - b_zero)` as `i32`; with scales
/// `activation(sum * (a_scale * scale) + bias)` as f32, each operation rounded.
#[derive(Clone, Debug, PartialEq)]
pub struct ScaledMatMul {
    /// Whether `b` holds its columns as rows.
    pub transposed_b: bool,
    /// Zero points of `b`: one per column, one for all, or none for 0.
    pub w_zeros: Vec<i32>,
    /// Scales of `b`: one per column or one for all; none for sums.
    pub scales: Vec<f32>,
    /// Whether there is a bias.
    pub bias: bool,
    /// Applied last.
    pub activation: Activation,
}

impl Default for ScaledMatMul {
    fn default() -> Self {
        let (w_zeros, scales) = (Vec::new(), Vec::new());
        let (transposed_b, bias, activation) = (false, false, Activation::None);
        Self { transposed_b, w_zeros, scales, bias, activation }
    }
}

const OP: &str = "scaled_matmul";

/// Where the operands are.
const ZERO: usize = 2;
const SCALE: usize = 3;
const BIAS: usize = 4;

impl ScaledMatMul {
    fn is_scaled(&self) -> bool {
        !self.scales.is_empty()
    }

    fn sizes(&self, a: &[usize], b: &[usize]) -> Result<Sizes, GraphError> {
        MatMul { transposed_b: self.transposed_b, ..MatMul::default() }.sizes(a, b)
    }

    fn check(&self, n: usize) -> Result<(), GraphError> {
        let invalid = |attribute, reason: &str| {
            Err(GraphError::InvalidAttribute { op: OP, attribute, reason: reason.to_owned() })
        };
        let fits = |len: usize| len <= 1 || len == n;
        if !fits(self.scales.len()) || self.scales.iter().any(|s| !s.is_finite()) {
            return invalid("scales", "must be finite, and one, or one per column");
        }
        if !fits(self.w_zeros.len()) {
            return invalid("zero points", "must be one, or one per column");
        }
        if !self.is_scaled() && (self.bias || self.activation != Activation::None) {
            return invalid("scales", "must be there for a bias or an activation");
        }
        Ok(())
    }
}

/// The element for column `n` of a list that has one for all, one per column, or none.
fn of<T: Copy + Default>(list: &[T], n: usize) -> T {
    match list {
        [] => T::default(),
        [one] => *one,
        _ => list[n],
    }
}

impl Operator for ScaledMatMul {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let count = 3 + usize::from(self.is_scaled()) + usize::from(self.bias);
        expect_operands(OP, src, count..=count, "a, b, zero point, scale and bias as flagged")?;
        if let Some(bad) = src[..2].iter().find(|s| !is_bytes(s.dtype)) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        let s = self.sizes(&src[0].dims, &src[1].dims)?;
        self.check(s.n)?;
        let single = |i: usize, dtype| src[i].dtype == dtype && src[i].elements() == 1;
        if !single(ZERO, src[0].dtype) || (self.is_scaled() && !single(SCALE, DType::F32)) {
            let rule = "zero point and scale must have one element, of a's type and of f32";
            let of = |i: usize| src.get(i).map_or(&[][..], |s| &s.dims[..]);
            let shapes = [("zero point", of(ZERO)), ("scale", of(SCALE))];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        if self.bias && (src[BIAS].dims != [s.n] || src[BIAS].dtype != DType::F32) {
            let rule = "the bias must have one f32 per column";
            let shapes = [("b", &src[1].dims[..]), ("bias", &src[BIAS].dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        let mut dims = s.batch;
        dims.extend([s.m, s.n]);
        Ok(Info::plain(if self.is_scaled() { DType::F32 } else { DType::I32 }, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let s = self.sizes(src[0].dims, src[1].dims)?;
        let (ab, bb): (Broadcast, Broadcast) = batches(src[0].dims, src[1].dims, &s.batch);
        let (plane, a_zero) = (s.m * s.n, byte(&src[ZERO], 0));
        let sum = |i: usize| -> Result<i32, GraphError> {
            let (row, col, p) = (i % plane / s.n, i % s.n, i / plane);
            let (a, b) = ((ab.index(p) * s.m + row) * s.k, bb.index(p) * s.k * s.n);
            let b_zero = i64::from(of(&self.w_zeros, col));
            let terms = (0..s.k).map(|k| {
                let at = if self.transposed_b { col * s.k + k } else { k * s.n + col };
                (byte(&src[0], a + k) - a_zero) * (byte(&src[1], b + at) - b_zero)
            });
            super::requantize::checked(OP, terms.sum())
        };
        if !self.is_scaled() {
            for (i, y) in dst.slice::<i32>(OP)?.iter_mut().enumerate() {
                *y = sum(i)?;
            }
            return Ok(());
        }
        let scale = src[SCALE].slice::<f32>(OP)?[0];
        let bias = if self.bias { src[BIAS].slice::<f32>(OP)? } else { &[] };
        for (i, y) in dst.slice::<f32>(OP)?.iter_mut().enumerate() {
            let column = i % s.n;
            let scaled = sum(i)? as f32 * (of(&self.scales, column) * scale);
            *y = super::unary::activate(self.activation, scaled + of(bias, column));
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (a, b) = (&cx.src[0].dims, &cx.src[1].dims);
        let s = self.sizes(a, b)?;
        let known = cx.values[1].is_some() && (!self.bias || cx.values[BIAS].is_some());
        // Sizes for which a sum cannot leave the range of its type.
        let short = s.k <= i32::MAX as usize / (255 * 255);
        if !known || b.len() != 2 || s.k == 0 || !short {
            return Ok(None);
        }
        let rows = s.batch.iter().product::<usize>() * s.m;
        let epilogue = Epilogue { activation: self.activation, ..Epilogue::default() };
        let mut sizes = MatmulParams::new(rows, s.k, s.n).epilogue(epilogue);
        if self.transposed_b {
            sizes = sizes.b_transposed();
        }
        let [a, b]: [Dtype; 2] = [0, 1].map(|i| kernel_type(cx.src[i].dtype));
        let b_zero_point = self.w_zeros.iter().any(|z| *z != 0);
        let output = if self.is_scaled() { QuantOutput::F32 } else { QuantOutput::I32 };
        let small = small_b(cx)?;
        let params = QmatmulParams { sizes, a, b, b_zero_point, small, output };
        let plan = QmatmulPlan::new(cx.isa, &params)?;
        let (isa, zeros, transposed) = (cx.isa, &self.w_zeros, self.transposed_b);
        let format = format!("qmatmul {isa} {zeros:?} t{transposed} {:?} {a:?}", plan.packing());
        let bytes = plan.weights_len() * size_of::<i32>();
        let weights = cx.pack(1, &format, bytes, &|source, out| {
            let out = bytemuck::cast_slice_mut(out);
            Ok(plan.pack_weights(as_bytes(source), zeros, out)?)
        })?;
        let bias = match cx.values.get(BIAS).copied().flatten() {
            Some(bias) => bias.as_slice::<f32>()?.to_vec(),
            None => Vec::new(),
        };
        let of_a = cx.src[0].dtype;
        let op = self.clone();
        Ok(Some(Box::new(Product(Arc::new(Planned { op, plan, weights, bias, of_a })))))
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        MatMul::default().macs(src, dst)
    }
}

/// A plan with what it packed, and what is needed to prepare its columns in a run.
struct Planned {
    op: ScaledMatMul,
    plan: QmatmulPlan,
    weights: Arc<AlignedBytes>,
    bias: Vec<f32>,
    /// Type of the left operand.
    of_a: DType,
}

impl Planned {
    /// Words from the start of what is prepared to the converted left operand: the columns, in whole
    /// cache lines.
    fn columns_len(&self) -> usize {
        self.plan.columns_len().next_multiple_of(16)
    }
}

struct Product(Arc<Planned>);

impl Step for Product {
    fn kernel(&self) -> String {
        self.0.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.0.plan.units()
    }

    fn reads(&self, i: usize) -> bool {
        matches!(i, 0 | ZERO | SCALE)
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let words = self.0.columns_len() + self.0.plan.scratch_len();
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
        let Planned { plan, weights, .. } = &*self.0;
        let columns = src[src.len() - 1].cast::<i32>();
        let converted = columns.wrapping_add(self.0.columns_len());
        // SAFETY: the plan was made for operand and result, and packed the weights itself; the step
        // before has written columns and the converted operand; units and CPU are as the caller
        // promises.
        unsafe { plan.run(src[0], converted, weights.as_ptr().cast(), columns, dst, units) };
        Ok(())
    }
}

/// Prepares the columns, and brings the left operand into the form that the kernel reads.
struct Prepare(Arc<Planned>);

impl Step for Prepare {
    fn kernel(&self) -> String {
        if self.0.plan.convert_units() > 0 { "convert_bytes" } else { "quant_columns" }.to_owned()
    }

    fn units(&self) -> usize {
        1 + self.0.plan.convert_units()
    }

    fn reads(&self, i: usize) -> bool {
        matches!(i, 0 | ZERO | SCALE)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Planned { op, plan, weights, bias, of_a } = &*self.0;
        let columns = dst.cast::<i32>();
        if units.start == 0 {
            // SAFETY: zero point and scale have one element each; the columns are the first part of the
            // result, which the first unit alone writes.
            let (zero, scale, columns) = unsafe {
                let scale = if op.is_scaled() { *src[SCALE].cast::<f32>() } else { 1.0 };
                let columns = core::slice::from_raw_parts_mut(columns, plan.columns_len());
                (integer(*src[ZERO], *of_a), scale, columns)
            };
            let known =
                QuantColumns { bias: &[], zero_point: zero, scales: &op.scales, shifts: bias };
            plan.pack_columns(bytemuck::cast_slice(weights), &known, columns)?;
            plan.scale_columns(scale, columns)?;
        }
        let rest = units.start.max(1) - 1..units.end - 1;
        if !rest.is_empty() {
            let converted = columns.wrapping_add(self.0.columns_len());
            // SAFETY: the operand is the plan's, and behind the columns there is room for what it
            // becomes; units and CPU are as the caller promises.
            unsafe { plan.run_convert(src[0], converted, rest) };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::{Context, TensorId};
    use crate::tensor::Tensor;
    use tilewright_kernels::Isa;

    /// Operands `[m, k] * [k, n]` from a seed, all but B from outside.
    fn operands(
        cx: &mut Context,
        op: &ScaledMatMul,
        [m, k, n]: [usize; 3],
        to: DType,
    ) -> (Vec<TensorId>, Vec<Tensor>) {
        let byte = |i: usize| (i * 7919 % 251) as u8;
        let a: Vec<u8> = (0..m * k).map(byte).collect();
        let b: Vec<i8> = (0..k * n).map(|i| byte(i + 3) as i8).collect();
        let a = Tensor::from_bytes(to, &[m, k], &a).unwrap();
        let dims = if op.transposed_b { [n, k] } else { [k, n] };
        let b = cx.constant(Tensor::from_slice(&dims, &b).unwrap()).unwrap();
        let zero = Tensor::from_bytes(to, &[], &[131]).unwrap();
        let mut src = vec![cx.input("a", to, &[m, k]).unwrap(), b];
        src.push(cx.input("zero", to, &[]).unwrap());
        let mut given = vec![a, zero];
        if op.is_scaled() {
            src.push(cx.input("scale", DType::F32, &[1]).unwrap());
            given.push(Tensor::from_slice(&[1], &[0.037f32]).unwrap());
        }
        if op.bias {
            let bias: Vec<f32> = (0..n).map(|i| i as f32 - 3.5).collect();
            src.push(cx.constant(Tensor::from_slice(&[n], &bias).unwrap()).unwrap());
        }
        (src, given)
    }

    #[test]
    fn kernels_compute_what_the_definition_says() {
        for sizes in [[1, 3, 5], [7, 64, 33], [19, 70, 48]] {
            for (i, to) in [DType::U8, DType::I8, DType::U8, DType::I8].into_iter().enumerate() {
                let per_column = |x: f32| (0..sizes[2]).map(|n| x + n as f32 * 1e-3).collect();
                let op = ScaledMatMul {
                    transposed_b: i == 1,
                    w_zeros: [vec![], vec![3], vec![], vec![-5; sizes[2]]][i].clone(),
                    scales: [vec![0.01], per_column(0.1), vec![], per_column(0.2)][i].clone(),
                    bias: i == 1 || i == 3,
                    activation: if i == 3 { Activation::Relu } else { Activation::None },
                };
                let mut cx = Context::new();
                let (src, given) = operands(&mut cx, &op, sizes, to);
                let y = cx.op(op.clone(), &src).unwrap();
                let mut executor = Executor::new(Isa::best(), 2).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                assert!(plan.nodes().all(|n| n.kernel != "reference"), "a kernel computes it");
                let given: Vec<&Tensor> = given.iter().collect();
                let found = executor.run(&plan, &given, None).unwrap();
                let mut all = Context::new();
                let mut given = given.into_iter();
                let constants: Vec<TensorId> = src
                    .iter()
                    .map(|&s| match cx.constant_value(s) {
                        Some(value) => all.constant(value.clone()).unwrap(),
                        None => all.constant(given.next().unwrap().clone()).unwrap(),
                    })
                    .collect();
                let wanted = all.op(op, &constants).unwrap();
                assert_eq!(found[0].bytes(), all.constant_value(wanted).unwrap().bytes(), "{i}");
            }
        }
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let mut cx = Context::new();
        let op = ScaledMatMul { scales: vec![1.0], ..ScaledMatMul::default() };
        let (src, _) = operands(&mut cx, &op, [2, 3, 4], DType::U8);
        assert!(cx.op(op.clone(), &src[..3]).is_err());
        assert!(cx.op(op.clone(), &[src[0], src[1], src[3], src[3]]).is_err());
        assert!(cx.op(ScaledMatMul { scales: vec![1.0; 3], ..op.clone() }, &src).is_err());
        assert!(cx.op(ScaledMatMul { scales: vec![f32::NAN], ..op.clone() }, &src).is_err());
        assert!(cx.op(ScaledMatMul { w_zeros: vec![1; 2], ..op }, &src).is_err());
        let sums = ScaledMatMul { bias: true, ..ScaledMatMul::default() };
        assert!(cx.op(sums, &src).is_err());
    }
}
