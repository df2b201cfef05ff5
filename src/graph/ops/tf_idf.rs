//! Counts of short sequences in lists of numbers.

use core::fmt;
use std::collections::HashMap;

use super::elements::{checked_count, expect_dtype, integers, is_index, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// How often (or whether) sequences of a pool occur in each row of a list or matrix of integers,
/// as ONNX `TfIdfVectorizer`.
#[derive(Clone, PartialEq)]
pub struct TfIdf {
    /// Each sequence and the column in which it counts.
    pub pool: HashMap<Vec<i64>, usize>,
    /// Columns of the result.
    pub columns: usize,
    /// Lengths of sequences that are looked for.
    pub lengths: (usize, usize),
    /// Elements that may be left out between two neighbours.
    pub skips: usize,
    /// Whether one occurrence counts like many.
    pub once: bool,
    /// Factors of the columns, if there are some.
    pub weights: Vec<f32>,
}

const OP: &str = "tf_idf";

/// Pools are long, and in no order: the sorted content stands for them.
impl fmt::Debug for TfIdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pool: Vec<_> = self.pool.iter().collect();
        crate::order::sort(&mut pool, Ord::cmp);
        f.debug_struct("TfIdf")
            .field("pool", &pool)
            .field("columns", &self.columns)
            .field("lengths", &self.lengths)
            .field("skips", &self.skips)
            .field("once", &self.once)
            .field("weights", &self.weights)
            .finish()
    }
}

impl TfIdf {
    fn row(&self, x: &[i64]) -> Vec<f64> {
        let mut counts = vec![0.0; self.columns];
        let (shortest, longest) = self.lengths;
        for length in shortest..=longest.min(x.len()) {
            // One element has no neighbours.
            let skips = if length == 1 { 0 } else { self.skips.min(x.len()) };
            for step in 1..=skips + 1 {
                let span = (length - 1) * step;
                for start in 0..x.len().saturating_sub(span) {
                    let sequence: Vec<i64> = (0..length).map(|i| x[start + i * step]).collect();
                    if let Some(&column) = self.pool.get(&sequence) {
                        counts[column] += 1.0;
                    }
                }
            }
        }
        let weighted = |(i, count): (usize, f64)| {
            let count = if self.once { count.min(1.0) } else { count };
            count * self.weights.get(i).map_or(1.0, |&w| f64::from(w))
        };
        counts.into_iter().enumerate().map(weighted).collect()
    }
}

impl Operator for TfIdf {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, is_index)?;
        let inside = self.pool.values().all(|&c| c < self.columns);
        let outer = match x.dims[..] {
            [_] => vec![],
            [rows, _] => vec![rows],
            _ => return Err(GraphError::mismatch(OP, "x must be rows", &[("x", &x.dims)])),
        };
        if !inside || self.lengths.0 == 0 {
            return Err(GraphError::InvalidAttribute {
                op: OP,
                attribute: "ngram_indexes",
                reason: "columns and lengths must exist".to_owned(),
            });
        }
        let dims = [outer, vec![self.columns]].concat();
        checked_count(OP, &dims)?;
        Ok(Info::plain(DType::F32, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x = integers(&src[0], OP)?;
        let row = src[0].dims.last().copied().unwrap_or(0);
        let count = if src[0].dims.len() == 2 { src[0].dims[0] } else { 1 };
        let rows = (0..count).flat_map(|i| self.row(&x[i * row..][..row]));
        write_floats(dst, OP, rows)
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let row = src[0].dims.last().copied().unwrap_or(0) as u64;
        let lengths = (self.lengths.1 as u64).min(row).saturating_pow(2);
        let steps = (self.skips as u64).min(row).saturating_add(1);
        (src[0].elements() as u64).saturating_mul(lengths).saturating_mul(steps)
    }
}
