//! What a loaded model is.

use core::fmt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::attr::Attrs;
use super::ops::OpRow;
use super::shaping::{Shaping, shaping};
use super::stage::Nodes;
use super::texts::Texts;
use crate::tensor::{DType, Tensor};

/// One extent of a declared shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// A number.
    Fixed(usize),
    /// A name; equal names stand for equal extents.
    Symbol(String),
    /// Anything.
    Unknown,
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(n) => n.fmt(f),
            Self::Symbol(s) => f.write_str(s),
            Self::Unknown => f.write_str("?"),
        }
    }
}

/// Name, element type and declared shape of an input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueInfo {
    /// The name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Extents, slowest first; `None` when even their number is unknown.
    pub dims: Option<Vec<Dim>>,
}

impl ValueInfo {
    /// The shape as text: `[1, 3, h, w]`, or `[...]` when unknown.
    pub fn shape_text(&self) -> String {
        let Some(dims) = &self.dims else { return "[...]".into() };
        let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
        format!("[{}]", dims.join(", "))
    }
}

/// Position of a value in [`OnnxModel`].
pub(super) type ValueId = usize;

/// One operator call.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The name in the file, or one made from the operator and the position.
    pub(super) name: Arc<str>,
    pub(super) row: &'static OpRow,
    /// Version of ONNX's operators that the node is written in.
    pub(super) opset: i64,
    /// `None` for absent optional inputs.
    pub(super) inputs: Vec<Option<ValueId>>,
    /// `None` for outputs that nobody wants.
    pub(super) outputs: Vec<Option<ValueId>>,
    pub(super) attrs: Attrs,
    /// The graphs among the attributes, by name.
    pub(super) bodies: Vec<(&'static str, Body)>,
    /// It is built where it stands, as what it reads or writes has sequences, or a node around it is.
    pub(super) inline: bool,
}

impl Node {
    /// What the node reads: its inputs, and what its bodies read of the graphs around them.
    pub(super) fn reads(&self) -> impl Iterator<Item = ValueId> {
        let captures = self.bodies.iter().flat_map(|(_, b)| &b.captures);
        self.inputs.iter().flatten().chain(captures).copied()
    }

    /// Whether the node, once all that it reads is there, can be run by itself.
    pub(super) fn runs_alone(&self) -> bool {
        !self.inline && self.row.runs_alone()
    }

    /// Inputs whose values must be known when the graph is built.
    pub(super) fn known(&self) -> &'static [usize] {
        match self.row.name {
            // How often.
            "Loop" if self.inline => &[0, 1],
            _ => self.row.known,
        }
    }

    /// The body of a name.
    pub(super) fn body(&self, name: &str) -> Option<&Body> {
        self.bodies.iter().find(|(n, _)| *n == name).map(|(_, body)| body)
    }
}

impl Body {
    /// Whether it leaves the type or an extent open of an output, but for the first `skip`.
    pub(super) fn is_open(&self, skip: usize) -> bool {
        let known = |(_, dims): &(DType, Vec<usize>)| !dims.is_empty() && !dims.contains(&0);
        !self.declared.iter().skip(skip).all(|d| d.as_ref().is_some_and(known))
    }
}

/// A graph: the model's own, or the body of a node. Values have numbers of their own in each.
#[derive(Clone, Debug)]
pub(super) struct Body {
    /// The number of the graph; the model's own is 0.
    pub(super) id: usize,
    pub(super) inputs: Vec<ValueId>,
    pub(super) outputs: Vec<ValueId>,
    /// Type and shape of each output, with 0 for extents that are not numbers; `None` if not known.
    pub(super) declared: Vec<Option<(DType, Vec<usize>)>>,
    /// Values of graphs around this one that it reads.
    pub(super) captures: Vec<ValueId>,
    /// In an order in which each node comes after those it needs.
    pub(super) nodes: Vec<Node>,
    /// Positions of all nodes.
    pub(super) all: Arc<Nodes>,
}

/// A network from an ONNX file, checked, with its constants.
#[derive(Debug)]
pub struct OnnxModel {
    pub(super) name: String,
    pub(super) producer: String,
    pub(super) metadata: BTreeMap<String, String>,
    /// What the numbers stand for that take the place of texts.
    pub(super) texts: Texts,
    pub(super) opset: i64,
    pub(super) inputs: Vec<ValueInfo>,
    /// Inputs that have a constant of the same name, which is what they are unless somebody gives another.
    pub(super) defaults: Vec<ValueInfo>,
    /// The value of each of them.
    pub(super) default_values: Vec<ValueId>,
    pub(super) shaping: Shaping,
    pub(super) outputs: Vec<ValueInfo>,
    /// Names of all values, by [`ValueId`].
    pub(super) values: Vec<Arc<str>>,
    /// In order of their numbers, those of bodies included.
    pub(super) constants: Vec<(ValueId, Tensor)>,
    /// Constants that have four or two bits per element in the file.
    pub(super) few_bits: Vec<ValueId>,
    /// The graph.
    pub(super) graph: Body,
    /// Scalars that building made, by type and bits of the value, so that each instantiation uses
    /// the same storage.
    pub(super) scalars: Mutex<Vec<((DType, u64), Tensor)>>,
}

impl OnnxModel {
    /// Name of the graph; may be empty.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The tool that wrote the file, with its version; may be empty.
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// Free key-value pairs of the file.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Version of the ONNX operator set.
    pub fn opset(&self) -> i64 {
        self.opset
    }

    /// Inputs, in the file's order, without those that have a constant of the same name.
    pub fn inputs(&self) -> &[ValueInfo] {
        &self.inputs
    }

    /// Inputs that have a constant of the same name (a default, from version 4 of the format on), in the
    /// file's order. [`OnnxModel::asking_for`] makes inputs of them.
    pub fn defaults(&self) -> &[ValueInfo] {
        &self.defaults
    }

    /// The model with some of its defaults as inputs, after those that it has; `None` if it has no
    /// default of one of these names.
    pub fn asking_for(&self, names: &[&str]) -> Option<Self> {
        let mut model = Self {
            name: self.name.clone(),
            producer: self.producer.clone(),
            metadata: self.metadata.clone(),
            texts: self.texts.clone(),
            opset: self.opset,
            inputs: self.inputs.clone(),
            defaults: self.defaults.clone(),
            default_values: self.default_values.clone(),
            shaping: Shaping::default(),
            outputs: self.outputs.clone(),
            values: self.values.clone(),
            constants: self.constants.clone(),
            few_bits: self.few_bits.clone(),
            graph: self.graph.clone(),
            scalars: Mutex::default(),
        };
        for (i, name) in names.iter().enumerate() {
            if names.iter().take(i).any(|n| n == name) {
                continue;
            }
            let at = model.defaults.iter().position(|info| info.name == *name)?;
            let (info, value) = (model.defaults.remove(at), model.default_values.remove(at));
            model.inputs.push(info);
            model.graph.inputs.push(value);
            model.constants.retain(|(v, _)| *v != value);
        }
        model.shaping = shaping(&model.graph, &model.inputs, model.values.len());
        Some(model)
    }

    /// Whether shapes inside the network depend on the values of input `i`, so that
    /// [`OnnxModel::instantiate`] must be given them.
    pub fn needs_value(&self, i: usize) -> bool {
        self.graph.inputs.get(i).is_some_and(|&v| self.shaping.decides(v))
    }

    /// Outputs, in the file's order.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.outputs
    }

    /// For an output whose elements are texts in the file, the texts, by the numbers that take their place.
    pub fn texts(&self, output: &str) -> Option<&[String]> {
        self.texts.outputs.iter().any(|name| name == output).then_some(&*self.texts.list)
    }

    /// The constants that the outputs depend on, with their names.
    pub fn constants(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.constants.iter().filter_map(|(id, t)| Some((self.values.get(*id)?.as_ref(), t)))
    }

    /// Number of nodes that the outputs depend on, without constants.
    pub fn node_count(&self) -> usize {
        self.graph.nodes.len()
    }

    /// The content of a value that is a constant.
    pub(super) fn constant(&self, value: ValueId) -> Option<&Tensor> {
        let at = self.constants.binary_search_by_key(&value, |(v, _)| *v).ok()?;
        self.constants.get(at).map(|(_, t)| t)
    }
}
