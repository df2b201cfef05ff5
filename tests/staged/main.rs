//! Networks whose shapes depend on what they compute: branches, loops, and results of any length.

mod loops;

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use prost::Message;
use tilewright::import::onnx::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TypeProto,
    ValueInfoProto, type_proto,
};
use tilewright::{Error, Model, Session, SessionOptions, Tensor};

const F: i32 = 1;
const I: i32 = 7;
const B: i32 = 9;

fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|s| (*s).into()).collect(),
        output: outputs.iter().map(|s| (*s).into()).collect(),
        ..Default::default()
    }
}

fn int(name: &str, v: i64) -> AttributeProto {
    AttributeProto { name: Some(name.into()), i: Some(v), r#type: Some(2), ..Default::default() }
}

fn body(name: &str, graph: &GraphProto) -> AttributeProto {
    let g = Some(graph.encode_to_vec().into());
    AttributeProto { name: Some(name.into()), g, r#type: Some(5), ..Default::default() }
}

fn with(mut n: NodeProto, attributes: Vec<AttributeProto>) -> NodeProto {
    n.attribute = attributes;
    n
}

fn value((name, elem): &(&str, i32)) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(*elem), shape: None };
    let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
    ValueInfoProto { name: Some((*name).into()), r#type: Some(kind) }
}

fn graph(inputs: &[(&str, i32)], nodes: Vec<NodeProto>, outputs: &[(&str, i32)]) -> GraphProto {
    GraphProto {
        input: inputs.iter().map(value).collect(),
        output: outputs.iter().map(value).collect(),
        node: nodes,
        ..Default::default()
    }
}

fn ints(name: &str, dims: &[i64], v: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(I),
        int64_data: v.to_vec(),
        ..Default::default()
    }
}

fn floats(name: &str, dims: &[i64], v: &[f32]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(F),
        float_data: v.to_vec(),
        ..Default::default()
    }
}

fn truth(name: &str, v: bool) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        data_type: Some(B),
        int32_data: vec![i32::from(v)],
        ..Default::default()
    }
}

fn session(graph: GraphProto, constants: Vec<TensorProto>) -> Result<Session, Error> {
    let options = SessionOptions { threads: Some(2), ..Default::default() };
    Session::new(Arc::new(model(graph, constants)?), options)
}

fn model(mut graph: GraphProto, constants: Vec<TensorProto>) -> Result<Model, Error> {
    graph.initializer = constants;
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
        graph: Some(graph),
        ..Default::default()
    };
    Model::from_bytes(model.encode_to_vec(), None)
}

fn run(session: &mut Session, x: &[f32]) -> Result<Vec<Tensor>, Error> {
    let x = Tensor::from_slice(&[x.len()], x).unwrap();
    Ok(session.run(&[("x", x)])?.into_iter().map(|(_, t)| t).collect())
}

fn f32s(t: &Tensor) -> Vec<f32> {
    t.as_slice::<f32>().unwrap().to_vec()
}

fn i64s(t: &Tensor) -> Vec<i64> {
    t.as_slice::<i64>().unwrap().to_vec()
}

/// The positive elements of `x`, and twice their sum.
fn selection() -> Session {
    let nodes = vec![
        node("Greater", &["x", "zero"], &["is"]),
        node("NonZero", &["is"], &["at"]),
        with(node("Squeeze", &["at", "first"], &["list"]), vec![]),
        node("Gather", &["x", "list"], &["y"]),
        node("ReduceSum", &["y"], &["sum"]),
        node("Add", &["sum", "sum"], &["z"]),
    ];
    let g = graph(&[("x", F)], nodes, &[("y", F), ("z", F)]);
    session(g, vec![floats("zero", &[], &[0.0]), ints("first", &[1], &[0])]).unwrap()
}

#[test]
fn results_of_any_length() {
    let mut s = selection();
    for x in [&[1.0, -2.0, 3.0][..], &[-1.0, -1.0, 4.0], &[-1.0, 0.0], &[5.0; 9]] {
        let y = run(&mut s, x).unwrap();
        let expected: Vec<f32> = x.iter().copied().filter(|v| *v > 0.0).collect();
        assert_eq!(f32s(&y[0]), expected);
        let total: f32 = expected.iter().sum();
        assert!((f32s(&y[1])[0] - 2.0 * total).abs() < 1e-6);
    }
}

/// Cells of recurrent networks return their state and, as it is, what they make.
#[test]
fn a_value_may_be_an_output_twice() {
    let plain = vec![node("Relu", &["x"], &["y"])];
    let staged =
        vec![node("Greater", &["x", "zero"], &["is"]), node("Compress", &["x", "is"], &["y"])];
    for nodes in [plain, staged] {
        let g = graph(&[("x", F)], nodes, &[("y", F), ("x", F), ("y", F)]);
        let mut s = session(g, vec![floats("zero", &[], &[0.0])]).unwrap();
        let y = run(&mut s, &[1.0, 2.0]).unwrap();
        assert!(y.len() == 3 && y.iter().all(|y| f32s(y) == [1.0, 2.0]));
    }
}

#[test]
fn equal_shapes_need_no_new_plan() {
    let options = SessionOptions { profile: true, ..Default::default() };
    let mut s = Session::new(selection().model().clone(), options).unwrap();
    let x = Tensor::from_slice(&[3], &[1f32, -2.0, 3.0]).unwrap();
    let before = s.prepare(&[("x", x.clone())]).unwrap();
    assert!(before.waiting > 0, "{before:?}");
    let mut calls = |x: &[f32]| {
        run(&mut s, x).unwrap();
        s.profile().iter().filter(|row| row.op == "gather").map(|row| row.calls).sum::<u64>()
    };
    assert_eq!(calls(&[1.0, -2.0, 3.0]), 1);
    assert_eq!(calls(&[-9.0, 2.0, 7.0]), 2, "two of three again");
    assert_eq!(calls(&[9.0, 2.0, 7.0]), 1, "three of three");
    assert_eq!(calls(&[-9.0, 2.0, 7.0]), 3);
    let after = s.prepare(&[("x", x)]).unwrap();
    assert!(after.nodes.len() > before.nodes.len(), "{after:?}");
    assert!(after.nodes.iter().all(|n| !n.name.is_empty()), "{after:?}");
}

/// What exporters make of equal weights and of quantised ones is a constant in every stage.
#[test]
fn constants_are_constants_in_later_stages() {
    let adding = graph(
        &[("i", I), ("c", B), ("v", F)],
        vec![
            with(node("ReduceSum", &["b"], &["all"]), vec![int("keepdims", 0)]),
            node("Add", &["v", "all"], &["next"]),
            node("Identity", &["c"], &["go_on"]),
        ],
        &[("go_on", B), ("next", F)],
    );
    let nodes = vec![
        node("Identity", &["b0"], &["b"]),
        node("DequantizeLinear", &["wq", "scale"], &["w1"]),
        node("Reshape", &["w1", "as_weights"], &["w"]),
        node("Greater", &["x", "zero"], &["is"]),
        node("NonZero", &["is"], &["at"]),
        node("Squeeze", &["at", "first"], &["list"]),
        node("Gather", &["x", "list"], &["y"]),
        node("Reshape", &["y", "as_image"], &["image"]),
        node("Conv", &["image", "w", "b"], &["z"]),
        // A body reads of them, too.
        with(node("ReduceSum", &["y"], &["sum"]), vec![int("keepdims", 0)]),
        with(node("Loop", &["three", "", "sum"], &["more"]), vec![body("body", &adding)]),
    ];
    let bytes: Vec<i8> = (0..16).map(|i| i - 7).collect();
    let wq = TensorProto {
        name: Some("wq".into()),
        dims: vec![16],
        data_type: Some(3),
        int32_data: bytes.iter().map(|&b| b.into()).collect(),
        ..Default::default()
    };
    let constants = vec![
        wq,
        floats("b0", &[16], &[0.5; 16]),
        floats("scale", &[], &[0.25]),
        floats("zero", &[], &[0.0]),
        ints("first", &[1], &[0]),
        ints("as_weights", &[4], &[16, 1, 1, 1]),
        ints("as_image", &[4], &[1, 1, -1, 1]),
        ints("three", &[], &[3]),
    ];
    let g = graph(&[("x", F)], nodes, &[("z", F), ("b", F), ("more", F)]);
    let options = SessionOptions { profile: true, ..Default::default() };
    let mut s = Session::new(Arc::new(model(g, constants).unwrap()), options).unwrap();
    for x in [&[1.0, -2.0, 3.0][..], &[5.0; 9], &[4.0, 2.0, -1.0]] {
        let y = run(&mut s, x).unwrap();
        let there: Vec<f32> = x.iter().copied().filter(|v| *v > 0.0).collect();
        assert_eq!(y[0].dims(), [1, 16, there.len(), 1]);
        let rows =
            bytes.iter().flat_map(|&w| there.iter().map(move |v| f32::from(w) * 0.25 * v + 0.5));
        assert_eq!(f32s(&y[0]), rows.collect::<Vec<_>>());
        assert_eq!(f32s(&y[1]), [0.5; 16]);
        assert_eq!(f32s(&y[2]), [there.iter().sum::<f32>() + 24.0]);
        let profile = s.profile();
        let conv = profile.iter().find(|row| row.op == "conv").expect("a convolution");
        assert_ne!(conv.kernel, "reference");
    }
}

#[test]
fn shapes_that_are_computed() {
    // Numbers below the sum, in rows of as many as the largest says.
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["s"]), vec![int("keepdims", 0)]),
        node("Range", &["zero", "s", "one"], &["r"]),
        with(node("ReduceMax", &["x"], &["m"]), vec![]),
        with(node("Cast", &["m"], &["columns"]), vec![int("to", 7)]),
        with(node("Concat", &["any", "columns"], &["shape"]), vec![int("axis", 0)]),
        node("Reshape", &["r", "shape"], &["y"]),
    ];
    let g = graph(&[("x", F)], nodes, &[("y", F)]);
    let constants =
        vec![floats("zero", &[], &[0.0]), floats("one", &[], &[1.0]), ints("any", &[1], &[-1])];
    let mut s = session(g, constants).unwrap();
    let y = run(&mut s, &[1.0, 2.0, 3.0]).unwrap();
    assert_eq!((y[0].dims(), f32s(&y[0])), (vec![2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(run(&mut s, &[4.0, 4.0]).unwrap()[0].dims(), [2, 4]);
    // Seven numbers make no rows of four.
    let e = run(&mut s, &[4.0, 3.0]).unwrap_err().to_string();
    assert!(e.contains("Reshape") && e.contains("[7]"), "{e}");
}

/// The body of a branch: `x` times or plus itself, under a name that both branches use.
fn branch(op: &str) -> GraphProto {
    graph(&[], vec![node(op, &["x", "x"], &["inner"])], &[("inner", F)])
}

#[test]
fn branches_that_data_choose() {
    let nodes = vec![
        with(node("ReduceSum", &["x"], &["s"]), vec![int("keepdims", 0)]),
        node("Greater", &["s", "zero"], &["c"]),
        with(
            node("If", &["c"], &["y"]),
            vec![body("then_branch", &branch("Add")), body("else_branch", &branch("Mul"))],
        ),
        node("Neg", &["y"], &["z"]),
    ];
    let g = graph(&[("x", F)], nodes, &[("z", F)]);
    let mut s = session(g, vec![floats("zero", &[], &[0.0])]).unwrap();
    for _ in 0..2 {
        assert_eq!(f32s(&run(&mut s, &[1.0, 2.0]).unwrap()[0]), [-2.0, -4.0]);
        assert_eq!(f32s(&run(&mut s, &[-1.0, -2.0]).unwrap()[0]), [-1.0, -4.0]);
    }
}

/// Doubles `v` until its sum exceeds 100, at most `trips` times; gives the last, and all.
fn doubling() -> GraphProto {
    let nodes = vec![
        node("Add", &["v", "v"], &["twice"]),
        with(node("ReduceSum", &["twice"], &["sum"]), vec![int("keepdims", 0)]),
        node("Less", &["sum", "limit"], &["more"]),
        node("Identity", &["twice"], &["step"]),
    ];
    graph(&[("i", I), ("c", B), ("v", F)], nodes, &[("more", B), ("twice", F), ("step", F)])
}

#[test]
fn boxes_best_first() {
    let nodes = vec![
        with(node("Reshape", &["x", "shape"], &["boxes"]), vec![]),
        node("NonMaxSuppression", &["boxes", "scores", "most", "iou"], &["y"]),
        with(node("TopK", &["x", "most"], &["v", "i"]), vec![]),
    ];
    let g = graph(&[("x", F)], nodes, &[("y", I), ("i", I)]);
    let constants = vec![
        ints("shape", &[3], &[1, -1, 4]),
        ints("most", &[1], &[2]),
        floats("iou", &[1], &[0.5]),
        floats("scores", &[1, 1, 3], &[0.1, 0.9, 0.5]),
    ];
    let mut s = session(g, constants).unwrap();
    let x = [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.9, 5.0, 5.0, 7.0, 7.0];
    let y = run(&mut s, &x).unwrap();
    assert_eq!((y[0].dims(), i64s(&y[0])), (vec![2, 3], vec![0, 0, 1, 0, 0, 2]));
    assert_eq!(i64s(&y[1]), [10, 11]);
}

/// Loads and runs; what comes of it is an error, soon.
fn refused(g: GraphProto, constants: Vec<TensorProto>) -> String {
    let start = Instant::now();
    let e = session(g, constants).and_then(|mut s| run(&mut s, &[1.0, 2.0]));
    let e = e.expect_err("it must be refused").to_string();
    assert!(start.elapsed() < Duration::from_secs(5), "{e}");
    e
}

fn looped(b: &GraphProto, inputs: &[&str], outputs: &[&str]) -> GraphProto {
    let nodes = vec![with(node("Loop", inputs, outputs), vec![body("body", b)])];
    graph(&[("x", F)], nodes, &[(outputs[0], F)])
}

#[test]
fn bodies_that_do_not_fit_are_refused() {
    let trips = || vec![ints("trips", &[], &[3]), floats("limit", &[], &[1e9])];
    let good = doubling();
    assert!(refused(looped(&good, &["trips", "", "x"], &["y"]), trips()).contains("Loop"));
    assert!(refused(looped(&good, &["trips", ""], &["y", "z"]), trips()).contains("Loop"));
    let e =
        refused(looped(&good, &["trips", "", "x"], &["y", "a"]), vec![ints("trips", &[], &[3])]);
    assert!(e.contains("limit"), "a captured value that nobody has: {e}");
    let mut unknown = good.clone();
    unknown.node[0].op_type = Some("Magic".into());
    let e = refused(looped(&unknown, &["trips", "", "x"], &["y", "a"]), trips());
    assert!(e.contains("Magic"), "{e}");
    let mut shadow = good.clone();
    shadow.node[0].output[0] = "x".into();
    let e = refused(looped(&shadow, &["trips", "", "x"], &["y", "a"]), trips());
    assert!(e.contains("twice"), "{e}");
    let mut number = good.clone();
    number.output[0] = value(&("sum", F));
    let e = refused(looped(&number, &["trips", "", "x"], &["y", "a"]), trips());
    assert!(e.contains("condition"), "{e}");
    // Results of iterations that differ.
    let mut growing = good;
    growing.node[0] = with(node("Concat", &["v", "v"], &["twice"]), vec![int("axis", 0)]);
    let e = refused(looped(&growing, &["trips", "", "x"], &["y", "a"]), trips());
    assert!(e.contains("differ"), "{e}");
}

#[test]
fn a_node_cannot_wait_for_its_own_body() {
    let reads = graph(&[], vec![node("Relu", &["y"], &["inner"])], &[("inner", F)]);
    let other = graph(&[], vec![node("Relu", &["x"], &["inner"])], &[("inner", F)]);
    let nodes = vec![with(
        node("If", &["c"], &["y"]),
        vec![body("then_branch", &reads), body("else_branch", &other)],
    )];
    let e = refused(graph(&[("x", F)], nodes, &[("y", F)]), vec![truth("c", true)]);
    assert!(e.contains("wait"), "{e}");
}

#[test]
fn bodies_are_nested_to_a_limit() {
    let nested = |depth: usize| {
        let mut inner = graph(&[], vec![node("Relu", &["x"], &["r"])], &[("r", F)]);
        for i in 0..depth {
            let name = format!("n{i}");
            let n = with(
                node("If", &["c"], &[&name]),
                vec![body("then_branch", &inner), body("else_branch", &branch("Add"))],
            );
            inner = graph(&[], vec![n], &[(&name, F)]);
        }
        GraphProto { input: vec![value(&("x", F))], ..inner }
    };
    let mut s = session(nested(20), vec![truth("c", true)]).unwrap();
    assert_eq!(f32s(&run(&mut s, &[-1.0, 2.0]).unwrap()[0]), [0.0, 2.0]);
    assert!(refused(nested(60), vec![truth("c", true)]).contains("inside each other"));
}

#[test]
fn damaged_bodies_are_errors() {
    let good = doubling().encode_to_vec();
    for cut in 0..good.len() {
        let attribute = AttributeProto {
            name: Some("body".into()),
            g: Some(good[..cut].to_vec().into()),
            r#type: Some(5),
            ..Default::default()
        };
        let nodes = vec![with(node("Loop", &["trips", "", "x"], &["y", "a"]), vec![attribute])];
        let g = graph(&[("x", F)], nodes, &[("y", F)]);
        let s = session(g, vec![ints("trips", &[], &[3]), floats("limit", &[], &[1e9])]);
        let _ = s.and_then(|mut s| run(&mut s, &[1.0, 2.0]));
    }
}

/// What a run computes decides which tensor of a sequence is taken, which branch gives one, and how
/// often a loop appends to one.
#[test]
fn sequences_that_data_decide_about() {
    let branch = |members: &[&str], to: &str| {
        graph(&[], vec![node("SequenceConstruct", members, &[to])], &[(to, F)])
    };
    let append = graph(
        &[("i", I), ("c", B), ("before", F)],
        vec![
            with(node("Cast", &["i"], &["f"]), vec![int("to", F.into())]),
            node("Mul", &["x", "f"], &["p"]),
            node("SequenceInsert", &["before", "p"], &["after"]),
            node("Identity", &["c"], &["go_on"]),
        ],
        &[("go_on", B), ("after", F)],
    );
    let append = GraphProto {
        // The type is that of a sequence, and need not be given.
        input: append.input.iter().map(|v| ValueInfoProto { r#type: None, ..v.clone() }).collect(),
        output: append
            .output
            .iter()
            .map(|v| ValueInfoProto { r#type: None, ..v.clone() })
            .collect(),
        ..append
    };
    let nodes = vec![
        node("SplitToSequence", &["x"], &["s"]),
        with(node("ArgMax", &["x"], &["largest"]), vec![int("keepdims", 0)]),
        node("SequenceAt", &["s", "largest"], &["y"]),
        with(node("ReduceMax", &["x"], &["m"]), vec![int("keepdims", 0)]),
        node("Greater", &["m", "two"], &["is"]),
        with(
            node("If", &["is"], &["either"]),
            vec![
                body("then_branch", &branch(&["x", "x"], "a")),
                body("else_branch", &branch(&["x"], "b")),
            ],
        ),
        with(node("Cast", &["m"], &["n"]), vec![int("to", I.into())]),
        with(node("Loop", &["n", "", "either"], &["list"]), vec![body("body", &append)]),
        with(node("ConcatFromSequence", &["list"], &["z"]), vec![int("axis", 0)]),
    ];
    let g = graph(&[("x", F)], nodes, &[("y", F), ("z", F)]);
    let mut s = session(g, vec![floats("two", &[], &[2.0])]).unwrap();
    for _ in 0..2 {
        let r = run(&mut s, &[1.0, 2.0]).unwrap();
        assert_eq!((f32s(&r[0]), f32s(&r[1])), (vec![2.0], vec![1.0, 2.0, 0.0, 0.0, 1.0, 2.0]));
        let r = run(&mut s, &[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((f32s(&r[0]), r[1].dims()), (vec![3.0], vec![15]));
        assert_eq!(f32s(&r[1])[9..], [3.0, 1.0, 2.0, 6.0, 2.0, 4.0]);
    }
}

/// Iterations over sequences are built before any of them runs.
#[test]
fn a_loop_over_sequences_whose_end_depends_on_its_results_is_refused() {
    let untyped = |name: &str| ValueInfoProto { name: Some(name.into()), r#type: None };
    let b = GraphProto {
        input: ["i", "c", "before"].map(untyped).to_vec(),
        node: vec![
            node("SequenceInsert", &["before", "x"], &["after"]),
            with(node("ReduceSum", &["x"], &["sum"]), vec![int("keepdims", 0)]),
            node("Less", &["sum", "limit"], &["go_on"]),
        ],
        output: ["go_on", "after"].map(untyped).to_vec(),
        ..Default::default()
    };
    let nodes = vec![
        node("SequenceEmpty", &[], &["none"]),
        with(node("Loop", &["", "", "none"], &["list"]), vec![body("body", &b)]),
        with(node("ConcatFromSequence", &["list"], &["y"]), vec![int("axis", 0)]),
    ];
    let g = graph(&[("x", F)], nodes, &[("y", F)]);
    let mut s = session(g, vec![floats("limit", &[], &[2.0])]).unwrap();
    let e = run(&mut s, &[1.0]).unwrap_err().to_string();
    assert!(e.contains("Loop node") && e.contains("go_on"), "{e}");
}
