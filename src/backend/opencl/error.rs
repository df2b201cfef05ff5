//! What can go wrong with an OpenCL device.

use core::fmt;
use std::path::PathBuf;

use crate::graph::GraphError;

/// Why OpenCL is not used, or did not compute a graph.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OpenClError {
    /// No library that gives access to OpenCL can be opened, or it lacks a function.
    Library {
        /// What was looked for.
        tried: Vec<PathBuf>,
        /// What the system said, or which function is missing.
        reason: String,
    },
    /// The library knows no device.
    NoDevice {
        /// Platforms without one.
        platforms: usize,
    },
    /// No device is the one that was asked for.
    UnknownDevice {
        /// What was asked for.
        asked: String,
        /// The devices there are, as they can be asked for.
        known: Vec<String>,
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
    /// A function returned a code other than success.
    Call {
        /// The function.
        call: &'static str,
        /// The code; see [`OpenClError::meaning`].
        code: i32,
    },
    /// The driver's compiler refuses a kernel.
    Build {
        /// The file of kernels.
        file: &'static str,
        /// The definitions it was built with.
        options: String,
        /// What the compiler said.
        log: String,
    },
    /// The memory of the device, or the limit set for it, does not hold what a graph needs.
    Memory {
        /// Bytes asked for.
        needed: usize,
        /// Bytes in use.
        used: usize,
        /// Most bytes that may be in use.
        limit: usize,
    },
}

impl OpenClError {
    /// What a code means, for codes that are met in practice.
    pub fn meaning(code: i32) -> &'static str {
        match code {
            -1 => "device not found",
            -2 => "device not available",
            -3 => "compiler not available",
            -4 => "the memory object could not be allocated",
            -5 => "out of resources",
            -6 => "out of host memory",
            -11 => "the program could not be built",
            -13 => "misaligned sub-buffer",
            -14 => "a command waited for has failed",
            -30 => "invalid value",
            -33 => "invalid device",
            -34 => "invalid context",
            -36 => "invalid command queue",
            -38 => "invalid memory object",
            -42 => "invalid binary",
            -45 => "invalid program executable",
            -46 => "invalid kernel name",
            -48 => "invalid kernel",
            -51 => "invalid argument size",
            -52 => "invalid kernel arguments",
            -54 => "invalid work-group size",
            -61 => "invalid buffer size",
            -1001 => "no platform is installed",
            _ => "see the OpenCL specification",
        }
    }
}

impl fmt::Display for OpenClError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library { tried, reason } => {
                let tried: Vec<String> = tried.iter().map(|p| p.display().to_string()).collect();
                write!(
                    f,
                    "no OpenCL library can be opened ({}): {reason}; install one (on Debian: \
                     ocl-icd-libopencl1 and a driver, for the processor pocl-opencl-icd) or name it \
                     by TILEWRIGHT_OPENCL_LIB",
                    tried.join(", ")
                )
            }
            Self::NoDevice { platforms } => write!(
                f,
                "OpenCL has no device ({platforms} platforms); install a driver, for the processor \
                 pocl-opencl-icd"
            ),
            Self::UnknownDevice { asked, known } => write!(
                f,
                "there is no OpenCL device `{asked}`; name its number or a part of its name: {}",
                known.join(", ")
            ),
            Self::Setting { name, value, expected } => {
                write!(f, "{name} is `{value}`, expected {expected}")
            }
            Self::Call { call, code } => {
                write!(f, "{call} failed on the OpenCL device: {} ({code})", Self::meaning(*code))
            }
            Self::Build { file, options, log } => write!(
                f,
                "the OpenCL driver cannot build {file} with `{options}`: {}",
                log.trim().replace('\n', " | ")
            ),
            Self::Memory { needed, used, limit } => write!(
                f,
                "{needed} more bytes do not fit the OpenCL device: {used} of {limit} are in use"
            ),
        }
    }
}

impl core::error::Error for OpenClError {}

impl From<OpenClError> for GraphError {
    fn from(e: OpenClError) -> Self {
        Self::Device { backend: "opencl", reason: e.to_string() }
    }
}
