//! Causal convolution along positions, over a cache of the last ones.

use std::sync::Arc;

use super::elements::expect_dtype;
use super::kv_attention::check_position;
use super::{Operator, expect_operands};
use crate::graph::kv_cache::{KvCache, KvShape};
use crate::graph::{GraphError, Info, View, ViewMut};
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
            let rule = "x must have a row per position, the cache such rows for all taps of each column";
            let cache = [heads, capacity, key_size, value_size];
            let names = ["x", "weights", "positions", "cache"];
            let dims = src.iter().map(|s| &s.dims[..]).chain([&cache[..]]);
            let shapes: Vec<_> = names.into_iter().zip(dims).collect();
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(DType::F32, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, weights) = (src[0].slice::<f32>(OP)?, src[1].slice::<f32>(OP)?);
        let ([taps, width], capacity) = ([src[1].dims[0], src[1].dims[1]], self.cache.shape().capacity);
        let (stride, size) = (width + 1, width.max(1));
        let mut memory = self.cache.lock();
        let rows = bytemuck::cast_slice_mut::<u8, f32>(&mut memory);
        // What a row of this position begins with; one that was never written begins with 0.
        let mark = |position: usize| position as u32 + 1;
        let x = x.chunks_exact(size).zip(dst.slice::<f32>(OP)?.chunks_exact_mut(size));
        for ((x, y), &position) in x.zip(src[2].slice::<i32>(OP)?) {
            let position = check_position(OP, position, i32::MAX as usize)?;
            let row = &mut rows[position % capacity * stride..][..stride];
            row[0] = f32::from_bits(mark(position));
            row[1..].copy_from_slice(x);
            y.fill(0.0);
            for back in 0..taps.min(position + 1) {
                let at = position - back;
                let row = &rows[at % capacity * stride..][..stride];
                if row[0].to_bits() != mark(at) {
                    let what = format!("position {position} behind {at}, which is no longer kept");
                    return Err(GraphError::Unsupported { op: OP, what });
                }
                let weights = &weights[(taps - 1 - back) * width..][..width];
                let sums = y.iter_mut().zip(&row[1..]).zip(weights);
                sums.for_each(|((y, x), w)| *y += x * w);
            }
        }
        Ok(())
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        (dst.elements() as u64).saturating_mul(src[1].dims[0] as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Context, ops::Op};
    use crate::tensor::Tensor;

    fn cache(capacity: usize) -> Arc<KvCache> {
        let dtype = DType::F32;
        let shape = KvShape { heads: 1, key_size: 3, value_size: 0, capacity, dtype };
        Arc::new(KvCache::new(shape).unwrap())
    }

    fn convolve(cache: &Arc<KvCache>, x: &[f32], positions: &[i32]) -> Result<Vec<f32>, GraphError> {
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
}
