//! ONNX networks computed twice: by the references while the graph is built (every input a
//! constant), and by a session with kernels, layouts and threads. Both must agree.

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
enum A<'a> {
    I(i64),
    F(f32),
    S(&'a str),
    Is(&'a [i64]),
}

fn attribute((name, value): &(&str, A<'_>)) -> AttributeProto {
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
fn noise(dims: &[usize], seed: u32) -> Tensor {
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
struct Net {
    graph: GraphProto,
    x: Tensor,
    seed: u32,
}

impl Net {
    fn new(dims: &[usize]) -> Self {
        let x = noise(dims, 1);
        Self { graph: GraphProto::default(), x, seed: 1 }
    }

    /// A constant of noise; gives its name.
    fn weights(&mut self, dims: &[usize]) -> String {
        self.seed += 1;
        let scale = 1.0 / (dims.iter().skip(1).product::<usize>() as f32).sqrt();
        let values: Vec<f32> =
            noise(dims, self.seed).as_slice::<f32>().unwrap().iter().map(|v| v * scale).collect();
        self.constant(1, dims, bytemuck::cast_slice(&values))
    }

    fn ints(&mut self, v: &[i64]) -> String {
        self.constant(7, &[v.len()], bytemuck::cast_slice(v))
    }

    fn floats(&mut self, v: &[f32]) -> String {
        self.constant(1, &[v.len()], bytemuck::cast_slice(v))
    }

    fn constant(&mut self, data_type: i32, dims: &[usize], bytes: &[u8]) -> String {
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
    fn node(&mut self, op: &str, inputs: &[&str], attributes: &[(&str, A<'_>)]) -> String {
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
    fn conv(&mut self, x: &str, from: usize, to: usize) -> String {
        let (w, b) = (self.weights(&[to, from, 3, 3]), self.weights(&[to]));
        self.node("Conv", &[x, &w, &b], &[("pads", A::Is(&[1, 1, 1, 1]))])
    }

    fn bytes(mut self, x_is_constant: bool) -> Vec<u8> {
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
fn check(name: &str, dims: &[usize], build: impl Fn(&mut Net)) {
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
fn one(op: &str, dims: &[usize], weights: &[&[usize]], attributes: &[(&str, A<'_>)]) {
    check(&format!("{op} {dims:?}"), dims, |net| {
        let weights: Vec<String> = weights.iter().map(|w| net.weights(w)).collect();
        let inputs = ["x"].into_iter().chain(weights.iter().map(String::as_str));
        net.node(op, &inputs.collect::<Vec<_>>(), attributes);
    });
}

#[test]
fn convolutions() {
    one("Conv", &[2, 5, 7, 9], &[&[18, 5, 3, 2], &[18]], &[("strides", A::Is(&[2, 1]))]);
    one(
        "Conv",
        &[1, 16, 8, 8],
        &[&[16, 1, 3, 3]],
        &[("group", A::I(16)), ("auto_pad", A::S("SAME_UPPER"))],
    );
    one("Conv", &[1, 12, 9], &[&[8, 6, 3]], &[("group", A::I(2)), ("dilations", A::Is(&[2]))]);
    one("ConvTranspose", &[1, 6, 5, 4], &[&[6, 9, 3, 3], &[9]], &[("strides", A::Is(&[2, 2]))]);
    one(
        "ConvTranspose",
        &[1, 20, 5, 5],
        &[&[20, 1, 2, 2]],
        &[("group", A::I(20)), ("strides", A::Is(&[2, 2]))],
    );
    one(
        "ConvTranspose",
        &[1, 3, 7],
        &[&[3, 2, 4]],
        &[("strides", A::Is(&[3])), ("output_padding", A::Is(&[1]))],
    );
}

#[test]
fn pools() {
    for (op, c) in [("MaxPool", 3), ("AveragePool", 20)] {
        one(
            op,
            &[2, c, 9, 7],
            &[],
            &[
                ("kernel_shape", A::Is(&[3, 2])),
                ("strides", A::Is(&[2, 2])),
                ("ceil_mode", A::I(1)),
            ],
        );
        one(op, &[1, c, 9], &[], &[("kernel_shape", A::Is(&[3])), ("pads", A::Is(&[1, 1]))]);
    }
    one("GlobalAveragePool", &[2, 17, 5, 6], &[], &[]);
    one("GlobalMaxPool", &[2, 3, 5], &[], &[]);
    one("GlobalMaxPool", &[1, 3, 2, 3, 4], &[], &[]);
}

#[test]
fn products_and_normalisation() {
    one("MatMul", &[3, 5, 7], &[&[7, 33]], &[]);
    one("MatMul", &[2, 5, 7], &[&[2, 7, 4]], &[]);
    one("Gemm", &[5, 40], &[&[17, 40], &[17]], &[("transB", A::I(1)), ("alpha", A::F(0.5))]);
    one("Gemm", &[40, 5], &[&[40, 17], &[5, 17]], &[("transA", A::I(1)), ("beta", A::F(2.0))]);
    for axis in 0..3 {
        one("Softmax", &[4, 19, 6], &[], &[("axis", A::I(axis))]);
        one("LogSoftmax", &[4, 19, 6], &[], &[("axis", A::I(axis))]);
    }
    check("BatchNormalization", &[2, 18, 4, 3], |net| {
        let stats: Vec<String> = (0..3).map(|_| net.weights(&[18])).collect();
        let var = net.floats(&[0.5; 18]);
        net.node("BatchNormalization", &["x", &stats[0], &stats[1], &stats[2], &var], &[]);
    });
}

#[test]
fn weights_that_a_run_computes() {
    for (dims, weights, attributes) in [
        (&[1, 20, 9, 10][..], &[37, 20, 3, 3][..], &[("pads", A::Is(&[1; 4]))][..]),
        (&[2, 3, 15, 16], &[24, 3, 3, 3], &[("strides", A::Is(&[2, 2]))]),
        (&[1, 40, 7, 8], &[40, 1, 3, 3], &[("group", A::I(40))]),
        (&[2, 24, 6, 6], &[40, 24, 1, 1], &[]),
        (&[1, 12, 30], &[18, 6, 4], &[("group", A::I(2))]),
    ] {
        for transposed in [false, true] {
            let op = if transposed { "ConvTranspose" } else { "Conv" };
            // Of a transposed one the first axis is that of the operand's channels.
            let mut shape = weights.to_vec();
            if transposed {
                shape[0] = dims[1];
                shape[1] = 5;
            }
            check(&format!("{op} {dims:?} {shape:?}"), dims, |net| {
                let known = net.weights(&shape);
                let axes: Vec<i64> = (0..dims.len() as i64).collect();
                let axes = net.ints(&axes);
                let mean = net.node("ReduceMean", &["x", &axes], &[]);
                let one = net.floats(&[1.0]);
                let factor = net.node("Add", &[&mean, &one], &[]);
                let w = net.node("Mul", &[&known, &factor], &[]);
                let flat = net.ints(&[-1]);
                let flat = net.node("Reshape", &[&w, &flat], &[]);
                let groups = attributes.iter().find_map(|(name, value)| match value {
                    A::I(groups) if *name == "group" => Some(*groups),
                    _ => None,
                });
                let channels = if transposed { 5 * groups.unwrap_or(1) } else { weights[0] as i64 };
                let first: Vec<i64> = (0..channels).collect();
                let first = net.ints(&first);
                let bias = net.node("Gather", &[&flat, &first], &[]);
                net.node(op, &["x", &w, &bias], attributes);
            });
        }
    }
}

#[test]
fn products_of_bytes_that_a_run_computes() {
    for dims in [&[5, 37][..], &[3, 7, 64], &[2, 3, 9, 12]] {
        for (one_for_all, known_zero) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            if one_for_all && dims.len() != 3 {
                continue;
            }
            let name = format!("MatMulInteger {dims:?} {one_for_all} {known_zero}");
            check(&name, dims, |net| {
                let scale = net.constant(1, &[], bytemuck::bytes_of(&0.008f32));
                let zero = net.constant(2, &[], &[131]);
                let a = net.node("QuantizeLinear", &["x", &scale, &zero], &[]);
                let least = net.node("ReduceMin", &[&a], &[("keepdims", A::I(0))]);
                let rank = dims.len() as i64;
                let mut axes: Vec<i64> = (0..rank).collect();
                axes.swap(dims.len() - 1, dims.len() - 2);
                let mut b = net.node("Transpose", &[&a], &[("perm", A::Is(&axes))]);
                if one_for_all {
                    let second = net.constant(7, &[], bytemuck::bytes_of(&1i64));
                    b = net.node("Gather", &[&b, &second], &[]);
                }
                let zeros = if known_zero { [&zero, &zero] } else { [&zero, &least] };
                let sums = net.node("MatMulInteger", &[&a, &b, zeros[0], zeros[1]], &[]);
                net.node("Cast", &[&sums], &[("to", A::I(1))]);
            });
        }
    }
    check("QLinearMatMul", &[2, 3, 9, 12], |net| {
        let scale = net.constant(1, &[], bytemuck::bytes_of(&0.008f32));
        let zero = net.constant(2, &[], &[131]);
        let a = net.node("QuantizeLinear", &["x", &scale, &zero], &[]);
        let b = net.node("Transpose", &[&a], &[("perm", A::Is(&[0, 1, 3, 2]))]);
        let to = net.constant(1, &[], bytemuck::bytes_of(&0.05f32));
        let inputs = [&a, &scale, &zero, &b, &scale, &zero, &to, &zero].map(String::as_str);
        let y = net.node("QLinearMatMul", &inputs, &[]);
        net.node("DequantizeLinear", &[&y, &to, &zero], &[]);
    });
}

#[test]
fn normalisation_by_own_statistics() {
    for dims in [&[3, 5, 40][..], &[70, 7], &[2, 2, 3, 5]] {
        let row = &dims[dims.len() - 1..];
        one("LayerNormalization", dims, &[row, row], &[]);
        one("LayerNormalization", dims, &[&dims[1..]], &[("axis", A::I(1))]);
    }
    one("LayerNormalization", &[2, 6, 35], &[&[6, 1], &[35]], &[("axis", A::I(1))]);
    one("InstanceNormalization", &[2, 5, 6, 7], &[&[5], &[5]], &[]);
    one("GroupNormalization", &[2, 12, 5, 7], &[&[3], &[3]], &[("num_groups", A::I(3))]);
    one("MeanVarianceNormalization", &[2, 5, 6, 7], &[], &[]);
    one("LpNormalization", &[4, 35], &[], &[("axis", A::I(0))]);
    one("LRN", &[2, 20, 6, 5], &[], &[("size", A::I(5)), ("alpha", A::F(0.5))]);
    check("convolutions around norms", &[1, 3, 6, 5], |net| {
        let a = net.conv("x", 3, 20);
        let (scale, bias) = (net.weights(&[20]), net.weights(&[20]));
        let b = net.node("InstanceNormalization", &[&a, &scale, &bias], &[]);
        let c = net.node("LRN", &[&b], &[("size", A::I(4))]);
        net.conv(&c, 20, 7);
    });
}

#[test]
fn reductions() {
    for op in ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp"] {
        for axes in [&[0][..], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]] {
            check(&format!("Reduce{op} {axes:?}"), &[3, 5, 34], |net| {
                let axes = net.ints(axes);
                net.node(&format!("Reduce{op}"), &["x", &axes], &[("keepdims", A::I(0))]);
            });
        }
    }
}

#[test]
fn elements() {
    for op in [
        "Relu",
        "Sigmoid",
        "Tanh",
        "Exp",
        "Abs",
        "Neg",
        "Erf",
        "Gelu",
        "HardSwish",
        "HardSigmoid",
        "LeakyRelu",
        "Floor",
    ] {
        one(op, &[3, 35], &[], &[]);
    }
    for op in ["Add", "Sub", "Mul", "Div", "Min", "Max", "PRelu"] {
        one(op, &[2, 3, 18], &[&[18]], &[]);
        one(op, &[2, 3, 18], &[&[3, 1]], &[]);
        one(op, &[2, 3, 18], &[&[1]], &[]);
    }
    check("Where", &[2, 20], |net| {
        let (zero, w) = (net.floats(&[0.0]), net.weights(&[20]));
        let positive = net.node("Greater", &["x", &zero], &[]);
        net.node("Where", &[&positive, "x", &w], &[]);
    });
}

#[test]
fn movement() {
    one("Transpose", &[2, 3, 4, 5], &[], &[("perm", A::Is(&[0, 2, 3, 1]))]);
    one("DepthToSpace", &[1, 12, 3, 4], &[], &[("blocksize", A::I(2)), ("mode", A::S("CRD"))]);
    one("SpaceToDepth", &[1, 3, 4, 6], &[], &[("blocksize", A::I(2))]);
    one("Concat", &[2, 3, 4], &[&[2, 5, 4], &[2, 1, 4]], &[("axis", A::I(1))]);
    for mode in ["constant", "reflect", "edge", "wrap"] {
        check(&format!("Pad {mode}"), &[2, 3, 5], |net| {
            let pads = net.ints(&[0, 1, 2, 1, 0, 3]);
            net.node("Pad", &["x", &pads], &[("mode", A::S(mode))]);
        });
    }
    check("Slice", &[4, 9], |net| {
        let given = [&[3, -1][..], &[i64::MIN, 0], &[0, 1], &[-1, -2]];
        let names: Vec<String> = given.iter().map(|v| net.ints(v)).collect();
        net.node("Slice", &["x", &names[0], &names[1], &names[2], &names[3]], &[]);
    });
    check("Gather", &[4, 9], |net| {
        let indices = net.ints(&[8, 0, -2]);
        net.node("Gather", &["x", &indices], &[("axis", A::I(1))]);
    });
    check("Expand and Tile", &[3, 1], |net| {
        let (shape, times) = (net.ints(&[2, 3, 4]), net.ints(&[1, 2, 2]));
        let wide = net.node("Expand", &["x", &shape], &[]);
        net.node("Tile", &[&wide, &times], &[]);
    });
}

#[test]
fn resizing() {
    for mode in ["nearest", "linear", "cubic"] {
        for way in ["half_pixel", "align_corners", "asymmetric"] {
            check(&format!("Resize {mode} {way}"), &[1, 3, 5, 6], |net| {
                let sizes = net.ints(&[1, 3, 7, 4]);
                let attributes =
                    [("mode", A::S(mode)), ("coordinate_transformation_mode", A::S(way))];
                net.node("Resize", &["x", "", "", &sizes], &attributes);
            });
        }
    }
}

/// Blocked activations between convolutions pass through operators that move pixels.
#[test]
fn movement_in_blocked_layouts() {
    for channels in [16, 32, 20] {
        for mode in ["nearest", "linear"] {
            check(&format!("resized {mode} {channels}"), &[1, 3, 6, 5], |net| {
                let a = net.conv("x", 3, channels);
                let scales = net.floats(&[1.0, 1.0, 2.0, 1.5]);
                let b = net.node("Resize", &[&a, "", &scales], &[("mode", A::S(mode))]);
                net.conv(&b, channels, 7);
            });
        }
        check(&format!("joined {channels}"), &[1, 3, 6, 5], |net| {
            let a = net.conv("x", 3, channels);
            let b = net.conv(&a, channels, 24);
            let joined = net.node("Concat", &[&a, &b], &[("axis", A::I(1))]);
            let rows = net.node("Concat", &[&joined, &joined], &[("axis", A::I(2))]);
            net.conv(&rows, channels + 24, 16);
        });
        for mode in ["constant", "reflect"] {
            check(&format!("padded {mode} {channels}"), &[2, 3, 6, 5], |net| {
                let a = net.conv("x", 3, channels);
                let pads = net.ints(&[0, 0, 1, 2, 0, 0, 3, 0]);
                let value = net.floats(&[0.5]);
                let inputs = [&a[..], &pads, &value];
                let padded = net.node("Pad", &inputs, &[("mode", A::S(mode))]);
                net.conv(&padded, channels, 16);
            });
        }
        check(&format!("gated {channels}"), &[1, 3, 6, 5], |net| {
            let a = net.conv("x", 3, channels);
            let mean = net.node("GlobalAveragePool", &[&a], &[]);
            let w = net.weights(&[channels, channels, 1, 1]);
            let gate = net.node("Conv", &[&mean, &w], &[]);
            let gate = net.node("Sigmoid", &[&gate], &[]);
            let b = net.node("Mul", &[&a, &gate], &[]);
            let axes = net.ints(&[2, 3]);
            net.node("ReduceMean", &[&b, &axes], &[]);
        });
        check(&format!("split {channels}"), &[1, 3, 6, 5], |net| {
            let a = net.conv("x", 3, channels);
            let half = net.ints(&[channels as i64 / 2]);
            let (zero, one) = (net.ints(&[0]), net.ints(&[1]));
            let first = net.node("Slice", &[&a, &zero, &half, &one], &[]);
            net.conv(&first, channels / 2, 16);
        });
    }
}

/// A session plans anew when the values of an input change that shapes depend on.
#[test]
fn plans_follow_values_that_decide_about_shapes() {
    let mut net = Net::new(&[2, 6]);
    net.node("Reshape", &["x", "shape"], &[]);
    let mut model = ModelProto::decode(&net.bytes(false)[..]).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let integers = type_proto::Tensor { elem_type: Some(7), shape: None };
    graph.input.push(ValueInfoProto {
        name: Some("shape".into()),
        r#type: Some(TypeProto { value: Some(type_proto::Value::Tensor(integers)) }),
    });
    let model = Arc::new(Model::from_bytes(model.encode_to_vec(), None).unwrap());
    let mut session = Session::new(model, SessionOptions::default()).unwrap();
    let x = noise(&[2, 6], 1);
    for shape in [[3i64, 4], [12, 1], [3, 4], [-1, 2], [5, 5]] {
        let given = Tensor::from_slice(&[2], &shape).unwrap();
        match session.run(&[("x", x.clone()), ("shape", given)]) {
            Ok(y) => {
                let rows = usize::try_from(shape[0]).unwrap_or(6);
                assert_eq!(y[0].1.dims(), [rows, 12 / rows]);
                assert_eq!(y[0].1.bytes(), x.bytes());
            }
            Err(e) => assert!(shape == [5, 5] && e.to_string().contains("Reshape"), "{e}"),
        }
    }
}
