//! Padding with one value.

use core::ops::Range;

use super::concat::stored_dims;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;
use tilewright_kernels::C_BLOCK;

/// Surrounds the first operand with copies of the second, a single element of the same type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pad {
    /// Elements in front, per axis from the slowest.
    pub before: Vec<usize>,
    /// Elements behind.
    pub after: Vec<usize>,
}

const OP: &str = "pad";

impl Operator for Pad {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "2")?;
        let (x, value) = (&src[0], &src[1]);
        if value.dtype != x.dtype || !x.dtype.is_plain() {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: value.dtype });
        }
        let rank = x.dims.len();
        if value.elements() != 1 || self.before.len() != rank || self.after.len() != rank {
            let rule = "there must be one value, and two pads per dimension";
            let shapes = [("x", &x.dims[..]), ("value", &value.dims), ("pads", &self.before)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        let dims = padded(&x.dims, &self.before, &self.after).ok_or_else(|| {
            GraphError::mismatch(OP, "sizes must not overflow", &[("x", &x.dims)])
        })?;
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, size) = (&src[0], dst.dtype.block_bytes());
        dst.bytes.chunks_exact_mut(size).for_each(|y| y.copy_from_slice(src[1].bytes));
        let Some((&row, outer)) = x.dims.split_last() else {
            dst.bytes.copy_from_slice(x.bytes);
            return Ok(());
        };
        if row == 0 {
            return Ok(());
        }
        for (i, from) in x.bytes.chunks_exact(row * size).enumerate() {
            // Position of the row's first element in the result.
            let (mut rest, mut at, mut stride) = (i, self.before[outer.len()], 1);
            stride *= dst.dims[outer.len()];
            for axis in (0..outer.len()).rev() {
                at += (rest % outer[axis] + self.before[axis]) * stride;
                rest /= outer[axis];
                stride *= dst.dims[axis];
            }
            dst.bytes[at * size..][..row * size].copy_from_slice(from);
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if cx.dst.dims.is_empty() {
            return Ok(None);
        }
        let lanes = if cx.dst.layout == Layout::Blocked { C_BLOCK } else { 1 };
        let size = cx.dst.dtype.block_bytes();
        let (axes, cell) = Axes::of(&cx.src[0], cx.dst, &self.before, lanes * size);
        Ok(Some(Box::new(Run { axes, size, cell })))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        rule(cx, &self.before, &self.after)
    }
}

/// Extents with what is in front and behind; `None` if one is too large.
pub(super) fn padded(dims: &[usize], before: &[usize], after: &[usize]) -> Option<Vec<usize>> {
    let dims = dims.iter().zip(before).zip(after);
    dims.map(|((d, b), a)| d.checked_add(*b)?.checked_add(*a)).collect()
}

/// Pixels can be padded in any layout.
pub(super) fn rule(cx: &RuleCx<'_>, before: &[usize], after: &[usize]) -> LayoutRule {
    let spatial = |pads: &[usize]| pads.len() >= 3 && pads[..2] == [0, 0];
    if cx.dst.dtype == DType::F32 && spatial(before) && spatial(after) {
        LayoutRule::Follow(vec![0])
    } else {
        LayoutRule::Plain
    }
}

/// Extents of what is padded, slowest first, without lanes.
pub(super) struct Axes {
    pub(super) input: Vec<usize>,
    pub(super) output: Vec<usize>,
    pub(super) before: Vec<usize>,
}

impl Axes {
    /// The axes up to the last that is padded, and the bytes of a position of that one, when a position of the very last
    /// has `cell`: what lies behind is moved as a whole.
    pub(super) fn of(x: &Info, y: &Info, before: &[usize], mut cell: usize) -> (Self, usize) {
        let axes = |info: &Info| stored_dims(info)[..info.dims.len()].to_vec();
        let (mut input, mut output, mut before) = (axes(x), axes(y), before.to_vec());
        while input.len() > 1 && input.last() == output.last() {
            cell *= input.pop().unwrap_or(1);
            output.pop();
            before.pop();
        }
        (Self { input, output, before }, cell)
    }
}

/// Copies and fills runs of bytes. A unit is one row of the result, along the last axis.
struct Run {
    axes: Axes,
    /// Bytes of an element, and of a position of the last axis.
    size: usize,
    cell: usize,
}

impl Run {
    /// First byte of the operand's row that result row `unit` holds, if it holds one.
    fn source(&self, mut unit: usize) -> Option<usize> {
        let last = self.axes.output.len() - 1;
        let (mut row, mut stride) = (0, 1);
        for axis in (0..last).rev() {
            let at = (unit % self.axes.output[axis]).checked_sub(self.axes.before[axis])?;
            if at >= self.axes.input[axis] {
                return None;
            }
            row += at * stride;
            stride *= self.axes.input[axis];
            unit /= self.axes.output[axis];
        }
        Some(row * self.axes.input[last] * self.cell)
    }
}

impl Step for Run {
    fn kernel(&self) -> String {
        "pad".to_owned()
    }

    fn units(&self) -> usize {
        self.axes.output[..self.axes.output.len() - 1].iter().product()
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let last = self.axes.output.len() - 1;
        let (row, len) = (self.axes.output[last] * self.cell, self.axes.input[last] * self.cell);
        let start = self.axes.before[last] * self.cell;
        // SAFETY: the value is one element.
        let value = unsafe { core::slice::from_raw_parts(src[1], self.size) };
        let alike = value.windows(2).all(|pair| pair[0] == pair[1]);
        let fill = |part: &mut [u8]| match value.first() {
            // As zeros are, of any size.
            Some(byte) if alike => part.fill(*byte),
            _ => part.chunks_exact_mut(self.size).for_each(|y| y.copy_from_slice(value)),
        };
        for unit in units {
            // SAFETY: the result has one row per unit, which is this call's alone.
            let to = unsafe { core::slice::from_raw_parts_mut(dst.add(unit * row), row) };
            let Some(from) = self.source(unit) else {
                fill(to);
                continue;
            };
            // SAFETY: the row lies inside the operand, as its position was checked on each axis.
            let from = unsafe { core::slice::from_raw_parts(src[0].add(from), len) };
            fill(&mut to[..start]);
            to[start..start + len].copy_from_slice(from);
            fill(&mut to[start + len..]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn pad(
        x: Tensor,
        value: Tensor,
        before: &[usize],
        after: &[usize],
    ) -> Result<Tensor, GraphError> {
        let mut cx = Context::new();
        let (x, value) = (cx.constant(x)?, cx.constant(value)?);
        let op = Pad { before: before.to_vec(), after: after.to_vec() };
        let y = cx.op(op, &[x, value])?;
        Ok(cx.constant_value(y).unwrap().clone())
    }

    #[test]
    fn every_axis() {
        let x = Tensor::from_slice(&[2, 2], &[1i16, 2, 3, 4]).unwrap();
        let value = || Tensor::from_slice(&[], &[9i16]).unwrap();
        let y = pad(x.clone(), value(), &[1, 0], &[0, 2]).unwrap();
        assert_eq!(y.dims(), [3, 4]);
        assert_eq!(y.as_slice::<i16>().unwrap()[..], [9, 9, 9, 9, 1, 2, 9, 9, 3, 4, 9, 9]);
        let none = Tensor::from_slice::<i16>(&[0, 2], &[]).unwrap();
        assert_eq!(pad(none, value(), &[1, 0], &[0, 0]).unwrap().bytes(), [9, 0, 9, 0]);
        let scalar = pad(value(), value(), &[], &[]).unwrap();
        assert_eq!(scalar.dims(), [0usize; 0]);
        assert!(pad(x.clone(), value(), &[1], &[0]).is_err());
        assert!(pad(x.clone(), x.clone(), &[1, 0], &[0, 0]).is_err());
        assert!(pad(x, value(), &[usize::MAX, 0], &[0, 0]).is_err());
    }
}
