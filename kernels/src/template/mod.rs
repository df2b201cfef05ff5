//! One template per op: the source of its microkernels, its plan, its scalar reference.
//!
//! A template never names an instruction set: `for_each_tile!` instantiates it for each row of
//! the table, and a plan picks among the instances. Several threads may run one plan at a time,
//! each with its own range of units; no two units write the same bytes, and the result does not
//! depend on the split.

#[cfg(any(feature = "alloc", test))]
pub mod attention;
#[cfg(any(feature = "alloc", test))]
mod attention_decode;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod attention_layout;
#[cfg(any(feature = "alloc", test))]
mod attention_prefill;
#[cfg(test)]
mod attention_reference;
#[cfg(any(feature = "alloc", test))]
mod attention_store;
#[cfg(test)]
mod attention_tests;
#[cfg(any(feature = "alloc", test))]
mod attention_tile;
#[cfg(any(feature = "alloc", test))]
mod attention_unpack;
#[cfg(any(feature = "alloc", test))]
mod attention_weigh;
#[cfg(any(feature = "alloc", test))]
pub mod binary;
#[cfg(any(all(feature = "alloc", not(feature = "few-kernels")), test))]
mod binary_pow;
#[cfg(test)]
mod binary_tests;
#[cfg(any(feature = "alloc", test))]
pub mod block;
pub mod byte_turns;
pub mod cells;
#[cfg(test)]
mod cells_tests;
mod cells_tile;
#[cfg(any(feature = "alloc", test))]
pub mod conv;
#[cfg(any(feature = "alloc", test))]
mod conv_direct;
#[cfg(any(feature = "alloc", test))]
pub mod conv_first;
#[cfg(any(feature = "alloc", test))]
mod conv_geometry;
#[cfg(any(feature = "alloc", test))]
mod conv_pack;
pub mod conv_params;
#[cfg(any(feature = "alloc", test))]
pub mod conv_pool;
#[cfg(any(feature = "alloc", test))]
mod conv_product;
#[cfg(any(feature = "alloc", test))]
mod conv_reference;
#[cfg(test)]
mod conv_tests;
#[cfg(any(feature = "alloc", test))]
mod conv_tile;
pub mod convert;
pub mod delta;
#[cfg(any(feature = "alloc", test))]
pub mod depthwise;
mod dot;
mod dot_convert;
mod dot_division;
mod dot_pieces;
mod dot_tile;
pub mod fake_quantize;
pub mod glu;
#[cfg(test)]
mod glu_tests;
#[cfg(any(feature = "alloc", test))]
pub mod half_matmul;
#[cfg(any(feature = "alloc", test))]
mod half_matmul_reference;
#[cfg(test)]
mod half_matmul_tests;
pub mod layout;
pub mod layout_bytes;
#[cfg(test)]
mod layout_tests;
pub mod lookup;
#[cfg(any(feature = "alloc", test))]
pub mod matmul;
#[cfg(any(feature = "alloc", test))]
mod matmul_cut;
pub mod matmul_params;
#[cfg(any(feature = "alloc", test))]
mod matmul_reference;
#[cfg(any(feature = "alloc", test))]
mod matmul_run;
#[cfg(test)]
mod matmul_tests;
#[cfg(any(feature = "alloc", test))]
mod matmul_tile;
pub mod norm;
#[cfg(test)]
mod norm_tests;
#[cfg(any(feature = "alloc", test))]
pub mod plane;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod plane_direct;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod plane_slide;
#[cfg(test)]
mod plane_tests;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod plane_tile;
#[cfg(any(feature = "alloc", test))]
pub mod pointwise;
#[cfg(test)]
mod pointwise_tests;
#[cfg(any(feature = "alloc", test))]
pub mod pool;
#[cfg(any(feature = "alloc", test))]
pub mod qbinary;
#[cfg(test)]
mod qbinary_tests;
pub mod qconv;
mod qconv_direct;
mod qconv_params;
#[cfg(any(feature = "alloc", test))]
mod qconv_reference;
mod qconv_segments;
#[cfg(test)]
mod qconv_tests;
#[cfg(any(feature = "alloc", test))]
pub mod qdepthwise;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod qdepthwise_dot;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod qdepthwise_pairs;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod qdepthwise_wide;
#[cfg(any(feature = "alloc", test))]
pub mod qelement;
#[cfg(test)]
mod qelement_tests;
pub mod qmatmul;
#[cfg(any(feature = "alloc", test))]
mod qmatmul_reference;
#[cfg(test)]
mod qmatmul_tests;
#[cfg(any(feature = "alloc", test))]
pub mod qpool;
#[cfg(any(feature = "alloc", test))]
mod qwindow_reference;
#[cfg(test)]
mod qwindow_tests;
mod qwinograd;
pub(crate) mod qwinograd_tile;
pub mod reduce;
#[cfg(test)]
mod reduce_tests;
pub mod resample;
pub mod rope;
#[cfg(test)]
mod rope_tests;
#[cfg(any(feature = "alloc", test))]
pub mod separable;
pub mod softmax;
pub mod strided;
pub mod taps;
pub mod unary;
mod unary_list;
#[cfg(test)]
mod unary_tests;
#[cfg(any(feature = "alloc", test))]
mod window;
#[cfg(any(feature = "alloc", test))]
mod window_kernel;
#[cfg(test)]
mod window_tests;
#[cfg(any(feature = "alloc", test))]
mod winograd;
#[cfg(any(feature = "alloc", test))]
mod winograd_choice;
mod winograd_geometry;
#[cfg(test)]
mod winograd_tests;
#[cfg(any(feature = "alloc", test))]
pub(crate) mod winograd_tile;

#[cfg(any(feature = "alloc", test))]
pub(crate) use dot_pieces::peak as pieces_peak;
#[cfg(any(feature = "alloc", test))]
pub(crate) use dot_tile::{bytes_row, row as dot_row};

#[cfg(any(feature = "alloc", test))]
/// The kernels of dot products that an instruction set itself has.
pub(crate) fn dot_kernels(isa: crate::Isa) -> impl Iterator<Item = crate::KernelInfo> {
    let pieces = dot_pieces::own(isa).map_or(&[][..], |pieces| pieces.row.kernels);
    dot_tile::own(isa).chain(pieces).map(|k| k.info)
}

/// What `join` makes of all lanes of a vector, in every lane.
macro_rules! fold_lanes {
    ($v:expr, |$p:ident, $q:ident| $join:expr) => {{
        let mut v = $v;
        for _ in 0..tile!(LANES).ilog2() {
            let ($p, $q) = (tile!(VEVEN v, v), tile!(VODD v, v));
            v = $join;
        }
        v
    }};
}
pub(crate) use fold_lanes;

/// Rows of `len` elements, those of the first and the second half in turns if each ends with a vector that is not full:
/// where rows are replaced, the masked store of that would hold up the loads of the next one, the first of which lie in
/// the rest of it.
#[inline(always)]
pub(crate) fn in_turns(
    rows: core::ops::Range<usize>,
    len: usize,
    lanes: usize,
) -> impl Iterator<Item = usize> {
    let (half, turns) = (rows.len().div_ceil(2), !len.is_multiple_of(lanes));
    let row = move |i: usize| if turns { i / 2 + i % 2 * half } else { i };
    (0..rows.len()).map(move |i| rows.start + row(i))
}

/// The number of columns of a tile, lanes times vectors, as a literal for kernel names.
macro_rules! c_ob {
    (1 1) => {
        1
    };
    (1 2) => {
        2
    };
    (1 3) => {
        3
    };
    (1 4) => {
        4
    };
    (1 8) => {
        8
    };
    (1 16) => {
        16
    };
    (2 1) => {
        2
    };
    (2 2) => {
        4
    };
    (2 3) => {
        6
    };
    (2 4) => {
        8
    };
    (2 8) => {
        16
    };
    (2 16) => {
        32
    };
    (4 1) => {
        4
    };
    (4 2) => {
        8
    };
    (4 3) => {
        12
    };
    (4 4) => {
        16
    };
    (4 8) => {
        32
    };
    (4 16) => {
        64
    };
    (8 1) => {
        8
    };
    (8 2) => {
        16
    };
    (8 3) => {
        24
    };
    (8 4) => {
        32
    };
    (8 8) => {
        64
    };
    (8 16) => {
        128
    };
    (16 1) => {
        16
    };
    (16 2) => {
        32
    };
    (16 3) => {
        48
    };
    (16 4) => {
        64
    };
    (16 8) => {
        128
    };
}
pub(crate) use c_ob;

/// The end of a tile in one piece: the last `DRAIN_STEPS` reduction steps pixel by pixel, each
/// activated and stored at once. Which activation it is, each pixel asks again: a jump that is always
/// predicted costs nothing, and a copy of all products per activation was a third of the code of the
/// largest tiles, and of the time to compile them. A leaky one is for the caller to refuse.
macro_rules! drain_tile {
    ($tile:ident $t:ident [$r:tt x $w:tt x $v:tt] += $p:ident[$s:ident, $next:expr] * $b:ident[$b_row:expr],
     $activation:ident -> $o:ident[$row:expr, $step:expr, $plane:expr]) => {
        $tile!(DRAIN $t [$r x $w x $v] += $p[$s, $next] * $b[$b_row], y i one => {
            let o = $o.wrapping_add(y * $row + i * $step);
            match $activation {
                TileActivation::Relu => { $tile!(RELU one [1 x 1 x $v]); }
                TileActivation::Clamp { lo, hi } => { $tile!(CLAMP one [1 x 1 x $v] lo, hi); }
                _ => {}
            }
            $tile!(STORE one [1 x 1 x $v] -> o[0, 0, $plane]);
        })
    };
}
pub(crate) use drain_tile;

/// Steps of the reduction that a tile of so many vectors leaves for [`drain_tile!`]: none if its stores
/// are few anyway.
macro_rules! drain_steps {
    ($tile:ident $vectors:expr) => {
        if $vectors >= 16 { tilewright_intrinsics::$tile!(DRAIN_STEPS) } else { 0 }
    };
}
pub(crate) use drain_steps;
