//! Bodies built once per iteration, in place of the node that has them: with sequences nothing can be
//! run in between.

use super::control::truth;
use super::sequence::{join, members};
use super::{NodeCx, Outputs};
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::error::short;
use crate::import::onnx::data::to_i64s;
use crate::import::onnx::model::Body;
use crate::import::onnx::stage::Built;
use crate::tensor::{DType, Tensor};

/// A loop whose trip count and conditions are known.
pub(super) fn unroll(cx: &mut NodeCx<'_>) -> Outputs {
    let node = cx.node;
    if node.row.name != "Loop" {
        return Err(NodeError::unsupported(format!("{} among sequences", node.row.name)));
    }
    let body = node.body("body").ok_or(NodeError::NoInput(0))?;
    let trips = match cx.constant_input(0)? {
        Some(t) => to_i64s(&t).and_then(|v| v.first().copied()),
        None => Some(i64::MAX),
    };
    let trips = trips.ok_or_else(|| NodeError::invalid("no trip count"))?;
    let mut go_on = cx.constant_input(1)?.as_ref().map_or(Ok(true), truth)?;
    let mut carried = (2..cx.input_count()).map(|i| cx.built(i)).collect::<Result<Vec<_>, _>>()?;
    let (count, outputs) = (carried.len(), cx.output_count());
    let fits =
        body.inputs.len() == count + 2 && body.outputs.len() == outputs + 1 && outputs >= count;
    if !fits {
        return Err(NodeError::invalid(format!(
            "a body with {} inputs and {} outputs for {count} values and {outputs} results",
            body.inputs.len(),
            body.outputs.len(),
        )));
    }
    let mut stacks: Vec<Vec<TensorId>> = vec![Vec::new(); outputs - count];
    let yes = cx.scalar(DType::Bool, 1.0)?;
    let mut i = 0;
    while go_on && i < trips {
        let number = Tensor::from_slice(&[], &[i]).map_err(GraphError::from)?;
        let number = cx.constant(number)?;
        let inputs = [Built::Tensor(number), Built::Tensor(yes)].into_iter().chain(carried);
        let mut results = iteration(cx, body, inputs)?.into_iter();
        go_on = condition(cx, body, results.next())?;
        carried = results.by_ref().take(count).collect();
        for (stack, result) in stacks.iter_mut().zip(results) {
            stack.push(tensor(result)?);
        }
        i += 1;
    }
    // Of what iterations would have given, where there was none and the body does not say it.
    let mut unseen = Vec::new();
    if i == 0 && body.is_open(count + 1) {
        let number = cx.constant(Tensor::from_slice(&[], &[0i64]).map_err(GraphError::from)?)?;
        let inputs = [Built::Tensor(number), Built::Tensor(yes)].into_iter();
        unseen = iteration(cx, body, inputs.chain(carried.iter().cloned())).unwrap_or_default();
    }
    let declared = body.declared.iter().enumerate().skip(count + 1);
    let mut stacked = Vec::new();
    for (stack, (i, declared)) in stacks.into_iter().zip(declared) {
        stacked.push(Built::Tensor(match stack.is_empty() {
            false => join(cx, &stack, 0, true)?,
            true => {
                let (dtype, mut dims) = match unseen.get(i) {
                    Some(&Built::Tensor(id)) => (cx.dtype(id), cx.dims(id)),
                    _ => declared.clone().unwrap_or((DType::F32, Vec::new())),
                };
                dims.insert(0, 0);
                cx.constant(Tensor::zeros(dtype, &dims).map_err(GraphError::from)?)?
            }
        }));
    }
    for (i, result) in carried.into_iter().chain(stacked).enumerate() {
        cx.give(i, result);
    }
    Ok(Vec::new())
}

/// Builds a body with its inputs.
fn iteration(
    cx: &mut NodeCx<'_>,
    body: &Body,
    inputs: impl Iterator<Item = Built>,
) -> Result<Vec<Built>, NodeError> {
    for (&value, built) in body.inputs.iter().zip(inputs) {
        cx.values.set_built(value, built);
    }
    cx.inline(body)
}

/// Whether there is another iteration.
fn condition(cx: &NodeCx<'_>, body: &Body, found: Option<Built>) -> Result<bool, NodeError> {
    let id = tensor(found.ok_or(NodeError::NoInput(1))?)?;
    match cx.value(id) {
        Some(t) => truth(t),
        None => {
            let name = body.outputs.first().and_then(|&v| cx.model.values.get(v));
            let name = name.map_or_else(String::new, |n| short(n));
            let what = format!("a loop over sequences until a run computes \"{name}\"");
            Err(NodeError::unsupported(what))
        }
    }
}

fn tensor(built: Built) -> Result<TensorId, NodeError> {
    match built {
        Built::Tensor(id) => Ok(id),
        Built::Sequence(_) => Err(NodeError::invalid("a sequence among results that are stacked")),
    }
}

/// The body on each tensor of a sequence, and on those at the same place of others.
pub(super) fn map(cx: &mut NodeCx<'_>) -> Outputs {
    let node = cx.node;
    let body = node.body("body").ok_or(NodeError::NoInput(0))?;
    let count = members(cx, 0)?.len();
    let given = (0..cx.input_count()).map(|i| cx.built(i)).collect::<Result<Vec<_>, _>>()?;
    let outputs = cx.output_count();
    if body.inputs.len() != given.len() || body.outputs.len() != outputs {
        return Err(NodeError::invalid(format!(
            "a body with {} inputs and {} outputs for {} inputs and {outputs} results",
            body.inputs.len(),
            body.outputs.len(),
            given.len(),
        )));
    }
    let mut lists: Vec<Vec<TensorId>> = vec![Vec::new(); outputs];
    for i in 0..count {
        let mut inputs = Vec::new();
        for (input, built) in given.iter().enumerate() {
            inputs.push(match built {
                Built::Tensor(_) => built.clone(),
                Built::Sequence(list) => match list.get(i) {
                    Some(&id) if list.len() == count => Built::Tensor(id),
                    _ => {
                        let n = list.len();
                        let what = format!("input {input} has {n} tensors, input 0 has {count}");
                        return Err(NodeError::invalid(what));
                    }
                },
            });
        }
        for (list, result) in lists.iter_mut().zip(iteration(cx, body, inputs.into_iter())?) {
            list.push(tensor(result)?);
        }
    }
    for (i, list) in lists.into_iter().enumerate() {
        cx.budget.list(list.len())?;
        cx.give(i, Built::Sequence(list.into()));
    }
    Ok(Vec::new())
}
