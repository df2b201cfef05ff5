use super::*;
use crate::graph::Context;
use crate::import::ImportError;
use crate::import::onnx::OnnxModel;
use crate::import::onnx::proto::{OperatorSetIdProto, TypeProto};
use crate::import::onnx::testing::{A, f32s, i64s, model, node, tensor, value};
use crate::tensor::{DType, Tensor};

/// An output of texts.
fn output(name: &str) -> ValueInfoProto {
    let tensor = type_proto::Tensor { elem_type: Some(data_type::STRING), shape: None };
    let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(kind) }
}

fn constant(name: &str, texts: &[&str]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![texts.len() as i64],
        data_type: Some(data_type::STRING),
        string_data: texts.iter().map(|s| s.as_bytes().to_vec().into()).collect(),
        ..Default::default()
    }
}

fn ml(node: NodeProto) -> NodeProto {
    NodeProto { domain: Some(ML.into()), ..node }
}

/// A model of constants: texts `a` and `b`, of which both have "two", and integers `i`.
fn load(nodes: Vec<NodeProto>, outputs: Vec<ValueInfoProto>) -> Result<OnnxModel, ImportError> {
    let graph = GraphProto {
        node: nodes,
        initializer: vec![
            constant("a", &["one", "two", "three"]),
            constant("b", &["two", "four"]),
            tensor("i", &i64s(&[1, 0, 1])),
        ],
        output: outputs,
        ..Default::default()
    };
    let mut file = model(18, graph);
    file.opset_import.push(OperatorSetIdProto { domain: Some(ML.into()), version: Some(3) });
    OnnxModel::from_proto(file, None)
}

fn values(model: &OnnxModel) -> Vec<Tensor> {
    let mut cx = Context::new();
    let ids = model.instantiate(&mut cx, &[], &[]).unwrap();
    ids.iter().map(|&id| cx.constant_value(id).unwrap().clone()).collect()
}

/// The texts of the only output, called `y`.
fn read(nodes: Vec<NodeProto>) -> Vec<String> {
    let model = load(nodes, vec![output("y")]).unwrap();
    assert_eq!(model.outputs()[0].dtype, DType::I64);
    let list = model.texts("y").unwrap();
    let numbers = values(&model)[0].as_slice::<i64>().unwrap().to_vec();
    numbers.iter().map(|&n| list[n as usize].clone()).collect()
}

fn refused(nodes: Vec<NodeProto>) -> String {
    load(nodes, vec![output("y")]).unwrap_err().to_string()
}

#[test]
fn texts_are_moved_as_they_are() {
    assert_eq!(read(vec![node("Gather", &["b", "i"], &["y"], &[])]), ["four", "two", "four"]);
    assert_eq!(
        read(vec![
            node("Concat", &["a", "b"], &["t"], &[("axis", A::I(0))]),
            node("Gather", &["t", "i"], &["u"], &[]),
            node("Cast", &["u"], &["y"], &[("to", A::I(8))]),
        ]),
        ["two", "one", "two"]
    );
    // The order of the file is not that of the data.
    let later = node("Identity", &["t"], &["y"], &[]);
    assert_eq!(read(vec![later, node("Identity", &["b"], &["t"], &[])]), ["two", "four"]);
}

#[test]
fn equal_texts_are_equal() {
    let at = i64s(&[1]);
    let nodes = vec![
        node("Gather", &["a", "one"], &["t"], &[]),
        node("Equal", &["t", "b"], &["same"], &[]),
        node("Where", &["same", "b", "other"], &["y"], &[]),
    ];
    let mut constants = vec![
        node("Constant", &[], &["one"], &[("value", A::T(tensor("", &at)))]),
        node("Constant", &[], &["other"], &[("value_string", A::S("none"))]),
    ];
    constants.extend(nodes);
    assert_eq!(read(constants), ["two", "none"]);
}

#[test]
fn labels_of_classifiers() {
    let x =
        node("Constant", &[], &["x"], &[("value", A::T(tensor("", &f32s(&[2, 1], &[1.0, -1.0]))))]);
    let attrs = [
        ("classlabels_strings", A::Ss(&["low", "high"])),
        ("coefficients", A::Fs(&[-1.0, 1.0])),
        ("intercepts", A::Fs(&[0.0, 0.0])),
    ];
    let classify = ml(node("LinearClassifier", &["x"], &["label", "scores"], &attrs));
    // What was a label is looked for among texts that are keys.
    let keys =
        [("keys_strings", A::Ss(&["high", "other"])), ("values_strings", A::Ss(&["two", "three"]))];
    let encode = ml(node("LabelEncoder", &["label"], &["y"], &keys));
    let nodes = vec![x, classify, encode];
    assert_eq!(read(nodes.clone()), ["two", "_Unused"]);
    let outputs = vec![output("label"), value("scores", DType::F32), output("y")];
    let model = load(nodes, outputs).unwrap();
    assert!(model.texts("label").is_some() && model.texts("scores").is_none());
}

#[test]
fn anything_else_is_refused_by_name() {
    let e = refused(vec![node("Neg", &["a"], &["y"], &[])]);
    assert!(e.contains("string in what Neg reads") && e.contains("Neg#0"), "{e}");
    let e = refused(vec![node("Cast", &["a"], &["y"], &[("to", A::I(1))])]);
    assert!(e.contains("string in what Cast reads"), "{e}");
    // It may add.
    let e = refused(vec![node("ScatterElements", &["a", "i", "a"], &["y"], &[])]);
    assert!(e.contains("string in what ScatterElements reads"), "{e}");
    // Texts among numbers, numbers among texts, texts where numbers say where.
    for inputs in [["a", "i"], ["i", "b"]] {
        let e = refused(vec![node("Concat", &inputs, &["y"], &[("axis", A::I(0))])]);
        assert!(e.contains("string in what Concat reads"), "{e}");
    }
    let e = refused(vec![node("Gather", &["i", "a"], &["y"], &[])]);
    assert!(e.contains("string in what Gather reads"), "{e}");
    let keys = [("keys_strings", A::Ss(&["one"])), ("values_strings", A::Ss(&["two"]))];
    let e = refused(vec![ml(node("LabelEncoder", &["i"], &["y"], &keys))]);
    assert!(e.contains("string in what LabelEncoder reads"), "{e}");
    let keys = [("keys_int64s", A::Is(&[1])), ("values_int64s", A::Is(&[2]))];
    let e = refused(vec![ml(node("LabelEncoder", &["a"], &["y"], &keys))]);
    assert!(e.contains("string in what LabelEncoder reads"), "{e}");
    // Numbers become no texts.
    let e = refused(vec![node("Cast", &["i"], &["y"], &[("to", A::I(8))])]);
    assert!(e.contains("string"), "{e}");
    let e = refused(vec![node("Identity", &["i"], &["y"], &[])]);
    assert!(e.contains("type string (1x: output y)"), "{e}");
}

#[test]
fn graphs_inside_read_no_texts() {
    let branch = |inner: &str| GraphProto {
        node: vec![node("Identity", &[inner], &["r"], &[])],
        output: vec![output("r")],
        ..Default::default()
    };
    let mut choice = node("If", &["c"], &["y"], &[]);
    for name in ["then_branch", "else_branch"] {
        choice.attribute.push(AttributeProto {
            name: Some(name.into()),
            g: Some(branch("a").encode_to_vec().into()),
            r#type: Some(t::GRAPH),
            ..Default::default()
        });
    }
    let yes = Tensor::from_bytes(DType::Bool, &[], &[1]).unwrap();
    let c = node("Constant", &[], &["c"], &[("value", A::T(tensor("", &yes)))]);
    let e = refused(vec![c, choice]);
    assert!(e.contains("string in what If reads"), "{e}");
}

#[test]
fn texts_need_not_be_unicode() {
    let mut graph = GraphProto {
        initializer: vec![constant("a", &["x", "x"]), constant("b", &["x"])],
        output: vec![output("a")],
        ..Default::default()
    };
    // Neither is Unicode, and they differ.
    graph.initializer[0].string_data = vec![vec![0xff].into(), vec![0xfe].into()];
    let mut missing = MissingList::default();
    let texts = number(&mut graph, &mut missing);
    assert_eq!(graph.initializer[0].int64_data, [0, 1]);
    assert_eq!(texts.list[..], ["\u{fffd}", "\u{fffd}", "x"]);
    assert!(texts.outputs == ["a"] && missing.finish().is_ok());
}
