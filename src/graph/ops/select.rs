//! Choice between two operands.

use core::ops::Range;

use super::binary::Broadcast;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::{DType, broadcast};

/// Element by element the second operand where the first (`bool`) is true, else the third; all
/// three broadcast, as ONNX `Where`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Select;

const OP: &str = "where";

impl Operator for Select {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 3..=3, "3")?;
        let (c, a, b) = (&src[0], &src[1], &src[2]);
        if c.dtype != DType::Bool {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: c.dtype });
        }
        if a.dtype != b.dtype || !a.dtype.is_plain() {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: b.dtype });
        }
        let dims = broadcast(&a.dims, &b.dims).and_then(|d| broadcast(&c.dims, &d));
        let dims = dims.ok_or_else(|| {
            let rule = "the operands' shapes must broadcast";
            let shapes = [("condition", &c.dims[..]), ("a", &a.dims), ("b", &b.dims)];
            GraphError::mismatch(OP, rule, &shapes)
        })?;
        Ok(Info::plain(a.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let size = dst.dtype.block_bytes();
        let [c, a, b] = [0, 1, 2].map(|i| Broadcast::new(src[i].dims, dst.dims));
        let row = dst.dims.last().copied().unwrap_or(1).max(1);
        for (r, y) in dst.bytes.chunks_exact_mut(row * size).enumerate() {
            let [(c0, dc), (a0, da), (b0, db)] = [&c, &a, &b].map(|o| o.row(r * row));
            for (i, y) in y.chunks_exact_mut(size).enumerate() {
                let (from, at) = if src[0].bytes[c0 + i * dc] != 0 {
                    (src[1].bytes, a0 + i * da)
                } else {
                    (src[2].bytes, b0 + i * db)
                };
                y.copy_from_slice(&from[at * size..][..size]);
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let size = cx.dst.dtype.block_bytes();
        if !cfg!(feature = "ops-more") || !matches!(size, 1 | 2 | 4 | 8) {
            return Ok(None);
        }
        let dims = &cx.dst.dims;
        let row = dims.last().copied().unwrap_or(1);
        Ok(Some(Box::new(Run {
            operands: [0, 1, 2].map(|i| Broadcast::new(&cx.src[i].dims, dims)),
            rows: dims.iter().product::<usize>().checked_div(row).unwrap_or(0),
            row,
            size,
        })))
    }
}

/// A unit is a row of the last axis.
struct Run {
    operands: [Broadcast; 3],
    rows: usize,
    row: usize,
    /// Bytes of an element.
    size: usize,
}

impl Step for Run {
    fn kernel(&self) -> String {
        format!("{OP}_{}b", self.size)
    }

    fn units(&self) -> usize {
        self.rows
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        for unit in units {
            // SAFETY: the caller's duties are those of the function.
            unsafe {
                match self.size {
                    1 => self.choose::<u8>(src, dst, unit),
                    2 => self.choose::<u16>(src, dst, unit),
                    4 => self.choose::<u32>(src, dst, unit),
                    _ => self.choose::<u64>(src, dst, unit),
                }
            }
        }
        Ok(())
    }
}

impl Run {
    /// # Safety
    /// As of [`Step::run`] for one unit, for elements of the size of `T`.
    #[allow(unsafe_code)]
    unsafe fn choose<T: Copy>(&self, src: &[*const u8], dst: *mut u8, unit: usize) {
        let n = self.row;
        let [(c, dc), (a, da), (b, db)] = [0, 1, 2].map(|i| self.operands[i].row(unit * n));
        // Elements of a row that an operand has: all, or one for all.
        let len = |step: usize| if step == 0 { 1 } else { n };
        // SAFETY: operands have the elements that they broadcast to the result's row, of which this call
        // alone writes those of the unit; bytes of `bool` are read as numbers; addresses are aligned.
        let (c, a, b, y) = unsafe {
            (
                core::slice::from_raw_parts(src[0].add(c), len(dc)),
                core::slice::from_raw_parts(src[1].cast::<T>().add(a), len(da)),
                core::slice::from_raw_parts(src[2].cast::<T>().add(b), len(db)),
                core::slice::from_raw_parts_mut(dst.cast::<T>().add(unit * n), n),
            )
        };
        match (c, a, b) {
            ([c], ..) => match if *c == 0 { b } else { a } {
                [one] => y.fill(*one),
                row => y.copy_from_slice(row),
            },
            (_, &[a], &[b]) => {
                y.iter_mut().zip(c).for_each(|(y, &c)| *y = if c == 0 { b } else { a });
            }
            (_, &[a], _) => {
                let both = c.iter().zip(b);
                y.iter_mut().zip(both).for_each(|(y, (&c, &b))| *y = if c == 0 { b } else { a });
            }
            (_, _, &[b]) => {
                let both = c.iter().zip(a);
                y.iter_mut().zip(both).for_each(|(y, (&c, &a))| *y = if c == 0 { b } else { a });
            }
            _ => {
                let all = c.iter().zip(a.iter().zip(b));
                y.iter_mut()
                    .zip(all)
                    .for_each(|(y, (&c, (&a, &b)))| *y = if c == 0 { b } else { a });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    #[cfg(feature = "ops-more")]
    fn rows_as_by_the_definition() {
        use crate::graph::ops::elements::as_defined;

        let shapes: [&[usize]; 7] = [&[3, 2, 5], &[5], &[2, 5], &[3, 1, 5], &[3, 2, 1], &[1], &[]];
        let elements = |dims: &[usize]| dims.iter().product::<usize>();
        for c in shapes {
            for a in shapes {
                for b in shapes {
                    let bits: Vec<u8> =
                        (0..elements(c)).map(|i| u8::from(i * i % 3 == 1)).collect();
                    let bits = Tensor::from_bytes(DType::Bool, c, &bits).unwrap();
                    let list =
                        |n: usize, at: i64| (0..n as i64).map(|i| i + at).collect::<Vec<_>>();
                    let long = [(a, 100), (b, 200)].map(|(dims, at)| {
                        Tensor::from_slice(dims, &list(elements(dims), at)).unwrap()
                    });
                    let [x, y] = long;
                    assert_eq!(as_defined(&Select, &[bits.clone(), x, y]), "where_8b");
                    let short = [(a, 10), (b, 20)].map(|(dims, at)| {
                        let v: Vec<i16> =
                            list(elements(dims), at).iter().map(|&v| v as i16).collect();
                        Tensor::from_slice(dims, &v).unwrap()
                    });
                    let [x, y] = short;
                    assert_eq!(as_defined(&Select, &[bits, x, y]), "where_2b");
                }
            }
        }
    }

    #[test]
    fn all_three_broadcast() {
        let mut cx = Context::new();
        let c = Tensor::from_bytes(DType::Bool, &[2, 1], &[1, 0]).unwrap();
        let c = cx.constant(c).unwrap();
        let a = cx.constant(Tensor::from_slice(&[3], &[1i64, 2, 3]).unwrap()).unwrap();
        let b = cx.constant(Tensor::from_slice(&[], &[-1i64]).unwrap()).unwrap();
        let y = cx.op(Select, &[c, a, b]).unwrap();
        let y = cx.constant_value(y).unwrap();
        assert_eq!(y.dims(), [2, 3]);
        assert_eq!(y.as_slice::<i64>().unwrap()[..], [1, 2, 3, -1, -1, -1]);
        assert!(cx.op(Select, &[a, a, b]).is_err());
    }
}
