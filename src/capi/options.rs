//! How models are loaded and sessions run.

use core::ffi::c_char;

use super::backend::device;
use super::call;
use super::status::Failure;
use crate::{Error, Isa, SessionOptions};

/// Settings. Zeros and NULL mean the default of each; so a structure of zeros whose `size` is set is
/// the same as none at all:
///
/// ```c
/// tw_options options;
/// memset(&options, 0, sizeof options);
/// options.size = sizeof options;
/// ```
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tw_options {
    /// `sizeof (tw_options)`, so that the structure can grow.
    pub size: usize,
    /// Bytes that a session may take for intermediate tensors, results, packed weights and the
    /// context of a language model; 0 for 80 % of what the machine has free.
    pub memory_limit: u64,
    /// Name of an instruction set, as the program's `doctor` lists them; NULL for the best one, or what
    /// the environment variable `TILEWRIGHT_ISA` says.
    pub isa: *const c_char,
    /// Threads; 0 for one per core.
    pub threads: u32,
    /// 1 to time each operation, for `tw_session_profile`.
    pub profile: u32,
    /// Positions that a session of a language model keeps; 0 for those of its training, at most 4096.
    pub context: u32,
    /// What keys and values of a language model are kept as: a `tw_cache`.
    pub cache: i32,
    /// Name of the backend: `"cpu"`, `"rknn"` for the NPU of Rockchip's chips, `"opencl"`; NULL for the
    /// CPU, which also computes what a device does not take. One that the library was built without, or that
    /// is not there, is `TW_UNSUPPORTED`.
    pub backend: *const c_char,
}

/// Size of the structure before it had a backend.
const OLDEST: usize = core::mem::offset_of!(tw_options, backend);

/// What keys and values are kept as.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum tw_cache {
    /// As `TW_CACHE_F16`.
    TW_CACHE_DEFAULT = 0,
    /// Four bytes a value.
    TW_CACHE_F32 = 1,
    /// Two bytes a value.
    TW_CACHE_F16 = 2,
    /// 34 bytes for 32 values.
    TW_CACHE_Q8_0 = 3,
}

/// Reads a structure that begins with its own size; `None` for NULL.
///
/// # Safety
/// As [`tilewright_c_kernels::sized`].
pub(super) unsafe fn sized<T: Copy>(
    from: *const T,
    smallest: usize,
    name: &str,
) -> Result<Option<T>, Failure> {
    // SAFETY: as the caller promises.
    let found = unsafe { tilewright_c_kernels::sized(from, smallest) };
    found.map_err(|wrong| Failure::argument(format!("{name} {wrong}")))
}

/// Options with their strings read.
#[derive(Clone, Default)]
pub(super) struct Options {
    pub(super) session: SessionOptions,
    #[cfg(feature = "llm")]
    pub(super) context: Option<usize>,
    #[cfg(feature = "llm")]
    pub(super) cache: i32,
}

impl Options {
    /// # Safety
    /// As [`sized`]; `isa` and `backend` are NULL or end with a zero byte.
    pub(super) unsafe fn read(from: *const tw_options) -> Result<Self, Failure> {
        // SAFETY: as the caller promises; any bytes are integers and a pointer.
        let Some(from) = (unsafe { sized(from, OLDEST, "options") })? else {
            return Ok(Self::default());
        };
        let mut session = SessionOptions::default();
        if !from.isa.is_null() {
            // SAFETY: as the caller promises.
            let name = unsafe { call::text(from.isa, "options.isa") }?;
            session.isa = Some(Isa::from_name(name).map_err(Error::from)?);
        }
        if !from.backend.is_null() {
            // SAFETY: as the caller promises.
            let name = unsafe { call::text(from.backend, "options.backend") }?;
            session.device = device(name)?;
        }
        session.threads = Some(from.threads as usize).filter(|&n| n > 0);
        session.profile = from.profile != 0;
        session.memory_limit =
            Some(usize::try_from(from.memory_limit).unwrap_or(usize::MAX)).filter(|&n| n > 0);
        Ok(Self {
            session,
            #[cfg(feature = "llm")]
            context: Some(from.context as usize).filter(|&n| n > 0),
            #[cfg(feature = "llm")]
            cache: from.cache,
        })
    }

    /// The same for language models.
    #[cfg(feature = "llm")]
    pub(super) fn llm(&self) -> Result<crate::llm::LlmOptions, Failure> {
        use crate::DType;
        let cache_type = match self.cache {
            0 | 2 => DType::F16,
            1 => DType::F32,
            3 => DType::Q8_0,
            n => return Err(Failure::argument(format!("options.cache: {n} is no tw_cache"))),
        };
        Ok(crate::llm::LlmOptions {
            threads: self.session.threads,
            isa: self.session.isa,
            context: self.context,
            cache_type,
            profile: self.session.profile,
            memory_limit: self.session.memory_limit,
            device: self.session.device.clone(),
            ..Default::default()
        })
    }
}
