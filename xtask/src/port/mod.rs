//! `cargo xtask port <isa>`: what a person who writes an instruction set file wants to know.
//!
//! Correctness over every kernel of the row, natively or under the runner of its target; the share
//! of the measured peak, where the machine is a real one; what the hot loops are made of; and what
//! to override next. `docs/porting.md` is the guide.

mod advice;
mod lines;
mod report;
mod self_test;

pub(crate) use lines::check as check_lines;

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::process::Command;

use crate::asm::{self, HotLoop};
use crate::rows::{self, Row};
use crate::{cargo, has_target};

/// What was found out about an instruction set.
#[derive(Debug)]
pub(crate) struct Report {
    isa: String,
    /// The machine that ran it: `this CPU`, or the runner of the target.
    machine: String,
    /// Why there are no times, if there are none.
    untimed: Option<String>,
    /// Why there are no instruction counts, if there are none.
    unread: Option<String>,
    /// Per op: tests that passed, names of those that failed.
    tests: BTreeMap<String, (usize, Vec<String>)>,
    kernels: Vec<Kernel>,
    advice: Vec<String>,
}

/// A microkernel of the report.
#[derive(Debug, PartialEq)]
pub(crate) struct Kernel {
    name: String,
    /// The best share of the measured peak among the bench cases that chose it.
    share: Option<f64>,
    hot: Option<HotLoop>,
}

/// # Errors
/// If the instruction set is unknown or cannot run here, or if a test fails: after the report.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["--self-test"] => self_test::run(),
        ["--lines"] => lines::write(),
        [isa] if !isa.starts_with('-') => port(isa, false),
        [isa, "--format", "json"] | ["--format", "json", isa] => port(isa, true),
        [isa, "--format", "text"] | ["--format", "text", isa] => port(isa, false),
        _ => {
            Err("usage: cargo xtask port <isa> [--format text|json] | --lines | --self-test".into())
        }
    }
}

fn port(isa: &str, json: bool) -> Result<(), String> {
    let rows = rows::read()?;
    let row = rows.iter().find(|row| row.name == isa).ok_or_else(|| {
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        format!("port: no row {isa} in {} (rows: {})", rows::TABLE, names.join(", "))
    })?;
    let target = row.target().filter(|target| !target.starts_with(std::env::consts::ARCH));
    if let Some(target) = target.filter(|target| !has_target(target)) {
        return Err(format!("port: first `rustup target add {target}`"));
    }
    let mut report = Report {
        isa: isa.into(),
        machine: machine(target),
        untimed: None,
        unread: None,
        tests: tests(row, target)?,
        kernels: Vec::new(),
        advice: Vec::new(),
    };
    let shares = match target {
        None => shares(isa)?,
        Some(_) => {
            report.untimed = Some(format!("{}: no times under emulation", report.machine));
            BTreeMap::new()
        }
    };
    let loops = match loops(row) {
        Ok(loops) => loops,
        Err(reason) => {
            report.unread = Some(reason);
            BTreeMap::new()
        }
    };
    let mut kernels: BTreeMap<String, Kernel> = BTreeMap::new();
    let new = |name: &str| Kernel { name: name.into(), share: None, hot: None };
    for (name, share) in shares {
        kernels.entry(name.clone()).or_insert_with(|| new(&name)).share = Some(share);
    }
    for (name, hot) in loops {
        kernels.entry(name.clone()).or_insert_with(|| new(&name)).hot = Some(hot);
    }
    report.kernels = kernels.into_values().collect();
    let path = format!("intrinsics/src/isa/{isa}.rs");
    let file = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    report.advice = advice::advice(&report, &file);
    print!("{}", if json { report::json(&report) } else { report::text(&report) });
    let failed: usize = report.tests.values().map(|(_, failed)| failed.len()).sum();
    match (failed, report.tests.values().map(|(passed, _)| passed).sum::<usize>()) {
        (0, 0) => Err(format!("port: no test ran on {isa}")),
        (0, _) => Ok(()),
        _ => Err(format!("port: {failed} tests of {isa} fail")),
    }
}

fn machine(target: Option<&str>) -> String {
    match target {
        None => "this CPU".into(),
        Some(target) if target.starts_with("wasm") => "node".into(),
        Some(target) if target.starts_with("thumb") => "qemu-system-arm".into(),
        Some(_) => "qemu-aarch64".into(),
    }
}

/// The command that runs the conformance tests of a row.
fn test_command(row: &Row, target: Option<&str>) -> Command {
    let mut command = cargo();
    if target.is_some_and(|target| target.starts_with("thumb")) {
        command.current_dir("ports/cortex-m").args(["run", "--quiet", "--release"]);
        return command;
    }
    let features = [vec!["std"], row.cargo_features()].concat().join(",");
    command.args(["test", "--release", "-p", "tilewright-kernels", "--lib"]);
    command.args(["--no-default-features", "--features", &features]);
    if let Some(target) = target {
        command.args(["--target", target]);
    }
    command.args(["--", "--show-output"]);
    command.args(row.lines.iter().map(|line| format!("::{}::", line.id)));
    command
}

/// Runs the tests of a row: per op, the number that passed and the names of those that failed.
fn tests(
    row: &Row,
    target: Option<&str>,
) -> Result<BTreeMap<String, (usize, Vec<String>)>, String> {
    let output = test_command(row, target).output().map_err(|e| format!("cargo: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.lines().any(|line| line == format!("skipped: {}", row.name)) {
        return Err(format!("port: this machine cannot run {}", row.name));
    }
    let ops = outcomes(&text, &row.name);
    if ops.is_empty() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(format!("port: no test of {} ran:\n{errors}{text}", row.name));
    }
    Ok(ops)
}

/// `test a::<op>_tests::<line>::<test> ... ok`, as the harness prints it, and `<op>_tests <isa> ok`,
/// as the suites without a harness do.
fn outcomes(text: &str, isa: &str) -> BTreeMap<String, (usize, Vec<String>)> {
    let mut ops: BTreeMap<String, (usize, Vec<String>)> = BTreeMap::new();
    for line in text.lines() {
        let line = line.trim();
        let (name, passed) = match line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
            Some((name, outcome)) => (name.to_owned(), outcome == "ok"),
            None => match line.split(' ').collect::<Vec<_>>()[..] {
                [op, name, end @ ("ok" | "FAILED")] if name == isa && op.ends_with("_tests") => {
                    (format!("{op}::{name}"), end == "ok")
                }
                _ => continue,
            },
        };
        let Some(op) = name.split("::").find_map(|part| part.strip_suffix("_tests")) else {
            continue;
        };
        let (count, failed) = ops.entry(op.into()).or_default();
        if passed { *count += 1 } else { failed.push(name) }
    }
    ops
}

/// The best share of peak of each kernel that a bench case chose, in percent.
fn shares(isa: &str) -> Result<BTreeMap<String, f64>, String> {
    let mut command = cargo();
    command.args(["bench", "--quiet", "-p", "tilewright-kernels", "--bench", "kernels", "--"]);
    let output = command.arg("table").env("TILEWRIGHT_ISA", isa).output();
    let output = output.map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(format!("port: the bench fails:\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    let mut shares = table(&String::from_utf8_lossy(&output.stdout));
    // Where it has no kernels of its own, those of its base ran.
    shares.retain(|name, _| name.ends_with(&format!("_{isa}")));
    Ok(shares)
}

/// `<op>/<shape>/<kernel> <min> <median> <GFLOP/s> <share> %`
fn table(text: &str) -> BTreeMap<String, f64> {
    let mut best = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[name, _, _, _, share, "%"] = &words[..] else { continue };
        let (Some(kernel), Ok(share)) = (name.rsplit('/').next(), share.parse::<f64>()) else {
            continue;
        };
        let known = best.entry(kernel.to_owned()).or_insert(share);
        *known = share.max(*known);
    }
    best
}

/// The hot loop of each microkernel of a row.
fn loops(row: &Row) -> Result<BTreeMap<String, HotLoop>, String> {
    let target = row.target().unwrap_or("");
    let model = asm::baseline(target)
        .ok_or_else(|| format!("no assembly listing is read for target {target:?}"))?;
    let text = asm::assembly(model)?;
    let mut loops = BTreeMap::new();
    for kernel in asm::kernels(&text) {
        let Some(line) = row.lines.iter().find(|line| line.id == kernel.row) else { continue };
        let Some(hot) = kernel.hot_loop() else { continue };
        let mut tile: Vec<usize> = kernel.tile.split('x').filter_map(|n| n.parse().ok()).collect();
        if let (Some(vectors), Some(lanes)) = (tile.last_mut(), line.number("lanes")) {
            *vectors *= lanes;
        }
        let op = kernel.op.trim_end_matches("_tile");
        let kind = kernel.kind.unwrap_or(&line.dtype);
        let mut name = format!("{op}_{kind}_");
        for (i, n) in tile.iter().enumerate() {
            let _ = write!(name, "{}{n}", if i == 0 { "" } else { "x" });
        }
        // A step of blocks is eight words.
        let unroll = if op == "block" { Some(8) } else { line.number("unroll") };
        let _ = write!(name, "_u{}_{}", unroll.unwrap_or(1), row.name);
        loops.insert(name, hot);
    }
    Ok(loops)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_of_both_kinds_of_suites_are_counted_per_op() {
        let text = "test template::conv_tests::x_f32::tiles ... ok\n\
                    test template::conv_tests::x_f32::pads ... FAILED\n\
                    test detect::tests::names ... ok\n\
                    matmul_tests x ok\nmatmul_tests y ok\n";
        let ops = outcomes(text, "x");
        assert_eq!(ops.len(), 2);
        assert_eq!(ops["conv"], (1, vec!["template::conv_tests::x_f32::pads".into()]));
        assert_eq!(ops["matmul"], (1, vec![]));
    }

    #[test]
    fn the_best_share_of_a_kernel_counts() {
        let text = "x: min ms, median ms, GFLOP/s, share of peak\n\
                    conv3x3/1x2x3/k1  0.1 0.2 30.0 80.5 %\nconv1x1/1x2x3/k1 0.1 0.2 30.0 91.0 %\n";
        assert_eq!(table(text), BTreeMap::from([("k1".into(), 91.0)]));
    }
}
