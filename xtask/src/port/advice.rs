//! What to do next about an instruction set: rules on a report.

use super::{Kernel, Report};
use crate::asm::HotLoop;

/// A kernel below this share of the measured peak is worth work.
const SLOW: f64 = 85.0;
/// A hot loop below this share of multiply-adds wastes issue slots on loads.
const FEW_FMA: f64 = 60.0;

impl Kernel {
    /// Multiply-adds among the instructions of the hot loop, in percent.
    pub(super) fn fma_share(&self) -> Option<f64> {
        self.hot.map(HotLoop::share)
    }
}

/// The rules, most urgent first. `file` is the text of the instruction set file.
pub(super) fn advice(report: &Report, file: &str) -> Vec<String> {
    let mut advice = Vec::new();
    let failing: Vec<&str> = report
        .tests
        .iter()
        .filter(|(_, (_, failed))| !failed.is_empty())
        .map(|(op, _)| op.as_str())
        .collect();
    if !failing.is_empty() {
        advice.push(format!(
            "wrong results in {}: begin with `layout` and `unary`, which use single arms",
            failing.join(", ")
        ));
    }
    let kernels = |wanted: &dyn Fn(&Kernel) -> bool| {
        let names = report.kernels.iter().filter(|k| wanted(k)).map(|k| k.name.as_str());
        names.collect::<Vec<&str>>()
    };
    let mut say = |names: Vec<&str>, what: &str| {
        if !names.is_empty() {
            advice.push(format!("{what}: {}", names.join(", ")));
        }
    };
    let spills = |k: &Kernel| k.hot.is_some_and(|hot| hot.stack > 0);
    let dense = |k: &Kernel| k.fma_share().is_none_or(|share| share >= FEW_FMA);
    let slow = |k: &Kernel| k.share.is_some_and(|share| share < SLOW);
    // Where nothing was timed, the instructions are all there is to go by.
    let timed = report.kernels.iter().any(|k| k.share.is_some());
    say(
        kernels(&|k| spills(k)),
        "the tile is spilled: take a tile with fewer rows, pixels or vectors, or override COMPUTE so \
         that fewer weight vectors are alive at a time",
    );
    say(
        kernels(&|k| k.hot.is_some_and(|hot| hot.fmas == 0)),
        "no multiply-add in the hot loop: VFMA is not one instruction",
    );
    say(
        kernels(&|k| {
            let sparse = !dense(k) && k.hot.is_some_and(|hot| hot.fmas > 0);
            sparse && (slow(k) || !timed) && !spills(k) && accumulators(k) >= 8
        }),
        "few multiply-adds in the hot loop: override COMPUTE conv, by lane of one activation vector \
         as in isa/neon.rs or with the activation as a memory operand",
    );
    say(
        kernels(&|k| slow(k) && !spills(k) && accumulators(k) < 8),
        "below 85 % of peak with few accumulators: latency; a plan chooses these only at edges, \
         unless the table has no larger tile of their shape",
    );
    say(
        kernels(&|k| slow(k) && !spills(k) && dense(k) && accumulators(k) >= 8),
        "below 85 % of peak though the loop is clean: try another number of vectors per pixel, \
         unroll, VPREFETCH for weights, or addressing (STEPS)",
    );
    if arm(file, "VLOAD_TAIL").is_some_and(|arm| arm.contains("copy_nonoverlapping"))
        && report.isa != "scalar"
    {
        advice.push(
            "VLOAD_TAIL and VSTORE_TAIL copy element by element: if the machine has masked or \
             partial loads, use them; last vectors of rows of matrices pay for this"
                .into(),
        );
    }
    if file.contains("(VPOW2") && !file.contains("(VSCALE") {
        advice.push(
            "VSCALE is derived from VPOW2: exp is faster if an instruction scales by 2^n".into(),
        );
    }
    advice
}

/// Vectors of the tile, by the name of the kernel and the width of a vector: from the count of
/// multiply-adds per reduction step.
fn accumulators(kernel: &Kernel) -> usize {
    let unroll = kernel.name.split("_u").nth(1).and_then(|rest| rest.split('_').next());
    let unroll = unroll.and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
    kernel.hot.map_or(usize::MAX, |hot| hot.fmas / unroll.max(1))
}

/// The text of an arm, up to the next.
fn arm<'a>(file: &'a str, verb: &str) -> Option<&'a str> {
    let (_, rest) = file.split_once(&format!("({verb} "))?;
    Some(&rest[..rest.find("\n    (").unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn report(name: &str, share: f64, hot: HotLoop) -> Report {
        Report {
            isa: "x".into(),
            machine: "this CPU".into(),
            untimed: None,
            unread: None,
            tests: BTreeMap::new(),
            kernels: vec![Kernel { name: name.into(), share: Some(share), hot: Some(hot) }],
            advice: Vec::new(),
        }
    }

    #[test]
    fn spills_come_before_everything_and_clean_kernels_need_nothing() {
        let file = "(VSCALE $x:expr) => {};";
        let spilled = HotLoop { fmas: 24, instructions: 60, stack: 3, stored: 0 };
        let advised = advice(&report("conv_f32_1x6x16_u2_x", 60.0, spilled), file);
        assert_eq!(advised.len(), 1);
        assert!(advised[0].starts_with("the tile is spilled"), "{advised:?}");
        let sparse = HotLoop { fmas: 24, instructions: 60, stack: 0, stored: 0 };
        let advised = advice(&report("conv_f32_1x6x16_u2_x", 60.0, sparse), file);
        assert!(advised[0].contains("override COMPUTE conv"), "{advised:?}");
        let clean = HotLoop { fmas: 24, instructions: 30, stack: 0, stored: 0 };
        assert!(advice(&report("conv_f32_1x6x16_u2_x", 97.0, clean), file).is_empty());
    }

    #[test]
    fn derived_arms_that_cost_are_named() {
        let clean = HotLoop { fmas: 24, instructions: 30, stack: 0, stored: 0 };
        let file = "    (VPOW2 $n:expr) => {};\n    (VLOAD_TAIL $p:expr, $n:expr) => {{\n copy_nonoverlapping }};\n    (VSPLAT";
        assert_eq!(advice(&report("conv_f32_1x6x16_u2_x", 97.0, clean), file).len(), 2);
    }
}
