//! Convolution of bytes (ONNX `ConvInteger`, `QLinearConv`), blocked `[n, ceil(c / 16), h, w, 16]`,
//! exact.
//!
//! Two ways: `qconv_direct`, the product of bytes with all taps, and `qwinograd` for 3 x 3 filters at
//! stride 1, which takes fewer products where the instruction set multiplies pairs of `i16`. Both are exact.
//!
//! Weights are packed less their zero points.

use super::conv_params::InputLayout;
use super::dot_tile::{Finish, row};
use super::qconv_direct::Direct;
pub use super::qconv_params::QconvParams;
use super::qconv_params::{OP, Weights};
use super::qmatmul::{check_columns, check_type, check_zero_points, column};
use super::qwinograd::{Operands, Qwinograd};
use crate::epilogue::TileActivation;
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantColumns, QuantResult};
use crate::{C_BLOCK, Dtype, Isa, KernelError};
use core::ops::Range;

#[cfg(any(feature = "alloc", test))]
pub use super::qconv_reference::reference;

/// A convolution of bytes ready to run, in two steps as [`QmatmulPlan`](crate::QmatmulPlan).
#[derive(Clone, Debug)]
pub struct QconvPlan {
    params: QconvParams,
    way: Way,
    /// What a byte of the input gains before it is multiplied.
    shift: i32,
    lens: [usize; 2],
}

#[derive(Clone, Debug)]
enum Way {
    Direct(Direct),
    Winograd(Qwinograd),
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
        let blocks = |n: usize| n.div_ceil(C_BLOCK);
        let interleaved = c.input == InputLayout::Interleaved;
        let lanes = if interleaved { c.c_in } else { C_BLOCK * blocks(c.c_in) };
        let x_len = checked_len(OP, &[c.n, lanes, c.h_in, c.w_in])?;
        let y_len = checked_len(OP, &[c.n, blocks(c.c_out), C_BLOCK, c.h_out, c.w_out])?;
        let activation = c.epilogue.activation.in_tile().unwrap_or(TileActivation::None);
        let finish = Finish::of(params.output, activation);
        let (way, shift) = match Qwinograd::new(isa, params, row(isa, Dtype::I8), finish)? {
            Some(plan) => (Way::Winograd(plan), 0),
            None => {
                let direct = Direct::new(isa, params, finish)?;
                let shift = direct.shift(params);
                (Way::Direct(direct), shift)
            }
        };
        Ok(Self { params: params.clone(), way, shift, lens: [x_len, y_len] })
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
        match &self.way {
            Way::Direct(plan) => plan.weights_len(),
            Way::Winograd(plan) => plan.weights_len(),
        }
    }

    /// What the order of the packed weights depends on, the width of the panels and the kernels: plans that differ in
    /// sizes of images or pads only, and agree in this, share them.
    pub fn packing(&self) -> (usize, &'static str) {
        match &self.way {
            Way::Direct(plan) => plan.packing(),
            Way::Winograd(plan) => plan.packing(),
        }
    }

    /// Words of what follows the sums.
    pub fn columns_len(&self) -> usize {
        3 * self.columns() * self.params.conv.c_out.div_ceil(self.band())
    }

    /// Output channels whose panels lie together.
    fn band(&self) -> usize {
        match &self.way {
            Way::Direct(plan) => plan.band(),
            Way::Winograd(_) => self.params.conv.c_out,
        }
    }

    /// Columns of their panels.
    fn columns(&self) -> usize {
        match &self.way {
            Way::Direct(plan) => plan.columns(),
            Way::Winograd(plan) => plan.columns(),
        }
    }

    /// Words of the padded or converted input, 0 if it is read where it lies.
    pub fn scratch_len(&self) -> usize {
        match &self.way {
            Way::Direct(plan) => plan.scratch_len(&self.params),
            Way::Winograd(_) => 0,
        }
    }

    /// Words of memory that each thread needs for itself while it runs units.
    pub fn local_len(&self) -> usize {
        match &self.way {
            Way::Direct(_) => 0,
            Way::Winograd(plan) => plan.local_len(),
        }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match &self.way {
            Way::Direct(plan) => plan.units(&self.params),
            Way::Winograd(plan) => plan.units(),
        }
    }

    /// Independent units of converting the input: channel blocks.
    pub fn convert_units(&self) -> usize {
        match &self.way {
            Way::Direct(plan) => plan.convert_units(&self.params),
            Way::Winograd(_) => 0,
        }
    }

    /// The microkernel that does most of the work.
    pub fn kernel_name(&self) -> &'static str {
        match &self.way {
            Way::Direct(plan) => plan.kernel_name(),
            Way::Winograd(plan) => plan.kernel_name(),
        }
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
        let w = Weights::new(w, zero_points);
        let all = c.c_in / c.groups * f_h * f_w;
        let (low, span) = (-128 * p.terms as i32, 255 * p.terms as u32);
        let fits = |k: usize| w.lie_in(k * all..(k + 1) * all, k, low, span);
        if !(0..c.c_out).all(fits) {
            let (param, expected) = ("weight", "a sum of as many signed bytes as said");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        match &self.way {
            Way::Direct(plan) => plan.pack(p, &w, dst),
            Way::Winograd(plan) => plan.pack(p, &w, dst),
        }
        Ok(())
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
        let (zero, width) = (p.x_zero_point + self.shift, self.columns());
        for (band, dst) in dst[..self.columns_len()].chunks_exact_mut(3 * width).enumerate() {
            dst.fill(0);
            let first = band * self.band();
            for k in first..c.c_out.min(first + self.band()) {
                let n = k - first;
                let bias = columns.bias.get(k).copied().unwrap_or(0);
                let (scale, shift) = column(columns, k);
                dst[n] = match &self.way {
                    Way::Direct(plan) => {
                        let sum = plan.sums(band, weights)[n];
                        bias.wrapping_sub(zero.wrapping_mul(sum))
                    }
                    // Transformed inputs are less their zero point.
                    Way::Winograd(_) => bias,
                };
                dst[width + n] = scale.to_bits() as i32;
                dst[2 * width + n] = shift.to_bits() as i32;
            }
        }
        Ok(())
    }

    /// Runs all units on this thread, on packed weights and prepared columns. The scratch memory has
    /// [`scratch_len`](Self::scratch_len) and then [`local_len`](Self::local_len) words.
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
        check_len(OP, "scratch", self.scratch_len() + self.local_len(), scratch.len())?;
        check_len(OP, "output", self.y_len(), y_len)?;
        let (x, scratch) = (x.as_ptr(), scratch.as_mut_ptr());
        // SAFETY: each operand has the type and the length that the plan asks for, scratch and `y`
        // are borrowed mutably and so overlap none, and `new` checked that the CPU has the
        // instructions.
        unsafe {
            let local = scratch.add(self.scratch_len());
            self.run_convert(x, scratch, 0..self.convert_units());
            self.run(x, scratch, weights.as_ptr(), columns.as_ptr(), y, local, 0..self.units());
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
        if let Way::Direct(plan) = &self.way {
            // SAFETY: the caller's promises.
            unsafe { plan.run_convert(&self.params, x, scratch, units) };
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
    ///   by this plan; `y` is writable for [`y_len`](Self::y_len) elements of the output type, `local`
    ///   for [`local_len`](Self::local_len) words, which no other thread uses. All but `x` are aligned.
    /// * `y` and `local` overlap no other operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs one of them on this `y`.
    pub unsafe fn run(
        &self,
        x: *const u8,
        scratch: *const i32,
        weights: *const i32,
        columns: *const i32,
        y: *mut u8,
        local: *mut i32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        match &self.way {
            // SAFETY: the caller's promises.
            Way::Direct(plan) => unsafe {
                plan.run(&self.params, x, scratch, weights, columns, y, units)
            },
            // SAFETY: the caller's promises.
            Way::Winograd(plan) => unsafe {
                plan.run(&Operands { x, weights, columns, y, local }, units)
            },
        }
    }
}
