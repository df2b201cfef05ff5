//! Element types, and what is told of tensors.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use super::status::Failure;
use crate::tensor::DType;
use crate::{Dim, ValueInfo};

/// Most extents that a tensor has.
pub const TW_MAX_RANK: usize = 8;

/// The types of the library by the value of their `tw_dtype`.
const TYPES: [DType; 13] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::U16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::U64,
    DType::Bool,
];

/// The `tw_dtype` of a type that has one.
pub(super) fn number(dtype: DType) -> Option<i32> {
    TYPES.iter().position(|&t| t == dtype).map(|i| i as i32)
}

/// The type that a number from C stands for: any number may come.
pub(super) fn dtype(value: i32) -> Result<DType, Failure> {
    let found = usize::try_from(value).ok().and_then(|i| TYPES.get(i));
    found.copied().ok_or_else(|| Failure::argument(format!("{value} is no tw_dtype")))
}

/// What a model says of an input or output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_tensor_info {
    /// Its name; lives as long as the model.
    pub name: *const c_char,
    /// A `tw_dtype`.
    pub dtype: i32,
    /// Number of extents; -1 if the model does not say.
    pub rank: i32,
    /// Extents, slowest first; -1 for one that the model leaves open.
    pub dims: [i64; TW_MAX_RANK],
}

/// A result: memory of the session.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_tensor {
    /// A `tw_dtype`.
    pub dtype: i32,
    /// Number of extents.
    pub rank: i32,
    /// Extents, slowest first.
    pub dims: [i64; TW_MAX_RANK],
    /// The elements, contiguous.
    pub data: *const c_void,
    /// Their bytes.
    pub bytes: usize,
}

/// Extents for C; `None` if there are too many.
pub(super) fn dims(from: impl ExactSizeIterator<Item = i64>) -> Option<(i32, [i64; TW_MAX_RANK])> {
    let rank = from.len();
    let mut dims = [0; TW_MAX_RANK];
    for (to, from) in dims.get_mut(..rank)?.iter_mut().zip(from) {
        *to = from;
    }
    Some((rank as i32, dims))
}

/// An input or output with its name as C wants it.
pub(super) struct Described {
    pub(super) name: CString,
    /// Whether its elements stand for texts.
    pub(super) is_text: bool,
    info: tw_tensor_info,
}

// SAFETY: the pointer inside is not used; the name it stands for lies beside it.
unsafe impl Send for Described {}
// SAFETY: as above.
unsafe impl Sync for Described {}

impl Described {
    pub(super) fn new(value: &ValueInfo) -> Result<Self, Failure> {
        let unsupported = |what: &str| {
            Failure::argument(format!("{:?} has {what} that C programs cannot be told", value.name))
        };
        let name = CString::new(value.name.as_str()).map_err(|_| unsupported("a name"))?;
        let dtype = number(value.dtype).ok_or_else(|| unsupported("a type"))?;
        let extents = value.dims.as_ref().map(|d| {
            dims(d.iter().map(|d| match d {
                Dim::Fixed(n) => i64::try_from(*n).unwrap_or(-1),
                _ => -1,
            }))
        });
        let (rank, dims) = match extents {
            None => (-1, [0; TW_MAX_RANK]),
            Some(found) => found.ok_or_else(|| unsupported("extents"))?,
        };
        let info = tw_tensor_info { name: core::ptr::null(), dtype, rank, dims };
        Ok(Self { name, is_text: false, info })
    }

    pub(super) fn info(&self) -> tw_tensor_info {
        tw_tensor_info { name: self.name.as_ptr(), ..self.info }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::tw_dtype;

    #[test]
    fn types_are_numbered_as_the_enumeration_says() {
        assert_eq!(number(DType::F32), Some(tw_dtype::TW_F32 as i32));
        assert_eq!(number(DType::U8), Some(tw_dtype::TW_U8 as i32));
        assert_eq!(number(DType::Bool), Some(tw_dtype::TW_BOOL as i32));
        assert_eq!(number(DType::Q8_0), None);
        assert_eq!(dtype(tw_dtype::TW_I64 as i32).unwrap(), DType::I64);
        assert!(dtype(-1).is_err() && dtype(TYPES.len() as i32).is_err());
    }
}
