//! What happens when something is missing, or fails at any point; and that nothing leaks.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::fs;
use std::path::PathBuf;

use tilewright::backend::opencl::{Options, devices};
use tilewright::graph::GraphError;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::softmax::Softmax;
use tilewright::graph::ops::topk::TopK;

use super::*;

fn executor(device: &Arc<OpenClDevice>) -> Executor {
    Executor::new(Isa::best(), 1).unwrap().with_device(Some(device.clone() as Arc<dyn Device>))
}

/// A convolution, a product and a softmax.
fn network(cx: &mut Context) -> TensorId {
    let x = cx.input("x", DType::F32, &[1, 3, 8, 8]).unwrap();
    let w = cx.constant(tensor(&[4, 3, 3, 3], 1)).unwrap();
    let y = cx.op(Conv::default(), &[x, w]).unwrap();
    let y = cx.reshape(y, &[4, 36]).unwrap();
    let w = cx.constant(tensor(&[36, 10], 2)).unwrap();
    let y = cx.op(MatMul::default(), &[y, w]).unwrap();
    cx.op(Softmax::along(1), &[y]).unwrap()
}

fn run(device: &Arc<OpenClDevice>) -> Result<Vec<f32>, GraphError> {
    let mut cx = Context::new();
    let y = network(&mut cx);
    let mut executor = executor(device);
    let plan = executor.plan(&mut cx, &[y])?;
    let results = executor.run(&plan, &[&tensor(&[1, 3, 8, 8], 3)], None)?;
    Ok(results[0].as_slice::<f32>().unwrap().to_vec())
}

#[test]
fn a_missing_library_is_said_with_what_to_do() {
    let options =
        Options { library: Some(PathBuf::from("/nowhere/libOpenCL.so")), ..Options::default() };
    let text = OpenClDevice::open(&options).unwrap_err().to_string();
    assert!(
        text.contains("/nowhere/libOpenCL.so") && text.contains("TILEWRIGHT_OPENCL_LIB"),
        "{text}"
    );
    // A library that is none of OpenCL.
    let options = Options { library: Some(PathBuf::from("libc.so.6")), ..Options::default() };
    let text = OpenClDevice::open(&options).unwrap_err().to_string();
    assert!(text.contains("clGetPlatformIDs"), "{text}");
}

#[test]
fn an_unknown_device_is_said_with_those_there_are() {
    let Some(device) = open(options()) else { return };
    for asked in ["no such device", "99"] {
        let e =
            OpenClDevice::open(&Options { device: Some(asked.into()), ..options() }).unwrap_err();
        assert!(e.to_string().contains(&device.info().name), "{e}");
    }
    let all = devices(&options()).unwrap();
    let index = device.info().index;
    assert_eq!(&all[index], device.info());
    for asked in [index.to_string(), device.info().name.to_uppercase()] {
        let options = Options { device: Some(asked), ..options() };
        assert_eq!(OpenClDevice::open(&options).unwrap().info().name, device.info().name);
    }
}

#[test]
fn any_call_may_fail_and_nothing_leaks() {
    let Some(device) = open(options()) else { return };
    let expected = run(&device).unwrap();
    let idle = device.counts();
    let before = device.faults().calls();
    run(&device).unwrap();
    let calls = device.faults().calls() - before;
    assert!(calls > 10, "{calls}");
    for first in 1..=calls {
        for (count, code) in [(1, -5), (1, -4), (u64::MAX, -36)] {
            device.faults().fail(first, count, code);
            let outcome = run(&device);
            device.faults().clear();
            // A failed allocation is tried once more, after unused memory went back.
            match outcome {
                Err(e) => assert!(e.to_string().contains("OpenCL device"), "{e}"),
                Ok(found) => assert_eq!(found, expected, "call {first}"),
            }
            let now = device.counts();
            assert_eq!((now.objects, now.bytes), (idle.objects, idle.bytes), "call {first}");
            assert_eq!(device.memory().parts, 0, "call {first}");
        }
        assert_eq!(run(&device).unwrap(), expected, "after call {first} had failed");
    }
}

#[test]
fn opening_may_fail_at_any_call() {
    let Some(device) = open(options()) else { return };
    drop(device);
    for first in 1.. {
        let options = options();
        options.faults.fail(first, 1, -5);
        match OpenClDevice::open(&options) {
            Ok(_) if options.faults.calls() < first => break,
            _ => {}
        }
    }
}

#[test]
fn dropped_plans_and_devices_leave_nothing() {
    let Some(device) = open(options()) else { return };
    let mut cx = Context::new();
    let y = network(&mut cx);
    let mut executor = executor(&device);
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    executor.run(&plan, &[&tensor(&[1, 3, 8, 8], 3)], None).unwrap();
    assert!(device.memory().parts > 0);
    drop(plan);
    assert_eq!((device.memory().used, device.memory().parts), (0, 0));
    assert!(device.memory().reserved > 0);
    device.trim();
    assert_eq!((device.memory().reserved, device.counts().bytes), (0, 0));
}

#[test]
fn the_memory_limit_is_an_error_that_names_it() {
    let Some(device) = open(Options { memory_limit: Some(4096), ..options() }) else { return };
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &[64, 64]).unwrap();
    let w = cx.constant(tensor(&[64, 64], 1)).unwrap();
    let y = cx.op(MatMul::default(), &[x, w]).unwrap();
    let e = executor(&device).plan(&mut cx, &[y]).err().unwrap().to_string();
    assert!(e.contains("4096"), "{e}");
}

#[test]
fn kernels_that_the_driver_refuses_are_an_error_with_its_words() {
    // A type that no driver has.
    let refused = Options { compiler: "-DVEC=of_nothing".to_owned(), ..options() };
    let Some(device) = open(refused) else { return };
    let text = run(&device).unwrap_err().to_string();
    assert!(text.contains(".cl") && text.contains("of_nothing"), "{text}");
    let before = device.counts();
    assert_eq!(device.memory().parts, 0);
    assert!(run(&device).is_err(), "it stays refused");
    let now = device.counts();
    assert_eq!((now.objects, now.bytes, now.kernels), (before.objects, before.bytes, 0));
    // Others on the same machine are not concerned.
    run(&open(options()).unwrap()).unwrap();
}

#[test]
fn built_kernels_are_kept_and_damaged_ones_built_again() {
    static LINES: AtomicUsize = AtomicUsize::new(0);
    let folder = std::env::temp_dir().join(format!("tilewright-opencl-{}", std::process::id()));
    let with_cache = || Options {
        cache: Some(folder.clone()),
        log: |_| {
            LINES.fetch_add(1, Ordering::Relaxed);
        },
        ..options()
    };
    let Some(device) = open(with_cache()) else { return };
    let expected = run(&device).unwrap();
    let files =
        || -> Vec<PathBuf> { fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect() };
    let kept = files();
    assert!(kept.len() >= 3, "{kept:?}");
    let sizes = || -> Vec<u64> { kept.iter().map(|f| fs::metadata(f).unwrap().len()).collect() };
    assert_eq!(run(&open(with_cache()).unwrap()).unwrap(), expected);
    assert_eq!(LINES.load(Ordering::Relaxed), 0);
    for (i, file) in kept.iter().enumerate() {
        let bytes = fs::read(file).unwrap();
        let damaged = match i % 3 {
            0 => bytes[..bytes.len() / 2].to_vec(),
            1 => Vec::new(),
            _ => bytes.iter().rev().copied().collect(),
        };
        fs::write(file, damaged).unwrap();
    }
    assert_eq!(run(&open(with_cache()).unwrap()).unwrap(), expected);
    assert_eq!(LINES.load(Ordering::Relaxed), kept.len());
    assert!(sizes().iter().all(|&s| s > 100));
    assert_eq!(run(&open(with_cache()).unwrap()).unwrap(), expected);
    assert_eq!(LINES.load(Ordering::Relaxed), kept.len());
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_no_kernel_computes_goes_to_the_cpu_and_is_counted() {
    static LINES: AtomicUsize = AtomicUsize::new(0);
    let log = |text: &str| {
        assert!(text.contains("top_k"), "{text}");
        LINES.fetch_add(1, Ordering::Relaxed);
    };
    let Some(device) = open(Options { log, ..options() }) else { return };
    let build = |cx: &mut Context, src: &[TensorId]| {
        let y = cx.op(Softmax::along(1), src).unwrap();
        let y = cx.op(TopK { axis: 1, k: 3, largest: true, positions: false }, &[y]).unwrap();
        cx.op(Softmax::along(1), &[y]).unwrap()
    };
    let x = tensor(&[4, 20], 1);
    let expected = reference(core::slice::from_ref(&x), &build);
    for round in 1..3 {
        let mut cx = Context::new();
        let id = cx.input("x", DType::F32, &[4, 20]).unwrap();
        let y = build(&mut cx, &[id]);
        let mut executor = executor(&device);
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        let found = executor.run(&plan, &[&x], None).unwrap();
        assert_close(&found[0], &expected, 1e-6, "with a step on the CPU");
        assert_eq!(device.fallbacks().on_cpu, [("top_k".to_owned(), round)]);
    }
    assert_eq!(LINES.load(Ordering::Relaxed), 1, "one line per kind of operation");
    assert_eq!(device.fallbacks().operations, 6);
}
