//! Attention of several rows: blocks of rows times blocks of keys, by the matrix product's tiles.
//!
//! A block's rows are those of some neighbouring positions and all query heads of one kv head, which
//! share its keys and values. Per block of keys: unpack keys, scores, weights, unpack values, sums.
//! Tiles that see nothing of a panel of keys are left out.

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

/// Most keys of a block, for products of `f32` and of bf16: then what else is done per block costs
/// more. A multiple of [`VALUES`], where blocks begin.
const KEYS: [usize; 2] = [128, 256];
/// Widest panels.
const PANEL: usize = 2 * GROUP;
/// Rows of a block, about, at most: beyond, keys and values cost nothing any more.
const ROWS: usize = 384;
/// Elements of what a block works on: most of an L2 cache of 1 MiB.
const WORK: usize = 192 << 10;

static ZEROS: [f32; PANEL] = [0.0; PANEL];

/// Some rows of a block and the kernel for them.
#[derive(Clone, Copy, Debug)]
struct Tile {
    row: usize,
    rows: usize,
    run: Run,
}

#[derive(Clone, Copy, Debug)]
enum Run {
    Single(TileFn),
    Half(DotFn),
}

/// A product of a tile. Distances and lengths are in words, which are elements of `f32` or two of
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
}

/// The blocks of rows of a plan.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) name: &'static str,
    /// Whether products are of bf16.
    half: bool,
    /// Keys of a block.
    keys: usize,
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
    /// Tiles by width, of a block and of the last one.
    tiles: Vec<(usize, [Vec<Tile>; 2])>,
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
        let (all, keys) = (kernels_of(isa, half), KEYS[usize::from(half)]);
        let group = p.heads / p.kv_heads;
        // The tile of most accumulators: its width is that of the panels.
        let main = all.iter().map(|k| k.0).filter(|k| k.c_ob <= PANEL && k.w_ob > 1);
        let main = main.max_by_key(|k| (k.w_ob * k.c_vec, k.w_ob));
        let unsupported =
            KernelError::Unsupported { op: "attention", what: "this instruction set" };
        let info = main.ok_or(unsupported)?;
        let fixed = keys * (p.size + l.v_row);
        let per_row = p.size + keys + l.v_row + GROUP;
        let rows = (WORK.saturating_sub(fixed) / per_row).clamp(info.w_ob * 4, ROWS);
        let most = (rows / group).max(1);
        let count = p.rows.div_ceil(most);
        let tokens = p.rows.div_ceil(count.max(1));
        let count = p.rows.div_ceil(tokens.max(1));
        let last = p.rows - count.saturating_sub(1) * tokens;
        let len = |sizes: &[usize]| checked_len("attention", sizes);
        let rows = len(&[tokens, group])?.next_multiple_of(GROUP);
        let (mut panels, mut column) = (Vec::new(), 0);
        while column < l.v_row {
            let fits = |k: &usize| *k <= info.c_ob.min(l.v_row - column);
            let width = all.iter().map(|k| k.0.c_ob).filter(fits).max().unwrap_or(info.c_ob);
            panels.push((column, width));
            column += width;
        }
        let mut widths: Vec<usize> = panels.iter().map(|panel| panel.1).collect();
        widths.push(info.c_ob);
        widths.sort_unstable();
        widths.dedup();
        let cuts = widths.into_iter().map(|width| {
            (width, [tokens, last].map(|tokens| cut_rows(tokens * group, width, &all)))
        });
        let unit = 1 + usize::from(half);
        let (words, o) = (p.size.div_ceil(unit), len(&[rows, l.v_row])?);
        let (q, s) = (len(&[rows, words])?, len(&[rows, keys])?);
        let weights = if half { s / 2 } else { 0 };
        let (k, v) = (len(&[keys, words])?, keys / unit * l.v_row);
        let lens = [q, s, weights, o, k, v, rows * GROUP, rows, rows, rows, rows];
        Ok(Self {
            name: info.name,
            half,
            keys,
            tokens,
            last,
            count,
            rows,
            width: info.c_ob,
            lanes: info.c_ob / info.c_vec,
            panels,
            tiles: cuts.collect(),
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
        let [start, end] = unsafe {
            for row in 0..rows {
                let (token, of_group) = (first + row / plan.group, row % plan.group);
                let column = (head * plan.group + of_group) * p.size;
                let from = ops.q.add(token * p.strides[0] + column);
                let pack = half.map_or(f.scale, |half| half.words);
                pack(from, q.add(row * words), p.size, factor);
            }
            o.write_bytes(0, rows * l.v_row);
            sums.write_bytes(0, rows * GROUP);
            self.look(plan, ops.positions.add(first), rows, [lo, hi], most)
        };
        let p = if self.half { weights } else { s };
        let work = Work { plan, f, half, head, rows, is_last, q, s, p, o, k, v, lo, hi };
        for start in (start / VALUES * VALUES..end).step_by(self.keys) {
            let end = (start + self.keys).min(end);
            let len = (end - start).next_multiple_of(GROUP);
            let stride = self.keys;
            let weigh = Weigh { s, stride, rows, len, start, lo, hi, most, alpha, sums, cap };
            // SAFETY: the keys lie in the cache, what is written in the scratch memory.
            unsafe {
                self.scores(&work, ops.cache, start, end);
                (f.weigh)(&weigh);
                if let Some(half) = half {
                    for row in 0..rows {
                        let to = weights.add(row * self.keys / 2);
                        (half.words)(s.add(row * self.keys), to, len, 1.0);
                    }
                }
                (f.rescale)(o, alpha, rows, l.v_row);
                self.sums(&work, ops.cache, start, end);
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

    /// Writes what each row sees, and where its softmax starts; returns the range of all.
    unsafe fn look(
        &self,
        plan: &AttentionPlan,
        positions: *const i32,
        rows: usize,
        [lo, hi]: [*mut u32; 2],
        most: *mut f32,
    ) -> [usize; 2] {
        let [mut start, mut end] = [usize::MAX, 0];
        for row in 0..self.rows {
            // SAFETY: there is a position for each row of the block, and room in the scratch memory.
            unsafe {
                let sight = match row < rows {
                    true => plan.sight(*positions.add(row / plan.group)),
                    false => [0, 0],
                };
                if row < rows {
                    [start, end] = [start.min(sight[0]), end.max(sight[1])];
                }
                [*lo.add(row), *hi.add(row)] = sight.map(|at| at as u32);
                *most.add(row) = LEAST;
            }
        }
        [start, end]
    }

    /// The tiles of a width.
    fn tiles(&self, width: usize, is_last: bool) -> &[Tile] {
        let found = self.tiles.iter().find(|tiles| tiles.0 == width);
        found.map_or(&[], |tiles| &tiles.1[usize::from(is_last)])
    }

    /// Scores of all rows for the keys `start..end`, as far as a tile sees some.
    unsafe fn scores(&self, w: &Work<'_>, cache: *const u8, start: usize, end: usize) {
        let (p, l, kind) = (&w.plan.params, &w.plan.layout, w.plan.params.cache as usize);
        let words = p.size.div_ceil(self.unit());
        let unpack = w.half.map_or(&w.f.unpack_k, |half| &half.unpack_k)[kind];
        // SAFETY: the groups lie in the cache, the panels in the scratch memory.
        unsafe {
            unpack(&Unpack {
                src: cache.add(l.keys(w.head, start)),
                group: l.k_group,
                count: end - start,
                size: p.size,
                width: self.width,
                panels: &[],
                rows: 0,
                dst: w.k,
            });
            for column in (0..end - start).step_by(self.width) {
                for tile in self.tiles(self.width, w.is_last) {
                    let sight = w.sight(tile);
                    if sight[1] <= start + column || sight[0] >= start + column + self.width {
                        continue;
                    }
                    self.product(
                        tile,
                        &Product {
                            a: w.q.add(tile.row * words),
                            a_row: words,
                            b: w.k.add(column * words),
                            width: self.width,
                            o: w.s.add(tile.row * self.keys + column),
                            o_row: self.keys,
                            k: words,
                            added: false,
                        },
                    );
                }
            }
        }
    }

    /// Adds the sums of the values of `start..end` by the weights of all rows.
    unsafe fn sums(&self, w: &Work<'_>, cache: *const u8, start: usize, end: usize) {
        let (l, unit) = (&w.plan.layout, self.unit());
        let unpack = w.half.map_or(&w.f.unpack_v, |half| &half.unpack_v);
        let row = self.keys / unit;
        // SAFETY: as in `scores`.
        unsafe {
            unpack[w.plan.params.cache as usize](&Unpack {
                src: cache.add(l.values(w.head, start)),
                group: l.v_group,
                count: end - start,
                size: l.v_row,
                width: l.v_width,
                panels: &self.panels,
                rows: row,
                dst: w.v,
            });
            for &(column, width) in &self.panels {
                for tile in self.tiles(width, w.is_last) {
                    let sight = w.sight(tile);
                    let (from, to) = (sight[0].max(start) - start, sight[1].min(end));
                    if to <= start + from {
                        continue;
                    }
                    // Weights that are not seen are 0, so that it does not matter with what they share
                    // a word.
                    let (from, to) = (from / unit, (to - start).div_ceil(unit));
                    self.product(
                        tile,
                        &Product {
                            a: w.p.add(tile.row * row + from),
                            a_row: row,
                            b: w.v.add(column * row + from * width),
                            width,
                            o: w.o.add(tile.row * l.v_row + column),
                            o_row: l.v_row,
                            k: to - from,
                            added: true,
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
                    tiles: 1,
                    next: NextTile::default(),
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
            // SAFETY: the caller's duties.
            Run::Half(run) => unsafe {
                run(&DotArgs {
                    a: p.a,
                    step: p.a_row,
                    segments: &[0],
                    words: p.k,
                    b: p.b,
                    bias: ZEROS.as_ptr(),
                    scale: none,
                    shift: none,
                    offset: none,
                    row_sums: none,
                    o: p.o.cast(),
                    o_step: p.o_row,
                    o_plane: 16,
                    tail: self.lanes,
                    finish: if p.added {
                        Finish::Added
                    } else {
                        Finish::Float(TileActivation::None)
                    },
                });
            },
        }
    }
}

/// A block at work.
struct Work<'a> {
    plan: &'a AttentionPlan,
    f: &'a AttentionKernels,
    half: Option<&'a HalfKernels>,
    head: usize,
    rows: usize,
    is_last: bool,
    q: *const f32,
    s: *mut f32,
    /// Weights: those of `f32` lie where the scores were.
    p: *const f32,
    o: *mut f32,
    k: *mut f32,
    v: *mut f32,
    lo: *const u32,
    hi: *const u32,
}

impl Work<'_> {
    /// What the rows of a tile see together.
    ///
    /// # Safety
    /// The bounds of all rows of the block have been written.
    unsafe fn sight(&self, tile: &Tile) -> [usize; 2] {
        debug_assert!(tile.row + tile.rows <= self.rows);
        let mut sight = [u32::MAX, 0];
        for row in tile.row..tile.row + tile.rows {
            // SAFETY: a row of the block.
            unsafe {
                sight = [sight[0].min(*self.lo.add(row)), sight[1].max(*self.hi.add(row))];
            }
        }
        sight.map(|at| at as usize)
    }
}

/// Cuts rows into tiles of a width.
fn cut_rows(rows: usize, width: usize, kernels: &[(KernelInfo, Run)]) -> Vec<Tile> {
    let of_width = kernels.iter().filter(|k| k.0.c_ob == width);
    let heights: Vec<_> = of_width.clone().map(|k| (k.0.w_ob, cost(&k.0))).collect();
    let mut row = 0;
    let tiles = cut(rows, &heights).0.into_iter().filter_map(|height| {
        let run = of_width.clone().find(|k| k.0.w_ob == height)?.1;
        let tile = Tile { row, rows: height, run };
        row += height;
        Some(tile)
    });
    tiles.collect()
}
