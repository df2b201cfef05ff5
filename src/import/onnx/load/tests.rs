use super::*;
use crate::graph::Context;
use crate::import::InputError;
use crate::import::onnx::proto::{
    AttributeProto, Dimension, OperatorSetIdProto, SparseTensorProto, StringStringEntryProto,
    TensorShapeProto, TypeProto,
};
use crate::import::onnx::testing::{A, f32s, i64s, model, node, tensor, value};
use crate::tensor::DType;

/// An input of f32 with a shape of numbers and symbols.
fn shaped(name: &str, dims: &[&str]) -> ValueInfoProto {
    let dim = |d: &&str| Dimension {
        value: match d.parse::<i64>() {
            _ if *d == "?" => None,
            Ok(n) => Some(dimension::Value::Fixed(n)),
            Err(_) => Some(dimension::Value::Symbol((*d).into())),
        },
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor = type_proto::Tensor { elem_type: Some(1), shape };
    let kind = TypeProto { value: Some(type_proto::Value::Tensor(tensor)) };
    ValueInfoProto { name: Some(name.into()), r#type: Some(kind) }
}

/// Input `x`, output `y`, and the given nodes.
fn graph(nodes: Vec<NodeProto>) -> GraphProto {
    GraphProto {
        node: nodes,
        input: vec![value("x", DType::F32)],
        output: vec![value("y", DType::F32)],
        ..Default::default()
    }
}

fn load(graph: GraphProto) -> Result<OnnxModel, ImportError> {
    OnnxModel::from_proto(model(13, graph), None)
}

fn structure(e: ImportError) -> StructureError {
    match e {
        ImportError::Structure(e) => e,
        other => panic!("not about the structure: {other}"),
    }
}

fn relu(x: &str, y: &str) -> NodeProto {
    node("Relu", &[x], &[y], &[])
}

#[test]
fn what_a_model_tells() {
    let mut p = model(13, graph(vec![relu("x", "y")]));
    p.producer_name = Some("maker".into());
    p.producer_version = Some("1.2".into());
    p.graph.as_mut().unwrap().name = Some("net".into());
    p.metadata_props =
        vec![StringStringEntryProto { key: Some("k".into()), value: Some("v".into()) }];
    p.opset_import.push(OperatorSetIdProto { domain: Some("other".into()), version: Some(3) });
    let m = OnnxModel::from_bytes(p.encode_to_vec().into(), None).unwrap();
    assert_eq!((m.name(), m.producer(), m.opset(), m.node_count()), ("net", "maker 1.2", 13, 1));
    assert_eq!(m.metadata().get("k").map(String::as_str), Some("v"));
    assert_eq!((m.inputs().len(), m.inputs()[0].shape_text().as_str()), (1, "[...]"));
    assert_eq!(m.outputs()[0].name, "y");
}

#[test]
fn files_that_are_no_models() {
    let read = |bytes: &[u8]| OnnxModel::from_bytes(bytes.to_vec().into(), None).unwrap_err();
    assert_eq!(read(b""), ImportError::Empty);
    assert!(matches!(read(b"plain text, not a message"), ImportError::Decode(_)));
    // Some bytes happen to be a message without any known field.
    assert_eq!(structure(read(b"\x89PNG\r\n\x1a\n0000")), StructureError::NoGraph);
    assert_eq!(structure(read(&[8, 8])), StructureError::NoGraph);
    let path = std::env::temp_dir().join("no such file of tilewright");
    assert!(matches!(OnnxModel::load(&path), Err(ImportError::Io { .. })));
    assert!(matches!(OnnxModel::load(&std::env::temp_dir()), Err(ImportError::Io { .. })));
}

#[test]
fn versions_are_checked() {
    let with = |ir: Option<i64>, opsets: &[(Option<&str>, i64)]| {
        let mut p = model(13, graph(vec![relu("x", "y")]));
        p.ir_version = ir;
        let import = |&(d, v): &(Option<&str>, i64)| OperatorSetIdProto {
            domain: d.map(str::to_owned),
            version: Some(v),
        };
        p.opset_import = opsets.iter().map(import).collect();
        OnnxModel::from_proto(p, None).map_err(structure)
    };
    assert!(with(Some(3), &[(None, 7)]).is_ok());
    assert!(with(Some(14), &[(Some("ai.onnx"), 28)]).is_ok());
    assert!(matches!(with(None, &[(None, 7)]), Err(StructureError::IrVersion { found: 0, .. })));
    for ir in [2, 99, -1, i64::MAX] {
        assert!(matches!(with(Some(ir), &[(None, 7)]), Err(StructureError::IrVersion { .. })));
    }
    let mut old = model(6, graph(vec![relu("x", "y")]));
    assert!(OnnxModel::from_proto(old.clone(), None).is_ok());
    old.graph.as_mut().unwrap().node[0].op_type = Some("Cos".into());
    let text = OnnxModel::from_proto(old, None).unwrap_err().to_string();
    assert!(text.contains("operator Cos (opset 6)"), "{text}");
    for opset in [29, 0, -1, i64::MIN] {
        assert!(matches!(with(Some(8), &[(None, opset)]), Err(StructureError::Opset { .. })));
    }
    assert!(matches!(with(Some(8), &[]), Err(StructureError::NoOpset)));
    assert!(matches!(with(Some(8), &[(Some("ai.onnx.ml"), 3)]), Err(StructureError::NoOpset)));
    let twice = with(Some(8), &[(None, 13), (Some("ai.onnx"), 14)]);
    assert!(matches!(twice, Err(StructureError::OpsetTwice(_))));
}

/// Exporters of trees import `ai.onnx.ml` alone, and some forget `com.microsoft`.
#[test]
fn domains_that_are_not_imported() {
    let with = |domain: &str, op: &str, attrs: &[(&str, A<'_>)], import: (Option<&str>, i64)| {
        let one = NodeProto { domain: Some(domain.into()), ..node(op, &["x"], &["y"], attrs) };
        let mut p = model(13, graph(vec![one]));
        p.opset_import[0].domain = import.0.map(str::to_owned);
        p.opset_import[0].version = Some(import.1);
        OnnxModel::from_proto(p, None)
    };
    let binarizer = |import| with("ai.onnx.ml", "Binarizer", &[("threshold", A::F(0.5))], import);
    assert!(binarizer((Some("ai.onnx.ml"), 1)).is_ok());
    assert!(binarizer((None, 17)).is_ok());
    assert!(with("com.microsoft", "QuickGelu", &[], (None, 17)).is_ok());
    let structure = |m: Result<OnnxModel, _>| structure(m.unwrap_err());
    let without = with("", "Relu", &[], (Some("com.microsoft"), 1));
    assert_eq!(structure(without), StructureError::NoOpset);
}

#[test]
fn nodes_out_of_order_are_sorted_and_cycles_are_named() {
    let m = load(graph(vec![relu("b", "y"), relu("a", "b"), relu("x", "a")])).unwrap();
    let mut cx = Context::new();
    assert_eq!(m.instantiate(&mut cx, &[("x", &[2])], &[]).unwrap().len(), 1);
    let named = |name: &str, inputs: &[&str], output: &str| NodeProto {
        name: Some(name.into()),
        ..node("Add", inputs, &[output], &[])
    };
    let nodes =
        vec![named("one", &["x", "c"], "b"), named("two", &["b", "b"], "c"), relu("b", "y")];
    let text = load(graph(nodes)).unwrap_err().to_string();
    assert!(text.contains("one") && text.contains("two") && !text.contains("Relu"), "{text}");
}

#[test]
fn names_are_unique_and_values_have_producers() {
    let duplicate = |g| structure(load(g).unwrap_err());
    let name = |n: &str| StructureError::DuplicateName(n.into());
    assert_eq!(duplicate(graph(vec![relu("x", "y"), relu("x", "y")])), name("y"));
    assert_eq!(duplicate(graph(vec![relu("x", "x"), relu("x", "y")])), name("x"));
    let mut g = graph(vec![relu("x", "y")]);
    g.initializer = vec![tensor("w", &i64s(&[1])), tensor("w", &i64s(&[1]))];
    assert_eq!(duplicate(g), name("w"));
    let mut g = graph(vec![relu("x", "y")]);
    g.input.push(value("x", DType::F32));
    assert_eq!(duplicate(g), name("x"));
    let text = load(graph(vec![relu("lost", "y")])).unwrap_err().to_string();
    assert!(text.contains("lost") && text.contains("Relu"), "{text}");
    let text = load(graph(vec![relu("x", "z")])).unwrap_err().to_string();
    assert!(text.contains("\"y\""), "{text}");
    let mut g = graph(vec![relu("x", "y")]);
    g.output.clear();
    assert_eq!(structure(load(g).unwrap_err()), StructureError::NoOutputs);
    let mut g = graph(vec![relu("x", "y")]);
    g.input.push(value("", DType::F32));
    assert!(matches!(structure(load(g).unwrap_err()), StructureError::NoName(_)));
}

#[test]
fn all_that_is_missing_comes_in_one_error() {
    let mut nodes = vec![
        node("StringNormalizer", &["x"], &["a"], &[]),
        node("StringNormalizer", &["a"], &["b"], &[]),
        NodeProto { domain: Some("com.acme".into()), ..node("Magic", &["b"], &["c"], &[]) },
        node("Relu", &["c"], &["d"], &[("slope", A::F(1.0))]),
        node("Resize", &["d", "", "s"], &["e"], &[("mode", A::S("lanczos"))]),
        node("Gelu", &["e"], &["f"], &[]),
        node("BatchNormalization", &["f", "s", "s", "s", "s"], &["g", "indices"], &[]),
        node("Cast", &["g"], &["y"], &[("to", A::I(8))]),
    ];
    let graph_attribute = AttributeProto {
        name: Some("then_branch".into()),
        g: Some(vec![255, 255].into()),
        r#type: Some(5),
        ..Default::default()
    };
    nodes.push(NodeProto {
        attribute: vec![graph_attribute],
        ..node("Identity", &["indices"], &["z"], &[])
    });
    let mut g = graph(nodes);
    g.input[0].r#type = Some(TypeProto { value: Some(type_proto::Value::Map(vec![].into())) });
    g.initializer = vec![
        tensor("s", &f32s(&[1], &[1.0])),
        TensorProto { data_type: Some(14), name: Some("pairs".into()), ..Default::default() },
    ];
    let values = Some(TensorProto { name: Some("thin".into()), ..Default::default() });
    g.sparse_initializer = vec![SparseTensorProto { values }];
    let e = load(g).unwrap_err();
    let ImportError::Unsupported(list) = &e else { panic!("{e}") };
    let text = e.to_string();
    for part in [
        "operator StringNormalizer (opset 13) (2x: StringNormalizer#0, StringNormalizer#1)",
        "operator Magic of com.acme",
        "attribute slope of Relu",
        "mode = lanczos of Resize",
        "operator Gelu (opset 13)",
        "output 1 of BatchNormalization",
        "to = 8 of Cast",
        "attribute then_branch of Identity",
        "type map (1x: input x)",
        "type complex64 (1x: pairs)",
        "type sparse tensor (1x: thin)",
    ] {
        assert!(text.contains(part), "{part} not in {text}");
    }
    assert_eq!(list.len(), 11, "{text}");
}

#[test]
fn attributes_have_types_and_nodes_have_arity() {
    let one = |n: NodeProto| structure(load(graph(vec![n])).unwrap_err());
    let e = one(node("Relu", &["x", "x"], &["y"], &[]));
    assert!(matches!(e, StructureError::Arity { what: "inputs", found: 2, .. }));
    let e = one(node("Relu", &["x"], &[], &[]));
    assert!(matches!(e, StructureError::Arity { what: "outputs", found: 0, .. }));
    let e = one(node("LeakyRelu", &["x"], &["y"], &[("alpha", A::I(1))]));
    let StructureError::AttributeType { expected: "float", found: "int", .. } = e else {
        panic!("{e}");
    };
    let twice = [("alpha", A::F(1.0)), ("alpha", A::F(2.0))];
    let e = one(node("LeakyRelu", &["x"], &["y"], &twice));
    assert!(matches!(e, StructureError::DuplicateName(_)));
    let e = one(node("Cast", &["x"], &["y"], &[]));
    assert!(matches!(e, StructureError::NoAttribute { attribute: "to", .. }));
    // Old files leave the type out.
    let mut old = node("LeakyRelu", &["x"], &["y"], &[("alpha", A::F(1.0))]);
    old.attribute[0].r#type = None;
    assert!(load(graph(vec![old])).is_ok());
}

#[test]
fn constants_may_be_inputs_and_unused_parts_vanish() {
    let nodes = vec![
        node("Add", &["x", "w"], &["y"], &[]),
        node("Constant", &[], &["k"], &[("value_int", A::I(1))]),
        node("Cast", &["k"], &["unused"], &[("to", A::I(1))]),
    ];
    let mut g = graph(nodes);
    g.input.push(value("w", DType::F32));
    g.initializer = vec![tensor("w", &f32s(&[1], &[1.0])), tensor("v", &f32s(&[1], &[1.0]))];
    let m = load(g).unwrap();
    assert_eq!((m.inputs().len(), m.node_count()), (1, 1));
    assert_eq!(m.constants().map(|c| c.0).collect::<Vec<_>>(), ["w"]);
}

#[test]
fn input_shapes_are_compared_with_the_declaration() {
    let mut g = graph(vec![node("Concat", &["x", "z"], &["y"], &[("axis", A::I(0))])]);
    g.input = vec![shaped("x", &["n", "3", "?"]), shaped("z", &["m", "3", "n"])];
    let m = load(g).unwrap();
    assert_eq!(m.inputs()[0].shape_text(), "[n, 3, ?]");
    let check = |inputs: &[(&str, &[usize])]| match m.check_inputs(inputs) {
        Ok(()) => None,
        Err(ImportError::Input { source, .. }) => Some(source),
        Err(e) => panic!("{e}"),
    };
    assert_eq!(check(&[("x", &[2, 3, 2]), ("z", &[5, 3, 2])]), None);
    assert_eq!(check(&[("z", &[5, 3, 2]), ("x", &[2, 3, 9])]), None);
    assert_eq!(check(&[("x", &[2, 3, 2])]), Some(InputError::NotGiven));
    let twice = [("x", &[2, 3, 2][..]), ("x", &[2, 3, 2])];
    assert_eq!(check(&twice), Some(InputError::Twice));
    assert!(matches!(check(&[("q", &[1])]), Some(InputError::Unknown { .. })));
    let rank = check(&[("x", &[2, 3]), ("z", &[5, 3, 2])]);
    assert!(matches!(rank, Some(InputError::Rank { .. })));
    let extent = check(&[("x", &[2, 4, 2]), ("z", &[5, 3, 2])]);
    assert!(matches!(extent, Some(InputError::Extent { axis: 1, .. })));
    let symbol = check(&[("x", &[2, 3, 2]), ("z", &[5, 3, 7])]);
    let want = InputError::Symbol { symbol: "n".into(), found: 7, expected: 2 };
    assert_eq!(symbol, Some(want));
    assert_eq!(check(&[("x", &[2, 3, 2]), ("z", &[5, 3, 0])]), None);
    assert_eq!(check(&[("x", &[0, 3, 7]), ("z", &[5, 3, 2])]), None);
}

#[test]
fn shape_chains_vanish_and_constants_keep_their_storage() {
    let nodes = vec![
        node("Shape", &["x"], &["s"], &[]),
        node("Gather", &["s", "zero"], &["n"], &[]),
        node("Unsqueeze", &["n", "axes"], &["n1"], &[]),
        node("Concat", &["n1", "minus"], &["to"], &[("axis", A::I(0))]),
        node("Reshape", &["x", "to"], &["flat"], &[]),
        node("MatMul", &["flat", "w"], &["y"], &[]),
    ];
    let mut g = graph(nodes);
    g.initializer = vec![
        tensor("zero", &Tensor::from_slice(&[], &[0i64]).unwrap()),
        tensor("axes", &i64s(&[0])),
        tensor("minus", &i64s(&[-1])),
        tensor("w", &f32s(&[6, 1], &[1.0; 6])),
    ];
    let m = load(g).unwrap();
    let built = |batch: usize| {
        let mut cx = Context::new();
        let y = m.instantiate(&mut cx, &[("x", &[batch, 2, 3])], &[]).unwrap()[0];
        assert_eq!(cx.dims(y), [batch, 1]);
        let order = cx.build_forward(&[y]).unwrap();
        let ops: Vec<_> = order.iter().map(|&id| cx.record(id).op().name()).collect();
        assert_eq!(ops, ["leaf", "reshape", "leaf", "matmul"]);
        let weights = order.iter().filter_map(|&id| cx.constant_value(id));
        weights.map(|t| t.storage().id()).collect::<Vec<_>>()
    };
    assert_eq!(built(1), built(5));
}

/// As many of PyTorch's repositories write it.
#[test]
fn attention_of_einsums_is_recognised() {
    let einsum = |inputs: &[&str], y: &str, equation| {
        node("Einsum", inputs, &[y], &[("equation", A::S(equation))])
    };
    let forms = [
        ("bhld,bhtd->bhlt", "bhlt,bhtd->bhld", "attention"),
        ("blhd,bthd->bhlt", "bhlt,bthd->blhd", "attention"),
        ("hld,htd->hlt", "hlt,htd->hld", "attention"),
        // Weights of the keys are no attention.
        ("bhld,bhtd->bhtl", "bhtl,bhtd->bhld", "matmul"),
    ];
    for (scores, result, last) in forms {
        let nodes = vec![
            einsum(&["x", "x"], "scores", scores),
            node("Softmax", &["scores"], &["weights"], &[("axis", A::I(-1))]),
            einsum(&["weights", "x"], "y", result),
        ];
        let m = load(graph(nodes)).unwrap();
        let mut cx = Context::new();
        let dims = &[2, 3, 5, 4][usize::from(scores.len() < 15)..];
        let y = m.instantiate(&mut cx, &[("x", dims)], &[]).unwrap()[0];
        assert_eq!(cx.dims(y), dims, "{result}");
        crate::graph::passes::use_attention(&mut cx, &[y]).unwrap();
        let order = cx.build_forward(&[y]).unwrap();
        let mut ops = order.iter().rev().map(|&id| cx.record(id).op().name());
        let moves = ["transpose", "reshape", "cont"];
        assert_eq!(ops.find(|op| !moves.contains(op)), Some(last), "{scores} {result}");
    }
}

#[test]
fn a_shape_that_is_not_known_is_named() {
    let nodes = vec![
        node("Cast", &["x"], &["to"], &[("to", A::I(7))]),
        NodeProto { name: Some("here".into()), ..node("Reshape", &["x", "to"], &["y"], &[]) },
    ];
    let m = load(graph(nodes)).unwrap();
    let e = m.instantiate(&mut Context::new(), &[("x", &[2])], &[]).unwrap_err();
    let text = e.to_string();
    assert!(text.contains("Reshape") && text.contains("here") && text.contains("\"to\""), "{text}");
}

#[test]
fn inputs_that_decide_about_shapes() {
    let nodes = vec![
        node("Shape", &["x"], &["s"], &[]),
        node("Concat", &["s", "more"], &["to"], &[("axis", A::I(0))]),
        node("Reshape", &["x", "to"], &["y"], &[]),
    ];
    let mut g = graph(nodes);
    g.input.push(value("more", DType::I64));
    let m = load(g).unwrap();
    assert_eq!((m.needs_value(0), m.needs_value(1), m.needs_value(2)), (false, true, false));
    let inputs = [("x", &[2, 3][..]), ("more", &[2])];
    let mut cx = Context::new();
    assert!(m.instantiate(&mut cx, &inputs, &[]).is_err());
    let y = m.instantiate(&mut cx, &inputs, &[("more", &i64s(&[1, 1]))]).unwrap();
    assert_eq!(cx.dims(y[0]), [2, 3, 1, 1]);
}

#[test]
fn half_precision_is_computed_in_single() {
    let half = |v: f32| half::f16::from_f32(v);
    let mut g = graph(vec![
        node("Add", &["x", "w"], &["sum"], &[]),
        node("Cast", &["sum"], &["y"], &[("to", A::I(10))]),
    ]);
    g.input = vec![value("x", DType::F16)];
    g.output = vec![value("y", DType::F16)];
    g.initializer = vec![tensor("w", &Tensor::from_slice(&[2], &[half(0.5), half(2.0)]).unwrap())];
    let m = load(g).unwrap();
    let x = Tensor::from_slice(&[1], &[half(1.0)]).unwrap();
    let mut cx = Context::new();
    let y = m.instantiate(&mut cx, &[("x", &[1])], &[("x", &x)]).unwrap()[0];
    let y = cx.constant_value(y).unwrap();
    assert_eq!(y.as_slice::<half::f16>().unwrap()[..], [half(1.5), half(3.0)]);
    let mut cx = Context::new();
    let y = m.instantiate(&mut cx, &[("x", &[1])], &[]).unwrap()[0];
    let order = cx.build_forward(&[y]).unwrap();
    let ops: Vec<_> = order.iter().map(|&id| (cx.record(id).op().name(), cx.dtype(id))).collect();
    let (f16, f32) = (DType::F16, DType::F32);
    let want = [("leaf", f16), ("cast", f32), ("leaf", f32), ("add", f32), ("cast", f16)];
    assert_eq!(ops, want);
}

#[test]
fn bad_constants_name_their_tensor() {
    let with = |t: TensorProto| {
        let mut g = graph(vec![node("Add", &["x", "w"], &["y"], &[])]);
        g.initializer = vec![TensorProto { name: Some("w".into()), ..t }];
        load(g).unwrap_err()
    };
    let short = TensorProto { data_type: Some(1), dims: vec![1 << 20], ..Default::default() };
    let e = with(TensorProto { raw_data: Some(vec![0; 8].into()), ..short.clone() });
    assert!(matches!(&e, ImportError::Data { tensor, .. } if tensor == "w"), "{e}");
    let e = with(TensorProto { dims: vec![1 << 62, 4], ..short.clone() });
    assert!(matches!(e, ImportError::Data { source: DataError::Tensor(_), .. }));
    let e = with(TensorProto { dims: vec![-3], ..short });
    assert!(matches!(e, ImportError::Data { source: DataError::NegativeDim(_), .. }));
    let mut g = graph(vec![relu("x", "y")]);
    g.input = vec![shaped("x", &["-2"])];
    assert!(matches!(structure(load(g).unwrap_err()), StructureError::NegativeDim { dim: -2, .. }));
}

#[test]
fn names_in_messages_stay_on_one_line() {
    let long = "x\n\"".repeat(1000);
    let mut g = graph(vec![relu("x", "y")]);
    g.output = vec![value(&long, DType::F32)];
    let text = load(g).unwrap_err().to_string();
    assert!(!text.contains('\n') && text.len() < 250, "{text}");
}

/// An output of which the file says the name only.
fn untyped(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: Some(name.into()), r#type: None }
}

#[test]
fn types_of_outputs_that_are_not_given_are_found() {
    let flat = |dims: &[&str]| GraphProto {
        node: vec![
            node("Reshape", &["x", "shape"], &["r"], &[]),
            relu("r", "y"),
            node("Shape", &["r"], &["z"], &[]),
        ],
        initializer: vec![tensor("shape", &i64s(&[-1, 16]))],
        input: vec![shaped("x", dims)],
        output: vec![untyped("y"), untyped("z")],
        ..Default::default()
    };
    let types = |m: OnnxModel| m.outputs().iter().map(|o| o.dtype).collect::<Vec<_>>();
    for dims in [&["2", "8"][..], &["n", "?"], &["1", "n", "m"]] {
        assert_eq!(types(load(flat(dims)).unwrap()), [DType::F32, DType::I64], "{dims:?}");
    }
    // No shape at all; a tensor whose type is number 0.
    let mut g = flat(&["n"]);
    g.input = vec![value("x", DType::F32)];
    let none = type_proto::Tensor { elem_type: Some(0), shape: None };
    let none = TypeProto { value: Some(type_proto::Value::Tensor(none)) };
    g.output[0].r#type = Some(none);
    assert_eq!(types(load(g).unwrap()), [DType::F32, DType::I64]);
    // Where shapes do not fit, or depend on data, and where halves are, rules tell.
    assert_eq!(types(load(flat(&["3", "5"])).unwrap()), [DType::F32, DType::I64]);
    let of = |nodes| GraphProto { node: nodes, output: vec![untyped("y")], ..flat(&["n"]) };
    let cast = || node("Cast", &["x"], &["h"], &[("to", A::I(10))]);
    let twice = of(vec![cast(), node("Add", &["h", "h"], &["y"], &[])]);
    assert_eq!(types(load(twice).unwrap()), [DType::F16]);
    assert_eq!(types(load(of(vec![node("NonZero", &["x"], &["y"], &[])])).unwrap()), [DType::I64]);
    // Without a rule an f32 may stand for a half, and here nothing fits.
    let halves = of(vec![cast(), node("Hardmax", &["h"], &["y"], &[])]);
    let misfit = of(vec![
        node("Reshape", &["x", "shape"], &["r"], &[]),
        node("Hardmax", &["r"], &["y"], &[]),
    ]);
    let misfit = GraphProto { input: vec![shaped("x", &["5"])], ..misfit };
    for g in [halves, misfit] {
        let e = load(g).unwrap_err().to_string();
        assert!(e.contains("infer_shapes") && e.contains("output y"), "{e}");
    }
}

#[test]
fn constants_that_are_inputs_too_are_defaults() {
    let p = |ir| {
        let g = GraphProto {
            node: vec![node("Add", &["x", "w"], &["y"], &[])],
            initializer: vec![tensor("w", &f32s(&[2], &[1.0, 2.0]))],
            input: vec![shaped("x", &["2"]), shaped("w", &["2"])],
            output: vec![value("y", DType::F32)],
            ..Default::default()
        };
        OnnxModel::from_proto(ModelProto { ir_version: Some(ir), ..model(13, g) }, None).unwrap()
    };
    let names = |list: &[ValueInfo]| list.iter().map(|i| i.name.clone()).collect::<Vec<_>>();
    // Format 3 must list all constants: they are no more than that.
    assert_eq!((names(p(3).inputs()), p(3).defaults().len()), (vec!["x".to_owned()], 0));
    let m = p(4);
    assert_eq!((names(m.inputs()), names(m.defaults())), (vec!["x".into()], vec!["w".into()]));
    let m = m.asking_for(&["w", "w"]).unwrap();
    assert_eq!((names(m.inputs()), m.defaults().len()), (vec!["x".into(), "w".into()], 0));
    let mut cx = Context::new();
    let shapes = [("x", &[2][..]), ("w", &[2][..])];
    let y = m.instantiate(&mut cx, &shapes, &[]).unwrap()[0];
    assert_eq!((cx.record(y).src().len(), m.constants().count()), (2, 0));
    assert!(m.asking_for(&["v"]).is_none());
}

#[test]
fn maps_at_the_end_are_matrices() {
    let sequence = || Some(TypeProto { value: Some(type_proto::Value::Sequence(Bytes::new())) });
    let load = |op: &str, domain: &str| {
        let labels: &[(&str, A<'_>)] = &[("classlabels_int64s", A::Is(&[3, 5]))];
        let attrs = if domain.is_empty() { &[] } else { labels };
        let mut p = model(13, graph(vec![node(op, &["x"], &["y"], attrs)]));
        let graph = p.graph.as_mut().unwrap();
        graph.node[0].domain = Some(domain.into());
        graph.output[0].r#type = sequence();
        let ml = OperatorSetIdProto { domain: Some("ai.onnx.ml".into()), version: Some(1) };
        p.opset_import.push(ml);
        OnnxModel::from_proto(p, None)
    };
    let m = load("ZipMap", "ai.onnx.ml").unwrap();
    assert_eq!((m.outputs()[0].dtype, &m.outputs()[0].dims), (DType::F32, &None));
    let mut cx = Context::new();
    let y = m.instantiate(&mut cx, &[("x", &[4, 2])], &[]).unwrap();
    assert_eq!(cx.dims(y[0]), [4, 2]);
    assert!(load("Relu", "").unwrap_err().to_string().contains("sequence"));
}
