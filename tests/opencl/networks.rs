//! Whole networks: the device against the CPU.

use std::path::{Path, PathBuf};

use prost::Message;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::reduce::{Reduce, ReduceOp};
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{ops::binary::Binary, passes};
use tilewright::{Model, Session, SessionOptions};
use tilewright_kernels::BinaryOp;

use super::*;

fn folder() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/models");
    let folder = std::env::var_os("TILEWRIGHT_MODELS").map_or(beside, PathBuf::from);
    if folder.join("manifest.json").is_file() {
        return Some(folder);
    }
    println!("skipped: no models in {}", folder.display());
    None
}

/// Inputs of a network: noise for floats, any bytes for bytes; extents that are free are 1.
fn inputs(model: &Model, seed: u32) -> Vec<(String, Tensor)> {
    let extent = |d: &tilewright::Dim| match d {
        tilewright::Dim::Fixed(n) => *n,
        _ => 1,
    };
    let one = |info: &tilewright::ValueInfo| {
        let dims: Vec<usize> = info.dims.as_ref().unwrap().iter().map(extent).collect();
        let tensor = match info.dtype {
            DType::F32 => tensor(&dims, seed),
            dtype => {
                let count = dtype.bytes_of(dims.iter().product()).unwrap();
                let bytes: Vec<u8> = (0..count).map(|i| (i * 31 + seed as usize) as u8).collect();
                Tensor::from_bytes(dtype, &dims, &bytes).unwrap()
            }
        };
        (info.name.clone(), tensor)
    };
    model.inputs().iter().map(one).collect()
}

/// Runs a network on both; gives the number of operations of the CPU.
fn compare(device: &Arc<OpenClDevice>, path: &Path, bound: f32) {
    let model = Arc::new(Model::load(path).unwrap());
    let session = |device| {
        let options = SessionOptions { threads: Some(1), device, ..SessionOptions::default() };
        Session::new(model.clone(), options).unwrap()
    };
    let mut on_cpu = session(None);
    let mut on_device = session(Some(device.clone() as Arc<dyn Device>));
    for seed in 0..2 {
        let given = inputs(&model, seed);
        let given: Vec<(&str, Tensor)> =
            given.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let expected = on_cpu.run(&given).unwrap();
        let found = on_device.run(&given).unwrap();
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            assert_close(found, expected, bound, &format!("{} {name}", path.display()));
        }
    }
}

#[test]
fn networks_give_what_the_cpu_gives() {
    let (Some(device), Some(folder)) = (open(options()), folder()) else { return };
    let floats = [
        ("mlperftiny-ad/ad_f32.onnx", 1e-4),
        ("mlperftiny-kws/kws_f32.onnx", 1e-5),
        ("mlperftiny-resnet8/resnet8_f32.onnx", 1e-5),
        ("mlperftiny-vww/vww_f32.onnx", 1e-5),
        ("mnist-cnn/mnist-8.onnx", 1e-4),
        ("squeezenet/squeezenet_f32.onnx", 1e-5),
        ("ultraface-320/version-slim-320.onnx", 1e-4),
    ];
    for (name, bound) in floats {
        compare(&device, &folder.join(name), bound);
    }
    assert_eq!(device.fallbacks().on_cpu, [], "the CPU computes part of a network");
}

#[test]
fn networks_of_bytes_are_exact() {
    let (Some(device), Some(folder)) = (open(options()), folder()) else { return };
    for name in ["ad", "kws", "resnet8", "vww"] {
        compare(&device, &folder.join(format!("mlperftiny-{name}/{name}_int8_qdq.onnx")), 0.0);
    }
    println!("on the CPU: {:?}", device.fallbacks());
}

/// The layers of MobileNetV2 (Sandler and others 2018, table 2) with random weights.
struct MobileNet<'a> {
    cx: &'a mut Context,
    seed: u32,
}

impl MobileNet<'_> {
    fn weights(&mut self, dims: &[usize], sum: usize) -> TensorId {
        self.seed += 1;
        let scale = (3.0 / sum as f32).sqrt();
        let values: Vec<f32> =
            noise(dims.iter().product(), self.seed).iter().map(|v| v * scale).collect();
        self.cx.constant(Tensor::from_slice(dims, &values).unwrap()).unwrap()
    }

    fn conv(
        &mut self,
        x: TensorId,
        n: usize,
        window: usize,
        stride: usize,
        groups: usize,
    ) -> TensorId {
        let channels = self.cx.dims(x)[1] / groups;
        let w = self.weights(&[n, channels, window, window], channels * window * window);
        let bias = self.weights(&[n], 100);
        let (stride, pads) = ([stride; 2], [window / 2; 4]);
        let conv = Conv { stride, pads, groups, bias: true, ..Conv::default() };
        self.cx.op(conv, &[x, w, bias]).unwrap()
    }

    fn relu6(&mut self, x: TensorId) -> TensorId {
        self.cx.op(Unary::new(UnaryOp::Clip { min: 0.0, max: 6.0 }), &[x]).unwrap()
    }

    /// Wider, each channel by itself, narrower; and what came in, if that is possible.
    fn block(&mut self, x: TensorId, expand: usize, n: usize, stride: usize) -> TensorId {
        let channels = self.cx.dims(x)[1];
        let mut y = x;
        if expand > 1 {
            y = self.conv(y, channels * expand, 1, 1, 1);
            y = self.relu6(y);
        }
        y = self.conv(y, channels * expand, 3, stride, channels * expand);
        y = self.relu6(y);
        y = self.conv(y, n, 1, 1, 1);
        if stride == 1 && channels == n {
            y = self.cx.op(Binary::new(BinaryOp::Add), &[y, x]).unwrap();
        }
        y
    }

    fn whole(&mut self) -> TensorId {
        let x = self.cx.input("x", DType::F32, &[1, 3, 224, 224]).unwrap();
        let mut y = self.conv(x, 32, 3, 2, 1);
        y = self.relu6(y);
        let stages = [
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ];
        for (expand, n, count, stride) in stages {
            for i in 0..count {
                y = self.block(y, expand, n, if i == 0 { stride } else { 1 });
            }
        }
        y = self.conv(y, 1280, 1, 1, 1);
        y = self.relu6(y);
        y = self.cx.op(Reduce { op: ReduceOp::Mean, axis: 2, count: 2 }, &[y]).unwrap();
        y = self.cx.reshape(y, &[1, 1280]).unwrap();
        let w = self.weights(&[1280, 1000], 1280);
        self.cx.op(MatMul::default(), &[y, w]).unwrap()
    }
}

#[test]
fn mobilenet_v2_gives_what_the_cpu_gives() {
    let Some(device) = open(options()) else { return };
    let run = |device: Option<&Arc<OpenClDevice>>| {
        let mut cx = Context::new();
        let y = MobileNet { cx: &mut cx, seed: 0 }.whole();
        passes::optimize(&mut cx, &[y], 1).unwrap();
        let device = device.map(|d| d.clone() as Arc<dyn Device>);
        let mut executor = Executor::new(Isa::best(), 1).unwrap().with_device(device);
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        executor.run(&plan, &[&tensor(&[1, 3, 224, 224], 9)], None).unwrap().remove(0)
    };
    let (expected, found) = (run(None), run(Some(&device)));
    let most = expected.as_slice::<f32>().unwrap().iter().fold(0f32, |m, v| m.max(v.abs()));
    assert!(most > 0.01, "the network gives nothing");
    assert_close(&found, &expected, 1e-4 * most.min(1.0), "MobileNetV2");
    assert_eq!(device.fallbacks().on_cpu, [], "the CPU computes part of the network");
}

/// A network of a convolution and a product of 256 KiB each.
fn small(batch: Option<i64>) -> Model {
    use crate::onnx::{F32, model, node, tensor};
    let w: Vec<f32> = noise(64 * 64 * 16, 5).iter().map(|v| v * 0.05).collect();
    let b: Vec<f32> = noise(256 * 256, 6).iter().map(|v| v * 0.05).collect();
    let weights = vec![tensor("w", &[64, 64, 4, 4], &w), tensor("b", &[256, 256], &b)];
    let nodes = vec![
        node("Conv", &["x", "w"], &["c"]),
        node("Flatten", &["c"], &["f"]),
        node("MatMul", &["f", "b"], &["y"]),
    ];
    let proto = model(&[("x", F32, &[batch, Some(64), Some(5), Some(5)])], &["y"], nodes, weights);
    Model::from_bytes(proto.encode_to_vec(), None).unwrap()
}

#[test]
fn a_network_is_moved_once() {
    for (lend, batch) in [(false, Some(1)), (true, Some(1)), (false, None)] {
        let Some(device) = open(Options { lend, ..options() }) else { return };
        let model = small(batch);
        let x = tensor(&[1, 64, 5, 5], 7);
        let run = |model: &Model| {
            let threads = Some(1);
            let options = SessionOptions { threads, ..SessionOptions::default() };
            let mut session = Session::new(Arc::new(model.clone()), options).unwrap();
            session.run(&[("x", x.clone())]).unwrap().remove(0).1
        };
        let expected = run(&model);
        let moved = model.to(device.clone() as Arc<dyn Device>).unwrap();
        let sent = device.counts().written;
        assert_eq!(sent >= 256 << 10, batch.is_some(), "{sent} bytes with {batch:?}");
        assert_close(&run(&moved), &expected, 1e-5, "the first session");
        let sent = device.counts().written;
        let there = device.memory().used;
        assert!(there >= 256 << 10, "the weights stay: {there}");
        // What a run sends is its input.
        for _ in 0..2 {
            assert_close(&run(&moved.clone()), &expected, 1e-5, "another session");
        }
        let more = device.counts().written - sent;
        assert_eq!(more, 2 * x.bytes().len() as u64, "weights were sent again");
        assert_eq!(device.memory().used, there);
        // The original runs on the CPU still.
        let kernels = device.counts().kernels;
        assert_eq!(run(&model).bytes(), expected.bytes());
        assert_eq!(device.counts().kernels, kernels);
        drop((model, moved));
        assert_eq!(device.memory().used, 0);
        device.trim();
        assert_eq!(device.counts().bytes, 0);
    }
}
