//! What a loaded model is.

use core::fmt;
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use super::attr::Attrs;
use super::ops::OpRow;
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
#[derive(Debug)]
pub(super) struct Node {
    /// The name in the file, or one made from the operator and the position.
    pub(super) name: String,
    pub(super) row: &'static OpRow,
    /// `None` for absent optional inputs.
    pub(super) inputs: Vec<Option<ValueId>>,
    /// `None` for outputs that nobody wants.
    pub(super) outputs: Vec<Option<ValueId>>,
    pub(super) attrs: Attrs,
}

/// A network from an ONNX file, checked, with its constants.
#[derive(Debug)]
pub struct OnnxModel {
    pub(super) name: String,
    pub(super) producer: String,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) opset: i64,
    pub(super) inputs: Vec<ValueInfo>,
    pub(super) input_ids: Vec<ValueId>,
    /// For each input, whether shapes inside depend on its value.
    pub(super) shaping: Vec<bool>,
    pub(super) outputs: Vec<ValueInfo>,
    pub(super) output_ids: Vec<ValueId>,
    /// Names of all values, by [`ValueId`].
    pub(super) values: Vec<String>,
    pub(super) constants: Vec<(ValueId, Tensor)>,
    /// In an order in which each node comes after those it needs.
    pub(super) nodes: Vec<Node>,
    /// Scalars that building made, by type and bits of the value, so that each instantiation uses
    /// the same storage.
    pub(super) scalars: Mutex<HashMap<(DType, u64), Tensor>>,
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

    /// Whether shapes inside the network depend on the values of input `i`, so that
    /// [`OnnxModel::instantiate`] must be given them.
    pub fn needs_value(&self, i: usize) -> bool {
        self.shaping.get(i).copied().unwrap_or(false)
    }

    /// Outputs, in the file's order.
    pub fn outputs(&self) -> &[ValueInfo] {
        &self.outputs
    }

    /// The constants that the outputs depend on, with their names.
    pub fn constants(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.constants.iter().filter_map(|(id, t)| Some((self.values.get(*id)?.as_str(), t)))
    }

    /// Number of nodes that the outputs depend on, without constants.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }
}
