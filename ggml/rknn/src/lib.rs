//! `libggml_tilewright_rknn.so`: the NPU of Rockchip's chips computes products of a stock llama.cpp.
//!
//! The variables are those of the backend `rknn` (`docs/rknn.md`). What the NPU cannot compute this
//! plug-in computes on the CPU, with the threads that llama.cpp was told to use.
//!
//! Before its first use the NPU's library is tested in a process of its own. A plug-in has no program to start
//! for that: it starts its host's again, with itself loaded first, and ends that before it begins.
#![cfg(target_os = "linux")]

use core::ffi::{CStr, c_int, c_void};
use core::hash::Hasher;
use std::collections::HashMap;
use std::hash::DefaultHasher;
use std::io::Write;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tilewright::backend::cpu::Products;
use tilewright::backend::rknn::{
    self, Npu, Options, RknnError, Rows, Want, file_at, self_test, test_before_use,
};
use tilewright::tensor::block::dequantize;
use tilewright::{DType, Isa};
use tilewright_ggml::{Engine, Memory, Shape, Weights, start};

/// Pieces of weights that are compared to see whether they have been written again, and the bytes of each.
const SAMPLES: usize = 64;
const SAMPLE: usize = 8;

/// Most matrices that are remembered; more are the weights of several models.
const MATRICES: usize = 1 << 16;

struct Rknn {
    npu: Npu,
    matrices: Mutex<HashMap<Key, Known>>,
    isa: Isa,
    cpu: Mutex<Products>,
}

/// Memory, offset, rows, type.
type Key = (u64, usize, usize, DType);

/// Weights as they were packed.
struct Known {
    version: u64,
    sample: u64,
    weights: rknn::Weights,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rknn {
    fn new() -> Result<Self, String> {
        let isa = Isa::select().map_err(|e| e.to_string())?;
        let options = Options::from_env().map_err(|e| e.to_string())?;
        let refused = |e: RknnError| format!("{e}, before its first use");
        if test_before_use(&options, &mut child()?).map_err(refused)? {
            eprintln!("tilewright's plug-in: the NPU's library has passed its self-test");
        }
        let npu = Npu::open(options).map_err(|e| e.to_string())?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let cpu = Mutex::new(Products::new(isa, threads).map_err(|e| e.to_string())?);
        Ok(Self { npu, matrices: Mutex::default(), isa, cpu })
    }

    /// The weights as the NPU knows them: those of before if nothing has been written since.
    fn matrix(&self, w: &Weights<'_>) -> Option<rknn::Weights> {
        let (memory, at) = w.place.clone()?;
        let (id, version) = memory.state();
        let key = (id, at, w.n, w.dtype);
        let sample = sample(w.bytes);
        let mut all = lock(&self.matrices);
        if let Some(known) = all.get(&key)
            && (known.version, known.sample, known.weights.sizes()) == (version, sample, (w.k, w.n))
        {
            return Some(known.weights.clone());
        }
        if all.len() >= MATRICES {
            all.clear();
        }
        let row_bytes = w.bytes.len() / w.n;
        let (dtype, k, n) = (w.dtype, w.k, w.n);
        let weights = rknn::Weights::new(Matrix { memory, at, dtype, k, n, row_bytes });
        all.insert(key, Known { version, sample, weights: weights.clone() });
        Some(weights)
    }
}

/// A number of a few bytes here and there: a program may write weights without telling.
fn sample(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    let step = (bytes.len() / SAMPLES).max(SAMPLE);
    bytes.chunks(step).for_each(|piece| hasher.write(&piece[..SAMPLE.min(piece.len())]));
    hasher.finish()
}

/// Weights in memory of ours.
struct Matrix {
    memory: Arc<Memory>,
    at: usize,
    dtype: DType,
    k: usize,
    n: usize,
    row_bytes: usize,
}

impl Rows for Matrix {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.n
    }

    fn row(&self, column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        let mut bytes = vec![0; self.row_bytes];
        let at = self.at + column * self.row_bytes;
        self.memory.read(at, &mut bytes).map_err(RknnError::Weights)?;
        dequantize(self.dtype, &bytes, out).map_err(|e| RknnError::Weights(e.to_string()))
    }
}

impl Engine for Rknn {
    fn name(&self) -> &'static CStr {
        c"RKNN"
    }

    fn description(&self) -> String {
        let about = self.npu.description();
        let version = about.versions.as_ref().map_or("unknown version", |v| &v[0]);
        format!("{}, {} cores, library {version}", about.chip, about.cores)
    }

    fn guid(&self) -> [u8; 16] {
        [
            0xc9, 0xbd, 0xb7, 0x02, 0x49, 0x36, 0x42, 0x12, 0xaf, 0x35, 0xa2, 0x87, 0xd8, 0xc0,
            0x29, 0x20,
        ]
    }

    /// A core that has been given up may still read weights.
    fn maps(&self) -> bool {
        false
    }

    fn supports(&self, shape: &Shape<'_>) -> bool {
        let &Shape { dtype, rows, k, n, name, .. } = shape;
        let Some(stored_bytes) = dtype.bytes_of(k * n) else { return false };
        shape.constant
            && shape.batch == 1
            && self.npu.takes(&Want { rows, k, n, name: Some(name), stored_bytes })
            && Products::takes(self.isa, shape.dtype, shape.n, shape.k)
    }

    fn multiply(&self, w: &Weights<'_>, x: &[f32], y: &mut [f32]) -> Result<(), String> {
        // The NPU notes why it failed.
        let done = self.matrix(w).is_some_and(|weights| self.npu.multiply(&weights, x, y).is_ok());
        if done {
            return Ok(());
        }
        lock(&self.cpu).multiply(w.dtype, w.bytes, w.k, x, y).map_err(|e| e.to_string())
    }

    fn set_threads(&self, threads: usize) {
        let mut cpu = lock(&self.cpu);
        if cpu.threads() != threads
            && let Ok(fresh) = Products::new(self.isa, threads)
        {
            *cpu = fresh;
        }
    }
}

/// Set in a process that is there for the self-test alone.
const TESTS: &str = "TILEWRIGHT_RKNN_TESTS";

/// A process that loads this plug-in before its program begins, for [`test_here`].
fn child() -> Result<Command, String> {
    let address = test_here as extern "C" fn() as usize;
    let plugin = file_at(address).ok_or("its own file is not known")?;
    // Between these the loader takes names apart.
    if plugin.to_string_lossy().contains([' ', ':']) {
        let what = "a path with blanks or colons keeps it from testing the NPU's library";
        return Err(format!("{what}: {}", plugin.display()));
    }
    let mut preload = plugin.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(std::env::current_exe().map_err(|e| e.to_string())?);
    // A loader that ignores the variable leaves a program that says its version, and no test that passes.
    command.arg("--version").env("LD_PRELOAD", preload).env(TESTS, "1");
    Ok(command)
}

/// Tests the NPU and ends the process, if it is there for that.
extern "C" fn test_here() {
    if std::env::var_os(TESTS).is_none() {
        return;
    }
    let found = Options::from_env().and_then(|options| self_test(&options));
    let code = match found {
        Ok(found) => i32::from(writeln!(std::io::stdout(), "{}", found.to_json()).is_err()),
        Err(e) => {
            eprintln!("error: {e}");
            1
        }
    };
    #[allow(unsafe_code, reason = "a function of C")]
    // SAFETY: it takes any number. What the host would do at its end it has not begun.
    unsafe {
        libc::_exit(code)
    }
}

/// What the loader calls first.
#[used]
#[unsafe(link_section = ".init_array")]
#[allow(unsafe_code, reason = "the loader calls what is in this section")]
static FIRST: extern "C" fn() = test_here;

/// What ggml calls when it has loaded the library: the record of this backend, or null.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "a name that ggml looks for")]
pub extern "C" fn ggml_backend_init() -> *mut c_void {
    start(|| Ok(Box::new(Rknn::new()?)))
}

/// How well it fits this machine; whether there is an NPU is said when it is used.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "a name that ggml looks for")]
pub extern "C" fn ggml_backend_score() -> c_int {
    1
}
