//! Causal attention over a cache of keys and values.

use std::sync::Arc;

use tilewright_kernels::{AttentionParams, AttentionPlan};

use super::kv_attention_steps::Stage;
use super::{Operator, expect_operands};
use crate::graph::kv_cache::{KvCache, KvShape};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;
use crate::tensor::block::{dequantize, quantize_q8_0};

/// Stores keys and values of new positions in a cache, then
/// `softmax(cap(scale * q * k^T)) * v` of each head over the positions up to its own.
///
/// Operands: `q [m, heads * key_size]`, `k [m, kv_heads * key_size]`, `v [m, kv_heads * value_size]`
/// of f32, positions `[m]` of `i32`, each below the capacity of the cache and with all positions
/// before it in the cache or among the operands, and perhaps sinks `[heads]` of f32: one more score of each head, which
/// takes its part of the softmax and adds nothing (GPT-OSS; Xiao et al. 2024). Query head `h` reads the keys of head
/// `h / (heads / kv_heads)`. Result: `[m, heads * value_size]` of f32.
#[derive(Clone, Debug, PartialEq)]
pub struct KvAttention {
    /// Heads of the queries, a multiple of those of the cache.
    pub heads: usize,
    /// What scores are multiplied with; finite.
    pub scale: f32,
    /// With it scores become `cap * tanh(score / cap)` (Gemma 2); finite, above 0.
    pub softcap: Option<f32>,
    /// How many positions are attended to, the own one included; all if `None`.
    pub window: Option<usize>,
    /// Whether kernels may round the operands of products of several rows to bf16: an error of 0.3 % of
    /// the result.
    pub bf16: bool,
    /// Keys and values of this layer.
    pub cache: Arc<KvCache>,
}

pub(super) const OP: &str = "kv_attention";

impl Operator for KvAttention {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 4..=5, "q, k, v, positions and perhaps sinks")?;
        let types = [DType::F32, DType::F32, DType::F32, DType::I32, DType::F32];
        if let Some((bad, _)) = src.iter().zip(types).find(|(s, dtype)| s.dtype != *dtype) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        let invalid = |attribute, reason: &str| {
            let reason = reason.to_owned();
            Err(GraphError::InvalidAttribute { op: OP, attribute, reason })
        };
        if !self.scale.is_finite() {
            return invalid("scale", "must be finite");
        }
        if self.softcap.is_some_and(|cap| !(cap.is_finite() && cap > 0.0)) {
            return invalid("softcap", "must be finite and above 0");
        }
        if self.window == Some(0) {
            return invalid("window", "must hold the own position");
        }
        let KvShape { heads, key_size, value_size, .. } = *self.cache.shape();
        if heads == 0 || self.heads == 0 || !self.heads.is_multiple_of(heads) {
            return invalid("heads", "must be a multiple of those of keys and values");
        }
        // Kernels lay out keys and values; a cache without values is as large as rows of `KvConv`.
        if key_size == 0 || value_size == 0 {
            return invalid("cache", "must have keys and values");
        }
        let m = src[3].dims.first().copied().unwrap_or(0);
        let width = |heads: usize, size: usize| heads.saturating_mul(size);
        let wanted = [
            vec![m, width(self.heads, key_size)],
            vec![m, width(heads, key_size)],
            vec![m, width(heads, value_size)],
            vec![m],
            vec![self.heads],
        ];
        if src.iter().zip(&wanted).any(|(s, wanted)| s.dims != *wanted) {
            let rule =
                "q, k, v and sinks must have all heads, and the first three a row per position";
            let names = ["q wanted", "q", "k", "v", "positions", "sinks"];
            let dims = [&wanted[0][..]].into_iter().chain(src.iter().map(|s| &s.dims[..]));
            let shapes: Vec<_> = names.into_iter().zip(dims).collect();
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(DType::F32, vec![m, width(self.heads, value_size)]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (q, k, v) =
            (src[0].slice::<f32>(OP)?, src[1].slice::<f32>(OP)?, src[2].slice::<f32>(OP)?);
        let positions = src[3].slice::<i32>(OP)?;
        let sinks = src.get(4).map(|sinks| sinks.slice::<f32>(OP)).transpose()?;
        let shape = *self.cache.shape();
        let mut memory = self.cache.lock();
        let [key_plane, _] = shape.planes().expect("the cache exists");
        let (keys, values) = memory.split_at_mut(key_plane);
        for (i, &position) in positions.iter().enumerate() {
            let at = check_position(OP, position, shape.capacity)?;
            store(&shape, keys, at, k, i, shape.key_size)?;
            store(&shape, values, at, v, i, shape.value_size)?;
        }
        let group = self.heads / shape.heads;
        let rows = dst.slice::<f32>(OP)?.chunks_exact_mut(shape.value_size.max(1));
        for (i, y) in rows.enumerate() {
            let (row, head) = (i / self.heads, i % self.heads);
            let position = check_position(OP, positions[row], shape.capacity)?;
            let first = self.window.map_or(0, |w| (position + 1).saturating_sub(w));
            let q = &q[i * shape.key_size..][..shape.key_size];
            let q: Vec<f64> = q.iter().map(|&q| f64::from(q)).collect();
            let sink = sinks.map(|sinks| sinks[head]);
            self.row(&shape, keys, values, head / group, first..position + 1, &q, sink, y);
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let rows = cx.dst.dims[0];
        if rows == 0 {
            return Ok(None);
        }
        let params = AttentionParams {
            window: self.window.unwrap_or(0),
            scale: self.scale,
            soft_cap: self.softcap.unwrap_or(0.0),
            bf16: self.bf16,
            ..self.cache.shape().params(rows, self.heads)
        };
        let plan = Arc::new(AttentionPlan::new(cx.isa, &params)?);
        let sinks = cx.src.len() > 4;
        Ok(Some(Box::new(Stage::last(plan, self.cache.clone(), sinks))))
    }

    fn macs(&self, _src: &[Info], dst: &Info) -> u64 {
        // How many positions there are is known when it runs: half of what there may be.
        let shape = self.cache.shape();
        let reach = self.window.unwrap_or(usize::MAX).min(shape.capacity.div_ceil(2));
        let each = (shape.key_size + shape.value_size) as u64 * self.heads as u64;
        (dst.dims[0] as u64).saturating_mul(reach as u64).saturating_mul(each)
    }
}

/// The first of positions that must be one behind the other, of which there is one at least.
pub(super) fn check_run(op: &'static str, positions: &[i32]) -> Result<usize, GraphError> {
    let first = check_position(op, positions[0], i32::MAX as usize)?;
    if let Some(at) = (0..positions.len()).find(|&at| positions[at] as usize != first + at) {
        let what = format!("position {} in place of {}", positions[at], first + at);
        return Err(GraphError::Unsupported { op, what });
    }
    Ok(first)
}

/// A position as an index below the capacity.
pub(super) fn check_position(
    op: &'static str,
    position: i32,
    capacity: usize,
) -> Result<usize, GraphError> {
    let out = GraphError::IndexOutOfRange { op, index: position.into(), extent: capacity };
    usize::try_from(position).ok().filter(|&p| p < capacity).ok_or(out)
}

/// Writes row `i` of `x`, all heads of `size` elements, as position `at` of a plane. A position has
/// the elements of all heads behind each other.
fn store(
    shape: &KvShape,
    plane: &mut [u8],
    at: usize,
    x: &[f32],
    i: usize,
    size: usize,
) -> Result<(), GraphError> {
    let width = shape.heads * size;
    let x = &x[i * width..][..width];
    let bytes = shape.dtype.bytes_of(width).expect("the cache exists");
    let to = &mut plane[at * bytes..][..bytes];
    match shape.dtype {
        DType::F32 => to.chunks_exact_mut(4).zip(x).for_each(|(to, x)| {
            to.copy_from_slice(&x.to_le_bytes());
        }),
        DType::F16 => to.chunks_exact_mut(2).zip(x).for_each(|(to, x)| {
            to.copy_from_slice(&half::f16::from_f32(*x).to_le_bytes());
        }),
        DType::Q8_0 => quantize_q8_0(x, to)?,
        dtype => return Err(GraphError::UnsupportedDType { op: OP, dtype }),
    }
    Ok(())
}

impl KvAttention {
    /// One head of one position from the definition.
    fn row(
        &self,
        shape: &KvShape,
        keys: &[u8],
        values: &[u8],
        head: usize,
        positions: core::ops::Range<usize>,
        q: &[f64],
        sink: Option<f32>,
        y: &mut [f32],
    ) {
        let read = |plane: &[u8], size: usize, at: usize| {
            let bytes = shape.dtype.bytes_of(size).expect("the cache exists");
            let mut row = vec![0f32; size];
            let from = &plane[(at * shape.heads + head) * bytes..][..bytes];
            dequantize(shape.dtype, from, &mut row).expect("caches have floats or blocks");
            row
        };
        let score = |at: usize| {
            let k = read(keys, shape.key_size, at);
            let sum: f64 = q.iter().zip(&k).map(|(q, k)| q * f64::from(*k)).sum();
            let score = sum * f64::from(self.scale);
            self.softcap.map(f64::from).map_or(score, |cap| cap * (score / cap).tanh())
        };
        let scores: Vec<f64> = positions.clone().map(score).collect();
        let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
        let most = scores.iter().copied().fold(sink, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
        let mut sums = vec![0f64; y.len()];
        for (at, weight) in positions.zip(&weights) {
            let v = read(values, shape.value_size, at);
            sums.iter_mut().zip(&v).for_each(|(sum, v)| *sum += weight * f64::from(*v));
        }
        y.iter_mut().zip(&sums).for_each(|(y, sum)| *y = (sum / total) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Context, ops::Op};
    use crate::tensor::Tensor;

    fn cache(dtype: DType) -> Arc<KvCache> {
        let shape = KvShape { heads: 1, key_size: 32, value_size: 32, capacity: 8, dtype };
        Arc::new(KvCache::new(shape).unwrap())
    }

    fn plain(cache: Arc<KvCache>) -> KvAttention {
        KvAttention { heads: 2, scale: 1.0, softcap: None, window: None, bf16: false, cache }
    }

    /// Rows whose elements are all one value.
    fn rows(values: &[f32], width: usize) -> Tensor {
        let data: Vec<f32> = values.iter().flat_map(|&v| vec![v; width]).collect();
        Tensor::from_slice(&[values.len(), width], &data).unwrap()
    }

    fn attend(
        op: &KvAttention,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        positions: &[i32],
    ) -> Result<Vec<f32>, GraphError> {
        let src = [rows(q, 64), rows(k, 32), rows(v, 32)];
        let positions = Tensor::from_slice(&[positions.len()], positions)?;
        let mut cx = Context::new();
        let ids: Vec<_> = src
            .iter()
            .chain([&positions])
            .map(|t| cx.constant(t.clone()))
            .collect::<Result<_, _>>()?;
        let y = cx.op(Op::from(op.clone()), &ids)?;
        // One element per row and head: all of a head are equal.
        Ok(cx.constant_value(y).unwrap().as_slice::<f32>()?.iter().step_by(32).copied().collect())
    }

    #[test]
    fn positions_see_those_before_them_and_what_the_cache_kept() {
        for dtype in [DType::F32, DType::F16, DType::Q8_0] {
            let op = plain(cache(dtype));
            let close = |y: Vec<f32>, want: &[f32]| {
                let near = |(a, b): (&f32, &f32)| (a - b).abs() < 2e-2;
                assert!(y.len() == want.len() && y.iter().zip(want).all(near), "{y:?} {want:?}");
            };
            // Queries of zeros weigh all alike: means of the values so far.
            let y = attend(&op, &[0.0, 0.0], &[1.0, 2.0], &[4.0, 8.0], &[0, 1]).unwrap();
            close(y, &[4.0, 4.0, 6.0, 6.0]);
            close(attend(&op, &[0.0], &[0.0], &[0.0], &[2]).unwrap(), &[4.0, 4.0]);
            // Going back to position 1 forgets what was behind it.
            close(attend(&op, &[0.0], &[2.0], &[6.0], &[1]).unwrap(), &[5.0, 5.0]);
            // Scores of 32 and 64: the later one wins.
            close(attend(&op, &[1.0], &[2.0], &[6.0], &[1]).unwrap(), &[6.0, 6.0]);
            // The cap makes them nearly equal.
            let capped = KvAttention { softcap: Some(1e-3), ..op.clone() };
            close(attend(&capped, &[1.0], &[2.0], &[6.0], &[1]).unwrap(), &[5.0, 5.0]);
            let window = KvAttention { window: Some(1), ..op };
            close(attend(&window, &[0.0], &[2.0], &[6.0], &[1]).unwrap(), &[6.0, 6.0]);
        }
    }

    #[test]
    fn bad_positions_and_attributes_are_refused() {
        let op = plain(cache(DType::F32));
        for position in [8, -1, i32::MAX] {
            let e = attend(&op, &[0.0], &[0.0], &[0.0], &[position]).unwrap_err();
            let want = GraphError::IndexOutOfRange { op: OP, index: position.into(), extent: 8 };
            assert_eq!(e, want);
        }
        let wrong = [
            KvAttention { scale: f32::NAN, ..op.clone() },
            KvAttention { softcap: Some(0.0), ..op.clone() },
            KvAttention { window: Some(0), ..op.clone() },
            KvAttention { heads: 3, ..op.clone() },
        ];
        for op in wrong {
            assert!(attend(&op, &[0.0], &[0.0], &[0.0], &[0]).is_err(), "{op:?}");
        }
        let shape = KvShape { value_size: 0, ..*op.cache.shape() };
        let rows = KvAttention { cache: Arc::new(KvCache::new(shape).unwrap()), ..op.clone() };
        let mut cx = Context::new();
        let src = [[1, 64], [1, 32], [1, 0]].map(|dims| cx.input("", DType::F32, &dims).unwrap());
        let position = cx.input("", DType::I32, &[1]).unwrap();
        let e = cx.op(Op::from(rows), &[src[0], src[1], src[2], position]).unwrap_err();
        assert!(matches!(e, GraphError::InvalidAttribute { attribute: "cache", .. }), "{e}");
        let shape = KvShape { capacity: usize::MAX / 64, ..*op.cache.shape() };
        assert!(KvCache::new(shape).is_err());
        let shape = KvShape { dtype: DType::Q4_0, ..*op.cache.shape() };
        assert!(KvCache::new(shape).is_err());
    }
}
