//! Selection along an axis by index.

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// Slices of the first operand along an axis, chosen by the second (`i64` or `i32`; negative
/// indices count from the end), as ONNX `Gather`: the extents of the indices stand in place of
/// the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The axis, from the slowest.
    pub axis: usize,
}

const OP: &str = "gather";

impl Operator for Gather {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, indices) = (&src[0], &src[1]);
        if !matches!(indices.dtype, DType::I64 | DType::I32) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: indices.dtype });
        }
        if self.axis >= x.dims.len() || !x.dtype.is_plain() {
            return Err(GraphError::mismatch(OP, "the axis must exist", &[("x", &x.dims)]));
        }
        let (before, after) = (&x.dims[..self.axis], &x.dims[self.axis + 1..]);
        Ok(Info::plain(x.dtype, [before, &indices.dims, after].concat()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x = &src[0];
        let extent = x.dims[self.axis];
        let run = x.dims[self.axis + 1..].iter().product::<usize>() * x.dtype.block_bytes();
        let outer: usize = x.dims[..self.axis].iter().product();
        let mut at = 0;
        for o in 0..outer {
            for i in 0..src[1].len() {
                let from = (o * extent + index(&src[1], i, extent)?) * run;
                dst.bytes[at..at + run].copy_from_slice(&x.bytes[from..from + run]);
                at += run;
            }
        }
        Ok(())
    }
}

/// Index `i`, counted from the front.
fn index(indices: &View<'_>, i: usize, extent: usize) -> Result<usize, GraphError> {
    let index = match indices.dtype {
        DType::I32 => i64::from(indices.slice::<i32>(OP)?[i]),
        _ => indices.slice::<i64>(OP)?[i],
    };
    let from_front = if index < 0 { index.checked_add(extent as i64) } else { Some(index) };
    from_front
        .and_then(|at| usize::try_from(at).ok())
        .filter(|&at| at < extent)
        .ok_or(GraphError::IndexOutOfRange { op: OP, index, extent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn gather(axis: usize, indices: Tensor) -> Result<Tensor, GraphError> {
        let mut cx = Context::new();
        let x = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
        let (x, indices) = (cx.constant(x)?, cx.constant(indices)?);
        let y = cx.op(Gather { axis }, &[x, indices])?;
        Ok(cx.constant_value(y).unwrap().clone())
    }

    #[test]
    fn indices_replace_the_axis() {
        let y = gather(1, Tensor::from_slice(&[2, 2], &[0i64, -1, 1, 1]).unwrap()).unwrap();
        assert_eq!(y.dims(), [2, 2, 2]);
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [1.0, 3.0, 2.0, 2.0, 4.0, 6.0, 5.0, 5.0]);
        let y = gather(0, Tensor::from_slice(&[], &[-1i32]).unwrap()).unwrap();
        assert_eq!((y.dims(), y.as_slice::<f32>().unwrap().to_vec()), (vec![3], vec![4.0, 5.0, 6.0]));
    }

    #[test]
    fn indices_are_checked() {
        for index in [2i64, -3, i64::MIN, i64::MAX] {
            let e = gather(0, Tensor::from_slice(&[1], &[index]).unwrap()).unwrap_err();
            assert_eq!(e, GraphError::IndexOutOfRange { op: OP, index, extent: 2 });
        }
        assert!(gather(2, Tensor::from_slice(&[1], &[0i64]).unwrap()).is_err());
        assert!(gather(0, Tensor::from_slice(&[1], &[0f32]).unwrap()).is_err());
    }
}
