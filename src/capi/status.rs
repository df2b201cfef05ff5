//! Which status an error has.

use crate::Error;
use crate::graph::GraphError;
use crate::import::{ImportError, InputError};
#[cfg(feature = "llm")]
use crate::llm::LlmError;
use crate::tensor::TensorError;
use tilewright_c_kernels::{of_kernel, tw_status};

/// A failure on its way to C: its code and its line.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) status: tw_status,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(status: tw_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// An argument that cannot be used.
    pub(super) fn argument(message: impl Into<String>) -> Self {
        Self::new(tw_status::TW_INVALID_ARGUMENT, message)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::new(of_error(&e), e.to_string())
    }
}

fn of_error(e: &Error) -> tw_status {
    match e {
        Error::Import(e) => of_import(e),
        Error::Graph(e) => of_graph(e),
        Error::Kernel(e) => of_kernel(e),
        Error::Tensor(e) => of_tensor(e),
        #[cfg(feature = "llm")]
        Error::Llm(e) => of_llm(e),
        Error::UnknownInput { .. } | Error::DefaultInput(_) => tw_status::TW_NOT_FOUND,
        Error::MissingInput { .. } => tw_status::TW_STATE,
        Error::RepeatedInput(_) => tw_status::TW_INVALID_ARGUMENT,
        Error::InputType { .. } => tw_status::TW_TYPE,
    }
}

fn of_import(e: &ImportError) -> tw_status {
    match e {
        ImportError::Io { .. } => tw_status::TW_IO,
        ImportError::Unsupported(_) => tw_status::TW_UNSUPPORTED,
        ImportError::Input { source: InputError::Unknown { .. }, .. } => tw_status::TW_NOT_FOUND,
        ImportError::Input { source: InputError::NotGiven, .. } => tw_status::TW_STATE,
        ImportError::Input { .. } => tw_status::TW_SHAPE,
        ImportError::Graph(e) => of_graph(e),
        _ => tw_status::TW_FORMAT,
    }
}

fn of_graph(e: &GraphError) -> tw_status {
    match e {
        GraphError::Memory { .. } | GraphError::Threads { .. } => tw_status::TW_OUT_OF_MEMORY,
        GraphError::Tensor(e) => of_tensor(e),
        GraphError::At { source, .. } => of_graph(source),
        GraphError::UnsupportedDType { .. }
        | GraphError::Unsupported { .. }
        | GraphError::NotBuilt { .. } => tw_status::TW_UNSUPPORTED,
        GraphError::Kernel(e) => of_kernel(e),
        GraphError::UnsetLeaf(_) => tw_status::TW_STATE,
        _ => tw_status::TW_SHAPE,
    }
}

fn of_tensor(e: &TensorError) -> tw_status {
    match e {
        TensorError::OutOfMemory(_) => tw_status::TW_OUT_OF_MEMORY,
        TensorError::DType { .. } => tw_status::TW_TYPE,
        TensorError::Read(_) => tw_status::TW_IO,
        _ => tw_status::TW_SHAPE,
    }
}

#[cfg(feature = "llm")]
fn of_llm(e: &LlmError) -> tw_status {
    match e {
        LlmError::Architecture { .. } => tw_status::TW_UNSUPPORTED,
        LlmError::ContextFull { .. } => tw_status::TW_CONTEXT_FULL,
        LlmError::ContextMemory { .. } => tw_status::TW_OUT_OF_MEMORY,
        LlmError::Cancelled => tw_status::TW_CANCELLED,
        LlmError::NotFinite { .. } => tw_status::TW_NOT_FINITE,
        LlmError::NoTokens | LlmError::Token { .. } | LlmError::Sampler(_) => {
            tw_status::TW_INVALID_ARGUMENT
        }
        _ => tw_status::TW_FORMAT,
    }
}
