//! How a product of words is divided: columns into panels, panels into groups, rows into tiles.
//!
//! A division is a few runs of equal pieces, so it has a fixed size and needs no memory of its own.

use super::dot_tile::{DotKernel, DotRow};
use crate::{Dtype, KernelInfo};
use core::ops::Range;

/// Bytes of packed B that meet all tiles before the next ones do.
const GROUP_BYTES: usize = 512 << 10;

/// Bytes of a packed B that does not stay in the caches near a core.
const FAR_BYTES: usize = 1 << 20;

/// Most widths of tiles that an instruction set has, and most heights of one width.
const WIDTHS: usize = 8;
const HEIGHTS: usize = 16;

/// Most rows for which the cheapest cut is looked for piece by piece; of what is longer, that much.
const CHOICES: usize = HEIGHTS * HEIGHTS;

/// Some columns of B, side by side in the packed form.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panel {
    /// First column.
    pub(crate) column: usize,
    /// Columns in the packed form, a multiple of the lanes.
    pub(crate) width: usize,
    /// Columns of its last vector that exist.
    pub(crate) tail: usize,
}

/// Panels of one width that share a pass over the rows.
#[derive(Clone, Debug)]
pub(crate) struct Group<'a> {
    pub(crate) panels: Range<usize>,
    pub(crate) tiles: &'a Tiles,
}

/// Rows cut into tiles of kernels of one width.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tiles {
    /// Height, kernel and number of equal tiles, one after the other.
    runs: [(usize, usize, usize); HEIGHTS],
    count: usize,
    /// Estimated time of one reduction step of all.
    cost: u64,
}

impl Tiles {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// First row and kernel of a tile.
    pub(crate) fn get(&self, tile: usize) -> (usize, usize) {
        let (mut row, mut left) = (0, tile);
        for &(height, kernel, count) in &self.runs {
            if left < count {
                return (row + left * height, kernel);
            }
            row += height * count;
            left -= count;
        }
        debug_assert!(false, "tile {tile} of {}", self.count);
        (0, 0)
    }

    /// `m` rows in tiles of so many rows, of which the last may lack some; by the only kernel of a width.
    fn even(m: usize, rows: usize, width: usize, kernels: &[DotKernel]) -> Self {
        let mut tiles = Self::default();
        let of_width = kernels.iter().enumerate().find(|(_, k)| k.info.c_ob() == width);
        if let (Some((i, kernel)), Some(run)) = (of_width, tiles.runs.first_mut()) {
            tiles.count = m.div_ceil(rows);
            *run = (rows, i, tiles.count);
            // Each vector of columns is read and multiplied by, and rows are read for all of them.
            tiles.cost = ((2 * kernel.info.c_vec() + 1) * tiles.count) as u64;
        }
        tiles
    }

    /// Cuts `m` rows into tiles of kernels of one width, at the least cost per reduction step; among
    /// equals into the most even ones.
    fn new(m: usize, width: usize, kernels: &[DotKernel]) -> Self {
        // Height, kernel, cost. The weights of a word are four bytes, whatever they hold.
        let mut pieces = [(0, 0, 0); HEIGHTS];
        let mut used = 0;
        let of_width = kernels.iter().enumerate().filter(|(_, k)| k.info.c_ob() == width);
        for (piece, (i, k)) in pieces.iter_mut().zip(of_width) {
            *piece = (k.info.w_ob(), i, cost(&KernelInfo { dtype: Dtype::F32, ..k.info }));
            used += 1;
        }
        let pieces = &pieces[..used];
        let mut tiles = Self::default();
        let counts = counts(m, pieces);
        for (run, (piece, count)) in tiles.runs.iter_mut().zip(pieces.iter().zip(counts)) {
            *run = (piece.0, piece.1, count);
            tiles.count += count;
            tiles.cost = tiles.cost.saturating_add(piece.2.saturating_mul(count as u64));
        }
        tiles
    }
}

/// How many pieces of each length cover `size` at the least cost.
fn counts(size: usize, pieces: &[(usize, usize, u64)]) -> [usize; HEIGHTS] {
    let mut counts = [0; HEIGHTS];
    // Of as many pieces as the one that is cheapest for its length is long, some together are a
    // multiple of its length, and it covers that at no higher cost. So what is longer than so many
    // of the longest needs no choice: the cheapest is among its pieces.
    let by_length = |a: &(usize, &(usize, usize, u64)), b: &(usize, &(usize, usize, u64))| {
        (a.1.2 as u128 * b.1.0 as u128).cmp(&(b.1.2 as u128 * a.1.0 as u128))
    };
    let Some((cheapest, &(length, ..))) = pieces.iter().enumerate().min_by(by_length) else {
        return counts;
    };
    let longest = pieces.iter().map(|p| p.0).max().unwrap_or(1);
    let most = (length * longest).min(CHOICES);
    let mut left = size;
    if size > most {
        counts[cheapest] = (size - most).div_ceil(length);
        left -= counts[cheapest] * length;
    }
    // The last piece of each beginning, and of the latest beginnings cost and squares of lengths.
    let mut last = [0u8; CHOICES + 1];
    let mut latest = [(0u64, 0u64); HEIGHTS + 1];
    for end in 1..=left {
        let fit = pieces.iter().enumerate().filter(|(_, p)| p.0 <= end && p.0 <= HEIGHTS);
        let all = fit.map(|(i, p)| {
            let (cost, squares) = latest[(end - p.0) % (HEIGHTS + 1)];
            (cost.saturating_add(p.2), squares + (p.0 * p.0) as u64, i)
        });
        let (cost, squares, i) = all.min().unwrap_or((u64::MAX / 2, 0, 0));
        latest[end % (HEIGHTS + 1)] = (cost, squares);
        last[end] = i as u8;
    }
    while left > 0 {
        let i = usize::from(last[left]);
        counts[i] += 1;
        left = left.saturating_sub(pieces[i].0);
    }
    counts
}

/// Time of one reduction step of a tile, in twentieths of a cycle: the greatest of what FMAs, loads,
/// the latency of the chain and the weight stream take on two FMA and two load ports, and a share
/// of what a tile costs once.
pub(crate) fn cost(i: &KernelInfo) -> u64 {
    near_cost(i).max((i.c_ob() * i.dtype.size() * 10 / 12) as u64 + 6)
}

/// The same for weights that wait in the first-level cache.
pub(crate) fn near_cost(i: &KernelInfo) -> u64 {
    let (pixels, vectors) = (i.rows() * i.w_ob(), i.c_vec());
    ((pixels * vectors).max(pixels + vectors).max(8) * 10) as u64 + 6
}

/// The widest panels of a B of so many bytes that is packed once for products of any number of rows. One that is far
/// away has those of the largest tile: a few rows wait for memory, however wide they are, and would pack it again.
// One code for all products, which the smallest library has room for.
#[inline(never)]
pub(crate) fn widest<'a>(bytes: usize, kernels: impl Iterator<Item = &'a KernelInfo>) -> usize {
    let largest = kernels.max_by_key(|info| (info.w_ob() * info.c_vec(), info.w_ob()));
    largest.filter(|_| bytes >= FAR_BYTES).map_or(usize::MAX, |info| info.c_ob())
}

/// Panels of one width.
#[derive(Clone, Debug, Default)]
struct Run {
    width: usize,
    /// First column, first panel, first group.
    column: usize,
    first: usize,
    first_group: usize,
    count: usize,
    /// Panels of a group.
    per_group: usize,
    tiles: Tiles,
}

/// The panels, groups and tiles of a product.
#[derive(Clone, Debug)]
pub(crate) struct Division {
    runs: [Run; WIDTHS],
    n: usize,
    lanes: usize,
    panels: usize,
    groups: usize,
    columns: usize,
}

impl Division {
    /// Cuts `n` columns into panels, multiples of `block` wide and no more than `widest`, and for each width `m` rows into
    /// tiles; into even ones, of which the last may lack some, where that gives their rows: for kernels of one height. Of the
    /// widths that panels may have at most it takes the one whose total cost is least. With reductions of `k_words` words a
    /// group fits half of the L2 cache.
    pub(crate) fn new(
        m: usize,
        even: Option<usize>,
        n: usize,
        block: usize,
        widest: usize,
        k_words: usize,
        row: &DotRow,
    ) -> Self {
        // The widths, widest first, with their tiles.
        let mut widths: [(usize, Tiles); WIDTHS] = Default::default();
        let mut used = 0;
        let mut below = widest.saturating_add(1);
        let next = |below: usize| {
            let all = row.kernels.iter().map(|k| k.info.c_ob());
            all.filter(|&w| w < below && w.is_multiple_of(block)).max()
        };
        while let Some((slot, width)) = widths.get_mut(used).zip(next(below)) {
            let tiles = match even {
                Some(rows) => Tiles::even(m, rows, width, row.kernels),
                None => Tiles::new(m, width, row.kernels),
            };
            *slot = (width, tiles);
            (used, below) = (used + 1, width);
        }
        let widths = &widths[..used];
        let candidates = (0..used).map(|widest| Self::runs(n, widths, widest, row.lanes));
        let (_, counts) = candidates.min_by_key(|(total, _)| *total).unwrap_or_default();
        let mut d = Self {
            runs: Default::default(),
            n,
            lanes: row.lanes,
            panels: 0,
            groups: 0,
            columns: 0,
        };
        for ((run, (width, tiles)), count) in d.runs.iter_mut().zip(widths).zip(counts) {
            let per_group = (GROUP_BYTES / (4 * k_words * width)).max(1);
            let (column, first, first_group) = (d.columns, d.panels, d.groups);
            let (width, tiles) = (*width, tiles.clone());
            *run = Run { width, column, first, first_group, count, per_group, tiles };
            d.panels += count;
            d.groups += count.div_ceil(per_group);
            d.columns += count * width;
        }
        d
    }

    /// How many panels of each width there are, none wider than that of index `widest`, and what they
    /// cost.
    fn runs(
        n: usize,
        widths: &[(usize, Tiles)],
        widest: usize,
        lanes: usize,
    ) -> (u64, [usize; WIDTHS]) {
        let (mut counts, mut total, mut column) = ([0; WIDTHS], 0u64, 0);
        for (i, (width, tiles)) in widths.iter().enumerate().skip(widest) {
            let left = n.saturating_sub(column).div_ceil(lanes) * lanes;
            // What is left when the narrowest no longer fit, they cover all the same.
            let last = i + 1 == widths.len();
            counts[i] = if last { left.div_ceil(*width) } else { left / width };
            column += counts[i] * width;
            total = total.saturating_add(tiles.cost.saturating_mul(counts[i] as u64));
        }
        (total, counts)
    }

    /// Columns of the first panel: the order of what is packed depends on no more.
    pub(crate) fn width(&self) -> usize {
        self.panel(0).width
    }

    /// Panels.
    pub(crate) fn panels(&self) -> usize {
        self.panels
    }

    /// Columns of all panels.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Groups of panels.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    /// A panel.
    pub(crate) fn panel(&self, i: usize) -> Panel {
        let run = self.find(|run| i < run.first + run.count);
        let (width, column) = (run.width, run.column + (i - run.first) * run.width);
        Panel { column, width, tail: self.lanes - (column + width).saturating_sub(self.n) }
    }

    /// The tiles of a panel.
    pub(crate) fn tiles(&self, i: usize) -> &Tiles {
        &self.find(|run| i < run.first + run.count).tiles
    }

    /// A group.
    pub(crate) fn group(&self, i: usize) -> Group<'_> {
        let run = self.find(|run| i < run.first_group + run.count.div_ceil(run.per_group.max(1)));
        let first = (i - run.first_group) * run.per_group;
        let end = (first + run.per_group).min(run.count);
        Group { panels: run.first + first..run.first + end, tiles: &run.tiles }
    }

    /// Tiles of the group that has most.
    pub(crate) fn most_tiles(&self) -> usize {
        self.runs.iter().filter(|r| r.count > 0).map(|r| r.tiles.len()).max().unwrap_or(1)
    }

    fn find(&self, fits: impl Fn(&Run) -> bool) -> &Run {
        self.runs.iter().find(|run| run.count > 0 && fits(run)).unwrap_or(&self.runs[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::template::dot_tile::{bytes_row, row};
    use alloc::vec::Vec;

    #[test]
    fn tables_have_room_for_all_kernels() {
        for isa in Isa::ALL {
            let rows = [Dtype::I8, Dtype::F16, Dtype::Bf16].map(|dtype| row(isa, dtype));
            for row in rows.into_iter().chain([bytes_row(isa, true)]) {
                let kernels = row.kernels;
                let mut widths: Vec<_> = kernels.iter().map(|k| k.info.c_ob()).collect();
                widths.sort_unstable();
                widths.dedup();
                assert!(widths.len() <= WIDTHS);
                for width in widths {
                    let heights = kernels.iter().filter(|k| k.info.c_ob() == width);
                    assert!(width <= crate::template::winograd_geometry::ZEROS.len());
                    assert!(heights.clone().count() <= HEIGHTS);
                    assert!(heights.clone().all(|k| k.info.w_ob() <= HEIGHTS));
                    assert!(heights.clone().any(|k| k.info.w_ob() == 1), "{isa} {width}");
                }
            }
        }
    }

    #[test]
    fn pieces_cover_all_at_the_least_cost() {
        let sets: [&[(usize, u64)]; 4] = [
            &[(1, 16), (2, 20), (3, 27), (7, 61), (8, 86)],
            &[(1, 9), (4, 21), (6, 31), (9, 47), (14, 75), (13, 68)],
            &[(1, 5)],
            &[(1, 10), (2, 20), (3, 30), (16, 100)],
        ];
        for set in sets {
            let pieces: Vec<_> = set.iter().map(|&(length, cost)| (length, 0, cost)).collect();
            let mut least = alloc::vec![0u64];
            for end in 1..=700 {
                let fit = set.iter().filter(|p| p.0 <= end);
                least.push(fit.map(|p| least[end - p.0] + p.1).min().unwrap());
                let counts = counts(end, &pieces);
                let sum = |of: fn(&(usize, u64)) -> u64| {
                    set.iter().zip(counts).map(|(p, n)| of(p) * n as u64).sum::<u64>()
                };
                assert_eq!(sum(|p| p.0 as u64), end as u64);
                assert_eq!(sum(|p| p.1), least[end], "{end} of {set:?}");
            }
        }
    }

    #[test]
    fn a_far_b_has_the_same_panels_for_any_number_of_rows() {
        for isa in Isa::ALL {
            let rows = [Dtype::I8, Dtype::F16, Dtype::Bf16].map(|dtype| row(isa, dtype));
            for row in rows.into_iter().chain([bytes_row(isa, true)]) {
                if row.kernels.is_empty() {
                    continue;
                }
                for (k, n) in [(128, 2048), (300, 1001), (40_000, 9)] {
                    let most = widest(4 * k * n, row.kernels.iter().map(|k| &k.info));
                    let width = |m| Division::new(m, None, n, 1, most, k, row).width();
                    assert!((2..300).all(|m| width(m) == width(1)), "{isa} {k} {n}");
                    assert!(width(1) <= most);
                }
            }
        }
    }

    #[test]
    fn panels_and_tiles_cover_columns_and_rows_once() {
        for isa in Isa::ALL {
            let row = bytes_row(isa, true);
            for (m, n, block, k) in [
                (1, 1, 1, 1),
                (5, 33, 1, 7),
                (700, 1000, 1, 4000),
                (9, 112, 16, 90),
                (64, 16, 16, 1),
            ] {
                let d = Division::new(m, None, n, block, usize::MAX, k, row);
                let mut column = 0;
                for panel in (0..d.panels()).map(|i| d.panel(i)) {
                    assert_eq!(panel.column, column);
                    assert!(column < n && (1..=row.lanes).contains(&panel.tail));
                    column += panel.width;
                }
                assert!(column >= n && column == d.columns());
                let mut next = 0;
                for group in (0..d.groups()).map(|i| d.group(i)) {
                    assert_eq!(group.panels.start, next);
                    next = group.panels.end;
                    let mut end = 0;
                    for (first, kernel) in (0..group.tiles.len()).map(|i| group.tiles.get(i)) {
                        let info = &row.kernels[kernel].info;
                        assert_eq!((first, info.c_ob()), (end, d.panel(group.panels.start).width));
                        end += info.w_ob();
                    }
                    assert_eq!(end, m);
                }
                assert_eq!(next, d.panels());
            }
        }
    }
}
