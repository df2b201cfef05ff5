//! The convolution microkernel: one tile of `R` rows x `W` pixels x `V` vectors, from the bias to
//! the stored result, in registers.
//!
//! Nothing is padded or copied. A tap that falls outside the image for some pixels of the tile
//! runs a body that leaves those pixels out: all pixels, all but the first or the last column
//! (what a border of one pixel needs), or a body with a test per pixel for any other case. The
//! choice is made per tap, outside the loop over channels.

use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};
use alloc::boxed::Box;

/// What is the same for all tiles of one phase of a plan. Distances are in elements.
#[derive(Clone, Debug)]
pub(crate) struct TileShape {
    /// Between the inputs of two neighbouring pixels of an output row.
    pub(crate) step: usize,
    /// Between the inputs of two output rows.
    pub(crate) row_step: usize,
    /// Channels walked per tap before the next channel block.
    pub(crate) c_blk: usize,
    /// Between two channel blocks of the input.
    pub(crate) c_step: usize,
    /// Offset of each filter row's input from the one of the output pixel.
    pub(crate) dy: Box<[isize]>,
    /// Filter columns.
    pub(crate) f_w: usize,
    /// If the taps of a row read neighbouring pixels: the distance of two pixels, else 0. In a block
    /// of as many channels, taps that see the same pixels are one run of elements.
    pub(crate) merge: usize,
    /// Between two pixels of an output row.
    pub(crate) o_step: usize,
    /// Between two output rows.
    pub(crate) o_row: usize,
    /// Between two blocks of 16 output channels.
    pub(crate) o_plane: usize,
    /// What is done before STORE.
    pub(crate) activation: TileActivation,
}

/// Neighbouring filter columns that see the same pixels of a tile row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Offset of the first one's input from the one of the output pixel.
    pub(crate) dx: isize,
    /// How many there are.
    pub(crate) taps: usize,
    /// Bit `i` is set if pixel `i` of a tile row lies in the image.
    pub(crate) mask: u32,
}

/// One tile of one channel chunk.
pub(crate) struct TileArgs<'a> {
    /// Input at the tile's first pixel, as if by a tap of offset 0. May point outside the operand.
    pub(crate) a: *const f32,
    /// Packed weights of the chunk.
    pub(crate) b: *const f32,
    /// Bias of the tile's output channels.
    pub(crate) bias: *const f32,
    /// Residual at the tile's first output, or null.
    pub(crate) residual: *const f32,
    /// First output.
    pub(crate) o: *mut f32,
    /// Channels in the chunk.
    pub(crate) channels: usize,
    /// Whether this is the first chunk: start from the bias, not from the output.
    pub(crate) first: bool,
    /// Whether this is the last chunk: add the residual and activate.
    pub(crate) last: bool,
    /// Per filter row: bit `y * W` is set if tile row `y` lies in the image.
    pub(crate) rows: &'a [u32],
    /// The filter columns, as runs in blocks of `merge` channels.
    pub(crate) runs: &'a [Run],
    /// The filter columns one by one, for other blocks.
    pub(crate) taps: &'a [Run],
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * For each tap, each pixel whose bit is set in `rows * mask`, and each channel of the chunk, the
///   input element at `a + dy + dx + y * row_step + i * step + block * c_step + c` is readable.
/// * `b` has `channels * f_h * f_w * V * LANES` readable elements, `bias` `V * LANES`; `rows` has
///   one element per filter row, `runs` and `taps` cover all filter columns.
/// * The `V * LANES` outputs of each of the `R x W` pixels are writable (readable too unless
///   `first`), as are those of `residual` readable unless it is null, and no other thread writes
///   them.
pub(crate) type TileFn = unsafe fn(&TileShape, &TileArgs<'_>);

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvKernel {
    pub(crate) info: KernelInfo,
    pub(crate) run: TileFn,
}

/// Bits of the first column of a tile.
const fn column(rows: u32, width: u32) -> u32 {
    let (mut mask, mut y) = (0, 0);
    while y < rows {
        mask |= 1 << (y * width);
        y += 1;
    }
    mask
}

macro_rules! conv_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt, c_vec $c_vec:tt,
     unroll $u:tt, conv [$([$r:tt $w:tt $v:tt])*], $($rest:tt)*) => {
        paste::paste! {
            mod $id {
                use super::*;
                $(conv_kernel! { [<tile_ $r x $w x $v>], $tile, $feat, $r, $w, $v, $u })*
                pub(super) const KERNELS: &[ConvKernel] = &[$(ConvKernel {
                    info: KernelInfo {
                        name: concat!("conv_f32_", $r, "x", $w, "x", $crate::template::c_ob!($lanes $v), "_u", $u,
                            "_", stringify!($isa_name)),
                        op: "conv", isa: Isa::$isa, dtype: Dtype::F32,
                        tile: crate::Tile { rows: $r, w_ob: $w, c_vec: $v, c_ob: $v * $lanes, unroll: $u }.packed(),
                    },
                    run: [<tile_ $r x $w x $v>],
                }),*];
            }
        }
    };
}

macro_rules! conv_kernel {
    ($name:ident, $tile:ident, [$($f:tt)*], $r:tt, $w:tt, $v:tt, $u:tt) => {
        $(#[target_feature(enable = $f)])*
        #[allow(clippy::int_plus_one, reason = "an instruction set may unroll by 1")]
        unsafe fn $name(g: &TileShape, args: &TileArgs<'_>) {
            use tilewright_intrinsics::$tile as tile;
            const FIRST: u32 = column($r, $w);
            const LAST: u32 = FIRST << ($w - 1);
            const ALL: u32 = ((1u64 << ($r * $w)) - 1) as u32;
            const NOT_FIRST: u32 = ALL & !FIRST;
            const NOT_LAST: u32 = ALL & !LAST;
            const NR: usize = $v * tile!(LANES);
            const DRAIN: usize = $crate::template::drain_steps!($tile $r * $w * $v);

            let row_step = g.row_step;
            let (o, bias, residual) = (args.o, args.bias, args.residual);
            let mut block = args.a;
            let mut b = args.b;
            let last = b.wrapping_add(args.channels * g.dy.len() * g.f_w * NR);
            tile!(STEP step <- g.step);
            tile!(DEF t [$r x $w x $v]);
            let activation = if args.last { g.activation } else { TileActivation::None };
            let simple = DRAIN > 0
                && residual.is_null()
                && !matches!(activation, TileActivation::Leaky { .. });
            if args.first {
                tile!(BIAS t [$r x $w x $v] <- bias);
            } else {
                tile!(LOAD t [$r x $w x $v] <- o[g.o_row, g.o_step, g.o_plane]);
            }
            let mut left = args.channels;
            while left > 0 {
                let channels = left.min(g.c_blk);
                let runs = if channels == g.merge { args.runs } else { args.taps };
                for (dy, rows) in g.dy.iter().zip(args.rows) {
                    if *rows == 0 {
                        b = b.wrapping_add(g.f_w * channels * NR);
                        continue;
                    }
                    let row = block.wrapping_offset(*dy);
                    for run in runs {
                        let n = run.taps * channels;
                        let mask = rows * run.mask;
                        let end = b.wrapping_add(n * NR);
                        if mask != 0 {
                            let a = row.wrapping_offset(run.dx);
                            let mut k = n;
                            tile!(POINT p [$r x $w] <- a[row_step, step]);
                            if mask == ALL {
                                let drains = simple && end == last && n >= DRAIN;
                                let keep = if drains { DRAIN } else { 0 };
                                while k >= $u + keep {
                                    tile!(COMPUTE conv t [$r x $w x $v x $u] += p[step] * b if ALL);
                                    tile!(ADVANCE p [$r x $w] by $u);
                                    b = b.wrapping_add($u * NR);
                                    k -= $u;
                                }
                                // Rows of three pixels with three channels leave one, at each row.
                                while k > keep {
                                    tile!(COMPUTE conv t [$r x $w x $v x 1] += p[step] * b if ALL);
                                    tile!(ADVANCE p [$r x $w] by 1);
                                    b = b.wrapping_add(NR);
                                    k -= 1;
                                }
                                if drains {
                                    $crate::template::drain_tile! { tile t [$r x $w x $v] += p[step, 1] * b[NR],
                                        activation -> o[g.o_row, g.o_step, g.o_plane] }
                                    return;
                                }
                            } else if mask == NOT_FIRST {
                                while k > 0 {
                                    tile!(COMPUTE conv t [$r x $w x $v x 1] += p[step] * b if NOT_FIRST);
                                    tile!(ADVANCE p [$r x $w] by 1);
                                    b = b.wrapping_add(NR);
                                    k -= 1;
                                }
                            } else if mask == NOT_LAST {
                                while k > 0 {
                                    tile!(COMPUTE conv t [$r x $w x $v x 1] += p[step] * b if NOT_LAST);
                                    tile!(ADVANCE p [$r x $w] by 1);
                                    b = b.wrapping_add(NR);
                                    k -= 1;
                                }
                            }
                            while k > 0 {
                                tile!(COMPUTE conv t [$r x $w x $v x 1] += p[step] * b if mask);
                                tile!(ADVANCE p [$r x $w] by 1);
                                b = b.wrapping_add(NR);
                                k -= 1;
                            }
                        }
                        b = end;
                    }
                }
                block = block.wrapping_add(g.c_step);
                left -= channels;
            }
            if args.last && !residual.is_null() {
                tile!(ADD t [$r x $w x $v] += residual[g.o_row, g.o_step, g.o_plane]);
            }
            match activation {
                TileActivation::None => {}
                TileActivation::Relu => { tile!(RELU t [$r x $w x $v]); }
                TileActivation::Clamp { lo, hi } => { tile!(CLAMP t [$r x $w x $v] lo, hi); }
                TileActivation::Leaky { alpha } => { tile!(LEAKY t [$r x $w x $v] alpha); }
            }
            tile!(STORE t [$r x $w x $v] -> o[g.o_row, g.o_step, g.o_plane]);
        }
    };
}

tilewright_intrinsics::for_each_tile!(conv_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> &'static [ConvKernel] {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    &[]
}
