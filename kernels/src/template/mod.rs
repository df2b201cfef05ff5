//! One template per op: the source of its microkernels, its plan, its scalar reference.
//!
//! A template never names an instruction set: `for_each_tile!` instantiates it for each row of
//! the table, and a plan picks among the instances. Several threads may run one plan at a time,
//! each with its own range of units; no two units write the same bytes, and the result does not
//! depend on the split.

pub mod binary;
mod binary_pow;
#[cfg(test)]
mod binary_tests;
pub mod conv;
mod conv_direct;
mod conv_geometry;
mod conv_pack;
mod conv_reference;
#[cfg(test)]
mod conv_tests;
mod conv_tile;
pub mod depthwise;
mod dot;
mod dot_convert;
mod dot_tile;
pub mod half_matmul;
mod half_matmul_reference;
#[cfg(test)]
mod half_matmul_tests;
pub mod layout;
#[cfg(test)]
mod layout_tests;
pub mod matmul;
mod matmul_cut;
mod matmul_reference;
mod matmul_run;
#[cfg(test)]
mod matmul_tests;
mod matmul_tile;
pub mod plane;
#[cfg(test)]
mod plane_tests;
pub(crate) mod plane_tile;
pub mod pool;
pub mod qconv;
mod qconv_reference;
#[cfg(test)]
mod qconv_tests;
pub mod qmatmul;
mod qmatmul_reference;
#[cfg(test)]
mod qmatmul_tests;
pub mod reduce;
#[cfg(test)]
mod reduce_tests;
pub mod softmax;
pub mod unary;
mod unary_list;
#[cfg(test)]
mod unary_tests;
mod window;
mod window_kernel;
#[cfg(test)]
mod window_tests;
mod winograd;
#[cfg(test)]
mod winograd_tests;
pub(crate) mod winograd_tile;

pub(crate) use dot_tile::row as dot_row;

/// The kernels of dot products that an instruction set itself has.
pub(crate) fn dot_kernels(isa: crate::Isa) -> impl Iterator<Item = crate::KernelInfo> {
    dot_tile::own(isa).map(|k| k.info)
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
