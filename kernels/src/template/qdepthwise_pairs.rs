//! Depthwise convolution of bytes by filters of 3 x 3 and of 5 columns with products of pairs of 16 bits, on twice as
//! many channels at a time as a vector has lanes.
//!
//! Pixels of a column of the image that lie in two neighbouring rows of a window are a pair, of which either of two
//! vectors has half of the channels. In the lowest row of 3 x 3 neighbours are pairs: five in all, where two rows at
//! a time would be six. Windows of 5 columns go down two rows at a time, the last one alone where their number is
//! odd. What lies outside the image is read from zero points.

use super::window::{WindowKernel, WindowSizes};
use crate::{C_BLOCK, Isa};

/// Columns of the filters that take two rows at a time.
const TAPS: usize = 5;

/// Words of a block of channels for a filter: the weights of its pairs, and what the zero point of the input adds to
/// the sums, less.
pub(super) const fn block_words([f_h, f_w]: [usize; 2]) -> usize {
    let pairs = if f_w == 3 { 5 } else { f_h.div_ceil(2) * f_w };
    (pairs + 1) * C_BLOCK
}

/// The channel of a lane of the weights of a pair: vectors of 8 are paired quad by quad. Those of 4 take every other
/// quad, which are eight channels in order.
pub(super) fn channel(lane: usize) -> usize {
    lane % 4 + lane / 4 % 2 * 8 + lane / 8 * 4
}

/// The weights of a pair of a filter: of 3 x 3 those of the upper rows of column 0, 1 or 2, of the first and of the last
/// columns of the lowest row; else those of two rows, column by column.
pub(super) fn word([f_h, f_w]: [usize; 2], taps: impl Fn(usize) -> i32, pair: usize) -> i32 {
    let (row, column) = (pair / f_w * 2, pair % f_w);
    let [first, second] = match pair {
        3 if f_w == 3 => [taps(6), taps(7)],
        4 if f_w == 3 => [taps(8), 0],
        _ if row + 1 == f_h => [taps(row * f_w + column), 0],
        _ => [row, row + 1].map(|row| taps(row * f_w + column)),
    };
    // As if little-endian: the first has the lower address.
    i32::from_le((first & 0xffff) | second << 16)
}

macro_rules! pairs_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 8, word S16x2, $($rest:tt)*) => {
        pairs_row! { $id $tile $isa $isa_name $feat, 8, c_vec 2 }
    };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 4, word S16x2, $($rest:tt)*) => {
        pairs_row! { $id $tile $isa $isa_name $feat, 4, c_vec 4 }
    };
    ($id:ident $tile:ident $isa:ident $isa_name:ident $feat:tt, $lanes:literal, c_vec $v:literal) => {
        mod $id {
            use super::{TAPS, block_words};
            use crate::template::window::{ByteWindow, Window, WindowArgs, WindowKernel};
            use crate::template::window_kernel::integer_kernel;
            use crate::{C_BLOCK, Dtype, Isa, KernelInfo};

            /// Channels of a pixel that are added up at a time, and in how many parts that are all.
            const CHANNELS: usize = 2 * $lanes;
            const PARTS: usize = C_BLOCK / CHANNELS;

            /// Of the words of a block of channels those of the pair `pair` that vector `j` of a part of the channels has.
            const fn at(pair: usize, j: usize, part: usize) -> usize {
                (pair * 2 + j) * PARTS + part
            }

            pairs_row! { widths SQUARE kernel $tile $isa $isa_name $feat $v, [1 2 3 4] }
            pairs_row! { widths TALL tall $tile $isa $isa_name $feat $v, [1 2 3] }
        }
    };
    (widths $list:ident $kind:ident $tile:ident $isa:ident $isa_name:ident $feat:tt $v:tt, [$($w:tt)*]) => {
        pub(super) const $list: &[&[WindowKernel<u8>]] = &[$(&[
            pairs_row!($kind $tile $isa $isa_name $feat $v, $w 1),
            pairs_row!($kind $tile $isa $isa_name $feat $v, $w 2),
        ]),*];
    };
    (kernel $tile:ident $isa:ident $isa_name:ident [$($f:tt)*] $v:literal, $w:tt $d:tt) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs<u8>) {
            use tilewright_intrinsics::{$tile as tile, each};
            /// Columns of the image that a tile reads.
            const COLUMNS: usize = ($w - 1) * $d + 3;
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let run = g.runs[args.run];
            let (first, flip, pad) = pairs_row!(begin $tile args, [3, 3]);
            let outside = [pad; COLUMNS * C_BLOCK];
            let left = (run.first * $d) as isize - s.pads[1] as isize;
            for y in args.rows.clone() {
                let top = (y * s.stride[0]) as isize - s.pads[0] as isize;
                let mut left = left;
                let mut o = args.y.wrapping_add(y * y_row + run.first * C_BLOCK);
                let (mut rows, mut steps) = ([outside.as_ptr(); 3], [0; 3]);
                each!(r in 3 {
                    let row = top + (r * s.dilation[0]) as isize;
                    if (row as usize) < s.input[0] {
                        rows[r] = args.x.wrapping_offset(row * x_row as isize + left * C_BLOCK as isize);
                        steps[r] = $w * $d * C_BLOCK;
                    }
                });
                for _ in 0..run.count {
                    for part in 0..PARTS {
                        tile!(DEF t [1 x $w x 2]);
                        each!(i in $w { t[i] = first[part]; });
                        let pixel = |r: usize, column: usize| {
                            // Of the tiles that these kernels get, others lie inside.
                            let inside = (1..COLUMNS - 1).contains(&column)
                                || (left.wrapping_add(column as isize) as usize) < s.input[1];
                            let row = if inside { rows[r] } else { outside.as_ptr() };
                            tile!(VWIDE8 row.wrapping_add(column * C_BLOCK + part * CHANNELS), flip)
                        };
                        let mut b = args.weights;
                        let mut low = pixel(2, 0);
                        each!(k in 9 { if k < COLUMNS {
                            // Weights are loaded for each column anew: there are no registers for all.
                            b = tile!(VHIDDEN b);
                            let (a, c) = (pixel(0, k), pixel(1, k));
                            let upper = [tile!(VZIP_LO a, c), tile!(VZIP_HI a, c)];
                            let next = if k + 1 < COLUMNS { pixel(2, k + 1) } else { low };
                            let lower = [tile!(VZIP_LO low, next), tile!(VZIP_HI low, next)];
                            low = next;
                            each!(i in $w { if k >= i * $d && k < i * $d + 3 {
                                let tap = k - i * $d;
                                each!(j in 2 {
                                    t[i][j] = tile!(VFMA upper[j], tile!(VLOAD b, at(tap, j, part)), t[i][j]);
                                    if tap != 1 {
                                        let w = tile!(VLOAD b, at(3 + tap / 2, j, part));
                                        t[i][j] = tile!(VFMA lower[j], w, t[i][j]);
                                    }
                                });
                            } });
                        } });
                        pairs_row!(end $tile args, part, t [$w] -> o);
                    }
                    o = o.wrapping_add($w * C_BLOCK);
                    left += $w * $d;
                    each!(r in 3 { rows[r] = rows[r].wrapping_add(steps[r]); });
                }
            }
        }
        integer_kernel!($isa $isa_name, "pairs", 3 $w $d, c_vec $v, kernel)
    }};
    (tall $tile:ident $isa:ident $isa_name:ident [$($f:tt)*] $v:literal, $w:tt $d:tt) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs<u8>) {
            use tilewright_intrinsics::{$tile as tile, each};
            /// Columns of the image that a tile reads.
            const COLUMNS: usize = ($w - 1) * $d + TAPS;
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let run = g.runs[args.run];
            let (first, flip, pad) = pairs_row!(begin $tile args, s.kernel);
            let outside = [pad; COLUMNS * C_BLOCK];
            for y in args.rows.clone() {
                let top = (y * s.stride[0]) as isize - s.pads[0] as isize;
                let mut left = (run.first * $d) as isize - s.pads[1] as isize;
                let mut o = args.y.wrapping_add(y * y_row + run.first * C_BLOCK);
                for _ in 0..run.count {
                    for part in 0..PARTS {
                        tile!(DEF t [1 x $w x 2]);
                        each!(i in $w { t[i] = first[part]; });
                        let mut b = args.weights;
                        for upper in (0..s.kernel[0]).step_by(2) {
                            let rows = [upper, upper + 1].map(|r| {
                                let row = top + (r * s.dilation[0]) as isize;
                                let inside = r < s.kernel[0] && (row as usize) < s.input[0];
                                let at = args.x.wrapping_offset(row * x_row as isize + left * C_BLOCK as isize);
                                if inside { at } else { outside.as_ptr() }
                            });
                            each!(k in 9 { if k < COLUMNS {
                                // Weights are loaded for each column anew: there are no registers for all.
                                b = tile!(VHIDDEN b);
                                // Of the tiles that these kernels get, others lie inside.
                                let inside = (TAPS / 2..COLUMNS - TAPS / 2).contains(&k)
                                    || (left.wrapping_add(k as isize) as usize) < s.input[1];
                                let [a, c] = rows.map(|row| {
                                    let row = if inside { row } else { outside.as_ptr() };
                                    tile!(VWIDE8 row.wrapping_add(k * C_BLOCK + part * CHANNELS), flip)
                                });
                                let pairs = [tile!(VZIP_LO a, c), tile!(VZIP_HI a, c)];
                                each!(i in $w { if k >= i * $d && k < i * $d + TAPS {
                                    let tap = k - i * $d;
                                    each!(j in 2 {
                                        let w = tile!(VLOAD b, at(tap, j, part));
                                        t[i][j] = tile!(VFMA pairs[j], w, t[i][j]);
                                    });
                                } });
                            } });
                            b = b.wrapping_add(TAPS * C_BLOCK);
                        }
                        pairs_row!(end $tile args, part, t [$w] -> o);
                    }
                    o = o.wrapping_add($w * C_BLOCK);
                    left += $w * $d;
                }
            }
        }
        integer_kernel!($isa $isa_name, "pairs", 5 $w $d, c_vec $v, kernel)
    }};
    // What sums begin with, in two vectors for each part of the channels as pairs have them; the bits of a pixel that are
    // flipped, and the byte that is outside the image.
    (begin $tile:ident $args:ident, $kernel:expr) => {{
        use tilewright_intrinsics::{$tile as tile, each};
        let [flip, pad] = $args.bytes.masks();
        let flip = tile!(VSET f32::from_bits(flip.to_bits() & 0x00ff_00ff));
        let correction = $args.weights.wrapping_add(block_words($kernel) - C_BLOCK);
        let one = tile!(VSET f32::from_bits(1));
        let mut first = tile!(ZEROS [[tile!(VTYPE); 2]; PARTS]);
        for part in 0..PARTS {
            let bias = pairs_row!(quads $tile $args.bias, part);
            each!(j in 2 {
                first[part][j] = tile!(VIMLA one, bias[j], tile!(VLOAD correction, at(0, j, part)));
            });
        }
        (first, flip, pad.to_bits() as u8)
    }};
    // Of 16 numbers those of a part of the channels.
    (quads $tile:ident $p:expr, $part:ident) => {{
        use tilewright_intrinsics::$tile as tile;
        let p: *const u8 = $p.wrapping_add($part * CHANNELS).cast();
        [tile!(VQUADS p, 32), tile!(VQUADS p.wrapping_add(16), 32)]
    }};
    // Sums become bytes.
    (end $tile:ident $args:ident, $part:ident, $t:ident [$w:tt] -> $o:ident) => {{
        use tilewright_intrinsics::{$tile as tile, each};
        let ByteWindow { bounds: [lo, hi], zero, .. } = $args.bytes;
        let (lo, hi, zero) = (tile!(VSET lo), tile!(VSET hi), tile!(VSET zero));
        let (lo, zero) = (tile!(VZIPPED16 lo, lo), tile!(VZIPPED16 zero, zero));
        let rest = pairs_row!(quads $tile $args.bias.wrapping_add(C_BLOCK), $part);
        let scale = pairs_row!(quads $tile $args.bias.wrapping_add(2 * C_BLOCK), $part);
        each!(i in $w { each!(j in 2 {
            $t[i][j] = tile!(VMUL tile!(VADD tile!(VITOF $t[i][j]), rest[j]), scale[j]);
        }); });
        each!(i in $w {
            let x = tile!(VZIPPED16 tile!(VMIN hi, $t[i][0]), tile!(VMIN hi, $t[i][1]));
            tile!(VSTORE_ZIPPED8 $o.wrapping_add(i * C_BLOCK + $part * CHANNELS), x, lo, zero);
        });
    }};
    ($($other:tt)*) => {};
}

tilewright_intrinsics::for_each_tile!(pairs_row, i8);

/// Microkernels for column strides of 1 and 2 per tile width.
pub(crate) type Kernels = &'static [&'static [WindowKernel<u8>]];

/// The microkernels of an instruction set or of the nearest of its bases that has some, for filters of 3 x 3 and for
/// those of 5 columns.
pub(crate) fn all(isa: Isa) -> [Kernels; 2] {
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 8, word S16x2, $($rest:tt)*) => {
            row! { $id $isa }
        };
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 4, word S16x2, $($rest:tt)*) => {
            row! { $id $isa }
        };
        ($id:ident $isa:ident) => {
            if isa == Isa::$isa {
                return [$id::SQUARE, $id::TALL];
            }
        };
        ($($other:tt)*) => {};
    }
    tilewright_intrinsics::for_each_tile!(row, i8);
    isa.base().map_or([&[]; 2], all)
}

/// Those of [`all`] for a filter of neighbouring columns; none if it is another.
pub(super) fn kernels(isa: Isa, s: &WindowSizes) -> Kernels {
    let [square, tall] = all(isa);
    match s.kernel {
        // Of their tiles half of a filter at either side may lie outside the image.
        [_, f_w] if s.pads[1].max(s.pads[3]) > f_w / 2 => &[],
        [3, 3] => square,
        [_, TAPS] => tall,
        _ => &[],
    }
}
