//! Packed convolution weights: `[K tile][phase][channel block][filter row][filter column][channel
//! in block][output channel in tile]`.

use super::conv::{ConvParams, InputLayout};
use super::conv_direct::CHUNK;
use super::conv_geometry::{KTile, Phase};
use super::layout::{Job, LayoutFn};
use crate::{C_BLOCK, Isa};
use alloc::vec::Vec;

/// Transposes weights in squares, 16 output channels at a time.
pub(crate) struct Squares {
    transpose: LayoutFn,
    buffer: Vec<f32>,
}

impl Squares {
    /// For an available instruction set.
    pub(crate) fn new(isa: Isa) -> Self {
        debug_assert!(isa.is_available());
        Self { transpose: super::layout::kernels(isa).transpose, buffer: Vec::new() }
    }

    /// Calls `f` with each of `channels` input channels and its weights as `[taps][16]`, with zeros
    /// from output channel `rows` (at most 16) on. Those of output channel `k` and input channel `c`
    /// are the `taps` elements from `k * k_step + c * taps` on.
    ///
    /// # Panics
    ///
    /// If `src` is too short.
    pub(crate) fn for_each(
        &mut self,
        src: &[f32],
        [channels, taps]: [usize; 2],
        k_step: usize,
        rows: usize,
        mut f: impl FnMut(usize, &[f32]),
    ) {
        assert!(
            rows <= C_BLOCK && (rows == 0 || src.len() >= (rows - 1) * k_step + channels * taps)
        );
        let square = taps * C_BLOCK;
        self.buffer.resize(square * C_BLOCK, 0.0);
        for first in (0..channels).step_by(C_BLOCK) {
            let count = C_BLOCK.min(channels - first);
            let job = Job { rows, cols: count * taps, out: C_BLOCK, x: k_step, y: C_BLOCK };
            let from = src.as_ptr().wrapping_add(first * taps);
            // SAFETY: the caller of `new` vouches for the instruction set; the assertion for the
            // rows of the source; the buffer has 16 elements for each column.
            unsafe { (self.transpose)(from, self.buffer.as_mut_ptr(), &job) };
            for (c, weights) in self.buffer.chunks_exact(square).take(count).enumerate() {
                f(first + c, weights);
            }
        }
    }
}

/// Packs weights of ONNX order. `dst` holds at least all K tiles.
pub(crate) fn pack_weights(
    isa: Isa,
    p: &ConvParams,
    k_tiles: &[KTile],
    phases: &[Phase],
    src: &[f32],
    dst: &mut [f32],
) {
    let block = match p.input {
        InputLayout::Blocked => C_BLOCK,
        InputLayout::Interleaved => CHUNK,
    };
    let (c_group, k_group) = (p.c_in / p.groups, p.c_out / p.groups);
    let mut squares = Squares::new(isa);
    for tile in k_tiles {
        let dst = &mut dst[tile.weights..][..tile.weights_len(phases)];
        // No output may see a tap of a transposed convolution.
        if dst.is_empty() {
            continue;
        }
        let Some((group, end)) = group_of(p, tile) else {
            pack_tile(p, tile, phases, block, src, dst);
            continue;
        };
        let first = tile.block * C_BLOCK;
        let taps = p.kernel[0] * p.kernel[1];
        for lane in (0..tile.width).step_by(C_BLOCK) {
            let k = first + lane;
            let rows = end.saturating_sub(k).min(C_BLOCK);
            if p.transposed {
                for c in 0..c_group {
                    let at = ((group * c_group + c) * k_group + (k - group * k_group)) * taps;
                    let src = src.get(at..).unwrap_or(&[]);
                    squares.for_each(src, [1, taps], taps, rows, |_, weights| {
                        scatter(p, tile, phases, block, c, weights, &mut dst[lane..]);
                    });
                }
            } else {
                let src = src.get(k * c_group * taps..).unwrap_or(&[]);
                squares.for_each(src, [c_group, taps], c_group * taps, rows, |c, weights| {
                    scatter(p, tile, phases, block, c, weights, &mut dst[lane..]);
                });
            }
        }
    }
}

/// The group that a tile lies in, whose channels it reads and no others, and the output channel behind
/// its last one.
fn group_of(p: &ConvParams, tile: &KTile) -> Option<(usize, usize)> {
    let (c_group, k_group) = (p.c_in / p.groups, p.c_out / p.groups);
    let first = tile.block * C_BLOCK;
    let group = first / k_group;
    let end = ((group + 1) * k_group).min(first + tile.width);
    let alone = end == first + tile.width || end == p.c_out;
    let reads_it = tile.c_first == group * c_group && tile.channels == c_group;
    (alone && reads_it).then_some((group, end))
}

/// Writes the weights of one channel, `[taps][16]`, to their places in a K tile.
fn scatter(
    p: &ConvParams,
    tile: &KTile,
    phases: &[Phase],
    block: usize,
    c: usize,
    weights: &[f32],
    dst: &mut [f32],
) {
    let (first, in_block) = (c / block * block, c % block);
    let count = block.min(tile.channels - first);
    let mut start = 0;
    for phase in phases {
        let mut at = start + (first * phase.taps() + in_block) * tile.width;
        for r in &phase.filter_rows {
            for s in &phase.filter_cols {
                let from = (r * p.kernel[1] + s) * C_BLOCK;
                dst[at..at + C_BLOCK].copy_from_slice(&weights[from..from + C_BLOCK]);
                at += count * tile.width;
            }
        }
        start += tile.channels * phase.taps() * tile.width;
    }
}

/// Packs a K tile that touches several groups.
fn pack_tile(
    p: &ConvParams,
    tile: &KTile,
    phases: &[Phase],
    block: usize,
    src: &[f32],
    dst: &mut [f32],
) {
    let mut vectors = dst.chunks_exact_mut(tile.width);
    for phase in phases {
        for first in (0..tile.channels).step_by(block) {
            for &r in &phase.filter_rows {
                for &s in &phase.filter_cols {
                    for c in first..tile.channels.min(first + block) {
                        let out = vectors.next().expect("a vector per channel and tap");
                        pack_vector(p, src, tile.block * C_BLOCK, tile.c_first + c, [r, s], out);
                    }
                }
            }
        }
    }
}

/// The weights of tap `[r, s]` between input channel `c` and the output channels from `first` on: 0
/// for those of other groups, and for those that do not exist.
fn pack_vector(
    p: &ConvParams,
    src: &[f32],
    first: usize,
    c: usize,
    [r, s]: [usize; 2],
    out: &mut [f32],
) {
    let (c_group, k_group) = (p.c_in / p.groups, p.c_out / p.groups);
    let [f_h, f_w] = p.kernel;
    let group = c / c_group;
    let from = first.max(group * k_group);
    let to = (first + out.len()).min((group + 1) * k_group);
    out.fill(0.0);
    for k in from..to {
        let at = if p.transposed {
            c * k_group + (k - group * k_group)
        } else {
            k * c_group + (c - group * c_group)
        };
        out[k - first] = src[(at * f_h + r) * f_w + s];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tiles of several groups are packed element by element: right as well, but slow, so that results
    /// do not tell the two ways apart.
    #[test]
    fn tiles_that_lie_in_one_group_are_told_from_others() {
        let group = |[c_in, c_out, groups]: [usize; 3],
                     [block, width]: [usize; 2],
                     [c_first, channels]: [usize; 2]| {
            let p = ConvParams::new([1, c_in, 4, 4], c_out, [3, 3]).groups(groups);
            let (tiling, x_offset, weights) = (0, 0, 0);
            group_of(&p, &KTile { block, width, tiling, c_first, channels, x_offset, weights })
        };
        assert_eq!(group([5, 20, 1], [0, 32], [0, 5]), Some((0, 20)), "the last one is not full");
        assert_eq!(group([5, 40, 1], [0, 32], [0, 5]), Some((0, 32)));
        assert_eq!(group([5, 40, 1], [2, 16], [0, 5]), Some((0, 40)));
        assert_eq!(group([6, 96, 3], [4, 32], [4, 2]), Some((2, 96)));
        assert_eq!(group([6, 96, 3], [2, 16], [2, 2]), Some((1, 48)));
        assert_eq!(group([4, 96, 2], [1, 32], [0, 2]), Some((0, 48)), "at the end of its group");
        assert_eq!(
            group([4, 96, 2], [2, 32], [0, 4]),
            None,
            "the end of one, the beginning of the next"
        );
        assert_eq!(group([4, 40, 2], [0, 32], [0, 4]), None);
        assert_eq!(group([4, 40, 2], [1, 32], [0, 4]), None, "in the second one too");
        assert_eq!(group([6, 96, 3], [2, 32], [0, 4]), None, "channels of two groups");
        assert_eq!(group([6, 96, 3], [2, 32], [0, 2]), None, "channels of another group");
    }
}
