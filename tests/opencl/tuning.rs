//! Kernels shaped as tables say, and the tuner that finds out how.

use core::time::Duration;
use std::fs;
use std::sync::Mutex;

use tilewright::backend::opencl::Workload;
use tilewright::graph::ops::block_matmul::BlockMatMul;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::{Choices, Way};
use tilewright::tune::{Choice, DeviceTuner, Entry, Key, Table, Workload as CpuWorkload};
use tilewright_kernels::Activation;

use super::grid::{op, sum_bound, weights};
use super::*;

/// An operator with its operands, and the workload that it asks for.
struct Case {
    workload: &'static str,
    src: Vec<Tensor>,
    bound: f32,
    op: tilewright::graph::Op,
}

fn cases() -> Vec<Case> {
    let conv = |groups, pad| Conv { pads: [pad; 4], groups, bias: true, ..Conv::default() };
    let product = MatMul { bias: true, activation: Activation::Relu, ..MatMul::default() };
    // Activations that 8 bits hold, as weights in blocks meet them.
    let steps = |m: usize, k: usize| {
        let steps = noise(m * k, 1).into_iter().enumerate();
        let steps = steps.map(|(i, v)| if i % 32 == 0 { 1.0 } else { (v * 127.0).round() / 127.0 });
        Tensor::from_slice(&[m, k], &steps.collect::<Vec<f32>>()).unwrap()
    };
    vec![
        Case {
            workload: "gemm 1x7x70x19",
            src: vec![tensor(&[7, 19], 1), tensor(&[19, 70], 2), tensor(&[70], 3)],
            bound: sum_bound(19),
            op: product.into(),
        },
        Case {
            workload: "gemm 1x13x15x45 packed",
            src: vec![tensor(&[1, 45, 5, 3], 1), tensor(&[13, 45, 1, 1], 2), tensor(&[13], 3)],
            bound: 4.0 * sum_bound(45),
            op: conv(1, 0).into(),
        },
        Case {
            // A product it would be on large GPUs, if groups had more channels.
            workload: "direct 2x1x9x21 to 10x9x21 window 3x3 stride 1x1 dilation 1x1 pad 1x1 groups 2",
            src: vec![tensor(&[2, 2, 9, 21], 1), tensor(&[20, 1, 3, 3], 2), tensor(&[20], 3)],
            bound: 4.0 * sum_bound(9),
            op: conv(2, 1).into(),
        },
        Case {
            workload: "rows f32 1x8x33x70",
            src: vec![tensor(&[5, 70], 1), tensor(&[33, 70], 2), tensor(&[33], 3)],
            bound: sum_bound(70),
            op: BlockMatMul { bias: true }.into(),
        },
        Case {
            workload: "rows q8_0 1x1x37x96 round",
            src: vec![steps(1, 96), weights(DType::Q8_0, 37, 96), tensor(&[37], 3)],
            bound: 4.0 * sum_bound(96),
            op: BlockMatMul { bias: true }.into(),
        },
        Case {
            workload: "rows q4_K 1x16x20x256",
            src: vec![steps(9, 256), weights(DType::Q4_K, 20, 256), tensor(&[20], 3)],
            bound: 16.0 * sum_bound(256),
            op: BlockMatMul { bias: true }.into(),
        },
    ]
}

/// What the device gives for a case, as `choices` say.
fn computed(device: &Arc<OpenClDevice>, case: &Case, choices: Arc<dyn Choices>) -> Tensor {
    let mut cx = Context::new();
    let x = cx.input("x", case.src[0].dtype(), &case.src[0].dims()).unwrap();
    let constants = case.src[1..].iter().map(|t| cx.constant(t.clone()).unwrap());
    let src: Vec<TensorId> = [x].into_iter().chain(constants.collect::<Vec<_>>()).collect();
    let y = op(case.op.clone())(&mut cx, &src);
    let executor = Executor::new(Isa::best(), 1).unwrap().with_choices(Some(choices));
    let mut executor = executor.with_device(Some(device.clone() as Arc<dyn Device>));
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    executor.run(&plan, &[&case.src[0]], None).unwrap().remove(0)
}

fn units(device: &OpenClDevice) -> usize {
    device.info().units as usize
}

fn entry(choice: Way) -> Entry<Way> {
    Entry { choice, time_us: 1.0, analytic_us: 1.0 }
}

#[test]
fn kernels_shaped_as_a_table_says_compute_the_same() {
    let Some(device) = shared() else { return };
    for case in cases() {
        let workload: Workload = case.workload.parse().unwrap();
        let bench = device.bench(&workload).unwrap();
        let expected = reference(&case.src, &op(case.op.clone()));
        let tiles = bench.tiles();
        assert!(tiles.len() > 3, "{}: {} tiles", case.workload, tiles.len());
        // The most unusual ones of both kinds, and some between.
        let variants = bench.variants(&tiles[0]);
        let ways = [&tiles[..], &variants].concat();
        let few = ways.iter().rev().step_by(1.max(ways.len() / 8));
        for way in few {
            let mut table = Table::new();
            let key = Key::on_device(device.identity(), units(&device), case.workload);
            table.insert_on_device(key, entry(*way));
            let found = computed(&device, &case, Arc::new(table));
            assert_close(&found, &expected, case.bound, &format!("{} by {way}", case.workload));
            // And the trial that a tuner measures works.
            bench.time(&bench.trial(*way).unwrap(), 2).unwrap();
        }
    }
}

/// Notes what is asked for.
#[derive(Default)]
struct Asked(Mutex<Vec<(String, usize, String)>>);

impl Choices for Asked {
    fn choice(&self, _: Isa, _: usize, _: &CpuWorkload) -> Option<Choice> {
        None
    }

    fn way(&self, device: &str, units: usize, workload: &str) -> Option<Way> {
        self.0.lock().unwrap().push((device.into(), units, workload.into()));
        None
    }
}

#[test]
fn plans_ask_by_device_driver_and_sizes() {
    let Some(device) = open(options()) else { return };
    let asked = Arc::new(Asked::default());
    let cases = cases();
    for case in &cases {
        computed(&device, case, asked.clone());
    }
    let asked = asked.0.lock().unwrap();
    let info = device.info();
    assert_eq!(asked.len(), cases.len());
    for ((name, units, workload), case) in asked.iter().zip(&cases) {
        assert_eq!((&workload[..], *units as u64), (case.workload, info.units));
        assert!(name.contains(&info.name) && name.contains(&info.driver), "{name}");
    }
    let known: Vec<String> = device.workloads().iter().map(ToString::to_string).collect();
    assert_eq!(known, cases.iter().map(|c| c.workload).collect::<Vec<_>>());
}

/// The definitions of the kernels that a plan has built.
fn definitions(case: &Case, table: impl FnOnce(&OpenClDevice) -> Table) -> Option<String> {
    let number = std::thread::current().id();
    let folder = format!("tilewright-tuning-{}-{number:?}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    let device = open(Options { cache: Some(folder.clone()), ..options() })?;
    let table = table(&device);
    computed(&device, case, Arc::new(table));
    let mut all = String::new();
    for file in fs::read_dir(&folder).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        all += &String::from_utf8_lossy(bytes.split(|b| *b == b'\n').next().unwrap());
    }
    fs::remove_dir_all(&folder).unwrap();
    Some(all)
}

#[test]
fn an_entry_is_used_for_its_device_and_driver_only() {
    let cases = cases();
    let case = &cases[0];
    let mark = "-DW_OB=3 -DC_V=5 -DUNROLL=2";
    let way = Way { vec: 4, tile: [3, 5], unroll: 2, ..Way::default() };
    let with = |key: &dyn Fn(&OpenClDevice) -> Key, way: Way| {
        definitions(case, |device| {
            let mut table = Table::new();
            table.insert_on_device(key(device), entry(way));
            // As a session finds it.
            let path = std::env::temp_dir().join(format!("tune-{}.txt", std::process::id()));
            table.save(&path).unwrap();
            let table = Table::load(&path).unwrap();
            fs::remove_file(&path).unwrap();
            assert_eq!(table.device_entries().count(), 1);
            table
        })
    };
    let here = |d: &OpenClDevice| Key::on_device(d.identity(), units(d), case.workload);
    let Some(found) = with(&here, way) else { return };
    assert!(found.contains(mark), "{found}");
    let driver =
        |d: &OpenClDevice| Key { cpu: d.identity().replace(&d.info().driver, "99.9"), ..here(d) };
    let device =
        |d: &OpenClDevice| Key { cpu: d.identity().replace(&d.info().name, "x"), ..here(d) };
    let version = |d: &OpenClDevice| Key { version: "0.0.1".into(), ..here(d) };
    let fewer = |d: &OpenClDevice| Key { threads: units(d) + 1, ..here(d) };
    let sizes = |d: &OpenClDevice| Key { workload: "gemm 1x7x70x20".into(), ..here(d) };
    for other in [&driver as &dyn Fn(&OpenClDevice) -> Key, &device, &version, &fewer, &sizes] {
        let found = with(other, way).unwrap();
        assert!(found.contains("gemm.cl") && !found.contains(mark), "{found}");
    }
    // A shape that the kernel cannot have at these sizes is as if it were not there.
    let wide = Way { vec: 16, tile: [3, 5], ..way };
    let found = with(&here, wide).unwrap();
    assert!(found.contains("gemm.cl") && !found.contains("-DC_V=5"), "{found}");
}

#[test]
fn the_tuner_fills_a_table_that_plans_use() {
    let Some(device) = open(options()) else { return };
    let tuner = DeviceTuner::new(device.clone());
    let mut table = Table::new();
    let cases = cases();
    let before = device.memory().parts;
    for case in &cases {
        let workload: Workload = case.workload.parse().unwrap();
        let report = tuner.tune(&workload, Duration::from_millis(200)).unwrap();
        let entry = report.entry();
        assert!(report.candidates.len() >= 2 && report.candidates.contains(&entry.choice));
        assert!(entry.time_us > 0.0 && entry.time_us <= entry.analytic_us, "{entry:?}");
        table.insert_on_device(tuner.key(&workload), entry);
    }
    assert_eq!(device.memory().parts, before, "operands of trials go back");
    assert_eq!(table.device_entries().filter(|(key, _)| tuner.has(key)).count(), cases.len());
    let table = Arc::new(table);
    for case in &cases {
        let expected = reference(&case.src, &op(case.op.clone()));
        let found = computed(&device, case, table.clone());
        assert_close(&found, &expected, case.bound, case.workload);
    }
    // What is measured again may not hold on a busy machine, but is known.
    let (key, entry) = table.device_entries().next().unwrap();
    let workload = key.workload.parse().unwrap();
    let check = tuner.check(&workload, entry, Duration::from_millis(100)).unwrap();
    assert!(check.report.is_some() && check.time_us > Some(0.0));
    let strange = Entry { choice: Way { vec: 3, ..entry.choice }, ..*entry };
    let check = tuner.check(&workload, &strange, Duration::from_millis(100)).unwrap();
    assert!(check.report.is_none() && !check.holds);
    let huge = "gemm 1x2000000x2000000x2000000".parse().unwrap();
    let error = tuner.tune(&huge, Duration::ZERO).unwrap_err().to_string();
    assert!(error.contains("do not fit"), "{error}");
}
