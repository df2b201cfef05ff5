//! `cargo xtask capi --sizes`: the table of sizes and times in the guide.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{GUIDE, NETWORK, STRICT};
use crate::install::{Install, kernels_library};
use crate::{finish, target_dir};

/// A library: its features, whether its profile is the small one, and what it is for.
const LIBRARIES: [(&str, bool, &str); 3] = [
    (
        "avx2,vector-only,few-kernels",
        true,
        "usual networks of pictures, machines with AVX2, `--small`",
    ),
    ("ops-all,avx2", true, "all networks, `--small`"),
    ("ops-all,all-isas,llm,opencl,rknn", false, "all"),
];

/// What the first of them may add to a program.
const SMALLEST_BYTES: u64 = 1 << 20;

/// Lines of the guide between which the table stands.
const BEGIN: &str = "<!-- made by `cargo xtask capi --sizes` -->\n";
const END: &str = "<!-- end of the table -->\n";

/// Builds each library, links the same small program with it, and writes bytes and times into the guide:
/// those of the text reader, and of one more network if its file is given. What is read in a picture with it
/// must be what is written there.
///
/// # Errors
/// The command that failed.
pub(super) fn table(more: Option<&str>) -> Result<(), String> {
    let (folder, nothing) = place()?;
    let networks: Vec<&str> = [NETWORK].into_iter().chain(more).collect();
    let mut rows = String::from("| features of the library | program | adds to it, KiB |");
    for network in &networks {
        let name = Path::new(network).file_stem().unwrap_or_default().to_string_lossy();
        rows += &format!(" first result of {name}, ms |");
    }
    rows += &format!("\n|---|---|---|{}\n", "---|".repeat(networks.len()));
    let kernels = kernels_library("library,alloc,avx2", None)?;
    let size = linked(Path::new("examples/c/matmul.c"), Some(&kernels), &folder)? - nothing;
    let times = " |".repeat(networks.len());
    rows += &format!("| `avx2`: kernels only | `matmul.c` | {} |{times}\n", size.div_ceil(1024));
    for (features, small, what) in LIBRARIES {
        let library = built(features, small, &folder)?;
        let size = linked(Path::new("tests/capi/start.c"), Some(&library), &folder)? - nothing;
        reads(&library, &folder)?;
        rows += &format!("| `{features}`: {what} | `start.c` | {} |", size.div_ceil(1024));
        for network in &networks {
            let time = first_result(&folder.join("start"), &[network])?;
            rows += &format!(" {time:.1} |");
        }
        rows.push('\n');
        // Now, as the next build may take many minutes, or fail.
        write(&rows)?;
    }
    print!("{rows}");
    Ok(())
}

/// That the smallest library for networks stays small.
///
/// # Errors
/// The command that failed, or by how much it is too large.
pub(crate) fn smallest() -> Result<(), String> {
    let (folder, nothing) = place()?;
    let [(features, small, _), ..] = LIBRARIES;
    let library = built(features, small, &folder)?;
    let added = linked(Path::new("tests/capi/start.c"), Some(&library), &folder)? - nothing;
    println!("the smallest library for networks adds {} KiB to a program", added.div_ceil(1024));
    if added > SMALLEST_BYTES {
        return Err(format!("capi: it adds {added} bytes, more than {SMALLEST_BYTES}"));
    }
    reads(&library, &folder)
}

/// A folder for programs, and the bytes of one that does nothing.
fn place() -> Result<(PathBuf, u64), String> {
    let folder = std::path::absolute(target_dir().join("capi/sizes"));
    let folder = folder.map_err(|e| format!("capi: {e}"))?;
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let empty = folder.join("empty.c");
    fs::write(&empty, "int main(void) { return 0; }\n").map_err(|e| format!("capi: {e}"))?;
    let nothing = linked(&empty, None, &folder)?;
    Ok((folder, nothing))
}

/// Builds a library with these features.
fn built(features: &str, small: bool, folder: &Path) -> Result<PathBuf, String> {
    let mut install = Install::new(folder.join("prefix"));
    install.features = features.into();
    install.small = small;
    install.run()?;
    Ok(install.prefix.join("lib/libtilewright.a"))
}

/// Puts the table into the guide, in place of the one that was there.
fn write(rows: &str) -> Result<(), String> {
    let guide = fs::read_to_string(GUIDE).map_err(|e| format!("{GUIDE}: {e}"))?;
    let (before, rest) = guide.split_once(BEGIN).ok_or(format!("{GUIDE} has no place for it"))?;
    let (_, after) = rest.split_once(END).ok_or(format!("{GUIDE} has no end of the table"))?;
    fs::write(GUIDE, format!("{before}{BEGIN}{rows}{END}{after}"))
        .map_err(|e| format!("{GUIDE}: {e}"))
}

/// That the text reader with this library reads what its example shows.
fn reads(library: &PathBuf, folder: &Path) -> Result<(), String> {
    linked(Path::new("examples/c/read_text.c"), Some(library), folder)?;
    let mut program = Command::new(folder.join("read_text"));
    let output = program.args([NETWORK, "examples/c/data/line.pgm"]).output();
    let output = output.map_err(|e| format!("read_text: {e}"))?;
    let (said, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match said.contains(super::more::LINE) {
        true => Ok(()),
        false => Err(format!("read_text: {said}{error}")),
    }
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

/// The median of the times that a program says, in milliseconds. Its files are in memory after the first.
fn first_result(program: &Path, args: &[&str]) -> Result<f64, String> {
    let mut times = Vec::new();
    for _ in 0..10 {
        let output = Command::new(program).args(args).output();
        let output = output.map_err(|e| format!("{}: {e}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said = text.trim().parse::<f64>().ok().filter(|_| output.status.success());
        let error = String::from_utf8_lossy(&output.stderr);
        times.push(said.ok_or(format!("{}: {text}{error}", program.display()))?);
    }
    times[1..].sort_by(f64::total_cmp);
    Ok(times[5])
}
