//! Joining tensors along an axis.

use core::ops::Range;

use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;
use tilewright_kernels::C_BLOCK;

/// The operands one after the other along an axis; their other extents are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concat {
    /// The axis, from the slowest.
    pub axis: usize,
}

const OP: &str = "concat";

impl Operator for Concat {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=usize::MAX, "1 or more")?;
        let mut dims = src[0].dims.clone();
        if self.axis >= dims.len() || !src[0].dtype.is_plain() {
            return Err(GraphError::mismatch(OP, "the axis must exist", &[("a", &dims)]));
        }
        for s in &src[1..] {
            if s.dtype != src[0].dtype {
                return Err(GraphError::UnsupportedDType { op: OP, dtype: s.dtype });
            }
            let same = s.dims.len() == dims.len()
                && s.dims.iter().zip(&dims).enumerate().all(|(i, (a, b))| i == self.axis || a == b);
            let total = dims[self.axis].checked_add(*s.dims.get(self.axis).unwrap_or(&0));
            let (Some(total), true) = (total, same) else {
                let rule = "all extents but the axis's must be equal";
                return Err(GraphError::mismatch(OP, rule, &[("a", &dims), ("b", &s.dims)]));
            };
            dims[self.axis] = total;
        }
        Ok(Info::plain(src[0].dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let row_of = |dims: &[usize]| dims[self.axis..].iter().product::<usize>();
        let size = dst.dtype.block_bytes();
        let row = row_of(dst.dims) * size;
        if row == 0 {
            return Ok(());
        }
        let mut start = 0;
        for s in src {
            let part = row_of(s.dims) * size;
            if part > 0 {
                let rows = dst.bytes.chunks_exact_mut(row).zip(s.bytes.chunks_exact(part));
                rows.for_each(|(to, from)| to[start..start + part].copy_from_slice(from));
            }
            start += part;
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let size = cx.dst.dtype.block_bytes();
        let dims = stored_dims(cx.dst);
        let rows = dims[..self.axis].iter().product();
        let mut start = 0;
        let mut parts = Vec::new();
        for s in cx.src {
            let len = stored_dims(s)[self.axis..].iter().product::<usize>() * size;
            parts.push((start, len));
            start += len;
        }
        Ok(Some(Box::new(Run { rows, row: start, parts })))
    }

    /// Blocks can be joined like plain elements, unless channels are joined inside a block.
    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let whole = |s: &Info| s.dims[1].is_multiple_of(C_BLOCK);
        let all_but_last = &cx.src[..cx.src.len() - 1];
        if matches!(cx.dst.dtype, DType::F32 | DType::I8 | DType::U8)
            && cx.dst.dims.len() >= 3
            && (self.axis != 1 || all_but_last.iter().all(whole))
        {
            LayoutRule::Follow((0..cx.src.len()).collect())
        } else {
            LayoutRule::Plain
        }
    }
}

/// Extents as the elements lie in memory, slowest first; in a blocked layout the channel axis
/// counts blocks, and the lanes come last.
pub(super) fn stored_dims(info: &Info) -> Vec<usize> {
    let mut dims = info.dims.clone();
    if info.layout == Layout::Blocked {
        dims[1] = dims[1].div_ceil(C_BLOCK);
        dims.push(C_BLOCK);
    }
    dims
}

/// Copies runs of bytes. A unit is one operand's part of one row.
struct Run {
    rows: usize,
    /// Bytes of a row of the result.
    row: usize,
    /// Where each operand's part starts in a row, and its bytes.
    parts: Vec<(usize, usize)>,
}

impl Step for Run {
    fn kernel(&self) -> String {
        "concat".to_owned()
    }

    fn units(&self) -> usize {
        self.rows * self.parts.len()
    }

    fn part(&self, i: usize) -> Option<usize> {
        (self.rows == 1).then(|| self.parts[i].0)
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        for unit in units {
            let (row, part) = (unit / self.parts.len(), unit % self.parts.len());
            let (start, len) = self.parts[part];
            // SAFETY: operand `part` has `rows` runs of `len` bytes, the result `rows` rows in
            // which this part lies; both hold what their extents say, and they do not overlap, unless
            // the operand is the part.
            unsafe {
                let (from, to) = (src[part].add(row * len), dst.add(row * self.row + start));
                if !core::ptr::eq(from, to) {
                    from.copy_to_nonoverlapping(to, len);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn middle_axis_and_empty_parts() {
        let mut cx = Context::new();
        let a = cx.constant(Tensor::from_slice(&[2, 1, 2], &[1i32, 2, 3, 4]).unwrap()).unwrap();
        let b =
            cx.constant(Tensor::from_slice(&[2, 2, 2], &[5i32, 6, 7, 8, 9, 10, 11, 12]).unwrap());
        let none = cx.constant(Tensor::from_slice::<i32>(&[2, 0, 2], &[]).unwrap()).unwrap();
        let y = cx.op(Concat { axis: 1 }, &[a, none, b.unwrap()]).unwrap();
        let y = cx.constant_value(y).unwrap();
        assert_eq!(y.dims(), [2, 3, 2]);
        let want = [1, 2, 5, 6, 7, 8, 3, 4, 9, 10, 11, 12];
        assert_eq!(y.as_slice::<i32>().unwrap()[..], want);
    }

    #[test]
    fn other_extents_must_agree() {
        let mut cx = Context::new();
        let a = cx.constant(Tensor::from_slice(&[1, 2], &[1i32, 2]).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[1, 3], &[1i32, 2, 3]).unwrap()).unwrap();
        assert!(cx.op(Concat { axis: 1 }, &[a, b]).is_ok());
        let text = cx.op(Concat { axis: 0 }, &[a, b]).unwrap_err().to_string();
        assert!(text.contains("[1, 2]") && text.contains("[1, 3]"), "{text}");
        assert!(cx.op(Concat { axis: 2 }, &[a, b]).is_err());
    }
}
