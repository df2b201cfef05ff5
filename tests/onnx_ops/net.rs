//! A network that is built node by node, and run in two ways.

use std::sync::Arc;

use prost::Message;
use tilewright::graph::Context;
use tilewright::import::onnx::OnnxModel;
use tilewright::import::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};
use tilewright::{Isa, Model, Session, SessionOptions, Tensor};

/// An attribute's value.
pub(super) enum A<'a> {
    I(i64),
    F(f32),
    S(&'a str),
    Is(&'a [i64]),
}

pub(super) fn attribute((name, value): &(&str, A<'_>)) -> AttributeProto {
    let mut a = AttributeProto { name: Some((*name).into()), ..Default::default() };
    match value {
        A::I(v) => (a.i, a.r#type) = (Some(*v), Some(2)),
        A::F(v) => (a.f, a.r#type) = (Some(*v), Some(1)),
        A::S(v) => (a.s, a.r#type) = (Some(v.as_bytes().to_vec().into()), Some(3)),
        A::Is(v) => (a.ints, a.r#type) = (v.to_vec(), Some(7)),
    }
    a
}

/// Values that look random, the same on every machine.
pub(super) fn noise(dims: &[usize], seed: u32) -> Tensor {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let data: Vec<f32> = (0..dims.iter().product())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 - 0.5) * 2.0
        })
        .collect();
    Tensor::from_slice(dims, &data).unwrap()
}

/// A network that is built node by node; value `x` is its input, the last node's its output.
pub(super) struct Net {
    pub(super) graph: GraphProto,
    pub(super) x: Tensor,
    seed: u32,
}

impl Net {
    pub(super) fn new(dims: &[usize]) -> Self {
        let x = noise(dims, 1);
        Self { graph: GraphProto::default(), x, seed: 1 }
    }

    /// A constant of noise; gives its name.
    pub(super) fn weights(&mut self, dims: &[usize]) -> String {
        self.seed += 1;
        let scale = 1.0 / (dims.iter().skip(1).product::<usize>() as f32).sqrt();
        let values: Vec<f32> =
            noise(dims, self.seed).as_slice::<f32>().unwrap().iter().map(|v| v * scale).collect();
        self.constant(1, dims, bytemuck::cast_slice(&values))
    }

    pub(super) fn ints(&mut self, v: &[i64]) -> String {
        self.constant(7, &[v.len()], bytemuck::cast_slice(v))
    }

    pub(super) fn floats(&mut self, v: &[f32]) -> String {
        self.constant(1, &[v.len()], bytemuck::cast_slice(v))
    }

    pub(super) fn constant(&mut self, data_type: i32, dims: &[usize], bytes: &[u8]) -> String {
        let name = format!("c{}", self.graph.initializer.len());
        self.graph.initializer.push(TensorProto {
            name: Some(name.clone()),
            dims: dims.iter().map(|&d| d as i64).collect(),
            data_type: Some(data_type),
            raw_data: Some(bytes.to_vec().into()),
            ..Default::default()
        });
        name
    }

    /// A node; gives the name of its value.
    pub(super) fn node(
        &mut self,
        op: &str,
        inputs: &[&str],
        attributes: &[(&str, A<'_>)],
    ) -> String {
        let name = format!("v{}", self.graph.node.len());
        self.graph.node.push(NodeProto {
            op_type: Some(op.into()),
            input: inputs.iter().map(|s| (*s).into()).collect(),
            output: vec![name.clone()],
            attribute: attributes.iter().map(attribute).collect(),
            ..Default::default()
        });
        name
    }

    /// A 3x3 convolution that keeps the size.
    pub(super) fn conv(&mut self, x: &str, from: usize, to: usize) -> String {
        let (w, b) = (self.weights(&[to, from, 3, 3]), self.weights(&[to]));
        self.node("Conv", &[x, &w, &b], &[("pads", A::Is(&[1, 1, 1, 1]))])
    }

    pub(super) fn bytes(mut self, x_is_constant: bool) -> Vec<u8> {
        let last = self.graph.node.last().unwrap().output[0].clone();
        let tensor = type_proto::Tensor { elem_type: Some(1), shape: None };
        let value = |name: String| ValueInfoProto {
            name: Some(name),
            r#type: Some(TypeProto { value: Some(type_proto::Value::Tensor(tensor.clone())) }),
        };
        if x_is_constant {
            let (dims, bytes) = (self.x.dims(), self.x.bytes().to_vec());
            self.constant(1, &dims, &bytes);
            self.graph.initializer.last_mut().unwrap().name = Some("x".into());
        } else {
            self.graph.input = vec![value("x".into())];
        }
        self.graph.output = vec![value(last)];
        let model = ModelProto {
            ir_version: Some(8),
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(20) }],
            graph: Some(self.graph),
            ..Default::default()
        };
        model.encode_to_vec()
    }
}

/// Compares kernels with references for a network made by `build`.
pub(super) fn check(name: &str, dims: &[usize], build: impl Fn(&mut Net)) {
    let make = || {
        let mut net = Net::new(dims);
        build(&mut net);
        net
    };
    let x = make().x;
    let folded = OnnxModel::from_bytes(make().bytes(true).into(), None).unwrap();
    let mut cx = Context::new();
    let y = folded.instantiate(&mut cx, &[], &[]).unwrap()[0];
    let want = cx.constant_value(y).unwrap().clone();
    let model = Arc::new(Model::from_bytes(make().bytes(false), None).unwrap());
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for threads in [1, 3] {
            let options =
                SessionOptions { threads: Some(threads), isa: Some(isa), ..Default::default() };
            let mut session = Session::new(model.clone(), options).unwrap();
            let got = session.run(&[("x", x.clone())]).unwrap().remove(0).1;
            assert_eq!((got.dtype(), got.dims()), (want.dtype(), want.dims()), "{name}");
            let pair = (got.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
            for (i, (g, w)) in pair.0.iter().zip(pair.1.iter()).enumerate() {
                let near = (g - w).abs() <= 2e-5 * w.abs().max(1.0) || (g.is_nan() && w.is_nan());
                assert!(near, "{name} on {isa} with {threads} threads: element {i}: {g}, not {w}");
            }
        }
    }
}

/// One node on `x`, with constants of the given shapes.
pub(super) fn one(op: &str, dims: &[usize], weights: &[&[usize]], attributes: &[(&str, A<'_>)]) {
    check(&format!("{op} {dims:?}"), dims, |net| {
        let weights: Vec<String> = weights.iter().map(|w| net.weights(w)).collect();
        let inputs = ["x"].into_iter().chain(weights.iter().map(String::as_str));
        net.node(op, &inputs.collect::<Vec<_>>(), attributes);
    });
}
