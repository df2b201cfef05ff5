//! Products of matrices.

use core::ffi::{c_char, c_void};

use tilewright_kernels::template::matmul_params::MatmulParams;
use tilewright_kernels::{
    Bytes, Dtype, Epilogue, KernelError, QmatmulParams, QmatmulPlan, QuantColumns, QuantOutput,
};

use crate::error::Fail;
use crate::kernel::{
    Aligned, Plan, Weights, activation, given, is_type, isa, make, tw_kernel, tw_kernel_sizes,
    tw_operands,
};
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

impl tw_quant {
    pub(crate) fn output(&self) -> Result<QuantOutput, Fail> {
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

/// The weights of a kernel of bytes.
pub(crate) fn bytes<'a>(
    weights: &'a Weights<'_>,
    dtype: Dtype,
    op: &'static str,
) -> Result<Bytes<'a>, KernelError> {
    Ok(if dtype == Dtype::I8 {
        Bytes::I8(weights.elements(op)?)
    } else {
        Bytes::U8(weights.elements(op)?)
    })
}

/// Where the second part of packed operands begins: on a cache line.
pub(crate) fn second(words: usize) -> usize {
    words.next_multiple_of(16)
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
            Ok(MatmulPlan::new(isa(gemm.isa)?, &gemm.params()?)?)
        })
    }
}

#[cfg(feature = "alloc")]
impl Plan for tilewright_kernels::MatmulPlan {
    fn sizes(&self) -> tw_kernel_sizes {
        let residual = self.params().epilogue.residual;
        tw_kernel_sizes {
            x: 4 * self.a_len(),
            packed: 4 * (second(self.weights_len()) + self.bias_len()),
            y: 4 * self.c_len(),
            residual: if residual { 4 * self.c_len() } else { 0 },
            scratch: 4 * self.scratch_len(),
        }
    }

    fn aligned(&self) -> Aligned {
        Aligned::FLOATS
    }

    fn pack(&self, weights: &Weights<'_>, dst: &mut [i32]) -> Result<(), KernelError> {
        let (w, bias) = crate::kernel::floats(dst).split_at_mut(second(self.weights_len()));
        self.pack_weights(weights.elements("sgemm")?, w)?;
        self.pack_bias(weights.bias("sgemm", self.params().n)?, bias)
    }

    unsafe fn run(&self, x: &tw_operands) {
        let weights = x.packed.cast::<f32>();
        let bias = weights.wrapping_add(second(self.weights_len()));
        let (a, added) = (x.x.cast(), x.residual.cast());
        // SAFETY: the operands have the bytes that `sizes` says.
        unsafe {
            self.run(a, weights, bias, added, x.y.cast(), x.scratch.cast(), 0..self.units());
        }
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
            let (gemm, quant) = (given(gemm, "gemm")?, given(quant, "quant")?);
            let params = QmatmulParams {
                sizes: gemm.params()?,
                a: byte_type(quant.x_type, "x_type")?,
                b: byte_type(quant.w_type, "w_type")?,
                b_zero_point: quant.w_terms != 0,
                output: quant.output()?,
            };
            let plan = QmatmulPlan::new(isa(gemm.isa)?, &params)?;
            Ok(Qgemm { plan, x_zero_point: quant.x_zero_point })
        })
    }
}

struct Qgemm {
    plan: QmatmulPlan,
    x_zero_point: i32,
}

impl Plan for Qgemm {
    fn sizes(&self) -> tw_kernel_sizes {
        let plan = &self.plan;
        tw_kernel_sizes {
            x: plan.a_len(),
            packed: 4 * (second(plan.weights_len()) + plan.columns_len()),
            y: plan.params().output.dtype().size() * plan.c_len(),
            residual: 0,
            scratch: 4 * plan.scratch_len(),
        }
    }

    fn aligned(&self) -> Aligned {
        Aligned { x: 1, y: self.plan.params().output.dtype().size() }
    }

    fn pack(&self, weights: &Weights<'_>, dst: &mut [i32]) -> Result<(), KernelError> {
        let (plan, p) = (&self.plan, self.plan.params());
        let (w, columns) = dst.split_at_mut(second(plan.weights_len()));
        plan.pack_weights(bytes(weights, p.b, "qgemm")?, weights.zero_points, w)?;
        let quant = QuantColumns {
            bias: weights.bias("qgemm", p.sizes.n)?,
            zero_point: self.x_zero_point,
            scales: weights.scales,
            shifts: &[],
        };
        plan.pack_columns(w, &quant, columns)
    }

    unsafe fn run(&self, x: &tw_operands) {
        let plan = &self.plan;
        let weights = x.packed.cast::<i32>();
        let columns = weights.wrapping_add(second(plan.weights_len()));
        let (a, scratch) = (x.x.cast(), x.scratch.cast::<i32>());
        // SAFETY: the operands have the bytes that `sizes` says; one thread runs first what converts,
        // then what multiplies.
        unsafe {
            plan.run_convert(a, scratch, 0..plan.convert_units());
            plan.run(a, scratch, weights, columns, x.y.cast(), 0..plan.units());
        }
    }
}
