//! Kernels: the files of templates, built for a device with definitions, kept in memory and on disk.
//!
//! What a driver has built is kept as a file of its own, by device, driver, definitions and source. Its
//! first line says which, its second is a check sum; one that is damaged or belongs to something else is
//! built again, with a line in the log.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::sys::{Context, Device, Program};
use super::{Log, OpenClError};

/// A file of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Family {
    /// The name of the file, the last one of several.
    pub(super) file: &'static str,
    /// It and those before it, each of which is in the program once.
    sources: &'static [&'static str],
}

/// Puts lines into `to` without their indentation and comments, of which a sixth of the kernels' text is; gives
/// the number of bytes. Lines stay lines: those that a driver's compiler names are those of the file.
const fn bare(text: &[u8], to: &mut [u8]) -> usize {
    let (mut i, mut len, mut begins) = (0, 0, true);
    while i < text.len() {
        if text[i] == b'/' && i + 1 < text.len() && text[i + 1] == b'/' {
            while i < text.len() && text[i] != b'\n' {
                i += 1;
            }
            continue;
        }
        begins = text[i] == b'\n' || begins && text[i] == b' ';
        if text[i] == b'\n' || !begins {
            to[len] = text[i];
            len += 1;
        }
        i += 1;
    }
    len
}

/// The text of a file of kernels, bare.
macro_rules! source {
    ($file:literal) => {{
        const TEXT: &[u8] = include_bytes!(concat!("cl/", $file));
        const LEN: usize = bare(TEXT, &mut [0; TEXT.len()]);
        const BARE: [u8; LEN] = {
            let mut all = [0; TEXT.len()];
            bare(TEXT, &mut all);
            *all.first_chunk().expect("it is not longer than the text")
        };
        const KERNELS: &str = match core::str::from_utf8(&BARE) {
            Ok(kernels) => kernels,
            Err(_) => panic!("kernels are text"),
        };
        KERNELS
    }};
}

macro_rules! families {
    ($($name:ident = $file:literal $(after $($before:literal),+)?;)*) => { $(
        pub(super) const $name: Family = Family {
            file: $file,
            sources: &[
                $($(source!($before),)+)?
                source!($file),
            ],
        };
    )* };
}

families! {
    ELEMENTS = "elements.cl";
    COPY = "copy.cl";
    ROWS = "rows.cl";
    GEMM = "gemm.cl";
    CONV = "conv.cl";
    WEIGHTS = "weights.cl";
    ATTENTION = "attention.cl";
    NEXT = "next.cl" after "weights.cl", "attention.cl";
    BYTES = "bytes.cl";
    BEST = "best.cl";
}

const COMMON: &str = source!("common.cl");
const MAGIC: &str = "tilewright opencl 1";

/// Built kernels of a device.
pub(super) struct Programs {
    /// Device, platform and driver.
    identity: String,
    /// Options for all of them.
    compiler: String,
    folder: Option<PathBuf>,
    log: Log,
    built: Mutex<HashMap<(Family, String), Arc<Program>>>,
}

/// Where built kernels are kept if nothing else is said: in the user's folder of caches.
pub(super) fn default_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let caches = folder("XDG_CACHE_HOME")
        .or_else(|| folder("LOCALAPPDATA"))
        .or_else(|| folder("HOME").map(|home| home.join(".cache")))?;
    Some(caches.join("tilewright").join("opencl"))
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl Programs {
    pub(super) fn new(identity: String, compiler: &str, folder: Option<PathBuf>, log: Log) -> Self {
        Self { identity, compiler: compiler.to_owned(), folder, log, built: Mutex::default() }
    }

    /// The kernels of a file, built with these definitions.
    pub(super) fn get(
        &self,
        context: &Context,
        device: &Device,
        family: Family,
        definitions: &str,
    ) -> Result<Arc<Program>, OpenClError> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (family, definitions.to_owned());
        if let Some(program) = built.get(&key) {
            return Ok(program.clone());
        }
        // `-w`: some drivers write what they wonder about to the program's error output, such as PoCL where 16 floats
        // are more than a register.
        let options = format!("-cl-std=CL1.2 -w {definitions} {}", self.compiler);
        let source = format!("{COMMON}\n{}", family.sources.concat());
        let program = Arc::new(self.load_or_build(context, device, family, &source, &options)?);
        built.insert(key, program.clone());
        Ok(program)
    }

    fn load_or_build(
        &self,
        context: &Context,
        device: &Device,
        family: Family,
        source: &str,
        options: &str,
    ) -> Result<Program, OpenClError> {
        let key = format!(
            "{MAGIC} {} {} {options} {:016x}",
            self.identity,
            family.file,
            hash(source.as_bytes())
        );
        let key = key.replace('\n', " ");
        let path =
            self.folder.as_ref().map(|f| f.join(format!("{:016x}.bin", hash(key.as_bytes()))));
        let mut damaged = false;
        if let Some(path) = &path
            && let Ok(bytes) = fs::read(path)
        {
            let kept = checked(&bytes, &key)
                .and_then(|b| Program::from_binary(context, device, family.file, b, options).ok());
            if let Some(program) = kept {
                return Ok(program);
            }
            damaged = true;
            self.log.line(&format!(
                "the built OpenCL kernels in {} cannot be used and are built again",
                path.display()
            ));
        }
        let program = Program::from_source(context, device, family.file, source, options)?;
        if let Some(path) = &path {
            let kept = program
                .binary()
                .map_err(|e| e.to_string())
                .and_then(|binary| self.keep(path, &key, &binary).map_err(|e| e.to_string()));
            if let Err(e) = kept
                && damaged
            {
                self.log.line(&format!("{} cannot be replaced: {e}", path.display()));
            }
        }
        Ok(program)
    }

    /// Writes a file that is complete or not there.
    fn keep(&self, path: &std::path::Path, key: &str, binary: &[u8]) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut bytes = format!("{key}\n{:016x}\n", hash(binary)).into_bytes();
        bytes.extend_from_slice(binary);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        fs::write(&temporary, bytes)?;
        fs::rename(&temporary, path)
    }
}

/// What a file holds, if it is what the key says and whole.
fn checked<'a>(bytes: &'a [u8], key: &str) -> Option<&'a [u8]> {
    let rest = bytes.strip_prefix(key.as_bytes())?.strip_prefix(b"\n")?;
    let (sum, rest) = rest.split_at_checked(16)?;
    let binary = rest.strip_prefix(b"\n")?;
    let sum = u64::from_str_radix(core::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == hash(binary)).then_some(binary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_lines_without_what_no_driver_needs() {
        let text = b"// says\n\n    a = b / c; // why\n#define X \\\n        y\n";
        let mut to = [0; 64];
        let len = bare(text, &mut to);
        assert_eq!(&to[..len], b"\n\na = b / c; \n#define X \\\ny\n");
        for family in [ELEMENTS, COPY, ROWS, GEMM, CONV, WEIGHTS, ATTENTION, NEXT, BYTES, BEST] {
            assert!(family.sources.iter().all(|s| s.contains("__kernel") && !s.contains("//")));
        }
    }

    #[test]
    fn damaged_files_are_noticed() {
        let (key, binary) = ("key", b"some bytes");
        let file = [format!("{key}\n{:016x}\n", hash(binary)).as_bytes(), binary].concat();
        assert_eq!(checked(&file, key), Some(&binary[..]));
        assert_eq!(checked(&file, "other"), None);
        for at in 0..file.len() {
            assert_eq!(checked(&file[..at], key), None, "cut at {at}");
            let mut other = file.clone();
            other[at] ^= 1;
            assert_eq!(checked(&other, key), None, "changed at {at}");
        }
    }
}
