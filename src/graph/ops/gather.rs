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

    fn looks_up(&self) -> bool {
        true
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
        let operands = (src[0], dst);
        // SAFETY: the indices have this many elements, which nobody writes now, at an address that is a
        // multiple of 64; `copy` is given what this function was given.
        unsafe {
            match self.dtype {
                DType::I32 => {
                    let indices = core::slice::from_raw_parts(src[1].cast::<i32>(), self.count);
                    self.copy(indices, operands, units)
                }
                _ => {
                    let indices = core::slice::from_raw_parts(src[1].cast::<i64>(), self.count);
                    self.copy(indices, operands, units)
                }
            }
        }
    }
}

impl Run {
    /// # Safety
    /// As of [`Step::run`], where `indices` are operand 1, and `operands` the other one and the result.
    #[allow(unsafe_code)]
    unsafe fn copy<I: Copy + Into<i64>>(
        &self,
        indices: &[I],
        operands: (*const u8, *mut u8),
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the caller's duty.
        unsafe {
            match self.run {
                // A call for each of many single elements, or pixels of three, takes longer than all else.
                4 => self.copy_runs::<I, 4>(indices, operands, units),
                8 => self.copy_runs::<I, 8>(indices, operands, units),
                12 => self.copy_runs::<I, 12>(indices, operands, units),
                _ => self.copy_runs::<I, 0>(indices, operands, units),
            }
        }
    }

    /// For runs of `N` bytes, or of any length if that is 0.
    ///
    /// # Safety
    /// As of [`Run::copy`].
    #[allow(unsafe_code)]
    unsafe fn copy_runs<I: Copy + Into<i64>, const N: usize>(
        &self,
        indices: &[I],
        (x, y): (*const u8, *mut u8),
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let run = if N == 0 { self.run } else { N };
        // Once for all outer positions.
        for &index in indices {
            position(OP, index.into(), self.extent)?;
        }
        let extent = self.extent as i64;
        let mut unit = units.start;
        while unit < units.end {
            let (outer, first) = (unit / self.count, unit % self.count);
            let chosen = &indices[first..self.count.min(first + units.end - unit)];
            for (i, &index) in chosen.iter().enumerate() {
                let index: i64 = index.into();
                let at = if index < 0 { index + extent } else { index } as usize;
                let from = (outer * self.extent + at) * run;
                // SAFETY: all indices were checked, so the run lies inside the operand; the result has
                // one run per unit, and they do not overlap.
                unsafe { x.add(from).copy_to_nonoverlapping(y.add((unit + i) * run), run) };
            }
            unit += chosen.len();
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

    #[test]
    fn kernels_copy_what_the_definition_says_on_any_number_of_threads() {
        use crate::backend::cpu::Executor;
        use tilewright_kernels::Isa;

        let long: Vec<i64> = (0..7).map(|i| i * 5 % 9 - 4).collect();
        let short: Vec<i32> = long.iter().map(|&i| i as i32).collect();
        let indices = [Tensor::from_slice(&[7], &long), Tensor::from_slice(&[7], &short)];
        let bytes = (0u8..15).collect::<Vec<_>>();
        let floats = |n: usize| (0..n).map(|i| i as f32).collect::<Vec<_>>();
        let operands = [
            Tensor::from_slice(&[3, 5], &bytes),
            Tensor::from_slice(&[3, 5], &floats(15)),
            Tensor::from_slice(&[3, 5, 2], &floats(30)),
            Tensor::from_slice(&[3, 5, 3], &floats(45)),
        ];
        for (x, indices) in operands.iter().flat_map(|x| indices.iter().map(move |i| (x, i))) {
            let (x, indices) = (x.as_ref().unwrap(), indices.as_ref().unwrap());
            let mut cx = Context::new();
            let (a, b) = (cx.constant(x.clone()).unwrap(), cx.constant(indices.clone()).unwrap());
            let want = cx.op(Gather { axis: 1 }, &[a, b]).unwrap();
            let want = cx.constant_value(want).unwrap().clone();
            for threads in [1, 4] {
                let mut cx = Context::new();
                let a = cx.input("x", x.dtype(), &x.dims()).unwrap();
                let b = cx.input("i", indices.dtype(), &indices.dims()).unwrap();
                let y = cx.op(Gather { axis: 1 }, &[a, b]).unwrap();
                let mut executor = Executor::new(Isa::best(), threads).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                assert!(plan.nodes().any(|n| n.kernel == "gather"));
                let found = executor.run(&plan, &[x, indices], None).unwrap();
                assert_eq!(found[0].bytes(), want.bytes(), "{:?}", x.dims());
            }
        }
    }
}
