//! Functions that a model brings along: calls are replaced by the bodies before anything is checked.

use std::collections::HashMap;

use prost::Message;

use super::proto::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};
use crate::import::{ImportError, StructureError};

/// Calls inside calls.
const MAX_DEPTH: usize = 32;

/// Bytes of nodes that calls may become. A chain of functions that call the next twice doubles
/// with each.
const MAX_BYTES: usize = 256 << 20;

/// What a node takes in memory beside its names and attributes.
const NODE_BYTES: usize = 512;

/// Domain, name and overload of a function.
type Key = (String, String, String);

/// Replaces each call of one of the model's functions by its body, whose nodes note the versions of
/// operator sets that the function names.
///
/// # Errors
/// [`StructureError::TooDeep`] for functions that call each other too deeply (or in circles),
/// [`StructureError::TooMuchCode`] for bodies that are too large together, and
/// [`ImportError::Decode`] for a subgraph that is damaged.
pub(super) fn inline(model: &mut ModelProto) -> Result<(), ImportError> {
    let functions = core::mem::take(&mut model.functions);
    let Some(graph) = model.graph.as_mut().filter(|_| !functions.is_empty()) else { return Ok(()) };
    let mut table: HashMap<Key, &FunctionProto> = HashMap::new();
    for f in &functions {
        table.entry(key(&f.domain, &f.name, &f.overload)).or_insert(f);
    }
    let mut inliner = Inliner { table, calls: 0, bytes: 0 };
    graph.node = inliner.expand(core::mem::take(&mut graph.node), 0)?;
    Ok(())
}

fn domain_of(domain: &Option<String>) -> &str {
    super::load::domain_name(domain.as_deref())
}

fn key(domain: &Option<String>, name: &Option<String>, overload: &Option<String>) -> Key {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    (domain_of(domain).to_owned(), text(name), text(overload))
}

struct Inliner<'a> {
    table: HashMap<Key, &'a FunctionProto>,
    /// Calls so far; their numbers tell names apart.
    calls: usize,
    bytes: usize,
}

impl Inliner<'_> {
    fn function(&self, node: &NodeProto) -> Option<&FunctionProto> {
        self.table.get(&key(&node.domain, &node.op_type, &node.overload)).copied()
    }

    /// The nodes with all calls replaced.
    fn expand(
        &mut self,
        nodes: Vec<NodeProto>,
        depth: usize,
    ) -> Result<Vec<NodeProto>, ImportError> {
        if depth > MAX_DEPTH {
            return Err(StructureError::TooDeep(MAX_DEPTH).into());
        }
        let mut out = Vec::new();
        for mut node in nodes {
            if depth > 0 {
                let size = node.encoded_len().saturating_add(NODE_BYTES);
                self.bytes = self.bytes.saturating_add(size);
                if self.bytes > MAX_BYTES {
                    return Err(StructureError::TooMuchCode(MAX_BYTES).into());
                }
            }
            match self.function(&node).cloned() {
                Some(function) => {
                    self.calls += 1;
                    let body = Call::new(&node, &function, self.calls).body()?;
                    out.extend(self.expand(body, depth + 1)?);
                }
                None => {
                    for a in &mut node.attribute {
                        self.expand_attribute(a, depth)?;
                    }
                    out.push(node);
                }
            }
        }
        Ok(out)
    }

    /// Replaces calls in a subgraph, which is written anew only if it has some.
    fn expand_attribute(
        &mut self,
        a: &mut AttributeProto,
        depth: usize,
    ) -> Result<(), ImportError> {
        let Some(bytes) = &a.g else { return Ok(()) };
        let mut graph = decode(bytes.clone())?;
        let before = self.calls;
        graph.node = self.expand(graph.node, depth + 1)?;
        if self.calls != before {
            a.g = Some(graph.encode_to_vec().into());
        }
        Ok(())
    }
}

fn decode(bytes: bytes::Bytes) -> Result<GraphProto, ImportError> {
    GraphProto::decode(bytes).map_err(|e| ImportError::Decode(e.to_string()))
}

/// One call: what names and attributes of the body become.
struct Call<'a> {
    node: &'a NodeProto,
    function: &'a FunctionProto,
    names: HashMap<&'a str, &'a str>,
    /// What goes in front of names of the body's own.
    prefix: String,
}

impl<'a> Call<'a> {
    fn new(node: &'a NodeProto, function: &'a FunctionProto, number: usize) -> Self {
        let mut names = HashMap::new();
        for (i, input) in function.input.iter().enumerate() {
            // An argument that is left out is an absent input inside.
            names.insert(input.as_str(), node.input.get(i).map_or("", String::as_str));
        }
        for (output, given) in function.output.iter().zip(&node.output) {
            if !given.is_empty() {
                names.insert(output.as_str(), given.as_str());
            }
        }
        let name = function.name.as_deref().unwrap_or_default();
        let prefix = format!("{}#{number}/", crate::import::error::short(name));
        Self { node, function, names, prefix }
    }

    fn body(&self) -> Result<Vec<NodeProto>, ImportError> {
        self.function.node.iter().map(|n| self.renamed_node(n.clone(), 0)).collect()
    }

    fn rename(&self, name: &mut String) {
        if name.is_empty() {
            return;
        }
        *name = match self.names.get(name.as_str()) {
            Some(&outside) => outside.to_owned(),
            None => format!("{}{name}", self.prefix),
        };
    }

    fn renamed_node(&self, mut n: NodeProto, depth: usize) -> Result<NodeProto, ImportError> {
        n.input.iter_mut().chain(&mut n.output).for_each(|name| self.rename(name));
        let mut sets = self.function.opset_import.iter();
        let set = sets.find(|set| domain_of(&set.domain) == domain_of(&n.domain));
        n.opset = set.and_then(|set| set.version);
        if let Some(name) = n.name.as_mut().filter(|name| !name.is_empty()) {
            *name = format!("{}{name}", self.prefix);
        }
        let mut attributes = Vec::with_capacity(n.attribute.len());
        for a in n.attribute {
            let Some(mut a) = self.argument(a) else { continue };
            if let Some(bytes) = a.g.take() {
                a.g = Some(self.renamed_graph(decode(bytes)?, depth + 1)?.encode_to_vec().into());
            }
            attributes.push(a);
        }
        n.attribute = attributes;
        Ok(n)
    }

    /// The attribute, or what the call or the function's default gives for it; `None` if neither
    /// does, and then it is absent.
    fn argument(&self, a: AttributeProto) -> Option<AttributeProto> {
        let Some(wanted) = a.ref_attr_name.as_deref().filter(|r| !r.is_empty()) else {
            return Some(a);
        };
        let named = |b: &&AttributeProto| b.name.as_deref() == Some(wanted);
        let given = self.node.attribute.iter().find(named);
        let value = given.or_else(|| self.function.attribute_proto.iter().find(named))?;
        Some(AttributeProto { name: a.name, ..value.clone() })
    }

    fn renamed_graph(&self, mut g: GraphProto, depth: usize) -> Result<GraphProto, ImportError> {
        if depth > MAX_DEPTH {
            return Err(StructureError::TooDeep(MAX_DEPTH).into());
        }
        let values = g.input.iter_mut().chain(&mut g.output).map(|v| &mut v.name);
        let constants = g.initializer.iter_mut().map(|t| &mut t.name);
        values.chain(constants).flatten().for_each(|name| self.rename(name));
        let nodes = core::mem::take(&mut g.node).into_iter();
        g.node = nodes.map(|n| self.renamed_node(n, depth)).collect::<Result<_, _>>()?;
        Ok(g)
    }
}

#[cfg(test)]
mod tests {
    use super::super::OnnxModel;
    use super::super::proto::OperatorSetIdProto;
    use super::super::testing::{A, attribute, f32s, model, node, parts, tensor, value};
    use super::*;
    use crate::graph::Context;
    use crate::tensor::DType;

    fn function(name: &str, attributes: &[AttributeProto], node: Vec<NodeProto>) -> FunctionProto {
        FunctionProto {
            name: Some(name.into()),
            domain: Some("local".into()),
            input: vec!["a".into()],
            output: vec!["b".into()],
            attribute_proto: attributes.to_vec(),
            node,
            opset_import: vec![OperatorSetIdProto { domain: None, version: Some(18) }],
            ..Default::default()
        }
    }

    fn call(name: &str, x: &str, y: &str, attrs: &[(&str, A<'_>)]) -> NodeProto {
        NodeProto { domain: Some("local".into()), ..node(name, &[x], &[y], attrs) }
    }

    fn run(functions: Vec<FunctionProto>, nodes: Vec<NodeProto>) -> Result<Vec<f32>, ImportError> {
        let graph = GraphProto {
            node: nodes,
            initializer: vec![tensor("x", &f32s(&[2], &[-1.0, 2.0]))],
            output: vec![value("y", DType::F32)],
            ..Default::default()
        };
        let mut m = model(18, graph);
        m.functions = functions;
        let m = OnnxModel::from_proto(m, None)?;
        let mut cx = Context::new();
        let y = m.instantiate(&mut cx, &[], &[])?[0];
        Ok(parts(cx.constant_value(y).unwrap()).1)
    }

    fn slope_of(name: &str) -> AttributeProto {
        let reference = Some("slope".into());
        AttributeProto { name: Some(name.into()), ref_attr_name: reference, ..Default::default() }
    }

    #[test]
    fn bodies_replace_calls_with_their_attributes() {
        let leaky = |attributes: &[AttributeProto]| {
            let mut n = node("LeakyRelu", &["a"], &["t"], &[]);
            n.attribute.push(slope_of("alpha"));
            function("Leaky", attributes, vec![n, node("Neg", &["t"], &["b"], &[])])
        };
        let twice = function(
            "Twice",
            &[],
            vec![call("Leaky", "a", "t", &[("slope", A::F(0.5))]), call("Leaky", "t", "b", &[])],
        );
        let default = [attribute("slope", &A::F(0.25))];
        let nodes = || vec![call("Twice", "x", "y", &[])];
        let y = run(vec![leaky(&default), twice.clone()], nodes()).unwrap();
        assert_eq!(y, [-0.5, 0.5]);
        // Without a default the operator's own holds.
        let y = run(vec![leaky(&[]), twice], nodes()).unwrap();
        assert_eq!(y, [-0.5, 0.02]);
    }

    #[test]
    fn circles_and_bombs_are_errors() {
        let circle = function("F", &[], vec![call("F", "a", "b", &[])]);
        let e = run(vec![circle], vec![call("F", "x", "y", &[])]).unwrap_err();
        assert_eq!(e, StructureError::TooDeep(MAX_DEPTH).into());
        let double = |i: usize| {
            let next = format!("F{}", i + 1);
            let nodes = vec![call(&next, "a", "t", &[]), call(&next, "t", "b", &[])];
            function(&format!("F{i}"), &[], nodes)
        };
        let e = run((0..31).map(double).collect(), vec![call("F0", "x", "y", &[])]).unwrap_err();
        assert_eq!(e, StructureError::TooMuchCode(MAX_BYTES).into());
    }

    #[test]
    fn functions_are_of_the_operator_sets_they_name() {
        // The axes are an attribute up to version 12, an input since.
        let axes = [("axes", A::Is(&[0]))];
        let f = |version| {
            let nodes = vec![
                node("Unsqueeze", &["a"], &["t"], &axes),
                node("Squeeze", &["t"], &["b"], &axes),
            ];
            let mut f = function("F", &[], nodes);
            f.opset_import[0].version = Some(version);
            f
        };
        let nodes = || vec![call("F", "x", "y", &[])];
        assert_eq!(run(vec![f(12)], nodes()).unwrap(), [-1.0, 2.0]);
        for (version, what) in
            [(13, "expected 2"), (0, "operator set 0"), (1 << 40, "1099511627776")]
        {
            let e = run(vec![f(version)], nodes()).unwrap_err().to_string();
            assert!(e.contains(what), "{e}");
        }
        // One that nobody calls may be of any.
        assert_eq!(run(vec![f(0)], vec![node("Neg", &["x"], &["y"], &[])]).unwrap(), [1.0, -2.0]);
    }
}
