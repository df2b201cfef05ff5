//! Depthwise convolution of bytes by filters of 3 and 5 columns with products of 16 bits that are added as 32: on 16
//! channels at a time, a filter row after the other.
//!
//! Bytes become 16 bits once for all windows of a tile that have them. What lies outside the image is read from zero
//! points.

use super::window::{WindowKernel, WindowSizes};
use crate::{C_BLOCK, Isa};

/// Words of a block of channels for a filter of so many taps: two weights each, and what the zero point of the input
/// adds to the sums, less.
pub(super) const fn block_words(taps: usize) -> usize {
    taps.next_multiple_of(2) * C_BLOCK / 2 + C_BLOCK
}

/// Word `at` of the weights: those of two neighbouring channels. `weight` gives that of a channel and tap.
pub(super) fn word(taps: usize, weight: impl Fn(usize, usize) -> i32, at: usize) -> i32 {
    let (tap, channel) = (at / (C_BLOCK / 2), at % (C_BLOCK / 2) * 2);
    let [first, second] =
        [channel, channel + 1].map(|c| if tap < taps { weight(c, tap) } else { 0 });
    // As if little-endian: the first has the lower address.
    i32::from_le((first & 0xffff) | second << 16)
}

macro_rules! wide_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 4, word S16x2Halves, $($rest:tt)*) => {
        mod $id {
            use super::block_words;
            use crate::template::window::{ByteWindow, Window, WindowArgs, WindowKernel};
            use crate::template::window_kernel::integer_kernel;
            use crate::{C_BLOCK, Dtype, Isa, KernelInfo};

            wide_row! { widths THREE 3 $tile $isa $isa_name $feat, [1 2 3 4] }
            wide_row! { widths FIVE 5 $tile $isa $isa_name $feat, [1 2 3] }
        }
    };
    (widths $list:ident $taps:tt $tile:ident $isa:ident $isa_name:ident $feat:tt, [$($w:tt)*]) => {
        pub(super) const $list: &[&[WindowKernel<u8>]] = &[$(&[
            wide_row!(kernel $taps $tile $isa $isa_name $feat, $w 1), wide_row!(kernel $taps $tile $isa $isa_name $feat, $w 2),
        ]),*];
    };
    (kernel $taps:tt $tile:ident $isa:ident $isa_name:ident [$($f:tt)*], $w:tt $d:tt) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs<u8>) {
            use tilewright_intrinsics::{$tile as tile, each};
            /// Columns of the image that a tile reads.
            const COLUMNS: usize = ($w - 1) * $d + $taps;
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let run = g.runs[args.run];
            let ByteWindow { bounds, zero, .. } = args.bytes;
            let [flip, pad] = args.bytes.masks().map(|bits| bits.to_bits() as u8);
            let flip = tile!(BYTES_SPLAT flip);
            let outside = [pad; COLUMNS * C_BLOCK];
            let correction = args.weights.wrapping_add(block_words(s.kernel[0] * $taps) - C_BLOCK);
            let one = tile!(VSET f32::from_bits(1));
            let mut first = tile!(ZEROS [tile!(VTYPE); 4]);
            each!(j in 4 { first[j] = tile!(VIMLA one, tile!(VLOAD args.bias, j), tile!(VLOAD correction, j)); });
            for y in args.rows.clone() {
                let top = (y * s.stride[0]) as isize - s.pads[0] as isize;
                let mut left = (run.first * $d) as isize - s.pads[1] as isize;
                let mut o = args.y.wrapping_add(y * y_row + run.first * C_BLOCK);
                for _ in 0..run.count {
                    let mut t = [first; $w];
                    let mut b = args.weights;
                    for r in 0..s.kernel[0] {
                        let row = top + (r * s.dilation[0]) as isize;
                        let at = args.x.wrapping_offset(row * x_row as isize + left * C_BLOCK as isize);
                        let row = if (row as usize) < s.input[0] { at } else { outside.as_ptr() };
                        let mut weights = [tile!(WIDE16 b); $taps];
                        each!(k in $taps { weights[k] = tile!(WIDE16 b.wrapping_add(k * C_BLOCK / 2)); });
                        each!(k in 9 { if k < COLUMNS {
                            // Of the tiles that these kernels get, others lie inside.
                            let inside = ($taps / 2..COLUMNS - $taps / 2).contains(&k)
                                || (left.wrapping_add(k as isize) as usize) < s.input[1];
                            let row = if inside { row } else { outside.as_ptr() };
                            let x = tile!(WIDE8 row.wrapping_add(k * C_BLOCK), flip);
                            each!(i in $w { if k >= i * $d && k < i * $d + $taps {
                                tile!(WIDE_MLA t[i], x, weights[k - i * $d]);
                            } });
                        } });
                        b = b.wrapping_add($taps * C_BLOCK / 2);
                    }
                    each!(j in 4 {
                        let (rest, scale) = (tile!(VLOAD args.bias, 4 + j), tile!(VLOAD args.bias, 8 + j));
                        each!(i in $w { t[i][j] = tile!(VMUL tile!(VADD tile!(VITOF t[i][j]), rest), scale); });
                    });
                    each!(i in $w { tile!(WIDE_STORE o.wrapping_add(i * C_BLOCK), t[i], bounds, zero); });
                    o = o.wrapping_add($w * C_BLOCK);
                    left += $w * $d;
                }
            }
        }
        integer_kernel!($isa $isa_name, "wide", $taps $w $d, c_vec 4, kernel)
    }};
    ($($other:tt)*) => {};
}

tilewright_intrinsics::for_each_tile!(wide_row, i8);

/// The microkernels of an instruction set or of the nearest of its bases that has some, for column strides of 1 and 2
/// per tile width: of filters of 3 columns, and of 5.
pub(crate) fn all(isa: Isa) -> [&'static [&'static [WindowKernel<u8>]]; 2] {
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 4, word S16x2Halves, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return [$id::THREE, $id::FIVE];
            }
        };
        ($($other:tt)*) => {};
    }
    tilewright_intrinsics::for_each_tile!(row, i8);
    isa.base().map_or([&[]; 2], all)
}

/// Those of [`all`] for a filter of neighbouring columns; none if it is another.
pub(super) fn kernels(isa: Isa, s: &WindowSizes) -> &'static [&'static [WindowKernel<u8>]] {
    let [three, five] = all(isa);
    match s.kernel[1] {
        // Of their tiles half of a filter at either side may lie outside the image.
        f_w if s.pads[1].max(s.pads[3]) > f_w / 2 => &[],
        3 => three,
        5 => five,
        _ => &[],
    }
}
