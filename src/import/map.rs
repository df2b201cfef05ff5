//! Files as shared bytes.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use bytes::Bytes;

use super::ImportError;
use crate::tensor::TensorError;

/// Maps a regular file into memory. An empty file gives no bytes.
pub(super) fn map_file(path: &Path) -> Result<Bytes, ImportError> {
    Ok(open_and_map(path)?.0)
}

/// As [`map_file`], with the file to be read.
///
/// The mapping is private and read-only. As with every mapped file, a program that truncates the
/// file while it is in use ends this one.
pub(super) fn open_and_map(path: &Path) -> Result<(Bytes, File), ImportError> {
    let io = |e: std::io::Error| ImportError::Io { path: path.into(), reason: e.to_string() };
    // Asked before opening: opening a pipe would wait for its other end.
    let meta = std::fs::metadata(path).map_err(io)?;
    if !meta.is_file() {
        return Err(ImportError::Io { path: path.into(), reason: "not a regular file".into() });
    }
    let file = File::open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    if bytes == 0 {
        return Ok((Bytes::new(), file));
    }
    let mapped = map(&file).map_err(|e| match e.kind() {
        // No place in the address space.
        ErrorKind::OutOfMemory => {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            ImportError::Graph(TensorError::OutOfMemory(bytes).into())
        }
        _ => io(e),
    })?;
    Ok((Bytes::from_owner(mapped), file))
}

#[allow(unsafe_code)]
fn map(file: &File) -> std::io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and no part of this program writes to the file. A change by
    // another program could alter bytes after they were checked: every use of mapped bytes after
    // loading is as plain numbers, for which each bit pattern is valid.
    unsafe { memmap2::Mmap::map(file) }
}
