//! What the conformance tests share: guarded buffers, seeded numbers, tolerances.

use crate::{Dtype, Isa};
use alloc::{vec, vec::Vec};
use core::ops::{Deref, DerefMut};

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
mod host;

/// Whether tests of this ISA cannot run here; says so.
#[cfg_attr(all(target_family = "wasm", target_os = "unknown"), track_caller)]
pub(crate) fn skip(isa: Isa) -> bool {
    let skip = !isa.is_available();
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    if !skip {
        host::begin(core::panic::Location::caller().file(), isa.name());
    }
    if skip {
        std::println!("skipped: {isa}");
    }
    skip
}

/// Where a guarded buffer lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Place {
    /// The first element at a multiple of 64 bytes.
    Aligned,
    /// The first element 4 bytes after one.
    Misaligned,
    /// The last element before a page that cannot be read (Linux; elsewhere `Aligned`).
    PageEnd,
}

impl Place {
    pub(crate) const ALL: [Self; 3] = [Self::Aligned, Self::Misaligned, Self::PageEnd];
}

/// Elements of a margin.
const MARGIN: usize = 64;
/// What fills the margins: a NaN, so that using one shows in the result.
const POISON: u32 = 0xffa5_a5a5;

/// A buffer between poisoned margins, which are compared when it is dropped.
#[derive(Debug)]
pub(crate) struct Guarded {
    memory: Memory,
    start: usize,
    len: usize,
}

#[derive(Debug)]
enum Memory {
    Heap(Vec<f32>),
    #[cfg(all(target_os = "linux", not(miri)))]
    Map(page::Map),
}

impl Guarded {
    /// An operand with these values.
    pub(crate) fn new(values: &[f32], place: Place) -> Self {
        let mut buffer = Self::output(values.len(), place);
        buffer.copy_from_slice(values);
        buffer
    }

    /// An output: filled with NaN.
    pub(crate) fn output(len: usize, place: Place) -> Self {
        let mut buffer = Self::poisoned(len, place);
        buffer.fill(f32::NAN);
        buffer
    }

    fn poisoned(len: usize, place: Place) -> Self {
        #[cfg(all(target_os = "linux", not(miri)))]
        if place == Place::PageEnd {
            let mut map = page::Map::new(len + MARGIN);
            map.fill(f32::from_bits(POISON));
            let start = map.len() - len;
            return Self { memory: Memory::Map(map), start, len };
        }
        let heap = vec![f32::from_bits(POISON); len + 3 * MARGIN];
        let aligned = heap.as_ptr().align_offset(64) + MARGIN;
        let start = aligned + usize::from(place == Place::Misaligned);
        Self { memory: Memory::Heap(heap), start, len }
    }

    fn all(&self) -> &[f32] {
        match &self.memory {
            Memory::Heap(heap) => heap,
            #[cfg(all(target_os = "linux", not(miri)))]
            Memory::Map(map) => map,
        }
    }

    /// Fails if a margin was written.
    pub(crate) fn check(&self) {
        for (i, x) in self.all().iter().enumerate() {
            let inside = (self.start..self.start + self.len).contains(&i);
            let at = i as isize - self.start as isize;
            assert!(inside || x.to_bits() == POISON, "margin written at {at} of {}", self.len);
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check();
        }
    }
}

impl Deref for Guarded {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.all()[self.start..self.start + self.len]
    }
}

impl DerefMut for Guarded {
    fn deref_mut(&mut self) -> &mut [f32] {
        let all: &mut [f32] = match &mut self.memory {
            Memory::Heap(heap) => heap,
            #[cfg(all(target_os = "linux", not(miri)))]
            Memory::Map(map) => map,
        };
        &mut all[self.start..self.start + self.len]
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
mod page {
    #![allow(unsafe_code)]

    use core::ops::{Deref, DerefMut};

    /// Anonymous memory whose last byte is followed by a page without access.
    #[derive(Debug)]
    pub(super) struct Map {
        base: *mut libc::c_void,
        usable: usize,
        page: usize,
    }

    impl Map {
        /// At least `len` elements.
        pub(super) fn new(len: usize) -> Self {
            // SAFETY: `sysconf` has no preconditions.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
            let usable = (len * 4).next_multiple_of(page);
            let (read, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a new anonymous mapping touches no existing memory; its last page is then
            // made inaccessible.
            let base = unsafe {
                let base = libc::mmap(core::ptr::null_mut(), usable + page, read, flags, -1, 0);
                assert_ne!(base, libc::MAP_FAILED);
                assert_eq!(
                    libc::mprotect(base.wrapping_byte_add(usable), page, libc::PROT_NONE),
                    0
                );
                base
            };
            Self { base, usable, page }
        }
    }

    impl Drop for Map {
        fn drop(&mut self) {
            // SAFETY: it is the mapping of `new`, and nothing borrows it any more.
            unsafe { libc::munmap(self.base, self.usable + self.page) };
        }
    }

    impl Deref for Map {
        type Target = [f32];

        fn deref(&self) -> &[f32] {
            // SAFETY: `usable` bytes of the mapping are readable, zeroed by the system, and
            // borrowed with `self`.
            unsafe { core::slice::from_raw_parts(self.base.cast(), self.usable / 4) }
        }
    }

    impl DerefMut for Map {
        fn deref_mut(&mut self) -> &mut [f32] {
            // SAFETY: as in `deref`; the mapping is borrowed mutably with `self`.
            unsafe { core::slice::from_raw_parts_mut(self.base.cast(), self.usable / 4) }
        }
    }
}

/// Numbers that depend on the seed only.
#[derive(Clone, Debug)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// Uniform in -1 to 1.
    pub(crate) fn floats(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Bytes, one in four of them at an end of the range of either sign.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let ends = [0x00, 0x7f, 0x80, 0xff];
        let byte = |x: u32| if x & 0x300 == 0 { ends[x as usize & 3] } else { x as u8 };
        (0..len).map(|_| byte(self.next())).collect()
    }

    /// Integers from -3 to 3: sums of a few thousand products are exact.
    pub(crate) fn integers(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| (self.next() % 7) as f32 - 3.0).collect()
    }
}

/// The largest error allowed in a sum of `k` products of numbers from -1 to 1. Such a sum, and
/// each partial one, is about `sqrt(k) / 3` in size, and each step rounds it by half an epsilon.
pub(crate) fn tolerance(dtype: Dtype, k: usize) -> f64 {
    let eps = match dtype {
        Dtype::F32 => f64::from(f32::EPSILON),
        _ => unreachable!("no tolerance: exact, or not of this type"),
    };
    eps * (k as f64).sqrt() * (k as f64 + 16.0).sqrt()
}

/// The larger of two numbers, NaN if either is.
pub(crate) fn maximum(a: f64, b: f64) -> f64 {
    if a > b || a.is_nan() { a } else { b }
}

/// The smaller of two numbers, NaN if either is.
pub(crate) fn minimum(a: f64, b: f64) -> f64 {
    if a < b || a.is_nan() { a } else { b }
}

/// The error that an activation of its own pass adds at `x`: `UnaryOp` states 5 ulp or less for
/// each, GELU in parts of `max(1, |x|)`.
pub(crate) fn activation_error(x: f64) -> f64 {
    5.0 * f64::from(f32::EPSILON) * x.abs().max(1.0)
}

/// Fails if `y` is farther from `exact` than the tolerance; NaN only matches NaN.
pub(crate) fn assert_close(y: f32, exact: f64, tolerance: f64, what: impl core::fmt::Debug) {
    let close = (f64::from(y) - exact).abs() <= tolerance
        || y.is_nan() && exact.is_nan()
        || y.is_infinite() && f64::from(y) == exact;
    assert!(close, "{what:?}: {y} instead of {exact}");
}
