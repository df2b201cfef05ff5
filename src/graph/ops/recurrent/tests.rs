use super::*;
use crate::graph::Context;
use crate::tensor::Tensor;

fn layer(cell: Cell, functions: &[UnaryOp]) -> Recurrent {
    Recurrent {
        cell,
        hidden: 1,
        reverse: vec![false],
        functions: vec![functions.iter().map(|&f| f.into()).collect()],
        clip: None,
        bias: false,
        lengths: false,
        state: false,
        cell_state: false,
        peepholes: false,
    }
}

fn run(op: Recurrent, operands: &[(&[usize], &[f32])]) -> Result<Vec<f32>, GraphError> {
    let mut cx = Context::new();
    let src: Vec<_> = operands
        .iter()
        .map(|(dims, v)| cx.constant(Tensor::from_slice(dims, v).unwrap()).unwrap())
        .collect();
    let y = cx.op(op, &src)?;
    Ok(cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec())
}

const SAME: UnaryOp = UnaryOp::Affine { scale: 1.0, shift: 0.0 };

#[test]
fn a_plain_layer_by_hand() {
    // h = x + 2 h.
    let op = layer(Cell::Rnn, &[SAME]);
    let x: (&[usize], &[f32]) = (&[3, 1, 1], &[1.0, 10.0, 100.0]);
    let r: (&[usize], &[f32]) = (&[1, 1, 1], &[2.0]);
    assert_eq!(run(op.clone(), &[x, r]).unwrap(), [1.0, 12.0, 124.0, 124.0]);
    let back = Recurrent { reverse: vec![true], ..op.clone() };
    assert_eq!(run(back, &[x, r]).unwrap(), [421.0, 210.0, 100.0, 421.0]);
    let clipped = Recurrent { clip: Some(50.0), state: true, ..op };
    let start: (&[usize], &[f32]) = (&[1, 1, 1], &[3.0]);
    assert_eq!(run(clipped, &[x, r, start]).unwrap(), [7.0, 24.0, 50.0, 50.0]);
}

#[test]
fn gates_by_hand() {
    // Update 0.5, reset 2: new = 1 + 2 * (3 * 4), or the same after the product with bias 1.
    let gates: (&[usize], &[f32]) = (&[1, 1, 3], &[0.5, 2.0, 1.0]);
    let r: (&[usize], &[f32]) = (&[1, 3, 1], &[0.0, 0.0, 3.0]);
    let start: (&[usize], &[f32]) = (&[1, 1, 1], &[4.0]);
    let op = Recurrent { state: true, ..layer(Cell::Gru { reset_after: false }, &[SAME, SAME]) };
    assert_eq!(run(op, &[gates, r, start]).unwrap(), [14.5, 14.5]);
    let op = layer(Cell::Gru { reset_after: true }, &[SAME, SAME]);
    let op = Recurrent { state: true, bias: true, ..op };
    let bias: (&[usize], &[f32]) = (&[1, 1], &[1.0]);
    assert_eq!(run(op, &[gates, r, bias, start]).unwrap(), [15.5, 15.5]);
    // c = 3 * 5 + 2 * 7, h = (11 + 0.5 * c) * c.
    let gates: (&[usize], &[f32]) = (&[1, 1, 4], &[2.0, 11.0, 3.0, 7.0]);
    let r: (&[usize], &[f32]) = (&[1, 4, 1], &[0.0; 4]);
    let cell: (&[usize], &[f32]) = (&[1, 1, 1], &[5.0]);
    let peepholes: (&[usize], &[f32]) = (&[1, 3], &[0.0, 0.5, 0.0]);
    let op = layer(Cell::Lstm { coupled: false }, &[SAME, SAME, SAME]);
    let op = Recurrent { cell_state: true, peepholes: true, ..op };
    assert_eq!(run(op, &[gates, r, cell, peepholes]).unwrap(), [739.5, 739.5, 29.0]);
}

#[test]
fn operands_must_fit() {
    let op = layer(Cell::Rnn, &[SAME]);
    let x: (&[usize], &[f32]) = (&[1, 1, 1], &[1.0]);
    assert!(run(op.clone(), &[x]).is_err());
    assert!(run(op.clone(), &[x, (&[1, 1, 2], &[1.0, 1.0])]).is_err());
    assert!(run(op.clone(), &[x, x, x]).is_err());
    assert!(run(Recurrent { functions: vec![], ..op.clone() }, &[x, x]).is_err());
    assert!(run(Recurrent { reverse: vec![], ..op.clone() }, &[x, x]).is_err());
    assert!(run(Recurrent { cell_state: true, ..op.clone() }, &[x, x, x]).is_err());
    assert!(run(Recurrent { hidden: usize::MAX, ..op }, &[x, x]).is_err());
}

#[test]
fn lengths_are_checked() {
    let op = Recurrent { lengths: true, ..layer(Cell::Rnn, &[SAME]) };
    let run = |length: i32| {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[2, 1, 1], &[1f32, 2.0]).unwrap()).unwrap();
        let r = cx.constant(Tensor::from_slice(&[1, 1, 1], &[1f32]).unwrap()).unwrap();
        let l = cx.constant(Tensor::from_slice(&[1], &[length]).unwrap()).unwrap();
        let y = cx.op(op.clone(), &[x, r, l])?;
        let y = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
        Ok::<_, GraphError>(y)
    };
    assert_eq!(run(1).unwrap(), [1.0, 0.0, 1.0]);
    assert_eq!(run(0).unwrap(), [0.0, 0.0, 0.0]);
    assert!(run(3).is_err() && run(-1).is_err());
}
