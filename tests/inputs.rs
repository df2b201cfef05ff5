//! What a session says of inputs that it should not be given, or not so.

#[path = "support/onnx.rs"]
mod onnx;

use onnx::{F32, model, node, tensor};
use prost::Message;
use tilewright::{DType, Error, Model, Session, SessionOptions, Tensor};

/// `y = x + b`, where `b` is 10 unless a run says otherwise.
fn sum() -> Model {
    let inputs: [(_, _, &[_]); 2] = [("x", F32, &[Some(2)]), ("b", F32, &[Some(1)])];
    let nodes = vec![node("Add", &["x", "b"], &["y"])];
    let proto = model(&inputs, &["y"], nodes, vec![tensor("b", &[1], &[10.0])]);
    Model::from_bytes(proto.encode_to_vec(), None).unwrap()
}

fn run(model: &Model, inputs: &[(&str, Tensor)]) -> Result<Vec<f32>, Error> {
    let mut session = Session::new(model.clone().into(), SessionOptions::default())?;
    Ok(session.run(inputs)?[0].1.as_slice::<f32>().unwrap().to_vec())
}

fn f32s(values: &[f32]) -> Tensor {
    Tensor::from_slice(&[values.len()], values).unwrap()
}

#[test]
fn a_default_is_given_once_it_is_asked_for() {
    let sum = sum();
    let x = || ("x", f32s(&[1.0, 2.0]));
    assert_eq!(run(&sum, &[x()]).unwrap(), [11.0, 12.0]);
    let e = run(&sum, &[x(), ("b", f32s(&[5.0]))]).unwrap_err();
    assert!(matches!(&e, Error::DefaultInput(name) if name == "b"), "{e}");
    assert!(e.to_string().contains("with_inputs"), "{e}");
    let asked = sum.with_inputs(&["b"]).unwrap();
    assert_eq!(run(&asked, &[("b", f32s(&[5.0])), x()]).unwrap(), [6.0, 7.0]);
    let e = run(&asked, &[x()]).unwrap_err();
    assert!(matches!(&e, Error::MissingInput { name, .. } if name == "b"), "{e}");
}

#[test]
fn inputs_are_given_once_by_their_names_and_types() {
    let sum = sum();
    let x = || ("x", f32s(&[1.0, 2.0]));
    let e = run(&sum, &[("z", f32s(&[1.0]))]).unwrap_err().to_string();
    assert_eq!(e, "the model has no input \"z\" (it has: x)");
    let e = run(&sum, &[]).unwrap_err().to_string();
    assert_eq!(e, "input \"x\" (f32 [2]) is missing");
    let e = run(&sum, &[x(), x()]).unwrap_err().to_string();
    assert_eq!(e, "input \"x\" was given twice");
    let bytes = Tensor::zeros(DType::U8, &[2]).unwrap();
    let e = run(&sum, &[("x", bytes)]).unwrap_err().to_string();
    assert_eq!(e, "input \"x\": expected f32, found u8");
}
