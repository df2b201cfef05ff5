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

/// So many are kept in order while elements are looked at, if there are so many times as many of these.
const FEW: usize = 64;
const FEW_OF: usize = 8;

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
            let keys = &|first: usize, apart: usize, keys: &mut [u64]| {
                let line = v[first..].iter().step_by(apart);
                keys.iter_mut().zip(line).for_each(|(to, &v)| *to = key(v));
            };
            if self.positions {
                let y = dst.slice::<i64>(OP)?;
                self.lines(x.dims, keys, &mut |to, at, _| y[to] = at as i64);
            } else {
                let y = dst.slice::<T>(OP)?;
                self.lines(x.dims, keys, &mut |to, _, from| y[to] = v[from]);
            }
            Ok(())
        })
    }
}

impl TopK {
    /// Calls `put` with the place of each result, its position on the axis, and its place in `x`. `keys` gives the
    /// keys of a line, from its first place on so far apart: numbers in the order of the elements. It is not known
    /// here which type those have: sorting is much code, which there would be once per type.
    pub(super) fn lines(
        &self,
        dims: &[usize],
        keys: &dyn Fn(usize, usize, &mut [u64]),
        put: &mut dyn FnMut(usize, usize, usize),
    ) {
        let extent = dims[self.axis];
        let outer: usize = dims[..self.axis].iter().product();
        let inner: usize = dims[self.axis + 1..].iter().product();
        let mut list: Vec<(u64, usize)> = Vec::with_capacity(extent);
        let mut ranks = vec![0; extent];
        for o in 0..outer {
            for i in 0..inner {
                keys(o * extent * inner + i, inner, &mut ranks);
                if self.largest {
                    ranks.iter_mut().for_each(|rank| *rank = !*rank);
                }
                list.clear();
                if (1..=FEW.min(extent / FEW_OF)).contains(&self.k) {
                    // Most are behind the last of those that are kept, which one comparison tells.
                    let mut last = u64::MAX;
                    for entry in ranks.iter().copied().zip(0..) {
                        if entry.0 >= last && list.len() == self.k {
                            continue;
                        }
                        if list.len() == self.k {
                            list.pop();
                        }
                        let place = list.partition_point(|other| *other < entry);
                        list.insert(place, entry);
                        last = list.last().map_or(0, |entry| entry.0);
                    }
                } else {
                    list.extend(ranks.iter().copied().zip(0..));
                    if self.k < extent {
                        list.select_nth_unstable(self.k);
                        list.truncate(self.k);
                    }
                }
                list.sort_unstable();
                for (nth, &(_, at)) in list.iter().enumerate() {
                    put((o * self.k + nth) * inner + i, at, (o * extent + at) * inner + i);
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

    #[test]
    fn few_of_many_as_by_sorting() {
        // With ties, rising, and falling; the last lies across.
        let lines: [fn(usize) -> i32; 3] =
            [|i| (i * 7919 % 61) as i32, |i| i as i32, |i| -(i as i32)];
        for (k, f) in [1, 5, 25, 64].into_iter().flat_map(|k| lines.map(|f| (k, f))) {
            let values: Vec<i32> = (0..1200).map(f).collect();
            let x = || Tensor::from_slice(&[2, 600], &values).unwrap();
            for largest in [true, false] {
                let op = TopK { axis: 1, k, largest, positions: true };
                let y = top(x(), op).unwrap();
                for (line, found) in y.as_slice::<i64>().unwrap().chunks(k).enumerate() {
                    let mut order: Vec<i64> = (0..600).collect();
                    let value = |at: &i64| values[line * 600 + *at as usize];
                    order.sort_by_key(|at| if largest { -value(at) } else { value(at) });
                    assert_eq!(found, &order[..k], "{k} {largest}");
                }
            }
            let across = Tensor::from_slice(&[600, 2], &values).unwrap();
            let y = top(across, TopK { axis: 0, k, largest: true, positions: false }).unwrap();
            let mut second: Vec<i32> = values.iter().copied().skip(1).step_by(2).collect();
            second.sort_by_key(|v| -v);
            let found = y.as_slice::<i32>().unwrap().to_vec().into_iter().skip(1).step_by(2);
            assert!(found.eq(second.into_iter().take(k)));
        }
    }
}
