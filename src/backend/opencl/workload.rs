//! Kernels of given sizes that may be shaped in several ways, and those ways.
//!
//! A [`Workload`] has a text, by which tuning tables know it. What a table says of one is used if the kernel
//! and the device can be shaped so; else rules by the kind of device decide (`device.rs`).

use core::fmt;
use core::str::FromStr;

use super::device::{DeviceInfo, Shape};
use crate::graph::Way;
use crate::order::sort;
use crate::tensor::DType;

/// Work-items of a group of products whose work-items share no sum, and of convolutions on processors.
const GROUP: usize = 32;
const CONV_GROUP: usize = 4;

/// Work-items of groups that share nothing on GPUs, whose units compute with so many in step, or twice half of them.
pub(super) const MANY: usize = 64;

/// Work-items of a group of products whose work-items share sums.
const SHARED: usize = 256;

/// Most work-items that share a tile of a product of matrices, and steps of the reduction of each, at least.
const MOST_LANES: usize = 16;
const LEAST_STEPS: usize = 16;

/// Most rows of a tile.
pub(super) const MOST_ROWS: usize = 32;

/// Most elements of a tile that is tried: more do not stay in registers anywhere.
const MOST_TILE: usize = 512;

/// Work-items of a group that computes many rows of products with weights by rows, on GPUs, as many of them beside
/// each other, and the fewest rows for which that pays.
const TILED: usize = 128;
const ACROSS: usize = 16;
const MANY_ROWS: usize = 8;

/// Whether a group brings what its work-items compute with to its memory: see `cl/weights.cl`.
pub(super) fn is_tiled(way: &Way) -> bool {
    way.lanes == 1 && way.items == [TILED, 1]
}

/// Rows and columns that such a group computes.
pub(super) fn tile_of_group(way: &Way) -> [usize; 2] {
    [way.tile[0] * (TILED / ACROSS), way.tile[1] * ACROSS]
}

/// A kernel of given sizes that a tuner can measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Workload(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A product of matrices with contiguous rows; `packed`: A lies in panels.
    Gemm { batch: usize, m: usize, n: usize, k: usize, packed: bool },
    /// Products with weights by rows: m is rounded up to a power of two, as prompts have any length.
    Rows(Rows),
    /// A convolution that is computed directly.
    Conv(Conv),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    pub(super) dtype: DType,
    pub(super) batch: usize,
    pub(super) m: usize,
    /// Columns of up to three matrices; 0 for one that there is not.
    pub(super) n: [usize; 3],
    pub(super) k: usize,
    pub(super) norm: bool,
    pub(super) round: bool,
    pub(super) gated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Conv {
    pub(super) n: usize,
    pub(super) groups: usize,
    /// Channels of a group.
    pub(super) c: usize,
    pub(super) k: usize,
    pub(super) input: [usize; 2],
    pub(super) output: [usize; 2],
    pub(super) window: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    /// Pads at the top and at the left.
    pub(super) pads: [usize; 2],
}

/// The longest vector of at most `most` elements that a row of `len` fills.
pub(super) fn vector(most: usize, len: usize) -> usize {
    let mut vec = most;
    while vec > 1 && vec > len {
        vec /= 2;
    }
    vec
}

impl Rows {
    fn prepares(&self) -> bool {
        self.norm || self.round
    }

    /// How many rows are computed on a GPU: by tiles as large as leave all its units something to do.
    fn tiled(&self, info: &DeviceInfo) -> Way {
        let way = |rows| Way { vec: 4, tile: [rows, 4], items: [TILED, 1], ..Way::default() };
        let groups = |rows| {
            let [rows, columns] = tile_of_group(&way(rows));
            let across: usize = self.n.iter().map(|n| n.div_ceil(columns)).sum();
            self.batch.saturating_mul(self.m.div_ceil(rows)).saturating_mul(across)
        };
        let busy = |rows: &usize| {
            groups(*rows) as u64 >= info.units && self.m.next_power_of_two() >= 8 * rows
        };
        way([8, 4].into_iter().find(busy).unwrap_or(2))
    }

    /// Whether kernels compute it by tiles of groups.
    fn may_be_tiled(&self, info: &DeviceInfo) -> bool {
        let way = Way { tile: [8, 4], items: [TILED, 1], ..Way::default() };
        let [rows, columns] = tile_of_group(&way);
        let elements = 32 * (rows + 1 + (1 + usize::from(self.gated)) * (columns + 1)) + TILED;
        let room = (elements * size_of::<f32>()) as u64 <= info.local_memory;
        let fits = self.m >= MANY_ROWS && self.k.is_multiple_of(32) && !self.prepares();
        fits && room && info.work_group >= TILED as u64
    }

    /// Bytes of a work-group's memory.
    pub(super) fn local_bytes(&self, way: &Way) -> Option<usize> {
        let kept = if self.prepares() { way.tile[0].checked_mul(self.k)? } else { 0 };
        (way.lanes * way.items[0]).checked_add(kept)?.checked_mul(size_of::<f32>())
    }
}

impl Workload {
    /// The way that is taken without a table.
    /// On a GPU, few tiles of a product of matrices are shared by work-items, so that there are enough of them.
    pub(super) fn usual(&self, shape: &Shape, info: &DeviceInfo) -> Way {
        let gpu = shape.lanes > 1;
        match self.0 {
            Kind::Gemm { batch, m, n, k, .. } => {
                let vec = vector(shape.vec, n);
                let [w_ob, c_v] =
                    [shape.w_ob.min(m.next_power_of_two()), shape.c_v.min(n / vec).max(1)];
                let way = Way { vec, tile: [w_ob, c_v], unroll: shape.unroll, ..Way::default() };
                if !gpu {
                    return way;
                }
                // Few tiles are made lower, and then shared.
                let (enough, across) = (info.enough_items(), n.div_ceil(c_v * vec));
                let tiles = |rows| batch.saturating_mul(m.div_ceil(rows)).saturating_mul(across);
                let rows = if tiles(w_ob) < enough { w_ob.min(2) } else { w_ob };
                let wanted = (enough / tiles(rows).max(1)).min(k / LEAST_STEPS);
                let lanes = 1 << wanted.clamp(1, MOST_LANES).ilog2();
                let group = match lanes {
                    1 => info.group(GROUP),
                    _ => (info.group(SHARED) / lanes).max(1),
                };
                Way { tile: [rows, c_v], lanes, group, ..way }
            }
            Kind::Rows(rows) if gpu && rows.may_be_tiled(info) => rows.tiled(info),
            Kind::Rows(rows) => {
                let [w_ob, c_ob] = shape.rows;
                let w_ob = w_ob.min(rows.m.next_power_of_two());
                let c_ob = if w_ob == 1 { shape.columns } else { c_ob };
                // Registers hold the tiles of both matrices.
                let c_ob = if rows.gated && !(gpu && w_ob == 1) { (c_ob / 2).max(1) } else { c_ob };
                let most = rows.n[0].next_power_of_two();
                // On a GPU that has far more tiles than it computes at a time, a group prepares its row for several.
                let items = rows.n.iter().sum::<usize>() / c_ob * shape.lanes;
                let many = gpu && w_ob == 1 && items / 8 >= info.enough_items();
                let c_ob = if many { 2 * c_ob } else { c_ob };
                let items = match rows.prepares() {
                    true if many => [1, 4],
                    true => shape.items,
                    false => [1; 2],
                };
                Way {
                    vec: 4,
                    tile: [w_ob, c_ob.min(most)],
                    lanes: shape.lanes,
                    items,
                    ..Way::default()
                }
            }
            Kind::Conv(conv) => {
                let vec = vector(shape.vec, conv.output[1].next_power_of_two());
                let w_ob = shape.w_ob.min(conv.k.next_power_of_two());
                let w_ob = if conv.c == 1 { w_ob.min(conv.k) } else { w_ob };
                let group = if gpu { info.group(MANY) } else { CONV_GROUP };
                Way { vec, tile: [w_ob, 1], group, ..Way::default() }
            }
        }
    }

    /// Whether the kernel can be shaped so on a device.
    pub(super) fn allows(&self, way: &Way, info: &DeviceInfo) -> bool {
        let most = usize::try_from(info.work_group).unwrap_or(usize::MAX);
        let vector = way.vec.is_power_of_two() && way.vec <= 16;
        let group = way.group.is_power_of_two() && way.group <= most;
        let alone = way.lanes == 1 && way.items == [1; 2];
        let [rows, columns] = way.tile;
        match self.0 {
            Kind::Gemm { n, .. } => {
                let inside = vector && way.vec * columns <= n && rows <= MOST_ROWS && columns <= 16;
                let lanes =
                    way.lanes.is_power_of_two() && way.group.saturating_mul(way.lanes) <= most;
                let sums = [way.group, way.lanes, rows, columns, way.vec, size_of::<f32>()];
                let bytes = sums.into_iter().fold(1, usize::saturating_mul);
                let shared = way.lanes == 1 || bytes as u64 <= info.local_memory;
                inside && way.unroll <= 16 && group && way.items == [1; 2] && lanes && shared
            }
            Kind::Rows(sizes) => {
                let room = usize::try_from(info.local_memory).unwrap_or(usize::MAX);
                let fits = sizes.local_bytes(way).is_some_and(|bytes| bytes <= room);
                let inside = rows <= 16 && columns <= 32 && way.items[1] <= 256;
                let shared = way.lanes.is_power_of_two() && way.lanes * way.items[0] <= most;
                let tiled = sizes.may_be_tiled(info) && rows <= 8 && columns == 4;
                let fits = fits && (!is_tiled(way) || tiled);
                inside && fits && shared && [way.vec, way.unroll, way.group] == [4, 1, 1]
            }
            Kind::Conv(_) => {
                let one = columns == 1 && way.unroll == 1;
                vector && rows <= MOST_ROWS && one && group && alone
            }
        }
    }

    /// Ways that differ in their tiles from the usual one, which is the first.
    pub(super) fn tiles(&self, shape: &Shape, info: &DeviceInfo) -> Vec<Way> {
        let usual = self.usual(shape, info);
        let mut all = Vec::new();
        match self.0 {
            Kind::Gemm { m, .. } => {
                let rows =
                    [1, 2, 4, 6, 8, 12, 16].into_iter().filter(|&r| r <= m.next_power_of_two());
                for tile in rows.flat_map(|r| [1, 2, 3, 4].map(|c| [r, c])) {
                    all.extend([4, 8, 16].map(|vec| Way { vec, tile, ..usual }));
                }
            }
            Kind::Rows(rows) => {
                let lanes: &[usize] =
                    if shape.lanes == 1 { &[1] } else { &[4, 8, 16, 32, 64, 128] };
                if is_tiled(&usual) {
                    all.extend([2, 4, 8].map(|rows| Way { tile: [rows, 4], ..usual }));
                }
                let m = [1, 2, 4, 8].into_iter().filter(|&r| r <= rows.m.next_power_of_two());
                for tile in m.flat_map(|r| [1, 2, 4, 8, 16].map(|c| [r, c])) {
                    let items = if is_tiled(&usual) { [1; 2] } else { usual.items };
                    all.extend(lanes.iter().map(|&lanes| Way { lanes, tile, items, ..usual }));
                }
            }
            Kind::Conv(conv) => {
                let rows = [1, 2, 4, 6, 8, 12, 16].into_iter();
                for r in rows.filter(|&r| r <= conv.k.next_power_of_two()) {
                    all.extend([4, 8, 16].map(|vec| Way { vec, tile: [r, 1], ..usual }));
                }
            }
        }
        let elements = |w: &Way| match self.0 {
            // Sums are kept in vectors of 16.
            Kind::Rows(rows) => 16 * w.tile[0] * w.tile[1] * (1 + usize::from(rows.gated)),
            _ => w.vec * w.tile[0] * w.tile[1],
        };
        // Those nearest to what the rules say come first, as there may be no time for all.
        let far = |w: &Way| {
            let times = |a: usize, b: usize| (a as f64 / b as f64).log2().abs();
            times(w.tile[0], usual.tile[0])
                + times(w.tile[1], usual.tile[1])
                + times(w.vec, usual.vec)
                + times(w.lanes, usual.lanes)
        };
        all.retain(|w| *w != usual && elements(w) <= MOST_TILE && self.allows(w, info));
        sort(&mut all, |a, b| far(a).total_cmp(&far(b)));
        all.insert(0, usual);
        all
    }

    /// Ways with the tile of `way` that differ otherwise.
    pub(super) fn variants(&self, way: &Way, info: &DeviceInfo) -> Vec<Way> {
        let groups = || [1, 4, 8, 16, 32, 64, 128].map(|group| Way { group, ..*way });
        let mut all = Vec::new();
        match self.0 {
            Kind::Gemm { .. } => {
                all.extend(groups());
                all.extend([1, 2, 4, 8].map(|unroll| Way { unroll, ..*way }));
                if info.kind != "cpu" {
                    all.extend([1, 2, 4, 8, 16].map(|lanes| Way { lanes, ..*way }));
                }
            }
            Kind::Rows(_) if is_tiled(way) => {}
            Kind::Rows(_) if way.lanes == 1 => {
                all.extend([1, 4, 16, 64].map(|turns| Way { items: [1, turns], ..*way }));
            }
            Kind::Rows(_) => {
                let items = [[1, 1], [2, 1], [4, 1], [8, 1], [1, 4], [4, 4]];
                all.extend(items.map(|items| Way { items, ..*way }));
            }
            Kind::Conv(_) => all.extend(groups()),
        }
        all.retain(|w| w != way && self.allows(w, info));
        all
    }
}

/// Extents with an `x` between them.
struct By<'a>(&'a [usize]);

impl fmt::Display for By<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, extent) in self.0.iter().enumerate() {
            write!(f, "{}{extent}", if i > 0 { "x" } else { "" })?;
        }
        Ok(())
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Kind::Gemm { batch, m, n, k, packed } => {
                let packed = if packed { " packed" } else { "" };
                write!(f, "gemm {}{packed}", By(&[batch, m, n, k]))
            }
            Kind::Rows(Rows { dtype, batch, m, n, k, norm, round, gated }) => {
                write!(f, "rows {dtype} {}", By(&[batch, m, n[0]]))?;
                for more in n[1..].iter().filter(|&&n| n > 0) {
                    write!(f, "+{more}")?;
                }
                write!(f, "x{k}")?;
                for (has, name) in [(norm, " norm"), (round, " round"), (gated, " gated")] {
                    f.write_str(if has { name } else { "" })?;
                }
                Ok(())
            }
            Kind::Conv(c) => write!(
                f,
                "direct {} to {} window {} stride {} dilation {} pad {} groups {}",
                By(&[c.n, c.c, c.input[0], c.input[1]]),
                By(&[c.k, c.output[0], c.output[1]]),
                By(&c.window),
                By(&c.stride),
                By(&c.dilation),
                By(&c.pads),
                c.groups
            ),
        }
    }
}

/// A text that is no [`Workload`] of an OpenCL device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseWorkloadError;

impl fmt::Display for ParseWorkloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "expected a kernel of an OpenCL device: `gemm BATCHxMxNxK [packed]`, `rows TYPE \
             BATCHxMxN[+N]xK [norm] [round] [gated]`, or `direct NxCxHxW to KxHxW window HxW stride HxW \
             dilation HxW pad TxL groups G`",
        )
    }
}

impl core::error::Error for ParseWorkloadError {}

/// Numbers that kernels count in 32 bits, `least` or more.
fn extents<const N: usize>(text: &str, least: usize) -> Option<[usize; N]> {
    let one = |t: &str| t.parse().ok().filter(|n| (least..=i32::MAX as usize).contains(n));
    let all: Option<Vec<usize>> = text.split('x').map(one).collect();
    all?.try_into().ok()
}

impl Rows {
    fn parse(words: &[&str]) -> Option<Self> {
        let (&[name, sizes], flags) = words.split_first_chunk::<2>()?;
        let dtype = super::ops::matmul::WEIGHT_FORMATS
            .into_iter()
            .find(|d| d.name().eq_ignore_ascii_case(name))?;
        let (front, k) = sizes.rsplit_once('x')?;
        let (front, columns) = front.rsplit_once('x')?;
        let [batch, m] = extents(front, 1)?;
        let [k] = extents(k, 1)?;
        let mut n = [0; 3];
        for (i, text) in columns.split('+').enumerate() {
            [*n.get_mut(i)?] = extents(text, 1)?;
        }
        let mut rows = Self { dtype, batch, m, n, k, norm: false, round: false, gated: false };
        for flag in flags {
            let to = match *flag {
                "norm" => &mut rows.norm,
                "round" => &mut rows.round,
                "gated" => &mut rows.gated,
                _ => return None,
            };
            *to = true;
        }
        // What kernels have: two matrices only with a gate, rounding in groups of 32.
        let gate = !rows.gated || n[1..] == [0; 2];
        let alone = batch == 1 || n[1..] == [0; 2] && !rows.gated && !rows.prepares();
        let whole = k.is_multiple_of(dtype.block_elems()) && (!rows.round || k.is_multiple_of(32));
        (gate && alone && whole && m.is_power_of_two()).then_some(rows)
    }
}

impl Conv {
    fn parse(words: &[&str]) -> Option<Self> {
        let &[
            input,
            "to",
            output,
            "window",
            window,
            "stride",
            stride,
            "dilation",
            dilation,
            "pad",
            pads,
            "groups",
            groups,
        ] = words
        else {
            return None;
        };
        let [n, c, h, w] = extents(input, 1)?;
        let [k, o_h, o_w] = extents(output, 1)?;
        let [groups] = extents(groups, 1)?;
        Some(Self {
            n,
            groups,
            c,
            k,
            input: [h, w],
            output: [o_h, o_w],
            window: extents(window, 1)?,
            stride: extents(stride, 1)?,
            dilation: extents(dilation, 1)?,
            pads: extents(pads, 0)?,
        })
    }
}

impl FromStr for Workload {
    type Err = ParseWorkloadError;

    fn from_str(text: &str) -> Result<Self, ParseWorkloadError> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let parse = || {
            Some(Self(match &words[..] {
                ["gemm", sizes, rest @ ..] => {
                    let [batch, m, n, k] = extents(sizes, 1)?;
                    let packed = match rest {
                        [] => false,
                        ["packed"] => true,
                        _ => return None,
                    };
                    Kind::Gemm { batch, m, n, k, packed }
                }
                ["rows", rest @ ..] => Kind::Rows(Rows::parse(rest)?),
                ["direct", rest @ ..] => Kind::Conv(Conv::parse(rest)?),
                _ => return None,
            }))
        };
        parse().ok_or(ParseWorkloadError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for text in [
            "gemm 1x128x768x64",
            "gemm 4x7x5x3 packed",
            "rows f32 3x4x33x7",
            "rows q4_K 1x1x512+128+128x256 norm round",
            "rows q8_0 1x1x512x64 norm round gated",
            "direct 1x64x56x56 to 64x56x56 window 3x3 stride 1x1 dilation 1x1 pad 1x1 groups 1",
            "direct 2x1x9x8 to 1x5x4 window 3x2 stride 2x2 dilation 1x1 pad 0x0 groups 16",
        ] {
            assert_eq!(text.parse::<Workload>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "gemm",
            "gemm 1x2x3",
            "gemm 1x2x3x0",
            "gemm 1x2x3x4 loose",
            "gemm 1x2x3x99999999999",
            "rows q2_k 1x1x512x256",
            "rows q4_k 1x1x512x100",
            "rows q8_0 1x3x512x64",
            "rows q8_0 1x1x1+2+3+4x64",
            "rows q8_0 2x1x1x64 round",
            "rows f32 1x1x4x33 round",
            "direct 1x64x56x56 to 64x56x56 window 3x3",
        ] {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
    }
}
