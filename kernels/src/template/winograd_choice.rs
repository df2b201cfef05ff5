//! Where Winograd's algorithm applies, in which ways, and what they cost.

use super::conv::{ConvParams, InputLayout};
use super::conv_geometry::{cost, cut_ends, k_tiles};
use super::conv_tile::ConvKernel;
use super::matmul_tile::{self, MatmulKernel};
use crate::{Algorithm, C_BLOCK, Choice, Isa};
use alloc::vec::Vec;

/// Bytes that transformed input and products of a block of tiles may take, to share 1 MiB with weights.
const BLOCK_BYTES: usize = 640 << 10;

/// The same where weights come from memory: each block reads all of them, and what a block has is read from a
/// larger cache in the meantime.
const LARGE_BLOCK_BYTES: usize = 4 << 20;

/// Packed weights above this are taken to come from memory, not from a cache: a network has several such layers,
/// so that none finds its weights where it left them.
const CACHED_BYTES: f64 = 4e6;

/// Input channels up to which `F(4, 3)` keeps the stated error bound.
const F4_CHANNELS: usize = 512;

/// Cycles per tile and block of channels with 16 lanes to transform the input and the output of tiles of
/// `m x m` outputs.
pub(crate) fn transform_cycles(m: usize) -> [f64; 2] {
    if m == 4 { [150.0, 115.0] } else { [50.0, 40.0] }
}

/// Whether this build has the algorithm.
pub(crate) const IN_BUILD: bool = !cfg!(feature = "few-kernels");

/// Whether the algorithm applies, and keeps the error bound that is stated for it.
#[inline]
pub(crate) fn fits(p: &ConvParams, algorithm: Algorithm) -> bool {
    if !IN_BUILD {
        return false;
    }
    let small = match algorithm {
        Algorithm::Winograd2 => true,
        Algorithm::Winograd4 => p.c_in <= F4_CHANNELS,
        _ => false,
    };
    let plain = p.winograd && p.groups == 1 && !p.transposed && p.input == InputLayout::Blocked;
    small && plain && p.kernel == [3, 3] && p.stride == [1, 1] && p.dilation == [1, 1]
}

/// Outputs of a tile along each axis.
pub(crate) fn outputs(algorithm: Algorithm) -> usize {
    if algorithm == Algorithm::Winograd4 { 4 } else { 2 }
}

/// Whether a kernel computes one pixel of this width.
pub(crate) fn is_single(kernel: &ConvKernel, width: usize) -> bool {
    kernel.info.c_ob() == width && kernel.info.rows() == 1 && kernel.info.w_ob() == 1
}

/// Lengths and costs of the register tiles of one width, up to `bound` tiles of the plane.
pub(crate) fn pieces_of(
    kernels: &[ConvKernel],
    products: &[MatmulKernel],
    width: usize,
    bound: usize,
) -> Vec<(usize, u64)> {
    let single = kernels.iter().filter(|k| is_single(k, width)).map(|k| &k.info);
    let more = products.iter().map(|k| &k.info).filter(|i| i.c_ob() == width && i.w_ob() > 1);
    single.chain(more).filter(|i| i.w_ob() <= bound.max(1)).map(|i| (i.w_ob(), cost(i))).collect()
}

/// The choices for these parameters with their estimated times in twentieths of a cycle.
pub(crate) fn candidates(isa: Isa, p: &ConvParams, kernels: &[ConvKernel]) -> Vec<(f64, Choice)> {
    let mut list = Vec::new();
    for algorithm in [Algorithm::Winograd4, Algorithm::Winograd2] {
        if !fits(p, algorithm) {
            continue;
        }
        let m = outputs(algorithm);
        let Some(tiles) = p.n.checked_mul(p.h_out.div_ceil(m) * p.w_out.div_ceil(m)) else {
            continue;
        };
        let width = k_tiles(p, kernels, usize::MAX)[0].width;
        let pieces = pieces_of(kernels, matmul_tile::kernels(isa), width, usize::MAX);
        let widest = pieces.iter().map(|p| p.0).max().unwrap_or(1);
        let channels = p.c_in.next_multiple_of(C_BLOCK);
        let bytes = (m + 2) * (m + 2) * (channels + width) * 4;
        let room = if from_memory(p, m) { LARGE_BLOCK_BYTES } else { BLOCK_BYTES };
        let most = (room / bytes).max(widest).min(tiles);
        let ends = cut_ends(most, &pieces);
        let estimate = |block: usize| estimate(isa, p, m, tiles, block, width, &ends);
        // The best division of all tiles into a number of blocks near the least possible one, and
        // the same for smaller blocks.
        let mut blocks: Vec<usize> = [1, 2, 3]
            .iter()
            .map(|shrink| {
                let least = tiles.div_ceil((most / shrink).max(widest.min(most)));
                (least..least + 6)
                    .map(|n| tiles.div_ceil(n.min(tiles)))
                    .min_by(|&a, &b| estimate(a).total_cmp(&estimate(b)))
                    .unwrap_or(1)
            })
            .collect();
        blocks.dedup();
        for block in blocks {
            let (mut rest, mut pixels) = (block, 0);
            while rest > 0 {
                pixels = pixels.max(ends[rest].0);
                rest -= ends[rest].0;
            }
            let choice = Choice { algorithm, tile: [1, pixels, width], chunk: p.c_in, block };
            list.push((estimate(block), choice));
        }
    }
    list
}

/// Elements of a blocked plane of so many channels.
pub(crate) fn blocked_plane(channels: usize, pixels: usize) -> usize {
    channels.next_multiple_of(C_BLOCK) * pixels
}

/// Whether weights for tiles of `m x m` outputs are more than caches hold.
fn from_memory(p: &ConvParams, m: usize) -> bool {
    let positions = ((m + 2) * (m + 2)) as f64;
    positions * (p.c_in as f64) * (p.c_out as f64) * 4.0 > CACHED_BYTES
}

/// The time of a plan in twentieths of a cycle.
fn estimate(
    isa: Isa,
    p: &ConvParams,
    m: usize,
    tiles: usize,
    block: usize,
    width: usize,
    ends: &[(usize, u64)],
) -> f64 {
    let [input, output] = transform_cycles(m);
    let parts = super::winograd_tile::kernels(isa)[0].info.c_vec() as f64;
    let (c_blocks, k_blocks) = (p.c_in.div_ceil(C_BLOCK) as f64, p.c_out.div_ceil(C_BLOCK));
    let transforms = tiles as f64 * parts * (c_blocks * input + k_blocks as f64 * output) * 20.0;
    let positions = ((m + 2) * (m + 2)) as f64;
    let from_memory = from_memory(p, m);
    let multiply = |size: usize| {
        let (mut calls, mut tiles, mut rest, mut last) = (0, 0, size, 0);
        while rest > 0 {
            tiles += 1;
            calls += u32::from(ends[rest].0 != last);
            last = ends[rest].0;
            rest -= last;
        }
        let mut step = ends[size].1 as f64;
        if from_memory {
            // The first register tile waits for weights at 9 bytes per cycle.
            let first = step - ends[size - ends[size].0].1 as f64;
            step += ((width * 4 * 20) as f64 / 9.0 - first).max(0.0);
        }
        // A call of a microkernel costs 20 cycles, and so does each of its tiles, whatever its length.
        step * p.c_in as f64 + f64::from(calls + tiles) * 400.0
    };
    let blocks = tiles.div_ceil(block);
    let (size, larger) = (tiles / blocks, tiles % blocks);
    let mut passes = (blocks - larger) as f64 * multiply(size);
    if larger > 0 {
        passes += larger as f64 * multiply(size + 1);
    }
    transforms + passes * positions * k_blocks.div_ceil(width / C_BLOCK) as f64
}
