//! Convolution and transposed convolution (ONNX `Conv`, `ConvTranspose`), any group count but one
//! channel per group.
//!
//! A 1 x 1 convolution of blocks is a product (`conv_product`). For others a plan is a choice among
//! `conv_direct`, which computes the definition, and `winograd` for 3 x 3 filters at stride 1, which needs
//! a fraction of the multiplications. The rule estimates the time of both; a tuner may choose among
//! [`ConvPlan::candidates`].

use super::conv_direct::{self, Direct};
use super::conv_geometry::TileBound;
use super::conv_product::Product;
use super::unary::{UnaryKernel, post_kernel};
use super::winograd::Winograd;
use super::winograd_choice;
use crate::error::{check_extents, check_len, checked_len};
use crate::{Algorithm, C_BLOCK, Choice, Isa, KernelError};
use alloc::{boxed::Box, vec, vec::Vec};
use core::ops::Range;

pub use super::conv_params::{ConvParams, InputLayout};
pub use super::conv_reference::reference;
pub(crate) use super::conv_tile::kernels;

const OP: &str = "conv";

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
    Product(Box<Product>),
    Winograd(Box<Winograd>),
}

macro_rules! each {
    ($plan:expr, $i:ident => $body:expr) => {
        match &$plan.implementation {
            Implementation::Direct($i) => $body,
            Implementation::Product($i) => $body,
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
        if Product::supports(isa, params) {
            let product = Product::new(isa, params, None)?;
            let implementation = Implementation::Product(Box::new(product));
            return Self::with(isa, params, implementation, x_len, y_len);
        }
        let direct = Direct::new(isa, params, kernels(isa), TileBound::FREE, conv_direct::CHUNK);
        let time = direct.estimate();
        let best = winograd_choice::candidates(isa, params, kernels(isa));
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
        if Product::supports(isa, params) {
            return Product::candidates(isa, params);
        }
        let kernels = kernels(isa);
        let free = Direct::new(isa, params, kernels, TileBound::FREE, conv_direct::CHUNK);
        let mut list = winograd_choice::candidates(isa, params, kernels);
        conv_direct::by_time(&mut list);
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
            Implementation::Product(i) => i.scratch_len(),
            Implementation::Winograd(i) => i.scratch_len(),
        }
    }

    /// Independent units of work. Neighbouring ones share some of it: give a thread a range.
    pub fn units(&self) -> usize {
        each!(self, i => i.units())
    }

    /// The share of all work that each range of units that is run by itself repeats.
    pub fn repeated(&self) -> f64 {
        match &self.implementation {
            Implementation::Direct(_) | Implementation::Product(_) => 0.0,
            Implementation::Winograd(i) => i.repeated_per_range(),
        }
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
        match &self.implementation {
            Implementation::Direct(i) => i.pack_weights(src, dst),
            Implementation::Product(i) => i.pack_weights(src, dst)?,
            Implementation::Winograd(i) => i.pack_weights(src, dst),
        }
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
                Implementation::Product(i) => i.run(&operands, scratch, units),
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
            Implementation::Product(_) => None,
            Implementation::Winograd(i) => Some(i.tile_rows()),
        }
    }

    /// From now on the output has so many rows per plane, those that [`run_rows`](Self::run_rows)
    /// computes at a time: a multiple of [`row_step`](Self::row_step).
    pub(crate) fn set_rows(&mut self, rows: usize) {
        match &mut self.implementation {
            Implementation::Direct(i) => i.set_rows(rows),
            Implementation::Product(i) => i.set_pixels(rows * self.params.w_out),
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
                Implementation::Product(_) => unreachable!("a product has no row step"),
                Implementation::Winograd(i) => i.run_rows(&operands, scratch, post, image, rows),
            }
        }
    }
}

/// Elements of input and output, if everything makes sense and fits the address space.
#[inline(never)]
pub(super) fn check(isa: Isa, p: &ConvParams) -> Result<(usize, usize), KernelError> {
    isa.require()?;
    p.check()?;
    let [f_h, f_w] = p.kernel;
    check_extents(OP, &[p.c_in, p.c_out, p.h_in, p.w_in, p.h_out, p.w_out, f_h, f_w])?;
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
    checked_len(OP, &[c_blocks + C_BLOCK, p.c_out + 2 * C_BLOCK, f_h, f_w])?;
    Ok((x_len, y_len))
}

/// The implementation of a choice. Sizes that it does not have in exactly this form do not fit.
fn implement(isa: Isa, p: &ConvParams, choice: &Choice) -> Result<Implementation, KernelError> {
    if Product::supports(isa, p) {
        let product = Product::new(isa, p, Some(choice))?;
        return Ok(Implementation::Product(Box::new(product)));
    }
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
