//! Copies of the library with settings of their own, for tests.

use core::ffi::c_char;
use core::sync::atomic::{AtomicU32, Ordering};
use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};

use libloading::{Library, Symbol};

use crate::{Version, as_version};

/// A copy of the library, opened and configured. Whoever opens its file gets the same settings and
/// counters; other copies have their own, so tests can run side by side.
pub struct Instance {
    library: Library,
    file: PathBuf,
}

impl Instance {
    /// A copy with these settings, lines `RKNN_EMU_NAME=value`; with the symbols of another version, if
    /// one is named. The library is looked for beside the running program, where tests have it.
    ///
    /// # Errors
    /// Files that cannot be read, written or opened, and settings that are wrong.
    pub fn new(settings: &str, version: Option<Version>) -> io::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let program = std::env::current_exe()?;
        let folders = program.ancestors().skip(1).take(2).flat_map(|f| [f.into(), f.join("deps")]);
        let found = folders.map(|f| f.join("librknnrt.so")).find(|path| path.exists());
        let found = found.ok_or_else(|| io::Error::other("there is no librknnrt.so beside it"))?;
        let bytes = std::fs::read(found)?;
        let bytes = version.map_or(bytes.clone(), |version| as_version(&bytes, version));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("librknnrt-{}-{number}.so", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, bytes)?;
        // SAFETY: the library runs nothing when it is opened.
        let library = unsafe { Library::new(&file) }.map_err(io::Error::other)?;
        let instance = Self { library, file };
        instance.configure(settings)?;
        Ok(instance)
    }

    /// Other settings; what was made before is unknown from then on.
    ///
    /// # Errors
    /// Settings that are wrong.
    pub fn configure(&self, settings: &str) -> io::Result<()> {
        let text = CString::new(settings)?;
        type Configure = unsafe extern "C" fn(*const c_char) -> i32;
        // SAFETY: the type is the function's.
        let configure: Symbol<'_, Configure> =
            unsafe { self.library.get("rknn_emu_configure") }.map_err(io::Error::other)?;
        // SAFETY: the text ends with a zero.
        match unsafe { configure(text.as_ptr()) } {
            0 => Ok(()),
            _ => Err(io::Error::other(format!("the emulator refuses `{settings}`"))),
        }
    }

    /// A counter, by the numbers of [`rknn_emu_counter`](crate::rknn_emu_counter).
    pub fn counter(&self, which: i32) -> i64 {
        // SAFETY: the type is the function's.
        let counter = unsafe { self.library.get::<extern "C" fn(i32) -> i64>("rknn_emu_counter") };
        counter.map_or(-1, |counter| counter(which))
    }

    /// The copy's file, removed with this value.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// The copy.
    pub fn library(&self) -> &Library {
        &self.library
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The system keeps it for those who have it open; a file that stays is only litter.
        let _ = std::fs::remove_file(&self.file);
    }
}
