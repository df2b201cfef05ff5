//! Bytes from floats and floats from bytes: element by element, exact.
//!
//! * [`QuantizePlan`] (ONNX `QuantizeLinear`): `clamp(round(x / scale) + zero_point)`, the quotient in
//!   `f32`, ties to even. A NaN becomes the least number of the type.
//! * [`DequantizePlan`] (ONNX `DequantizeLinear`): `(x - zero_point) as f32 * scale`.

use super::qmatmul::{check_type, check_zero_points};
use super::window::ByteWindow;
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantOutput, QuantResult};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// Sizes of a conversion between floats and bytes: `[outer, axis, inner]`, with a scale and a zero point
/// per index of the axis. For one of each for everything `axis` is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizeParams {
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// Length of the axis.
    pub axis: usize,
    /// Product of the dimensions after the axis.
    pub inner: usize,
    /// Type of the bytes: [`Dtype::I8`] or [`Dtype::U8`].
    pub dtype: Dtype,
}

/// Elements of a unit, about.
pub(super) const UNIT: usize = 8192;

/// What both conversions share: rows, and how they are cut into units.
#[derive(Clone, Copy, Debug)]
struct Rows {
    op: &'static str,
    /// Whether the parameters change along a row; else they are those of its number modulo `axis`.
    along: bool,
    axis: usize,
    rows: usize,
    len: usize,
    per_unit: usize,
    bytes: ByteWindow,
    dtype: Dtype,
}

impl Rows {
    fn new(op: &'static str, p: &QuantizeParams) -> Result<Self, KernelError> {
        let &QuantizeParams { outer, axis, inner, dtype } = p;
        checked_len(op, &[outer, axis, inner])?;
        checked_len(op, &[2, axis])?;
        let along = inner == 1 && axis > 1;
        let (rows, len) = if along { (outer, axis) } else { (outer * axis, inner) };
        let per_unit = (UNIT / len.max(1)).max(1);
        Ok(Self { op, along, axis, rows, len, per_unit, bytes: byte_window(op, dtype, 0)?, dtype })
    }

    fn elements(&self) -> usize {
        self.rows * self.len
    }

    fn units(&self) -> usize {
        match self.len {
            0 => 0,
            len if len > UNIT => self.rows * len.div_ceil(UNIT),
            _ => self.rows.div_ceil(self.per_unit),
        }
    }

    /// Scales, then zero points as floats, each of the whole axis.
    fn pack(&self, scales: &[f32], zeros: &[i32], dst: &mut [f32]) -> Result<(), KernelError> {
        check_len(self.op, "parameters", 2 * self.axis, dst.len())?;
        check_len(self.op, "scales", self.axis, scales.len())?;
        if !zeros.is_empty() {
            check_len(self.op, "zero points", self.axis, zeros.len())?;
        }
        check_zero_points(self.op, self.dtype, zeros)?;
        let (scales, (first, second)) = (&scales[..self.axis], dst.split_at_mut(self.axis));
        scales.iter().try_for_each(|s| check_scale(self.op, *s))?;
        first.copy_from_slice(scales);
        for (i, y) in second[..self.axis].iter_mut().enumerate() {
            *y = zeros.get(i).copied().unwrap_or(0) as f32;
        }
        Ok(())
    }

    /// Calls `f` with the pieces of rows of some units: where a piece begins, how long it is, and which
    /// of the parameters it takes first.
    fn pieces(&self, units: Range<usize>, mut f: impl FnMut(usize, usize, usize)) {
        let mut piece = |row: usize, at: usize, len: usize| {
            f(row * self.len + at, len, if self.along { at } else { row % self.axis });
        };
        for unit in units {
            if self.len > UNIT {
                let per_row = self.len.div_ceil(UNIT);
                let at = unit % per_row * UNIT;
                piece(unit / per_row, at, UNIT.min(self.len - at));
                continue;
            }
            let first = unit * self.per_unit;
            (first..(first + self.per_unit).min(self.rows)).for_each(|row| piece(row, 0, self.len));
        }
    }
}

/// How bytes of a type are read and written.
pub(super) fn byte_window(
    op: &'static str,
    dtype: Dtype,
    zero: i32,
) -> Result<ByteWindow, KernelError> {
    let output = match dtype {
        Dtype::I8 => QuantOutput::i8(0),
        Dtype::U8 => QuantOutput::u8(0),
        _ => return Err(KernelError::InvalidParam { op, param: "type", expected: "i8 or u8" }),
    };
    check_zero_points(op, dtype, &[zero])?;
    Ok(ByteWindow::new(dtype, zero, 1.0, output).unwrap_or_default())
}

pub(super) fn check_scale(op: &'static str, scale: f32) -> Result<(), KernelError> {
    if scale.is_finite() && scale > 0.0 {
        return Ok(());
    }
    Err(KernelError::InvalidParam { op, param: "scale", expected: "finite and greater than 0" })
}

macro_rules! conversion {
    ($(#[$doc:meta])* $plan:ident $op:literal $field:ident, $from:ty, $from_doc:literal, $to:ty, $to_doc:literal,
     $f:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub struct $plan {
            isa: Isa,
            rows: Rows,
            kernel: [$f; 2],
            name: &'static str,
        }

        impl $plan {
            /// Plans a conversion.
            ///
            /// # Errors
            ///
            /// [`KernelError::InvalidParam`] for another type than bytes, [`KernelError::TooLarge`],
            /// [`KernelError::IsaUnavailable`].
            pub fn new(isa: Isa, params: &QuantizeParams) -> Result<Self, KernelError> {
                isa.require()?;
                let (kernel, name) = kernels(isa).$field;
                Ok(Self { isa, rows: Rows::new($op, params)?, kernel, name })
            }

            /// Elements of source and destination.
            pub fn len(&self) -> usize {
                self.rows.elements()
            }

            /// Whether there is nothing to do.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Elements of the packed parameters.
            pub fn parameters_len(&self) -> usize {
                2 * self.rows.axis
            }

            /// Independent units of work.
            pub fn units(&self) -> usize {
                self.rows.units()
            }

            /// The instruction set.
            pub fn isa(&self) -> Isa {
                self.isa
            }

            /// The kernel that does the work.
            pub fn kernel_name(&self) -> &'static str {
                self.name
            }

            /// Packs scales and zero points, one per index of the axis; no zero points for 0.
            ///
            /// # Errors
            ///
            /// [`KernelError::InvalidLength`] if a slice is too short, [`KernelError::InvalidParam`] for a
            /// scale that is not finite and greater than 0, and a zero point outside the range of the
            /// type.
            pub fn pack(
                &self,
                scales: &[f32],
                zero_points: &[i32],
                dst: &mut [f32],
            ) -> Result<(), KernelError> {
                self.rows.pack(scales, zero_points, dst)
            }

            /// Computes units `units`.
            ///
            /// # Safety
            ///
            #[doc = concat!("* `x` has [`len`](Self::len) readable ", $from_doc, ", `y` as many writable ", $to_doc,
                "; they do not overlap.")]
            /// * `parameters` has [`parameters_len`](Self::parameters_len) readable elements, packed by
            ///   this plan.
            /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
            pub unsafe fn run(
                &self,
                x: *const $from,
                parameters: *const f32,
                y: *mut $to,
                units: Range<usize>,
            ) {
                debug_assert!(units.end <= self.units());
                let rows = &self.rows;
                rows.pieces(units, |at, len, first| {
                    let scale = parameters.wrapping_add(first);
                    let args = Piece { scale, zero: scale.wrapping_add(rows.axis), len, bytes: &rows.bytes };
                    // SAFETY: the ISA is available; the piece and its parameters lie in the operands by
                    // construction, and the caller owns the operands.
                    unsafe {
                        (self.kernel[usize::from(rows.along)])(x.wrapping_add(at), y.wrapping_add(at), &args);
                    }
                });
            }
        }
    };
}

conversion! {
    /// Bytes from floats, of fixed sizes.
    QuantizePlan "quantize" quantize, f32, "floats", u8, "bytes", QuantizeFn
}

conversion! {
    /// Floats from bytes, of fixed sizes.
    DequantizePlan "dequantize" dequantize, u8, "bytes", f32, "floats", DequantizeFn
}

impl QuantizePlan {
    /// Computes units `units` with a scale and a zero point that are known only at run time. With a scale
    /// that is not finite and greater than 0 the bytes are any.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for a plan of more scales than one, and a zero point outside the
    /// range of the type.
    ///
    /// # Safety
    ///
    /// As for [`run`](Self::run), without its parameters.
    pub unsafe fn run_scaled(
        &self,
        x: *const f32,
        scale: f32,
        zero_point: i32,
        y: *mut u8,
        units: Range<usize>,
    ) -> Result<(), KernelError> {
        let rows = &self.rows;
        if rows.axis != 1 {
            return Err(KernelError::InvalidParam { op: rows.op, param: "axis", expected: "1" });
        }
        check_zero_points(rows.op, rows.dtype, &[zero_point])?;
        let parameters = [scale, zero_point as f32];
        // SAFETY: these are the parameters of an axis of 1; the rest is as the caller promises.
        unsafe { self.run(x, parameters.as_ptr(), y, units) };
        Ok(())
    }

    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(
        &self,
        x: &[f32],
        parameters: &[f32],
        mut y: QuantResult<'_>,
    ) -> Result<(), KernelError> {
        let (dtype, y, y_len) = y.parts();
        check_type(self.rows.op, "type of the output", self.rows.dtype, dtype)?;
        check_len(self.rows.op, "x", self.len(), x.len())?;
        check_len(self.rows.op, "parameters", self.parameters_len(), parameters.len())?;
        check_len(self.rows.op, "y", self.len(), y_len)?;
        // SAFETY: types and lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), parameters.as_ptr(), y, 0..self.units()) };
        Ok(())
    }
}

impl DequantizePlan {
    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(
        &self,
        x: Bytes<'_>,
        parameters: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_type(self.rows.op, "type of the input", self.rows.dtype, x.dtype())?;
        check_len(self.rows.op, "x", self.len(), x.len())?;
        check_len(self.rows.op, "parameters", self.parameters_len(), parameters.len())?;
        check_len(self.rows.op, "y", self.len(), y.len())?;
        // SAFETY: types and lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), parameters.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// The parameters of a run of elements: one scale and zero point for all, or one per element.
struct Piece<'a> {
    scale: *const f32,
    zero: *const f32,
    len: usize,
    bytes: &'a ByteWindow,
}

/// # Safety
///
/// The CPU has the instructions; `len` elements are readable at the first pointer and writable at the
/// second, which do not overlap; scale and zero point are readable, one or `len` of them.
type QuantizeFn = unsafe fn(*const f32, *mut u8, &Piece<'_>);

/// # Safety
///
/// As for [`QuantizeFn`].
type DequantizeFn = unsafe fn(*const u8, *mut f32, &Piece<'_>);

/// The kernels of one instruction set, the first of two for one scale and zero point.
#[derive(Clone, Copy)]
struct Kernels {
    quantize: ([QuantizeFn; 2], &'static str),
    dequantize: ([DequantizeFn; 2], &'static str),
}

macro_rules! qelement_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            pub(super) const KERNELS: Kernels = Kernels {
                quantize: (
                    [quantize::<false>, quantize::<true>],
                    concat!("quantize_i8_", $l, "_", stringify!($isa_name)),
                ),
                dequantize: (
                    [dequantize::<false>, dequantize::<true>],
                    concat!("dequantize_i8_", $l, "_", stringify!($isa_name)),
                ),
            };

            $(#[target_feature(enable = $f)])*
            unsafe fn quantize<const ALONG: bool>(x: *const f32, y: *mut u8, p: &Piece<'_>) {
                let (len, scale, zero) = (p.len, p.scale, p.zero);
                let (least, most) = (tile!(VSET p.bytes.bounds[0]), tile!(VSET p.bytes.bounds[1]));
                let (mut s, mut z) = (tile!(VSPLAT scale, 0), tile!(VSPLAT zero, 0));
                qelement_pass!($l len, |i, n| {
                    let at = i * L;
                    if ALONG {
                        s = qelement_load!($l scale.wrapping_add(at), n);
                        z = qelement_load!($l zero.wrapping_add(at), n);
                    }
                    let q = tile!(VDIV qelement_load!($l x.wrapping_add(at), n), s);
                    // The maximum of a NaN and a number is the number.
                    let q = tile!(VMIN tile!(VMAX q, tile!(VSUB least, z)), tile!(VSUB most, z));
                    let q = tile!(VADD tile!(VROUND q), z);
                    let y = y.wrapping_add(at);
                    if n == L { tile!(VSTORE8 y, q); } else { tile!(VSTORE8_TAIL y, n, q); }
                });
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn dequantize<const ALONG: bool>(x: *const u8, y: *mut f32, p: &Piece<'_>) {
                let (len, scale, zero) = (p.len, p.scale, p.zero);
                let (mask, base) = (tile!(VSET p.bytes.read[0]), tile!(VSET p.bytes.read[1]));
                let (mut s, mut z) = (tile!(VSPLAT scale, 0), tile!(VADD tile!(VSPLAT zero, 0), base));
                qelement_pass!($l len, |i, n| {
                    let at = i * L;
                    if ALONG {
                        s = qelement_load!($l scale.wrapping_add(at), n);
                        z = tile!(VADD qelement_load!($l zero.wrapping_add(at), n), base);
                    }
                    let (x, y) = (x.wrapping_add(at), y.wrapping_add(at));
                    let v = tile!(VMUL qelement_bytes!($l x, n, mask, z), s);
                    if n == L { tile!(VSTORE y, 0, v); } else { tile!(VSTORE_TAIL y, n, v); }
                });
            }
        }
    };
}

/// The body for each vector, and for the rest: with the number of the vector and of its elements.
macro_rules! qelement_pass {
    ($l:tt $len:ident, |$i:ident, $n:ident| $body:block) => {
        const L: usize = $l;
        let whole = $len / L;
        for $i in 0..whole {
            let $n = L;
            $body
        }
        let $n = $len - whole * L;
        if $n > 0 {
            let $i = whole;
            $body
        }
    };
}

macro_rules! qelement_load {
    ($l:tt $p:expr, $n:ident) => {
        if $n == $l { tile!(VLOAD $p, 0) } else { tile!(VLOAD_TAIL $p, $n) }
    };
}

macro_rules! qelement_bytes {
    ($l:tt $p:ident, $n:ident, $mask:ident, $zero:ident) => {
        if $n == $l { tile!(VLOAD8 $p, $mask, $zero) } else { tile!(VLOAD8_TAIL $p, $n, $mask, $zero) }
    };
}

pub(super) use {qelement_bytes, qelement_pass};

tilewright_intrinsics::for_each_tile!(qelement_row);

fn kernels(isa: Isa) -> Kernels {
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
