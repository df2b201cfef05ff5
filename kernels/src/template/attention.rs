//! Attention of new rows over a cache of keys and values: `softmax(scale q k^T) v` with causal sight,
//! without the scores ever being a tensor (online softmax: Milakov and Gimelshein, 2018; Dao et al.,
//! 2022).
//!
//! Row `i` has a position, known when it runs, and sees the keys from position 0, or from the first
//! one in its window, up to its own. Heads of queries share heads of keys and values (Ainslie et al.,
//! 2023): what a block of rows of all query heads of one kv head has in common is read once.
//!
//! A run is made of two stages, the first of which must be complete before the second begins:
//!
//! * a plan of several rows: [`run_store`](AttentionPlan::run_store), then
//!   [`run`](AttentionPlan::run);
//! * a plan of one row: [`run_parts`](AttentionPlan::run_parts), which stores the row and computes
//!   parts of the keys of each head, then [`run`](AttentionPlan::run), which adds them up. How keys
//!   are divided depends on the position only.
//!
//! Scores are taken by a base-2 exponential; a weight that is less than 2^-126 of the greatest one
//! counts as that. A row with a NaN or an infinite score becomes NaN, where it matters.

use super::attention_layout::{CacheType, GROUP, Layout, VALUES};
use super::attention_prefill::Blocks;
use super::attention_tile::{
    AttentionKernels, LEAST, SPLITS, Scores, Store, Values, Weigh, kernels,
};
use crate::detect::follows_streams;
use crate::error::{check_len, checked_len};
use crate::{Isa, KernelError};
use core::ops::Range;

/// Sizes of an attention over a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// New rows.
    pub rows: usize,
    /// Heads of queries, a multiple of `kv_heads`.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head of queries and keys.
    pub size: usize,
    /// Elements of a head of values.
    pub values: usize,
    /// Positions of the cache.
    pub capacity: usize,
    /// How many positions a row sees, its own and those before it; 0 for all.
    pub window: usize,
    /// What scores are multiplied with; finite.
    pub scale: f32,
    /// A score becomes `soft_cap * tanh(score / soft_cap)`; 0 for no cap.
    pub soft_cap: f32,
    /// What the cache holds.
    pub cache: CacheType,
    /// Whether products of several rows may round their operands to bf16 where the instruction set
    /// multiplies those faster: an error of about 0.3 % of the result.
    pub bf16: bool,
    /// Distances of rows of q, k, v and of the result, in elements.
    pub strides: [usize; 4],
}

impl AttentionParams {
    /// Bytes of the cache, the same on every instruction set.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`].
    pub fn cache_bytes(&self) -> Result<usize, KernelError> {
        Ok(Layout::new(OP, self, GROUP)?.bytes)
    }

    /// Rows side by side, heads of keys and values of one size, the usual scale, all positions seen.
    pub fn new(rows: usize, [heads, kv_heads, size]: [usize; 3], capacity: usize) -> Self {
        let [q, kv] = [heads.saturating_mul(size), kv_heads.saturating_mul(size)];
        Self {
            rows,
            heads,
            kv_heads,
            size,
            values: size,
            capacity,
            window: 0,
            scale: inverse_root(size),
            soft_cap: 0.0,
            cache: CacheType::F16,
            bf16: false,
            strides: [q, kv, kv, q],
        }
    }
}

/// `1 / sqrt(n)`.
fn inverse_root(n: usize) -> f32 {
    1.0 / tilewright_intrinsics::soft::sqrt(n.max(1) as f32)
}

/// Operands of a run.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOperands {
    /// `[rows][heads * size]`, `strides[0]` apart.
    pub q: *const f32,
    /// `[rows][kv_heads * size]`, `strides[1]` apart.
    pub k: *const f32,
    /// `[rows][kv_heads * values]`, `strides[2]` apart.
    pub v: *const f32,
    /// The position of each row.
    pub positions: *const i32,
    /// Null, or for each head of queries one more score, raw and with a value of zeros: what a row may attend to if
    /// it is to nothing (attention sinks: Xiao et al., 2024).
    pub sinks: *const f32,
    /// The cache of the layer, a multiple of 64 bytes.
    pub cache: *mut u8,
    /// `[rows][heads * values]`, `strides[3]` apart.
    pub y: *mut f32,
}

/// An attention of fixed sizes.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    isa: Isa,
    pub(crate) params: AttentionParams,
    pub(crate) layout: Layout,
    /// Query heads of a kv head.
    pub(crate) group: usize,
    blocks: Blocks,
    /// Parts of the keys of a head; 0 for a plan of several rows.
    splits: usize,
    /// Bytes between what a plan of one row reads and what it fetches.
    ahead: usize,
}

const OP: &str = "attention";

/// Units that there are about, at least, in a run of one row.
const UNITS: usize = 16;
/// Bytes between what is read of a cache and what is fetched, where the machine needs that.
const AHEAD: usize = 8192;
/// Positions of a part, at least.
const PART: usize = 256;
/// Bytes of keys between two visits of the output, in a run of one row: they stay in the L1 cache.
const BLOCK: usize = 16 << 10;

impl AttentionPlan {
    /// Plans an attention.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for heads, sizes, scale, soft-cap and strides,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &AttentionParams) -> Result<Self, KernelError> {
        isa.require()?;
        let p = params;
        let wrong = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if p.kv_heads == 0 || p.heads == 0 || !p.heads.is_multiple_of(p.kv_heads) {
            return wrong("heads", "a multiple of those of keys and values, which must not be 0");
        }
        if p.size == 0 || p.values == 0 {
            return wrong("size", "at least 1");
        }
        if p.capacity == 0 || i32::try_from(p.capacity).is_err() {
            return wrong("capacity", "1 to 2147483647");
        }
        if !p.scale.is_finite() {
            return wrong("scale", "finite");
        }
        if !(p.soft_cap.is_finite() && p.soft_cap >= 0.0) {
            return wrong("soft_cap", "finite and not negative");
        }
        let rows =
            [(p.heads, p.size), (p.kv_heads, p.size), (p.kv_heads, p.values), (p.heads, p.values)];
        for ((heads, size), stride) in rows.into_iter().zip(p.strides) {
            if stride < checked_len(OP, &[heads, size])? {
                return wrong("strides", "at least the elements of a row");
            }
            checked_len(OP, &[p.rows, stride])?;
        }
        let layout = Layout::new(OP, p, kernels(isa).width)?;
        let group = p.heads / p.kv_heads;
        let blocks = Blocks::new(isa, p, &layout)?;
        let splits = match p.rows {
            1 => UNITS.div_ceil(p.kv_heads).min(p.capacity.div_ceil(PART)).min(SPLITS),
            _ => 0,
        };
        let ahead = if follows_streams() { 0 } else { AHEAD };
        Ok(Self { isa, params: *p, layout, group, blocks, splits, ahead })
    }

    /// The parameters.
    pub fn params(&self) -> &AttentionParams {
        &self.params
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        if self.splits > 0 { kernels(self.isa).name } else { self.blocks.name }
    }

    /// Bytes of a cache. It may begin as anything.
    pub fn cache_bytes(&self) -> usize {
        self.layout.bytes
    }

    /// Elements of a tensor of so many columns, `stride` apart.
    fn span(&self, heads: usize, size: usize, stride: usize) -> usize {
        match self.params.rows {
            0 => 0,
            rows => (rows - 1) * stride + heads * size,
        }
    }

    /// Elements of q.
    pub fn q_len(&self) -> usize {
        let p = &self.params;
        self.span(p.heads, p.size, p.strides[0])
    }

    /// Elements of k.
    pub fn k_len(&self) -> usize {
        let p = &self.params;
        self.span(p.kv_heads, p.size, p.strides[1])
    }

    /// Elements of v.
    pub fn v_len(&self) -> usize {
        let p = &self.params;
        self.span(p.kv_heads, p.values, p.strides[2])
    }

    /// Elements of the result.
    pub fn y_len(&self) -> usize {
        let p = &self.params;
        self.span(p.heads, p.values, p.strides[3])
    }

    /// Bytes of scratch memory that each thread needs.
    pub fn scratch_bytes(&self) -> usize {
        4 * if self.splits > 0 { self.few().iter().sum() } else { self.blocks.scratch() }
    }

    /// Bytes of what parts leave for [`run`](Self::run); 0 for a plan of several rows.
    pub fn parts_bytes(&self) -> usize {
        4 * self.params.heads * self.splits * self.part_len()
    }

    /// Elements that a part leaves for a row: the sums, the greatest score, the sum of weights.
    fn part_len(&self) -> usize {
        self.layout.v_row + GROUP
    }

    /// Independent units of storing; 0 for a plan of one row.
    pub fn store_units(&self) -> usize {
        if self.params.rows > 1 { self.params.kv_heads } else { 0 }
    }

    /// Independent units of the parts; 0 for a plan of several rows.
    pub fn part_units(&self) -> usize {
        self.params.kv_heads * self.splits
    }

    /// Independent units of the last stage.
    pub fn units(&self) -> usize {
        match self.splits {
            0 => self.params.kv_heads * self.blocks.count(),
            _ => self.params.heads,
        }
    }

    /// Checks positions, of which there is one per row.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`], or [`KernelError::InvalidParam`] for one outside the cache.
    pub fn check_positions(&self, positions: &[i32]) -> Result<(), KernelError> {
        check_len(OP, "positions", self.params.rows, positions.len())?;
        let inside = |&at: &i32| usize::try_from(at).is_ok_and(|at| at < self.params.capacity);
        if positions[..self.params.rows].iter().all(inside) {
            return Ok(());
        }
        Err(KernelError::InvalidParam { op: OP, param: "positions", expected: "inside the cache" })
    }

    /// The first position that a row sees, and one past the last.
    pub(crate) fn sight(&self, position: i32) -> [usize; 2] {
        let end = position as usize + 1;
        let first =
            if self.params.window == 0 { 0 } else { end.saturating_sub(self.params.window) };
        [first, end]
    }

    /// What queries are multiplied with, and the soft-cap, for scores in units of `log2 e`.
    pub(crate) fn factors(&self) -> [f32; 2] {
        let &AttentionParams { scale, soft_cap, .. } = &self.params;
        let log = core::f32::consts::LOG2_E;
        if soft_cap == 0.0 { [scale * log, 0.0] } else { [scale / soft_cap, soft_cap * log] }
    }

    /// Writes the rows of k and v of some units (kv heads) into the cache. Of rows with the same
    /// position the last one stays.
    ///
    /// # Safety
    ///
    /// * `k`, `v` and `positions` are readable as [`k_len`](Self::k_len) and so on say, the positions
    ///   pass [`check_positions`](Self::check_positions); the cache has
    ///   [`cache_bytes`](Self::cache_bytes), which nobody else uses meanwhile but for other units.
    /// * `units` lies in `0..self.store_units()`, and no other thread runs any of them now.
    pub unsafe fn run_store(&self, o: &AttentionOperands, units: Range<usize>) {
        debug_assert!(units.end <= self.store_units());
        let lanes = kernels(self.isa).lanes;
        for head in units {
            let mut row = 0;
            while row < self.params.rows {
                let left = self.params.rows - row;
                // SAFETY: there is a position per row.
                let position = |i: usize| unsafe { *o.positions.add(row + i) as usize };
                let first = position(0);
                // So many in a row are a vector of each element.
                let whole = first.is_multiple_of(lanes)
                    && left >= lanes
                    && (1..lanes).all(|i| position(i) == first + i);
                let count = if whole { lanes } else { 1 };
                // SAFETY: the caller's duties.
                unsafe { self.store(o, head, row, count) };
                row += count;
            }
        }
    }

    /// Writes so many rows of a kv head into the cache, of positions that follow each other in one group.
    unsafe fn store(&self, o: &AttentionOperands, head: usize, row: usize, rows: usize) {
        let (p, l) = (&self.params, &self.layout);
        // SAFETY: there is a position per row, inside the cache; rows and groups lie where strides and
        // layout say, and the instruction set is available.
        unsafe {
            let position = *o.positions.add(row) as usize;
            kernels(self.isa).store[p.cache as usize](&Store {
                rows,
                steps: [p.strides[1], p.strides[2]],
                k: o.k.add(row * p.strides[1] + head * p.size),
                size: p.size,
                keys: o.cache.add(l.keys(head, position)),
                values: o.cache.add(l.values(head, position)),
                position,
                v: o.v.add(row * p.strides[2] + head * p.values),
                v_size: p.values,
                v_row: l.v_row,
                v_width: l.v_width,
            });
        }
    }

    /// How many parts there are, and how many groups of values each has.
    fn division(&self, [first, end]: [usize; 2]) -> [usize; 2] {
        let groups = end.div_ceil(VALUES) - first / VALUES;
        let parts = (groups * VALUES).div_ceil(PART).min(self.splits).max(1);
        let each = groups.div_ceil(parts);
        [groups.div_ceil(each), each]
    }

    /// Elements of the parts of the scratch memory for one row of each head: scaled queries, scores,
    /// sums, and what there is per row.
    fn few(&self) -> [usize; 8] {
        let rows = self.group.next_multiple_of(GROUP);
        let q = (self.group * self.params.size).next_multiple_of(GROUP);
        let o = self.group * self.layout.v_row;
        [q, self.group * self.few_keys(), o, rows * GROUP, rows, rows, rows, rows]
    }

    /// Keys between two visits of the output.
    fn few_keys(&self) -> usize {
        (BLOCK / self.layout.k_group * GROUP / VALUES).clamp(1, 4) * VALUES
    }

    /// Stores the row of a plan of one row, and computes some parts.
    ///
    /// # Safety
    ///
    /// * `q`, `k`, `v`, the position and the sinks, if any, are readable, the position passes
    ///   [`check_positions`](Self::check_positions); the cache has
    ///   [`cache_bytes`](Self::cache_bytes), which nobody else uses meanwhile but for other units.
    /// * `parts` has [`parts_bytes`](Self::parts_bytes), `scratch` has
    ///   [`scratch_bytes`](Self::scratch_bytes); both are multiples of 64, and nobody else uses the
    ///   scratch memory.
    /// * `units` lies in `0..self.part_units()`, and no other thread runs any of them now.
    pub unsafe fn run_parts(
        &self,
        o: &AttentionOperands,
        parts: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.part_units());
        // SAFETY: a plan with parts has one row.
        let sight = self.sight(unsafe { *o.positions });
        let [count, each] = self.division(sight);
        for unit in units {
            let (head, part) = (unit / self.splits, unit % self.splits);
            if part >= count {
                continue;
            }
            let from = (sight[0] / VALUES + part * each) * VALUES;
            let keys = [from.max(sight[0]), (from + each * VALUES).min(sight[1])];
            // SAFETY: the caller's duties; a unit writes its own rows of the parts, and the last one of
            // a head what it alone reads.
            unsafe {
                let last = keys[1] == sight[1];
                if last {
                    self.store(o, head, 0, 1);
                }
                let parts = parts.add(head * self.group * self.splits * self.part_len());
                self.part(o, head, keys, last, parts.add(part * self.part_len()), scratch);
            }
        }
    }

    /// Where softmax starts for a head of queries: the greatest score so far, and the sum of weights.
    ///
    /// # Safety
    /// There are sinks for all heads, if any.
    pub(crate) unsafe fn start(&self, sinks: *const f32, head: usize) -> [f32; 2] {
        if sinks.is_null() {
            return [LEAST, 0.0];
        }
        // SAFETY: the caller's duty.
        let sink = unsafe { *sinks.add(head) };
        [(sink * core::f32::consts::LOG2_E).clamp(LEAST, f32::MAX), 1.0]
    }

    /// The part of a head's keys `keys`, not none; one part of all has the sinks.
    unsafe fn part(
        &self,
        ops: &AttentionOperands,
        head: usize,
        keys: [usize; 2],
        last: bool,
        parts: *mut f32,
        scratch: *mut f32,
    ) {
        let (p, l, group, block) = (&self.params, &self.layout, self.group, self.few_keys());
        let f: &AttentionKernels = kernels(self.isa);
        let [factor, cap] = self.factors();
        let mut at = scratch;
        let [q, s, o, sums, most, alpha, lo, hi] = self.few().map(|len| {
            let here = at;
            at = at.wrapping_add(len);
            here
        });
        let kind = p.cache as usize;
        // SAFETY: the scratch memory has room for all of this; groups of positions up to the last key
        // lie in the cache; the caller vouches for queries and parts.
        unsafe {
            (f.scale)(ops.q.add(head * group * p.size), q, group * p.size, factor);
            o.write_bytes(0, group * l.v_row);
            sums.write_bytes(0, group * GROUP);
            let sinks = if last { ops.sinks } else { core::ptr::null() };
            for row in 0..group.next_multiple_of(GROUP) {
                let start = if row < group { sinks } else { core::ptr::null() };
                let [score, sum] = self.start(start, head * group + row);
                *most.add(row) = score;
                if row < group {
                    *sums.add(row * GROUP) = sum;
                }
                *lo.cast::<u32>().add(row) = keys[0] as u32;
                *hi.cast::<u32>().add(row) = keys[1] as u32;
            }
            for start in (keys[0] / VALUES * VALUES..keys[1]).step_by(block) {
                let end = (start + block).min(keys[1]);
                let groups = (end - start).div_ceil(GROUP);
                (f.scores[kind])(&Scores {
                    q,
                    q_row: p.size,
                    rows: group,
                    size: p.size,
                    k: ops.cache.add(l.keys(head, start)),
                    group: l.k_group,
                    groups,
                    s,
                    s_row: block,
                    ahead: self.ahead,
                });
                (f.weigh)(&Weigh {
                    s,
                    stride: block,
                    p: s,
                    rows: group,
                    len: groups * GROUP,
                    start,
                    lo: lo.cast(),
                    hi: hi.cast(),
                    most,
                    alpha,
                    sums,
                    cap,
                });
                (f.rescale)(o, alpha, group, l.v_row);
                (f.values[kind])(&Values {
                    p: s,
                    p_row: block,
                    rows: group,
                    v: ops.cache.add(l.values(head, start)),
                    group: l.v_group,
                    keys: [keys[0].max(start) - start, end - start],
                    size: l.v_row,
                    width: l.v_width,
                    o,
                    ahead: self.ahead,
                });
            }
            for row in 0..group {
                let part = parts.add(row * self.splits * self.part_len());
                part.copy_from_nonoverlapping(o.add(row * l.v_row), l.v_row);
                let sum = (0..f.lanes).map(|i| *sums.add(row * GROUP + i)).sum();
                [*part.add(l.v_row), *part.add(l.v_row + 1)] = [*most.add(row), sum];
            }
        }
    }

    /// Computes some units of the last stage. Plans of several rows do not read `parts`, plans of one
    /// row not the scratch memory.
    ///
    /// # Safety
    ///
    /// * The stages before are complete.
    /// * `q`, the positions and the sinks, if any, are readable, the positions pass
    ///   [`check_positions`](Self::check_positions); the cache is readable; `y` has
    ///   [`y_len`](Self::y_len) writable elements that overlap no operand.
    /// * `parts` is what [`run_parts`](Self::run_parts) wrote; `scratch` has
    ///   [`scratch_bytes`](Self::scratch_bytes), is a multiple of 64 and nobody else's.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(
        &self,
        o: &AttentionOperands,
        parts: *const f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        if self.splits == 0 {
            // SAFETY: the caller's duties.
            return unsafe { self.blocks.run(self, o, scratch, units) };
        }
        let merge = kernels(self.isa).merge;
        let (p, len) = (&self.params, self.part_len());
        // SAFETY: a plan with parts has one row, and its parts are complete.
        unsafe {
            let [count, _] = self.division(self.sight(*o.positions));
            for head in units {
                let parts = parts.add(head * self.splits * len);
                merge(parts, count, len, self.layout.v_row, o.y.add(head * p.values), p.values);
            }
        }
    }
}
