//! The instruction gate: the hot loop of every microkernel holds its tile in registers.
//!
//! `cargo xtask asm [MODEL ...]` compiles the kernels crate to assembly for each CPU model that is
//! shipped for and looks, in each microkernel, at the innermost loop with most FMA instructions. It
//! fails if that loop loads or stores a vector on the stack, if its FMAs are not a multiple of those of
//! a step of the tile, or, where an instruction per multiply-add is what limits the machine, if too few
//! of a main tile's instructions are FMAs. What is expected of which kernel: `asm/rules.rs`. A call of an
//! intrinsic fails as well: it is an instruction only where a function names its instruction set.

mod page;
mod rules;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::rows;
use crate::{has_target, target_dir};

/// A CPU model to compile for.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    pub(crate) target: &'static str,
    /// `None` is the target's baseline, which is what is shipped.
    pub(crate) cpu: Option<&'static str>,
    /// How much the compiler optimises: 3 as in release builds, 2 as in packages and small C libraries.
    level: &'static str,
}

impl Model {
    const fn of(name: &'static str, target: &'static str, cpu: Option<&'static str>) -> Self {
        Self { name, target, cpu, level: "3" }
    }
}

/// How packages of the program are built.
pub(crate) const PACKAGED: &str = "x86-64-packaged";

const X86: &str = "x86_64-unknown-linux-gnu";
const ARM: &str = "aarch64-unknown-linux-gnu";
const MODELS: [Model; 9] = [
    Model::of("x86-64", X86, None),
    Model::of("x86-64-v3", X86, Some("x86-64-v3")),
    Model::of("x86-64-v4", X86, Some("x86-64-v4")),
    Model::of("aarch64", ARM, None),
    Model::of("cortex-a55", ARM, Some("cortex-a55")),
    Model::of("cortex-a76", ARM, Some("cortex-a76")),
    Model::of("neoverse-n1", ARM, Some("neoverse-n1")),
    Model::of("apple-m1", ARM, Some("apple-m1")),
    Model { name: PACKAGED, target: X86, cpu: None, level: "2" },
];

/// The model that stands for the baseline of a target, or, without a baseline among the models, for
/// its first.
pub(crate) fn baseline(target: &str) -> Option<&'static Model> {
    MODELS.iter().find(|model| model.target == target)
}

/// Runs the gate for the models named in `args`, or for all. `--page` writes the loop that the book shows.
///
/// # Errors
///
/// A message that lists each failing kernel, or says what could not be built.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if args.first().is_some_and(|arg| arg == "--page") {
        return page::write(&args[1..]);
    }
    if let Some(unknown) = args.iter().find(|arg| MODELS.iter().all(|m| m.name != **arg)) {
        let names: Vec<&str> = MODELS.iter().map(|m| m.name).collect();
        return Err(format!("asm: unknown model {unknown} (known: {})", names.join(", ")));
    }
    let rows = rows::read()?;
    let asked = |m: &&Model| args.is_empty() || args.iter().any(|arg| arg == m.name);
    let (models, lacking): (Vec<&Model>, Vec<&Model>) =
        MODELS.iter().filter(asked).partition(|model| has_target(model.target));
    for model in lacking {
        println!("asm: {}: skipped, target {} is not installed", model.name, model.target);
    }
    let mut failures = Vec::new();
    // Two at a time: one compilation, of kernels as one part of code, keeps one processor busy.
    for pair in models.chunks(2) {
        let texts: Vec<_> = thread::scope(|scope| {
            let running: Vec<_> = pair.iter().map(|m| scope.spawn(|| assembly(m))).collect();
            let panicked = |_| Err("asm: a thread panicked".into());
            running.into_iter().map(|run| run.join().unwrap_or_else(panicked)).collect()
        });
        for (model, text) in pair.iter().zip(texts) {
            failures.extend(judge(model, &text?, &rows));
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(format!("asm:\n  {}", failures.join("\n  "))) }
}

/// What is wrong with the kernels of a listing; prints how many there are.
fn judge(model: &Model, text: &str, rows: &[rows::Row]) -> Vec<String> {
    let kernels = kernels(text);
    let found: Vec<String> =
        kernels.iter().filter_map(|kernel| rules::check(kernel, model.target, rows)).collect();
    println!(
        "asm: {}: {} kernels, {} fail; of the loops of main tiles of products at least {:.0} % are FMA",
        model.name,
        kernels.len(),
        found.len(),
        least_share(&kernels, model.target)
    );
    let mut failures = Vec::new();
    if kernels.is_empty() {
        failures.push(format!("{}: no kernels found", model.name));
    }
    if model.name == page::MODEL {
        failures.extend(page::check(&kernels));
    }
    failures.extend(found.iter().map(|failure| format!("{}: {failure}", model.name)));
    failures.extend(called_intrinsics(text).into_iter().map(|(function, times)| {
        format!("{}: {function} is called {times} times and no instruction", model.name)
    }));
    failures
}

/// Functions of `core::arch` that are called, and how often.
fn called_intrinsics(text: &str) -> BTreeMap<&str, usize> {
    let mut found = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains("core_arch")) {
        let mut words = line.split_whitespace();
        let (first, function) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        if ["call", "callq", "jmp", "bl", "b"].contains(&first) {
            *found.entry(function).or_default() += 1;
        }
    }
    found
}

/// The least share of multiply-adds in the hot loop of a main tile, in percent.
fn least_share(kernels: &[Kernel<'_>], target: &str) -> f64 {
    let main = kernels.iter().filter(|kernel| kernel.kind.is_none() && kernel.is_main(target));
    main.filter_map(Kernel::hot_loop).map(HotLoop::share).fold(100.0, f64::min)
}

/// The kernels crate as assembly.
pub(crate) fn assembly(model: &Model) -> Result<String, String> {
    let dir = target_dir().join("asm").join(model.name);
    let deps = dir.join(model.target).join("release/deps");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", model.level);
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
    // The lints of CI see one instruction set: here are all of an architecture, whose warnings fail, too.
    cargo.arg("--target-dir").arg(&dir).args(["--", "--emit", "asm", "-D", "warnings"]);
    cargo.args(["-C", "codegen-units=1", "-C", "debuginfo=0"]);
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
    /// `conv_tile`, `matmul_tile`, `dot_tile`, `block`, or the file of kernels without a tile.
    pub(crate) op: &'a str,
    /// Line of the table, for instance `avx2_f32`.
    pub(crate) row: &'a str,
    /// Rows, pixels and vectors, or the last two; of a row of a product the partial sums and vectors; of
    /// blocks columns and vectors. Of others the name of the function.
    pub(crate) tile: &'a str,
    /// Of blocks the kind of weights; the function where there is no tile.
    pub(crate) kind: Option<&'a str>,
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
        let Some((op, row, tile, kind)) = rules::name(&path(symbol)) else { continue };
        if row.starts_with("scalar") {
            continue;
        }
        let (tile, single) = tile.strip_prefix("sums_").map_or((tile, false), |tile| (tile, true));
        let body = lines.by_ref().take_while(|line| !line.starts_with(".Lfunc_end")).collect();
        kernels.push(Kernel { op, row, tile, kind, single, lines: body });
    }
    kernels
}

/// What the hot loop of a kernel, the innermost one with most multiply-adds, consists of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HotLoop {
    /// Multiply-adds and dot products; a product of matrices counts as the two that it replaces.
    pub(crate) fmas: usize,
    pub(crate) instructions: usize,
    /// Vectors loaded from or stored to the stack.
    pub(crate) stack: usize,
    /// Those of them that are stored.
    pub(crate) stored: usize,
}

impl HotLoop {
    /// Multiply-adds per instruction, in percent.
    pub(crate) fn share(self) -> f64 {
        100.0 * self.fmas as f64 / self.instructions.max(1) as f64
    }
}

impl Kernel<'_> {
    /// Vectors of the tile, if its name says so.
    fn vectors(&self) -> Option<usize> {
        self.tile.split('x').map(|n| n.parse::<usize>().ok()).product()
    }

    /// Whether it is a tile that plans choose wherever the image or matrix is large enough: one that
    /// fills at least half of the registers, three quarters where there may be 16 only.
    fn is_main(&self, target: &str) -> bool {
        let least = if target == ARM { 16 } else { 12 };
        !self.single && self.vectors().is_some_and(|vectors| vectors >= least)
    }

    /// Its hot loop, if it has a loop.
    pub(crate) fn hot_loop(&self) -> Option<HotLoop> {
        self.hot_lines().map(|(hot, _)| hot)
    }

    /// Its hot loop, and the lines of that.
    fn hot_lines(&self) -> Option<(HotLoop, &[&str])> {
        // Elsewhere `x29` is a register as any other.
        let framed = self.lines.iter().any(|line| line.contains("x29, sp"));
        let on_stack = |line: &&&str| is_vector_on_stack(line, framed);
        let measured = inner_loops(&self.lines).into_iter().map(|body| {
            let hot = HotLoop {
                fmas: body.iter().map(|line| fmas(line)).sum(),
                instructions: body.iter().filter(|line| is_instruction(line)).count(),
                stack: body.iter().filter(on_stack).count(),
                stored: body.iter().filter(on_stack).filter(|line| is_store(line)).count(),
            };
            (hot, body)
        });
        // Of loops with as many the densest: others prepare or finish.
        measured.max_by_key(|(hot, _)| (hot.fmas, core::cmp::Reverse(hot.instructions)))
    }
}

/// As how many multiply-adds or dot products an instruction counts.
fn fmas(line: &str) -> usize {
    let line = line.trim_start();
    let line = line.strip_prefix("{vex}").unwrap_or(line).trim_start();
    let names = [
        "vfmadd",
        "vpdpbusd",
        "vpmaddwd",
        "vdpbf16ps", // x86
        "mulps",     // of SSE, which has no multiply-add
        "pmaddwd",
        "fmla", // and fmlal
        "smlal",
        "sadalp", // of four bytes, with what stands before it
        "saddlp",
        "sdot",
        "usdot",
        "sudot",
        "bfdot",
    ];
    let found = names.iter().any(|name| line.starts_with(name));
    usize::from(found) + 2 * usize::from(line.starts_with("usmmla") || line.starts_with("smmla"))
}

/// Neither a label nor a directive nor a comment.
fn is_instruction(line: &str) -> bool {
    let line = line.trim();
    !line.is_empty() && !line.ends_with(':') && !line.starts_with(['.', '#', '/', '@'])
}

/// Whether a line is an instruction on vectors of x86: those of AVX begin with `v`, those of SSE name a register.
fn is_of_x86(line: &str) -> bool {
    line.starts_with('v') || line.contains("%xmm")
}

/// Whether a line that moves a vector stores it.
fn is_store(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("st") || is_of_x86(line) && line.ends_with("(%rsp)")
}

/// Whether a line loads or stores a vector register on the stack, `framed` if `x29` points there.
fn is_vector_on_stack(line: &str, framed: bool) -> bool {
    let line = line.trim_start();
    if is_of_x86(line) {
        return line.contains("(%rsp");
    }
    let memory = ["ldr", "str", "ldp", "stp", "ldur", "stur", "ld1", "st1"];
    let mut words = line.split_whitespace();
    let (mnemonic, register) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let stack = line.contains("[sp") || framed && line.contains("[x29");
    stack && memory.contains(&mnemonic) && register.starts_with(['q', 'v', 'd', '{'])
}

/// The loops that contain no other: from a label to a jump back to it that the label leads to. Compilers place
/// ways out of a function before the end of a tile: a jump back to one of those is no loop.
fn inner_loops<'a, 'b>(lines: &'b [&'a str]) -> Vec<&'b [&'a str]> {
    let labels =
        lines.iter().enumerate().filter_map(|(at, line)| Some((line.strip_suffix(':')?, at)));
    let labels: HashMap<&str, usize> =
        labels.filter(|(name, _)| name.starts_with(".LBB")).collect();
    let mut loops: Vec<(usize, usize)> = Vec::new();
    for end in 0..lines.len() {
        let start = jump(lines[end]).and_then(|target| labels.get(target));
        let start = start.copied().filter(|&start| start < end);
        loops.extend(
            start.filter(|&start| leads_to(lines, &labels, start, end)).map(|start| (start, end)),
        );
    }
    let inner = |&(start, end): &(usize, usize)| {
        !loops.iter().any(|&(s, e)| (s, e) != (start, end) && s >= start && e <= end)
    };
    loops.iter().filter(|range| inner(range)).map(|&(start, end)| &lines[start..=end]).collect()
}

/// Where a line jumps to, if it names a label.
fn jump(line: &str) -> Option<&str> {
    let target = line.split(|c: char| c.is_whitespace() || c == ',').next_back()?;
    (target.starts_with(".LBB") && !target.ends_with(':')).then_some(target)
}

/// Whether what runs from one line on may come to another one below it, without a line outside of the two.
fn leads_to(lines: &[&str], labels: &HashMap<&str, usize>, start: usize, end: usize) -> bool {
    let mut seen = vec![false; end + 1 - start];
    let mut from = vec![start];
    while let Some(first) = from.pop() {
        for at in first..=end {
            if at == end {
                return true;
            }
            if core::mem::replace(&mut seen[at - start], true) {
                break;
            }
            let target = jump(lines[at]).and_then(|target| labels.get(target));
            from.extend(target.filter(|target| (start..=end).contains(target)));
            let mnemonic = lines[at].split_whitespace().next().unwrap_or("");
            if ["jmp", "jmpq", "b", "br", "ret", "retq", "ud2", "brk"].contains(&mnemonic) {
                break;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "Avx2 = avx2 over Scalar, if all(), [] {\navx2_f32: tile_avx2_f32, f32, unroll 2;\n}\n";

    fn listing(tile: &str, body: &str) -> String {
        let symbol = format!(
            "_ZN18tilewright_kernels8template9conv_tile8avx2_f3210{tile}17h0123456789abcdefE"
        );
        format!("{symbol}:\n.LBB0_1:\n{body}\tjne\t.LBB0_1\n.Lfunc_end0:\n")
    }

    fn verdict(body: &str) -> Option<String> {
        let text = listing("tile_1x1x2", body);
        let kernels = kernels(&text);
        assert_eq!((kernels.len(), kernels[0].row, kernels[0].tile), (1, "avx2_f32", "1x1x2"));
        rules::check(&kernels[0], X86, &rows::parse(TABLE))
    }

    #[test]
    fn an_intrinsic_that_is_called_is_found() {
        let dq = "_RNvNtNtNtCs1_4core9core_arch3x868avx512dq12__mm512_or_ps";
        let there = format!("{dq}:\n\tvorps\t%zmm0, %zmm1, %zmm0\n\tretq\n");
        assert!(called_intrinsics(&there).is_empty());
        let called = format!("{there}f:\n\tcallq\t{dq}\n\tcallq\t{dq}\n");
        assert_eq!(called_intrinsics(&called), BTreeMap::from([(dq, 2)]));
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
    fn a_jump_back_to_the_way_out_is_no_loop() {
        let fma = "\tvfmadd231ps\t%ymm0, %ymm1, %ymm2\n";
        let drain = format!("{}\tvmovups\t%ymm0, 32(%rsp)\n", fma.repeat(9));
        let out = format!("\tjne\t.LBB0_1\n.LBB0_2:\n\tretq\n{drain}\tjmp\t.LBB0_2\n.LBB0_3:\n");
        assert_eq!(verdict(&(fma.repeat(4) + &out)), None);
        // One that goes on elsewhere.
        let out =
            format!("\tjne\t.LBB0_1\n.LBB0_2:\n\tjmp\t.LBB0_4\n{drain}\tjne\t.LBB0_2\n.LBB0_4:\n");
        assert_eq!(verdict(&(fma.repeat(4) + &out)), None);
        // A loop with a way around its last part.
        let spill = "\tvmovups\t%ymm0, 32(%rsp)\n";
        let around = format!("\tje\t.LBB0_3\n{spill}\tjmp\t.LBB0_4\n.LBB0_3:\n\tnop\n.LBB0_4:\n");
        assert!(verdict(&(fma.repeat(4) + &around)).unwrap().contains("1 vector accesses"));
    }

    #[test]
    fn main_tiles_of_arm_need_a_share_of_multiply_adds() {
        let rows = rows::parse(TABLE);
        let verdict = |tile: &str, fmas: usize, others: usize| {
            let (fma, other) = ("\tfmla\tv0.4s, v1.4s, v2.s[0]\n", "\tadd\tx0, x0, #16\n");
            let text = listing(tile, &(fma.repeat(fmas) + &other.repeat(others)));
            rules::check(&kernels(&text)[0], ARM, &rows)
        };
        assert_eq!(verdict("tile_1x4x4", 32, 7), None);
        assert!(verdict("tile_1x4x4", 32, 8).unwrap().contains("78.0 % of the hot loop are FMA"));
        assert_eq!(verdict("tile_1x3x4", 24, 24), None, "an edge tile");
    }

    #[test]
    fn arm_stack_accesses_are_seen() {
        assert!(is_vector_on_stack("\tldr\tq0, [sp, #16]", false));
        assert!(is_vector_on_stack("\tstp\tq0, q1, [sp]", false));
        assert!(is_vector_on_stack("\tstur\tq31, [x29, #-128]", true));
        assert!(!is_vector_on_stack("\tldr\tq31, [x29], #16", false));
        assert!(!is_vector_on_stack("\tldr\tx0, [sp, #16]", false));
        assert!(!is_vector_on_stack("\tldr\tq0, [x1]", false));
    }
}
