//! `cargo xtask ci`: what continuous integration checks.

use std::fs;

use std::process::Command;
use std::time::Instant;

use crate::legs::{self, LEGS};
use crate::{asm, cargo, finish, tidy};

/// Combinations of features that must build: package, features.
const FEATURES: [(&str, &str); 23] = [
    ("tilewright-intrinsics", ""),
    ("tilewright-kernels", ""),
    ("tilewright-kernels", "alloc"),
    ("tilewright-kernels", "std"),
    ("tilewright-c-kernels", ""),
    ("tilewright-c-kernels", "alloc"),
    ("tilewright", ""),
    ("tilewright", "sse41"),
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

/// An instruction set of vectors that all CPUs of this architecture which people have, have.
pub(crate) const ISA: &str = if cfg!(target_arch = "aarch64") { "neon" } else { "avx2" };
/// Features of all but instruction sets.
const EVERYTHING: &str =
    "tilewright/capi,tilewright/dist,tilewright/llm,tilewright/opencl,tilewright/rknn";

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
        unseen_files()
    })?;
    step("tidy", &mut || tidy::run(&[]))?;
    // Kernels of one instruction set of vectors have all templates: those of the others cost minutes, and say nothing
    // more. That all compile without a warning is seen with the instructions.
    let seen = format!("{EVERYTHING},tilewright/{ISA}");
    step("lints", &mut || {
        let mut command = checking("clippy");
        command.args(["--workspace", "--all-targets", "--no-default-features"]);
        finish(command.args(["--features", &seen, "--", "-D", "warnings"]))?;
        // Outside the workspace: what it lacks would be seen in the last quarter of an hour only.
        legs::port_lints(checking("clippy"))
    })?;
    step("documentation", &mut || {
        let mut command = checking("doc");
        command.args(["--workspace", "--no-deps", "--no-default-features"]);
        command.args(["--features", &seen]);
        finish(command.env("RUSTDOCFLAGS", "-D warnings -D missing_docs"))
    })?;
    for (package, features) in FEATURES {
        step(&format!("{package} with only these features: {features:?}"), &mut || {
            let mut command = checking("check");
            finish(command.args(["-p", package, "--no-default-features", "--features", features]))
        })?;
    }
    step("what small builds lack", &mut || {
        let features = format!("{ISA},vector-only,few-kernels");
        // Not in release, where it would wait for what `.ci/run` builds beside it, and not fast: it runs a second.
        let mut command = checking("test");
        command.args(["--config", "profile.dev.package.tilewright-kernels.opt-level=1"]);
        command.args(["-p", "tilewright", "--no-default-features", "--features", &features]);
        finish(command.args(["--test", "small_build"]))
    })?;
    if tests {
        step("tests", &mut || cargo_run(&["test", "--release", "--workspace"]))?;
    }
    step("every bench once", &mut || {
        // Not `--benches`, which is also the library once more, with all of its tests.
        cargo_run(&["test", "--quiet", "--release", "-p", "tilewright-kernels", "--bench", "*"])
    })?;
    // Of other models, which `cargo xtask asm` builds too, only the order of instructions differs; `cargo xtask dist`
    // looks at the one of packages.
    let models = ["x86-64", "aarch64"].map(String::from);
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

/// Folders with files that Cargo's formatter does not find: macros declare them as modules, or they are outside the
/// workspace.
const UNSEEN: [&str; 5] = [
    "intrinsics/src/isa",
    "src/graph/ops",
    "src/llm/arch",
    "fuzz/fuzz_targets",
    "benches/peers/rust/src",
];

/// Checks the format of what Cargo's formatter does not find.
fn unseen_files() -> Result<(), String> {
    let mut rustfmt = Command::new("rustfmt");
    rustfmt.args(["--check", "--edition", "2024"]);
    for folder in UNSEEN {
        let files = fs::read_dir(folder).map_err(|e| format!("{folder}: {e}"))?;
        let paths = files.flatten().map(|file| file.path());
        rustfmt.args(paths.filter(|path| path.extension().is_some_and(|end| end == "rs")));
    }
    finish(&mut rustfmt)
}

/// A command of Cargo whose result need not be fast, nor dependencies that run meanwhile, macros.
fn checking(what: &str) -> Command {
    let mut command = cargo();
    command.args([what, "--quiet", "--config", "profile.dev.package.\"*\".opt-level=0"]);
    command
}

fn cargo_run(args: &[&str]) -> Result<(), String> {
    finish(cargo().args(args))
}

fn timed(name: &str, work: &mut dyn FnMut() -> Result<(), String>) -> Result<(), String> {
    println!("\n=== {name}");
    let (begin, before) = (Instant::now(), processor_time());
    work().map_err(|e| format!("ci: {name}: {e}"))?;
    let took = begin.elapsed().as_secs_f64();
    match processor_time().zip(before) {
        Some((now, before)) => {
            println!("=== {name}: ok, {took:.0} s, {:.0} s of processors", now - before)
        }
        None => println!("=== {name}: ok, {took:.0} s"),
    }
    Ok(())
}

/// Seconds that processors worked for commands which have ended, where the system is Linux: unlike the time on
/// the clock they do not depend on what else runs.
fn processor_time() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // proc(5): the name in parentheses may have spaces; 16 and 17 are of children, in hundredths (USER_HZ).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some((ticks(16)? + ticks(17)?) / 100.0)
}
