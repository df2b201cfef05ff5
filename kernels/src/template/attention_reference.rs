//! Attention from the definition, in `f64`, over all keys and values ever stored.

use super::attention::AttentionParams;
use super::attention_layout::CacheType;
use alloc::vec::Vec;

/// The nearest number with 11 binary digits and exponents of binary16, ties to even.
pub(crate) fn half(x: f64) -> f64 {
    let exponent = if x == 0.0 { -14.0 } else { x.abs().log2().floor().max(-14.0) };
    let unit = (exponent - 10.0).exp2();
    (x / unit).round_ties_even() * unit
}

/// What a cache returns for a row that was stored: with bytes, each run of 32 on its own.
pub(crate) fn cached(kind: CacheType, row: &[f32]) -> Vec<f64> {
    let exact = row.iter().map(|x| f64::from(*x));
    match kind {
        CacheType::F32 => exact.collect(),
        CacheType::F16 => exact.map(half).collect(),
        CacheType::Q8_0 => {
            let exact: Vec<f64> = exact.collect();
            let runs = exact.chunks(32).flat_map(|run| {
                let most = run.iter().fold(0.0f64, |most, x| most.max(x.abs()));
                let scale = half(most / 127.0);
                let step = if most > 0.0 { most / 127.0 } else { 1.0 };
                run.iter().map(move |x| (x / step).round_ties_even() * scale)
            });
            runs.collect()
        }
    }
}

/// One row of one head: `keys` and `values` by position, and a score without a value.
pub(crate) fn attend(
    p: &AttentionParams,
    q: &[f32],
    position: usize,
    sink: Option<f32>,
    keys: &[Vec<f64>],
    values: &[Vec<f64>],
) -> Vec<f64> {
    let first = match p.window {
        0 => 0,
        window => (position + 1).saturating_sub(window),
    };
    let score = |key: &Vec<f64>| {
        let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * b).sum();
        let score = dot * f64::from(p.scale);
        match f64::from(p.soft_cap) {
            0.0 => score,
            cap => cap * (score / cap).tanh(),
        }
    };
    let scores: Vec<f64> = keys[first..=position].iter().map(score).collect();
    let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
    let most = scores.iter().copied().fold(sink, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
    let total: f64 = weights.iter().sum::<f64>() + (sink - most).exp();
    let column = |c: usize| {
        let sum: f64 = weights.iter().zip(&values[first..]).map(|(w, v)| w * v[c]).sum();
        sum / total
    };
    (0..p.values).map(column).collect()
}
