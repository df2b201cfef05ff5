//! The program of threads under ThreadSanitizer.

use std::path::PathBuf;
use std::process::Command;

use super::{LANGUAGE, NETWORK, STRICT};
use crate::legs::{has_program, nightly};
use crate::{finish, target_dir};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What [`races`] needs, of what is not there.
pub(crate) fn races_needs() -> Vec<&'static str> {
    let mut lacking = Vec::new();
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        lacking.push("Linux on x86-64");
    }
    if !has_program("clang", &[]) {
        lacking.push("clang");
    }
    match sysroot() {
        Some(root) if !root.join("lib/rustlib/src/rust/library/std").is_dir() => {
            lacking.push("nightly Rust with rust-src");
        }
        Some(root) if !runtime(&root).is_file() => lacking.push("nightly Rust with sanitizers"),
        Some(_) => {}
        None => lacking.push("nightly Rust"),
    }
    lacking
}

/// Of the nightly toolchain.
fn sysroot() -> Option<PathBuf> {
    let mut rustc = Command::new("rustc");
    rustc.args(["+nightly", "--print", "sysroot"]).env_remove("RUSTUP_TOOLCHAIN");
    let output = rustc.output().ok().filter(|output| output.status.success())?;
    Some(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}

/// The sanitizer's own code: that of the compiler which makes the library, as clang's may be years older.
fn runtime(root: &std::path::Path) -> PathBuf {
    root.join("lib/rustlib").join(TARGET).join("lib/librustc-nightly_rt.tsan.a")
}

/// Two threads with sessions of one model, and what else `threads.c` does, with each access to memory
/// compared with those of other threads: in the program, in the library, and in Rust's standard library,
/// which is built anew for that, as it would hide what its locks and threads order. Kernels are portable
/// code: instruction sets differ in arithmetic, not in who writes where.
///
/// # Errors
/// The command that failed; a race.
pub(crate) fn races() -> Result<(), String> {
    let root = sysroot().ok_or("capi: there is no nightly Rust")?;
    let folder =
        std::path::absolute(target_dir().join("tsan")).map_err(|e| format!("capi: {e}"))?;
    let mut build = nightly();
    build.args(["rustc", "--quiet", "--release", "-Zbuild-std", "--target", TARGET]);
    build.args(["-p", "tilewright-c", "--lib", "--crate-type", "staticlib"]);
    build.args(["--no-default-features", "--features", "llm", "--target-dir"]).arg(&folder);
    finish(build.env("RUSTFLAGS", "-Zsanitizer=thread"))?;

    let (object, program) = (folder.join("threads.o"), folder.join("threads"));
    let mut compile = Command::new("clang");
    compile.args(STRICT).args(["-std=c99", "-O1", "-g", "-fsanitize=thread", "-Iinclude"]);
    compile.args(["-D_POSIX_C_SOURCE=200809L", "-c", "tests/capi/threads.c", "-o"]).arg(&object);
    finish(&mut compile)?;
    let mut link = Command::new("clang");
    link.arg(&object).arg(folder.join(TARGET).join("release/libtilewright_c.a"));
    // The runtime is to see all calls of the C library, so none of it may be left out.
    link.args(["-Wl,--whole-archive"]).arg(runtime(&root)).arg("-Wl,--no-whole-archive");
    link.args(["-Wl,--export-dynamic", "-lpthread", "-ldl", "-lm", "-lrt", "-o"]).arg(&program);
    finish(&mut link)?;

    let mut run = Command::new("timeout");
    run.arg("150").arg(&program).args([NETWORK, LANGUAGE]);
    finish(run.env("TSAN_OPTIONS", "halt_on_error=1:exitcode=66"))
}
