//! How much may be computed while a graph is built.
//!
//! Results of constants are computed at once. That is meant for arithmetic with shapes and
//! weights, which may all be there as one number and a shape; a small file that asks for more than that is refused
//! instead of filling the memory.

use crate::graph::{Info, Op};
use crate::import::NodeError;
use crate::tensor::available_memory;

/// Bytes that computed constants may have in all, on top of a multiple of the model's own: the weights of VGG-19.
const BYTES: usize = 640 << 20;

/// Bytes of one of them, from which on there must be twice as much memory.
const LARGE: usize = 32 << 20;

/// The multiple: four-bit integers become 32-bit floats, with some steps in between.
const FACTOR: usize = 32;

/// Bytes that may be read and written, and multiply-adds done, for them: what takes about a second,
/// on top of a multiple of the bytes of the model's constants.
const WORK: usize = 1 << 30;

/// Nodes of bodies that may be built in place of the nodes around them, parts of tensors among them.
const NODES: usize = 1 << 18;

/// Members that sequences may have together: a loop that appends to one makes it again each time.
const LISTED: usize = 1 << 24;

/// What is left for one instantiation.
pub(super) struct Budget {
    bytes: usize,
    work: usize,
    nodes: usize,
    listed: usize,
}

impl Budget {
    /// For a model whose own constants have `stored` bytes.
    pub(super) fn new(stored: usize) -> Self {
        let own = stored.saturating_mul(FACTOR);
        let (bytes, work) = (BYTES.saturating_add(own), WORK.saturating_add(own));
        Self { bytes, work, nodes: NODES, listed: LISTED }
    }

    /// For a node that a run computes by itself.
    pub(super) fn of_run() -> Self {
        let most = 1 << if usize::BITS > 32 { 31 } else { 28 };
        Self { bytes: most, work: most, nodes: NODES, listed: LISTED }
    }

    /// Takes nodes that are about to be built in place of others.
    pub(super) fn build(&mut self, nodes: usize) -> Result<(), NodeError> {
        self.nodes = self.nodes.checked_sub(nodes).ok_or_else(|| {
            let what = format!("bodies and sequences that become more than {NODES} nodes");
            NodeError::unsupported(what)
        })?;
        Ok(())
    }

    /// Takes the members of a sequence.
    pub(super) fn list(&mut self, members: usize) -> Result<(), NodeError> {
        self.listed = self.listed.checked_sub(members).ok_or_else(|| {
            NodeError::unsupported(format!("sequences of more than {LISTED} tensors together"))
        })?;
        Ok(())
    }

    /// Takes the result of a copy.
    pub(super) fn copy(&mut self, result: &Info) -> Result<(), NodeError> {
        self.take(result, 0)
    }

    /// Takes the result of an operation.
    pub(super) fn compute(
        &mut self,
        op: &Op,
        src: &[Info],
        result: &Info,
    ) -> Result<(), NodeError> {
        let macs = match op {
            Op::Pool(pool) => {
                pool.window.iter().fold(result.elements(), |n, &w| n.saturating_mul(w))
            }
            op => {
                let macs = op.operator().map_or(0, |o| o.macs(src, result));
                usize::try_from(macs).unwrap_or(usize::MAX)
            }
        };
        let read = src.iter().map(|s| s.stored_bytes().unwrap_or(usize::MAX));
        self.take(result, read.fold(macs, usize::saturating_add))
    }

    fn take(&mut self, result: &Info, work: usize) -> Result<(), NodeError> {
        let left = result.stored_bytes().and_then(|bytes| {
            let bytes_left = self.bytes.checked_sub(bytes)?;
            if bytes > LARGE && available_memory().is_some_and(|free| bytes > free / 2) {
                return None;
            }
            Some((bytes_left, self.work.checked_sub(bytes)?.checked_sub(work)?))
        });
        let Some((bytes, work)) = left else {
            let (dims, dtype) = (&result.dims, result.dtype);
            let what = format!("a computed constant of shape {dims:?} of {dtype}");
            return Err(NodeError::unsupported(format!("{what} (it is too large)")));
        };
        (self.bytes, self.work) = (bytes, work);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ops::pool::{Pool, PoolKind};
    use crate::graph::ops::softmax::Softmax;
    use crate::tensor::DType;

    fn bytes(n: usize) -> Info {
        Info::plain(DType::U8, vec![n])
    }

    #[test]
    fn memory_and_work_are_limited() {
        let mut budget = Budget::new(0);
        assert!(budget.copy(&bytes(BYTES + 1)).is_err());
        assert!(budget.copy(&bytes(BYTES / 2)).is_ok());
        assert!(budget.copy(&bytes(BYTES / 2 + 1)).is_err());
        assert!(Budget::new(1 << 20).copy(&bytes(BYTES + 1)).is_ok());
        // Small results of large operands.
        let op = Op::from(Softmax::along(0));
        let mut budget = Budget::new(0);
        let large = [Info::plain(DType::F32, vec![WORK / 8])];
        assert!(budget.compute(&op, &large, &bytes(1)).is_ok());
        assert!(budget.compute(&op, &large, &bytes(1)).is_err());
        // Large windows.
        let pool = Pool::global(PoolKind::Max, [1 << 20, 1 << 20]);
        assert!(budget.compute(&pool.into(), &[bytes(1)], &bytes(1)).is_err());
    }
}
