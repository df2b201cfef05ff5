//! What `tilewright doctor` finds out about an NPU.

use core::time::Duration;
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};
use tilewright::backend::rknn::{Numbers, Options, chip_name, self_test};

use super::{Failure, report};

/// How long the test may take. The library alone waits up to 20 s for a core that does not answer.
const LIMIT: Duration = Duration::from_secs(60);

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
    self_test: Option<Value>,
    /// Files through which the driver is reached, and whether this user may use them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    governor: Option<String>,
}

#[derive(Serialize)]
struct Node {
    path: String,
    usable: bool,
}

/// Looks for an NPU and, where there should be one, tests it in a process of its own: a library that
/// does not fit its driver may end or stop the one that it is in. `advice` gets what to do.
pub(super) fn examine(advice: &mut Vec<String>) -> Rknn {
    let none = |reason: String| Rknn {
        available: false,
        reason,
        chip: None,
        self_test: None,
        device_nodes: Vec::new(),
        governor: None,
    };
    let chip = match Options::from_env().and_then(|options| chip_name(&options)) {
        Ok(chip) => chip,
        Err(e) => return none(e.to_string()),
    };
    let device_nodes = nodes();
    for node in device_nodes.iter().filter(|node| !node.usable) {
        let path = &node.path;
        advice
            .push(format!("this user may not open {path}; add it to the group that owns the file"));
    }
    let governor = governor();
    if governor.as_deref().is_some_and(|g| g != "performance") {
        advice.push("the NPU's frequency governor is not `performance`, which is faster".into());
    }
    let found = Rknn { chip: Some(chip), device_nodes, governor, ..none(String::new()) };
    match in_child() {
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

fn nodes() -> Vec<Node> {
    let entries = fs::read_dir("/dev/dri").into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut nodes: Vec<Node> = paths
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("renderD")))
        .map(|path| Node {
            usable: fs::File::options().read(true).write(true).open(&path).is_ok(),
            path: path.display().to_string(),
        })
        .collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes
}

fn governor() -> Option<String> {
    let mut entries = fs::read_dir("/sys/class/devfreq").ok()?.flatten();
    let npu = entries.find(|e| e.file_name().to_string_lossy().ends_with(".npu"))?;
    fs::read_to_string(npu.path().join("governor")).ok().map(|s| s.trim().to_owned())
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

/// The test itself: prints what it found.
pub(super) fn run_self_test() -> Result<(), Failure> {
    let found = self_test(&Options::from_env()?)?;
    let times: Vec<Value> = found
        .times
        .iter()
        .map(|(numbers, first, again)| {
            let name = match numbers {
                Numbers::I8 => "i8",
                _ => "f16",
            };
            json!({
                "type": name,
                "first_us": first.as_micros() as u64,
                "again_us": again.as_micros() as u64,
            })
        })
        .collect();
    let about = &found.description;
    let [api, driver] = about.versions.clone().unwrap_or_default();
    report::print_json(&json!({
        "cores": about.cores,
        "library": about.library.display().to_string(),
        "interface": format!("{:?}", about.interface),
        "api_version": api,
        "driver_version": driver,
        "times": times,
    }))
}
