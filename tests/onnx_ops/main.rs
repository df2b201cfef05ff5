//! ONNX networks computed twice: by the references while the graph is built (every input a
//! constant), and by a session with kernels, layouts and threads. Both must agree.

mod net;
mod places;

use std::sync::Arc;

use net::{A, Net, check, noise, one};
use prost::Message;
use tilewright::import::onnx::proto::{ModelProto, TypeProto, ValueInfoProto, type_proto};
use tilewright::{Model, Session, SessionOptions, Tensor};

#[test]
fn convolutions() {
    one("Conv", &[2, 5, 7, 9], &[&[18, 5, 3, 2], &[18]], &[("strides", A::Is(&[2, 1]))]);
    one(
        "Conv",
        &[1, 16, 8, 8],
        &[&[16, 1, 3, 3]],
        &[("group", A::I(16)), ("auto_pad", A::S("SAME_UPPER"))],
    );
    one("Conv", &[2, 48, 27, 28], &[&[72, 48, 1, 1], &[72]], &[("strides", A::Is(&[2, 2]))]);
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
    one("Hardmax", &[3, 5], &[], &[]);
    one("Hardmax", &[3, 0], &[], &[]);
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
        "Sin",
        "Cos",
        "Atan",
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
    // What lies behind the last padded axis is moved as a whole.
    for mode in ["constant", "edge", "reflect", "wrap"] {
        check(&format!("Pad {mode} of pixels"), &[2, 3, 5, 4], |net| {
            let pads = net.ints(&[0, 1, 2, 0, 0, 2, 1, 0]);
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
        for mode in ["constant", "reflect", "edge", "wrap"] {
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

/// What looks like a picture in channels-last order by its extents alone.
#[test]
fn axes_in_any_order_before_a_convolution() {
    let axes = [0, 1, 2, 3].iter();
    let orders = axes.clone().flat_map(|a| axes.clone().map(move |b| (a, b)));
    let orders = orders.flat_map(|(a, b)| axes.clone().map(move |c| [*a, *b, *c, 6 - a - b - c]));
    for order in orders.filter(|o| (0..4).all(|axis| o.contains(&axis))) {
        for dims in [[3, 3, 5, 3], [3, 3, 3, 3], [2, 2, 3, 5], [1, 3, 4, 3]] {
            let channels = dims[order[1] as usize];
            check(&format!("{dims:?} by {order:?}"), &dims, |net| {
                let x = net.node("Relu", &["x"], &[]);
                let x = net.node("Transpose", &[&x], &[("perm", A::Is(&order))]);
                let w = net.weights(&[16, channels, 1, 1]);
                net.node("Conv", &[&x, &w], &[]);
            });
        }
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
