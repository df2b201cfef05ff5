//! Operators whose results have shapes that depend on what is in their operands.
//!
//! A graph cannot hold them, as all its shapes are known before it runs. They compute on tensors
//! that are there, one function per file, and whoever runs a network in stages calls them between
//! two stages.

mod compress;
mod nms;
mod nonzero;
mod unique;

pub use compress::compress;
pub use nms::{NonMaxSuppression, non_max_suppression};
pub use nonzero::nonzero;
pub use unique::{Unique, unique};

use core::cmp::Ordering;

use super::GraphError;
use crate::tensor::{AlignedBytes, DType, Storage, Tensor};

/// The natural order; what compares with nothing (NaN) comes last, and is equal to its like.
pub(crate) fn order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    let is_number = |v: &T| v.partial_cmp(v).is_some();
    a.partial_cmp(b).unwrap_or_else(|| is_number(b).cmp(&is_number(a)))
}

/// The parts of a tensor at the given positions of an axis.
fn take(x: &Tensor, axis: usize, positions: &[usize]) -> Result<Tensor, GraphError> {
    let mut dims = x.dims();
    let extent = dims[axis];
    let outer: usize = dims[..axis].iter().product();
    let run = dims[axis + 1..].iter().product::<usize>() * x.dtype().block_bytes();
    dims[axis] = positions.len();
    let mut out = AlignedBytes::zeroed(outer * positions.len() * run)?;
    if run > 0 {
        let places = (0..outer).flat_map(|o| positions.iter().map(move |&p| o * extent + p));
        for (to, from) in out.chunks_exact_mut(run).zip(places) {
            to.copy_from_slice(&x.bytes()[from * run..][..run]);
        }
    }
    Ok(Tensor::from_storage(x.dtype(), &dims, Storage::owned(out))?)
}

/// A list of positions or counts.
fn indices(v: &[usize]) -> Result<Tensor, GraphError> {
    let v: Vec<i64> = v.iter().map(|&i| i as i64).collect();
    Ok(Tensor::from_slice(&[v.len()], &v)?)
}

fn unsupported<T>(op: &'static str, dtype: DType) -> Result<T, GraphError> {
    Err(GraphError::UnsupportedDType { op, dtype })
}
