//! Matrix products on the NPU of Rockchip's chips, through their run-time library.
//!
//! The library is opened at run time; nothing of it is part of this program. A product is cut
//! (`planner.rs`), packed (`pack.rs`), begun and waited for (`product.rs`), computed by the thread that owns
//! each core (`owner.rs`), compared with check sums, and only then written: a failure leaves the result to the CPU
//! (`step.rs`). A core that fails rests (`breaker.rs`); one that does not answer in time is given up,
//! with all that it owns. A library is tested before its first use (`first_use.rs`). Symbols and
//! structures are in `sys.rs`, layouts and limits of the chips in `chip.rs`.

mod breaker;
mod chip;
mod costs;
mod error;
mod first_use;
mod owner;
mod pack;
mod plan_file;
mod planner;
mod product;
mod rates;
mod self_test;
mod step;
mod sys;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tilewright_kernels::Isa;

pub use chip::Numbers;
pub use costs::Costs;
pub use error::RknnError;
pub use first_use::{file_at, test_before_use, test_in};
pub use plan_file::PlanFile;
pub use product::Pending;
pub use rates::{PackRates, pack_rates};
pub use self_test::{SelfTest, self_test};
pub use step::RknnDevice;
pub use sys::Interface;

use breaker::Breaker;
use chip::Chip;
use owner::Owner;
use pack::Packer;
use planner::MAX_ROWS;
use sys::Library;

/// Name of the library, where nothing says where it is.
const LIBRARY: &str = "librknnrt.so";

/// Share of the free memory that weights may take, in percent, and most per address space.
const BUDGET_PERCENT: usize = 40;
const BUDGET_MOST: usize = (2 << 30) - (64 << 20);

/// Address spaces that there can be.
const MAX_DOMAINS: usize = 16;

/// Most threads that pack activations.
const PACKERS: usize = 4;

/// How the NPU is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// The library; `None` for `librknnrt.so` where the system looks for libraries.
    pub library: Option<PathBuf>,
    /// The chip; `None` for the one that the device tree names.
    pub chip: Option<String>,
    /// Whether a library that says it is an emulator is accepted.
    pub emulator: bool,
    /// How products are computed.
    pub numbers: Numbers,
    /// First core in use.
    pub first_core: usize,
    /// Most cores in use.
    pub cores: usize,
    /// Fewest rows of activations of a product that the NPU takes; `None` if costs decide.
    pub min_rows: Option<usize>,
    /// The only products that it takes, whatever they cost; `None` for all.
    pub plan: Option<PlanFile>,
    /// What products cost; `None` for what is known of the chip.
    pub costs: Option<Costs>,
    /// Most bytes of packed weights on all cores; `None` for 40 % of the free memory.
    pub weight_bytes: Option<usize>,
    /// Address spaces of the NPU, from 1 to 16, each for 2 GiB of weights less 64 MiB. More than one needs
    /// a driver of 0.9.8 and no other program that uses them.
    pub domains: usize,
    /// Time that a core gets for a product; `None` for what a prediction allows, 2 s at least.
    pub deadline: Option<Duration>,
    /// Whether results are compared with check sums.
    pub verify: bool,
    /// Told of each reason for which the CPU computes instead, once.
    pub log: fn(&str),
    /// File that keeps other processes of ours away while it is locked; `None` for none.
    pub lock: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            library: None,
            chip: None,
            emulator: false,
            numbers: Numbers::F16,
            first_core: 0,
            cores: usize::MAX,
            min_rows: None,
            plan: None,
            costs: None,
            weight_bytes: None,
            domains: 1,
            deadline: None,
            verify: true,
            log: |text| eprintln!("warning: {text}"),
            lock: Some(std::env::temp_dir().join("tilewright-rknn.lock")),
        }
    }
}

impl Options {
    /// The defaults, with what the environment says: `TILEWRIGHT_RKNN_LIB` (a path),
    /// `TILEWRIGHT_RKNN_CHIP`, `TILEWRIGHT_RKNN_EMULATOR` (1), `TILEWRIGHT_RKNN_TYPE` (`f16`,
    /// `i8` or `i4`), `TILEWRIGHT_RKNN_CORES`, `TILEWRIGHT_RKNN_MIN_ROWS`, `TILEWRIGHT_RKNN_DOMAINS`,
    /// `TILEWRIGHT_RKNN_PLAN` and `TILEWRIGHT_RKNN_COSTS` (files).
    ///
    /// # Errors
    /// [`RknnError::Setting`], [`RknnError::PlanFile`], [`RknnError::CostFile`].
    pub fn from_env() -> Result<Self, RknnError> {
        let text = |name: &str| std::env::var(name).ok().filter(|v| !v.is_empty());
        let number = |name: &'static str, default: usize| match text(name) {
            None => Ok(default),
            Some(value) => value.parse().ok().filter(|&n| n > 0).ok_or(RknnError::Setting {
                name,
                value,
                expected: "a number above 0",
            }),
        };
        let numbers = match text("TILEWRIGHT_RKNN_TYPE") {
            None => Numbers::F16,
            Some(value) => match &value[..] {
                "f16" => Numbers::F16,
                "i8" => Numbers::I8,
                "i4" => Numbers::I4,
                _ => {
                    let (name, expected) = ("TILEWRIGHT_RKNN_TYPE", "f16, i8 or i4");
                    return Err(RknnError::Setting { name, value, expected });
                }
            },
        };
        Ok(Self {
            library: text("TILEWRIGHT_RKNN_LIB").map(PathBuf::from),
            chip: text("TILEWRIGHT_RKNN_CHIP"),
            emulator: text("TILEWRIGHT_RKNN_EMULATOR").is_some_and(|v| v == "1"),
            numbers,
            cores: number("TILEWRIGHT_RKNN_CORES", usize::MAX)?,
            min_rows: match number("TILEWRIGHT_RKNN_MIN_ROWS", 0)? {
                0 => None,
                rows => Some(rows),
            },
            domains: number("TILEWRIGHT_RKNN_DOMAINS", 1)?,
            plan: text("TILEWRIGHT_RKNN_PLAN").map(|p| PlanFile::read(p.as_ref())).transpose()?,
            costs: text("TILEWRIGHT_RKNN_COSTS").map(|p| Costs::read(p.as_ref())).transpose()?,
            ..Self::default()
        })
    }
}

impl Options {
    /// Most bytes of packed weights: what is asked for, or 40 % of the memory that is free now and no more than
    /// fits the address spaces.
    pub fn weight_budget(&self) -> usize {
        self.weight_bytes.unwrap_or_else(|| {
            let free = crate::tensor::available_memory().unwrap_or(1 << 30);
            (free / 100 * BUDGET_PERCENT).min(BUDGET_MOST * self.domains)
        })
    }
}

/// Name of the chip that would be used.
///
/// # Errors
/// [`RknnError::UnknownChip`] where there is none, [`RknnError::Setting`].
pub fn chip_name(options: &Options) -> Result<&'static str, RknnError> {
    Chip::find(options.chip.as_deref()).map(|chip| chip.name)
}

/// A matrix of weights, by its columns: `k` elements for each of `n` columns of the result.
pub trait Rows: Send + Sync {
    /// Elements that are summed.
    fn k(&self) -> usize;

    /// Columns of the result.
    fn n(&self) -> usize;

    /// The `k` elements for one column.
    ///
    /// # Errors
    /// [`RknnError::Weights`].
    fn row(&self, column: usize, out: &mut [f32]) -> Result<(), RknnError>;

    /// Those for several columns, one after the other.
    ///
    /// # Errors
    /// [`RknnError::Weights`].
    fn rows(&self, columns: Range<usize>, out: &mut [f32]) -> Result<(), RknnError> {
        let rows = out.chunks_exact_mut(self.k());
        columns.zip(rows).try_for_each(|(column, out)| self.row(column, out))
    }

    /// The same where they lie, if they lie there so.
    fn slice(&self, columns: Range<usize>) -> Option<&[f32]> {
        let _ = columns;
        None
    }
}

/// Weights that products name. Clones are the same weights.
#[derive(Clone)]
pub struct Weights {
    id: u64,
    source: Arc<dyn Rows>,
}

impl Weights {
    /// Weights of their own, packed when they are used first, and again if they had to make room.
    pub fn new(source: impl Rows + 'static) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { id, source: Arc::new(source) }
    }

    /// Elements that are summed, and columns of the result.
    pub fn sizes(&self) -> (usize, usize) {
        (self.source.k(), self.source.n())
    }
}

/// A product that somebody would like to have computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want<'a> {
    /// Rows of activations.
    pub rows: usize,
    /// Elements that are summed.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
    /// Its name in its graph, where it has one.
    pub name: Option<&'a str>,
    /// Bytes of the weights that the CPU would read.
    pub stored_bytes: usize,
}

/// What an NPU has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Products that it computed.
    pub products: u64,
    /// Products that it could not compute.
    pub failures: u64,
    /// Why, each reason once.
    pub reasons: Vec<String>,
    /// Of weights that were rounded to integers so far: squares of what was lost, by those of the elements.
    pub requantized: Option<f64>,
}

/// What is known of an NPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Name of the chip.
    pub chip: &'static str,
    /// Cores that answered.
    pub cores: usize,
    /// The library's file.
    pub library: PathBuf,
    /// What its symbols say of its version.
    pub interface: Interface,
    /// Texts of the versions of library and driver, if the library tells them.
    pub versions: Option<[String; 2]>,
}

struct Cores {
    packer: Packer,
    owners: Vec<Owner>,
    breakers: Vec<Breaker>,
    /// By when each core must have answered everything that it was given.
    ends: Vec<Instant>,
}

/// An NPU: its library, and a thread for each core.
pub struct Npu {
    chip: &'static Chip,
    options: Options,
    description: Description,
    cores: Mutex<Cores>,
    report: Mutex<Report>,
    /// Of all weights that were packed: squares of what rounding changed, and of the elements.
    lost: Mutex<[f64; 2]>,
    _lock: Option<File>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Npu {
    /// Opens the library and starts the cores. A core that cannot be used is left out; if none can,
    /// that is an error.
    ///
    /// # Errors
    /// An unknown chip, a library that cannot be opened or used, another process that uses the NPU.
    pub fn open(options: Options) -> Result<Self, RknnError> {
        let chip = Chip::find(options.chip.as_deref())?;
        if !chip.has(options.numbers) {
            let (name, value) = ("TILEWRIGHT_RKNN_TYPE", options.numbers.name().to_owned());
            return Err(RknnError::Setting { name, value, expected: "f16 or i8 on this chip" });
        }
        let held = options.lock.as_ref().map(|path| hold(path)).transpose()?;
        let path = options.library.clone().unwrap_or_else(|| PathBuf::from(LIBRARY));
        let library = Library::open(&path)?;
        let domains = (1..=MAX_DOMAINS).contains(&options.domains)
            && (options.domains == 1 || library.interface() != Interface::V1);
        if !domains {
            let (name, value) = ("TILEWRIGHT_RKNN_DOMAINS", options.domains.to_string());
            return Err(RknnError::Setting {
                name,
                value,
                expected: "from 1 to 16, and 1 for a library before 2.0",
            });
        }
        let isa = Isa::select()?;
        let first = options.first_core.min(chip.cores - 1);
        let cores = options.cores.clamp(1, chip.cores - first);
        let budget = options.weight_budget();
        let deadline = options.deadline.unwrap_or(product::LEAST_DEADLINE);
        let (mut owners, mut breakers) = (Vec::new(), Vec::new());
        let (mut versions, mut problem) = (None, RknnError::Unavailable);
        let mut report = Report::default();
        for core in first..first + cores {
            let settings = owner::Settings {
                chip,
                core,
                budget: budget / cores,
                domains: options.domains,
                domain_bytes: BUDGET_MOST / cores,
                isa,
            };
            let (mut owner, started) = Owner::start(library.clone(), settings)?;
            let answer = started.recv_timeout(deadline).unwrap_or_else(|_| {
                owner.abandon();
                Err(RknnError::Timeout { core, after: deadline })
            });
            owners.push(owner);
            breakers.push(match answer {
                Ok(texts) => {
                    versions = texts.or(versions);
                    Breaker::new()
                }
                Err(e) => {
                    report.reasons.push(e.to_string());
                    problem = e.clone();
                    Breaker::Broken(e)
                }
            });
        }
        let usable = breakers.iter().filter(|b| !matches!(b, Breaker::Broken(_))).count();
        if usable == 0 {
            return Err(problem);
        }
        let emulated = versions.as_ref().filter(|v| v[0].contains("emulator"));
        if let Some([api, _]) = emulated.filter(|_| !options.emulator) {
            return Err(RknnError::Emulator(api.clone()));
        }
        let description = Description {
            chip: chip.name,
            cores: usable,
            library: library.path().to_owned(),
            interface: library.interface(),
            versions,
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let packer = Packer::new(isa, threads.min(PACKERS))?;
        let ends = vec![Instant::now(); owners.len()];
        let cores = Mutex::new(Cores { packer, owners, breakers, ends });
        Ok(Self {
            chip,
            options,
            description,
            cores,
            report: Mutex::new(report),
            lost: Mutex::default(),
            _lock: held,
        })
    }

    /// Place of a core among those in use.
    fn place(&self, core: usize) -> usize {
        core - self.options.first_core.min(self.chip.cores - 1)
    }

    /// What is known of it.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// How it computes products.
    pub fn numbers(&self) -> Numbers {
        self.options.numbers
    }

    /// What it has done so far.
    pub fn report(&self) -> Report {
        let [lost, all] = *lock(&self.lost);
        let rounded = self.options.numbers.most().is_some() && all > 0.0;
        Report { requantized: rounded.then_some(lost / all), ..lock(&self.report).clone() }
    }

    /// Whether a product is one for the NPU: one of the plan file's, if there is one; else one of enough
    /// rows, if there is a number; else one that costs say is faster there. The answer depends on nothing
    /// else, so a plan that was made with it stays right.
    pub fn takes(&self, want: &Want<'_>) -> bool {
        let (options, chip) = (&self.options, self.chip);
        let numbers = options.numbers;
        // What is smaller than a block is mostly padding.
        if want.k < chip::K_UNIT || want.n < chip.n_unit(numbers) || want.rows == 0 {
            return false;
        }
        if let Some(plan) = &options.plan {
            return plan.has(want);
        }
        match options.min_rows {
            Some(rows) => want.rows >= rows,
            None => {
                let costs = options.costs.unwrap_or_else(|| Costs::of(chip));
                costs.prefers_npu(chip, numbers, self.description.cores, want)
            }
        }
    }
}

/// Locks a file; other processes that do the same are refused.
fn hold(path: &std::path::Path) -> Result<File, RknnError> {
    let taken = || RknnError::Locked(path.to_owned());
    let file = File::options().create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|_| taken())?;
    file.try_lock().map_err(|_| taken())?;
    Ok(file)
}
