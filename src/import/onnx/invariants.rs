//! What loops hand from one iteration to the next as it is.

use std::collections::BTreeMap;

use super::model::{Body, ValueId};
use super::shaping::Links;

/// Has the bodies of loops read a constant itself where each iteration hands it on unchanged, as TensorFlow's exporters
/// write the weights of recurrent layers: kernels pack it then, and no iteration copies it.
pub(super) fn resolve(graph: &mut Body, is_constant: &dyn Fn(ValueId) -> bool) {
    if !cfg!(feature = "ops-control") {
        return;
    }
    for node in &mut graph.nodes {
        let mut same = BTreeMap::new();
        // Not among sequences, where bodies are built with what they are given.
        if let Some(body) = node.body("body").filter(|_| node.row.name == "Loop" && !node.inline) {
            let links = Links::of(node, body);
            for ((outer, _), (before, after)) in links.inputs().zip(links.carried()) {
                if let (Some(outer), Some(before)) = (outer, before)
                    && after == Some(before)
                    && is_constant(outer)
                {
                    same.insert(before, outer);
                }
            }
        }
        for (_, body) in &mut node.bodies {
            read(body, &same);
            body.captures.extend(same.values());
            resolve(body, is_constant);
        }
    }
}

/// Puts other values in the place of some, in a graph and those inside it.
fn read(graph: &mut Body, others: &BTreeMap<ValueId, ValueId>) {
    if others.is_empty() {
        return;
    }
    let read_other = |v: &mut ValueId| *v = others.get(v).copied().unwrap_or(*v);
    graph.captures.iter_mut().chain(&mut graph.outputs).for_each(read_other);
    for node in &mut graph.nodes {
        node.inputs.iter_mut().flatten().for_each(read_other);
        node.bodies.iter_mut().for_each(|(_, body)| read(body, others));
    }
}
