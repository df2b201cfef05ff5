//! Which instruction sets this machine and this build have.

use crate::{Dtype, KernelError};
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

/// Whether the machine's own prefetchers keep up with a stream that is read in order, so that fetching
/// it ahead in software only takes their place. Measured on AMD's Zen 4: products of a column and attention of
/// a row are 5 to 24 % faster without. On Zen 5 some formats lose almost half, on Zen 3 all but f32 a fifth.
pub(crate) fn follows_streams() -> bool {
    found() & FOLLOWS != 0
}

/// Whether the machine reads several streams at a time faster than one. Measured on AMD's Zen 3: 1.2 to 1.6 times
/// as fast by four. On Zen 5 two are slower than one.
pub(crate) fn reads_streams() -> bool {
    found() & STREAMS != 0
}

/// The bits of [`follows_streams`] and [`reads_streams`]. Asks the CPU, which takes microseconds where a hypervisor
/// answers.
fn detect_streams() -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let found = {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        let vendor = __cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        let version = __cpuid(1).eax;
        let family = (version >> 8 & 0xf) + (version >> 20 & 0xff);
        if name != [*b"Auth", *b"enti", *b"cAMD"] || family != 0x19 || vendor.eax < 7 {
            0
        } else if __cpuid_count(7, 0).ebx >> 16 & 1 == 1 {
            // AVX-512: of this family, Zen 4 has it.
            FOLLOWS
        } else {
            STREAMS
        }
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let found = 0;
    found
}

/// Whether a dozen lines that are multiples of a page apart stay in the first-level cache together. In 8 ways (Zen 4)
/// rows of one tile evict each other.
pub(crate) fn has_dozen_ways() -> bool {
    found() & DOZEN != 0
}

/// Asks the CPU of its first cache of data: leaf 4 on Intel's, another on AMD's. Where there is no answer, there are
/// rather few; other architectures have larger ways.
fn detect_dozen() -> bool {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    let ways = {
        use core::arch::x86_64::{__cpuid, __cpuid_count};
        let leaves = [4, 0x8000_001d].into_iter();
        let mut known = leaves.filter(|leaf| __cpuid(leaf & 0x8000_0000).eax >= *leaf);
        let data = known.find_map(|leaf| {
            let cache = __cpuid_count(leaf, 0);
            (cache.eax & 0x1f == 1).then_some((cache.ebx >> 22) + 1)
        });
        data.unwrap_or(1)
    };
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let ways = 12;
    ways >= 12
}

/// What the standard library finds out on x86-64.
#[cfg(all(any(test, not(feature = "std")), target_arch = "x86_64"))]
mod without_std {
    use core::arch::x86_64::{__cpuid, __cpuid_count};

    /// The feature, the leaf of `cpuid` and its number, the register (of `eax`, `ebx`, `ecx`) and the bit in it, and the
    /// registers that the system must save (bits of XCR0). Intel's manual, volume 2, `CPUID`; volume 1, 13.
    const FEATURES: [(&str, [u32; 4], u64); 10] = [
        ("ssse3", [1, 0, 2, 9], 0),
        ("sse4.1", [1, 0, 2, 19], 0),
        ("fma", [1, 0, 2, 12], 0x6),
        ("f16c", [1, 0, 2, 29], 0x6),
        ("avx2", [7, 0, 1, 5], 0x6),
        ("avxvnni", [7, 1, 0, 4], 0x6),
        ("avx512f", [7, 0, 1, 16], 0xe6),
        ("avx512bw", [7, 0, 1, 30], 0xe6),
        ("avx512vnni", [7, 0, 2, 11], 0xe6),
        ("avx512bf16", [7, 1, 0, 5], 0xe6),
    ];

    /// Whether a feature is one of these.
    #[cfg(all(test, feature = "std", not(miri)))]
    pub(super) fn knows(name: &str) -> bool {
        FEATURES.iter().any(|f| f.0 == name)
    }

    /// Whether the processor has a feature, and the system lets programs use it. Those of a row of the table of
    /// instruction sets that are not known here are what the target guarantees, as elsewhere.
    pub(super) fn has(name: &str) -> bool {
        let Some((_, [leaf, count, register, bit], saved)) = FEATURES.iter().find(|f| f.0 == name)
        else {
            return false;
        };
        if cfg!(miri)
            || __cpuid(0).eax < *leaf
            || *count > 0 && __cpuid_count(*leaf, 0).eax < *count
        {
            return false;
        }
        let found = __cpuid_count(*leaf, *count);
        let found = [found.eax, found.ebx, found.ecx][*register as usize] >> bit & 1 == 1;
        found && (*saved == 0 || saved_by_the_system() & saved == *saved)
    }

    /// XCR0, or nothing where there is none.
    #[allow(unsafe_code)]
    fn saved_by_the_system() -> u64 {
        const OSXSAVE: u32 = 1 << 27;
        if __cpuid(1).ecx & OSXSAVE == 0 {
            return 0;
        }
        let (low, high): (u32, u32);
        // SAFETY: the system has enabled `xgetbv`, which reads and touches no memory.
        unsafe {
            core::arch::asm!(
                "xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
                options(nomem, nostack, preserves_flags)
            );
        }
        u64::from(high) << 32 | u64::from(low)
    }
}

/// What has no target feature yet: whether the CPU has the registers of AMX, and the system lets this process use them.
#[cfg(all(feature = "amx", target_arch = "x86_64", target_os = "linux", not(miri)))]
#[allow(unsafe_code)]
fn allowed(isa: Isa) -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    if isa != Isa::Amx {
        return true;
    }
    // Registers, and products of bytes: bits 24 and 25 of `edx`. Eight registers of 1 KiB, 16 rows of 64 bytes.
    const BITS: u32 = 3 << 24;
    const SIZES: [u32; 3] = [1024 << 16 | 8192, 8 << 16 | 64, 16];
    if __cpuid(0).eax < 0x1d || __cpuid_count(7, 0).edx & BITS != BITS {
        return false;
    }
    let palette = __cpuid_count(0x1d, 1);
    if [palette.eax, palette.ebx, palette.ecx & 0xffff] != SIZES {
        return false;
    }
    // Linux gives the registers to processes that ask: `arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`, see its
    // Documentation/arch/x86/xstate.rst. It says no where it does not save them.
    const ARCH_PRCTL: isize = 158;
    let mut result = ARCH_PRCTL;
    // SAFETY: the call takes two numbers and touches no memory; `syscall` overwrites `rcx` and `r11`.
    unsafe {
        core::arch::asm!(
            "syscall", inout("rax") result, in("rdi") 0x1023, in("rsi") 18,
            out("rcx") _, out("r11") _, options(nostack, nomem)
        );
    }
    result == 0
}

#[cfg(not(all(feature = "amx", target_arch = "x86_64", target_os = "linux", not(miri))))]
fn allowed(_isa: Isa) -> bool {
    true
}

macro_rules! isa {
    // Whether the CPU has a target feature: asked where that is possible, else what the target
    // guarantees.
    (has $feature:tt) => {{
        #[cfg(all(feature = "std", target_arch = "x86_64"))]
        let found = std::is_x86_feature_detected!($feature);
        #[cfg(all(feature = "std", target_arch = "aarch64"))]
        let found = std::arch::is_aarch64_feature_detected!($feature);
        #[cfg(all(not(feature = "std"), target_arch = "x86_64"))]
        let found = without_std::has($feature);
        // A module with instructions that the engine lacks is not even loaded.
        #[cfg(target_arch = "wasm32")]
        let found = true;
        #[cfg(not(any(
            target_arch = "x86_64",
            all(feature = "std", target_arch = "aarch64"),
            target_arch = "wasm32"
        )))]
        let found = cfg!(target_feature = $feature);
        found
    }};
    ($(
        $(#[$doc:meta])* $isa:ident = $name:ident over $base:ident, if $cfg:meta, [$($feature:tt)*] $lines:tt
    )*) => {
        /// An instruction set that kernels are made for, weakest first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Isa {
            $($(#[$doc])* $isa,)*
        }

        impl Isa {
            /// Every instruction set the project knows, weakest first.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$isa),*];

            /// The name in kernel names and in `TILEWRIGHT_ISA`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$isa => stringify!($name),)*
                }
            }

            /// The one whose kernels serve where this one has none of its own: a CPU that has this
            /// one has that too.
            pub fn base(self) -> Option<Self> {
                let base = match self {
                    $(Self::$isa => Self::$base,)*
                };
                (base != self).then_some(base)
            }

            /// Whether this build has kernels for it.
            fn is_built(self) -> bool {
                let built = match self {
                    $(Self::$isa => cfg!($cfg),)*
                };
                built && !(cfg!(feature = "vector-only") && self == Self::Scalar)
            }

            /// The target features of its own row.
            #[cfg(all(test, feature = "std", target_arch = "x86_64", not(miri)))]
            fn features(self) -> &'static [&'static str] {
                match self {
                    $(Self::$isa => &[$($feature),*],)*
                }
            }

            /// Whether this CPU has the target features of its own row.
            fn has_features(self) -> bool {
                match self {
                    $(
                        #[cfg($cfg)]
                        Self::$isa => true $(&& isa!(has $feature))* && allowed(Self::$isa),
                    )*
                    #[allow(unreachable_patterns, reason = "no row is left out of this build")]
                    _ => false,
                }
            }
        }
    };
}
tilewright_intrinsics::instruction_sets! { isa }

/// The instruction sets of this build with kernels for a type, or for any: bit `isa as u32` each.
const fn kernels_for(dtype: Option<Dtype>) -> u32 {
    let mut found = 0;
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            found |= 1 << Isa::$isa as u32;
        };
    }
    match dtype {
        None => {
            tilewright_intrinsics::for_each_tile!(row, any);
        }
        Some(Dtype::F32) => {
            tilewright_intrinsics::for_each_tile!(row, f32);
        }
        Some(Dtype::F16) => {
            tilewright_intrinsics::for_each_tile!(row, f16);
        }
        Some(Dtype::Bf16) => {
            tilewright_intrinsics::for_each_tile!(row, bf16);
        }
        Some(Dtype::I8) => {
            tilewright_intrinsics::for_each_tile!(row, i8);
        }
        Some(Dtype::Block) => {
            tilewright_intrinsics::for_each_tile!(row, block);
        }
        // Operands of kernels for `i8`, or their results.
        Some(_) => {}
    }
    found
}

/// The bit of portable code.
const PORTABLE: u32 = 1 << Isa::Scalar as u32;

/// The bit of the weakest other instruction set of this build, on which the rest of them rest; 0 without any.
const FLOOR: u32 = {
    let others = kernels_for(None) & !PORTABLE;
    others & others.wrapping_neg()
};

const _: () = assert!(
    !cfg!(feature = "vector-only") || FLOOR != 0,
    "`vector-only` takes portable kernels away, and this build has no others for its architecture"
);

/// Bit 31: detection has run; bit 30: see [`follows_streams`]; bit 29: see [`has_dozen_ways`]; bit 28: see
/// [`reads_streams`]; bit `isa as u32`: available.
static FOUND: AtomicU32 = AtomicU32::new(0);
const DETECTED: u32 = 1 << 31;
const FOLLOWS: u32 = 1 << 30;
const DOZEN: u32 = 1 << 29;
const STREAMS: u32 = 1 << 28;

const _: () = assert!(Isa::ALL.len() <= 28, "one bit of `FOUND` each");

/// What was found, by detection if it has not run.
fn found() -> u32 {
    let mut found = FOUND.load(Ordering::Relaxed);
    if found & DETECTED == 0 {
        found = detect() | DETECTED;
        found |= FOUND.fetch_or(found, Ordering::Relaxed);
    }
    found
}

impl Isa {
    /// Whether this build has kernels for it and this CPU can run them.
    ///
    /// Without the feature `std` only x86-64 can be asked: elsewhere only what the target guarantees is
    /// available, and what [`Isa::assume_available`] added.
    pub fn is_available(self) -> bool {
        found() & (1 << self as u32) != 0
    }

    /// Declares that the CPU can run this instruction set. No effect if this build lacks it.
    ///
    /// # Safety
    ///
    /// The CPU that runs any later call of this crate has the instructions.
    #[allow(unsafe_code)]
    pub unsafe fn assume_available(self) {
        if self.is_built() {
            FOUND.fetch_or(1 << self as u32, Ordering::Relaxed);
        }
    }

    /// The available instruction sets, weakest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available())
    }

    /// The best available instruction set.
    pub fn best() -> Self {
        Self::available().last().unwrap_or(Self::Scalar)
    }

    /// The instruction set to use: the one that `TILEWRIGHT_ISA` names, else the best.
    ///
    /// # Errors
    ///
    /// [`KernelError::UnknownIsa`] and [`KernelError::IsaUnavailable`] if `TILEWRIGHT_ISA` is set
    /// to a name that is none, or to one that this machine or build lacks.
    #[cfg(feature = "std")]
    pub fn select() -> Result<Self, KernelError> {
        match std::env::var_os("TILEWRIGHT_ISA") {
            Some(name) if !name.is_empty() => Self::from_name(&name.to_string_lossy()),
            _ => Ok(Self::best()),
        }
    }

    /// The available instruction set of this name.
    ///
    /// # Errors
    ///
    /// [`KernelError::UnknownIsa`] or [`KernelError::IsaUnavailable`].
    #[cfg(any(feature = "alloc", test))]
    pub fn from_name(name: &str) -> Result<Self, KernelError> {
        let isa = Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| {
            KernelError::UnknownIsa { name: name.into(), available: available_names() }
        })?;
        isa.require()?;
        Ok(isa)
    }

    /// An error unless it is available: what makes running its kernels sound.
    ///
    /// # Errors
    ///
    /// [`KernelError::IsaUnavailable`].
    pub fn require(self) -> Result<(), KernelError> {
        if self.is_available() {
            return Ok(());
        }
        Err(KernelError::IsaUnavailable { isa: self.name(), available: available_names() })
    }

    /// The one whose kernels for operands of this type it uses: itself if it has any, else the
    /// nearest of its bases.
    // Elsewhere a call: at all places where kernels are chosen it would take 7 KB.
    #[cfg_attr(feature = "vector-only", inline)]
    #[cfg_attr(not(feature = "vector-only"), inline(never))]
    pub(crate) fn serving(self, dtype: Dtype) -> Self {
        let serve = kernels_for(Some(dtype));
        // All of the build rest on the weakest. Where it alone has kernels, the compiler sees that no
        // others are called.
        if cfg!(feature = "vector-only")
            && serve & !PORTABLE == FLOOR
            && let Some(floor) = Self::ALL.get(FLOOR.trailing_zeros() as usize)
        {
            return *floor;
        }
        let mut isa = self;
        while serve & (1 << isa as u32) == 0 {
            match isa.base() {
                Some(base) => isa = base,
                None => return isa,
            }
        }
        isa
    }

    /// Whether this build and this CPU have it, and what of its bases this build has.
    fn detect(self) -> bool {
        let base = self.base().is_none_or(|base| !base.is_built() || base.detect());
        base && self.is_built() && self.has_features()
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Names of instruction sets, printed with commas between them, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IsaNames(u32);

impl fmt::Display for IsaNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("none of this build");
        }
        let listed = Isa::ALL.into_iter().filter(|isa| self.0 & (1 << *isa as u32) != 0);
        for (i, isa) in listed.enumerate() {
            write!(f, "{}{isa}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

fn available_names() -> IsaNames {
    IsaNames(Isa::available().fold(0, |names, isa| names | 1 << isa as u32))
}

/// The bits of `FOUND` for this build on this CPU.
fn detect() -> u32 {
    let found = Isa::ALL.into_iter().filter(|isa| isa.detect());
    let dozen = if detect_dozen() { DOZEN } else { 0 };
    found.fold(detect_streams() | dozen, |found, isa| found | 1 << isa as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn scalar_is_always_available_and_best_is_available() {
        assert!(Isa::Scalar.is_available());
        assert!(Isa::best().is_available());
    }

    #[cfg(all(feature = "std", target_arch = "x86_64", not(miri)))]
    #[test]
    fn without_the_standard_library_the_same_is_found() {
        macro_rules! same {
            ($($feature:tt)*) => { $(
                assert_eq!(without_std::has($feature), std::is_x86_feature_detected!($feature), $feature);
            )* };
        }
        same!("ssse3" "sse4.1" "fma" "f16c" "avx2" "avxvnni" "avx512f" "avx512bw" "avx512vnni" "avx512bf16");
        let known = Isa::ALL.into_iter().filter(|isa| isa.is_built());
        let features = known.flat_map(|isa| isa.features().iter());
        features.for_each(|name| assert!(without_std::knows(name), "{name}"));
    }

    /// CI runs this on emulated CPUs of which it knows what they have.
    #[cfg(feature = "std")]
    #[test]
    fn what_is_expected_is_found() {
        if let Some(expected) = std::env::var_os("TILEWRIGHT_EXPECT") {
            assert_eq!(available_names().to_string(), expected.to_string_lossy());
        }
    }

    #[test]
    fn every_instruction_set_rests_on_a_weaker_one_and_on_scalar_code_in_the_end() {
        for isa in Isa::ALL {
            let mut chain = isa;
            while let Some(base) = chain.base() {
                assert!(base < chain);
                chain = base;
            }
            assert_eq!(chain, Isa::Scalar);
            let rests = |floor: &Isa| {
                let mut bases = core::iter::successors(Some(isa), |isa| isa.base());
                bases.any(|base| base == *floor)
            };
            let floor = Isa::ALL.get(FLOOR.trailing_zeros() as usize);
            assert!(isa == Isa::Scalar || !isa.is_built() || floor.is_some_and(rests));
            let serving = isa.serving(Dtype::F32);
            assert!(serving <= isa && (!isa.is_available() || serving.is_available()));
        }
    }

    #[test]
    fn unknown_and_unavailable_names_are_errors_that_list_the_available_ones() {
        let unknown = Isa::from_name("sse9").unwrap_err().to_string();
        assert!(unknown.starts_with("unknown instruction set \"sse9\" (available: scalar"));
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            let text = Isa::from_name(isa.name()).unwrap_err().to_string();
            assert!(text.contains("is not available here (available: scalar"), "{text}");
        }
        assert_eq!(Isa::from_name("scalar"), Ok(Isa::Scalar));
    }
}
