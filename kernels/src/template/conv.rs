//! Convolution and transposed convolution (ONNX `Conv`, `ConvTranspose`), any group count but one
//! channel per group.
//!
//! A plan is a choice among `conv_direct`, which computes the definition, and `winograd` for 3 x 3
//! filters at stride 1, which needs a fraction of the multiplications. The rule estimates the time
//! of both; a tuner may choose among [`ConvPlan::candidates`].

use super::conv_direct::{self, Direct};
use super::conv_geometry::TileBound;
use super::unary::{UnaryKernel, UnaryOp};
use super::winograd::{self, Winograd};
use crate::error::{check_len, checked_len};
use crate::{Activation, Algorithm, C_BLOCK, Choice, Epilogue, Isa, KernelError};
use alloc::{boxed::Box, vec, vec::Vec};
use core::ops::Range;

pub use super::conv_reference::reference;
pub(crate) use super::conv_tile::kernels;

const OP: &str = "conv";

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
    /// Whether Winograd's algorithm may be used. It computes 3 x 3 filters at stride 1 from sums and
    /// differences of the inputs of a tile: with normally distributed operands no result differs from
    /// the exact one by more than 2e-5 times the root mean square of the outputs, about as with plain
    /// f32 sums. But the error is relative to the largest inputs near an output, not to its own
    /// window, and an infinity or NaN may make all 16 outputs of each 6 x 6 tile that sees it NaN.
    pub winograd: bool,
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
            winograd: true,
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

    /// Computed as defined, not by Winograd's algorithm.
    #[must_use]
    pub fn direct(self) -> Self {
        Self { winograd: false, ..self }
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

    pub(super) fn check(&self) -> Result<(), KernelError> {
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
    implementation: Implementation,
    /// The activation, if the tiles do not do it in registers.
    post: Option<UnaryKernel>,
    x_len: usize,
    y_len: usize,
}

#[derive(Clone, Debug)]
enum Implementation {
    Direct(Box<Direct>),
    Winograd(Box<Winograd>),
}

macro_rules! each {
    ($plan:expr, $i:ident => $body:expr) => {
        match &$plan.implementation {
            Implementation::Direct($i) => $body,
            Implementation::Winograd($i) => $body,
        }
    };
}

/// The operands of a run.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) x: *const f32,
    pub(crate) weights: *const f32,
    pub(crate) bias: *const f32,
    /// Null if there is none.
    pub(crate) residual: *const f32,
    pub(crate) y: *mut f32,
    /// Elements of an image of `x` and of `y`.
    pub(crate) x_image: usize,
    pub(crate) y_image: usize,
}

impl ConvPlan {
    /// Checks the parameters and chooses algorithm and kernels by estimated time.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if a size or attribute makes no sense,
    /// [`KernelError::Unsupported`] for one channel per group, [`KernelError::TooLarge`] if an
    /// operand would not fit the address space, [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &ConvParams) -> Result<Self, KernelError> {
        let (x_len, y_len) = check(isa, params)?;
        let direct = Direct::new(isa, params, kernels(isa), TileBound::FREE, conv_direct::CHUNK);
        let time = direct.estimate();
        let best = winograd::candidates(isa, params, kernels(isa));
        let best = best.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let implementation = match best.filter(|c| c.0 < time) {
            Some((_, choice)) => implement(isa, params, &choice)?,
            None => Implementation::Direct(Box::new(direct)),
        };
        Self::with(isa, params, implementation, x_len, y_len)
    }

    /// The choices that a tuner may measure, all of them valid, the one of [`new`](Self::new)
    /// first.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn candidates(isa: Isa, params: &ConvParams) -> Result<Vec<Choice>, KernelError> {
        check(isa, params)?;
        let kernels = kernels(isa);
        let free = Direct::new(isa, params, kernels, TileBound::FREE, conv_direct::CHUNK);
        let mut list = winograd::candidates(isa, params, kernels);
        list.sort_by(|a, b| a.0.total_cmp(&b.0));
        let at = list.partition_point(|c| c.0 < free.estimate());
        let direct = conv_direct::candidates(isa, params, kernels, &free);
        list.splice(at..at, direct);
        Ok(list.into_iter().map(|c| c.1).collect())
    }

    /// The plan of a choice: one of [`candidates`](Self::candidates), or another one that fits.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and [`KernelError::InvalidParam`] if these parameters or this build
    /// have no such plan.
    pub fn with_choice(
        isa: Isa,
        params: &ConvParams,
        choice: &Choice,
    ) -> Result<Self, KernelError> {
        let (x_len, y_len) = check(isa, params)?;
        Self::with(isa, params, implement(isa, params, choice)?, x_len, y_len)
    }

    fn with(
        isa: Isa,
        params: &ConvParams,
        implementation: Implementation,
        x_len: usize,
        y_len: usize,
    ) -> Result<Self, KernelError> {
        let post = post_kernel(isa, params.epilogue.activation)?;
        Ok(Self { params: params.clone(), implementation, post, x_len, y_len })
    }

    /// What this plan does. The tile is the largest one in use.
    pub fn choice(&self) -> Choice {
        each!(self, i => i.choice())
    }

    /// The parameters it was made for.
    pub fn params(&self) -> &ConvParams {
        &self.params
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        each!(self, i => i.isa())
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
        each!(self, i => i.weights_len())
    }

    /// Elements of the packed bias.
    pub fn bias_len(&self) -> usize {
        self.params.c_out.div_ceil(C_BLOCK) * C_BLOCK
    }

    /// Elements of scratch memory that each thread needs.
    pub fn scratch_len(&self) -> usize {
        match &self.implementation {
            Implementation::Direct(_) => 0,
            Implementation::Winograd(i) => i.scratch_len(),
        }
    }

    /// Independent units of work. Neighbouring ones share some of it: give a thread a range.
    pub fn units(&self) -> usize {
        each!(self, i => i.units())
    }

    /// The microkernel that does most of the work, or the transform of Winograd's algorithm.
    pub fn kernel_name(&self) -> &'static str {
        each!(self, i => i.kernel_name())
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
        check_len(OP, "packed weights", self.weights_len(), dst.len())?;
        each!(self, i => i.pack_weights(src, dst));
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

    /// Runs all units on this thread, with scratch memory of its own.
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
        check_len(OP, "packed weights", self.weights_len(), weights.len())?;
        check_len(OP, "packed bias", self.bias_len(), bias.len())?;
        check_len(OP, "output", self.y_len, y.len())?;
        let mut added = core::ptr::null();
        if self.params.epilogue.residual {
            let residual = residual.unwrap_or(&[]);
            check_len(OP, "residual", self.y_len, residual.len())?;
            added = residual.as_ptr();
        }
        let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
        let mut scratch = vec![0.0; self.scratch_len()];
        let scratch = scratch.as_mut_ptr();
        // SAFETY: each operand has the length that the plan asks for, `y` is borrowed mutably and
        // so overlaps none, and `new` checked that the CPU has the instructions.
        unsafe { self.run(x, w, b, added, y.as_mut_ptr(), scratch, 0..self.units()) };
        Ok(())
    }

    /// Runs some units. Allocates nothing and takes no lock.
    ///
    /// # Safety
    ///
    /// * `x`, `weights` and `bias` are readable for [`x_len`](Self::x_len),
    ///   [`weights_len`](Self::weights_len) and [`bias_len`](Self::bias_len) elements, `residual`
    ///   for [`y_len`](Self::y_len) if the epilogue has one (else it is not read); `y` is readable
    ///   and writable for `y_len`, `scratch` for [`scratch_len`](Self::scratch_len) (it holds
    ///   nothing between runs). Any element alignment will do.
    /// * `y` and `scratch` overlap no other operand, except that `residual` may be `y` itself if
    ///   the chunk of [`choice`](Self::choice) holds all input channels of a group.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`, or
    ///   uses this `scratch`.
    pub unsafe fn run(
        &self,
        x: *const f32,
        weights: *const f32,
        bias: *const f32,
        residual: *const f32,
        y: *mut f32,
        scratch: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        debug_assert!(!x.is_null() && !weights.is_null() && !bias.is_null() && !y.is_null());
        debug_assert!(!self.params.epilogue.residual || !residual.is_null());
        let p = &self.params;
        let residual = if p.epilogue.residual { residual } else { core::ptr::null() };
        let (x_image, y_image) = (self.x_len / p.n, self.y_len / p.n);
        let operands = Operands { x, weights, bias, residual, y, x_image, y_image };
        let post = self.post.as_ref();
        // SAFETY: the caller's promises are those that these functions ask for.
        unsafe {
            match &self.implementation {
                Implementation::Direct(i) => i.run(&operands, post, units),
                Implementation::Winograd(i) => i.run(&operands, scratch, post, units),
            }
        }
    }
}

impl ConvPlan {
    /// If it can compute rows of its output by themselves: the number of which their first must be a
    /// multiple.
    pub(crate) fn row_step(&self) -> Option<usize> {
        match &self.implementation {
            Implementation::Direct(i) => i.has_rows().then_some(1),
            Implementation::Winograd(i) => Some(i.tile_rows()),
        }
    }

    /// From now on the output has so many rows per plane, those that [`run_rows`](Self::run_rows)
    /// computes at a time: a multiple of [`row_step`](Self::row_step).
    pub(crate) fn set_rows(&mut self, rows: usize) {
        match &mut self.implementation {
            Implementation::Direct(i) => i.set_rows(rows),
            Implementation::Winograd(i) => i.set_rows(rows),
        }
    }

    /// Computes the rows `rows` of one image, all channels, to the first rows of the planes at `y`.
    ///
    /// # Safety
    ///
    /// * There is a [`row_step`](Self::row_step), and `rows.start` is a multiple of it.
    /// * `x`, `weights`, `bias` and `scratch` as for [`run`](Self::run); there is no residual.
    /// * `y` is readable and writable for all blocks of output channels of as many rows as
    ///   [`set_rows`](Self::set_rows) said, at least those of `rows`, and overlaps no other operand.
    /// * `image` and `rows` exist, and no other thread uses `y` or `scratch`.
    pub(crate) unsafe fn run_rows(
        &self,
        [x, weights, bias]: [*const f32; 3],
        y: *mut f32,
        scratch: *mut f32,
        image: usize,
        rows: Range<usize>,
    ) {
        let (x_image, y_image) = (self.x_len / self.params.n, 0);
        let residual = core::ptr::null();
        let operands = Operands { x, weights, bias, residual, y, x_image, y_image };
        let post = self.post.as_ref();
        // SAFETY: the caller's promises are those that these functions ask for.
        unsafe {
            match &self.implementation {
                Implementation::Direct(i) => i.run_rows(&operands, post, image, rows),
                Implementation::Winograd(i) => i.run_rows(&operands, scratch, post, image, rows),
            }
        }
    }
}

/// Elements of input and output, if everything makes sense and fits the address space.
fn check(isa: Isa, p: &ConvParams) -> Result<(usize, usize), KernelError> {
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
    Ok((x_len, y_len))
}

/// The implementation of a choice. Sizes that it does not have in exactly this form do not fit.
fn implement(isa: Isa, p: &ConvParams, choice: &Choice) -> Result<Implementation, KernelError> {
    let found = if choice.algorithm == Algorithm::Direct {
        let plan = Direct::chosen(isa, p, choice, kernels(isa));
        plan.filter(|i| i.choice() == *choice).map(|i| Implementation::Direct(Box::new(i)))
    } else {
        let plan = Winograd::new(isa, p, choice, kernels(isa))?;
        plan.filter(|i| i.choice() == *choice).map(|i| Implementation::Winograd(Box::new(i)))
    };
    let expected = "one that these parameters and this build have";
    found.ok_or(KernelError::InvalidParam { op: OP, param: "choice", expected })
}

/// The kernel that follows the tiles, for an activation that they do not do.
pub(crate) fn post_kernel(
    isa: Isa,
    activation: Activation,
) -> Result<Option<UnaryKernel>, KernelError> {
    let op = UnaryOp::from_activation(activation).filter(|_| activation.in_tile().is_none());
    op.map(|op| UnaryKernel::new(isa, op)).transpose()
}
