//! What the products of words share: division into panels and tiles, rows of words, the loop.
//!
//! B is packed in panels of columns, `[panel][word][columns of the panel]`, A is read where it lies
//! or from rows of words that a pass before wrote. The reduction is not cut: a tile goes from its
//! bias to its result in registers. A group of panels that fits half of the L2 cache meets all
//! tiles before the next group, and a tile, which fits the L1 cache, all panels of the group.

use super::dot_convert::spare_words;
use super::dot_division::{self, Division, Panel};
use super::dot_pieces::{self, Piece, PieceKernels, Pieces};
use super::dot_tile::{DotArgs, DotRow, Finish, at};
use super::matmul_params::{MatmulForm, MatmulParams};
use super::unary::UnaryKernel;
use crate::error::{check_extents, checked_len};
use crate::{Activation, Dtype, KernelError};
use core::ops::Range;

/// A product of matrices of words.
#[derive(Clone, Debug)]
pub(crate) struct WordProduct {
    pub(crate) sizes: MatmulParams,
    pub(crate) row: &'static DotRow,
    /// Words per row of A and per column of B.
    pub(crate) k_words: usize,
    /// Words between two rows of A as words.
    pub(crate) a_stride: usize,
    pub(crate) division: Division,
    /// Columns of all panels.
    pub(crate) columns: usize,
    /// Units per (product, group).
    parts: usize,
    pieces: Option<Pieces>,
}

/// The operands of [`WordProduct::run`].
pub(crate) struct WordOperands {
    /// First row of A as words, `a_stride` apart; those of the next product follow.
    pub(crate) a: *const f32,
    /// Words between two rows there.
    pub(crate) a_step: usize,
    /// Words between the A of two products; 0 if they share it.
    pub(crate) a_batch: usize,
    /// Sums of the rows of A in the same order, or null.
    pub(crate) row_sums: *const f32,
    /// Packed panels of the first product.
    pub(crate) b: *const f32,
    /// What each sum of a row is multiplied by, per column, or null.
    pub(crate) offset: *const f32,
    /// Words between the B of two products; 0 if they share it.
    pub(crate) b_batch: usize,
    /// Bias, scale and shift, each of all columns; the last two as far as they are read.
    pub(crate) epilogue: *const f32,
    /// Words between the epilogues of two products; 0 if they share it.
    pub(crate) epilogue_batch: usize,
    /// First output.
    pub(crate) c: *mut u8,
}

/// Elements that A, the plain B and C span, if the sizes and strides make sense.
pub(crate) fn check_sizes(op: &'static str, p: &MatmulParams) -> Result<[usize; 3], KernelError> {
    let invalid = |param, expected| Err(KernelError::InvalidParam { op, param, expected });
    // All fields by name, so that one that is not handled here is noticed.
    let MatmulParams {
        batch,
        m,
        n,
        k,
        a_row,
        a_transposed,
        a_batch,
        b_row,
        b_transposed,
        b_batch,
        c_row,
        c_batch,
        form,
        ref epilogue,
    } = *p;
    if form != MatmulForm::Usual {
        return Err(KernelError::Unsupported { op, what: "another form of C than the usual" });
    }
    if [batch, m, n, k].contains(&0) {
        return invalid("size", "at least 1");
    }
    let (b_rows, b_width) = if b_transposed { (n, k) } else { (k, n) };
    if a_row < k || c_row < n || b_row < b_width {
        return invalid("row stride", "at least the row length");
    }
    if batch > 1 && m.checked_mul(c_row).is_none_or(|size| c_batch < size) {
        return invalid("c_batch", "at least the size of one C");
    }
    if a_transposed {
        return Err(KernelError::Unsupported { op, what: "an A stored as its transpose" });
    }
    if epilogue.residual {
        return invalid("residual", "absent");
    }
    if matches!(epilogue.activation, Activation::LeakyRelu { alpha } if !alpha.is_finite()) {
        return invalid("alpha", "finite");
    }
    let matrix = |rows: usize, stride: usize, width: usize, product: usize| {
        let one = checked_len(op, &[rows - 1, stride])?.checked_add(width);
        let all = checked_len(op, &[batch - 1, product])?;
        let len = one.and_then(|one| one.checked_add(all)).ok_or(KernelError::TooLarge { op })?;
        checked_len(op, &[len])
    };
    Ok([
        matrix(m, a_row, k, a_batch)?,
        matrix(b_rows, b_row, b_width, b_batch)?,
        matrix(m, c_row, n, c_batch)?,
    ])
}

impl WordProduct {
    /// Divides a product whose sizes and strides were checked, for the kernels of `row`, or, if there are such, those
    /// of pieces.
    pub(crate) fn new(
        sizes: &MatmulParams,
        row: &'static DotRow,
        pieces: Option<&'static PieceKernels>,
        op: &'static str,
    ) -> Result<Self, KernelError> {
        check_extents(op, &[sizes.m, sizes.n])?;
        let row = pieces.map_or(row, |kernels| &kernels.row);
        let k_words = sizes.k.div_ceil(row.word.group()).next_multiple_of(row.word.step());
        let k_words = if pieces.is_some() { dot_pieces::filled(k_words, 1) } else { k_words };
        // Rows a multiple of 4 KiB apart would share the sets of the L1 cache.
        let lines = k_words.div_ceil(16);
        let a_stride = 16 * (lines + usize::from(lines.is_multiple_of(8)));
        let too_large = || KernelError::TooLarge { op };
        let padded = sizes.n.checked_add(1024).ok_or_else(too_large)?;
        // With spare words.
        let most = if row.word.saturates() { 3 } else { 1 };
        checked_len(op, &[padded, k_words + 3, sizes.batch, most])?;
        checked_len(op, &[sizes.m, a_stride + 1, sizes.batch])?;

        let pieces = pieces.map(|kernels| Pieces::new(kernels, [1, sizes.m], k_words));
        let even = pieces.map(|pieces| pieces.rows);
        let bytes = sizes.n.saturating_mul(4 * k_words);
        let widest = match pieces {
            Some(_) => usize::MAX,
            None => dot_division::widest(bytes, row.kernels.iter().map(|k| &k.info)),
        };
        let division = Division::new(sizes.m, even, sizes.n, 1, widest, k_words, row);
        let most = division.most_tiles();
        let parts = usize::div_ceil(32, sizes.batch * division.groups()).min(most);
        let columns = division.columns();
        let sizes = sizes.clone();
        Ok(Self { sizes, row, k_words, a_stride, division, columns, parts, pieces })
    }

    /// Words of the packed B of one product.
    pub(crate) fn packed(&self) -> usize {
        self.columns * (self.k_words + spare_words(self.row.word, self.k_words))
    }

    /// Where in a packed B there is what was split from the words of a panel.
    pub(crate) fn spare(&self, panel: &Panel) -> usize {
        self.columns * self.k_words + panel.column * spare_words(self.row.word, self.k_words)
    }

    /// Rows of A of all products.
    pub(crate) fn a_rows(&self) -> usize {
        self.sizes.m * if self.sizes.a_batch == 0 { 1 } else { self.sizes.batch }
    }

    /// Rows that are read behind the last ones of A.
    pub(crate) fn behind(&self) -> usize {
        self.pieces.map_or(0, |p| self.sizes.m.next_multiple_of(p.rows) - self.sizes.m)
    }

    /// Products with a B of their own.
    pub(crate) fn b_count(&self) -> usize {
        if self.sizes.b_batch == 0 { 1 } else { self.sizes.batch }
    }

    /// Independent units of work.
    pub(crate) fn units(&self) -> usize {
        self.sizes.batch * self.division.groups() * self.parts
    }

    /// The microkernel that does most of the work.
    pub(crate) fn kernel_name(&self) -> &'static str {
        let tiles = self.division.group(0).tiles;
        self.row.kernels[tiles.get(tiles.len() / 2).1].info.name
    }

    /// Units of [`convert`](Self::convert): rows of A, eight at a time.
    pub(crate) fn convert_units(&self) -> usize {
        self.a_rows().div_ceil(8)
    }

    /// Writes rows of A as words, and their sums if `sums` is not null.
    ///
    /// # Safety
    ///
    /// `a` is readable for the whole A, of elements `from`; `words` writable for `a_rows * a_stride`
    /// words, `sums` for `a_rows` unless it is null. No other thread runs one of the units.
    pub(crate) unsafe fn convert(
        &self,
        from: Dtype,
        a: *const u8,
        words: *mut f32,
        sums: *mut i32,
        units: Range<usize>,
    ) {
        let p = &self.sizes;
        for row in units.start * 8..(units.end * 8).min(self.a_rows()) {
            let at = (row / p.m * p.a_batch + row % p.m * p.a_row) * from.size();
            // SAFETY: the row lies in A and has `k` elements, its words and those that fill it up have
            // a place of their own, and the plan checked the ISA.
            unsafe {
                let words = words.add(row * self.a_stride);
                let there = p.k.div_ceil(self.row.word.group());
                words.add(there).write_bytes(0, self.k_words - there);
                let sum = (self.row.convert)(from, a.add(at), words, p.k, !sums.is_null());
                if !sums.is_null() {
                    *sums.add(row) = sum;
                }
            }
        }
    }

    /// Runs some units, and `post` on the results, which are `f32` if there is one.
    ///
    /// # Safety
    ///
    /// The operands have the elements that their descriptions and `finish` ask for, C is aligned to
    /// its elements and overlaps no other, and no other thread runs one of the units.
    pub(crate) unsafe fn run(
        &self,
        x: &WordOperands,
        finish: Finish,
        post: Option<&UnaryKernel>,
        units: Range<usize>,
    ) {
        let p = &self.sizes;
        if let Some(pieces) = &self.pieces {
            // SAFETY: the plan checked the ISA.
            unsafe { pieces.begin() };
        }
        for unit in units {
            let (unit, part) = (unit / self.parts, unit % self.parts);
            let groups = self.division.groups();
            let (batch, group) = (unit / groups, self.division.group(unit % groups));
            let count = group.tiles.len();
            let tiles = part * count / self.parts..(part + 1) * count / self.parts;
            let a = x.a.wrapping_add(batch * x.a_batch);
            let sums = at(x.row_sums, if x.a_batch == 0 { 0 } else { batch * p.m });
            let epilogue = x.epilogue.wrapping_add(batch * x.epilogue_batch);
            for tiles in dot_pieces::steps(&self.pieces, tiles) {
                let places = [tiles.start, tiles.end - 1].map(|tile| group.tiles.get(tile));
                let (row, kernel) = places[0];
                // Pieces have their outputs from the first of all on.
                let first = if self.pieces.is_some() { 0 } else { row };
                for panel in group.panels.clone().map(|i| self.division.panel(i)) {
                    let bias = epilogue.wrapping_add(panel.column);
                    let out = batch * p.c_batch + first * p.c_row + panel.column;
                    let args = DotArgs {
                        a: a.wrapping_add(row * x.a_step),
                        step: x.a_step,
                        segments: &[0],
                        words: self.k_words,
                        b: x.b.wrapping_add(batch * x.b_batch + panel.column * self.k_words),
                        spare: x.b.wrapping_add(batch * x.b_batch + self.spare(&panel)).cast(),
                        bias,
                        scale: bias.wrapping_add(self.columns),
                        shift: bias.wrapping_add(2 * self.columns),
                        offset: at(x.offset, batch * x.b_batch + panel.column),
                        row_sums: at(sums, first),
                        o: x.c.wrapping_add(out * finish.size()),
                        o_step: p.c_row,
                        o_plane: 16,
                        tail: panel.tail,
                        finish,
                    };
                    let rows = match &self.pieces {
                        None => {
                            // SAFETY: the tile's rows and columns exist in A and C, the panel has its width
                            // in the packed operands, and the plan checked the ISA.
                            unsafe { (self.row.kernels[kernel].run)(&args) };
                            self.row.kernels[kernel].info.w_ob()
                        }
                        Some(all) => {
                            let pieces = places.map(|(first, _)| Piece {
                                a: a.wrapping_add(first * x.a_step),
                                first,
                            });
                            // SAFETY: the same; behind the last rows of A there are as many as pieces read.
                            unsafe { all.run(&args, panel.width, &pieces[..tiles.len()]) };
                            (tiles.len() * all.rows).min(p.m - row)
                        }
                    };
                    let Some(post) = post else { continue };
                    for i in 0..rows {
                        let o = args.o.cast::<f32>().wrapping_add((row - first + i) * p.c_row);
                        // SAFETY: this is a row of the tile just written.
                        unsafe { post.call(o, o, panel.width.min(p.n - panel.column)) };
                    }
                }
            }
        }
        if let Some(pieces) = &self.pieces {
            // SAFETY: the plan checked the ISA.
            unsafe { pieces.end() };
        }
    }
}
