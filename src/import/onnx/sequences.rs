//! Which values are sequences.
//!
//! A sequence is a list of tensors. Building a graph resolves them ([`super::stage::Built`]), so a node
//! that reads or writes one must be built where it stands, which must be known before.

use std::sync::Arc;

use super::model::{Body, Node, ValueId};
use super::ops::sequence::{gives, takes};
use super::shaping::Links;
use crate::import::StructureError;
use crate::import::error::short;

/// Marks the nodes of a graph, and of the bodies in it, that are built where they stand; gives for
/// each of the values whether it is a sequence.
///
/// # Errors
/// [`StructureError::Sequence`] for nodes that read the one where
/// they take the other, [`StructureError::Mixed`] for what is both.
pub(super) fn mark(graph: &mut Body, names: &[Arc<str>]) -> Result<Vec<bool>, StructureError> {
    let mut marks = Marks { names, sequences: vec![false; names.len()] };
    // Without their operators there are none.
    if cfg!(feature = "ops-control") {
        marks.graph(graph, false)?;
    }
    Ok(marks.sequences)
}

struct Marks<'a> {
    names: &'a [Arc<str>],
    sequences: Vec<bool>,
}

impl Marks<'_> {
    fn is(&self, value: Option<ValueId>) -> bool {
        value.and_then(|v| self.sequences.get(v)) == Some(&true)
    }

    fn set(&mut self, value: Option<ValueId>, is: bool) {
        if let Some(slot) = value.and_then(|v| self.sequences.get_mut(v)) {
            *slot = is;
        }
    }

    fn name(&self, value: Option<ValueId>) -> String {
        value.and_then(|v| self.names.get(v)).map_or_else(String::new, |n| short(n))
    }

    /// `inside` a node that is built where it stands.
    fn graph(&mut self, graph: &mut Body, inside: bool) -> Result<(), StructureError> {
        graph.nodes.iter_mut().try_for_each(|node| self.node(node, inside))
    }

    fn node(&mut self, node: &mut Node, inside: bool) -> Result<(), StructureError> {
        self.operands(node)?;
        let mut inline = inside || node.reads().any(|v| self.is(Some(v)));
        match node.row.name {
            _ if gives(node.row) => {
                for &value in &node.outputs {
                    self.set(value, true);
                }
            }
            "Identity" | "OptionalGetElement" => {
                let is = self.is(node.inputs.first().copied().flatten());
                for &value in &node.outputs {
                    self.set(value, is);
                }
            }
            _ => {}
        }
        if node.bodies.is_empty() {
            node.inline = inline;
            return Ok(());
        }
        // Results may be the first to say that the node is inline, and then the nodes inside are, too.
        let mut bodies = core::mem::take(&mut node.bodies);
        for (i, (_, body)) in bodies.iter_mut().enumerate() {
            self.body(node, body, i == 0, inline)?;
        }
        if !inline && node.outputs.iter().any(|&v| self.is(v)) {
            inline = true;
            bodies.iter_mut().try_for_each(|(_, body)| self.graph(body, true))?;
        }
        node.bodies = bodies;
        node.inline = inline;
        Ok(())
    }

    /// Checks what a node reads.
    fn operands(&self, node: &Node) -> Result<(), StructureError> {
        for (i, &value) in node.inputs.iter().enumerate() {
            let wanted = takes(node.row, i);
            if value.is_none() || wanted.is_none_or(|w| w == self.is(value)) {
                continue;
            }
            let (op, input, value) = (node.row.name, i, self.name(value));
            let node = node.name.to_string();
            let wanted = wanted == Some(true);
            return Err(StructureError::Sequence { node, op, input, value, wanted });
        }
        Ok(())
    }

    /// What the inputs and outputs of a body are that belong to those of its node; it may be the `first`
    /// of the node's bodies.
    fn body(
        &mut self,
        node: &Node,
        body: &mut Body,
        first: bool,
        inside: bool,
    ) -> Result<(), StructureError> {
        let links = Links::of(node, body);
        let maps = gives(node.row);
        let carried = links.carried;
        // The body of a map sees the members.
        let inputs: Vec<_> = links.inputs().filter(|_| !maps).collect();
        for &(outer, inner) in &inputs {
            let is = self.is(outer);
            self.set(inner, is);
        }
        self.graph(body, inside)?;
        let links = Links::of(node, body);
        let outputs: Vec<_> = links.outputs().collect();
        let handed: Vec<_> = links.carried().collect();
        let mixed = |marks: &Self, value| {
            let (node, op) = (node.name.to_string(), node.row.name);
            Err(StructureError::Mixed { node, op, value: marks.name(value) })
        };
        for (before, after) in handed {
            if self.is(before) != self.is(after) {
                return mixed(self, after);
            }
        }
        for (i, (outer, inner)) in outputs.into_iter().enumerate() {
            let is = self.is(inner);
            match node.row.name {
                // Both branches give the same.
                "If" if first => self.set(outer, is),
                "If" if self.is(outer) == is => {}
                "Loop" if i < carried || !is => self.set(outer, is),
                _ if !is => {}
                _ => return mixed(self, inner),
            }
        }
        // The condition of a loop.
        match body.outputs.first().copied().filter(|_| node.row.name == "Loop") {
            Some(condition) if self.is(Some(condition)) => mixed(self, Some(condition)),
            _ => Ok(()),
        }
    }
}
