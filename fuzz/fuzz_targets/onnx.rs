//! Loads bytes as an ONNX model and builds its graph: `cargo +nightly fuzz run onnx`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tilewright::graph::Context;
use tilewright::import::onnx::{Dim, OnnxModel};

fuzz_target!(|data: &[u8]| {
    let Ok(model) = OnnxModel::from_bytes(data.to_vec().into(), None) else { return };
    let extent = |d: &Dim| match d {
        Dim::Fixed(n) => *n,
        _ => 3,
    };
    let shapes = model.inputs().iter().map(|i| match &i.dims {
        Some(dims) => dims.iter().map(extent).collect::<Vec<_>>(),
        None => vec![1, 3, 4, 4],
    });
    let shapes: Vec<Vec<usize>> = shapes.collect();
    let names = model.inputs().iter().map(|i| i.name.as_str());
    let inputs: Vec<(&str, &[usize])> = names.zip(shapes.iter().map(Vec::as_slice)).collect();
    let _ = model.instantiate(&mut Context::new(), &inputs, &[]);
});
