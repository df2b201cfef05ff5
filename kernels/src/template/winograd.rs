//! Convolution of 3 x 3 filters at stride 1 by Winograd's algorithm, for [`ConvPlan`](super::conv::ConvPlan).
//!
//! Two passes per block of tiles, without a transposition or a copy of the input: all channels of
//! the block are transformed into `v`, `[a * a][channel block][tile][16]`; then, for one K tile at
//! a time, the microkernels of `matmul_tile` compute `a * a` products of matrices (of single tiles, those of
//! `conv_tile`) into `m`, `[a * a][tile]
//! [output channel in K tile]`, which is transformed back and finished.
//! The packed weights are `[K tile][a * a][input channel][output channel in tile]`.
//!
//! Lanes of `v` past the last channel hold what the input has there; no product reads them.

use super::conv::{ConvParams, Operands};
use super::conv_geometry::{KTile, cut_ends, k_tiles};
use super::conv_pack::Squares;
use super::conv_tile::{self, ConvKernel, Run, TileShape};
use super::matmul_tile::{self, MatmulKernel, NextTile, TileArgs};
use super::unary::UnaryKernel;
use super::winograd_choice::{
    IN_BUILD, blocked_plane, fits, is_single, outputs, pieces_of, transform_cycles,
};
use super::winograd_geometry::{Geometry, ZEROS};
use super::winograd_tile::{OutputArgs, WinogradKernels};
use crate::epilogue::TileActivation;
use crate::error::checked_len;
use crate::{Algorithm, C_BLOCK, Choice, Isa, KernelError};
use alloc::{boxed::Box, vec::Vec};
use core::ops::Range;

/// Tiles from which units may be tiles; halves still fill registers.
const SPLIT_TILES: usize = 18;

/// Tiles of one unit of a K tile: register tiles of usual widths fit into it.
const GROUP_TILES: usize = 24;

/// Largest share of the transform of the input in all work that each thread may repeat, so that threads
/// read different weights.
const REPEATED: f64 = 0.08;

/// A Winograd convolution ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Winograd {
    algorithm: Algorithm,
    isa: Isa,
    c_in: usize,
    c_out: usize,
    geometry: Geometry,
    transforms: WinogradKernels,
    kernels: &'static [MatmulKernel],
    k_tiles: Vec<KTile>,
    /// Per width, the kernel of a single tile, and what it asks for: those of products keep partial sums,
    /// and the bits of a result would depend on how tiles are divided.
    singles: Vec<ConvKernel>,
    shape: TileShape,
    /// Per width of the kernels, for each number of tiles up to a block: the last register tile of
    /// the best division.
    pieces: Vec<Vec<usize>>,
    /// Per width, the kernel of each number of pixels.
    by_pixels: Vec<Vec<usize>>,
    /// Most tiles that are transformed together.
    block: usize,
    tiles: usize,
    /// Units of a K tile, or none if units are tiles.
    groups: Option<usize>,
    weights_len: usize,
}

impl Winograd {
    /// The plan of a choice. `None` if the parameters do not allow it.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`].
    pub(crate) fn new(
        isa: Isa,
        p: &ConvParams,
        choice: &Choice,
        kernels: &'static [ConvKernel],
    ) -> Result<Option<Self>, KernelError> {
        let algorithm = choice.algorithm;
        if !fits(p, algorithm) {
            return Ok(None);
        }
        let m = outputs(algorithm);
        let a = m + 2;
        let across = [p.h_out.div_ceil(m), p.w_out.div_ceil(m)];
        let tiles = checked_len("conv", &[p.n, across[0], across[1]])?;
        let block = choice.block;
        if block == 0 || block > tiles {
            return Ok(None);
        }
        let mut k_tiles = k_tiles(p, kernels, choice.tile[2]);
        let mut weights_len = 0;
        for tile in &mut k_tiles {
            tile.weights = weights_len;
            weights_len += checked_len("conv", &[a * a, p.c_in, tile.width])?;
        }
        let planes = k_tiles.iter().map(|t| t.width / C_BLOCK).max().unwrap_or(1);
        let c_blocks = p.c_in.div_ceil(C_BLOCK);
        checked_len("conv", &[a * a, c_blocks + planes + 2, block, C_BLOCK])?;
        checked_len("conv", &[weights_len])?;
        let (h_w, o_h_w) = (p.h_in * p.w_in, p.h_out * p.w_out);
        // An odd number of cache lines between positions spreads them over the sets of a cache.
        let step = |planes: usize| ((planes * block) | 1) * C_BLOCK;
        let geometry = Geometry {
            v_step: step(c_blocks),
            v_plane: block * C_BLOCK,
            m_step: step(planes),
            ..Geometry::new(p, m)
        };
        let widths = super::conv_geometry::widths(kernels);
        let products = matmul_tile::kernels(isa);
        let single = |width: &usize| kernels.iter().find(|k| is_single(k, *width)).copied();
        let Some(singles) = widths.iter().map(single).collect() else { return Ok(None) };
        let index = |width: usize, pixels: usize| {
            let same = |k: &MatmulKernel| k.info.c_ob() == width && k.info.w_ob() == pixels;
            products.iter().position(same).unwrap_or(usize::MAX)
        };
        let most = |width: usize| {
            let of_width = products.iter().filter(|k| k.info.c_ob() == width);
            of_width.map(|k| k.info.w_ob()).max().unwrap_or(1)
        };
        let shape = TileShape {
            step: C_BLOCK,
            row_step: 0,
            c_blk: C_BLOCK,
            c_step: geometry.v_plane,
            dy: Box::new([0]),
            f_w: 1,
            merge: 0,
            o_step: 0,
            o_row: 0,
            o_plane: C_BLOCK,
            activation: TileActivation::None,
        };
        let by_pixels: Vec<Vec<usize>> = widths
            .iter()
            .map(|&width| (0..=most(width)).map(|n| index(width, n)).collect())
            .collect();
        let pieces = widths
            .iter()
            .map(|&width| {
                let bound = if width == k_tiles[0].width { choice.tile[1] } else { usize::MAX };
                cut_ends(block, &pieces_of(kernels, products, width, bound))
                    .into_iter()
                    .map(|e| e.0)
                    .collect()
            })
            .collect();
        let mut plan = Self {
            algorithm,
            isa,
            c_in: p.c_in,
            c_out: p.c_out,
            geometry,
            transforms: super::winograd_tile::kernels(isa)[usize::from(m == 4)],
            kernels: products,
            k_tiles,
            singles,
            shape,
            pieces,
            by_pixels,
            block,
            tiles,
            groups: None,
            weights_len,
        };
        // Threads that share out tiles all read the same weights, those that share out K tiles all
        // transform the same input.
        let bytes =
            weights_len > p.n * (blocked_plane(p.c_in, h_w) + blocked_plane(p.c_out, o_h_w));
        let by_weights = tiles < SPLIT_TILES || bytes && plan.repeated() <= REPEATED;
        if plan.k_tiles.len() > 1 && by_weights {
            plan.groups = Some(tiles.div_ceil(GROUP_TILES));
        }
        Ok(Some(plan))
    }

    pub(crate) fn isa(&self) -> Isa {
        self.isa
    }

    pub(crate) fn weights_len(&self) -> usize {
        self.weights_len
    }

    /// Elements of scratch memory per thread: transformed input, products.
    pub(crate) fn scratch_len(&self) -> usize {
        self.positions() * (self.geometry.v_step + self.geometry.m_step)
    }

    pub(crate) fn units(&self) -> usize {
        self.groups.map_or(self.tiles, |groups| groups * self.k_tiles.len())
    }

    pub(crate) fn kernel_name(&self) -> &'static str {
        self.transforms.info.name
    }

    pub(crate) fn choice(&self) -> Choice {
        let tiling = &self.pieces[self.k_tiles[0].tiling];
        let (mut rest, mut pixels) = (self.block, 0);
        while rest > 0 {
            pixels = pixels.max(tiling[rest]);
            rest -= tiling[rest];
        }
        let tile = [1, pixels, self.k_tiles[0].width];
        Choice { algorithm: self.algorithm, tile, chunk: self.c_in, block: self.block }
    }

    fn positions(&self) -> usize {
        let a = self.geometry.m + 2;
        a * a
    }

    /// The share of the transform of the input in all work: what each range of units repeats, unless units
    /// are tiles.
    fn repeated(&self) -> f64 {
        let g = &self.geometry;
        let k_blocks = self.c_out.div_ceil(C_BLOCK) as f64;
        let [input, output] = transform_cycles(g.m);
        // A cycle has two multiply-adds of 16 lanes.
        let multiply = (self.positions() * self.c_in) as f64 * k_blocks / 2.0;
        let input = g.c_blocks as f64 * input;
        input / (input + k_blocks * output + multiply)
    }

    /// The share of all work that each range of units repeats.
    pub(crate) fn repeated_per_range(&self) -> f64 {
        if self.groups.is_some() { self.repeated() } else { 0.0 }
    }

    /// Packs weights `[c_out, c_in, 3, 3]`.
    pub(crate) fn pack_weights(&self, src: &[f32], dst: &mut [f32]) {
        if !IN_BUILD {
            return;
        }
        let positions = self.positions();
        let mut squares = Squares::new(self.isa);
        let mut out = [0.0f32; 36 * C_BLOCK];
        for tile in &self.k_tiles {
            let dst = &mut dst[tile.weights..];
            for lane in (0..tile.width).step_by(C_BLOCK) {
                let first = tile.block * C_BLOCK + lane;
                let rows = self.c_out.saturating_sub(first).min(C_BLOCK);
                let (src, step) = (&src[first * self.c_in * 9..], self.c_in * 9);
                squares.for_each(src, [self.c_in, 9], step, rows, |c, taps| {
                    let taps = taps.first_chunk().expect("nine taps of 16 output channels");
                    // SAFETY: the plan was made for an available instruction set.
                    unsafe { (self.transforms.weights)(taps, &mut out) };
                    for (position, from) in out.chunks_exact(C_BLOCK).take(positions).enumerate() {
                        let at = (position * self.c_in + c) * tile.width + lane;
                        dst[at..at + C_BLOCK].copy_from_slice(from);
                    }
                });
            }
        }
    }

    /// Runs some units.
    ///
    /// # Safety
    ///
    /// As [`ConvPlan::run`](super::conv::ConvPlan::run).
    pub(crate) unsafe fn run(
        &self,
        operands: &Operands,
        scratch: *mut f32,
        post: Option<&UnaryKernel>,
        units: Range<usize>,
    ) {
        let Some(groups) = self.groups else {
            let all = 0..self.k_tiles.len();
            // SAFETY: the caller's promises.
            return unsafe { self.run_tiles(operands, scratch, post, units, all) };
        };
        // The units of a K tile follow each other. Of a range this takes the largest rectangles.
        let mut unit = units.start;
        while unit < units.end {
            let (k_tile, group) = (unit / groups, unit % groups);
            let left = units.end - unit;
            let (k_tiles, group) = if group == 0 && left >= groups {
                (k_tile..k_tile + left / groups, 0..groups)
            } else {
                (k_tile..k_tile + 1, group..groups.min(group + left))
            };
            unit += k_tiles.len() * group.len();
            let at = |group: usize| group * self.tiles / groups;
            let tiles = at(group.start)..at(group.end);
            // SAFETY: the caller's promises.
            unsafe { self.run_tiles(operands, scratch, post, tiles, k_tiles) }
        }
    }

    pub(crate) fn tile_rows(&self) -> usize {
        self.geometry.m
    }

    /// From now on planes of the output have so many rows, a multiple of those of a tile.
    pub(crate) fn set_rows(&mut self, rows: usize) {
        self.geometry.y_plane = rows * self.geometry.w_out * C_BLOCK;
    }

    /// # Safety
    ///
    /// As [`ConvPlan::run_rows`](super::conv::ConvPlan::run_rows).
    pub(crate) unsafe fn run_rows(
        &self,
        operands: &Operands,
        scratch: *mut f32,
        post: Option<&UnaryKernel>,
        image: usize,
        rows: Range<usize>,
    ) {
        let g = &self.geometry;
        let [down, across] = g.tiles;
        let first = image * g.y_image + rows.start * g.w_out * C_BLOCK;
        let operands = Operands { y: operands.y.wrapping_sub(first), ..*operands };
        let tiles = |row: usize| (image * down + row) * across;
        let tiles = tiles(rows.start / g.m)..tiles(rows.end.div_ceil(g.m));
        // SAFETY: the caller's promises; these tiles write their rows only, where `y` begins.
        unsafe { self.run_tiles(&operands, scratch, post, tiles, 0..self.k_tiles.len()) };
    }

    /// # Safety
    ///
    /// As [`run`](Self::run), for the outputs of these tiles and K tiles.
    unsafe fn run_tiles(
        &self,
        operands: &Operands,
        scratch: *mut f32,
        post: Option<&UnaryKernel>,
        tiles: Range<usize>,
        k_tiles: Range<usize>,
    ) {
        // None was made then, which the compiler does not see by itself.
        if !IN_BUILD {
            return;
        }
        let m = scratch.wrapping_add(self.positions() * self.geometry.v_step);
        let blocks = tiles.len().div_ceil(self.block);
        for i in 0..blocks {
            let (size, larger) = (tiles.len() / blocks, tiles.len() % blocks);
            let start = |i: usize| tiles.start + i * size + i.min(larger);
            let tiles = start(i)..start(i + 1);
            // SAFETY: the tiles exist and are no more than a block; scratch has room for one.
            unsafe { (self.transforms.input)(&self.geometry, operands.x, scratch, tiles.clone()) };
            for k_tile in &self.k_tiles[k_tiles.clone()] {
                // SAFETY: scratch holds the transformed tiles, and room for the products.
                unsafe {
                    self.multiply(
                        operands.weights.wrapping_add(k_tile.weights),
                        scratch,
                        m,
                        k_tile,
                        tiles.len(),
                    )
                };
                let plane = k_tile.block * self.geometry.y_plane;
                let residual = operands.residual;
                let args = OutputArgs {
                    m,
                    bias: operands.bias.wrapping_add(k_tile.block * C_BLOCK),
                    residual: if residual.is_null() {
                        residual
                    } else {
                        residual.wrapping_add(plane)
                    },
                    y: operands.y.wrapping_add(plane),
                    planes: k_tile.width / C_BLOCK,
                };
                // SAFETY: the products of these tiles were just computed; the K tile's planes
                // exist in output, bias and residual, and belong to this unit.
                unsafe { (self.transforms.output)(&self.geometry, &args, tiles.clone()) };
                if let Some(post) = post {
                    // SAFETY: these are the outputs just written.
                    unsafe { self.activate(post, &args, tiles.clone()) };
                }
            }
        }
    }

    /// The products of one K tile with `count` transformed tiles.
    ///
    /// # Safety
    ///
    /// `weights` are those of the K tile, `v` and `m` the parts of the scratch memory, the first
    /// written for all channels of `count` tiles.
    unsafe fn multiply(
        &self,
        weights: *const f32,
        v: *const f32,
        m: *mut f32,
        k_tile: &KTile,
        count: usize,
    ) {
        let (pieces, by_pixels) = (&self.pieces[k_tile.tiling], &self.by_pixels[k_tile.tiling]);
        for position in 0..self.positions() {
            let b = weights.wrapping_add(position * self.c_in * k_tile.width);
            let v = v.wrapping_add(position * self.geometry.v_step);
            let m = m.wrapping_add(position * self.geometry.m_step);
            let mut rest = count;
            while rest > 0 {
                let pixels = pieces[rest];
                rest -= pixels;
                if pixels == 1 {
                    let run = [Run { dx: 0, taps: 1, mask: 1 }];
                    let args = conv_tile::TileArgs {
                        a: v.wrapping_add(rest * C_BLOCK),
                        b,
                        bias: ZEROS.as_ptr(),
                        residual: core::ptr::null(),
                        o: m.wrapping_add(rest * k_tile.width),
                        channels: self.c_in,
                        first: true,
                        last: true,
                        rows: &[1],
                        runs: &run,
                        taps: &run,
                    };
                    // SAFETY: the tile is one of the `count` tiles of `v` and `m`; the channels of `v`
                    // lie in blocks as `shape` says.
                    unsafe { (self.singles[k_tile.tiling].run)(&self.shape, &args) };
                    continue;
                }
                let kernel = &self.kernels[by_pixels[pixels]];
                let mut tiles = 1;
                while rest > 0 && pieces[rest] == pixels {
                    tiles += 1;
                    rest -= pixels;
                }
                let args = TileArgs {
                    tiles,
                    next: NextTile {
                        a: pixels * C_BLOCK,
                        o: pixels * k_tile.width,
                        ..NextTile::default()
                    },
                    a: v.wrapping_add(rest * C_BLOCK),
                    b,
                    bias: ZEROS.as_ptr(),
                    row_bias: false,
                    residual: core::ptr::null(),
                    o: m.wrapping_add(rest * k_tile.width),
                    a_row: C_BLOCK,
                    a_run: C_BLOCK,
                    a_step: self.geometry.v_plane,
                    b_row: k_tile.width,
                    o_row: k_tile.width,
                    o_plane: C_BLOCK,
                    k: self.c_in,
                    tail: kernel.info.c_ob() / kernel.info.c_vec(),
                    first: true,
                    last: true,
                    activation: TileActivation::None,
                    stream: true,
                };
                // SAFETY: the register tiles' rows lie among the `count` tiles of `v` and `m`, the
                // channels of `v` in blocks of 16, one plane apart; the weights of a position have the
                // K tile's width.
                unsafe { (kernel.run)(&args) };
            }
        }
    }

    /// Applies an activation to the outputs of some tiles, while they are in a cache.
    ///
    /// # Safety
    ///
    /// The outputs of these tiles in the planes of `args` are writable, and no other thread uses
    /// them.
    unsafe fn activate(&self, post: &UnaryKernel, args: &OutputArgs, tiles: Range<usize>) {
        let g = &self.geometry;
        for plane in 0..args.planes {
            for at in tiles.clone().map(|tile| g.tile(tile)) {
                let (y, x) = (at.y * g.m, at.x * g.m);
                let len = g.m.min(g.w_out - x) * C_BLOCK;
                for row in y..g.h_out.min(y + g.m) {
                    let at =
                        at.image * g.y_image + plane * g.y_plane + (row * g.w_out + x) * C_BLOCK;
                    let o = args.y.wrapping_add(at);
                    // SAFETY: `len` outputs of the tile lie here, side by side.
                    unsafe { post.call(o, o, len) };
                }
            }
        }
    }
}
