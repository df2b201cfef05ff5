//! Memory of a device, given out in parts of slabs.
//!
//! Sizes are rounded up to one of eight classes per power of two, so that at most an eighth of a part is
//! not used. A part that comes back waits, with its handle, in the bin of its class, where the next
//! request of that class finds it without a call of the driver. A request that finds its bin empty takes
//! the smallest free range of a slab that holds it; if there is none, what waits in bins is joined with
//! its free neighbours first; only then a new slab is made. [`Pool::trim`] gives slabs back in which
//! nothing is in use.
//!
//! The pool knows nothing of OpenCL: it asks a [`Source`], in tests a model.

use core::fmt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::OpenClError;

/// Classes per power of two.
const CLASSES: usize = 8;

/// Bytes of the smallest slab and of the largest that is shared by parts of many sizes.
const LEAST_SLAB: usize = 1 << 20;
const MOST_SLAB: usize = 32 << 20;

/// Where slabs and their parts come from.
pub(super) trait Source: Send + Sync {
    /// A piece of the device's memory.
    type Slab: Send;
    /// A part of one, which may be given to kernels.
    type Part: Send + Sync;

    /// A new slab.
    fn slab(&self, bytes: usize) -> Result<Self::Slab, OpenClError>;

    /// A part of a slab; no two parts in use overlap.
    fn part(&self, slab: &Self::Slab, at: usize, bytes: usize) -> Result<Self::Part, OpenClError>;
}

/// What a pool has given out and holds, in bytes and calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of all slabs.
    pub reserved: usize,
    /// Bytes in use, sizes rounded up to their classes.
    pub used: usize,
    /// Bytes in use as they were asked for.
    pub requested: usize,
    /// Most bytes of slabs at one time.
    pub most_reserved: usize,
    /// Most bytes that were in use at one time, as they were asked for.
    pub most_requested: usize,
    /// Slabs.
    pub slabs: usize,
    /// Parts in use.
    pub parts: usize,
    /// Requests so far.
    pub requests: u64,
    /// Requests that a bin answered.
    pub hits: u64,
}

impl PoolStats {
    /// Share of the slabs, at the time when they were largest, that nobody had asked for.
    pub fn fragmentation(&self) -> f64 {
        match self.most_reserved {
            0 => 0.0,
            most => 1.0 - self.most_requested as f64 / most as f64,
        }
    }
}

/// Gives out parts of slabs; all threads may ask at the same time.
pub(super) struct Pool<S: Source> {
    source: S,
    align: usize,
    most_slab: usize,
    limit: usize,
    inner: Mutex<Inner<S>>,
}

struct Inner<S: Source> {
    /// Parts that wait for a request, by the number of their class. They end before their slabs.
    bins: Vec<Vec<Part<S>>>,
    slabs: HashMap<usize, Slab<S>>,
    next: usize,
    /// Free ranges of all slabs: bytes, slab, where.
    free: BTreeSet<(usize, usize, usize)>,
    stats: PoolStats,
}

struct Slab<S: Source> {
    memory: S::Slab,
    bytes: usize,
    /// Free ranges: where, bytes.
    free: BTreeMap<usize, usize>,
}

struct Part<S: Source> {
    memory: Arc<S::Part>,
    slab: usize,
    at: usize,
    bytes: usize,
    /// Where it waits; `None` for a part of no class, too large for its size to be rounded up.
    bin: Option<usize>,
}

/// A part in use, which goes back to its pool in the end.
pub(super) struct Region<S: Source> {
    pool: Arc<Pool<S>>,
    part: Option<Part<S>>,
    requested: usize,
}

impl<S: Source> Region<S> {
    /// The memory. It is given out again when the region has ended; who keeps a handle beyond that must
    /// not use it.
    pub(super) fn memory(&self) -> &Arc<S::Part> {
        &self.part.as_ref().expect("it is there until the end").memory
    }

    /// Bytes that were asked for.
    pub(super) fn bytes(&self) -> usize {
        self.requested
    }
}

impl<S: Source> fmt::Debug for Region<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.requested)
    }
}

impl<S: Source> Drop for Region<S> {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            let mut inner = self.pool.lock();
            inner.stats.used -= part.bytes;
            inner.stats.requested -= self.requested;
            inner.stats.parts -= 1;
            match part.bin {
                Some(bin) => inner.bins[bin].push(part),
                None => inner.join(part),
            }
        }
    }
}

/// A size that parts may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Class {
    bytes: usize,
    /// The number of its bin.
    number: usize,
}

/// The class of a size: the next multiple of an eighth of the power of two below it, and of `align`, a power of
/// two that has eighths itself.
fn class(bytes: usize, align: usize) -> Option<Class> {
    let bytes = bytes.max(1);
    let step = (1usize << bytes.ilog2() >> CLASSES.ilog2()).max(align);
    let bytes = bytes.checked_add(step - 1)? & !(step - 1);
    let power = bytes.ilog2();
    let eighth = (bytes >> (power - CLASSES.ilog2())) % CLASSES;
    Some(Class { bytes, number: power as usize * CLASSES + eighth })
}

impl<S: Source> Pool<S> {
    /// A pool whose parts begin at multiples of `align` (a power of two), whose slabs are at most
    /// `most_slab` bytes, and all of them at most `limit`.
    pub(super) fn new(source: S, align: usize, most_slab: usize, limit: usize) -> Arc<Self> {
        let inner = Inner {
            slabs: HashMap::new(),
            next: 0,
            free: BTreeSet::new(),
            bins: (0..usize::BITS as usize * CLASSES).map(|_| Vec::new()).collect(),
            stats: PoolStats::default(),
        };
        let align = align.max(CLASSES);
        Arc::new(Self { source, align, most_slab, limit, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner<S>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes given out and held.
    pub(super) fn stats(&self) -> PoolStats {
        self.lock().stats
    }

    /// Memory of `bytes` bytes; of none it is one byte.
    ///
    /// # Errors
    /// [`OpenClError::Memory`] beyond the limit or the largest slab; what the source meets.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Result<Region<S>, OpenClError> {
        let mut inner = self.lock();
        let too_much = |inner: &Inner<S>| OpenClError::Memory {
            needed: bytes,
            used: inner.stats.used,
            limit: self.limit.min(self.most_slab.max(inner.stats.used)),
        };
        let class = class(bytes, self.align).filter(|class| class.bytes <= self.most_slab);
        // The rounding alone is no reason to refuse.
        let exact = || bytes.checked_next_multiple_of(self.align).filter(|&b| b <= self.most_slab);
        let size = class.map(|class| class.bytes).or_else(exact);
        let size = size.ok_or_else(|| too_much(&inner))?;
        let bin = class.map(|class| class.number);
        inner.stats.requests += 1;
        let part = match bin.and_then(|bin| inner.bins[bin].pop()) {
            Some(part) => {
                inner.stats.hits += 1;
                part
            }
            None => self.carve(&mut inner, size, bin)?.ok_or_else(|| too_much(&inner))?,
        };
        let stats = &mut inner.stats;
        stats.used += size;
        stats.requested += bytes;
        stats.parts += 1;
        stats.most_requested = stats.most_requested.max(stats.requested);
        drop(inner);
        Ok(Region { pool: self.clone(), part: Some(part), requested: bytes })
    }

    /// A new part of so many bytes; `None` if the limit forbids it.
    #[cold]
    fn carve(
        &self,
        inner: &mut Inner<S>,
        size: usize,
        bin: Option<usize>,
    ) -> Result<Option<Part<S>>, OpenClError> {
        if inner.smallest(size).is_none() {
            inner.empty_bins();
        }
        if inner.smallest(size).is_none() && !self.grow(inner, size)? {
            return Ok(None);
        }
        let (have, slab, at) = inner.smallest(size).expect("there is a slab that holds it");
        let home = inner.slabs.get_mut(&slab).expect("free ranges are in slabs");
        // Made first, so that a failure changes nothing.
        let memory = Arc::new(self.source.part(&home.memory, at, size)?);
        home.free.remove(&at);
        inner.free.remove(&(have, slab, at));
        if have > size {
            home.free.insert(at + size, have - size);
            inner.free.insert((have - size, slab, at + size));
        }
        Ok(Some(Part { memory, slab, at, bytes: size, bin }))
    }

    /// A new slab for a part of `size` bytes; `false` if the limit forbids it.
    fn grow(&self, inner: &mut Inner<S>, size: usize) -> Result<bool, OpenClError> {
        // A part of what there is already, so that what is left over at the end stays small.
        let shared = (inner.stats.reserved / 16).clamp(LEAST_SLAB, MOST_SLAB).min(self.most_slab);
        let shared = shared.next_multiple_of(self.align);
        let wanted = if size > shared / 2 { size } else { shared };
        let fits = |inner: &Inner<S>, bytes: usize| {
            inner.stats.reserved.checked_add(bytes).is_some_and(|all| all <= self.limit)
        };
        if !fits(inner, wanted) {
            inner.release_unused();
        }
        let bytes = if fits(inner, wanted) { wanted } else { size };
        if !fits(inner, bytes) {
            return Ok(false);
        }
        let (memory, bytes) = match self.source.slab(bytes) {
            Ok(memory) => (memory, bytes),
            // The device has no more: what nobody uses goes back to it, and it is asked for less.
            Err(_) => {
                inner.release_unused();
                (self.source.slab(size)?, size)
            }
        };
        inner.add(memory, bytes);
        Ok(true)
    }

    /// Gives slabs back to the device in which nothing is in use; gives their bytes.
    pub(super) fn trim(&self) -> usize {
        let mut inner = self.lock();
        let before = inner.stats.reserved;
        inner.release_unused();
        before - inner.stats.reserved
    }
}

impl<S: Source> Inner<S> {
    /// The smallest free range of at least `size` bytes.
    fn smallest(&self, size: usize) -> Option<(usize, usize, usize)> {
        self.free.range((size, 0, 0)..).next().copied()
    }

    fn add(&mut self, memory: S::Slab, bytes: usize) {
        let id = self.next;
        self.next += 1;
        self.slabs.insert(id, Slab { memory, bytes, free: BTreeMap::from([(0, bytes)]) });
        self.free.insert((bytes, id, 0));
        self.stats.slabs += 1;
        self.stats.reserved += bytes;
        self.stats.most_reserved = self.stats.most_reserved.max(self.stats.reserved);
    }

    /// Joins all parts that wait with their free neighbours.
    fn empty_bins(&mut self) {
        for class in 0..self.bins.len() {
            core::mem::take(&mut self.bins[class]).into_iter().for_each(|part| self.join(part));
        }
    }

    /// Joins a part with its free neighbours.
    fn join(&mut self, Part { memory, slab, mut at, mut bytes, .. }: Part<S>) {
        drop(memory);
        let home = self.slabs.get_mut(&slab).expect("parts are in slabs");
        if let Some((&before, &have)) = home.free.range(..at).next_back()
            && before + have == at
        {
            home.free.remove(&before);
            self.free.remove(&(have, slab, before));
            (at, bytes) = (before, bytes + have);
        }
        if let Some(&have) = home.free.get(&(at + bytes)) {
            home.free.remove(&(at + bytes));
            self.free.remove(&(have, slab, at + bytes));
            bytes += have;
        }
        home.free.insert(at, bytes);
        self.free.insert((bytes, slab, at));
    }

    fn release_unused(&mut self) {
        self.empty_bins();
        let whole = |(&id, slab): (&usize, &Slab<S>)| {
            (slab.free.get(&0) == Some(&slab.bytes)).then_some((id, slab.bytes))
        };
        let unused: Vec<(usize, usize)> = self.slabs.iter().filter_map(whole).collect();
        for (id, bytes) in unused {
            self.slabs.remove(&id);
            self.free.remove(&(bytes, id, 0));
            self.stats.slabs -= 1;
            self.stats.reserved -= bytes;
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
