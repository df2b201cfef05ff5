//! Tensors: element types, shapes with strides, and owned data.
//!
//! The semantics are ggml's: extents `ne` and byte strides `nb` with the fastest dimension first,
//! views that share data, and checked sizes. [`Tensor`] is what callers hand in and get back; the
//! graph layer keeps its own records and uses the same [`DType`] and [`Shape`].

pub mod block;
mod dtype;
mod region;
mod shape;
mod storage;

pub use dtype::{DType, Element};
pub(crate) use region::Regions;
pub use shape::{MAX_DIMS, Shape, ShapeError, broadcast};
pub(crate) use storage::Backing;
pub use storage::{AlignedBytes, Storage, available_memory};

use core::fmt;
use std::borrow::Cow;

use bytemuck::{NoUninit, Pod};

/// A contiguous tensor with its data. Cloning shares the data.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    storage: Storage,
}

/// Why a tensor cannot be made from or read as the given data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorError {
    /// The shape itself is not possible.
    Shape(ShapeError),
    /// The data are shorter or longer than the shape asks for.
    Length {
        /// Extents, slowest first.
        dims: Vec<usize>,
        /// The element type.
        dtype: DType,
        /// Bytes the shape needs.
        expected: usize,
        /// Bytes that were given.
        found: usize,
    },
    /// The elements have another type.
    DType {
        /// The type asked for.
        expected: DType,
        /// The tensor's type.
        found: DType,
    },
    /// The memory could not be had.
    OutOfMemory(usize),
    /// The file that has the data cannot be read any more: what the system said.
    Read(String),
}

impl fmt::Display for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(e) => e.fmt(f),
            Self::Length { dims, dtype, expected, found } => {
                write!(f, "shape {dims:?} of {dtype} needs {expected} bytes, found {found}")
            }
            Self::DType { expected, found } => write!(f, "expected {expected}, found {found}"),
            Self::OutOfMemory(bytes) => write!(f, "no memory for {bytes} bytes"),
            Self::Read(reason) => write!(f, "cannot read the file any more: {reason}"),
        }
    }
}

impl core::error::Error for TensorError {}

impl From<ShapeError> for TensorError {
    fn from(e: ShapeError) -> Self {
        Self::Shape(e)
    }
}

impl Tensor {
    /// A tensor of zeros; `dims` slowest first.
    ///
    /// # Errors
    /// [`TensorError::Shape`] or [`TensorError::OutOfMemory`].
    pub fn zeros(dtype: DType, dims: &[usize]) -> Result<Self, TensorError> {
        let shape = Shape::contiguous(dtype, dims)?;
        let bytes = AlignedBytes::zeroed(shape.bytes(dtype))?;
        Ok(Self { dtype, shape, storage: Storage::owned(bytes) })
    }

    /// A tensor that holds a copy of `data`; `dims` slowest first.
    ///
    /// # Errors
    /// [`TensorError::Shape`], [`TensorError::Length`] or [`TensorError::OutOfMemory`].
    pub fn from_slice<T: Element + NoUninit>(
        dims: &[usize],
        data: &[T],
    ) -> Result<Self, TensorError> {
        Self::from_bytes(T::DTYPE, dims, bytemuck::cast_slice(data))
    }

    /// A tensor that holds a copy of `data`, elements in native byte order; `dims` slowest first.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    pub fn from_bytes(dtype: DType, dims: &[usize], data: &[u8]) -> Result<Self, TensorError> {
        let shape = Shape::contiguous(dtype, dims)?;
        check_length(dtype, &shape, data.len())?;
        let mut bytes = AlignedBytes::zeroed(data.len())?;
        bytes.copy_from_slice(data);
        Ok(Self { dtype, shape, storage: Storage::owned(bytes) })
    }

    /// A tensor over storage that others may share, without a copy.
    ///
    /// # Errors
    /// [`TensorError::Shape`] or [`TensorError::Length`].
    pub fn from_storage(
        dtype: DType,
        dims: &[usize],
        storage: Storage,
    ) -> Result<Self, TensorError> {
        let shape = Shape::contiguous(dtype, dims)?;
        check_length(dtype, &shape, storage.len())?;
        Ok(Self { dtype, shape, storage })
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents and strides; always contiguous.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Extents, slowest first.
    pub fn dims(&self) -> Vec<usize> {
        self.shape.dims()
    }

    /// The data in native byte order.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.storage
    }

    /// The data to be written, if nobody shares them: neither a clone nor a file they lie in.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.storage.unique_mut()
    }

    /// The storage behind the tensor.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// A tensor of the same type and extents over another storage of as many bytes.
    pub(crate) fn with_storage(&self, storage: Storage) -> Self {
        debug_assert_eq!(storage.len(), self.storage.len());
        Self { storage, ..*self }
    }

    pub(crate) fn into_storage(self) -> Storage {
        self.storage
    }

    /// The elements; borrowed unless the storage is not aligned for `T` (data inside a mapped
    /// file), then copied.
    ///
    /// # Errors
    /// [`TensorError::DType`] if the elements are not `T`s, [`TensorError::OutOfMemory`] for a constant that has to be
    /// computed again.
    pub fn as_slice<T: Element + Pod>(&self) -> Result<Cow<'_, [T]>, TensorError> {
        Ok(cast_elements(self.bytes_of(T::DTYPE)?))
    }

    /// The bytes of elements of a type.
    ///
    /// # Errors
    /// As [`Tensor::as_slice`].
    #[inline(never)]
    pub(crate) fn bytes_of(&self, expected: DType) -> Result<&[u8], TensorError> {
        let found = self.dtype;
        if found != expected && (found, expected) != (DType::Bool, DType::U8) {
            return Err(TensorError::DType { expected, found });
        }
        self.storage.ready()
    }

    /// The tensor itself if its data start at a multiple of 64 bytes, else a copy that does.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`].
    pub fn to_aligned(&self) -> Result<Self, TensorError> {
        let bytes = self.storage.ready()?;
        match bytes.as_ptr().addr().is_multiple_of(64) {
            true => Ok(self.clone()),
            false => Self::from_bytes(self.dtype, &self.dims(), bytes),
        }
    }

    /// The same data under another shape; `dims` slowest first.
    ///
    /// # Errors
    /// [`TensorError::Shape`] if the element counts differ.
    pub fn reshaped(&self, dims: &[usize]) -> Result<Self, TensorError> {
        let shape = self.shape.reshaped(self.dtype, dims)?;
        Ok(Self { dtype: self.dtype, shape, storage: self.storage.clone() })
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.dims())
    }
}

/// Bytes as elements: borrowed where the address is aligned, else copied.
///
/// # Panics
/// If the length is not a whole number of elements.
pub(crate) fn cast_elements<T: Pod>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(slice) => Cow::Borrowed(slice),
        Err(_) => Cow::Owned(bytemuck::pod_collect_to_vec(bytes)),
    }
}

fn check_length(dtype: DType, shape: &Shape, found: usize) -> Result<(), TensorError> {
    let expected = shape.bytes(dtype);
    if expected != found {
        return Err(TensorError::Length { dims: shape.dims(), dtype, expected, found });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_must_fill_the_shape() {
        let t = Tensor::from_slice(&[2, 2], &[1.0f32, 2.0, 3.0, 4.0]).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap()[..], [1.0, 2.0, 3.0, 4.0]);
        assert!(matches!(t.as_slice::<i32>(), Err(TensorError::DType { .. })));
        assert!(matches!(
            Tensor::from_slice(&[2, 3], &[0f32; 4]),
            Err(TensorError::Length { expected: 24, found: 16, .. })
        ));
        assert_eq!(t.reshaped(&[4, 1]).unwrap().dims(), [4, 1]);
        assert!(t.reshaped(&[5]).is_err());
    }

    #[test]
    fn unaligned_storage_is_still_readable() {
        let raw: Vec<u8> = core::iter::once(0).chain(5i64.to_ne_bytes()).collect();
        let storage = Storage::shared(bytes::Bytes::from(raw).slice(1..));
        let t = Tensor::from_storage(DType::I64, &[1], storage).unwrap();
        assert_eq!(t.as_slice::<i64>().unwrap()[..], [5]);
    }

    #[test]
    fn absurd_shapes_are_errors() {
        assert!(Tensor::zeros(DType::F32, &[1 << 62]).is_err());
        assert!(matches!(
            Tensor::zeros(DType::U8, &[isize::MAX as usize - 64]),
            Err(TensorError::OutOfMemory(_))
        ));
    }
}
