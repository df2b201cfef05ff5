//! Positions of extremes.

use super::elements::{around, expect_dtype, in_order, narrow, rank};
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
        let y = dst.slice::<i64>(OP)?;
        // The smallest is the largest of what is flipped.
        let flip = if self.smallest { -1 } else { 0 };
        // What a wider type holds exactly is in its order, and needs no code of its own.
        let wide = match src[0].dtype {
            DType::F64 => src[0].slice::<f64>(OP)?.iter().map(|&x| wide_key(x, flip)).collect(),
            DType::I32 | DType::U32 | DType::I64 | DType::U64 => {
                let mut keys = in_order(&src[0], OP)?;
                keys.iter_mut().for_each(|key| *key ^= flip);
                keys
            }
            _ => {
                let (x, flip) = (narrow(&src[0], OP)?, flip as i32);
                if u32::try_from(extent).is_ok() {
                    if inner == 1 && extent < 2 * LANES {
                        self.short_rows(&x, extent, y, flip);
                    } else {
                        let planes = x.chunks_exact(extent * inner);
                        let planes = planes.zip(y.chunks_exact_mut(inner));
                        planes.for_each(|(x, y)| self.lanes(x, y, flip));
                    }
                    return Ok(());
                }
                x.iter().map(|&x| key(x, flip).into()).collect::<Vec<_>>()
            }
        };
        let planes = wide.chunks_exact(extent * inner).zip(y.chunks_exact_mut(inner));
        for (lane, (x, y)) in
            planes.flat_map(|(x, y)| y.iter_mut().map(move |y| (x, y))).enumerate()
        {
            let all = x[lane % inner..].iter().step_by(inner).copied().zip(0..);
            *y = all.reduce(|a, b| self.better(a, b)).map_or(0, |(_, i)| i as i64);
        }
        Ok(())
    }
}

/// Integers in the order of numbers, or in the other one where `flip` is -1; a NaN is the largest.
fn key(x: f32, flip: i32) -> i32 {
    // Of two zeros none is smaller.
    if x.is_nan() { i32::MAX } else { rank(x + 0.0) ^ flip }
}

/// The same of floats of 64 bits.
fn wide_key(x: f64, flip: i64) -> i64 {
    let bits = (x + 0.0).to_bits() as i64;
    let ordered = (bits ^ ((bits >> 63) & i64::MAX)) ^ flip;
    if x.is_nan() { i64::MAX } else { ordered }
}

/// Lanes, neighbours behind the axis or in a row, that are looked at together: what is best so far stays in the
/// first-level cache, and elements are read in their order.
const LANES: usize = 64;

impl ArgReduce {
    /// The largest keys of the columns of rows `step` apart, of up to `LANES` elements each, and which rows they stand
    /// in.
    fn columns(
        &self,
        x: &[f32],
        step: usize,
        width: usize,
        flip: i32,
    ) -> ([i32; LANES], [u32; LANES]) {
        let rows = (x.len() - width) / step + 1;
        // Of equal ones the first that is met stays.
        let place = |i: usize| if self.last { rows - 1 - i } else { i };
        let mut best = [i32::MIN; LANES];
        // Of the width of f32, with which they are chosen.
        let mut at = [place(0) as u32; LANES];
        for i in (0..rows).map(place) {
            for ((best, at), &x) in best.iter_mut().zip(&mut at).zip(&x[i * step..][..width]) {
                let x = key(x, flip);
                *at = if x > *best { i as u32 } else { *at };
                *best = x.max(*best);
            }
        }
        (best, at)
    }

    /// The better one of two keys with their positions.
    fn better<K: Ord>(&self, a: (K, usize), b: (K, usize)) -> (K, usize) {
        let first = a.0 > b.0 || (a.0 == b.0 && (a.1 > b.1) == self.last);
        if first { a } else { b }
    }

    /// The position of the best element of neighbours, at least `LANES` and less than 2^32.
    fn row(&self, x: &[f32], flip: i32) -> usize {
        let (groups, rest) = x.split_at(x.len() / LANES * LANES);
        let (best, at) = self.columns(groups, LANES, LANES, flip);
        let places = at.iter().enumerate().map(|(lane, &group)| group as usize * LANES + lane);
        let tail = (groups.len()..).zip(rest).map(|(i, &x)| (key(x, flip), i));
        let all = best.into_iter().zip(places).chain(tail);
        all.reduce(|a, b| self.better(a, b)).map_or(0, |(_, i)| i)
    }

    /// The positions of the best elements of rows, which stand behind each other: of some at a time the columns.
    fn short_rows(&self, x: &[f32], extent: usize, y: &mut [i64], flip: i32) {
        let mut columns = vec![0.0; LANES * extent];
        for (x, y) in x.chunks(LANES * extent).zip(y.chunks_mut(LANES)) {
            let columns = &mut columns[..x.len()];
            for (lane, row) in x.chunks_exact(extent).enumerate() {
                for (&x, column) in row.iter().zip(columns.chunks_exact_mut(y.len())) {
                    column[lane] = x;
                }
            }
            self.lanes(columns, y, flip);
        }
    }

    /// The positions of the best elements of lanes `y.len()` apart.
    fn lanes(&self, x: &[f32], y: &mut [i64], flip: i32) {
        let inner = y.len();
        if inner == 1 && x.len() >= LANES {
            y[0] = self.row(x, flip) as i64;
            return;
        }
        for (block, y) in y.chunks_mut(LANES).enumerate() {
            let (_, at) = self.columns(&x[block * LANES..], inner, y.len(), flip);
            y.iter_mut().zip(at).for_each(|(y, at)| *y = i64::from(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    /// Whether `a` is to be chosen rather than `b`, which stands before it.
    fn wins(op: &ArgReduce, a: f32, b: f32) -> bool {
        let better = if op.smallest { a < b } else { a > b };
        let new = a.is_nan() && !b.is_nan();
        better || new || (op.last && (a == b || (a.is_nan() && b.is_nan())))
    }

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
    fn short_rows_are_those_of_one_by_one() {
        let (rows, extent) = (2 * LANES + 3, 21);
        let x: Vec<f32> = (0..rows * extent)
            .map(|i| match i % 37 {
                5 => f32::NAN,
                n if n % 2 == 0 => (i * 7919 % 13) as f32,
                _ => -((i * 7919 % 13) as f32),
            })
            .collect();
        for (smallest, last) in [(false, false), (false, true), (true, false), (true, true)] {
            let op = ArgReduce { axis: 1, smallest, last };
            let mut cx = Context::new();
            let id = cx.constant(Tensor::from_slice(&[rows, extent], &x).unwrap()).unwrap();
            let y = cx.op(op, &[id]).unwrap();
            let y = cx.constant_value(y).unwrap().as_slice::<i64>().unwrap().to_vec();
            for (row, found) in x.chunks(extent).zip(y) {
                let best = (1..extent)
                    .fold(0, |best, i| if wins(&op, row[i], row[best]) { i } else { best });
                assert_eq!(found, best as i64, "{row:?}");
            }
        }
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
                        (1..extent).fold(0, |b, i| if wins(&op, at(i), at(b)) { i } else { b });
                    assert_eq!(found, best as i64, "{op:?} {lane}");
                }
            }
        }
    }
}
