//! Selection of single elements along an axis.

use core::ops::Range;

use super::elements::{expect_dtype, integers, is_index, position, row_start, strides, unravel};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// The element at the same position as each index (`i64` or `i32`; negative ones count from the
/// end), but for `axis`, where the index stands, as ONNX `GatherElements`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherElements {
    /// The axis, from the slowest.
    pub axis: usize,
}

const OP: &str = "gather_elements";

/// Whether positions of `indices` are positions of `x`, but along `axis`.
pub(super) fn fits(x: &[usize], indices: &[usize], axis: usize) -> bool {
    let inside = |(i, (x, n)): (usize, (&usize, &usize))| i == axis || n <= x;
    x.len() == indices.len() && axis < x.len() && x.iter().zip(indices).enumerate().all(inside)
}

impl Operator for GatherElements {
    fn name(&self) -> &'static str {
        OP
    }

    fn looks_up(&self) -> bool {
        true
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, indices) = (&src[0], &src[1]);
        expect_dtype(OP, x, |_| true)?;
        expect_dtype(OP, indices, is_index)?;
        if !fits(&x.dims, &indices.dims, self.axis) {
            let rule = "the indices must lie within x but for an existing axis";
            let shapes = [("x", &x.dims[..]), ("indices", &indices.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(x.dtype, indices.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, size) = (&src[0], dst.dtype.block_bytes());
        let (steps, mut at) = (strides(x.dims), vec![0; x.dims.len()]);
        let indices = integers(&src[1], OP)?.into_iter().enumerate();
        for ((i, index), y) in indices.zip(dst.bytes.chunks_exact_mut(size)) {
            unravel(i, src[1].dims, &mut at);
            at[self.axis] = position(OP, index, x.dims[self.axis])?;
            let from: usize = at.iter().zip(&steps).map(|(a, s)| a * s).sum();
            y.copy_from_slice(&x.bytes[from * size..][..size]);
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let (x, indices) = (&cx.src[0].dims, &cx.src[1].dims);
        let size = cx.dst.dtype.block_bytes();
        if !cfg!(feature = "ops-more") || !matches!(size, 1 | 2 | 4 | 8) {
            return Ok(None);
        }
        let row = indices[indices.len() - 1];
        Ok(Some(Box::new(Run {
            rows: indices.iter().product::<usize>().checked_div(row).unwrap_or(0),
            dims: indices.clone(),
            row,
            strides: strides(x),
            axis: self.axis,
            extent: x[self.axis],
            size,
            index: cx.src[1].dtype,
        })))
    }
}

/// A unit is a row of the last axis.
struct Run {
    rows: usize,
    /// Extents of the indices.
    dims: Vec<usize>,
    row: usize,
    /// Of the other operand, in elements.
    strides: Vec<usize>,
    axis: usize,
    extent: usize,
    /// Bytes of an element.
    size: usize,
    index: DType,
}

impl Step for Run {
    fn kernel(&self) -> String {
        format!("{OP}_{}b", self.size)
    }

    fn units(&self) -> usize {
        self.rows
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the caller's duties are those of the function.
        unsafe {
            match self.size {
                1 => self.copy::<u8>(src, dst, units),
                2 => self.copy::<u16>(src, dst, units),
                4 => self.copy::<u32>(src, dst, units),
                _ => self.copy::<u64>(src, dst, units),
            }
        }
    }
}

impl Run {
    /// # Safety
    /// As of [`Step::run`], for elements of the size of `T`.
    #[allow(unsafe_code)]
    unsafe fn copy<T: Copy>(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        for unit in units {
            let (start, own) = row_start(unit, &self.dims, &self.strides, self.axis);
            for j in unit * self.row..(unit + 1) * self.row {
                // SAFETY: the indices have this many elements of this type, aligned.
                let index = unsafe {
                    match self.index {
                        DType::I32 => i64::from(*src[1].cast::<i32>().add(j)),
                        _ => *src[1].cast::<i64>().add(j),
                    }
                };
                let at = position(OP, index, self.extent)? * self.strides[self.axis];
                let from = start + at + (j - unit * self.row) * own;
                // SAFETY: the index was checked, and those along other axes are below the operand's
                // extents; the result has an element for each index, this row's are this call's alone.
                unsafe { *dst.cast::<T>().add(j) = *src[0].cast::<T>().add(from) };
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
    #[cfg(feature = "ops-more")]
    fn rows_as_by_the_definition() {
        use crate::graph::ops::elements::as_defined;

        let x: Vec<f32> = (0..120).map(|i| i as f32).collect();
        let x = Tensor::from_slice(&[4, 5, 6], &x).unwrap();
        for (axis, dims) in [(0, [7, 5, 6]), (1, [4, 3, 2]), (2, [1, 5, 9]), (1, [4, 0, 6])] {
            let extent = [4, 5, 6][axis];
            let all = 0..dims.iter().product::<usize>() as i64;
            let long: Vec<i64> = all.clone().map(|i| i * 7 % (2 * extent) - extent).collect();
            let short: Vec<i32> = long.iter().map(|&i| i as i32).collect();
            let op = GatherElements { axis };
            for indices in [Tensor::from_slice(&dims, &long), Tensor::from_slice(&dims, &short)] {
                let kernel = as_defined(&op, &[x.clone(), indices.unwrap()]);
                let expected = if all.is_empty() { "reference" } else { "gather_elements_4b" };
                assert_eq!(kernel, expected);
            }
        }
        let bytes = Tensor::from_slice(&[3], &[7i8, 8, 9]).unwrap();
        let indices = Tensor::from_slice(&[2], &[2i64, -3]).unwrap();
        assert_eq!(
            as_defined(&GatherElements { axis: 0 }, &[bytes, indices]),
            "gather_elements_1b"
        );
    }

    #[test]
    fn indices_are_checked() {
        let mut cx = Context::new();
        let x = Tensor::from_slice(&[2, 3], &[1i16, 2, 3, 4, 5, 6]).unwrap();
        let x = cx.constant(x).unwrap();
        let mut run = |axis, dims: &[usize], v: &[i64]| {
            let i = cx.constant(Tensor::from_slice(dims, v)?)?;
            let y = cx.op(GatherElements { axis }, &[x, i])?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<i16>()?.to_vec())
        };
        assert_eq!(run(1, &[2, 2], &[0, -1, 2, 1]).unwrap(), [1, 3, 6, 5]);
        assert_eq!(run(0, &[1, 2], &[1, 0]).unwrap(), [4, 2]);
        assert!(run(1, &[1, 1], &[3]).is_err() && run(1, &[1, 1], &[i64::MIN]).is_err());
        assert!(run(1, &[3, 1], &[0; 3]).is_err() && run(2, &[1, 1], &[0]).is_err());
    }
}
