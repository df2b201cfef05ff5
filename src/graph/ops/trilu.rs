//! Triangles of matrices.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// The last two axes are matrices, of which the elements on one side of a diagonal become 0, as
/// ONNX `Trilu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trilu {
    /// Keeps what is above and on the diagonal, instead of below and on.
    pub upper: bool,
    /// How far the diagonal lies above the main one.
    pub diagonal: i64,
}

const OP: &str = "trilu";

impl Operator for Trilu {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        if src[0].dims.len() < 2 || !src[0].dtype.is_plain() {
            let rule = "x must have rows and columns";
            return Err(GraphError::mismatch(OP, rule, &[("x", &src[0].dims)]));
        }
        Ok(Info::plain(src[0].dtype, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let [.., rows, columns] = *src[0].dims else { return Ok(()) };
        let size = dst.dtype.block_bytes();
        if columns == 0 {
            return Ok(());
        }
        let lines = dst
            .bytes
            .chunks_exact_mut(columns * size)
            .zip(src[0].bytes.chunks_exact(columns * size));
        for (line, (y, x)) in lines.enumerate() {
            // The upper part begins at the diagonal, the lower one ends with it.
            let diagonal = ((line % rows) as i64).saturating_add(self.diagonal);
            let first = if self.upper { diagonal } else { diagonal.saturating_add(1) };
            let at = first.clamp(0, columns as i64) as usize * size;
            y.copy_from_slice(x);
            if self.upper { y[..at].fill(0) } else { y[at..].fill(0) }
        }
        Ok(())
    }
}
