//! The library's error.

use core::fmt;

use crate::graph::GraphError;
use crate::import::ImportError;
#[cfg(feature = "llm")]
use crate::llm::LlmError;
use crate::tensor::{DType, TensorError};
use tilewright_kernels::KernelError;

/// What can go wrong between a file and a result.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read as a model.
    Import(ImportError),
    /// A graph could not be built, planned or run.
    Graph(GraphError),
    /// An instruction set or a kernel is not available.
    Kernel(KernelError),
    /// Data do not fit a tensor.
    Tensor(TensorError),
    /// A language model is not as it should be, or cannot go on.
    #[cfg(feature = "llm")]
    Llm(LlmError),
    /// An input that the model does not have.
    UnknownInput {
        /// The name given.
        name: String,
        /// The model's inputs.
        known: Vec<String>,
    },
    /// An input that the file has a value for; [`Model::with_inputs`](crate::Model::with_inputs) makes
    /// one of it that can be given.
    DefaultInput(String),
    /// An input that was not given.
    MissingInput {
        /// Its name.
        name: String,
        /// Its element type.
        dtype: DType,
        /// Its declared shape.
        shape: String,
    },
    /// An input that was given twice.
    RepeatedInput(String),
    /// An input of the wrong type.
    InputType {
        /// Its name.
        name: String,
        /// The type the model declares.
        expected: DType,
        /// The type given.
        found: DType,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Import(e) => e.fmt(f),
            Self::Graph(e) => e.fmt(f),
            Self::Kernel(e) => e.fmt(f),
            Self::Tensor(e) => e.fmt(f),
            #[cfg(feature = "llm")]
            Self::Llm(e) => e.fmt(f),
            Self::UnknownInput { name, known } => {
                write!(f, "the model has no input {name:?} (it has: {})", known.join(", "))
            }
            Self::DefaultInput(name) => {
                write!(f, "input {name:?} has a default; ask for it with Model::with_inputs")
            }
            Self::MissingInput { name, dtype, shape } => {
                write!(f, "input {name:?} ({dtype} {shape}) is missing")
            }
            Self::RepeatedInput(name) => write!(f, "input {name:?} was given twice"),
            Self::InputType { name, expected, found } => {
                write!(f, "input {name:?}: expected {expected}, found {found}")
            }
        }
    }
}

impl core::error::Error for Error {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Import(e) => Some(e),
            Self::Graph(e) => Some(e),
            Self::Kernel(e) => Some(e),
            Self::Tensor(e) => Some(e),
            #[cfg(feature = "llm")]
            Self::Llm(e) => Some(e),
            _ => None,
        }
    }
}

macro_rules! from {
    ($($t:ty => $v:ident),*) => { $(impl From<$t> for Error {
        fn from(e: $t) -> Self { Self::$v(e) }
    })* };
}
from!(ImportError => Import, GraphError => Graph, KernelError => Kernel, TensorError => Tensor);
#[cfg(feature = "llm")]
from!(LlmError => Llm);
