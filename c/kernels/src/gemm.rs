//! Products of matrices.

use core::ffi::{c_char, c_void};

use tilewright_kernels::template::matmul_params::MatmulParams;
use tilewright_kernels::{
    Bytes, Dtype, Epilogue, KernelError, QmatmulParams, QmatmulPlan, QuantColumns, QuantOutput,
};

use crate::error::Fail;
use crate::kernel::{activation, given, is_type, isa, make, tw_kernel};
use crate::plan::{At, BytePlan, Lens, Quantized};
use crate::status::{tw_dtype, tw_status};

/// A product `y = x * w + bias`: `x` is `[m][k]`, `w` is `[k][n]`, `y` is `[m][n]`, row by row without gaps.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_gemm {
    /// `sizeof (tw_gemm)`.
    pub size: usize,
    /// Rows of x and y.
    pub m: usize,
    /// Columns of x, rows of w.
    pub k: usize,
    /// Columns of w and y.
    pub n: usize,
    /// Name of an instruction set; NULL for the best one.
    pub isa: *const c_char,
    /// 1 if the weights are given as `[n][k]`.
    pub transposed: i32,
    /// A `tw_activation`; of kernels of bytes only for results of type `TW_F32`.
    pub activation: i32,
    /// What the activation calls so.
    pub low: f32,
    /// What the activation calls so.
    pub high: f32,
    /// 1 to add a residual, `float [m][n]`, before the activation. Not for kernels of bytes.
    pub residual: i32,
}

/// Types and zero points of kernels of bytes. A number `q` of bytes stands for
/// `(q - zero_point) * scale`. Sums are exact; sizes with which one might leave `int32_t` are refused.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_quant {
    /// `sizeof (tw_quant)`.
    pub size: usize,
    /// Type of x: `TW_I8` or `TW_U8`.
    pub x_type: i32,
    /// Type of w: `TW_I8` or `TW_U8`.
    pub w_type: i32,
    /// Type of y: `TW_I32` the sums, `TW_F32` the sums times a scale, `TW_I8` or `TW_U8` that rounded to
    /// the nearest integer, ties to even, plus a zero point.
    pub y_type: i32,
    /// Zero point of x, in the range of its type.
    pub x_zero_point: i32,
    /// Zero point of y, if it is of bytes.
    pub y_zero_point: i32,
    /// Least and greatest y, if it is of bytes: an activation. Both 0 for the range of the type.
    pub y_low: i32,
    /// See `y_low`.
    pub y_high: i32,
    /// How many signed bytes add up to a weight less its zero point: 0 or 1 if all such differences are
    /// between -128 and 127, 2 between -256 and 254, 3 beyond. Products take it for "1 if a zero point of
    /// w is not 0".
    pub w_terms: u32,
}

/// The same with its numbers read.
pub(crate) struct Quant {
    pub(crate) x: Dtype,
    pub(crate) x_zero_point: i32,
    pub(crate) w: Dtype,
    pub(crate) terms: usize,
    pub(crate) output: QuantOutput,
}

impl Quant {
    /// # Safety
    /// As [`given`].
    pub(crate) unsafe fn read(from: *const tw_quant) -> Result<Self, Fail> {
        // SAFETY: as the caller promises.
        let quant = unsafe { given(from, "quant") }?;
        Ok(Self {
            x: byte_type(quant.x_type, "x_type")?,
            x_zero_point: quant.x_zero_point,
            w: byte_type(quant.w_type, "w_type")?,
            terms: quant.w_terms as usize,
            output: quant.output()?,
        })
    }

    /// A plan with so many columns or output channels as a kernel.
    pub(crate) fn kernel<P>(&self, plan: P, columns: usize) -> Quantized<P> {
        let y = self.output.dtype();
        Quantized { plan, w: self.w, x_zero_point: self.x_zero_point, columns, y }
    }
}

impl tw_quant {
    fn output(&self) -> Result<QuantOutput, Fail> {
        let all = self.y_low == 0 && self.y_high == 0;
        let (least, most) =
            if is_type(self.y_type, tw_dtype::TW_I8) { (-128, 127) } else { (0, 255) };
        let (low, high) = if all { (least, most) } else { (self.y_low, self.y_high) };
        let range = least..=most;
        let bytes = || {
            let inside = [low, high, self.y_zero_point].iter().all(|n| range.contains(n));
            if inside {
                Ok(())
            } else {
                Err(Fail::Argument("zero point and bounds of y", "of its type"))
            }
        };
        match self.y_type {
            n if is_type(n, tw_dtype::TW_I32) => Ok(QuantOutput::I32),
            n if is_type(n, tw_dtype::TW_F32) => Ok(QuantOutput::F32),
            n if is_type(n, tw_dtype::TW_I8) => bytes().map(|()| QuantOutput::I8 {
                zero_point: self.y_zero_point as i8,
                min: low as i8,
                max: high as i8,
            }),
            n if is_type(n, tw_dtype::TW_U8) => bytes().map(|()| QuantOutput::U8 {
                zero_point: self.y_zero_point as u8,
                min: low as u8,
                max: high as u8,
            }),
            n => Err(Fail::Number("y_type", n)),
        }
    }
}

/// Signed or unsigned bytes.
pub(crate) fn byte_type(number: i32, what: &'static str) -> Result<Dtype, Fail> {
    match number {
        n if is_type(n, tw_dtype::TW_I8) => Ok(Dtype::I8),
        n if is_type(n, tw_dtype::TW_U8) => Ok(Dtype::U8),
        n => Err(Fail::Number(what, n)),
    }
}

impl tw_gemm {
    fn params(&self) -> Result<MatmulParams, Fail> {
        let activation = activation(self.activation, self.low, self.high)?;
        let epilogue = Epilogue { activation, residual: self.residual != 0 };
        let params = MatmulParams::new(self.m, self.k, self.n).epilogue(epilogue);
        Ok(if self.transposed != 0 { params.b_transposed() } else { params })
    }
}

/// Makes a kernel of a product of floats.
///
/// `memory` is where it lies: at least `TW_KERNEL_BYTES` bytes, aligned to `TW_KERNEL_ALIGN`, that stay as
/// long as the kernel is used; or NULL and 0, and the library takes some. `*out` is to be freed with
/// `tw_kernel_free`.
///
/// Gives `TW_INVALID_ARGUMENT` for sizes of 0 and unknown names, `TW_SHAPE` for sizes beyond memory,
/// `TW_BUFFER_TOO_SMALL`, `TW_OUT_OF_MEMORY`. Any thread may call it.
///
/// # Safety
/// `gemm` is NULL or as its type says; `memory` is NULL or writable for `bytes` bytes; `out` is NULL or
/// writable.
#[cfg(feature = "alloc")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_sgemm_new(
    gemm: *const tw_gemm,
    memory: *mut c_void,
    bytes: usize,
    out: *mut *mut tw_kernel,
) -> tw_status {
    use tilewright_kernels::MatmulPlan;
    // SAFETY: as the caller promises; any bytes are numbers and pointers.
    unsafe {
        make(memory, bytes, out, || {
            let gemm = given(gemm, "gemm")?;
            let params = gemm.params()?;
            let plan = MatmulPlan::new(isa(gemm.isa)?, &params)?;
            let residual = params.epilogue.residual;
            Ok(crate::plan::Floats { plan, columns: params.n, residual })
        })
    }
}

#[cfg(feature = "alloc")]
impl crate::plan::FloatPlan for tilewright_kernels::MatmulPlan {
    const OP: &'static str = "sgemm";

    fn lens(&self) -> Lens {
        Lens {
            x: self.a_len(),
            weights: self.weights_len(),
            columns: self.bias_len(),
            y: self.c_len(),
            scratch: self.scratch_len(),
        }
    }

    crate::plan::packs_weights_and_bias! {}

    unsafe fn run(&self, at: &At) {
        let (a, weights, bias) = (at.x.cast(), at.weights.cast(), at.columns.cast());
        let (c, scratch, units) = (at.y.cast(), at.scratch.cast(), 0..self.units());
        // SAFETY: as the caller promises.
        unsafe { self.run(a, weights, bias, at.residual, c, scratch, units) };
    }
}

/// Makes a kernel of a product of bytes. `quant` says types and zero points; scales are given with the
/// weights. All else is as at `tw_sgemm_new`.
///
/// Any thread may call it, several at a time.
///
/// # Safety
/// `gemm` and `quant` are NULL or as their types say; `memory` is NULL or writable for `bytes` bytes; `out`
/// is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tw_qgemm_new(
    gemm: *const tw_gemm,
    quant: *const tw_quant,
    memory: *mut c_void,
    bytes: usize,
    out: *mut *mut tw_kernel,
) -> tw_status {
    // SAFETY: as the caller promises; any bytes are numbers and pointers.
    unsafe {
        make(memory, bytes, out, || {
            let (gemm, quant) = (given(gemm, "gemm")?, Quant::read(quant)?);
            let params = QmatmulParams {
                sizes: gemm.params()?,
                a: quant.x,
                b: quant.w,
                b_zero_point: quant.terms != 0,
                small: false,
                output: quant.output,
            };
            Ok(quant.kernel(QmatmulPlan::new(isa(gemm.isa)?, &params)?, params.sizes.n))
        })
    }
}

impl BytePlan for QmatmulPlan {
    const OP: &'static str = "qgemm";

    fn lens(&self) -> Lens {
        Lens {
            x: self.a_len(),
            weights: self.weights_len(),
            columns: self.columns_len(),
            y: self.c_len(),
            scratch: self.scratch_len(),
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
        let (a, c) = (at.x.cast(), at.y.cast());
        // SAFETY: as the caller promises; one thread runs first what converts, then what multiplies.
        unsafe {
            self.run_convert(a, at.scratch, 0..self.convert_units());
            self.run(a, at.scratch, at.weights, at.columns, c, 0..self.units());
        }
    }
}
