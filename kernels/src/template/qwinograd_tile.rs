//! The transforms of Winograd's convolution of bytes, `F(2 x 2, 3 x 3)` as in `winograd_tile`, in integers
//! and exact: with the points 0, +-1 only the matrix of the weights has fractions, halves, so weights are
//! transformed to four times their value and sums shifted back.
//!
//! A byte less its zero point has 9 bits with its sign, transformed 11; a weight transformed has 12 or 13.
//! They fit the words of instruction sets that multiply pairs of `i16`, which so save five of nine
//! products.

use super::dot_tile::row as dot_row;
use crate::{C_BLOCK, Dtype, Isa, KernelInfo};

/// Inputs of a tile along each axis.
pub(super) const EDGE: usize = 4;

/// Positions of a transformed tile.
pub(super) const POSITIONS: usize = EDGE * EDGE;

/// Outputs of a tile.
pub(super) const OUTPUTS: usize = 4;

/// Transforms a block of channels of one tile: 4 rows of `4 * 16` bytes at `x`, `row` bytes apart, to
/// `[position][16]` at `v`, `step` elements between two positions. The bits of `flip` are flipped in each
/// byte, then it is unsigned and `zero` is subtracted.
///
/// # Safety
///
/// The CPU has the instructions of the row; the rows are readable, the 16 elements of each position
/// writable and aligned to words of two, and they do not overlap.
pub(super) type InputFn =
    unsafe fn(x: *const u8, row: usize, flip: u8, zero: i16, v: *mut i16, step: usize);

/// Transforms the products of a block of channels of one tile back: those of a position lie at `m`, two
/// positions `step` apart. Gives the sums of the four outputs, with `bias` added.
///
/// # Safety
///
/// The CPU has the instructions of the row, and 16 products of each position are readable.
pub(super) type OutputFn = unsafe fn(
    m: *const i32,
    step: usize,
    bias: &[i32; C_BLOCK],
    sums: &mut [[i32; C_BLOCK]; OUTPUTS],
);

/// The transforms of an instruction set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transforms {
    pub(crate) info: KernelInfo,
    pub(super) input: InputFn,
    pub(super) output: OutputFn,
}

/// `B' d` for four numbers.
#[allow(unused_macros, reason = "there are builds without instruction sets that need it")]
macro_rules! data {
    ($tile:ident $d:expr) => {{
        let [d0, d1, d2, d3] = $d;
        [
            $tile!(VSUB16 d0, d2), $tile!(VADD16 d2, d1),
            $tile!(VSUB16 d2, d1), $tile!(VSUB16 d3, d1),
        ]
    }};
}

/// `A' m` for four numbers, modulo 2^32: only the sums of all are known to have room.
#[allow(unused_macros, reason = "there are builds without instruction sets that need it")]
macro_rules! inverse {
    ($tile:ident $m:expr) => {{
        let [m0, m1, m2, m3] = $m;
        [
            $tile!(VIADD $tile!(VIADD m0, m1), m2),
            $tile!(VIADD $tile!(VISUB m1, m2), m3),
        ]
    }};
}

/// `2 G g` for three numbers.
fn filter([g0, g1, g2]: [i32; 3]) -> [i32; 4] {
    [2 * g0, g0 + g1 + g2, g0 - g1 + g2, 2 * g2]
}

/// Four times the transform of a filter of `3 x 3` taps, each of at most 255 either way.
pub(super) fn weights(taps: [i32; 9]) -> [i32; POSITIONS] {
    let columns = [0, 1, 2].map(|j| filter([0, 3, 6].map(|i| taps[i + j])));
    let mut out = [0; POSITIONS];
    for (i, out) in out.chunks_exact_mut(EDGE).enumerate() {
        out.copy_from_slice(&filter(columns.map(|column| column[i])));
    }
    out
}

macro_rules! transforms {
    // A block of halves is 32 bytes: those of the base, whose vectors are as long, do as well.
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, $($rest:tt)*) => {};
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt, word S16x2,
     $($rest:tt)*) => { transforms! { @ $id $tile $isa $isa_name $feat $lanes } };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt,
     word S16x2Halves, $($rest:tt)*) => { transforms! { @ $id $tile $isa $isa_name $feat $lanes } };
    (@ $id:ident $tile:ident $isa:ident $isa_name:ident [$($f:tt)*] $lanes:tt) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::{$tile as tile, each};

            const LANES: usize = tile!(LANES);

            pub(super) const TRANSFORMS: Transforms = Transforms {
                info: KernelInfo {
                    name: concat!("winograd_i8_2x2x16_u1_", stringify!($isa_name)),
                    op: "winograd", isa: Isa::$isa, dtype: Dtype::I8,
                    tile: crate::Tile { rows: 2, w_ob: 2, c_vec: C_BLOCK / $lanes, c_ob: C_BLOCK, unroll: 1 }.packed(),
                },
                input, output,
            };

            $(#[target_feature(enable = $f)])*
            unsafe fn input(x: *const u8, row: usize, flip: u8, zero: i16, v: *mut i16, step: usize) {
                let both = |x: u16| tile!(VSET f32::from_bits(u32::from(x) << 16 | u32::from(x)));
                let (flip, zero) = (both(flip.into()), both(zero as u16));
                for part in 0..C_BLOCK / (2 * LANES) {
                    let x = x.wrapping_add(part * 2 * LANES);
                    let mut w = tile!(ZEROS [[tile!(VTYPE); EDGE]; EDGE]);
                    each!(j in 4 {
                        let mut d = tile!(ZEROS [tile!(VTYPE); EDGE]);
                        each!(i in 4 {
                            let bytes = x.wrapping_add(i * row + j * C_BLOCK);
                            d[i] = tile!(VSUB16 tile!(VWIDE8 bytes, flip), zero);
                        });
                        let d = data!(tile d);
                        each!(i in 4 { w[i][j] = d[i]; });
                    });
                    each!(i in 4 {
                        let d = data!(tile w[i]);
                        each!(j in 4 {
                            let v = v.wrapping_add((i * EDGE + j) * step).cast::<f32>();
                            tile!(VSTORE v, part, d[j]);
                        });
                    });
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn output(
                m: *const i32, step: usize, bias: &[i32; C_BLOCK], sums: &mut [[i32; C_BLOCK]; OUTPUTS],
            ) {
                let (bias, sums) = (bias.as_ptr().cast::<f32>(), sums.as_mut_ptr().cast::<f32>());
                for part in 0..C_BLOCK / LANES {
                    let mut w = tile!(ZEROS [[tile!(VTYPE); EDGE]; 2]);
                    each!(j in 4 {
                        let mut d = tile!(ZEROS [tile!(VTYPE); EDGE]);
                        each!(i in 4 {
                            let m = m.wrapping_add((i * EDGE + j) * step).cast::<f32>();
                            d[i] = tile!(VLOAD m, part);
                        });
                        let d = inverse!(tile d);
                        each!(i in 2 { w[i][j] = d[i]; });
                    });
                    each!(i in 2 {
                        let d = inverse!(tile w[i]);
                        each!(j in 2 {
                            let sum = tile!(VIADD tile!(VISHR d[j], 2), tile!(VLOAD bias, part));
                            let to = sums.wrapping_add((i * 2 + j) * C_BLOCK);
                            tile!(VSTORE to, part, sum);
                        });
                    });
                }
            }
        }
    };
    ($($other:tt)*) => {};
}
tilewright_intrinsics::for_each_tile!(transforms, i8);

/// The transforms for the instruction set whose kernels multiply bytes for `isa`, its own or those of the
/// nearest of its bases, if those kernels take pairs of `i16`.
pub(crate) fn transforms(isa: Isa) -> Option<&'static Transforms> {
    let mut isa = isa.serving(Dtype::I8);
    dot_row(isa, Dtype::I8).word.is_wide().then_some(())?;
    loop {
        macro_rules! row {
            ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, $($rest:tt)*) => {};
            ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt,
             word S16x2, $($rest:tt)*) => {
                row! { @ $id $isa }
            };
            ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt,
             word S16x2Halves, $($rest:tt)*) => {
                row! { @ $id $isa }
            };
            (@ $id:ident $isa:ident) => {
                if isa == Isa::$isa {
                    return Some(&$id::TRANSFORMS);
                }
            };
            ($($other:tt)*) => {};
        }
        tilewright_intrinsics::for_each_tile!(row, i8);
        isa = isa.base()?;
    }
}
