//! Selection along an axis by index.

use core::ops::Range;

use super::concat::stored_dims;
use super::elements::position;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
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
        let positions: Vec<usize> =
            (0..src[1].len()).map(|i| index(&src[1], i, extent)).collect::<Result<_, _>>()?;
        if run == 0 || positions.is_empty() {
            return Ok(());
        }
        for (o, to) in dst.bytes.chunks_exact_mut(run * positions.len()).enumerate().take(outer) {
            let from = &x.bytes[o * extent * run..][..extent * run];
            for (to, &at) in to.chunks_exact_mut(run).zip(&positions) {
                to.copy_from_slice(&from[at * run..][..run]);
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let dims = stored_dims(&cx.src[0]);
        let run = dims[self.axis + 1..].iter().product::<usize>() * cx.dst.dtype.block_bytes();
        Ok(Some(Box::new(Run {
            outer: dims[..self.axis].iter().product(),
            extent: dims[self.axis],
            run,
            dims: cx.src[1].dims.clone(),
            count: cx.src[1].elements(),
            dtype: cx.src[1].dtype,
        })))
    }

    /// Pixels can be chosen in any layout.
    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let picture = cx.dst.dtype == DType::F32 && cx.src[0].dims.len() >= 3;
        if picture && self.axis >= 2 && cx.src[1].dims.len() == 1 {
            LayoutRule::Follow(vec![0])
        } else {
            LayoutRule::Plain
        }
    }
}

/// Index `i`, counted from the front.
fn index(indices: &View<'_>, i: usize, extent: usize) -> Result<usize, GraphError> {
    let index = match indices.dtype {
        DType::I32 => i64::from(indices.slice::<i32>(OP)?[i]),
        _ => indices.slice::<i64>(OP)?[i],
    };
    position(OP, index, extent)
}

/// Copies runs of bytes. A unit is one index in one outer position.
struct Run {
    outer: usize,
    extent: usize,
    run: usize,
    dims: Vec<usize>,
    count: usize,
    dtype: DType,
}

impl Step for Run {
    fn kernel(&self) -> String {
        "gather".to_owned()
    }

    fn units(&self) -> usize {
        self.outer * self.count
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let bytes = self.count * self.dtype.block_bytes();
        // SAFETY: the indices have this many elements, which nobody writes now.
        let bytes = unsafe { core::slice::from_raw_parts(src[1], bytes) };
        let indices = View { dtype: self.dtype, dims: &self.dims, bytes };
        for unit in units {
            let at = index(&indices, unit % self.count, self.extent)?;
            let from = (unit / self.count * self.extent + at) * self.run;
            // SAFETY: the index was checked, so the run lies inside the operand; the result has
            // one run per unit, and they do not overlap.
            unsafe {
                src[0].add(from).copy_to_nonoverlapping(dst.add(unit * self.run), self.run);
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
        assert_eq!(
            (y.dims(), y.as_slice::<f32>().unwrap().to_vec()),
            (vec![3], vec![4.0, 5.0, 6.0])
        );
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
