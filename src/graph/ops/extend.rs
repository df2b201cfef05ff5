//! Padding with elements of the tensor.

use core::ops::Range;

use super::pad::Axes;
use super::{LayoutRule, Operator, RuleCx, expect_operands, pad};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use tilewright_kernels::C_BLOCK;
use tilewright_kernels::template::strided::copy_chosen;

/// Which elements stand around a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extension {
    /// The outermost one, again and again.
    Edge,
    /// Back and forth, without repeating the outermost.
    Reflect,
    /// From the other end.
    Wrap,
}

impl Extension {
    /// Which of `extent` elements, at least one, stands at position `i` behind the first of `before`.
    pub(crate) fn source(self, i: usize, before: usize, extent: usize) -> usize {
        match self {
            _ if (before..before.saturating_add(extent)).contains(&i) => i - before,
            // Once, as nearly all do.
            Self::Reflect if i < before && before - i < extent => before - i,
            Self::Reflect if extent > 1 => {
                let period = 2 * (extent - 1);
                let at = (i + period - before % period) % period;
                at.min(period - at)
            }
            Self::Wrap => (i + extent - before % extent) % extent,
            _ => i.saturating_sub(before).min(extent - 1),
        }
    }
}

/// Surrounds a tensor with its own elements, axis by axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extend {
    /// Which elements.
    pub mode: Extension,
    /// Elements in front, per axis from the slowest.
    pub before: Vec<usize>,
    /// Elements behind.
    pub after: Vec<usize>,
}

const OP: &str = "extend";

impl Extend {
    fn run(&self, x: &Info, dst: &Info) -> Run {
        let lanes = if dst.layout == Layout::Blocked { C_BLOCK } else { 1 };
        let cell = lanes * dst.dtype.block_bytes();
        let (mut axes, cell) = Axes::of(x, dst, &self.before, cell);
        if axes.input.len() == 1 {
            axes.input.insert(0, 1);
            axes.output.insert(0, 1);
            axes.before.insert(0, 0);
        }
        Run { mode: self.mode, axes, cell }
    }
}

impl Operator for Extend {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        if !x.dtype.is_plain() {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: x.dtype });
        }
        let wrong =
            |rule| GraphError::mismatch(OP, rule, &[("x", &x.dims), ("pads", &self.before)]);
        let rank = x.dims.len();
        if rank == 0 || self.before.len() != rank || self.after.len() != rank {
            return Err(wrong("there must be two pads per dimension"));
        }
        let mut axes = x.dims.iter().zip(self.before.iter().zip(&self.after));
        if axes.any(|(&d, pads)| d == 0 && pads != (&0, &0)) {
            return Err(wrong("an axis without elements cannot be extended"));
        }
        let dims = pad::padded(&x.dims, &self.before, &self.after);
        Ok(Info::plain(x.dtype, dims.ok_or_else(|| wrong("sizes must not overflow"))?))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let info = |dims: &[usize]| Info::plain(dst.dtype, dims.to_vec());
        if !dst.bytes.is_empty() {
            let run = self.run(&info(src[0].dims), &info(dst.dims));
            run.fill(src[0].bytes, dst.bytes, 0);
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        Ok(Some(Box::new(self.run(&cx.src[0], cx.dst))))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        pad::rule(cx, &self.before, &self.after)
    }
}

/// Copies rows with what stands on both sides of them. A unit is one row of the result, along the last axis.
struct Run {
    mode: Extension,
    /// Two at least.
    axes: Axes,
    /// Bytes of a position of the last axis.
    cell: usize,
}

impl Run {
    /// Bytes of a row of the operand, and of the result.
    fn rows(&self) -> (usize, usize) {
        let bytes = |dims: &[usize]| dims[dims.len() - 1] * self.cell;
        (bytes(&self.axes.input), bytes(&self.axes.output))
    }

    /// The first row of what plane `plane` of the result, its last two axes, is made of.
    fn source(&self, mut plane: usize) -> usize {
        let planes = self.axes.output.len() - 2;
        let (mut from, mut stride) = (0, self.axes.input[planes]);
        for axis in (0..planes).rev() {
            let (at, extent) = (plane % self.axes.output[axis], self.axes.input[axis]);
            from += self.mode.source(at, self.axes.before[axis], extent) * stride;
            stride *= extent;
            plane /= self.axes.output[axis];
        }
        from
    }

    /// Rows of the result, as many as `to` holds and from row `first`, out of the whole operand.
    fn fill(&self, x: &[u8], to: &mut [u8], first: usize) {
        let (bytes, row) = self.rows();
        let last = self.axes.input.len() - 1;
        let (height, rows) = (self.axes.output[last - 1], self.axes.input[last - 1]);
        let (above, before) = (self.axes.before[last - 1], self.axes.before[last]);
        let (width, extent) = (self.axes.output[last], self.axes.input[last]);
        // What stands before and behind a row is found once for all rows, of which nearly all have few such positions.
        let behind = before + extent..width;
        let parts = before.max(behind.len()).div_ceil(AT_ONCE).max(1);
        for part in 0..parts {
            let sides = [0..before, behind.clone()].map(|all| {
                let from = (all.start + part * AT_ONCE).min(all.end);
                from..(from + AT_ONCE).min(all.end)
            });
            let mut places = [[0; AT_ONCE]; 2];
            for (places, side) in places.iter_mut().zip(&sides) {
                let each = places.iter_mut().zip(side.clone());
                each.for_each(|(place, i)| *place = self.mode.source(i, before, extent));
            }
            let mut plane = None;
            for (to, i) in to.chunks_exact_mut(row).zip(first..) {
                let at = i % height;
                let plane = match plane {
                    Some(plane) if at > 0 => plane,
                    _ => *plane.insert(self.source(i / height)),
                };
                let x = &x[(plane + self.mode.source(at, above, rows)) * bytes..][..bytes];
                if part == 0 {
                    to[before * self.cell..][..bytes].copy_from_slice(x);
                }
                for (places, side) in places.iter().zip(&sides) {
                    let to = &mut to[side.start * self.cell..side.end * self.cell];
                    copy_chosen(self.cell, &places[..side.len()], x, to);
                }
            }
        }
    }
}

/// Positions of a row that are looked at together.
const AT_ONCE: usize = 64;

impl Step for Run {
    fn kernel(&self) -> String {
        OP.to_owned()
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
        let (from, to) = self.rows();
        let rows: usize = self.axes.input[..self.axes.input.len() - 1].iter().product();
        // SAFETY: the operand has this many bytes, which nobody writes now; the result has one row per unit, and these
        // are this call's alone.
        let (x, y) = unsafe {
            (
                core::slice::from_raw_parts(src[0], rows * from),
                core::slice::from_raw_parts_mut(dst.add(units.start * to), units.len() * to),
            )
        };
        self.fill(x, y, units.start);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn row(mode: Extension, before: usize, extent: usize, after: usize) -> Vec<usize> {
        (0..before + extent + after).map(|i| mode.source(i, before, extent)).collect()
    }

    #[test]
    fn modes_as_numpy_pads() {
        assert_eq!(row(Extension::Edge, 2, 3, 2), [0, 0, 0, 1, 2, 2, 2]);
        assert_eq!(row(Extension::Reflect, 2, 3, 2), [2, 1, 0, 1, 2, 1, 0]);
        assert_eq!(row(Extension::Reflect, 5, 3, 3), [1, 0, 1, 2, 1, 0, 1, 2, 1, 0, 1]);
        assert_eq!(row(Extension::Reflect, 2, 1, 1), [0, 0, 0, 0]);
        assert_eq!(row(Extension::Wrap, 2, 3, 4), [1, 2, 0, 1, 2, 0, 1, 2, 0]);
    }

    fn extend(
        x: Tensor,
        mode: Extension,
        before: &[usize],
        after: &[usize],
    ) -> Result<Tensor, GraphError> {
        let mut cx = Context::new();
        let x = cx.constant(x)?;
        let op = Extend { mode, before: before.to_vec(), after: after.to_vec() };
        let y = cx.op(op, &[x])?;
        Ok(cx.constant_value(y).unwrap().clone())
    }

    #[test]
    fn every_axis() {
        let x = Tensor::from_slice(&[2, 2], &[1i16, 2, 3, 4]).unwrap();
        let y = extend(x.clone(), Extension::Reflect, &[1, 0], &[0, 2]).unwrap();
        assert_eq!(y.dims(), [3, 4]);
        assert_eq!(y.as_slice::<i16>().unwrap()[..], [3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4]);
        let none = || Tensor::from_slice::<i16>(&[0, 2], &[]).unwrap();
        assert!(extend(none(), Extension::Edge, &[1, 0], &[0, 0]).is_err());
        let y = extend(none(), Extension::Edge, &[0, 1], &[0, 0]).unwrap();
        assert_eq!(y.dims(), [0, 3]);
        let number = Tensor::from_slice(&[], &[9i16]).unwrap();
        assert!(extend(number, Extension::Edge, &[], &[]).is_err());
        assert!(extend(x.clone(), Extension::Wrap, &[1], &[0]).is_err());
        assert!(extend(x, Extension::Wrap, &[usize::MAX, 0], &[1, 0]).is_err());
    }

    #[test]
    fn kernels_copy_what_the_definition_says_on_any_number_of_threads() {
        use crate::graph::ops::elements::as_defined;

        let data: Vec<f32> = (0..60).map(|i| i as f32).collect();
        for mode in [Extension::Edge, Extension::Reflect, Extension::Wrap] {
            for before in [[1, 0, 0, 2], [0, 1, 2, 0], [0, 0, 3, 1], [2, 0, 0, 0], [0, 0, 1, 150]] {
                let (x, after) = (Tensor::from_slice(&[2, 3, 5, 2], &data).unwrap(), [1, 0, 1, 0]);
                let want = extend(x.clone(), mode, &before, &after).unwrap();
                // As numpy.pad does, element by element.
                let dims = want.dims();
                let mut expected = Vec::new();
                for i in 0..want.as_slice::<f32>().unwrap().len() {
                    let (mut rest, mut at, mut stride) = (i, 0, 1);
                    for axis in (0..4).rev() {
                        let extent = x.dims()[axis];
                        at += mode.source(rest % dims[axis], before[axis], extent) * stride;
                        (rest, stride) = (rest / dims[axis], stride * extent);
                    }
                    expected.push(data[at]);
                }
                assert_eq!(want.as_slice::<f32>().unwrap()[..], expected);
                let op = Extend { mode, before: before.to_vec(), after: after.to_vec() };
                assert_eq!(as_defined(&op, &[x]), OP, "{mode:?} {before:?}");
            }
        }
    }
}
