//! Whole graphs on any OpenCL device, through its library, opened at run time.
//!
//! A graph becomes a list of kernels with fixed arguments (`program.rs`): weights and caches of keys and
//! values stay on the device, intermediate tensors have places in one piece of its memory, and a run sends
//! its inputs, submits the list and waits once, for its results. Operations that no kernel computes go to
//! the CPU, one by one, with a line in the log and a count.
//!
//! `sys.rs` is the interface of the library, `device.rs` what devices can do, `pool.rs` their memory,
//! `programs.rs` the built kernels, `cl/` the kernels themselves: tiles as on the CPU, with the verbs as
//! macros. `ops/` says with which arguments they compute an operator.

mod allocation;
mod device;
mod error;
mod fuse;
mod ops;
mod planner;
mod pool;
mod program;
mod programs;
mod run;
mod sys;
mod trial;
mod weights;
mod workload;

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::graph::{
    Choices, Context as Graph, Device as GraphDevice, GraphError, Host, Program, TensorId,
};

pub use allocation::{AllocationTimes, Request};
pub use device::{DeviceInfo, Vendor};
pub use error::OpenClError;
pub use ops::matmul::WEIGHT_FORMATS;
pub use pool::PoolStats;
pub use sys::Faults;
pub use trial::{Bench, Trial};
pub use workload::{ParseWorkloadError, Workload};

use device::Shape;
use pool::{Pool, Source};
use programs::Programs;
use sys::{Api, Context, Mem, Queue, Recorder};
use weights::Kept;

/// How a device is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// The library; `None` for where systems have it.
    pub library: Option<PathBuf>,
    /// The device, by its number or a part of its name; `None` for the first GPU, else the first.
    pub device: Option<String>,
    /// Most bytes that graphs, weights and caches may take there; `None` for 80 % of what it has.
    pub memory_limit: Option<usize>,
    /// Folder for built kernels; `None` for no such folder.
    pub cache: Option<PathBuf>,
    /// The vendor for whose GPUs kernels are shaped; `None` for what suits the device.
    pub shaped_for: Option<Vendor>,
    /// Whether one kernel computes products with the norm, the gate and the sum around them.
    pub fuse: bool,
    /// Whether a device that shares the memory of the host reads large constants where they lie there,
    /// without a copy.
    pub lend: bool,
    /// Whether the kernels of a plan are recorded once, where the driver can: a run then submits them by one
    /// call.
    pub record: bool,
    /// Whether [`Counts::busy`] is kept, for which the driver notes the time of each kernel.
    pub profile: bool,
    /// More options for the driver's compiler.
    pub compiler: String,
    /// Told of operations that the CPU computes, once for each kind, and of caches that are damaged.
    pub log: fn(&str),
    /// Makes calls fail, for tests.
    pub faults: Arc<Faults>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            library: None,
            device: None,
            memory_limit: None,
            cache: programs::default_folder(),
            shaped_for: None,
            fuse: true,
            lend: true,
            record: true,
            profile: false,
            compiler: String::new(),
            log: |text| eprintln!("note: {text}"),
            faults: Arc::default(),
        }
    }
}

impl Options {
    /// The defaults, with what the environment says: `TILEWRIGHT_OPENCL_LIB` (a path),
    /// `TILEWRIGHT_OPENCL_DEVICE`, `TILEWRIGHT_OPENCL_MEMORY` (bytes), `TILEWRIGHT_OPENCL_CACHE` (a
    /// folder, or `off`), and `TILEWRIGHT_OPENCL_FUSE`, `_LEND` and `_RECORD` (`on` or `off`).
    ///
    /// # Errors
    /// [`OpenClError::Setting`].
    pub fn from_env() -> Result<Self, OpenClError> {
        let text = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let limit = match text("TILEWRIGHT_OPENCL_MEMORY") {
            None => None,
            Some(value) => Some(value.parse().map_err(|_| OpenClError::Setting {
                name: "TILEWRIGHT_OPENCL_MEMORY",
                value,
                expected: "a number of bytes",
            })?),
        };
        let cache = match text("TILEWRIGHT_OPENCL_CACHE") {
            None => programs::default_folder(),
            Some(off) if off == "off" => None,
            Some(folder) => Some(PathBuf::from(folder)),
        };
        let switch = |name: &'static str| match text(name).as_deref() {
            None | Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(other) => {
                let (value, expected) = (other.to_owned(), "`on` or `off`");
                Err(OpenClError::Setting { name, value, expected })
            }
        };
        Ok(Self {
            fuse: switch("TILEWRIGHT_OPENCL_FUSE")?,
            lend: switch("TILEWRIGHT_OPENCL_LEND")?,
            record: switch("TILEWRIGHT_OPENCL_RECORD")?,
            library: text("TILEWRIGHT_OPENCL_LIB").map(PathBuf::from),
            device: text("TILEWRIGHT_OPENCL_DEVICE"),
            memory_limit: limit,
            cache,
            ..Self::default()
        })
    }
}

/// Where lines of the log go.
#[derive(Clone, Copy)]
pub(super) struct Log(fn(&str));

impl Log {
    fn line(self, text: &str) {
        (self.0)(text);
    }
}

/// Held while devices are looked for and asked about: PoCL gives pointers to what another thread is just
/// making (3.1: a segmentation fault when two threads list devices for the first time).
static LISTING: Mutex<()> = Mutex::new(());

/// The devices with what they say of themselves.
fn listed(options: &Options) -> Result<Vec<(sys::Device, DeviceInfo)>, OpenClError> {
    let _alone = lock(&LISTING);
    let api = Api::open(options.library.as_ref(), options.faults.clone())?;
    let all = api.devices()?.into_iter().enumerate();
    Ok(all.map(|(i, device)| (device.clone(), DeviceInfo::of(i, &device))).collect())
}

/// All devices that OpenCL has here.
///
/// # Errors
/// [`OpenClError::Library`], [`OpenClError::NoDevice`].
pub fn devices(options: &Options) -> Result<Vec<DeviceInfo>, OpenClError> {
    Ok(listed(options)?.into_iter().map(|(_, info)| info).collect())
}

/// Where the pool's slabs come from.
pub(super) struct Slabs(Arc<Context>);

impl Source for Slabs {
    type Slab = Arc<Mem>;
    type Part = Mem;

    fn slab(&self, bytes: usize) -> Result<Arc<Mem>, OpenClError> {
        Mem::new(&self.0, bytes).map(Arc::new)
    }

    fn part(&self, slab: &Arc<Mem>, at: usize, bytes: usize) -> Result<Mem, OpenClError> {
        Mem::part(slab, at, bytes)
    }
}

type Region = pool::Region<Slabs>;

/// What plans of a device share.
pub(super) struct Shared {
    info: DeviceInfo,
    shape: Shape,
    fuse: bool,
    lend: bool,
    /// Records kernels, if that is wanted and possible.
    recorder: Option<Recorder>,
    api: Arc<Api>,
    device: sys::Device,
    context: Arc<Context>,
    queue: Arc<Queue>,
    pool: Arc<Pool<Slabs>>,
    programs: Programs,
    weights: Kept,
    log: Log,
    counts: Mutex<Fallbacks>,
    /// Device, platform and driver.
    identity: String,
    /// What plans have asked how to compute, each once.
    asked: Mutex<Vec<Workload>>,
}

/// Operations of all plans, and those that the CPU computes, by operator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// Operations that were planned.
    pub operations: usize,
    /// Those among them that the CPU computes, by operator, in the order in which they were met.
    pub on_cpu: Vec<(String, usize)>,
}

/// How much a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels submitted.
    pub kernels: u64,
    /// Times that the host has waited for the device.
    pub waits: u64,
    /// Bytes that the host has read.
    pub read: u64,
    /// Bytes that the host has sent.
    pub written: u64,
    /// Time that kernels have taken, if [`Options::profile`] is set.
    pub busy: Duration,
    /// Objects of the library that live.
    pub objects: i64,
    /// Bytes of buffers that live.
    pub bytes: i64,
}

/// A device that computes whole graphs. Sessions share it, and with it the weights on it.
pub struct OpenClDevice {
    shared: Arc<Shared>,
}

impl fmt::Debug for OpenClDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenClDevice").field(&self.shared.info.name).finish()
    }
}

impl OpenClDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// [`OpenClError`]: no library, no device, not the one asked for, or one that does not work.
    pub fn open(options: &Options) -> Result<Self, OpenClError> {
        let all = listed(options)?;
        let (device, info) = device::choose(&all, options.device.as_deref())?.clone();
        let api = device.api().clone();
        let working = device.number(sys::info::AVAILABLE) != 0
            && device.number(sys::info::COMPILER_AVAILABLE) != 0;
        if !working {
            return Err(OpenClError::Call { call: "clGetDeviceInfo", code: -2 });
        }
        let context = Arc::new(Context::of(&device)?);
        let queue = Arc::new(Queue::new(&context, &device, options.profile)?);
        let bytes = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let limit = options.memory_limit.unwrap_or(bytes(info.memory) / 5 * 4);
        let pool = Pool::new(Slabs(context.clone()), info.align, bytes(info.largest_buffer), limit);
        let identity =
            format!("{} | {} | {} | {}", info.name, info.platform, info.version, info.driver);
        let log = Log(options.log);
        let programs =
            Programs::new(identity.clone(), &options.compiler, options.cache.clone(), log);
        let shape = info.shape(options.shaped_for);
        let (weights, counts) = (Kept::default(), Mutex::default());
        let lend = options.lend && info.unified_memory;
        // The times of single kernels are not known of what was recorded.
        let records = options.record && info.command_buffer && !options.profile;
        let recorder = if records { Recorder::of(&device) } else { None };
        let shared = Shared {
            info,
            shape,
            fuse: options.fuse,
            lend,
            recorder,
            api,
            device,
            context,
            queue,
            pool,
            programs,
            weights,
            log,
            counts,
            // Bars separate the fields of a table, and lines its entries.
            identity: identity.replace('|', ",").split_whitespace().collect::<Vec<_>>().join(" "),
            asked: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// What the device says of itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    /// The memory that graphs, weights and caches take there.
    pub fn memory(&self) -> PoolStats {
        self.shared.pool.stats()
    }

    /// Gives memory back to the device that nobody uses; gives the number of bytes.
    pub fn trim(&self) -> usize {
        self.shared.pool.trim()
    }

    /// What the device has done so far.
    pub fn counts(&self) -> Counts {
        let [waits, kernels, read, written] = self.shared.queue.counts();
        let (objects, bytes) = self.shared.api.live();
        let busy = self.shared.queue.times().iter().map(|(.., time)| *time).sum();
        Counts { kernels, waits, read, written, busy, objects, bytes }
    }

    /// Kernels, by name, definitions and work-items, with how often they ran and what that took in all, if
    /// [`Options::profile`] is set.
    pub fn kernel_times(&self) -> Vec<(Arc<str>, u64, Duration)> {
        self.shared.queue.times()
    }

    /// Which operations went to the CPU.
    pub fn fallbacks(&self) -> Fallbacks {
        lock(&self.shared.counts).clone()
    }

    /// What makes calls fail.
    pub fn faults(&self) -> &Arc<Faults> {
        self.shared.api.faults()
    }
}

impl GraphDevice for OpenClDevice {
    fn program(
        &self,
        cx: &Graph,
        outputs: &[TensorId],
        host: Host,
        choices: Option<&dyn Choices>,
    ) -> Option<Result<Box<dyn Program>, GraphError>> {
        let made = program::Planned::new(&self.shared, cx, outputs, host, choices);
        Some(made.map(|planned| Box::new(planned) as Box<dyn Program>))
    }

    fn takes_whole_graphs(&self) -> bool {
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
