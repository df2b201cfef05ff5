//! The largest or smallest elements along an axis.

use super::cast::Number;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::DType;

/// The `k` largest (or smallest) elements of each line along an axis, best first, as ONNX `TopK`
/// (opset 11): their values, or their positions as `i64`. Of equal elements the first is better; what
/// is not a number is larger than all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopK {
    /// The axis, from the slowest.
    pub axis: usize,
    /// How many.
    pub k: usize,
    /// Largest or smallest.
    pub largest: bool,
    /// Positions instead of values.
    pub positions: bool,
}

const OP: &str = "top_k";

impl Operator for TopK {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 1..=1, "1")?;
        let x = &src[0];
        if !x.dtype.is_plain() {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: x.dtype });
        }
        let mut dims = x.dims.clone();
        match dims.get_mut(self.axis) {
            Some(extent) if self.k <= *extent => *extent = self.k,
            _ => {
                let shapes = [("x", &x.dims[..]), ("axis, k", &[self.axis, self.k])];
                return Err(GraphError::mismatch(OP, "k must not exceed the axis", &shapes));
            }
        }
        Ok(Info::plain(if self.positions { DType::I64 } else { x.dtype }, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let x = &src[0];
        if dst.bytes.is_empty() {
            return Ok(());
        }
        with_element!(x.dtype, OP, T => {
            let v = x.slice::<T>(OP)?;
            let key = &|at: usize| key(v[at]);
            if self.positions {
                let y = dst.slice::<i64>(OP)?;
                self.lines(x.dims, key, &mut |to, at, _| y[to] = at as i64);
            } else {
                let y = dst.slice::<T>(OP)?;
                self.lines(x.dims, key, &mut |to, _, from| y[to] = v[from]);
            }
            Ok(())
        })
    }
}

impl TopK {
    /// Calls `put` with the place of each result, its position on the axis, and its place in `x`, whose
    /// elements are in the order of their keys. It is not known here which type they have: sorting is much
    /// code, which there would be once per type.
    pub(super) fn lines(
        &self,
        dims: &[usize],
        key: &dyn Fn(usize) -> u64,
        put: &mut dyn FnMut(usize, usize, usize),
    ) {
        let extent = dims[self.axis];
        let outer: usize = dims[..self.axis].iter().product();
        let inner: usize = dims[self.axis + 1..].iter().product();
        let mut list: Vec<(u64, usize)> = Vec::with_capacity(extent);
        for o in 0..outer {
            for i in 0..inner {
                let place = |at: usize| (o * extent + at) * inner + i;
                let rank = |at: usize| if self.largest { !key(place(at)) } else { key(place(at)) };
                list.clear();
                list.extend((0..extent).map(|at| (rank(at), at)));
                if self.k < extent {
                    list.select_nth_unstable(self.k);
                    list.truncate(self.k);
                }
                list.sort_unstable();
                for (nth, &(_, at)) in list.iter().enumerate() {
                    put((o * self.k + nth) * inner + i, at, place(at));
                }
            }
        }
    }
}

/// A number in the order of the elements of a type. What is not a number is the largest.
pub(super) fn key<T: Number>(x: T) -> u64 {
    if !T::FLOAT {
        return x.to_int().wrapping_sub(T::LEAST.to_int()) as u64;
    }
    // Zeros of both signs are one. Negative numbers count down; without a branch, as signs are random.
    let value = x.to_float() + 0.0;
    let bits = value.to_bits();
    let ordered = bits ^ ((bits as i64 >> 63) as u64 | 1 << 63);
    if value.is_nan() { u64::MAX } else { ordered }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn top(x: Tensor, op: TopK) -> Result<Tensor, GraphError> {
        let mut cx = Context::new();
        let x = cx.constant(x)?;
        let y = cx.op(op, &[x])?;
        Ok(cx.constant_value(y).unwrap().clone())
    }

    #[test]
    fn values_and_positions() {
        let op = TopK { axis: 1, k: 2, largest: true, positions: false };
        let x = || Tensor::from_slice(&[2, 3], &[1f32, 3.0, 3.0, -1.0, -5.0, 2.0]).unwrap();
        let y = top(x(), op).unwrap();
        assert_eq!(y.as_slice::<f32>().unwrap()[..], [3.0, 3.0, 2.0, -1.0]);
        let y = top(x(), TopK { positions: true, ..op }).unwrap();
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [1, 2, 2, 0]);
        let y = top(x(), TopK { largest: false, k: 3, positions: true, ..op }).unwrap();
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [0, 1, 2, 1, 0, 2]);
        let y = top(x(), TopK { axis: 0, k: 1, ..op }).unwrap();
        assert_eq!(
            (y.dims(), y.as_slice::<f32>().unwrap().to_vec()),
            (vec![1, 3], vec![1.0, 3.0, 3.0])
        );
        let odd = [f32::NAN, -0.0, f32::NEG_INFINITY, 0.0, f32::INFINITY, -1.0];
        let x_odd = || Tensor::from_slice(&[1, 6], &odd).unwrap();
        let y = top(x_odd(), TopK { k: 6, positions: true, ..op }).unwrap();
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [0, 4, 1, 3, 5, 2]);
        let y = top(x_odd(), TopK { k: 6, largest: false, positions: true, ..op }).unwrap();
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [2, 5, 1, 3, 4, 0]);
        let wide = Tensor::from_slice(&[1, 4], &[i64::MAX, -1, i64::MIN, 0]).unwrap();
        let y = top(wide, TopK { k: 3, ..op }).unwrap();
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [i64::MAX, 0, -1]);
        assert_eq!(top(x(), TopK { k: 0, ..op }).unwrap().dims(), [2, 0]);
        assert!(top(x(), TopK { k: 4, ..op }).is_err());
        assert!(top(x(), TopK { axis: 2, ..op }).is_err());
    }
}
