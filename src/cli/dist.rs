//! Manual pages and completions, for packages of the program: `tilewright dist FOLDER`, in builds with the
//! feature `dist` only. It is no command as others, which would stand in what it writes.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::args::Args;
use super::{Failure, report};

/// Does it, if that is what the command line says.
pub(super) fn asked() -> Option<ExitCode> {
    let args: Vec<_> = std::env::args_os().collect();
    let [_, command, folder] = &args[..] else { return None };
    (command == "dist").then(|| match dist(Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report::note(&format!("error: {failure}"));
            ExitCode::FAILURE
        }
    })
}

/// Writes `man/*.1` and `completions/*` into a folder.
fn dist(folder: &Path) -> Result<(), Failure> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).map_err(|e| Failure::new(folder.display(), e))?;
    }
    clap_mangen::generate_to(Args::command(), &man).map_err(|e| Failure::new(man.display(), e))?;
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut Args::command(), "tilewright", &completions)
            .map_err(|e| Failure::new(completions.display(), e))?;
    }
    Ok(())
}
