//! Loops and scans.

use super::*;

#[test]
fn loops_end_by_count_or_by_condition() {
    let nodes = vec![
        node("Shape", &["x"], &["n"]),
        with(node("Loop", &["trips", "", "x"], &["y", "all"]), vec![body("body", &doubling())]),
    ];
    let g = || graph(&[("x", F)], nodes.clone(), &[("y", F), ("all", F)]);
    let limit = || floats("limit", &[], &[100.0]);
    let mut s = session(g(), vec![limit(), ints("trips", &[], &[1000])]).unwrap();
    let y = run(&mut s, &[10.0, 3.0]).unwrap();
    assert_eq!((f32s(&y[0]), y[1].dims()), (vec![80.0, 24.0], vec![3, 2]));
    assert_eq!(f32s(&y[1]), [20.0, 6.0, 40.0, 12.0, 80.0, 24.0]);
    let mut s = session(g(), vec![limit(), ints("trips", &[], &[2])]).unwrap();
    assert_eq!(f32s(&run(&mut s, &[10.0, 3.0]).unwrap()[0]), [40.0, 12.0]);
    for trips in [0, -1, i64::MIN] {
        let mut s = session(g(), vec![limit(), ints("trips", &[], &[trips])]).unwrap();
        let y = run(&mut s, &[10.0, 3.0]).unwrap();
        assert_eq!((f32s(&y[0]), y[1].dims()), (vec![10.0, 3.0], vec![0, 2]));
    }
}

#[test]
fn without_iterations_results_have_the_shape_and_type_they_would_have() {
    let b = graph(
        &[("i", I), ("c", B), ("v", F)],
        vec![
            node("Identity", &["c"], &["go_on"]),
            node("Identity", &["v"], &["same"]),
            node("Shape", &["v"], &["extents"]),
            node("Expand", &["v", "pair"], &["rows"]),
        ],
        &[("go_on", B), ("same", F), ("extents", I), ("rows", F)],
    );
    let mut untyped = b.clone();
    untyped.output[2].r#type = None;
    let nodes = |b: &GraphProto, n: &str| {
        let looped = node("Loop", &[n, "", "x"], &["v2", "extents_of", "all"]);
        vec![node("Shape", &["x"], &["length"]), with(looped, vec![body("body", b)])]
    };
    let outputs = [("extents_of", I), ("all", F)];
    for (b, n) in [(&b, "none"), (&untyped, "none"), (&untyped, "minus")] {
        let constants =
            vec![ints("none", &[], &[0]), ints("minus", &[], &[-3]), ints("pair", &[2], &[2, 1])];
        let mut s = session(graph(&[("x", F)], nodes(b, n), &outputs), constants).unwrap();
        let y = run(&mut s, &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((y[0].dims(), y[1].dims()), (vec![0, 1], vec![0, 2, 3]));
        assert_eq!(i64s(&y[0]), [0i64; 0]);
    }
    // A scan over nothing knows its rows as well.
    let b = graph(&[("row", F)], vec![node("Add", &["row", "row"], &["twice"])], &[("twice", F)]);
    let scan =
        with(node("Scan", &["empty"], &["y"]), vec![int("num_scan_inputs", 1), body("body", &b)]);
    let nodes = vec![
        node("Reshape", &["x", "column"], &["rows"]),
        with(node("Compress", &["rows", "no"], &["empty"]), vec![int("axis", 0)]),
        scan,
    ];
    let no = TensorProto { dims: vec![1], ..truth("no", false) };
    let constants = vec![ints("column", &[2], &[1, -1]), no];
    let mut s = session(graph(&[("x", F)], nodes, &[("y", F)]), constants).unwrap();
    assert_eq!(run(&mut s, &[1.0, 2.0, 3.0]).unwrap()[0].dims(), [0, 3]);
}

#[test]
fn a_value_may_grow_in_a_loop() {
    let grow = graph(
        &[("i", I), ("c", B), ("v", F)],
        vec![
            with(node("Concat", &["v", "x"], &["longer"]), vec![int("axis", 0)]),
            node("Identity", &["c"], &["go_on"]),
        ],
        &[("go_on", B), ("longer", F)],
    );
    let nodes = vec![
        with(node("ReduceMax", &["x"], &["m"]), vec![int("keepdims", 0)]),
        with(node("Cast", &["m"], &["n"]), vec![int("to", 7)]),
        with(node("Loop", &["n", "", "x"], &["y"]), vec![body("body", &grow)]),
    ];
    let mut s = session(graph(&[("x", F)], nodes, &[("y", F)]), vec![]).unwrap();
    assert_eq!(f32s(&run(&mut s, &[2.0, 1.0]).unwrap()[0]), [2.0, 1.0, 2.0, 1.0, 2.0, 1.0]);
    assert_eq!(run(&mut s, &[5.0]).unwrap()[0].dims(), [6]);
}

#[test]
fn a_loop_in_a_branch_in_a_loop() {
    // For i below 3: v + 1 if i is odd, else v doubled i times.
    let double = graph(
        &[("j", I), ("d", B), ("w", F)],
        vec![node("Add", &["w", "w"], &["w2"]), node("Identity", &["d"], &["d2"])],
        &[("d2", B), ("w2", F)],
    );
    let often = graph(
        &[],
        vec![with(node("Loop", &["i", "", "v"], &["many"]), vec![body("body", &double)])],
        &[("many", F)],
    );
    let once = graph(&[], vec![node("Add", &["v", "one"], &["more"])], &[("more", F)]);
    let outer = graph(
        &[("i", I), ("c", B), ("v", F)],
        vec![
            node("Mod", &["i", "two"], &["rest"]),
            with(node("Cast", &["rest"], &["odd"]), vec![int("to", 9)]),
            with(
                node("If", &["odd"], &["next"]),
                vec![body("then_branch", &once), body("else_branch", &often)],
            ),
            node("Identity", &["c"], &["c2"]),
        ],
        &[("c2", B), ("next", F)],
    );
    let nodes = vec![with(node("Loop", &["three", "", "x"], &["y"]), vec![body("body", &outer)])];
    let constants =
        vec![ints("three", &[], &[3]), ints("two", &[], &[2]), floats("one", &[1], &[1.0])];
    let s = session(graph(&[("x", F)], nodes, &[("y", F)]), constants);
    let mut s = match s {
        Ok(s) => s,
        // Without this operator there is nothing to test.
        Err(e) if e.to_string().contains("operator Mod") => return,
        Err(e) => panic!("{e}"),
    };
    assert_eq!(f32s(&run(&mut s, &[3.0]).unwrap()[0]), [16.0]);
}

#[test]
fn scans_in_both_directions() {
    let sum = graph(
        &[("s", F), ("part", F)],
        vec![node("Add", &["s", "part"], &["t"]), node("Identity", &["t"], &["copy"])],
        &[("t", F), ("copy", F)],
    );
    let list = |name: &str, v: i64| AttributeProto {
        name: Some(name.into()),
        ints: vec![v],
        r#type: Some(7),
        ..Default::default()
    };
    for (back, out_back, expected) in
        [(0, 0, [1.0, 3.0, 6.0]), (1, 0, [3.0, 5.0, 6.0]), (1, 1, [6.0, 5.0, 3.0])]
    {
        let attributes = vec![
            body("body", &sum),
            int("num_scan_inputs", 1),
            list("scan_input_directions", back),
            list("scan_output_directions", out_back),
        ];
        let nodes = vec![with(node("Scan", &["zero", "x"], &["last", "all"]), attributes)];
        let g = graph(&[("x", F)], nodes, &[("last", F), ("all", F)]);
        let mut s = session(g, vec![floats("zero", &[], &[0.0])]).unwrap();
        let y = run(&mut s, &[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((f32s(&y[0]), f32s(&y[1])), (vec![6.0], expected.to_vec()));
        assert_eq!(run(&mut s, &[]).unwrap()[0].dims(), [0usize; 0]);
    }
}

/// As TensorFlow's exporters write weights of recurrent layers.
#[test]
fn what_a_loop_hands_on_unchanged_is_a_constant_in_its_body() {
    let inner = graph(
        &[("j", I), ("d", B), ("u", F), ("m", F)],
        vec![node("Add", &["u", "m"], &["u2"]), node("Identity", &["d"], &["d2"])],
        &[("d2", B), ("u2", F), ("m", F)],
    );
    let outer = graph(
        &[("i", I), ("c", B), ("v", F), ("w", F), ("k", F)],
        vec![
            node("MatMul", &["v", "w"], &["product"]),
            node("Mul", &["k", "k"], &["square"]),
            node("Add", &["product", "square"], &["p"]),
            with(node("Loop", &["two", "", "p", "k"], &["q", "l"]), vec![body("body", &inner)]),
            node("Identity", &["c"], &["c2"]),
        ],
        &[("c2", B), ("q", F), ("w", F), ("k", F)],
    );
    let nodes = vec![
        node("Reshape", &["x", "as_row"], &["v0"]),
        with(
            node("Loop", &["three", "", "v0", "w0", "k0"], &["y", "w1", "k1"]),
            vec![body("body", &outer)],
        ),
    ];
    let w = [0.5, -1.0, 2.0, 0.25];
    let g = graph(&[("x", F), ("w0", F)], nodes, &[("y", F), ("w1", F), ("k1", F)]);
    let constants = vec![
        floats("w0", &[2, 2], &w),
        floats("k0", &[1], &[3.0]),
        ints("two", &[], &[2]),
        ints("three", &[], &[3]),
        ints("as_row", &[2], &[1, 2]),
    ];
    let found = |x: [f32; 2], w: [f32; 4]| {
        let step = |[a, b]: [f32; 2]| [a * w[0] + b * w[2] + 15.0, a * w[1] + b * w[3] + 15.0];
        step(step(step(x))).to_vec()
    };
    let model = Arc::new(model(g, constants).unwrap());
    let options = SessionOptions { threads: Some(1), profile: true, ..Default::default() };
    let mut s = Session::new(model.clone(), options.clone()).unwrap();
    for x in [[1.0, 2.0], [-4.0, 0.5]] {
        let y = run(&mut s, &x).unwrap();
        assert_eq!((f32s(&y[0]), f32s(&y[1]), f32s(&y[2])), (found(x, w), w.to_vec(), vec![3.0]));
    }
    // What is made of constants is one.
    let profile = s.profile();
    let steps = |op: &str| profile.iter().filter(|row| row.op == op).count();
    assert!(steps("matmul") > 0 && steps("mul") == 0, "{profile:?}");
    // A run that is given another takes that one.
    let asked = Arc::new(model.with_inputs(&["w0"]).unwrap());
    let mut s = Session::new(asked, options).unwrap();
    let other = [1.0, 0.5, 0.25, -2.0];
    let x = Tensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
    let given = [("x", x), ("w0", Tensor::from_slice(&[2, 2], &other).unwrap())];
    let y = s.run(&given).unwrap();
    assert_eq!(f32s(&y[0].1), found([1.0, 2.0], other));
    assert_eq!(f32s(&y[1].1), other);
}
