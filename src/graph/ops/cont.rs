//! Dense copies of strided views.

use core::ops::Range;

use tilewright_kernels::template::layout::{LayoutOp, LayoutParams, LayoutPlan};

use super::plan_step::PlanStep;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::{DType, Shape};

/// Copies a tensor with any strides to a dense one. Block-quantised types must be dense already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cont;

impl Operator for Cont {
    fn name(&self) -> &'static str {
        "cont"
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands("cont", src, 1..=1, "1")?;
        Ok(src[0].clone())
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        dst.bytes.copy_from_slice(src[0].bytes);
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let copy = StridedCopy::new(cx.dst.dtype, &cx.shapes[0])?;
        Ok(Some(match copy.planes() {
            // Whole planes, dense in operand and result; the kernel moves four-byte elements of
            // any type without looking at them.
            Some(params) => Box::new(PlanStep(LayoutPlan::new(cx.isa, &params)?)),
            None => Box::new(copy),
        }))
    }
}

/// A copy plan: loops from the slowest to the fastest, with neighbours that run on merged.
pub(crate) struct StridedCopy {
    /// Extents of the loops around a row, slowest first.
    outer: Vec<usize>,
    /// Source byte strides of those loops.
    strides: Vec<usize>,
    /// Elements in a row.
    row: usize,
    /// Source bytes between elements of a row.
    step: usize,
    element: usize,
}

impl StridedCopy {
    pub(crate) fn new(dtype: DType, shape: &Shape) -> Result<Self, GraphError> {
        if !dtype.is_plain() {
            return Err(GraphError::UnsupportedDType { op: "cont", dtype });
        }
        let element = dtype.block_bytes();
        let mut loops: Vec<(usize, usize)> = Vec::new();
        for (extent, stride) in shape.dims().into_iter().zip(shape.strides()) {
            match loops.last_mut() {
                _ if extent == 1 => {}
                Some((e, s)) if *s == extent * stride => (*e, *s) = (*e * extent, stride),
                _ => loops.push((extent, stride)),
            }
        }
        let (row, step) = loops.pop().unwrap_or((1, element));
        let (outer, strides) = loops.into_iter().unzip();
        Ok(Self { outer, strides, row, step, element })
    }

    /// The copy as a transposition of dense planes of four-byte elements, if it is one.
    fn planes(&self) -> Option<LayoutParams> {
        let (&h, outer) = self.outer.split_last()?;
        let (&across, strides) = self.strides.split_last()?;
        let plane = self.row * h * self.element;
        let dense =
            outer.iter().zip(strides).rev().try_fold(plane, |expected, (extent, stride)| {
                (*stride == expected).then_some(extent * stride)
            });
        let transposed = self.element == 4
            && across == self.element
            && self.step == h * self.element
            && dense.is_some()
            && self.row > 1;
        let n = outer.iter().product();
        transposed.then_some(LayoutParams { op: LayoutOp::NchwToNhwc, n, c: self.row, h, w: 1 })
    }

    fn rows(&self) -> usize {
        self.outer.iter().product()
    }

    /// Byte offset of a row in the source.
    fn row_offset(&self, mut row: usize) -> usize {
        let mut offset = 0;
        for (extent, stride) in self.outer.iter().zip(&self.strides).rev() {
            offset += row % extent * stride;
            row /= extent;
        }
        offset
    }

    /// Copies everything; `src` begins at the view's first element.
    pub(crate) fn copy(&self, src: &[u8], dst: &mut [u8]) {
        let bytes = self.row * self.element;
        for row in 0..if bytes == 0 { 0 } else { self.rows() } {
            self.copy_row(&src[self.row_offset(row)..], &mut dst[row * bytes..][..bytes]);
        }
    }

    fn copy_row(&self, src: &[u8], dst: &mut [u8]) {
        if self.step == self.element {
            dst.copy_from_slice(&src[..dst.len()]);
            return;
        }
        match self.element {
            1 => gather::<1>(src, self.step, dst),
            2 => gather::<2>(src, self.step, dst),
            4 => gather::<4>(src, self.step, dst),
            _ => gather::<8>(src, self.step, dst),
        }
    }
}

/// Copies every `step`-th group of `N` bytes.
fn gather<const N: usize>(src: &[u8], step: usize, dst: &mut [u8]) {
    for (i, out) in dst.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        out.copy_from_slice(&src[i * step..][..N]);
    }
}

impl Step for StridedCopy {
    fn kernel(&self) -> String {
        format!("copy_{}b", self.element)
    }

    fn units(&self) -> usize {
        self.rows()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let bytes = self.row * self.element;
        if bytes == 0 {
            return Ok(());
        }
        let reach = (self.row - 1) * self.step + self.element;
        for row in units {
            // SAFETY: the source holds the view this plan was made from, so a row's bytes lie
            // inside it; the result is dense, and a row of it belongs to this unit alone.
            let (from, to) = unsafe {
                (
                    core::slice::from_raw_parts(src[0].add(self.row_offset(row)), reach),
                    core::slice::from_raw_parts_mut(dst.add(row * bytes), bytes),
                )
            };
            self.copy_row(from, to);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(shape: &Shape, data: &[u16]) -> Vec<u16> {
        let mut out = vec![0u16; shape.elements()];
        let plan = StridedCopy::new(DType::I16, shape).unwrap();
        plan.copy(bytemuck::cast_slice(data), bytemuck::cast_slice_mut(&mut out));
        out
    }

    #[test]
    fn permuted_and_broadcast_views() {
        let data: Vec<u16> = (0..24).collect();
        let shape = Shape::contiguous(DType::I16, &[2, 3, 4]).unwrap();
        let t = shape.transposed(&[2, 0, 1]).unwrap();
        let want: Vec<u16> = (0..4)
            .flat_map(|k| (0..2).flat_map(move |i| (0..3).map(move |j| i * 12 + j * 4 + k)))
            .collect();
        assert_eq!(copied(&t, &data), want);
        let wide = Shape::strided(DType::I16, &[2, 3], &[0, 2]).unwrap();
        assert_eq!(copied(&wide, &data), [0, 1, 2, 0, 1, 2]);
        let column = Shape::strided(DType::I16, &[3, 2], &[2, 0]).unwrap();
        assert_eq!(copied(&column, &data), [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn transpositions_are_recognised() {
        let plan = |dims: &[usize], axes: &[usize]| {
            let shape = Shape::contiguous(DType::F32, dims).unwrap().transposed(axes).unwrap();
            let copy = StridedCopy::new(DType::F32, &shape).unwrap();
            copy.planes().map(|p| (p.n, p.c, p.h))
        };
        assert_eq!(plan(&[2, 3, 5, 4], &[0, 2, 3, 1]), Some((2, 3, 20)));
        assert_eq!(plan(&[2, 5, 4, 3], &[0, 3, 1, 2]), Some((2, 20, 3)));
        assert_eq!(plan(&[2, 3, 4], &[0, 2, 1]), Some((2, 3, 4)));
        assert_eq!(plan(&[2, 3, 4], &[1, 2, 0]), Some((1, 2, 12)));
        assert_eq!(plan(&[2, 3, 4], &[1, 0, 2]), None);
        assert_eq!(plan(&[2, 3, 4], &[2, 1, 0]), None);
    }

    #[test]
    fn dense_loops_merge() {
        let shape = Shape::contiguous(DType::I16, &[2, 3, 1, 4]).unwrap();
        let plan = StridedCopy::new(DType::I16, &shape).unwrap();
        assert_eq!((plan.rows(), plan.row), (1, 24));
    }
}
