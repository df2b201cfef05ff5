//! Reversal of sequences of different lengths.

use super::elements::{expect_dtype, integers, is_index, strides, unravel};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// Along the time axis the first elements in reverse, as many as the second operand (`i64` or
/// `i32`, one for each index of the batch axis) says, as ONNX `ReverseSequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReverseSequence {
    /// The axis of sequences.
    pub batch: usize,
    /// The axis of elements of a sequence.
    pub time: usize,
}

const OP: &str = "reverse_sequence";

impl Operator for ReverseSequence {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, lengths) = (&src[0], &src[1]);
        expect_dtype(OP, x, |_| true)?;
        expect_dtype(OP, lengths, is_index)?;
        let count = x.dims.get(self.batch);
        let one_each = count.is_some_and(|&n| lengths.dims == [n]);
        if !one_each || self.time >= x.dims.len() || self.time == self.batch {
            let rule = "batch and time must be two axes, with a length for each sequence";
            let shapes = [("x", &x.dims[..]), ("lengths", &lengths.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (dims, size) = (src[0].dims, dst.dtype.block_bytes());
        let extent = dims[self.time];
        let lengths = integers(&src[1], OP)?;
        let lengths = lengths.into_iter().map(|length| {
            let known = usize::try_from(length).ok().filter(|&n| n <= extent);
            known.ok_or(GraphError::IndexOutOfRange { op: OP, index: length, extent })
        });
        let lengths = lengths.collect::<Result<Vec<_>, _>>()?;
        if dst.bytes.is_empty() {
            return Ok(());
        }
        // What lies behind both axes moves together.
        let (outer, inner) = dims.split_at(self.time.max(self.batch) + 1);
        let run = size * inner.iter().product::<usize>();
        let (steps, mut at) = (strides(outer), vec![0; outer.len()]);
        for (i, y) in dst.bytes.chunks_exact_mut(run).enumerate() {
            unravel(i, outer, &mut at);
            let length = lengths[at[self.batch]];
            if at[self.time] < length {
                at[self.time] = length - 1 - at[self.time];
            }
            let from: usize = at.iter().zip(&steps).map(|(a, s)| a * s).sum();
            y.copy_from_slice(&src[0].bytes[from * run..][..run]);
        }
        Ok(())
    }
}
