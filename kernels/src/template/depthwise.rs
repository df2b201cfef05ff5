//! Depthwise convolution: each channel has its own filter.
//!
//! Input, output and residual are blocked. Weights are packed `[ceil(c / 16), f_h, f_w, 16]`. A tile
//! is up to 8 pixels of an output row times one vector of channels; see `window.rs`.

use super::unary::{self, UnaryKernel};
use super::window::{ByteWindow, Window, WindowArgs, WindowKernel, WindowSizes};
use super::window_kernel::*;
use crate::error::check_len;
use crate::{C_BLOCK, Dtype, Epilogue, Isa, KernelError, KernelInfo};
use core::ops::Range;

/// Sizes and attributes of a depthwise convolution, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DepthwiseParams {
    /// Images.
    pub n: usize,
    /// Channels of input and output.
    pub c: usize,
    /// Input rows.
    pub h_in: usize,
    /// Input columns.
    pub w_in: usize,
    /// Output rows: `(h_in + pads - dilation * (kernel - 1) - 1) / stride + 1`, rounded down.
    pub h_out: usize,
    /// Output columns, by the same formula.
    pub w_out: usize,
    /// Filter rows and columns.
    pub kernel: [usize; 2],
    /// Input pixels between neighbouring windows.
    pub stride: [usize; 2],
    /// Input pixels between neighbouring taps.
    pub dilation: [usize; 2],
    /// Zero pixels around the input: top, left, bottom, right.
    pub pads: [usize; 4],
    /// What happens to a result before it is stored.
    pub epilogue: Epilogue,
}

impl From<&DepthwiseParams> for WindowSizes {
    fn from(p: &DepthwiseParams) -> Self {
        Self {
            n: p.n,
            c: p.c,
            input: [p.h_in, p.w_in],
            output: [p.h_out, p.w_out],
            kernel: p.kernel,
            stride: p.stride,
            dilation: p.dilation,
            pads: p.pads,
        }
    }
}

/// A depthwise convolution of fixed sizes.
///
/// Where a tap falls on padding its product is taken as 0 or left out: a weight that is not finite
/// has no defined effect there.
#[derive(Clone, Debug)]
pub struct DepthwisePlan {
    isa: Isa,
    window: Window,
    kernels: [WindowKernel; 2],
    residual: bool,
    after: Option<UnaryKernel>,
}

const OP: &str = "depthwise";

impl DepthwisePlan {
    /// Plans a convolution.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if a size is 0 or the output size is not what the others give,
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &DepthwiseParams) -> Result<Self, KernelError> {
        isa.require()?;
        let sizes = WindowSizes::from(p);
        let kernels = kernels(isa);
        let mut window = Window::new(OP, sizes, false, kernels.len())?;
        let after = match p.epilogue.activation.short_in_tile() {
            None => unary::activation_kernel(isa, p.epilogue.activation),
            Some(activation) => {
                window.activation = activation;
                None
            }
        };
        let kernels = window.kernels(kernels);
        Ok(Self { isa, window, kernels, residual: p.epilogue.residual, after })
    }

    /// Elements of the input.
    pub fn x_len(&self) -> usize {
        self.window.x_len
    }

    /// Elements of the output, and of the residual.
    pub fn y_len(&self) -> usize {
        self.window.y_len
    }

    /// Elements of the packed weights.
    pub fn weights_len(&self) -> usize {
        let s = &self.window.sizes;
        s.c.next_multiple_of(C_BLOCK) * s.kernel[0] * s.kernel[1]
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        self.window.sizes.c.next_multiple_of(C_BLOCK)
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.window.units()
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.kernels[1].info.name
    }

    /// Packs weights `[c, 1, f_h, f_w]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn pack_weights(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        let s = &self.window.sizes;
        let taps = s.kernel[0] * s.kernel[1];
        check_len(OP, "weights", s.c * taps, src.len())?;
        check_len(OP, "packed weights", self.weights_len(), dst.len())?;
        for (i, y) in dst[..self.weights_len()].iter_mut().enumerate() {
            let (block, tap, lane) = (i / (taps * C_BLOCK), i / C_BLOCK % taps, i % C_BLOCK);
            let c = block * C_BLOCK + lane;
            *y = if c < s.c { src[c * taps + tap] } else { 0.0 };
        }
        Ok(())
    }

    /// Packs a bias of `c` elements; an empty one is 0.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn pack_bias(&self, src: &[f32], dst: &mut [f32]) -> Result<(), KernelError> {
        let c = self.window.sizes.c;
        check_len(OP, "bias", if src.is_empty() { 0 } else { c }, src.len())?;
        check_len(OP, "packed bias", self.bias_len(), dst.len())?;
        for (i, y) in dst[..self.bias_len()].iter_mut().enumerate() {
            *y = if i < c && !src.is_empty() { src[i] } else { 0.0 };
        }
        Ok(())
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` have [`x_len`](Self::x_len), [`weights_len`](Self::weights_len)
    ///   and [`bias_len`](Self::bias_len) readable elements, the latter two packed by this plan.
    /// * `residual` has [`y_len`](Self::y_len) readable elements if the epilogue has a residual;
    ///   else it is not used.
    /// * `y` has [`y_len`](Self::y_len) writable elements. It overlaps no operand, but may be the
    ///   residual.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
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
        debug_assert!(!self.residual || !residual.is_null());
        let s = &self.window.sizes;
        let x_plane = s.input[0] * s.input[1] * C_BLOCK;
        let y_row = s.output[1] * C_BLOCK;
        let blocks = s.c.div_ceil(C_BLOCK);
        self.window.for_each(units, |plane, rows| {
            let block = plane % blocks;
            let y_at = plane * s.output[0] * y_row;
            let done = y.wrapping_add(y_at + rows.start * y_row);
            let len = rows.len() * y_row;
            let args = WindowArgs {
                x: x.wrapping_add(plane * x_plane),
                weights: weights.wrapping_add(block * s.kernel[0] * s.kernel[1] * C_BLOCK),
                bias: bias.wrapping_add(block * C_BLOCK),
                residual: if self.residual {
                    residual.wrapping_add(y_at)
                } else {
                    core::ptr::null()
                },
                y: y.wrapping_add(y_at),
                rows,
                run: 0,
                channels: self.window.channels(plane),
                bytes: ByteWindow::default(),
            };
            // SAFETY: the ISA is available; planes and rows lie in the operands, which the caller
            // owns, by construction of the units.
            unsafe { self.window.run(&self.kernels, args) };
            // SAFETY: whole rows of the unit, just written.
            unsafe { self.activate(done, len, self.window.channels(plane)) };
        });
    }

    /// What the epilogue's activation does to the `len` elements at `y`, rows of a block of which
    /// `channels` were computed.
    ///
    /// # Safety
    ///
    /// The elements are writable, and no other thread uses them.
    unsafe fn activate(&self, y: *mut f32, len: usize, channels: usize) {
        let Some(after) = &self.after else { return };
        // Tiles need not have written lanes that are no channels.
        if channels < C_BLOCK {
            for at in (channels..len).step_by(C_BLOCK) {
                // SAFETY: the last elements of a pixel.
                unsafe { y.add(at).write_bytes(0, C_BLOCK - channels) };
            }
        }
        // SAFETY: the elements, all written; in place.
        unsafe { after.call(y, y, len) };
    }

    /// Computes the rows `rows` of one image, all channels, to planes at `y` that have these rows only.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` as for [`run`](Self::run); there is no residual.
    /// * `y` is writable for all blocks of channels of these rows, and overlaps no operand.
    /// * `image` and `rows` exist, and no other thread uses `y`.
    pub(crate) unsafe fn run_rows(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        y: *mut f32,
        image: usize,
        rows: Range<usize>,
    ) {
        let s = &self.window.sizes;
        let (x_plane, y_row) = (s.input[0] * s.input[1] * C_BLOCK, s.output[1] * C_BLOCK);
        let (blocks, len) = (s.c.div_ceil(C_BLOCK), rows.len() * y_row);
        for block in 0..blocks {
            let done = y.wrapping_add(block * len);
            let args = WindowArgs {
                x: x.wrapping_add((image * blocks + block) * x_plane),
                weights: weights.wrapping_add(block * s.kernel[0] * s.kernel[1] * C_BLOCK),
                bias: bias.wrapping_add(block * C_BLOCK),
                residual: core::ptr::null(),
                y: done.wrapping_sub(rows.start * y_row),
                rows: rows.clone(),
                run: 0,
                channels: self.window.channels(block),
                bytes: ByteWindow::default(),
            };
            // SAFETY: the ISA is available; the rows that are written lie at `done`, as the caller
            // promises, and begin there as if the plane were whole.
            unsafe { self.window.run(&self.kernels, args) };
            // SAFETY: the rows just written.
            unsafe { self.activate(done, len, self.window.channels(block)) };
        }
    }

    /// Computes `y` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short, [`KernelError::InvalidParam`] if
    /// there is a residual and the epilogue has none, or the other way round.
    pub fn compute(
        &self,
        x: &[f32],
        weights: &[f32],
        bias: &[f32],
        residual: Option<&[f32]>,
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len(), x.len())?;
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "y", self.y_len(), y.len())?;
        if residual.is_some() != self.residual {
            let expected = "given if and only if the epilogue has one";
            return Err(KernelError::InvalidParam { op: OP, param: "residual", expected });
        }
        let residual = match residual {
            Some(r) => {
                check_len(OP, "residual", self.y_len(), r.len())?;
                r.as_ptr()
            }
            None => core::ptr::null(),
        };
        let (x, weights, bias) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x, weights, bias, residual, y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

macro_rules! depthwise_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            #[cfg(not(feature = "few-kernels"))]
            window_kernels! { dw "depthwise", $tile $isa $isa_name $l $feat, [[3 1] [3 2] [5 1]] }
            #[cfg(feature = "few-kernels")]
            window_kernels! { widths dw "depthwise", $tile $isa $isa_name $l $feat, [[3 1] [3 2] [any any]], [1 2 3 4] }
        }
    };
}

tilewright_intrinsics::for_each_tile!(depthwise_row);

/// The microkernels of one instruction set, a list per tile width.
pub(crate) fn kernels(isa: Isa) -> &'static [&'static [WindowKernel]] {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNELS
}
