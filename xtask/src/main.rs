//! The project's own commands: `cargo xtask <command>`.

mod asm;
mod bench;
mod book;
mod capi;
mod ci;
mod dist;
mod frames;
mod install;
mod legs;
mod plain;
mod port;
mod rows;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const USAGE: &str = "\
usage: cargo xtask <command>
  ci              everything that CI checks: format, lints, docs, tests, features, tidy, asm, NEON
  ci --no-tests   the same without the release tests, which .ci/run runs itself
  tidy            layers, SAFETY comments, file sizes, leftovers
  asm [MODEL...]  the hot loop of every microkernel keeps its tile in registers
  asm --page      the loop that docs/kernels.md shows
  book            docs as web pages, by mdbook
  dist            manual pages, completions, list of parts, Debian package
  capi            the C libraries, their symbols, and C and C++ programs that use them
  install --prefix DIR   the C libraries, the header, files for pkg-config and CMake
  bench [FILTER]  times of the kernels whose names contain FILTER, against the peak of the core
  port <isa> [--format json]   correctness, speed, instructions and advice for one instruction set
  port --self-test | --lines   a toy instruction set passes the suite; the table of file sizes";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let result = if frames::links() { frames::link(&args) } else { run(&args) };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The command that `args` name.
fn run(args: &[String]) -> Result<(), String> {
    // Commands name files from the root of the workspace, wherever they are started.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::set_current_dir(&root).map_err(|e| format!("{}: {e}", root.display()))?;
    let Some((command, rest)) = args.split_first() else { return Err(USAGE.into()) };
    match command.as_str() {
        "ci" => ci::run(rest),
        "tidy" => tidy::run(rest),
        "asm" => asm::run(rest),
        "port" => port::run(rest),
        "capi" => capi::run(rest),
        "install" => install::run(rest),
        "bench" => bench::run(rest),
        "book" => book::run(rest),
        "dist" => dist::run(rest),
        _ => Err(USAGE.into()),
    }
}

/// Cargo, the one that runs us.
fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Where Cargo puts what it builds.
fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Whether the toolchain in use has the standard library of a target.
fn has_target(target: &str) -> bool {
    let mut rustc = Command::new("rustc");
    let output = rustc.args(["--print", "target-libdir", "--target", target]).output();
    output.is_ok_and(|o| Path::new(String::from_utf8_lossy(&o.stdout).trim()).is_dir())
}

/// Runs a command to its end.
fn finish(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|e| format!("{command:?}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("failed ({status}): {command:?}")) }
}
