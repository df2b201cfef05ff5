//! `cargo xtask port --self-test`: an instruction set is one file and one row.
//!
//! The lower two crates are copied into a workspace of their own, the example of the guide is added
//! to the copy, one file and one row, and the conformance suite runs on it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::rows::TABLE;
use crate::{cargo, target_dir};

const FILE: &str = "xtask/port/toy.rs";
const ROW: &str = "xtask/port/toy.row";

/// # Errors
/// What failed: the copy, the build, or a test.
pub(crate) fn run() -> Result<(), String> {
    let target = std::path::absolute(target_dir()).map_err(|e| e.to_string())?;
    let copy = target.join("port");
    if copy.exists() {
        fs::remove_dir_all(&copy).map_err(|e| format!("{}: {e}", copy.display()))?;
    }
    for folder in ["intrinsics", "kernels"] {
        copy_folder(Path::new(folder), &copy.join(folder))?;
    }
    copy_file(Path::new("Cargo.lock"), &copy.join("Cargo.lock"))?;
    write(&copy.join("Cargo.toml"), &workspace(&read(Path::new("Cargo.toml"))?))?;

    // All that a person who ports adds.
    copy_file(Path::new(FILE), &copy.join("intrinsics/src/isa/toy.rs"))?;
    let table = copy.join(TABLE);
    write(&table, &with_row(&read(&table)?, &read(Path::new(ROW))?)?)?;

    let mut command = cargo();
    // In a folder of its own, as CI builds in the other meanwhile: Cargo would wait for that.
    command.current_dir(&copy).env("CARGO_TARGET_DIR", target.join("toy"));
    command.args(["--config", "profile.release.opt-level=1"]);
    command.args(["test", "--release", "-p", "tilewright-kernels", "--lib"]);
    command.args(["--no-default-features", "--features", "std", "--", "toy_f32::", "detect::"]);
    let output = command.output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("port: the toy instruction set fails:\n{text}{errors}"));
    }
    let passed = |line: &&str| line.contains("::toy_f32::") && line.ends_with("... ok");
    let count = text.lines().filter(passed).count();
    if count < 10 {
        return Err(format!("port: only {count} tests ran on the toy instruction set:\n{text}"));
    }
    println!("port: one file and one row make an instruction set: {count} conformance tests pass");
    Ok(())
}

/// The table with a row behind the first.
fn with_row(table: &str, row: &str) -> Result<String, String> {
    let end = table.find("\n        }\n").ok_or("port: the table has no rows")? + 11;
    Ok(format!("{}{row}{}", &table[..end], &table[end..]))
}

/// The workspace and profile tables of a manifest, with the two lower crates as the only members.
fn workspace(manifest: &str) -> String {
    let mut text = String::new();
    let mut keep = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            keep = line.starts_with("[workspace") || line.starts_with("[profile");
        }
        if line.starts_with("members") {
            text += "members = [\"intrinsics\", \"kernels\"]\n";
        } else if keep && !line.starts_with("exclude") && !line.starts_with("default-members") {
            text += line;
            text.push('\n');
        }
    }
    text
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    for entry in fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))? {
        let path: PathBuf = entry.map_err(|e| format!("{}: {e}", from.display()))?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        if path.is_dir() { copy_folder(&path, &target)? } else { copy_file(&path, &target)? }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|e| format!("{} to {}: {e}", from.display(), to.display()))
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
}
