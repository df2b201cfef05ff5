//! The list of kernels in this build.

use crate::{Dtype, Isa};
use alloc::vec::Vec;

/// One microkernel: what it computes per call, and for which machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelInfo {
    /// `<op>_<dtype>_<tile>_u<unroll>_<isa>`, for instance `conv_f32_1x6x16_u4_avx2`.
    pub name: &'static str,
    /// The op: `conv`, `matmul`, `depthwise`, ...
    pub op: &'static str,
    /// Instruction set it needs.
    pub isa: Isa,
    /// Element type of its operands.
    pub dtype: Dtype,
    /// Output rows of the tile (1 for ops that have none).
    pub rows: usize,
    /// Output pixels per row of the tile; rows of the left matrix for `matmul`.
    pub w_ob: usize,
    /// Vectors per pixel.
    pub c_vec: usize,
    /// Output channels of the tile; columns for `matmul`.
    pub c_ob: usize,
    /// Reduction steps per COMPUTE.
    pub unroll: usize,
}

/// All kernels of this build, of every instruction set, usable here or not.
pub fn kernels() -> Vec<KernelInfo> {
    let mut list = Vec::new();
    for isa in Isa::ALL {
        list.extend(crate::template::conv::kernels(isa).iter().map(|k| k.info));
        list.extend(crate::template::matmul::kernels(isa).iter().map(|k| k.info));
    }
    list
}

/// The kernels of one op for one instruction set.
pub fn find(op: &str, isa: Isa) -> Vec<KernelInfo> {
    kernels().into_iter().filter(|k| k.op == op && k.isa == isa).collect()
}
