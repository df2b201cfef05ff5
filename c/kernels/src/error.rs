//! Failures on their way to C.

use core::fmt;

use tilewright_kernels::KernelError;

use crate::last::keep;
use crate::sized::Wrong;
use crate::status::tw_status;

/// Why a function of kernels failed.
#[derive(Clone, Debug)]
pub enum Fail {
    /// A pointer that must not be NULL is.
    Null(&'static str),
    /// An argument that cannot be used.
    Argument(&'static str, &'static str),
    /// A number that is no value of an enumeration.
    Number(&'static str, i32),
    /// A structure that cannot be read.
    Structure(&'static str, Wrong),
    /// An operand with fewer bytes than needed.
    Small {
        /// The operand.
        what: &'static str,
        /// Bytes needed.
        needed: usize,
        /// Bytes given.
        found: usize,
    },
    /// The system gives no memory.
    Memory(usize),
    /// The system has given no memory, and what was kept for that is in use.
    #[cfg(feature = "std")]
    Exhausted,
    /// What a kernel says.
    Kernel(KernelError),
}

impl From<KernelError> for Fail {
    fn from(e: KernelError) -> Self {
        Self::Kernel(e)
    }
}

/// The code for C of what a kernel says, in a model or alone.
pub fn of_kernel(e: &KernelError) -> tw_status {
    match e {
        KernelError::InvalidParam { .. } => tw_status::TW_INVALID_ARGUMENT,
        KernelError::TooLarge { .. } => tw_status::TW_SHAPE,
        KernelError::InvalidLength { .. } => tw_status::TW_BUFFER_TOO_SMALL,
        #[cfg(feature = "alloc")]
        KernelError::UnknownIsa { .. } => tw_status::TW_INVALID_ARGUMENT,
        _ => tw_status::TW_UNSUPPORTED,
    }
}

impl Fail {
    /// The code for C.
    pub fn status(&self) -> tw_status {
        match self {
            Self::Null(_) | Self::Argument(..) | Self::Number(..) | Self::Structure(..) => {
                tw_status::TW_INVALID_ARGUMENT
            }
            Self::Small { .. } => tw_status::TW_BUFFER_TOO_SMALL,
            Self::Memory(_) => tw_status::TW_OUT_OF_MEMORY,
            #[cfg(feature = "std")]
            Self::Exhausted => tw_status::TW_OUT_OF_MEMORY,
            Self::Kernel(e) => of_kernel(e),
        }
    }
}

impl fmt::Display for Fail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null(what) => write!(f, "{what} is NULL"),
            Self::Argument(what, expected) => write!(f, "{what} must be {expected}"),
            Self::Number(what, n) => write!(f, "{what}: {n} is none of its values"),
            Self::Structure(what, wrong) => write!(f, "{what} {wrong}"),
            Self::Small { what, needed, found } => {
                write!(f, "{what} has {found} bytes, {needed} are needed")
            }
            Self::Memory(bytes) => write!(f, "no memory for {bytes} bytes"),
            #[cfg(feature = "std")]
            Self::Exhausted => f.write_str(EXHAUSTED),
            Self::Kernel(e) => e.fmt(f),
        }
    }
}

/// What is said to calls that begin while there is no memory.
#[cfg(feature = "std")]
pub const EXHAUSTED: &str =
    "the system gives no memory: free models and sessions, or something else";

/// What a panic said.
#[cfg(feature = "std")]
#[derive(Clone, Debug)]
pub struct Threw(pub std::string::String);

/// Runs the work of a function, with panics ended at the border and printed nowhere.
///
/// # Errors
/// What a panic said.
#[cfg(feature = "std")]
pub fn protect<R>(work: impl FnOnce() -> R) -> Result<R, Threw> {
    use core::cell::Cell;
    use core::panic::AssertUnwindSafe;
    use std::boxed::Box;
    use std::panic;
    use std::string::String;
    use std::sync::Once;

    std::thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !INSIDE.get() {
                before(info);
            }
        }));
    });
    let outer = INSIDE.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(outer);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        let text = String::from(text.unwrap_or("no message"));
        // Dropping what was thrown may throw again.
        core::mem::forget(payload);
        Threw(text)
    })
}

/// Runs the work of a function. Without the standard library nothing unwinds.
#[cfg(not(feature = "std"))]
pub fn protect<R>(work: impl FnOnce() -> R) -> Result<R, core::convert::Infallible> {
    Ok(work())
}

/// Runs the work of a function of kernels, and keeps its error.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Fail>) -> tw_status {
    let work = || {
        #[cfg(feature = "std")]
        if crate::reserve::is_low() {
            return Err(Fail::Exhausted);
        }
        work()
    };
    match protect(work) {
        Ok(Ok(())) => tw_status::TW_OK,
        Ok(Err(fail)) => {
            keep(format_args!("{fail}"));
            fail.status()
        }
        #[cfg(feature = "std")]
        Err(Threw(text)) => {
            keep(format_args!("a fault of the library: {text}"));
            tw_status::TW_INTERNAL
        }
    }
}
