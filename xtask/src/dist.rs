//! `cargo xtask dist`: what packages of the program consist of.

use std::fs;
use std::path::Path;

use crate::legs::has_program;
use crate::{cargo, finish};

/// Where it lies: the Debian package names its files from there, wherever Cargo builds.
const FOLDER: &str = "target/dist";
/// How the program is built.
const PROFILE: &str = "compact";

/// Writes manual pages, completions and the list of what the program is made of, and makes the Debian
/// package. What no tool is there for is said loudly, and left out.
///
/// # Errors
/// The command that failed; pages that are not there.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("dist: unknown arguments {args:?}"));
    }
    let folder = Path::new(FOLDER);
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|e| format!("{FOLDER}: {e}"))?;
    }
    fs::create_dir_all(folder).map_err(|e| format!("{FOLDER}: {e}"))?;
    let mut pages = cargo();
    pages.args(["run", "--profile", PROFILE, "--quiet", "--features", "dist"]);
    finish(pages.args(["--bin", "tilewright", "--", "dist", FOLDER]))?;
    for (kind, least) in [("man", 12), ("completions", 5)] {
        let found = fs::read_dir(folder.join(kind)).map_err(|e| format!("{FOLDER}/{kind}: {e}"))?;
        let found = found.count();
        println!("dist: {FOLDER}/{kind}: {found} files");
        if found < least {
            return Err(format!("dist: {found} files in {kind}, expected {least} or more"));
        }
    }
    if has_program("cargo-cyclonedx", &["cyclonedx"]) {
        let mut list = cargo();
        list.args(["cyclonedx", "--quiet", "--format", "json", "--describe", "binaries"]);
        finish(list.args(["--spec-version", "1.5", "--manifest-path", "Cargo.toml"]))?;
        let name = "tilewright_bin.cdx.json";
        fs::rename(name, folder.join(name)).map_err(|e| format!("dist: {name}: {e}"))?;
        println!("dist: {FOLDER}/{name}");
        remove_others()?;
    } else {
        println!("!!! dist: SKIPPED: what the program is made of, for lack of: cargo-cyclonedx");
    }
    if has_program("cargo-deb", &[]) {
        let mut package = cargo();
        package.args(["deb", "--package", "tilewright", "--profile", PROFILE, "--output", FOLDER]);
        finish(&mut package)?;
    } else {
        println!("!!! dist: SKIPPED: the Debian package, for lack of: cargo-deb");
    }
    Ok(())
}

/// The tool writes a list for each package of the workspace, beside its manifest.
fn remove_others() -> Result<(), String> {
    let manifest = fs::read_to_string("Cargo.toml").map_err(|e| format!("Cargo.toml: {e}"))?;
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = ["));
    for folder in members.unwrap_or_default().split('"').chain(["."]) {
        for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()) {
            if path.to_string_lossy().ends_with(".cdx.json") {
                fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
    }
    Ok(())
}
