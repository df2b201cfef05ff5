//! Indices as rows with one element set.

use super::elements::{checked_count, expect_dtype, position};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Adds an axis, along which the element that an index (`i64`; negative ones count from the end)
/// names has the second of two values, and all others the first, as ONNX `OneHot`. An index that
/// is out of range names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneHot {
    /// Where the axis stands in the result.
    pub axis: usize,
    /// Its extent.
    pub depth: usize,
}

const OP: &str = "one_hot";

impl Operator for OneHot {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (indices, values) = (&src[0], &src[1]);
        expect_dtype(OP, indices, |d| d == DType::I64)?;
        expect_dtype(OP, values, |_| true)?;
        if values.dims != [2] || self.axis > indices.dims.len() {
            let rule = "there must be two values, and the axis must exist in the result";
            let shapes = [("indices", &indices.dims[..]), ("values", &values.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        let mut dims = indices.dims.clone();
        dims.insert(self.axis, self.depth);
        checked_count(OP, &dims)?;
        Ok(Info::plain(values.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let size = dst.dtype.block_bytes();
        let (off, on) = src[1].bytes.split_at(size);
        // What is filled is copied behind itself, twice as much each time.
        let mut filled = size.min(dst.bytes.len());
        dst.bytes[..filled].copy_from_slice(&off[..filled]);
        while filled < dst.bytes.len() {
            let count = filled.min(dst.bytes.len() - filled);
            dst.bytes.copy_within(..count, filled);
            filled += count;
        }
        let inner: usize = src[0].dims[self.axis..].iter().product();
        for (i, &index) in src[0].slice::<i64>(OP)?.iter().enumerate() {
            if let Ok(at) = position(OP, index, self.depth) {
                let to = (i / inner * self.depth + at) * inner + i % inner;
                dst.bytes[to * size..][..size].copy_from_slice(on);
            }
        }
        Ok(())
    }
}
