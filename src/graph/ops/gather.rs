//! Selection along an axis by index.

use core::ops::Range;

use super::concat::stored_dims;
use super::elements::position;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;
use tilewright_kernels::template::strided::{copy_chosen, copy_repeated};

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

/// Indices that are looked at together.
const AT_ONCE: usize = 128;

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
        let run = self.run;
        // SAFETY: the operand has this many bytes, which nobody writes now.
        let x = unsafe { core::slice::from_raw_parts(src[0], self.outer * self.extent * run) };
        // SAFETY: the result has one run per unit, and these are this call's alone.
        let y = unsafe {
            core::slice::from_raw_parts_mut(dst.add(units.start * run), units.len() * run)
        };
        // Where slices lie is found once for all outer positions, a few at a time.
        let mut at = [0; AT_ONCE];
        let places = |first: usize, at: &mut [usize; AT_ONCE]| {
            let len = AT_ONCE.min(self.count - first);
            for (at, i) in at[..len].iter_mut().zip(first..) {
                // SAFETY: there are this many indices of this type, which nobody writes now.
                let index = unsafe {
                    match self.dtype {
                        DType::I32 => i64::from(*src[1].cast::<i32>().add(i)),
                        _ => *src[1].cast::<i64>().add(i),
                    }
                };
                *at = position(OP, index, self.extent)?;
            }
            Ok::<_, GraphError>(len)
        };
        let parts = || (0..self.count).step_by(AT_ONCE);
        let times = self.count.checked_div(self.extent).unwrap_or(0);
        let mut repeats = times > 1 && times * self.extent == self.count;
        for first in parts() {
            if !repeats && run > 0 {
                break;
            }
            let len = places(first, &mut at)?;
            repeats = repeats && at[..len].iter().zip(first..).all(|(&at, i)| at == i / times);
        }
        if y.is_empty() {
            return Ok(());
        }
        if repeats {
            self.repeat(times, x, y, units);
            return Ok(());
        }
        // On any number of threads, what is said is of the first index that names no slice.
        let earliest = |e| parts().find_map(|i| places(i, &mut [0; AT_ONCE]).err()).unwrap_or(e);
        let outers = units.start / self.count..units.end.div_ceil(self.count);
        // Of a single one only those of this call.
        let skipped = outers.start * self.count;
        let single = units.start - skipped..units.end - skipped;
        let chosen = if outers.len() == 1 { single } else { 0..self.count };
        for first in chosen.step_by(AT_ONCE) {
            let len = places(first, &mut at).map_err(earliest)?;
            for outer in outers.clone() {
                let first = outer * self.count + first;
                let (start, end) = (first.max(units.start), (first + len).min(units.end));
                if start < end {
                    let x = &x[outer * self.extent * run..][..self.extent * run];
                    let y = &mut y[(start - units.start) * run..(end - units.start) * run];
                    copy_chosen(run, &at[start - first..end - first], x, y);
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// Where each slice stands so often and all follow in order, as in what is resized by a whole factor, all outer
    /// positions are one: unit `i` is slice `i / times` of them all.
    fn repeat(&self, times: usize, x: &[u8], y: &mut [u8], units: Range<usize>) {
        let run = self.run;
        let whole = units.start.next_multiple_of(times).min(units.end);
        let whole = whole..(units.end - units.end % times).max(whole);
        // A group that another call has the rest of.
        let part = |at: usize, y: &mut [u8]| {
            y.chunks_exact_mut(run).for_each(|y| y.copy_from_slice(&x[at * run..][..run]));
        };
        let (head, rest) = y.split_at_mut((whole.start - units.start) * run);
        let (groups, tail) = rest.split_at_mut(whole.len() * run);
        part(units.start / times, head);
        copy_repeated(run, times, &x[whole.start / times * run..whole.end / times * run], groups);
        part(units.end / times, tail);
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
        use crate::graph::ops::elements::as_defined;

        let long: Vec<i64> = (0..7).map(|i| i * 5 % 9 - 4).collect();
        let short: Vec<i32> = long.iter().map(|&i| i as i32).collect();
        let twice: Vec<i64> = (0..10).map(|i| i / 2).collect();
        let indices = [
            Tensor::from_slice(&[7], &long),
            Tensor::from_slice(&[7], &short),
            Tensor::from_slice(&[10], &twice),
            Tensor::from_slice(&[200], &(0..200).map(|i| i * 3 % 5).collect::<Vec<i32>>()),
        ];
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
            assert_eq!(as_defined(&Gather { axis: 1 }, &[x.clone(), indices.clone()]), "gather");
        }
    }
}
