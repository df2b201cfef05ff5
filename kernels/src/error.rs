//! What can be wrong with a request to this crate.

use crate::IsaNames;
#[cfg(any(feature = "alloc", test))]
use alloc::string::String;
use core::fmt;

/// Why a plan could not be made, or an operand not be used.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum KernelError {
    /// A parameter of the op has a value it must not have.
    InvalidParam {
        /// The op, for instance `conv`.
        op: &'static str,
        /// The parameter.
        param: &'static str,
        /// What must hold.
        expected: &'static str,
    },
    /// The sizes of the op are so large that an element count does not fit `isize`, or an extent that is divided into
    /// tiles is beyond 2^28.
    TooLarge {
        /// The op.
        op: &'static str,
    },
    /// An operand has fewer elements than the plan asks for, or a packed one another number.
    InvalidLength {
        /// The op.
        op: &'static str,
        /// The operand.
        operand: &'static str,
        /// Elements needed.
        expected: usize,
        /// Elements given.
        found: usize,
    },
    /// The op is right, but there is no kernel for it.
    Unsupported {
        /// The op.
        op: &'static str,
        /// What is not supported.
        what: &'static str,
    },
    /// The instruction set is not usable on this machine, or not part of this build.
    IsaUnavailable {
        /// The instruction set asked for.
        isa: &'static str,
        /// Those that can be used.
        available: IsaNames,
    },
    /// `TILEWRIGHT_ISA` names no instruction set.
    #[cfg(any(feature = "alloc", test))]
    UnknownIsa {
        /// The text found.
        name: String,
        /// Those that can be used.
        available: IsaNames,
    },
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidParam { op, param, expected } => {
                write!(f, "{op}: {param} must be {expected}")
            }
            Self::TooLarge { op } => {
                write!(f, "{op}: sizes overflow the address space, or one is beyond 2^28")
            }
            Self::InvalidLength { op, operand, expected, found } => {
                write!(f, "{op}: {operand} has {found} elements, expected {expected}")
            }
            Self::Unsupported { op, what } => write!(f, "{op}: {what} is not supported"),
            Self::IsaUnavailable { isa, available } => {
                write!(f, "instruction set {isa} is not available here (available: {available})")
            }
            #[cfg(any(feature = "alloc", test))]
            Self::UnknownIsa { name, available } => {
                write!(f, "unknown instruction set {name:?} (available: {available})")
            }
        }
    }
}

impl core::error::Error for KernelError {}

/// Checks the length of an operand.
pub(crate) fn check_len(
    op: &'static str,
    operand: &'static str,
    expected: usize,
    found: usize,
) -> Result<(), KernelError> {
    if found < expected {
        return Err(KernelError::InvalidLength { op, operand, expected, found });
    }
    Ok(())
}

/// The longest extent that is divided into tiles: tables of them take about as many bytes.
pub(crate) const MOST_TILED: usize = 1 << 28;

/// Refuses extents whose tables of tiles would take more memory than there is.
#[inline(never)]
pub(crate) fn check_extents(op: &'static str, extents: &[usize]) -> Result<(), KernelError> {
    if extents.iter().any(|&n| n > MOST_TILED) {
        return Err(KernelError::TooLarge { op });
    }
    Ok(())
}

/// The product of sizes, as an element count whose bytes (up to 8 each) fit `isize`.
pub(crate) fn checked_len(op: &'static str, sizes: &[usize]) -> Result<usize, KernelError> {
    sizes
        .iter()
        .try_fold(1usize, |n, &s| n.checked_mul(s))
        .filter(|&n| n <= isize::MAX as usize / 8)
        .ok_or(KernelError::TooLarge { op })
}
