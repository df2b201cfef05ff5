//! Functions of one byte, as tables.

use tilewright_kernels::LookupPlan;

use super::plan_step::PlanStep;
use super::requantize::is_bytes;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Each byte of the result is the one that a table has for that of the operand: what a quantised network
/// computes element by element between two tensors of bytes, whatever it was written as.
#[derive(Clone, Debug, PartialEq)]
pub struct Lookup {
    /// The bytes of the result, by those of the operand; of signed numbers their bits count.
    pub table: Box<[u8; 256]>,
    /// Type of the result: `i8` or `u8`.
    pub to: DType,
}

const OP: &str = "lookup";

impl Operator for Lookup {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        if let Some(&dtype) = [src[0].dtype, self.to].iter().find(|&&dtype| !is_bytes(dtype)) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype });
        }
        Ok(Info::plain(self.to, src[0].dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        for (y, x) in dst.bytes.iter_mut().zip(src[0].bytes) {
            *y = self.table[usize::from(*x)];
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        // Lanes of blocks that are no channels are looked up too, which does no harm.
        let len = cx.dst.stored_elements().expect("the result has a buffer");
        Ok(Some(Box::new(PlanStep(LookupPlan::new(cx.isa, len, &self.table)?))))
    }

    fn layout_rule(&self, _cx: &RuleCx<'_>) -> LayoutRule {
        LayoutRule::Follow(vec![0])
    }
}
