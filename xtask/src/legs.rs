//! The parts of CI that need more than this machine's CPU and the stable toolchain: other
//! architectures under emulators, Miri, sanitizers. What is missing is said loudly, and skipped.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::SystemTime;

use crate::{book, capi, cargo, finish, has_target, port, rows, target_dir};

const ARM: &str = "aarch64-unknown-linux-gnu";
/// Addresses of 32 bits, and no row but the portable one.
const ARM_32: &str = "armv7-unknown-linux-gnueabihf";
/// A system that is not Unix.
const WINDOWS: &str = "x86_64-pc-windows-gnu";
const WASM: &str = "wasm32-unknown-unknown";
const CORTEX_M: &str = "thumbv7em-none-eabihf";
const X86: &str = "x86_64-unknown-linux-gnu";

/// A part: what it is called, what it needs, what it does.
pub(crate) struct Leg {
    pub(crate) name: &'static str,
    needs: fn() -> Vec<&'static str>,
    run: fn() -> Result<(), String>,
}

/// All parts, in the order in which they run.
pub(crate) const LEGS: &[Leg] = &[
    Leg { name: "the book", needs: book::needs, run: || book::run(&[]) },
    Leg { name: "licences and sources of dependencies", needs: deny_needs, run: deny },
    Leg { name: "dependencies that nobody uses", needs: machete_needs, run: machete },
    Leg { name: "programs in C and C++", needs: capi::needs, run: || capi::run(&[]) },
    Leg {
        name: "C with kernels alone",
        needs: || lacking([("cc", has_program("cc", &[]))]),
        run: capi::kernels_alone,
    },
    Leg {
        name: "the smallest library for networks",
        needs: || {
            lacking([
                ("an x86-64 processor", cfg!(target_arch = "x86_64")),
                ("cc", has_program("cc", &[])),
            ])
        },
        run: capi::smallest,
    },
    Leg { name: "threads in C under ThreadSanitizer", needs: capi::races_needs, run: capi::races },
    Leg { name: "C on a Cortex-M4", needs: capi::firmware_needs, run: capi::firmware },
    Leg { name: "C on aarch64", needs: arm_needs, run: capi::on_arm },
    Leg {
        name: "the program on aarch64",
        needs: || lacking([("the Rust target aarch64-unknown-linux-gnu", has_target(ARM))]),
        run: || program_on(ARM),
    },
    Leg {
        name: "the program on 32-bit ARM",
        needs: || lacking([("the Rust target armv7-unknown-linux-gnueabihf", has_target(ARM_32))]),
        run: || program_on(ARM_32),
    },
    Leg {
        name: "the program on Windows",
        needs: || lacking([("the Rust target x86_64-pc-windows-gnu", has_target(WINDOWS))]),
        run: || program_on(WINDOWS),
    },
    // The second half of CI begins here, with what builds into folders of its own. What matters most comes first, as
    // what is left when time is up is skipped.
    Leg { name: "tests on a CPU with all of NEON", needs: arm_needs, run: arm_with_everything },
    Leg { name: "tests on CPUs with some of NEON", needs: arm_needs, run: arm_with_some },
    Leg { name: "tests on WebAssembly", needs: wasm_needs, run: wasm },
    Leg { name: "checks on a Cortex-M4", needs: cortex_m_needs, run: cortex_m },
    Leg { name: "an instruction set of one file and one row", needs: Vec::new, run: self_test },
    Leg { name: "Miri over scalar kernels and packing", needs: miri_needs, run: miri },
    Leg { name: "AddressSanitizer over the kernels", needs: sanitizer_needs, run: sanitizer },
    Leg { name: "a minute of fuzzing per target", needs: fuzz_needs, run: fuzz },
    Leg {
        name: "valgrind over the NPU's adapter and emulator",
        needs: valgrind_needs,
        run: adapter_leaks,
    },
];

impl Leg {
    /// Runs it, if what it needs is there, and time. Otherwise says so and returns `false`.
    ///
    /// # Errors
    /// The command that failed.
    pub(crate) fn run(&self) -> Result<bool, String> {
        let mut lacking = (self.needs)();
        if time_is_up() {
            lacking.push("time, as this machine is slow (CI_BEGAN)");
        }
        if !lacking.is_empty() {
            println!("\n!!! ci: SKIPPED: {}, for lack of: {}\n", self.name, lacking.join(", "));
            return Ok(false);
        }
        (self.run)().map(|()| true)
    }
}

/// How long CI may have run when it begins another part: each ends within a quarter of an hour, and what runs CI ends it
/// after an hour and a half.
const MINUTES: u64 = 55;

/// Whether `CI_BEGAN`, seconds since 1970 that `.ci/run` sets, is longer ago. By hand there is no limit.
fn time_is_up() -> bool {
    let began = std::env::var("CI_BEGAN").ok().and_then(|began| began.parse().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    began
        .zip(now.ok())
        .is_some_and(|(began, now)| now.as_secs().saturating_sub(began) > MINUTES * 60)
}

fn lacking<const N: usize>(needs: [(&'static str, bool); N]) -> Vec<&'static str> {
    needs.into_iter().filter(|(_, there)| !there).map(|(name, _)| name).collect()
}

fn arm_needs() -> Vec<&'static str> {
    lacking([
        ("the Rust target aarch64-unknown-linux-gnu", has_target(ARM)),
        ("aarch64-linux-gnu-gcc", has_program("aarch64-linux-gnu-gcc", &[])),
        ("qemu-aarch64", has_program("qemu-aarch64", &[])),
    ])
}

fn wasm_needs() -> Vec<&'static str> {
    lacking([
        ("the Rust target wasm32-unknown-unknown", has_target(WASM)),
        ("node", has_program("node", &[])),
    ])
}

fn cortex_m_needs() -> Vec<&'static str> {
    lacking([
        ("the Rust target thumbv7em-none-eabihf", has_target(CORTEX_M)),
        ("qemu-system-arm", has_program("qemu-system-arm", &[])),
    ])
}

fn miri_needs() -> Vec<&'static str> {
    lacking([("nightly Rust with Miri and rust-src", has_program("cargo", &["+nightly", "miri"]))])
}

fn sanitizer_needs() -> Vec<&'static str> {
    lacking([
        ("nightly Rust", has_program("cargo", &["+nightly"])),
        ("Linux on x86-64", cfg!(all(target_os = "linux", target_arch = "x86_64"))),
    ])
}

fn valgrind_needs() -> Vec<&'static str> {
    lacking([
        ("valgrind", has_program("valgrind", &[])),
        ("Linux on x86-64", cfg!(all(target_os = "linux", target_arch = "x86_64"))),
    ])
}

fn fuzz_needs() -> Vec<&'static str> {
    lacking([
        ("nightly Rust", has_program("cargo", &["+nightly"])),
        ("c++, which compiles libFuzzer", has_program("c++", &[])),
        ("Linux on x86-64", cfg!(all(target_os = "linux", target_arch = "x86_64"))),
    ])
}

/// A command of Cargo that is installed by itself.
fn subcommand(name: &'static str) -> Vec<&'static str> {
    lacking([(name, has_program(name, &[]))])
}

fn deny_needs() -> Vec<&'static str> {
    subcommand("cargo-deny")
}

/// By `deny.toml`. Advisories are left to people, as their list comes from the network and changes by itself.
fn deny() -> Result<(), String> {
    finish(cargo().args(["deny", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"]))
}

fn machete_needs() -> Vec<&'static str> {
    subcommand("cargo-machete")
}

fn machete() -> Result<(), String> {
    finish(cargo().arg("machete"))
}

/// That it compiles there.
fn program_on(target: &str) -> Result<(), String> {
    finish(cargo().args(["check", "--quiet", "--target", target, "-p", "tilewright"]))
}

/// In a folder of its own: Cargo would wait for what builds for this machine, in whose folder scripts and macros are.
fn kernel_tests(target: &str) -> Command {
    let mut command = cargo();
    command.args(["test", "--release", "--target", target, "-p", "tilewright-kernels", "--lib"]);
    command.arg("--target-dir").arg(target_dir().join("emulated"));
    command
}

/// The same for the 64-bit ARM, optimised enough to run in time, and no more: code as it is shipped is looked at by
/// `asm`, and takes twice as long to make.
fn arm_tests() -> Command {
    let mut command = kernel_tests(ARM);
    command.args(["--config", "profile.release.package.tilewright-kernels.opt-level=1"]);
    command
}

/// An emulated CPU that has every instruction set of the architecture must be found to have them. Portable kernels are
/// tested without an emulator, whose floats take half of the time.
fn arm_with_everything() -> Result<(), String> {
    let rows = rows::read()?;
    let rows = rows.iter().filter(|row| row.target().is_none_or(|target| target == ARM));
    let names: Vec<&str> = rows.map(|row| row.name.as_str()).collect();
    let mut command = arm_tests();
    finish(command.env("TILEWRIGHT_EXPECT", names.join(", ")).args(["--", "--skip", "::scalar_"]))
}

/// Those without dot products, matrix products and half precision must be found to lack them. What
/// they have was tested above; each op is run again on few shapes.
fn arm_with_some() -> Result<(), String> {
    let older = [("cortex-a53", "scalar, neon"), ("cortex-a76", "scalar, neon, dotprod")];
    older.into_iter().try_for_each(|(cpu, has)| {
        let mut command = arm_tests();
        let runner = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
        command.env(runner, format!("qemu-aarch64 -cpu {cpu}")).env("TILEWRIGHT_EXPECT", has);
        finish(command.args(["--", "detect::", "small_shapes"]))
    })
}

fn wasm() -> Result<(), String> {
    let output = Command::new("node").arg("--version").output();
    let version = output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
    let major =
        version.ok().and_then(|v| v.trim_start_matches('v').split('.').next()?.parse().ok());
    let mut command = kernel_tests(WASM);
    // Older ones know a draft of relaxed SIMD, with other instruction codes.
    if major.unwrap_or(0) >= 20 {
        command.args(["--features", "wasm-relaxed"]);
    } else {
        println!("!!! ci: SKIPPED: relaxed SIMD, for lack of: node 20");
    }
    finish(&mut command)
}

/// The program there is outside the workspace, but builds into the folder of the other emulators.
fn cortex_m() -> Result<(), String> {
    let mut command = on_cortex_m(cargo())?;
    finish(command.args(["run", "--quiet", "--release"]))
}

/// What `clippy` finds in the program for a Cortex-M, where its target is installed.
///
/// # Errors
/// What it found.
pub(crate) fn port_lints(clippy: Command) -> Result<(), String> {
    if !has_target(CORTEX_M) {
        return Ok(());
    }
    finish(on_cortex_m(clippy)?.args(["--", "-D", "warnings"]))
}

fn on_cortex_m(mut cargo: Command) -> Result<Command, String> {
    let target = std::path::absolute(target_dir().join("emulated")).map_err(|e| e.to_string())?;
    cargo.current_dir("ports/cortex-m").env("CARGO_TARGET_DIR", target);
    Ok(cargo)
}

fn self_test() -> Result<(), String> {
    port::run(&["--self-test".into()])
}

/// Cargo of the nightly toolchain: not the one that runs us, which ignores `+nightly`.
pub(crate) fn nightly() -> Command {
    let mut command = Command::new("cargo");
    command.arg("+nightly").env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    command
}

/// The tests whose shapes are small enough for an interpreter: each op once with borders and tails, on
/// the scalar kernels, and its packing.
fn miri() -> Result<(), String> {
    let mut command = nightly();
    command.args(["miri", "test", "-p", "tilewright-kernels", "--lib", "--no-default-features"]);
    command.args(["--features", "std", "--"]).args(MIRI_TESTS);
    finish(command.env("MIRIFLAGS", "-Zmiri-disable-isolation"))
}

const MIRI_TESTS: [&str; 6] =
    ["pack::", "choice::", "detect::", "registry::", "small_shapes", "wrong_parameters"];

/// All rows of this CPU, with every load and store checked.
fn sanitizer() -> Result<(), String> {
    let mut command = nightly();
    command.args(["test", "--release", "--target", X86, "-p", "tilewright-kernels", "--lib"]);
    // Optimised enough to run the suite in time, and no more; in a folder of its own as flags differ.
    command.args(["--config", "profile.release.package.tilewright-kernels.opt-level=1"]);
    // What other tests, which are those of release builds, do not see: debug assertions, and overflows.
    command.args(["--config", "profile.release.debug-assertions=true"]);
    command.args(["--config", "profile.release.overflow-checks=true"]);
    command.arg("--target-dir").arg(target_dir().join("sanitizer"));
    // Rows that this CPU lacks would take as long to build, and not run.
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx512f") {
        command.args(["--no-default-features", "--features", "std,avxvnni"]);
    }
    finish(command.env("RUSTFLAGS", "-Zsanitizer=address"))
}

/// Faults on the NPU's way: nothing is used after its end, nothing is left behind. Without tests of time and
/// of much arithmetic.
fn adapter_leaks() -> Result<(), String> {
    // What is "possibly" lost are statics of Rust: pointers to counted values point into them.
    let leaks = "--leak-check=full --show-leak-kinds=definite,indirect \
                 --errors-for-leak-kinds=definite,indirect";
    let mut command = cargo();
    // Of the workspace, as its features are those of all other tests: nothing is built for these alone.
    command.args(["test", "--release", "--workspace", "--test", "rknn", "--test", "rknn_graph"]);
    command.args(["--", "--skip", "self_test", "--skip", "hangs", "--skip", "large"]);
    let runner = format!("valgrind --quiet --error-exitcode=9 {leaks}");
    finish(command.env("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER", runner))
}

/// What `cargo fuzz run` does, without that program: builds the targets with counters of their branches,
/// and lets each look for bad inputs, from the seeds on. What it finds it leaves beside the targets.
fn fuzz() -> Result<(), String> {
    let folder = std::path::absolute(target_dir().join("fuzz")).map_err(|e| e.to_string())?;
    let mut build = nightly();
    build.args(["build", "--quiet", "--manifest-path", "fuzz/Cargo.toml", "--target", X86]);
    build.arg("--target-dir").arg(&folder).env("RUSTFLAGS", FUZZ_FLAGS.join(" "));
    finish(&mut build)?;
    // Two at a time: each works alone, and machines have two processors at least.
    for pair in FUZZED.chunks(2) {
        let ended: Vec<_> = thread::scope(|scope| {
            let running = pair.iter().map(|target| scope.spawn(|| fuzz_target(&folder, target)));
            let running: Vec<_> = running.collect();
            let panicked = |_| Err("fuzz: a thread panicked".into());
            running.into_iter().map(|run| run.join().unwrap_or_else(panicked)).collect()
        });
        ended.into_iter().collect::<Result<(), String>>()?;
    }
    Ok(())
}

/// A minute of one target, from its seeds on.
fn fuzz_target(folder: &Path, (target, seeds): &(&str, &[&str])) -> Result<(), String> {
    let corpus = folder.join("corpus").join(target);
    std::fs::create_dir_all(&corpus).map_err(|e| format!("{}: {e}", corpus.display()))?;
    let mut run = Command::new(folder.join(X86).join("debug").join(target));
    let mut found = folder.join("found-").into_os_string();
    found.push(target);
    run.arg(corpus)
        .args(seeds.iter().map(|folder| format!("fuzz/seeds/{folder}")))
        .arg(prefixed("-artifact_prefix=", found));
    // The same numbers each time: a change is judged by what it did, not by luck.
    run.args(["-seed=1", "-max_total_time=60", "-timeout=20", "-rss_limit_mb=2048"]);
    finish(run.arg("-verbosity=0"))
}

/// Fuzz targets, and the folders of what they begin with.
const FUZZED: [(&str, &[&str]); 5] = [
    ("onnx", &["onnx"]),
    ("graph", &["graph"]),
    ("gguf", &["gguf"]),
    ("llm", &["llm"]),
    ("capi", &["onnx", "gguf"]),
];

/// Counters of edges, and of what is compared with what; panics on overflow, some speed.
const FUZZ_FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
    "-Copt-level=1",
    "-Cdebug-assertions=y",
];

fn prefixed(prefix: &str, rest: OsString) -> OsString {
    let mut all = OsString::from(prefix);
    all.push(rest);
    all
}

pub(crate) fn has_program(name: &str, args: &[&str]) -> bool {
    let mut command = Command::new(name);
    command.args(args).arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.env_remove("RUSTUP_TOOLCHAIN");
    command.status().is_ok_and(|s| s.success())
}
