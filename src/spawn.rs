//! Threads of the library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// More than a new thread takes of the system's allocator before it runs anything of ours.
const ROOM: usize = 32 << 10;

/// Begins a thread, where there is memory for it.
///
/// # Errors
/// If the system refuses it.
pub(crate) fn thread<T: Send + 'static>(
    builder: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    has_room()?;
    builder.spawn(run)
}

/// Begins a thread that ends with the scope, where there is memory for it.
///
/// # Errors
/// If the system refuses it.
pub(crate) fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    has_room()?;
    Builder::new().spawn_scoped(scope, run)
}

/// Whether the system's allocator has a little memory, which it keeps for whoever asks next. A C library
/// that finds none when a thread registers what is to be done at its end (glibc's does) ends the process.
fn has_room() -> io::Result<()> {
    let Ok(layout) = Layout::from_size_align(ROOM, 16) else { return Ok(()) };
    #[allow(unsafe_code)]
    // SAFETY: the layout has a size, and what was given is given back as it was asked for.
    let found = unsafe {
        let memory = System.alloc(layout);
        if !memory.is_null() {
            System.dealloc(memory, layout);
        }
        !memory.is_null()
    };
    if found { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_run_and_give_what_they_found() {
        let one = super::thread(std::thread::Builder::new(), || 1).unwrap().join().unwrap();
        let two = std::thread::scope(|s| super::scoped(s, || one + 1).unwrap().join().unwrap());
        assert_eq!(two, 2);
    }
}
