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
