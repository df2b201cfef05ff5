//! Files as shared bytes.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::ImportError;
use crate::tensor::{Backing, TensorError};

/// A file as it is mapped.
#[derive(Clone, Debug)]
pub(crate) struct Mapping(Arc<memmap2::Mmap>);

impl Mapping {
    /// Its bytes.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }

    /// Where a part of its bytes begins; `None` for others.
    pub(crate) fn place(&self, part: &[u8]) -> Option<usize> {
        let at = part.as_ptr().addr().checked_sub(self.0.as_ptr().addr())?;
        at.checked_add(part.len()).is_some_and(|end| end <= self.0.len()).then_some(at)
    }

    /// Lets go of the memory that bytes take which were touched. Whoever touches them again gets them from the
    /// file again.
    #[cfg(feature = "gguf")]
    #[allow(unsafe_code)]
    pub(crate) fn let_go(&self) {
        // SAFETY: what is mapped is a file, which nobody here writes to: its bytes stay what they are.
        // That it is not done somewhere costs memory only.
        #[cfg(unix)]
        let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

impl Backing for Mapping {
    #[allow(unsafe_code)]
    fn let_go(&self, part: &[u8]) {
        let Some(at) = self.place(part) else { return };
        // SAFETY: as for all of it.
        #[cfg(unix)]
        let _ = unsafe {
            self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, at, part.len())
        };
        #[cfg(not(unix))]
        let _ = at;
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Maps a regular file into memory, unless it is empty.
pub(super) fn map_file(path: &Path) -> Result<Option<Mapping>, ImportError> {
    Ok(open_and_map(path)?.0)
}

/// A file mapped, unless it is empty, and to be read.
///
/// The mapping is private and read-only. As with every mapped file, a program that truncates the
/// file while it is in use ends this one.
pub(super) fn open_and_map(path: &Path) -> Result<(Option<Mapping>, File), ImportError> {
    let io = |e: std::io::Error| ImportError::Io { path: path.into(), reason: e.to_string() };
    // Asked before opening: opening a pipe would wait for its other end.
    let meta = std::fs::metadata(path).map_err(io)?;
    if !meta.is_file() {
        return Err(ImportError::Io { path: path.into(), reason: "not a regular file".into() });
    }
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    if bytes == 0 {
        return Ok((None, file));
    }
    let mapped = map(&file).map_err(|e| match e.kind() {
        // No place in the address space.
        ErrorKind::OutOfMemory => {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            ImportError::Graph(TensorError::OutOfMemory(bytes).into())
        }
        _ => io(e),
    })?;
    Ok((Some(Mapping(Arc::new(mapped))), file))
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and no part of this program writes to the file. A change by
    // another program could alter bytes after they were checked: every use of mapped bytes after
    // loading is as plain numbers, for which each bit pattern is valid.
    unsafe { memmap2::Mmap::map(file) }
}

#[cfg(all(test, feature = "gguf"))]
mod tests {
    use super::*;

    #[test]
    fn what_was_let_go_is_read_again() {
        let path = std::env::temp_dir().join(format!("tilewright-map-{}", std::process::id()));
        let data: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &data).unwrap();
        let (mapping, _file) = open_and_map(&path).unwrap();
        let mapping = mapping.unwrap();
        let bytes = mapping.bytes();
        assert_eq!(bytes, data);
        mapping.let_go();
        assert_eq!(bytes, data);
        assert_eq!(mapping.place(&bytes[7..]), Some(7));
        assert_eq!(mapping.place(&data), None);
        for part in [&bytes[..], &bytes[5000..70_000], &data] {
            Backing::let_go(&mapping, part);
        }
        assert_eq!(bytes, data);
        drop((bytes, mapping));
        std::fs::write(&path, []).unwrap();
        assert!(open_and_map(&path).unwrap().0.is_none(), "an empty file has nothing to map");
        assert!(map_file(&path).unwrap().is_none());
        std::fs::remove_file(&path).unwrap();
    }
}
