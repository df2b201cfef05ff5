//! What the emulator is, from variables of the environment or from
//! [`rknn_emu_configure`](crate::rknn_emu_configure).

use core::time::Duration;

use crate::chip::{Chip, Version};
use crate::fault::{self, Fault};

/// When what the CPU wrote reaches the device, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Both see the same memory.
    Lenient,
    /// Binding flushes, running invalidates; so does a synchronisation.
    Bind,
    /// By a synchronisation only.
    Strict,
}

/// Whether binding takes a copy of A and B, which runs then use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Snapshot {
    Never,
    /// Of normal layouts.
    Normal,
    Always,
}

/// Modelled time of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Latency {
    fixed_us: f64,
    /// GB/s that one core reads weights with, and that all can together.
    per_core: f64,
    total: f64,
}

/// Multiply-adds per second of a core, halves of the operations that are measured on hardware.
const F16_MACS: f64 = 0.35e12;
const I8_MACS: f64 = 0.7e12;

/// Rows up to which a run is bound by reading weights.
const FEW_ROWS: f64 = 8.0;

impl Latency {
    /// Time of a run of `m` rows on weights of so many elements and bytes, while `active` cores work.
    pub(crate) fn time(&self, m: usize, elements: usize, bytes: usize, active: usize) -> Duration {
        let rate = self.per_core.min(self.total / active.max(1) as f64) * 1e9;
        let reading = bytes as f64 / rate;
        let macs = if bytes > elements { F16_MACS } else { I8_MACS };
        let computing = m as f64 * elements as f64 / macs;
        let work = if m as f64 <= FEW_ROWS { reading } else { reading.max(computing) };
        Duration::from_secs_f64(self.fixed_us * 1e-6 + work)
    }
}

/// All settings.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) chip: &'static Chip,
    pub(crate) version: Version,
    pub(crate) version_text: String,
    pub(crate) driver: String,
    pub(crate) no_device: bool,
    /// Whether a breach of the contract ends the process.
    pub(crate) strict: bool,
    pub(crate) sync: Sync,
    pub(crate) snapshot: Snapshot,
    pub(crate) quirks: bool,
    pub(crate) memory: u64,
    pub(crate) domain_memory: u64,
    pub(crate) fd_limit: usize,
    pub(crate) any_n: bool,
    pub(crate) compute: bool,
    pub(crate) latency: Option<Latency>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) seed: u64,
}

/// The variables, without the `RKNN_EMU_` before each.
const NAMES: [&str; 16] = [
    "SOC",
    "VERSION",
    "DRIVER",
    "NO_DEVICE",
    "STRICT",
    "SYNC",
    "SNAPSHOT",
    "QUIRKS",
    "MEM_MB",
    "DOMAIN_MB",
    "FD_LIMIT",
    "RELAX_N",
    "COMPUTE",
    "LATENCY",
    "FAULT",
    "SEED",
];

impl Config {
    /// From lines `NAME=value`.
    pub(crate) fn from_text(text: &str) -> Result<Self, String> {
        let mut lines = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once('=').ok_or(format!("`{line}` has no `=`"))?;
            let name = name.strip_prefix("RKNN_EMU_").filter(|name| NAMES.contains(name));
            lines.push((name.ok_or(format!("`{line}` is no setting of the emulator"))?, value));
        }
        Self::new(|name| lines.iter().rfind(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    /// From `RKNN_EMU_` variables of the environment.
    pub(crate) fn from_env() -> Result<Self, String> {
        Self::new(|name| std::env::var(format!("RKNN_EMU_{name}")).ok())
    }

    fn new(value: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let text = |name: &str, default: &str| value(name).unwrap_or_else(|| default.to_owned());
        let number = |name: &str, default: u64| match value(name) {
            Some(text) => {
                text.parse().map_err(|_| format!("RKNN_EMU_{name}: `{text}` is no number"))
            }
            None => Ok(default),
        };
        let flag = |name: &str, default: bool| number(name, u64::from(default)).map(|n| n != 0);
        let unknown = |name: &str, value: &str| format!("RKNN_EMU_{name}: `{value}` is unknown");
        let soc = text("SOC", "rk3588");
        let version_text = text("VERSION", "2.3.2");
        let mebibytes = |n: u64| n.saturating_mul(1 << 20);
        let latency = match value("LATENCY") {
            Some(text) => Some(latency(&text).ok_or_else(|| unknown("LATENCY", &text))?),
            None => None,
        };
        Ok(Self {
            chip: Chip::named(&soc).ok_or_else(|| unknown("SOC", &soc))?,
            version: version(&version_text).ok_or_else(|| unknown("VERSION", &version_text))?,
            version_text,
            driver: text("DRIVER", "0.9.8"),
            no_device: flag("NO_DEVICE", false)?,
            strict: flag("STRICT", false)?,
            sync: match &text("SYNC", "strict")[..] {
                "lenient" => Sync::Lenient,
                "bind" => Sync::Bind,
                "strict" => Sync::Strict,
                other => return Err(unknown("SYNC", other)),
            },
            snapshot: match &text("SNAPSHOT", "always")[..] {
                "never" => Snapshot::Never,
                "norm" => Snapshot::Normal,
                "always" => Snapshot::Always,
                other => return Err(unknown("SNAPSHOT", other)),
            },
            quirks: flag("QUIRKS", true)?,
            memory: mebibytes(number("MEM_MB", u64::MAX)?),
            domain_memory: mebibytes(number("DOMAIN_MB", 4096)?),
            fd_limit: usize::try_from(number("FD_LIMIT", 0)?).unwrap_or(usize::MAX),
            any_n: flag("RELAX_N", true)?,
            compute: flag("COMPUTE", true)?,
            latency,
            faults: fault::parse(&text("FAULT", ""))?,
            seed: number("SEED", 1)?,
        })
    }
}

fn version(text: &str) -> Option<Version> {
    let mut parts = text.split('.').map(|part| part.parse::<u32>());
    match (parts.next()?.ok()?, parts.next()?.ok()?) {
        (1, _) => Some(Version::V1_6),
        (2, 0) => Some(Version::V2_0),
        (2.., _) => Some(Version::V2_1),
        _ => None,
    }
}

fn latency(text: &str) -> Option<Latency> {
    let parts: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let [fixed_us, per_core, total] = parts.ok()?.try_into().ok()?;
    let positive = fixed_us >= 0.0 && per_core > 0.0 && total > 0.0;
    positive.then_some(Latency { fixed_us, per_core, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked() {
        let config = Config::from_text("RKNN_EMU_SOC=rk3568\nRKNN_EMU_VERSION=2.0.0b0\n").unwrap();
        assert_eq!((config.chip.name, config.version), ("rk3568", Version::V2_0));
        for bad in [
            "RKNN_EMU_SOC=rk9999",
            "RKNN_EMU_ODD=1",
            "SOC=rk3588",
            "RKNN_EMU_SYNC",
            "RKNN_EMU_MEM_MB=many",
            "RKNN_EMU_LATENCY=1,2",
            "RKNN_EMU_FAULT=run:odd",
        ] {
            assert!(Config::from_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_model_of_time() {
        let latency = latency("33,11.1,26.6").unwrap();
        // One row: 2 MB of weights at 11.1 GB/s; on three cores at 26.6 / 3.
        let us = |m, active| latency.time(m, 1 << 20, 2 << 20, active).as_micros();
        assert_eq!((us(1, 1), us(1, 3)), (221, 269));
        // 512 rows: 0.35 T multiply-adds of f16 per second.
        assert_eq!(us(512, 1), 33 + 1533);
    }
}
