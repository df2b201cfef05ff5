//! The loops of the matrix product around its microkernels.

use super::layout::Job;
use super::matmul::{MatmulForm, MatmulPlan};
use super::matmul_cut::{Panel, blocks};
use super::matmul_tile::{NextTile, TileArgs};
use super::window::rectangle;
use crate::{Algorithm, C_BLOCK};
use core::ops::Range;

/// Elements of a row of A that lie together when it is packed: a cache line.
const RUN: usize = C_BLOCK;

/// A plain B is read in place where its rows are this short, or where `near` says so: in the L1 cache
/// other rows get into each other's way.
const IN_PLACE_ROW: usize = 64;

/// Tiles between two times that rows of the next panels are asked for: the loads of more would stand
/// in the way of each other.
const FETCHED: usize = 4;

/// Elements of B, more than which are taken not to stay in the L2 cache from one run to the next.
const STREAM: usize = 256 << 10;

/// The operands of a run.
#[derive(Clone, Copy)]
struct Operands {
    a: *const f32,
    b: *const f32,
    /// Whether `b` is packed.
    packed: bool,
    bias: *const f32,
    residual: *const f32,
    c: *mut f32,
    scratch: *mut f32,
}

impl MatmulPlan {
    /// Runs some units on a packed B. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `a`, `weights` and `bias` are readable for [`a_len`](Self::a_len),
    ///   [`weights_len`](Self::weights_len) and [`bias_len`](Self::bias_len) elements, `residual`
    ///   for [`c_len`](Self::c_len) if the epilogue has one (else it is not read); `c` is writable
    ///   for `c_len`, `scratch` for [`scratch_len`](Self::scratch_len). Any element alignment will do.
    /// * `c` and `scratch` overlap no other operand, and no other thread uses `scratch`.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `c`.
    pub unsafe fn run(
        &self,
        a: *const f32,
        weights: *const f32,
        bias: *const f32,
        residual: *const f32,
        c: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        let operands = Operands { a, b: weights, packed: true, bias, residual, c, scratch };
        // SAFETY: the caller's duties are those of `run_units`.
        unsafe { self.run_units(&operands, units) };
    }

    /// Runs some units on a plain B, of which each thread packs what it needs: for a B that is known
    /// only at run time.
    ///
    /// # Safety
    ///
    /// As for [`run`](Self::run), but `b` is readable for [`b_len`](Self::b_len) elements, and
    /// `scratch` is writable for [`plain_scratch_len`](Self::plain_scratch_len).
    pub unsafe fn run_plain(
        &self,
        a: *const f32,
        b: *const f32,
        bias: *const f32,
        residual: *const f32,
        c: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        let operands = Operands { a, b, packed: false, bias, residual, c, scratch };
        // SAFETY: the caller's duties are those of `run_units`.
        unsafe { self.run_units(&operands, units) };
    }

    /// Units are ordered by product, part of the rows, panel; with a plain B (or, of blocks, one much
    /// larger than A) by product, panel, part of the rows, so that threads pack (or read) different parts of
    /// it. Of a range this takes the largest rectangles, since the packed forms of A and B are made once for
    /// each.
    ///
    /// # Safety
    ///
    /// That of [`run`](Self::run) if `x.packed`, else that of [`run_plain`](Self::run_plain).
    unsafe fn run_units(&self, x: &Operands, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        debug_assert!(!x.a.is_null() && !x.b.is_null() && !x.bias.is_null() && !x.c.is_null());
        debug_assert!(!self.params.epilogue.residual || !x.residual.is_null());
        let p = &self.params;
        let panels = self.tiling.panels.len();
        let per_batch = self.parts * panels;
        let by_panels = !x.packed || self.by_panels;
        let inner_count = if by_panels { self.parts } else { panels };
        let b_batch = match (x.packed, p.b_batch) {
            (true, 0) => 0,
            (true, _) => self.packed,
            (false, distance) => distance,
        };
        let mut unit = units.start;
        while unit < units.end {
            let (batch, start) = (unit / per_batch, unit % per_batch);
            let counts = [per_batch / inner_count, inner_count];
            let (outer, inner) = rectangle(start, units.end - unit, counts);
            unit += outer.len() * inner.len();
            let (parts, panels) = if by_panels { (inner, outer) } else { (outer, inner) };
            let tile = |part| part * self.tiling.count() / self.parts;
            let tiles = tile(parts.start)..tile(parts.end);
            let of_batch = Operands {
                a: x.a.wrapping_add(batch * p.a_batch),
                b: x.b.wrapping_add(batch * b_batch),
                residual: x.residual.wrapping_add(batch * p.c_batch),
                c: x.c.wrapping_add(batch * p.c_batch),
                ..*x
            };
            // SAFETY: the operands are those of one product, of which these tiles and panels exist.
            unsafe {
                match x.packed && self.single {
                    true => self.run_single(&of_batch, panels),
                    false => self.run_rectangle(&of_batch, tiles, panels),
                }
            };
        }
    }

    /// Computes some panels of one product with a packed B whose rows are a single tile: what
    /// [`run_rectangle`](Self::run_rectangle) would do, without its questions.
    ///
    /// # Safety
    ///
    /// That of [`run_units`](Self::run_units), for operands that begin at one product.
    unsafe fn run_single(&self, x: &Operands, mut panels: Range<usize>) {
        let p = &self.params;
        let row_bias = p.form == MatmulForm::RowBias;
        while let Some(panel) = self.tiling.panels.get(panels.start).filter(|_| !panels.is_empty())
        {
            let tiles = self.beside(panels.clone(), 0);
            let [(_, kernel)] = *self.tiling.pieces(panel, 0) else { unreachable!("one piece") };
            let bias = if row_bias { 0 } else { panel.column };
            let residual = match p.epilogue.residual {
                true => x.residual.wrapping_add(panel.column),
                false => core::ptr::null(),
            };
            let next = NextTile {
                a: 0,
                b: panel.width * p.k,
                bias: if row_bias { 0 } else { panel.width },
                o: panel.width,
            };
            let args = TileArgs {
                tiles,
                next,
                a: x.a,
                b: x.b.wrapping_add(panel.column * p.k),
                bias: x.bias.wrapping_add(bias),
                row_bias,
                residual,
                o: x.c.wrapping_add(panel.column),
                a_row: p.a_row,
                a_run: p.k,
                a_step: 0,
                b_row: panel.width,
                o_row: p.c_row,
                o_plane: C_BLOCK,
                k: p.k,
                tail: panel.tail,
                first: true,
                last: true,
                activation: self.activation,
                stream: p.k * p.n > STREAM,
            };
            // SAFETY: A has these rows, B this panel and those beside it, which have one width and follow
            // each other, as do their columns of C.
            unsafe { (kernel.run)(&args) };
            panels.start += tiles;
        }
    }

    /// Computes some tiles of some panels of one product.
    ///
    /// # Safety
    ///
    /// That of [`run_units`](Self::run_units), for operands that begin at one product.
    unsafe fn run_rectangle(&self, x: &Operands, tiles: Range<usize>, panels: Range<usize>) {
        let p = &self.params;
        let chunk = self.choice.chunk;
        let packs_a = self.choice.algorithm == Algorithm::Packed;
        let (group, block) = match x.packed {
            true => (panels.len(), self.block),
            false => (self.group, self.plain_block),
        };
        // One block of A that is packed once serves all groups.
        let once = tiles.len() <= block && chunk >= p.k;
        let turned = x.scratch.wrapping_add(self.packed_a_len(block));
        let b_scratch = turned.wrapping_add(self.turned_len(block));
        for first in panels.clone().step_by(group) {
            let group = first..panels.end.min(first + group);
            let column = self.tiling.panels[first].column;
            for k in (0..p.k).step_by(chunk) {
                let ks = k..p.k.min(k + chunk);
                // Only the last panel may differ from the others.
                let plain = group.clone().find(|&i| !x.packed && !self.in_place(i));
                if let Some(plain) = plain {
                    let at = (self.tiling.panels[plain].column - column) * ks.len();
                    let (dst, panels) = (b_scratch.wrapping_add(at), plain..group.end);
                    // SAFETY: the panels and this block of K exist in B; the scratch memory has room
                    // for `group` panels of `chunk` rows after A's part.
                    unsafe { self.pack_b(x.b, dst, ks.clone(), panels) };
                }
                // Rows of the next group that are asked for after each tile of this one.
                let per_tile = ks.len().div_ceil((group.len() * tiles.len()).max(1));
                let mut fetched = if plain.is_some() { ks.start } else { ks.end };
                for block in blocks(tiles.clone(), block) {
                    let row = self.tiling.tiles[block.start];
                    let kc = ks.len().next_multiple_of(RUN);
                    let packs_now = packs_a && (!once || first == panels.start);
                    if packs_now && p.a_transposed {
                        for tile in block.clone() {
                            let to = x.scratch.wrapping_add((self.tiling.tiles[tile] - row) * kc);
                            // SAFETY: the tile exists in A; the scratch memory begins with room for
                            // `block` tiles of `chunk` columns.
                            unsafe { self.pack_a(x.a, to, ks.clone(), tile) };
                        }
                    }
                    let mut i = group.start;
                    while i < group.end {
                        let panel = &self.tiling.panels[i];
                        let (b, b_row) = if x.packed {
                            (x.b.wrapping_add(panel.column * p.k + k * panel.width), panel.width)
                        } else if self.in_place(i) {
                            (x.b.wrapping_add(k * p.b_row + panel.column), p.b_row)
                        } else {
                            let at = (panel.column - column) * ks.len();
                            (b_scratch.wrapping_add(at).cast_const(), panel.width)
                        };
                        // A is packed after the first panel has read it where it lies: the loads of
                        // the kernel overlap with its arithmetic, and find it in the cache again.
                        let packs = packs_now && !p.a_transposed && i == first;
                        let plain_a = packs || !packs_a;
                        let (c, c_row) = self.result(x.c, turned, row, panel);
                        let (a_row, a_run, a_step) = match plain_a {
                            true if p.a_transposed => (1, 1, p.a_row),
                            true if p.blocked() => (C_BLOCK, C_BLOCK, p.a_row),
                            true => (p.a_row, ks.len(), 0),
                            false => (RUN, RUN, 0),
                        };
                        let mut args = TileArgs {
                            tiles: 1,
                            next: NextTile::default(),
                            a: x.a,
                            b,
                            bias: x.bias.wrapping_add(panel.column),
                            row_bias: p.form == MatmulForm::RowBias,
                            residual: core::ptr::null(),
                            o: c,
                            a_row,
                            a_run,
                            a_step,
                            b_row,
                            o_row: c_row,
                            o_plane: if p.blocked() { p.c_row } else { C_BLOCK },
                            k: ks.len(),
                            tail: panel.tail,
                            first: ks.start == 0,
                            last: ks.end == p.k,
                            activation: self.activation,
                            stream: p.k * p.n > STREAM,
                        };
                        // Of a few rows, all alike panels are one call.
                        let beside = match x.packed && !packs_a && block.len() == 1 {
                            true => self.beside(i..group.end, block.start),
                            false => 1,
                        };
                        let mut tile = block.start;
                        while tile < block.end {
                            let from = self.tiling.tiles[tile];
                            let height = self.tiling.height(tile);
                            let fetches = fetched < ks.end && group.end < panels.end;
                            let most = if packs {
                                1
                            } else if fetches {
                                FETCHED
                            } else {
                                usize::MAX
                            };
                            let alike = self.tiling.alike(panel, tile);
                            args.tiles = alike.min(most).min(block.end - tile).max(1);
                            args.next.o = height * c_row;
                            args.next.bias = if args.row_bias { height } else { 0 };
                            let packed = x.scratch.wrapping_add((from - row) * kc);
                            (args.a, args.next.a) = match plain_a {
                                true if p.a_transposed => {
                                    (x.a.wrapping_add(k * p.a_row + from), height)
                                }
                                true if p.blocked() => {
                                    let at = k / C_BLOCK * p.a_row + from * C_BLOCK;
                                    (x.a.wrapping_add(at), height * C_BLOCK)
                                }
                                true => (x.a.wrapping_add(from * p.a_row + k), height * p.a_row),
                                false => {
                                    args.a_step = height * RUN;
                                    (packed.cast_const(), height * kc)
                                }
                            };
                            let below = args.tiles;
                            if beside > 1 {
                                args.tiles = beside;
                                args.next = NextTile {
                                    a: 0,
                                    b: panel.width * p.k,
                                    bias: if args.row_bias { 0 } else { panel.width },
                                    o: self.column(&self.tiling.panels[i + 1]) - self.column(panel),
                                };
                            }
                            // SAFETY: `a` and `b` are the tiles' rows of A and the panel's columns of
                            // B over this block of K, as they lie or as they were packed; `c` is where
                            // the tiles' results belong, or their place in the scratch memory. Alike
                            // tiles have the same height, so that the next one's A is `next.a` on.
                            // Panels that `beside` counted have one width, and follow each other.
                            unsafe { self.run_tiles(x, panel, tile, &mut args, c) };
                            if packs && i + 1 < panels.end {
                                // SAFETY: as for a transposed A.
                                unsafe { self.pack_a(x.a, packed, ks.clone(), tile) };
                            }
                            if fetches {
                                let rows = fetched..ks.end.min(fetched + below * per_tile);
                                fetched = rows.end;
                                let next = group.end..panels.end.min(group.end + group.len());
                                // SAFETY: the ISA is that of the plan.
                                unsafe { self.fetch_b(x.b, rows, next) };
                            }
                            tile += below;
                        }
                        if p.form == MatmulForm::Transposed {
                            let rows = row..self.tiling.tiles[block.end];
                            // SAFETY: the scratch memory has the panel's results of these rows.
                            unsafe { self.turn(turned, x.c, rows, panel) };
                        }
                        i += beside;
                    }
                }
            }
        }
    }

    /// How many panels from the first one on a kernel computes in one call for a tile.
    fn beside(&self, panels: Range<usize>, tile: usize) -> usize {
        let list = &self.tiling.panels[panels];
        let single = self.tiling.alike(&list[0], tile) > 0;
        if !single || self.post.is_some() || self.params.form == MatmulForm::Transposed {
            return 1;
        }
        let alike = |panel: &&Panel| panel.cut == list[0].cut && panel.tail == list[0].tail;
        list.iter().take_while(alike).count()
    }

    /// Where a tile of a panel writes, as if from row 0 on, and the distance of rows: C, or the scratch
    /// memory `turned` that begins with row `row`.
    fn result(
        &self,
        c: *mut f32,
        turned: *mut f32,
        row: usize,
        panel: &Panel,
    ) -> (*mut f32, usize) {
        match self.params.form {
            MatmulForm::Transposed => (turned.wrapping_sub(row * panel.width), panel.width),
            MatmulForm::Blocked => (c.wrapping_add(self.column(panel)), C_BLOCK),
            _ => (c.wrapping_add(self.column(panel)), self.params.c_row),
        }
    }

    /// The first column of a panel in a row of C, or its plane.
    fn column(&self, panel: &Panel) -> usize {
        match self.params.form {
            MatmulForm::Blocked => panel.column / C_BLOCK * self.params.c_row,
            _ => panel.column,
        }
    }

    /// Writes a panel's results of some rows, `[row][columns of the panel]`, to a transposed C.
    ///
    /// # Safety
    ///
    /// `from` has these results; the rows and columns exist in `c`, which is writable there.
    unsafe fn turn(&self, from: *const f32, c: *mut f32, rows: Range<usize>, panel: &Panel) {
        let p = &self.params;
        let (x, cols) = (panel.width, panel.width.min(p.n - panel.column));
        let job = Job { rows: rows.len(), cols, out: rows.len(), x, y: p.c_row };
        let to = c.wrapping_add(panel.column * p.c_row + rows.start);
        // SAFETY: the caller's duties.
        unsafe { (self.copies.transpose)(from, to, &job) };
    }

    /// Asks for some rows of the next panels of a plain B, which lie far apart.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions of the plan.
    unsafe fn fetch_b(&self, b: *const f32, rows: Range<usize>, panels: Range<usize>) {
        let p = &self.params;
        if p.b_transposed {
            return;
        }
        let list = &self.tiling.panels[panels];
        let cols = list.iter().map(|panel| panel.width).sum();
        let job = Job { rows: rows.len(), cols, out: 0, x: p.b_row, y: 0 };
        let at = rows.start * p.b_row + list[0].column;
        // SAFETY: the ISA is the plan's, and a prefetch may name any address.
        unsafe { (self.copies.fetch)(b.wrapping_add(at), &job) };
    }

    /// Whether a panel of a plain B is read where it lies.
    fn in_place(&self, panel: usize) -> bool {
        let (p, panel) = (&self.params, &self.tiling.panels[panel]);
        let whole = panel.column + panel.width <= p.n;
        // What one tile of rows reads once is not worth packing.
        let pays = p.b_row > IN_PLACE_ROW && self.tiling.count() > 1 && !self.near;
        whole && !pays && !p.b_transposed
    }

    /// A tile of one panel over one block of K, and those like it that follow. What is the same for all
    /// tiles is in `args`, so that little is done between two calls: it would not fit into the shadow of
    /// their multiply-adds.
    ///
    /// # Safety
    ///
    /// That of [`run_units`](Self::run_units), for operands that begin at one product. If `args.tiles`
    /// is more than one, so many tiles from this one on are alike. `args.a` are the rows of the tile and
    /// `args.b` the columns of the panel, from the start of the block on, at the distances that `args`
    /// says; `c` is the panel's result as if from the first row of the product on.
    unsafe fn run_tiles(
        &self,
        x: &Operands,
        panel: &Panel,
        tile: usize,
        args: &mut TileArgs,
        c: *mut f32,
    ) {
        let p = &self.params;
        let (row, a) = (self.tiling.tiles[tile], args.a);
        for &(first, kernel) in self.tiling.pieces(panel, tile) {
            args.a = a.wrapping_add((first - row) * args.a_row);
            args.o = c.wrapping_add(first * args.o_row);
            if args.row_bias {
                args.bias = x.bias.wrapping_add(first);
            }
            if p.epilogue.residual {
                args.residual = x.residual.wrapping_add(first * args.o_row + self.column(panel));
            }
            // SAFETY: the rows and columns of the pieces exist in A, B and C, and `check` found the ISA.
            unsafe { (kernel.run)(args) };
            let Some(post) = self.post.as_ref().filter(|_| args.last) else { continue };
            let rows = args.tiles * kernel.info.w_ob();
            let (lines, step, len) = match p.form {
                MatmulForm::Blocked => (panel.width / C_BLOCK, args.o_plane, rows * C_BLOCK),
                _ => (rows, args.o_row, panel.width.min(p.n - panel.column)),
            };
            for i in 0..lines {
                let o = args.o.wrapping_add(i * step);
                // SAFETY: this is a row, or these are the rows in a block, of the pieces just written.
                unsafe { post.call(o, o, len) };
            }
        }
    }

    /// Packs a block of K of some panels of one plain B as `[panel][k][columns of the panel]`,
    /// columns that do not exist as zeros.
    ///
    /// # Safety
    ///
    /// `src` is readable over the extent of one plain B, of which the panels and `ks` exist, and `dst`
    /// writable for the packed form; they do not overlap.
    pub(crate) unsafe fn pack_b(
        &self,
        src: *const f32,
        dst: *mut f32,
        ks: Range<usize>,
        panels: Range<usize>,
    ) {
        let p = &self.params;
        let column = self.tiling.panels[panels.start].column;
        for panel in &self.tiling.panels[panels] {
            let columns = panel.width.min(p.n - panel.column);
            let dst = dst.wrapping_add((panel.column - column) * ks.len());
            let job = |rows, cols| Job { rows, cols, out: panel.width, x: p.b_row, y: panel.width };
            // SAFETY: these rows and columns exist in B; the kernels write `ks.len()` rows of
            // `panel.width` elements, the packed panel.
            unsafe {
                if p.b_transposed {
                    let src = src.wrapping_add(panel.column * p.b_row + ks.start);
                    (self.copies.transpose)(src, dst, &job(columns, ks.len()));
                } else {
                    let src = src.wrapping_add(ks.start * p.b_row + panel.column);
                    (self.copies.copy)(src, dst, &job(ks.len(), columns));
                }
            }
        }
    }

    /// Packs a block of K of one tile of A as `[k / 16][row][16]`.
    ///
    /// # Safety
    ///
    /// `src` is readable over the extent of one A, of which the tile and `ks` exist, and `dst`
    /// writable for the packed form, K rounded up to 16; they do not overlap.
    unsafe fn pack_a(&self, src: *const f32, dst: *mut f32, ks: Range<usize>, tile: usize) {
        let p = &self.params;
        let (row, height) = (self.tiling.tiles[tile], self.tiling.height(tile));
        if p.a_transposed {
            for k in (0..ks.len()).step_by(RUN) {
                let rows = RUN.min(ks.len() - k);
                let job = Job { rows, cols: height, out: RUN, x: p.a_row, y: RUN };
                let src = src.wrapping_add((ks.start + k) * p.a_row + row);
                // SAFETY: these rows of the stored A have the tile's columns; the run has `height`
                // rows of 16 elements.
                unsafe { (self.copies.transpose)(src, dst.wrapping_add(k * height), &job) };
            }
            return;
        }
        let (runs, rest) = (ks.len() / RUN, ks.len() % RUN);
        for i in 0..height {
            let src = src.wrapping_add((row + i) * p.a_row + ks.start);
            let dst = dst.wrapping_add(i * RUN);
            let job = |rows, cols| Job { rows, cols, out: RUN, x: RUN, y: height * RUN };
            // SAFETY: the row has these elements; the tile has room for its runs, the last one
            // filled up with zeros.
            unsafe {
                (self.copies.copy)(src, dst, &job(runs, RUN));
                if rest > 0 {
                    let dst = dst.wrapping_add(runs * height * RUN);
                    (self.copies.copy)(src.wrapping_add(runs * RUN), dst, &job(1, rest));
                }
            }
        }
    }
}
