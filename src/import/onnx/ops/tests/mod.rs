//! Operators on constants, against values worked out by hand from the operators' texts.

#![allow(clippy::cloned_ref_to_slice_refs, reason = "inputs of a node read as lists")]

mod classical;
mod contrib;
mod elementwise;
mod hostile;
mod indices;
mod movement;
mod norms;
mod numbers;
mod old;
mod pictures;
mod recurrent;
mod reductions;
mod sequences;
mod volumes;

use super::super::testing::{A, count, f32s, i64s, parts, run, run_all, run_of};
use crate::import::{ImportError, NodeError};
use crate::tensor::{DType, Tensor};

/// The node error inside an import error.
fn node_error(e: ImportError) -> NodeError {
    match e {
        ImportError::Node { source, .. } => source,
        other => panic!("not about a node: {other}"),
    }
}

/// The values of a result of f32, to be compared within a tolerance.
fn close(t: &Tensor, dims: &[usize], want: &[f32]) {
    let (found, values) = parts(t);
    assert_eq!(found, dims);
    let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs().max(1.0) || a == b;
    assert!(values.len() == want.len() && values.iter().zip(want).all(near), "{values:?} {want:?}");
}

/// Elements of i64.
fn ints(t: &Tensor) -> Vec<i64> {
    t.as_slice::<i64>().unwrap().to_vec()
}

/// A scalar of bool.
fn flag(v: bool) -> Tensor {
    Tensor::from_bytes(DType::Bool, &[], &[u8::from(v)]).unwrap()
}

#[test]
fn rows_do_not_overlap_and_name_attributes_once() {
    let rows: Vec<_> = super::rows().collect();
    for (i, a) in rows.iter().enumerate() {
        for b in rows.iter().skip(i + 1).filter(|b| (b.domain, b.name) == (a.domain, a.name)) {
            assert!(
                a.opsets().end() < b.opsets().start() || b.opsets().end() < a.opsets().start(),
                "{}",
                a.name
            );
        }
    }
    let operators = super::super::supported_operators();
    assert!(operators.len() > 90, "{}", operators.len());
    assert!(operators.contains(&("Gelu", 20)));
}
