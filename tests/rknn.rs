//! Products on the NPU, as far as the emulator of its library is one: every chip, every way in which
//! data may reach it, and every fault.
#![cfg(all(feature = "rknn", target_os = "linux"))]

use core::time::Duration;
use std::time::Instant;

use rknnrt::{Instance, Version};
use tilewright::backend::rknn::{
    Npu, Numbers, Options, PlanFile, RknnError, Rows, Want, Weights, self_test,
};

/// Numbers of the emulator's counters.
const CONTEXTS: i32 = 0;
const MEMORIES: i32 = 1;
const RUNS: i32 = 3;
const BREACHES: i32 = 4;

/// Columns of weights, each `k` elements, one after the other.
struct Columns {
    k: usize,
    values: Vec<f32>,
}

impl Rows for Columns {
    fn k(&self) -> usize {
        self.k
    }

    fn n(&self) -> usize {
        self.values.len() / self.k
    }

    fn row(&self, column: usize, out: &mut [f32]) -> Result<(), RknnError> {
        out.copy_from_slice(&self.values[column * self.k..][..self.k]);
        Ok(())
    }
}

/// Numbers from -1 to 1, of a generator by xor and shifts.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    core::iter::repeat_with(next).take(count).collect()
}

/// The product in double precision, and per element the sum of the sizes of what was added.
fn reference(x: &[f32], w: &[f32], k: usize) -> Vec<(f64, f64)> {
    let n = w.len() / k;
    let element = |i: usize| {
        let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        terms.fold((0.0, 0.0), |(sum, size), t: f64| (sum + t, size + t.abs()))
    };
    (0..x.len() / k * n).map(element).collect()
}

fn options(emulator: &Instance, chip: &str) -> Options {
    Options {
        library: Some(emulator.path().to_owned()),
        chip: Some(chip.to_owned()),
        emulator: true,
        weight_bytes: Some(64 << 20),
        // No core hangs but where a test says so, however busy the machine is.
        deadline: Some(Duration::from_secs(300)),
        lock: None,
        ..Options::default()
    }
}

fn emulator(settings: &str) -> Instance {
    Instance::new(settings, None).unwrap()
}

/// Runs one product and checks every element against the bound of half precision.
fn check(npu: &Npu, [m, k, n]: [usize; 3], what: &str) {
    let (x, w) = (numbers(m * k, 1), numbers(n * k, 2));
    let expected = reference(&x, &w, k);
    let weights = Weights::new(Columns { k, values: w });
    let mut y = vec![0f32; m * n];
    npu.multiply(&weights, &x, &mut y).unwrap_or_else(|e| panic!("{what}: {e}"));
    // Rounding of both operands, and of `k` sums in single precision.
    let bound = 1.0 / 1024.0 + (k as f64 + 4.0) / f64::from(1 << 24);
    for (i, (y, (sum, size))) in y.iter().zip(expected).enumerate() {
        let off = (f64::from(*y) - sum).abs();
        assert!(off <= bound * size + 1e-9, "{what} {m}x{k}x{n}, element {i}: {y} {sum}");
    }
}

#[test]
fn products_are_right_however_data_travel() {
    for chip in ["rk3588", "rk3576", "rk3568", "rk3562"] {
        for sync in ["lenient", "bind", "strict"] {
            for snapshot in ["never", "norm", "always"] {
                let settings = format!(
                    "RKNN_EMU_SOC={chip}\nRKNN_EMU_SYNC={sync}\nRKNN_EMU_SNAPSHOT={snapshot}"
                );
                let emulator = emulator(&settings);
                let npu = Npu::open(options(&emulator, chip)).unwrap();
                // Twice each: the second finds contexts and weights of another product there.
                for shape in [[3, 64, 96], [1, 32, 160], [3, 64, 96], [7, 70, 33], [2, 33, 7]] {
                    check(&npu, shape, &settings);
                }
                drop(npu);
                assert_eq!(emulator.counter(BREACHES), 0, "{settings}");
                assert_eq!((emulator.counter(CONTEXTS), emulator.counter(MEMORIES)), (0, 0));
            }
        }
    }
}

#[test]
fn large_products_are_cut() {
    let emulator = emulator("RKNN_EMU_RELAX_N=0");
    for cores in 1..=3 {
        let npu = Npu::open(Options { cores, ..options(&emulator, "rk3588") }).unwrap();
        assert_eq!(npu.description().cores, cores);
        check(&npu, [2, 8192 + 64, 40], "two segments of K");
        check(&npu, [1, 32, 4096 + 40], "columns of more than one context");
        check(&npu, [513, 32, 32], "rows of more than one run");
    }
    let slower = Instance::new("RKNN_EMU_SOC=rk3576", None).unwrap();
    let npu = Npu::open(options(&slower, "rk3576")).unwrap();
    check(&npu, [2, 4096 + 32, 40], "two segments of K");
}

#[test]
fn cores_and_settings_do_not_change_a_bit() {
    let (m, k, n) = (5, 96, 200);
    let weights = Weights::new(Columns { k, values: numbers(n * k, 2) });
    let x = numbers(m * k, 1);
    let mut results = Vec::new();
    for (cores, settings) in
        [(1, ""), (2, ""), (3, "RKNN_EMU_SYNC=bind"), (3, "RKNN_EMU_SNAPSHOT=never")]
    {
        let emulator = emulator(settings);
        let npu = Npu::open(Options { cores, ..options(&emulator, "rk3588") }).unwrap();
        let mut y = vec![0f32; m * n];
        npu.multiply(&weights, &x, &mut y).unwrap();
        results.push(y);
    }
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn elements_of_any_size_survive_half_precision() {
    let emulator = emulator("");
    let npu = Npu::open(options(&emulator, "rk3588")).unwrap();
    let (k, n) = (32, 32);
    for scale in [1e-30f32, 1e-6, 1.0, 65504.0, 1e9, 1e30] {
        let w = numbers(n * k, 3);
        let x: Vec<f32> = numbers(k, 4).iter().map(|x| x * scale).collect();
        let weights = Weights::new(Columns { k, values: w.clone() });
        let mut y = vec![0f32; n];
        npu.multiply(&weights, &x, &mut y).unwrap();
        for (y, (sum, size)) in y.iter().zip(reference(&x, &w, k)) {
            assert!((f64::from(*y) - sum).abs() <= size / 1000.0, "{scale}: {y} {sum}");
        }
    }
    let weights = Weights::new(Columns { k, values: vec![1.0; n * k] });
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = vec![1.0; k];
        x[7] = bad;
        let mut y = vec![5f32; n];
        assert_eq!(npu.multiply(&weights, &x, &mut y), Err(RknnError::NotFinite));
        assert_eq!(y, [5.0; 32], "left as it was");
    }
    let zeros = vec![0f32; k];
    let mut y = vec![5f32; n];
    npu.multiply(&weights, &zeros, &mut y).unwrap();
    assert_eq!(y, [0.0; 32]);
    assert_eq!(npu.multiply(&weights, &[], &mut []), Ok(()));
}

#[test]
fn bytes_are_exact_up_to_their_rounding() {
    let emulator = emulator("");
    let npu = Npu::open(Options { numbers: Numbers::I8, ..options(&emulator, "rk3588") }).unwrap();
    let (m, k, n) = (4, 256, 70);
    // Whole numbers that 8 bits hold: nothing is rounded, with 127 in every row and column.
    let whole = |count: usize, seed| -> Vec<f32> {
        let mut all: Vec<f32> = numbers(count, seed).iter().map(|x| (x * 127.0).round()).collect();
        all.iter_mut().step_by(k).for_each(|x| *x = 127.0);
        all
    };
    let (x, w) = (whole(m * k, 5), whole(n * k, 6));
    let weights = Weights::new(Columns { k, values: w.clone() });
    let mut y = vec![0f32; m * n];
    npu.multiply(&weights, &x, &mut y).unwrap();
    let expected: Vec<f32> = reference(&x, &w, k).iter().map(|(sum, _)| *sum as f32).collect();
    assert_eq!(y, expected);
    // Of others the error is that of 8 bits.
    let (x, w) = (numbers(m * k, 7), numbers(n * k, 8));
    let weights = Weights::new(Columns { k, values: w.clone() });
    npu.multiply(&weights, &x, &mut y).unwrap();
    let (mut off, mut all) = (0.0, 0.0);
    for (y, (sum, _)) in y.iter().zip(reference(&x, &w, k)) {
        off += (f64::from(*y) - sum).powi(2);
        all += sum.powi(2);
    }
    assert!(off / all < 1e-3, "{}", off / all);
}

/// Each fault ends in an error and leaves the result alone; a good result is right.
#[test]
fn faults_never_reach_a_result() {
    let (m, k, n) = (3, 64, 200);
    let (x, w) = (numbers(m * k, 1), numbers(n * k, 2));
    let expected = reference(&x, &w, k);
    let faults = [
        "run:nth=N:rc=-1",
        "run:nth=N:rc=-2",
        "run:nth=N:rc=7",
        "run:nth=N:wrong=zero",
        "run:nth=N:wrong=nan",
        "run:nth=N:wrong=stale",
        "run:nth=N:wrong=scale",
        "run:nth=N:wrong=swaprows",
        "create:nth=N:rc=-4",
        "create_mem:nth=N:null",
        "create_mem:nth=N:oom",
        "set_io:nth=N:rc=-4",
        "set_io:nth=N:rc=-1",
        "sync:nth=N:rc=-1",
        "core_mask:nth=N:rc=-1",
        "run:nth=N:dead",
        "create:nth=N:dead",
        "run:nth=N:slow=5",
        "run:core=1:rc=-1",
        "set_io:every=N:rc=-1",
    ];
    for (fault, nth) in faults.iter().flat_map(|f| (1..=6).map(move |nth| (f, nth))) {
        let fault = fault.replace('N', &nth.to_string());
        let emulator = emulator(&format!("RKNN_EMU_FAULT={fault}"));
        let Ok(npu) = Npu::open(options(&emulator, "rk3588")) else {
            continue;
        };
        let weights = Weights::new(Columns { k, values: w.clone() });
        for _ in 0..4 {
            let mut y = vec![f32::MAX; m * n];
            match npu.multiply(&weights, &x, &mut y) {
                Ok(()) => {
                    for (y, (sum, size)) in y.iter().zip(&expected) {
                        assert!((f64::from(*y) - sum).abs() <= size / 1000.0, "{fault}");
                    }
                }
                Err(_) => assert!(y.iter().all(|&y| y == f32::MAX), "{fault}"),
            }
        }
        let report = npu.report();
        assert_eq!(report.products + report.failures, 4, "{fault}");
        drop(npu);
        assert_eq!(emulator.counter(BREACHES), 0, "{fault}");
        // What was made has been ended, save by a device that is gone.
        if !fault.contains("dead") {
            let left = (emulator.counter(CONTEXTS), emulator.counter(MEMORIES));
            assert_eq!(left, (0, 0), "{fault}");
        }
    }
}

/// A result that is not written is what the run before left: the right sums here, and the wrong numbers.
#[test]
fn what_is_not_written_is_found_whatever_its_sums() {
    for numbers in [Numbers::F16, Numbers::I8] {
        let emulator = emulator("RKNN_EMU_FAULT=run:nth=2:wrong=stale");
        let options = Options { cores: 1, numbers, ..options(&emulator, "rk3588") };
        let npu = Npu::open(options).unwrap();
        // Columns that are another one's negative, so that all results of a row add up to 0.
        let (k, n) = (32, 32);
        let column = |i: usize| if i.is_multiple_of(2) { [1.0; 32] } else { [-1.0; 32] };
        let weights = Weights::new(Columns { k, values: (0..n).flat_map(column).collect() });
        let mut y = vec![0f32; n];
        npu.multiply(&weights, &[1.0; 32], &mut y).unwrap();
        assert_eq!(y[..2], [32.0, -32.0]);
        let second = npu.multiply(&weights, &[0.5; 32], &mut y).unwrap_err();
        assert!(matches!(second, RknnError::WrongResult { .. }), "{second:?}");
        assert_eq!(y[..2], [32.0, -32.0], "nothing is written");
    }
}

#[test]
fn one_failed_core_leaves_the_others() {
    let emulator = emulator("RKNN_EMU_FAULT=create:core=1:rc=-1;core_mask:core=1:rc=-1");
    let npu = Npu::open(options(&emulator, "rk3588")).unwrap();
    assert_eq!(npu.description().cores, 2);
    assert_eq!(npu.report().reasons.len(), 1);
    check(&npu, [3, 64, 200], "two cores");
}

#[test]
fn a_core_that_hangs_is_given_up() {
    let emulator = emulator("RKNN_EMU_FAULT=run:core=2:nth=1:hang=0");
    let deadline = Some(Duration::from_millis(400));
    let npu = Npu::open(Options { deadline, ..options(&emulator, "rk3588") }).unwrap();
    let begin = Instant::now();
    let (k, n) = (64, 200);
    let weights = Weights::new(Columns { k, values: numbers(n * k, 2) });
    let mut y = vec![f32::MAX; n];
    let outcome = npu.multiply(&weights, &numbers(k, 1), &mut y);
    assert!(matches!(outcome, Err(RknnError::Timeout { core: 2, .. })), "{outcome:?}");
    assert!(y.iter().all(|&y| y == f32::MAX));
    check(&npu, [3, 64, 200], "without it");
    drop(npu);
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_core_that_fails_three_times_rests() {
    let emulator = emulator("RKNN_EMU_FAULT=run:rc=-1");
    let npu = Npu::open(Options { cores: 1, ..options(&emulator, "rk3588") }).unwrap();
    let weights = Weights::new(Columns { k: 32, values: numbers(32 * 32, 2) });
    let mut y = vec![0f32; 32];
    let mut run = || npu.multiply(&weights, &[1.0; 32], &mut y).unwrap_err();
    let failed = RknnError::Call { call: "rknn_matmul_run", code: -1 };
    assert_eq!([run(), run(), run()], [failed.clone(), failed.clone(), failed]);
    assert_eq!(run(), RknnError::Unavailable);
    assert_eq!(emulator.counter(RUNS), 0);
    let report = npu.report();
    assert_eq!((report.products, report.failures, report.reasons.len()), (0, 4, 2));
}

#[test]
fn weights_stay_within_their_budget() {
    let emulator = emulator("");
    let (k, n) = (64, 96);
    let budget = 2 * k * n * 2;
    let npu =
        Npu::open(Options { weight_bytes: Some(budget), cores: 1, ..options(&emulator, "rk3588") })
            .unwrap();
    let all: Vec<(Vec<f32>, Weights)> = (0..4)
        .map(|seed| {
            let values = numbers(n * k, 10 + seed);
            (values.clone(), Weights::new(Columns { k, values }))
        })
        .collect();
    let x = numbers(k, 1);
    let mut y = vec![0f32; n];
    // Contexts, their operands, and what all weights would take.
    for round in 0..3 {
        for (w, weights) in &all {
            npu.multiply(weights, &x, &mut y).unwrap();
            for (y, (sum, size)) in y.iter().zip(reference(&x, w, k)) {
                assert!((f64::from(*y) - sum).abs() <= size / 1000.0, "{round}");
            }
        }
        let operands = (k * 2 + n * 4) as i64;
        assert!(emulator.counter(2) <= budget as i64 + operands, "{round}");
    }
    let large = Weights::new(Columns { k: 512, values: numbers(512 * 96, 2) });
    let outcome = npu.multiply(&large, &[1.0; 512], &mut y);
    assert_eq!(outcome, Err(RknnError::Memory { needed: 512 * 96 * 2 }));
    npu.multiply(&all[0].1, &x, &mut y).unwrap();
    // Memory that is smaller than its budget makes room once, and is the budget from then on.
    let small = Instance::new("RKNN_EMU_MEM_MB=1", None).unwrap();
    let npu = Npu::open(Options { cores: 1, ..options(&small, "rk3588") }).unwrap();
    for seed in 0..6 {
        let weights = Weights::new(Columns { k: 512, values: numbers(512 * 512, seed) });
        npu.multiply(&weights, &numbers(512, 1), &mut vec![0f32; 512]).unwrap();
    }
}

#[test]
fn four_bits_are_exact_up_to_their_rounding() {
    let emulator = emulator("");
    let four = |chip: &str| Options { numbers: Numbers::I4, ..options(&emulator, chip) };
    let npu = Npu::open(four("rk3588")).unwrap();
    let (m, k, n) = (4, 700, 70);
    // Whole numbers that 4 bits hold, with 7 in every row and column of both segments of K.
    let whole = |count: usize, seed| -> Vec<f32> {
        let mut all: Vec<f32> = numbers(count, seed).iter().map(|x| (x * 7.0).round()).collect();
        for row in all.chunks_mut(k) {
            (row[0], row[k - 1]) = (7.0, 7.0);
        }
        all
    };
    let (x, w) = (whole(m * k, 5), whole(n * k, 6));
    let weights = Weights::new(Columns { k, values: w.clone() });
    let mut y = vec![0f32; m * n];
    npu.multiply(&weights, &x, &mut y).unwrap();
    let expected: Vec<f32> = reference(&x, &w, k).iter().map(|(sum, _)| *sum as f32).collect();
    assert_eq!(y, expected);
    assert_eq!(npu.report().requantized, Some(0.0));
    let refused = Npu::open(four("rk3576")).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("f16 or i8 on this chip"), "{refused}");
}

#[test]
fn what_rounding_costs_is_reported() {
    let emulator = emulator("");
    let (k, n) = (256, 96);
    let lost = |numbers: Numbers| {
        let npu = Npu::open(Options { numbers, ..options(&emulator, "rk3588") }).unwrap();
        assert_eq!(npu.report().requantized, None, "nothing is packed yet");
        let weights = Weights::new(Columns { k, values: self::numbers(n * k, 8) });
        npu.multiply(&weights, &self::numbers(k, 7), &mut vec![0f32; n]).unwrap();
        npu.report().requantized
    };
    assert_eq!(lost(Numbers::F16), None);
    // Steps of 1 / 127 and 1 / 7 of numbers from -1 to 1: a twelfth of their squares by a third.
    let [bytes, nibbles] = [Numbers::I8, Numbers::I4].map(|numbers| lost(numbers).unwrap());
    assert!((1e-5..2e-5).contains(&bytes), "{bytes}");
    assert!((3.5e-3..7e-3).contains(&nibbles), "{nibbles}");
}

#[test]
fn weights_fill_one_address_space_after_the_other() {
    let emulator = emulator("RKNN_EMU_DOMAIN_MB=1");
    let (k, n) = (256, 512);
    let all: Vec<(Vec<f32>, Weights)> = (0..6)
        .map(|seed| {
            let values = numbers(n * k, 10 + seed);
            (values.clone(), Weights::new(Columns { k, values }))
        })
        .collect();
    let x = numbers(k, 1);
    let mut most = Vec::new();
    for domains in [1, 2, 3] {
        let npu = Npu::open(Options { domains, cores: 1, ..options(&emulator, "rk3588") }).unwrap();
        let mut y = vec![0f32; n];
        for (w, weights) in all.iter().chain(&all) {
            npu.multiply(weights, &x, &mut y).unwrap();
            for (y, (sum, size)) in y.iter().zip(reference(&x, w, k)) {
                assert!((f64::from(*y) - sum).abs() <= size / 1000.0, "{domains}");
            }
        }
        most.push(emulator.counter(2));
    }
    // Of 1.5 MiB of weights a space of 1 MiB holds a part, two hold all.
    assert!(most[0] <= 1 << 20 && most[1] > 3 << 19 && most[2] > 3 << 19, "{most:?}");
    for domains in [0, 17] {
        let refused = Npu::open(Options { domains, ..options(&emulator, "rk3588") }).map(|_| ());
        assert!(matches!(refused, Err(RknnError::Setting { .. })), "{refused:?}");
    }
    let old = Instance::new("RKNN_EMU_VERSION=1.6.0", Some(Version::V1_6)).unwrap();
    let refused = Npu::open(Options { domains: 2, ..options(&old, "rk3588") }).map(|_| ());
    assert!(matches!(refused, Err(RknnError::Setting { .. })), "{refused:?}");
}

#[test]
fn who_computes_is_decided_by_plan_rows_or_costs() {
    let emulator = emulator("");
    let open = |change: &dyn Fn(&mut Options)| {
        let mut options = options(&emulator, "rk3588");
        change(&mut options);
        Npu::open(options).unwrap()
    };
    let want =
        |rows| Want { rows, k: 2048, n: 2048, name: Some("ffn_up-0"), stored_bytes: 4 << 20 };
    let by_costs = open(&|_| {});
    assert!(!by_costs.takes(&want(1)) && by_costs.takes(&want(128)));
    let by_rows = open(&|options| options.min_rows = Some(2));
    assert!(!by_rows.takes(&want(1)) && by_rows.takes(&want(2)) && !by_rows.takes(&want(0)));
    let small = Want { k: 31, ..want(128) };
    assert!(!by_rows.takes(&small) && !by_costs.takes(&small));
    let path = std::env::temp_dir().join(format!("tilewright-plan-{}.json", std::process::id()));
    let pair =
        r#"{"src0": {"row": 1, "col": 2048}, "src1": {"row": 2048, "col": 2048}, "name": "ffn_*"}"#;
    std::fs::write(&path, format!(r#"{{"pairs": [{pair}]}}"#)).unwrap();
    let plan = PlanFile::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let by_plan = open(&|options| options.plan = Some(plan.clone()));
    assert!(by_plan.takes(&want(1)) && !by_plan.takes(&want(128)));
    assert!(!by_plan.takes(&Want { name: Some("attn"), ..want(1) }));
    assert!(matches!(PlanFile::read(&path), Err(RknnError::PlanFile { .. })));
}

#[test]
fn old_libraries_serve_too() {
    for (settings, version) in [
        ("RKNN_EMU_VERSION=1.6.0", Version::V1_6),
        ("RKNN_EMU_VERSION=2.0.0b0", Version::V2_0),
        ("RKNN_EMU_VERSION=2.1.0", Version::V2_1),
    ] {
        let emulator = Instance::new(settings, Some(version)).unwrap();
        let npu = Npu::open(options(&emulator, "rk3588")).unwrap();
        assert_eq!(
            format!("{:?}", npu.description().interface).starts_with("V1"),
            version == Version::V1_6
        );
        check(&npu, [3, 64, 96], settings);
    }
}

#[test]
fn what_cannot_be_used_is_said() {
    let missing = Options { library: Some("/nowhere/librknnrt.so".into()), ..Options::default() };
    let missing = Options { chip: Some("rk3588".into()), lock: None, ..missing };
    assert!(matches!(Npu::open(missing), Err(RknnError::Library { .. })));
    let fine = emulator("");
    let other = Options { chip: Some("rk9".into()), ..options(&fine, "rk3588") };
    assert!(matches!(Npu::open(other), Err(RknnError::Setting { .. })));
    let strict = Options { emulator: false, ..options(&fine, "rk3588") };
    assert!(matches!(Npu::open(strict), Err(RknnError::Emulator(_))));
    let gone = emulator("RKNN_EMU_NO_DEVICE=1");
    let error = Npu::open(options(&gone, "rk3588")).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "rknn_matmul_create returned -3 (device unavailable)");
    // A library for another chip wants other layouts.
    let npu = Npu::open(options(&fine, "rk3568")).unwrap();
    let weights = Weights::new(Columns { k: 32, values: numbers(32 * 32, 2) });
    let outcome = npu.multiply(&weights, &[1.0; 32], &mut [0.0; 32]);
    assert!(matches!(outcome, Err(RknnError::Layout { .. })), "{outcome:?}");
    let mut short = [0.0; 31];
    let outcome = npu.multiply(&weights, &[1.0; 32], &mut short);
    assert_eq!(outcome, Err(RknnError::Sizes { expected: 32, found: 31 }));
    let lock = std::env::temp_dir().join(format!("tilewright-rknn-{}.lock", std::process::id()));
    let locked = || Options { lock: Some(lock.clone()), ..options(&fine, "rk3588") };
    let first = Npu::open(locked()).unwrap();
    assert!(matches!(Npu::open(locked()), Err(RknnError::Locked(_))));
    drop(first);
    assert!(Npu::open(locked()).is_ok());
    std::fs::remove_file(lock).unwrap();
}

#[test]
fn the_self_test_tells_good_from_bad() {
    let fine = emulator("");
    let found = self_test(&options(&fine, "rk3588")).unwrap();
    assert_eq!((found.description.chip, found.description.cores), ("rk3588", 3));
    let forms: Vec<Numbers> = found.times.iter().map(|(numbers, ..)| *numbers).collect();
    assert_eq!(forms, [Numbers::F16, Numbers::I8]);
    let texts = found.description.versions.unwrap();
    assert_eq!(texts, ["2.3.2 (emulator)", "0.9.8"]);
    // Without check sums, as with them, a wrong element is found.
    for (verify, fault) in [(true, "wrong=zero"), (false, "wrong=flip1"), (false, "wrong=swaprows")]
    {
        let bad = emulator(&format!("RKNN_EMU_FAULT=run:nth=2:{fault}"));
        let outcome = self_test(&Options { verify, ..options(&bad, "rk3588") });
        assert!(matches!(outcome, Err(RknnError::WrongResult { .. })), "{fault}: {outcome:?}");
    }
}
