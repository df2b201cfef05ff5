//! Depthwise convolution of bytes by filters of 3 x 3 with dot products of bytes: a row of taps is one
//! instruction.
//!
//! A word of activations is four neighbouring pixels of a channel, so that four pixels of a block are
//! a vector once its bytes are transposed. A pixel whose three columns begin in the lower half of such
//! a word takes them from there, with weights shifted to match; for one that begins in the upper half
//! that half is joined with the lower half of the next word. What lies outside the image is the zero
//! point: masked out of the loads. A tile walks down its rows, which share theirs of the input.

use super::window::WindowKernel;
use crate::{C_BLOCK, Dtype, Isa};

/// Vectors of weights of a filter row: one per place of its first column in a word.
pub(super) const PLACES: usize = 4;

/// Words of a block of channels: the weights of three filter rows, and what the zero point of the input
/// adds to the sums, less.
pub(super) const BLOCK_WORDS: usize = (3 * PLACES + 1) * C_BLOCK;

/// Where the taps of a filter row lie in the bytes of a word, for the pixel of a place.
pub(super) fn word(taps: [i8; 3], place: usize) -> i32 {
    let [a, b, c] = taps;
    let bytes = [[a, b, c, 0], [0, a, b, c], [c, 0, a, b], [b, c, 0, a]][place];
    i32::from_le_bytes(bytes.map(|x| x as u8))
}

/// The loads of a vector of words for the columns of `lo..hi`: a bit for every four bytes.
#[cfg(all(feature = "avx512vnni", target_arch = "x86_64"))]
fn columns(lo: isize, hi: isize) -> u16 {
    let before = |n: isize| (1u32 << (4 * n.clamp(0, 4))) - 1;
    (before(hi) & !before(lo)) as u16
}

macro_rules! dot_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, word U8x4, $($rest:tt)*) => {
        mod $id {
            use super::{BLOCK_WORDS, PLACES, columns};
            use crate::template::window::{ByteWindow, Window, WindowArgs, WindowKernel};
            use crate::template::window_kernel::integer_kernel;
            use crate::{C_BLOCK, Dtype, Isa, KernelInfo};

            dot_row! { widths $tile $isa $isa_name $feat, [1 2 3 4 5 6 7 8] }
        }
    };
    (widths $tile:ident $isa:ident $isa_name:ident $feat:tt, [$($w:tt)*]) => {
        pub(super) const KERNELS: &[&[WindowKernel<u8>]] =
            &[$(&[dot_row!(kernel $tile $isa $isa_name $feat, $w 1), dot_row!(kernel $tile $isa $isa_name $feat, $w 2)]),*];
    };
    (kernel $tile:ident $isa:ident $isa_name:ident [$($f:tt)*], $w:tt $d:tt) => {{
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs<u8>) {
            use tilewright_intrinsics::{$tile as tile, each};
            /// Vectors of words that hold the columns of a tile.
            const WORDS: usize = (($w - 1) * $d + 3usize).div_ceil(4);
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let run = g.runs[args.run];
            let ByteWindow { bounds: [lo, hi], zero, .. } = args.bytes;
            let [flip, pad] = args.bytes.masks();
            let (flip, pad) = (tile!(VSET flip), tile!(VSET pad));
            let correction = args.weights.wrapping_add(BLOCK_WORDS - C_BLOCK);
            let first = tile!(VIMLA tile!(VSET f32::from_bits(1)), tile!(VLOAD args.bias, 0), tile!(VLOAD correction, 0));
            let (rest, scale) = (tile!(VLOAD args.bias, 1), tile!(VLOAD args.bias, 2));
            // By so many taps the rows of an output lie below those of the one above; 3 if they share none.
            let down = if s.stride[0].is_multiple_of(s.dilation[0]) { s.stride[0] / s.dilation[0] } else { 3 };
            let mut left = (run.first * $d) as isize - s.pads[1] as isize;
            for i in 0..run.count {
                let mut inside = [u16::MAX; WORDS];
                let right = s.input[1] as isize - left;
                if left < 0 || right < 4 * WORDS as isize {
                    for (i, inside) in inside.iter_mut().enumerate() {
                        let at = 4 * i as isize;
                        *inside = columns(-left - at, right - at);
                    }
                }
                let mut o = args.y.wrapping_add(args.rows.start * y_row + (run.first + i * $w) * C_BLOCK);
                let mut x = tile!(ZEROS [[tile!(VTYPE); WORDS + 1]; 3]);
                let mut kept = 0usize;
                for y in args.rows.clone() {
                    let top = (y * s.stride[0]) as isize - s.pads[0] as isize;
                    match kept {
                        2 => (x[0], x[1]) = (x[1], x[2]),
                        1 => x[0] = x[2],
                        _ => {}
                    }
                    each!(r in 3 { if r >= kept {
                        let row = top + (r * s.dilation[0]) as isize;
                        let a = args.x.wrapping_offset(row * x_row as isize + left * C_BLOCK as isize);
                        let exists = (0..s.input[0] as isize).contains(&row);
                        each!(k in 5 { if k < WORDS {
                            let inside = if exists { inside[usize::min(k, WORDS - 1)] } else { 0 };
                            x[r][usize::min(k, WORDS)] =
                                tile!(VWORDS8 a.wrapping_add(k * 4 * C_BLOCK), inside, pad, flip);
                        } });
                    } });
                    kept = 3 - usize::min(down, 3);
                    tile!(DEF t [1 x $w x 1]);
                    each!(i in $w { t[i][0] = first; });
                    each!(r in 3 {
                        let b = args.weights.wrapping_add(r * PLACES * C_BLOCK);
                        each!(i in $w {
                            let (at, place) = (i * $d / 4, i * $d % 4);
                            let w = tile!(VLOAD b, place);
                            let x = if place < 2 { x[r][at] } else { tile!(VHALVES x[r][at], x[r][at + 1]) };
                            t[i][0] = tile!(VFMA x, w, t[i][0]);
                        });
                    });
                    each!(i in $w { t[i][0] = tile!(VMUL tile!(VADD tile!(VITOF t[i][0]), rest), scale); });
                    tile!(NARROW t [$w x 1] lo, hi, zero -> o[C_BLOCK, 0]);
                    o = o.wrapping_add(y_row);
                }
                left += $w * $d;
            }
        }
        integer_kernel!($isa $isa_name, "dot", 3 $w $d, c_vec 1, kernel)
    }};
    ($($other:tt)*) => {};
}

tilewright_intrinsics::for_each_tile!(dot_row, i8);

/// The microkernels of one instruction set, for column strides of 1 and 2 per tile width; none if it has
/// no such dot products.
pub(crate) fn kernels(isa: Isa) -> &'static [&'static [WindowKernel<u8>]] {
    let served = isa.serving(Dtype::I8);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, word U8x4, $rest_of:ident $($rest:tt)*) => {
            if served == Isa::$isa {
                return $id::KERNELS;
            }
        };
        ($($other:tt)*) => {};
    }
    tilewright_intrinsics::for_each_tile!(row, i8);
    let _ = served;
    &[]
}
