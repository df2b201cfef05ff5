//! Typed windows on operands while an operator computes.

use bytemuck::Pod;

use super::GraphError;
use crate::tensor::{DType, Element};

/// A contiguous operand that is read.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents, slowest first.
    pub dims: &'a [usize],
    /// The elements, aligned for their type.
    pub bytes: &'a [u8],
}

/// A contiguous result that is written.
pub struct ViewMut<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents, slowest first.
    pub dims: &'a [usize],
    /// The elements, aligned for their type.
    pub bytes: &'a mut [u8],
}

impl<'a> View<'a> {
    /// The elements as `T`; a `bool` tensor reads as `u8`.
    ///
    /// # Errors
    /// [`GraphError::UnsupportedDType`] if they are of another type.
    pub fn slice<T: Element + Pod>(&self, op: &'static str) -> Result<&'a [T], GraphError> {
        check::<T>(self.dtype, op)?;
        Ok(bytemuck::cast_slice(self.bytes))
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.dims.contains(&0)
    }
}

impl ViewMut<'_> {
    /// The elements as `T`; a `bool` tensor is written as `u8`.
    ///
    /// # Errors
    /// [`GraphError::UnsupportedDType`] if they are of another type.
    pub fn slice<T: Element + Pod>(&mut self, op: &'static str) -> Result<&mut [T], GraphError> {
        check::<T>(self.dtype, op)?;
        Ok(bytemuck::cast_slice_mut(self.bytes))
    }
}

fn check<T: Element>(dtype: DType, op: &'static str) -> Result<(), GraphError> {
    if T::DTYPE == dtype || (T::DTYPE == DType::U8 && dtype == DType::Bool) {
        Ok(())
    } else {
        Err(GraphError::UnsupportedDType { op, dtype })
    }
}

/// Runs a block with `T` bound to the Rust type of a [`DType`]; block-quantised types are an
/// error. `bool` is `u8`.
macro_rules! with_element {
    ($dtype:expr, $op:expr, $t:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::DType::F32 => {
                type $t = f32;
                $body
            }
            $crate::tensor::DType::F64 => {
                type $t = f64;
                $body
            }
            $crate::tensor::DType::F16 => {
                type $t = half::f16;
                $body
            }
            $crate::tensor::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            $crate::tensor::DType::I8 => {
                type $t = i8;
                $body
            }
            $crate::tensor::DType::U8 | $crate::tensor::DType::Bool => {
                type $t = u8;
                $body
            }
            $crate::tensor::DType::I16 => {
                type $t = i16;
                $body
            }
            $crate::tensor::DType::U16 => {
                type $t = u16;
                $body
            }
            $crate::tensor::DType::I32 => {
                type $t = i32;
                $body
            }
            $crate::tensor::DType::U32 => {
                type $t = u32;
                $body
            }
            $crate::tensor::DType::I64 => {
                type $t = i64;
                $body
            }
            $crate::tensor::DType::U64 => {
                type $t = u64;
                $body
            }
            dtype => Err($crate::graph::GraphError::UnsupportedDType { op: $op, dtype }),
        }
    };
}
pub(crate) use with_element;
