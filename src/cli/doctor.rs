//! `tilewright doctor`: what this machine can do.

use std::fs;
use std::thread;

use serde::Serialize;
use tilewright::Isa;

use super::Failure;
use super::args::{DoctorArgs, Format};
use super::{opencl, report};

#[derive(Serialize)]
struct Json {
    cpu: String,
    cores: usize,
    memory_bytes: Option<u64>,
    isas: Vec<&'static str>,
    isa: Option<&'static str>,
    opencl: Vec<opencl::Found>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    opencl_reason: Option<String>,
    rknn: Rknn,
    advice: Vec<String>,
}

#[cfg(feature = "rknn")]
use super::npu::{Rknn, examine as examine_npu, measure_costs, run_self_test};

#[cfg(not(feature = "rknn"))]
#[derive(Serialize)]
struct Rknn {
    available: bool,
    reason: String,
}

#[cfg(not(feature = "rknn"))]
fn examine_npu(_advice: &mut Vec<String>) -> Rknn {
    Rknn { available: false, reason: "this build has no RKNN backend".into() }
}

#[cfg(not(feature = "rknn"))]
fn run_self_test() -> Result<(), Failure> {
    Err(Failure(examine_npu(&mut Vec::new()).reason))
}

#[cfg(not(feature = "rknn"))]
impl Rknn {
    fn lines(&self) -> Vec<String> {
        Vec::new()
    }
}

#[cfg(not(feature = "rknn"))]
fn measure_costs(_file: &std::path::Path) -> Result<(), Failure> {
    run_self_test()
}

/// The command.
pub(super) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    if args.npu_self_test {
        return run_self_test();
    }
    if let Some(file) = &args.npu_costs {
        return measure_costs(file);
    }
    let found = examine();
    match args.format {
        Format::Json => report::print_json(&found),
        Format::Text => report::print(&text(&found)),
    }
}

fn examine() -> Json {
    let isas: Vec<&'static str> = Isa::available().map(Isa::name).collect();
    let chosen = Isa::select();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut advice = Vec::new();
    match &chosen {
        Err(e) => advice.push(format!("{e}; unset TILEWRIGHT_ISA or name one of these")),
        Ok(isa) if *isa != Isa::best() => {
            let best = Isa::best();
            advice.push(format!("TILEWRIGHT_ISA holds the kernels at {isa}; {best} is faster"));
        }
        Ok(Isa::Scalar) => advice.push(no_vectors()),
        Ok(_) => {}
    }
    if cfg!(debug_assertions) {
        advice.push("this is a debug build, far slower than `cargo build --release`".into());
    }
    if governor().is_some_and(|g| g == "powersave") {
        advice.push(
            "the processor's frequency governor is `powersave`; `performance` gives steadier and \
             higher speed"
                .into(),
        );
    }
    let (opencl, opencl_reason) = match opencl::examine(&mut advice) {
        Ok(found) => (found, None),
        Err(reason) => (Vec::new(), Some(reason)),
    };
    Json {
        cpu: tilewright::tune::cpu_name(),
        cores,
        memory_bytes: memory_bytes(),
        isas,
        isa: chosen.ok().map(Isa::name),
        opencl,
        opencl_reason,
        rknn: examine_npu(&mut advice),
        advice,
    }
}

/// Why only portable code runs.
fn no_vectors() -> String {
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        "this build or this processor has no vector kernels (SSE4.1, AVX2 with FMA, AVX-512, NEON); \
         only portable code runs"
            .into()
    } else {
        "there are no vector kernels for this architecture yet; only portable code runs".into()
    }
}

/// Memory of the machine, where the system says.
fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn governor() -> Option<String> {
    let path = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

fn text(found: &Json) -> String {
    let chosen = found.isa.unwrap_or("none");
    let isas: Vec<String> = found
        .isas
        .iter()
        .map(|isa| if *isa == chosen { format!("{isa} (in use)") } else { (*isa).to_owned() })
        .collect();
    let memory = found.memory_bytes.and_then(|b| usize::try_from(b).ok());
    let mut out = format!(
        "processor         {}\ncores             {}\nmemory            {}\ninstruction sets  {}\n\
         opencl            {}\nrknn              {}{}\n",
        found.cpu,
        found.cores,
        memory.map_or_else(|| "unknown".into(), report::bytes),
        isas.join(", "),
        match &found.opencl_reason {
            Some(reason) => format!("none: {reason}"),
            None => {
                let lines: Vec<String> = found.opencl.iter().map(opencl::Found::line).collect();
                lines.join("\n                  ")
            }
        },
        if found.rknn.available { "" } else { "none: " },
        found.rknn.reason,
    );
    for line in found.rknn.lines() {
        out.push_str(&format!("                  {line}\n"));
    }
    if found.advice.is_empty() {
        out.push_str("advice            none, all is well\n");
    }
    for advice in &found.advice {
        out.push_str(&format!("advice            {advice}\n"));
    }
    out
}
