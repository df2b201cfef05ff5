//! Losses of labels.

use super::{NodeCx, OpRow};
use crate::graph::TensorId;
use crate::graph::ops::nll_loss::{LossReduction, NllLoss};
use crate::graph::ops::softmax::Softmax;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;

const ATTRS: &[Attr] =
    &[Attr::int("ignore_index"), Attr::string("reduction").one_of(&["none", "sum", "mean"])];

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("NegativeLogLikelihoodLoss", (2, 3), ATTRS, |cx| {
        let x = cx.input(0)?;
        Ok(vec![loss(cx, x)?])
    })
    .since(12),
    OpRow::new("SoftmaxCrossEntropyLoss", (2, 3), ATTRS, |cx| {
        let x = cx.input(0)?;
        let logarithms = cx.op(Softmax { log: true, ..Softmax::along(1) }, &[x])?;
        Ok(vec![loss(cx, logarithms)?, logarithms])
    })
    .since(12)
    .outputs(2, 2),
];

/// The loss of log probabilities `x`, with labels and weights of the node.
fn loss(cx: &mut NodeCx<'_>, x: TensorId) -> Result<TensorId, NodeError> {
    let reduction = match cx.string("reduction", "mean").as_str() {
        "none" => LossReduction::None,
        "sum" => LossReduction::Sum,
        _ => LossReduction::Mean,
    };
    let ignore = cx.has("ignore_index").then(|| cx.int("ignore_index", 0));
    let src: Vec<TensorId> = [x, cx.input(1)?].into_iter().chain(cx.opt(2)).collect();
    cx.op(NllLoss { reduction, ignore }, &src)
}
