//! The microkernels of `plane`: a block of output rows of one channel.

use super::plane::{PlaneShape, input_rows};
use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};
use core::ops::Range;

/// A block of output rows of some planes.
pub(crate) struct PlaneArgs {
    /// How many planes there are, one after the other: 1 for kernels that copy rows.
    pub(crate) planes: usize,
    /// The first input plane, `[h, w]`.
    pub(crate) x: *const f32,
    /// The filter of its channel; those of the others follow.
    pub(crate) weights: *const f32,
    /// The bias of its channel, and so on.
    pub(crate) bias: *const f32,
    /// The first output plane.
    pub(crate) y: *mut f32,
    /// Where rows are copied to.
    pub(crate) scratch: *mut f32,
    /// Output rows.
    pub(crate) rows: Range<usize>,
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * The planes have the sizes that the shape says; `x` is readable, `y` writable in the rows of
///   the call, which no other thread writes; a convolution's `weights` and `bias` are readable.
/// * `scratch` is writable for the input rows of the block times the distance of copied rows.
pub(crate) type PlaneFn = unsafe fn(&PlaneShape, &PlaneArgs);

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaneKernel {
    pub(crate) info: KernelInfo,
    pub(crate) run: PlaneFn,
}

/// The kernels of an instruction set, each list by falling size of the tile.
#[derive(Debug)]
pub(crate) struct PlaneKernels {
    pub(crate) max: &'static [PlaneKernel],
    pub(crate) dw: &'static [PlaneKernel],
}

macro_rules! plane_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        #[allow(clippy::modulo_one, reason = "scalar code has one lane, some tiles one row")]
        pub(crate) mod $id {
            use super::*;
            plane_copies! { $tile $feat }
            pub(super) const KERNELS: PlaneKernels = PlaneKernels {
                max: plane_kernels!(max "max_plane", $tile $isa $isa_name $l $feat, [4 2] [8 1] [4 1] [1 1]),
                dw: plane_kernels!(dw "depthwise_plane", $tile $isa $isa_name $l $feat, [4 2] [8 1] [4 1] [1 1]),
            };
        }
    };
}

/// What copies the rows that a block reads, for all kernels of an instruction set, and `padding` around them.
macro_rules! plane_copies {
    ($tile:ident [$($f:tt)*]) => {
        /// # Safety
        /// The CPU has the instructions. `x`, a plane of the shape's size, is readable, and `scratch` writable for the
        /// input rows of so many output rows times the distance of copied rows.
        $(#[target_feature(enable = $f)])*
        #[inline(never)]
        pub(crate) unsafe fn copy_rows(
            g: &PlaneShape,
            x: *const f32,
            scratch: *mut f32,
            rows: &Range<usize>,
            padding: f32,
        ) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            let s = &g.sizes;
            let ([h_in, w_in], left) = (s.input, s.pads[1]);
            let outside = tile!(VSET padding);
            let first = (rows.start * s.stride[0]) as isize - s.pads[0] as isize;
            for i in 0..input_rows(s, rows.len()) {
                let y = first + i as isize;
                let inside = y >= 0 && y < h_in as isize;
                let from = x.wrapping_offset(y * w_in as isize);
                let to = scratch.wrapping_add(i * g.copies.row);
                // Rows are as long as whole vectors of any instruction set. Those that the input fills follow.
                let (before, behind) = if inside && s.stride[1] == 1 {
                    (left.div_ceil(LANES), (left + w_in) / LANES)
                } else {
                    (0, 0)
                };
                for i in 0..before {
                    tile!(VSTORE to, i, outside);
                }
                for i in behind..g.copies.row / LANES {
                    tile!(VSTORE to, i, outside);
                }
                if inside {
                    if s.stride[1] == 1 {
                        let to = to.wrapping_add(left);
                        let (whole, rest) = (w_in / LANES, w_in % LANES);
                        for i in 0..whole {
                            tile!(VSTORE to, i, tile!(VLOAD from, i));
                        }
                        if rest > 0 {
                            let at = whole * LANES;
                            let last = tile!(VLOAD_TAIL from.wrapping_add(at), rest);
                            tile!(VSTORE_TAIL to.wrapping_add(at), rest, last);
                        }
                    } else {
                        // The half that has the first column, and the other.
                        let (first, second) = if left % 2 == 0 { (0, g.copies.phase) } else { (g.copies.phase, 0) };
                        let a = to.wrapping_add(first + left / 2);
                        let b = to.wrapping_add(second + left.div_ceil(2));
                        let (whole, rest) = (w_in / (2 * LANES), w_in % (2 * LANES));
                        for i in 0..whole {
                            let (x, y) = (tile!(VLOAD from, (2 * i)), tile!(VLOAD from, (2 * i + 1)));
                            tile!(VSTORE a, i, tile!(VEVEN x, y));
                            tile!(VSTORE b, i, tile!(VODD x, y));
                        }
                        if rest > 0 {
                            let (at, from) = (whole * LANES, from.wrapping_add(2 * whole * LANES));
                            let (n, m) = (rest.min(LANES), rest.saturating_sub(LANES));
                            let x = tile!(VLOAD_TAIL from, n);
                            let y = if m > 0 { tile!(VLOAD_TAIL from.wrapping_add(n), m) } else { tile!(VZERO) };
                            let (n, m) = (rest.div_ceil(2), rest / 2);
                            tile!(VSTORE_TAIL a.wrapping_add(at), n, tile!(VEVEN x, y));
                            if m > 0 {
                                tile!(VSTORE_TAIL b.wrapping_add(at), m, tile!(VODD x, y));
                            }
                        }
                    }
                }
            }
        }
    };
}

/// A list of kernels, for tiles of `[rows vectors]`.
macro_rules! plane_kernels {
    ($mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $l:tt $feat:tt, $([$r:tt $v:tt])*) => {
        &[$({
            plane_kernel! { $mode $tile $feat $r $v }
            PlaneKernel {
                info: KernelInfo {
                    name: concat!($op, "_f32_", $r, "x", $v, "x", $l, "_", stringify!($isa_name)),
                    op: $op,
                    isa: Isa::$isa,
                    dtype: Dtype::F32,
                    tile: crate::Tile { rows: 1, w_ob: $r, c_vec: $v, c_ob: $v * $l, unroll: 1 }.packed(),
                },
                run: kernel,
            }
        }),*]
    };
}

/// One microkernel: its name is `kernel`, to be put in a block of its own.
macro_rules! plane_kernel {
    ($mode:ident $tile:ident [$($f:tt)*] $r:tt $v:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &PlaneShape, args: &PlaneArgs) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            const WIDE: usize = $v * LANES;
            let s = &g.sizes;
            let w_out = s.output[1];
            // SAFETY: the caller's duties.
            unsafe { copy_rows(g, args.x, args.scratch, &args.rows, plane_outside!($mode)) };
            let start = plane_start!($mode tile args);
            let (row_step, filter_step) = (s.stride[0] * g.copies.row, s.dilation[0] * g.copies.row);
            // The last tiles overlap those before them, down and across.
            let last_row = args.rows.len().saturating_sub($r);
            let last_column = w_out.saturating_sub(WIDE);
            let mut y = 0;
            loop {
                let out = args.y.wrapping_add((args.rows.start + y) * w_out);
                let a = args.scratch.cast_const().wrapping_add(y * row_step);
                let mut x = 0;
                loop {
                    let (a, o) = (a.wrapping_add(x), out.wrapping_add(x));
                    tile!(DEF t [1 x $r x $v]);
                    tile!(FILL t [1 x $r x $v] start);
                    plane_reduce!($mode tile t $r $v, a g args row_step filter_step);
                    match g.activation {
                        TileActivation::Relu => { tile!(RELU t [1 x $r x $v]); }
                        TileActivation::Clamp { lo, hi } => { tile!(CLAMP t [1 x $r x $v] lo, hi); }
                        // Plans leave a leaky one to a pass of its own.
                        _ => {}
                    }
                    if w_out >= WIDE {
                        tile!(STORE t [1 x $r x $v] -> o[0, w_out, 16]);
                    } else {
                        // Plans take tiles of one vector for rows that do not fill more.
                        let tail = w_out - (WIDE - LANES);
                        tile!(STORE t [$r x $v; tail] -> o[w_out]);
                    }
                    if x >= last_column {
                        break;
                    }
                    x = (x + WIDE).min(last_column);
                }
                if y >= last_row {
                    break;
                }
                y = (y + $r).min(last_row);
            }
        }
    };
}

/// What stands for padding.
macro_rules! plane_outside {
    (max) => {
        f32::NEG_INFINITY
    };
    (dw) => {
        0.0f32
    };
}

/// What each pixel starts from.
macro_rules! plane_start {
    (max $tile:ident $args:ident) => {
        f32::NEG_INFINITY
    };
    (dw $tile:ident $args:ident) => {{
        // SAFETY: the bias of the channel is readable.
        unsafe { *$args.bias }
    }};
}

/// The reduction over the window. `a` is the first copied row of the tile, at its first column.
macro_rules! plane_reduce {
    ($mode:ident $tile:ident $t:ident $r:tt $v:tt, $a:ident $g:ident $args:ident $row_step:ident $filter_step:ident) => {
        for k in 0..$g.sizes.kernel[0] {
            for (s, tap) in $g.copies.taps.iter().enumerate() {
                let a = $a.wrapping_add(k * $filter_step + tap);
                plane_tap!($mode $tile $t $r $v a ($args.weights.wrapping_add(k * $g.copies.taps.len() + s)) $row_step);
            }
        }
    };
}

/// One tap for the whole tile.
macro_rules! plane_tap {
    (max $tile:ident $t:ident $r:tt $v:tt $a:ident $b:tt $row_step:ident) => {
        let _ = $b;
        tilewright_intrinsics::each!(i in $r { tilewright_intrinsics::each!(j in $v {
            $t[i][j] = $tile!(VMAXIMUM $tile!(VLOAD $a.wrapping_add(i * $row_step), j), $t[i][j]);
        }); });
    };
    (dw $tile:ident $t:ident $r:tt $v:tt $a:ident $b:tt $row_step:ident) => {
        let b = $tile!(VSPLAT $b, 0);
        tilewright_intrinsics::each!(i in $r { tilewright_intrinsics::each!(j in $v {
            $t[i][j] = $tile!(VFMA $tile!(VLOAD $a.wrapping_add(i * $row_step), j), b, $t[i][j]);
        }); });
    };
}

tilewright_intrinsics::for_each_tile!(plane_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> &'static PlaneKernels {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return &$id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    &scalar_f32::KERNELS
}
