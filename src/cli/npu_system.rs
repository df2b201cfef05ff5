//! What the system says of an NPU, its driver and its limits: read from files that may not be there.

use std::fs;
use std::path::Path;

use serde::Serialize;
use tilewright::backend::cpu::available_memory;

/// What was found; what cannot be read is left out.
#[derive(Serialize)]
pub(super) struct System {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    /// Files through which the driver is reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) device_nodes: Vec<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) governor: Option<String>,
    /// Frequencies in Hz: of the NPU, and of the memory that it shares with the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) npu_hz: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) memory_hz: Option<u64>,
    /// Files that this process may have open: each piece of the NPU's memory is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) open_files: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) available_bytes: Option<usize>,
}

/// A device node.
#[derive(Serialize)]
pub(super) struct Node {
    pub(super) path: String,
    /// The driver behind it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) driver: Option<String>,
    /// Whether this user may use it.
    pub(super) usable: bool,
}

/// Fewest open files that are enough for contexts, their memory and all weights of a model.
const OPEN_FILES: u64 = 4096;

impl System {
    pub(super) fn look() -> Self {
        let driver = ["/sys/module/rknpu/version", "/sys/kernel/debug/rknpu/version"];
        Self {
            kernel: text("/proc/sys/kernel/osrelease"),
            driver: driver.into_iter().find_map(text),
            device_nodes: nodes(),
            governor: devfreq(".npu", "governor"),
            npu_hz: devfreq(".npu", "cur_freq").and_then(|hz| hz.parse().ok()),
            memory_hz: devfreq("dmc", "cur_freq").and_then(|hz| hz.parse().ok()),
            open_files: open_files(),
            available_bytes: available_memory(),
        }
    }

    /// What should be changed.
    pub(super) fn advice(&self, advice: &mut Vec<String>) {
        for node in self.device_nodes.iter().filter(|node| !node.usable) {
            advice.push(format!(
                "this user may not open {}; add it to the group that owns the file",
                node.path
            ));
        }
        if self.device_nodes.is_empty() {
            advice.push(
                "there is no /dev/dri/renderD* node, so the kernel has no driver for the NPU; use a \
                 kernel of the vendor's with RKNPU 0.9.8 or later (the mainline driver `rocket` has no \
                 librknnrt)"
                    .into(),
            );
        }
        if self.device_nodes.iter().any(|node| node.driver.as_deref() == Some("rocket")) {
            advice.push("the driver `rocket` cannot serve librknnrt; it needs RKNPU".into());
        }
        if self.governor.as_deref().is_some_and(|g| g != "performance") {
            advice
                .push("the NPU's frequency governor is not `performance`, which is faster".into());
        }
        if let Some(files) = self.open_files.filter(|&files| files < OPEN_FILES) {
            advice.push(format!(
                "this process may have {files} open files, and each piece of the NPU's memory is one; \
                 `ulimit -n {OPEN_FILES}` allows more"
            ));
        }
    }
}

fn text(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn nodes() -> Vec<Node> {
    let entries = fs::read_dir("/dev/dri").into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with("renderD"));
    let mut nodes: Vec<Node> = named
        .map(|entry| {
            let link = Path::new("/sys/class/drm").join(entry.file_name()).join("device/driver");
            let driver = fs::read_link(link).ok();
            Node {
                driver: driver.and_then(|d| Some(d.file_name()?.to_string_lossy().into_owned())),
                usable: fs::File::options().read(true).write(true).open(entry.path()).is_ok(),
                path: entry.path().display().to_string(),
            }
        })
        .collect();
    nodes.sort_by(|a, b| a.path.cmp(&b.path));
    nodes
}

/// A file of the frequency controller whose name ends so.
fn devfreq(name: &str, file: &str) -> Option<String> {
    let mut entries = fs::read_dir("/sys/class/devfreq").ok()?.flatten();
    let found = entries.find(|e| e.file_name().to_string_lossy().ends_with(name))?;
    text(found.path().join(file).to_str()?)
}

fn open_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Interrupts of the NPU so far, if it has any.
pub(super) fn interrupts() -> Option<u64> {
    let all = fs::read_to_string("/proc/interrupts").ok()?;
    let lines = all.lines().filter(|line| line.contains("npu"));
    let counts = lines.map(|line| {
        line.split_whitespace().skip(1).map_while(|count| count.parse::<u64>().ok()).sum::<u64>()
    });
    counts.reduce(|a, b| a + b)
}
