//! Convolution of bytes by Winograd's algorithm, for [`QconvPlan`](super::qconv::QconvPlan): 3 x 3 filters at
//! stride 1 where the instruction set multiplies pairs of `i16`. Exact, see `qwinograd_tile`.
//!
//! A unit takes a block of tiles through everything: it transforms all channels of the block to
//! `[16][tile][channel]`; then, for one panel of output channels at a time, the kernels of `dot_tile`
//! compute 16 products of matrices, `[16][tile][output channel]`, which are transformed back and
//! finished. Packed weights are `[panel][16][word][output channel of the panel]`.

use super::conv_params::{ConvParams, InputLayout};
use super::dot_convert::place;
use super::dot_division::{Division, Panel, Tiles};
use super::dot_tile::{DotArgs, DotRow, Finish};
use super::qconv_params::{OP, QconvParams, Weights};
use super::qwinograd_tile::{EDGE, OUTPUTS, POSITIONS, Transforms, transforms, weights};
use super::winograd_geometry::{Geometry, ZEROS};
use crate::error::checked_len;
use crate::{C_BLOCK, Dtype, Isa, KernelError};
use core::ops::Range;

/// Whether this build has the algorithm.
const IN_BUILD: bool = cfg!(any(feature = "alloc", test)) && !cfg!(feature = "few-kernels");

/// Words of transformed input of a block: half of a small L2 cache. More where tiles are few.
const BLOCK_WORDS: usize = 64 << 10;

/// Tiles of a block that fill the registers of any kernel.
const LEAST_TILES: usize = 12;

/// Tiles of a block that are worth reading the weights for, where smaller blocks make more units.
const ENOUGH_TILES: usize = 64;

/// Units that keep threads busy to the end. Units of one block repeat its transform where different threads
/// take them, so blocks are cut before panels are.
const UNITS: usize = 8;

/// Operands of [`Qwinograd::run`].
pub(super) struct Operands {
    pub(super) x: *const u8,
    pub(super) weights: *const i32,
    /// Bias, scale, shift, each of all columns.
    pub(super) columns: *const i32,
    pub(super) y: *mut u8,
    /// [`Qwinograd::local_len`] words of the thread.
    pub(super) local: *mut i32,
}

/// A convolution of bytes by Winograd's algorithm.
#[derive(Clone, Debug)]
pub(super) struct Qwinograd {
    geometry: Geometry,
    transforms: &'static Transforms,
    row: &'static DotRow,
    /// The kernel of one pixel and one block of channels, which finishes sums.
    one: usize,
    division: Division,
    /// Words of a reduction, those of all channels of a pixel.
    words: usize,
    c_in: usize,
    /// Tiles, and most of a block.
    tiles: usize,
    block: usize,
    /// Units of a block: its panels in so many parts.
    parts: usize,
    /// What turns a byte of the input into an unsigned one, and the zero point of that.
    flip: u8,
    zero: i16,
    finish: Finish,
}

impl Qwinograd {
    /// The plan of a convolution whose parameters were checked; `None` where the algorithm does not apply
    /// or saves no time.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`].
    pub(super) fn new(
        isa: Isa,
        p: &QconvParams,
        row: &'static DotRow,
        finish: Finish,
    ) -> Result<Option<Self>, KernelError> {
        let c = &p.conv;
        let transforms = transforms(isa).filter(|_| IN_BUILD && applies(p) && pays(c));
        let one = row.kernels.iter().position(|k| k.info.w_ob() == 1 && k.info.c_ob() == C_BLOCK);
        let Some((transforms, one)) = transforms.zip(one) else { return Ok(None) };
        let across = [c.h_out.div_ceil(2), c.w_out.div_ceil(2)];
        let tiles = checked_len(OP, &[c.n, across[0], across[1]])?;
        let words = c.c_in.next_multiple_of(C_BLOCK) / row.word.group();
        let most = (BLOCK_WORDS / (POSITIONS * words)).max(LEAST_TILES);
        let most = most.min(tiles.div_ceil(UNITS).max(ENOUGH_TILES)).min(tiles);
        let block = tiles.div_ceil(tiles.div_ceil(most));
        let columns = c.c_out.next_multiple_of(C_BLOCK);
        let division = Division::new(block, None, columns, C_BLOCK, usize::MAX, words, row);
        let width = (0..division.panels()).map(|i| division.panel(i).width).max().unwrap_or(0);
        // An odd number of cache lines between positions spreads them over the sets of a cache.
        let step = |bytes: usize| (bytes.div_ceil(64) | 1) * 64;
        let v_step = step(4 * words * block) / size_of::<i16>();
        let m_step = step(4 * width * block) / size_of::<i32>();
        checked_len(OP, &[POSITIONS, words, division.columns() + width])?;
        checked_len(OP, &[POSITIONS, v_step + m_step])?;
        let geometry = Geometry { v_step, v_plane: C_BLOCK, m_step, ..Geometry::new(c, 2) };
        let blocks = tiles.div_ceil(block);
        let parts = UNITS.div_ceil(blocks).min(division.panels());
        let (flip, shift) = if p.x == Dtype::I8 { (0x80, 128) } else { (0, 0) };
        Ok(Some(Self {
            geometry,
            transforms,
            row,
            one,
            division,
            words,
            c_in: c.c_in,
            tiles,
            block,
            parts,
            flip,
            zero: (p.x_zero_point + shift) as i16,
            finish,
        }))
    }

    pub(super) fn packing(&self) -> (usize, &'static str) {
        (self.division.width(), self.transforms.info.name)
    }

    pub(super) fn kernel_name(&self) -> &'static str {
        self.transforms.info.name
    }

    /// Columns of the panels.
    pub(super) fn columns(&self) -> usize {
        self.division.columns()
    }

    /// Words of the packed weights.
    pub(super) fn weights_len(&self) -> usize {
        POSITIONS * self.words * self.columns()
    }

    /// Words of scratch memory of a thread: transformed input, products.
    pub(super) fn local_len(&self) -> usize {
        self.v_words() + POSITIONS * self.geometry.m_step
    }

    pub(super) fn units(&self) -> usize {
        self.blocks() * self.parts
    }

    fn blocks(&self) -> usize {
        self.tiles.div_ceil(self.block)
    }

    fn v_words(&self) -> usize {
        POSITIONS * self.geometry.v_step / 2
    }

    /// Words of the packed weights before a panel.
    fn panel_words(&self, panel: &Panel) -> usize {
        POSITIONS * self.words * panel.column
    }

    /// Packs checked weights.
    pub(super) fn pack(&self, p: &QconvParams, w: &Weights<'_>, dst: &mut [i32]) {
        // None was made then, which the compiler does not see by itself.
        if !IN_BUILD {
            return;
        }
        let group = self.row.word.group();
        for panel in (0..self.division.panels()).map(|i| self.division.panel(i)) {
            let dst = &mut dst[self.panel_words(&panel)..];
            for word in 0..self.words {
                for lane in (0..panel.width).step_by(C_BLOCK) {
                    let first = panel.column + lane;
                    // By positions at the end, so that what is written at once lies side by side.
                    let mut block = [[0i32; C_BLOCK]; POSITIONS];
                    let channels = word * group..self.c_in.min((word + 1) * group);
                    for n in 0..C_BLOCK.min(p.conv.c_out.saturating_sub(first)) {
                        for (part, c) in channels.clone().enumerate() {
                            let (column, part) = place(self.row, n, part);
                            let at = ((first + n) * self.c_in + c) * 9;
                            let taps = core::array::from_fn(|i| w.get(at + i, first + n));
                            let all = weights(taps);
                            for (block, x) in block.iter_mut().zip(all) {
                                let found = &mut block[column];
                                // As if little-endian: the first element has the lowest address.
                                let x = i32::from(x as i16 as u16) << (16 * part);
                                *found = i32::from_le(i32::to_le(*found) | x);
                            }
                        }
                    }
                    for (position, block) in block.iter().enumerate() {
                        let at = (position * self.words + word) * panel.width + lane;
                        dst[at..at + C_BLOCK].copy_from_slice(block);
                    }
                }
            }
        }
    }

    /// Runs some units.
    ///
    /// # Safety
    ///
    /// As [`QconvPlan::run`](super::qconv::QconvPlan::run).
    pub(super) unsafe fn run(&self, operands: &Operands, units: Range<usize>) {
        if !IN_BUILD {
            return;
        }
        let mut transformed = usize::MAX;
        for unit in units {
            let (block, part) = (unit / self.parts, unit % self.parts);
            let first = block * self.block;
            let tiles = first..(first + self.block).min(self.tiles);
            if transformed != block {
                // SAFETY: the caller's promises; the tiles exist and are no more than a block.
                unsafe { self.transform(operands, tiles.clone()) };
                transformed = block;
            }
            let panels = self.division.panels();
            for i in part * panels / self.parts..(part + 1) * panels / self.parts {
                let panel = self.division.panel(i);
                // SAFETY: the caller's promises; the tiles of the block were just transformed.
                unsafe {
                    self.multiply(operands, &panel, self.division.tiles(i));
                    self.finish(operands, &panel, tiles.clone());
                }
            }
        }
    }

    /// Transforms all channels of some tiles.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run); `tiles` are at most a block.
    unsafe fn transform(&self, operands: &Operands, tiles: Range<usize>) {
        let g = &self.geometry;
        let row = g.w_in * C_BLOCK;
        let outside = (self.zero as u8) ^ self.flip;
        let mut at = g.tile(tiles.start);
        for n in 0..tiles.len() {
            let from = g.window(&at, EDGE);
            for block in 0..g.c_blocks {
                let plane = operands.x.wrapping_add(at.image * g.x_image + block * g.x_plane);
                let x = plane.wrapping_offset(from.offset);
                let v = operands.local.cast::<i16>();
                let v = v.wrapping_add(n * 2 * self.words + block * C_BLOCK);
                let mut copy: [u8; EDGE * EDGE * C_BLOCK];
                let (x, row) = if from.whole {
                    (x, row)
                } else {
                    copy = [outside; EDGE * EDGE * C_BLOCK];
                    for (i, to) in copy.chunks_exact_mut(C_BLOCK).enumerate() {
                        let (y, x_at) = (i / EDGE, i % EDGE);
                        if from.rows & (1 << y) != 0 && from.cols & (1 << x_at) != 0 {
                            let x = x.wrapping_add(y * row + x_at * C_BLOCK);
                            // SAFETY: this pixel lies in the image.
                            unsafe { x.copy_to_nonoverlapping(to.as_mut_ptr(), C_BLOCK) };
                        }
                    }
                    (copy.as_ptr(), EDGE * C_BLOCK)
                };
                // SAFETY: all inputs of the tile lie in the image, or in the copy; the tile has its
                // place in the scratch memory, and `new` checked the ISA.
                unsafe { (self.transforms.input)(x, row, self.flip, self.zero, v, g.v_step) };
            }
            g.advance(&mut at);
        }
    }

    /// The products of a panel with a whole block of tiles; what is not a tile has any sums.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run).
    unsafe fn multiply(&self, operands: &Operands, panel: &Panel, tiles: &Tiles) {
        let weights = operands.weights.wrapping_add(self.panel_words(panel)).cast::<f32>();
        let local = operands.local.cast::<f32>();
        debug_assert!(panel.width <= ZEROS.len());
        for position in 0..POSITIONS {
            let v = local.wrapping_add(position * self.geometry.v_step / 2);
            let m = local.wrapping_add(self.v_words() + position * self.geometry.m_step);
            for tile in 0..tiles.len() {
                let (first, kernel) = tiles.get(tile);
                let args = DotArgs {
                    a: v.wrapping_add(first * self.words),
                    step: self.words,
                    segments: &[0],
                    words: self.words,
                    b: weights.wrapping_add(position * self.words * panel.width),
                    spare: core::ptr::null(),
                    bias: ZEROS.as_ptr(),
                    scale: ZEROS.as_ptr(),
                    shift: ZEROS.as_ptr(),
                    offset: core::ptr::null(),
                    row_sums: core::ptr::null(),
                    o: m.wrapping_add(first * panel.width).cast(),
                    o_step: panel.width,
                    o_plane: C_BLOCK,
                    tail: self.row.lanes,
                    finish: Finish::Sums,
                };
                // SAFETY: the block's tiles have their words in the scratch memory, and places for
                // their products; the packed weights are those of this panel and position; `new`
                // checked the ISA.
                unsafe { (self.row.kernels[kernel].run)(&args) };
            }
        }
    }

    /// Transforms the products of a panel back, and finishes the outputs of some tiles.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run); the products are those of these tiles.
    unsafe fn finish(&self, operands: &Operands, panel: &Panel, tiles: Range<usize>) {
        let (g, columns) = (&self.geometry, self.columns());
        for lane in (0..panel.width).step_by(C_BLOCK) {
            let column = panel.column + lane;
            if column / C_BLOCK * g.y_plane >= g.y_image {
                break;
            }
            let epilogue = operands.columns.wrapping_add(column);
            // SAFETY: the columns of this block.
            let bias = unsafe { &*epilogue.cast::<[i32; C_BLOCK]>() };
            let scale = epilogue.wrapping_add(columns).cast::<f32>();
            let mut at = g.tile(tiles.start);
            for n in 0..tiles.len() {
                let m = operands.local.wrapping_add(self.v_words() + n * panel.width + lane);
                let mut sums = [[0; C_BLOCK]; OUTPUTS];
                // SAFETY: the products of this tile; `new` checked the ISA.
                unsafe { (self.transforms.output)(m, self.geometry.m_step, bias, &mut sums) };
                for (i, sums) in sums.iter().enumerate() {
                    let (y, x) = (at.y * 2 + i / 2, at.x * 2 + i % 2);
                    if y >= g.h_out || x >= g.w_out {
                        continue;
                    }
                    let out = at.image * g.y_image + column / C_BLOCK * g.y_plane;
                    let out = out + (y * g.w_out + x) * C_BLOCK;
                    let args = DotArgs {
                        a: scale,
                        step: 0,
                        segments: &[],
                        words: 0,
                        b: scale,
                        spare: core::ptr::null(),
                        bias: sums.as_ptr().cast(),
                        scale,
                        shift: scale.wrapping_add(columns),
                        offset: core::ptr::null(),
                        row_sums: core::ptr::null(),
                        o: operands.y.wrapping_add(out * self.finish.size()),
                        o_step: C_BLOCK,
                        o_plane: C_BLOCK,
                        tail: self.row.lanes,
                        finish: self.finish,
                    };
                    // SAFETY: no product is added to these sums; the pixel lies in the output, and
                    // is written by this unit only.
                    unsafe { (self.row.kernels[self.one].run)(&args) };
                }
                g.advance(&mut at);
            }
        }
    }
}

/// Whether the algorithm computes this convolution, and no sum leaves the range of `i32`, four times as large.
fn applies(p: &QconvParams) -> bool {
    let c = &p.conv;
    let plain = c.winograd && c.groups == 1 && !c.transposed && c.input == InputLayout::Blocked;
    let weight = if p.terms > 1 { 255 } else { 128 };
    let room = c.c_in <= i32::MAX as usize / (4 * 9 * 255 * weight);
    plain && room && c.kernel == [3, 3] && c.stride == [1, 1] && c.dilation == [1, 1]
}

/// Whether it takes less time than products with all taps, both counted in instructions on 16 lanes.
fn pays(c: &ConvParams) -> bool {
    let [c_blocks, k_blocks] = [c.c_in, c.c_out].map(|n| n.div_ceil(C_BLOCK) as f64);
    let tiles = (c.n * c.h_out.div_ceil(2) * c.w_out.div_ceil(2)) as f64;
    let pixels = (c.n * c.h_out * c.w_out) as f64;
    // A product of a block with a block: 8 pairs, a multiplication and an addition each.
    let block = c_blocks * k_blocks * 16.0;
    tiles * (16.0 * block + 80.0 * c_blocks + 260.0 * k_blocks) < pixels * 9.0 * block
}
