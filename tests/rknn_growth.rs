//! Memory of the NPU's adapter over many calls: in a process without other tests, whose memory would count too.
#![cfg(all(feature = "rknn", target_os = "linux"))]

use core::time::Duration;

use rknnrt::Instance;
use tilewright::backend::rknn::{Npu, Options, RknnError, Rows, Weights};

/// Numbers of the emulator's counters: contexts, pieces of memory and their bytes, and runs.
const OWNED: [i32; 3] = [0, 1, 2];
const RUNS: i32 = 3;

struct Ones;

impl Rows for Ones {
    fn k(&self) -> usize {
        32
    }

    fn n(&self) -> usize {
        96
    }

    fn row(&self, _column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        out.fill(1.0);
        Ok(())
    }
}

#[test]
fn nothing_grows_over_many_products() {
    let emulator = Instance::new("RKNN_EMU_COMPUTE=0", None).unwrap();
    let options = Options {
        library: Some(emulator.path().to_owned()),
        chip: Some("rk3588".to_owned()),
        emulator: true,
        verify: false,
        // No core hangs here, however busy the machine is.
        deadline: Some(Duration::from_secs(300)),
        lock: None,
        ..Options::default()
    };
    let npu = Npu::open(options).unwrap();
    let weights = Weights::new(Ones);
    let (x, mut y) = (vec![1f32; 32], vec![0f32; 96]);
    let state = || OWNED.map(|which| emulator.counter(which));
    npu.multiply(&weights, &x, &mut y).unwrap();
    let before = state();
    // Where allocators have settled, 100 000 calls leave no trace: at most what they may keep for later.
    for _ in 0..1000 {
        npu.multiply(&weights, &x, &mut y).unwrap();
    }
    let resident = resident_pages();
    for _ in 0..100_000 {
        npu.multiply(&weights, &x, &mut y).unwrap();
    }
    assert_eq!(state(), before);
    assert_eq!(emulator.counter(RUNS), 3 * 101_001);
    let grown = resident_pages().saturating_sub(resident);
    assert!(grown <= 512, "{grown} pages more");
}

/// Pages of this process that are in memory.
fn resident_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse().unwrap()
}
