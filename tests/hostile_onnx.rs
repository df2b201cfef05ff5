//! ONNX files that are damaged or made to do harm: loading and building them gives a graph or an
//! error, never a panic, a long wait or much memory.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use tilewright::graph::Context;
use tilewright::import::ImportError;
use tilewright::import::onnx::proto::{
    AttributeProto, Dimension, GraphProto, ModelProto, NodeProto, OperatorSetIdProto,
    StringStringEntryProto, TensorProto, TensorShapeProto, TypeProto, ValueInfoProto, dimension,
    type_proto,
};
use tilewright::import::onnx::{Dim, OnnxModel, read_tensor_pb};
use tilewright::{Model, Session, SessionOptions, Tensor};

/// Longer than any of these files may take, on a slow machine in a debug build.
const PATIENCE: Duration = Duration::from_secs(5);

fn floats(name: &str, dims: &[i64]) -> TensorProto {
    let count = usize::try_from(dims.iter().product::<i64>()).unwrap();
    let bytes: Vec<u8> = (0..count).flat_map(|i| (i as f32 / 8.0).to_le_bytes()).collect();
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(1),
        raw_data: Some(bytes.into()),
        ..Default::default()
    }
}

fn ints(name: &str, v: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![v.len() as i64],
        data_type: Some(7),
        int64_data: v.to_vec(),
        ..Default::default()
    }
}

fn attribute(name: &str, ints: &[i64]) -> AttributeProto {
    let mut a = AttributeProto { name: Some(name.into()), ..Default::default() };
    match ints {
        [i] => (a.i, a.r#type) = (Some(*i), Some(2)),
        many => (a.ints, a.r#type) = (many.to_vec(), Some(7)),
    }
    a
}

fn node(op: &str, inputs: &[&str], output: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: vec![output.into()],
        attribute,
        ..Default::default()
    }
}

fn value(name: &str, dims: &[Option<i64>]) -> ValueInfoProto {
    let dim = |d: &Option<i64>| Dimension {
        value: Some(match d {
            Some(n) => dimension::Value::Fixed(*n),
            None => dimension::Value::Symbol("n".into()),
        }),
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(1), shape };
    let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(kind) }
}

fn model(graph: GraphProto) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        graph: Some(graph),
        ..Default::default()
    }
}

/// A small network with convolution, pooling, resizing, shape arithmetic and a product.
fn good() -> ModelProto {
    let nodes = vec![
        node("Conv", &["x", "w", "b"], "conv", vec![attribute("pads", &[1, 1, 1, 1])]),
        node("Relu", &["conv"], "relu", vec![]),
        node("MaxPool", &["relu"], "pool", vec![attribute("kernel_shape", &[2, 2])]),
        node("Resize", &["pool", "", "scales"], "big", vec![]),
        node("Slice", &["big", "from", "to", "axes", "steps"], "part", vec![]),
        node("Pad", &["part", "pads"], "padded", vec![]),
        node("Shape", &["padded"], "shape", vec![]),
        node("Gather", &["shape", "first"], "n", vec![]),
        node("Concat", &["n", "minus"], "flat", vec![attribute("axis", &[0])]),
        node("Reshape", &["padded", "flat"], "rows", vec![]),
        node("ReduceMean", &["rows", "one"], "mean", vec![]),
        node("ConstantOfShape", &["flat2"], "zeros", vec![]),
        node("Expand", &["zeros", "wide"], "zeros2", vec![]),
        node("Tile", &["zeros2", "times"], "zeros3", vec![]),
        node("Concat", &["mean", "zeros3"], "joined", vec![attribute("axis", &[1])]),
        node("MatMul", &["joined", "m"], "product", vec![]),
        node("Softmax", &["product"], "y", vec![]),
    ];
    let initializer = vec![
        floats("w", &[4, 2, 3, 3]),
        floats("b", &[4]),
        floats("m", &[5, 3]),
        TensorProto {
            float_data: vec![1.0, 1.0, 2.0, 2.0],
            raw_data: None,
            ..floats("scales", &[4])
        },
        ints("from", &[-1]),
        ints("to", &[0]),
        ints("axes", &[2]),
        ints("steps", &[-2]),
        ints("pads", &[0, 0, 1, 0, 0, 0, 0, 1]),
        ints("first", &[0]),
        ints("minus", &[-1]),
        ints("one", &[1]),
        ints("flat2", &[1, 1]),
        ints("wide", &[1, 2]),
        ints("times", &[1, 2]),
    ];
    model(GraphProto {
        node: nodes,
        name: Some("good".into()),
        initializer,
        input: vec![value("x", &[Some(1), Some(2), None, Some(6)])],
        output: vec![value("y", &[Some(1), Some(3)])],
        ..Default::default()
    })
}

/// Loads a file, and builds its graph for extents of 6 where the file leaves them open.
fn attempt(bytes: Vec<u8>, folder: Option<&Path>) -> Result<usize, ImportError> {
    let start = Instant::now();
    let result = OnnxModel::from_bytes(bytes.into(), folder).and_then(|model| {
        let dims = |d: &Dim| match d {
            Dim::Fixed(n) => *n,
            _ => 6,
        };
        let shapes = model.inputs().iter().map(|i| match &i.dims {
            Some(d) => d.iter().map(dims).collect::<Vec<_>>(),
            None => vec![1, 2, 6, 6],
        });
        let shapes: Vec<Vec<usize>> = shapes.collect();
        let names = model.inputs().iter().map(|i| i.name.as_str());
        let inputs: Vec<(&str, &[usize])> = names.zip(shapes.iter().map(Vec::as_slice)).collect();
        Ok(model.instantiate(&mut Context::new(), &inputs, &[])?.len())
    });
    assert!(start.elapsed() < PATIENCE, "took {:?}: {result:?}", start.elapsed());
    if let Err(e) = &result {
        let text = e.to_string();
        assert!(!text.is_empty() && !text.contains('\n') && text.len() < 4096, "{text}");
    }
    result
}

fn error_of(graph: GraphProto) -> String {
    attempt(model(graph).encode_to_vec(), None).unwrap_err().to_string()
}

/// Numbers that look random (xorshift), from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize
    }
}

#[test]
fn the_good_file_is_good() {
    assert_eq!(attempt(good().encode_to_vec(), None), Ok(1));
}

#[test]
fn truncated_files() {
    let bytes = good().encode_to_vec();
    for i in 0..64 {
        let cut = bytes.len() * i / 64;
        assert!(attempt(bytes[..cut].to_vec(), None).is_err(), "cut at {cut}");
    }
    for cut in bytes.len() - 40..bytes.len() {
        let _ = attempt(bytes[..cut].to_vec(), None);
    }
}

#[test]
fn flipped_bits() {
    let bytes = good().encode_to_vec();
    let mut random = Random(0x5eed);
    for round in 0..6000 {
        let mut broken = bytes.clone();
        for _ in 0..1 + round % 3 {
            let at = random.next() % broken.len();
            broken[at] ^= 1 << (random.next() % 8);
        }
        let _ = attempt(broken, None);
    }
}

#[test]
fn overwritten_and_spliced_bytes() {
    let bytes = good().encode_to_vec();
    let mut random = Random(0xb17e);
    for round in 0..3000 {
        let mut broken = bytes.clone();
        let at = random.next() % broken.len();
        match round % 3 {
            0 => broken[at] = [0, 1, 0x7f, 0x80, 0xff][random.next() % 5],
            1 => drop(broken.drain(at..broken.len().min(at + 1 + random.next() % 9))),
            _ => {
                let from = random.next() % broken.len();
                let piece = broken[from..broken.len().min(from + random.next() % 64)].to_vec();
                broken.splice(at..at, piece);
            }
        }
        let _ = attempt(broken, None);
    }
}

#[test]
fn random_bytes() {
    let mut random = Random(1);
    for round in 0..3000 {
        let bytes: Vec<u8> = (0..round % 300).map(|_| random.next() as u8).collect();
        assert!(attempt(bytes, None).is_err());
    }
}

/// Constants that decide about shapes take every kind of absurd number.
#[test]
fn absurd_numbers_in_constants_and_attributes() {
    const ABSURD: [i64; 10] =
        [0, -1, -2, 7, 1 << 12, 1 << 31, 1 << 40, 1 << 62, i64::MAX, i64::MIN];
    let base = good();
    let graph = base.graph.as_ref().unwrap();
    let mut tried = 0;
    for bad in ABSURD {
        for (t, tensor) in graph.initializer.iter().enumerate() {
            for i in 0..tensor.int64_data.len() {
                let mut m = base.clone();
                m.graph.as_mut().unwrap().initializer[t].int64_data[i] = bad;
                let _ = attempt(m.encode_to_vec(), None);
                tried += 1;
            }
            for i in 0..tensor.dims.len() {
                let mut m = base.clone();
                m.graph.as_mut().unwrap().initializer[t].dims[i] = bad;
                let result = attempt(m.encode_to_vec(), None);
                assert!(result.is_err() || bad == tensor.dims[i], "{t} {bad}");
            }
            for i in 0..tensor.float_data.len() {
                let mut m = base.clone();
                m.graph.as_mut().unwrap().initializer[t].float_data[i] = bad as f32 * 1e-3;
                let _ = attempt(m.encode_to_vec(), None);
            }
        }
        for (n, node) in graph.node.iter().enumerate() {
            for (a, attribute) in node.attribute.iter().enumerate() {
                for i in 0..attribute.ints.len() {
                    let mut m = base.clone();
                    m.graph.as_mut().unwrap().node[n].attribute[a].ints[i] = bad;
                    let _ = attempt(m.encode_to_vec(), None);
                    tried += 1;
                }
                let mut m = base.clone();
                m.graph.as_mut().unwrap().node[n].attribute[a].i = Some(bad);
                let _ = attempt(m.encode_to_vec(), None);
            }
        }
        for axis in 0..4 {
            let mut m = base.clone();
            let mut dims = [Some(1), Some(2), None, Some(6)];
            dims[axis] = Some(bad);
            m.graph.as_mut().unwrap().input[0] = value("x", &dims);
            let _ = attempt(m.encode_to_vec(), None);
        }
    }
    assert!(tried > 200);
    assert_little_memory();
}

#[test]
fn missing_versions_graphs_and_outputs() {
    for cut in [
        |m: &mut ModelProto| m.ir_version = None,
        |m: &mut ModelProto| m.graph = None,
        |m: &mut ModelProto| m.opset_import.clear(),
        |m: &mut ModelProto| m.graph.as_mut().unwrap().output.clear(),
        |m: &mut ModelProto| m.graph.as_mut().unwrap().input.clear(),
        |m: &mut ModelProto| m.graph.as_mut().unwrap().node.clear(),
        |m: &mut ModelProto| m.graph.as_mut().unwrap().initializer.clear(),
    ] {
        let mut m = good();
        cut(&mut m);
        assert!(attempt(m.encode_to_vec(), None).is_err());
    }
    assert_eq!(attempt(Vec::new(), None), Err(ImportError::Empty));
}

#[test]
fn cycles_are_named() {
    let graph = GraphProto {
        node: vec![
            node("Add", &["x", "b"], "a", vec![]),
            node("Relu", &["a"], "b", vec![]),
            node("Relu", &["b"], "y", vec![]),
        ],
        input: vec![value("x", &[Some(2)])],
        output: vec![value("y", &[Some(2)])],
        ..Default::default()
    };
    let text = error_of(graph);
    assert!(
        text.contains("Add#0") && text.contains("Relu#1") && !text.contains("Relu#2"),
        "{text}"
    );
}

#[test]
fn long_chains_and_many_small_things() {
    let chain = |i: usize| node("Neg", &[&format!("v{i}")], &format!("v{}", i + 1), vec![]);
    let graph = GraphProto {
        node: (0..20_000).rev().map(chain).collect(),
        input: vec![value("v0", &[Some(2)])],
        output: vec![value("v20000", &[Some(2)])],
        ..Default::default()
    };
    assert_eq!(attempt(model(graph).encode_to_vec(), None), Ok(1));
    // Each unknown operator has a long name of its own.
    let graph = GraphProto {
        node: (0..5000)
            .map(|i| node(&format!("Op{i}{}", "\n".repeat(50)), &[], &format!("v{i}"), vec![]))
            .collect(),
        output: vec![value("v0", &[])],
        ..Default::default()
    };
    let bytes = model(graph).encode_to_vec();
    let e = OnnxModel::from_bytes(bytes.into(), None).unwrap_err();
    assert!(matches!(e, ImportError::Unsupported(_)) && !e.to_string().contains('\n'));
    let many: Vec<String> = (0..50_000).map(|_| "x".to_owned()).collect();
    let graph = GraphProto {
        node: vec![NodeProto {
            op_type: Some("Concat".into()),
            input: many,
            output: vec!["y".into()],
            attribute: vec![attribute("axis", &[0])],
            ..Default::default()
        }],
        input: vec![value("x", &[Some(2)])],
        output: vec![value("y", &[])],
        ..Default::default()
    };
    assert_eq!(attempt(model(graph).encode_to_vec(), None), Ok(1));
}

/// Messages inside messages do not use up the stack.
#[test]
fn deep_nesting() {
    let nested = |field: u8, depth: usize| {
        let mut bytes: Vec<u8> = vec![];
        for _ in 0..depth {
            let mut outer = vec![field << 3 | 2];
            prost::encoding::encode_varint(bytes.len() as u64, &mut outer);
            outer.extend_from_slice(&bytes);
            bytes = outer;
        }
        bytes
    };
    for field in [1, 4, 5, 6, 7, 8, 9, 11, 12] {
        let _ = attempt(nested(field, 2000), None);
        // Inside a graph, an attribute (a subgraph), and the type of an input.
        let subgraph = [&[7u8 << 3 | 2][..], &length(&nested(field, 500))].concat();
        let _ = attempt(subgraph, None);
        let branch = AttributeProto {
            name: Some("body".into()),
            g: Some(nested(field, 2000).into()),
            ..Default::default()
        };
        let graph = GraphProto {
            node: vec![node("Loop", &[], "y", vec![branch])],
            output: vec![value("y", &[])],
            ..Default::default()
        };
        assert!(attempt(model(graph).encode_to_vec(), None).is_err());
        let sequence = type_proto::Value::Sequence(nested(1, 2000).into());
        let mut m = good();
        m.graph.as_mut().unwrap().input[0].r#type = Some(TypeProto { value: Some(sequence) });
        assert!(attempt(m.encode_to_vec(), None).is_err());
    }
}

/// A message with its length in front.
fn length(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_varint(bytes.len() as u64, &mut out);
    out.extend_from_slice(bytes);
    out
}

/// Lengths that reach beyond the file are noticed before memory is asked for.
#[test]
fn lengths_beyond_the_file() {
    for claimed in [1u64 << 20, 1 << 40, u64::MAX] {
        for path in [&[7u8][..], &[7, 5], &[7, 5, 9], &[7, 5, 4], &[7, 5, 7], &[7, 1], &[8]] {
            let mut bytes = vec![];
            for (i, field) in path.iter().rev().enumerate() {
                let mut outer = vec![field << 3 | 2];
                let len = if i == 0 { claimed } else { bytes.len() as u64 };
                prost::encoding::encode_varint(len, &mut outer);
                outer.extend_from_slice(&bytes);
                bytes = outer;
            }
            assert!(attempt(bytes, None).is_err());
        }
    }
    assert_little_memory();
}

/// A small file may ask for a huge intermediate tensor, too: planning it is an error.
#[test]
fn absurd_intermediates_are_refused() {
    for extent in [1 << 45, 1 << 61, i64::MAX] {
        let graph = GraphProto {
            node: vec![
                node("Expand", &["x", "shape"], "wide", vec![]),
                node("Relu", &["wide"], "y", vec![]),
            ],
            initializer: vec![ints("shape", &[extent, 2])],
            input: vec![value("x", &[Some(1), Some(2)])],
            output: vec![value("y", &[])],
            ..Default::default()
        };
        let bytes = model(graph).encode_to_vec();
        let model = Arc::new(Model::from_bytes(bytes, None).unwrap());
        let options = SessionOptions { threads: Some(1), ..Default::default() };
        let mut session = Session::new(model, options).unwrap();
        let x = Tensor::from_slice(&[1, 2], &[1f32, 2.0]).unwrap();
        let text = session.run(&[("x", x)]).unwrap_err().to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
    }
}

#[test]
fn external_data_stay_inside_the_models_folder() {
    let folder = Scratch::new("external");
    let outside = folder.0.join("secret.bin");
    std::fs::write(&outside, [0u8; 16]).unwrap();
    let inside = folder.0.join("model");
    std::fs::create_dir_all(&inside).unwrap();
    std::fs::write(inside.join("w.bin"), [0u8; 16]).unwrap();
    let with = |entries: &[(&str, &str)]| {
        let entry = |&(k, v): &(&str, &str)| StringStringEntryProto {
            key: Some(k.into()),
            value: Some(v.into()),
        };
        let mut m = good();
        let graph = m.graph.as_mut().unwrap();
        graph.initializer[1] = TensorProto {
            raw_data: None,
            data_location: Some(1),
            external_data: entries.iter().map(entry).collect(),
            ..graph.initializer[1].clone()
        };
        m.encode_to_vec()
    };
    let good = with(&[("location", "w.bin")]);
    assert_eq!(attempt(good.clone(), Some(&inside)), Ok(1));
    assert!(attempt(good, None).is_err());
    let absolute = outside.to_str().unwrap();
    for entries in [
        &[("location", "../secret.bin")][..],
        &[("location", absolute)],
        &[("location", "/dev/zero")],
        &[("location", "w.bin/../../secret.bin")],
        &[("location", ".")],
        &[("location", "w.bin"), ("offset", "8")],
        &[("location", "w.bin"), ("offset", "18446744073709551615"), ("length", "17")],
        &[("location", "w.bin"), ("length", "1e3")],
    ] {
        let e = attempt(with(entries), Some(&inside)).unwrap_err();
        assert!(matches!(e, ImportError::Data { .. }), "{entries:?}: {e}");
    }
}

#[test]
fn tensors_in_files() {
    let folder = Scratch::new("tensors");
    let path = folder.0.join("t.pb");
    let bytes = floats("t", &[2, 2]).encode_to_vec();
    std::fs::write(&path, &bytes).unwrap();
    let (name, tensor) = read_tensor_pb(&path).unwrap();
    assert_eq!((name.as_str(), tensor.dims()), ("t", vec![2, 2]));
    for cut in 0..bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        assert!(read_tensor_pb(&path).is_err(), "{cut}");
    }
    assert!(read_tensor_pb(&folder.0).is_err());
}

/// The most memory this process ever had stays far below what a gigantic allocation would take.
fn assert_little_memory() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).unwrap();
    let kib: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 1 << 20, "{kib} KiB");
}

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tilewright-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
