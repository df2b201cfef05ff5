//! `cargo xtask bench`: kernel times.

use crate::{cargo, finish};

/// Runs the kernel benches whose names contain one of `args`, or all; tables only.
///
/// # Errors
/// If they do not build or do not run.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let mut command = cargo();
    command.args(["bench", "--quiet", "-p", "tilewright-kernels", "--bench", "kernels", "--"]);
    finish(command.arg("table").args(args))
}
