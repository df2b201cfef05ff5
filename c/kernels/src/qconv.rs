//! Convolutions and pooling of bytes.

use core::ffi::c_void;

use tilewright_kernels::{Bytes, KernelError, QconvParams, QconvPlan, QuantColumns};

use crate::gemm::{Quant, tw_quant};
use crate::kernel::{given, isa, make, tw_kernel};
use crate::plan::{At, BytePlan, Lens};
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
            let (window, quant) = (given(window, "window")?, Quant::read(quant)?);
            let params = QconvParams {
                conv: window.conv()?,
                x: quant.x,
                x_zero_point: quant.x_zero_point,
                w: quant.w,
                terms: quant.terms.max(1),
                small: false,
                output: quant.output,
            };
            Ok(quant.kernel(QconvPlan::new(isa(window.isa)?, &params)?, params.conv.c_out))
        })
    }
}

impl BytePlan for QconvPlan {
    const OP: &'static str = "qconv";

    fn lens(&self) -> Lens {
        Lens {
            x: self.x_len(),
            weights: self.weights_len(),
            columns: self.columns_len(),
            y: self.y_len(),
            scratch: self.scratch_len() + self.local_len(),
        }
    }

    fn pack(
        &self,
        weights: Bytes<'_>,
        zero_points: &[i32],
        columns: &QuantColumns<'_>,
        to: (&mut [i32], &mut [i32]),
    ) -> Result<(), KernelError> {
        self.pack_weights(weights, zero_points, to.0)?;
        self.pack_columns(to.0, columns, to.1)
    }

    unsafe fn run(&self, at: &At) {
        let (x, y) = (at.x.cast(), at.y.cast());
        // SAFETY: as the caller promises; one thread runs first what converts, then what multiplies.
        unsafe {
            let local = at.scratch.wrapping_add(self.scratch_len());
            self.run_convert(x, at.scratch, 0..self.convert_units());
            self.run(x, at.scratch, at.weights, at.columns, y, local, 0..self.units());
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
    use crate::gemm::byte_type;
    use crate::plan::{Quantized, floats};

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
                let (window, quant) = (given(window, "window")?, Quant::read(quant)?);
                let params = QdepthwiseParams {
                    conv: window.depthwise()?,
                    x: quant.x,
                    x_zero_point: quant.x_zero_point,
                    w: quant.w,
                    terms: quant.terms.max(1),
                    output: quant.output,
                };
                Ok(quant.kernel(QdepthwisePlan::new(isa(window.isa)?, &params)?, params.conv.c))
            })
        }
    }

    impl BytePlan for QdepthwisePlan {
        const OP: &'static str = "qdepthwise";

        fn lens(&self) -> Lens {
            Lens {
                x: self.x_len(),
                weights: self.weights_len(),
                columns: self.columns_len(),
                y: self.y_len(),
                scratch: 0,
            }
        }

        fn pack(
            &self,
            weights: Bytes<'_>,
            zero_points: &[i32],
            columns: &QuantColumns<'_>,
            to: (&mut [i32], &mut [i32]),
        ) -> Result<(), KernelError> {
            self.pack_weights(weights, zero_points, floats(to.0))?;
            self.pack_columns(columns, floats(to.1))
        }

        unsafe fn run(&self, at: &At) {
            let (x, weights, columns) = (at.x.cast(), at.weights.cast(), at.columns.cast());
            // SAFETY: as the caller promises.
            unsafe { self.run(x, weights, columns, at.y.cast(), 0..self.units()) };
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
                let plan = QpoolPlan::new(isa(window.isa)?, &params)?;
                let (w, y) = (params.dtype, params.dtype);
                Ok(Quantized { plan, w, x_zero_point: params.x_zero_point, columns: 0, y })
            })
        }
    }

    impl BytePlan for QpoolPlan {
        const OP: &'static str = "qpool";

        fn lens(&self) -> Lens {
            Lens { x: self.x_len(), y: self.y_len(), ..Default::default() }
        }

        unsafe fn run(&self, at: &At) {
            // SAFETY: as the caller promises.
            unsafe { self.run(at.x.cast(), at.y.cast(), 0..self.units()) };
        }
    }
}
