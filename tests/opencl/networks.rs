//! Whole networks: the device against the CPU.

use std::path::{Path, PathBuf};

use tilewright::{Model, Session, SessionOptions};

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
