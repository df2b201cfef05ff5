//! Files with outputs: all of a run, or none.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;
use tilewright::io::npy;
use tilewright::tensor::Tensor;

use super::Failure;

/// Longest file name before `.npy`, in bytes.
const MAX_NAME: usize = 200;

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
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(fail(e)),
            }
        }
        temporary(path).map_err(fail)?;
        Ok(this)
    }

    /// Writes every tensor as `NAME.npy`; either all files appear, complete, or none does.
    /// Returns their paths in order.
    pub(super) fn write(&mut self, outputs: &[(&str, &Tensor)]) -> Result<Vec<PathBuf>, Failure> {
        let names = file_names(outputs.iter().map(|(name, _)| *name));
        let mut pending = Vec::with_capacity(outputs.len());
        for ((_, tensor), name) in outputs.iter().zip(names) {
            let path = self.path.join(name);
            let fail = |e| Failure::new(format!("cannot write {}", path.display()), e);
            if path.is_dir() {
                return Err(fail(std::io::Error::from(std::io::ErrorKind::IsADirectory)));
            }
            let mut file = temporary(&self.path).map_err(fail)?;
            file.write_all(&npy::write(tensor)?).map_err(fail)?;
            pending.push((file, path));
        }
        let mut written = Vec::with_capacity(pending.len());
        for (file, path) in pending {
            file.persist(&path)
                .map_err(|e| Failure::new(format!("cannot write {}", path.display()), e.error))?;
            self.used = true;
            written.push(path);
        }
        Ok(written)
    }
}

/// A single file that is written, but has not its name yet.
pub(super) struct Pending {
    file: NamedTempFile,
    path: PathBuf,
}

impl Pending {
    /// Writes `bytes` beside `path`.
    pub(super) fn new(path: &Path, bytes: &[u8]) -> Result<Self, Failure> {
        let fail = |e| Failure::new(format!("cannot write {}", path.display()), e);
        if path.is_dir() {
            return Err(fail(std::io::Error::from(std::io::ErrorKind::IsADirectory)));
        }
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
        let mut file = temporary(folder.unwrap_or(Path::new("."))).map_err(fail)?;
        file.write_all(bytes).map_err(fail)?;
        Ok(Self { file, path: path.to_path_buf() })
    }

    /// Gives the file its name; one that has it already is replaced.
    pub(super) fn finish(self) -> Result<PathBuf, Failure> {
        let fail = |e| Failure::new(format!("cannot write {}", self.path.display()), e);
        self.file.persist(&self.path).map_err(|e| fail(e.error))?;
        Ok(self.path)
    }
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
fn temporary(folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".tilewright-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
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
        assert_eq!(out.write(&[("y", &tensor)]).unwrap(), [deep.join("y.npy")]);
        drop(out);
        let files: Vec<_> = fs::read_dir(&deep).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(files, ["y.npy"]);
    }
}
