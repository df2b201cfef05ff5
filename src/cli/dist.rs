//! Manual pages and completions, for packages of the program.

use std::fs;

use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;

use super::Failure;
use super::args::{Args, DistArgs};

/// Writes `man/*.1` and `completions/*` into a folder.
pub(super) fn dist(args: &DistArgs) -> Result<(), Failure> {
    let (man, completions) = (args.folder.join("man"), args.folder.join("completions"));
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
