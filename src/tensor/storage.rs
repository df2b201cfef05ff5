//! Memory behind tensors.

use core::alloc::Layout;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::sync::{Arc, OnceLock};

use bytemuck::{Pod, Zeroable};

use super::TensorError;
use super::region::{Part, Regions};

/// One cache line, the unit of allocation.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Zeroed bytes that start at a multiple of 64, the width of the widest vector.
#[derive(Default)]
pub struct AlignedBytes {
    memory: Memory,
    len: usize,
}

enum Memory {
    Lines(Vec<Line>),
    /// Pages of its own, which the system makes large ones where it can: touching new memory in
    /// small pages takes ten times as long, and walking through it misses the TLB.
    Pages(memmap2::MmapMut),
    /// The same, shared with others that live as long.
    Part(Part),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Lines(Vec::new())
    }
}

/// From here on memory is mapped: a few large pages.
const MAPPED: usize = 4 << 20;

/// From here on memory may be part of a region: less is not worth a large page.
const PART: usize = 256 << 10;

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if the memory cannot be had.
    pub fn zeroed(len: usize) -> Result<Self, TensorError> {
        if len >= MAPPED {
            let pages = map(len)?;
            #[cfg(target_os = "linux")]
            // A hint: without it the pages are small ones.
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Ok(Self { memory: Memory::Pages(pages), len });
        }
        Self::small(len)
    }

    /// `len` zero bytes that are touched little by little here and there: large pages would all be
    /// cleared at the first touch of each.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if the memory cannot be had.
    pub(crate) fn sparse(len: usize) -> Result<Self, TensorError> {
        if len >= MAPPED {
            return Ok(Self { memory: Memory::Pages(map(len)?), len });
        }
        Self::small(len)
    }

    /// Bytes of the usual allocator.
    fn small(len: usize) -> Result<Self, TensorError> {
        let count = len.div_ceil(size_of::<Line>());
        let mut lines: Vec<Line> = Vec::new();
        lines.try_reserve_exact(count).map_err(|_| TensorError::OutOfMemory(len))?;
        // Memory that is given zeroed is no faster: where it must be aligned, the zeros are written as well.
        lines.resize(count, Line::zeroed());
        Ok(Self { memory: Memory::Lines(lines), len })
    }

    /// `len` zero bytes, much of it from regions for what lives as long.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if the memory cannot be had.
    pub(crate) fn zeroed_in(regions: &Regions, len: usize) -> Result<Self, TensorError> {
        if len < PART {
            return Self::zeroed(len);
        }
        Ok(Self { memory: Memory::Part(regions.part(len)?), len })
    }
}

fn map(len: usize) -> Result<memmap2::MmapMut, TensorError> {
    memmap2::MmapMut::map_anon(len).map_err(|_| TensorError::OutOfMemory(len))
}

impl Deref for AlignedBytes {
    type Target = [u8];
    // In each run, for each operand of each step.
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Lines(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Pages(pages) => &pages[..self.len],
            Memory::Part(part) => part,
        }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Lines(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Pages(pages) => &mut pages[..self.len],
            Memory::Part(part) => part,
        }
    }
}

/// Immutable shared bytes with an identity: two storages with one id hold the same data, so
/// results derived from them (packed weights, folded constants) can be kept by id.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    id: u64,
    bytes: Bytes,
}

enum Bytes {
    Owned(AlignedBytes),
    Shared(bytes::Bytes),
    Backed(bytes::Bytes, Arc<dyn Backing>),
    File(FilePart),
    Later(Box<Later>),
}

/// Bytes that are made once somebody wants to read them.
struct Later {
    len: usize,
    made: OnceLock<AlignedBytes>,
    make: Make,
}

type Make = Arc<dyn Fn() -> Result<AlignedBytes, TensorError> + Send + Sync>;

impl Later {
    fn bytes(&self) -> Result<&[u8], TensorError> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let made = (self.make)()?;
        debug_assert_eq!(made.len(), self.len);
        Ok(self.made.get_or_init(|| made))
    }

    /// Who asks whether it is ready gets an error; here memory lacks as it does for a `Vec`.
    #[cold]
    #[inline(never)]
    fn read(&self) -> &[u8] {
        self.bytes().unwrap_or_else(|_| {
            let line = align_of::<Line>();
            let layout = Layout::from_size_align(self.len, line).unwrap_or(Layout::new::<Line>());
            std::alloc::handle_alloc_error(layout)
        })
    }
}

/// Where bytes lie that can be had again, such as a mapped file.
pub(crate) trait Backing: Send + Sync {
    /// Lets go of the memory that a part of the bytes takes. Whoever touches it again has them again.
    fn let_go(&self, part: &[u8]);
}

/// From here on memory of a backing is worth letting go.
const BACKED: usize = 64 << 10;

/// A part of a file that is mapped too.
#[derive(Clone)]
#[cfg_attr(not(unix), allow(dead_code, reason = "only read by `read_at` on Unix"))]
struct FilePart {
    mapped: bytes::Bytes,
    file: Arc<File>,
    /// Where the part begins in the file.
    offset: u64,
}

impl Storage {
    /// Storage that owns its bytes.
    pub fn owned(bytes: AlignedBytes) -> Self {
        Self::new(Bytes::Owned(bytes))
    }

    /// Storage over a part of something larger, such as a mapped file. Not necessarily aligned.
    pub fn shared(bytes: bytes::Bytes) -> Self {
        Self::new(Bytes::Shared(bytes))
    }

    /// As [`Storage::shared`], of bytes that [`Storage::let_go`] may let go.
    pub(crate) fn backed(bytes: bytes::Bytes, backing: Arc<dyn Backing>) -> Self {
        match bytes.len() < BACKED {
            true => Self::shared(bytes),
            false => Self::new(Bytes::Backed(bytes, backing)),
        }
    }

    /// Lets go of the memory of bytes that can be had again, after what was derived from them is there: for
    /// whoever reads the bytes nothing changes but the time it takes.
    pub(crate) fn let_go(&self) {
        if let Bytes::Backed(bytes, backing) = &self.0.bytes {
            backing.let_go(bytes);
        }
    }

    /// Storage over a part of a file: the part as it is mapped, the file, and where in it the part
    /// begins. [`Storage::read_at`] leaves the mapping alone.
    pub fn file(mapped: bytes::Bytes, file: Arc<File>, offset: u64) -> Self {
        Self::new(Bytes::File(FilePart { mapped, file, offset }))
    }

    /// Copies the bytes from `at` on. Those of a file are read from it: what is mapped of the file
    /// would count as memory of this program once it is touched, and reading is faster.
    ///
    /// # Errors
    /// [`TensorError::Read`] if the file cannot be read, or has become shorter.
    ///
    /// # Panics
    /// If there are not so many bytes.
    pub fn read_at(&self, at: usize, out: &mut [u8]) -> Result<(), TensorError> {
        let inside = &self[at..at + out.len()];
        #[cfg(unix)]
        if let Bytes::File(part) = &self.0.bytes {
            let at = part.offset + at as u64;
            return std::os::unix::fs::FileExt::read_exact_at(&*part.file, out, at)
                .map_err(|e| TensorError::Read(e.to_string()));
        }
        out.copy_from_slice(inside);
        Ok(())
    }

    /// Storage of `len` bytes with the identity `id` that `make` makes when they are read, as it made them for those
    /// that had this identity before. [`Storage::ready`] tells whether it could.
    pub(crate) fn later(id: u64, len: usize, make: Make) -> Self {
        let later = Later { len, made: OnceLock::new(), make };
        Self(Arc::new(Inner { id, bytes: Bytes::Later(Box::new(later)) }))
    }

    /// The same; bytes that are made later are made anew when they are read.
    pub(crate) fn again(&self) -> Self {
        match &self.0.bytes {
            Bytes::Later(later) => Self::later(self.id(), later.len, later.make.clone()),
            _ => self.clone(),
        }
    }

    /// The bytes. Those that are made later are made here, so that to read them from now on cannot fail.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`].
    #[inline(never)]
    pub(crate) fn ready(&self) -> Result<&[u8], TensorError> {
        match &self.0.bytes {
            Bytes::Later(later) => later.bytes(),
            _ => Ok(self),
        }
    }

    /// The number of bytes. To ask does not make those that are made later.
    pub fn len(&self) -> usize {
        match &self.0.bytes {
            Bytes::Later(later) => later.len,
            _ => self.deref().len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether its bytes are there, not made later.
    pub(crate) fn is_there(&self) -> bool {
        !matches!(&self.0.bytes, Bytes::Later(later) if later.made.get().is_none())
    }

    /// A part of the bytes, without a copy where they are part of something larger already.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] for a copy.
    ///
    /// # Panics
    /// If the range does not lie inside.
    #[cfg(feature = "llm")]
    pub(crate) fn part(&self, range: core::ops::Range<usize>) -> Result<Self, TensorError> {
        match &self.0.bytes {
            Bytes::Shared(bytes) => Ok(Self::shared(bytes.slice(range))),
            Bytes::Backed(bytes, backing) => Ok(Self::backed(bytes.slice(range), backing.clone())),
            Bytes::File(part) => {
                let offset = part.offset + range.start as u64;
                Ok(Self::file(part.mapped.slice(range), part.file.clone(), offset))
            }
            Bytes::Owned(_) | Bytes::Later(_) => {
                let all = self.ready()?;
                let mut part = AlignedBytes::zeroed(range.len())?;
                part.copy_from_slice(&all[range]);
                Ok(Self::owned(part))
            }
        }
    }

    /// The bytes to be written anew, if they are owned and nobody else shares them. The storage gets
    /// another identity.
    pub fn unique_mut(&mut self) -> Option<&mut [u8]> {
        let inner = Arc::get_mut(&mut self.0)?;
        match &mut inner.bytes {
            Bytes::Owned(bytes) => {
                inner.id = new_id();
                Some(bytes)
            }
            Bytes::Shared(_) | Bytes::Backed(..) | Bytes::File(_) | Bytes::Later(_) => None,
        }
    }

    /// Whether nobody else shares it.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Whether the bytes are this program's own, not part of a file.
    pub(crate) fn is_owned(&self) -> bool {
        matches!(self.0.bytes, Bytes::Owned(_) | Bytes::Later(_))
    }

    /// The bytes, if they are owned and nobody else shares them.
    pub(crate) fn into_owned(self) -> Option<AlignedBytes> {
        match Arc::into_inner(self.0)?.bytes {
            Bytes::Owned(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The identity of the data.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    fn new(bytes: Bytes) -> Self {
        Self(Arc::new(Inner { id: new_id(), bytes }))
    }
}

fn new_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Deref for Storage {
    type Target = [u8];
    // In each run, for each operand of each step.
    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0.bytes {
            Bytes::Owned(b) => b,
            Bytes::Shared(b) | Bytes::Backed(b, _) => b,
            Bytes::File(part) => &part.mapped,
            Bytes::Later(later) => later.read(),
        }
    }
}

/// Bytes of memory that this process could still take without pushing others out: what the system
/// calls available, or what is left of its control group's limit. `None` where neither is known.
pub fn available_memory() -> Option<usize> {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<usize>().ok();
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
    });
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(most, now)| most.saturating_sub(now));
    system.into_iter().chain(group).min()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_says_what_is_available() {
        let found = available_memory();
        assert!(found.is_some_and(|bytes| bytes > 1 << 20), "{found:?}");
    }

    #[test]
    fn parts_of_files_are_read_from_them() {
        let path = std::env::temp_dir().join(format!("tilewright-storage-{}", std::process::id()));
        let mut file = File::options().create(true).read(true).append(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"0123456789").unwrap();
        // Other bytes than in the file, to tell where they come from.
        let mapped = bytes::Bytes::from_static(b"abcdef");
        let storage = Storage::file(mapped, Arc::new(file.try_clone().unwrap()), 3);
        assert_eq!((&storage[..], storage.is_owned()), (&b"abcdef"[..], false));
        let mut out = [0; 3];
        storage.read_at(1, &mut out).unwrap();
        assert_eq!(&out, b"456");
        #[cfg(feature = "llm")]
        {
            storage.part(2..5).unwrap().read_at(0, &mut out).unwrap();
            assert_eq!(&out, b"567");
        }
        file.set_len(5).unwrap();
        assert!(matches!(storage.read_at(1, &mut out), Err(TensorError::Read(_))));
        let memory = Storage::shared(bytes::Bytes::from_static(b"abcdef"));
        memory.read_at(2, &mut out).unwrap();
        assert_eq!(&out, b"cde");
    }
}
