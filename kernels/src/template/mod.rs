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
pub mod layout;
#[cfg(test)]
mod layout_tests;
pub mod matmul;
mod matmul_reference;
#[cfg(test)]
mod matmul_tests;
mod matmul_tile;
pub mod pool;
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

/// The number of columns of a tile, as a literal for kernel names.
macro_rules! c_ob {
    (1 1) => {
        1
    };
    (1 4) => {
        4
    };
    (1 16) => {
        16
    };
    (4 1) => {
        4
    };
    (4 4) => {
        16
    };
    (4 8) => {
        32
    };
    (8 1) => {
        8
    };
    (8 2) => {
        16
    };
    (8 4) => {
        32
    };
    (8 8) => {
        64
    };
    (16 1) => {
        16
    };
    (16 2) => {
        32
    };
    (16 4) => {
        64
    };
    (16 8) => {
        128
    };
}
pub(crate) use c_ob;
