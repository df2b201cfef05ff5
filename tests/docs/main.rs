//! The README, the book and the other pages say what is true: links lead somewhere, programs compile, commands
//! run, lists are those of the program.
//!
//! Every fenced block of a page names a language, and each language has its check:
//!
//! | language | check |
//! |---|---|
//! | `rust` | a documentation test, by the list in `src/lib.rs` |
//! | any, after `<!-- from PATH -->` | it stands in that file; a line `...` stands for any lines |
//! | `c` | compiled without warnings; those of `docs/c.md` are linked and run by `cargo xtask capi` |
//! | `sh` | each command of the program runs, in a folder with the files that the pages name; of others (`cargo`, `python`) all that they name must be there |
//! | `console` | as `sh`; what the command prints must be what stands below it, but for numbers |
//! | `json` | entries that belong to a network, as the program reads them |
//! | `asm` | made by `cargo xtask asm --page`, which checks it too |
//! | `text` | none: output that depends on the machine, and pictures of letters |

// Commands are run by a shell.
#![cfg(all(feature = "cli", feature = "llm", unix))]

mod blocks;
mod commands;
mod links;
mod lists;
#[path = "../../xtask/src/plain.rs"]
mod plain;

use std::fs;
use std::path::{Path, PathBuf};

/// The folder of the package, which is that of the repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A page: its path from the root, its text.
struct Page {
    path: PathBuf,
    text: String,
}

/// All Markdown files of the repository, products of builds left out.
fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root().join(&folder)).unwrap().flatten() {
            let path = folder.join(entry.file_name());
            let name = entry.file_name().to_string_lossy().into_owned();
            if entry.path().is_dir() {
                if !name.starts_with('.')
                    && !["target", "venv", "out", "cache"].contains(&&name[..])
                {
                    folders.push(path);
                }
            } else if name.ends_with(".md") {
                let text = fs::read_to_string(root().join(&path)).unwrap();
                found.push(Page { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 20, "hardly any pages in {}", root().display());
    found
}
