//! The microkernels of `plane` that read the rows where they lie: depthwise convolution with 3 x 3
//! filters at stride 1, and maxima of 2 x 2 and 3 x 3 windows at stride 2.
//!
//! A convolution goes down the plane in strips as wide as a few vectors. Of each input row it loads
//! the three vectors of the filter's columns once and adds them to the three output rows that they
//! belong to, of which the first is then complete. What lies outside the plane are lanes that are
//! not loaded and rows that are not visited, so that nothing is copied. Memory sees one pass.

use super::plane::PlaneShape;
use super::plane_tile::{PlaneArgs, PlaneKernel};
use super::window::WindowSizes;
use crate::epilogue::TileActivation;
use crate::{Dtype, Isa, KernelInfo};

/// The kernels of an instruction set.
#[derive(Debug)]
pub(crate) struct DirectKernels {
    /// Depthwise, 3 x 3 at stride 1.
    pub(crate) dw3: PlaneKernel,
    /// Maxima of 2 x 2 at stride 2.
    pub(crate) max2: PlaneKernel,
    /// Maxima of 3 x 3 at stride 2.
    pub(crate) max3: PlaneKernel,
}

/// Whether there is a kernel for these windows.
pub(crate) fn is_there(s: &WindowSizes, convolution: bool) -> bool {
    kernels(Isa::Scalar).of(s, convolution).is_some()
}

impl DirectKernels {
    /// The kernel for these windows, if there is one.
    pub(crate) fn of(&self, s: &WindowSizes, convolution: bool) -> Option<PlaneKernel> {
        let [top, left, bottom, right] = s.pads;
        if s.dilation != [1; 2] || s.pads.iter().any(|&pad| pad > 1) {
            return None;
        }
        // Every window begins inside the padded input and reaches a pixel.
        let last =
            |axis: usize, pad: usize| (s.output[axis] - 1) * s.stride[axis] < s.input[axis] + pad;
        match (s.kernel, s.stride) {
            ([3, 3], [1, 1]) if convolution => Some(self.dw3),
            _ if convolution || !last(0, top) || !last(1, left) => None,
            ([2, 2], [2, 2]) if [top, left, bottom, right] == [0; 4] => Some(self.max2),
            ([3, 3], [2, 2]) => Some(self.max3),
            _ => None,
        }
    }
}

/// Elements between what a convolution reads and what it asks for, in rows of one strip.
const AHEAD: usize = 512;

/// The variants of [`TileActivation`], as parameters of kernels.
const NONE: u8 = 0;
const RELU: u8 = 1;
const CLAMP: u8 = 2;

macro_rules! direct_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            pub(super) const KERNELS: DirectKernels = DirectKernels {
                dw3: direct_kernel!(dw3_kernel $l (strip!($l)), "depthwise_plane", "k3s1", $tile $isa $isa_name $l $feat),
                max2: direct_kernel!(max_kernel 2 1, "max_plane", "k2s2", $tile $isa $isa_name $l $feat),
                max3: direct_kernel!(max_kernel 3 1, "max_plane", "k3s2", $tile $isa $isa_name $l $feat),
            };
        }
    };
}

macro_rules! direct_kernel {
    ($make:ident $n:tt $strip:tt, $op:literal, $window:literal, $tile:ident $isa:ident $isa_name:ident $l:tt $feat:tt) => {{
        $make! { $tile $feat $n }
        PlaneKernel {
            info: KernelInfo {
                name: concat!($op, "_f32_", $window, "_", $l, "_", stringify!($isa_name)),
                op: $op,
                isa: Isa::$isa,
                dtype: Dtype::F32,
                tile: crate::Tile { rows: 1, w_ob: 1, c_vec: $strip, c_ob: $strip * $l, unroll: 1 }
                    .packed(),
            },
            run: kernel,
        }
    }};
}

/// The most vectors of a strip by the lanes of a vector. Four vectors of a row have three sums each and
/// share nine weights: as much as 32 registers hold.
macro_rules! strip {
    (16) => {
        4
    };
    ($l:tt) => {
        2
    };
}

/// The depthwise kernel.
macro_rules! dw3_kernel {
    ($tile:ident $feat:tt 16) => {
        dw3_kernel! { $tile $feat most (strip!(16)) [2 3 4] }
    };
    ($tile:ident $feat:tt $l:tt) => {
        dw3_kernel! { $tile $feat most (strip!($l)) [2] }
    };
    // In strips of up to `$most` vectors. A sum is never kept in parts, although that would hide the
    // latency of FMA where a strip has one vector: this kernel adds in the order of the blocked one, so
    // that a graph computed at once and one computed as a whole give the same bits.
    ($tile:ident [$($f:tt)*] most $most:tt [$($v:tt)*]) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &PlaneShape, args: &PlaneArgs) {
            // SAFETY: the duties are the caller's of this kernel.
            unsafe {
                match g.activation {
                    TileActivation::Relu => strips::<RELU>(g, args, [0.0; 2]),
                    TileActivation::Clamp { lo, hi } => strips::<CLAMP>(g, args, [lo, hi]),
                    // Plans leave a leaky one to a pass of its own.
                    _ => strips::<NONE>(g, args, [0.0; 2]),
                }
            }
        }

        // One copy per activation: a jump per row would cost a fifth of the time.
        $(#[target_feature(enable = $f)])*
        unsafe fn strips<const ACTIVATION: u8>(g: &PlaneShape, args: &PlaneArgs, limits: [f32; 2]) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            let s = &g.sizes;
            let ([h_in, w_in], w_out) = (s.input, s.output[1]);
            let (top, left) = (s.pads[0], s.pads[1]);
            let rows = &args.rows;
            // Whether the first and the last row of the windows lie in the plane.
            let (above, below) = (rows.start >= top, rows.end + 2 - top <= h_in);
            let up = (rows.start * w_in).wrapping_sub(top * w_in + left);
            let (from, to) = (args.x.wrapping_add(up), args.y.wrapping_add(rows.start * w_out));
            let tiles = w_out.div_ceil(LANES);
            let strips = tiles.div_ceil($most);
            // Of several strips the first finds its part of the next block in the cache.
            let ahead = if strips == 1 { AHEAD } else { rows.len() * w_in };
            for strip in 0..strips {
                let (first, end) = (strip * tiles / strips, (strip + 1) * tiles / strips);
                // The last vector of a row may overlap the one before.
                let start = |tile: usize| (tile * LANES).min(w_out.saturating_sub(LANES));
                let x = start(first);
                let last = start(end - 1) - x;
                let (from, to) = (from.wrapping_add(x), to.wrapping_add(x));
                let n = LANES.min(w_out - x);
                // The lanes that lie in the plane, of the first vector in the first filter column and
                // of the last one in each.
                let inside = |s: usize| (w_in + left).saturating_sub(x + last + s).min(n);
                let (skip, stop) = (left.saturating_sub(x), [inside(0), inside(1), inside(2)]);
                match end - first {
                    $($v if LANES < 16 && skip == 0 && stop[2] == LANES => {
                        dw3_strip!(tile $v last n ahead, limits args rows above below, from w_in h_in to w_out g,
                            q s _j (tile!(VLOAD q.wrapping_add(s), 0)));
                    }
                    $v => {
                        dw3_strip!(tile $v last n ahead, limits args rows above below, from w_in h_in to w_out g,
                            q s j (if j == 0 && s == 0 {
                                tile!(VLOAD_PART q, skip, LANES)
                            } else if j == $v - 1 && s == 2 {
                                tile!(VLOAD_PART q.wrapping_add(2), 0, stop[2])
                            } else {
                                tile!(VLOAD q.wrapping_add(s), 0)
                            }));
                    })*
                    _ => {
                        dw3_strip!(tile 1 last n ahead, limits args rows above below, from w_in h_in to w_out g,
                            q s _j (tile!(VLOAD_PART q.wrapping_add(s), (if s == 0 { skip } else { 0 }), stop[s])));
                    }
                }
            }
        }
    };
}

/// A strip of `$v` vectors, the last one `$last` elements after the first, down the rows of each plane;
/// of a single vector `$n` lanes are written. `$load` is the vector of a filter column at an address.
macro_rules! dw3_strip {
    ($tile:ident $v:tt $last:ident $n:ident $ahead:ident, $limits:ident $args:ident $rows:ident $above:ident $below:ident,
     $from:ident $w_in:ident $h_in:ident $to:ident $w_out:ident $g:ident,
     $q:ident $s:ident $j:ident $load:tt) => {{
        use tilewright_intrinsics::each;
        for plane in 0..$args.planes {
            let mut row = $from.wrapping_add(plane * $h_in * $w_in);
            let mut o = $to.wrapping_add(plane * $g.sizes.output[0] * $w_out);
            let (weights, bias) = ($args.weights.wrapping_add(9 * plane), $args.bias);
            let mut w = [$tile!(VZERO); 9];
            each!(k in 9 { w[k] = $tile!(VSPLAT weights, k); });
            let bias = $tile!(VSPLAT bias, plane);
            // Of three output rows in a row what is known so far.
            let none = [bias; $v];
            let (mut a, mut b) = (none, none);
            if $above {
                dw3_columns!($v $last row, $q $s $j $load, x => { b[$j] = $tile!(VFMA x, w[$s], b[$j]); });
            }
            row = row.wrapping_add($w_in);
            dw3_columns!($v $last row, $q $s $j $load, x => {
                b[$j] = $tile!(VFMA x, w[3 + $s], b[$j]);
                a[$j] = $tile!(VFMA x, w[$s], a[$j]);
            });
            (a, b) = (b, a);
            for _ in 1..$rows.len() {
                row = row.wrapping_add($w_in);
                each!(j in $v { if j * LANES % 16 == 0 { $tile!(VPREFETCH row, ($ahead + j * LANES)); } });
                let mut c = none;
                dw3_columns!($v $last row, $q $s $j $load, x => {
                    a[$j] = $tile!(VFMA x, w[6 + $s], a[$j]);
                    b[$j] = $tile!(VFMA x, w[3 + $s], b[$j]);
                    c[$j] = $tile!(VFMA x, w[$s], c[$j]);
                });
                dw3_store!($tile a $v $last $n $limits o);
                o = o.wrapping_add($w_out);
                (a, b) = (b, c);
            }
            if $below {
                row = row.wrapping_add($w_in);
                dw3_columns!($v $last row, $q $s $j $load, x => { a[$j] = $tile!(VFMA x, w[6 + $s], a[$j]); });
            }
            dw3_store!($tile a $v $last $n $limits o);
        }
    }};
}

/// Does something with the vectors `$x` of the three filter columns of an input row.
macro_rules! dw3_columns {
    ($v:tt $last:ident $row:ident, $q:ident $s:ident $j:ident $load:tt, $x:ident => $body:block) => {
        tilewright_intrinsics::each!($s in 3 { tilewright_intrinsics::each!($j in $v {
            let $q = $row.wrapping_add(if $j + 1 == $v { $last } else { $j * LANES });
            let $x = $load;
            $body
        }); });
    };
}

/// The epilogue of one row of a strip.
macro_rules! dw3_store {
    ($tile:ident $t:ident $v:tt $last:ident $n:ident $limits:ident $o:ident) => {
        let mut t = [$t];
        match ACTIVATION {
            RELU => { $tile!(RELU t [1 x 1 x $v]); }
            CLAMP => { $tile!(CLAMP t [1 x 1 x $v] $limits[0], $limits[1]); }
            _ => {}
        }
        strip_store!($tile t $v $last $n $o);
    };
}

/// Writes one row of a strip of `$v` vectors, the last one `$last` elements after the first; of a single vector `$n`
/// lanes.
macro_rules! strip_store {
    ($tile:ident $t:ident $v:tt $last:ident $n:ident $o:ident) => {
        if $v > 1 || $n == LANES {
            tilewright_intrinsics::each!(j in $v {
                let o = $o.wrapping_add(if j + 1 == $v { $last } else { j * LANES });
                $tile!(VSTORE o, 0, $t[0][j]);
            });
        } else {
            $tile!(STORE $t [1 x $v; $n] -> $o[0]);
        }
    };
}

pub(super) use strip_store;

/// The kernel of maxima over `$k` rows and columns.
macro_rules! max_kernel {
    ($tile:ident [$($f:tt)*] $k:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &PlaneShape, args: &PlaneArgs) {
            use tilewright_intrinsics::$tile as tile;
            const LANES: usize = tile!(LANES);
            let s = &g.sizes;
            let ([h_in, w_in], w_out) = (s.input, s.output[1]);
            let (top, left) = (s.pads[0], s.pads[1]);
            let outside = tile!(VSET f32::NEG_INFINITY);
            let tiles = w_out.div_ceil(LANES);
            for plane in 0..args.planes {
                let x = args.x.wrapping_add(plane * h_in * w_in);
                for y in args.rows.clone() {
                    // The rows of the window; one outside becomes its neighbour, also of the window.
                    let mut rows = [x; $k];
                    tilewright_intrinsics::each!(r in $k {
                        let row = (2 * y + r).saturating_sub(top).min(h_in - 1);
                        rows[r] = x.wrapping_add(row * w_in);
                    });
                    let o = args.y.wrapping_add((plane * s.output[0] + y) * w_out);
                    // What the neighbouring tile, done before, has next to this one: the odd columns
                    // of that to the left, or the even ones of that to the right.
                    let mut beside = outside;
                    if $k == 3 && left == 0 {
                        let next = 2 * tiles * LANES;
                        if next < w_in {
                            beside = max_columns!(tile $k rows w_in next outside).0;
                        }
                        for i in (0..tiles).rev() {
                            let x = i * LANES;
                            let at = 2 * x;
                            let (even, odd) = max_columns!(tile $k rows w_in at outside);
                            let t = tile!(VMAXIMUM even, tile!(VMAXIMUM odd, tile!(VNEXT even, beside)));
                            beside = even;
                            max_store!(tile t o x w_out);
                        }
                    } else {
                        for i in 0..tiles {
                            // Without a neighbour, the last tile may overlap it.
                            let last = if $k == 2 { w_out.saturating_sub(LANES) } else { w_out };
                            let x = (i * LANES).min(last);
                            let at = 2 * x;
                            let (even, odd) = max_columns!(tile $k rows w_in at outside);
                            let mut t = tile!(VMAXIMUM even, odd);
                            if $k == 3 {
                                t = tile!(VMAXIMUM tile!(VPREV beside, odd), t);
                                beside = odd;
                            }
                            max_store!(tile t o x w_out);
                        }
                    }
                }
            }
        }
    };
}

/// The maxima of even and of odd columns from `at` on over some rows.
macro_rules! max_columns {
    ($tile:ident $k:tt $rows:ident $w_in:ident $at:ident $outside:ident) => {{
        use tilewright_intrinsics::each;
        let mut t = [$outside; 2];
        if $at + 2 * LANES <= $w_in {
            each!(r in $k { each!(j in 2 {
                if $k == 3 && r > 0 && j * LANES % 16 == 0 {
                    $tile!(VPREFETCH $rows[r], ($at + j * LANES + 8 * $w_in));
                }
                let x = $tile!(VLOAD $rows[r].wrapping_add($at), j);
                t[j] = if r == 0 { x } else { $tile!(VMAXIMUM x, t[j]) };
            }); });
        } else {
            let left = $w_in.saturating_sub($at);
            let counts = [left.min(LANES), left.saturating_sub(LANES).min(LANES)];
            each!(r in $k { each!(j in 2 {
                let p = $rows[r].wrapping_add($at + j * LANES);
                let x = $tile!(VLOAD_OR p, counts[j], f32::NEG_INFINITY);
                t[j] = if r == 0 { x } else { $tile!(VMAXIMUM x, t[j]) };
            }); });
        }
        ($tile!(VEVEN t[0], t[1]), $tile!(VODD t[0], t[1]))
    }};
}

/// Writes the lanes of a tile that exist.
macro_rules! max_store {
    ($tile:ident $t:ident $o:ident $x:ident $w_out:ident) => {
        let p = $o.wrapping_add($x);
        if $x + LANES <= $w_out {
            $tile!(VSTORE p, 0, $t);
        } else {
            $tile!(VSTORE_TAIL p, ($w_out - $x), $t);
        }
    };
}

tilewright_intrinsics::for_each_tile!(direct_row);

/// The kernels of one instruction set.
pub(crate) fn kernels(isa: Isa) -> &'static DirectKernels {
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
