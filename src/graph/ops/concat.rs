//! Joining tensors along an axis.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

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
        let b = cx.constant(Tensor::from_slice(&[2, 2, 2], &[5i32, 6, 7, 8, 9, 10, 11, 12]).unwrap());
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
