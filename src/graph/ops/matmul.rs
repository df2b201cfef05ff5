//! Matrix products.

use core::ops::Range;
use core::{array, ptr};
use std::sync::Arc;

use tilewright_kernels::{Activation, Epilogue, MatmulParams, MatmulPlan, Workload};

use super::binary::Broadcast;
use super::elements::{floats, low_bits, write_floats, write_low_bits};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::{AlignedBytes, DType, broadcast};

/// `activation(a * b + bias + residual)` over the last two dimensions; the dimensions before them
/// broadcast.
///
/// Operands: `a [..., m, k]`, `b [..., k, n]` (or `[..., n, k]`, see [`MatMul::transposed_b`]),
/// then `bias [n]` if [`MatMul::bias`], then a tensor of the result's shape if [`MatMul::residual`].
/// Result: `[..., m, n]`.
#[derive(Clone, Debug, PartialEq)]
pub struct MatMul {
    /// Whether `b` holds its columns as rows. This is ggml's order of a weight matrix.
    pub transposed_b: bool,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether a tensor is added before the activation; of f32 only.
    pub residual: bool,
    /// Applied last.
    pub activation: Activation,
}

impl Default for MatMul {
    fn default() -> Self {
        Self { transposed_b: false, bias: false, residual: false, activation: Activation::None }
    }
}

const OP: &str = "matmul";

/// Sizes of a product: `batch` is the broadcast of the leading dimensions.
pub(crate) struct Sizes {
    pub(crate) batch: Vec<usize>,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl MatMul {
    /// Which operand is the residual.
    fn residual_operand(&self) -> Option<usize> {
        self.residual.then_some(2 + usize::from(self.bias))
    }

    pub(crate) fn sizes(&self, a: &[usize], b: &[usize]) -> Result<Sizes, GraphError> {
        let mismatch = |rule| GraphError::mismatch(OP, rule, &[("a", a), ("b", b)]);
        let ([abatch @ .., m, k], [bbatch @ .., rows, cols]) = (a, b) else {
            return Err(mismatch("operands must have 2 or more dimensions"));
        };
        let (kb, n) = if self.transposed_b { (cols, rows) } else { (rows, cols) };
        if k != kb {
            return Err(mismatch("contraction lengths must be equal"));
        }
        let batch = broadcast(abatch, bbatch)
            .ok_or_else(|| mismatch("leading dimensions must broadcast"))?;
        Ok(Sizes { batch, m: *m, n: *n, k: *k })
    }
}

impl Operator for MatMul {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let count = 2 + usize::from(self.bias) + usize::from(self.residual);
        expect_operands(OP, src, count..=count, "a, b, bias and residual as flagged")?;
        let (a, b) = (&src[0], &src[1]);
        let known = matches!(
            a.dtype,
            DType::F32 | DType::F64 | DType::I32 | DType::I64 | DType::U32 | DType::U64
        );
        if let Some(bad) = src.iter().find(|s| s.dtype != a.dtype || !known) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        if (self.activation != Activation::None || self.residual) && a.dtype != DType::F32 {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: a.dtype });
        }
        let s = self.sizes(&a.dims, &b.dims)?;
        if self.bias && src[2].dims != [s.n] {
            return Err(GraphError::mismatch(
                OP,
                "the bias must have one element per column",
                &[("b", &b.dims), ("bias", &src[2].dims)],
            ));
        }
        let mut dims = s.batch;
        dims.extend([s.m, s.n]);
        if let Some(residual) = self.residual_operand().map(|i| &src[i].dims)
            && *residual != dims
        {
            let rule = "the residual must have the result's shape";
            return Err(GraphError::mismatch(OP, rule, &[("residual", residual), ("c", &dims)]));
        }
        Ok(Info::plain(a.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let s = self.sizes(src[0].dims, src[1].dims)?;
        let (ab, bb): (Broadcast, Broadcast) = batches(src[0].dims, src[1].dims, &s.batch);
        macro_rules! product {
            ($t:ty, $of:expr, $c:expr, $finish:expr) => {{
                let bias = if self.bias { Some($of(2)) } else { None };
                let (a, b) = ($of(0), $of(1));
                let added = self.residual_operand().map($of);
                for (i, row) in $c.chunks_exact_mut(s.n.max(1)).enumerate() {
                    let (p, r) = (i / s.m, i % s.m);
                    let a = &a[(ab.index(p) * s.m + r) * s.k..][..s.k];
                    let b = &b[bb.index(p) * s.k * s.n..][..s.k * s.n];
                    row_product::<$t>(a, b, self.transposed_b, row, |col, sum| {
                        let added = added.as_ref().map(|v| v[i * s.n + col]).unwrap_or_default();
                        $finish(sum, bias.as_ref().map(|v| v[col]).unwrap_or_default(), added)
                    });
                }
            }};
        }
        let count = dst.dims.iter().product();
        match dst.dtype {
            DType::F32 | DType::F64 => {
                let mut c = vec![0.0; count];
                let values = src.iter().map(|x| floats(x, OP)).collect::<Result<Vec<_>, _>>()?;
                let of = |i: usize| &values[i];
                let (activation, single) = (self.activation, dst.dtype == DType::F32);
                product!(f64, of, &mut c, |sum: f64, bias: f64, added: f64| {
                    let sum = sum + bias + added;
                    // Only f32 has activations.
                    if single { super::unary::activate(activation, sum as f32).into() } else { sum }
                });
                write_floats(dst, OP, c)
            }
            // What wraps around has the same low bits in all widths, with and without a sign.
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                let mut c = vec![0; count];
                let values = src.iter().map(|x| low_bits(x, OP)).collect::<Result<Vec<_>, _>>()?;
                let of = |i: usize| &values[i];
                product!(i64, of, &mut c, |sum: i64, bias, _| sum.wrapping_add(bias));
                write_low_bits(dst, OP, &c)
            }
            dtype => Err(GraphError::UnsupportedDType { op: OP, dtype }),
        }
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (a, b) = (&cx.src[0].dims, &cx.src[1].dims);
        let s = self.sizes(a, b)?;
        let bias_known = !self.bias || cx.values[2].is_some();
        if cx.dst.dtype != DType::F32 || s.k == 0 || !bias_known {
            return Ok(None);
        }
        let constant = cx.values[1].is_some() && b.len() == 2;
        // One B for all: the products are one tall product.
        let rows = if constant { s.batch.iter().product::<usize>() * s.m } else { s.m };
        let mut params = MatmulParams::new(rows, s.k, s.n)
            .epilogue(Epilogue { activation: self.activation, residual: self.residual });
        if self.transposed_b {
            params = params.b_transposed();
        }
        let plan = cx.tuned(
            &Workload::matmul(&params),
            |choice| MatmulPlan::with_choice(cx.isa, &params, choice),
            || MatmulPlan::for_rows(cx.isa, &params, constant),
        )?;
        let bias = if self.bias {
            cx.pack_f32(2, "bias", plan.bias_len(), &|from, to| Ok(plan.pack_bias(from, to)?))?
        } else {
            Arc::new(AlignedBytes::zeroed(plan.bias_len() * size_of::<f32>())?)
        };
        if constant {
            // The packed form depends on the width of the panels only.
            let width = plan.choice().tile[2];
            let format = format!("matmul {} x{width} t{}", cx.isa.name(), self.transposed_b);
            let weights = cx.pack_f32(1, &format, plan.weights_len(), &|from, to| {
                Ok(plan.pack_weights(from, to)?)
            })?;
            return Ok(Some(Box::new(Packed {
                plan,
                weights,
                bias,
                residual: self.residual_operand(),
            })));
        }
        let (ab, bb) = batches(a, b, &s.batch);
        let offsets = (0..s.batch.iter().product())
            .map(|p| (ab.index(p) * s.m * s.k, bb.index(p) * s.k * s.n, p * s.m * s.n))
            .collect();
        Ok(Some(Box::new(Batched { plan, bias, offsets, residual: self.residual_operand() })))
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let k = src[0].dims.last().copied().unwrap_or(0);
        dst.elements() as u64 * k as u64
    }
}

/// Which matrix of `a` and of `b` each product takes.
pub(super) fn batches(a: &[usize], b: &[usize], batch: &[usize]) -> (Broadcast, Broadcast) {
    (Broadcast::new(&a[..a.len() - 2], batch), Broadcast::new(&b[..b.len() - 2], batch))
}

/// `c [n] = a [k] * b`, where `b` is `[k, n]`, or `[n, k]` if transposed; `finish` makes of a column
/// and its sum what is stored. Each sum is added up in the order of k, however many there are at once.
fn row_product<T: MultiplyAdd>(
    a: &[T],
    b: &[T],
    transposed: bool,
    c: &mut [T],
    finish: impl Fn(usize, T) -> T,
) {
    let n = c.len();
    let mut col = 0;
    macro_rules! columns {
        ($($width:literal)*) => { $(while n - col >= $width {
            let sums: [T; $width] = if transposed {
                let columns: [&[T]; $width] =
                    array::from_fn(|w| &b[(col + w) * a.len()..][..a.len()]);
                sums(a, |k| columns.map(|column| column[k]))
            } else {
                sums(a, |k| {
                    let row = &b[k * n + col..][..$width];
                    array::from_fn(|w| row[w])
                })
            };
            for (w, sum) in sums.into_iter().enumerate() {
                c[col + w] = finish(col + w, sum);
            }
            col += $width;
        })* };
    }
    // The usual networks have no such products but of a number or two.
    if cfg!(feature = "ops-more") {
        columns!(8);
    }
    columns!(1);
}

/// Sums over `k` of `a[k]` times each element of `b(k)`: so many at once as additions take cycles.
fn sums<T: MultiplyAdd, const N: usize>(a: &[T], b: impl Fn(usize) -> [T; N]) -> [T; N] {
    let mut sums = [T::default(); N];
    for (k, &a) in a.iter().enumerate() {
        for (sum, b) in sums.iter_mut().zip(b(k)) {
            *sum = sum.multiply_add(a, b);
        }
    }
    sums
}

/// Accumulation that wraps for integers.
trait MultiplyAdd: Copy + Default {
    fn multiply_add(self, a: Self, b: Self) -> Self;
}

impl MultiplyAdd for f64 {
    fn multiply_add(self, a: Self, b: Self) -> Self {
        self + a * b
    }
}

impl MultiplyAdd for i64 {
    fn multiply_add(self, a: Self, b: Self) -> Self {
        self.wrapping_add(a.wrapping_mul(b))
    }
}

/// A product with a constant `b`, packed ahead.
struct Packed {
    plan: MatmulPlan,
    weights: Arc<AlignedBytes>,
    bias: Arc<AlignedBytes>,
    /// The operand that is added.
    residual: Option<usize>,
}

impl Step for Packed {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn scratch_bytes(&self) -> usize {
        self.plan.scratch_len() * size_of::<f32>()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0 || Some(i) == self.residual
    }

    fn workload(&self) -> Option<Workload> {
        Some(Workload::matmul(self.plan.params()))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (weights, bias) = (self.weights.as_ptr().cast(), self.bias.as_ptr().cast());
        // SAFETY: the plan was made for the operands' extents and packed weights and bias itself,
        // so every buffer has the length it asks for, scratch too; units and CPU are as the caller
        // promises.
        unsafe {
            let (a, c, scratch) = (src[0].cast(), dst.cast(), scratch.cast());
            let residual = self.residual.map_or(ptr::null(), |i| src[i].cast());
            self.plan.run(a, weights, bias, residual, c, scratch, units);
        }
        Ok(())
    }
}

/// Products whose `b` is known only at run time. A unit of a product packs the part of `b` that it
/// needs into the thread's scratch memory.
struct Batched {
    plan: MatmulPlan,
    bias: Arc<AlignedBytes>,
    /// Elements from the start of a, b and the result to those of each product.
    offsets: Vec<(usize, usize, usize)>,
    /// The operand that is added.
    residual: Option<usize>,
}

impl Step for Batched {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.offsets.len() * self.plan.units()
    }

    fn scratch_bytes(&self) -> usize {
        self.plan.plain_scratch_len() * size_of::<f32>()
    }

    fn reads(&self, i: usize) -> bool {
        i < 2 || Some(i) == self.residual
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (bias, scratch) = (self.bias.as_ptr().cast(), scratch.cast());
        let each = self.plan.units();
        let mut unit = units.start;
        while unit < units.end {
            let (a, b, c) = self.offsets[unit / each];
            let first = unit - unit % each;
            let part = unit - first..each.min(units.end - first);
            unit += part.len();
            // SAFETY: the offsets lead to whole matrices inside operands and result; scratch is
            // this thread's own and has the length the plan asks for; results of products do not
            // overlap, nor do those of units.
            unsafe {
                let a = src[0].cast::<f32>().add(a);
                let b = src[1].cast::<f32>().add(b);
                let residual = self.residual.map_or(ptr::null(), |i| src[i].cast::<f32>().add(c));
                let c = dst.cast::<f32>().add(c);
                self.plan.run_plain(a, b, bias, residual, c, scratch, part);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn product(op: MatMul, a: (&[usize], &[f32]), b: (&[usize], &[f32])) -> (Vec<usize>, Vec<f32>) {
        let mut cx = Context::new();
        let a = cx.constant(Tensor::from_slice(a.0, a.1).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(b.0, b.1).unwrap()).unwrap();
        let y = cx.op(op, &[a, b]).unwrap();
        let value = cx.constant_value(y).unwrap();
        (value.dims(), value.as_slice::<f32>().unwrap().to_vec())
    }

    #[test]
    fn products_by_hand() {
        let a: (&[usize], &[f32]) = (&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
        let b: (&[usize], &[f32]) = (&[2, 2], &[5.0, 6.0, 7.0, 8.0]);
        assert_eq!(product(MatMul::default(), a, b).1, [19.0, 22.0, 43.0, 50.0]);
        let t = MatMul { transposed_b: true, ..MatMul::default() };
        assert_eq!(product(t, a, b).1, [17.0, 23.0, 39.0, 53.0]);
    }

    #[test]
    fn leading_dimensions_broadcast() {
        let a: Vec<f32> = (0..4).map(|v| v as f32).collect();
        let (dims, y) = product(
            MatMul::default(),
            (&[2, 1, 1, 2], &a),
            (&[3, 2, 1], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0]),
        );
        assert_eq!(dims, [2, 3, 1, 1]);
        assert_eq!(y, [0.0, 1.0, 1.0, 2.0, 3.0, 5.0]);
    }

    #[test]
    fn bias_residual_and_activation() {
        let mut cx = Context::new();
        let mut constant =
            |dims: &[usize], x: &[f32]| cx.constant(Tensor::from_slice(dims, x).unwrap()).unwrap();
        let (a, b) = (constant(&[2, 1], &[1.0, -1.0]), constant(&[1, 2], &[3.0, 4.0]));
        let (bias, added) =
            (constant(&[2], &[10.0, 20.0]), constant(&[2, 2], &[1.0, 2.0, -9.0, 4.0]));
        let op = MatMul {
            bias: true,
            residual: true,
            activation: Activation::Relu,
            ..MatMul::default()
        };
        let y = cx.op(op.clone(), &[a, b, bias, added]).unwrap();
        let y = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
        assert_eq!(y, [14.0, 26.0, 0.0, 20.0]);
        assert!(cx.op(op, &[a, b, bias, bias]).is_err());
    }

    #[test]
    fn products_that_no_kernel_computes() {
        // All widths of columns, and what has no columns, rows or terms.
        let cases = [(3, 5, 37), (2, 4, 16), (1, 3, 7), (2, 0, 5), (0, 2, 3), (2, 2, 0)];
        for ((m, k, n), transposed_b) in cases.into_iter().flat_map(|c| [(c, false), (c, true)]) {
            let value = |i: usize, by: usize| (i * by % 23) as f64 - 11.0;
            let a: Vec<f64> = (0..m * k).map(|i| value(i, 7)).collect();
            let b: Vec<f64> = (0..k * n).map(|i| value(i, 5)).collect();
            let bias: Vec<f64> = (0..n).map(|i| value(i, 3)).collect();
            let mut cx = Context::new();
            let b_dims = if transposed_b { [n, k] } else { [k, n] };
            let src = [
                cx.constant(Tensor::from_slice(&[m, k], &a).unwrap()).unwrap(),
                cx.constant(Tensor::from_slice(&b_dims, &b).unwrap()).unwrap(),
                cx.constant(Tensor::from_slice(&[n], &bias).unwrap()).unwrap(),
            ];
            let y = cx.op(MatMul { transposed_b, bias: true, ..MatMul::default() }, &src).unwrap();
            let expected: Vec<f64> = (0..m * n)
                .map(|i| {
                    let (row, col) = (i / n, i % n);
                    let at = |t: usize| if transposed_b { col * k + t } else { t * n + col };
                    let sum = (0..k).fold(0.0, |sum, t| sum + a[row * k + t] * b[at(t)]);
                    sum + bias[col]
                })
                .collect();
            let y = cx.constant_value(y).unwrap().as_slice::<f64>().unwrap();
            assert_eq!(y, expected, "{m} x {k} x {n}, transposed {transposed_b}");
        }
    }

    #[test]
    fn contraction_must_agree() {
        let mut cx = Context::new();
        let a = cx.input("a", DType::F32, &[2, 3]).unwrap();
        let b = cx.input("b", DType::F32, &[2, 3]).unwrap();
        let text = cx.op(MatMul::default(), &[a, b]).unwrap_err().to_string();
        assert!(text.contains("matmul") && text.contains("[2, 3]"), "{text}");
    }
}
