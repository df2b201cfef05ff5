//! Attention by a matrix per head that each token corrects or adds to, kept from one run to the next.

use core::ops::Range;
use core::slice;
use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use tilewright_kernels::{DeltaOperands, DeltaParams, DeltaPlan, DeltaRule, Isa};

use super::elements::expect_dtype;
use super::kv_attention::check_run;
use super::{Operator, expect_operands};
use crate::graph::kv_cache::{KvCache, KvShape};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// The gated delta rule (Yang et al. 2024) or that of Mamba-2 (Dao and Gu 2024) over a state: each token scales the
/// matrix of each head by a decay, adds to it a share of what differs from the token's value, or of that, and reads
/// the result for its query.
///
/// Operands of f32: queries and keys `[m, key_heads * dk]`, values `[m, heads * dv]`, decay and rate `[m, heads]`;
/// then positions `[m]` of `i32`, one behind the other. Which heads of values have which keys is part of the rule.
/// Result: `[m, heads * dv]` of f32. Matrices are 0 before position 0.
///
/// The state is that behind the last position that was computed. To go on from any other than position 0 is an
/// error.
#[derive(Clone, Debug, PartialEq)]
pub struct KvDelta {
    /// What tokens add.
    pub rule: DeltaRule,
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// The matrices, as [`KvDelta::shape`] says.
    pub cache: Arc<KvCache>,
}

const OP: &str = "kv_delta";

/// Numbers before the matrix of a head, of which the first has as its bits how many positions the matrix knows.
const HEADER: usize = 16;

impl KvDelta {
    /// The cache of so many heads with matrices for keys and values of these sizes.
    pub fn shape(heads: usize, key_size: usize, value_size: usize) -> KvShape {
        let sizes = DeltaParams {
            rule: DeltaRule::Corrected,
            tokens: 0,
            heads,
            key_heads: 1,
            keys: key_size,
            values: value_size,
            stride: 0,
        };
        let key_size = sizes.matrix().saturating_add(HEADER);
        KvShape { heads, key_size, value_size: 0, capacity: 1, dtype: DType::F32 }
    }

    fn params(&self, src: &[&[usize]]) -> Option<DeltaParams> {
        let (&[tokens, q], &[_, v]) = (src[0], src[2]) else { return None };
        let KvShape { heads, key_size: stride, .. } = *self.cache.shape();
        let Self { rule, key_heads, .. } = *self;
        let whole = |n: usize, by: usize| if n.checked_rem(by)? == 0 { Some(n / by) } else { None };
        let (keys, values) = (whole(q, key_heads)?, whole(v, heads)?);
        let fits = *self.cache.shape() == Self::shape(heads, keys, values)
            && heads.is_multiple_of(key_heads)
            && src[1] == src[0]
            && [src[3], src[4]].iter().all(|dims| **dims == [tokens, heads])
            && (src[2][0], src[5]) == (tokens, &[tokens]);
        fits.then_some(DeltaParams { rule, tokens, heads, key_heads, keys, values, stride })
    }

    /// Brings the matrix of a head to what it is before the first of these positions, and says that it is behind
    /// the last one.
    fn begin(&self, memory: &mut [f32], positions: &[i32]) -> Result<(), GraphError> {
        let (mark, matrix) = memory.split_at_mut(HEADER);
        let (first, known) = (check_run(OP, positions)?, mark[0].to_bits() as usize);
        if first == 0 {
            matrix.fill(0.0);
        } else if first != known {
            let what = format!("position {first} behind {known} positions");
            return Err(GraphError::Unsupported { op: OP, what });
        }
        // Positions are below 2^31.
        mark[0] = f32::from_bits((first + positions.len()) as u32);
        Ok(())
    }
}

impl Operator for KvDelta {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 6..=6, "q, k, v, decay, rate and positions")?;
        src[..5].iter().try_for_each(|s| expect_dtype(OP, s, |d| d == DType::F32))?;
        expect_dtype(OP, &src[5], |d| d == DType::I32)?;
        let dims: Vec<&[usize]> = src.iter().map(|s| &s.dims[..]).collect();
        if self.params(&dims).is_none() {
            let rule = "q and k must have whole heads that divide those of v, all a row per position, the cache \
                        their matrices";
            let KvShape { heads, key_size, value_size, .. } = *self.cache.shape();
            let cache = [heads, self.key_heads, key_size, value_size];
            let names = ["q", "k", "v", "decay", "rate", "positions", "cache"];
            let dims = dims.into_iter().chain([&cache[..]]);
            let shapes: Vec<_> = names.into_iter().zip(dims).collect();
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(DType::F32, src[2].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let dims: Vec<&[usize]> = src.iter().map(|s| s.dims).collect();
        let Some(p) = self.params(&dims).filter(|p| p.tokens > 0) else { return Ok(()) };
        let operands = [0, 1, 2, 3, 4].map(|i: usize| cast_slice::<u8, f32>(src[i].bytes));
        let mut memory = self.cache.lock();
        let states = cast_slice_mut::<u8, f32>(&mut memory);
        for state in states.chunks_exact_mut(p.stride) {
            self.begin(state, cast_slice(src[5].bytes))?;
        }
        let plan = DeltaPlan::new(Isa::Scalar, &p)?;
        Ok(plan.compute(operands, &mut states[HEADER..], cast_slice_mut(dst.bytes))?)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let dims: Vec<&[usize]> = cx.src.iter().map(|s| &s.dims[..]).collect();
        let Some(p) = self.params(&dims).filter(|p| p.tokens > 0) else { return Ok(None) };
        Ok(Some(Box::new(DeltaStep { plan: DeltaPlan::new(cx.isa, &p)?, op: self.clone() })))
    }

    fn macs(&self, _src: &[Info], dst: &Info) -> u64 {
        let KvShape { heads, key_size: matrix, .. } = *self.cache.shape();
        // Of each element of a matrix: what it holds, if that matters, what it becomes, what is read.
        let each = if self.rule == DeltaRule::Corrected { 3 } else { 2 };
        (dst.dims[0] as u64).saturating_mul(heads as u64).saturating_mul(each * matrix as u64)
    }
}

struct DeltaStep {
    plan: DeltaPlan,
    op: KvDelta,
}

impl Step for DeltaStep {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let p = self.plan.params();
        let states = self.op.cache.as_ptr().cast::<f32>();
        for head in units.clone() {
            // SAFETY: there is a position for each token, and the cache was made for such heads; each is one
            // unit, and only steps of the layer use the cache, one at a time.
            unsafe {
                let positions = slice::from_raw_parts(src[5].cast(), p.tokens);
                let state = slice::from_raw_parts_mut(states.add(head * p.stride), p.stride);
                self.op.begin(state, positions)?;
            }
        }
        let o = DeltaOperands {
            q: src[0].cast(),
            k: src[1].cast(),
            v: src[2].cast(),
            decay: src[3].cast(),
            rate: src[4].cast(),
            state: states.wrapping_add(HEADER),
            y: dst.cast(),
        };
        // SAFETY: the plan was made for the sizes of operands and cache; of the latter the last matrix ends
        // where the memory does. Units are as the caller of this function promises.
        unsafe { self.plan.run(&o, units) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::graph::ops::Op;
    use crate::tensor::Tensor;

    const HEADS: usize = 4;
    const KEYS: usize = 20;
    const VALUES: usize = 6;

    fn op() -> KvDelta {
        let cache = Arc::new(KvCache::new(KvDelta::shape(HEADS, KEYS, VALUES)).unwrap());
        KvDelta { rule: DeltaRule::Corrected, key_heads: 2, cache }
    }

    fn operands(first: usize, count: usize) -> Vec<Tensor> {
        let number = |seed: usize, i: usize| ((i * 7919 + seed * 104_729) % 251) as f32 / 250.0;
        let make = |seed: usize, width: usize, from: f32, size: f32| {
            let data: Vec<f32> = (first * width..(first + count) * width)
                .map(|i| from + size * number(seed, i))
                .collect();
            Tensor::from_slice(&[count, width], &data).unwrap()
        };
        let positions: Vec<i32> = (first as i32..(first + count) as i32).collect();
        vec![
            make(1, 2 * KEYS, -0.3, 0.6),
            make(2, 2 * KEYS, -0.3, 0.6),
            make(3, HEADS * VALUES, -1.0, 2.0),
            make(4, HEADS, 0.5, 0.5),
            make(5, HEADS, 0.0, 1.0),
            Tensor::from_slice(&[count], &positions).unwrap(),
        ]
    }

    fn run(
        op: &KvDelta,
        first: usize,
        count: usize,
        kernels: Option<(Isa, usize)>,
    ) -> Result<Vec<f32>, GraphError> {
        let (mut cx, x) = (Context::new(), operands(first, count));
        let y = match kernels {
            None => {
                let x: Vec<_> = x.into_iter().map(|x| cx.constant(x).unwrap()).collect();
                let y = cx.op(Op::from(op.clone()), &x)?;
                cx.constant_value(y).unwrap().clone()
            }
            Some((isa, threads)) => {
                let inputs: Vec<_> =
                    x.iter().map(|x| cx.input("x", x.dtype(), &x.dims()).unwrap()).collect();
                let y = cx.op(Op::from(op.clone()), &inputs)?;
                let mut executor = Executor::new(isa, threads).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                let x: Vec<&Tensor> = x.iter().collect();
                executor.run(&plan, &x, None)?.remove(0)
            }
        };
        Ok(y.as_slice::<f32>()?.to_vec())
    }

    /// One head with one number each, by hand.
    #[test]
    fn what_is_remembered_decays_and_is_corrected() {
        let cache = Arc::new(KvCache::new(KvDelta::shape(1, 1, 1)).unwrap());
        let computed = |rule, position: i32, [q, k, v, decay, rate]: [f32; 5]| {
            let mut cx = Context::new();
            let mut x: Vec<_> = [q, k, v, decay, rate]
                .map(|x| cx.constant(Tensor::from_slice(&[1, 1], &[x]).unwrap()).unwrap())
                .into();
            x.push(cx.constant(Tensor::from_slice(&[1], &[position]).unwrap()).unwrap());
            let y = cx.op(KvDelta { rule, key_heads: 1, cache: cache.clone() }, &x)?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<f32>()?[0])
        };
        let step = |position, x| computed(DeltaRule::Corrected, position, x);
        // 0 + 2 * 0.5 * (3 - 0) = 3, read twice.
        assert_eq!(step(0, [2.0, 2.0, 3.0, 9.0, 0.5]).unwrap(), 6.0);
        // 1.5 + 1 * 1 * (2 - 1.5) = 2.
        assert_eq!(step(1, [1.0, 1.0, 2.0, 0.5, 1.0]).unwrap(), 2.0);
        let e = step(1, [1.0; 5]).unwrap_err().to_string();
        assert!(e.contains("position 1 behind 2 positions"), "{e}");
        assert!(step(-1, [1.0; 5]).is_err() && step(i32::MAX, [1.0; 5]).is_err());
        assert_eq!(step(2, [1.0, 0.0, 9.0, 1.0, 1.0]).unwrap(), 2.0);
        assert_eq!(step(0, [1.0, 1.0, 7.0, 1.0, 1.0]).unwrap(), 7.0);
        // 7 * 0.5 + 2 * 0.5 * 3 = 6.5, read twice.
        assert_eq!(computed(DeltaRule::Added, 1, [2.0, 2.0, 3.0, 0.5, 0.5]).unwrap(), 13.0);
    }

    #[test]
    fn kernels_agree_with_the_reference_however_a_text_is_cut() {
        let rules = [DeltaRule::Corrected, DeltaRule::Added];
        for (isa, rule) in Isa::available().flat_map(|isa| rules.map(|rule| (isa, rule))) {
            let op = || KvDelta { rule, ..op() };
            let whole = run(&op(), 0, 9, None).unwrap();
            for (threads, cuts) in [(1, &[9][..]), (3, &[9]), (2, &[1, 5, 3]), (1, &[4, 1, 1, 3])] {
                let (op, mut first, mut all) = (op(), 0, Vec::new());
                for &count in cuts {
                    all.extend(run(&op, first, count, Some((isa, threads))).unwrap());
                    first += count;
                }
                for (i, (a, b)) in all.iter().zip(&whole).enumerate() {
                    assert!((a - b).abs() < 1e-5, "{isa} {cuts:?} {i}: {a} {b}");
                }
                // Another text in the same cache.
                let again = run(&op, 0, 9, Some((isa, threads))).unwrap();
                assert!(again.iter().zip(&whole).all(|(a, b)| (a - b).abs() < 1e-5), "{isa}");
                let e = run(&op, 4, 2, Some((isa, threads))).unwrap_err().to_string();
                assert!(e.contains("position 4 behind 9 positions"), "{e}");
            }
        }
        assert_eq!(run(&op(), 0, 0, None).unwrap(), [] as [f32; 0]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let fits = |op: &KvDelta| run(op, 0, 1, None);
        assert!(fits(&op()).is_ok());
        assert!(fits(&KvDelta { key_heads: 3, ..op() }).is_err());
        assert!(fits(&KvDelta { key_heads: 0, ..op() }).is_err());
        let other = |shape| KvDelta { cache: Arc::new(KvCache::new(shape).unwrap()), ..op() };
        let e = fits(&other(KvDelta::shape(HEADS, KEYS, 40))).unwrap_err().to_string();
        assert!(e.contains("cache [4, 2, 1296, 0]"), "{e}");
        assert!(
            fits(&other(KvShape { capacity: 2, ..KvDelta::shape(HEADS, KEYS, VALUES) })).is_err()
        );
    }
}
