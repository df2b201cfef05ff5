//! Texts that networks give as results: the labels of classifiers.
//!
//! No kernel knows texts, and what networks do with labels is to find, move and compare them. So before a
//! model is checked, each text of its constants and attributes becomes a number, the same for equal texts,
//! and what reads or writes texts reads or writes these. [`Texts`] says which outputs are texts, and what the
//! numbers stand for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use super::load::{domain_name, node_name};
use super::proto::{
    AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto, attribute_type as t,
    data_type, type_proto,
};
use crate::import::MissingKind;
use crate::import::error::short;
use crate::import::missing::MissingList;

/// The texts of a model.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    /// By their numbers.
    pub(super) list: Arc<[String]>,
    /// Names of the outputs that are texts.
    pub(super) outputs: Vec<String>,
}

/// What an operator may read that is a text, and whether it gives texts then.
struct Rule {
    domain: &'static str,
    ops: &'static [&'static str],
    /// These inputs are all texts or none of them is; an empty list stands for all inputs.
    inputs: &'static [usize],
    gives: bool,
}

const ML: &str = "ai.onnx.ml";

const RULES: &[Rule] = &[
    Rule {
        domain: "",
        ops: &[
            "Cast",
            "Compress",
            "Expand",
            "Flatten",
            "Gather",
            "GatherElements",
            "GatherND",
            "Identity",
            "Reshape",
            "Slice",
            "Split",
            "Squeeze",
            "Tile",
            "Transpose",
            "Unsqueeze",
        ],
        inputs: &[0],
        gives: true,
    },
    Rule { domain: "", ops: &["Shape", "Size"], inputs: &[0], gives: false },
    Rule { domain: "", ops: &["Concat"], inputs: &[], gives: true },
    Rule { domain: "", ops: &["Where"], inputs: &[1, 2], gives: true },
    Rule { domain: "", ops: &["Equal"], inputs: &[0, 1], gives: false },
    Rule { domain: ML, ops: &["ArrayFeatureExtractor"], inputs: &[0], gives: true },
    Rule { domain: ML, ops: &["LabelEncoder", "OneHotEncoder"], inputs: &[0], gives: false },
];

/// Attributes of texts: operator, name, and that of the integers which stand for them.
const ATTRIBUTES: [(&str, &str, &str); 8] = [
    (LABEL_ENCODER, DEFAULT, "default_int64"),
    (LABEL_ENCODER, KEYS, "keys_int64s"),
    (LABEL_ENCODER, VALUES, "values_int64s"),
    ("LinearClassifier", LABELS, "classlabels_ints"),
    ("OneHotEncoder", CATEGORIES, "cats_int64s"),
    ("SVMClassifier", LABELS, "classlabels_ints"),
    ("TreeEnsembleClassifier", LABELS, "classlabels_int64s"),
    ("ZipMap", LABELS, "classlabels_int64s"),
];

const LABEL_ENCODER: &str = "LabelEncoder";
const CATEGORIES: &str = "cats_strings";
const DEFAULT: &str = "default_string";
const KEYS: &str = "keys_strings";
const LABELS: &str = "classlabels_strings";
const VALUES: &str = "values_strings";

/// What `LabelEncoder` gives for texts that are no keys, unless it says so itself.
const UNUSED: Bytes = Bytes::from_static(b"_Unused");

/// Graphs inside each other that are looked into.
const MAX_DEPTH: usize = 24;

/// Replaces the texts of a graph by numbers. What does more with them than that allows is `missing`; texts that
/// enter the network, or belong to graphs inside it, stay what they are, to be refused like other types.
pub(super) fn number(graph: &mut GraphProto, missing: &mut MissingList) -> Texts {
    let mut numbers = Numbers::default();
    let mut found: Vec<String> = Vec::new();
    for tensor in &mut graph.initializer {
        if numbers.tensor(tensor) {
            found.extend(tensor.name.clone());
        }
    }
    // Which nodes read keys that are texts.
    let mut keyed = Vec::with_capacity(graph.node.len());
    for node in &mut graph.node {
        let (reads, gives) = numbers.node(node);
        keyed.push(reads);
        found.extend(node.output.first().filter(|_| gives).cloned());
    }
    if numbers.list.is_empty() {
        return Texts::default();
    }
    let texts = spread(&graph.node, found);
    for (i, (node, keyed)) in graph.node.iter_mut().zip(keyed).enumerate() {
        if !fits(node, keyed, &texts) {
            let op = short(node.op_type.as_deref().unwrap_or_default());
            let kind =
                format!("string in what {op} reads or gives (texts are found, moved and compared)");
            missing.add(MissingKind::Type(kind), &node_name(node, i));
        } else if reads_texts(node, &texts)
            && let Some(to) = target(node)
        {
            *to = data_type::INT64.into();
        }
    }
    let mut outputs = Vec::new();
    for output in &mut graph.output {
        let Some(name) = output.name.as_ref().filter(|n| texts.contains(*n)) else { continue };
        outputs.push(name.clone());
        if let Some(kind) = element_type(output).filter(|kind| **kind == data_type::STRING) {
            *kind = data_type::INT64;
        }
    }
    let list = numbers.list.iter().map(|text| String::from_utf8_lossy(text).into_owned());
    Texts { list: list.collect(), outputs }
}

/// The numbers of texts.
#[derive(Default)]
struct Numbers {
    list: Vec<Bytes>,
    numbers: HashMap<Bytes, i64>,
}

impl Numbers {
    fn number(&mut self, text: &Bytes) -> i64 {
        *self.numbers.entry(text.clone()).or_insert_with(|| {
            self.list.push(text.clone());
            self.list.len() as i64 - 1
        })
    }

    fn all(&mut self, texts: &mut Vec<Bytes>) -> Vec<i64> {
        core::mem::take(texts).iter().map(|text| self.number(text)).collect()
    }

    /// Makes a tensor of texts one of numbers; whether it was one.
    fn tensor(&mut self, tensor: &mut TensorProto) -> bool {
        let elsewhere = tensor.raw_data.is_some() || tensor.data_location.unwrap_or(0) != 0;
        if tensor.data_type != Some(data_type::STRING) || elsewhere {
            return false;
        }
        tensor.data_type = Some(data_type::INT64);
        tensor.int64_data = self.all(&mut tensor.string_data);
        true
    }

    /// Makes the texts among a node's attributes numbers: whether the node looks for texts then, and whether
    /// it gives them.
    fn node(&mut self, node: &mut NodeProto) -> (bool, bool) {
        let op = node.op_type.as_deref().unwrap_or_default();
        match (domain_name(node.domain.as_deref()), op) {
            ("", "Constant") => {
                let texts = node.attribute.iter_mut().any(|a| self.constant(a));
                (false, texts)
            }
            (ML, op) => {
                let has = |name| node.attribute.iter().any(|a| a.name.as_deref() == Some(name));
                let (keys, values) = (has(KEYS) || has(CATEGORIES), has(VALUES));
                let (labels, default) = (has(LABELS) && op != "ZipMap", has(DEFAULT));
                let known = ATTRIBUTES.iter().filter(|(of, ..)| *of == op);
                let known: Vec<_> = known.map(|(_, name, to)| (*name, *to)).collect();
                if op == LABEL_ENCODER && values && !default {
                    node.attribute.push(AttributeProto {
                        name: Some(DEFAULT.into()),
                        s: Some(UNUSED),
                        ..AttributeProto::default()
                    });
                }
                // It is about texts that are not there.
                node.attribute.retain(|a| {
                    op != LABEL_ENCODER || values || a.name.as_deref() != Some(DEFAULT)
                });
                for a in &mut node.attribute {
                    let name = a.name.as_deref().unwrap_or_default();
                    let Some((_, to)) = known.iter().find(|(n, _)| *n == name) else { continue };
                    self.attribute(a, to);
                }
                (keys, labels || values)
            }
            _ => (false, false),
        }
    }

    /// One that a `Constant` may have; whether it was of texts.
    fn constant(&mut self, a: &mut AttributeProto) -> bool {
        match a.name.as_deref() {
            Some("value") => a.t.as_mut().is_some_and(|tensor| self.tensor(tensor)),
            Some("value_string") => {
                self.attribute(a, "value_int");
                true
            }
            Some("value_strings") => {
                self.attribute(a, "value_ints");
                true
            }
            _ => false,
        }
    }

    /// Makes an attribute of texts one of integers, which has another name.
    fn attribute(&mut self, a: &mut AttributeProto, name: &str) {
        a.name = Some(name.into());
        if let Some(text) = a.s.take() {
            (a.i, a.r#type) = (Some(self.number(&text)), Some(t::INT));
        } else {
            (a.ints, a.r#type) = (self.all(&mut a.strings), Some(t::INTS));
        }
    }
}

/// The values that are texts, given those that are to begin with.
fn spread(nodes: &[NodeProto], found: Vec<String>) -> HashSet<String> {
    let mut readers: HashMap<&str, Vec<&NodeProto>> = HashMap::new();
    for node in nodes {
        for (i, input) in node.input.iter().enumerate() {
            if rule(node).is_some_and(|r| r.gives && r.takes(i)) {
                readers.entry(input).or_default().push(node);
            }
        }
    }
    let mut texts: HashSet<String> = found.iter().cloned().collect();
    let mut next = found;
    while let Some(name) = next.pop() {
        // Each is looked at once.
        let outputs = readers.remove(name.as_str()).unwrap_or_default();
        for output in outputs.into_iter().flat_map(|node| &node.output) {
            if !output.is_empty() && texts.insert(output.clone()) {
                next.push(output.clone());
            }
        }
    }
    texts
}

impl Rule {
    fn takes(&self, input: usize) -> bool {
        self.inputs.is_empty() || self.inputs.contains(&input)
    }
}

fn rule(node: &NodeProto) -> Option<&'static Rule> {
    let (domain, op) = (domain_name(node.domain.as_deref()), node.op_type.as_deref()?);
    RULES.iter().find(|r| r.domain == domain && r.ops.contains(&op))
}

fn reads_texts(node: &NodeProto, texts: &HashSet<String>) -> bool {
    node.input.iter().any(|input| texts.contains(input))
}

/// Whether a node reads texts only where it may, and looks for texts only among texts.
fn fits(node: &mut NodeProto, keyed: bool, texts: &HashSet<String>) -> bool {
    if node.attribute.iter().filter_map(|a| a.g.as_ref()).any(|g| captures(g, texts, 0)) {
        return false;
    }
    let reads = reads_texts(node, texts);
    if !reads {
        return !keyed;
    }
    let Some(rule) = rule(node) else { return false };
    let only = node
        .input
        .iter()
        .enumerate()
        .all(|(i, input)| input.is_empty() || rule.takes(i) == texts.contains(input));
    let to = target(node).map(|to| *to);
    let encodes = rule.domain == ML && !rule.gives;
    only && to.is_none_or(|to| to == i64::from(data_type::STRING)) && keyed == encodes
}

/// Whether a graph inside the network, or one inside that, reads texts of those around it.
fn captures(graph: &Bytes, texts: &HashSet<String>, depth: usize) -> bool {
    // What is damaged or too deep is refused when it is read.
    let Ok(graph) = GraphProto::decode(graph.clone()) else { return false };
    let outputs = graph.output.iter().filter_map(|o| o.name.as_ref());
    outputs.chain(graph.node.iter().flat_map(|n| &n.input)).any(|name| texts.contains(name))
        || depth < MAX_DEPTH
            && graph
                .node
                .iter()
                .flat_map(|n| &n.attribute)
                .filter_map(|a| a.g.as_ref())
                .any(|g| captures(g, texts, depth + 1))
}

/// The type that a `Cast` gives.
fn target(node: &mut NodeProto) -> Option<&mut i64> {
    if node.op_type.as_deref() != Some("Cast") {
        return None;
    }
    node.attribute.iter_mut().find(|a| a.name.as_deref() == Some("to"))?.i.as_mut()
}

fn element_type(value: &mut ValueInfoProto) -> Option<&mut i32> {
    match value.r#type.as_mut()?.value.as_mut()? {
        type_proto::Value::Tensor(tensor) => tensor.elem_type.as_mut(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
