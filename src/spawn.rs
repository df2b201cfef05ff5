//! Threads of the library.

use core::sync::atomic::{AtomicBool, Ordering};
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};

/// The stack of a thread, as the standard library makes it, and what else a thread takes before it runs
/// anything of ours.
#[cfg(unix)]
const ROOM: usize = (2 << 20) + (512 << 10);

/// Begins a thread, where there is memory for it, and waits until it runs.
///
/// # Errors
/// If the system refuses it.
pub(crate) fn thread<T: Send + 'static>(
    builder: Builder,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    begun(run, |run| builder.spawn(run))
}

/// The same for a thread that ends with the scope.
///
/// # Errors
/// If the system refuses it.
pub(crate) fn scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> io::Result<ScopedJoinHandle<'scope, T>> {
    begun(run, |run| Builder::new().spawn_scoped(scope, run))
}

/// Spawns what says when it runs, and waits for that: a thread takes memory when it starts, which should
/// neither be gone by then nor, on a busy machine, be taken in the middle of later work.
fn begun<'a, T, H>(
    run: impl FnOnce() -> T + Send + 'a,
    spawn: impl FnOnce(Box<dyn FnOnce() -> T + Send + 'a>) -> io::Result<H>,
) -> io::Result<H> {
    has_room()?;
    let started = Arc::new(AtomicBool::new(false));
    let mark = started.clone();
    let handle = spawn(Box::new(move || {
        mark.store(true, Ordering::Release);
        drop(mark);
        run()
    }))?;
    while !started.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    Ok(handle)
}

/// Whether there is address space for a thread's stack and some more. Where a new thread finds no page for
/// what is to be done at its end, its C library ends the process (glibc does).
fn has_room() -> io::Result<()> {
    #[cfg(unix)]
    drop(memmap2::MmapMut::map_anon(ROOM)?);
    Ok(())
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
