//! The test of a library before its first use, in a process of its own: one that does not fit its driver may end
//! or stop the process that it is in. That it has passed is noted, and counts until something changes.

use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use super::{LIBRARY, Options, RknnError, chip_name};

/// How long the test may take. The library alone waits up to 20 s for a core that does not answer.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a passed test counts.
const PASSED_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// Where the loader keeps what it knows of libraries by their names.
const LOADER_CACHE: &str = "/etc/ld.so.cache";

/// Version of the NPU's driver, if the kernel tells it.
fn driver_version() -> Option<String> {
    let files = ["/sys/module/rknpu/version", "/sys/kernel/debug/rknpu/version"];
    files.iter().find_map(|file| fs::read_to_string(file).ok())
}

/// The file that is mapped at an address of this process: where the loader found a library that it was asked
/// for by name.
pub fn file_at(address: usize) -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    maps.lines().find_map(|line| {
        let (from, rest) = line.split_once('-')?;
        let (to, rest) = rest.split_once(' ')?;
        let path = &rest[rest.find('/')?..];
        (number(from)?..number(to)?).contains(&address).then(|| PathBuf::from(path))
    })
}

/// Runs a program that prints [`SelfTest::to_json`](super::SelfTest::to_json), and gives that.
///
/// # Errors
/// [`RknnError::SelfTest`]: what it says behind `error: `, or how it has ended.
pub fn test_in(child: &mut Command) -> Result<Value, RknnError> {
    let failed = RknnError::SelfTest;
    let mut child = child
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begin.elapsed() > LIMIT {
            // It cannot be ended while the driver holds it; then it is left behind.
            let _ = child.kill();
            return Err(failed(format!("it did not end in {} s", LIMIT.as_secs())));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let error = said.lines().find_map(|line| line.strip_prefix("error: "));
        let ended = || format!("it ended with {}", output.status);
        return Err(failed(error.map_or_else(ended, Into::into)));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| failed(format!("its answer: {e}")))
}

/// Tests a library by such a program, unless it has passed within the last month or
/// `TILEWRIGHT_RKNN_SELF_TEST` is `off`. Whether there was a test.
///
/// # Errors
/// As [`test_in`].
pub fn test_before_use(options: &Options, child: &mut Command) -> Result<bool, RknnError> {
    // What is wrong with the settings is told by whoever opens the library.
    if std::env::var("TILEWRIGHT_RKNN_SELF_TEST").is_ok_and(|v| v == "off")
        || chip_name(options).is_err()
    {
        return Ok(false);
    }
    let note = note(options);
    if note.as_deref().is_some_and(has_passed) {
        return Ok(false);
    }
    let found = test_in(child)?;
    let mark = found["library"].as_str().and_then(|path| mark(path.as_ref()));
    if let Some((note, mark)) = note.zip(mark) {
        // A cache that cannot be written costs the test again.
        let _ = note.parent().map_or(Ok(()), fs::create_dir_all);
        let _ = fs::write(note, mark);
    }
    Ok(true)
}

/// A library as it is now.
fn mark(path: &Path) -> Option<String> {
    let about = fs::metadata(path).ok()?;
    let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    Some(format!("{}\n{} bytes\n{changed} ns\n", path.display(), about.len()))
}

/// Whether a note is young, and the library that it names as it was.
fn has_passed(note: &Path) -> bool {
    let written = fs::metadata(note).and_then(|about| about.modified()).ok();
    let age = written.and_then(|then| SystemTime::now().duration_since(then).ok());
    let text = fs::read_to_string(note).unwrap_or_default();
    let path = text.lines().next().unwrap_or_default();
    age.is_some_and(|age| age < PASSED_FOR) && mark(path.as_ref()).is_some_and(|now| now == text)
}

/// The file for the note: one per library that is asked for, place where the loader looks, system, driver, chip
/// and version of this program.
fn note(options: &Options) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    let library = options.library.as_deref().unwrap_or(LIBRARY.as_ref());
    if library.components().count() > 1 {
        fs::canonicalize(library).ok()?.hash(&mut hasher);
    } else {
        let cache = fs::metadata(LOADER_CACHE).and_then(|about| about.modified()).ok();
        (library, std::env::var_os("LD_LIBRARY_PATH"), cache).hash(&mut hasher);
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    (kernel, driver_version(), &options.chip, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
    let home = |name: &str, inside: &str| {
        std::env::var_os(name).filter(|v| !v.is_empty()).map(|v| Path::new(&v).join(inside))
    };
    let cache = home("XDG_CACHE_HOME", "").or_else(|| home("HOME", ".cache"))?;
    Some(cache.join(format!("tilewright/rknn-{:016x}", hasher.finish())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_what_is_mapped_from_them() {
        let here = file_at(files_are_found_by_what_is_mapped_from_them as *const () as usize);
        assert_eq!(here, std::env::current_exe().ok());
        assert_eq!(file_at(0), None);
    }

    #[test]
    fn a_library_that_changes_has_not_passed() {
        let folder = std::env::temp_dir().join(format!("tilewright-note-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (library, note) = (folder.join("lib.so"), folder.join("note"));
        fs::write(&library, "one").unwrap();
        assert!(!has_passed(&note));
        fs::write(&note, mark(&library).unwrap()).unwrap();
        assert!(has_passed(&note));
        fs::write(&library, "another").unwrap();
        assert!(!has_passed(&note));
        fs::write(&note, mark(&library).unwrap()).unwrap();
        fs::remove_file(&library).unwrap();
        assert!(!has_passed(&note));
        fs::remove_dir_all(&folder).unwrap();
    }
}
