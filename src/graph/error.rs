//! What can go wrong while a graph is built, planned or run.

use core::fmt;

use tilewright_kernels::KernelError;

use crate::tensor::{DType, ShapeError, TensorError};

/// An error of the graph layer. Shapes are slowest first.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum GraphError {
    /// A shape or view is not possible.
    Shape {
        /// The operator or builder call.
        op: &'static str,
        /// The reason.
        source: ShapeError,
    },
    /// The operands' shapes do not go together.
    Mismatch {
        /// The operator.
        op: &'static str,
        /// What should hold, as a clause: `contraction lengths must be equal`.
        rule: &'static str,
        /// Name and shape of each operand concerned.
        operands: Vec<(String, Vec<usize>)>,
    },
    /// An attribute has a value that the operator does not allow.
    InvalidAttribute {
        /// The operator.
        op: &'static str,
        /// The attribute.
        attribute: &'static str,
        /// The value and why it is wrong.
        reason: String,
    },
    /// The operator does not exist for this element type.
    UnsupportedDType {
        /// The operator.
        op: &'static str,
        /// The type.
        dtype: DType,
    },
    /// The operator does not exist in this form.
    Unsupported {
        /// The operator.
        op: &'static str,
        /// What is not supported.
        what: String,
    },
    /// This build lacks it.
    NotBuilt {
        /// The operator.
        what: &'static str,
        /// The feature of the library that adds it.
        feature: &'static str,
    },
    /// An operand count is wrong.
    OperandCount {
        /// The operator.
        op: &'static str,
        /// How many there must be.
        expected: &'static str,
        /// How many there are.
        found: usize,
    },
    /// An index read from data lies outside the axis it selects from.
    IndexOutOfRange {
        /// The operator.
        op: &'static str,
        /// The index.
        index: i64,
        /// The extent of the axis.
        extent: usize,
    },
    /// A leaf has no data.
    UnsetLeaf(String),
    /// The system refuses threads, for lack of memory or by a limit.
    Threads {
        /// How many were wanted.
        threads: usize,
        /// What the system said.
        reason: String,
    },
    /// The graph holds more tensors than it may.
    Full(usize),
    /// A tensor depends on itself.
    Cycle(String),
    /// A run would need more memory than it may take.
    Memory {
        /// Bytes that it needs at least: of a plan that was not made, those of its largest result.
        needed: usize,
        /// Bytes that it may take.
        limit: usize,
    },
    /// A device that computes whole graphs failed.
    Device {
        /// The backend.
        backend: &'static str,
        /// What it says.
        reason: String,
    },
    /// Data do not fit their tensor.
    Tensor(TensorError),
    /// A kernel refused its parameters.
    Kernel(KernelError),
    /// An error in a named node.
    At {
        /// The node's name.
        node: String,
        /// What happened there.
        source: Box<GraphError>,
    },
}

impl GraphError {
    /// A [`GraphError::Mismatch`] of operands without names of their own.
    pub(crate) fn mismatch(
        op: &'static str,
        rule: &'static str,
        shapes: &[(&str, &[usize])],
    ) -> Self {
        let operands = shapes.iter().map(|(n, d)| ((*n).to_owned(), d.to_vec())).collect();
        Self::Mismatch { op, rule, operands }
    }

    /// The error with the node it happened in, unless it names one already.
    pub(crate) fn at(self, node: &str) -> Self {
        match self {
            Self::At { .. } => self,
            other => Self::At { node: node.to_owned(), source: Box::new(other) },
        }
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape { op, source } => write!(f, "{op}: {source}"),
            Self::Memory { needed, limit } => write!(
                f,
                "a run needs at least {needed} bytes of memory, more than the limit of {limit}; make \
                 the inputs smaller or raise the limit"
            ),
            Self::Device { reason, .. } => f.write_str(reason),
            Self::Mismatch { op, rule, operands } => {
                write!(f, "{op}: {rule}, found ")?;
                for (i, (name, dims)) in operands.iter().enumerate() {
                    write!(f, "{}{name} {dims:?}", if i == 0 { "" } else { ", " })?;
                }
                Ok(())
            }
            Self::InvalidAttribute { op, attribute, reason } => {
                write!(f, "{op}: attribute {attribute}: {reason}")
            }
            Self::UnsupportedDType { op, dtype } => write!(f, "{op}: {dtype} is not supported"),
            Self::Unsupported { op, what } => write!(f, "{op}: {what} is not supported"),
            Self::NotBuilt { what, feature } => {
                write!(f, "{what} is not in this build: build it with the feature `{feature}`")
            }
            Self::OperandCount { op, expected, found } => {
                write!(f, "{op}: expected {expected} operands, found {found}")
            }
            Self::IndexOutOfRange { op, index, extent } => {
                write!(f, "{op}: index {index} is outside an axis of {extent}")
            }
            Self::Threads { threads, reason } => {
                write!(f, "the system refuses {threads} threads: {reason}")
            }
            Self::UnsetLeaf(name) => write!(f, "leaf {name:?} has no data"),
            Self::Full(limit) => write!(f, "the graph is full: at most {limit} tensors"),
            Self::Cycle(name) => write!(f, "tensor {name:?} depends on itself"),
            Self::Tensor(e) => e.fmt(f),
            Self::Kernel(e) => e.fmt(f),
            Self::At { node, source } => write!(f, "node {node:?}: {source}"),
        }
    }
}

impl core::error::Error for GraphError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Shape { source, .. } => Some(source),
            Self::Tensor(e) => Some(e),
            Self::At { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<TensorError> for GraphError {
    fn from(e: TensorError) -> Self {
        Self::Tensor(e)
    }
}

impl From<KernelError> for GraphError {
    fn from(e: KernelError) -> Self {
        Self::Kernel(e)
    }
}
