//! Convolution of bytes (ONNX `ConvInteger`, `QLinearConv`), blocked `[n, ceil(c / 16), h, w, 16]`,
//! exact.
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
//! Weights are packed less their zero points. Where those do not fit a signed byte they are sums of
//! several that do, and the reduction is as many times longer.

use super::conv_params::{ConvParams, InputLayout};
use super::dot_convert::{left_shift, pack_panel};
use super::dot_division::Division;
use super::dot_tile::{DotArgs, DotRow, Finish, row};
use super::qconv_segments::{Segments, push};
use super::qmatmul::{check_columns, check_type, check_zero_points, column};
use crate::epilogue::TileActivation;
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
use crate::{Activation, C_BLOCK, Dtype, Isa, KernelError};
use core::ops::Range;

#[cfg(any(feature = "alloc", test))]
pub use super::qconv_reference::reference;

const OP: &str = "qconv";

/// Most channels of an interleaved input.
const FEW: usize = 12;

/// Channels to which those of an interleaved input are filled up, where kernels take one word at a time:
/// words hold up to as many.
const QUAD: usize = 4;

/// Pixels of an interleaved input that are widened at a time.
const PIXELS: usize = 64;

/// Sizes, types and attributes of a convolution of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct QconvParams {
    /// Sizes and attributes: blocked, or interleaved with up to 12 channels of one group; not
    /// transposed, groups of whole blocks of channels. The epilogue
    /// has no residual; for [`QuantOutput::F32`] its activation may be ReLU, clip or leaky ReLU.
    pub conv: ConvParams,
    /// Type of the input: [`Dtype::I8`] or [`Dtype::U8`].
    pub x: Dtype,
    /// Zero point of the input, in the range of its type: what pads the image.
    pub x_zero_point: i32,
    /// Type of the weights.
    pub w: Dtype,
    /// How many signed bytes add up to a weight less its zero point: 1 if all are in the range of
    /// `i8`, 2 from -256 to 254, 3 for 255 too. That many times the work, unless the instruction set
    /// multiplies wider integers.
    pub terms: usize,
    /// Type of the output.
    pub output: QuantOutput,
}

impl QconvParams {
    /// Signed weights without a zero point, an output of sums.
    pub fn new(conv: ConvParams, x: Dtype, x_zero_point: i32) -> Self {
        Self { conv, x, x_zero_point, w: Dtype::I8, terms: 1, output: QuantOutput::I32 }
    }

    fn check(&self) -> Result<(), KernelError> {
        let c = &self.conv;
        c.check()?;
        self.output.check(OP)?;
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        let unsupported = |what| Err(KernelError::Unsupported { op: OP, what });
        if [self.x, self.w].iter().any(|t| !matches!(t, Dtype::I8 | Dtype::U8)) {
            return invalid("type", "i8 or u8");
        }
        check_zero_points(OP, self.x, &[self.x_zero_point])?;
        if !(1..=3).contains(&self.terms) {
            return invalid("terms", "1, 2 or 3");
        }
        if c.transposed {
            return unsupported("a transposed convolution");
        }
        if c.input == InputLayout::Interleaved && (c.groups != 1 || c.c_in > FEW) {
            return unsupported("an interleaved input of groups or of more than 12 channels");
        }
        let channels = [c.c_in / c.groups, c.c_out / c.groups];
        if c.groups > 1 && channels.iter().any(|n| !n.is_multiple_of(C_BLOCK)) {
            return unsupported("a group that is not of whole blocks of channels");
        }
        if c.epilogue.residual {
            return unsupported("a residual");
        }
        match c.epilogue.activation {
            Activation::None => {}
            _ if self.output != QuantOutput::F32 => {
                return invalid("activation", "absent unless the output is f32");
            }
            other if other.in_tile().is_none() => return unsupported("this activation"),
            _ => {}
        }
        let taps = checked_len(OP, &[channels[0], c.kernel[0], c.kernel[1]])?;
        if taps > i32::MAX as usize / (255 * if self.terms > 1 { 255 } else { 128 }) {
            return invalid("filter size", "so small that no sum leaves the range of i32");
        }
        Ok(())
    }
}

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

/// A convolution of bytes ready to run, in two steps as [`QmatmulPlan`](crate::QmatmulPlan).
#[derive(Clone, Debug)]
pub struct QconvPlan {
    params: QconvParams,
    row: &'static DotRow,
    division: Division,
    /// Columns of the panels of one group of channels.
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
    /// Units per (image, group of channels, group of panels).
    parts: usize,
    converts: bool,
    finish: Finish,
    lens: [usize; 2],
}

impl QconvPlan {
    /// Checks the parameters and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], also for a filter with which a sum may overflow;
    /// [`KernelError::Unsupported`] as [`QconvParams`] says; [`KernelError::TooLarge`],
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &QconvParams) -> Result<Self, KernelError> {
        isa.require()?;
        params.check()?;
        let c = &params.conv;
        let row = row(isa, Dtype::I8);
        let blocks = |n: usize| n.div_ceil(C_BLOCK);
        let interleaved = c.input == InputLayout::Interleaved;
        let c_block =
            if interleaved { c.c_in.next_multiple_of(QUAD * row.word.step()) } else { C_BLOCK };
        let lanes = if interleaved { c.c_in } else { C_BLOCK * blocks(c.c_in) };
        let x_len = checked_len(OP, &[c.n, lanes, c.h_in, c.w_in])?;
        let y_len = checked_len(OP, &[c.n, blocks(c.c_out), C_BLOCK, c.h_out, c.w_out])?;
        let padded = |i: usize, n: usize| n.checked_add(c.pads[i])?.checked_add(c.pads[i + 2]);
        let too_large = || KernelError::TooLarge { op: OP };
        let (h, w) = padded(0, c.h_in).zip(padded(1, c.w_in)).ok_or_else(too_large)?;

        let narrow = !row.word.is_wide();
        let direct =
            narrow && !interleaved && c.pads == [0; 4] && left_shift(params.x, row.word) == 0;
        let pixel = c_block / row.word.group();
        let x_step = [pixel, w * pixel, h * w * pixel];
        checked_len(OP, &[c.n, blocks(c.c_in), h, w, C_BLOCK])?;
        let [f_h, f_w] = c.kernel;
        let per_group = [(c.c_in / c.groups).div_ceil(c_block), blocks(c.c_out / c.groups)];
        let passes = if narrow { params.terms } else { 1 };
        let all = [c.groups, per_group[0], per_group[1] + 8, 16 * 16, f_h, f_w, passes];
        checked_len(OP, &all)?;

        // Neighbouring taps of a row are one stretch of words.
        let (taps, merged) = if c.dilation[1] == 1 { (1, f_w) } else { (f_w, 1) };
        let mut segments = Segments::default();
        for block in (0..passes).flat_map(|_| 0..per_group[0]) {
            for (r, s) in (0..f_h).flat_map(|r| (0..taps).map(move |s| (r, s))) {
                let at = r * c.dilation[0] * x_step[1] + s * c.dilation[1] * x_step[0];
                push(&mut segments, (block * x_step[2] + at) as isize)?;
            }
        }
        let words = merged * pixel;
        // Where every pixel sees just itself the plane is one long row.
        let dots = c.kernel == [1, 1] && c.stride == [1, 1] && c.pads == [0; 4];
        let out = if dots { [1, c.h_out * c.w_out] } else { [c.h_out, c.w_out] };

        let k_words = segments.len() * words;
        let division = Division::new(out[1], per_group[1] * C_BLOCK, C_BLOCK, k_words, row);
        let most = division.most_tiles() * out[0];
        let parts = usize::div_ceil(32, c.n * c.groups * division.groups()).min(most);
        let columns = division.columns();
        let activation = c.epilogue.activation.in_tile().unwrap_or(TileActivation::None);
        let finish = Finish::of(params.output, activation);
        let lens = [x_len, y_len];
        let (params, converts) = (params.clone(), !direct);
        Ok(Self {
            params,
            row,
            division,
            columns,
            segments,
            words,
            c_block,
            x_step,
            out,
            parts,
            converts,
            finish,
            lens,
        })
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &QconvParams {
        &self.params
    }

    /// Bytes of the input.
    pub fn x_len(&self) -> usize {
        self.lens[0]
    }

    /// Elements of the output, with the lanes past `c_out`.
    pub fn y_len(&self) -> usize {
        self.lens[1]
    }

    /// Words of the packed weights, with the sums of each output channel's.
    pub fn weights_len(&self) -> usize {
        self.group_words() * self.params.conv.groups
    }

    /// Words of what follows the sums.
    pub fn columns_len(&self) -> usize {
        3 * self.columns * self.params.conv.groups
    }

    /// Words of the padded or converted input, 0 if it is read where it lies.
    pub fn scratch_len(&self) -> usize {
        let c = &self.params.conv;
        let words = c.n * self.in_blocks() * self.x_step[2];
        if self.converts { words } else { 0 }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        let c = &self.params.conv;
        c.n * c.groups * self.division.groups() * self.parts
    }

    /// Independent units of converting the input: channel blocks.
    pub fn convert_units(&self) -> usize {
        let c = &self.params.conv;
        if self.converts { c.n * self.in_blocks() } else { 0 }
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        let tiles = self.division.group(0).tiles;
        self.row.kernels[tiles.get(tiles.len() / 2).1].info.name
    }

    /// Blocks of channels of an image.
    fn in_blocks(&self) -> usize {
        self.params.conv.c_in.div_ceil(self.c_block)
    }

    /// Words of a reduction.
    fn k_words(&self) -> usize {
        self.segments.len() * self.words
    }

    /// Words of the packed weights of one group of channels, and the sums.
    fn group_words(&self) -> usize {
        self.columns * (self.k_words() + 1)
    }

    /// Packs weights `[c_out, c_in / groups, f_h, f_w]`. Their zero points are one per output channel,
    /// one for all, or none for 0.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] for
    /// bytes of another sign, zero points outside the range of the type, and a weight that less its
    /// zero point is not a sum of as many signed bytes as the plan has terms.
    pub fn pack_weights(
        &self,
        w: Bytes<'_>,
        zero_points: &[i32],
        dst: &mut [i32],
    ) -> Result<(), KernelError> {
        let (p, c) = (&self.params, &self.params.conv);
        let [f_h, f_w] = c.kernel;
        check_type(OP, "type of the weights", p.w, w.dtype())?;
        check_len(OP, "weights", c.c_out * (c.c_in / c.groups) * f_h * f_w, w.len())?;
        check_len(OP, "packed weights", self.weights_len(), dst.len())?;
        check_zero_points(OP, p.w, zero_points)?;
        if zero_points.len() > 1 {
            check_len(OP, "zero points of the weights", c.c_out, zero_points.len())?;
        }
        let fits = match w {
            Bytes::I8(w) => self.pack(w, zero_points, dst),
            Bytes::U8(w) => self.pack(w, zero_points, dst),
        };
        let (param, expected) = ("weight", "a sum of as many signed bytes as said");
        fits.ok_or(KernelError::InvalidParam { op: OP, param, expected })
    }

    /// Packs weights of checked length; `None` if one is not a sum of as many bytes as said.
    fn pack<T: Copy + Into<i32>>(
        &self,
        w: &[T],
        zero_points: &[i32],
        dst: &mut [i32],
    ) -> Option<()> {
        let (p, c) = (&self.params, &self.params.conv);
        let (c_group, k_group) = (c.c_in / c.groups, c.c_out / c.groups);
        let taps = c.kernel[0] * c.kernel[1];
        let (all, terms) = (c_group * taps, p.terms as i32);
        let zero = |k: usize| match zero_points {
            [] => 0,
            [one] => *one,
            own => own[k],
        };
        let fits = |k: usize| {
            let (low, span) = (zero(k) - 128 * terms, 255 * terms as u32);
            let outside = |x: &T| (*x).into().wrapping_sub(low) as u32 > span;
            // No early return, so that the compiler may vectorise it.
            !w[k * all..(k + 1) * all].iter().fold(false, |found, x| found | outside(x))
        };
        if !(0..c.c_out).all(fits) {
            return None;
        }
        let (group_words, k_words) = (self.group_words(), self.k_words());
        let (wide, parts) = (self.row.word.is_wide(), self.row.word.group());
        let passes = if wide { 1 } else { p.terms };
        for group in 0..c.groups {
            let dst = &mut dst[group * group_words..(group + 1) * group_words];
            let (words, sums) = dst.split_at_mut(k_words * self.columns);
            sums.fill(0);
            for panel in (0..self.division.panels()).map(|i| self.division.panel(i)) {
                let first = group * k_group + panel.column;
                let columns = panel.width.min(k_group - panel.column);
                let words = &mut words[panel.column * k_words..][..panel.width * k_words];
                let sums = &mut sums[panel.column..];
                for (pass, words) in words.chunks_exact_mut(words.len() / passes).enumerate() {
                    // Words hold neighbouring channels of one tap.
                    let places = (0..k_words / passes).map(|word| {
                        let (at, channel) =
                            (word * parts / self.c_block, word * parts % self.c_block);
                        let channel = at / taps * self.c_block + channel;
                        let left = c_group.saturating_sub(channel).min(parts);
                        (first * all + channel * taps + at % taps, left)
                    });
                    let sum = |n: usize, x| sums[n] += x;
                    let (row, width, steps) = (self.row, panel.width, [taps, all]);
                    if passes == 1 && zero_points.len() < 2 {
                        let zero = zero(0);
                        let element = |at: usize, _| w[at].into() - zero;
                        pack_panel(row, width, columns, places, steps, element, sum, words);
                        continue;
                    }
                    let element = |at: usize, n: usize| {
                        let mut rest: i32 = w[at].into() - zero(first + n);
                        if passes == 1 {
                            return rest;
                        }
                        (0..pass).for_each(|_| rest -= rest.clamp(-128, 127));
                        rest.clamp(-128, 127)
                    };
                    pack_panel(row, width, columns, places, steps, element, sum, words);
                }
            }
        }
        Some(())
    }

    /// Prepares what follows the sums, from the packed weights. The zero point of `columns` is that of
    /// the plan's parameters.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] for an operand that is too short, [`KernelError::InvalidParam`]
    /// for another zero point or a scale that is not finite.
    pub fn pack_columns(
        &self,
        weights: &[i32],
        columns: &QuantColumns<'_>,
        dst: &mut [i32],
    ) -> Result<(), KernelError> {
        let (p, c) = (&self.params, &self.params.conv);
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "columns", self.columns_len(), dst.len())?;
        check_columns(OP, c.c_out, p.output, p.x, columns)?;
        if columns.zero_point != p.x_zero_point {
            let (param, expected) = ("zero point", "that of the plan");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        let zero = p.x_zero_point + left_shift(p.x, self.row.word);
        let k_group = c.c_out / c.groups;
        for group in 0..c.groups {
            let sums = &weights[group * self.group_words() + self.k_words() * self.columns..];
            let dst = &mut dst[group * 3 * self.columns..(group + 1) * 3 * self.columns];
            dst.fill(0);
            for n in 0..k_group {
                let k = group * k_group + n;
                let bias = columns.bias.get(k).copied().unwrap_or(0);
                let (scale, shift) = column(columns, k);
                dst[n] = bias.wrapping_sub(zero.wrapping_mul(sums[n]));
                dst[self.columns + n] = scale.to_bits() as i32;
                dst[2 * self.columns + n] = shift.to_bits() as i32;
            }
        }
        Ok(())
    }

    /// Runs all units on this thread, on packed weights and prepared columns.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(
        &self,
        x: Bytes<'_>,
        weights: &[i32],
        columns: &[i32],
        scratch: &mut [i32],
        mut y: QuantResult<'_>,
    ) -> Result<(), KernelError> {
        let (dtype, y, y_len) = y.parts();
        check_type(OP, "type of the input", self.params.x, x.dtype())?;
        check_type(OP, "type of the output", self.params.output.dtype(), dtype)?;
        check_len(OP, "input", self.x_len(), x.len())?;
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "columns", self.columns_len(), columns.len())?;
        check_len(OP, "scratch", self.scratch_len(), scratch.len())?;
        check_len(OP, "output", self.y_len(), y_len)?;
        let (x, scratch) = (x.as_ptr(), scratch.as_mut_ptr());
        // SAFETY: each operand has the type and the length that the plan asks for, scratch and `y`
        // are borrowed mutably and so overlap none, and `new` checked that the CPU has the
        // instructions.
        unsafe {
            self.run_convert(x, scratch, 0..self.convert_units());
            self.run(x, scratch, weights.as_ptr(), columns.as_ptr(), y, 0..self.units());
        }
        Ok(())
    }

    /// Converts some channel blocks of the input, with their margins. Allocates nothing and takes no
    /// lock.
    ///
    /// # Safety
    ///
    /// * `x` is readable for [`x_len`](Self::x_len) bytes, `scratch` writable and aligned for
    ///   [`scratch_len`](Self::scratch_len) words, and they do not overlap.
    /// * `units` lies in `0..self.convert_units()`, and no other thread runs one of them.
    pub unsafe fn run_convert(&self, x: *const u8, scratch: *mut i32, units: Range<usize>) {
        debug_assert!(units.end <= self.convert_units());
        let (p, c) = (&self.params, &self.params.conv);
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
                    for first in (0..c.w_in).step_by(PIXELS) {
                        let count = PIXELS.min(c.w_in - first);
                        // SAFETY: these pixels lie in a row of the unit's image.
                        let from = unsafe {
                            core::slice::from_raw_parts(x.add(first * lanes), count * lanes)
                        };
                        widen(from, lanes, &mut wide, self.c_block);
                        put(to + (left + first) * pixel, wide.as_ptr(), count);
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

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x` is readable for [`x_len`](Self::x_len) bytes, or is not read if there is scratch memory;
    ///   `scratch` holds [`scratch_len`](Self::scratch_len) words that all units of
    ///   [`run_convert`](Self::run_convert) wrote; `weights` and `columns` are readable for
    ///   [`weights_len`](Self::weights_len) and [`columns_len`](Self::columns_len) words, prepared
    ///   by this plan; `y` is writable for [`y_len`](Self::y_len) elements of the output type. All
    ///   but `x` are aligned.
    /// * `y` overlaps no other operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`.
    pub unsafe fn run(
        &self,
        x: *const u8,
        scratch: *const i32,
        weights: *const i32,
        columns: *const i32,
        y: *mut u8,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let c = &self.params.conv;
        let x: *const f32 = if self.converts { scratch.cast() } else { x.cast() };
        let (in_blocks, out_blocks) = (self.in_blocks(), c.c_out.div_ceil(C_BLOCK));
        let plane = c.h_out * c.w_out * C_BLOCK;
        let [pixel, row_words, x_plane] = self.x_step;
        for unit in units {
            let (unit, part) = (unit / self.parts, unit % self.parts);
            let groups = self.division.groups();
            let (unit, group) = (unit / groups, self.division.group(unit % groups));
            let (image, channels) = (unit / c.groups, unit % c.groups);
            let x_block = image * in_blocks + channels * (in_blocks / c.groups);
            let y_block = image * out_blocks + channels * (out_blocks / c.groups);
            let x = x.wrapping_add(x_block * x_plane);
            let weights = weights.wrapping_add(channels * self.group_words()).cast::<f32>();
            let columns = columns.wrapping_add(channels * 3 * self.columns).cast::<f32>();
            let count = self.out[0] * group.tiles.len();
            for tile in part * count / self.parts..(part + 1) * count / self.parts {
                let (h, (w, kernel)) =
                    (tile / group.tiles.len(), group.tiles.get(tile % group.tiles.len()));
                let from = h * c.stride[0] * row_words + w * c.stride[1] * pixel;
                for panel in group.panels.clone().map(|i| self.division.panel(i)) {
                    let bias = columns.wrapping_add(panel.column);
                    let out = (y_block + panel.column / C_BLOCK) * plane
                        + (h * self.out[1] + w) * C_BLOCK;
                    let args = DotArgs {
                        a: x.wrapping_add(from),
                        step: c.stride[1] * pixel,
                        segments: &self.segments,
                        words: self.words,
                        b: weights.wrapping_add(panel.column * self.k_words()),
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
                    // SAFETY: with its margins the image has every pixel that a tap reads, the tiles
                    // cover each output pixel once, and the packed operands are those of this panel;
                    // `new` checked the ISA.
                    unsafe { (self.row.kernels[kernel].run)(&args) };
                }
            }
        }
    }
}
