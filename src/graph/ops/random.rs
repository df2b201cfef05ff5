//! Numbers that look random.

use super::elements::{checked_count, expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// How numbers are distributed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Evenly from `low` to below `high`.
    Uniform {
        /// The least.
        low: f32,
        /// The end.
        high: f32,
    },
    /// By Gauss' bell.
    Normal {
        /// The middle.
        mean: f32,
        /// The standard deviation.
        scale: f32,
    },
    /// 1 as often as the operand's element says, else 0.
    Bernoulli,
    /// Of each row of the operand, the logarithms of how often a class comes, as many classes as
    /// the result has columns.
    Classes,
}

/// Numbers that a seed determines: a run gives the same each time, on every machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Random {
    /// How they are distributed.
    pub distribution: Distribution,
    /// What tells sequences apart.
    pub seed: u64,
    /// Type of the result.
    pub dtype: DType,
    /// Extents of the result.
    pub dims: Vec<usize>,
}

const OP: &str = "random";

impl Random {
    /// Number `i` of the sequence, from 0 to below 1: SplitMix64 (Steele, Lea and Flood, 2014).
    fn uniform(&self, i: u64) -> f64 {
        let mut z = self.seed.wrapping_add(i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Number `i` of a bell of width 1: Box and Muller's method.
    fn normal(&self, i: u64) -> f64 {
        let (u, v) = (1.0 - self.uniform(2 * i), self.uniform(2 * i + 1));
        (-2.0 * libm::log(u)).sqrt() * libm::cos(core::f64::consts::TAU * v)
    }

    fn class(&self, row: &[f64], i: u64) -> f64 {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights = row.iter().map(|&v| libm::exp(v - most));
        let mut left = self.uniform(i) * weights.clone().sum::<f64>();
        let found = weights.enumerate().find(|(_, w)| {
            left -= w;
            left < 0.0
        });
        found.map_or(row.len().saturating_sub(1), |(class, _)| class) as f64
    }
}

impl Operator for Random {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        checked_count(OP, &self.dims)?;
        let fits = match (self.distribution, src) {
            (Distribution::Bernoulli, [p]) => p.dims == self.dims,
            (Distribution::Classes, [x]) => {
                x.dims.len() == 2 && x.dims[1] > 0 && self.dims.first() == Some(&x.dims[0])
            }
            (Distribution::Uniform { .. } | Distribution::Normal { .. }, []) => true,
            _ => {
                return expect_operands(OP, src, 0..=0, "as many as the distribution has")
                    .map(|()| Info::plain(self.dtype, self.dims.clone()));
            }
        };
        for s in src {
            expect_dtype(OP, s, DType::is_float)?;
        }
        if !fits || !self.dtype.is_plain() {
            let shapes: Vec<_> = src.iter().map(|s| ("x", &s.dims[..])).collect();
            return Err(GraphError::mismatch(
                OP,
                "the operand must have the result's rows",
                &shapes,
            ));
        }
        Ok(Info::plain(self.dtype, self.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let count = dst.dims.iter().product::<usize>() as u64;
        let x = src.first().map(|x| floats(x, OP)).transpose()?.unwrap_or_default();
        let per_row = dst.dims.get(1).copied().unwrap_or(1).max(1);
        let classes = src.first().and_then(|x| x.dims.get(1)).copied().unwrap_or(1);
        let element = |i: u64| match self.distribution {
            Distribution::Uniform { low, high } => {
                let (low, high) = (f64::from(low), f64::from(high));
                low + self.uniform(i) * (high - low)
            }
            Distribution::Normal { mean, scale } => {
                f64::from(mean) + f64::from(scale) * self.normal(i)
            }
            Distribution::Bernoulli => f64::from(u8::from(self.uniform(i) < x[i as usize])),
            Distribution::Classes => self.class(&x[i as usize / per_row * classes..][..classes], i),
        };
        write_floats(dst, OP, (0..count).map(element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        let op = |distribution| Random { distribution, seed: 7, dtype: DType::F32, dims: vec![] };
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let uniform = op(Distribution::Uniform { low: 0.0, high: 1.0 });
        let v: Vec<f64> = (0..10_000).map(|i| uniform.uniform(i)).collect();
        assert!((mean(&v) - 0.5).abs() < 0.02 && v.iter().all(|v| (0.0..1.0).contains(v)));
        let normal = op(Distribution::Normal { mean: 0.0, scale: 1.0 });
        let v: Vec<f64> = (0..10_000).map(|i| normal.normal(i)).collect();
        let squares: Vec<f64> = v.iter().map(|v| v * v).collect();
        assert!(mean(&v).abs() < 0.05 && (mean(&squares) - 1.0).abs() < 0.05);
        let classes = op(Distribution::Classes);
        let often = (0..1000).filter(|&i| classes.class(&[0.0, 2.0], i) == 1.0).count();
        assert!((830..930).contains(&often), "{often}");
    }
}
