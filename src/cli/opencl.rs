//! What `tilewright doctor` finds out about OpenCL devices.

use serde::Serialize;

/// A device in the report.
#[derive(Serialize)]
pub(super) struct Found {
    index: usize,
    pub(super) name: String,
    platform: String,
    version: String,
    driver: String,
    kind: &'static str,
    units: u64,
    memory_bytes: u64,
    local_memory_bytes: u64,
    align: usize,
    vector: u64,
    fp16: bool,
    int8_dot: bool,
    subgroups: bool,
    images: bool,
    unified_memory: bool,
    command_buffer: bool,
}

/// The devices, or why there are none.
#[cfg(feature = "opencl")]
pub(super) fn examine(advice: &mut Vec<String>) -> Result<Vec<Found>, String> {
    use tilewright::backend::opencl::{OpenClDevice, Options, devices};
    let options = Options::from_env().map_err(|e| e.to_string())?;
    let all = devices(&options).map_err(|e| e.to_string())?;
    // The one that would be used is tried.
    if let Err(e) = OpenClDevice::open(&options) {
        advice.push(format!("the OpenCL device that would be used does not work: {e}"));
    }
    let found = all.into_iter().map(|d| Found {
        index: d.index,
        name: d.name,
        platform: d.platform,
        version: d.version,
        driver: d.driver,
        kind: d.kind,
        units: d.units,
        memory_bytes: d.memory,
        local_memory_bytes: d.local_memory,
        align: d.align,
        vector: d.vector,
        fp16: d.fp16,
        int8_dot: d.int8_dot,
        subgroups: d.subgroups,
        images: d.images,
        unified_memory: d.unified_memory,
        command_buffer: d.command_buffer,
    });
    Ok(found.collect())
}

/// The devices, or why there are none.
#[cfg(not(feature = "opencl"))]
pub(super) fn examine(_advice: &mut Vec<String>) -> Result<Vec<Found>, String> {
    Err("this build has no OpenCL backend".into())
}

impl Found {
    /// A line about it.
    pub(super) fn line(&self) -> String {
        let has = [
            (self.fp16, "fp16"),
            (self.int8_dot, "int8 dot products"),
            (self.subgroups, "sub-groups"),
            (self.images, "images"),
            (self.unified_memory, "unified memory"),
            (self.command_buffer, "command buffers"),
        ];
        let has: Vec<&str> =
            has.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect();
        format!(
            "{}: {} ({}, {} units, {}; {}; {})",
            self.index,
            self.name,
            self.kind,
            self.units,
            self.platform,
            self.version,
            has.join(", ")
        )
    }
}
