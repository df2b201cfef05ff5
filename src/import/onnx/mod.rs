//! ONNX files.
//!
//! [`OnnxModel::load`] maps a file, decodes it without copying tensor contents, and checks all that
//! can be checked before input shapes are known: structure, order, types, operators with their
//! attributes. [`OnnxModel::instantiate`] then builds a graph for concrete input shapes; every
//! shape inside the network is a plain number there, so chains that compute shapes fold away.
//!
//! An operator is one row in a table and a function that composes graph operations.

mod attr;
mod budget;
mod build;
mod data;
mod load;
mod missing;
mod model;
mod ops;
mod order;
pub mod proto;
#[cfg(test)]
mod testing;

pub use data::{External, read_tensor_pb, tensor_from_proto};
pub use model::{Dim, OnnxModel, ValueInfo};

/// Oldest version of the ONNX operator set that is read.
pub const OLDEST_OPSET: i64 = 7;

/// Newest version of the ONNX operator set that is read.
pub const NEWEST_OPSET: i64 = 28;

/// Oldest version of the file format that is read.
pub const OLDEST_IR: i64 = 3;

/// Newest version of the file format that is read.
pub const NEWEST_IR: i64 = 14;

/// The operators that can be imported, each with the first operator set in which it is.
pub fn supported_operators() -> Vec<(&'static str, i64)> {
    let mut rows: Vec<_> = ops::rows().map(|r| (r.name, r.since.max(OLDEST_OPSET))).collect();
    rows.sort_unstable();
    rows.dedup_by_key(|r| r.0);
    rows
}
