//! Graphs inside graphs: names and their scopes, order of nodes, what is wanted.

use std::collections::{HashMap, HashSet};

use prost::Message;

use super::{Body, Loader, Node, Producer, ValueId};
use crate::import::error::short;
use crate::import::onnx::data::{computed, has_few_bits};
use crate::import::onnx::ops::OpRow;
use crate::import::onnx::order;
use crate::import::onnx::proto::{
    Dimension, GraphProto, NodeProto, ValueInfoProto, data_type, dimension, type_proto,
};
use crate::import::onnx::stage::Nodes;
use crate::import::{ImportError, MissingKind, StructureError};
use crate::tensor::DType;

/// Graphs inside each other, at most: what is made by hand or by exporters has a handful.
const MAX_DEPTH: usize = 24;

/// The names of one graph.
pub(super) struct Scope {
    pub(super) graph: usize,
    ids: HashMap<String, ValueId>,
    /// Values numbered from here on belong to the graph, or to graphs inside it.
    pub(super) first: ValueId,
}

/// The type and the shape that an output has, as far as they are numbers.
fn declared(p: &ValueInfoProto) -> Option<(DType, Vec<usize>)> {
    let Some(type_proto::Value::Tensor(t)) = &p.r#type.as_ref()?.value else { return None };
    let extent = |d: &Dimension| match d.value {
        Some(dimension::Value::Fixed(n)) => usize::try_from(n).unwrap_or(0),
        _ => 0,
    };
    let dims = t.shape.as_ref().map(|s| s.dim.iter().map(extent).collect());
    let dtype = computed(data_type::to_dtype(t.elem_type?)?);
    Some((dtype, dims.unwrap_or_default()))
}

impl Loader {
    /// Begins a graph: all that it defines gets a number, so that graphs inside find it. `own` are
    /// the outputs of the node whose body it is; results of a body may have their names.
    pub(super) fn open(
        &mut self,
        graph: &GraphProto,
        own: &[String],
    ) -> Result<usize, StructureError> {
        let id = self.graphs;
        self.graphs += 1;
        let first = self.values.len();
        self.scopes.push(Scope { graph: id, ids: HashMap::new(), first });
        let depth = self.scopes.len() - 1;
        if depth > MAX_DEPTH {
            return Err(StructureError::TooDeep(MAX_DEPTH));
        }
        let constants = graph.initializer.iter().map(|t| t.name.as_deref());
        let sparse = graph
            .sparse_initializer
            .iter()
            .map(|t| t.values.as_ref().and_then(|v| v.name.as_deref()));
        let inputs = graph.input.iter().map(|v| v.name.as_deref());
        let outputs = graph.node.iter().flat_map(|n| &n.output).map(|o| Some(o.as_str()));
        let names = constants.chain(sparse).chain(inputs).chain(outputs).flatten();
        for name in names.filter(|n| !n.is_empty()) {
            if self.scopes.last().is_some_and(|s| s.ids.contains_key(name)) {
                continue;
            }
            if self.lookup(name).is_some() && !own.iter().any(|o| o == name) {
                return Err(StructureError::DuplicateName(short(name)));
            }
            self.declare(name);
        }
        Ok(id)
    }

    /// The value that a name stands for here.
    pub(super) fn lookup(&self, name: &str) -> Option<ValueId> {
        self.scopes.iter().rev().find_map(|s| s.ids.get(name)).copied()
    }

    /// A new value of the graph being read.
    pub(super) fn declare(&mut self, name: &str) -> ValueId {
        let id = self.values.len();
        if let Some(scope) = self.scopes.last_mut() {
            scope.ids.insert(name.to_owned(), id);
        }
        self.values.push(name.into());
        self.producers.push(Producer::Nobody);
        id
    }

    /// The constants of a graph.
    pub(super) fn initializers(&mut self, graph: &GraphProto) -> Result<(), ImportError> {
        for p in &graph.sparse_initializer {
            let name = p.values.as_ref().and_then(|v| v.name.as_deref()).unwrap_or_default();
            self.missing.add(MissingKind::Type("sparse tensor".into()), &short(name));
            self.define(name, Producer::Outside, "an initializer")?;
        }
        let scaled = scaled(graph);
        graph.initializer.iter().try_for_each(|p| {
            let name = p.name.as_deref().unwrap_or_default();
            self.initializer(p, scaled.contains(name))
        })
    }

    /// The bodies of a node.
    pub(super) fn bodies(
        &mut self,
        p: &NodeProto,
        node: &str,
        row: &'static OpRow,
    ) -> Result<Vec<(&'static str, Body)>, ImportError> {
        let mut bodies = Vec::new();
        for name in row.attrs.iter().filter_map(|a| a.graph_name()) {
            let found = p.attribute.iter().find(|a| a.name.as_deref() == Some(name));
            let Some(found) = found else { continue };
            let bytes = found.g.clone().unwrap_or_default();
            let graph = GraphProto::decode(bytes)
                .map_err(|e| ImportError::Decode(format!("{name} of node \"{node}\": {e}")))?;
            bodies.push((name, self.body(&graph, &p.output)?));
        }
        Ok(bodies)
    }

    fn body(&mut self, graph: &GraphProto, own: &[String]) -> Result<Body, ImportError> {
        let id = self.open(graph, own)?;
        self.initializers(graph)?;
        let mut inputs = Vec::new();
        for p in &graph.input {
            let name = p.name.as_deref().unwrap_or_default();
            self.tensors_only(p.r#type.as_ref().and_then(|t| t.value.as_ref()), name);
            inputs.push(self.define(name, Producer::Outside, "an input")?);
        }
        let nodes = self.nodes(&graph.node)?;
        let mut outputs = Vec::new();
        for p in &graph.output {
            let name = p.name.as_deref().unwrap_or_default();
            if name.is_empty() {
                return Err(StructureError::NoName("an output").into());
            }
            self.tensors_only(p.r#type.as_ref().and_then(|t| t.value.as_ref()), name);
            outputs.push(self.value(name));
        }
        self.check_producers(&graph.node, &nodes, &outputs)?;
        self.check_unsupported_outputs(&nodes, &outputs);
        let declared = graph.output.iter().map(declared).collect();
        Ok(Body { declared, ..self.close(id, inputs, outputs, nodes)? })
    }

    /// Types of a body's inputs and outputs need not be given, but must not be other than tensors and
    /// sequences.
    fn tensors_only(&mut self, kind: Option<&type_proto::Value>, name: &str) {
        if let Some(other) = kind
            .filter(|k| !matches!(k, type_proto::Value::Tensor(_) | type_proto::Value::Sequence(_)))
        {
            self.missing.add(MissingKind::Type(other.kind().into()), &short(name));
        }
    }

    /// Ends a graph: its nodes in order, without those that its outputs do not depend on.
    pub(super) fn close(
        &mut self,
        id: usize,
        inputs: Vec<ValueId>,
        outputs: Vec<ValueId>,
        mut nodes: Vec<Node>,
    ) -> Result<Body, ImportError> {
        let producer = |v: ValueId| match self.producers.get(v) {
            Some(&Producer::Node { graph, index }) if graph == id => Some(index),
            _ => None,
        };
        let needs: Vec<Vec<usize>> =
            nodes.iter().map(|n| n.reads().filter_map(producer).collect()).collect();
        let sorted =
            order::sort(&needs, |i| nodes.get(i).map_or_else(String::new, |n| n.name.to_string()))?;
        self.mark_wanted(&nodes, &sorted, &outputs);
        let is_wanted = |v: &ValueId| self.wanted.get(*v).copied().unwrap_or(false);
        let mut by_index: Vec<Option<Node>> = nodes.drain(..).map(Some).collect();
        let sorted = sorted.into_iter().filter_map(|i| by_index.get_mut(i)?.take());
        let nodes: Vec<Node> =
            sorted.filter(|n| n.outputs.iter().flatten().any(is_wanted)).collect();
        let first = self.scopes.pop().map_or(0, |s| s.first);
        let reads = nodes.iter().flat_map(Node::reads).chain(outputs.iter().copied());
        let mut seen = HashSet::new();
        let captures = reads.filter(|&v| v < first && seen.insert(v)).collect();
        let all = Nodes::new((0..nodes.len()).collect());
        Ok(Body { id, inputs, outputs, declared: Vec::new(), captures, nodes, all })
    }

    /// Marks the values that the outputs depend on.
    fn mark_wanted(&mut self, nodes: &[Node], sorted: &[usize], outputs: &[ValueId]) {
        self.wanted.resize(self.values.len(), false);
        let wanted = &mut self.wanted;
        let mark = |wanted: &mut Vec<bool>, v: ValueId| {
            if let Some(w) = wanted.get_mut(v) {
                *w = true;
            }
        };
        for &v in outputs {
            mark(wanted, v);
        }
        for node in sorted.iter().rev().filter_map(|&i| nodes.get(i)) {
            if node.outputs.iter().flatten().any(|&v| wanted.get(v) == Some(&true)) {
                for v in node.reads() {
                    mark(wanted, v);
                }
            }
        }
    }
}

/// Constants of a graph of which only operators that dequantise read numbers and zero points, there and in the bodies of
/// its nodes, so that nobody asks for their type. Nothing if none has few bits.
fn scaled(graph: &GraphProto) -> HashSet<String> {
    let mut uses = Uses::default();
    if !graph.initializer.iter().any(has_few_bits) || uses.add(graph, 0).is_none() {
        return HashSet::new();
    }
    uses.scaled.retain(|name| !uses.others.contains(name));
    uses.scaled
}

/// What operators read.
#[derive(Default)]
struct Uses {
    /// Numbers and zero points of operators that dequantise.
    scaled: HashSet<String>,
    others: HashSet<String>,
}

impl Uses {
    /// Adds a graph with those in it; `None` if one cannot be read.
    fn add(&mut self, graph: &GraphProto, depth: usize) -> Option<()> {
        for node in &graph.node {
            let operators = [Some("DequantizeLinear"), Some("GatherBlockQuantized")];
            let dequantizes = operators.contains(&node.op_type.as_deref());
            for (i, name) in node.input.iter().enumerate() {
                // Input 1 of the one is a scale, of the other there are indices.
                let set = if dequantizes && i != 1 { &mut self.scaled } else { &mut self.others };
                set.insert(name.clone());
            }
            for bytes in node.attribute.iter().filter_map(|a| a.g.clone()) {
                let body = GraphProto::decode(bytes).ok().filter(|_| depth < MAX_DEPTH)?;
                self.add(&body, depth + 1)?;
            }
        }
        self.others.extend(graph.output.iter().filter_map(|o| o.name.clone()));
        Some(())
    }
}
