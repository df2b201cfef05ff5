//! Rewrites of a graph before it is planned. Each is a function on a context and its outputs.

mod fuse;
mod layout;

pub use fuse::fuse;
pub use layout::assign_layouts;

use super::{Context, GraphError, Op, TensorId};

/// How often each record is used by what `outputs` need; outputs count as a use.
fn use_counts(cx: &Context, order: &[TensorId], outputs: &[TensorId]) -> Vec<usize> {
    let mut uses = vec![0; cx.len()];
    for &id in order {
        for s in cx.record(id).src() {
            uses[s.index()] += 1;
        }
    }
    for output in outputs {
        uses[output.index()] += 1;
    }
    uses
}

impl Context {
    /// Replaces how a tensor is computed. Type and shape must stay what they are.
    fn rewrite(&mut self, id: TensorId, op: Op, src: Vec<TensorId>) -> Result<(), GraphError> {
        let infos: Vec<_> = src.iter().map(|&s| self.record(s).info()).collect();
        let info = op.operator().expect("only operators are rewritten").infer(&infos)?;
        let record = &mut self.records[id.index()];
        debug_assert_eq!(info.dims, record.shape.dims(), "a rewrite keeps the shape");
        (record.op, record.src) = (op, src);
        Ok(())
    }
}
