//! `tilewright explain`: per operation, why it runs as it does here; and what would help most.

use core::time::Duration;
use std::time::Instant;

use serde::Serialize;
use tilewright::kernel_bench::Dtype;
use tilewright::tune::Workload;
use tilewright::{DType, Isa, NodeInfo, PlanInfo, Session};

use super::args::{ExplainArgs, Format};
use super::kernels::{self, Level};
use super::model::Network;
use super::report::{self, Table};
use super::run::borrowed;
use super::{Failure, inputs};
use crate::order::sort;

/// Runs before measuring, and fewest measured ones.
const WARM_UP: usize = 3;
const RUNS: u64 = 5;

/// What is said at the end, at most.
const ADVICE: usize = 5;

/// Share of the whole time from which on something is worth a word.
const WORTH: f64 = 0.02;

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    isa: &'static str,
    threads: usize,
    /// Of one core, for f32.
    peak_gflops: f64,
    /// Of one core, for all types that operations of the network multiply.
    peaks: Vec<Peak>,
    memory: Vec<Level>,
    nodes: Vec<Row<'a>>,
    /// Nodes that are planned in a run, and so not among `nodes` and the sums.
    waiting_nodes: usize,
    estimated_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    op: &'a str,
    kernel: &'a str,
    dtype: &'static str,
    layout: &'a str,
    shape: &'a [usize],
    threads: usize,
    /// The least time that peak and bandwidth allow.
    estimated_us: f64,
    /// What that time is spent with: `compute`, or the level of memory.
    bound: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share_of_bound: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not_faster: Option<String>,
}

/// The most that a core does with a type.
#[derive(Serialize)]
struct Peak {
    dtype: &'static str,
    /// Additions and multiplications in a second, in 1e9.
    gops: f64,
}

/// What one core can do.
struct Machine {
    peaks: Vec<Peak>,
    memory: Vec<Level>,
}

/// What a kernel multiplies, and how many multiply-adds it needs for one of the definition. Names of kernels
/// tell.
fn work(kernel: &str) -> (Dtype, f64) {
    // A kernel of several computes with the first.
    let words: Vec<&str> = kernel.split(' ').next().unwrap_or_default().split('_').collect();
    let types = [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::I8];
    let named = types.into_iter().find(|d| words.contains(&d.name()));
    match words[..] {
        // F(m x m, 3 x 3) multiplies (m + 2)^2 times for m^2 results of 9 products each.
        ["winograd", _, tile, ..] => {
            let m: f64 = tile.split('x').next().and_then(|m| m.parse().ok()).unwrap_or(1.0);
            (named.unwrap_or(Dtype::F32), ((m + 2.0) / (3.0 * m)).powi(2))
        }
        // Blocks of integers are multiplied as bytes, but for those whose activations stay floats; floats that take
        // their place with f32.
        ["block", "u4", ..] => (Dtype::F32, 1.0),
        ["block", ..] => (named.map_or(Dtype::I8, |_| Dtype::F32), 1.0),
        ["dot", "u8", ..] => (Dtype::I8, 1.0),
        _ => (named.unwrap_or(Dtype::F32), 1.0),
    }
}

impl Machine {
    /// Measures what a core does with f32, and with whatever `nodes` multiply.
    fn new(isa: Isa, nodes: &[NodeInfo]) -> Result<Self, Failure> {
        let mut peaks: Vec<Peak> = Vec::new();
        let used = nodes.iter().filter(|n| n.macs > 0).map(|n| work(&n.kernel).0);
        for dtype in [Dtype::F32].into_iter().chain(used) {
            if peaks.iter().all(|p| p.dtype != dtype.name()) {
                peaks.push(Peak { dtype: dtype.name(), gops: kernels::peak(isa, dtype)? / 1e9 });
            }
        }
        Ok(Self { peaks, memory: kernels::memory(isa)? })
    }

    /// Operations with a type in a second.
    fn peak(&self, dtype: Dtype) -> f64 {
        let peak = self.peaks.iter().find(|p| p.dtype == dtype.name());
        peak.map_or(f64::INFINITY, |p| p.gops * 1e9)
    }

    /// The least time of an operation in seconds, and what it is spent with.
    fn bound(&self, node: &NodeInfo) -> (f64, String) {
        let threads = node.threads.max(1) as f64;
        let level = self.memory.iter().find(|l| l.bytes.is_none_or(|n| node.bytes as u64 <= n));
        let level = level.or(self.memory.last());
        let (dtype, needed) = work(&node.kernel);
        let compute = 2.0 * node.macs as f64 * needed / (self.peak(dtype) * threads);
        let (traffic, name) = match level {
            // Caches are per core, memory is shared.
            Some(Level { name, bytes, gb_s }) => {
                let cores = if bytes.is_some() { threads } else { 1.0 };
                (node.bytes as f64 / (gb_s * 1e9 * cores), name.as_str())
            }
            None => (0.0, "memory"),
        };
        if compute >= traffic { (compute, "compute".into()) } else { (traffic, name.into()) }
    }
}

/// The command.
pub(super) fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let network = Network::load(args.model.as_deref())?;
    let given = if network.is_embedded && args.shapes.is_empty() {
        vec![inputs::embedded_input(&network)?]
    } else {
        inputs::random(&network, &args.shapes)?
    };
    let mut session = network.session(&args.machine, args.measure)?;
    let unplanned = |e| inputs::unplanned(&network, &given, &args.shapes, e);
    let plan = session.prepare(&borrowed(&given)).map_err(unplanned)?;
    let isa = session.isa();
    let machine = Machine::new(isa, &plan.nodes)?;
    let times = match args.measure {
        true => Some(measure(&mut session, &given, args.time)?),
        false => None,
    };
    let rows: Vec<Row<'_>> = (0..plan.nodes.len())
        .map(|i| row(&plan, i, &machine, session.threads(), times.as_deref()))
        .collect();
    let result = Json {
        model: &network.name,
        isa: isa.name(),
        threads: session.threads(),
        peak_gflops: machine.peak(Dtype::F32) / 1e9,
        // From 0, since the sum of nothing is -0.
        estimated_us: rows.iter().fold(0.0, |sum, r| sum + r.estimated_us),
        measured_us: args
            .measure
            .then(|| rows.iter().filter_map(|r| r.measured_us).fold(0.0, |a, b| a + b)),
        waiting_nodes: plan.waiting,
        advice: advice(&plan, &rows),
        peaks: machine.peaks,
        memory: machine.memory,
        nodes: rows,
    };
    match args.format {
        Format::Json => report::print_json(&result),
        Format::Text => report::print(&text(&result)),
    }
}

/// Mean seconds of each operation.
fn measure(
    session: &mut Session,
    given: &[(String, tilewright::Tensor)],
    seconds: f64,
) -> Result<Vec<f64>, Failure> {
    let inputs = borrowed(given);
    for _ in 0..WARM_UP {
        session.run(&inputs)?;
    }
    let sums = |session: &Session| -> Vec<(f64, u64)> {
        session.profile().iter().map(|row| (row.seconds, row.calls)).collect()
    };
    let (before, begin) = (sums(session), Instant::now());
    let (limit, mut runs) = (Duration::from_secs_f64(seconds), 0);
    while runs < RUNS || begin.elapsed() < limit {
        session.run(&inputs)?;
        runs += 1;
    }
    let pairs = sums(session).into_iter().zip(before);
    Ok(pairs.map(|((s1, c1), (s0, c0))| (s1 - s0) / (c1 - c0).max(1) as f64).collect())
}

fn row<'a>(
    plan: &'a PlanInfo,
    i: usize,
    machine: &Machine,
    threads: usize,
    times: Option<&[f64]>,
) -> Row<'a> {
    let node = &plan.nodes[i];
    let (bound_s, bound) = machine.bound(node);
    let measured = times.and_then(|t| t.get(i)).copied();
    Row {
        name: &node.name,
        op: &node.op,
        kernel: &node.kernel,
        dtype: node.dtype.name(),
        layout: &node.layout,
        shape: &node.dims,
        threads: node.threads,
        estimated_us: bound_s * 1e6,
        bound,
        measured_us: measured.map(|s| s * 1e6),
        share_of_bound: measured.filter(|s| *s > 0.0).map(|s| bound_s / s),
        why_not_faster: reasons(plan, i, threads),
    }
}

/// Why an operation is not computed in a faster way; `None` where none is known.
fn reasons(plan: &PlanInfo, i: usize, threads: usize) -> Option<String> {
    let node = &plan.nodes[i];
    let mut reasons: Vec<String> = Vec::new();
    match (node.op.as_str(), node.kernel.as_str()) {
        (_, "reference") if node.dtype != DType::F32 => reasons.push(format!(
            "no kernel for {}: computed element by element, by the definition",
            node.dtype
        )),
        (op, "reference") => reasons.push(format!(
            "no kernel for {op} with these operands: computed element by element, by the definition"
        )),
        (op, _) if is_relayout(op) => reasons.push(format!(
            "moves data only: {} and {} want different layouts",
            producer(plan, node),
            consumer(plan, i)
        )),
        ("cont", _) => reasons.push(format!(
            "moves data only: {} reads a transposed or sliced tensor in its new order",
            consumer(plan, i)
        )),
        _ if node.macs == 0 => reasons.extend(not_fused(plan, i)),
        _ => {}
    }
    if let Some(Workload::Conv(p)) = &node.workload {
        let winograd = node.kernel.contains("winograd");
        let why = match () {
            () if winograd || p.kernel == [1, 1] => None,
            () if p.kernel != [3, 3] => Some("Winograd's algorithm is for 3 x 3 windows"),
            () if p.stride != [1, 1] || p.dilation != [1, 1] || p.transposed => {
                Some("Winograd's algorithm is for stride 1 without dilation")
            }
            () if p.groups != 1 => Some("Winograd's algorithm is for one group"),
            () => Some("Winograd's algorithm is estimated slower for so few channels or pixels"),
        };
        reasons.extend(why.map(str::to_owned));
    }
    if threads > 1 && node.threads == 1 && node.macs > 0 {
        reasons.push("too small to be shared by threads".into());
    }
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

/// Whether an operation only changes the layout of a tensor.
fn is_relayout(op: &str) -> bool {
    op.starts_with("to_")
}

/// Why an element-wise operation is a step of its own.
fn not_fused(plan: &PlanInfo, i: usize) -> Option<String> {
    let node = &plan.nodes[i];
    let heavy = |n: &NodeInfo| n.macs > 0;
    let from = node.inputs.iter().copied().find(|&p| heavy(&plan.nodes[p]))?;
    let others: Vec<&str> =
        readers(plan, from).filter(|&r| r != i).map(|r| label(plan, r)).collect();
    Some(match others.first() {
        Some(other) => {
            format!("a step of its own, as {} also reads what {} gives", other, label(plan, from))
        }
        None => format!("a step of its own: the epilogue of {} cannot do it", plan.nodes[from].op),
    })
}

fn readers(plan: &PlanInfo, of: usize) -> impl Iterator<Item = usize> {
    plan.nodes.iter().enumerate().filter(move |(_, n)| n.inputs.contains(&of)).map(|(i, _)| i)
}

fn label(plan: &PlanInfo, i: usize) -> &str {
    let node = &plan.nodes[i];
    if node.name.is_empty() { &node.op } else { &node.name }
}

fn producer<'a>(plan: &'a PlanInfo, node: &NodeInfo) -> &'a str {
    node.inputs.first().map_or("the input", |&p| label(plan, p))
}

fn consumer(plan: &PlanInfo, i: usize) -> &str {
    readers(plan, i).next().map_or("the output", |r| label(plan, r))
}

/// What would help most, by the time it costs: what was measured, else the bounds.
fn advice(plan: &PlanInfo, rows: &[Row<'_>]) -> Vec<String> {
    let time = |r: &Row<'_>| r.measured_us.unwrap_or(r.estimated_us);
    let total: f64 = rows.iter().map(time).sum();
    let share = |us: f64| 100.0 * us / total.max(1e-9);
    let sum = |wanted: &dyn Fn(&Row<'_>) -> bool| -> (f64, usize) {
        let found = rows.iter().filter(|r| wanted(r));
        found.fold((0.0, 0), |(us, n), r| (us + time(r), n + 1))
    };
    let mut found: Vec<(f64, String)> = Vec::new();
    let (us, n) = sum(&|r| r.kernel == "reference");
    if n > 0 {
        let mut types: Vec<&str> =
            rows.iter().filter(|r| r.kernel == "reference").map(|r| r.op).collect();
        sort(&mut types, Ord::cmp);
        types.dedup();
        let text = format!(
            "{n} operations without a kernel take {:.0} % of the time ({}): f32 forms of them, or \
             operators with kernels, would be faster",
            share(us),
            types.join(", ")
        );
        found.push((us, text));
    }
    let (us, n) = sum(&|r| is_relayout(r.op) || r.op == "cont");
    if n > 0 {
        let text = format!("{n} changes of layout or order take {:.0} % of the time", share(us));
        found.push((us, text));
    }
    // Time above the bound, one line per operation, the worst two.
    let above = |r: &Row<'_>| r.measured_us.map_or(0.0, |us| us - r.estimated_us);
    let mut slow: Vec<&Row<'_>> = rows.iter().filter(|r| r.kernel != "reference").collect();
    sort(&mut slow, |a, b| above(b).total_cmp(&above(a)));
    for row in slow.into_iter().take(2).filter(|r| above(r) > 0.0) {
        let share_of_bound = row.share_of_bound.unwrap_or(0.0) * 100.0;
        let why = row.why_not_faster.as_ref().map_or(String::new(), |w| format!(": {w}"));
        found.push((
            above(row),
            format!(
                "{} `{}` takes {:.0} % of the time at {share_of_bound:.0} % of its bound{why}",
                row.op,
                row.name,
                share(time(row))
            ),
        ));
    }
    found.retain(|(us, _)| *us >= WORTH * total);
    sort(&mut found, |a, b| b.0.total_cmp(&a.0));
    let mut advice: Vec<String> = found.into_iter().map(|f| f.1).collect();
    let tunable = plan.nodes.iter().filter(|n| n.workload.is_some()).count();
    if tunable > 0 {
        advice.push(format!(
            "`tilewright tune` measures other ways of computing {tunable} of the {} operations",
            rows.len()
        ));
    }
    advice.truncate(ADVICE);
    advice
}

fn text(result: &Json<'_>) -> String {
    let measured = result.measured_us.is_some();
    let mut table = Table::new(&[
        "operator",
        "name",
        "shape",
        "layout",
        "kernel",
        ">bound",
        "by",
        ">time",
        ">of bound",
        "why not faster",
    ]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
    for row in &result.nodes {
        table.row([
            row.op.to_owned(),
            row.name.to_owned(),
            format!("{} {}", row.dtype, report::shape(row.shape)),
            row.layout.to_owned(),
            row.kernel.to_owned(),
            report::duration(row.estimated_us / 1e6),
            row.bound.clone(),
            or_none(row.measured_us.map(|us| report::duration(us / 1e6))),
            or_none(row.share_of_bound.map(|s| format!("{:.0} %", s * 100.0))),
            row.why_not_faster.clone().unwrap_or_default(),
        ]);
    }
    let levels: Vec<String> =
        result.memory.iter().map(|l| format!("{} {:.0}", l.name, l.gb_s)).collect();
    let peaks: Vec<String> = result
        .peaks
        .iter()
        .map(|p| match p.dtype {
            "i8" => format!("{:.0} GOP/s of i8", p.gops),
            dtype => format!("{:.0} GFLOP/s of {dtype}", p.gops),
        })
        .collect();
    let mut out = table.text();
    if result.waiting_nodes > 0 {
        out.push_str(&format!("\n{}\n", report::waiting(result.waiting_nodes)));
    }
    out.push_str(&format!(
        "\nbound     {} in all, from {} on {} and {} GB/s per core\n",
        report::duration(result.estimated_us / 1e6),
        peaks.join(", "),
        result.isa,
        levels.join(", "),
    ));
    if let Some(us) = result.measured_us.filter(|_| measured) {
        out.push_str(&format!(
            "measured  {} in all ({} thread{})\n",
            report::duration(us / 1e6),
            result.threads,
            if result.threads == 1 { "" } else { "s" }
        ));
    } else {
        out.push_str("measured  not; add --measure\n");
    }
    if !result.advice.is_empty() {
        out.push_str("what would help most:\n");
        for line in &result.advice {
            out.push_str(&format!("  - {}\n", report::visible(line)));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright::kernel_bench;

    #[test]
    fn names_of_kernels_say_what_they_multiply() {
        // What has no products of one half multiplies both by the same kernel.
        let half = |dtype| if dtype == Dtype::Bf16 { Dtype::F16 } else { dtype };
        for isa in Isa::available() {
            for case in kernel_bench::all_cases(isa).unwrap() {
                assert_eq!(half(work(case.kernel).0), half(case.dtype), "{}", case.name());
            }
        }
        assert_eq!(work("winograd_f32_4x4x16_u1_avx512"), (Dtype::F32, 0.25));
        assert_eq!(work("winograd_f32_2x2x16_u1_neon + max_pool_f32"), (Dtype::F32, 4.0 / 9.0));
        assert_eq!(work("winograd_i8_2x2x16_u1_avx2"), (Dtype::I8, 4.0 / 9.0));
        assert_eq!(work("reference"), (Dtype::F32, 1.0));
    }
}
