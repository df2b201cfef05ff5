//! Reductions over neighbouring axes.

pub use tilewright_kernels::template::reduce::ReduceOp;
use tilewright_kernels::template::reduce::{ReduceParams, ReducePlan};

use super::elements::{self, low_bits, maximum, minimum, write_floats, write_low_bits};
use super::plan_step::PlanStep;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// Reduces `count` axes from `axis` on to one element each; the axes vanish.
///
/// Integers wrap around, and what is not exact for them is computed in f64 and truncated. Of no
/// elements a sum is 0, a product 1, a maximum or minimum the type's least or greatest value (of
/// floats: an infinity). A NaN makes the result NaN. `bool` has a maximum (or) and a minimum (and).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduce {
    /// How.
    pub op: ReduceOp,
    /// The first axis, from the slowest.
    pub axis: usize,
    /// How many axes.
    pub count: usize,
}

impl Reduce {
    fn params(&self, dims: &[usize]) -> ReduceParams {
        let (outer, rest) = dims.split_at(self.axis);
        let (axis, inner) = rest.split_at(self.count);
        ReduceParams {
            op: self.op,
            outer: outer.iter().product(),
            axis: axis.iter().product(),
            inner: inner.iter().product(),
        }
    }
}

impl Operator for Reduce {
    fn name(&self) -> &'static str {
        match self.op {
            ReduceOp::Sum => "reduce_sum",
            ReduceOp::Mean => "reduce_mean",
            ReduceOp::Prod => "reduce_prod",
            ReduceOp::Max => "reduce_max",
            ReduceOp::Min => "reduce_min",
            ReduceOp::L1 => "reduce_l1",
            ReduceOp::L2 => "reduce_l2",
            ReduceOp::SumSquare => "reduce_sum_square",
            ReduceOp::LogSumExp => "reduce_log_sum_exp",
            _ => "reduce",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "1")?;
        let x = &src[0];
        let logic = matches!(self.op, ReduceOp::Max | ReduceOp::Min);
        if !x.dtype.is_plain() || (x.dtype == DType::Bool && !logic) {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: x.dtype });
        }
        let end = self.axis.checked_add(self.count).filter(|&end| end <= x.dims.len());
        let Some(end) = end else {
            let rule = "the axes must exist";
            return Err(GraphError::mismatch(self.name(), rule, &[("x", &x.dims)]));
        };
        Ok(Info::plain(x.dtype, [&x.dims[..self.axis], &x.dims[end..]].concat()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, name, op) = (&src[0], self.name(), self.op);
        let (params, results) = (self.params(x.dims), dst.dims.iter().product());
        if x.dtype == DType::Bool {
            // All and any.
            let any = op == ReduceOp::Max;
            let holds = |v: &[i64]| i64::from(v.contains(&i64::from(any)) == any);
            return write_low_bits(
                dst,
                name,
                &along(results, &params, &low_bits(x, name)?, &holds),
            );
        }
        if !x.dtype.is_float() && ints(op, &[], [0, 0]).is_some() {
            let ends = ends(x.dtype);
            let of = |v: &[i64]| ints(op, v, ends).unwrap_or_default();
            return write_low_bits(dst, name, &along(results, &params, &low_bits(x, name)?, &of));
        }
        let values = elements::floats(x, name)?;
        write_floats(dst, name, along(results, &params, &values, &|v| floats(op, v)))
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if cx.dst.dtype != DType::F32 || cx.src[0].elements() == 0 || !self.op.has_kernel() {
            return Ok(None);
        }
        let plan = ReducePlan::new(cx.isa, &self.params(&cx.src[0].dims))?;
        Ok(Some(Box::new(PlanStep(plan))))
    }
}

/// The results of `f` on the elements along the axis.
fn along<T: Copy>(results: usize, params: &ReduceParams, x: &[T], f: &dyn Fn(&[T]) -> T) -> Vec<T> {
    let &ReduceParams { axis, inner, .. } = params;
    let mut line = Vec::with_capacity(axis);
    let of = |i: usize| {
        let first = i / inner * axis * inner + i % inner;
        line.clear();
        line.extend((0..axis).map(|k| x[first + k * inner]));
        f(&line)
    };
    (0..results).map(of).collect()
}

/// The least and the greatest value of a type of integers, as 64 bits.
fn ends(dtype: DType) -> [i64; 2] {
    let unused = 64 - 8 * dtype.block_bytes().min(8) as u32;
    match dtype {
        DType::U8 | DType::U16 | DType::U32 | DType::U64 => [0, (u64::MAX >> unused) as i64],
        _ => [i64::MIN >> unused, i64::MAX >> unused],
    }
}

/// The reduction of integers that are exact, of which the low bits count; `ends` are the least and the greatest
/// value of their type.
fn ints(op: ReduceOp, v: &[i64], ends: [i64; 2]) -> Option<i64> {
    // Makes numbers of 64 bits without a sign ones that compare as they do.
    let flip = if ends == [0, -1] { i64::MIN } else { 0 };
    let key = |v: &i64| v ^ flip;
    Some(match op {
        ReduceOp::Sum => v.iter().fold(0, |a: i64, &v| a.wrapping_add(v)),
        ReduceOp::Prod => v.iter().fold(1, |a: i64, &v| a.wrapping_mul(v)),
        // What has no sign is its own size, however large.
        ReduceOp::L1 if ends[0] == 0 => return ints(ReduceOp::Sum, v, ends),
        ReduceOp::L1 => v.iter().fold(0, |a: i64, &v| a.wrapping_add(v.wrapping_abs())),
        ReduceOp::Max => v.iter().copied().max_by_key(key).unwrap_or(ends[0]),
        ReduceOp::Min => v.iter().copied().min_by_key(key).unwrap_or(ends[1]),
        ReduceOp::SumSquare => v.iter().fold(0, |a: i64, &v| a.wrapping_add(v.wrapping_mul(v))),
        _ => return None,
    })
}

/// The reduction from its definition.
fn floats(op: ReduceOp, v: &[f64]) -> f64 {
    let sum_of = |f: &dyn Fn(f64) -> f64| v.iter().map(|&v| f(v)).sum::<f64>();
    let largest = || v.iter().copied().fold(f64::NEG_INFINITY, maximum);
    match op {
        ReduceOp::Sum => sum_of(&|v| v),
        ReduceOp::Mean => sum_of(&|v| v) / v.len() as f64,
        ReduceOp::Prod => v.iter().product(),
        ReduceOp::Max => largest(),
        ReduceOp::Min => v.iter().copied().fold(f64::INFINITY, minimum),
        ReduceOp::L1 => sum_of(&f64::abs),
        ReduceOp::L2 => sum_of(&|v| v * v).sqrt(),
        ReduceOp::SumSquare => sum_of(&|v| v * v),
        ReduceOp::LogSumExp => match largest() {
            m if m.is_infinite() => m,
            m => m + sum_of(&|v| (v - m).exp()).ln(),
        },
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn reduce(op: ReduceOp, axis: usize, count: usize, x: Tensor) -> Tensor {
        let mut cx = Context::new();
        let x = cx.constant(x).unwrap();
        let y = cx.op(Reduce { op, axis, count }, &[x]).unwrap();
        cx.constant_value(y).unwrap().clone()
    }

    #[test]
    fn sums_of_sizes_of_integers_are_exact() {
        let large = Tensor::from_slice(&[1, 2], &[1i64 << 53, -1]).unwrap();
        let y = rows(ReduceOp::L1, large);
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [(1 << 53) + 1]);
        let around = Tensor::from_slice(&[1, 2], &[u32::MAX, 6]).unwrap();
        assert_eq!(rows(ReduceOp::L1, around).as_slice::<u32>().unwrap()[..], [5]);
        let large = Tensor::from_slice(&[1, 2], &[u64::MAX, 0]).unwrap();
        assert_eq!(rows(ReduceOp::L1, large).as_slice::<u64>().unwrap()[..], [u64::MAX]);
    }

    fn rows(op: ReduceOp, x: Tensor) -> Tensor {
        let last = x.dims().len() - 1;
        reduce(op, last, 1, x)
    }

    #[test]
    fn rows_of_floats() {
        let x = || Tensor::from_slice(&[2, 3], &[1f32, 2.0, 6.0, -1.0, 0.5, 4.0]).unwrap();
        let lse = |v: &[f32]| v.iter().map(|v| v.exp()).sum::<f32>().ln();
        for (op, want) in [
            (ReduceOp::Sum, [9.0, 3.5]),
            (ReduceOp::Mean, [3.0, 3.5 / 3.0]),
            (ReduceOp::Prod, [12.0, -2.0]),
            (ReduceOp::Max, [6.0, 4.0]),
            (ReduceOp::Min, [1.0, -1.0]),
            (ReduceOp::L1, [9.0, 5.5]),
            (ReduceOp::L2, [41f32.sqrt(), 17.25f32.sqrt()]),
            (ReduceOp::SumSquare, [41.0, 17.25]),
            (ReduceOp::LogSumExp, [lse(&[1.0, 2.0, 6.0]), lse(&[-1.0, 0.5, 4.0])]),
        ] {
            let y = rows(op, x());
            let values = y.as_slice::<f32>().unwrap();
            let near = values.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6 * b.abs());
            assert!(y.dims() == [2] && near, "{op:?} {values:?}");
        }
    }

    #[test]
    fn axes_in_the_middle() {
        let x: Vec<i32> = (0..24).collect();
        let y = reduce(ReduceOp::Sum, 1, 2, Tensor::from_slice(&[2, 2, 3, 2], &x).unwrap());
        assert_eq!(y.dims(), [2, 2]);
        assert_eq!(y.as_slice::<i32>().unwrap()[..], [30, 36, 102, 108]);
        let y = reduce(ReduceOp::Max, 0, 0, Tensor::from_slice(&[2], &[1i32, 2]).unwrap());
        assert_eq!(y.as_slice::<i32>().unwrap()[..], [1, 2]);
    }

    #[test]
    fn empty_rows_integers_and_bool() {
        let x = || Tensor::from_slice::<f32>(&[1, 0], &[]).unwrap();
        let value = |op| rows(op, x()).as_slice::<f32>().unwrap()[0];
        assert_eq!((value(ReduceOp::Sum), value(ReduceOp::Prod)), (0.0, 1.0));
        assert_eq!(
            (value(ReduceOp::Max), value(ReduceOp::Min)),
            (f32::NEG_INFINITY, f32::INFINITY)
        );
        assert!(value(ReduceOp::Mean).is_nan());
        let x = Tensor::from_slice(&[3], &[i32::MAX, 1, 1]).unwrap();
        assert_eq!(rows(ReduceOp::Sum, x).as_slice::<i32>().unwrap()[..], [i32::MIN + 1]);
        let x = Tensor::from_slice(&[3], &[1, u64::MAX, 7]).unwrap();
        assert_eq!(rows(ReduceOp::Max, x.clone()).as_slice::<u64>().unwrap()[..], [u64::MAX]);
        assert_eq!(rows(ReduceOp::Min, x.clone()).as_slice::<u64>().unwrap()[..], [1]);
        assert_eq!(rows(ReduceOp::Prod, x).as_slice::<u64>().unwrap()[..], [u64::MAX - 6]);
        let none = || Tensor::from_slice::<u64>(&[1, 0], &[]).unwrap();
        assert_eq!(rows(ReduceOp::Max, none()).as_slice::<u64>().unwrap()[..], [0]);
        assert_eq!(rows(ReduceOp::Min, none()).as_slice::<u64>().unwrap()[..], [u64::MAX]);
        let x = Tensor::from_slice(&[2], &[i8::MIN, i8::MIN]).unwrap();
        assert_eq!(rows(ReduceOp::Sum, x.clone()).as_slice::<i8>().unwrap()[..], [0]);
        // As sums wrap around.
        assert_eq!(rows(ReduceOp::L1, x).as_slice::<i8>().unwrap()[..], [0]);
        let x = Tensor::from_slice(&[3], &[-5i32, 2, 1]).unwrap();
        assert_eq!(rows(ReduceOp::L1, x.clone()).as_slice::<i32>().unwrap()[..], [8]);
        assert_eq!(rows(ReduceOp::Mean, x).as_slice::<i32>().unwrap()[..], [0]);
        let x = || Tensor::from_bytes(DType::Bool, &[2, 2], &[0, 1, 0, 0]).unwrap();
        assert_eq!(rows(ReduceOp::Max, x()).bytes(), [1, 0]);
        assert_eq!(rows(ReduceOp::Min, x()).bytes(), [0, 0]);
        let mut cx = Context::new();
        let x = cx.constant(x()).unwrap();
        assert!(cx.op(Reduce { op: ReduceOp::Sum, axis: 0, count: 1 }, &[x]).is_err());
        assert!(cx.op(Reduce { op: ReduceOp::Max, axis: 1, count: 2 }, &[x]).is_err());
    }
}
