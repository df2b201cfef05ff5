//! Which values decide about shapes.

use super::model::{Body, Node, ValueId, ValueInfo};

/// Passes over a model whose loops carry what decides from one value to another; what is not found
/// then becomes known in the run.
const PASSES: usize = 16;

/// What is known of all values.
#[derive(Debug, Default)]
pub(super) struct Shaping {
    decides: Vec<bool>,
    varies: Vec<bool>,
}

impl Shaping {
    /// Whether shapes depend on what is in a value.
    pub(super) fn decides(&self, value: ValueId) -> bool {
        self.decides.get(value) == Some(&true)
    }

    /// Whether they do, and it depends on nothing but shapes itself: where these are as before, so is the value.
    pub(super) fn carries(&self, value: ValueId) -> bool {
        self.decides(value) && self.varies.get(value) == Some(&false)
    }
}

/// For each value, whether a way leads from it to an operand that must be known, other than through
/// the shape of something; and whether one leads to it from an input.
///
/// An input of floats counts only if it is such an operand itself: what is computed from many
/// numbers that differ in each run had better be computed in the run.
pub(super) fn shaping(graph: &Body, inputs: &[ValueInfo], values: usize) -> Shaping {
    let mut varies = vec![false; values];
    vary(graph, &mut varies);
    let mut shaping = vec![false; values];
    for _ in 0..PASSES {
        if !mark(graph, &mut shaping) {
            break;
        }
    }
    for (info, &v) in inputs.iter().zip(&graph.inputs) {
        if let Some(slot) = shaping.get_mut(v)
            && info.dtype.is_float()
        {
            *slot = is_operand(graph, v);
        }
    }
    Shaping { decides: shaping, varies }
}

/// Marks what does not follow from constants and shapes.
fn vary(graph: &Body, varies: &mut [bool]) {
    graph.inputs.iter().for_each(|&v| _ = set(varies, Some(v)));
    for node in &graph.nodes {
        node.bodies.iter().for_each(|(_, body)| vary(body, varies));
        let simple = node.row.host.is_none() && node.bodies.is_empty();
        // What reads nothing makes random numbers.
        let follows = simple
            && node.reads().next().is_some()
            && node.reads().all(|v| varies.get(v) == Some(&false));
        if !follows && !node.row.is_about_shapes() {
            node.outputs.iter().for_each(|&v| _ = set(varies, v));
        }
    }
}

/// One pass, from the last node to the first; whether anything was new.
fn mark(graph: &Body, shaping: &mut [bool]) -> bool {
    let mut new = false;
    for node in graph.nodes.iter().rev() {
        for (_, body) in &node.bodies {
            let links = Links::of(node, body);
            for (outer, inner) in links.outputs() {
                new |= copy(shaping, outer, inner);
            }
            new |= mark(body, shaping);
            for (outer, inner) in links.inputs() {
                new |= copy(shaping, inner, outer);
            }
            for (before, after) in links.carried() {
                new |= copy(shaping, before, after);
            }
        }
        let is_shaping = |v: &ValueId| shaping.get(*v) == Some(&true);
        let through = !node.row.is_about_shapes() && node.bodies.is_empty();
        let all = through && node.outputs.iter().flatten().any(is_shaping);
        for (i, input) in node.inputs.iter().enumerate() {
            if all || node.known().contains(&i) {
                new |= set(shaping, *input);
            }
        }
    }
    new
}

/// Whether some node needs to know the value.
fn is_operand(graph: &Body, value: ValueId) -> bool {
    graph.nodes.iter().any(|node| {
        let known = |&i: &usize| node.inputs.get(i) == Some(&Some(value));
        node.known().iter().any(known) || node.bodies.iter().any(|(_, b)| is_operand(b, value))
    })
}

fn set(shaping: &mut [bool], value: Option<ValueId>) -> bool {
    match value.and_then(|v| shaping.get_mut(v)) {
        Some(slot) if !*slot => {
            *slot = true;
            true
        }
        _ => false,
    }
}

fn copy(shaping: &mut [bool], from: Option<ValueId>, to: Option<ValueId>) -> bool {
    from.and_then(|v| shaping.get(v).copied()) == Some(true) && set(shaping, to)
}

/// Which inputs and outputs of a node and its body belong together.
pub(super) struct Links<'a> {
    node: &'a Node,
    body: &'a Body,
    /// First input of the node, and of the body, that belong together.
    inputs: (usize, usize),
    /// The same for outputs.
    outputs: (usize, usize),
    /// Values that an iteration hands to the next.
    pub(super) carried: usize,
}

impl<'a> Links<'a> {
    pub(super) fn of(node: &'a Node, body: &'a Body) -> Self {
        let given = node.inputs.len();
        let scanned = node.attrs.int("num_scan_inputs").and_then(|n| usize::try_from(n).ok());
        let (inputs, outputs, carried) = match (node.row.name, scanned) {
            // Trip count and condition come first.
            ("Loop", _) => ((2, 2), (0, 1), given.saturating_sub(2)),
            // In operator set 8 lengths come first.
            ("Scan", Some(n)) => {
                let first = usize::from(*node.row.opsets().start() == 8);
                ((first, 0), (0, 0), given.saturating_sub(first + n))
            }
            ("SequenceMap", _) => ((0, 0), (0, 0), 0),
            _ => ((given, 0), (0, 0), 0),
        };
        Self { node, body, inputs, outputs, carried }
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = (Option<ValueId>, Option<ValueId>)> {
        let outer = self.node.inputs.iter().skip(self.inputs.0).copied();
        outer.zip(self.body.inputs.iter().skip(self.inputs.1).map(|&v| Some(v)))
    }

    pub(super) fn outputs(&self) -> impl Iterator<Item = (Option<ValueId>, Option<ValueId>)> {
        let outer = self.node.outputs.iter().skip(self.outputs.0).copied();
        outer.zip(self.body.outputs.iter().skip(self.outputs.1).map(|&v| Some(v)))
    }

    /// Inputs and outputs of the body that an iteration hands to the next.
    pub(super) fn carried(&self) -> impl Iterator<Item = (Option<ValueId>, Option<ValueId>)> {
        let before = self.body.inputs.iter().skip(self.inputs.1).take(self.carried);
        let after = self.body.outputs.iter().skip(self.outputs.1);
        before.zip(after).map(|(&b, &a)| (Some(b), Some(a)))
    }
}
