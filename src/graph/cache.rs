//! What was derived from constants, kept for the next plan of the same model.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{GraphError, Op};
use crate::tensor::{AlignedBytes, DType, Regions, Shape, Storage, Tensor, TensorError};

/// Folded values of fewer bytes are never released: they are cheaper to keep than to compute again.
const SMALL: usize = 64 << 10;

/// Least bytes of a buffer for copies of weights.
const COPY: usize = 1 << 20;

/// Folded constants and packed weights by the identity of what they were derived from.
///
/// A model keeps one. Each new input shape builds the graph anew; what depends on weights only is
/// then found here instead of being computed and packed again. Results of constants that were not
/// registered with [`ConstCache::keep`] (shapes, scalars that an instantiation makes) are not
/// kept, so the cache does not grow with the number of plans.
#[derive(Default)]
pub struct ConstCache {
    maps: Mutex<Maps>,
    /// Memory of packed weights.
    regions: Regions,
    /// Where weights are copied to that do not lie as elements must, until [`ConstCache::release`]: as
    /// many buffers as threads have needed at one time.
    copies: Mutex<Vec<AlignedBytes>>,
    /// Whether weights stay as they are where a kernel can read them so.
    in_place: AtomicBool,
    progress: Mutex<Option<Progress>>,
}

/// Told the bytes of a tensor that was packed.
type Progress = Box<dyn FnMut(usize) + Send>;

#[derive(Default)]
struct Maps {
    kept: std::collections::HashSet<u64>,
    /// By the storages of operands.
    folded: HashMap<Vec<u64>, Vec<Folded>>,
    packed: HashMap<(String, u64), Arc<Slot>>,
}

/// Packed weights once they are there; locked while they are made, so that nobody makes them twice.
type Slot = Mutex<Option<Arc<AlignedBytes>>>;

/// What is computed from constants.
#[derive(Clone, PartialEq)]
pub(crate) enum Fold {
    /// An operator.
    Op(Arc<Op>),
    /// A dense copy of the elements that a shape finds from an offset on, in bytes.
    View(Shape, usize),
    /// A copy of which elements lie as their type asks.
    Aligned,
}

/// A folded constant.
struct Folded {
    /// What it is of its operands.
    what: Fold,
    /// Types and extents of the operands.
    operands: Vec<(DType, Vec<usize>)>,
    /// Identity of its storage, also of one that is made again.
    id: u64,
    /// `None` after a release.
    value: Option<Tensor>,
}

impl ConstCache {
    /// Declares that a storage lives as long as the cache, so that what is derived from it may be
    /// kept.
    pub fn keep(&self, storage: &Storage) {
        lock(&self.maps).kept.insert(storage.id());
    }

    /// Declares that weights which kernels can read as they are shall not be packed: results are the
    /// same, in less memory and more time.
    pub fn leave_in_place(&self) {
        self.in_place.store(true, Ordering::Relaxed);
    }

    /// Takes that back, for plans that are made from now on.
    #[cfg(feature = "llm")]
    pub(crate) fn pack_from_now_on(&self) {
        self.in_place.store(false, Ordering::Relaxed);
    }

    /// Whether weights stay as they are.
    pub(crate) fn is_in_place(&self) -> bool {
        self.in_place.load(Ordering::Relaxed)
    }

    /// Calls `progress` with the bytes of each tensor that is packed from now on.
    #[cfg(feature = "llm")]
    pub(crate) fn report(&self, progress: Option<Progress>) {
        *lock(&self.progress) = progress;
    }

    /// Bytes of packed weights.
    pub fn packed_bytes(&self) -> usize {
        // What is being packed does not count yet.
        let bytes = |slot: &Arc<Slot>| Some(slot.try_lock().ok()?.as_ref()?.len());
        lock(&self.maps).packed.values().filter_map(bytes).sum()
    }

    /// Lets go of what only led to packed weights: large folded constants that nobody uses any more,
    /// and the buffers for copies. Whoever needs such a constant later computes it again; what was
    /// packed from it is found as before.
    pub fn release(&self) {
        lock(&self.copies).clear();
        for folded in lock(&self.maps).folded.values_mut().flatten() {
            let unused = |t: &Tensor| t.bytes().len() >= SMALL && t.storage().is_unique();
            if folded.value.as_ref().is_some_and(unused) {
                folded.value = None;
            }
        }
    }

    /// Bytes of folded constants that are kept.
    pub fn folded_bytes(&self) -> usize {
        let maps = lock(&self.maps);
        maps.folded
            .values()
            .flatten()
            .filter_map(|f| f.value.as_ref())
            .map(|t| t.bytes().len())
            .sum()
    }

    /// Calls `read` with the elements of a tensor. Those that lie in a file where elements cannot are
    /// copied to a buffer that serves for many of them: new memory for each takes longer than packing.
    pub(crate) fn with_f32<R>(
        &self,
        source: &Tensor,
        read: impl FnOnce(&[f32]) -> Result<R, GraphError>,
    ) -> Result<R, GraphError> {
        let bytes = source.bytes();
        if source.dtype() != DType::F32 {
            let (expected, found) = (DType::F32, source.dtype());
            return Err(TensorError::DType { expected, found }.into());
        }
        if let Ok(elements) = bytemuck::try_cast_slice(bytes) {
            return read(elements);
        }
        let free = lock(&self.copies).pop();
        let mut copy = match free {
            Some(copy) if copy.len() >= bytes.len() => copy,
            _ => AlignedBytes::zeroed(bytes.len().max(COPY))?,
        };
        let elements = &mut copy[..bytes.len()];
        elements.copy_from_slice(bytes);
        let result = read(bytemuck::cast_slice(elements));
        lock(&self.copies).push(copy);
        result
    }

    /// The result of `make`, or of an earlier call for the same on the same operands.
    pub(crate) fn folded(
        &self,
        what: Fold,
        operands: &[&Tensor],
        make: impl FnOnce() -> Result<Tensor, GraphError>,
    ) -> Result<Tensor, GraphError> {
        let sources = operands.iter().map(|t| t.storage());
        let ids: Vec<u64> = sources.clone().map(Storage::id).collect();
        let operands: Vec<_> = operands.iter().map(|t| (t.dtype(), t.dims())).collect();
        let same = |f: &&mut Folded| f.what == what && f.operands == operands;
        {
            let mut maps = lock(&self.maps);
            let mut known = maps.folded.get_mut(&ids).into_iter().flatten();
            if let Some(Folded { value: Some(found), .. }) = known.find(same) {
                return Ok(found.clone());
            }
        }
        let mut made = make()?;
        sources.for_each(Storage::let_go);
        let mut maps = lock(&self.maps);
        let Maps { kept, folded, .. } = &mut *maps;
        if ids.iter().all(|id| kept.contains(id)) {
            let known = folded.entry(ids).or_default();
            match known.iter_mut().find(same) {
                Some(released) => {
                    made.storage_mut().identify(released.id);
                    released.value = Some(made.clone());
                }
                None => {
                    let (id, value) = (made.storage().id(), Some(made.clone()));
                    kept.insert(id);
                    known.push(Folded { what, operands, id, value });
                }
            }
        }
        Ok(made)
    }

    /// Zeroed memory for packed weights.
    pub(crate) fn room(&self, bytes: usize) -> Result<AlignedBytes, TensorError> {
        AlignedBytes::zeroed_in(&self.regions, bytes)
    }

    /// Packed weights: the result of `make`, or of an earlier call with the same format and
    /// source. Who asks while another thread makes them waits for it.
    pub(crate) fn packed(
        &self,
        format: String,
        source: &Storage,
        make: impl FnOnce() -> Result<AlignedBytes, GraphError>,
    ) -> Result<Arc<AlignedBytes>, GraphError> {
        let slot = self.slot(format, source);
        let mut slot = lock(&slot);
        if let Some(found) = &*slot {
            return Ok(found.clone());
        }
        let made = Arc::new(make()?);
        source.let_go();
        *slot = Some(made.clone());
        if let Some(progress) = &mut *lock(&self.progress) {
            progress(source.len());
        }
        Ok(made)
    }

    /// Where the packed weights of this format and source are, or are going to be.
    fn slot(&self, format: String, source: &Storage) -> Arc<Slot> {
        let mut maps = lock(&self.maps);
        match maps.kept.contains(&source.id()) {
            true => maps.packed.entry((format, source.id())).or_default().clone(),
            false => Arc::default(),
        }
    }
}

/// What is locked here is whole between any two statements, so a panic elsewhere does not spoil it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_released_comes_back_as_what_it_was() {
        let cache = ConstCache::default();
        let source = Tensor::from_slice(&[1], &[2f32]).unwrap();
        cache.keep(source.storage());
        let fill = || Ok(Tensor::zeros(DType::F32, &[SMALL])?);
        let fold = || cache.folded(Fold::Aligned, &[&source], fill);
        let made = fold().unwrap();
        let id = made.storage().id();
        cache.release();
        assert_eq!(cache.folded_bytes(), SMALL * 4, "somebody uses it");
        drop(made);
        cache.release();
        assert_eq!(cache.folded_bytes(), 0);
        assert_eq!(fold().unwrap().storage().id(), id);
        assert_eq!(cache.folded_bytes(), SMALL * 4);
    }

    #[test]
    fn weights_are_packed_once_whoever_asks() {
        use core::sync::atomic::AtomicUsize;
        use std::sync::Barrier;
        let cache = ConstCache::default();
        let source = Tensor::from_slice(&[1], &[2f32]).unwrap();
        cache.keep(source.storage());
        let (made, begin) = (AtomicUsize::new(0), Barrier::new(4));
        let pack = || {
            begin.wait();
            cache.packed("format".into(), source.storage(), || {
                made.fetch_add(1, Ordering::Relaxed);
                // Long enough for the others to ask.
                std::thread::sleep(core::time::Duration::from_millis(20));
                Ok(AlignedBytes::zeroed(8)?)
            })
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let asked: Vec<_> = (0..4).map(|_| scope.spawn(pack)).collect();
            asked.into_iter().map(|a| a.join().unwrap().unwrap()).collect()
        });
        assert!(all.iter().all(|p| Arc::ptr_eq(p, &all[0])));
        assert_eq!((made.into_inner(), cache.packed_bytes()), (1, 8));
        // What went wrong is tried again.
        let wrong = || {
            cache.packed("other".into(), source.storage(), || {
                Err(TensorError::OutOfMemory(1).into())
            })
        };
        assert!(wrong().is_err());
        assert!(
            cache.packed("other".into(), source.storage(), || Ok(AlignedBytes::zeroed(4)?)).is_ok()
        );
        assert_eq!(cache.packed_bytes(), 12);
    }

    #[test]
    fn elements_are_read_wherever_they_lie() {
        let cache = ConstCache::default();
        for shift in [0, 1, 2] {
            let mut raw = vec![0; shift];
            raw.extend([1f32, 2.0, 3.0].iter().flat_map(|x| x.to_ne_bytes()));
            let storage = Storage::shared(bytes::Bytes::from(raw).slice(shift..));
            let tensor = Tensor::from_storage(DType::F32, &[3], storage).unwrap();
            let found = cache.with_f32(&tensor, |x| Ok(x.to_vec())).unwrap();
            assert_eq!(found, [1.0, 2.0, 3.0]);
        }
        let other = Tensor::from_slice(&[1], &[1i32]).unwrap();
        assert!(cache.with_f32(&other, |_| Ok(())).is_err());
    }
}
