//! `cargo xtask capi`: the C libraries as they are installed, and programs in C and C++ that use them.

mod more;
mod race;
mod size;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::install::Install;
use crate::legs::has_program;
use crate::{finish, target_dir};

pub(crate) use more::{firmware, firmware_needs, kernels_alone, on_arm};
pub(crate) use race::{races, races_needs};
pub(crate) use size::smallest;

/// What leaves the shared library, one symbol a line.
const SYMBOLS: &str = "tests/capi/symbols.txt";

/// The embedded models.
const NETWORK: &str = "models/textline/textline.onnx";
const LANGUAGE: &str = "models/manual/manual.gguf";

/// Programs, and what each is run with.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("network", &[NETWORK]),
    ("language", &[LANGUAGE]),
    ("kernels", &[]),
    ("contract", &[NETWORK]),
    ("threads", &[NETWORK, LANGUAGE]),
    ("opencl", &[NETWORK, LANGUAGE]),
    ("memory", &[NETWORK]),
    ("memory", &[LANGUAGE]),
];

/// Warnings that are errors in programs which include the header.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The guide, whose programs are built and run too.
const GUIDE: &str = "docs/c.md";

/// Names of the languages, and the standards that programs keep to.
const C: [&str; 2] = ["c", "-std=c99"];
const CPP: [&str; 2] = ["c++", "-std=c++17"];

/// Compilers with their C++.
const COMPILERS: [[&str; 2]; 2] = [["gcc", "g++"], ["clang", "clang++"]];

/// What the checks need, of what is not there.
pub(crate) fn needs() -> Vec<&'static str> {
    let programs = ["gcc", "g++", "clang", "nm", "objcopy", "pkg-config", "cmake", "valgrind"];
    programs.into_iter().filter(|name| !has_program(name, &[])).collect()
}

/// Where checks put what they make.
struct Place {
    folder: PathBuf,
    prefix: PathBuf,
}

/// Installs the libraries, compares the symbols of the shared one with the list, and runs programs with
/// both: as C99 and as C++17, by two compilers, found by pkg-config and by CMake, some of them under
/// valgrind. `--sizes [MODEL.onnx]` writes the table of sizes instead.
///
/// # Errors
/// The command that failed; symbols that differ.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let features = match args {
        [] => None,
        [flag] if flag == "--sizes" => return size::table(None),
        [flag, network] if flag == "--sizes" => return size::table(Some(network)),
        [flag] if flag == "--firmware" => return firmware(),
        [flag] if flag == "--kernels" => return kernels_alone(),
        [flag] if flag == "--smallest" => return smallest(),
        [flag] if flag == "--arm" => return on_arm(),
        [flag] if flag == "--races" => return races(),
        [flag, list] if flag == "--features" => Some(list.clone()),
        _ => return Err(format!("capi: unknown arguments {args:?}")),
    };
    let folder =
        std::path::absolute(target_dir().join("capi")).map_err(|e| format!("capi: {e}"))?;
    let prefix = folder.join("prefix");
    if prefix.exists() {
        fs::remove_dir_all(&prefix).map_err(|e| format!("{}: {e}", prefix.display()))?;
    }
    let mut install = Install::new(prefix.clone());
    if let Some(features) = features {
        install.features = features;
    }
    install.run()?;
    let place = Place { folder, prefix };
    symbols(&place.prefix.join("lib/libtilewright.so"))?;
    symbols_of_static(&place.prefix.join("lib/libtilewright.a"))?;
    place.programs()?;
    place.cmake()?;
    place.guide()?;
    place.twin()?;
    place.npu()?;
    place.examples()
}

impl Place {
    /// A compiler with the flags that pkg-config gives.
    fn compile(
        &self,
        source: &Path,
        compiler: &str,
        [language, standard]: [&str; 2],
        fixed: bool,
        more: &[&str],
    ) -> Result<PathBuf, String> {
        let name = source.file_stem().unwrap_or_default().to_string_lossy();
        let kind = if fixed { "static" } else { "shared" };
        let program = self.folder.join(format!("{name}-{compiler}-{kind}"));
        let mut command = Command::new(compiler);
        command.args(STRICT).args(["-O1", "-g", "-D_POSIX_C_SOURCE=200809L"]);
        command.args(["-x", language, standard]).arg(source).args(["-x", "none"]).args(more);
        if fixed {
            // Both libraries are there: the static one is to be taken, and the system's as they are.
            let flags = self.pkg_config(&["--cflags", "--libs", "--static"], "tilewright")?;
            let flags = flags.iter().map(|flag| match &flag[..] {
                "-ltilewright" => "-l:libtilewright.a",
                other => other,
            });
            command.args(flags).arg("-Wl,--gc-sections");
        } else {
            command.args(self.pkg_config(&["--cflags", "--libs"], "tilewright")?);
            command.arg(format!("-Wl,-rpath,{}", self.prefix.join("lib").display()));
            // The program itself creates threads and computes.
            command.args(["-lpthread", "-lm"]);
        }
        finish(command.arg("-o").arg(&program))?;
        Ok(program)
    }

    fn pkg_config(&self, args: &[&str], package: &str) -> Result<Vec<String>, String> {
        let path = self.prefix.join("lib/pkgconfig");
        let mut command = Command::new("pkg-config");
        let output = command.env("PKG_CONFIG_PATH", path).args(args).arg(package).output();
        let output = output.map_err(|e| format!("pkg-config: {e}"))?;
        if !output.status.success() {
            return Err(format!("pkg-config: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_whitespace().map(str::to_owned).collect())
    }

    /// Each program once with each library and compiler, the languages in turn; those that take long
    /// once.
    fn programs(&self) -> Result<(), String> {
        // Built for every run anew: what the driver's compiler writes to the error output must be seen.
        let kernels = self.folder.join("kernels-of-opencl");
        if kernels.exists() {
            fs::remove_dir_all(&kernels).map_err(|e| format!("{}: {e}", kernels.display()))?;
        }
        for (i, (name, args)) in PROGRAMS.iter().enumerate() {
            let source = PathBuf::from(format!("tests/capi/{name}.c"));
            for (j, [cc, cpp]) in COMPILERS.into_iter().enumerate() {
                for fixed in [true, false] {
                    if ["memory", "opencl"].contains(name) && (j > 0 || !fixed) {
                        continue;
                    }
                    // Of four builds two are C++: with each compiler and with each library one.
                    let plus = (i + j + usize::from(fixed)) % 2 == 0;
                    let (compiler, language) = if plus { (cpp, CPP) } else { (cc, C) };
                    let program = self.compile(&source, compiler, language, fixed, &[])?;
                    let mut command = Command::new(&program);
                    command.env("XDG_CACHE_HOME", &kernels).env("POCL_CACHE_DIR", &kernels);
                    silent(command.args(*args))?;
                }
            }
        }
        Ok(())
    }

    /// The same by a project that looks for the package.
    fn cmake(&self) -> Result<(), String> {
        let build = self.folder.join("cmake");
        let mut configure = Command::new("cmake");
        configure.args(["-S", "tests/capi", "-B"]).arg(&build);
        configure.arg(format!("-DCMAKE_PREFIX_PATH={}", self.prefix.display()));
        finish(configure.arg("--log-level=WARNING"))?;
        finish(Command::new("cmake").arg("--build").arg(&build).arg("--parallel"))?;
        for program in ["network_c", "network_c_static", "network_cpp", "network_cpp_static"] {
            finish(Command::new(build.join(program)).arg(NETWORK))?;
        }
        Ok(())
    }

    /// The programs of the guide.
    fn guide(&self) -> Result<(), String> {
        let guide = fs::read_to_string(GUIDE).map_err(|e| format!("{GUIDE}: {e}"))?;
        let blocks = guide.split("```c\n").skip(1).filter_map(|b| b.split("```").next());
        for (i, block) in blocks.enumerate() {
            let source = self.folder.join(format!("example{i}.c"));
            fs::write(&source, block).map_err(|e| format!("{}: {e}", source.display()))?;
            finish(&mut Command::new(self.compile(&source, "gcc", C, true, &[])?))?;
        }
        Ok(())
    }
}

/// Runs a program that has nothing to complain about: so if anything is written to its error output, the
/// library has done that.
fn silent(command: &mut Command) -> Result<(), String> {
    let output = command.stdout(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("{command:?}: {e}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true if said.is_empty() => Ok(()),
        true => Err(format!("{command:?} wrote an error: {said}")),
        false => Err(format!("failed ({}): {command:?}\n{said}", output.status)),
    }
}

/// What `nm` lists.
fn names(args: &[&str], library: &Path) -> Result<BTreeSet<String>, String> {
    let output = Command::new("nm").args(args).arg(library).output();
    let output = output.map_err(|e| format!("nm: {e}"))?;
    let found = String::from_utf8_lossy(&output.stdout);
    let lines = found.lines().map(str::trim).filter(|s| !s.is_empty() && !s.ends_with(':'));
    Ok(lines.map(str::to_owned).collect())
}

/// Only what the list names leaves the shared library.
fn symbols(library: &Path) -> Result<(), String> {
    let found = names(&["-D", "--defined-only", "-j"], library)?;
    let listed = fs::read_to_string(SYMBOLS).map_err(|e| format!("{SYMBOLS}: {e}"))?;
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>| {
        a.difference(b).map(|s| format!("\n  {s}")).collect::<String>()
    };
    let (more, less) = (only(&found, &listed), only(&listed, &found));
    if more.is_empty() && less.is_empty() && !found.is_empty() {
        return Ok(());
    }
    Err(format!(
        "capi: {SYMBOLS} differs from the library\nnot listed:{more}\nlisted, not there:{less}"
    ))
}

/// The static library has the same names for others, and no more.
fn symbols_of_static(library: &Path) -> Result<(), String> {
    let found = names(&["--defined-only", "--extern-only", "-j"], library)?;
    match found.iter().find(|name| !name.starts_with("tw_")) {
        None if found.len() > 40 => Ok(()),
        None => Err(format!("capi: {} has only {} names", library.display(), found.len())),
        Some(name) => Err(format!("capi: {} has the name {name}", library.display())),
    }
}
