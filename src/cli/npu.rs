//! What `tilewright doctor` finds out about an NPU; and the program that tests its library.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Serialize;
use serde_json::Value;
use tilewright::backend::rknn::{
    Costs, Npu, Options, chip_name, self_test, test_before_use, test_in,
};

use super::npu_system::{System, interrupts};
use super::{Failure, report};

/// The object `rknn` of the report.
#[derive(Serialize)]
pub(super) struct Rknn {
    pub(super) available: bool,
    /// Why not, or what was found, in a line.
    pub(super) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chip: Option<&'static str>,
    /// What the test in another process printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) self_test: Option<Value>,
    /// Interrupts of the NPU during the test: a proof that it was the hardware that ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupts: Option<u64>,
    #[serde(flatten)]
    system: Option<System>,
}

impl Rknn {
    /// What more there is to say, a line each.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(test) = &self.self_test {
            let text = |key: &str| test[key].as_str().unwrap_or("unknown").to_owned();
            lines.push(format!(
                "library {} {}, driver {}",
                text("library"),
                text("api_version"),
                text("driver_version")
            ));
            lines.push(format!("SHA-256 of the library {}", text("library_sha256")));
            for time in test["times"].as_array().into_iter().flatten() {
                lines.push(format!(
                    "{}: {} us first, {} us again, {} GFLOP/s in a large product",
                    time["type"].as_str().unwrap_or_default(),
                    time["first_us"],
                    time["again_us"],
                    time["gflops"]
                ));
            }
            for core in test["per_core"].as_array().into_iter().flatten() {
                lines.push(format!(
                    "core {}, {}: {} us",
                    core["core"],
                    core["type"].as_str().unwrap_or_default(),
                    core["again_us"]
                ));
            }
        }
        if let Some(count) = self.interrupts {
            lines.push(format!("{count} interrupts during the test"));
        }
        let Some(system) = &self.system else { return lines };
        for node in &system.device_nodes {
            let driver = node.driver.as_deref().unwrap_or("unknown driver");
            let usable = if node.usable { "usable" } else { "not for this user" };
            lines.push(format!("{} ({driver}), {usable}", node.path));
        }
        if let Some(driver) = &system.driver {
            lines.push(format!("driver {driver}"));
        }
        if let Some(governor) = &system.governor {
            let hz =
                system.npu_hz.map_or(String::new(), |hz| format!(" at {} MHz", hz / 1_000_000));
            lines.push(format!("governor {governor}{hz}"));
        }
        if let Some(hz) = system.memory_hz {
            lines.push(format!("memory at {} MHz", hz / 1_000_000));
        }
        if let Some(bytes) = system.available_bytes {
            let weights = report::bytes(system.weight_bytes);
            lines.push(format!(
                "{} free, of which weights may take {weights}",
                report::bytes(bytes)
            ));
        }
        if let (Some(all), Some(free)) = (system.contiguous_bytes, system.contiguous_free_bytes) {
            let [all, free] = [all, free].map(|bytes| report::bytes(bytes as usize));
            lines.push(format!("{all} in one piece kept for devices, {free} of them free"));
        }
        if let Some(unit) = &system.iommu {
            lines.push(format!("addresses translated by {unit}"));
        }
        let used = system.address_spaces_used;
        let most = system.address_spaces.map_or(String::new(), |all| format!(" of {all}"));
        lines.push(format!(
            "{used}{most} address spaces in use, of 2 GiB less 64 MiB of weights each"
        ));
        if let Some(files) = system.open_files {
            lines.push(format!("{files} open files at most"));
        }
        lines
    }
}

/// Looks for an NPU and, where there should be one, tests it in a process of its own: a library that
/// does not fit its driver may end or stop the one that it is in. `advice` gets what to do.
pub(super) fn examine(advice: &mut Vec<String>) -> Rknn {
    let none = |reason: String| Rknn {
        available: false,
        reason,
        chip: None,
        self_test: None,
        interrupts: None,
        system: None,
    };
    let found = Options::from_env().and_then(|options| Ok((chip_name(&options)?, options)));
    let (chip, options) = match found {
        Ok(found) => found,
        Err(e) => return none(e.to_string()),
    };
    let system = System::look(Path::new("/"), &options);
    let before = interrupts();
    let test = child().and_then(|mut child| Ok(test_in(&mut child)?));
    let interrupts = interrupts().zip(before).map(|(after, before)| after.saturating_sub(before));
    let emulated = test.as_ref().is_ok_and(|test| {
        test["api_version"].as_str().is_some_and(|version| version.contains("emulator"))
    });
    if !emulated {
        system.advice(advice);
    }
    if test.is_ok() && !emulated && interrupts == Some(0) {
        advice.push("the NPU had no interrupt during the test: did it run?".into());
    }
    let found = Rknn { chip: Some(chip), interrupts, system: Some(system), ..none(String::new()) };
    match test {
        Ok(test) => {
            let cores = &test["cores"];
            let reason = format!("{chip}, {cores} cores, self-test passed");
            Rknn { available: true, reason, self_test: Some(test), ..found }
        }
        Err(Failure(reason)) => {
            advice.push(format!(
                "the NPU does not work: {reason}; check library and driver (0.9.8 or later)"
            ));
            Rknn { reason, ..found }
        }
    }
}

/// This program, to test the NPU.
fn child() -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe().map_err(|e| Failure(e.to_string()))?);
    command.args(["doctor", "--npu-self-test"]);
    Ok(command)
}

/// Tests a library in a process of its own, unless it has passed already.
pub(super) fn before_use(options: &Options) -> Result<(), Failure> {
    test_before_use(options, &mut child()?)
        .map(|_| ())
        .map_err(|e| Failure(format!("{e}, before its first use; `tilewright doctor` says more")))
}

/// Measures what products cost here, for `TILEWRIGHT_RKNN_COSTS`.
pub(super) fn measure_costs(path: &Path) -> Result<(), Failure> {
    let npu = Npu::open(Options::from_env()?)?;
    let costs = Costs::measure(&npu)?;
    let text = format!("{:#}\n", costs.to_json());
    fs::write(path, &text).map_err(|e| Failure(format!("{}: {e}", path.display())))?;
    report::print(&format!("{text}set TILEWRIGHT_RKNN_COSTS={} to use them\n", path.display()))
}

/// The test itself: prints what it found.
pub(super) fn run_self_test() -> Result<(), Failure> {
    let found = self_test(&Options::from_env()?)?;
    report::print_json(&found.to_json())
}
