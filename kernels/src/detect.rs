//! Which instruction sets this machine and this build have.

use crate::KernelError;
use alloc::string::String;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering};

/// An instruction set that kernels are made for, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Portable code.
    Scalar,
    /// NEON of AArch64.
    Neon,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512F.
    Avx512,
}

/// Bit 31: detection has run; bit `isa as u32`: available.
static FOUND: AtomicU32 = AtomicU32::new(0);
const DETECTED: u32 = 1 << 31;

impl Isa {
    /// Every instruction set the project knows, weakest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The name in kernel names and in `TILEWRIGHT_ISA`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this build has kernels for it and this CPU can run them.
    ///
    /// Without the feature `std` the CPU cannot be asked: then only what the target guarantees is
    /// available, and what [`Isa::assume_available`] added.
    pub fn is_available(self) -> bool {
        let mut found = FOUND.load(Ordering::Relaxed);
        if found & DETECTED == 0 {
            found = detect() | DETECTED;
            found |= FOUND.fetch_or(found, Ordering::Relaxed);
        }
        found & (1 << self as u32) != 0
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
    pub fn from_name(name: &str) -> Result<Self, KernelError> {
        let isa = Self::ALL.into_iter().find(|isa| isa.name() == name).ok_or_else(|| {
            KernelError::UnknownIsa { name: name.into(), available: available_names() }
        })?;
        isa.require()?;
        Ok(isa)
    }

    /// An error unless it is available: what makes running its kernels sound.
    pub(crate) fn require(self) -> Result<(), KernelError> {
        if self.is_available() {
            return Ok(());
        }
        Err(KernelError::IsaUnavailable { isa: self.name(), available: available_names() })
    }

    /// Whether this build has a row for it.
    fn is_built(self) -> bool {
        macro_rules! row {
            ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
                if self == Self::$isa {
                    return true;
                }
            };
        }
        tilewright_intrinsics::for_each_tile!(row);
        false
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn available_names() -> String {
    let mut names = String::new();
    for isa in Isa::available() {
        if !names.is_empty() {
            names.push_str(", ");
        }
        names.push_str(isa.name());
    }
    names
}

/// The bits of `FOUND` for this build on this CPU.
fn detect() -> u32 {
    Isa::ALL
        .into_iter()
        .filter(|isa| isa.is_built() && cpu_has(*isa))
        .fold(0, |found, isa| found | 1 << isa as u32)
}

#[cfg(all(feature = "std", target_arch = "x86_64"))]
fn cpu_has(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Neon => false,
        Isa::Avx2 => std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma"),
        Isa::Avx512 => std::is_x86_feature_detected!("avx512f"),
    }
}

#[cfg(not(all(feature = "std", target_arch = "x86_64")))]
fn cpu_has(isa: Isa) -> bool {
    match isa {
        Isa::Scalar => true,
        Isa::Neon => cfg!(target_feature = "neon"),
        Isa::Avx2 => cfg!(all(target_feature = "avx2", target_feature = "fma")),
        Isa::Avx512 => cfg!(target_feature = "avx512f"),
    }
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
