//! Importers: from the bytes of a file to a graph.
//!
//! Files come from strangers. Nothing here panics on what a file says: arithmetic is checked,
//! slices are taken by length-checked accessors, nothing is allocated before its size is compared
//! with what the file holds.

#![warn(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

mod error;
#[cfg(feature = "gguf")]
pub mod gguf;
mod map;
#[cfg(feature = "llm")]
pub(crate) use map::Mapping;
mod missing;
pub mod onnx;

pub use error::{
    DataError, ImportError, InputError, Missing, MissingKind, NodeError, StructureError,
};
pub use onnx::{Dim, ValueInfo};
