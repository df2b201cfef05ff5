//! The template of the windowed microkernels: depthwise convolution (`dw`), maximum (`max`) and
//! average (`accum`).
//!
//! `window_kernels!` makes, for each width of a tile, one kernel for each (filter columns, column
//! stride) that is common, whose tap loop over a filter row is unrolled and shares the loads of
//! neighbouring pixels, and one for all others.

/// The kernels of one op for one ISA, a list per tile width: the `[taps stride]` given, then any.
macro_rules! window_kernels {
    ($mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, [$($sd:tt)*]) => {
        window_widths! { $lanes $mode $op, $tile $isa $isa_name $lanes $feat, [$($sd)* [any any]] }
    };
    (widths $mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, $sd:tt, [$($w:tt)*]) => {
        pub(super) const KERNELS: &[&[WindowKernel]] =
            &[$(window_kernels!(list $mode $op, $tile $isa $isa_name $lanes $feat, $w $sd)),*];
    };
    (list $mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, $w:tt [$([$s:tt $d:tt])*]) => {
        &[$({
            window_kernel! { $mode $tile $feat $w $s $d }
            WindowKernel {
                info: KernelInfo {
                    name: concat!($op, "_f32_1x", $w, "x", $lanes, "_k", stringify!($s), "s", stringify!($d), "_",
                        stringify!($isa_name)),
                    op: $op,
                    isa: Isa::$isa,
                    dtype: Dtype::F32,
                    rows: 1,
                    w_ob: $w,
                    c_vec: 1,
                    c_ob: $lanes,
                    unroll: window_taps!($s),
                },
                made_for: window_made_for!($s $d),
                run: kernel,
            }
        }),*]
    };
}
pub(crate) use window_kernels;

/// The widths of tiles: eight accumulators hide the latency of vector code; where a vector is one
/// number, the compiler makes vectors of its own from fewer.
macro_rules! window_widths {
    (1 $($args:tt)*) => { window_kernels! { widths $($args)*, [1 2 3 4] } };
    ($lanes:tt $($args:tt)*) => { window_kernels! { widths $($args)*, [1 2 3 4 5 6 7 8] } };
}
pub(crate) use window_widths;

/// Taps unrolled for a filter row.
macro_rules! window_taps {
    (any) => { 1 };
    ($s:tt) => { $s };
}
pub(crate) use window_taps;

/// Filter columns and column stride that a kernel is made for.
macro_rules! window_made_for {
    (any any) => { None };
    ($s:tt $d:tt) => { Some([$s, $d]) };
}
pub(crate) use window_made_for;

/// One microkernel: its name is `kernel`, to be put in a block of its own.
macro_rules! window_kernel {
    ($mode:ident $tile:ident [$($f:tt)*] $w:tt $s:tt $d:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs) {
            use tilewright_intrinsics::$tile as tile;
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let run = g.runs[args.run];
            for y in args.rows.clone() {
                let taps = g.rows[y].clone();
                let top = (y * s.stride[0] + taps.start * s.dilation[0]) as isize - s.pads[0] as isize;
                let row = args.x.wrapping_offset(top * x_row as isize);
                for lane in (0..C_BLOCK).step_by(tile!(LANES)) {
                    for i in 0..run.count {
                        let first = run.first + i * $w;
                        let left = (first * s.stride[1]) as isize - s.pads[1] as isize;
                        let a = row.wrapping_offset(left * C_BLOCK as isize + lane as isize);
                        let at = y * y_row + first * C_BLOCK + lane;
                        tile!(DEF t [1 x $w x 1]);
                        window_start!($mode t $w args lane);
                        window_reduce!($mode t $w $s $d, g i left, (taps.end - taps.start), a (s.dilation[0] * x_row)
                            * (args.weights.wrapping_add(taps.start * s.kernel[1] * C_BLOCK + lane)));
                        window_finish!($mode t $w g args y first at);
                        let o = args.y.wrapping_add(at);
                        tile!(STORE t [1 x $w x 1] -> o[0, C_BLOCK, 0]);
                    }
                }
            }
        }
    };
}
pub(crate) use window_kernel;

/// The reduction over the `n` filter rows inside the image, the first of whose input is at `a`.
macro_rules! window_reduce {
    ($mode:ident $t:ident $w:tt any any, $g:ident $i:ident $left:ident, $n:expr, $a:ident $a_row:tt * $b:tt) => {
        let s = &$g.sizes;
        let step = s.stride[1] * C_BLOCK;
        // The widths of the two runs differ.
        let tile_index = $i + if $w == $g.runs[1].width { $g.runs[0].count } else { 0 };
        for r in 0..$n {
            for k in 0..s.kernel[1] {
                let pixels = &$g.cols[tile_index * s.kernel[1] + k];
                let (lo, hi) = (pixels.start as usize, pixels.end as usize);
                let a = $a.wrapping_add(r * $a_row + k * s.dilation[1] * C_BLOCK);
                if lo == 0 && hi == $w {
                    window_tap!($mode $t $w a step ($b.wrapping_add((r * s.kernel[1] + k) * C_BLOCK)) 0, $w);
                } else {
                    window_tap!($mode $t $w a step ($b.wrapping_add((r * s.kernel[1] + k) * C_BLOCK)) lo, hi);
                }
            }
        }
    };
    ($mode:ident $t:ident $w:tt $s:tt $d:tt, $g:ident $i:ident $left:ident, $n:expr, $a:ident $a_row:tt * $b:tt) => {
        const COLUMNS: usize = ($w - 1) * $d + $s;
        // Columns of the tile's input that lie in the image.
        let lo = (-$left).max(0) as usize;
        let hi = ($g.sizes.input[1] as isize - $left).clamp(0, COLUMNS as isize) as usize;
        let (mut a, mut b) = ($a, $b);
        if lo == 0 && hi == COLUMNS {
            for _ in 0..$n {
                window_line!($mode $t $w $s $d a b 0, COLUMNS);
                a = a.wrapping_add($a_row);
                b = b.wrapping_add($s * C_BLOCK);
            }
        } else {
            for _ in 0..$n {
                window_line!($mode $t $w $s $d a b lo, hi);
                a = a.wrapping_add($a_row);
                b = b.wrapping_add($s * C_BLOCK);
            }
        }
    };
}
pub(crate) use window_reduce;

/// One filter row, all taps.
macro_rules! window_line {
    (dw $t:ident $w:tt $s:tt $d:tt $a:ident $b:ident $lo:expr, $hi:expr) => {
        tile!(COMPUTE dw_row $t [$w x $s / $d] += $a * $b if $lo, $hi);
    };
    (max $t:ident $w:tt $s:tt $d:tt $a:ident $b:ident $lo:expr, $hi:expr) => {
        tile!(COMPUTE max_row $t [$w x $s / $d] <- $a if $lo, $hi);
    };
    (accum $t:ident $w:tt $s:tt $d:tt $a:ident $b:ident $lo:expr, $hi:expr) => {
        tile!(COMPUTE accum_row $t [$w x $s / $d] += $a if $lo, $hi);
    };
}
pub(crate) use window_line;

/// One tap.
macro_rules! window_tap {
    (dw $t:ident $w:tt $a:ident $step:ident $b:tt $lo:expr, $hi:expr) => {
        let b = $b;
        tile!(COMPUTE dw $t [1 x $w x 1] += $a[$step] * b if $lo, $hi);
    };
    (max $t:ident $w:tt $a:ident $step:ident $b:tt $lo:expr, $hi:expr) => {
        tile!(COMPUTE max $t [1 x $w x 1] <- $a[$step] if $lo, $hi);
    };
    (accum $t:ident $w:tt $a:ident $step:ident $b:tt $lo:expr, $hi:expr) => {
        tile!(COMPUTE accum $t [1 x $w x 1] += $a[$step] if $lo, $hi);
    };
}
pub(crate) use window_tap;

/// What a tile starts from: the bias, or the identity of the reduction.
macro_rules! window_start {
    (dw $t:ident $w:tt $args:ident $lane:ident) => {
        let bias = $args.bias.wrapping_add($lane);
        tile!(BIAS $t [1 x $w x 1] <- bias);
    };
    (max $t:ident $w:tt $args:ident $lane:ident) => {
        tile!(FILL $t [1 x $w x 1] f32::NEG_INFINITY);
    };
    (accum $t:ident $w:tt $args:ident $lane:ident) => {};
}
pub(crate) use window_start;

/// The epilogue: residual and activation, or the division of an average.
macro_rules! window_finish {
    (dw $t:ident $w:tt $g:ident $args:ident $y:ident $first:ident $at:ident) => {
        if !$args.residual.is_null() {
            let residual = $args.residual.wrapping_add($at);
            tile!(ADD $t [1 x $w x 1] += residual[0, C_BLOCK, 0]);
        }
        match $g.activation {
            TileActivation::None => {}
            TileActivation::Clamp { lo, hi } => { tile!(CLAMP $t [1 x $w x 1] lo, hi); }
            TileActivation::Leaky { alpha } => { tile!(LEAKY $t [1 x $w x 1] alpha); }
        }
    };
    (max $t:ident $w:tt $g:ident $args:ident $y:ident $first:ident $at:ident) => {};
    (accum $t:ident $w:tt $g:ident $args:ident $y:ident $first:ident $at:ident) => {
        let rows = $g.divisors[0][$y];
        let columns = $g.divisors[1][$first..].as_ptr();
        tilewright_intrinsics::each!(i in $w {
            let n = tile!(VMUL tile!(VSET rows), tile!(VSPLAT columns, i));
            $t[i][0] = tile!(VDIV $t[i][0], n);
        });
    };
}
pub(crate) use window_finish;
