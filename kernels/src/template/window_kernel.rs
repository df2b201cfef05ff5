//! The template of the windowed microkernels: depthwise convolution (`dw`), maximum (`max`) and
//! average (`accum`), and the same of bytes (`qdw`, `qmax`, `qaccum`): sums are computed as floats, as they are
//! integers that `f32` holds, and a maximum compares the bytes of pixels.
//!
//! `window_kernels!` makes, for each width of a tile, one kernel for each (size of a square filter,
//! column stride) that is common and one for all others. In the former a filter row is
//! unrolled, and loads an input column once for all pixels that use it. A tile at a border runs the same code, with a test around the loads of
//! the first and last columns.

/// The kernels of one op for one ISA, a list per tile width: the `[size stride]` given, then any.
macro_rules! window_kernels {
    ($mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, [$($sd:tt)*]) => {
        window_widths! { $lanes $mode $op, $tile $isa $isa_name $lanes $feat, [$($sd)* [any any]] }
    };
    (widths $mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, $sd:tt, [$($w:tt)*]) => {
        pub(super) const KERNELS: &[&[WindowKernel<window_element!($mode)>]] =
            &[$(window_kernels!(list $mode $op, $tile $isa $isa_name $lanes $feat, $w $sd)),*];
    };
    (list $mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, $w:tt [$([$s:tt $d:tt])*]) => {
        &[$({
            window_kernel! { $mode $tile $feat $w $s $d }
            WindowKernel {
                info: KernelInfo {
                    name: concat!($op, window_element!(name $mode), "1x", $w, "x", window_vector!($mode $lanes), "_k", stringify!($s), "s", stringify!($d), "_",
                        stringify!($isa_name)),
                    op: $op,
                    isa: Isa::$isa,
                    dtype: window_element!(dtype $mode),
                    tile: crate::Tile { rows: 1, w_ob: $w, c_vec: 1, c_ob: window_vector!($mode $lanes), unroll: window_taps!($s) }.packed(),
                },
                made_for: window_made_for!($s $d),
                run: kernel,
            }
        }),*]
    };
}
pub(crate) use window_kernels;

/// A depthwise microkernel of integers and what it is: its way, taps, width and column stride, and vectors of channels.
#[cfg(any(
    all(any(feature = "sse41", feature = "avx2", feature = "avx512vnni"), target_arch = "x86_64"),
    all(feature = "wasm-simd", target_arch = "wasm32"),
    all(feature = "neon", target_arch = "aarch64")
))]
macro_rules! integer_kernel {
    ($isa:ident $isa_name:ident, $way:literal, $taps:tt $w:tt $d:tt, c_vec $vectors:literal, $run:ident) => {
        WindowKernel {
            info: KernelInfo {
                name: concat!(
                    "qdepthwise_i8_1x",
                    $w,
                    "x16_k",
                    $taps,
                    "s",
                    $d,
                    "_",
                    $way,
                    "_",
                    stringify!($isa_name)
                ),
                op: "qdepthwise",
                isa: Isa::$isa,
                dtype: Dtype::I8,
                tile: crate::Tile { rows: 1, w_ob: $w, c_vec: $vectors, c_ob: 16, unroll: $taps }
                    .packed(),
            },
            made_for: Some([$taps, $d]),
            run: $run,
        }
    };
}
#[cfg(any(
    all(any(feature = "sse41", feature = "avx2", feature = "avx512vnni"), target_arch = "x86_64"),
    all(feature = "wasm-simd", target_arch = "wasm32"),
    all(feature = "neon", target_arch = "aarch64")
))]
pub(crate) use integer_kernel;

/// The widths of tiles: eight accumulators hide the latency of vector code; where a vector is one
/// number, the compiler makes vectors of its own from fewer.
macro_rules! window_widths {
    // Where nothing makes vectors of them, these are long, and gain less than others from what a usual window has of its own.
    (1 qmax $($args:tt)*) => { window_widths! { any qmax $($args)* } };
    (1 qdw $($args:tt)*) => { window_widths! { any qdw $($args)* } };
    (1 max $($args:tt)*) => { window_widths! { any max $($args)* } };
    (1 accum $($args:tt)*) => { window_widths! { any accum $($args)* } };
    (any $mode:ident $op:literal, $tile:ident $isa:ident $isa_name:ident $lanes:tt $feat:tt, $sd:tt) => {
        window_kernels! { widths $mode $op, $tile $isa $isa_name $lanes $feat, [[any any]], [1 2] }
    };
    (1 $($args:tt)*) => { window_kernels! { widths $($args)*, [1 2] } };
    // The usual windows of these have kernels of integers.
    (8 qdw $($args:tt)*) => { window_kernels! { widths qdw $($args)*, [1 2 3] } };
    (16 qdw $($args:tt)*) => { window_kernels! { widths qdw $($args)*, [1 2 3] } };
    // Bytes become floats in registers, of which there must be enough for the columns of a tile.
    ($lanes:tt qdw $($args:tt)*) => { window_kernels! { widths qdw $($args)*, [1 2 3 4] } };
    ($lanes:tt qaccum $($args:tt)*) => { window_kernels! { widths qaccum $($args)*, [1 2 3 4] } };
    // Loads are the limit of these, and more pixels at once no help.
    ($lanes:tt max $($args:tt)*) => { window_kernels! { widths max $($args)*, [1 2 3 4] } };
    ($lanes:tt accum $($args:tt)*) => { window_kernels! { widths accum $($args)*, [1 2 3 4] } };
    ($lanes:tt qmax $($args:tt)*) => { window_kernels! { widths qmax $($args)*, [1 2 3 4] } };
    ($lanes:tt $($args:tt)*) => { window_kernels! { widths $($args)*, [1 2 3 4 5 6 7 8] } };
}
pub(crate) use window_widths;

/// The type of an activation, or its name in that of a kernel, or its place in the registry.
macro_rules! window_element {
    (name qdw) => {
        "_i8_"
    };
    (name qmax) => {
        "_i8_"
    };
    (name qaccum) => {
        "_i8_"
    };
    (name $mode:ident) => {
        "_f32_"
    };
    (dtype qdw) => {
        Dtype::I8
    };
    (dtype qmax) => {
        Dtype::I8
    };
    (dtype qaccum) => {
        Dtype::I8
    };
    (dtype $mode:ident) => {
        Dtype::F32
    };
    (qdw) => {
        u8
    };
    (qmax) => {
        u8
    };
    (qaccum) => {
        u8
    };
    ($mode:ident) => {
        f32
    };
}
pub(crate) use window_element;

/// Taps unrolled for a filter row.
macro_rules! window_taps {
    (any) => {
        1
    };
    ($s:tt) => {
        $s
    };
}
pub(crate) use window_taps;

/// Filter size and column stride that a kernel is made for.
macro_rules! window_made_for {
    (any any) => {
        None
    };
    ($s:tt $d:tt) => {
        Some([$s, $d])
    };
}
pub(crate) use window_made_for;

/// One microkernel: its name is `kernel`, to be put in a block of its own.
macro_rules! window_kernel {
    ($mode:ident $tile:ident [$($f:tt)*] $w:tt $s:tt $d:tt) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn kernel(g: &Window, args: &WindowArgs<window_element!($mode)>) {
            use tilewright_intrinsics::$tile as tile;
            let s = &g.sizes;
            let (x_row, y_row) = (s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
            let a_row = s.dilation[0] * x_row;
            let run = g.runs[args.run];
            let start = (run.first * s.stride[1]) as isize - s.pads[1] as isize;
            for y in args.rows.clone() {
                let taps = g.rows[y].clone();
                let top = (y * s.stride[0]) as isize - s.pads[0] as isize;
                let row = args.x.wrapping_offset(top * x_row as isize + start * C_BLOCK as isize);
                for lane in window_lanes!($mode args) {
                    let at = y * y_row + run.first * C_BLOCK + lane;
                    let (mut a, mut o) = (row.wrapping_add(lane), args.y.wrapping_add(at));
                    let mut residual = args.residual.wrapping_add(at);
                    window_start!($mode first args lane);
                    for i in 0..run.count {
                        window_pixels!($mode t $w first);
                        window_reduce!($mode t $w $s $d, g args i lane start taps, a a_row);
                        window_finish!($mode t $w g args lane residual y (run.first + i * $w));
                        window_store!($mode t $w args o);
                        a = a.wrapping_add(window_advance!($w $d s.stride[1]) * C_BLOCK);
                        o = o.wrapping_add($w * C_BLOCK);
                        residual = residual.wrapping_add($w * C_BLOCK);
                    }
                }
            }
        }
    };
}
pub(crate) use window_kernel;

/// Channels of a vector.
macro_rules! window_vector {
    (qmax $lanes:tt) => {
        16
    };
    ($mode:ident $lanes:tt) => {
        $lanes
    };
}
pub(crate) use window_vector;

/// The first channels of the vectors of a pixel that have any: where one vector is all of it, no loop.
macro_rules! window_lanes {
    (qmax $args:ident) => {
        0..1
    };
    ($mode:ident $args:ident) => {
        (0..if tile!(LANES) < C_BLOCK { $args.channels } else { C_BLOCK }).step_by(tile!(LANES))
    };
}
pub(crate) use window_lanes;

/// Declares the pixels of a tile, all of which begin as `first`.
macro_rules! window_pixels {
    (qmax $t:ident $w:tt $first:ident) => {
        let mut $t = [[$first]; $w];
    };
    ($mode:ident $t:ident $w:tt $first:ident) => {
        tile!(DEF $t [1 x $w x 1]);
        tilewright_intrinsics::each!(i in $w { $t[i][0] = $first; });
    };
}
pub(crate) use window_pixels;

/// Input columns between two tiles.
macro_rules! window_advance {
    ($w:tt any $stride:expr) => {
        $w * $stride
    };
    ($w:tt $d:tt $stride:expr) => {
        $w * $d
    };
}
pub(crate) use window_advance;

/// The reduction over the filter rows `taps` inside the image; `a` is the input of filter row 0.
macro_rules! window_reduce {
    ($mode:ident $t:ident $w:tt any any, $g:ident $args:ident $i:ident $lane:ident $start:ident $taps:ident,
     $a:ident $a_row:ident) => {
        let s = &$g.sizes;
        let step = s.stride[1] * C_BLOCK;
        // The widths of the two runs differ.
        let index = $i + if $w == $g.runs[1].width { $g.runs[0].count } else { 0 };
        for r in $taps.clone() {
            for k in 0..s.kernel[1] {
                let pixels = &$g.cols[index * s.kernel[1] + k];
                let (lo, hi) = (pixels.start as usize, pixels.end as usize);
                let a = $a.wrapping_add(r * $a_row + k * s.dilation[1] * C_BLOCK);
                let b = $args.weights.wrapping_add((r * s.kernel[1] + k) * C_BLOCK + $lane);
                if lo == 0 && hi == $w {
                    window_tap!($mode $t $w $args a step b 0, $w);
                } else {
                    window_tap!($mode $t $w $args a step b lo, hi);
                }
            }
        }
    };
    ($mode:ident $t:ident $w:tt $s:tt $d:tt, $g:ident $args:ident $i:ident $lane:ident $start:ident $taps:ident,
     $a:ident $a_row:ident) => {
        // Columns of the tile's input that lie in the image.
        let left = $start + ($i * $w * $d) as isize;
        let (lo, hi) = (-left, $g.sizes.input[1] as isize - left);
        window_rows!($mode $s $d r in $taps {
            let a = $a.wrapping_add(r * $a_row);
            window_line!($mode $t $w $s $d $args a ($args.weights.wrapping_add(r * $s * C_BLOCK + $lane)) lo, hi);
        });
    };
}
pub(crate) use window_reduce;

/// The filter rows inside the image: written out where the multiplications, not the loads, are the
/// limit, which is worth 8 %.
macro_rules! window_rows {
    (dw 3 1 $r:ident in $taps:ident $body:block) => {
        tilewright_intrinsics::each!($r in 3 { if $taps.start <= $r && $r < $taps.end $body });
    };
    ($mode:ident $s:tt $d:tt $r:ident in $taps:ident $body:block) => {
        for $r in $taps.clone() $body
    };
}
pub(crate) use window_rows;

/// One filter row, all taps.
macro_rules! window_line {
    (dw $t:ident $w:tt $s:tt $d:tt $args:ident $a:ident $b:tt $lo:expr, $hi:expr) => {
        let b = $b;
        tile!(COMPUTE dw_row $t [$w x $s / $d] += $a * b if $lo, $hi);
    };
    (max $t:ident $w:tt $s:tt $d:tt $args:ident $a:ident $b:tt $lo:expr, $hi:expr) => {
        tile!(COMPUTE max_row $t [$w x $s / $d] <- $a if $lo, $hi);
    };
    (accum $t:ident $w:tt $s:tt $d:tt $args:ident $a:ident $b:tt $lo:expr, $hi:expr) => {
        tile!(COMPUTE accum_row $t [$w x $s / $d] += $a if $lo, $hi);
    };
    (qdw $t:ident $w:tt $s:tt $d:tt $args:ident $a:ident $b:tt $lo:expr, $hi:expr) => {
        let b = $b;
        let (mask, zero) = (tile!(VSET $args.bytes.read[0]), tile!(VSET $args.bytes.read[1]));
        tile!(COMPUTE dw_row $t [$w x $s / $d] += $a as (mask, zero) * b if $lo, $hi);
    };
    (qmax $t:ident $w:tt $s:tt $d:tt $args:ident $a:ident $b:tt $lo:expr, $hi:expr) => {
        let flip = tile!(BYTES_SPLAT $args.bytes.flip());
        tile!(COMPUTE max_row $t [$w x $s / $d] <- $a as (flip) if $lo, $hi);
    };
}
pub(crate) use window_line;

/// One tap, for the pixels `lo..hi`.
macro_rules! window_tap {
    (dw $t:ident $w:tt $args:ident $a:ident $step:ident $b:ident $lo:expr, $hi:expr) => {
        tile!(COMPUTE dw $t [1 x $w x 1] += $a[$step] * $b if $lo, $hi);
    };
    (max $t:ident $w:tt $args:ident $a:ident $step:ident $b:ident $lo:expr, $hi:expr) => {
        let _ = $b;
        tile!(COMPUTE max $t [1 x $w x 1] <- $a[$step] if $lo, $hi);
    };
    (accum $t:ident $w:tt $args:ident $a:ident $step:ident $b:ident $lo:expr, $hi:expr) => {
        let _ = $b;
        tile!(COMPUTE accum $t [1 x $w x 1] += $a[$step] if $lo, $hi);
    };
    (qdw $t:ident $w:tt $args:ident $a:ident $step:ident $b:ident $lo:expr, $hi:expr) => {
        let (mask, zero) = (tile!(VSET $args.bytes.read[0]), tile!(VSET $args.bytes.read[1]));
        tile!(COMPUTE dw $t [1 x $w x 1] += $a[$step] as (mask, zero) * $b if $lo, $hi);
    };
    (qmax $t:ident $w:tt $args:ident $a:ident $step:ident $b:ident $lo:expr, $hi:expr) => {
        let _ = $b;
        let flip = tile!(BYTES_SPLAT $args.bytes.flip());
        tile!(COMPUTE max $t [1 x $w x 1] <- $a[$step] as (flip) if $lo, $hi);
    };
    (qaccum $t:ident $w:tt $args:ident $a:ident $step:ident $b:ident $lo:expr, $hi:expr) => {
        let _ = $b;
        let (mask, zero) = (tile!(VSET $args.bytes.read[0]), tile!(VSET $args.bytes.read[1]));
        tile!(COMPUTE accum $t [1 x $w x 1] += $a[$step] as (mask, zero) if $lo, $hi);
    };
}
pub(crate) use window_tap;

/// What each pixel starts from: the bias, or the identity of the reduction.
macro_rules! window_start {
    (dw $first:ident $args:ident $lane:ident) => {
        let $first = tile!(VLOAD $args.bias.wrapping_add($lane), 0);
    };
    (max $first:ident $args:ident $lane:ident) => {
        let $first = tile!(LEAST);
    };
    (accum $first:ident $args:ident $lane:ident) => {
        let $first = tile!(VZERO);
    };
    (qmax $first:ident $args:ident $lane:ident) => {
        let $first = tile!(LEAST (bytes));
    };
    (qdw $($args:tt)*) => { window_start!(dw $($args)*); };
    (qaccum $($args:tt)*) => { window_start!(accum $($args)*); };
}
pub(crate) use window_start;

/// The epilogue: residual and clamp, or the division of an average.
macro_rules! window_finish {
    (max $($args:tt)*) => {};
    (qmax $($args:tt)*) => {};
    (dw $t:ident $w:tt $g:ident $args:ident $lane:ident $residual:ident $y:ident $first:expr) => {
        if !$args.residual.is_null() {
            tile!(ADD $t [1 x $w x 1] += $residual[0, C_BLOCK, 0]);
        }
        match $g.activation {
            crate::epilogue::TileActivation::Relu => {
                tile!(RELU $t [1 x $w x 1]);
            }
            crate::epilogue::TileActivation::Clamp { lo, hi } => {
                tile!(CLAMP $t [1 x $w x 1] lo, hi);
            }
            _ => {}
        }
    };
    // The rest of the bias is a multiple of 256: adding it rounds the sum once.
    (qdw $t:ident $w:tt $g:ident $args:ident $lane:ident $residual:ident $y:ident $first:expr) => {
        let rest = tile!(VLOAD $args.bias.wrapping_add(C_BLOCK + $lane), 0);
        let scale = tile!(VLOAD $args.bias.wrapping_add(2 * C_BLOCK + $lane), 0);
        tilewright_intrinsics::each!(i in $w {
            $t[i][0] = tile!(VMUL tile!(VADD $t[i][0], rest), scale);
        });
    };
    (qaccum $t:ident $w:tt $g:ident $args:ident $lane:ident $residual:ident $y:ident $first:expr) => {
        let rows = $g.divisors[0][$y];
        let columns = $g.divisors[1][$first..].as_ptr();
        tilewright_intrinsics::each!(i in $w {
            let n = tile!(VMUL tile!(VSET rows), tile!(VSPLAT columns, i));
            $t[i][0] = tile!(VMUL $t[i][0], tile!(VDIV tile!(VSET $args.bytes.scale), n));
        });
    };
    (accum $t:ident $w:tt $g:ident $args:ident $lane:ident $residual:ident $y:ident $first:expr) => {
        let rows = $g.divisors[0][$y];
        let columns = $g.divisors[1][$first..].as_ptr();
        tilewright_intrinsics::each!(i in $w {
            let n = tile!(VMUL tile!(VSET rows), tile!(VSPLAT columns, i));
            $t[i][0] = tile!(VDIV $t[i][0], n);
        });
    };
}
pub(crate) use window_finish;

/// A product as the byte that it becomes.
macro_rules! window_requantize {
    ($args:ident, $x:expr) => {{
        let (lo, hi) = (tile!(VSET $args.bytes.bounds[0]), tile!(VSET $args.bytes.bounds[1]));
        let x = tile!(VMIN hi, tile!(VMAX lo, $x));
        tile!(VADD tile!(VROUND x), tile!(VSET $args.bytes.zero))
    }};
}
pub(crate) use window_requantize;

/// The results, in memory. Of bytes these are products, but for maxima.
macro_rules! window_store {
    (qdw $t:ident $w:tt $args:ident $o:ident) => {
        let ByteWindow { bounds: [lo, hi], zero, .. } = $args.bytes;
        tile!(NARROW $t [$w x 1] lo, hi, zero -> $o[C_BLOCK, 0]);
    };
    (qmax $t:ident $w:tt $args:ident $o:ident) => {
        let flip = tile!(BYTES_SPLAT $args.bytes.flip());
        tilewright_intrinsics::each!(i in $w {
            tile!(BYTES_STORE $o.wrapping_add(i * C_BLOCK), tile!(BYTES_XOR $t[i][0], flip));
        });
    };
    (qaccum $t:ident $w:tt $args:ident $o:ident) => {
        window_store!(qdw $t $w $args $o);
    };
    ($mode:ident $t:ident $w:tt $args:ident $o:ident) => {
        tile!(STORE $t [1 x $w x 1] -> $o[0, C_BLOCK, 0]);
    };
}
pub(crate) use window_store;
