//! `cargo xtask capi --sizes`: the table of sizes and times in the guide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GUIDE, NETWORK, STRICT};
use crate::install::{Install, kernels_library};
use crate::{finish, target_dir};

/// What libraries are built with, and what for.
const SETS: [(&str, &str); 3] = [
    ("avx2", "networks, one instruction set"),
    ("avx2,llm", "networks and language models, one instruction set"),
    ("all-isas,llm,rknn", "all"),
];

/// Lines of the guide between which the table stands.
const BEGIN: &str = "<!-- made by `cargo xtask capi --sizes` -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Builds each library, links the same small program with it, and writes bytes and times into the guide.
///
/// # Errors
/// The command that failed.
pub(super) fn table() -> Result<(), String> {
    let folder = std::path::absolute(target_dir().join("capi/sizes"));
    let folder = folder.map_err(|e| format!("capi: {e}"))?;
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let empty = folder.join("empty.c");
    fs::write(&empty, "int main(void) { return 0; }\n").map_err(|e| format!("capi: {e}"))?;
    let nothing = linked(&empty, None, &folder)?;
    let mut rows = String::from(
        "| features of the library | program | adds to it, KiB | first result, ms |\n|---|---|---|---|\n",
    );
    let kernels = kernels_library("library,alloc,avx2", None)?;
    let size = linked(Path::new("examples/c/matmul.c"), Some(&kernels), &folder)? - nothing;
    rows += &format!("| kernels only, `avx2` | `matmul.c` | {} | |\n", size.div_ceil(1024));
    for (features, what) in SETS {
        let mut install = Install::new(folder.join("prefix"));
        install.features = features.into();
        install.run()?;
        let library = install.prefix.join("lib/libtilewright.a");
        let size = linked(Path::new("tests/capi/start.c"), Some(&library), &folder)? - nothing;
        let time = first_result(&folder.join("start"), &[NETWORK])?;
        rows += &format!(
            "| `{features}`: {what} | `start.c` | {} | {time:.1} |\n",
            size.div_ceil(1024)
        );
    }
    let guide = fs::read_to_string(GUIDE).map_err(|e| format!("{GUIDE}: {e}"))?;
    let (before, rest) = guide.split_once(BEGIN).ok_or(format!("{GUIDE} has no place for it"))?;
    let (_, after) = rest.split_once(END).ok_or(format!("{GUIDE} has no end of the table"))?;
    fs::write(GUIDE, format!("{before}{BEGIN}{rows}{END}{after}"))
        .map_err(|e| format!("{GUIDE}: {e}"))
}

/// Bytes of a program, without its symbols.
pub(super) fn linked(
    source: &Path,
    library: Option<&PathBuf>,
    folder: &Path,
) -> Result<u64, String> {
    let program = folder.join(source.file_stem().unwrap_or_default());
    let mut command = Command::new("cc");
    command.args(STRICT).args(["-O1", "-s", "-std=c99", "-Iinclude"]);
    command.arg("-D_POSIX_C_SOURCE=200809L").arg(source).args(library);
    command.args(["-Wl,--gc-sections", "-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    finish(&mut command)?;
    let data = fs::metadata(&program).map_err(|e| format!("{}: {e}", program.display()))?;
    Ok(data.len())
}

/// The least of the times that a program says, in milliseconds.
fn first_result(program: &Path, args: &[&str]) -> Result<f64, String> {
    let mut least = f64::MAX;
    for _ in 0..9 {
        let output = Command::new(program).args(args).output();
        let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = text.trim().parse::<f64>().ok().filter(|_| output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        least = least.min(said.ok_or(format!("{}: {text}{error}", program.display()))?);
    }
    Ok(least)
}
