//! The microkernels of `plane` for depthwise convolution by filters of five or seven rows that move down by one.
//!
//! They go down the copied rows in strips as wide as a few vectors. Of each row the vector of a filter column is
//! loaded once, and added to the five or seven output rows that it belongs to, of which the first is then
//! complete. Rows outside the plane are not visited. A sum takes rows in their order, and of each the columns, as on
//! blocked tensors, so that a graph computed at once and one computed as a whole give the same bits.

use super::plane::PlaneShape;
use super::plane_direct::strip_store;
use super::plane_tile::{self, PlaneArgs, PlaneKernel};
use super::window::WindowSizes;
use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};

/// Rows of the filters that there are kernels for.
const HEIGHTS: [usize; 2] = [5, 7];

/// Output columns from which on each is faster than conversions and the kernels of blocks.
const WIDTHS: [usize; 2] = [48, 24];

/// The kernels of an instruction set, in the order of [`HEIGHTS`].
type Slides = [PlaneKernel; HEIGHTS.len()];

/// Which kernel is for these windows, if one is.
fn position(s: &WindowSizes) -> Option<usize> {
    let by_one = s.stride[0] == 1 && s.dilation[0] == 1;
    HEIGHTS.iter().position(|&height| by_one && s.kernel[0] == height)
}

/// The kernel for these windows, if there is one.
pub(crate) fn of(isa: Isa, s: &WindowSizes) -> Option<PlaneKernel> {
    position(s).map(|i| kernels(isa)[i])
}

/// Output columns from which on it pays, if there is one.
pub(crate) fn pays_from(s: &WindowSizes) -> Option<usize> {
    position(s).map(|i| WIDTHS[i])
}

macro_rules! slide_row {
    // As many vectors as leave registers for one of weights, beside five or seven sums of each.
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, $($rest:tt)*) => {
        slide_kernels! { $id $tile $isa $isa_name $feat 16 5 "5" (4 [1 2 3 4]) 7 "7" (3 [1 2 3]) }
    };
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        slide_kernels! { $id $tile $isa $isa_name $feat $l 5 "5" (2 [1 2]) 7 "7" (1 [1]) }
    };
}

macro_rules! slide_kernels {
    ($id:ident $tile:ident $isa:ident $isa_name:ident $feat:tt $l:tt $($h:tt $rows:tt ($most:tt $list:tt))*) => {
        mod $id {
            use super::*;
            use plane_tile::$id::copy_rows;
            pub(super) const KERNELS: Slides = [$({
                slide_kernel! { $tile $feat $h $most $list }
                PlaneKernel {
                    info: KernelInfo {
                        name: concat!("depthwise_plane_f32_h", $rows, "s1_", $l, "_", stringify!($isa_name)),
                        op: "depthwise_plane",
                        isa: Isa::$isa,
                        dtype: Dtype::F32,
                        tile: crate::Tile { rows: 1, w_ob: 1, c_vec: $most, c_ob: $most * $l, unroll: 1 }.packed(),
                    },
                    run: kernel,
                }
            }),*];
        }
    };
}

/// The kernel of filters of `$h` rows, in strips of up to `$most` vectors.
macro_rules! slide_kernel {
    ($tile:ident [$($f:tt)*] $h:tt $most:tt [$($v:tt)*]) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &PlaneShape, args: &PlaneArgs) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            let s = &g.sizes;
            let (h_in, w_out, row) = (s.input[0], s.output[1], g.copies.row);
            let first = args.rows.start as isize - s.pads[0] as isize;
            let count = args.rows.len() + $h - 1;
            // Those of the rows that the windows reach which lie in the plane.
            let (begin, end) = (first.min(0).unsigned_abs(), (h_in as isize - first).clamp(0, count as isize) as usize);
            // SAFETY: the caller's duties.
            unsafe { copy_rows(g, args.x, args.scratch, &args.rows, 0.0) };
            let tiles = w_out.div_ceil(LANES);
            let strips = tiles.div_ceil($most);
            for strip in 0..strips {
                let (left, right) = (strip * tiles / strips, (strip + 1) * tiles / strips);
                // The last vector of a row may overlap the one before.
                let start = |tile: usize| (tile * LANES).min(w_out.saturating_sub(LANES));
                let x = start(left);
                let (last, n) = (start(right - 1) - x, LANES.min(w_out - x));
                let (from, to) = (args.scratch.cast_const().wrapping_add(x), args.y.wrapping_add(args.rows.start * w_out + x));
                match right - left {
                    $($v => slide_strip!(tile $h $v g args, from row to w_out last n, begin end count),)*
                    _ => unreachable!("a strip has at most so many vectors"),
                }
            }
        }
    };
}

/// A strip of `$v` vectors, the last one `$last` elements after the first; of a single vector `$n` lanes are written.
macro_rules! slide_strip {
    ($tile:ident $h:tt $v:tt $g:ident $args:ident, $from:ident $row:ident $to:ident $w_out:ident $last:ident $n:ident,
     $begin:ident $end:ident $count:ident) => {{
        use tilewright_intrinsics::each;
        let none = [$tile!(VSPLAT $args.bias, 0); $v];
        let (mut t, mut a, mut o) = ([none; $h], $from, $to);
        let columns = $g.copies.taps.len();
        for i in 0..$count {
            if i >= $begin && i < $end {
                for (column, &tap) in $g.copies.taps.iter().enumerate() {
                    let (p, w) = (a.wrapping_add(tap), $args.weights.wrapping_add(column));
                    let mut x = $tile!(ZEROS [$tile!(VTYPE); $v]);
                    each!(j in $v {
                        x[j] = $tile!(VLOAD p.wrapping_add(if j + 1 == $v { $last } else { j * LANES }), 0);
                    });
                    each!(k in $h {
                        let w = $tile!(VSPLAT w.wrapping_add(k * columns), 0);
                        each!(j in $v { t[$h - 1 - k][j] = $tile!(VFMA x[j], w, t[$h - 1 - k][j]); });
                    });
                }
            }
            if i + 1 >= $h {
                let mut y = [t[0]];
                match $g.activation {
                    TileActivation::Relu => { $tile!(RELU y [1 x 1 x $v]); }
                    TileActivation::Clamp { lo, hi } => { $tile!(CLAMP y [1 x 1 x $v] lo, hi); }
                    // Plans leave a leaky one to a pass of its own.
                    _ => {}
                }
                strip_store!($tile y $v $last $n o);
                o = o.wrapping_add($w_out);
            }
            each!(k in $h { t[k] = if k + 1 < $h { t[(k + 1) % $h] } else { none }; });
            a = a.wrapping_add($row);
        }
    }};
}

tilewright_intrinsics::for_each_tile!(slide_row);

/// The microkernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> &'static Slides {
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
