//! Weights of a file take memory once: as they are packed, not as they lie in the file as well.
//!
//! Alone in its program, as it looks at the memory of the whole process.
#![cfg(target_os = "linux")]

#[path = "support/onnx.rs"]
mod onnx;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use prost::Message as _;
use tilewright::import::onnx::proto::{GraphProto, ModelProto, TensorProto};
use tilewright::{Model, Session, SessionOptions, Tensor};

/// Rows and columns of a matrix.
const SIDE: usize = 1024;
const MATRICES: usize = 16;

/// Bytes that the process has in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib << 10
}

/// Writes a chain of products with matrices, each of which moves the elements by one place. They follow the rest of
/// the model one by one, as parts of messages add up: to write them takes the memory of one.
fn write_chain(path: &Path) {
    let name = |i: usize| if i == 0 { "x".to_owned() } else { format!("x{i}") };
    let product = |i: usize| {
        onnx::node("MatMul", &[name(i).as_str(), format!("w{i}").as_str()], &[name(i + 1).as_str()])
    };
    let extents = [Some(1), Some(SIDE as i64)];
    let nodes = (0..MATRICES).map(product).collect();
    let whole =
        onnx::model(&[("x", onnx::F32, &extents)], &[name(MATRICES).as_str()], nodes, Vec::new());
    let mut file = File::create(path).unwrap();
    file.write_all(&whole.encode_to_vec()).unwrap();
    let mut bytes = vec![0; SIDE * SIDE * 4];
    for row in 0..SIDE {
        let at = (row * SIDE + (row + 1) % SIDE) * 4;
        bytes[at..at + 4].copy_from_slice(&1f32.to_le_bytes());
    }
    let mut matrix = onnx::tensor("", &[SIDE as i64; 2], &[]);
    matrix.raw_data = Some(bytes.into());
    for i in 0..MATRICES {
        let matrix = TensorProto { name: Some(format!("w{i}")), ..matrix.clone() };
        let graph = GraphProto { initializer: vec![matrix], ..GraphProto::default() };
        let part = ModelProto { graph: Some(graph), ..ModelProto::default() };
        file.write_all(&part.encode_to_vec()).unwrap();
    }
}

#[test]
fn weights_take_memory_once() {
    let path = std::env::temp_dir().join(format!("tilewright-mapped-{}.onnx", std::process::id()));
    write_chain(&path);
    let before = resident();
    let model = Model::load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let options = SessionOptions { threads: Some(1), ..SessionOptions::default() };
    let mut session = Session::new(Arc::new(model), options).unwrap();
    let x: Vec<f32> = (0..SIDE).map(|i| i as f32).collect();
    let mut run = || {
        let x = Tensor::from_slice(&[1, SIDE], &x).unwrap();
        session.run(&[("x", x)]).unwrap()[0].1.as_slice::<f32>().unwrap().to_vec()
    };
    let first = run();
    let added = resident() - before;
    let moved = |i: usize| ((i + SIDE - MATRICES) % SIDE) as f32;
    assert!(first.iter().enumerate().all(|(i, &y)| y == moved(i)));
    assert_eq!(run(), first);
    let weights = MATRICES * SIDE * SIDE * 4;
    assert!(added > weights * 3 / 4, "{added} bytes for {weights}: packed weights are not there");
    assert!(added < weights * 3 / 2, "{added} bytes for {weights}: weights are there twice");
}
