//! Rewrites of a graph before it is planned. Each is a function on a context and its outputs.

mod activations;
mod attention;
mod channels_last;
mod constants;
mod fuse;
mod integer;
mod layer_norm;
mod layout;
mod lookup;
mod moves;
mod neighbours;
mod nibbles;
mod order;
mod pattern;
mod phases;
mod scaled;
mod strided;

pub use activations::use_activations;
pub use attention::use_attention;
pub use constants::fold_constants;
pub use fuse::fuse;
pub use integer::{use_integer_products, use_integers};
pub use layer_norm::use_layer_norm;
pub use layout::assign_layouts;
pub use neighbours::fuse_neighbours;
pub use nibbles::use_nibbles;
pub use phases::use_phases;
pub use scaled::use_scaled_products;
pub use strided::use_dense_pixels;

use std::sync::Arc;

use super::ops::conv_pool;
use super::{Context, GraphError, Op, TensorId};

/// Everything that is done to a graph before it is laid out and planned for so many threads.
///
/// # Errors
/// What the passes meet.
pub fn optimize(cx: &mut Context, outputs: &[TensorId], threads: usize) -> Result<(), GraphError> {
    // Each makes operators of a set that builds may lack.
    if cfg!(feature = "ops-int8") {
        use_integers(cx, outputs)?;
    }
    if cfg!(feature = "ops-more") {
        use_nibbles(cx, outputs)?;
    }
    fold_constants(cx, outputs)?;
    if cfg!(feature = "ops-int8") {
        use_scaled_products(cx, outputs)?;
    }
    if cfg!(feature = "ops-more") {
        use_phases(cx, outputs)?;
        use_activations(cx, outputs)?;
        use_layer_norm(cx, outputs)?;
        use_attention(cx, outputs)?;
    }
    if cfg!(feature = "ops-int8") {
        use_integer_products(cx, outputs)?;
    }
    fuse(cx, outputs)?;
    use_dense_pixels(cx, outputs)?;
    if !conv_pool::FEW {
        fuse_neighbours(cx, outputs, threads)?;
    }
    Ok(())
}

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
        (record.op, record.src) = (Arc::new(op), src);
        Ok(())
    }

    /// Makes a tensor another shape of one of its type, whose elements lie densely.
    fn rewrite_as_view(&mut self, id: TensorId, name: &'static str, of: TensorId) {
        let record = &mut self.records[id.index()];
        (record.op, record.src, record.offset) = (Arc::new(Op::View(name)), vec![of], 0);
    }
}
