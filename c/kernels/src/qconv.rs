//! Convolutions and pooling of bytes.

use core::ffi::c_void;

use tilewright_kernels::{KernelError, QconvParams, QconvPlan, QuantColumns};

use crate::gemm::{byte_type, bytes, second, tw_quant};
use crate::kernel::{
    Aligned, Plan, Weights, given, isa, make, tw_kernel, tw_kernel_sizes, tw_operands,
};
use crate::status::tw_status;
use crate::window::tw_window;

/// Makes a kernel of a convolution of bytes. Groups have whole blocks of 16 channels. `quant` says types and
/// zero points; scales are given with the weights. `memory` and errors are as at `tw_sgemm_new`, and
/// `TW_UNSUPPORTED` for other groups.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `window` and `quant` are NULL or as their types say; `memory` is NULL or writable for `bytes` bytes; `out`
/// is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_qconv_new(
    window: *const tw_window,
    quant: *const tw_quant,
    memory: *mut c_void,
    bytes: usize,
    out: *mut *mut tw_kernel,
) -> tw_status {
    // SAFETY: as the caller promises; any bytes are numbers and pointers.
    unsafe {
        make(memory, bytes, out, || {
            let (window, quant) = (given(window, "window")?, given(quant, "quant")?);
            let params = QconvParams {
                conv: window.conv()?,
                x: byte_type(quant.x_type, "x_type")?,
                x_zero_point: quant.x_zero_point,
                w: byte_type(quant.w_type, "w_type")?,
                terms: quant.w_terms.max(1) as usize,
                output: quant.output()?,
            };
            Ok(QconvPlan::new(isa(window.isa)?, &params)?)
        })
    }
}

impl Plan for QconvPlan {
    fn sizes(&self) -> tw_kernel_sizes {
        tw_kernel_sizes {
            x: self.x_len(),
            packed: 4 * (second(self.weights_len()) + self.columns_len()),
            y: self.params().output.dtype().size() * self.y_len(),
            residual: 0,
            scratch: 4 * self.scratch_len(),
        }
    }

    fn aligned(&self) -> Aligned {
        Aligned { x: 1, y: self.params().output.dtype().size() }
    }

    fn pack(&self, weights: &Weights<'_>, dst: &mut [i32]) -> Result<(), KernelError> {
        let p = self.params();
        let (w, columns) = dst.split_at_mut(second(self.weights_len()));
        self.pack_weights(bytes(weights, p.w, "qconv")?, weights.zero_points, w)?;
        let quant = QuantColumns {
            bias: weights.bias("qconv", p.conv.c_out)?,
            zero_point: p.x_zero_point,
            scales: weights.scales,
            shifts: &[],
        };
        self.pack_columns(w, &quant, columns)
    }

    unsafe fn run(&self, x: &tw_operands) {
        let weights = x.packed.cast::<i32>();
        let columns = weights.wrapping_add(second(self.weights_len()));
        let (from, scratch) = (x.x.cast(), x.scratch.cast::<i32>());
        // SAFETY: the operands have the bytes that `sizes` says; one thread runs first what converts,
        // then what multiplies.
        unsafe {
            self.run_convert(from, scratch, 0..self.convert_units());
            self.run(from, scratch, weights, columns, x.y.cast(), 0..self.units());
        }
    }
}

#[cfg(feature = "alloc")]
pub use lists::*;

#[cfg(feature = "alloc")]
mod lists {
    use super::*;
    use tilewright_kernels::{QdepthwiseParams, QdepthwisePlan, QpoolParams, QpoolPlan};

    use crate::error::Fail;
    use crate::kernel::floats;

    /// Makes a kernel of a depthwise convolution of bytes, with a result of bytes. All else is as at
    /// `tw_qconv_new`; `groups` is not read.
    ///
    /// Any thread may call it, several at a time.
    ///
    /// # Safety
    /// As `tw_qconv_new`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn tw_qdepthwise_new(
        window: *const tw_window,
        quant: *const tw_quant,
        memory: *mut c_void,
        bytes: usize,
        out: *mut *mut tw_kernel,
    ) -> tw_status {
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        unsafe {
            make(memory, bytes, out, || {
                let (window, quant) = (given(window, "window")?, given(quant, "quant")?);
                let params = QdepthwiseParams {
                    conv: window.depthwise()?,
                    x: byte_type(quant.x_type, "x_type")?,
                    x_zero_point: quant.x_zero_point,
                    w: byte_type(quant.w_type, "w_type")?,
                    terms: quant.w_terms.max(1) as usize,
                    output: quant.output()?,
                };
                Ok(QdepthwisePlan::new(isa(window.isa)?, &params)?)
            })
        }
    }

    impl Plan for QdepthwisePlan {
        fn sizes(&self) -> tw_kernel_sizes {
            tw_kernel_sizes {
                x: self.x_len(),
                packed: 4 * (second(self.weights_len()) + self.columns_len()),
                y: self.y_len(),
                ..Default::default()
            }
        }

        fn aligned(&self) -> Aligned {
            Aligned { x: 1, y: 1 }
        }

        fn pack(&self, weights: &Weights<'_>, dst: &mut [i32]) -> Result<(), KernelError> {
            let p = self.params();
            let (w, columns) = floats(dst).split_at_mut(second(self.weights_len()));
            self.pack_weights(bytes(weights, p.w, "qdepthwise")?, weights.zero_points, w)?;
            let quant = QuantColumns {
                bias: weights.bias("qdepthwise", p.conv.c)?,
                zero_point: p.x_zero_point,
                scales: weights.scales,
                shifts: &[],
            };
            self.pack_columns(&quant, columns)
        }

        unsafe fn run(&self, x: &tw_operands) {
            let weights = x.packed.cast::<f32>();
            let columns = weights.wrapping_add(second(self.weights_len()));
            // SAFETY: the operands have the bytes that `sizes` says.
            unsafe { self.run(x.x.cast(), weights, columns, x.y.cast(), 0..self.units()) };
        }
    }

    /// Makes a kernel of a pooling of bytes: input and output have the type `x_type`. `op` is a `tw_pooling`.
    /// For an average, `scale` is that of the input divided by that of the output, 1 if they are the same;
    /// zero points are those of `quant`, whose other members are not read.
    ///
    /// Any thread may call it, several at a time.
    ///
    /// # Safety
    /// As `tw_qconv_new`.
    #[unsafe(no_mangle)]
    pub unsafe extern "C" fn tw_qpool_new(
        window: *const tw_window,
        op: i32,
        quant: *const tw_quant,
        scale: f32,
        memory: *mut c_void,
        bytes: usize,
        out: *mut *mut tw_kernel,
    ) -> tw_status {
        // SAFETY: as the caller promises; any bytes are numbers and pointers.
        unsafe {
            make(memory, bytes, out, || {
                let (window, quant) = (given(window, "window")?, given(quant, "quant")?);
                if !scale.is_finite() {
                    return Err(Fail::Argument("scale", "finite"));
                }
                let params = QpoolParams {
                    pool: window.pool(op)?,
                    dtype: byte_type(quant.x_type, "x_type")?,
                    x_zero_point: quant.x_zero_point,
                    y_zero_point: quant.y_zero_point,
                    scale,
                };
                Ok(QpoolPlan::new(isa(window.isa)?, &params)?)
            })
        }
    }

    impl Plan for QpoolPlan {
        fn sizes(&self) -> tw_kernel_sizes {
            tw_kernel_sizes { x: self.x_len(), y: self.y_len(), ..Default::default() }
        }

        fn aligned(&self) -> Aligned {
            Aligned { x: 1, y: 1 }
        }

        fn pack(&self, _: &Weights<'_>, _: &mut [i32]) -> Result<(), KernelError> {
            Ok(())
        }

        unsafe fn run(&self, x: &tw_operands) {
            // SAFETY: the operands have the bytes that `sizes` says.
            unsafe { self.run(x.x.cast(), x.y.cast(), 0..self.units()) };
        }
    }
}
