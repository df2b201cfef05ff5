//! Which devices there are, what they can do, and how kernels are shaped for them.

use super::OpenClError;
use super::sys::{Device, info};

/// Who made a device or its driver: what decides about work-arounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vendor {
    /// PoCL, on processors.
    Pocl,
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
    /// Qualcomm Adreno.
    Adreno,
    /// Arm Mali.
    Mali,
    /// Any other.
    Other,
}

/// What a device says of itself.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Its number among all devices, as it can be asked for.
    pub index: usize,
    /// Its name.
    pub name: String,
    /// Who made it.
    pub vendor_name: String,
    /// Who made it, as work-arounds know it.
    pub vendor: Vendor,
    /// The platform it belongs to.
    pub platform: String,
    /// The version of OpenCL that it has.
    pub version: String,
    /// The version of its driver.
    pub driver: String,
    /// `cpu`, `gpu`, `accelerator` or `other`.
    pub kind: &'static str,
    /// Units that compute independently.
    pub units: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the largest buffer.
    pub largest_buffer: u64,
    /// Bytes of the memory that work-items of a group share.
    pub local_memory: u64,
    /// Most work-items of a group.
    pub work_group: u64,
    /// Bytes that parts of buffers are aligned to.
    pub align: usize,
    /// Elements of f32 that the device would have in a vector.
    pub vector: u64,
    /// Whether it computes in half precision.
    pub fp16: bool,
    /// Whether it has integer dot products.
    pub int8_dot: bool,
    /// Whether it has sub-groups.
    pub subgroups: bool,
    /// Whether it has images.
    pub images: bool,
    /// Whether it shares its memory with the host.
    pub unified_memory: bool,
    /// Whether it records sequences of commands.
    pub command_buffer: bool,
}

impl DeviceInfo {
    pub(super) fn of(index: usize, device: &Device) -> Self {
        let extensions = device.text(info::EXTENSIONS);
        let has = |name: &str| extensions.split_whitespace().any(|e| e == name);
        let (name, vendor_name) = (device.text(info::NAME), device.text(info::VENDOR));
        let platform = device.text(info::PLATFORM_NAME);
        let kind = match device.number(info::TYPE) {
            t if t & 2 != 0 => "cpu",
            t if t & 4 != 0 => "gpu",
            t if t & 8 != 0 => "accelerator",
            _ => "other",
        };
        let align = usize::try_from(device.number(info::MEM_BASE_ADDR_ALIGN) / 8).unwrap_or(0);
        Self {
            index,
            vendor: vendor(&name, &vendor_name, &platform),
            platform: format!("{platform} ({})", device.text(info::PLATFORM_VERSION)),
            version: device.text(info::VERSION),
            driver: device.text(info::DRIVER_VERSION),
            kind,
            units: device.number(info::MAX_COMPUTE_UNITS),
            memory: device.number(info::GLOBAL_MEM_SIZE),
            largest_buffer: device.number(info::MAX_MEM_ALLOC_SIZE),
            local_memory: device.number(info::LOCAL_MEM_SIZE),
            work_group: device.number(info::MAX_WORK_GROUP_SIZE),
            align: align.max(64).next_power_of_two(),
            vector: device.number(info::PREFERRED_VECTOR_WIDTH_FLOAT),
            fp16: has("cl_khr_fp16"),
            int8_dot: has("cl_khr_integer_dot_product") || has("cl_arm_integer_dot_product_int8"),
            subgroups: has("cl_khr_subgroups") || has("cl_intel_subgroups"),
            images: device.number(info::IMAGE_SUPPORT) != 0,
            unified_memory: device.number(info::HOST_UNIFIED_MEMORY) != 0,
            command_buffer: has("cl_khr_command_buffer"),
            name,
            vendor_name,
        }
    }

    /// Work-items that keep a GPU busy: a kernel with fewer had better let more of them share its work.
    pub(super) fn enough_items(&self) -> usize {
        usize::try_from(self.units).unwrap_or(usize::MAX).saturating_mul(ITEMS_OF_UNIT)
    }

    /// A power of two of work-items, `most` at most, that a group may have.
    pub(super) fn group(&self, most: usize) -> usize {
        let allowed = usize::try_from(self.work_group).unwrap_or(usize::MAX);
        1 << most.min(allowed).max(1).ilog2()
    }

    /// A line about it.
    pub fn summary(&self) -> String {
        format!("{}: {} [{}; {}]", self.index, self.name, self.kind, self.platform)
    }

    /// How kernels are shaped for this device, or as for GPUs of another vendor.
    pub(super) fn shape(&self, vendor: Option<Vendor>) -> Shape {
        let of_gpu = |vendor| GPUS.iter().find(|(v, _)| *v == vendor).map_or(GPU, |(_, s)| *s);
        let shape = match (vendor, self.kind) {
            (None, "cpu") => {
                let vec = self.vector.clamp(4, 16).next_power_of_two() as usize;
                Shape { vec, ..CPU }
            }
            (asked, _) => of_gpu(asked.unwrap_or(self.vendor)),
        };
        shape.within(self.work_group)
    }
}

/// Work-items that a unit of a GPU has at a time, so that some compute while others wait for memory.
const ITEMS_OF_UNIT: usize = 256;

/// Processors: vectors as long as theirs, one work-item per tile.
const CPU: Shape = Shape {
    vec: 16,
    w_ob: 8,
    c_v: 2,
    rows: [4, 4],
    columns: 8,
    lanes: 1,
    items: [1; 2],
    unroll: 4,
};

/// GPUs of which nothing else is known.
const GPU: Shape = Shape {
    vec: 4,
    w_ob: 8,
    c_v: 1,
    rows: [2, 2],
    columns: 2,
    lanes: 32,
    items: [1; 2],
    unroll: 4,
};

/// What is different with GPUs of a vendor. Work-items that share a sum are as many as run in step there.
const GPUS: [(Vendor, Shape); 5] = [
    // Vectors of scalars cost nothing, and registers are few.
    (Vendor::Nvidia, Shape { w_ob: 4, ..GPU }),
    // 64 in step, on newer ones 32 or 64.
    (Vendor::Amd, Shape { lanes: 64, ..GPU }),
    // 8, 16 or 32, as their compiler chooses.
    (Vendor::Intel, Shape { lanes: 16, ..GPU }),
    // 64 or 128.
    (Vendor::Adreno, Shape { lanes: 64, ..GPU }),
    // Up to 16; a kernel that needs more than half of the registers halves how many run.
    (Vendor::Mali, Shape { w_ob: 4, lanes: 16, unroll: 2, ..GPU }),
];

/// Shapes of kernels: the row of an instruction set, for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Elements of a vector.
    pub(super) vec: usize,
    /// Rows of a tile of a product, and output channels of one of a convolution.
    pub(super) w_ob: usize,
    /// Vectors of a row of a tile.
    pub(super) c_v: usize,
    /// Rows of activations and rows of weights of a tile of a product with weights by rows.
    pub(super) rows: [usize; 2],
    /// The latter where there is one row of activations.
    pub(super) columns: usize,
    /// Work-items that share a sum.
    pub(super) lanes: usize,
    /// Tiles of a work-group that prepares its activations together: at a time, and how often.
    pub(super) items: [usize; 2],
    /// Steps of the reduction in one COMPUTE.
    pub(super) unroll: usize,
}

impl Shape {
    /// This shape on a device whose groups have at most so many work-items.
    fn within(self, most: u64) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(1);
        let lanes = self.lanes.min(1 << most.ilog2());
        // A processor computes tiles one after the other: work-items side by side would be a loop in which
        // nothing stays in registers.
        let items = if lanes == 1 { [1, 16] } else { [4.min(most / lanes), 1] };
        Self { lanes, items, ..self }
    }
}

fn vendor(name: &str, vendor: &str, platform: &str) -> Vendor {
    let all = format!("{name} {vendor} {platform}").to_lowercase();
    let known = [
        ("portable computing language", Vendor::Pocl),
        ("pocl", Vendor::Pocl),
        ("nvidia", Vendor::Nvidia),
        ("adreno", Vendor::Adreno),
        ("qualcomm", Vendor::Adreno),
        ("mali", Vendor::Mali),
        ("advanced micro", Vendor::Amd),
        ("amd", Vendor::Amd),
        ("intel", Vendor::Intel),
    ];
    known.into_iter().find(|(text, _)| all.contains(text)).map_or(Vendor::Other, |(_, v)| v)
}

/// The device that `asked` means: a number, a part of a name, or, if nothing is asked for, the first GPU, else
/// the first accelerator, else the first device.
pub(super) fn choose<'a>(
    all: &'a [(Device, DeviceInfo)],
    asked: Option<&str>,
) -> Result<&'a (Device, DeviceInfo), OpenClError> {
    let Some(asked) = asked else {
        let first = |kind| all.iter().find(|(_, info)| info.kind == kind);
        let any = || all.first().ok_or(OpenClError::NoDevice { platforms: 0 });
        return first("gpu").or_else(|| first("accelerator")).map_or_else(any, Ok);
    };
    let found = match asked.parse::<usize>() {
        Ok(index) => all.get(index),
        Err(_) => {
            let text = asked.to_lowercase();
            all.iter().find(|(_, info)| {
                info.name.to_lowercase().contains(&text)
                    || info.platform.to_lowercase().contains(&text)
            })
        }
    };
    found.ok_or_else(|| OpenClError::UnknownDevice {
        asked: asked.to_owned(),
        known: all.iter().map(|(_, info)| info.summary()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendors_are_told_apart() {
        let cases = [
            ("pthread-skylake", "AuthenticAMD", "Portable Computing Language", Vendor::Pocl),
            ("NVIDIA H200", "NVIDIA Corporation", "NVIDIA CUDA", Vendor::Nvidia),
            ("gfx1100", "Advanced Micro Devices, Inc.", "AMD Accelerated", Vendor::Amd),
            ("QUALCOMM Adreno(TM)", "QUALCOMM", "QUALCOMM Snapdragon(TM)", Vendor::Adreno),
            ("Mali-G610 r0p0", "ARM", "ARM Platform", Vendor::Mali),
            ("Intel(R) UHD Graphics", "Intel(R) Corporation", "Intel(R) OpenCL", Vendor::Intel),
            ("V3D", "Broadcom", "VC4CL", Vendor::Other),
        ];
        for (name, maker, platform, expected) in cases {
            assert_eq!(vendor(name, maker, platform), expected, "{name}");
        }
    }
}
