//! What the system says of an NPU, its driver and its limits: read from files that may not be there.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use tilewright::backend::rknn::Options;
use tilewright::tensor::available_memory;

use crate::order::sort;

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
    /// Most bytes of packed weights, by default.
    pub(super) weight_bytes: usize,
    /// The unit that lets the NPU use memory wherever it lies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) iommu: Option<String>,
    /// Address spaces that the driver has, and those in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) address_spaces: Option<usize>,
    pub(super) address_spaces_used: usize,
    /// Memory in one piece that the kernel keeps for devices, and what of it is free: all that there is for
    /// an NPU without such a unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contiguous_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) contiguous_free_bytes: Option<u64>,
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

/// The first driver with several address spaces, which is also the first without known hangs.
const DRIVER: [u32; 3] = [0, 9, 8];

/// Address spaces that it has.
const SPACES: usize = 16;

impl System {
    /// What files say under `root`.
    pub(super) fn look(root: &Path, options: &Options) -> Self {
        let drivers = ["sys/module/rknpu/version", "sys/kernel/debug/rknpu/version"];
        let driver = drivers.into_iter().find_map(|file| text(&root.join(file)));
        let hz = |name| devfreq(root, name, "cur_freq").and_then(|hz| hz.parse().ok());
        let new = driver.as_deref().and_then(version).map(|version| version >= DRIVER);
        Self {
            kernel: text(&root.join("proc/sys/kernel/osrelease")),
            device_nodes: nodes(root),
            governor: devfreq(root, ".npu", "governor"),
            npu_hz: hz(".npu"),
            memory_hz: hz("dmc"),
            open_files: open_files(root),
            available_bytes: available_memory(),
            weight_bytes: options.weight_budget(),
            iommu: iommu(root),
            address_spaces: new.map(|new| if new { SPACES } else { 1 }),
            address_spaces_used: options.domains,
            contiguous_bytes: meminfo(root, "CmaTotal:"),
            contiguous_free_bytes: meminfo(root, "CmaFree:"),
            driver,
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
        if let (Some(driver), Some(1)) = (&self.driver, self.address_spaces) {
            let [a, b, c] = DRIVER;
            advice.push(format!(
                "the driver {driver} is older than {a}.{b}.{c}: hangs are known, and TILEWRIGHT_RKNN_DOMAINS \
                 cannot be above 1"
            ));
        }
        if !self.device_nodes.is_empty() && self.iommu.is_none() {
            let free = self.contiguous_free_bytes.unwrap_or(0) >> 20;
            advice.push(format!(
                "the NPU has no IOMMU, so weights need memory in one piece, of which {free} MiB are free; \
                 `cma=512M` on the kernel's command line keeps more"
            ));
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

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The three numbers of a driver's version, as in `RKNPU driver: v0.9.8`.
fn version(text: &str) -> Option<[u32; 3]> {
    let last = text.split_whitespace().next_back()?.trim_start_matches('v');
    let numbers: Vec<u32> = last.split('.').map_while(|part| part.parse().ok()).collect();
    numbers.try_into().ok()
}

fn nodes(root: &Path) -> Vec<Node> {
    let entries = fs::read_dir(root.join("dev/dri")).into_iter().flatten().flatten();
    let named = entries.filter(|e| e.file_name().to_string_lossy().starts_with("renderD"));
    let mut nodes: Vec<Node> = named
        .map(|entry| {
            let device = root.join("sys/class/drm").join(entry.file_name()).join("device");
            let driver = fs::read_link(device.join("driver")).ok();
            Node {
                driver: driver.and_then(|d| Some(d.file_name()?.to_string_lossy().into_owned())),
                usable: fs::File::options().read(true).write(true).open(entry.path()).is_ok(),
                path: entry.path().display().to_string(),
            }
        })
        .collect();
    sort(&mut nodes, |a, b| a.path.cmp(&b.path));
    nodes
}

/// An entry of a folder whose name ends so.
fn ends(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut entries = fs::read_dir(folder).ok()?.flatten();
    let found = entries.find(|e| e.file_name().to_string_lossy().ends_with(name))?;
    Some(found.path())
}

/// A file of the frequency controller whose name ends so.
fn devfreq(root: &Path, name: &str, file: &str) -> Option<String> {
    text(&ends(&root.join("sys/class/devfreq"), name)?.join(file))
}

/// The unit that the NPU is behind, as the kernel calls it.
fn iommu(root: &Path) -> Option<String> {
    let npu = ends(&root.join("sys/bus/platform/devices"), ".npu")?;
    let unit = fs::read_link(npu.join("iommu")).or_else(|_| fs::read_link(npu.join("iommu_group")));
    Some(unit.ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Bytes of a line of `/proc/meminfo`.
fn meminfo(root: &Path, name: &str) -> Option<u64> {
    let all = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let line = all.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

fn open_files(root: &Path) -> Option<u64> {
    let limits = fs::read_to_string(root.join("proc/self/limits")).ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A board's files: driver, node, unit of addresses, memory.
    #[test]
    fn a_board_is_described_by_its_files() {
        let root = std::env::temp_dir().join(format!("tilewright-board-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("sys/module/rknpu/version", "RKNPU driver: v0.9.6\n");
        write("dev/dri/renderD129", "");
        write("sys/class/devfreq/fdab0000.npu/governor", "performance\n");
        write("sys/class/devfreq/fdab0000.npu/cur_freq", "1000000000\n");
        write("proc/meminfo", "MemTotal: 8000000 kB\nCmaTotal: 65536 kB\nCmaFree: 1024 kB\n");
        write("proc/self/limits", "Max open files            1024        524288    files\n");
        let npu = root.join("sys/bus/platform/devices/fdab0000.npu");
        fs::create_dir_all(&npu).unwrap();
        let options = Options { weight_bytes: Some(5), domains: 2, ..Options::default() };
        let look = || {
            let (system, mut advice) = (System::look(&root, &options), Vec::new());
            system.advice(&mut advice);
            (system, advice.join("\n"))
        };
        let (system, advice) = look();
        assert_eq!((system.npu_hz, system.open_files), (Some(1_000_000_000), Some(1024)));
        assert_eq!((system.address_spaces, system.address_spaces_used), (Some(1), 2));
        assert_eq!((system.weight_bytes, system.contiguous_bytes), (5, Some(64 << 20)));
        assert_eq!(system.iommu, None);
        for said in ["v0.9.6 is older than 0.9.8", "no IOMMU", "1 MiB are free", "`ulimit -n"] {
            assert!(advice.contains(said), "{said}: {advice}");
        }
        write("sys/module/rknpu/version", "v0.9.8\n");
        symlink("../../../class/iommu/fdab9000.iommu", npu.join("iommu")).unwrap();
        let (system, advice) = look();
        assert_eq!(system.address_spaces, Some(16));
        assert_eq!(system.iommu.as_deref(), Some("fdab9000.iommu"));
        assert!(!advice.contains("older") && !advice.contains("no IOMMU"), "{advice}");
        fs::remove_dir_all(&root).unwrap();
    }
}
