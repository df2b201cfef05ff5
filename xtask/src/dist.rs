//! `cargo xtask dist`: what packages of the program consist of.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::legs::has_program;
use crate::{asm, cargo, finish, frames, target_dir};

/// Where it lies: the Debian package names its files from there, wherever Cargo builds.
const FOLDER: &str = "target/dist";
/// Has the linker keep one of several functions that are the same.
const FOLD: &str = "-Clink-arg=-Wl,--icf=all";
/// All that the program has but the kernels of SSE4.1: with half a megabyte of those it would have more than the 6 MiB
/// that packages keep to.
const FEATURES: [&str; 3] =
    ["--no-default-features", "--features", "cli,capi,llm,opencl,rknn,avxvnni,amx,neonbf16"];
/// How the program is built.
const PROFILE: &str = "compact";

/// Writes manual pages, completions and the list of what the program is made of, looks at the instructions of its
/// kernels, and makes the Debian package. What no tool is there for is said loudly, and left out.
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
    // With the command that writes them, which packages leave out.
    program(&[&FEATURES[..], &["--features", "dist"]].concat())?;
    let built = target_dir().join(PROFILE).join("tilewright");
    finish(Command::new(&built).args(["dist", FOLDER]))?;
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
    asm::run(&[asm::PACKAGED.into()])?;
    program(&FEATURES)?;
    let size = fs::metadata(&built).map_err(|e| format!("{}: {e}", built.display()))?.len();
    println!("dist: {}: {:.1} MB", built.display(), size as f64 / 1e6);
    if has_program("cargo-deb", &[]) {
        let mut package = cargo();
        package.args(["deb", "--no-build", "--package", "tilewright", "--profile", PROFILE]);
        package.args(["--output", FOLDER]);
        if packs_addresses() {
            package.args(["--variant", "packed"]);
        }
        finish(&mut package)?;
    } else {
        println!("!!! dist: SKIPPED: the Debian package, for lack of: cargo-deb");
    }
    Ok(())
}

/// Builds the program, and links it without what it never uses.
fn program(features: &[&str]) -> Result<(), String> {
    let mut build = cargo();
    build.args(["rustc", "--profile", PROFILE, "--quiet", "--package", "tilewright"]);
    build.args(["--bin", "tilewright"]).args(features).arg("--");
    build.env("CARGO_ENCODED_RUSTFLAGS", without_folders().join("\u{1f}"));
    if cfg!(target_os = "linux") {
        let script = std::path::absolute("xtask/dist/no-unwinding.ld");
        let script = script.map_err(|e| format!("dist: {e}"))?;
        build.arg(format!("-Clink-arg=-Wl,-T,{}", script.display()));
        build.arg("-Clink-arg=-Wl,--no-eh-frame-hdr");
        if packs_addresses() {
            build.arg("-Clink-arg=-Wl,-z,pack-relative-relocs");
        }
        if links_with(FOLD) {
            build.arg(FOLD);
        }
        frames::link_without(&mut build)?;
    }
    finish(&mut build)
}

/// The flags of the environment, and such as leave out where crates lie on this machine: a panic names the place of
/// its source, and 10 KB of the program said whose folder that was in.
fn without_folders() -> Vec<String> {
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let mut flags: Vec<String> = flags.split_whitespace().map(str::to_owned).collect();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let sources = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok());
    for folder in sources.into_iter().flatten().flatten().map(|entry| entry.path()) {
        flags.push(format!("--remap-path-prefix={}/=", folder.display()));
    }
    flags
}

/// Whether the list of addresses to change when the program is loaded is made short. Older C libraries
/// cannot read it then.
fn packs_addresses() -> bool {
    cfg!(target_os = "linux") && c_library().is_some_and(|version| version >= [2, 36])
}

/// Whether the linker here knows an argument.
fn links_with(argument: &str) -> bool {
    let program = target_dir().join("links-with");
    let mut rustc = Command::new("rustc");
    rustc.args(["--crate-type", "bin", "-", argument, "-o"]).arg(&program);
    let quiet = rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let links = quiet.spawn().is_ok_and(|mut rustc| {
        let source = rustc.stdin.take().map(|mut stdin| stdin.write_all(b"fn main() {}"));
        source.is_some_and(|written| written.is_ok()) && rustc.wait().is_ok_and(|s| s.success())
    });
    // What is left of it does no harm.
    let _ = fs::remove_file(program);
    links
}

/// The version of glibc here, if that is the C library.
fn c_library() -> Option<[u32; 2]> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some([major.parse().ok()?, minor.parse().ok()?])
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
