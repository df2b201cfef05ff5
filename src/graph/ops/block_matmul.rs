//! Products with weights as language models store them: block-quantised, or f16, bf16 and f32.

use core::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use tilewright_kernels::{BlockMatmulParams, BlockMatmulPlan, BlockOperands};

use super::embedding::{dequantize_row, has_rows};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::block::format;
use crate::tensor::{AlignedBytes, DType, Storage, Tensor};

/// `x * w^T + bias` with one row of weights per column of the result.
///
/// Operands: `x [m, k]` of f32; `w [n, k]` of f32, f16, bf16 or a block-quantised type; then
/// `bias [n]` of f32 if [`BlockMatMul::bias`]. Result: `[m, n]` of f32.
///
/// Kernels may round the activations to blocks of 8 bits, but for floats and [`DType::U4`]; the reference does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockMatMul {
    /// Whether there is a bias.
    pub bias: bool,
}

const OP: &str = "block_matmul";

impl Operator for BlockMatMul {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        let count = 2 + usize::from(self.bias);
        expect_operands(OP, src, count..=count, "x, weights and a bias as flagged")?;
        let (x, w) = (&src[0], &src[1]);
        let floats = [0, 2].into_iter().filter_map(|i| src.get(i));
        if let Some(bad) = floats.into_iter().find(|s| s.dtype != DType::F32) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        if !has_rows(w.dtype) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: w.dtype });
        }
        let mismatch = |rule| GraphError::mismatch(OP, rule, &[("x", &x.dims), ("w", &w.dims)]);
        let (&[m, k], &[n, kw]) = (&x.dims[..], &w.dims[..]) else {
            return Err(mismatch("operands must have 2 dimensions"));
        };
        if k != kw {
            return Err(mismatch("contraction lengths must be equal"));
        }
        if let Some(bias) = src.get(2).filter(|b| b.dims != [n]) {
            let rule = "the bias must have one element per row of weights";
            return Err(GraphError::mismatch(OP, rule, &[("w", &w.dims), ("bias", &bias.dims)]));
        }
        Ok(Info::plain(DType::F32, vec![m, n]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (n, k) = (src[1].dims[0], src[1].dims[1]);
        let x = src[0].slice::<f32>(OP)?;
        let bias = src.get(2).map(|b| b.slice::<f32>(OP)).transpose()?;
        let y = dst.slice::<f32>(OP)?;
        let mut row = vec![0f32; k];
        for col in 0..n {
            dequantize_row(src[1].dtype, src[1].bytes, col, &mut row)?;
            for (i, y) in y.iter_mut().skip(col).step_by(n).enumerate() {
                *y = dot(&x[i * k..][..k], &row, bias.map_or(0.0, |b| b[col]));
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (&[m, k], n) = (&cx.src[0].dims[..], cx.src[1].dims[0]) else {
            return Ok(None);
        };
        let (Some(format), Some(source)) = (format(cx.src[1].dtype), cx.values[1]) else {
            return Ok(None);
        };
        if k == 0 {
            return Ok(None);
        }
        let params =
            BlockMatmulParams { bias: self.bias, ..BlockMatmulParams::new(m, n, k, format) };
        let (plan, weights) = ready(cx, source, &params, 1)?;
        Ok(Some(Box::new(Product { plan: Arc::new(plan), weights })))
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        let k = src[0].dims.last().copied().unwrap_or(0);
        (dst.elements() as u64).saturating_mul(k as u64)
    }
}

/// The plan of a product, and operand 1 as it takes it: `source`, which is one behind the other the weights of so many
/// products with the same parameters.
pub(super) fn ready(
    cx: &LowerCx<'_>,
    source: &Tensor,
    params: &BlockMatmulParams,
    products: usize,
) -> Result<(BlockMatmulPlan, Weights), GraphError> {
    if cx.cache.is_in_place() {
        let plan = BlockMatmulPlan::in_place(cx.isa, params)?;
        return Ok((plan, Weights::File(source.clone())));
    }
    let plan = BlockMatmulPlan::new(cx.isa, params)?;
    let key = format!("block {} {}", cx.isa.name(), params.format.name());
    let each = plan.packed_bytes();
    let weights = cx.pack(1, &key, each.saturating_mul(products), &|source, packed| {
        let source = source.storage();
        let bytes = source.len() / products.max(1);
        for (i, packed) in packed.chunks_exact_mut(each).enumerate() {
            pack(&plan, (source, i * bytes), packed, cx.threads)?;
        }
        Ok(())
    })?;
    Ok((plan, Weights::Packed(weights)))
}

/// A sum of products, and more, in double precision.
pub(super) fn dot(x: &[f32], w: &[f32], more: f32) -> f32 {
    let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
    (sum + f64::from(more)) as f32
}

/// Bytes of weights that are worth a thread, and that are read from a file at a time.
const PACK: usize = 1 << 20;
const READ: usize = 256 << 10;

/// Packs all panels, on several threads where there are many. `source` is where they are, and from which byte on.
fn pack(
    plan: &BlockMatmulPlan,
    source: (&Storage, usize),
    packed: &mut [u8],
    threads: usize,
) -> Result<(), GraphError> {
    let threads = threads.min(packed.len() / PACK).max(1);
    let each = plan.panels().div_ceil(threads);
    let parts: Vec<_> = packed.chunks_mut(each * plan.panel_bytes()).enumerate().collect();
    let parts = Mutex::new(parts);
    let share = || {
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).pop();
        core::iter::from_fn(next)
            .try_for_each(|(i, packed)| pack_part(plan, source, packed, i * each))
    };
    std::thread::scope(|scope| {
        // Without a helper there is more to do for the others.
        let helpers: Vec<_> =
            (1..threads).filter_map(|_| crate::spawn::scoped(scope, share).ok()).collect();
        let result = share();
        helpers.into_iter().fold(result, |result, helper| {
            result.and(helper.join().expect("packing does not panic"))
        })
    })
}

/// Packs panels from `first` on, a few at a time, so that what is read of them stays in a cache.
fn pack_part(
    plan: &BlockMatmulPlan,
    (source, from): (&Storage, usize),
    packed: &mut [u8],
    first: usize,
) -> Result<(), GraphError> {
    let (rows, bytes, source_bytes) = (plan.panel_rows(), plan.panel_bytes(), plan.source_bytes());
    let each = (READ / bytes).max(1);
    let mut buffer = vec![0; each * source_bytes];
    for (i, packed) in packed.chunks_mut(each * bytes).enumerate() {
        let panels = first + i * each..first + i * each + packed.len() / bytes;
        let count = (panels.end * rows).min(plan.params().n) - panels.start * rows;
        let part = &mut buffer[..count * plan.row_bytes()];
        source.read_at(from + panels.start * source_bytes, part)?;
        plan.pack(panels, part, packed)?;
    }
    Ok(())
}

/// Weights as a plan takes them.
pub(super) enum Weights {
    Packed(Arc<AlignedBytes>),
    /// As they lie in their file, however they are aligned there.
    File(Tensor),
}

impl Weights {
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self {
            Self::Packed(packed) => packed.as_ptr(),
            Self::File(source) => source.bytes().as_ptr(),
        }
    }
}

/// Runs a plan. Its activations are quantised by the step before.
struct Product {
    plan: Arc<BlockMatmulPlan>,
    weights: Weights,
}

impl Step for Product {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn scratch_bytes(&self) -> usize {
        self.plan.scratch_len() * size_of::<f32>()
    }

    // The step before reads the activations.
    fn reads(&self, i: usize) -> bool {
        i != 1
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let bytes = self.plan.workspace_len() * size_of::<f32>();
        Some((Box::new(Prepare(self.plan.clone())), bytes))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let operands = BlockOperands {
            weights: self.weights.as_ptr(),
            bias: src[2].cast(),
            // What the step before wrote is behind the operands.
            workspace: src[src.len() - 1].cast(),
            scratch: scratch.cast(),
            y: dst.cast(),
        };
        // SAFETY: the plan was made for operands and result, and packed the weights itself or takes them
        // as they are, `n` rows of whole blocks; the step before has written all of the workspace;
        // scratch memory is as large as the plan asks for; units and CPU are as the caller promises.
        unsafe { self.plan.run(&operands, units) };
        Ok(())
    }
}

/// Brings the activations into the form that the kernel reads.
struct Prepare(Arc<BlockMatmulPlan>);

impl Step for Prepare {
    fn kernel(&self) -> String {
        "quantize_rows".to_owned()
    }

    fn shared(&self) -> Option<String> {
        Some(format!("{:?}", self.0.workspace_form()))
    }

    fn units(&self) -> usize {
        self.0.prepare_units()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the operand is the plan's, the result as large as it asks for; the rest is as the
        // caller promises.
        unsafe { self.0.prepare(src[0].cast(), dst.cast(), units) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;

    fn product(src: &[Tensor]) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let ids: Vec<_> = src.iter().map(|t| cx.constant(t.clone())).collect::<Result<_, _>>()?;
        let y = cx.op(BlockMatMul { bias: src.len() > 2 }, &ids)?;
        Ok(cx.constant_value(y).unwrap().as_slice().unwrap().to_vec())
    }

    #[test]
    fn rows_of_weights_become_columns() {
        let x = Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0]).unwrap();
        let w = Tensor::from_slice(&[3, 2], &[1f32, 0.0, 0.0, 1.0, 1.0, -1.0]).unwrap();
        let want = [1.0, 2.0, -1.0, 3.0, 4.0, -1.0];
        assert_eq!(product(&[x.clone(), w.clone()]).unwrap(), want);
        let bias = Tensor::from_slice(&[3], &[10f32, 20.0, 30.0]).unwrap();
        let want = [11.0, 22.0, 29.0, 13.0, 24.0, 29.0];
        assert_eq!(product(&[x.clone(), w.clone(), bias]).unwrap(), want);
        let short = Tensor::from_slice(&[2], &[10f32, 20.0]).unwrap();
        assert!(product(&[x, w.clone(), short]).is_err());
        assert!(product(&[w.clone(), Tensor::from_slice(&[1, 3], &[0f32; 3]).unwrap()]).is_err());
    }

    #[test]
    fn blocks_are_their_values() {
        let block: Vec<u8> = half::f16::from_f32(0.25)
            .to_le_bytes()
            .into_iter()
            .chain((0..32).map(|q| q * 3))
            .collect();
        let w = Tensor::from_bytes(DType::Q8_0, &[1, 32], &block).unwrap();
        let x = Tensor::from_slice(&[1, 32], &[2f32; 32]).unwrap();
        let want: f32 = (0..32u8).map(|q| f32::from((q * 3) as i8) * 0.5).sum();
        assert_eq!(product(&[x, w]).unwrap(), [want]);
    }
}
