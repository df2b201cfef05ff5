//! Files with outputs: all of a run, or none. What is a device or a pipe is written into, and a link
//! stays one.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;
use tilewright::io::npy;
use tilewright::{Model, Tensor};

use super::Failure;
use crate::order::sort;

/// Longest file name before `.npy`, in bytes.
const MAX_NAME: usize = 200;

/// The type of outputs that are texts.
pub(super) const TEXT: &str = "text";

/// The name of a file, a tensor for it, and the texts that its elements stand for, if they do.
pub(super) type Output<'a> = (&'a str, &'a Tensor, Option<Vec<&'a str>>);

/// The elements of an output that is texts.
pub(super) fn texts<'a>(model: &'a Model, output: &str, tensor: &Tensor) -> Option<Vec<&'a str>> {
    let list = model.texts(output)?;
    let at = |n: &i64| usize::try_from(*n).ok().and_then(|n| list.get(n)).map(String::as_str);
    tensor.as_slice::<i64>().ok()?.iter().map(at).collect()
}

/// A folder that is known to be writable. Folders made for it are removed again unless something
/// is written.
pub(super) struct OutputDir {
    path: PathBuf,
    /// Made by us, outermost first.
    made: Vec<PathBuf>,
    used: bool,
}

impl OutputDir {
    /// Makes the folder and tries to write into it, before any work is done.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let fail = |e| Failure::new(format!("cannot write into {}", path.display()), e);
        let missing = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists());
        let mut made: Vec<PathBuf> = missing.map(Path::to_path_buf).collect();
        made.reverse();
        let mut this = Self { path: path.to_path_buf(), made: Vec::new(), used: false };
        for folder in made {
            match fs::create_dir(&folder) {
                Ok(()) => this.made.push(folder),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(fail(e)),
            }
        }
        temporary(path).map_err(fail)?;
        Ok(this)
    }

    /// Writes every tensor, or its texts, as `NAME.npy`; either all files appear, complete, or none does.
    /// Returns their paths in order.
    pub(super) fn write(&mut self, outputs: &[Output<'_>]) -> Result<Vec<PathBuf>, Failure> {
        let names = file_names(outputs.iter().map(|(name, ..)| *name));
        let mut pending = Vec::with_capacity(outputs.len());
        for ((_, tensor, texts), name) in outputs.iter().zip(names) {
            let bytes = match texts {
                Some(texts) => npy::write_texts(&tensor.dims(), texts)?,
                None => npy::write(tensor)?,
            };
            pending.push(Pending::new(&self.path.join(name), &bytes)?);
        }
        let written = pending.iter().map(|p| p.path.clone()).collect();
        // A device may refuse its bytes; files get their names after that.
        let beside = |p: &Pending| matches!(p.place, Place::Beside { .. });
        sort(&mut pending, |a, b| beside(a).cmp(&beside(b)));
        for file in pending {
            file.finish()?;
            self.used = true;
        }
        Ok(written)
    }
}

/// A single file that is not there yet.
pub(super) struct Pending {
    place: Place,
    /// As it was asked for.
    path: PathBuf,
}

/// Where the bytes of an output go.
enum Place {
    /// Into a file beside `target`, which then gets its name.
    Beside { file: Unnamed, target: PathBuf },
    /// Into what is there already and is no regular file, such as a device or a pipe.
    Into(Vec<u8>),
}

impl Pending {
    /// Writes `bytes` beside `path`; keeps them where that is no regular file.
    pub(super) fn new(path: &Path, bytes: &[u8]) -> Result<Self, Failure> {
        let fail = |e| Failure::new(format!("cannot write {}", path.display()), e);
        let path_buf = path.to_path_buf();
        if is_special(path).map_err(fail)? {
            return Ok(Self { place: Place::Into(bytes.to_vec()), path: path_buf });
        }
        let target = target(path).map_err(fail)?;
        let folder = target.parent().filter(|p| !p.as_os_str().is_empty());
        let mut file = temporary(folder.unwrap_or(Path::new("."))).map_err(fail)?;
        // Errors of the temporary file itself would name it.
        file.file.as_file_mut().write_all(bytes).map_err(fail)?;
        Ok(Self { place: Place::Beside { file, target }, path: path_buf })
    }

    /// Gives the file its name; one that has it already is replaced.
    pub(super) fn finish(self) -> Result<PathBuf, Failure> {
        let done = match self.place {
            Place::Beside { file, target } => file.persist(&target),
            Place::Into(bytes) => write_into(&self.path, &bytes),
        };
        done.map_err(|e| Failure::new(format!("cannot write {}", self.path.display()), e))?;
        Ok(self.path)
    }
}

/// Whether bytes for `path` go into what is there: it exists and is neither a regular file nor a
/// folder, or it is where this program's own output goes.
fn is_special(path: &Path) -> io::Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) => Ok(!found.is_file() || own_stream(&found).is_some()),
        // What cannot be seen is told when it is written.
        Err(_) => Ok(false),
    }
}

fn write_into(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut stream: Box<dyn Write> = match own_stream(&fs::metadata(path)?) {
        Some(Stream::Out) => Box::new(io::stdout()),
        Some(Stream::Error) => Box::new(io::stderr()),
        None => Box::new(File::options().write(true).open(path)?),
    };
    stream.write_all(bytes)?;
    stream.flush()
}

/// A stream that this program writes into anyway.
#[cfg_attr(not(unix), expect(dead_code, reason = "streams have names on Unix only"))]
enum Stream {
    Out,
    Error,
}

/// The stream that `found` is. Opened a second time, a file would be written from its beginning.
#[cfg(unix)]
fn own_stream(found: &fs::Metadata) -> Option<Stream> {
    use std::os::unix::fs::MetadataExt;
    let is = |stream: &str| {
        fs::metadata(stream).is_ok_and(|s| (s.dev(), s.ino()) == (found.dev(), found.ino()))
    };
    match (is("/dev/stdout"), is("/dev/stderr")) {
        (true, _) => Some(Stream::Out),
        (false, true) => Some(Stream::Error),
        (false, false) => None,
    }
}

#[cfg(not(unix))]
fn own_stream(_: &fs::Metadata) -> Option<Stream> {
    None
}

/// Links behind each other, before they are taken for a circle.
const MAX_LINKS: usize = 40;

/// The file that a path means: behind links, whether there is one or not.
pub(super) fn target(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        if !fs::symlink_metadata(&path).is_ok_and(|m| m.is_symlink()) {
            return Ok(path);
        }
        let next = fs::read_link(&path)?;
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    Err(io::Error::other("too many symbolic links behind each other"))
}

impl Drop for OutputDir {
    fn drop(&mut self) {
        if !self.used {
            for folder in self.made.iter().rev() {
                // Fails, rightly, when somebody else has put something there.
                let _ = fs::remove_dir(folder);
            }
        }
    }
}

/// A temporary file in `folder`, with the permissions of a usual new file, so that it is for
/// everybody whom the folder lets in once it has its name.
fn temporary(folder: &Path) -> io::Result<Unnamed> {
    let mut builder = tempfile::Builder::new();
    // Opened here: an error of the builder's own would name the temporary file.
    let open = |path: &Path| File::options().write(true).create_new(true).open(path);
    // Fails where there is a handler already, which forgets them as well.
    let _ = on_interrupt(|| {
        forget();
        std::process::exit(INTERRUPTED);
    });
    let mut unnamed = UNNAMED.lock().unwrap_or_else(PoisonError::into_inner);
    let file = builder.prefix(".tilewright-").make_in(folder, open)?;
    let known = Known(file.path().to_path_buf());
    unnamed.push(known.0.clone());
    Ok(Unnamed { file, known })
}

/// Sets what Ctrl-C does.
pub(super) fn on_interrupt(handler: fn()) -> Result<(), ctrlc::Error> {
    ctrlc::set_handler(handler)
}

/// What a shell says of a program that Ctrl-C ended.
const INTERRUPTED: i32 = 130;

/// Temporary files that are there.
static UNNAMED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Removes temporary files, of a program that ends at once.
pub(super) fn forget() {
    for path in UNNAMED.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // There is nobody to tell.
        let _ = fs::remove_file(path);
    }
}

/// A temporary file, which [`forget`] removes as long as it has no other name.
struct Unnamed {
    file: NamedTempFile,
    known: Known,
}

impl Unnamed {
    fn persist(self, target: &Path) -> io::Result<()> {
        let Self { file, known } = self;
        let done = file.persist(target).map(|_| ()).map_err(|e| e.error);
        drop(known);
        done
    }
}

/// The place of a temporary file among those that are there.
struct Known(PathBuf);

impl Drop for Known {
    fn drop(&mut self) {
        UNNAMED.lock().unwrap_or_else(PoisonError::into_inner).retain(|path| *path != self.0);
    }
}

/// `NAME.npy` for each name, every character outside A-Z a-z 0-9 _ . - replaced by _. Names that
/// become equal by that get a number.
fn file_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut taken = BTreeSet::new();
    names
        .map(|name| {
            let safe = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
            let mut stem: String = name.chars().map(|c| if safe(c) { c } else { '_' }).collect();
            stem.truncate(MAX_NAME);
            let numbered = (1..).map(|i| format!("{stem}.{i}.npy"));
            let mut candidates = core::iter::once(format!("{stem}.npy")).chain(numbered);
            let free = candidates.find(|c| taken.insert(c.clone()));
            free.unwrap_or_default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_and_differ() {
        let names = file_names(["a/b", "a_b", "../../etc", "é 1", "x.y-Z_0"].into_iter());
        assert_eq!(names, ["a_b.npy", "a_b.1.npy", ".._.._etc.npy", "__1.npy", "x.y-Z_0.npy"]);
        assert_eq!(file_names([&*"n".repeat(500)].into_iter())[0].len(), MAX_NAME + 4);
    }

    #[test]
    fn folders_made_in_vain_are_removed() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("a/b");
        drop(OutputDir::open(&deep).unwrap());
        assert!(!base.path().join("a").exists());
        let tensor = Tensor::from_slice(&[1], &[1f32]).unwrap();
        let mut out = OutputDir::open(&deep).unwrap();
        assert_eq!(out.write(&[("y", &tensor, None)]).unwrap(), [deep.join("y.npy")]);
        drop(out);
        let files: Vec<_> = fs::read_dir(&deep).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files, ["y.npy"]);
    }

    #[cfg(unix)]
    #[test]
    fn links_stay_and_devices_are_written_into() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        fs::write(at("old"), "old").unwrap();
        symlink("old", at("first")).unwrap();
        symlink(at("first"), at("second")).unwrap();
        symlink("new", at("nowhere")).unwrap();
        symlink("circle", at("circle")).unwrap();
        for (link, file) in [("second", "old"), ("nowhere", "new")] {
            assert_eq!(Pending::new(&at(link), b"x").unwrap().finish().unwrap(), at(link));
            assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink());
            assert_eq!(fs::read(at(file)).unwrap(), b"x", "{link}");
        }
        assert!(Pending::new(&at("circle"), b"x").is_err());
        Pending::new(Path::new("/dev/null"), b"x").unwrap().finish().unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let absent = Pending::new(&at("no/file"), b"x").map(|_| ()).unwrap_err().0;
        assert!(absent.contains("no/file") && !absent.contains(".tilewright"), "{absent}");
    }
}
