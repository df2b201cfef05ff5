//! What can go wrong with the NPU.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use tilewright_kernels::KernelError;

/// Why the NPU is not used, or did not compute a product.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RknnError {
    /// The run-time library cannot be opened, or lacks what products need.
    Library {
        /// Where it was looked for.
        path: PathBuf,
        /// What the system said, or which symbol is missing.
        reason: String,
    },
    /// A setting has a value that it cannot have.
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        expected: &'static str,
    },
    /// Nothing says which chip this is.
    UnknownChip,
    /// The library is an emulator, which only [`Options::emulator`](super::Options::emulator) allows.
    Emulator(String),
    /// Another process uses the NPU.
    Locked(PathBuf),
    /// The library returned a code other than success.
    Call {
        /// The function.
        call: &'static str,
        /// The code; see [`RknnError::meaning`].
        code: i32,
    },
    /// The library wants a matrix in another layout than the chip's.
    Layout {
        /// `A`, `B` or `C`.
        matrix: char,
        /// Extents that were expected.
        expected: Vec<u32>,
        /// Extents that the library told.
        found: Vec<u32>,
    },
    /// A core did not answer in time, and is not used again.
    Timeout {
        /// The core.
        core: usize,
        /// How long it was waited for.
        after: Duration,
    },
    /// No core is in use: all have failed too often.
    Unavailable,
    /// Memory of the NPU is exhausted, or its budget.
    Memory {
        /// Bytes asked for.
        needed: usize,
    },
    /// Activations or weights are not numbers that f16 can hold.
    NotFinite,
    /// The result disagrees with its check sum.
    WrongResult {
        /// The core that computed it.
        core: usize,
        /// The row.
        row: usize,
    },
    /// Operands have other sizes than the weights ask for.
    Sizes {
        /// Elements expected.
        expected: usize,
        /// Elements found.
        found: usize,
    },
    /// Weights cannot be read.
    Weights(String),
    /// A file of products is not one.
    PlanFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A table of costs is not one.
    CostFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The test of the library in a process of its own has failed.
    SelfTest(String),
    /// There are no kernels that pack.
    Kernel(KernelError),
}

impl From<KernelError> for RknnError {
    fn from(e: KernelError) -> Self {
        Self::Kernel(e)
    }
}

impl RknnError {
    /// What a code of the library means.
    pub fn meaning(code: i32) -> &'static str {
        match code {
            -2 => "timeout",
            -3 => "device unavailable",
            -4 => "allocation failed",
            -5 => "invalid parameter or unsupported type",
            -6 => "invalid model",
            -7 => "invalid context",
            -8 => "invalid input",
            -9 => "invalid output",
            -10 => "library and driver do not fit",
            -13 => "library for another chip",
            _ => "general failure",
        }
    }

    /// Whether trying again cannot help.
    pub(super) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Timeout { .. } | Self::WrongResult { .. } | Self::Call { code: -3 | -10, .. }
        )
    }

    /// Whether it is the data's fault or that of memory, not the core's.
    pub(super) fn is_harmless(&self) -> bool {
        matches!(
            self,
            Self::Memory { .. } | Self::NotFinite | Self::Sizes { .. } | Self::Weights(_)
        )
    }
}

impl fmt::Display for RknnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { path, reason } => {
                write!(
                    f,
                    "the NPU's run-time library `{}`: {reason}; install librknnrt.so 2.3 of Rockchip's \
                     rknn-toolkit2 for this processor and set TILEWRIGHT_RKNN_LIB to its path",
                    path.display()
                )
            }
            Self::Setting { name, value, expected } => {
                write!(f, "{name} is `{value}`, which must be {expected}")
            }
            Self::UnknownChip => write!(
                f,
                "the device tree names no chip with a supported NPU; if this is one, set \
                 TILEWRIGHT_RKNN_CHIP to rk3588, rk3576, rk3568, rk3566 or rk3562"
            ),
            Self::Emulator(version) => write!(
                f,
                "the NPU's run-time library says that it is `{version}`; set \
                 TILEWRIGHT_RKNN_EMULATOR=1 to use an emulator"
            ),
            Self::Locked(path) => {
                write!(f, "another process uses the NPU (it holds `{}`)", path.display())
            }
            Self::Call { call, code } => {
                write!(f, "{call} returned {code} ({})", Self::meaning(*code))
            }
            Self::Layout { matrix, expected, found } => write!(
                f,
                "the library wants matrix {matrix} as {found:?}, which should be {expected:?}"
            ),
            Self::Timeout { core, after } => {
                write!(f, "NPU core {core} did not answer in {:.1} s", after.as_secs_f64())
            }
            Self::Unavailable => write!(f, "no core of the NPU is in use after repeated failures"),
            Self::Memory { needed } => write!(f, "the NPU has no memory for {needed} more bytes"),
            Self::NotFinite => write!(f, "an operand has elements that half precision cannot hold"),
            Self::WrongResult { core, row } => {
                write!(f, "NPU core {core} computed a wrong row {row}, by its check sum")
            }
            Self::Sizes { expected, found } => {
                write!(f, "an operand has {found} elements instead of {expected}")
            }
            Self::Weights(reason) => write!(f, "weights cannot be read: {reason}"),
            Self::PlanFile { path, reason } => {
                write!(f, "the plan file `{}`: {reason}", path.display())
            }
            Self::CostFile { path, reason } => {
                write!(f, "the table of costs `{}`: {reason}", path.display())
            }
            Self::SelfTest(reason) => write!(f, "the NPU's self-test: {reason}"),
            Self::Kernel(e) => write!(f, "{e}"),
        }
    }
}

impl core::error::Error for RknnError {}
