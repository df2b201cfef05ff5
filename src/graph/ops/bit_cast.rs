//! The same bits as elements of another type.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Elements of another plain type of the same width, bit by bit, as ONNX `BitCast`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitCast {
    /// The type of the result.
    pub to: DType,
}

const OP: &str = "bit_cast";

impl Operator for BitCast {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let from = src[0].dtype;
        let same = from.block_bytes() == self.to.block_bytes();
        // Not every byte is a truth value.
        let truth = self.to != DType::Bool || from == DType::Bool;
        if !from.is_plain() || !self.to.is_plain() || !same || !truth {
            let what = format!("{from} as {}", self.to);
            return Err(GraphError::Unsupported { op: OP, what });
        }
        Ok(Info::plain(self.to, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        dst.bytes.copy_from_slice(src[0].bytes);
        Ok(())
    }
}
