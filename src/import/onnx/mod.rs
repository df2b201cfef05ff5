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
mod flow;
mod functions;
mod invariants;
mod load;
mod model;
mod ops;
mod order;
pub mod proto;
mod repeat;
mod sequences;
mod shaping;
mod stage;
#[cfg(test)]
mod testing;
mod texts;

pub use data::{External, read_tensor_pb, tensor_from_proto};
pub use flow::Runner;
pub use model::{Dim, OnnxModel, ValueInfo};
pub use stage::{After, Stage, StageKey};

/// Oldest version of the ONNX operator set that is read.
pub const OLDEST_OPSET: i64 = 1;

/// Newest version of the ONNX operator set that is read.
pub const NEWEST_OPSET: i64 = 28;

/// Oldest version of the file format that is read.
pub const OLDEST_IR: i64 = 3;

/// Newest version of the file format that is read.
pub const NEWEST_IR: i64 = 14;

/// The operators of ONNX that can be imported, each with the first operator set in which it is.
pub fn supported_operators() -> Vec<(&'static str, i64)> {
    let rows = ops::rows().filter(|r| r.domain.is_empty());
    let mut rows: Vec<_> = rows.map(|r| (r.name, *r.opsets().start())).collect();
    crate::order::sort(&mut rows, Ord::cmp);
    rows.dedup_by_key(|r| r.0);
    rows
}

/// An operator that can be imported, in a range of operator sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// Its domain; empty is ONNX itself.
    pub domain: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The first operator set.
    pub since: i64,
    /// Fewest and most inputs.
    pub inputs: (usize, usize),
    /// Fewest and most outputs.
    pub outputs: (usize, usize),
    /// Attributes: name, type as in [`proto::attribute_type`], and the strings that are allowed if
    /// not all are.
    pub attributes: Vec<(&'static str, i32, &'static [&'static str])>,
}

/// All operators that can be imported, of all domains, once for each range of operator sets.
pub fn operators() -> impl Iterator<Item = Operator> {
    ops::rows().map(|r| Operator {
        domain: r.domain,
        name: r.name,
        since: *r.opsets().start(),
        inputs: r.inputs().into_inner(),
        outputs: r.outputs_allowed().into_inner(),
        attributes: r.attrs.iter().map(attr::Attr::parts).collect(),
    })
}
