//! `cargo xtask ci`: what continuous integration checks.

use std::fs;

use std::process::Command;
use std::time::Instant;

use crate::legs::LEGS;
use crate::{asm, cargo, finish, tidy};

/// Combinations of features that must build: package, features.
const FEATURES: [(&str, &str); 22] = [
    ("tilewright-intrinsics", ""),
    ("tilewright-kernels", ""),
    ("tilewright-kernels", "alloc"),
    ("tilewright-kernels", "std"),
    ("tilewright-c-kernels", ""),
    ("tilewright-c-kernels", "alloc"),
    ("tilewright", ""),
    ("tilewright", "avx2"),
    ("tilewright", "avx512"),
    ("tilewright", "neon"),
    ("tilewright", "ops-int8"),
    ("tilewright", "ops-control"),
    ("tilewright", "gguf"),
    ("tilewright", "llm"),
    ("tilewright", "capi"),
    ("tilewright", "media"),
    ("tilewright", "tune"),
    ("tilewright", "opencl"),
    ("tilewright", "rknn"),
    ("tilewright", "cli"),
    ("tilewright", "cli,avx2"),
    ("tilewright", "dist"),
];

/// All checks in turn; stops at the first that fails. `--no-tests` leaves the tests of the workspace to the
/// caller, `--from NAME` begins at the check with that name, to go on after a failure, and `--until NAME` ends
/// before it.
///
/// # Errors
/// The command that failed.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let (mut tests, mut from, mut until) = (true, None, None);
    let mut rest = args.iter().map(String::as_str);
    while let Some(arg) = rest.next() {
        match arg {
            "--no-tests" => tests = false,
            "--from" | "--until" => {
                let name = rest.next().ok_or_else(|| format!("ci: {arg} which check?"))?;
                *(if arg == "--from" { &mut from } else { &mut until }) = Some(name);
            }
            _ => return Err(format!("ci: unknown argument {arg:?}")),
        }
    }
    let begin = Instant::now();
    let (mut ended, mut unknown) = (false, until);
    let mut step = |name: &str, work: &mut dyn FnMut() -> Result<(), String>| {
        if until == Some(name) {
            (ended, unknown) = (true, None);
        }
        if ended || from.is_some_and(|from| from != name) {
            return Ok(());
        }
        from = None;
        timed(name, work)
    };
    step("format", &mut || {
        cargo_run(&["fmt", "--all", "--check"])?;
        instruction_set_files()
    })?;
    step("tidy", &mut || tidy::run(&[]))?;
    step("lints", &mut || {
        let what =
            ["clippy", "--quiet", "--workspace", "--all-targets", "--features", "tilewright/capi"];
        cargo_run(&[&what[..], &["--", "-D", "warnings"]].concat())
    })?;
    step("documentation", &mut || {
        let mut command = cargo();
        command.args(["doc", "--quiet", "--workspace", "--no-deps"]);
        finish(command.env("RUSTDOCFLAGS", "-D warnings -D missing_docs"))
    })?;
    for (package, features) in FEATURES {
        step(&format!("{package} with only these features: {features:?}"), &mut || {
            let args = ["check", "--quiet", "-p", package, "--no-default-features", "--features"];
            cargo_run(&[&args[..], &[features]].concat())
        })?;
    }
    let isa = if cfg!(target_arch = "aarch64") { "neon" } else { "avx2" };
    step("what small builds lack", &mut || {
        let features = format!("{isa},vector-only,few-kernels");
        // In release, whose libraries of others are built for all tests. Ours are built for this one alone, which does not
        // need them fast.
        let what = ["test", "--release", "--quiet", "-p", "tilewright", "--no-default-features"];
        let quickly = ["tilewright", "tilewright-kernels"].map(|package| {
            ["--config".to_owned(), format!("profile.release.package.{package}.opt-level=1")]
        });
        let mut command = cargo();
        command.args(what).args(quickly.concat());
        finish(command.args(["--features", &features, "--test", "small_build"]))
    })?;
    if tests {
        step("tests", &mut || cargo_run(&["test", "--release", "--workspace"]))?;
    }
    step("every bench once", &mut || {
        // Not `--benches`, which is also the library once more, with all of its tests.
        cargo_run(&["test", "--quiet", "--release", "-p", "tilewright-kernels", "--bench", "*"])
    })?;
    // Of other models, which `cargo xtask asm` builds too, only the order of instructions differs.
    let models = ["x86-64", "aarch64", "x86-64-packaged"].map(String::from);
    step("instructions", &mut || asm::run(&models))?;
    let mut skipped = Vec::new();
    for leg in LEGS {
        step(leg.name, &mut || {
            if !leg.run()? {
                skipped.push(leg.name);
            }
            Ok(())
        })?;
    }
    if let Some(name) = from.or(unknown) {
        return Err(format!("ci: there is no check {name:?}"));
    }
    if !skipped.is_empty() {
        println!("\n!!! ci: skipped: {}", skipped.join("; "));
    }
    println!("ci: all passed in {:.0} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Formatting of the files that `cargo fmt` does not see, as a macro declares their modules.
fn instruction_set_files() -> Result<(), String> {
    let folder = "intrinsics/src/isa";
    let files = fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
    let paths = files.flatten().map(|file| file.path());
    finish(Command::new("rustfmt").args(["--check", "--edition", "2024"]).args(paths))
}

fn cargo_run(args: &[&str]) -> Result<(), String> {
    finish(cargo().args(args))
}

fn timed(name: &str, work: &mut dyn FnMut() -> Result<(), String>) -> Result<(), String> {
    println!("\n=== {name}");
    let begin = Instant::now();
    work().map_err(|e| format!("ci: {name}: {e}"))?;
    println!("=== {name}: ok, {:.0} s", begin.elapsed().as_secs_f64());
    Ok(())
}
