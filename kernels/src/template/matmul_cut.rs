//! How a product is cut into tiles, and which ways of computing it there are.

use super::conv_geometry::cut;
use super::dot_division::{cost, near_cost};
use super::matmul::{MatmulForm, MatmulParams};
use super::matmul_tile::{MatmulKernel, kernels, rest};
use crate::choice::sort_few;
use crate::detect::has_dozen_ways;
use crate::{Algorithm, C_BLOCK, Choice, Isa, KernelInfo};
use alloc::{vec, vec::Vec};
use core::ops::Range;

/// Some columns of B, side by side in the packed form.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    /// First column.
    pub(crate) column: usize,
    /// Columns in the packed form, a multiple of the lanes.
    pub(crate) width: usize,
    /// Columns of its last vector that exist.
    pub(crate) tail: usize,
    /// Index in [`Tiling::pieces`].
    pub(crate) cut: usize,
}

/// A product cut into panels of columns and tiles of rows.
///
/// A tile is what one call of a kernel of the main width computes. Panels of another width cut each
/// tile again, so that all panels can read the same packed A.
#[derive(Clone, Debug)]
pub(crate) struct Tiling {
    pub(crate) panels: Vec<Panel>,
    /// First row of each tile, then the number of rows.
    pub(crate) tiles: Vec<usize>,
    /// Per panel width: for each tile its pieces.
    pieces: Vec<Pieces>,
}

/// The tiles as panels of one width see them.
#[derive(Clone, Debug, Default)]
struct Pieces {
    /// Index of the first piece of each tile, then the number of pieces.
    first: Vec<usize>,
    /// First row and kernel.
    list: Vec<(usize, &'static MatmulKernel)>,
    /// Per tile: how many from it on are each one piece of the same kernel, which computes several in
    /// one call. 0 for a tile of several pieces.
    alike: Vec<usize>,
}

impl Tiling {
    /// Pieces of a tile: first row, kernel.
    pub(crate) fn pieces(&self, panel: &Panel, tile: usize) -> &[(usize, &'static MatmulKernel)] {
        let pieces = &self.pieces[panel.cut];
        &pieces.list[pieces.first[tile]..pieces.first[tile + 1]]
    }

    /// How many tiles from this one on one call of a kernel computes; 0 if each of the tile's pieces
    /// needs its own.
    pub(crate) fn alike(&self, panel: &Panel, tile: usize) -> usize {
        self.pieces[panel.cut].alike[tile]
    }

    /// Rows of a tile.
    pub(crate) fn height(&self, tile: usize) -> usize {
        self.tiles[tile + 1] - self.tiles[tile]
    }

    /// The number of tiles.
    pub(crate) fn count(&self) -> usize {
        self.tiles.len() - 1
    }

    /// Cuts a product into tiles of at most `rows` rows and, as far as they fit, `columns` columns.
    pub(crate) fn new(p: &MatmulParams, isa: Isa, [rows, columns]: [usize; 2]) -> Self {
        let kernels = kernels(isa);
        let widths = widths(p, kernels);
        let panels = panels(p, kernels, &widths, columns);
        let (heights, _) = cut(p.m, &heights(kernels, columns, rows, cost));
        let mut tiles = vec![0];
        for height in &heights {
            tiles.push(tiles[tiles.len() - 1] + height);
        }
        let pieces = widths.iter().enumerate().map(|(i, &width)| {
            if panels.iter().all(|panel| panel.cut != i) {
                return Pieces::default();
            }
            let of_width = heights_of(kernels, width, cost);
            let mut pieces = Pieces::default();
            let mut cuts: Vec<Option<Vec<usize>>> = vec![None; rows + 1];
            for tile in tiles.windows(2) {
                pieces.first.push(pieces.list.len());
                let height = tile[1] - tile[0];
                let lengths = cuts[height].get_or_insert_with(|| cut(height, &of_width).0);
                let mut row = tile[0];
                for &length in &*lengths {
                    let alike = |k: &&MatmulKernel| {
                        k.info.c_ob() == width
                            && k.info.unroll() == find(kernels, length, columns).info.unroll()
                    };
                    let kernel = match length {
                        1 if width < columns => rest(isa).iter().find(alike),
                        _ => None,
                    };
                    pieces.list.push((row, kernel.unwrap_or_else(|| find(kernels, length, width))));
                    row += length;
                }
            }
            pieces.first.push(pieces.list.len());
            pieces.alike = vec![0; tiles.len() - 1];
            for tile in (0..pieces.alike.len()).rev() {
                let first = pieces.first[tile];
                if pieces.first[tile + 1] - first > 1 {
                    continue;
                }
                let kernel = pieces.list[first].1;
                pieces.alike[tile] = match pieces.list.get(first + 1) {
                    Some(next) if core::ptr::eq(next.1, kernel) => pieces.alike[tile + 1] + 1,
                    _ => 1,
                };
            }
            pieces
        });
        let pieces = pieces.collect();
        Self { panels, tiles, pieces }
    }
}

/// The kernel of a tile size.
fn find(kernels: &'static [MatmulKernel], rows: usize, columns: usize) -> &'static MatmulKernel {
    let fits = |k: &&MatmulKernel| k.info.w_ob() == rows && k.info.c_ob() == columns;
    kernels.iter().find(fits).unwrap_or(&kernels[0])
}

/// Whether kernels can write whole blocks of columns.
pub(crate) fn has_blocks(kernels: &[MatmulKernel]) -> bool {
    kernels.iter().any(|k| k.info.c_ob().is_multiple_of(C_BLOCK))
}

/// Whether there is a kernel of this tile size for a product.
pub(crate) fn exists(
    p: &MatmulParams,
    kernels: &[MatmulKernel],
    rows: usize,
    columns: usize,
) -> bool {
    widths(p, kernels).contains(&columns)
        && kernels.iter().any(|k| k.info.w_ob() == rows && k.info.c_ob() == columns)
}

/// The widths in columns of the kernels' tiles that a product can use, widest first.
fn widths(p: &MatmulParams, kernels: &[MatmulKernel]) -> Vec<usize> {
    let mut widths: Vec<usize> = kernels.iter().map(|k| k.info.c_ob()).collect();
    widths.retain(|width| !p.blocked() || width.is_multiple_of(C_BLOCK));
    sort_few(&mut widths, |a, b| a > b);
    widths.dedup();
    widths
}

/// What a step of a kernel costs.
type Cost = fn(&KernelInfo) -> u64;

/// The heights of tiles of a width, with their costs, for [`cut`].
fn heights_of(kernels: &[MatmulKernel], width: usize, cost: Cost) -> Vec<(usize, u64)> {
    let of_width = kernels.iter().filter(|k| k.info.c_ob() == width);
    of_width.map(|k| (k.info.w_ob(), cost(&k.info))).collect()
}

/// Those up to `most`.
fn heights(kernels: &[MatmulKernel], width: usize, most: usize, cost: Cost) -> Vec<(usize, u64)> {
    let mut heights = heights_of(kernels, width, cost);
    heights.retain(|height| height.0 <= most);
    heights
}

/// Cuts the columns into panels of a width, and narrower ones for what is left.
fn panels(p: &MatmulParams, kernels: &[MatmulKernel], widths: &[usize], main: usize) -> Vec<Panel> {
    let lanes = kernels[0].info.c_ob() / kernels[0].info.c_vec();
    let (mut panels, mut column) = (Vec::new(), 0);
    let n = p.columns();
    while column < n {
        let left = (n - column).div_ceil(lanes) * lanes;
        let fits = |w: &usize| *w <= left && *w <= main;
        let cut = widths.iter().position(fits).unwrap_or(widths.len() - 1);
        let width = widths[cut];
        let tail = lanes - (column + width).saturating_sub(n);
        panels.push(Panel { column, width, tail, cut });
        column += width;
    }
    panels
}

/// Longest reductions between two visits of C, best first: to visit it again costs more than to
/// stream a long panel of B from the L2 cache.
const CHUNKS: [usize; 3] = [2048, 1024, 512];
/// Elements of A that stay in the L2 cache while panels of B pass.
const BLOCK: usize = 96 * 1024;
/// Rows of a panel of C that wait in the L1 cache until they are transposed.
const TURNED: usize = 256;
/// Longest row of A that is read where it lies; beyond, rows of one tile evict each other from the L1
/// cache.
const DIRECT: usize = 1024;

/// Rows so many elements apart begin at the same set of the L1 cache (of 4 KiB per way, as x86 has
/// them), which holds so many of them.
const SET: usize = 1024;
const WAYS: usize = 12;
/// Of older CPUs it holds so many, where rows that evict each other are packed if more panels read them.
const FEW_WAYS: usize = 8;
const CROWDED: usize = 3;
/// Elements of half a cache line.
const HALF_LINE: usize = 8;

/// Reductions up to this are short: a panel of B stays in the L1 cache.
const SHORT: usize = 64;
/// The same where results are blocks of 16 columns: half as many stores leave in one burst then.
const SHORT_BLOCKS: usize = 128;
/// Vectors of a tile that hide the latency of FMA and more.
const HIDDEN: usize = 12;

/// The widths of panels, no more than `widest`, that a product can be cut into, the best one first: what a step of the
/// reduction costs, the width, the greatest height of its tiles.
fn by_width(p: &MatmulParams, kernels: &[MatmulKernel], widest: usize) -> Vec<(u64, usize, usize)> {
    let widths = widths(p, kernels);
    let lanes = kernels[0].info.c_ob() / kernels[0].info.c_vec();
    let apart = !p.blocked() && (p.a_row.is_multiple_of(SET) || p.c_row.is_multiple_of(SET));
    let most = match apart {
        true => WAYS,
        false => usize::MAX,
    };
    let short = p.k <= if p.blocked() { SHORT_BLOCKS } else { SHORT };
    let cost = if short { near_cost } else { cost };
    let cuts = widths.iter().map(|&w| cut(p.m, &heights(kernels, w, most, cost)));
    let cuts: Vec<(Vec<usize>, u64)> = cuts.collect();
    let mut list: Vec<(u64, usize, usize)> = Vec::new();
    for (&width, (heights, _)) in widths.iter().zip(&cuts) {
        if width > widest || width > p.columns().div_ceil(lanes) * lanes {
            continue;
        }
        let panels = panels(p, kernels, &widths, width);
        let total = panels.iter().map(|panel| cuts[panel.cut].1);
        let total = total.fold(0, u64::saturating_add);
        let rows = heights.iter().copied().max().unwrap_or(1);
        // Into its place at once: a sort takes 5 KB of code, for a handful.
        let at = list.partition_point(|&(other, ..)| other <= total);
        list.insert(at, (total, width, rows));
    }
    let best = list[0].0;
    list.retain(|&(total, ..)| total <= best + best / 2);
    // The results of short reductions are what takes the time: they leave faster in long rows. The
    // tiles must still hide the latency of FMA.
    let whole = |&(total, width, rows): &(u64, usize, usize)| {
        total <= best + best / 25 && rows * (width / lanes) >= HIDDEN
    };
    if short
        && let Some(widest) =
            (0..list.len()).filter(|&i| whole(&list[i])).max_by_key(|&i| list[i].1)
    {
        list[..=widest].rotate_right(1);
    }
    list
}

/// What a product with a plain B costs, to be compared with that of another form: its multiply-adds, the
/// packing of B where that pays, the transposition of its results.
pub(crate) fn plain_cost(p: &MatmulParams, kernels: &[MatmulKernel]) -> u64 {
    // Measured, per vector that is moved, in the unit of `cost`.
    const PACKED: u64 = 110;
    const TURNED: u64 = 90;
    let lanes = kernels[0].info.c_ob() / kernels[0].info.c_vec();
    let (steps, width, rows) = by_width(p, kernels, usize::MAX)[0];
    let vectors = |rows: usize, columns: usize| (rows * columns.div_ceil(lanes)) as u64;
    let moved = match p.form {
        MatmulForm::Transposed => TURNED.saturating_mul(vectors(p.m, p.n)),
        _ if p.m <= rows || near(p, p.k.min(CHUNKS[0]), width) => 0,
        _ => PACKED.saturating_mul(vectors(p.k, p.n)),
    };
    steps.saturating_mul(p.k as u64).saturating_add(moved)
}

/// The ways of computing a product with panels of no more than `widest` columns; the first is the one to use if none was
/// measured.
pub(crate) fn candidates(p: &MatmulParams, kernels: &[MatmulKernel], widest: usize) -> Vec<Choice> {
    let by_width = by_width(p, kernels, widest);
    let mut list = Vec::new();
    for &(_, columns, rows) in &by_width {
        // Nor can it be if C, where the partial sums lie, is transposed.
        let turned = p.form == MatmulForm::Transposed;
        let choice = |algorithm, longest| {
            // A few rows of A read B once, so that nothing is gained by cutting it.
            let chunk = if p.m <= rows || turned { p.k } else { even(p.k, longest, 16) };
            let most = match (turned, algorithm) {
                (true, Algorithm::Direct) => TURNED,
                (true, _) => TURNED.min(BLOCK / chunk),
                _ => BLOCK / chunk,
            };
            let block = even(p.m, most.max(rows), 1);
            Choice { algorithm, tile: [1, rows, columns], chunk, block }
        };
        let packed = CHUNKS.map(|most| choice(Algorithm::Packed, most));
        if p.a_transposed && !turned {
            list.extend(packed);
            continue;
        }
        let direct = CHUNKS.map(|most| choice(Algorithm::Direct, most));
        if p.blocked() {
            list.extend(direct);
            list.push(Choice { block: p.m, ..direct[0] });
            continue;
        }
        let crowded = p.a_row.is_multiple_of(SET) && rows > FEW_WAYS && !has_dozen_ways();
        // Of a transposed A each step of the reduction reads a line, of which this is less than half.
        let sparse = p.a_transposed && rows < HALF_LINE;
        let in_place = p.k <= DIRECT && !((crowded || sparse) && p.n > CROWDED * columns);
        let few = in_place || p.m <= rows || p.n <= columns;
        let [first, second] = if few { [direct, packed] } else { [packed, direct] };
        list.extend([first[0], second[0], first[1], first[2]]);
        if p.form != MatmulForm::Transposed {
            list.push(Choice { block: p.m, ..first[0] });
        }
    }
    let mut seen = Vec::new();
    list.retain(|choice| {
        !seen.contains(choice) && {
            seen.push(*choice);
            true
        }
    });
    list
}

/// The length of equal parts of at most about `most`, a multiple of `unit` unless it is all.
fn even(size: usize, most: usize, unit: usize) -> usize {
    let parts = size.div_ceil(most);
    size.div_ceil(parts).next_multiple_of(unit).min(size)
}

/// The ranges of rows, all of whole tiles, that one pass over B serves: `rows` each or less.
pub(crate) fn blocks(tiles: Range<usize>, per_block: usize) -> impl Iterator<Item = Range<usize>> {
    let (start, count) = (tiles.start, tiles.len());
    let blocks = count.div_ceil(per_block);
    (0..blocks).map(move |i| start + i * count / blocks..start + (i + 1) * count / blocks)
}

/// Whether so many rows of a panel of a plain B stay in the L1 cache where they lie, beside what passes
/// through it: they are whole cache lines, not too many, and spread over its sets.
pub(crate) fn near(p: &MatmulParams, rows: usize, columns: usize) -> bool {
    const LINE: usize = 16;
    let (lines, sets) = (columns.div_ceil(LINE), SET / LINE);
    let step = p.b_row / LINE;
    // Rows begin at so many sets.
    let starts = sets >> step.trailing_zeros().min(sets.trailing_zeros());
    p.b_row.is_multiple_of(LINE)
        && rows * columns <= SET * WAYS / 2
        && rows * lines <= (starts * lines).min(sets) * (WAYS - 2)
}

#[cfg(test)]
mod tests {
    use super::super::dot_division::widest;
    use super::*;

    #[test]
    fn a_far_b_has_the_same_panels_for_any_number_of_rows() {
        for isa in Isa::ALL {
            for (k, n) in [(512, 512), (300, 1001), (40_000, 9)] {
                let most = widest(4 * k * n, kernels(isa).iter().map(|k| &k.info));
                let width = |m| {
                    let p = MatmulParams::new(m, k, n);
                    candidates(&p, kernels(isa), most)[0].tile[2]
                };
                assert!((2..300).all(|m| width(m) == width(1)), "{isa} {k} {n}");
                assert!(width(1) <= most);
            }
        }
    }
}
