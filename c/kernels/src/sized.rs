//! Structures that begin with their own size, so that they can grow.

use core::fmt;

/// What is wrong with a structure from C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It says a size that no version had.
    Size {
        /// What it says.
        found: usize,
        /// What it is here.
        ours: usize,
    },
    /// It has something behind what is known here.
    Later,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size { found, ours } => write!(
                f,
                "says that it has {found} bytes; set its size to sizeof, which is {ours} here"
            ),
            Self::Later => f.write_str("asks for what this version of the library does not know"),
        }
    }
}

/// Reads a structure that begins with its own size. Smaller ones are of older headers, and filled with
/// zeros; in larger ones what is not known here must be zero. `None` for NULL.
///
/// # Errors
/// What is wrong with it.
///
/// # Safety
/// `from` is NULL or points to a `usize` and as many readable bytes, with it, as it says. All zeros is
/// a value of `T`, and so are any bytes of an older header followed by zeros; `T` begins with the size.
pub unsafe fn sized<T: Copy>(from: *const T, smallest: usize) -> Result<Option<T>, Wrong> {
    if from.is_null() {
        return Ok(None);
    }
    // SAFETY: there is a size, as the caller promises.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    let ours = size_of::<T>();
    if size < smallest || size > 4096 {
        return Err(Wrong::Size { found: size, ours });
    }
    // SAFETY: as many bytes are readable, as the caller promises.
    let bytes = unsafe { core::slice::from_raw_parts(from.cast::<u8>(), size) };
    if bytes.iter().skip(ours).any(|&b| b != 0) {
        return Err(Wrong::Later);
    }
    // SAFETY: zeros are a value of `T`, and so is what is copied over them, no more than both have.
    Ok(Some(unsafe {
        let mut value = core::mem::MaybeUninit::<T>::zeroed();
        let to = value.as_mut_ptr().cast::<u8>();
        core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size.min(ours));
        value.assume_init()
    }))
}
