//! The instruction gate: the hot loop of every microkernel holds its tile in registers.
//!
//! `cargo xtask asm [MODEL ...]` compiles the kernels crate to assembly for each CPU model that is
//! shipped for and looks, in each convolution and matrix product microkernel, at the innermost loop
//! with most FMA instructions. It fails if that loop loads or stores a vector on the stack, or if
//! its FMAs are not a multiple of tile rows x pixels x vectors x unroll.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::rows::{self, Row};
use crate::{has_target, target_dir};

/// A CPU model to compile for.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
    /// `None` is the target's baseline, which is what is shipped.
    pub(crate) cpu: Option<&'static str>,
}

const X86: &str = "x86_64-unknown-linux-gnu";
const ARM: &str = "aarch64-unknown-linux-gnu";
const MODELS: [Model; 5] = [
    Model { name: "x86-64", target: X86, cpu: None },
    Model { name: "x86-64-v3", target: X86, cpu: Some("x86-64-v3") },
    Model { name: "x86-64-v4", target: X86, cpu: Some("x86-64-v4") },
    Model { name: "cortex-a55", target: ARM, cpu: Some("cortex-a55") },
    Model { name: "cortex-a76", target: ARM, cpu: Some("cortex-a76") },
];

/// The model that stands for the baseline of a target, or, without a baseline among the models, for
/// its first.
pub(crate) fn baseline(target: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.target == target)
}

/// Runs the gate for the models named in `args`, or for all.
///
/// # Errors
///
/// A message that lists each failing kernel, or says what could not be built.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if let Some(unknown) = args.iter().find(|arg| MODELS.iter().all(|m| m.name != **arg)) {
        let names: Vec<&str> = MODELS.iter().map(|m| m.name).collect();
        return Err(format!("asm: unknown model {unknown} (known: {})", names.join(", ")));
    }
    let rows = rows::read()?;
    let mut failures = Vec::new();
    for model in MODELS.iter().filter(|m| args.is_empty() || args.iter().any(|arg| arg == m.name)) {
        if !has_target(model.target) {
            println!("asm: {}: skipped, target {} is not installed", model.name, model.target);
            continue;
        }
        let text = assembly(model)?;
        let kernels = kernels(&text);
        let found: Vec<String> = kernels.iter().filter_map(|kernel| check(kernel, &rows)).collect();
        println!(
            "asm: {}: {} kernels, {} fail; of the loops of main tiles at least {:.0} % are FMA",
            model.name,
            kernels.len(),
            found.len(),
            least_share(&kernels)
        );
        if kernels.is_empty() {
            failures.push(format!("{}: no kernels found", model.name));
        }
        failures.extend(found.iter().map(|failure| format!("{}: {failure}", model.name)));
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("asm:\n  {}", failures.join("\n  "))) }
}

/// The least share of multiply-adds in the hot loop of a main tile, one of at least twelve vectors,
/// in percent.
fn least_share(kernels: &[Kernel<'_>]) -> f64 {
    let main = kernels.iter().filter(|kernel| {
        kernel.tile.split('x').filter_map(|n| n.parse::<usize>().ok()).product::<usize>() >= 12
    });
    let loops = main.filter_map(Kernel::hot_loop);
    loops.map(|hot| 100.0 * hot.fmas as f64 / hot.instructions as f64).fold(100.0, f64::min)
}

/// The kernels crate as assembly.
pub(crate) fn assembly(model: &Model) -> Result<String, String> {
    let dir = target_dir().join("asm").join(model.name);
    let deps = dir.join(model.target).join("release/deps");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "rustc",
        "--quiet",
        "--release",
        "-p",
        "tilewright-kernels",
        "--lib",
        "--target",
        model.target,
    ]);
    cargo.arg("--target-dir").arg(&dir).args([
        "--",
        "--emit",
        "asm",
        "-C",
        "codegen-units=1",
        "-C",
        "debuginfo=0",
    ]);
    if let Some(cpu) = model.cpu {
        cargo.args(["-C", &format!("target-cpu={cpu}")]);
    }
    let status = cargo.status().map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("asm: the kernels do not build for {}", model.name));
    }
    // Older ones are of builds with other flags; Cargo does not write a listing again that is fresh.
    let written = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    let newest = listings(&deps).into_iter().max_by_key(written);
    let path = newest.ok_or_else(|| format!("asm: no listing in {}", deps.display()))?;
    fs::read_to_string(&path).map_err(|e| format!("asm: {}: {e}", path.display()))
}

/// The assembly listings of the kernels crate in a folder.
fn listings(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let ours = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("tilewright_kernels-") && name.ends_with(".s")
    };
    paths.filter(ours).collect()
}

/// A microkernel in a listing.
pub(crate) struct Kernel<'a> {
    /// `conv_tile`, `matmul_tile` or `dot_tile`.
    pub(crate) op: &'a str,
    /// Line of the table, for instance `avx2_f32`.
    pub(crate) row: &'a str,
    /// Rows, pixels and vectors, or the last two; of a row of a product the partial sums and vectors.
    pub(crate) tile: &'a str,
    /// Whether its hot loop has one reduction step, whatever the line of the table says.
    single: bool,
    lines: Vec<&'a str>,
}

/// The identifiers of a mangled path: `_ZN` and then each with its length in front.
fn path(symbol: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = symbol.strip_prefix("_ZN").unwrap_or("");
    while let Some(digits) = rest.find(|c: char| !c.is_ascii_digit()).filter(|&n| n > 0) {
        let Ok(len) = rest[..digits].parse::<usize>() else { break };
        let Some(part) = rest.get(digits..digits + len) else { break };
        parts.push(part);
        rest = &rest[digits + len..];
    }
    parts
}

/// All microkernels but those of the scalar rows, which have no FMA.
pub(crate) fn kernels(text: &str) -> Vec<Kernel<'_>> {
    let mut kernels = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(symbol) = line.strip_suffix(':') else { continue };
        let parts = path(symbol);
        let Some(at) =
            parts.iter().position(|p| ["conv_tile", "matmul_tile", "dot_tile"].contains(p))
        else {
            continue;
        };
        let (Some(row), Some(name)) = (parts.get(at + 1), parts.get(at + 2)) else { continue };
        let (tile, single) = match (name.strip_prefix("tile_"), name.strip_prefix("sums_")) {
            (Some(tile), _) => (tile, false),
            (_, Some(tile)) => (tile, true),
            _ => continue,
        };
        if row.starts_with("scalar") {
            continue;
        }
        let body = lines.by_ref().take_while(|line| !line.starts_with(".Lfunc_end")).collect();
        kernels.push(Kernel { op: parts[at], row, tile, single, lines: body });
    }
    kernels
}

/// What the hot loop of a kernel, the innermost one with most multiply-adds, consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HotLoop {
    pub(crate) fmas: usize,
    pub(crate) instructions: usize,
    /// Vectors loaded from or stored to the stack.
    pub(crate) stack: usize,
}

impl Kernel<'_> {
    /// Its hot loop, if it has a loop.
    pub(crate) fn hot_loop(&self) -> Option<HotLoop> {
        let measured = inner_loops(&self.lines).into_iter().map(|body| HotLoop {
            fmas: body.iter().filter(|line| is_fma(line)).count(),
            instructions: body.iter().filter(|line| is_instruction(line)).count(),
            stack: body.iter().filter(|line| is_vector_on_stack(line)).count(),
        });
        measured.max_by_key(|hot| hot.fmas)
    }
}

/// A multiply-add or dot product.
fn is_fma(line: &str) -> bool {
    let line = line.trim_start();
    let line = line.strip_prefix("{vex}").unwrap_or(line).trim_start();
    let names = [
        "vfmadd",
        "vpdpbusd",
        "vpmaddwd",
        "vdpbf16ps", // x86
        "fmla",
        "smlal",
        "sdot",
        "usdot",
        "sudot",
        "bfdot",
    ];
    names.iter().any(|name| line.starts_with(name))
}

/// Neither a label nor a directive nor a comment.
fn is_instruction(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.ends_with(':') && !line.starts_with(['.', '#', '/', '@'])
}

/// What is wrong with a kernel.
fn check(kernel: &Kernel<'_>, rows: &[Row]) -> Option<String> {
    let name = format!("{} {} {}", kernel.op, kernel.row, kernel.tile);
    let line = rows.iter().flat_map(|row| &row.lines).find(|line| line.id == kernel.row);
    let unroll = line.and_then(|line| line.number("unroll"));
    let tile: Option<usize> = kernel.tile.split('x').map(|n| n.parse::<usize>().ok()).product();
    let (Some(unroll), Some(tile)) = (unroll, tile) else {
        return Some(format!("{name}: not a line of the table"));
    };
    let unroll = if kernel.single { 1 } else { unroll };
    let Some(hot) = kernel.hot_loop() else { return Some(format!("{name}: no loop")) };
    let (count, stack) = (hot.fmas, hot.stack);
    if count == 0 || count % (tile * unroll) != 0 {
        return Some(format!("{name}: {count} FMA in the hot loop, expected {}", tile * unroll));
    }
    (stack > 0).then(|| format!("{name}: {stack} vector accesses to the stack in the hot loop"))
}

/// Whether a line loads or stores a vector register on the stack.
fn is_vector_on_stack(line: &str) -> bool {
    let line = line.trim_start();
    if line.starts_with('v') {
        return line.contains("(%rsp");
    }
    let memory = ["ldr", "str", "ldp", "stp", "ldur", "stur", "ld1", "st1"];
    let mut words = line.split_whitespace();
    let (mnemonic, register) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    memory.contains(&mnemonic) && line.contains("[sp") && register.starts_with(['q', 'v', 'd', '{'])
}

/// The loops that contain no other: from a label to the jump back to it.
fn inner_loops<'a, 'b>(lines: &'b [&'a str]) -> Vec<&'b [&'a str]> {
    let label_of = |line: &'a str| line.strip_suffix(':').filter(|name| name.starts_with(".LBB"));
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for (end, line) in lines.iter().enumerate() {
        let Some(target) = line.split(|c: char| c.is_whitespace() || c == ',').next_back() else {
            continue;
        };
        if !target.starts_with(".LBB") || target.ends_with(':') {
            continue;
        }
        if let Some(start) = lines[..end].iter().position(|line| label_of(line) == Some(target)) {
            loops.push((start, end));
        }
    }
    let inner = |&(start, end): &(usize, usize)| {
        !loops.iter().any(|&(s, e)| (s, e) != (start, end) && s >= start && e <= end)
    };
    loops.iter().filter(|range| inner(range)).map(|&(start, end)| &lines[start..=end]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "Avx2 = avx2 over Scalar, if all(), [] {\navx2_f32: tile_avx2_f32, f32, unroll 2;\n}\n";

    fn listing(body: &str) -> String {
        let symbol =
            "_ZN18tilewright_kernels8template9conv_tile8avx2_f3210tile_1x1x217h0123456789abcdefE";
        format!("{symbol}:\n.LBB0_1:\n{body}\tjne\t.LBB0_1\n.Lfunc_end0:\n")
    }

    fn verdict(body: &str) -> Option<String> {
        let text = listing(body);
        let kernels = kernels(&text);
        assert_eq!((kernels.len(), kernels[0].row, kernels[0].tile), (1, "avx2_f32", "1x1x2"));
        check(&kernels[0], &rows::parse(TABLE))
    }

    #[test]
    fn a_clean_loop_passes() {
        assert_eq!(verdict(&"\tvfmadd231ps\t%ymm0, %ymm1, %ymm2\n".repeat(4)), None);
    }

    #[test]
    fn a_spill_or_a_wrong_count_is_named() {
        let fma = "\tvfmadd231ps\t%ymm0, %ymm1, %ymm2\n";
        let spill = format!("{}\tvmovups\t%ymm0, 32(%rsp)\n", fma.repeat(4));
        assert!(verdict(&spill).unwrap().contains("1 vector accesses to the stack"));
        assert!(verdict(&fma.repeat(3)).unwrap().contains("3 FMA in the hot loop, expected 4"));
    }

    #[test]
    fn arm_stack_accesses_are_seen() {
        assert!(is_vector_on_stack("\tldr\tq0, [sp, #16]"));
        assert!(is_vector_on_stack("\tstp\tq0, q1, [sp]"));
        assert!(!is_vector_on_stack("\tldr\tx0, [sp, #16]"));
        assert!(!is_vector_on_stack("\tldr\tq0, [x1]"));
    }
}
