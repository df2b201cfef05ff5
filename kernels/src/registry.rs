//! The list of kernels in this build.

#[cfg(any(feature = "alloc", test))]
use crate::template::{
    block, conv, depthwise, dot_kernels, matmul, plane_direct, plane_slide, plane_tile, pool,
    qdepthwise, qpool, qwinograd_tile, winograd_tile,
};
use crate::{Dtype, Isa};
#[cfg(any(feature = "alloc", test))]
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
    /// Its [`Tile`], packed.
    pub(crate) tile: [u8; 5],
}

impl KernelInfo {
    /// Output rows of the tile (1 for ops that have none).
    pub const fn rows(&self) -> usize {
        self.tile[0] as usize
    }

    /// Output pixels per row of the tile; rows of the left matrix for `matmul`.
    pub const fn w_ob(&self) -> usize {
        self.tile[1] as usize
    }

    /// Vectors per pixel.
    pub const fn c_vec(&self) -> usize {
        self.tile[2] as usize
    }

    /// Output channels of the tile; columns for `matmul`.
    pub const fn c_ob(&self) -> usize {
        self.tile[3] as usize
    }

    /// Reduction steps per COMPUTE.
    pub const fn unroll(&self) -> usize {
        self.tile[4] as usize
    }
}

/// The sizes of a kernel's tile, as the methods of [`KernelInfo`] have them: of a thousand kernels, words would be 40 KB.
pub(crate) struct Tile {
    pub(crate) rows: usize,
    pub(crate) w_ob: usize,
    pub(crate) c_vec: usize,
    pub(crate) c_ob: usize,
    pub(crate) unroll: usize,
}

impl Tile {
    /// As bytes. One that does not fit does not compile.
    pub(crate) const fn packed(self) -> [u8; 5] {
        let sizes = [self.rows, self.w_ob, self.c_vec, self.c_ob, self.unroll];
        let (mut bytes, mut i) = ([0; 5], 0);
        while i < sizes.len() {
            assert!(sizes[i] <= u8::MAX as usize, "a size of a tile is more than a byte");
            bytes[i] = sizes[i] as u8;
            i += 1;
        }
        bytes
    }
}

#[cfg(any(feature = "alloc", test))]
/// All kernels of this build that have a tile, of every instruction set, usable here or not. Those
/// of element-wise ops and conversions have none.
pub fn kernels() -> Vec<KernelInfo> {
    let mut list = Vec::new();
    for isa in Isa::ALL {
        let conv = conv::kernels(isa).iter().map(|k| k.info);
        let matmul = matmul::kernels(isa).iter().map(|k| k.info);
        let transforms = winograd_tile::kernels(isa).into_iter().map(|k| k.info);
        let transforms = transforms.chain(qwinograd_tile::transforms(isa).map(|k| k.info));
        let plane = plane_tile::kernels(isa);
        let direct = plane_direct::kernels(isa);
        let direct = [direct.dw3, direct.max2, direct.max3].map(|k| k.info);
        let plane = plane.max.iter().chain(plane.dw).chain(plane_slide::kernels(isa));
        let planes = plane.map(|k| k.info).chain(direct);
        let pool = pool::kernels(isa);
        let sets = depthwise::kernels(isa).iter().chain(pool.max).chain(pool.average);
        let windows = sets.flat_map(|set| set.iter().map(|k| k.info));
        let qpool = qpool::kernels(isa);
        let bytes = qdepthwise::kernels(isa).iter().chain(qpool.max).chain(qpool.average);
        let bytes = bytes.copied().chain(qdepthwise::integers(isa));
        let bytes = bytes.flat_map(|set| set.iter().map(|k| k.info));
        let globals = [pool.global_max.info, pool.global_average.info];
        let whole = globals.into_iter().chain([qpool.global_average.info]).chain(bytes);
        // An instruction set without kernels of its own is given those of its base.
        list.extend(dot_kernels(isa));
        list.extend(block::own(isa));
        let rest = windows.chain(whole).chain(transforms).chain(planes);
        list.extend(conv.chain(matmul).chain(rest).filter(|k| k.isa == isa));
    }
    list
}

#[cfg(any(feature = "alloc", test))]
/// The kernels of one op for one instruction set.
pub fn find(op: &str, isa: Isa) -> Vec<KernelInfo> {
    kernels().into_iter().filter(|k| k.op == op && k.isa == isa).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_say_what_the_row_says() {
        let mut list = kernels();
        for kernel in &list {
            assert!(kernel.name.ends_with(kernel.isa.name()), "{kernel:?}");
            assert!(kernel.name.starts_with(kernel.op), "{kernel:?}");
        }
        for kernel in find("conv", Isa::Scalar) {
            let tile = std::format!("_{}x{}x{}_", kernel.rows(), kernel.w_ob(), kernel.c_ob());
            assert!(kernel.name.contains(&tile), "{kernel:?}");
        }
        let all = list.len();
        list.sort_by_key(|k| k.name);
        list.dedup_by_key(|k| k.name);
        assert_eq!(list.len(), all);
        assert!(!find("matmul", Isa::Scalar).is_empty());
    }
}
