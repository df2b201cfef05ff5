//! Operands and results of integer ops.

use crate::{Dtype, KernelError};

/// Bytes of either sign.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// Signed.
    I8(&'a [i8]),
    /// Unsigned.
    U8(&'a [u8]),
}

impl Bytes<'_> {
    /// Elements.
    pub fn len(self) -> usize {
        match self {
            Self::I8(x) => x.len(),
            Self::U8(x) => x.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// [`Dtype::I8`] or [`Dtype::U8`].
    pub fn dtype(self) -> Dtype {
        match self {
            Self::I8(_) => Dtype::I8,
            Self::U8(_) => Dtype::U8,
        }
    }

    /// Element `i`.
    ///
    /// # Panics
    ///
    /// If there are not so many.
    pub fn get(self, i: usize) -> i32 {
        match self {
            Self::I8(x) => x[i].into(),
            Self::U8(x) => x[i].into(),
        }
    }

    pub(crate) fn as_ptr(self) -> *const u8 {
        match self {
            Self::I8(x) => x.as_ptr().cast(),
            Self::U8(x) => x.as_ptr(),
        }
    }
}

/// Where the results of an integer op go.
#[derive(Debug)]
pub enum QuantResult<'a> {
    /// Sums.
    I32(&'a mut [i32]),
    /// Dequantised.
    F32(&'a mut [f32]),
    /// Quantised, signed.
    I8(&'a mut [i8]),
    /// Quantised, unsigned.
    U8(&'a mut [u8]),
}

impl QuantResult<'_> {
    pub(crate) fn parts(&mut self) -> (Dtype, *mut u8, usize) {
        match self {
            Self::I32(y) => (Dtype::I32, y.as_mut_ptr().cast(), y.len()),
            Self::F32(y) => (Dtype::F32, y.as_mut_ptr().cast(), y.len()),
            Self::I8(y) => (Dtype::I8, y.as_mut_ptr().cast(), y.len()),
            Self::U8(y) => (Dtype::U8, y.as_mut_ptr(), y.len()),
        }
    }
}

/// What becomes of the 32-bit sums of an integer op.
///
/// A sum is that of all products `(a - a_zero_point) * (b - b_zero_point)` and the bias; sizes for
/// which it may leave the range of `i32` are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QuantOutput {
    /// The sums (ONNX `MatMulInteger`, `ConvInteger`).
    #[default]
    I32,
    /// `sum as f32 * scale + shift` in `f32`, each operation rounded, then the activation.
    F32,
    /// `clamp(round(sum as f32 * scale) + zero_point, min, max)`, the product in `f32`, ties to
    /// even (ONNX `QLinearMatMul`, `QLinearConv`). Where the product is NaN the result is any number
    /// of the range.
    I8 {
        /// What zero becomes.
        zero_point: i8,
        /// Lower bound: `i8::MIN`, or more for an activation.
        min: i8,
        /// Upper bound.
        max: i8,
    },
    /// The same for unsigned bytes.
    U8 {
        /// What zero becomes.
        zero_point: u8,
        /// Lower bound: 0, or more for an activation.
        min: u8,
        /// Upper bound.
        max: u8,
    },
}

impl QuantOutput {
    /// Signed bytes, bounded by their range only.
    pub const fn i8(zero_point: i8) -> Self {
        Self::I8 { zero_point, min: i8::MIN, max: i8::MAX }
    }

    /// Unsigned bytes, bounded by their range only.
    pub const fn u8(zero_point: u8) -> Self {
        Self::U8 { zero_point, min: 0, max: u8::MAX }
    }

    /// The element type of the result.
    pub const fn dtype(self) -> Dtype {
        match self {
            Self::I32 => Dtype::I32,
            Self::F32 => Dtype::F32,
            Self::I8 { .. } => Dtype::I8,
            Self::U8 { .. } => Dtype::U8,
        }
    }

    /// Zero point, lower and upper bound of a result of bytes.
    pub(crate) fn range(self) -> Option<[i32; 3]> {
        match self {
            Self::I8 { zero_point, min, max } => Some([zero_point, min, max].map(i32::from)),
            Self::U8 { zero_point, min, max } => Some([zero_point, min, max].map(i32::from)),
            _ => None,
        }
    }

    /// An error unless the bounds are in order.
    pub(crate) fn check(self, op: &'static str) -> Result<(), KernelError> {
        match self.range() {
            Some([_, min, max]) if min > max => {
                Err(KernelError::InvalidParam { op, param: "min", expected: "at most max" })
            }
            _ => Ok(()),
        }
    }
}

/// What follows the sums, per column or output channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct QuantColumns<'a> {
    /// Added to the sums: one per column, or none.
    pub bias: &'a [i32],
    /// Zero point of the left operand (the activations), in the range of its type.
    pub zero_point: i32,
    /// Factors of the sums: one per column or one for all; not needed for [`QuantOutput::I32`].
    /// Finite.
    pub scales: &'a [f32],
    /// Added to the products for [`QuantOutput::F32`]: one per column, or none.
    pub shifts: &'a [f32],
}
