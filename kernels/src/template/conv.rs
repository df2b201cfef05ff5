//! Convolution and transposed convolution (ONNX `Conv`, `ConvTranspose`), any group count but one
//! channel per group.
//!
//! The reduction over input channels and taps stays in registers up to 256 channels, above
//! that the tile is stored and loaded once per chunk, so that a chunk of weights stays in the L2
//! cache while all tiles use it. See `conv_tile` for the microkernel and its treatment of borders,
//! `conv_geometry` for how a plane is divided into tiles.

use super::conv_geometry::{KTile, Phase, k_tiles, phases};
use super::conv_pack;
use super::conv_tile::{ConvKernel, TileArgs, TileShape};
use super::unary::{UnaryKernel, UnaryOp};
use crate::error::{check_len, checked_len};
use crate::{Activation, Algorithm, C_BLOCK, Choice, Epilogue, Isa, KernelError};
use alloc::vec::Vec;
use core::ops::Range;

pub use super::conv_reference::reference;
pub(crate) use super::conv_tile::kernels;

const OP: &str = "conv";

/// Input channels reduced before the tile goes through memory.
pub(crate) const CHUNK: usize = 256;

/// Layout of a convolution's input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputLayout {
    /// `[n, ceil(c / 16), h, w, 16]`.
    #[default]
    Blocked,
    /// `[n, h, w, c]`: for network inputs of few channels.
    Interleaved,
}

/// Sizes and attributes of a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvParams {
    /// Images.
    pub n: usize,
    /// Input channels, over all groups.
    pub c_in: usize,
    /// Output channels, over all groups.
    pub c_out: usize,
    /// Groups; divides both channel counts. Where a group does not fill blocks of 16 output (and,
    /// blocked, input) channels, a tile of 16 outputs reads the channels of all groups that it
    /// touches, those of the others with weight zero: that costs their time, and an infinity or NaN
    /// in one of them makes the result NaN.
    pub groups: usize,
    /// Input height.
    pub h_in: usize,
    /// Input width.
    pub w_in: usize,
    /// Output height; must follow from the other sizes.
    pub h_out: usize,
    /// Output width.
    pub w_out: usize,
    /// Filter height and width.
    pub kernel: [usize; 2],
    /// Stride, vertical and horizontal; of the output if transposed.
    pub stride: [usize; 2],
    /// Dilation, vertical and horizontal.
    pub dilation: [usize; 2],
    /// Padding: top, left, bottom, right.
    pub pads: [usize; 4],
    /// Whether this is a transposed convolution.
    pub transposed: bool,
    /// Layout of the input. The output is always blocked.
    pub input: InputLayout,
    /// What follows the reduction.
    pub epilogue: Epilogue,
}

impl ConvParams {
    /// A convolution of a blocked `x = [n, c, h, w]` with stride 1, no padding, one group.
    pub fn new(x: [usize; 4], c_out: usize, kernel: [usize; 2]) -> Self {
        let [n, c_in, h_in, w_in] = x;
        Self {
            n,
            c_in,
            c_out,
            groups: 1,
            h_in,
            w_in,
            h_out: 0,
            w_out: 0,
            kernel,
            stride: [1, 1],
            dilation: [1, 1],
            pads: [0; 4],
            transposed: false,
            input: InputLayout::Blocked,
            epilogue: Epilogue::default(),
        }
        .inferred()
    }

    /// With these strides.
    #[must_use]
    pub fn stride(self, stride: [usize; 2]) -> Self {
        Self { stride, ..self }.inferred()
    }

    /// With these dilations.
    #[must_use]
    pub fn dilation(self, dilation: [usize; 2]) -> Self {
        Self { dilation, ..self }.inferred()
    }

    /// With this padding: top, left, bottom, right.
    #[must_use]
    pub fn pads(self, pads: [usize; 4]) -> Self {
        Self { pads, ..self }.inferred()
    }

    /// With this number of groups.
    #[must_use]
    pub fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    /// Reading `[n, h, w, c]`.
    #[must_use]
    pub fn interleaved(self) -> Self {
        Self { input: InputLayout::Interleaved, ..self }
    }

    /// As transposed convolution, without output padding.
    #[must_use]
    pub fn transposed(self) -> Self {
        Self { transposed: true, ..self }.inferred()
    }

    /// With this output size, where a transposed convolution leaves a choice.
    #[must_use]
    pub fn output(self, h_out: usize, w_out: usize) -> Self {
        Self { h_out, w_out, ..self }
    }

    /// With this epilogue.
    #[must_use]
    pub fn epilogue(self, epilogue: Epilogue) -> Self {
        Self { epilogue, ..self }
    }

    /// With the output size that follows from the rest; 0 where there is none.
    #[must_use]
    pub fn inferred(self) -> Self {
        let size = |input: usize, i: usize| self.output_size(input, i).unwrap_or(0);
        let (h_out, w_out) = (size(self.h_in, 0), size(self.w_in, 1));
        Self { h_out, w_out, ..self }
    }

    /// Output size along axis `i` (0 vertical, 1 horizontal), without output padding.
    fn output_size(&self, input: usize, i: usize) -> Option<usize> {
        let span = self.dilation[i].checked_mul(self.kernel[i].checked_sub(1)?)?.checked_add(1)?;
        let pad = self.pads[i].checked_add(self.pads[i + 2])?;
        if self.transposed {
            let full = input.checked_sub(1)?.checked_mul(self.stride[i])?.checked_add(span)?;
            return full.checked_sub(pad);
        }
        let room = input.checked_add(pad)?.checked_sub(span)?;
        Some(room.checked_div(self.stride[i])? + 1)
    }

    fn check(&self) -> Result<(), KernelError> {
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        let sizes = [self.n, self.c_in, self.c_out, self.h_in, self.w_in, self.groups];
        if sizes.contains(&0) || self.kernel.contains(&0) {
            return invalid("size", "at least 1");
        }
        if self.stride.contains(&0) || self.dilation.contains(&0) {
            return invalid("stride and dilation", "at least 1");
        }
        if !self.c_in.is_multiple_of(self.groups) || !self.c_out.is_multiple_of(self.groups) {
            return invalid("groups", "a divisor of both channel counts");
        }
        let depthwise = self.groups > 1 && self.c_in == self.groups && self.c_out == self.groups;
        if depthwise && !self.transposed {
            let what = "one channel per group (use depthwise)";
            return Err(KernelError::Unsupported { op: OP, what });
        }
        let sizes = [(self.h_in, self.h_out), (self.w_in, self.w_out)];
        for (i, (input, output)) in sizes.iter().enumerate() {
            let least = self.output_size(*input, i).unwrap_or(0);
            let extra = if self.transposed { self.stride[i].max(self.dilation[i]) - 1 } else { 0 };
            if *output == 0 || *output < least || *output - least > extra {
                return invalid("output size", "what input, filter, stride and padding give");
            }
        }
        if matches!(self.epilogue.activation, Activation::LeakyRelu { alpha } if !alpha.is_finite())
        {
            return invalid("alpha", "finite");
        }
        Ok(())
    }
}

/// A convolution ready to run: tables, kernels, operand sizes.
#[derive(Clone, Debug)]
pub struct ConvPlan {
    params: ConvParams,
    kernels: &'static [ConvKernel],
    k_tiles: Vec<KTile>,
    phases: Vec<Phase>,
    /// The activation, if the tiles do not do it in registers.
    post: Option<UnaryKernel>,
    /// Units per (image, K tile, phase).
    parts: usize,
    x_len: usize,
    y_len: usize,
    weights_len: usize,
}

impl ConvPlan {
    /// Checks the parameters and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if a size or attribute makes no sense,
    /// [`KernelError::Unsupported`] for one channel per group, [`KernelError::TooLarge`] if an
    /// operand would not fit the address space, [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &ConvParams) -> Result<Self, KernelError> {
        let p = params;
        isa.require()?;
        p.check()?;
        let c_blocks = match p.input {
            InputLayout::Blocked => p.c_in.div_ceil(C_BLOCK) * C_BLOCK,
            InputLayout::Interleaved => p.c_in,
        };
        let x_len = checked_len(OP, &[p.n, c_blocks, p.h_in, p.w_in])?;
        let y_len = checked_len(OP, &[p.n, p.c_out.div_ceil(C_BLOCK), C_BLOCK, p.h_out, p.w_out])?;
        // All padded input fits too, so that the offset of a tap does.
        let padded = |n: usize, i: usize| {
            let span = p.dilation[i].checked_mul(p.kernel[i])?;
            n.checked_mul(p.stride[i])?
                .checked_add(span)?
                .checked_add(p.pads[i])?
                .checked_add(p.pads[i + 2])
        };
        let (h, w) = (padded(p.h_in.max(p.h_out), 0), padded(p.w_in.max(p.w_out), 1));
        let (h, w) = h.zip(w).ok_or(KernelError::TooLarge { op: OP })?;
        checked_len(OP, &[c_blocks, h, w])?;
        let [f_h, f_w] = p.kernel;
        checked_len(OP, &[c_blocks + C_BLOCK, p.c_out + 2 * C_BLOCK, f_h, f_w])?;

        let kernels = kernels(isa);
        let mut k_tiles = k_tiles(p, kernels);
        let phases = phases(p, kernels, &mut k_tiles);
        let weights_len = k_tiles.last().map_or(0, |t| t.weights + t.weights_len(&phases));
        let most_tiles = phases.iter().map(Phase::most_tiles).max().unwrap_or(1);
        let wanted = if p.c_in > CHUNK { 16 } else { 32 };
        let parts = usize::div_ceil(wanted, p.n * k_tiles.len() * phases.len()).min(most_tiles);
        let post = post_kernel(isa, p.epilogue.activation)?;
        Ok(Self {
            params: p.clone(),
            kernels,
            k_tiles,
            phases,
            post,
            parts,
            x_len,
            y_len,
            weights_len,
        })
    }

    /// The ways of computing this, the one that `new` chooses first.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn candidates(isa: Isa, params: &ConvParams) -> Result<Vec<Choice>, KernelError> {
        Ok(alloc::vec![Self::new(isa, params)?.choice()])
    }

    /// The plan that computes this in the way given.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`KernelError::InvalidParam`] if `choice` is no candidate.
    pub fn with_choice(
        isa: Isa,
        params: &ConvParams,
        choice: &Choice,
    ) -> Result<Self, KernelError> {
        let plan = Self::new(isa, params)?;
        let (param, expected) = ("choice", "one of the candidates");
        let refused = KernelError::InvalidParam { op: OP, param, expected };
        if plan.choice() == *choice { Ok(plan) } else { Err(refused) }
    }

    /// The way in which it computes.
    pub fn choice(&self) -> Choice {
        let tiling = &self.phases[0].tilings[self.k_tiles[0].tiling];
        let info = &self.kernels[tiling.main_kernel()].info;
        let tile = [info.rows, info.w_ob, info.c_ob];
        Choice { algorithm: Algorithm::Direct, tile, chunk: CHUNK, block: 0 }
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the output (and of the residual), with the lanes past `c_out`.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Elements of the packed weights.
    pub fn weights_len(&self) -> usize {
        self.weights_len
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        self.params.c_out.div_ceil(C_BLOCK) * C_BLOCK
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.n * self.k_tiles.len() * self.phases.len() * self.parts
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        let tiling = &self.phases[0].tilings[self.k_tiles[0].tiling];
        self.kernels[tiling.main_kernel()].info.name
    }

    /// Packs weights `[c_out, c_in / groups, f_h, f_w]`, or `[c_in, c_out / groups, f_h, f_w]` if
    /// transposed, into the order in which the kernels read them.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_weights(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        let p = &self.params;
        let expected = p.c_out * (p.c_in / p.groups) * p.kernel[0] * p.kernel[1];
        check_len(OP, "weights", expected, src.len())?;
        check_len(OP, "packed weights", self.weights_len, dst.len())?;
        conv_pack::pack_weights(p, &self.k_tiles, &self.phases, src, dst);
        Ok(())
    }

    /// Copies the bias `[c_out]` and fills it up with zeros. An empty `src` means no bias.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if `src` or `dst` is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "packed bias", self.bias_len(), dst.len())?;
        let n = if src.is_empty() { 0 } else { self.params.c_out };
        check_len(OP, "bias", n, src.len())?;
        dst[..n].copy_from_slice(&src[..n]);
        dst[n..self.bias_len()].fill(0.0);
        Ok(())
    }

    /// Runs all units on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, or the residual is missing.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: &[f32],
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "input", self.x_len, x.len())?;
        check_len(OP, "packed weights", self.weights_len, weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "output", self.y_len, y.len())?;
        let mut added = core::ptr::null();
        if self.params.epilogue.residual {
            let residual = residual.unwrap_or(&[]);
            check_len(OP, "residual", self.y_len, residual.len())?;
            added = residual.as_ptr();
        }
        let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        // SAFETY: each operand has the length that the plan asks for, `y` is borrowed mutably and
        // so overlaps none, and `new` checked that the CPU has the instructions.
        unsafe { self.run(x, w, b, added, y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` are readable for [`x_len`](Self::x_len),
    ///   [`weights_len`](Self::weights_len) and [`bias_len`](Self::bias_len) elements, `residual`
    ///   for [`y_len`](Self::y_len) if the epilogue has one (else it is not read); `y` is readable
    ///   and writable for `y_len`. Any element alignment will do.
    /// * `y` overlaps no other operand, except that `residual` may be `y` itself if the input has
    ///   at most 256 channels per group.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`.
    pub unsafe fn run(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        residual: *const f32,
        y: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        debug_assert!(!x.is_null() && !weights.is_null() && !bias.is_null() && !y.is_null());
        debug_assert!(!self.params.epilogue.residual || !residual.is_null());
        let p = &self.params;
        let (x_image, y_image) = (self.x_len / p.n, self.y_len / p.n);
        for unit in units {
            let (unit, part) = (unit / self.parts, unit % self.parts);
            let (unit, phase) = (unit / self.phases.len(), unit % self.phases.len());
            let (image, k_tile) = (unit / self.k_tiles.len(), unit % self.k_tiles.len());
            let k_tile = &self.k_tiles[k_tile];
            let out = image * y_image + k_tile.block * p.h_out * p.w_out * C_BLOCK;
            let added = p.epilogue.residual.then(|| residual.wrapping_add(out));
            let operands = Operands {
                x: x.wrapping_add(image * x_image + k_tile.x_offset),
                weights: weights.wrapping_add(k_tile.weights),
                bias: bias.wrapping_add(k_tile.block * C_BLOCK),
                residual: added.unwrap_or(core::ptr::null()),
                y: y.wrapping_add(out),
            };
            // SAFETY: the operands are moved to this image and K tile, whose elements lie inside
            // those that the caller vouches for.
            unsafe { self.run_part(&operands, k_tile, phase, part) };
        }
    }

    /// Runs one part of the tiles of one phase, one image, one K tile.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), with the operands already at the image and the K tile.
    unsafe fn run_part(&self, operands: &Operands, k_tile: &KTile, phase: usize, part: usize) {
        let weights = k_tile.phase_weights(&self.phases, phase);
        let phase = &self.phases[phase];
        let tiling = &phase.tilings[k_tile.tiling];
        let tiles = part * tiling.tiles / self.parts..(part + 1) * tiling.tiles / self.parts;
        let shape = &phase.shape;
        let weights_per_channel = phase.taps() * k_tile.width;
        let mut c = 0;
        while c < k_tile.channels {
            let channels = CHUNK.min(k_tile.channels - c);
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
                if let Some(post) = self.post.filter(|_| args.last) {
                    // SAFETY: these are the outputs that the tile just wrote.
                    unsafe { activate(&post, &self.kernels[col.kernel], shape, args.o) };
                }
            });
            c += channels;
        }
    }
}

/// The kernel that follows the tiles, for an activation that they do not do.
pub(crate) fn post_kernel(
    isa: Isa,
    activation: Activation,
) -> Result<Option<UnaryKernel>, KernelError> {
    let op = UnaryOp::from_activation(activation).filter(|_| activation.in_tile().is_none());
    op.map(|op| UnaryKernel::new(isa, op)).transpose()
}

/// Applies an activation to the outputs of a tile, while they are in the L1 cache.
///
/// # Safety
///
/// The outputs of a tile of `kernel` at `o` are writable, and no other thread uses them.
unsafe fn activate(post: &UnaryKernel, kernel: &ConvKernel, shape: &TileShape, o: *mut f32) {
    let info = &kernel.info;
    let dense = shape.o_step == C_BLOCK;
    let (runs, len) = if dense { (1, info.w_ob * C_BLOCK) } else { (info.w_ob, C_BLOCK) };
    for row in 0..info.rows {
        for plane in 0..info.c_ob / C_BLOCK {
            for run in 0..runs {
                let at = row * shape.o_row + plane * shape.o_plane + run * shape.o_step;
                let o = o.wrapping_add(at);
                // SAFETY: `len` outputs of the tile lie here, side by side.
                unsafe { post.call(o, o, len) };
            }
        }
    }
}

/// The operands at one image and one K tile.
struct Operands {
    x: *const f32,
    weights: *const f32,
    bias: *const f32,
    residual: *const f32,
    y: *mut f32,
}
