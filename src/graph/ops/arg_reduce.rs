//! Positions of extremes.

use super::elements::{around, expect_dtype, in_order, narrow};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// The index of the largest or smallest element along an axis, which becomes an extent of 1, as
/// ONNX `ArgMax` and `ArgMin`. The result is `i64`. A NaN wins over every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgReduce {
    /// The axis, from the slowest; not empty.
    pub axis: usize,
    /// The smallest instead of the largest.
    pub smallest: bool,
    /// Of equal elements the last instead of the first.
    pub last: bool,
}

const OP: &str = "arg_reduce";

impl ArgReduce {
    /// Whether `a` is to be chosen rather than `b`, which stands before it.
    fn wins<T: PartialOrd>(&self, a: T, b: T) -> bool {
        let better = if self.smallest { a < b } else { a > b };
        let nan = a.partial_cmp(&a).is_none();
        let best_is_nan = b.partial_cmp(&b).is_none();
        better || (nan && !best_is_nan) || (self.last && (a == b || (nan && best_is_nan)))
    }
}

impl Operator for ArgReduce {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        expect_dtype(OP, x, |d| d != DType::Bool)?;
        let mut dims = x.dims.clone();
        match dims.get_mut(self.axis) {
            Some(extent) if *extent > 0 => *extent = 1,
            _ => {
                let rule = "the axis must exist and have elements";
                return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims)]));
            }
        }
        Ok(Info::plain(DType::I64, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (_, extent, inner) = around(src[0].dims, self.axis);
        if dst.bytes.is_empty() {
            return Ok(());
        }
        let (x, dtype) = (src[0].bytes, src[0].dtype);
        let y = dst.slice::<i64>(OP)?;
        macro_rules! planes {
            ($x:expr, $as_number:expr) => {
                for (x, y) in $x.chunks_exact(extent * inner).zip(y.chunks_exact_mut(inner)) {
                    self.lanes(x, y, $as_number);
                }
            };
        }
        // What a wider type holds exactly is in its order, and needs no code of its own.
        match dtype {
            DType::F64 => planes!(self.keys(x), |x| x),
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                planes!(in_order(&src[0], OP)?, |x| x);
            }
            _ => planes!(narrow(&src[0], OP)?, |x| x),
        }
        Ok(())
    }
}

/// Lanes, neighbours behind the axis, that are looked at together: what is best so far stays in the first-level cache,
/// and elements are read in their order.
const LANES: usize = 64;

/// Elements of a row that are looked at together.
const ROW: usize = 32;

impl ArgReduce {
    /// Integers in the order of numbers; a NaN is the best of them.
    fn keys(&self, x: &[u8]) -> Vec<i64> {
        let key = |&x: &f64| match x.to_bits() as i64 {
            _ if x.is_nan() && self.smallest => i64::MIN,
            _ if x.is_nan() => i64::MAX,
            // Of two zeros none is smaller.
            _ if x == 0.0 => 0,
            // The other way round below 0.
            bits if bits < 0 => bits ^ i64::MAX,
            bits => bits,
        };
        bytemuck::cast_slice::<u8, f64>(x).iter().map(key).collect()
    }

    /// The position of the best element of neighbours, at least `ROW` and less than 2^32.
    fn row<T: Copy, N: PartialOrd + Copy>(&self, x: &[T], as_number: impl Fn(T) -> N) -> usize {
        let mut groups = x.chunks_exact(ROW);
        let rest = groups.remainder();
        let mut best = [as_number(x[0]); ROW];
        let mut at = [0u32; ROW];
        best.iter_mut().zip(x).for_each(|(best, &x)| *best = as_number(x));
        groups.next();
        for (group, i) in groups.zip(1..) {
            for ((best, at), &x) in best.iter_mut().zip(&mut at).zip(group) {
                let x = as_number(x);
                let wins = self.wins(x, *best);
                *best = if wins { x } else { *best };
                *at = if wins { i } else { *at };
            }
        }
        let places = at.iter().enumerate().map(|(lane, &group)| group as usize * ROW + lane);
        let tail = (x.len() - rest.len()..).zip(rest).map(|(i, &x)| (i, as_number(x)));
        let all = places.zip(best).chain(tail);
        // The one that stands before the other is the one that has to be beaten.
        let better = |a: (usize, N), b: (usize, N)| {
            let (first, second) = if a.0 < b.0 { (a, b) } else { (b, a) };
            if self.wins(second.1, first.1) { second } else { first }
        };
        all.reduce(better).map_or(0, |(i, _)| i)
    }

    /// The positions of the best elements of lanes `y.len()` apart, as numbers that `as_number` gives.
    fn lanes<T: Copy, N: PartialOrd + Copy>(
        &self,
        x: &[T],
        y: &mut [i64],
        as_number: impl Fn(T) -> N,
    ) {
        let inner = y.len();
        let extent = x.len() / inner;
        if inner == 1 && extent >= 2 * ROW && u32::try_from(extent).is_ok() {
            y[0] = self.row(x, as_number) as i64;
            return;
        }
        if inner == 1 || u32::try_from(extent).is_err() {
            for (lane, y) in y.iter_mut().enumerate() {
                let mut best = (0, as_number(x[lane]));
                for (i, &x) in x[lane..].iter().step_by(inner).enumerate().skip(1) {
                    let x = as_number(x);
                    best = if self.wins(x, best.1) { (i, x) } else { best };
                }
                *y = best.0 as i64;
            }
            return;
        }
        for (block, y) in y.chunks_mut(LANES).enumerate() {
            let lanes = y.len();
            let mut rows = x[block * LANES..].chunks(inner).map(|row| &row[..lanes]);
            let Some(first) = rows.next() else { return };
            // Of the width of f32, with which they are chosen.
            let mut at = [0u32; LANES];
            let mut best = [as_number(first[0]); LANES];
            best.iter_mut().zip(first).for_each(|(best, &x)| *best = as_number(x));
            for (row, i) in rows.zip(1..) {
                for ((best, at), &x) in best.iter_mut().zip(&mut at).zip(row) {
                    let x = as_number(x);
                    let wins = self.wins(x, *best);
                    *best = if wins { x } else { *best };
                    *at = if wins { i } else { *at };
                }
            }
            y.iter_mut().zip(at).for_each(|(y, at)| *y = i64::from(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn ties_and_nan() {
        let x = [1.0f32, 3.0, 3.0, f32::NAN, 1.0, f32::NAN];
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[2, 3], &x).unwrap()).unwrap();
        let mut run = |smallest, last| {
            let y = cx.op(ArgReduce { axis: 1, smallest, last }, &[x]).unwrap();
            cx.constant_value(y).unwrap().as_slice::<i64>().unwrap().to_vec()
        };
        assert_eq!(run(false, false), [1, 0]);
        assert_eq!(run(false, true), [2, 2]);
        assert_eq!(run(true, false), [0, 0]);
        let empty = cx.constant(Tensor::from_slice::<f32>(&[2, 0], &[]).unwrap()).unwrap();
        let op = |axis| ArgReduce { axis, smallest: false, last: false };
        assert!(cx.op(op(1), &[empty]).is_err() && cx.op(op(2), &[empty]).is_err());
    }

    #[test]
    fn wide_floats_are_in_the_order_of_numbers() {
        let rows = [
            [-0.0, 0.0, -1.0, -1e300, -2.0, -1e-300],
            [f64::INFINITY, 1.0, f64::NEG_INFINITY, 5e-324, f64::INFINITY, -5e-324],
            [f64::NAN, 1.0, f64::INFINITY, -f64::NAN, f64::NEG_INFINITY, 0.0],
        ];
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&[3, 6], rows.as_flattened()).unwrap()).unwrap();
        let mut run = |smallest, last| {
            let y = cx.op(ArgReduce { axis: 1, smallest, last }, &[x]).unwrap();
            cx.constant_value(y).unwrap().as_slice::<i64>().unwrap().to_vec()
        };
        assert_eq!(run(false, false), [0, 0, 0]);
        assert_eq!(run(false, true), [1, 4, 3]);
        assert_eq!(run(true, false), [3, 2, 0]);
        assert_eq!(run(true, true), [3, 2, 3]);
    }

    #[test]
    fn integers_at_the_ends_of_their_types() {
        fn of<T: crate::tensor::Element + bytemuck::Pod>(values: &[T], smallest: bool) -> i64 {
            let mut cx = Context::new();
            let x = cx.constant(Tensor::from_slice(&[values.len()], values).unwrap()).unwrap();
            let y = cx.op(ArgReduce { axis: 0, smallest, last: false }, &[x]).unwrap();
            cx.constant_value(y).unwrap().as_slice::<i64>().unwrap()[0]
        }
        macro_rules! of_type {
            ($($type:ty)*) => { $(
                let half = <$type>::MAX / 2;
                let values = [1, half, half + 1, <$type>::MAX, <$type>::MIN, 0];
                assert_eq!(of::<$type>(&values, false), 3);
                assert_eq!(of::<$type>(&values, true), 4);
            )* };
        }
        of_type!(i8 u8 i16 u16 i32 u32 i64 u64);
    }

    #[test]
    fn lanes_behind_the_axis_as_one_by_one() {
        for inner in [130, 3, 1] {
            lanes_of(7, inner);
        }
    }

    #[test]
    fn rows_as_one_by_one() {
        for extent in [64, 65, 96, 100, 257] {
            lanes_of(extent, 1);
        }
    }

    fn lanes_of(extent: usize, inner: usize) {
        let outer = 2;
        let value = |i: usize| match i * 7919 % 13 {
            12 => f32::NAN,
            v => v as f32,
        };
        let values: Vec<f32> = (0..outer * extent * inner).map(value).collect();
        let halves: Vec<half::f16> = values.iter().map(|&v| half::f16::from_f32(v)).collect();
        let dims = [outer, extent, inner];
        let mut cx = Context::new();
        for x in [Tensor::from_slice(&dims, &values), Tensor::from_slice(&dims, &halves)] {
            let x = cx.constant(x.unwrap()).unwrap();
            for (smallest, last) in [(false, false), (false, true), (true, false), (true, true)] {
                let op = ArgReduce { axis: 1, smallest, last };
                let y = cx.op(op, &[x]).unwrap();
                let y = cx.constant_value(y).unwrap().as_slice::<i64>().unwrap().to_vec();
                for (lane, found) in y.into_iter().enumerate() {
                    let at = |i: usize| values[(lane / inner * extent + i) * inner + lane % inner];
                    let best =
                        (1..extent).fold(0, |b, i| if op.wins(at(i), at(b)) { i } else { b });
                    assert_eq!(found, best as i64, "{op:?} {lane}");
                }
            }
        }
    }
}
