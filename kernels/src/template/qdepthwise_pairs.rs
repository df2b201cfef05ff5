//! Depthwise convolution of bytes by filters of 3 x 3 with products of pairs of 16 bits, on 16 channels at a time.
//!
//! Of a column of the image the upper two pixels of a window are one pair, and of its lowest row neighbours: five pairs
//! in all, each of which has half of the channels in either of two vectors. What lies outside the image is read from
//! a row of zero points.

use super::window::WindowKernel;
use crate::{C_BLOCK, Isa};

/// Words of a block of channels: the weights of five pairs, and what the zero point of the input adds to the sums,
/// less.
pub(super) const BLOCK_WORDS: usize = 6 * C_BLOCK;

/// The channel of a lane: vectors are paired quad by quad.
pub(super) fn channel(lane: usize) -> usize {
    lane % 4 + lane / 4 % 2 * 8 + lane / 8 * 4
}

/// The weights of a pair: of the upper rows of column 0, 1 or 2, of the first and of the last columns of the lowest row.
pub(super) fn word(taps: impl Fn(usize) -> i32, pair: usize) -> i32 {
    let [first, second] = match pair {
        3 => [taps(6), taps(7)],
        4 => [taps(8), 0],
        column => [taps(column), taps(3 + column)],
    };
    // As if little-endian: the first has the lower address.
    i32::from_le((first & 0xffff) | second << 16)
}

macro_rules! pairs_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 8, word S16x2, $($rest:tt)*) => {
        mod $id {
            use super::BLOCK_WORDS;
            use crate::template::window::{ByteWindow, Window, WindowArgs, WindowKernel};
            use crate::{C_BLOCK, Dtype, Isa, KernelInfo};

            pairs_row! { widths $tile $isa $isa_name $feat, [1 2 3 4] }
        }
    };
    (widths $tile:ident $isa:ident $isa_name:ident $feat:tt, [$($w:tt)*]) => {
        pub(super) const KERNELS: &[&[WindowKernel<u8>]] =
            &[$(&[pairs_row!(kernel $tile $isa $isa_name $feat, $w 1), pairs_row!(kernel $tile $isa $isa_name $feat, $w 2)]),*];
    };
    (kernel $tile:ident $isa:ident $isa_name:ident [$($f:tt)*], $w:tt $d:tt) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs<u8>) {
            use tilewright_intrinsics::{$tile as tile, each};
            /// Columns of the image that a tile reads.
            const COLUMNS: usize = ($w - 1) * $d + 3;
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let run = g.runs[args.run];
            let ByteWindow { bounds: [lo, hi], zero, .. } = args.bytes;
            let [flip, pad] = args.bytes.masks();
            let (lo, hi, zero) = (tile!(VSET lo), tile!(VSET hi), tile!(VSET zero));
            let (lo, zero) = (tile!(VZIPPED16 lo, lo), tile!(VZIPPED16 zero, zero));
            let flip = tile!(VSET f32::from_bits(flip.to_bits() & 0x00ff_00ff));
            let outside = [pad.to_bits() as u8; COLUMNS * C_BLOCK];
            let (one, correction) = (tile!(VSET f32::from_bits(1)), args.weights.wrapping_add(BLOCK_WORDS - C_BLOCK));
            // The halves of the channels as pairs have them.
            let halves = |p: *const f32| {
                let p = p.cast::<u8>();
                [tile!(VQUADS p, 32), tile!(VQUADS p.wrapping_add(16), 32)]
            };
            let first = halves(args.bias);
            let first = [
                tile!(VIMLA one, first[0], tile!(VLOAD correction, 0)),
                tile!(VIMLA one, first[1], tile!(VLOAD correction, 1)),
            ];
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
                    tile!(DEF t [1 x $w x 2]);
                    each!(i in $w { t[i] = first; });
                    let pixel = |r: usize, column: usize| {
                        // Of the tiles that these kernels get only the first and last columns may lie outside.
                        let inside = (1..COLUMNS - 1).contains(&column)
                            || (left.wrapping_add(column as isize) as usize) < s.input[1];
                        let row = if inside { rows[r] } else { outside.as_ptr() };
                        tile!(VWIDE8 row.wrapping_add(column * C_BLOCK), flip)
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
                                t[i][j] = tile!(VFMA upper[j], tile!(VLOAD b, tap * 2 + j), t[i][j]);
                                if tap != 1 {
                                    t[i][j] = tile!(VFMA lower[j], tile!(VLOAD b, 6 + tap + j), t[i][j]);
                                }
                            });
                        } });
                    } });
                    let (rest, scale) = (halves(args.bias.wrapping_add(C_BLOCK)), halves(args.bias.wrapping_add(2 * C_BLOCK)));
                    each!(i in $w { each!(j in 2 {
                        t[i][j] = tile!(VMUL tile!(VADD tile!(VITOF t[i][j]), rest[j]), scale[j]);
                    }); });
                    each!(i in $w {
                        let x = tile!(VZIPPED16 tile!(VMIN hi, t[i][0]), tile!(VMIN hi, t[i][1]));
                        tile!(VSTORE_ZIPPED8 o.wrapping_add(i * C_BLOCK), x, lo, zero);
                    });
                    o = o.wrapping_add($w * C_BLOCK);
                    left += $w * $d;
                    each!(r in 3 { rows[r] = rows[r].wrapping_add(steps[r]); });
                }
            }
        }
        WindowKernel {
            info: KernelInfo {
                name: concat!("qdepthwise_i8_1x", $w, "x16_k3s", $d, "_pairs_", stringify!($isa_name)),
                op: "qdepthwise",
                isa: Isa::$isa,
                dtype: Dtype::I8,
                rows: 1,
                w_ob: $w,
                c_vec: 2,
                c_ob: 16,
                unroll: 3,
            },
            made_for: Some([3, $d]),
            run: kernel,
        }
    }};
    ($($other:tt)*) => {};
}

tilewright_intrinsics::for_each_tile!(pairs_row, i8);

/// The microkernels of an instruction set or of the nearest of its bases that has some, for column strides of 1 and 2
/// per tile width.
pub(crate) fn kernels(isa: Isa) -> &'static [&'static [WindowKernel<u8>]] {
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 8, word S16x2, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS;
            }
        };
        ($($other:tt)*) => {};
    }
    tilewright_intrinsics::for_each_tile!(row, i8);
    isa.base().map_or(&[], kernels)
}
