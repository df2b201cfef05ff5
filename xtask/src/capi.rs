//! `cargo xtask capi`: the C libraries, and programs in C and C++ that use them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::legs::has_program;
use crate::{cargo, finish, target_dir};

/// What the libraries are built with.
const FEATURES: &str = "all-isas,llm,capi";

/// What leaves the shared library, one symbol a line.
const SYMBOLS: &str = "tests/capi/symbols.txt";

/// Programs, and the model that each is run with.
const PROGRAMS: [(&str, &str); 2] =
    [("network", "models/textline/textline.onnx"), ("language", "models/manual/manual.gguf")];

/// Warnings that are errors in programs which include the header.
const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The guide, whose programs are built and run too.
const GUIDE: &str = "docs/c.md";

/// Compilers, the names of their languages, and the standards that programs keep to.
const C: [&str; 3] = ["cc", "c", "-std=c99"];
const CPP: [&str; 3] = ["c++", "c++", "-std=c++17"];

/// What the checks need, of what is not there.
pub(crate) fn needs() -> Vec<&'static str> {
    ["cc", "c++", "nm"].into_iter().filter(|name| !has_program(name, &[])).collect()
}

/// Builds the libraries, compares the symbols of the shared one with the list, and runs the programs
/// with both, as C99 and as C++17.
///
/// # Errors
/// The command that failed; symbols that differ.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if !args.is_empty() {
        return Err(format!("capi: unknown arguments {args:?}"));
    }
    let soname = "-C link-arg=-Wl,-soname,libtilewright.so.0";
    let mut build = cargo();
    build.args(["rustc", "--quiet", "--release", "-p", "tilewright", "--lib"]);
    build.args(["--no-default-features", "--features", FEATURES]);
    build.args(["--crate-type", "staticlib,cdylib", "--"]).args(soname.split(' '));
    finish(&mut build)?;
    let built = target_dir().join("release");
    let folder = target_dir().join("capi");
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    // The name by which programs ask for the shared library.
    let shared = folder.join("libtilewright.so.0");
    fs::copy(built.join("libtilewright.so"), &shared).map_err(|e| format!("capi: {e}"))?;
    symbols(&shared)?;
    let libraries = [built.join("libtilewright.a"), shared];
    for (name, model) in PROGRAMS {
        let source = PathBuf::from(format!("tests/capi/{name}.c"));
        for language in [C, CPP] {
            for library in &libraries {
                let program = compile(&source, language, library, &folder)?;
                finish(Command::new(&program).arg(model))?;
            }
        }
    }
    let guide = fs::read_to_string(GUIDE).map_err(|e| format!("{GUIDE}: {e}"))?;
    let blocks = guide.split("```c\n").skip(1).filter_map(|b| b.split("```").next());
    for (i, block) in blocks.enumerate() {
        let source = folder.join(format!("example{i}.c"));
        fs::write(&source, block).map_err(|e| format!("{}: {e}", source.display()))?;
        finish(&mut Command::new(compile(&source, C, &libraries[0], &folder)?))?;
    }
    Ok(())
}

fn compile(
    source: &Path,
    [compiler, language, standard]: [&str; 3],
    library: &Path,
    folder: &Path,
) -> Result<PathBuf, String> {
    let name = source.file_stem().unwrap_or_default().to_string_lossy();
    let program = folder.join(format!("{name}-{language}"));
    let mut command = Command::new(compiler);
    command.args(STRICT).args(["-O1", "-D_POSIX_C_SOURCE=200809L", "-Iinclude"]);
    command.args(["-x", language, standard]).arg(source).args(["-x", "none"]).arg(library);
    let here = std::path::absolute(folder).map_err(|e| format!("capi: {e}"))?;
    command.arg(format!("-Wl,-rpath,{}", here.display()));
    command.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    finish(&mut command)?;
    Ok(program)
}

/// Only what the list names leaves the shared library.
fn symbols(library: &Path) -> Result<(), String> {
    let output = Command::new("nm").args(["-D", "--defined-only", "-j"]).arg(library).output();
    let output = output.map_err(|e| format!("nm: {e}"))?;
    let found = String::from_utf8_lossy(&output.stdout);
    let found: BTreeSet<&str> = found.lines().map(str::trim).filter(|s| !s.is_empty()).collect();
    let listed = fs::read_to_string(SYMBOLS).map_err(|e| format!("{SYMBOLS}: {e}"))?;
    let listed: BTreeSet<&str> = listed.lines().collect();
    let only = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| {
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
