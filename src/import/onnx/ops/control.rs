//! Nodes with bodies.

use super::{MANY, NodeCx, OpRow, Outputs, unroll};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "If",
        (1, 1),
        &[Attr::graph("else_branch").required(), Attr::graph("then_branch").required()],
        choose,
    )
    .outputs(MANY, MANY)
    .known(&[0]),
    OpRow::new("Loop", (2, MANY), &[Attr::graph("body").required()], repeat).outputs(MANY, MANY),
    OpRow::new(
        "Scan",
        (2, MANY),
        &[
            Attr::graph("body").required(),
            Attr::ints("directions"),
            Attr::int("num_scan_inputs").required(),
        ],
        repeat,
    )
    .since(8)
    .until(8)
    .outputs(MANY, MANY),
    OpRow::new(
        "Scan",
        (1, MANY),
        &[
            Attr::graph("body").required(),
            Attr::int("num_scan_inputs").required(),
            Attr::ints("scan_input_axes"),
            Attr::ints("scan_input_directions"),
            Attr::ints("scan_output_axes"),
            Attr::ints("scan_output_directions"),
        ],
        repeat,
    )
    .since(9)
    .outputs(MANY, MANY),
];

/// Whether nodes of the row have bodies.
pub(super) fn has_bodies(row: &OpRow) -> bool {
    row.attrs.iter().any(|a| a.graph_name().is_some())
}

/// The branch that a condition known now chooses takes the place of the node.
fn choose(cx: &mut NodeCx<'_>) -> Outputs {
    let condition = cx.constant_input(0)?.ok_or(NodeError::NoInput(0))?;
    let name = if truth(&condition)? { "then_branch" } else { "else_branch" };
    let body = cx.node.body(name).ok_or(NodeError::NoInput(0))?;
    let results = cx.inline(body)?;
    enough(results.len(), cx.output_count())?;
    for (i, result) in results.into_iter().enumerate() {
        cx.give(i, result);
    }
    Ok(Vec::new())
}

/// Iterations are run one by one, or if they hand on sequences, built one after the other.
fn repeat(cx: &mut NodeCx<'_>) -> Outputs {
    if cx.node.inline {
        return unroll::unroll(cx);
    }
    Err(NodeError::NotConstant { input: 0, value: "what the body computes".into() })
}

/// A condition: one truth value.
pub(crate) fn truth(t: &crate::tensor::Tensor) -> Result<bool, NodeError> {
    match t.bytes() {
        &[v] if t.dtype() == crate::tensor::DType::Bool => Ok(v != 0),
        _ => Err(NodeError::invalid(format!(
            "a condition must be one bool, found {:?} of {}",
            t.dims(),
            t.dtype()
        ))),
    }
}

/// A body must have as many results as its node.
pub(crate) fn enough(found: usize, expected: usize) -> Result<(), NodeError> {
    if found == expected {
        return Ok(());
    }
    Err(NodeError::invalid(format!("a body has {found} results for {expected} of its node")))
}
