//! The largest or smallest elements along an axis.

use core::cmp::Ordering;

use super::{Operator, expect_operands};
use crate::graph::dynamic::order;
use crate::graph::{GraphError, Info, View, ViewMut, with_element};
use crate::tensor::{DType, Element};

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
            self.lines(x.dims, v, |line, to, list| {
                for (i, &(at, value)) in list.iter().enumerate() {
                    let y = to + i * line;
                    if self.positions {
                        dst.slice::<i64>(OP)?[y] = at as i64;
                    } else {
                        dst.slice::<T>(OP)?[y] = value;
                    }
                }
                Ok(())
            })
        })
    }
}

impl TopK {
    /// Calls `put` for each line with the distance of its results, the place of the first, and the
    /// best elements with their positions.
    pub(super) fn lines<T: Element + PartialOrd>(
        &self,
        dims: &[usize],
        v: &[T],
        mut put: impl FnMut(usize, usize, &[(usize, T)]) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let extent = dims[self.axis];
        let outer: usize = dims[..self.axis].iter().product();
        let inner: usize = dims[self.axis + 1..].iter().product();
        let better = |a: &(usize, T), b: &(usize, T)| -> Ordering {
            let by_value = order(&a.1, &b.1);
            let by_value = if self.largest { by_value.reverse() } else { by_value };
            by_value.then(a.0.cmp(&b.0))
        };
        let mut list: Vec<(usize, T)> = Vec::with_capacity(extent);
        for o in 0..outer {
            for i in 0..inner {
                list.clear();
                list.extend((0..extent).map(|at| (at, v[(o * extent + at) * inner + i])));
                if self.k < extent {
                    list.select_nth_unstable_by(self.k, better);
                    list.truncate(self.k);
                }
                list.sort_unstable_by(better);
                put(inner, o * self.k * inner + i, &list)?;
            }
        }
        Ok(())
    }
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
        assert_eq!(top(x(), TopK { k: 0, ..op }).unwrap().dims(), [2, 0]);
        assert!(top(x(), TopK { k: 4, ..op }).is_err());
        assert!(top(x(), TopK { axis: 2, ..op }).is_err());
    }
}
