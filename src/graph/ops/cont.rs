//! Dense copies of strided views.

use core::ops::Range;

use tilewright_kernels::template::byte_turns::ByteTurns;
use tilewright_kernels::template::layout::{LayoutOp, LayoutParams, LayoutPlan};
use tilewright_kernels::template::strided::copy_strided;

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
        let mut copy = StridedCopy::new(cx.dst.dtype, &cx.shapes[0])?;
        copy.turns = ByteTurns::new(cx.isa)?;
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
    turns: ByteTurns,
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
        Ok(Self { outer, strides, row, step, element, turns: ByteTurns::PORTABLE })
    }

    /// The copy as a transposition of dense planes of four-byte elements, if it is one.
    fn planes(&self) -> Option<LayoutParams> {
        let [n, h, c] = self.transposed().filter(|_| self.element == 4)?;
        Some(LayoutParams { op: LayoutOp::NchwToNhwc, n, c, h, w: 1 })
    }

    /// The extents of the result, if the copy transposes so many dense planes; both extents of a plane are more
    /// than 1.
    pub(in crate::graph) fn transposed(&self) -> Option<[usize; 3]> {
        let (&h, outer) = self.outer.split_last()?;
        let (&across, strides) = self.strides.split_last()?;
        let plane = self.row * h * self.element;
        let dense =
            outer.iter().zip(strides).rev().try_fold(plane, |expected, (extent, stride)| {
                (*stride == expected).then_some(extent * stride)
            });
        let transposed = across == self.element
            && self.step == h * self.element
            && dense.is_some()
            && self.row > 1;
        transposed.then(|| [outer.iter().product(), h, self.row])
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
        if !dst.is_empty() {
            self.copy_rows(0..self.rows(), src, dst);
        }
    }

    /// Copies some rows; `src` is the whole view, `dst` their places alone.
    fn copy_rows(&self, rows: Range<usize>, src: &[u8], dst: &mut [u8]) {
        let bytes = self.row * self.element;
        let height = self.outer.last().copied().unwrap_or(1);
        let (mut at, mut dst) = (rows.start, dst);
        // Where rows lie is asked once for all up to the end of the loop around them.
        while at < rows.end {
            let count = (height - at % height).min(rows.end - at);
            let (now, rest) = dst.split_at_mut(count * bytes);
            self.copy_block(&src[self.row_offset(at)..], now);
            (at, dst) = (at + count, rest);
        }
    }

    /// Copies rows that are equally far apart.
    fn copy_block(&self, src: &[u8], dst: &mut [u8]) {
        let across = self.strides.last().copied().unwrap_or(0);
        let apart = [across, self.step];
        // A row without gaps is one element.
        let (size, row) = match self.element {
            element if element == self.step => (self.row * element, 1),
            element => (element, self.row),
        };
        copy_strided(self.turns, size, row, src, apart, dst);
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
        if bytes == 0 || units.is_empty() {
            return Ok(());
        }
        let reach: usize = self.outer.iter().zip(&self.strides).map(|(n, s)| (n - 1) * s).sum();
        let reach = reach + (self.row - 1) * self.step + self.element;
        // SAFETY: the source holds the view this plan was made from, whose last byte is that of the last rows
        // of all loops; the result is dense, and these rows of it belong to these units alone.
        let (from, to) = unsafe {
            (
                core::slice::from_raw_parts(src[0], reach),
                core::slice::from_raw_parts_mut(dst.add(units.start * bytes), units.len() * bytes),
            )
        };
        self.copy_rows(units, from, to);
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
    fn bytes_are_transposed() {
        for [h, w] in [
            [8, 8],
            [7, 40],
            [40, 7],
            [16, 9],
            [9, 16],
            [33, 70],
            [8, 1],
            [1, 8],
            [100, 24],
            [4, 30],
            [30, 4],
            [5, 6],
            [12, 13],
            [3, 2],
        ] {
            let data: Vec<u8> = (0..2 * h * w).map(|i| (i * 7 % 251) as u8).collect();
            let shape = Shape::contiguous(DType::U8, &[2, h, w]).unwrap().transposed(&[0, 2, 1]);
            let mut out = vec![0u8; data.len()];
            StridedCopy::new(DType::U8, &shape.unwrap()).unwrap().copy(&data, &mut out);
            for (i, &found) in out.iter().enumerate() {
                let (n, x, y) = (i / (h * w), i / h % w, i % h);
                assert_eq!(found, data[(n * h + y) * w + x], "{h} {w} {i}");
            }
        }
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

    #[test]
    fn short_rows_of_many_lines() {
        let data: Vec<u16> = (0..3 * 9000).collect();
        let t = Shape::contiguous(DType::I16, &[3, 9000]).unwrap().transposed(&[1, 0]).unwrap();
        let wanted: Vec<u16> = (0..3 * 9000).map(|i| i % 3 * 9000 + i / 3).collect();
        assert_eq!(copied(&t, &data), wanted);
    }

    #[test]
    fn all_orders_of_axes_in_parts() {
        let (dims, data) = ([5, 2, 3, 7], (0..210).collect::<Vec<u16>>());
        let strides = [42, 21, 7, 1];
        for code in 0..256 {
            let axes = [code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6];
            if (0..4).any(|a| !axes.contains(&a)) {
                continue;
            }
            let shape = Shape::contiguous(DType::I16, &dims).unwrap().transposed(&axes).unwrap();
            let wanted: Vec<u16> = (0..210)
                .map(|i| {
                    let mut rest = i;
                    let places = axes.iter().rev().map(|&axis| {
                        let at = rest % dims[axis];
                        rest /= dims[axis];
                        at * strides[axis]
                    });
                    data[places.sum::<usize>()]
                })
                .collect();
            assert_eq!(copied(&shape, &data), wanted, "{axes:?}");
            let plan = StridedCopy::new(DType::I16, &shape).unwrap();
            let (rows, mut out) = (plan.rows(), vec![0u16; 210]);
            for part in [0..rows / 3, rows / 3..rows - rows / 4, rows - rows / 4..rows] {
                let place = part.start * plan.row..part.end * plan.row;
                let to = bytemuck::cast_slice_mut(&mut out[place]);
                plan.copy_rows(part, bytemuck::cast_slice(&data), to);
            }
            assert_eq!(out, wanted, "{axes:?} in parts");
        }
    }
}
