//! Causal convolution along positions, over a cache of the last ones.

use core::ops::Range;
use core::slice;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use tilewright_kernels::{Isa, TapsParams, TapsPlan};

use super::elements::expect_dtype;
use super::kv_attention::check_run;
use super::{Operator, expect_operands};
use crate::graph::kv_cache::{KvCache, KvShape};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Stores rows of new positions in a cache, then convolves each column with taps of its own over the
/// positions up to each row's (the short convolution of LFM2, Liquid AI 2025).
///
/// Operands: `x [m, width]` of f32, weights `[taps, width]` of f32, the last row for the own position,
/// positions `[m]` of `i32`, one behind the other. Before position 0 there are zeros. Result: `[m, width]`
/// of f32.
///
/// The cache keeps as many of the last rows as it has capacity, at least `taps`. To go on from an earlier
/// position, the rows that its taps reach must be among them; if they are not, it is an error.
#[derive(Clone, Debug, PartialEq)]
pub struct KvConv {
    /// Rows of this layer: of f32, keys of one head of `width + 1` elements without values. The first
    /// element says of which position a row is.
    pub cache: Arc<KvCache>,
}

const OP: &str = "kv_conv";

impl KvConv {
    /// Brings the rows that the taps of the first position reach, those before position 0 as zeros; then keeps
    /// the rows of `x` that the cache has room for.
    fn keep(
        &self,
        rows: &mut [f32],
        x: &[f32],
        positions: &[i32],
        before: &mut [f32],
    ) -> Result<(), GraphError> {
        if positions.is_empty() {
            return Ok(());
        }
        let first = check_run(OP, positions)?;
        let KvShape { key_size: stride, capacity, .. } = *self.cache.shape();
        let width = (stride - 1).max(1);
        // What a row of this position begins with; one that was never written begins with 0.
        let mark = |position: usize| position as u32 + 1;
        for (back, to) in before.chunks_exact_mut(width).rev().enumerate() {
            let Some(at) = first.checked_sub(back + 1) else {
                to.fill(0.0);
                continue;
            };
            let row = &rows[at % capacity * stride..][..stride];
            if row[0].to_bits() != mark(at) {
                let what = format!("position {first} behind {at}, which is no longer kept");
                return Err(GraphError::Unsupported { op: OP, what });
            }
            to.copy_from_slice(&row[1..]);
        }
        let gone = positions.len().saturating_sub(capacity);
        for (i, x) in x.chunks_exact(width).enumerate().skip(gone) {
            let row = &mut rows[(first + i) % capacity * stride..][..stride];
            row[0] = f32::from_bits(mark(first + i));
            row[1..].copy_from_slice(x);
        }
        Ok(())
    }
}

impl Operator for KvConv {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=3, "x, weights and positions")?;
        expect_dtype(OP, &src[0], |d| d == DType::F32)?;
        expect_dtype(OP, &src[1], |d| d == DType::F32)?;
        expect_dtype(OP, &src[2], |d| d == DType::I32)?;
        let KvShape { heads, key_size, value_size, capacity, dtype } = *self.cache.shape();
        let kept = (heads, value_size, dtype) == (1, 0, DType::F32);
        let fits = match (&src[0].dims[..], &src[1].dims[..], &src[2].dims[..]) {
            (&[m, width], &[taps, columns], &[positions]) => {
                let kept = kept && key_size.checked_sub(1) == Some(width);
                m == positions && width == columns && (1..=capacity).contains(&taps) && kept
            }
            _ => false,
        };
        if !fits {
            let rule =
                "x must have a row per position, the cache such rows for all taps of each column";
            let cache = [heads, capacity, key_size, value_size];
            let names = ["x", "weights", "positions", "cache"];
            let dims = src.iter().map(|s| &s.dims[..]).chain([&cache[..]]);
            let shapes: Vec<_> = names.into_iter().zip(dims).collect();
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(DType::F32, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let [x, weights] = [0, 1].map(|i: usize| cast_slice::<u8, f32>(src[i].bytes));
        let [taps, width] = [src[1].dims[0], src[1].dims[1]];
        let mut before = vec![0.0; (taps - 1) * width];
        let mut memory = self.cache.lock();
        let rows = cast_slice_mut::<u8, f32>(&mut memory);
        self.keep(rows, x, cast_slice(src[2].bytes), &mut before)?;
        let params = TapsParams { rows: src[0].dims[0], taps, width };
        let plan = TapsPlan::new(Isa::Scalar, &params)?;
        Ok(plan.compute(&before, x, weights, cast_slice_mut(dst.bytes))?)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (&[rows, width], taps) = (&cx.dst.dims[..], cx.src[1].dims[0]) else { return Ok(None) };
        if rows * width == 0 {
            return Ok(None);
        }
        let params = TapsParams { rows, taps, width };
        let plan = TapsPlan::new(cx.isa, &params)?;
        Ok(Some(Box::new(Convolve { plan, params, op: self.clone() })))
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        (dst.elements() as u64).saturating_mul(src[1].dims[0] as u64)
    }
}

/// Brings the rows before the first one, and keeps the last ones.
struct Keep {
    params: TapsParams,
    op: KvConv,
}

impl Step for Keep {
    fn kernel(&self) -> String {
        "rows".to_owned()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let TapsParams { rows, taps, width } = self.params;
        let mut memory = self.op.cache.lock();
        // SAFETY: operands and result have these lengths, since the step was made for them, and nobody else
        // has the result meanwhile.
        let (x, positions, before) = unsafe {
            let x = slice::from_raw_parts(src[0].cast(), rows * width);
            let before = slice::from_raw_parts_mut(dst.cast(), (taps - 1) * width);
            (x, slice::from_raw_parts(src[2].cast(), rows), before)
        };
        self.op.keep(cast_slice_mut::<u8, f32>(&mut memory), x, positions, before)
    }
}

/// The convolution behind it. Operands: x, weights, positions, the rows before.
struct Convolve {
    plan: TapsPlan,
    params: TapsParams,
    op: KvConv,
}

impl Step for Convolve {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        let keep = Keep { params: self.params, op: self.op.clone() };
        let bytes = self.plan.operand_len(0) * size_of::<f32>();
        Some((Box::new(keep), bytes.max(1)))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let operands = [src[3].cast(), src[0].cast(), src[1].cast()];
        // SAFETY: the plan was made for the sizes of the operands, and the step before it has brought its
        // rows; units are as the caller of this function promises.
        unsafe { self.plan.run(operands, dst.cast(), units) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::{Context, ops::Op};
    use crate::tensor::Tensor;

    fn cache(capacity: usize) -> Arc<KvCache> {
        let dtype = DType::F32;
        let shape = KvShape { heads: 1, key_size: 3, value_size: 0, capacity, dtype };
        Arc::new(KvCache::new(shape).unwrap())
    }

    fn convolve(
        cache: &Arc<KvCache>,
        x: &[f32],
        positions: &[i32],
    ) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let ids = [
            cx.constant(Tensor::from_slice(&[x.len() / 2, 2], x)?)?,
            cx.constant(Tensor::from_slice(&[3, 2], &[1.0f32, 0.0, 10.0, 2.0, 100.0, -1.0])?)?,
            cx.constant(Tensor::from_slice(&[positions.len()], positions)?)?,
        ];
        let y = cx.op(Op::from(KvConv { cache: cache.clone() }), &ids)?;
        Ok(cx.constant_value(y).unwrap().as_slice::<f32>()?.to_vec())
    }

    #[test]
    fn positions_see_those_before_them_and_what_the_cache_kept() {
        for capacity in [3, 4, 100] {
            let cache = cache(capacity);
            let y = convolve(&cache, &[1.0, 5.0, 2.0, 6.0], &[0, 1]).unwrap();
            assert_eq!(y, [100.0, -5.0, 210.0, 4.0]);
            assert_eq!(convolve(&cache, &[3.0, 7.0], &[2]).unwrap(), [321.0, 5.0]);
            // Going back to position 1 forgets what was behind it.
            assert_eq!(convolve(&cache, &[9.0, 1.0], &[1]).unwrap(), [910.0, 9.0]);
            assert_eq!(convolve(&cache, &[0.0, 0.0], &[2]).unwrap(), [91.0, 2.0]);
            let y = convolve(&cache, &[1.0; 20], &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).unwrap();
            assert_eq!(y[..4], [109.0, -1.0, 110.0, 1.0]);
            assert!(y[4..].chunks_exact(2).all(|y| y == [111.0, 1.0]), "{y:?}");
            // Rows that others took the place of.
            let back = convolve(&cache, &[1.0; 2], &[5]);
            match capacity {
                100 => assert_eq!(back.unwrap(), [111.0, 1.0]),
                _ => assert!(back.unwrap_err().to_string().contains("no longer kept")),
            }
            assert_eq!(convolve(&cache, &[2.0, 0.0], &[0]).unwrap(), [200.0, 0.0]);
            let odd = convolve(&cache, &[f32::NAN, 0.0], &[1]).unwrap();
            assert!(odd[0].is_nan() && !odd[1].is_nan());
        }
    }

    #[test]
    fn bad_positions_and_shapes_are_refused() {
        for position in [i32::MAX, -1, i32::MIN] {
            let e = convolve(&cache(4), &[0.0; 2], &[position]).unwrap_err();
            assert!(matches!(e, GraphError::IndexOutOfRange { op: OP, .. }), "{e}");
        }
        assert!(convolve(&cache(4), &[0.0; 4], &[1]).is_err());
        let e = convolve(&cache(2), &[0.0; 2], &[0]).unwrap_err();
        assert!(e.to_string().contains("cache [1, 2, 3, 0]"), "{e}");
        // Nothing was written of what comes before.
        assert!(convolve(&cache(4), &[0.0; 2], &[1]).is_err());
    }

    #[test]
    fn kernels_agree_with_the_reference_however_a_text_is_cut() {
        let x: Vec<f32> = (0..2 * 90).map(|i| ((i * 7919) % 251) as f32 / 125.0 - 1.0).collect();
        let positions: Vec<i32> = (0..90).collect();
        let whole = convolve(&cache(100), &x, &positions).unwrap();
        let run = |isa: Isa, cache: &Arc<KvCache>, positions: &[i32]| {
            let rows = positions[0].max(0) as usize..positions[0].max(0) as usize + positions.len();
            let x = Tensor::from_slice(&[rows.len(), 2], &x[2 * rows.start..2 * rows.end]).unwrap();
            let positions = Tensor::from_slice(&[rows.len()], positions).unwrap();
            let mut cx = Context::new();
            let weights = Tensor::from_slice(&[3, 2], &[1.0f32, 0.0, 10.0, 2.0, 100.0, -1.0])?;
            let src = [
                cx.input("x", DType::F32, &x.dims())?,
                cx.constant(weights)?,
                cx.input("positions", DType::I32, &positions.dims())?,
            ];
            let y = cx.op(Op::from(KvConv { cache: cache.clone() }), &src)?;
            let mut executor = Executor::new(isa, 2).unwrap();
            let plan = executor.plan(&mut cx, &[y]).unwrap();
            let y = executor.run(&plan, &[&x, &positions], None)?;
            Ok::<_, GraphError>(y[0].as_slice::<f32>()?.to_vec())
        };
        for isa in Isa::available() {
            for (capacity, cuts) in [(3, &[90][..]), (3, &[1, 1, 70, 1, 17]), (64, &[80, 1, 9])] {
                let (cache, mut all) = (cache(capacity), Vec::new());
                for &count in cuts {
                    let first = all.len() / 2;
                    all.extend(run(isa, &cache, &positions[first..first + count]).unwrap());
                }
                for (i, (a, b)) in all.iter().zip(&whole).enumerate() {
                    assert!((a - b).abs() < 1e-4, "{isa} {cuts:?} {i}: {a} {b}");
                }
                let e = run(isa, &cache, &positions[3..4]).unwrap_err().to_string();
                assert!(e.contains("no longer kept"), "{e}");
                assert!(run(isa, &cache, &[0, 2]).is_err() && run(isa, &cache, &[-1]).is_err());
            }
        }
    }
}
