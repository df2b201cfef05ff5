//! Attention of several rows: blocks of rows times blocks of keys, by the matrix product's tiles.
//!
//! A block's rows are those of some neighbouring positions and all query heads of one kv head, which
//! share its keys and values. Per block of keys: unpack keys and values; then for as many rows as a tile
//! has, whose scores stay in the L1 cache: scores, weights, sums. Panels of keys of which a tile sees nothing
//! are left out.

use super::attention::{AttentionOperands, AttentionParams, AttentionPlan};
use super::attention_layout::{GROUP, Layout, VALUES};
use super::attention_tile::{AttentionKernels, LEAST, Unpack, Weigh, kernels};
use super::attention_unpack::{HalfKernels, half_kernels};
use super::conv_geometry::{cost, cut};
use super::dot_tile::{self, DotArgs, DotFn, Finish};
use super::matmul_tile::{self, NextTile, TileArgs, TileFn};
use crate::epilogue::TileActivation;
use crate::error::checked_len;
use crate::{Dtype, Isa, KernelError, KernelInfo};
use alloc::vec::Vec;
use core::ops::Range;

/// Keys of a block: as many as fit, as each block costs something. Multiples of [`VALUES`], where they begin.
const KEYS: [usize; 4] = [512, 256, 128, 64];
/// Widest panels.
const PANEL: usize = 2 * GROUP;
/// Rows of a block, about, at most: beyond, keys and values cost nothing any more.
const ROWS: usize = 384;
/// Words of what a block works on: most of an L2 cache of 1 MiB. Half of it may be keys and values.
const WORK: usize = 192 << 10;

static ZEROS: [f32; PANEL] = [0.0; PANEL];

/// Some rows and the kernel for them.
#[derive(Clone, Copy, Debug)]
struct Tile {
    row: usize,
    rows: usize,
    run: Run,
}

/// Neighbouring panels of values of one width.
#[derive(Clone, Copy, Debug)]
struct Span {
    column: usize,
    width: usize,
    count: usize,
}

/// Rows of a block that are a tile of scores: those stay in the L1 cache until they are used.
#[derive(Clone, Debug)]
struct Chunk {
    tile: Tile,
    /// The rows' tiles of values, for each span.
    values: Vec<Vec<Tile>>,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Single(TileFn),
    Half(DotFn),
}

/// Products of neighbouring tiles. Distances and lengths are in words, which are elements of `f32` or two of
/// bf16.
struct Product {
    a: *const f32,
    a_row: usize,
    /// A panel `[k][width]`.
    b: *const f32,
    width: usize,
    o: *mut f32,
    o_row: usize,
    k: usize,
    /// Whether it is added to what is there.
    added: bool,
    /// Tiles side by side, and from one to the next.
    tiles: usize,
    next: NextTile,
}

/// The blocks of rows of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) name: &'static str,
    /// Whether products are of bf16.
    half: bool,
    /// Keys of a block.
    keys: usize,
    /// Between two rows of scores, and of weights: not a power of two, whose lines fall into few sets of a
    /// cache.
    step: usize,
    /// Positions of a block, and of the last one.
    tokens: usize,
    last: usize,
    count: usize,
    /// Rows of a block, rounded up to a multiple of 16.
    rows: usize,
    /// Columns of a panel of keys.
    width: usize,
    lanes: usize,
    /// The first column and the width of panels of values.
    panels: Vec<(usize, usize)>,
    spans: Vec<Span>,
    /// The rows of a block and of the last one.
    chunks: [Vec<Chunk>; 2],
    /// Elements of the parts of the scratch memory.
    lens: [usize; 11],
}

/// The tiles of products.
fn kernels_of(isa: Isa, half: bool) -> Vec<(KernelInfo, Run)> {
    if half {
        let tiles = dot_tile::row(isa, Dtype::Bf16).kernels.iter();
        return tiles.map(|k| (k.info, Run::Half(k.run))).collect();
    }
    matmul_tile::kernels(isa).iter().map(|k| (k.info, Run::Single(k.run))).collect()
}

impl Blocks {
    pub(crate) fn new(isa: Isa, p: &AttentionParams, l: &Layout) -> Result<Self, KernelError> {
        let half = p.bf16 && half_kernels(isa).is_some();
        let all = kernels_of(isa, half);
        let unit = 1 + usize::from(half);
        let per_key = p.size.saturating_add(l.v_row).div_ceil(unit);
        let fits = |keys: &&usize| per_key.saturating_mul(**keys) <= WORK / 2;
        let keys = *KEYS.iter().find(fits).unwrap_or(&VALUES);
        let keys = keys.min(p.capacity.next_multiple_of(VALUES));
        let group = p.heads / p.kv_heads;
        // The tile of most accumulators: its width is that of the panels.
        let main = all.iter().map(|k| k.0).filter(|k| k.c_ob() <= PANEL && k.w_ob() > 1);
        let main = main.max_by_key(|k| (k.w_ob() * k.c_vec(), k.w_ob()));
        let unsupported =
            KernelError::Unsupported { op: "attention", what: "this instruction set" };
        let info = main.ok_or(unsupported)?;
        let fixed = keys * per_key;
        let per_row = p.size + l.v_row + GROUP;
        let rows = (WORK.saturating_sub(fixed) / per_row).clamp(info.w_ob() * 4, ROWS);
        let most = (rows / group).max(1);
        let count = p.rows.div_ceil(most);
        let tokens = p.rows.div_ceil(count.max(1));
        let count = p.rows.div_ceil(tokens.max(1));
        let last = p.rows - count.saturating_sub(1) * tokens;
        let len = |sizes: &[usize]| checked_len("attention", sizes);
        let rows = len(&[tokens, group])?.next_multiple_of(GROUP);
        let (mut panels, mut column) = (Vec::new(), 0);
        while column < l.v_row {
            let fits = |k: &usize| *k <= info.c_ob().min(l.v_row - column);
            let width = all.iter().map(|k| k.0.c_ob()).filter(fits).max().unwrap_or(info.c_ob());
            panels.push((column, width));
            column += width;
        }
        let mut spans: Vec<Span> = Vec::new();
        for &(column, width) in &panels {
            match spans.last_mut() {
                Some(span) if span.width == width => span.count += 1,
                _ => spans.push(Span { column, width, count: 1 }),
            }
        }
        let chunks = [tokens, last].map(|tokens| {
            let chunk = |tile: Tile| {
                let of_span = |span: &Span| cut_rows(tile.rows, span.width, &all);
                Chunk { values: spans.iter().map(of_span).collect(), tile }
            };
            let tiles = cut_rows(tokens * group, info.c_ob(), &all);
            tiles.into_iter().map(chunk).collect::<Vec<_>>()
        });
        let tallest = chunks.iter().flatten().map(|chunk| chunk.tile.rows).max().unwrap_or(0);
        let (words, o) = (p.size.div_ceil(unit), len(&[rows, l.v_row])?);
        let step = keys + GROUP;
        let (q, s) = (len(&[rows, words])?, len(&[tallest, step])?);
        let weights = if half { s / 2 } else { 0 };
        let (k, v) = (len(&[keys, words])?, keys / unit * l.v_row);
        // Vectors of what there is per row begin at any row.
        let padded = rows + GROUP;
        let lens = [q, s, weights, o, k, v, rows * GROUP, padded, padded, rows, rows];
        Ok(Self {
            name: info.name,
            half,
            keys,
            step,
            tokens,
            last,
            count,
            rows,
            width: info.c_ob(),
            lanes: info.c_ob() / info.c_vec(),
            panels,
            spans,
            chunks,
            lens,
        })
    }

    /// Elements per word of a product.
    fn unit(&self) -> usize {
        1 + usize::from(self.half)
    }

    /// Blocks of rows of a head.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Elements of scratch memory.
    pub(crate) fn scratch(&self) -> usize {
        self.lens.iter().sum()
    }

    /// Computes some units: blocks of a kv head, head after head.
    ///
    /// # Safety
    /// That of [`AttentionPlan::run`].
    pub(crate) unsafe fn run(
        &self,
        plan: &AttentionPlan,
        ops: &AttentionOperands,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        for unit in units {
            let (head, block) = (unit / self.count, unit % self.count);
            // SAFETY: the caller's duties; a unit writes the rows of its own block and head.
            unsafe { self.block(plan, ops, scratch, head, block) };
        }
    }

    unsafe fn block(
        &self,
        plan: &AttentionPlan,
        ops: &AttentionOperands,
        scratch: *mut f32,
        head: usize,
        block: usize,
    ) {
        let (p, l, f) = (&plan.params, &plan.layout, kernels(plan.isa()));
        let half = if self.half { half_kernels(plan.isa()) } else { None };
        let [factor, cap] = plan.factors();
        let is_last = block + 1 == self.count;
        let (first, tokens) = (block * self.tokens, if is_last { self.last } else { self.tokens });
        let rows = tokens * plan.group;
        let mut at = scratch;
        let [q, s, weights, o, k, v, sums, most, alpha, lo, hi] = self.lens.map(|len| {
            let here = at;
            at = at.wrapping_add(len);
            here
        });
        let (lo, hi) = (lo.cast::<u32>(), hi.cast::<u32>());
        let words = p.size.div_ceil(self.unit());
        // SAFETY: the scratch memory has room for all of this, operands have the rows.
        let ([start, end], common) = unsafe {
            for row in 0..rows {
                let (token, of_group) = (first + row / plan.group, row % plan.group);
                let column = (head * plan.group + of_group) * p.size;
                let from = ops.q.add(token * p.strides[0] + column);
                let pack = half.map_or(f.scale, |half| half.words);
                pack(from, q.add(row * words), p.size, factor);
            }
            o.write_bytes(0, rows * l.v_row);
            sums.write_bytes(0, rows * GROUP);
            let sinks =
                if ops.sinks.is_null() { ops.sinks } else { ops.sinks.add(head * plan.group) };
            self.look(plan, ops.positions.add(first), sinks, rows, [lo, hi], [most, sums])
        };
        let p = if self.half { weights } else { s };
        let work = Work { plan, f, half, head, q, s, p, o, k, v, lo, hi, common };
        for start in (start / VALUES * VALUES..end).step_by(self.keys) {
            let end = (start + self.keys).min(end);
            let len = (end - start).next_multiple_of(GROUP);
            // SAFETY: the keys lie in the cache, what is written in the scratch memory.
            unsafe { self.unpack(&work, ops.cache, start, end) };
            for chunk in &self.chunks[usize::from(is_last)] {
                let Tile { row, rows, .. } = chunk.tile;
                // SAFETY: the rows have been looked at.
                let seen =
                    unsafe { work.sight(row..row + rows, [start, end]) }.map(|at| at - start);
                if seen[0] >= seen[1] {
                    continue;
                }
                let weigh = Weigh {
                    s,
                    stride: self.step,
                    p,
                    rows,
                    len,
                    start,
                    lo: lo.wrapping_add(row),
                    hi: hi.wrapping_add(row),
                    most: most.wrapping_add(row),
                    alpha: alpha.wrapping_add(row),
                    sums: sums.wrapping_add(row * GROUP),
                    cap,
                };
                // SAFETY: the rows of the block and what belongs to them.
                unsafe {
                    self.scores(&work, chunk, seen);
                    half.map_or(f.weigh, |half| half.weigh)(&weigh);
                    (f.rescale)(o.add(row * l.v_row), weigh.alpha, rows, l.v_row);
                    self.sums(&work, chunk, seen);
                }
            }
        }
        for row in 0..rows {
            let (token, of_group) = (first + row / plan.group, row % plan.group);
            let n = plan.params.values;
            // SAFETY: a row of the result that this unit alone writes.
            unsafe {
                let column = (head * plan.group + of_group) * n;
                let y = ops.y.add(token * plan.params.strides[3] + column);
                (f.finish)(o.add(row * l.v_row), sums.add(row * GROUP), *most.add(row), y, n);
            }
        }
    }

    /// Writes what each row sees, and where its softmax starts; returns the range of what any sees, and of
    /// what all see.
    unsafe fn look(
        &self,
        plan: &AttentionPlan,
        positions: *const i32,
        sinks: *const f32,
        rows: usize,
        [lo, hi]: [*mut u32; 2],
        [most, sums]: [*mut f32; 2],
    ) -> ([usize; 2], [usize; 2]) {
        let ([mut start, mut end], mut common) = ([usize::MAX, 0], [0, usize::MAX]);
        for row in 0..self.rows {
            // SAFETY: there is a position for each row of the block, and room in the scratch memory.
            unsafe {
                let sight = match row < rows {
                    true => plan.sight(*positions.add(row / plan.group)),
                    false => [0, 0],
                };
                if row < rows {
                    [start, end] = [start.min(sight[0]), end.max(sight[1])];
                    common = [common[0].max(sight[0]), common[1].min(sight[1])];
                }
                [*lo.add(row), *hi.add(row)] = sight.map(|at| at as u32);
                let [score, sum] = match row < rows {
                    true => plan.start(sinks, row % plan.group),
                    false => [LEAST, 0.0],
                };
                *most.add(row) = score;
                *sums.add(row * GROUP) = sum;
            }
        }
        ([start, end], common)
    }

    /// Unpacks the keys and values of `start..end`.
    unsafe fn unpack(&self, w: &Work<'_>, cache: *const u8, start: usize, end: usize) {
        let (l, kind) = (&w.plan.layout, w.plan.params.cache as usize);
        let [keys, values] = match w.half {
            Some(half) => [half.unpack_k[kind], half.unpack_v[kind]],
            None => [w.f.unpack_k[kind], w.f.unpack_v[kind]],
        };
        let of_keys = Unpack {
            src: cache.wrapping_add(l.keys(w.head, start)),
            group: l.k_group,
            count: end - start,
            size: w.plan.params.size,
            width: self.width,
            panels: &[],
            rows: 0,
            dst: w.k,
        };
        let of_values = Unpack {
            src: cache.wrapping_add(l.values(w.head, start)),
            group: l.v_group,
            size: l.v_row,
            width: l.v_width,
            panels: &self.panels,
            rows: self.keys / self.unit(),
            dst: w.v,
            ..of_keys
        };
        // SAFETY: the groups lie in the cache, the panels in the scratch memory.
        unsafe {
            keys(&of_keys);
            values(&of_values);
        }
    }

    /// Scores of a chunk's rows for the panels of keys of which they see some; keys count from the
    /// block's first.
    unsafe fn scores(&self, w: &Work<'_>, chunk: &Chunk, [from, to]: [usize; 2]) {
        let words = w.plan.params.size.div_ceil(self.unit());
        let column = from / self.width * self.width;
        // SAFETY: the panels and the rows lie in the scratch memory.
        unsafe {
            self.product(
                &chunk.tile,
                &Product {
                    a: w.q.add(chunk.tile.row * words),
                    a_row: words,
                    b: w.k.add(column * words),
                    width: self.width,
                    o: w.s.add(column),
                    o_row: self.step,
                    k: words,
                    added: false,
                    tiles: (to - column).div_ceil(self.width),
                    next: NextTile { b: self.width * words, o: self.width, ..NextTile::default() },
                },
            );
        }
    }

    /// Adds the sums of the values that a chunk's rows see, by their weights.
    unsafe fn sums(&self, w: &Work<'_>, chunk: &Chunk, [from, to]: [usize; 2]) {
        let (l, unit) = (&w.plan.layout, self.unit());
        let (keys, step) = (self.keys / unit, self.step / unit);
        // Weights that are not seen are 0, so that it does not matter with what they share a word.
        let (from, to) = (from / unit, to.div_ceil(unit));
        for (span, tiles) in self.spans.iter().zip(&chunk.values) {
            for tile in tiles {
                let row = chunk.tile.row + tile.row;
                // SAFETY: as in `scores`.
                unsafe {
                    self.product(
                        tile,
                        &Product {
                            a: w.p.add(tile.row * step + from),
                            a_row: step,
                            b: w.v.add(span.column * keys + from * span.width),
                            width: span.width,
                            o: w.o.add(row * l.v_row + span.column),
                            o_row: l.v_row,
                            k: to - from,
                            added: true,
                            tiles: span.count,
                            next: NextTile {
                                b: span.width * keys,
                                o: span.width,
                                ..NextTile::default()
                            },
                        },
                    );
                }
            }
        }
    }

    /// # Safety
    /// The CPU has the tile's instructions; the operands are readable as [`Product`] says, those rows
    /// of the output writable.
    unsafe fn product(&self, tile: &Tile, p: &Product) {
        let none = core::ptr::null();
        match tile.run {
            // SAFETY: the caller's duties.
            Run::Single(run) => unsafe {
                run(&TileArgs {
                    tiles: p.tiles,
                    next: p.next,
                    a: p.a,
                    b: p.b,
                    bias: ZEROS.as_ptr(),
                    row_bias: false,
                    residual: none,
                    o: p.o,
                    a_row: p.a_row,
                    a_run: p.k,
                    a_step: 0,
                    b_row: p.width,
                    o_row: p.o_row,
                    o_plane: 16,
                    k: p.k,
                    tail: self.lanes,
                    first: !p.added,
                    last: false,
                    activation: TileActivation::None,
                    // Its panels have just been made.
                    stream: false,
                });
            },
            Run::Half(run) => {
                for i in 0..p.tiles {
                    let args = DotArgs {
                        a: p.a,
                        step: p.a_row,
                        segments: &[0],
                        words: p.k,
                        b: p.b.wrapping_add(i * p.next.b),
                        spare: core::ptr::null(),
                        bias: ZEROS.as_ptr(),
                        scale: none,
                        shift: none,
                        offset: none,
                        row_sums: none,
                        o: p.o.wrapping_add(i * p.next.o).cast(),
                        o_step: p.o_row,
                        o_plane: 16,
                        tail: self.lanes,
                        finish: if p.added {
                            Finish::Added
                        } else {
                            Finish::Float(TileActivation::None)
                        },
                    };
                    // SAFETY: the caller's duties.
                    unsafe { run(&args) };
                }
            }
        }
    }
}

/// A block at work.
struct Work<'a> {
    plan: &'a AttentionPlan,
    f: &'a AttentionKernels,
    half: Option<&'a HalfKernels>,
    head: usize,
    q: *const f32,
    s: *mut f32,
    /// Weights: those of `f32` lie where the scores were.
    p: *const f32,
    o: *mut f32,
    k: *mut f32,
    v: *mut f32,
    lo: *const u32,
    hi: *const u32,
    /// What all rows see.
    common: [usize; 2],
}

impl Work<'_> {
    /// What some rows see together of some keys.
    ///
    /// # Safety
    /// The bounds of these rows of the block have been written.
    unsafe fn sight(&self, rows: Range<usize>, keys: [usize; 2]) -> [usize; 2] {
        if self.common[0] <= keys[0] && keys[1] <= self.common[1] {
            return keys;
        }
        let mut sight = [u32::MAX, 0];
        for row in rows {
            // SAFETY: a row of the block.
            unsafe {
                sight = [sight[0].min(*self.lo.add(row)), sight[1].max(*self.hi.add(row))];
            }
        }
        let [from, to] = sight.map(|at| at as usize);
        [from.max(keys[0]), to.min(keys[1]).max(keys[0])]
    }
}

/// Cuts rows into tiles of a width.
fn cut_rows(rows: usize, width: usize, kernels: &[(KernelInfo, Run)]) -> Vec<Tile> {
    let of_width = kernels.iter().filter(|k| k.0.c_ob() == width);
    let heights: Vec<_> = of_width.clone().map(|k| (k.0.w_ob(), cost(&k.0))).collect();
    let mut row = 0;
    let tiles = cut(rows, &heights).0.into_iter().filter_map(|height| {
        let run = of_width.clone().find(|k| k.0.w_ob() == height)?.1;
        let tile = Tile { row, rows: height, run };
        row += height;
        Some(tile)
    });
    tiles.collect()
}
