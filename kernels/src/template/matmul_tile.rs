//! The matrix product microkernels: `W` rows of A times a panel of `V` vectors of columns of B, in
//! registers over one block of K.
//!
//! A is read as a convolution reads its pixels, one distance between rows and one between runs
//! of the reduction, so that rows where they lie and rows packed as `[k / 16][row][16]` are the same
//! to the kernel. A single row has too few vectors to hide the latency of FMA: its kernel keeps
//! several partial sums per column, each of every `S`-th step of the reduction.

use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};

/// One tile of a product, or several. Distances are in elements.
pub(crate) struct TileArgs {
    /// Tiles: what is done once per call is as long as a few steps of the reduction.
    pub(crate) tiles: usize,
    /// From one tile to the next.
    pub(crate) next: NextTile,
    /// First row of A, first column.
    pub(crate) a: *const f32,
    /// The panel's first row of B, `V * LANES` elements.
    pub(crate) b: *const f32,
    /// Bias of the panel's columns, `V * LANES` elements; or of the rows, `W` elements.
    pub(crate) bias: *const f32,
    /// Whether it is that of the rows.
    pub(crate) row_bias: bool,
    /// Residual at the first output, or null; it lies as the output does.
    pub(crate) residual: *const f32,
    /// First output.
    pub(crate) o: *mut f32,
    /// Between two rows of A.
    pub(crate) a_row: usize,
    /// Elements of a row of A in one run.
    pub(crate) a_run: usize,
    /// Between two runs of A.
    pub(crate) a_step: usize,
    /// Between two rows of B.
    pub(crate) b_row: usize,
    /// Between two rows of the output.
    pub(crate) o_row: usize,
    /// Between two blocks of 16 columns of the output: 16 if `tail` is not `LANES`.
    pub(crate) o_plane: usize,
    /// Length of the reduction.
    pub(crate) k: usize,
    /// Columns of the last vector that exist, `1..=LANES`.
    pub(crate) tail: usize,
    /// Whether this is the first block of K: start from the bias, else add to the output.
    pub(crate) first: bool,
    /// Whether this is the last block of K: add the residual and activate.
    pub(crate) last: bool,
    /// What is done before STORE.
    pub(crate) activation: TileActivation,
    /// Whether B is too large to be in the L2 cache since the last call; kernels of single rows then ask for
    /// it early, which takes time where it is there already.
    pub(crate) stream: bool,
}

/// From one tile of a call to the next, in elements: one below the other, or side by side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NextTile {
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) bias: usize,
    /// Of outputs and residuals.
    pub(crate) o: usize,
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * There is at least one tile. Element `c` of row `i` of A of tile `t` is readable at
///   `a + t * next.a + i * a_row + c / a_run * a_step + c % a_run`, for `i < W`, `c < k`.
/// * Each of `k` rows of B, `b_row` apart from `b + t * next.b` on, has `V * LANES` readable elements, as
///   has `bias + t * next.bias` (if it is that of rows, `W`).
/// * Each of `W` rows at `o + t * next.o` has `(V - 1) * LANES + tail` writable elements, in blocks of 16,
///   that no other thread uses (readable too unless `first`), and so many are readable at `residual`
///   unless it is null.
pub(crate) type TileFn = unsafe fn(&TileArgs);

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatmulKernel {
    pub(crate) info: KernelInfo,
    pub(crate) run: TileFn,
}

macro_rules! matmul_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $lanes:tt, c_vec $c_vec:tt,
     unroll $u:tt, conv $conv:tt, matmul [$([$w:tt $v:tt])*], row [$([$s:tt $rv:tt])*]
     $(, rest [$([$rest_s:tt $rest_v:tt])*])?) => {
        paste::paste! {
            mod $id {
                use super::*;
                $(matmul_kernel! { [<tiles_ $w x $v>] [<tile_ $w x $v>], $tile, $feat, $w, $v, $u })*
                $(row_kernel! { [<all_sums_ $s x $rv>] [<sums_ $s x $rv>], $tile, $feat, $s, $rv })*
                $($(row_kernel! {
                    [<all_sums_ $rest_s x $rest_v>] [<sums_ $rest_s x $rest_v>], $tile, $feat, $rest_s, $rest_v
                })*)?
                pub(super) const KERNELS: &[MatmulKernel] = &[$(MatmulKernel {
                    info: KernelInfo {
                        name: concat!("matmul_f32_", $w, "x", $crate::template::c_ob!($lanes $v), "_u", $u,
                            "_", stringify!($isa_name)),
                        op: "matmul", isa: Isa::$isa, dtype: Dtype::F32,
                        tile: crate::Tile { rows: 1, w_ob: $w, c_vec: $v, c_ob: $v * $lanes, unroll: $u }.packed(),
                    },
                    run: [<tiles_ $w x $v>],
                },)* $(single! { $isa $isa_name $lanes $s $rv [<all_sums_ $s x $rv>] },)*];
                pub(super) const REST: &[MatmulKernel] =
                    &[$($(single! { $isa $isa_name $lanes $rest_s $rest_v [<all_sums_ $rest_s x $rest_v>] },)*)?];
            }
        }
    };
}

/// A kernel of a single row and what it is.
macro_rules! single {
    ($isa:ident $isa_name:ident $lanes:tt $s:tt $v:tt $run:ident) => {
        MatmulKernel {
            info: KernelInfo {
                name: concat!("matmul_f32_1x", $crate::template::c_ob!($lanes $v), "_u", $s, "_", stringify!($isa_name)),
                op: "matmul", isa: Isa::$isa, dtype: Dtype::F32,
                tile: crate::Tile { rows: 1, w_ob: 1, c_vec: $v, c_ob: $v * $lanes, unroll: $s }.packed(),
            },
            run: $run,
        }
    };
}

/// The kernel of all tiles of a call. One tile is a function of its own: around this loop, compilers find
/// no good place in registers for what the loop in there has in them.
macro_rules! tiles {
    ($name:ident $one:ident, [$($f:tt)*]) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(args: &TileArgs) {
            let (mut a, mut b, mut o) = (args.a, args.b, args.o);
            let (mut bias, mut residual) = (args.bias, args.residual);
            let (tiles, next) = (args.tiles, args.next);
            for _ in 1..tiles {
                // SAFETY: the caller's duties, for one of the tiles.
                unsafe { $one(args, a, b, o, bias, residual) };
                a = a.wrapping_add(next.a);
                b = b.wrapping_add(next.b);
                o = o.wrapping_add(next.o);
                bias = bias.wrapping_add(next.bias);
                residual = if residual.is_null() { residual } else { residual.wrapping_add(next.o) };
            }
            // SAFETY: as above.
            unsafe { $one(args, a, b, o, bias, residual) };
        }
    };
}

macro_rules! matmul_kernel {
    ($name:ident $one:ident, $tile:ident, [$($f:tt)*], $w:tt, $v:tt, $u:tt) => {
        tiles! { $name $one, [$($f)*] }

        $(#[target_feature(enable = $f)])*
        #[allow(clippy::int_plus_one, reason = "an instruction set may unroll by 1")]
        #[inline(never)]
        unsafe fn $one(
            args: &TileArgs,
            a: *const f32,
            b: *const f32,
            o: *mut f32,
            bias: *const f32,
            residual: *const f32,
        ) {
            use tilewright_intrinsics::$tile as tile;
            const ALL: u32 = (1 << $w) - 1;
            const LANES: usize = tile!(LANES);
            const NR: usize = $v * LANES;
            // As far as the verb does.
            const AHEAD: usize = 2048;
            const DRAIN: usize = $crate::template::drain_steps!($tile $w * $v);
            let (o_row, o_plane, tail, b_row) = (args.o_row, args.o_plane, args.tail, args.b_row);
            let (mut run, mut b) = (a, b);
            let mut left = args.k;
            // Runs of one element are one run in steps.
            let (a_run, a_next) = if args.a_run == 1 { (left, args.a_step) } else { (args.a_run, 1) };
            let activation = if args.last { args.activation } else { TileActivation::None };
            let simple = DRAIN > 0
                && args.first
                && tail == LANES
                && residual.is_null()
                && !matches!(activation, TileActivation::Leaky { .. });
            let ahead = if b_row == NR { AHEAD } else { 0 };
            tile!(STEP a_row <- args.a_row);
            tile!(DEF t [1 x $w x $v]);
            if args.first && args.row_bias {
                tilewright_intrinsics::each!(i in $w {
                    let bias = tile!(VSPLAT bias, i);
                    tilewright_intrinsics::each!(j in $v { t[i][j] = bias; });
                });
            } else if args.first {
                tile!(BIAS t [1 x $w x $v] <- bias);
            } else {
                // By the time it is added, the output is in the L1 cache.
                tilewright_intrinsics::each!(i in $w { tilewright_intrinsics::each!(j in $v {
                    if j * LANES % 16 == 0 { tile!(VPREFETCH o, (i * o_row + j * LANES / 16 * o_plane)); }
                }); });
            }
            while left > 0 {
                let mut k = left.min(a_run);
                left -= k;
                tile!(POINT p [1 x $w] <- run[0, a_row]);
                let drains = simple && left == 0 && k >= DRAIN;
                let keep = if drains { DRAIN } else { 0 };
                if b_row == NR && a_next == 1 {
                    while k >= $u + keep {
                        tile!(COMPUTE conv t [1 x $w x $v x $u] += p[a_row] * b if ALL);
                        tile!(ADVANCE p [1 x $w] by $u);
                        b = b.wrapping_add($u * NR);
                        k -= $u;
                    }
                }
                while k > keep {
                    // What follows a packed panel is asked for, as in the loop above; of another
                    // one, what is read now.
                    tilewright_intrinsics::each!(j in $v {
                        if j * LANES % 16 == 0 { tile!(VPREFETCH b, (ahead + j * LANES)); }
                    });
                    tile!(COMPUTE near t [1 x $w x $v] += p[a_row] * b if ALL);
                    tile!(ADVANCE p [1 x $w] by a_next);
                    b = b.wrapping_add(b_row);
                    k -= 1;
                }
                if drains {
                    $crate::template::drain_tile! { tile t [1 x $w x $v] += p[a_row, a_next] * b[b_row],
                        activation -> o[0, o_row, o_plane] }
                    return;
                }
                run = run.wrapping_add(args.a_step);
            }
            if !args.first {
                tile!(ADD t [$w x $v; tail] += o[o_row, o_plane]);
            }
            finish_tile! { $tile, t, $w, $v, args, o, residual, [o_row, o_plane], tail }
        }
    };
}

macro_rules! row_kernel {
    ($name:ident $one:ident, $tile:ident, [$($f:tt)*], $s:tt, $v:tt) => {
        tiles! { $name $one, [$($f)*] }

        $(#[target_feature(enable = $f)])*
        #[inline(never)]
        unsafe fn $one(
            args: &TileArgs,
            a: *const f32,
            b: *const f32,
            o: *mut f32,
            bias: *const f32,
            residual: *const f32,
        ) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            // From the L3 cache 5 % faster than twice as far.
            const AHEAD: usize = 1024;
            let (o_row, o_plane, tail, b_row) = (args.o_row, args.o_plane, args.tail, args.b_row);
            let (mut run, mut b) = (a, b);
            let (mut left, stream) = (args.k, args.stream);
            // Pixel `i` of the tile is partial sum `i`, its A the one after that of the sum before.
            tile!(STEP one <- 1);
            tile!(DEF t [1 x $s x $v]);
            while left > 0 {
                let mut k = left.min(args.a_run);
                left -= k;
                tile!(POINT p [1 x $s] <- run[0, one]);
                while k >= $s {
                    tilewright_intrinsics::each!(i in $s {
                        if stream {
                            tilewright_intrinsics::each!(j in $v {
                                if j * LANES % 16 == 0 { tile!(VPREFETCH b, (AHEAD + j * LANES)); }
                            });
                        }
                        tile!(COMPUTE near t [1 x $s x $v] += p[one] * b if 1u32 << i);
                        b = b.wrapping_add(b_row);
                    });
                    tile!(ADVANCE p [1 x $s] by $s);
                    k -= $s;
                }
                while k > 0 {
                    tile!(COMPUTE near t [1 x $s x $v] += p[one] * b if 1u32);
                    tile!(ADVANCE p [1 x $s] by 1);
                    b = b.wrapping_add(b_row);
                    k -= 1;
                }
                run = run.wrapping_add(args.a_step);
            }
            tilewright_intrinsics::each!(i in $s { tilewright_intrinsics::each!(j in $v {
                if i > 0 { t[0][j] = tile!(VADD t[0][j], t[i][j]); }
            }); });
            if args.first && args.row_bias {
                let bias = tile!(VSPLAT bias, 0);
                tilewright_intrinsics::each!(j in $v { t[0][j] = tile!(VADD t[0][j], bias); });
            } else if args.first {
                tile!(ADD t [1 x 1 x $v] += bias[0, 0, 16]);
            } else {
                tile!(ADD t [1 x $v; tail] += o[o_row, o_plane]);
            }
            finish_tile! { $tile, t, 1, $v, args, o, residual, [o_row, o_plane], tail }
        }
    };
}

/// The epilogue and STORE of `$w` rows.
macro_rules! finish_tile {
    ($tile:ident, $t:ident, $w:tt, $v:tt, $args:ident, $o:ident, $residual:ident, [$o_row:ident, $o_plane:ident], $tail:ident) => {{
        use tilewright_intrinsics::$tile as tile;
        if $args.last {
            if !$residual.is_null() {
                tile!(ADD $t [$w x $v; $tail] += $residual[$o_row, $o_plane]);
            }
            match $args.activation {
                TileActivation::None => {}
                TileActivation::Relu => { tile!(RELU $t [1 x $w x $v]); }
                TileActivation::Clamp { lo, hi } => { tile!(CLAMP $t [1 x $w x $v] lo, hi); }
                TileActivation::Leaky { alpha } => { tile!(LEAKY $t [1 x $w x $v] alpha); }
            }
        }
        if $tail == LANES {
            tile!(STORE $t [1 x $w x $v] -> $o[0, $o_row, $o_plane]);
        } else {
            tile!(STORE $t [$w x $v; $tail] -> $o[$o_row]);
        }
    }};
}

tilewright_intrinsics::for_each_tile!(matmul_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> &'static [MatmulKernel] {
    lists(isa)[0]
}

/// Those for what is left of a single row, where a wider one has as many partial sums: all columns are summed up in
/// one order then, so that equal ones have equal results.
pub(super) fn rest(isa: Isa) -> &'static [MatmulKernel] {
    lists(isa)[1]
}

fn lists(isa: Isa) -> [&'static [MatmulKernel]; 2] {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return [$id::KERNELS, $id::REST];
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    [&[]; 2]
}
