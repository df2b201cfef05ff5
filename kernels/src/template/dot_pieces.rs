//! The microkernel of dot products where the machine multiplies tiles: pieces of up to 16 rows, two at a time, times one
//! or two vectors of columns.
//!
//! Its right operand is what [`dot_tile`](super::dot_tile) multiplies by. All pieces of a product have as many rows and
//! words, which the registers are shaped for once. Rows of sums leave the registers by way of the first-level cache, so
//! those that stand for nothing, as between two lines of an image, are left behind there.

#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "most builds are for machines without such kernels"
)]

use super::dot_convert::{convert, row_sum};
use super::dot_tile::{DotArgs, DotKernel, DotRow, Finish, at, dot_finish, dot_rare, dot_words};
use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};
use core::ops::Range;
use tilewright_intrinsics::dtype::Word;
use tilewright_intrinsics::each;

/// Most rows of a piece.
const ROWS: usize = 16;

/// Most words of a row that a step takes.
const WORDS: usize = 16;

/// What a product is, for the choice of kernels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows, and those of a line, which pieces are cut from.
    pub(super) rows: usize,
    pub(super) line: usize,
    /// Bytes that a pass brings into the form of pieces for each row.
    pub(super) bytes: usize,
    /// Bytes of each row that are multiplied for a column.
    pub(super) depth: usize,
    /// Columns.
    pub(super) columns: usize,
}

impl Shape {
    /// Whether pieces pay. What they gain for each product they lose for 36 by the way of a sum through the cache, for 20
    /// by a byte of the pass, and for some ten thousand by a step more of a plan. Measured on a Xeon of 2023.
    fn pays(&self) -> bool {
        let [gain, sums, pass] = [(self.depth, self.columns), (36, self.columns), (20, self.bytes)]
            .map(|(a, b)| a.saturating_mul(b));
        let gain = gain.saturating_sub(sums).saturating_sub(pass);
        self.line >= 4 && gain.saturating_mul(self.rows) >= 85_000
    }
}

/// Neighbouring rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// First word of the first row.
    pub(super) a: *const f32,
    /// Which the first row is, of all lines.
    pub(super) first: usize,
}

/// How a product is made of pieces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    kernels: &'static PieceKernels,
    /// Rows of a piece.
    pub(super) rows: usize,
    /// Words of a step.
    words: usize,
    /// Rows from one line to the next, and those of a line that have outputs: its first ones.
    lines: [usize; 2],
    /// Rows up to the last that has outputs.
    pub(super) count: usize,
}

impl Pieces {
    /// Of so many lines of rows, at least 1 of both, which are cut into pieces each.
    pub(super) fn new(
        kernels: &'static PieceKernels,
        [lines, rows]: [usize; 2],
        words: usize,
    ) -> Self {
        let pieces = rows.div_ceil(ROWS);
        let height = rows.div_ceil(pieces);
        let line = pieces * height;
        let (count, lines) = ((lines - 1) * line + rows, [line, rows]);
        Self { kernels, rows: height, words: step(words), lines, count }
    }

    /// Of lines that follow each other, of which only the first rows have outputs, cut without regard to where they end;
    /// if those are fewer pieces.
    pub(super) fn across(&self, lines: usize, line: usize) -> Option<Self> {
        let outputs = self.lines[1];
        let count = (lines - 1) * line + outputs;
        let rows = count.div_ceil(count.div_ceil(ROWS));
        let fewer = count.div_ceil(rows) < self.count.div_ceil(self.rows);
        fewer.then_some(Self { rows, lines: [line, outputs], count, ..*self })
    }

    /// Makes this thread ready for [`run`](Self::run).
    ///
    /// # Safety
    ///
    /// The CPU has the instructions.
    pub(super) unsafe fn begin(&self) {
        // SAFETY: the caller's duty; sizes are no more than what registers hold.
        unsafe { (self.kernels.begin)(self.rows, self.words) };
    }

    /// Ends what [`begin`](Self::begin) began.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions.
    pub(super) unsafe fn end(&self) {
        // SAFETY: the caller's duty.
        unsafe { (self.kernels.end)() };
    }

    /// Multiplies one or two pieces by so many columns.
    ///
    /// # Safety
    ///
    /// * Between [`begin`](Self::begin) and [`end`](Self::end) of this thread.
    /// * Of each piece all rows are readable as [`DotFn`](super::dot_tile::DotFn) asks for pixels, and the outputs of those
    ///   that have some writable. `o` and `row_sums` of the arguments are those of the first row of all, and `a` is not
    ///   read; the rest is as for a kernel of so many columns.
    pub(super) unsafe fn run(&self, args: &DotArgs<'_>, columns: usize, pieces: &[Piece]) {
        let vectors = columns / self.kernels.row.lanes;
        // SAFETY: the caller's duties.
        unsafe { (self.kernels.run)(args, vectors, self, pieces) };
    }
}

/// The kernels.
#[derive(Debug)]
pub(super) struct PieceKernels {
    /// The form of operands, and what kernels are called.
    pub(super) row: DotRow,
    /// Shapes the registers of this thread for pieces of so many rows and steps of so many words.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions; at least 1, and no more than [`ROWS`] and [`WORDS`].
    begin: unsafe fn(usize, usize),
    /// Gives the registers back.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions.
    end: unsafe fn(),
    /// One or two pieces times so many vectors.
    ///
    /// # Safety
    ///
    /// As of [`Pieces::run`].
    run: unsafe fn(&DotArgs<'_>, usize, &Pieces, &[Piece]),
    /// So many steps of two pieces by two vectors, all of the same [`OPERAND`] words.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions.
    repeat: unsafe fn(usize, &[f32; OPERAND]),
}

/// Words that a step of two pieces by two vectors takes: those of both.
const OPERAND: usize = 4 * ROWS * WORDS;

/// Runs so many steps of products in registers, if the instruction set has pieces, and gives the operations: two for each
/// product.
#[cfg(any(feature = "alloc", test))]
pub(crate) fn peak(isa: Isa, steps: usize) -> Option<f64> {
    let kernels = own(isa).filter(|_| isa.is_available())?;
    // SAFETY: the machine has the instructions.
    unsafe { (kernels.repeat)(steps, &[0.0; OPERAND]) };
    let products = 4 * ROWS * kernels.row.lanes * WORDS * kernels.row.word.group();
    Some((2 * steps * products) as f64)
}

/// Some rows of sums as bytes.
macro_rules! piece_bytes {
    ($w:tt $sums:ident $step:ident, $bias:ident $scale:ident, $lo:ident $hi:ident $zero:ident, $o:ident $o_step:ident, $left:ident) => {
        tile!(DEF t [1 x $w x 1]);
        tile!(LOAD t [1 x $w x 1] <- $sums[0, $step, 16]);
        each!(i in $w { t[i][0] = tile!(VIADD t[i][0], $bias); });
        tile!(SCALE t [$w x 1] <- $scale);
        tile!(NARROW t [$w x 1] $lo, $hi, $zero -> $o[$o_step, 16]);
        $sums = $sums.wrapping_add($w * $step);
        $o = $o.wrapping_add($w * $o_step);
        $left -= $w;
    };
}

/// What becomes of the sums of some rows for one vector of columns.
macro_rules! piece_finish {
    ($name:ident $w:tt $tile:ident [$($f:tt)*] $word:ident) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(sums: *const f32, step: usize, args: &DotArgs<'_>) {
            tile!(DEF t [1 x $w x 1]);
            tile!(LOAD t [1 x $w x 1] <- sums[0, step, 16]);
            let bias = tile!(VLOAD args.bias, 0);
            each!(i in $w { t[i][0] = tile!(VIADD t[i][0], bias); });
            dot_finish! { $word $tile t [$w x 1] args }
        }
    };
}

macro_rules! piece_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $lanes:tt, word $word:ident,
     unroll $u:tt, dot [$([$w:tt $v:tt])*]) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            const LANES: usize = tile!(LANES);

            pub(super) static KERNELS: PieceKernels = PieceKernels {
                row: DotRow {
                    lanes: $lanes,
                    word: Word::$word,
                    convert: to_words,
                    kernels: &[$(DotKernel {
                        info: KernelInfo {
                            name: concat!("dot_i8_", $w, "x", $crate::template::c_ob!($lanes $v),
                                "_u", $u, "_", stringify!($isa_name)),
                            op: "dot", isa: Isa::$isa, dtype: Dtype::I8,
                            tile: crate::Tile { rows: 1, w_ob: $w, c_vec: $v, c_ob: $v * $lanes, unroll: $u }.packed(),
                        },
                        run: whole::<$v>,
                    }),*],
                },
                begin, end, run, repeat,
            };

            /// The sums of two pieces.
            #[repr(align(64))]
            struct Sums([f32; 2 * ROWS * 2 * LANES]);

            dot_words! { $tile [$($f)*] $word }
            dot_rare! { $tile, [$($f)*], $word }

            $(#[target_feature(enable = $f)])*
            unsafe fn begin(rows: usize, words: usize) {
                tile!(TILES <- rows, words);
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn end() {
                tile!(TILES_DONE);
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn run(args: &DotArgs<'_>, v: usize, all: &Pieces, pieces: &[Piece]) {
                let mut sums = core::mem::MaybeUninit::<Sums>::uninit();
                let first = sums.as_mut_ptr().cast::<f32>();
                let (Some(one), Some(other)) = (pieces.first(), pieces.last()) else { return };
                let (places, a) = ([first, first.wrapping_add(ROWS * v * LANES)], [one.a, other.a]);
                tile!(TILES places, v, pieces.len() > 1;
                    a, args.step, args.segments, args.words / all.words, all.words; args.b);
                let (step, size, [line, outputs]) = (v * LANES, args.finish.size(), all.lines);
                for (piece, place) in pieces.iter().zip(places) {
                    let end = all.count.min(piece.first + all.rows);
                    let mut row = piece.first;
                    while row < end {
                        // Up to the next row without outputs.
                        let (y, x) = (row / line, row % line);
                        let next = end.min((y + 1) * line);
                        let count = outputs.saturating_sub(x).min(next - row);
                        let (to, from) = (y * outputs + x, (row - piece.first) * step);
                        row = if count > 0 { row + count } else { next };
                        for column in (0..step).step_by(LANES) {
                            let (mut sums, mut left) = (place.wrapping_add(from + column).cast_const(), count);
                            let out = to * args.o_step + column / 16 * args.o_plane + column % 16;
                            let mut part = DotArgs {
                                o: args.o.wrapping_add(out * size),
                                bias: args.bias.wrapping_add(column),
                                scale: args.scale.wrapping_add(column),
                                shift: args.shift.wrapping_add(column),
                                offset: at(args.offset, column),
                                row_sums: at(args.row_sums, to),
                                tail: if column + LANES < step { LANES } else { args.tail },
                                ..*args
                            };
                            // What most are, without a call for each row.
                            if let (Finish::Bytes { lo, hi, zero }, true) =
                                (part.finish, part.offset.is_null() && part.tail == LANES)
                            {
                                let bias = tile!(VLOAD part.bias, 0);
                                let (scale, o_step, mut o) = (part.scale, part.o_step, part.o);
                                while left > 3 {
                                    piece_bytes! { 4 sums step, bias scale, lo hi zero, o o_step, left }
                                }
                                while left > 0 {
                                    piece_bytes! { 1 sums step, bias scale, lo hi zero, o o_step, left }
                                }
                                continue;
                            }
                            while left > 0 {
                                let some = if left > 3 { 4 } else { 1 };
                                // SAFETY: rows of the piece, whose sums the product has written.
                                unsafe {
                                    if some > 1 { finish_4(sums, step, &part) } else { finish_1(sums, step, &part) }
                                }
                                sums = sums.wrapping_add(some * step);
                                part.o = part.o.wrapping_add(some * part.o_step * size);
                                part.row_sums = at(part.row_sums, some);
                                left -= some;
                            }
                        }
                    }
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn repeat(steps: usize, operand: &[f32; OPERAND]) {
                let mut sums = core::mem::MaybeUninit::<Sums>::uninit();
                let first = sums.as_mut_ptr().cast::<f32>();
                let places = [first, first.wrapping_add(2 * ROWS * LANES)];
                let x = operand.as_ptr();
                // SAFETY: the caller's duties.
                unsafe { begin(ROWS, WORDS) };
                // Steps of no words stay where they are.
                tile!(TILES places, 2, true; [x, x], WORDS, &[0], steps, 0; x);
                // SAFETY: the caller's duties.
                unsafe { end() };
            }

            /// One piece by itself.
            $(#[target_feature(enable = $f)])*
            unsafe fn whole<const V: usize>(args: &DotArgs<'_>) {
                let all = Pieces::new(&KERNELS, [1, ROWS], args.words);
                // SAFETY: the caller's duties, for as many rows as a piece has.
                unsafe {
                    begin(ROWS, all.words);
                    run(args, V, &all, &[Piece { a: args.a, first: 0 }]);
                    end();
                }
            }

            piece_finish! { finish_4 4 $tile [$($f)*] $word }
            piece_finish! { finish_1 1 $tile [$($f)*] $word }
        }
    };
}

/// What of some tiles is computed at a time: two of pieces, else one.
pub(super) fn steps(
    pieces: &Option<Pieces>,
    tiles: Range<usize>,
) -> impl Iterator<Item = Range<usize>> + use<> {
    let (step, end) = (if pieces.is_some() { 2 } else { 1 }, tiles.end);
    tiles.step_by(step).map(move |tile| tile..end.min(tile + step))
}

/// The longest step by which segments of so many words, at least one, are gone through.
fn step(words: usize) -> usize {
    (1..=WORDS.min(words)).rev().find(|n| words.is_multiple_of(*n)).unwrap_or(1)
}

/// Words for rows of at least so many, of which `taps` make a segment: those that take least steps, and whole lines of the
/// cache if such do.
pub(super) fn filled(words: usize, taps: usize) -> usize {
    let steps = |words: &usize| (taps * words / step(taps * words), !words.is_multiple_of(WORDS));
    (words..=words + words / 4).min_by_key(steps).unwrap_or(words)
}

tilewright_intrinsics::for_each_tile!(piece_row, tiles);

/// The kernels of an instruction set for such a product, if it has some and they pay.
pub(super) fn kernels(isa: Isa, shape: &Shape) -> Option<&'static PieceKernels> {
    own(isa).filter(|_| shape.pays())
}

/// The kernels that an instruction set itself has.
pub(super) fn own(isa: Isa) -> Option<&'static PieceKernels> {
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return Some(&$id::KERNELS);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row, tiles);
    let _ = isa;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_the_longest_that_segments_are_multiples_of() {
        assert_eq!([1, 7, 12, 16, 37, 48, 50].map(step), [1, 7, 12, 16, 1, 16, 10]);
        // Of 29 words, which take as many steps, 32 take two, and so do 30 that end within a line; so do three of 10.
        assert_eq!(filled(29, 1), 32);
        assert_eq!(filled(10, 3), 10);
        for (words, taps) in (1..200).flat_map(|words| [(words, 1), (words, 3), (words, 7)]) {
            let more = filled(words, taps);
            assert!((words..=words + words / 4).contains(&more));
            let steps = |words: usize| taps * words / step(taps * words);
            assert!(steps(more) <= steps(words), "{words} {taps}");
        }
    }

    #[test]
    fn few_rows_short_sums_and_short_lines_are_left_to_others() {
        let usual = Shape { rows: 3136, line: 56, bytes: 64, depth: 576, columns: 64 };
        assert!(usual.pays());
        assert!(!Shape { line: 3, ..usual }.pays());
        assert!(!Shape { rows: 2, ..usual }.pays());
        assert!(!Shape { depth: 16, ..usual }.pays());
        // A product by which few columns are computed is not worth the pass over its rows.
        assert!(!Shape { columns: 8, depth: 64, ..usual }.pays());
        assert!(Shape { depth: usize::MAX, ..usual }.pays());
    }

    #[test]
    fn lines_of_few_rows_are_cut_across() {
        for kernels in Isa::ALL.into_iter().filter_map(own) {
            let cut = |lines, rows| Pieces::new(kernels, [lines, rows], 16);
            assert_eq!((cut(7, 7).rows, cut(7, 7).count), (7, 49));
            // 61 rows up to the last with an output.
            let across = cut(7, 7).across(7, 9).unwrap();
            assert_eq!((across.rows, across.lines, across.count), (16, [9, 7], 61));
            // Four pieces of a line either way.
            assert!(cut(56, 64).across(56, 66).is_none());
            assert_eq!((cut(1, 100).rows, cut(1, 100).lines), (15, [105, 100]));
        }
    }
}
