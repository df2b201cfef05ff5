//! The scale and zero point that make use of all bytes.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::Isa;
use tilewright_kernels::template::reduce::{ReduceOp, ReduceParams, ReducePlan};

use super::elements::{expect_dtype, maximum, minimum};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Scale and zero point of `u8` for a tensor, as ONNX `DynamicQuantizeLinear` chooses them: the range of
/// the elements and 0, in 255 steps. Of a tensor of zeros the scale is 1, of one with a NaN it is NaN.
///
/// Operand: `x` of f32. Result: `[2]`, the scale and the zero point as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantRange;

const OP: &str = "quant_range";

/// Elements that one unit looks at; both its passes find them in the L1 cache.
const CHUNK: usize = 8192;

/// Scale and zero point for a least and a greatest element.
fn parameters([least, most]: [f32; 2]) -> [f32; 2] {
    let (least, most) = (minimum(least, 0.0), maximum(most, 0.0));
    if least.is_nan() || most.is_nan() {
        return [f32::NAN, 0.0];
    }
    if least.total_cmp(&most).is_eq() || (least == 0.0 && most == 0.0) {
        return [1.0, 0.0];
    }
    let scale = (most - least) / 255.0;
    [scale, (-(least / scale)).clamp(0.0, 255.0).round_ties_even()]
}

impl Operator for QuantRange {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        expect_dtype(OP, &src[0], |d| d == DType::F32)?;
        Ok(Info::plain(DType::F32, vec![2]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let range = src[0]
            .slice::<f32>(OP)?
            .iter()
            .fold([0f32; 2], |[least, most], &x| [minimum(least, x), maximum(most, x)]);
        dst.slice::<f32>(OP)?.copy_from_slice(&parameters(range));
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let Some(elements) = cx.src[0].stored_elements().filter(|&n| n > 0) else {
            return Ok(None);
        };
        Ok(Some(Box::new(Whole(Arc::new(Chunks::new(cx.isa, elements)?)))))
    }
}

/// The extremes of pieces of a tensor.
struct Chunks {
    /// Least and greatest of all chunks of full length, and of the last if it is shorter.
    full: [ReducePlan; 2],
    rest: [ReducePlan; 2],
    /// How many chunks there are in full length, and in all.
    whole: usize,
    count: usize,
}

impl Chunks {
    fn new(isa: Isa, elements: usize) -> Result<Self, GraphError> {
        let (whole, rest) = (elements / CHUNK, elements % CHUNK);
        let plans = |outer: usize, axis: usize| -> Result<[ReducePlan; 2], GraphError> {
            let plan = |op| ReducePlan::new(isa, &ReduceParams { op, outer, axis, inner: 1 });
            Ok([plan(ReduceOp::Min)?, plan(ReduceOp::Max)?])
        };
        let count = elements.div_ceil(CHUNK);
        Ok(Self { full: plans(whole, CHUNK)?, rest: plans(1, rest)?, whole, count })
    }
}

/// Folds what the step before has found.
struct Whole(Arc<Chunks>);

impl Step for Whole {
    fn kernel(&self) -> String {
        "quant_range".to_owned()
    }

    fn before(&self) -> Option<(Box<dyn Step>, usize)> {
        Some((Box::new(Extremes(self.0.clone())), 2 * self.0.count * size_of::<f32>()))
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        _units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (count, found) = (self.0.count, src[src.len() - 1].cast::<f32>());
        // SAFETY: the last operand is what the step before has written: the least of all chunks, then
        // the greatest. The result has two elements.
        let (least, most, y) = unsafe {
            (
                core::slice::from_raw_parts(found, count),
                core::slice::from_raw_parts(found.add(count), count),
                core::slice::from_raw_parts_mut(dst.cast::<f32>(), 2),
            )
        };
        let least = least.iter().copied().fold(f32::INFINITY, minimum);
        let most = most.iter().copied().fold(f32::NEG_INFINITY, maximum);
        y.copy_from_slice(&parameters([least, most]));
        Ok(())
    }
}

/// Finds the extremes of each chunk.
struct Extremes(Arc<Chunks>);

impl Step for Extremes {
    fn kernel(&self) -> String {
        self.0.full[0].kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.0.count
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let Chunks { full, rest, whole, count } = &*self.0;
        let (x, y) = (src[0].cast::<f32>(), dst.cast::<f32>());
        for unit in units {
            for (i, (full, rest)) in full.iter().zip(rest).enumerate() {
                let y = y.wrapping_add(i * count);
                // SAFETY: the operand has `whole` chunks and the rest behind them, the result two
                // elements per chunk; a chunk is a unit of its plan, and the rest is one unit.
                unsafe {
                    if unit < *whole {
                        full.run(x, y, unit..unit + 1);
                    } else {
                        rest.run(x.wrapping_add(whole * CHUNK), y.wrapping_add(unit), 0..1);
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::Executor;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn reference(x: &[f32]) -> Vec<f32> {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[x.len()], x).unwrap()).unwrap();
        let y = cx.op(QuantRange, &[x]).unwrap();
        cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec()
    }

    fn computed(x: &[f32], threads: usize) -> Vec<f32> {
        let mut cx = Context::new();
        let input = cx.input("x", DType::F32, &[x.len()]).unwrap();
        let y = cx.op(QuantRange, &[input]).unwrap();
        let mut executor = Executor::new(Isa::best(), threads).unwrap();
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        let given = Tensor::from_slice(&[x.len()], x).unwrap();
        executor.run(&plan, &[&given], None).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn the_range_and_zero_in_255_steps() {
        assert_eq!(reference(&[0.0, 2.0, -3.0, -2.5, 1.34, 0.5]), [5.0 / 255.0, 153.0]);
        assert_eq!(reference(&[1.0, 2.0, 5.1]), [5.1 / 255.0, 0.0]);
        assert_eq!(reference(&[-1.0, -2.0]), [2.0 / 255.0, 255.0]);
        assert_eq!(reference(&[0.0, -0.0]), [1.0, 0.0]);
        assert_eq!(reference(&[]), [1.0, 0.0]);
    }

    #[test]
    fn a_nan_makes_the_scale_nan() {
        for at in [0, 5, CHUNK, 2 * CHUNK + 3] {
            let mut x = vec![2.0f32; 2 * CHUNK + 4];
            x[at] = f32::NAN;
            let found = reference(&x);
            assert!(found[0].is_nan() && found[1] == 0.0, "{found:?}");
            let found = computed(&x, 1);
            assert!(found[0].is_nan() && found[1] == 0.0, "{found:?}");
        }
    }

    #[test]
    fn steps_find_what_the_definition_says_on_any_number_of_threads() {
        for n in [1, 15, CHUNK - 1, CHUNK, CHUNK + 1, 5 * CHUNK + 77] {
            let x: Vec<f32> = (0..n).map(|i| ((i * 7919) % 1009) as f32 - 300.0).collect();
            for threads in [1, 3] {
                assert_eq!(computed(&x, threads)[..], reference(&x)[..], "{n}");
            }
        }
    }
}
