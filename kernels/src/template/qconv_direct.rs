//! Convolution of bytes with all taps, for [`QconvPlan`](super::qconv::QconvPlan).
//!
//! A pixel's block of 16 channels is four words, so the microkernel is that of the product of bytes,
//! with one segment per channel block and filter row. What lies outside the image is the zero point,
//! not zero: where the filter reaches there, a pass before the convolution copies the image into
//! memory with a margin of zero points. The same pass converts activations that the instruction set
//! cannot multiply as they are; without either it does not take place.
//!
//! An image of few channels, such as a network's input, may be interleaved, `[n, h, w, c]`: the pass
//! widens its pixels to whole groups of 4 channels, instead of the 16 of a block.
//!
//! Where the machine multiplies tiles, whose rows are 64 bytes, the pass brings all channels of a pixel together:
//! blocks of 16 would fill a quarter of a row. It goes row by row of the image then. Groups are left to other kernels.
//!
//! Where weights do not fit a signed byte they are sums of several that do, and the reduction is as many
//! times longer.

use super::conv_params::{ConvParams, InputLayout};
use super::dot_convert::{left_shift, pack_panel, pack_words, spare_words, split};
use super::dot_division::{Division, Panel};
use super::dot_pieces::{self, Piece, Pieces, Shape};
use super::dot_tile::{DotArgs, DotRow, Finish, bytes_row};
use super::qconv_params::{OP, QconvParams, Weights};
use super::qconv_segments::{Segments, push};
use crate::error::checked_len;
use crate::{C_BLOCK, Isa, KernelError};
use core::ops::Range;

/// Channels to which those of an interleaved input are filled up, where kernels take one word at a time:
/// words hold up to as many.
const QUAD: usize = 4;

/// Pixels of an interleaved input that are widened at a time.
const PIXELS: usize = 64;

/// Pixels of `lanes` bytes as ones of `block`, whose last bytes may be anything: their weights are 0.
fn widen(from: &[u8], lanes: usize, to: &mut [u8], block: usize) {
    fn all<const LANES: usize>(from: &[u8], to: &mut [u8], block: usize) {
        for (to, from) in to.chunks_exact_mut(block).zip(from.as_chunks::<LANES>().0) {
            to[..LANES].copy_from_slice(from);
        }
    }
    // Of the usual numbers copies are a few instructions.
    match lanes {
        1 => all::<1>(from, to, block),
        3 => all::<3>(from, to, block),
        4 => all::<4>(from, to, block),
        _ => {
            for (to, from) in to.chunks_exact_mut(block).zip(from.chunks_exact(lanes)) {
                to[..lanes].copy_from_slice(from);
            }
        }
    }
}

/// Output channels that read the same blocks of channels: those of a group, or, where groups are not of
/// whole blocks, those of one block, of whatever groups.
#[derive(Clone, Copy, Debug)]
struct Bands {
    count: usize,
    /// Output channels of each; the last may have fewer.
    outputs: usize,
    /// Blocks of input channels that each reads.
    blocks: usize,
    /// Whether each is one group.
    groups: bool,
}

impl Bands {
    fn new(c: &ConvParams, c_block: usize) -> Self {
        let (c_group, k_group) = (c.c_in / c.groups, c.c_out / c.groups);
        let whole = |n: usize| n.is_multiple_of(C_BLOCK);
        if c.groups == 1 || (whole(c_group) && whole(k_group)) {
            let blocks = c_group.div_ceil(c_block);
            return Self { count: c.groups, outputs: k_group, blocks, groups: true };
        }
        let count = c.c_out.div_ceil(C_BLOCK);
        let reads = |band: usize| {
            let range = Self::reads(c, band);
            range.end.div_ceil(C_BLOCK) - range.start / C_BLOCK
        };
        let blocks = (0..count).map(reads).max().unwrap_or(0);
        Self { count, outputs: C_BLOCK, blocks, groups: false }
    }

    /// The channels of all groups that a block of output channels belongs to.
    fn reads(c: &ConvParams, band: usize) -> Range<usize> {
        let (c_group, k_group) = (c.c_in / c.groups, c.c_out / c.groups);
        let last = c.c_out.min((band + 1) * C_BLOCK) - 1;
        band * C_BLOCK / k_group * c_group..(last / k_group + 1) * c_group
    }

    /// The first block of channels that a band reads, of as many as there are.
    fn first_block(&self, c: &ConvParams, band: usize, all: usize) -> usize {
        if self.groups {
            band * (all / self.count)
        } else {
            (Self::reads(c, band).start / C_BLOCK).min(all - self.blocks)
        }
    }

    /// The output channels of a band.
    fn outputs(&self, c: &ConvParams, band: usize) -> Range<usize> {
        let first = band * self.outputs;
        first..c.c_out.min(first + self.outputs)
    }
}

/// Whether every pixel sees just itself.
fn is_dots(c: &ConvParams) -> bool {
    c.kernel == [1, 1] && c.stride == [1, 1] && c.pads == [0; 4]
}

/// A convolution of bytes with all taps, in two steps.
#[derive(Clone, Debug)]
pub(super) struct Direct {
    row: &'static DotRow,
    bands: Bands,
    division: Division,
    /// Columns of the panels of one band.
    columns: usize,
    segments: Segments,
    /// Words per segment.
    words: usize,
    /// Channels of a block of the input as the kernels read it.
    c_block: usize,
    /// Words from a pixel to its right neighbour, to the one below, to its next channel block.
    x_step: [usize; 3],
    /// Output rows and pixels per row, as the tiles see them.
    out: [usize; 2],
    /// Units per (image, band, group of panels).
    parts: usize,
    converts: bool,
    pieces: Option<Pieces>,
    finish: Finish,
}

impl Direct {
    /// The plan of a convolution whose parameters were checked.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`], and without an allocator [`KernelError::Unsupported`] for large filters.
    pub(super) fn new(isa: Isa, p: &QconvParams, finish: Finish) -> Result<Self, KernelError> {
        let c = &p.conv;
        let pixels = c.h_out * c.w_out;
        let shape = Shape {
            rows: c.n * pixels,
            line: if is_dots(c) { pixels } else { c.w_out },
            // With pixels that strides leave out.
            bytes: (c.c_in * c.h_in * c.w_in).div_ceil(pixels),
            depth: c.kernel.iter().fold(c.c_in, |n, taps| n.saturating_mul(*taps)),
            columns: c.c_out,
        };
        let kernels = dot_pieces::kernels(isa, &shape).filter(|_| c.groups == 1);
        let row = kernels.map_or_else(|| bytes_row(isa, p.small), |kernels| &kernels.row);
        let blocks = |n: usize| n.div_ceil(C_BLOCK);
        let interleaved = c.input == InputLayout::Interleaved;
        let [f_h, f_w] = c.kernel;
        // Neighbouring taps of a row are one stretch of words.
        let (taps, merged) = if c.dilation[1] == 1 { (1, f_w) } else { (f_w, 1) };
        let c_block = match kernels {
            Some(_) => QUAD * dot_pieces::filled(c.c_in.div_ceil(QUAD), merged),
            None if interleaved => c.c_in.next_multiple_of(QUAD * row.word.step()),
            None => C_BLOCK,
        };
        let padded = |i: usize, n: usize| n.checked_add(c.pads[i])?.checked_add(c.pads[i + 2]);
        let too_large = || KernelError::TooLarge { op: OP };
        let (h, w) = padded(0, c.h_in).zip(padded(1, c.w_in)).ok_or_else(too_large)?;

        let narrow = !row.word.is_wide();
        let as_it_is = narrow && !interleaved && c.pads == [0; 4] && left_shift(p.x, row.word) == 0;
        let direct = as_it_is && kernels.is_none();
        let pixel = c_block / row.word.group();
        let x_step = [pixel, w * pixel, h * w * pixel];
        checked_len(OP, &[c.n, blocks(c.c_in) + 1, h, w, 2 * C_BLOCK])?;
        let bands = Bands::new(c, c_block);
        let k_blocks = blocks(bands.outputs);
        let passes = if narrow { p.terms } else { 1 };
        let most = if row.word.saturates() { 3 } else { 1 };
        let all = [bands.count, bands.blocks, k_blocks + 8, 16 * 16, f_h, f_w, passes * most];
        checked_len(OP, &all)?;

        let mut segments = Segments::default();
        for block in (0..passes).flat_map(|_| 0..bands.blocks) {
            for (r, s) in (0..f_h).flat_map(|r| (0..taps).map(move |s| (r, s))) {
                let at = r * c.dilation[0] * x_step[1] + s * c.dilation[1] * x_step[0];
                push(&mut segments, (block * x_step[2] + at) as isize)?;
            }
        }
        let words = merged * pixel;
        // Where every pixel sees just itself the plane is one long row.
        let mut out = if is_dots(c) { [1, c.h_out * c.w_out] } else { [c.h_out, c.w_out] };

        let k_words = segments.len() * words;
        let mut pieces = kernels.map(|kernels| Pieces::new(kernels, out, words));
        // Rows of the image follow each other with their margins.
        let across = pieces.filter(|_| c.stride == [1, 1]).and_then(|p| p.across(out[0], w));
        if let Some(long) = across {
            (pieces, out) = (across, [1, long.count]);
        }
        let even = pieces.map(|pieces| pieces.rows);
        let division =
            Division::new(out[1], even, k_blocks * C_BLOCK, C_BLOCK, usize::MAX, k_words, row);
        let most = division.most_tiles() * out[0];
        let parts = usize::div_ceil(32, c.n * bands.count * division.groups()).min(most);
        let columns = division.columns();
        Ok(Self {
            row,
            bands,
            division,
            columns,
            segments,
            words,
            c_block,
            x_step,
            out,
            parts,
            converts: !direct,
            pieces,
            finish,
        })
    }

    /// What must be added to a byte of the input, as kernels multiply it.
    pub(super) fn shift(&self, p: &QconvParams) -> i32 {
        left_shift(p.x, self.row.word)
    }

    /// Columns of the panels of one band.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Output channels of a band, of which the last may have fewer.
    pub(super) fn band(&self) -> usize {
        self.bands.outputs
    }

    pub(super) fn packing(&self) -> (usize, &'static str) {
        (self.division.width(), self.row.kernels[0].info.name)
    }

    pub(super) fn kernel_name(&self) -> &'static str {
        let tiles = self.division.group(0).tiles;
        self.row.kernels[tiles.get(tiles.len() / 2).1].info.name
    }

    pub(super) fn scratch_len(&self, p: &QconvParams) -> usize {
        let words = p.conv.n * self.in_blocks(p) * self.x_step[2];
        // The last tile may read pixels behind the last row.
        let behind = self.pieces.map_or(0, |t| t.rows * p.conv.stride[1] * self.x_step[0]);
        if self.converts { words + behind } else { 0 }
    }

    pub(super) fn units(&self, p: &QconvParams) -> usize {
        p.conv.n * self.bands.count * self.division.groups() * self.parts
    }

    pub(super) fn convert_units(&self, p: &QconvParams) -> usize {
        let [_, row, plane] = self.x_step;
        match (self.converts, self.pieces) {
            (false, _) => 0,
            (true, None) => p.conv.n * self.in_blocks(p),
            // Rows of the image with its margins.
            (true, Some(_)) => p.conv.n * (plane / row),
        }
    }

    /// Words of the packed weights, with the sums.
    pub(super) fn weights_len(&self) -> usize {
        self.bands.count * self.band_words()
    }

    fn band_words(&self) -> usize {
        self.columns * (self.k_words() + self.spare_words() + 1)
    }

    /// The sums of the weights of a band, one per column.
    pub(super) fn sums<'a>(&self, band: usize, weights: &'a [i32]) -> &'a [i32] {
        &weights[(band + 1) * self.band_words() - self.columns..]
    }

    /// Blocks of channels of an image.
    fn in_blocks(&self, p: &QconvParams) -> usize {
        p.conv.c_in.div_ceil(self.c_block)
    }

    /// Words of a reduction.
    fn k_words(&self) -> usize {
        self.segments.len() * self.words
    }

    fn spare_words(&self) -> usize {
        spare_words(self.row.word, self.k_words())
    }

    /// Where in the packed weights of a band there is what was split from the words of a panel.
    fn spare(&self, panel: &Panel) -> usize {
        self.columns * self.k_words() + panel.column * self.spare_words()
    }

    /// Packs checked weights.
    pub(super) fn pack(&self, p: &QconvParams, w: &Weights<'_>, dst: &mut [i32]) {
        let c = &p.conv;
        let (c_group, k_group) = (c.c_in / c.groups, c.c_out / c.groups);
        let taps = c.kernel[0] * c.kernel[1];
        let all = c_group * taps;
        let (band_words, k_words) = (self.band_words(), self.k_words());
        let (wide, parts) = (self.row.word.is_wide(), self.row.word.group());
        let passes = if wide { 1 } else { p.terms };
        for band in 0..self.bands.count {
            let dst = &mut dst[band * band_words..(band + 1) * band_words];
            let (words, sums) = dst.split_at_mut(band_words - self.columns);
            let (words, spares) = words.split_at_mut(k_words * self.columns);
            sums.fill(0);
            let outputs = self.bands.outputs(c, band);
            let first_channel = self.bands.first_block(c, band, self.in_blocks(p)) * self.c_block;
            for panel in (0..self.division.panels()).map(|i| self.division.panel(i)) {
                let first = outputs.start + panel.column;
                let columns = panel.width.min(outputs.len() - panel.column);
                let words = &mut words[panel.column * k_words..][..panel.width * k_words];
                let sums = &mut sums[panel.column..];
                for (pass, words) in words.chunks_exact_mut(words.len() / passes).enumerate() {
                    // Tap and first channel of a word, which holds neighbouring channels of one tap.
                    let places = (0..k_words / passes).map(|word| {
                        let (at, channel) =
                            (word * parts / self.c_block, word * parts % self.c_block);
                        (at % taps, at / taps * self.c_block + channel)
                    });
                    let sum = |n: usize, x| sums[n] += x;
                    let (row, width) = (self.row, panel.width);
                    if let (1, Some(zero), true) = (passes, w.one_zero(), self.bands.groups) {
                        let places = places.map(|(tap, channel)| {
                            let left = c_group.saturating_sub(channel).min(parts);
                            (first * all + channel * taps + tap, left)
                        });
                        let element = |at: usize, _| w.less(at, zero);
                        pack_panel(row, width, columns, places, [taps, all], element, sum, words);
                        continue;
                    }
                    // As if all channels that the band reads had weights; those of other groups are 0.
                    let one = self.bands.blocks * self.c_block * taps;
                    let places = places.map(|(tap, channel)| (channel * taps + tap, parts));
                    let element = |at: usize, n: usize| {
                        // Sizes of filters were checked: words of 32 bits are divided faster.
                        let (at, k) = ((at - n * one) as u32, first + n);
                        let (channel, tap) = (at / taps as u32, at % taps as u32);
                        let own =
                            (first_channel + channel as usize).wrapping_sub(k / k_group * c_group);
                        if own >= c_group {
                            return 0;
                        }
                        let mut rest = w.get((k * c_group + own) * taps + tap as usize, k);
                        if passes == 1 {
                            return rest;
                        }
                        (0..pass).for_each(|_| rest -= rest.clamp(-128, 127));
                        rest.clamp(-128, 127)
                    };
                    let (side, steps) = (row.word.side_by_side(), [taps, one]);
                    pack_words(side, row, width, columns, places, steps, element, sum, words);
                }
                if self.row.word.saturates() {
                    let spare = &mut spares[panel.column * self.spare_words()..];
                    let spare = &mut spare[..panel.width * self.spare_words()];
                    split(words, panel.width, self.words, spare);
                }
            }
        }
    }

    /// # Safety
    ///
    /// As [`QconvPlan::run_convert`](super::qconv::QconvPlan::run_convert).
    pub(super) unsafe fn run_convert(
        &self,
        p: &QconvParams,
        x: *const u8,
        scratch: *mut i32,
        units: Range<usize>,
    ) {
        if self.pieces.is_some() {
            // SAFETY: the caller's promises.
            unsafe { self.convert_rows(p, x, scratch, units) };
            return;
        }
        let c = &p.conv;
        let [pixel, row_words, plane] = self.x_step;
        let [top, left, _, right] = c.pads;
        let zero = [p.x_zero_point as u8; C_BLOCK];
        let dst = scratch.cast::<f32>();
        let interleaved = c.input == InputLayout::Interleaved;
        let lanes = if interleaved { c.c_in } else { C_BLOCK };
        for unit in units {
            let (mut x, mut to) = (x.wrapping_add(unit * c.h_in * c.w_in * lanes), unit * plane);
            let end = to + plane;
            // SAFETY: the places from `to` on lie in this unit's plane of the scratch memory, and
            // the rows read in its plane of the input; `new` checked the ISA.
            let mut put = |to: usize, x: *const u8, n: usize| unsafe {
                (self.row.convert)(p.x, x, dst.add(to), n * self.c_block, false);
            };
            let mut wide = [0u8; PIXELS * C_BLOCK];
            let margin = |put: &mut dyn FnMut(usize, *const u8, usize), range: Range<usize>| {
                range.step_by(pixel).for_each(|to| put(to, zero.as_ptr(), 1));
            };
            margin(&mut put, to..to + top * row_words);
            to += top * row_words;
            for _ in 0..c.h_in {
                margin(&mut put, to..to + left * pixel);
                if interleaved {
                    // SAFETY: a row of the unit's image.
                    let row = unsafe { core::slice::from_raw_parts(x, c.w_in * lanes) };
                    for (i, from) in row.chunks(PIXELS * lanes).enumerate() {
                        widen(from, lanes, &mut wide, self.c_block);
                        let at = to + (left + i * PIXELS) * pixel;
                        put(at, wide.as_ptr(), from.len() / lanes);
                    }
                } else {
                    put(to + left * pixel, x, c.w_in);
                }
                let after = to + (left + c.w_in) * pixel;
                margin(&mut put, after..after + right * pixel);
                to += row_words;
                x = x.wrapping_add(c.w_in * lanes);
            }
            margin(&mut put, to..end);
        }
    }

    /// The same for tiles: some rows of images with their margins, of all channels of each pixel.
    ///
    /// # Safety
    ///
    /// As [`QconvPlan::run_convert`](super::qconv::QconvPlan::run_convert).
    unsafe fn convert_rows(
        &self,
        p: &QconvParams,
        x: *const u8,
        scratch: *mut i32,
        units: Range<usize>,
    ) {
        let c = &p.conv;
        let [_, row, plane] = self.x_step.map(|words| 4 * words);
        let ([top, left, ..], shift) = (c.pads, self.shift(p));
        let flip = if shift == 0 { 0 } else { u128::from_ne_bytes([0x80; C_BLOCK]) };
        for unit in units {
            let (image, h) = (unit / (plane / row), unit % (plane / row));
            // SAFETY: rows of the scratch memory follow each other, and this one is the unit's alone. Words are bytes here.
            let to = unsafe {
                core::slice::from_raw_parts_mut(scratch.cast::<u8>().add(unit * row), row)
            };
            let zero = (p.x_zero_point + shift) as u8;
            let Some(h) = h.checked_sub(top).filter(|h| *h < c.h_in) else {
                to.fill(zero);
                continue;
            };
            let (before, rest) = to.split_at_mut(left * self.c_block);
            let (inside, behind) = rest.split_at_mut(c.w_in * self.c_block);
            before.fill(zero);
            behind.fill(zero);
            // SAFETY: rows of the image, of blocks of channels or of all that there are.
            let from = |at: usize, lanes: usize| unsafe {
                core::slice::from_raw_parts(
                    x.add((at * c.h_in + h) * c.w_in * lanes),
                    c.w_in * lanes,
                )
            };
            if c.input == InputLayout::Interleaved {
                widen(from(image, c.c_in), c.c_in, inside, self.c_block);
                if shift != 0 {
                    inside.iter_mut().for_each(|x| *x ^= 0x80);
                }
                continue;
            }
            let blocks = c.c_in.div_ceil(C_BLOCK);
            for block in 0..blocks {
                let pixels = from(image * blocks + block, C_BLOCK).as_chunks::<C_BLOCK>().0;
                for (to, from) in inside.chunks_exact_mut(self.c_block).zip(pixels) {
                    let bytes = (u128::from_ne_bytes(*from) ^ flip).to_ne_bytes();
                    let to = &mut to[block * C_BLOCK..];
                    // Of a size that is known: no call.
                    match to.first_chunk_mut() {
                        Some(to) => *to = bytes,
                        None => to.copy_from_slice(&bytes[..to.len()]),
                    }
                }
            }
        }
    }

    /// # Safety
    ///
    /// As [`QconvPlan::run`](super::qconv::QconvPlan::run).
    pub(super) unsafe fn run(
        &self,
        p: &QconvParams,
        x: *const u8,
        scratch: *const i32,
        weights: *const i32,
        columns: *const i32,
        y: *mut u8,
        units: Range<usize>,
    ) {
        let c = &p.conv;
        let x: *const f32 = if self.converts { scratch.cast() } else { x.cast() };
        let (in_blocks, out_blocks) = (self.in_blocks(p), c.c_out.div_ceil(C_BLOCK));
        let plane = c.h_out * c.w_out * C_BLOCK;
        let [pixel, row_words, x_plane] = self.x_step;
        if let Some(pieces) = &self.pieces {
            // SAFETY: the plan checked the ISA.
            unsafe { pieces.begin() };
        }
        for unit in units {
            let (unit, part) = (unit / self.parts, unit % self.parts);
            let groups = self.division.groups();
            let (unit, group) = (unit / groups, self.division.group(unit % groups));
            let (image, band) = (unit / self.bands.count, unit % self.bands.count);
            let x_block = image * in_blocks + self.bands.first_block(c, band, in_blocks);
            let y_block = image * out_blocks + band * self.bands.outputs / C_BLOCK;
            let x = x.wrapping_add(x_block * x_plane);
            let weights = weights.wrapping_add(band * self.band_words()).cast::<f32>();
            let columns = columns.wrapping_add(band * 3 * self.columns).cast::<f32>();
            let count = self.out[0] * group.tiles.len();
            let tiles = part * count / self.parts..(part + 1) * count / self.parts;
            for tiles in dot_pieces::steps(&self.pieces, tiles) {
                let places = [tiles.start, tiles.end - 1].map(|tile| {
                    let (h, at) = (tile / group.tiles.len(), tile % group.tiles.len());
                    let (w, kernel) = group.tiles.get(at);
                    let from = h * c.stride[0] * row_words + w * c.stride[1] * pixel;
                    (x.wrapping_add(from), h * self.out[1] + w, kernel, tile)
                });
                let [(a, to, kernel, _), _] = places;
                // Pieces have their outputs from the first of all on.
                let to = if self.pieces.is_some() { 0 } else { to };
                for panel in group.panels.clone().map(|i| self.division.panel(i)) {
                    let bias = columns.wrapping_add(panel.column);
                    let out = (y_block + panel.column / C_BLOCK) * plane + to * C_BLOCK;
                    let args = DotArgs {
                        a,
                        step: c.stride[1] * pixel,
                        segments: &self.segments,
                        words: self.words,
                        b: weights.wrapping_add(panel.column * self.k_words()),
                        spare: weights.wrapping_add(self.spare(&panel)).cast(),
                        bias,
                        scale: bias.wrapping_add(self.columns),
                        shift: bias.wrapping_add(2 * self.columns),
                        offset: core::ptr::null(),
                        row_sums: core::ptr::null(),
                        o: y.wrapping_add(out * self.finish.size()),
                        o_step: C_BLOCK,
                        o_plane: plane,
                        tail: self.row.lanes,
                        finish: self.finish,
                    };
                    match &self.pieces {
                        // SAFETY: with its margins the image has every pixel that a tap reads, the tiles
                        // cover each output pixel once, and the packed operands are those of this panel;
                        // `new` checked the ISA.
                        None => unsafe { (self.row.kernels[kernel].run)(&args) },
                        Some(all) => {
                            let pieces = places.map(|(a, .., i)| Piece { a, first: i * all.rows });
                            // SAFETY: the same. The last of a row has fewer pixels than are read: behind the last
                            // row there are as many.
                            unsafe { all.run(&args, panel.width, &pieces[..tiles.len()]) };
                        }
                    }
                }
            }
        }
        if let Some(pieces) = &self.pieces {
            // SAFETY: the plan checked the ISA.
            unsafe { pieces.end() };
        }
    }
}
