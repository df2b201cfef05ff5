//! Convolution from its definition, for [`ConvPlan`](super::conv::ConvPlan): any filter, stride,
//! dilation and group count, transposed or not.
//!
//! The reduction over input channels and taps stays in registers up to a chunk of channels, above
//! that the tile is stored and loaded once per chunk, so that a chunk of weights stays in the L2
//! cache while all tiles use it. See `conv_tile` for the microkernel and its treatment of borders,
//! `conv_geometry` for how a plane is divided into tiles.

use super::conv::{ConvParams, InputLayout, Operands};
use super::conv_geometry::{KTile, Phase, TileBound, k_tiles, phases, seen, widths};
use super::conv_pack;
use super::conv_tile::{ConvKernel, TileArgs, TileShape};
use super::unary::UnaryKernel;
use crate::choice::sort_few;
use crate::{Algorithm, C_BLOCK, Choice, Isa};
use alloc::vec::Vec;
use core::ops::Range;

/// Input channels reduced before the tile goes through memory, if nothing else is chosen.
pub(crate) const CHUNK: usize = 256;

/// A direct convolution ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Direct {
    params: ConvParams,
    isa: Isa,
    kernels: &'static [ConvKernel],
    k_tiles: Vec<KTile>,
    phases: Vec<Phase>,
    chunk: usize,
    /// Units per (image, K tile, phase).
    parts: usize,
    /// Whether neighbouring units are K tiles of the same pixels, else pixels of the same K tile.
    by_pixels: bool,
    weights_len: usize,
    /// Elements of an output plane.
    y_plane: usize,
}

impl Direct {
    /// The plan with tiles within a bound. `chunk` is a multiple of 16.
    pub(crate) fn new(
        isa: Isa,
        p: &ConvParams,
        kernels: &'static [ConvKernel],
        bound: TileBound,
        chunk: usize,
    ) -> Self {
        let mut k_tiles = k_tiles(p, kernels, bound.c_ob);
        let phases = phases(p, kernels, &mut k_tiles, bound);
        let weights_len = k_tiles.last().map_or(0, |t| t.weights + t.weights_len(&phases));
        let most_tiles = phases.iter().map(Phase::most_tiles).max().unwrap_or(1);
        let wanted = if p.c_in > chunk { 16 } else { 32 };
        let parts = usize::div_ceil(wanted, p.n * k_tiles.len() * phases.len()).min(most_tiles);
        let (params, y_plane) = (p.clone(), p.h_out * p.w_out * C_BLOCK);
        // A thread gets a range of units: a part of the image, which it most likely has in its cache
        // from the step before, or a part of the weights, where they are the larger operand.
        let by_pixels = weights_len < p.c_in * p.h_in * p.w_in;
        Self {
            params,
            isa,
            kernels,
            k_tiles,
            phases,
            chunk,
            parts,
            by_pixels,
            weights_len,
            y_plane,
        }
    }

    /// The plan of a choice. `None` if there is none.
    pub(crate) fn chosen(
        isa: Isa,
        p: &ConvParams,
        choice: &Choice,
        kernels: &'static [ConvKernel],
    ) -> Option<Self> {
        let [rows, w_ob, c_ob] = choice.tile;
        let chunked = choice.chunk.is_multiple_of(C_BLOCK) && choice.chunk > 0;
        if !chunked || (p.input == InputLayout::Interleaved && choice.chunk != CHUNK) {
            return None;
        }
        Some(Self::new(isa, p, kernels, TileBound { rows, w_ob, c_ob }, choice.chunk))
    }

    pub(crate) fn choice(&self) -> Choice {
        let first = &self.k_tiles[0];
        let used = || {
            let tilings = self.phases.iter().map(|phase| &phase.tilings[first.tiling]);
            tilings.flat_map(|tiling| tiling.kernels()).map(|i| &self.kernels[i].info)
        };
        let rows = used().map(|k| k.rows()).max().unwrap_or(1);
        let w_ob = used().map(|k| k.w_ob()).max().unwrap_or(1);
        let tile = [rows, w_ob, first.width];
        Choice { algorithm: Algorithm::Direct, tile, chunk: self.chunk, block: 0 }
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn weights_len(&self) -> usize {
        self.weights_len
    }

    pub(crate) fn units(&self) -> usize {
        self.params.n * self.k_tiles.len() * self.phases.len() * self.parts
    }

    pub(crate) fn kernel_name(&self) -> &'static str {
        let tiling = &self.phases[0].tilings[self.k_tiles[0].tiling];
        self.kernels[tiling.main_kernel()].info.name
    }

    pub(crate) fn pack_weights(&self, src: &[f32], dst: &mut [f32]) {
        conv_pack::pack_weights(self.isa, &self.params, &self.k_tiles, &self.phases, src, dst);
    }

    /// Runs some units.
    ///
    /// # Safety
    ///
    /// As [`ConvPlan::run`](super::conv::ConvPlan::run).
    pub(crate) unsafe fn run(
        &self,
        all: &Operands,
        post: Option<&UnaryKernel>,
        units: Range<usize>,
    ) {
        let kinds = self.k_tiles.len() * self.phases.len();
        let per_image = kinds * self.parts;
        for image in units.start / per_image..units.end.div_ceil(per_image) {
            let of_image = |unit: usize| unit.saturating_sub(image * per_image).min(per_image);
            let units = of_image(units.start)..of_image(units.end);
            for kind in 0..kinds {
                let (k_tile, phase) = (kind / self.phases.len(), kind % self.phases.len());
                let parts = self.parts_of(kind, kinds, &units);
                let k_tile = &self.k_tiles[k_tile];
                let operands = self.at_k_tile(all, image, k_tile);
                let count = self.phases[phase].tilings[k_tile.tiling].tiles;
                let tiles = parts.start * count / self.parts..parts.end * count / self.parts;
                // SAFETY: the operands are moved to this image and K tile, whose elements lie inside
                // those that the caller vouches for.
                unsafe { self.run_tiles(&operands, post, k_tile, phase, tiles) };
            }
        }
    }

    /// Which parts of a K tile and phase are among some units of an image.
    fn parts_of(&self, kind: usize, kinds: usize, units: &Range<usize>) -> Range<usize> {
        let part = |unit: usize| match self.by_pixels {
            true => (unit + kinds - 1).saturating_sub(kind) / kinds,
            false => unit.saturating_sub(kind * self.parts).min(self.parts),
        };
        part(units.start)..part(units.end)
    }

    /// The operands from the start of an image and a K tile on.
    fn at_k_tile(&self, all: &Operands, image: usize, k_tile: &KTile) -> Operands {
        let out = image * all.y_image + k_tile.block * self.y_plane;
        let residual = all.residual;
        Operands {
            x: all.x.wrapping_add(image * all.x_image + k_tile.x_offset),
            weights: all.weights.wrapping_add(k_tile.weights),
            bias: all.bias.wrapping_add(k_tile.block * C_BLOCK),
            residual: if residual.is_null() { residual } else { residual.wrapping_add(out) },
            y: all.y.wrapping_add(out),
            ..*all
        }
    }

    /// Whether it can compute rows of an output by themselves: each tile is in one row.
    pub(crate) fn has_rows(&self) -> bool {
        let p = &self.params;
        let flat = p.kernel == [1, 1] && p.stride == [1, 1] && p.pads == [0; 4];
        let mut used = self.k_tiles.iter().flat_map(|t| self.phases[0].tilings[t.tiling].kernels());
        !flat && !p.transposed && used.all(|k| self.kernels[k].info.rows() == 1)
    }

    /// From now on the output has so many rows per plane, those that are computed at a time.
    pub(crate) fn set_rows(&mut self, rows: usize) {
        self.y_plane = rows * self.params.w_out * C_BLOCK;
        self.phases.iter_mut().for_each(|phase| phase.shape.o_plane = self.y_plane);
    }

    /// Computes some rows of one image, all channels.
    ///
    /// # Safety
    ///
    /// As [`ConvPlan::run_rows`](super::conv::ConvPlan::run_rows).
    pub(crate) unsafe fn run_rows(
        &self,
        all: &Operands,
        post: Option<&UnaryKernel>,
        image: usize,
        rows: Range<usize>,
    ) {
        let first = rows.start * self.params.w_out * C_BLOCK;
        let all = Operands { y: all.y.wrapping_sub(first), y_image: 0, ..*all };
        for k_tile in &self.k_tiles {
            let operands = self.at_k_tile(&all, image, k_tile);
            let tiles = self.phases[0].tilings[k_tile.tiling].of_rows(rows.clone());
            // SAFETY: the tiles of these rows write only there, which is where `y` begins; the
            // operands are those of this image and K tile.
            unsafe { self.run_tiles(&operands, post, k_tile, 0, tiles) };
        }
    }

    /// Runs some tiles of one phase, one image, one K tile.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), with the operands already at the image and the K tile.
    unsafe fn run_tiles(
        &self,
        operands: &Operands,
        post: Option<&UnaryKernel>,
        k_tile: &KTile,
        phase: usize,
        tiles: Range<usize>,
    ) {
        let weights = k_tile.phase_weights(&self.phases, phase);
        let phase = &self.phases[phase];
        let tiling = &phase.tilings[k_tile.tiling];
        let shape = &phase.shape;
        let weights_per_channel = phase.taps() * k_tile.width;
        let mut c = 0;
        while c < k_tile.channels {
            let channels = self.chunk.min(k_tile.channels - c);
            tiling.for_each(tiles.clone(), |row, col| {
                let pixel = row.y * shape.o_row + col.x * shape.o_step + phase.o_offset;
                let input =
                    row.y * shape.row_step + col.x * shape.step + c / shape.c_blk * shape.c_step;
                let args = TileArgs {
                    a: operands.x.wrapping_add(input),
                    b: operands.weights.wrapping_add(weights + c * weights_per_channel),
                    bias: operands.bias,
                    residual: if operands.residual.is_null() {
                        operands.residual
                    } else {
                        operands.residual.wrapping_add(pixel)
                    },
                    o: operands.y.wrapping_add(pixel),
                    channels,
                    first: c == 0,
                    last: c + channels == k_tile.channels,
                    rows: &tiling.row_masks[row.masks..],
                    runs: &tiling.runs[col.runs.clone()],
                    taps: &tiling.runs[col.taps.clone()],
                };
                // SAFETY: the masks keep every tap inside the image, the tiling covers each
                // output pixel of the phase once, and the packed operands are those of this K
                // tile; `new` checked the ISA.
                unsafe { (self.kernels[col.kernel].run)(shape, &args) };
                if let Some(post) = post.filter(|_| args.last) {
                    // SAFETY: these are the outputs that the tile just wrote.
                    unsafe { activate(post, &self.kernels[col.kernel], shape, args.o) };
                }
            });
            c += channels;
        }
    }
}

/// Applies an activation to the outputs of a tile, while they are in the L1 cache.
///
/// # Safety
///
/// The outputs of a tile of `kernel` at `o` are writable, and no other thread uses them.
unsafe fn activate(post: &UnaryKernel, kernel: &ConvKernel, shape: &TileShape, o: *mut f32) {
    let info = &kernel.info;
    let dense = shape.o_step == C_BLOCK;
    let (runs, len) = if dense { (1, info.w_ob() * C_BLOCK) } else { (info.w_ob(), C_BLOCK) };
    for row in 0..info.rows() {
        for plane in 0..info.c_ob() / C_BLOCK {
            for run in 0..runs {
                let at = row * shape.o_row + plane * shape.o_plane + run * shape.o_step;
                let o = o.wrapping_add(at);
                // SAFETY: `len` outputs of the tile lie here, side by side.
                unsafe { post.call(o, o, len) };
            }
        }
    }
}

/// The choices for these parameters with their estimated times in twentieths of a cycle, that of
/// the free plan first.
pub(crate) fn candidates(
    isa: Isa,
    p: &ConvParams,
    kernels: &'static [ConvKernel],
    free: &Direct,
) -> Vec<(f64, Choice)> {
    let first = free.choice();
    let mut list = Vec::from([(free.estimate(), first)]);
    let mut push = |plan: &Direct, most: f64| {
        let (time, choice) = (plan.estimate(), plan.choice());
        if time <= most && list.iter().all(|(_, c)| *c != choice) {
            list.push((time, choice));
        }
    };
    let most = free.estimate() * 1.5;
    for c_ob in widths(kernels) {
        let used =
            kernels.iter().map(|k| &k.info).filter(|k| k.c_ob() == c_ob && c_ob <= first.tile[2]);
        for k in used.filter(|k| 2 * k.w_ob() >= first.tile[1]) {
            let bound = TileBound { rows: k.rows(), w_ob: k.w_ob(), c_ob };
            push(&Direct::new(isa, p, kernels, bound, CHUNK), most);
        }
    }
    let channels = free.k_tiles.iter().map(|t| t.channels).max().unwrap_or(1);
    if p.input == InputLayout::Blocked {
        for chunk in [64, 128, 512].into_iter().filter(|&c| c.min(CHUNK) < channels) {
            push(&Direct { chunk, ..free.clone() }, f64::MAX);
        }
    }
    by_time(&mut list[1..]);
    list
}

/// Puts the fastest first.
pub(super) fn by_time(list: &mut [(f64, Choice)]) {
    sort_few(list, |a, b| a.0.total_cmp(&b.0).is_lt());
}

impl Direct {
    /// The time in twentieths of a cycle. Taps on padding take none.
    pub(crate) fn estimate(&self) -> f64 {
        let steps = |tile: &KTile| {
            let of = |phase: &Phase| phase.tilings[tile.tiling].cost as f64 * phase.taps() as f64;
            self.phases.iter().map(of).sum::<f64>() * tile.channels as f64
        };
        let all = self.k_tiles.iter().map(steps).sum::<f64>() * self.params.n as f64;
        all * seen(&self.params)
    }
}
