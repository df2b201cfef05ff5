//! Attention of several heads, computed block by block of queries.

use core::ops::Range;
use core::{ptr, slice};
use std::sync::Arc;

use tilewright_kernels::{Epilogue, Isa, MatmulParams, MatmulPlan, RowWeights};

use super::binary::Broadcast;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::{AlignedBytes, DType};

/// Scores of a block of queries, about: with keys and values they stay in the L2 cache.
const SCORES: usize = 24 << 10;

/// Queries of a block where there are so many keys that it would have fewer.
const QUERIES: usize = 32;

/// Scores of such a block, at most.
const MOST_SCORES: usize = 96 << 10;

/// Where the rows of an operand of [`Attention`] lie in its tensor, in elements; those of a row are
/// neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Of the first row.
    pub offset: usize,
    /// From one batch to the next.
    pub batch: usize,
    /// From one head to the next.
    pub head: usize,
    /// From one row to the next.
    pub row: usize,
}

impl Rows {
    fn at(&self, batch: usize, head: usize, row: usize) -> usize {
        self.offset + batch * self.batch + head * self.head + row * self.row
    }

    /// One past the last element; `None` on overflow.
    fn end(&self, [batch, heads, rows, size]: [usize; 4]) -> Option<usize> {
        let way = |count: usize, step: usize| count.checked_sub(1)?.checked_mul(step);
        let start = self.offset.checked_add(way(batch, self.batch)?)?;
        let start = start.checked_add(way(heads, self.head)?)?;
        start.checked_add(way(rows, self.row)?)?.checked_add(size)
    }
}

/// `softmax(scale * q * k^T + mask) * v` of each head.
///
/// Operands: tensors of f32 that hold q, k and v as [`Rows`] say (it may be the same tensor), then
/// up to two masks, whose sum is added: each broadcasts to `[batch, heads, queries, keys]` and has all keys.
/// Result: `[batch, queries, heads, values]`, or `[batch, heads, queries, values]` if it is `by_head`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Independent sequences.
    pub batch: usize,
    /// Heads of each.
    pub heads: usize,
    /// Rows of q and of the result.
    pub queries: usize,
    /// Rows of k and v.
    pub keys: usize,
    /// Elements of a row of q and k.
    pub size: usize,
    /// Elements of a row of v.
    pub values: usize,
    /// Where q, k and v lie.
    pub rows: [Rows; 3],
    /// What scores are multiplied with; finite.
    pub scale: f32,
    /// Whether the rows of a head stay together in the result.
    pub by_head: bool,
    /// Whether a query whose weights are NaN, as those are that a mask hides all keys from, has weights of
    /// zero instead.
    pub guarded: bool,
}

const OP: &str = "attention";

impl Attention {
    /// Extents of q, k and v.
    fn extents(&self) -> [[usize; 4]; 3] {
        let &Self { batch, heads, queries, keys, size, values, .. } = self;
        [[batch, heads, queries, size], [batch, heads, keys, size], [batch, heads, keys, values]]
    }

    fn scores(&self) -> [usize; 4] {
        [self.batch, self.heads, self.queries, self.keys]
    }

    /// From one batch, head and row of the result to the next.
    pub(crate) fn result_steps(&self) -> [usize; 3] {
        let whole = self.heads * self.queries * self.values;
        match self.by_head {
            true => [whole, self.queries * self.values, self.values],
            false => [whole, self.values, self.heads * self.values],
        }
    }

    /// Whether a mask has a row for each query; if not, all queries share one.
    fn by_query(&self, mask: &[usize]) -> bool {
        mask.len() > 1 && mask[mask.len() - 2] == self.queries
    }
}

impl Operator for Attention {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=5, "q, k, v and up to two masks")?;
        if let Some(wrong) = src.iter().find(|s| s.dtype != DType::F32) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: wrong.dtype });
        }
        let invalid = |attribute, reason: &str| {
            let reason = reason.to_owned();
            Err(GraphError::InvalidAttribute { op: OP, attribute, reason })
        };
        if !self.scale.is_finite() {
            return invalid("scale", "must be finite");
        }
        for ((rows, extents), info) in self.rows.iter().zip(self.extents()).zip(src) {
            let held = info.dims.iter().try_fold(1usize, |all, &d| all.checked_mul(d));
            let fits = rows.end(extents).zip(held).is_some_and(|(end, held)| end <= held);
            if extents.contains(&0) || rows.row < extents[3] || !fits {
                return invalid("rows", "must not be empty or overlap, and lie in their operand");
            }
        }
        let scores = self.scores();
        if scores.iter().try_fold(1usize, |all, &d| all.checked_mul(d)).is_none() {
            return invalid("rows", "must not be that many");
        }
        for mask in src[3..].iter().map(|m| &m.dims) {
            let mut pairs = mask.iter().rev().zip(scores.iter().rev()).enumerate();
            let fits = mask.len() <= 4 && pairs.all(|(i, (m, s))| m == s || i > 0 && *m == 1);
            if !fits || mask.is_empty() {
                let rule = "the mask must broadcast to the scores and have all keys";
                return Err(GraphError::mismatch(OP, rule, &[("mask", mask), ("scores", &scores)]));
            }
        }
        let &Self { batch, heads, queries, values, .. } = self;
        let dims = match self.by_head {
            true => vec![batch, heads, queries, values],
            false => vec![batch, queries, heads, values],
        };
        Ok(Info::plain(DType::F32, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (q, k, v) =
            (src[0].slice::<f32>(OP)?, src[1].slice::<f32>(OP)?, src[2].slice::<f32>(OP)?);
        let scores = self.scores();
        let masks: Vec<_> = src[3..]
            .iter()
            .map(|m| Ok((m.slice::<f32>(OP)?, Broadcast::new(m.dims, &scores))))
            .collect::<Result<_, GraphError>>()?;
        let [rq, rk, rv] = self.rows;
        for (i, y) in dst.slice::<f32>(OP)?.chunks_exact_mut(self.values).enumerate() {
            let (batch, i) = (i / (self.heads * self.queries), i % (self.heads * self.queries));
            let (head, row) = match self.by_head {
                true => (i / self.queries, i % self.queries),
                false => (i % self.heads, i / self.heads),
            };
            let q = &q[rq.at(batch, head, row)..][..self.size];
            let score = |key: usize| {
                let k = &k[rk.at(batch, head, key)..][..self.size];
                let sum: f64 = q.iter().zip(k).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                let place = ((batch * self.heads + head) * self.queries + row) * self.keys + key;
                let added = masks.iter().map(|(m, at)| f64::from(m[at.index(place)])).sum::<f64>();
                sum * f64::from(self.scale) + added
            };
            let scores: Vec<f64> = (0..self.keys).map(score).collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let mut weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
            let mut sum: f64 = weights.iter().sum();
            if self.guarded && sum.is_nan() {
                weights.fill(0.0);
                sum = 1.0;
            }
            for (c, y) in y.iter_mut().enumerate() {
                let value = |key: usize| f64::from(v[rv.at(batch, head, key) + c]);
                *y = (weights.iter().enumerate().map(|(k, w)| w * value(k)).sum::<f64>() / sum)
                    as f32;
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let of = |i: usize| {
            cx.src.get(i).map(|m| Mask {
                at: Broadcast::new(&m.dims, &self.scores()),
                by_query: self.by_query(&m.dims),
            })
        };
        let (mask, more) = (of(3), of(4));
        let by_query = mask.as_ref().is_some_and(|m| m.by_query);
        let rows = (SCORES / self.keys).max(QUERIES.min(MOST_SCORES / self.keys)).max(1);
        let rows = self.queries.div_ceil(self.queries.div_ceil(rows));
        let parts = self.queries.div_ceil(rows);
        let last = self.queries - (parts - 1) * rows;
        // Weights may be made of products that nothing has scaled, unless a mask is added to those.
        let scaled = self.scale <= 0.0 || mask.is_some() && self.scale != 1.0;
        let block = |rows| Block::new(self, cx.isa, rows, by_query, scaled);
        let blocks = [block(rows)?, block(last)?];
        let most = |f: fn(&Block) -> usize| blocks.iter().map(f).max().unwrap_or(0);
        let bias_len = most(|b| b.scores.bias_len().max(b.values.bias_len()));
        let zeros = Arc::new(AlignedBytes::zeroed(bias_len * size_of::<f32>())?);
        let lens = [
            if scaled { rows * self.size } else { 0 },
            bias_len,
            rows * self.keys,
            rows,
            most(|b| b.scores.weights_len()),
            most(|b| b.values.weights_len()),
            most(|b| b.scores.scratch_len().max(b.values.scratch_len())),
        ]
        .map(|len| len.next_multiple_of(16));
        let weights = RowWeights::new(cx.isa)?;
        Ok(Some(Box::new(Run {
            op: *self,
            mask,
            more,
            parts,
            blocks,
            scaled,
            weights,
            zeros,
            lens,
        })))
    }

    fn macs(&self, _src: &[Info], _dst: &Info) -> u64 {
        let scores = self.scores().iter().fold(1u64, |all, &d| all.saturating_mul(d as u64));
        scores.saturating_mul((self.size + self.values) as u64)
    }
}

/// How a mask is read.
struct Mask {
    at: Broadcast,
    by_query: bool,
}

/// The plans for a block of so many queries.
struct Block {
    rows: usize,
    scores: MatmulPlan,
    values: MatmulPlan,
}

impl Block {
    fn new(
        op: &Attention,
        isa: Isa,
        rows: usize,
        residual: bool,
        scaled: bool,
    ) -> Result<Self, GraphError> {
        let [q, k, v] = op.rows;
        let scores = MatmulParams {
            a_row: if scaled { op.size } else { q.row },
            b_row: k.row,
            b_transposed: true,
            epilogue: Epilogue { residual, ..Epilogue::default() },
            ..MatmulParams::new(rows, op.size, op.keys)
        };
        let values = MatmulParams {
            b_row: v.row,
            c_row: op.result_steps()[2],
            ..MatmulParams::new(rows, op.keys, op.values)
        };
        Ok(Self {
            rows,
            scores: MatmulPlan::new(isa, &scores)?,
            values: MatmulPlan::new(isa, &values)?,
        })
    }
}

/// Units are blocks of the queries of a head. A thread's scratch memory holds the scaled queries, a
/// row of the mask, the scores, the shares of weights of each row, packed keys and values, and what the products need.
struct Run {
    op: Attention,
    mask: Option<Mask>,
    /// A second one.
    more: Option<Mask>,
    /// Blocks per head.
    parts: usize,
    /// Those for all blocks but the last, and the last.
    blocks: [Block; 2],
    /// Whether queries are copied, times the scale.
    scaled: bool,
    weights: RowWeights,
    zeros: Arc<AlignedBytes>,
    /// Elements of the parts of the scratch memory.
    lens: [usize; 7],
}

impl Step for Run {
    fn kernel(&self) -> String {
        self.blocks[0].scores.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.op.batch * self.op.heads * self.parts
    }

    fn scratch_bytes(&self) -> usize {
        self.lens.iter().sum::<usize>() * size_of::<f32>()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let op = &self.op;
        let mut at = scratch.cast::<f32>();
        let [queries, bias, scores, shares, keys, values, products] = self.lens.map(|len| {
            let here = at;
            at = at.wrapping_add(len);
            here
        });
        let zeros: *const f32 = self.zeros.as_ptr().cast();
        let steps = op.result_steps();
        // The blocks of a head that are alike share packed keys and values.
        let mut packed = None;
        for unit in units {
            let (of_head, part) = (unit / self.parts, unit % self.parts);
            let (batch, head) = (of_head / op.heads, of_head % op.heads);
            let is_last = part + 1 == self.parts && self.blocks[0].rows != self.blocks[1].rows;
            let block = &self.blocks[usize::from(is_last)];
            let first = part * self.blocks[0].rows;
            let at = |i: usize, row: usize| op.rows[i].at(batch, head, row);
            let place = ((batch * op.heads + head) * op.queries + first) * op.keys;
            let out = batch * steps[0] + head * steps[1] + first * steps[2];
            // SAFETY: `infer` checked that all rows of q, k and v lie in their operands and that
            // masks broadcast to the scores and have all keys; a unit writes the rows of one block and head, which no
            // other does. The parts of the scratch memory are as `lower` measured them, and the plans were made for
            // these strides.
            unsafe {
                if packed.replace((of_head, is_last)) != Some((of_head, is_last)) {
                    let (k, v) = (src[1].cast::<f32>(), src[2].cast::<f32>());
                    let (of_keys, of_values) = (&block.scores, &block.values);
                    of_keys.run_pack(k.add(at(1, 0)), keys, 0..of_keys.pack_units());
                    of_values.run_pack(v.add(at(2, 0)), values, 0..of_values.pack_units());
                }
                let mut q = src[0].cast::<f32>().add(at(0, first));
                let mut factor = op.scale;
                if self.scaled {
                    for row in 0..block.rows {
                        let from = slice::from_raw_parts(q.add(row * op.rows[0].row), op.size);
                        let to = slice::from_raw_parts_mut(queries.add(row * op.size), op.size);
                        to.iter_mut().zip(from).for_each(|(to, from)| *to = from * op.scale);
                    }
                    (q, factor) = (queries, 1.0);
                }
                let (mut added, mut residual) = (zeros, ptr::null());
                if let Some(mask) = &self.mask {
                    let row = src[3].cast::<f32>().add(mask.at.index(place));
                    if mask.by_query {
                        residual = row;
                    } else {
                        ptr::copy_nonoverlapping(row, bias, op.keys);
                        bias.add(op.keys).write_bytes(0, block.scores.bias_len() - op.keys);
                        added = bias;
                    }
                }
                let plan = &block.scores;
                plan.run(q, keys, added, residual, scores, products, 0..plan.units());
                if let Some(more) = &self.more {
                    let rows = slice::from_raw_parts_mut(scores, block.rows * op.keys);
                    for (i, row) in rows.chunks_exact_mut(op.keys).enumerate() {
                        let at = more.at.index(place + i * op.keys);
                        let from = slice::from_raw_parts(src[4].cast::<f32>().add(at), op.keys);
                        row.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                    }
                }
                self.weights.run(scores, [block.rows, op.keys], factor, shares);
                let shares = slice::from_raw_parts_mut(shares, block.rows);
                if op.guarded {
                    for (row, share) in shares.iter_mut().enumerate().filter(|(_, s)| s.is_nan()) {
                        scores.add(row * op.keys).write_bytes(0, op.keys);
                        *share = 0.0;
                    }
                }
                let (plan, c) = (&block.values, dst.cast::<f32>().add(out));
                plan.run(scores, values, zeros, ptr::null(), c, products, 0..plan.units());
                for (row, share) in shares.iter().enumerate() {
                    let row = slice::from_raw_parts_mut(c.add(row * steps[2]), op.values);
                    row.iter_mut().for_each(|y| *y *= share);
                }
            }
        }
        Ok(())
    }
}
