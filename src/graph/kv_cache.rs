//! Memory for the keys and values of one attention layer.

use core::any::Any;
use core::fmt;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tilewright_kernels::{AttentionParams, CacheType};

use super::GraphError;
use crate::tensor::{AlignedBytes, DType, ShapeError, TensorError};

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Heads of keys and values.
    pub heads: usize,
    /// Elements of a key of one head.
    pub key_size: usize,
    /// Elements of a value of one head; 0 where [`super::ops::kv_conv::KvConv`] keeps its rows as keys.
    pub value_size: usize,
    /// Positions that can be kept.
    pub capacity: usize,
    /// Type of the elements: f32, f16 or q8_0.
    pub dtype: DType,
}

impl KvShape {
    /// Bytes of the keys and of the values; `None` if a size is not possible.
    pub fn planes(&self) -> Option<[usize; 2]> {
        let plane = |size: usize| {
            let row = self.dtype.bytes_of(size)?.checked_mul(self.heads)?;
            row.checked_mul(self.capacity)
        };
        let known = matches!(self.dtype, DType::F32 | DType::F16 | DType::Q8_0);
        Some([plane(self.key_size)?, plane(self.value_size)?]).filter(|_| known)
    }

    /// Bytes of the whole cache, as the reference or as kernels need it; `None` if a size is not
    /// possible.
    pub fn bytes(&self) -> Option<usize> {
        let [keys, values] = self.planes()?;
        let kernels = match self.value_size {
            // Rows of a convolution, which has no kernels.
            0 => 0,
            _ => self.params(1, self.heads).cache_bytes().ok()?,
        };
        keys.checked_add(values).map(|b| b.max(kernels)).filter(|&b| b <= isize::MAX as usize)
    }

    /// The attention of so many rows over such a cache, all of them seen. A type that caches do not
    /// have is taken for f32.
    pub(super) fn params(&self, rows: usize, heads: usize) -> AttentionParams {
        let cache = match self.dtype {
            DType::F16 => CacheType::F16,
            DType::Q8_0 => CacheType::Q8_0,
            _ => CacheType::F32,
        };
        let kv = |size: usize| self.heads.saturating_mul(size);
        let (key, value) = (self.key_size, self.value_size);
        let strides = [heads.saturating_mul(key), kv(key), kv(value), heads.saturating_mul(value)];
        let plain = AttentionParams::new(rows, [heads, self.heads, key], self.capacity);
        AttentionParams { values: value, cache, strides, ..plain }
    }
}

/// Keys and values of the positions that one layer has seen.
///
/// How they lie in memory is the business of what computes [`super::ops::kv_attention::KvAttention`]:
/// the reference and the kernels of one instruction set differ, and only one of them may use a cache.
/// How many positions are valid is said by the positions that are asked about: to forget the last
/// ones, one goes on from an earlier position.
pub struct KvCache {
    shape: KvShape,
    memory: Mutex<AlignedBytes>,
    /// Where the memory begins, for kernels.
    start: AtomicPtr<u8>,
    /// What a device keeps of it in place of the memory.
    resident: Mutex<Option<Arc<dyn Resident>>>,
}

/// Keys and values on a device that computes whole graphs.
pub trait Resident: Send + Sync {
    /// Takes over what another one holds.
    ///
    /// # Errors
    /// Another device, and what the device meets.
    fn copy_from(&self, other: &dyn Resident) -> Result<(), GraphError>;

    /// Itself, for the backend that made it.
    fn as_any(&self) -> &dyn Any;
}

impl KvCache {
    /// A cache with nothing in it. Memory that is not touched takes no pages of the machine.
    ///
    /// # Errors
    /// Sizes that are not possible, a type that caches do not have, lack of memory.
    pub fn new(shape: KvShape) -> Result<Self, GraphError> {
        let op = "kv_cache";
        let KvShape { heads, key_size, value_size, capacity, dtype } = shape;
        let Some(bytes) = shape.bytes() else {
            if dtype == DType::Q8_0 && (key_size % 32 != 0 || value_size % 32 != 0) {
                let rule = "heads of a multiple of 32 elements, for q8_0";
                let (keys, values) = ([heads, key_size], [heads, value_size]);
                return Err(GraphError::mismatch(
                    op,
                    rule,
                    &[("keys", &keys), ("values", &values)],
                ));
            }
            if !matches!(dtype, DType::F32 | DType::F16 | DType::Q8_0) {
                return Err(GraphError::UnsupportedDType { op, dtype });
            }
            let source = ShapeError::Overflow(vec![capacity, heads, key_size, value_size]);
            return Err(GraphError::Shape { op, source });
        };
        let mut memory = AlignedBytes::sparse(bytes)?;
        let start = AtomicPtr::new(memory.as_mut_ptr());
        Ok(Self { shape, memory: Mutex::new(memory), start, resident: Mutex::new(None) })
    }

    /// Its sizes.
    pub fn shape(&self) -> &KvShape {
        &self.shape
    }

    /// Moves to large pages: walking through a long cache in small ones takes a little longer, while in a
    /// short one most of a large page would be cleared for nothing. Stays where it is if there is no memory
    /// for that. No run may use the cache meanwhile.
    #[cfg(feature = "llm")]
    pub(crate) fn use_large_pages(&self) {
        let mut memory = self.lock();
        let Ok(mut large) = AlignedBytes::zeroed(memory.len()) else { return };
        large.copy_from_slice(&memory);
        self.start.store(large.as_mut_ptr(), Ordering::Relaxed);
        *memory = large;
    }

    /// What a device keeps of it, which `make` makes when it is first asked for.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn resident(
        &self,
        make: impl FnOnce() -> Result<Arc<dyn Resident>, GraphError>,
    ) -> Result<Arc<dyn Resident>, GraphError> {
        let mut resident = self.resident.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(resident) = &*resident {
            return Ok(resident.clone());
        }
        Ok(resident.insert(make()?).clone())
    }

    fn kept_by_device(&self) -> Option<Arc<dyn Resident>> {
        self.resident.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where its bytes begin, at a multiple of 64. They live as long as the cache; who writes where
    /// is agreed upon by the steps that have it.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.load(Ordering::Relaxed)
    }

    /// Its bytes, for who computes alone.
    pub(crate) fn lock(&self) -> MutexGuard<'_, AlignedBytes> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over what another cache of the same sizes holds. No run may use either meanwhile.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the sizes differ, [`GraphError::Unsupported`] if a device keeps one of
    /// them only.
    pub fn copy_from(&self, other: &Self) -> Result<(), GraphError> {
        if self.shape != other.shape {
            return Err(TensorError::Length {
                dims: vec![self.shape.capacity, self.shape.heads],
                dtype: self.shape.dtype,
                expected: self.lock().len(),
                found: other.lock().len(),
            }
            .into());
        }
        match (self.kept_by_device(), other.kept_by_device()) {
            (Some(to), Some(from)) => return to.copy_from(&*from),
            (None, None) => {}
            // What the other's memory holds here is not what the device has computed.
            _ => {
                let what = "copying between a device and the CPU; plan both for the same device";
                return Err(GraphError::Unsupported { op: "kv_cache", what: what.to_owned() });
            }
        }
        if !core::ptr::eq(self, other) {
            self.lock().copy_from_slice(&other.lock());
        }
        Ok(())
    }
}

impl fmt::Debug for KvCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KvCache({:?} at {:p})", self.shape, self.as_ptr())
    }
}

/// Two caches are the same if they are one.
impl PartialEq for KvCache {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}
