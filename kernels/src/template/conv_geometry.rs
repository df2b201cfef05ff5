//! How a convolution is divided: output channels into K tiles, outputs into phases, the plane of a
//! phase into register tiles.
//!
//! A *phase* is a set of outputs that see the same filter taps: all of them in a convolution, those
//! with equal `(y % stride, x % stride)` in a transposed one, which thereby becomes a few
//! convolutions of stride 1 that write every `stride`-th pixel.

use super::conv::{ConvParams, InputLayout};
use super::conv_tile::{ConvKernel, Run, TileShape};
use crate::C_BLOCK;
use crate::choice::sort_few;
use crate::epilogue::TileActivation;
use alloc::{vec, vec::Vec};
use core::ops::Range;

pub(crate) use super::dot_division::cost;

/// A tile's worth of output channels and what they reduce over.
#[derive(Clone, Debug)]
pub(crate) struct KTile {
    /// First output block.
    pub(crate) block: usize,
    /// Output channels, a multiple of the block.
    pub(crate) width: usize,
    /// Which of the tilings of a phase has kernels of this width.
    pub(crate) tiling: usize,
    /// First input channel.
    pub(crate) c_first: usize,
    /// Input channels from there on. All exist.
    pub(crate) channels: usize,
    /// Element offset of `c_first` in an image.
    pub(crate) x_offset: usize,
    /// Element offset in the packed weights.
    pub(crate) weights: usize,
}

impl KTile {
    /// Elements of its packed weights.
    pub(crate) fn weights_len(&self, phases: &[Phase]) -> usize {
        self.phase_weights(phases, phases.len())
    }

    /// Offset of a phase in its packed weights.
    pub(crate) fn phase_weights(&self, phases: &[Phase], phase: usize) -> usize {
        let taps: usize = phases[..phase].iter().map(Phase::taps).sum();
        taps * self.channels * self.width
    }
}

/// Bounds on the register tiles: what a choice says. Tiles of fewer output channels than
/// `c_ob` are free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileBound {
    pub(crate) rows: usize,
    pub(crate) w_ob: usize,
    pub(crate) c_ob: usize,
}

impl TileBound {
    /// None.
    pub(crate) const FREE: Self = Self { rows: usize::MAX, w_ob: usize::MAX, c_ob: usize::MAX };
}

/// Outputs that see the same taps.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    pub(crate) shape: TileShape,
    /// Filter rows, in the order of `shape.dy`.
    pub(crate) filter_rows: Vec<usize>,
    /// Filter columns, from left to right in the input.
    pub(crate) filter_cols: Vec<usize>,
    /// Offset of the first output in a plane.
    pub(crate) o_offset: usize,
    /// One per tile width, widest first.
    pub(crate) tilings: Vec<Tiling>,
}

impl Phase {
    /// Taps of the filter that it uses.
    pub(crate) fn taps(&self) -> usize {
        self.filter_rows.len() * self.filter_cols.len()
    }

    /// Tiles of its finest tiling.
    pub(crate) fn most_tiles(&self) -> usize {
        self.tilings.iter().map(|t| t.tiles).max().unwrap_or(1)
    }
}

/// A plane cut into register tiles.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    rows: Vec<RowTile>,
    sets: Vec<Vec<ColTile>>,
    pub(crate) row_masks: Vec<u32>,
    pub(crate) runs: Vec<Run>,
    pub(crate) tiles: usize,
    /// Estimated time of one reduction step of all tiles, in twentieths of a cycle.
    pub(crate) cost: u64,
}

/// One or more output rows.
#[derive(Clone, Debug)]
pub(crate) struct RowTile {
    /// First row.
    pub(crate) y: usize,
    /// Index of its first mask in `row_masks`.
    pub(crate) masks: usize,
    set: usize,
    first_tile: usize,
}

/// Some pixels of a row.
#[derive(Clone, Debug)]
pub(crate) struct ColTile {
    /// First pixel.
    pub(crate) x: usize,
    /// Index of the microkernel.
    pub(crate) kernel: usize,
    /// Its runs of taps in `runs`.
    pub(crate) runs: Range<usize>,
    /// Its single taps in `runs`.
    pub(crate) taps: Range<usize>,
}

impl Tiling {
    /// Calls `f` for the tiles of a range.
    pub(crate) fn for_each(&self, tiles: Range<usize>, mut f: impl FnMut(&RowTile, &ColTile)) {
        let start = self.rows.partition_point(|row| row.first_tile <= tiles.start).max(1) - 1;
        for row in &self.rows[start..] {
            if row.first_tile >= tiles.end {
                break;
            }
            let cols = &self.sets[row.set];
            let from = tiles.start.saturating_sub(row.first_tile);
            let to = cols.len().min(tiles.end - row.first_tile);
            for col in &cols[from..to] {
                f(row, col);
            }
        }
    }

    /// The tiles of some rows, if no tile has more than one.
    pub(crate) fn of_rows(&self, rows: Range<usize>) -> Range<usize> {
        let first = |y: usize| {
            let row = self.rows.partition_point(|row| row.y < y);
            self.rows.get(row).map_or(self.tiles, |row| row.first_tile)
        };
        first(rows.start)..first(rows.end)
    }

    /// The kernel of its middle tile.
    pub(crate) fn main_kernel(&self) -> usize {
        let cols = &self.sets[self.rows[self.rows.len() / 2].set];
        cols[cols.len() / 2].kernel
    }

    /// Indices of all kernels in use.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = usize> {
        self.sets.iter().flatten().map(|tile| tile.kernel)
    }
}

/// The widths of the kernels' tiles in output channels, widest first.
pub(crate) fn widths(kernels: &[ConvKernel]) -> Vec<usize> {
    let mut widths: Vec<usize> = kernels.iter().map(|k| k.info.c_ob()).collect();
    sort_few(&mut widths, |a, b| a > b);
    widths.dedup();
    widths
}

/// Cuts the output channels into tiles of at most `c_ob` (or the least width there is); fills in
/// everything but `weights`.
pub(crate) fn k_tiles(p: &ConvParams, kernels: &[ConvKernel], c_ob: usize) -> Vec<KTile> {
    let widths = widths(kernels);
    let (c_group, k_group) = (p.c_in / p.groups, p.c_out / p.groups);
    let blocked = p.input == InputLayout::Blocked;
    let plane = p.h_in * p.w_in;
    let mut tiles = Vec::new();
    let mut push = |block: usize, tiling: usize, channels: Range<usize>| {
        let c_first = if blocked { channels.start / C_BLOCK * C_BLOCK } else { channels.start };
        tiles.push(KTile {
            block,
            width: widths[tiling],
            tiling,
            c_first,
            channels: channels.end - c_first,
            x_offset: if blocked { c_first * plane } else { c_first },
            weights: 0,
        });
    };
    let aligned = k_group.is_multiple_of(C_BLOCK) && (!blocked || c_group.is_multiple_of(C_BLOCK));
    if p.groups == 1 || aligned {
        let blocks = k_group.div_ceil(C_BLOCK);
        for group in 0..p.groups {
            let mut block = 0;
            while block < blocks {
                let fits = |w: &usize| *w <= c_ob && w / C_BLOCK <= blocks - block;
                let tiling = widths.iter().position(fits).unwrap_or(widths.len() - 1);
                push(group * blocks + block, tiling, group * c_group..(group + 1) * c_group);
                block += widths[tiling] / C_BLOCK;
            }
        }
    } else {
        // Groups that do not fill blocks: a K tile reads the channels of all groups it touches,
        // with zero weights between them. Narrow tiles touch the fewest.
        for block in 0..p.c_out.div_ceil(C_BLOCK) {
            let last = p.c_out.min((block + 1) * C_BLOCK) - 1;
            let groups = block * C_BLOCK / k_group..last / k_group + 1;
            push(block, widths.len() - 1, groups.start * c_group..groups.end * c_group);
        }
    }
    tiles
}

/// The taps of one axis that outputs of one phase see: filter position and input offset in pixels,
/// ascending.
fn taps(p: &ConvParams, axis: usize, phase: usize) -> Vec<(usize, isize)> {
    let (stride, dilation, pad) = (p.stride[axis], p.dilation[axis], p.pads[axis]);
    let mut taps: Vec<(usize, isize)> = (0..p.kernel[axis])
        .filter_map(|r| {
            if !p.transposed {
                return Some((r, (r * dilation) as isize - pad as isize));
            }
            let distance = (phase + pad) as isize - (r * dilation) as isize;
            let stride = stride as isize;
            (distance % stride == 0).then_some((r, distance / stride))
        })
        .collect();
    if p.transposed {
        taps.reverse();
    }
    taps
}

/// Cuts the outputs into phases, and fills in the weight offsets of the K tiles.
pub(crate) fn phases(
    p: &ConvParams,
    kernels: &[ConvKernel],
    k_tiles: &mut [KTile],
    bound: TileBound,
) -> Vec<Phase> {
    let steps = if p.transposed { p.stride } else { [1, 1] };
    let mut list = Vec::new();
    for y in 0..steps[0].min(p.h_out) {
        for x in 0..steps[1].min(p.w_out) {
            list.push(phase(p, kernels, [y, x], steps, bound));
        }
    }
    let mut weights = 0;
    for tile in k_tiles {
        tile.weights = weights;
        weights += tile.weights_len(&list);
    }
    list
}

/// One phase, whose first output is at `at`, the next at a distance of `steps`.
fn phase(
    p: &ConvParams,
    kernels: &[ConvKernel],
    at: [usize; 2],
    steps: [usize; 2],
    bound: TileBound,
) -> Phase {
    let (rows, cols) = (taps(p, 0, at[0]), taps(p, 1, at[1]));
    let stride = if p.transposed { [1, 1] } else { p.stride };
    let mut size = [0, 1].map(|i| ([p.h_out, p.w_out][i] - at[i]).div_ceil(steps[i]));
    let mut input = [p.h_in, p.w_in];
    let (pixel, c_step) = match p.input {
        InputLayout::Blocked => (C_BLOCK, p.h_in * p.w_in * C_BLOCK),
        InputLayout::Interleaved => (p.c_in, super::conv_direct::CHUNK),
    };
    let neighbours = cols.windows(2).all(|t| t[1].1 == t[0].1 + 1);
    let shape = TileShape {
        step: stride[1] * pixel,
        row_step: stride[0] * p.w_in * pixel,
        c_blk: match p.input {
            InputLayout::Blocked => C_BLOCK,
            InputLayout::Interleaved => super::conv_direct::CHUNK,
        },
        c_step,
        dy: rows.iter().map(|t| t.1 * (p.w_in * pixel) as isize).collect(),
        f_w: cols.len(),
        merge: if neighbours { pixel } else { 0 },
        o_step: steps[1] * C_BLOCK,
        o_row: steps[0] * p.w_out * C_BLOCK,
        o_plane: p.h_out * p.w_out * C_BLOCK,
        activation: p.epilogue.activation.in_tile().unwrap_or(TileActivation::None),
    };
    if p.kernel == [1, 1] && stride == [1, 1] && steps == [1, 1] && p.pads == [0; 4] {
        // Every pixel sees just itself: the plane is one long row.
        size = [1, size[0] * size[1]];
        input = [1, input[0] * input[1]];
    }
    let axes = [
        Axis::new(&rows, stride[0], size[0], input[0]),
        Axis::new(&cols, stride[1], size[1], input[1]),
    ];
    Phase {
        shape,
        filter_rows: rows.iter().map(|t| t.0).collect(),
        filter_cols: cols.iter().map(|t| t.0).collect(),
        o_offset: (at[0] * p.w_out + at[1]) * C_BLOCK,
        tilings: widths(kernels)
            .iter()
            .map(|&width| {
                let bound = if width == bound.c_ob { bound } else { TileBound::FREE };
                tiling(&axes, kernels, width, pixel, bound)
            })
            .collect(),
    }
}

/// One axis of a phase.
struct Axis {
    offsets: Vec<isize>,
    stride: usize,
    size: usize,
    input: usize,
}

impl Axis {
    fn new(taps: &[(usize, isize)], stride: usize, size: usize, input: usize) -> Self {
        Self { offsets: taps.iter().map(|t| t.1).collect(), stride, size, input }
    }

    /// For each tap: bit `i * distance` is set if output `first + i` of `count` sees input.
    fn masks(&self, first: usize, count: usize, distance: usize) -> impl Iterator<Item = u32> {
        self.offsets.iter().map(move |offset| {
            let seen = |i: &usize| {
                let at = ((first + i) * self.stride) as isize + offset;
                (0..self.input as isize).contains(&at)
            };
            (0..count).filter(seen).map(|i| 1 << (i * distance)).sum()
        })
    }
}

/// The share of taps, over all outputs, that see input and not padding.
pub(crate) fn seen(p: &ConvParams) -> f64 {
    let share = |axis: usize, size: usize, input: usize| {
        let axis = Axis::new(&taps(p, axis, 0), p.stride[axis], size, input);
        let seen: usize = axis
            .offsets
            .iter()
            .map(|&offset| {
                // Outputs `i` with `0 <= i * stride + offset < input`.
                let ends = [-offset, input as isize - offset].map(|at| at.max(0) as usize);
                let [from, to] = ends.map(|at| at.div_ceil(axis.stride).min(size));
                to - from
            })
            .sum();
        seen as f64 / (axis.offsets.len() * size) as f64
    };
    if p.transposed { 1.0 } else { share(0, p.h_out, p.h_in) * share(1, p.w_out, p.w_in) }
}

/// The piece that is cheapest for its length, its cost, and the size beyond which it is among the pieces of the cheapest
/// way to cut: of as many pieces as it is long, some together are a multiple of its length, and it covers that at no
/// higher cost. So what is longer than so many of the longest needs no choice. Planes have ten thousands of pixels, and
/// models dozens of planes.
fn beyond(pieces: &[(usize, u64)]) -> (usize, u64, usize) {
    let per_length = |a: &&(usize, u64), b: &&(usize, u64)| {
        a.1.saturating_mul(b.0 as u64).cmp(&b.1.saturating_mul(a.0 as u64))
    };
    let cheapest = pieces.iter().filter(|piece| piece.0 > 0).min_by(per_length);
    let longest = pieces.iter().map(|piece| piece.0).max().unwrap_or(0);
    let &(length, cost) = cheapest.unwrap_or(&(1, u64::MAX / 2));
    (length, cost, length.saturating_mul(longest))
}

/// The cheapest way to cut each of `0..=size` into pieces, among equals the most even one: the last
/// piece and the cost.
pub(crate) fn cut_ends(size: usize, pieces: &[(usize, u64)]) -> Vec<(usize, u64)> {
    let (length, cost, choices) = beyond(pieces);
    let mut ends = best_ends(size.min(choices.max(1)), pieces);
    for end in ends.len()..=size {
        ends.push((length, ends[end - length].1.saturating_add(cost)));
    }
    ends
}

/// As [`cut_ends`], by trying each piece at each end.
fn best_ends(size: usize, pieces: &[(usize, u64)]) -> Vec<(usize, u64)> {
    let mut ends = vec![(0usize, 0u64); size + 1];
    // The sums of squares of the lengths.
    let mut squares = vec![0u64; size + 1];
    for end in 1..=size {
        let mut best = (u64::MAX, 0, 1);
        for &(length, cost) in pieces {
            if length <= end {
                let rest = end - length;
                let found = (ends[rest].1 + cost, squares[rest] + (length * length) as u64, length);
                if (found.0, found.1) < (best.0, best.1) {
                    best = found;
                }
            }
        }
        // What no piece fits costs so much that sums of it still fit.
        let cost = if best.0 == u64::MAX { u64::MAX / 2 } else { best.0 };
        (ends[end], squares[end]) = ((best.2, cost), best.1);
    }
    ends
}

/// The cheapest way to cut `0..size` into pieces: their lengths and their cost.
pub(crate) fn cut(size: usize, pieces: &[(usize, u64)]) -> (Vec<usize>, u64) {
    let (length, cost, choices) = beyond(pieces);
    // A table of all that is beyond would be larger than what is cut.
    let repeated = if choices == 0 { 0 } else { size.saturating_sub(choices).div_ceil(length) };
    let mut end = size - repeated * length;
    let ends = best_ends(end, pieces);
    let all = ends[end].1.saturating_add(cost.saturating_mul(repeated as u64));
    let mut lengths = Vec::new();
    while lengths.len() < repeated {
        lengths.push(length);
    }
    while end > 0 {
        lengths.push(ends[end].0);
        end -= ends[end].0;
    }
    (lengths, all)
}

/// Cuts a plane into tiles of kernels of one width.
fn tiling(
    axes: &[Axis; 2],
    kernels: &[ConvKernel],
    width: usize,
    pixel: usize,
    bound: TileBound,
) -> Tiling {
    let [vertical, horizontal] = axes;
    let usable = || kernels.iter().enumerate().filter(|(_, k)| k.info.c_ob() == width);
    let index = |rows: usize, w_ob: usize| {
        usable().find(|(_, k)| k.info.rows() == rows && k.info.w_ob() == w_ob).map_or(0, |(i, _)| i)
    };
    let singles: Vec<(usize, u64)> = usable()
        .filter(|(_, k)| k.info.rows() == 1 && k.info.w_ob() <= bound.w_ob.max(1))
        .map(|(_, k)| (k.info.w_ob(), cost(&k.info)))
        .collect();
    let (cols, row_cost) = cut(horizontal.size, &singles);
    // A tile of several rows pays where one row is too narrow to use all registers.
    let mut heights: Vec<(usize, u64)> = usable()
        .filter(|(_, k)| {
            (2..=bound.rows).contains(&k.info.rows()) && k.info.w_ob() == horizontal.size
        })
        .map(|(_, k)| (k.info.rows(), cost(&k.info)))
        .collect();
    heights.push((1, row_cost));
    let (heights, cost) = cut(vertical.size, &heights);

    let mut t =
        Tiling { rows: vec![], sets: vec![], row_masks: vec![], runs: vec![], tiles: 0, cost };
    let mut set_of = vec![usize::MAX; heights.iter().max().map_or(0, |h| h + 1)];
    let mut y = 0;
    for rows in heights {
        if set_of[rows] == usize::MAX {
            set_of[rows] = t.sets.len();
            let widths: &[usize] = if rows == 1 { &cols } else { &[horizontal.size] };
            let mut set = Vec::new();
            let mut x = 0;
            for &w in widths {
                let start = t.runs.len();
                for (offset, mask) in horizontal.offsets.iter().zip(horizontal.masks(x, w, 1)) {
                    t.runs.push(Run { dx: offset * pixel as isize, taps: 1, mask });
                }
                let taps = start..t.runs.len();
                for i in taps.clone() {
                    let run = t.runs[i];
                    match t.runs[taps.end..].last_mut() {
                        Some(last) if last.mask == run.mask => last.taps += 1,
                        _ => t.runs.push(run),
                    }
                }
                let runs = taps.end..t.runs.len();
                set.push(ColTile { x, kernel: index(rows, w), runs, taps });
                x += w;
            }
            t.sets.push(set);
        }
        let (set, masks) = (set_of[rows], t.row_masks.len());
        t.row_masks.extend(vertical.masks(y, rows, horizontal.size));
        t.rows.push(RowTile { y, masks, set, first_tile: t.tiles });
        t.tiles += t.sets[set].len();
        y += rows;
    }
    t
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cuts_cost_as_little_as_any() {
        let sets: [&[(usize, u64)]; 5] = [
            &[(1, 16), (2, 20), (3, 27), (7, 61), (8, 86)],
            &[(1, 9), (4, 21), (6, 31), (9, 47), (14, 75), (13, 68)],
            &[(1, 5)],
            &[(2, 7), (5, 16)],
            &[(1, 10), (2, 20), (3, 30)],
        ];
        for pieces in sets {
            let found = cut_ends(700, pieces);
            let mut least = vec![u64::MAX / 2; 701];
            least[0] = 0;
            for end in 1..=700 {
                let fit = pieces.iter().filter(|p| p.0 <= end);
                let costs = fit.map(|p| least[end - p.0] + p.1);
                least[end] = costs.min().unwrap_or(u64::MAX / 2);
                assert_eq!(found[end].1, least[end], "{end} of {pieces:?}");
            }
            let (lengths, cost) = cut(700, pieces);
            assert_eq!(lengths.iter().sum::<usize>(), 700);
            let of = |l: &usize| pieces.iter().find(|p| p.0 == *l).map_or(0, |p| p.1);
            assert_eq!(lengths.iter().map(of).sum::<u64>(), cost);
            // Without a table of all that is beyond, the same pieces in the same order.
            let (ends, mut left) = (cut_ends(5000, pieces), 5000);
            assert_eq!(cut(5000, pieces).1, ends[5000].1);
            for length in cut(5000, pieces).0 {
                assert_eq!(length, ends[left].0);
                left -= length;
            }
            assert_eq!(left, 0);
        }
    }
}
