//! What can be wrong with a file, or with the inputs given to its network.

use std::path::PathBuf;
use std::sync::Arc;

use crate::graph::GraphError;
#[cfg(feature = "gguf")]
use crate::import::gguf::GgufError;
use crate::tensor::{DType, TensorError};

mod text;

/// An error of an importer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// There is not a single byte.
    Empty,
    /// The bytes are not a message of the format: another kind of file, or a damaged one.
    Decode(String),
    /// The message is complete, but not a network.
    Structure(StructureError),
    /// The elements of a constant are wrong.
    Data {
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        source: DataError,
    },
    /// The file is right, but needs what is not supported: all of it, sorted.
    Unsupported(Vec<Missing>),
    /// The inputs do not fit the network.
    Input {
        /// The input's name.
        input: String,
        /// What is wrong with it.
        source: InputError,
    },
    /// A node cannot be built for the given input shapes.
    Node {
        /// The node's name.
        node: String,
        /// Its operator.
        op: &'static str,
        /// What is wrong with it.
        source: NodeError,
    },
    /// The graph refuses something that belongs to no node.
    Graph(GraphError),
    /// A GGUF file is wrong.
    #[cfg(feature = "gguf")]
    Gguf(GgufError),
}

/// What is wrong with the structure of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StructureError {
    /// The model has no graph.
    NoGraph,
    /// The version of the file format is missing or not known.
    IrVersion {
        /// The version, 0 if missing.
        found: i64,
        /// The oldest that is read.
        oldest: i64,
        /// The newest that is read.
        newest: i64,
    },
    /// The model does not say which operator set it uses.
    NoOpset,
    /// The version of the operator set is not known.
    Opset {
        /// The version.
        found: i64,
        /// The oldest that is read.
        oldest: i64,
        /// The newest that is read.
        newest: i64,
    },
    /// The model names two versions of one operator set.
    OpsetTwice(String),
    /// The graph has no outputs.
    NoOutputs,
    /// Something that needs a name has none.
    NoName(&'static str),
    /// Two things that must differ have one name.
    DuplicateName(String),
    /// A value is read that nothing produces.
    NoProducer {
        /// The value.
        value: String,
        /// Who reads it: a node, or `graph output`.
        reader: String,
    },
    /// Nodes wait for each other.
    Cycle(Vec<String>),
    /// A declared extent is negative.
    NegativeDim {
        /// The input or output.
        value: String,
        /// The extent.
        dim: i64,
    },
    /// Graphs or calls of functions are inside each other more often than this.
    TooDeep(usize),
    /// The model's functions become more bytes than this.
    TooMuchCode(usize),
    /// A node has too few or too many inputs or outputs.
    Arity {
        /// The node.
        node: String,
        /// The operator.
        op: &'static str,
        /// `inputs` or `outputs`.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// The fewest there may be.
        least: usize,
        /// The most there may be.
        most: usize,
    },
    /// A node reads a sequence where its operator takes a tensor, or the other way round.
    Sequence {
        /// The node.
        node: String,
        /// The operator.
        op: &'static str,
        /// The input's number, from 0.
        input: usize,
        /// The value.
        value: String,
        /// Whether the operator takes a sequence.
        wanted: bool,
    },
    /// A value of a body is a sequence in one place and a tensor in another.
    Mixed {
        /// The node that has the body.
        node: String,
        /// The operator.
        op: &'static str,
        /// The value.
        value: String,
    },
    /// An attribute has another type than its operator wants.
    AttributeType {
        /// The node.
        node: String,
        /// The operator.
        op: &'static str,
        /// The attribute.
        attribute: String,
        /// The type it must have.
        expected: &'static str,
        /// The type it has.
        found: &'static str,
    },
    /// A node lacks an attribute that its operator needs.
    NoAttribute {
        /// The node.
        node: String,
        /// The operator.
        op: &'static str,
        /// The attribute.
        attribute: &'static str,
    },
}

/// What is wrong with the elements of a tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DataError {
    /// The element type is not known or cannot be held.
    Type(String),
    /// The tensor is one segment of a larger one.
    Segment,
    /// An extent is negative.
    NegativeDim(Vec<i64>),
    /// More or fewer elements than the shape asks for.
    Count {
        /// Extents, slowest first.
        dims: Vec<usize>,
        /// Elements the shape needs.
        expected: usize,
        /// Elements there are.
        found: usize,
    },
    /// The elements are in more than one field.
    Ambiguous,
    /// The elements are in a field that does not belong to their type.
    WrongField {
        /// The field.
        field: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// An element does not fit its type.
    Range {
        /// The element.
        value: i64,
        /// The element type.
        dtype: DType,
    },
    /// The reference to another file is wrong.
    External {
        /// `location`, `offset` or `length`, with what is wrong about it.
        reason: String,
    },
    /// The shape is not possible, or the bytes do not fill it.
    Tensor(TensorError),
}

/// Something a network needs that is not supported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Missing {
    /// What is missing.
    pub kind: MissingKind,
    /// How often it is needed.
    pub count: usize,
    /// The first nodes or values that need it.
    pub users: Vec<String>,
}

/// Kinds of things that can be missing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MissingKind {
    /// An operator, in the given version of its set.
    Operator {
        /// The operator set; empty is ONNX itself.
        domain: String,
        /// The operator.
        op: String,
        /// The version of the set, 0 if the model does not name the set.
        opset: i64,
    },
    /// What this build lacks.
    NotBuilt {
        /// The operator.
        what: &'static str,
        /// The feature of the library that adds it.
        feature: &'static str,
    },
    /// An attribute that the operator does not have (in this version) or that is not supported.
    Attribute {
        /// The operator.
        op: &'static str,
        /// The attribute.
        attribute: String,
        /// The version of the operator set.
        opset: i64,
    },
    /// A value of an attribute.
    AttributeValue {
        /// The operator.
        op: &'static str,
        /// The attribute.
        attribute: &'static str,
        /// The value.
        value: String,
    },
    /// An output of an operator.
    Output {
        /// The operator.
        op: &'static str,
        /// Its number, from 0.
        index: usize,
    },
    /// A type of an input, output or constant.
    Type(String),
}

/// What is wrong with an input given to a network.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InputError {
    /// The network has no such input.
    Unknown {
        /// The inputs it has.
        known: Vec<String>,
    },
    /// The input is not given.
    NotGiven,
    /// The input is given twice.
    Twice,
    /// The number of dimensions differs.
    Rank {
        /// Extents given.
        found: Vec<usize>,
        /// The declared shape, as text.
        expected: String,
    },
    /// An extent differs from the declared one.
    Extent {
        /// The axis, from the slowest.
        axis: usize,
        /// Extents given.
        found: Vec<usize>,
        /// The declared shape, as text.
        expected: String,
    },
    /// Two uses of one symbol have different values.
    Symbol {
        /// The symbol.
        symbol: String,
        /// The value here.
        found: usize,
        /// The value at an earlier axis or input.
        expected: usize,
    },
}

/// Why a node cannot be built.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NodeError {
    /// A required input is absent.
    NoInput(usize),
    /// An input must be known before the network runs, but is computed by it.
    NotConstant {
        /// The input's number, from 0.
        input: usize,
        /// The value's name.
        value: String,
    },
    /// A node of a body cannot be built.
    Inside {
        /// The node's name.
        node: String,
        /// Its operator.
        op: &'static str,
        /// What is wrong with it.
        source: Box<NodeError>,
    },
    /// An input, attribute or combination of them is not allowed by the operator.
    Invalid(String),
    /// An input, attribute or combination of them is allowed, but not supported.
    Unsupported(String),
    /// The graph refuses the operation.
    Graph(GraphError),
}

/// Most bytes of a name in a message.
const LIMIT: usize = 80;

/// A name from a file, fit for one line of a message.
pub(crate) fn short(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if out.len() >= LIMIT {
            out.push_str("...");
            break;
        }
        out.extend(c.escape_debug().filter(|_| c != '\'' && c != '"'));
    }
    out
}

/// The same of a name that others have too, which is fit mostly.
pub(crate) fn fit(name: &Arc<str>) -> Arc<str> {
    let plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'\'' | b'"' | b'\\');
    if name.len() <= LIMIT && name.bytes().all(plain) { name.clone() } else { short(name).into() }
}

impl NodeError {
    /// Whether the node can be built once more is known.
    pub(crate) fn waits(&self) -> bool {
        match self {
            Self::NotConstant { .. } => true,
            Self::Inside { source, .. } => source.waits(),
            _ => false,
        }
    }

    /// An [`NodeError::Invalid`].
    pub(crate) fn invalid(what: impl Into<String>) -> Self {
        Self::Invalid(what.into())
    }

    /// An [`NodeError::Unsupported`].
    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }
}

impl core::error::Error for ImportError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Structure(e) => Some(e),
            Self::Data { source, .. } => Some(source),
            Self::Input { source, .. } => Some(source),
            Self::Node { source, .. } => Some(source),
            Self::Graph(e) => Some(e),
            #[cfg(feature = "gguf")]
            Self::Gguf(e) => Some(e),
            _ => None,
        }
    }
}

impl core::error::Error for StructureError {}

impl core::error::Error for DataError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Tensor(e) => Some(e),
            _ => None,
        }
    }
}

impl core::error::Error for InputError {}

impl core::error::Error for NodeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Graph(e) => Some(e),
            Self::Inside { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<StructureError> for ImportError {
    fn from(e: StructureError) -> Self {
        Self::Structure(e)
    }
}

#[cfg(feature = "gguf")]
impl From<GgufError> for ImportError {
    fn from(e: GgufError) -> Self {
        Self::Gguf(e)
    }
}

impl From<TensorError> for DataError {
    fn from(e: TensorError) -> Self {
        Self::Tensor(e)
    }
}

impl From<GraphError> for ImportError {
    fn from(e: GraphError) -> Self {
        Self::Graph(e)
    }
}

impl From<GraphError> for NodeError {
    fn from(e: GraphError) -> Self {
        Self::Graph(e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_into_messages() {
        let many = "x".repeat(LIMIT + 1);
        for name in ["", "/m/h.0/Add_1", "a b", "it's", "back\\slash", "\u{7f}", "é", "\n", &many]
        {
            let shared: Arc<str> = name.into();
            assert_eq!(*fit(&shared), *short(name), "{name:?}");
            assert!(fit(&shared).len() <= LIMIT + 3 && !fit(&shared).contains(['\n', '\'']));
        }
        let plain: Arc<str> = "/m/h.0/Add_1".into();
        assert!(Arc::ptr_eq(&plain, &fit(&plain)));
    }
}
