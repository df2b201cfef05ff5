//! What was derived from constants, kept for the next plan of the same model.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ops::cont::StridedCopy;
use super::{GraphError, Info, Op, View, ViewMut};
use crate::tensor::{
    AlignedBytes, DType, Regions, Shape, ShapeError, Storage, Tensor, TensorError,
};

/// Folded values of fewer bytes are never released: they are cheaper to keep than to compute again.
const SMALL: usize = 64 << 10;

/// Plans for which a constant is remembered that none of them asks for.
const REMEMBERED: u64 = 64;

/// Most constants that are computed to have one again; one that takes more stays as it is.
const STEPS: usize = 64;

/// Least bytes of a buffer for copies of weights.
const COPY: usize = 1 << 20;

/// Folded constants and packed weights by the identity of what they were derived from.
///
/// A model keeps one. Each new input shape builds the graph anew; what depends on weights only is
/// then found here instead of being computed and packed again. Results of constants that were not
/// registered with [`ConstCache::keep`] (shapes, scalars that an instantiation makes) are not
/// kept, and those that plans no longer ask for are forgotten, so the cache does not grow with the number of plans.
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
    /// By the identity of the first operand.
    folded: HashMap<u64, Vec<Folded>>,
    packed: HashMap<(String, u64), Arc<Slot>>,
    /// How many plans were made.
    plans: u64,
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
}

impl Fold {
    /// Computes it with references; `info` has the type of the result, and the extents of an operator's.
    fn apply(&self, operands: &[&Tensor], info: &Info) -> Result<Tensor, GraphError> {
        let dtype = info.dtype;
        let (op, dims, bytes) = match self {
            Self::Op(op) => (op.name(), info.dims.clone(), info.stored_bytes()),
            Self::View(shape, _) => ("view", shape.dims(), dtype.bytes_of(shape.elements())),
        };
        let Some(bytes) = bytes else {
            return Err(GraphError::Shape { op, source: ShapeError::Overflow(dims) });
        };
        let mut out = AlignedBytes::zeroed(bytes)?;
        match self {
            Self::Op(op) => {
                let operator = op.operator().expect("only operators fold");
                let aligned: Vec<Tensor> =
                    operands.iter().map(|v| v.to_aligned()).collect::<Result<_, _>>()?;
                let of: Vec<Vec<usize>> = aligned.iter().map(Tensor::dims).collect();
                let views: Vec<View<'_>> = aligned
                    .iter()
                    .zip(&of)
                    .map(|(t, dims)| View { dtype: t.dtype(), dims, bytes: t.bytes() })
                    .collect();
                operator.eval(&views, &mut ViewMut { dtype, dims: &dims, bytes: &mut out })?;
            }
            Self::View(shape, offset) => {
                let source = operands[0].storage().ready()?;
                StridedCopy::new(dtype, shape)?.copy(&source[*offset..], &mut out);
            }
        }
        Ok(Tensor::from_storage(dtype, &dims, Storage::owned(out))?)
    }
}

/// A folded constant.
struct Folded {
    /// What it is of its operands.
    what: Fold,
    /// Those that are computed again if they are read have no memory.
    operands: Vec<Tensor>,
    value: Tensor,
    /// A large one as it is until somebody reads it, and how many constants are computed then.
    again: Option<(Storage, usize)>,
    /// When it was last asked for.
    last: u64,
}

impl Maps {
    /// A constant of these operands that is there, or is computed again once it is read.
    #[inline(never)]
    fn known(&mut self, what: &Fold, operands: &[&Tensor]) -> Option<Tensor> {
        let same = |a: &Tensor, b: &Tensor| {
            a.storage().id() == b.storage().id() && a.dtype() == b.dtype() && a.shape() == b.shape()
        };
        let known = self.folded.get_mut(&first(operands))?;
        let found = known.iter_mut().find(|f| {
            let all = f.operands.len() == operands.len();
            all && f.operands.iter().zip(operands).all(|(a, b)| same(a, b)) && f.what == *what
        })?;
        found.last = self.plans;
        Some(found.value.clone())
    }

    /// What computes a constant again that was folded and is large, and how many others with it.
    fn again(&self, of: &Storage) -> Option<&(Storage, usize)> {
        if of.len() < SMALL {
            return None;
        }
        let mut all = self.folded.values().flatten();
        all.find(|f| f.value.storage().id() == of.id())?.again.as_ref()
    }

    /// Remembers what was computed from operands, and how.
    fn add(&mut self, what: Fold, operands: &[&Tensor], info: &Info, made: &Tensor) {
        let (id, len) = (made.storage().id(), made.storage().len());
        let (mut steps, mut lasting) = (1, Vec::new());
        for &operand in operands {
            lasting.push(match self.again(operand.storage()) {
                Some((again, taken)) => {
                    steps += taken;
                    operand.with_storage(again.clone())
                }
                None => operand.clone(),
            });
        }
        let mut again = None;
        if len >= SMALL && steps <= STEPS {
            let (what, operands, info) = (what.clone(), lasting.clone(), info.clone());
            let make = move || {
                let fresh: Vec<Tensor> =
                    operands.iter().map(|t| t.with_storage(t.storage().again())).collect();
                // It was made of the same before: only memory can lack.
                let made = what.apply(&fresh.iter().collect::<Vec<_>>(), &info).ok();
                made.and_then(|m| m.into_storage().into_owned())
                    .ok_or(TensorError::OutOfMemory(len))
            };
            again = Some((Storage::later(id, len, Arc::new(make)), steps));
        }
        self.kept.insert(id);
        let (value, last) = (made.clone(), self.plans);
        let list = self.folded.entry(first(operands)).or_default();
        list.push(Folded { what, operands: lasting, value, again, last });
    }
}

/// The identity of the first operand.
fn first(operands: &[&Tensor]) -> u64 {
    operands.first().map_or(0, |t| t.storage().id())
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
    /// and the buffers for copies. Whoever reads such a constant later computes it again; what was
    /// packed from it is found as before. Forgets what no plan has asked for in a while: sizes of inputs that do not come
    /// back would leave their constants behind.
    pub fn release(&self) {
        lock(&self.copies).clear();
        let mut maps = lock(&self.maps);
        let Maps { kept, folded, packed, plans } = &mut *maps;
        *plans += 1;
        let mut gone = Vec::new();
        folded.retain(|_, list| {
            list.retain_mut(|f| {
                let storage = f.value.storage();
                if !storage.is_unique() {
                    return true;
                }
                let id = storage.id();
                if *plans - f.last > REMEMBERED {
                    gone.push(id);
                    return false;
                }
                if let Some((again, _)) = &f.again
                    && storage.is_there()
                {
                    f.value = f.value.with_storage(again.again());
                }
                true
            });
            !list.is_empty()
        });
        for id in &gone {
            kept.remove(id);
        }
        if !gone.is_empty() {
            packed.retain(|(_, id), _| !gone.contains(id));
        }
    }

    /// Bytes of folded constants that are kept.
    pub fn folded_bytes(&self) -> usize {
        let maps = lock(&self.maps);
        let there = maps.folded.values().flatten().map(|f| f.value.storage());
        there.filter(|s| s.is_there()).map(Storage::len).sum()
    }

    /// Calls `read` with the elements of a tensor. Those that lie in a file where elements cannot are
    /// copied to a buffer that serves for many of them: new memory for each takes longer than packing.
    pub(crate) fn with_f32(
        &self,
        source: &Tensor,
        read: &mut dyn FnMut(&[f32]) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let bytes = source.bytes_of(DType::F32)?;
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

    /// What is computed from operands, or was at an earlier call for the same on the same; `info` is that of an operator's
    /// result.
    pub(crate) fn folded(
        &self,
        what: Fold,
        operands: &[&Tensor],
        info: &Info,
    ) -> Result<Tensor, GraphError> {
        if let Some(found) = lock(&self.maps).known(&what, operands) {
            return Ok(found);
        }
        let made = what.apply(operands, info)?;
        operands.iter().for_each(|t| t.storage().let_go());
        let mut maps = lock(&self.maps);
        // Another thread may have been faster.
        if let Some(found) = maps.known(&what, operands) {
            return Ok(found);
        }
        if operands.iter().all(|t| maps.kept.contains(&t.storage().id())) {
            maps.add(what, operands, info, &made);
        }
        Ok(made)
    }

    /// The tensor itself if its data start at a multiple of 64 bytes, else a copy that does.
    pub(crate) fn aligned(&self, value: &Tensor) -> Result<Tensor, GraphError> {
        let bytes = value.storage().ready()?;
        if bytes.as_ptr().addr().is_multiple_of(64) {
            return Ok(value.clone());
        }
        let bytes = [bytes.len()];
        let all = Fold::View(Shape::contiguous(DType::U8, &bytes).map_err(TensorError::from)?, 0);
        let copy = self.folded(all, &[value], &Info::plain(DType::U8, Vec::new()))?;
        Ok(value.with_storage(copy.into_storage()))
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
        make: &mut dyn FnMut() -> Result<AlignedBytes, GraphError>,
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
    use tilewright_kernels::template::binary::BinaryOp;

    use super::super::ops::binary::Binary;
    use super::super::ops::unary::{Unary, UnaryOp};
    use super::*;

    #[test]
    fn what_was_released_comes_back_as_what_it_was() {
        let cache = ConstCache::default();
        let source = numbers();
        cache.keep(source.storage());
        let once = || negative(&cache, &source).unwrap();
        let made = once();
        let id = made.storage().id();
        cache.release();
        assert_eq!(cache.folded_bytes(), SMALL * 4, "somebody uses it");
        drop(made);
        cache.release();
        assert_eq!(cache.folded_bytes(), 0);
        // To find it, or what comes of it, does not compute it.
        assert_eq!(once().storage().id(), id);
        let twice = || negative(&cache, &once()).unwrap();
        let (again, other) = (twice().storage().id(), twice());
        assert_eq!((other.storage().id(), other.as_slice::<f32>().unwrap()[3]), (again, 3.0));
        drop(other);
        cache.release();
        assert_eq!((twice().storage().id(), cache.folded_bytes()), (again, 0));
        // To read it does, and nothing else.
        let found = twice();
        assert_eq!((found.storage().len(), found.bytes().len()), (SMALL * 4, SMALL * 4));
        assert_eq!(found.bytes(), source.bytes());
        assert_eq!(cache.folded_bytes(), SMALL * 4);
        assert_eq!(once().as_slice::<f32>().unwrap()[3], -3.0);
    }

    /// Some numbers, 4 bytes each.
    fn numbers() -> Tensor {
        Tensor::from_slice(&[SMALL], &(0..SMALL).map(|i| i as f32).collect::<Vec<_>>()).unwrap()
    }

    fn negative(cache: &ConstCache, x: &Tensor) -> Result<Tensor, GraphError> {
        let op: Op = Unary { op: UnaryOp::Neg }.into();
        cache.folded(Fold::Op(Arc::new(op)), &[x], &Info::plain(x.dtype(), x.dims()))
    }

    #[test]
    fn what_no_plan_asks_for_is_forgotten() {
        let cache = ConstCache::default();
        let source = numbers();
        cache.keep(source.storage());
        let pack = |t: &Tensor| {
            let source = t.storage();
            cache.packed("format".into(), source, &mut || Ok(AlignedBytes::zeroed(8)?)).unwrap();
            cache.packed_bytes()
        };
        let [first, always] = [0, 4].map(|at| {
            let shape = Shape::contiguous(DType::F32, &[at + 1]).unwrap();
            cache
                .folded(Fold::View(shape, 0), &[&source], &Info::plain(DType::F32, vec![]))
                .unwrap()
        });
        assert_eq!((pack(&first), pack(&always)), (8, 16));
        drop(first);
        for _ in 0..=REMEMBERED {
            cache.release();
        }
        assert_eq!((cache.folded_bytes(), pack(&always)), (20, 8), "one of them is in use");
        drop(always);
        cache.release();
        assert_eq!((cache.folded_bytes(), cache.packed_bytes()), (0, 0));
    }

    #[test]
    fn what_takes_many_steps_is_not_computed_again() {
        let cache = ConstCache::default();
        let source = numbers();
        cache.keep(source.storage());
        let op = Arc::new(Op::from(Binary::new(BinaryOp::Add)));
        let info = Info::plain(source.dtype(), source.dims());
        let double = |x: Tensor| cache.folded(Fold::Op(op.clone()), &[&x, &x], &info).unwrap();
        // Each takes twice as many steps as the one before: two to the 24th, if none stayed as it is.
        let all = || (0..24).fold(source.clone(), |x, _| double(x));
        drop(all());
        cache.release();
        assert_eq!(cache.folded_bytes(), 3 * SMALL * 4, "each seventh");
        assert_eq!(all().as_slice::<f32>().unwrap()[3], 50_331_648.0);
    }

    #[test]
    fn long_rows_of_constants_are_not_computed_again() {
        let cache = ConstCache::default();
        let source = numbers();
        cache.keep(source.storage());
        let last = (0..2 * STEPS).fold(source, |x, _| negative(&cache, &x).unwrap());
        assert_eq!(last.as_slice::<f32>().unwrap()[3], 3.0);
        drop(last);
        cache.release();
        assert_eq!(cache.folded_bytes(), SMALL * 4, "one of them is what the others are made of");
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
            cache.packed("format".into(), source.storage(), &mut || {
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
            cache.packed("other".into(), source.storage(), &mut || {
                Err(TensorError::OutOfMemory(1).into())
            })
        };
        assert!(wrong().is_err());
        assert!(
            cache
                .packed("other".into(), source.storage(), &mut || Ok(AlignedBytes::zeroed(4)?))
                .is_ok()
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
            let mut found = Vec::new();
            let mut read = |x: &[f32]| {
                found.extend_from_slice(x);
                Ok(())
            };
            cache.with_f32(&tensor, &mut read).unwrap();
            assert_eq!(found, [1.0, 2.0, 3.0]);
        }
        let other = Tensor::from_slice(&[1], &[1i32]).unwrap();
        assert!(cache.with_f32(&other, &mut |_| Ok(())).is_err());
    }
}
