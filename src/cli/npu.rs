//! What `tilewright doctor` finds out about an NPU, and the test of its library before its first use.

use core::hash::{Hash, Hasher};
use core::time::Duration;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Instant, SystemTime};

use serde::Serialize;
use serde_json::{Value, json};
use tilewright::backend::rknn::{Costs, Npu, Options, chip_name, self_test};

use super::npu_system::{System, interrupts};
use super::{Failure, report};

/// How long the test may take. The library alone waits up to 20 s for a core that does not answer.
const LIMIT: Duration = Duration::from_secs(60);

/// How long a passed test counts.
const PASSED_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

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
            lines.push(format!("{} free, of which weights may take 40 %", report::bytes(bytes)));
        }
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
    let chip = match Options::from_env().and_then(|options| chip_name(&options)) {
        Ok(chip) => chip,
        Err(e) => return none(e.to_string()),
    };
    let system = System::look();
    let before = interrupts();
    let test = in_child();
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
        Err(reason) => {
            advice.push(format!(
                "the NPU does not work: {reason}; check library and driver (0.9.8 or later)"
            ));
            Rknn { reason, ..found }
        }
    }
}

/// Runs the test as `doctor --npu-self-test`.
fn in_child() -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(program)
        .args(["doctor", "--npu-self-test"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begin.elapsed() > LIMIT {
            // It cannot be ended while the driver holds it; then it is left behind.
            let _ = child.kill();
            return Err(format!("the self-test did not end in {} s", LIMIT.as_secs()));
        }
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let error = said.lines().find_map(|line| line.strip_prefix("error: "));
        return Err(
            error.map_or_else(|| format!("the self-test ended with {}", output.status), Into::into)
        );
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("the self-test's answer: {e}"))
}

/// Where it is noted that a library has passed: a file per library, system and program.
fn verdict(options: &Options) -> Option<PathBuf> {
    let path = fs::canonicalize(options.library.as_ref()?).ok()?;
    let about = fs::metadata(&path).ok()?;
    let system = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (path, about.len(), about.modified().ok()?, system, &options.chip).hash(&mut hasher);
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    let name = format!("tilewright/rknn-{:016x}", hasher.finish());
    let home = |name: &str, inside: &str| {
        std::env::var_os(name).filter(|v| !v.is_empty()).map(|v| Path::new(&v).join(inside))
    };
    Some(home("XDG_CACHE_HOME", "").or_else(|| home("HOME", ".cache"))?.join(name))
}

/// Tests a library in a process of its own, unless it has passed within the last month or
/// `TILEWRIGHT_RKNN_SELF_TEST` is `off`.
pub(super) fn before_use(options: &Options) -> Result<(), Failure> {
    if std::env::var("TILEWRIGHT_RKNN_SELF_TEST").is_ok_and(|v| v == "off") {
        return Ok(());
    }
    // What is wrong with the settings is told by whoever opens the library.
    if chip_name(options).is_err() {
        return Ok(());
    }
    let note = verdict(options);
    let fresh = |path: &PathBuf| {
        let written = fs::metadata(path).and_then(|about| about.modified()).ok();
        let age = written.and_then(|t| SystemTime::now().duration_since(t).ok());
        age.is_some_and(|age| age < PASSED_FOR)
    };
    if note.as_ref().is_some_and(fresh) {
        return Ok(());
    }
    in_child().map_err(|reason| {
        Failure(format!(
            "the NPU's self-test, before its first use: {reason}; `tilewright doctor` says more"
        ))
    })?;
    if let Some(note) = note {
        // A cache that cannot be written costs the test again.
        let _ = note.parent().map_or(Ok(()), fs::create_dir_all);
        let _ = fs::write(note, "passed\n");
    }
    Ok(())
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
    let rate = |numbers| {
        let rate = found.rates.iter().find(|(other, _)| *other == numbers);
        rate.map(|(_, macs)| (macs * 2e-9 * 10.0).round() / 10.0)
    };
    let times: Vec<Value> = found
        .times
        .iter()
        .map(|(numbers, first, again)| {
            json!({
                "type": numbers.name(),
                "first_us": first.as_micros() as u64,
                "again_us": again.as_micros() as u64,
                "gflops": rate(*numbers),
            })
        })
        .collect();
    let core = |(core, numbers, again): &(usize, tilewright::backend::rknn::Numbers, Duration)| json!({"core": core, "type": numbers.name(), "again_us": again.as_micros() as u64});
    let about = &found.description;
    let [api, driver] = about.versions.clone().unwrap_or_default();
    report::print_json(&json!({
        "cores": about.cores,
        "library": about.library.display().to_string(),
        "library_bytes": fs::metadata(&about.library).map(|m| m.len()).ok(),
        "interface": format!("{:?}", about.interface),
        "api_version": api,
        "driver_version": driver,
        "times": times,
        "per_core": found.cores.iter().map(core).collect::<Vec<_>>(),
    }))
}
