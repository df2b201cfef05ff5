//! Graphs whose products an emulated NPU takes: the same answers as the CPU's, whatever fails.
#![cfg(all(feature = "rknn", target_os = "linux"))]

use core::time::Duration;
use std::sync::Arc;

use rknnrt::Instance;
use tilewright::backend::cpu::Executor;
use tilewright::backend::rknn::{Npu, Options, RknnDevice};
use tilewright::graph::ops::block_matmul::BlockMatMul;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::{Context, Device, TensorId, passes};
use tilewright::{DType, Isa, Tensor};

const ROWS: usize = 20;
const K: usize = 96;
const N: usize = 70;

fn noise(count: usize, seed: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_add(seed << 16).wrapping_mul(0x9E37_79B9) >> 20) as f32;
    (0..count as u32).map(|i| value(i) / 2048.0 - 1.0).collect()
}

fn tensor(dims: &[usize], seed: u32) -> Tensor {
    Tensor::from_slice(dims, &noise(dims.iter().product(), seed)).unwrap()
}

/// Blocks of 32 bytes with a scale of 1 / 64.
fn q8_0(rows: usize, k: usize) -> Tensor {
    let scale = half::f16::from_f32(1.0 / 64.0).to_le_bytes();
    let block = |b: usize| {
        let quants = (0..32).map(move |i| ((b * 32 + i) * 37 % 101) as u8);
        scale.into_iter().chain(quants)
    };
    let bytes: Vec<u8> = (0..rows * k / 32).flat_map(block).collect();
    Tensor::from_bytes(DType::Q8_0, &[rows, k], &bytes).unwrap()
}

/// The same from f32, in halves.
fn f16(rows: usize, k: usize) -> Tensor {
    let halves = noise(rows * k, 5).into_iter().map(half::f16::from_f32);
    let bytes: Vec<u8> = halves.flat_map(|x| x.to_le_bytes()).collect();
    Tensor::from_bytes(DType::F16, &[rows, k], &bytes).unwrap()
}

/// Products with bias, residual and activation, and one with weights of a language model.
fn network(cx: &mut Context, x: TensorId, weights: Tensor) -> TensorId {
    use tilewright::graph::ops::binary::Binary;
    use tilewright::graph::ops::unary::{Unary, UnaryOp};
    use tilewright_kernels::BinaryOp;
    let w = cx.constant(tensor(&[K, N], 1)).unwrap();
    let bias = cx.constant(tensor(&[N], 2)).unwrap();
    let y = cx.op(MatMul::default(), &[x, w]).unwrap();
    let y = cx.op(Binary::new(BinaryOp::Add), &[y, bias]).unwrap();
    let y = cx.op(Unary::new(UnaryOp::Relu), &[y]).unwrap();
    let y = cx.reshape(y, &[ROWS, N]).unwrap();
    let square = cx.constant(tensor(&[N, N], 3)).unwrap();
    let z = cx.op(MatMul { transposed_b: true, ..MatMul::default() }, &[y, square]).unwrap();
    let z = cx.op(Binary::new(BinaryOp::Add), &[z, y]).unwrap();
    let narrow = cx.constant(tensor(&[N, 64], 4)).unwrap();
    let z = cx.op(MatMul::default(), &[z, narrow]).unwrap();
    let weights = cx.constant(weights).unwrap();
    cx.op(BlockMatMul { bias: false }, &[z, weights]).unwrap()
}

/// The network from the definitions of its operators: of constants all is computed at once.
fn reference(weights: Tensor) -> Vec<f32> {
    let mut cx = Context::new();
    let x = cx.constant(tensor(&[2, ROWS / 2, K], 9)).unwrap();
    let z = network(&mut cx, x, weights);
    cx.constant_value(z).unwrap().as_slice().unwrap().to_vec()
}

fn run(weights: Tensor, device: Option<Arc<dyn Device>>) -> (Vec<f32>, Vec<String>) {
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &[2, ROWS / 2, K]).unwrap();
    let z = network(&mut cx, x, weights);
    passes::optimize(&mut cx, &[z], 2).unwrap();
    let mut executor = Executor::new(Isa::best(), 2).unwrap().with_device(device);
    let plan = executor.plan(&mut cx, &[z]).unwrap();
    let given = tensor(&[2, ROWS / 2, K], 9);
    let results = executor.run(&plan, &[&given], None).unwrap();
    let again = executor.run(&plan, &[&given], None).unwrap();
    let floats = |t: &Tensor| t.as_slice::<f32>().unwrap().to_vec();
    assert_eq!(floats(&again[0]).len(), ROWS * 33);
    (floats(&results[0]), plan.nodes().map(|node| node.kernel.clone()).collect())
}

fn device(emulator: &Instance) -> Arc<RknnDevice> {
    let options = Options {
        library: Some(emulator.path().to_owned()),
        chip: Some("rk3588".to_owned()),
        emulator: true,
        min_rows: Some(16),
        weight_bytes: Some(64 << 20),
        // No core hangs here, however busy the machine is.
        deadline: Some(Duration::from_secs(300)),
        lock: None,
        log: |_| {},
        ..Options::default()
    };
    Arc::new(RknnDevice::new(Arc::new(Npu::open(options).unwrap())))
}

/// Sums of 64 to 96 products of halves, three times over.
fn close(found: &[f32], expected: &[f32], what: &str) {
    let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 4e-3 * size, "{what}, element {i}: {a} {b}");
    }
}

#[test]
fn the_npu_takes_products_with_constant_weights() {
    // The CPU's kernel rounds activations to 8 bits where weights are blocks; the NPU does not.
    let expected = reference(q8_0(33, 64));
    let (_, kernels) = run(q8_0(33, 64), None);
    assert!(kernels.iter().all(|k| !k.starts_with("rknn")));
    let emulator = Instance::new("", None).unwrap();
    let device = device(&emulator);
    let (found, kernels) = run(q8_0(33, 64), Some(device.clone()));
    let taken = kernels.iter().filter(|k| *k == "rknn_matmul_f16").count();
    assert_eq!(taken, 8, "an attempt and its end for each of four products: {kernels:?}");
    close(&found, &expected, "on the NPU");
    let report = device.npu().report();
    assert_eq!((report.products, report.failures), (8, 0));
}

/// Two convolutions with windows of one pixel, one of them with what is fused to it, between others.
fn picture(device: Option<Arc<dyn Device>>) -> (Vec<f32>, Vec<String>) {
    use tilewright::graph::ops::binary::Binary;
    use tilewright::graph::ops::conv::Conv;
    use tilewright::graph::ops::unary::{Unary, UnaryOp};
    use tilewright_kernels::BinaryOp;
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &[2, 40, 5, 7]).unwrap();
    let wide = cx.constant(tensor(&[40, 40, 3, 3], 1)).unwrap();
    let biased = cx.constant(tensor(&[40], 2)).unwrap();
    let padded = Conv { pads: [1; 4], bias: true, ..Conv::default() };
    let y = cx.op(padded, &[x, wide, biased]).unwrap();
    let w = cx.constant(tensor(&[40, 40, 1, 1], 3)).unwrap();
    let bias = cx.constant(tensor(&[40], 4)).unwrap();
    let z = cx.op(Conv { bias: true, ..Conv::default() }, &[y, w, bias]).unwrap();
    let z = cx.op(Binary::new(BinaryOp::Add), &[z, y]).unwrap();
    let z = cx.op(Unary::new(UnaryOp::Relu), &[z]).unwrap();
    let w = cx.constant(tensor(&[50, 40, 1, 1], 5)).unwrap();
    let z = cx.op(Conv::default(), &[z, w]).unwrap();
    passes::optimize(&mut cx, &[z], 2).unwrap();
    let mut executor = Executor::new(Isa::best(), 2).unwrap().with_device(device);
    let plan = executor.plan(&mut cx, &[z]).unwrap();
    let given = tensor(&[2, 40, 5, 7], 9);
    let results = executor.run(&plan, &[&given], None).unwrap();
    let values = results[0].as_slice::<f32>().unwrap().to_vec();
    (values, plan.nodes().map(|node| node.kernel.clone()).collect())
}

#[test]
fn convolutions_of_single_pixels_are_products() {
    let (expected, _) = picture(None);
    for (fault, failures) in [("", 0), ("run:rc=-1", 2)] {
        let emulator = Instance::new(&format!("RKNN_EMU_FAULT={fault}"), None).unwrap();
        let device = device(&emulator);
        let (found, kernels) = picture(Some(device.clone()));
        assert!(kernels.iter().any(|k| k == "rknn_matmul_f16"), "{kernels:?}");
        close(&found, &expected, fault);
        let report = device.npu().report();
        assert_eq!((report.products, report.failures), (2 - failures, failures), "{report:?}");
    }
}

#[test]
fn products_are_begun_early_and_waited_for_late() {
    use tilewright::graph::ops::binary::Binary;
    use tilewright::graph::ops::embedding::Embedding;
    use tilewright::graph::ops::softmax::Softmax;
    use tilewright_kernels::BinaryOp;
    let build = |cx: &mut Context, x: TensorId, ids: TensorId| {
        let mut product = |x, dims: [usize; 2], seed| {
            let w = cx.constant(tensor(&dims, seed)).unwrap();
            cx.op(MatMul::default(), &[x, w]).unwrap()
        };
        let (a, b) = (product(x, [K, N], 1), product(x, [K, N], 2));
        let flat = cx.reshape(a, &[ROWS * N]).unwrap();
        let a = cx.reshape(flat, &[ROWS, N]).unwrap();
        let sum = cx.op(Binary::new(BinaryOp::Add), &[a, b]).unwrap();
        let w = cx.constant(tensor(&[N, 64], 3)).unwrap();
        let z = cx.op(MatMul::default(), &[sum, w]).unwrap();
        let own = cx.op(Softmax::along(1), &[x]).unwrap();
        let table = cx.constant(tensor(&[9, 8], 4)).unwrap();
        let chosen = cx.op(Embedding, &[table, ids]).unwrap();
        [z, own, chosen]
    };
    let x = tensor(&[ROWS, K], 9);
    let ids = |last: i32| Tensor::from_slice(&[2], &[3, last]).unwrap();
    let expected = {
        let mut cx = Context::new();
        let given = [x.clone(), ids(8)].map(|t| cx.constant(t).unwrap());
        let results = build(&mut cx, given[0], given[1]);
        results.map(|id| cx.constant_value(id).unwrap().as_slice::<f32>().unwrap().to_vec())
    };
    for (fault, failures) in [("", 0), ("run:nth=2:rc=-1", 1), ("run:rc=-1", 9)] {
        let emulator = Instance::new(&format!("RKNN_EMU_FAULT={fault}"), None).unwrap();
        let device = device(&emulator);
        let mut cx = Context::new();
        let given = cx.input("x", DType::F32, &[ROWS, K]).unwrap();
        let chosen = cx.input("ids", DType::I32, &[2]).unwrap();
        let results = build(&mut cx, given, chosen);
        let mut executor = Executor::new(Isa::best(), 2)
            .unwrap()
            .with_device(Some(device.clone() as Arc<dyn Device>));
        let plan = executor.plan(&mut cx, &results).unwrap();
        let kernels: Vec<String> = plan.nodes().map(|n| format!("{} {}", n.op, n.kernel)).collect();
        let at = |text: &str| {
            let found = kernels.iter().position(|k| k.contains(text));
            found.unwrap_or_else(|| panic!("no {text} in {kernels:?}"))
        };
        let begun: Vec<usize> =
            (0..kernels.len()).filter(|&i| kernels[i].contains("rknn_begin")).collect();
        // Both products of x, what the CPU has to do, and only then the wait for the first of them.
        assert_eq!((begun.len(), &begun[..2]), (3, &[0, 1][..]), "{kernels:?}");
        for own in ["softmax", "embedding"] {
            assert!((2..at("rknn_matmul")).contains(&at(own)), "{own}: {kernels:?}");
        }
        assert!(begun[2] > at("add "), "{kernels:?}");
        let mut run = |last| {
            let ids = ids(last);
            let order: Vec<&Tensor> =
                plan.input_names().map(|n| if n == "x" { &x } else { &ids }).collect();
            executor.run(&plan, &order, None)
        };
        let good = |results: Vec<Tensor>| {
            for (found, expected) in results.iter().zip(&expected) {
                close(&found.as_slice::<f32>().unwrap(), expected, fault);
            }
        };
        good(run(8).unwrap());
        // A run that ends with an error harms no later one.
        assert!(run(9).unwrap_err().to_string().contains("9"));
        good(run(8).unwrap());
        let report = device.npu().report();
        assert_eq!((report.products + report.failures, report.failures), (9, failures), "{fault}");
    }
}

#[test]
fn what_fails_on_the_npu_the_cpu_computes() {
    let expected = reference(f16(33, 64));
    for fault in [
        "run:nth=2:rc=-1",
        "run:every=3:rc=-1",
        "run:rc=-1",
        "run:nth=4:wrong=nan",
        "create:nth=5:rc=-4",
        "create_mem:after=4:null",
        "set_io:nth=3:rc=-1",
        "run:nth=5:dead",
    ] {
        let emulator = Instance::new(&format!("RKNN_EMU_FAULT={fault}"), None).unwrap();
        let device = device(&emulator);
        let (found, _) = run(f16(33, 64), Some(device.clone()));
        close(&found, &expected, fault);
        let report = device.npu().report();
        assert_eq!(report.products + report.failures, 8, "{fault}");
        assert!(report.failures > 0 && !report.reasons.is_empty(), "{fault}");
    }
}
