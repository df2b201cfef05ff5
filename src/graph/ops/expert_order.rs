//! Where results of experts are.

use super::elements::expect_dtype;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// For each choice the row of its result in that of [`Experts`](super::experts::Experts).
///
/// Operand: `chosen [m, c]` of `i64`. Result: `[m * c]` of `i32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertOrder {
    /// How many experts there are.
    pub experts: usize,
}

const OP: &str = "expert_order";

impl Operator for ExpertOrder {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "what is chosen")?;
        expect_dtype(OP, &src[0], |d| d == DType::I64)?;
        Ok(Info::plain(DType::I32, vec![src[0].elements()]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        // Nothing is allocated for as many experts as models have.
        let (mut few, mut many) = ([0; 512], Vec::new());
        let ends = match few.get_mut(..self.experts) {
            Some(few) => few,
            None => {
                many.resize(self.experts, 0);
                &mut many
            }
        };
        let places = dst.slice::<i32>(OP)?;
        put(OP, src[0].slice::<i64>(OP)?, ends, |slot, place| places[slot] = place as i32)
    }
}

/// An expert as an index.
pub(super) fn check(op: &'static str, expert: i64, experts: usize) -> Result<usize, GraphError> {
    let out = GraphError::IndexOutOfRange { op, index: expert, extent: experts };
    usize::try_from(expert).ok().filter(|&e| e < experts).ok_or(out)
}

/// Calls `put` with each choice and its place in the order of experts, in which those of one stay in their order; `ends`
/// says of each expert then where its choices end.
pub(super) fn put(
    op: &'static str,
    chosen: &[i64],
    ends: &mut [u32],
    mut put: impl FnMut(usize, u32),
) -> Result<(), GraphError> {
    ends.fill(0);
    for &expert in chosen {
        ends[check(op, expert, ends.len())?] += 1;
    }
    let mut sum = 0;
    for end in ends.iter_mut() {
        // Where they begin, which grows as they are put there.
        (sum, *end) = (sum + *end, sum);
    }
    for (slot, &expert) in chosen.iter().enumerate() {
        let end = &mut ends[check(op, expert, ends.len())?];
        put(slot, *end);
        *end += 1;
    }
    Ok(())
}
