use prost::Message;

use super::super::super::OnnxModel;
use super::super::super::proto::{
    AttributeProto, GraphProto, NodeProto, TypeProto, ValueInfoProto, attribute_type, type_proto,
};
use super::super::super::testing::{model, node, tensor, value};
use super::*;
use crate::graph::Context;

/// Computes nodes on constants.
fn compute(
    nodes: Vec<NodeProto>,
    constants: &[(&str, Tensor)],
    outputs: &[(&str, DType)],
) -> Result<Vec<Tensor>, ImportError> {
    let graph = GraphProto {
        node: nodes,
        initializer: constants.iter().map(|(n, t)| tensor(n, t)).collect(),
        output: outputs.iter().map(|(n, t)| value(n, *t)).collect(),
        ..Default::default()
    };
    let model = OnnxModel::from_proto(model(18, graph), None)?;
    let mut ctx = Context::new();
    let ids = model.instantiate(&mut ctx, &[], &[])?;
    Ok(ids.iter().map(|&id| ctx.constant_value(id).unwrap().clone()).collect())
}

fn message(r: Result<Vec<Tensor>, ImportError>) -> String {
    r.unwrap_err().to_string()
}

/// A body: names of inputs, nodes, names of outputs.
fn body(inputs: &[&str], nodes: Vec<NodeProto>, outputs: &[&str]) -> GraphProto {
    let named = |names: &[&str]| {
        let one = |n: &&str| ValueInfoProto { name: Some((*n).into()), r#type: None };
        names.iter().map(one).collect()
    };
    GraphProto { input: named(inputs), node: nodes, output: named(outputs), ..Default::default() }
}

fn with_body(mut n: NodeProto, name: &str, body: &GraphProto) -> NodeProto {
    n.attribute.push(AttributeProto {
        name: Some(name.into()),
        g: Some(body.encode_to_vec().into()),
        r#type: Some(attribute_type::GRAPH),
        ..Default::default()
    });
    n
}

fn scalar(v: i64) -> Tensor {
    Tensor::from_slice(&[], &[v]).unwrap()
}

const Y: &[(&str, DType)] = &[("y", DType::F32)];

/// The parts of a tensor joined along a new first axis, or the one at a position.
fn split(
    attrs: &[(&str, A<'_>)],
    sizes: Option<Tensor>,
    at: i64,
) -> Result<Vec<Tensor>, ImportError> {
    let inputs: &[&str] = if sizes.is_some() { &["x", "sizes"] } else { &["x"] };
    let nodes = vec![
        node("SplitToSequence", inputs, &["s"], attrs),
        node("SequenceAt", &["s", "at"], &["y"], &[]),
        node("SequenceLength", &["s"], &["n"], &[]),
    ];
    let mut constants = vec![("x", count(&[2, 5])), ("at", scalar(at))];
    constants.extend(sizes.map(|s| ("sizes", s)));
    compute(nodes, &constants, &[("y", DType::F32), ("n", DType::I64)])
}

#[test]
fn a_tensor_is_split_into_equal_or_listed_parts() {
    let axis = || ("axis", A::I(1));
    let all = |r: Result<Vec<Tensor>, ImportError>| {
        let r = r.unwrap();
        (parts(&r[0]), ints(&r[1])[0])
    };
    // Without sizes each part is one element; the axis goes if nobody keeps it.
    assert_eq!(all(split(&[axis()], None, 1)), ((vec![2, 1], vec![1.0, 6.0]), 5));
    let loose = [axis(), ("keepdims", A::I(0))];
    assert_eq!(all(split(&loose, None, -1)), ((vec![2], vec![4.0, 9.0]), 5));
    assert_eq!(all(split(&[], None, -2)), ((vec![1, 5], vec![0.0, 1.0, 2.0, 3.0, 4.0]), 2));
    // A number is the size of all parts but the last.
    let two = Some(scalar(2));
    assert_eq!(all(split(&[axis()], two.clone(), 2)), ((vec![2, 1], vec![4.0, 9.0]), 3));
    assert_eq!(all(split(&loose, two, 0)), ((vec![2, 2], vec![0.0, 1.0, 5.0, 6.0]), 3));
    let one = Some(scalar(1));
    assert_eq!(all(split(&loose, one.clone(), 4)), ((vec![2], vec![4.0, 9.0]), 5));
    assert_eq!(all(split(&[axis()], one, 4)).0.0, [2, 1]);
    // A list has the size of each.
    let list = |v: &[i64]| Some(i64s(v));
    assert_eq!(all(split(&[axis()], list(&[4, 1, 0]), 1)), ((vec![2, 1], vec![4.0, 9.0]), 3));
    assert_eq!(all(split(&[axis()], list(&[5]), 0)).1, 1);
    for bad in [list(&[4]), list(&[6, -1]), list(&[3, 3]), Some(scalar(0)), Some(scalar(-2))] {
        assert!(matches!(node_error(split(&[axis()], bad, 0).unwrap_err()), NodeError::Invalid(_)));
    }
    assert!(split(&[("axis", A::I(2))], None, 0).is_err());
    for outside in [5, -6, i64::MAX, i64::MIN] {
        assert!(split(&[axis()], None, outside).is_err(), "{outside}");
    }
}

#[test]
fn more_parts_than_a_graph_has_records_are_refused() {
    let nodes = || {
        let split = node("SplitToSequence", &["x"], &["s"], &[]);
        vec![split, node("SequenceLength", &["s"], &["y"], &[])]
    };
    let many = |n: usize| {
        let x = Tensor::zeros(DType::F32, &[n, 0]).unwrap();
        compute(nodes(), &[("x", x)], &[("y", DType::I64)])
    };
    assert_eq!(ints(&many(1000).unwrap()[0]), [1000]);
    let e = message(many(1 << 40));
    assert!(e.contains("1099511627776 parts"), "{e}");
}

#[test]
fn sequences_grow_and_shrink() {
    let at = |name: &'static str, v| (name, scalar(v));
    let nodes = vec![
        node("SequenceEmpty", &[], &["none"], &[("dtype", A::I(1))]),
        node("SequenceInsert", &["none", "a"], &["s1"], &[]),
        node("SequenceInsert", &["s1", "b"], &["s2"], &[]),
        node("SequenceInsert", &["s2", "c", "front"], &["s3"], &[]),
        node("Identity", &["s3"], &["same"], &[]),
        node("SequenceErase", &["same", "last"], &["s4"], &[]),
        node("SequenceInsert", &["s4", "b", "last"], &["s5"], &[]),
        node("ConcatFromSequence", &["s5"], &["y"], &[("axis", A::I(-1))]),
        node("SequenceErase", &["s1"], &["s6"], &[]),
        node("SequenceLength", &["s6"], &["n"], &[]),
        node("SequenceConstruct", &["a", "b"], &["two"], &[]),
        node("ConcatFromSequence", &["two"], &["z"], &[("axis", A::I(-1)), ("new_axis", A::I(1))]),
    ];
    let constants = [
        ("a", f32s(&[2], &[1.0, 2.0])),
        ("b", f32s(&[2], &[3.0, 4.0])),
        ("c", f32s(&[1], &[5.0])),
        at("front", 0),
        at("last", -1),
    ];
    let outputs = [("y", DType::F32), ("z", DType::F32), ("n", DType::I64)];
    let r = compute(nodes, &constants, &outputs).unwrap();
    // c, a, b; then without b; then b before a.
    assert_eq!(parts(&r[0]), (vec![5], vec![5.0, 3.0, 4.0, 1.0, 2.0]));
    assert_eq!(parts(&r[1]), (vec![2, 2], vec![1.0, 3.0, 2.0, 4.0]));
    assert_eq!(ints(&r[2]), [0]);
}

#[test]
fn what_is_wrong_with_sequences_is_said() {
    let a = || ("a", f32s(&[2], &[1.0, 2.0]));
    let none = || node("SequenceEmpty", &[], &["s"], &[]);
    let join = node("ConcatFromSequence", &["s"], &["y"], &[("axis", A::I(0))]);
    let e = message(compute(vec![none(), join], &[], Y));
    assert!(e.contains("an empty sequence cannot be joined"), "{e}");
    let e = message(compute(vec![none(), node("Relu", &["s"], &["y"], &[])], &[], Y));
    assert!(e.contains("input 0 (\"s\") is a sequence, expected a tensor"), "{e}");
    let e = message(compute(vec![node("SequenceLength", &["a"], &["y"], &[])], &[a()], Y));
    assert!(e.contains("input 0 (\"a\") is a tensor, expected a sequence"), "{e}");
    let mixed = node("SequenceConstruct", &["a", "b"], &["s"], &[]);
    let length = node("SequenceLength", &["s"], &["y"], &[]);
    let e = message(compute(vec![mixed, length], &[a(), ("b", i64s(&[1]))], Y));
    assert!(e.contains("a sequence of f32 and i64"), "{e}");
    // Outputs are tensors.
    let e = message(compute(vec![node("SequenceConstruct", &["a"], &["y"], &[])], &[a()], Y));
    assert!(e.contains("type sequence") && e.contains("output y"), "{e}");
    let mut p = model(18, GraphProto::default());
    let sequence = type_proto::Value::Sequence(Vec::new().into());
    let info = |name: &str| ValueInfoProto {
        name: Some(name.into()),
        r#type: Some(TypeProto { value: Some(sequence.clone()) }),
    };
    p.graph = Some(GraphProto {
        node: vec![node("SequenceLength", &["x"], &["y"], &[])],
        input: vec![info("x")],
        output: vec![value("y", DType::I64)],
        ..Default::default()
    });
    let e = OnnxModel::from_proto(p, None).unwrap_err().to_string();
    assert!(e.contains("type sequence") && e.contains("input x"), "{e}");
}

/// A loop that appends `x * i` to a sequence; the condition it gives is `go`.
fn appending(go: &str) -> NodeProto {
    let nodes = vec![
        node("Identity", &[go], &["go"], &[]),
        node("Cast", &["i"], &["f"], &[("to", A::I(1))]),
        node("Mul", &["x", "f"], &["p"], &[]),
        node("SequenceInsert", &["before", "p"], &["after"], &[]),
        node("Add", &["sum", "p"], &["more"], &[]),
    ];
    let b = body(&["i", "c", "before", "sum"], nodes, &["go", "after", "more", "f"]);
    with_body(node("Loop", &["n", "yes", "s", "x"], &["list", "total", "all"], &[]), "body", &b)
}

#[test]
fn loops_with_known_counts_append_to_sequences() {
    let run = |n: i64, go: &str, more: Vec<NodeProto>| {
        let mut nodes = vec![node("SequenceConstruct", &["x"], &["s"], &[])];
        nodes.extend(more);
        nodes.push(appending(go));
        nodes.push(node("ConcatFromSequence", &["list"], &["y"], &[("axis", A::I(0))]));
        let no = ("no", flag(false));
        let constants = [("x", f32s(&[2], &[1.0, 2.0])), ("n", scalar(n)), ("yes", flag(true)), no];
        compute(nodes, &constants, &[("y", DType::F32), ("total", DType::F32), ("all", DType::F32)])
    };
    let r = run(3, "yes", Vec::new()).unwrap();
    assert_eq!(parts(&r[0]), (vec![8], vec![1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 2.0, 4.0]));
    assert_eq!(parts(&r[1]).1, [4.0, 8.0]);
    assert_eq!(parts(&r[2]), (vec![3], vec![0.0, 1.0, 2.0]));
    let r = run(3, "no", Vec::new()).unwrap();
    assert_eq!(parts(&r[0]).1, [1.0, 2.0, 0.0, 0.0]);
    let r = run(0, "yes", Vec::new()).unwrap();
    assert_eq!((parts(&r[0]).1, parts(&r[2]).0), (vec![1.0, 2.0], vec![0]));
    let e = message(run(i64::MAX, "yes", Vec::new()));
    assert!(e.contains("sequences of more than 16777216 tensors together"), "{e}");
    // As long as nothing grows it is the nodes that count.
    let nodes = vec![node("Identity", &["c"], &["go"], &[]), node("Identity", &["s"], &["t"], &[])];
    let b = body(&["i", "c", "s"], nodes, &["go", "t"]);
    let nodes = vec![
        node("SequenceConstruct", &["x"], &["none"], &[]),
        with_body(node("Loop", &["", "", "none"], &["list"], &[]), "body", &b),
        node("ConcatFromSequence", &["list"], &["y"], &[("axis", A::I(0))]),
    ];
    let e = message(compute(nodes, &[("x", f32s(&[2], &[1.0, 2.0]))], Y));
    assert!(e.contains("sequences that become more than 262144 nodes"), "{e}");
}

#[test]
fn branches_give_sequences() {
    let run = |yes: bool| {
        let two = body(&[], vec![node("SequenceConstruct", &["x", "x"], &["a"], &[])], &["a"]);
        let one = body(&[], vec![node("Identity", &["s"], &["b"], &[])], &["b"]);
        let n = with_body(node("If", &["yes"], &["r"], &[]), "then_branch", &two);
        let nodes = vec![
            node("SequenceConstruct", &["x"], &["s"], &[]),
            with_body(n, "else_branch", &one),
            node("SequenceLength", &["r"], &["y"], &[]),
        ];
        compute(nodes, &[("x", f32s(&[1], &[1.0])), ("yes", flag(yes))], &[("y", DType::I64)])
    };
    assert_eq!(ints(&run(true).unwrap()[0]), [2]);
    assert_eq!(ints(&run(false).unwrap()[0]), [1]);
    let tensor = body(&[], vec![node("Identity", &["x"], &["b"], &[])], &["b"]);
    let list = body(&[], vec![node("SequenceConstruct", &["x"], &["a"], &[])], &["a"]);
    let n = with_body(node("If", &["yes"], &["y"], &[]), "then_branch", &list);
    let n = with_body(n, "else_branch", &tensor);
    let e = message(compute(vec![n], &[("x", f32s(&[1], &[1.0])), ("yes", flag(true))], Y));
    assert!(e.contains("is a sequence in one place and a tensor in another"), "{e}");
}

#[test]
fn a_map_applies_its_body_to_each_tensor() {
    let b = body(
        &["p", "q", "w"],
        vec![node("Mul", &["p", "q"], &["m"], &[]), node("Add", &["m", "w"], &["o"], &[])],
        &["o", "m"],
    );
    let run = |second: &[&str]| {
        let nodes = vec![
            node("SequenceConstruct", &["a", "b"], &["s"], &[]),
            node("SequenceConstruct", second, &["t"], &[]),
            with_body(node("SequenceMap", &["s", "t", "a"], &["r", "m"], &[]), "body", &b),
            node("ConcatFromSequence", &["r"], &["y"], &[("axis", A::I(0))]),
            node("ConcatFromSequence", &["m"], &["z"], &[("axis", A::I(0))]),
        ];
        let constants = [("a", f32s(&[1], &[2.0])), ("b", f32s(&[2], &[3.0, 4.0]))];
        compute(nodes, &constants, &[("y", DType::F32), ("z", DType::F32)])
    };
    let r = run(&["a", "b"]).unwrap();
    assert_eq!(parts(&r[0]).1, [6.0, 11.0, 18.0]);
    assert_eq!(parts(&r[1]).1, [4.0, 9.0, 16.0]);
    assert!(message(run(&["a"])).contains("input 1 has 1 tensors, input 0 has 2"));
}
