//! Builds without the operators that features add: what is there runs, and what is not is refused by name.
//! `cargo xtask ci` runs this for the smallest build.
#![cfg(not(any(feature = "ops-control", feature = "ops-int8", feature = "ops-more")))]

use std::path::Path;
use std::sync::Arc;

use tilewright::graph::ops::best::Best;
use tilewright::graph::{Context, GraphError};
use tilewright::{DType, Model, Session, SessionOptions, Tensor};

fn load(file: &str) -> Result<Model, tilewright::Error> {
    Model::load(Path::new(env!("CARGO_MANIFEST_DIR")).join(file))
}

#[test]
fn an_operator_of_a_set_that_is_not_there_is_refused_with_the_feature_that_adds_it() {
    for (operator, feature) in [
        ("LSTM", "ops-more"),
        ("Gather", "ops-more"),
        ("ConvTranspose", "ops-more"),
        ("DepthToSpace", "ops-more"),
        ("Range", "ops-more"),
        ("QLinearConv", "ops-int8"),
        ("TopK", "ops-control"),
        ("Scan", "ops-control"),
    ] {
        let Err(refusal) = load(&format!("fuzz/seeds/onnx/{operator}.onnx")) else {
            panic!("{operator} is there")
        };
        let said = refusal.to_string();
        let expected = format!("{operator}, which only a build with the feature `{feature}` has");
        assert!(said.contains(&expected), "{said}");
    }
}

#[test]
fn a_graph_refuses_it_where_it_is_built() {
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &[2, 3]).unwrap();
    let found = cx.op(Best { k: 1 }, &[x]);
    let expected = GraphError::NotBuilt { what: "Best", feature: "ops-more" };
    assert_eq!(found, Err(expected.clone()));
    assert!(expected.to_string().contains("build it with the feature `ops-more`"));
}

#[test]
fn the_embedded_network_runs() {
    let model = load("models/textline/textline.onnx").unwrap();
    let input = model.inputs()[0].name.clone();
    let mut session = Session::new(Arc::new(model), SessionOptions::default()).unwrap();
    let picture: Vec<f32> = (0..32 * 96).map(|i| (i * 37 % 101) as f32 / 101.0).collect();
    let picture = Tensor::from_slice(&[1, 1, 32, 96], &picture).unwrap();
    let results = session.run(&[(&input, picture)]).unwrap();
    let scores = results[0].1.as_slice::<f32>().unwrap();
    assert!(scores.iter().all(|x| x.is_finite()));
    assert!(scores.iter().any(|&x| x != scores[0]));
}

#[cfg(feature = "vector-only")]
#[test]
fn portable_kernels_are_not_there() {
    let said = tilewright::Isa::from_name("scalar").unwrap_err().to_string();
    assert!(said.contains("scalar is not available here"), "{said}");
}

/// Functions that lack kernels in such a build, in a graph whose other tensors are in blocks.
#[cfg(feature = "few-kernels")]
#[test]
fn what_has_no_kernel_is_computed_by_its_reference() {
    use tilewright::Isa;
    use tilewright::backend::cpu::Executor;
    use tilewright::graph::ops::binary::Binary;
    use tilewright::graph::ops::conv::Conv;
    use tilewright::graph::ops::reduce::{Reduce, ReduceOp};
    use tilewright::graph::ops::softmax::Softmax;
    use tilewright::graph::ops::unary::{Unary, UnaryOp};
    use tilewright_kernels::template::binary::BinaryOp;

    let (isa, dims, elements) = (Isa::select().unwrap(), [1, 16, 8, 8], 16 * 8 * 8);
    let x: Vec<f32> = (0..elements).map(|i| (i * 37 % 101) as f32 / 101.0 + 0.5).collect();
    let mut executor = Executor::new(isa, 2).unwrap();
    let mut run = |build: &dyn Fn(
        &mut Context,
        tilewright::graph::TensorId,
    ) -> tilewright::graph::TensorId| {
        let mut cx = Context::new();
        let input = cx.input("x", DType::F32, &dims).unwrap();
        // The identity, in blocks of channels.
        let mut weights = vec![0f32; 16 * 16];
        weights.iter_mut().step_by(17).for_each(|w| *w = 1.0);
        let weights = Tensor::from_slice(&[16, 16, 1, 1], &weights).unwrap();
        let weights = cx.constant(weights).unwrap();
        let before = cx.op(Conv::default(), &[input, weights]).unwrap();
        let y = build(&mut cx, before);
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        let x = Tensor::from_slice(&dims, &x).unwrap();
        let y = executor.run(&plan, &[&x], None).unwrap().remove(0);
        y.as_slice::<f32>().unwrap().to_vec()
    };
    let close = |found: &[f32], expected: &[f32], what: &str| {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (f, e) in found.iter().zip(expected) {
            assert!((f - e).abs() <= 1e-5 * e.abs().max(1.0), "{what}: {f} instead of {e}");
        }
    };
    let ln = run(&|cx, x| cx.op(Unary::new(UnaryOp::Log), &[x]).unwrap());
    close(&ln, &x.iter().map(|x| x.ln()).collect::<Vec<_>>(), "log");
    let power = run(&|cx, x| cx.op(Binary::new(BinaryOp::Pow), &[x, x]).unwrap());
    close(&power, &x.iter().map(|x| x.powf(*x)).collect::<Vec<_>>(), "pow");
    let reduce =
        |op| move |cx: &mut Context, x| cx.op(Reduce { op, axis: 3, count: 1 }, &[x]).unwrap();
    let norm = run(&reduce(ReduceOp::L2));
    let exact = x.chunks(8).map(|row| row.iter().map(|x| x * x).sum::<f32>().sqrt());
    close(&norm, &exact.collect::<Vec<_>>(), "l2");
    let log = run(&|cx, x| cx.op(Softmax { log: true, ..Softmax::along(3) }, &[x]).unwrap());
    let exact = x.chunks(8).flat_map(|row| {
        let sum: f32 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(move |x| x - sum.ln())
    });
    close(&log, &exact.collect::<Vec<_>>(), "log softmax");
    // One that has a kernel, so that the comparison is known to see.
    let mean = run(&reduce(ReduceOp::Mean));
    close(&mean, &x.chunks(8).map(|row| row.iter().sum::<f32>() / 8.0).collect::<Vec<_>>(), "mean");
}
