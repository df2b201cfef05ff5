//! Rows of a matrix chosen by number: the vectors of tokens.

use core::ops::Range;
use core::slice;

use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::block::dequantize;
use crate::tensor::{DType, Tensor};

/// The rows of a matrix that a list of numbers names, as f32.
///
/// Operands: the matrix `[n, k]`, of f32, f16, bf16 or a block-quantised type, and row numbers `[m]`
/// of `i32`. Result: `[m, k]` of f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Embedding;

const OP: &str = "embedding";

/// Whether rows of this type can be turned into f32.
pub(super) fn has_rows(dtype: DType) -> bool {
    !dtype.is_plain() || matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

/// Number `i` of the list as a row of `n`.
fn row(id: i32, n: usize) -> Result<usize, GraphError> {
    let out = GraphError::IndexOutOfRange { op: OP, index: id.into(), extent: n };
    usize::try_from(id).ok().filter(|&row| row < n).ok_or(out)
}

/// Row `row` of a matrix whose rows have `out.len()` elements.
pub(super) fn dequantize_row(
    dtype: DType,
    matrix: &[u8],
    row: usize,
    out: &mut [f32],
) -> Result<(), GraphError> {
    let bytes = dtype.bytes_of(out.len()).expect("rows are whole blocks");
    Ok(dequantize(dtype, &matrix[row * bytes..][..bytes], out)?)
}

impl Operator for Embedding {
    fn name(&self) -> &'static str {
        OP
    }

    fn looks_up(&self) -> bool {
        true
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=2, "a matrix and row numbers")?;
        let (matrix, ids) = (&src[0], &src[1]);
        if !has_rows(matrix.dtype) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: matrix.dtype });
        }
        if ids.dtype != DType::I32 {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: ids.dtype });
        }
        let (&[_, k], &[m]) = (&matrix.dims[..], &ids.dims[..]) else {
            let rule = "there must be a matrix and a list";
            let shapes = [("matrix", &matrix.dims[..]), ("rows", &ids.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        };
        Ok(Info::plain(DType::F32, vec![m, k]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (n, k) = (src[0].dims[0], src[0].dims[1]);
        let ids = src[1].slice::<i32>(OP)?;
        for (&id, y) in ids.iter().zip(dst.slice::<f32>(OP)?.chunks_exact_mut(k.max(1))) {
            dequantize_row(src[0].dtype, src[0].bytes, row(id, n)?, y)?;
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        // Read from its file: what other steps use of it may be packed, and lie elsewhere.
        let step = |matrix: &Tensor| {
            let (n, k) = (cx.src[0].dims[0], cx.src[0].dims[1]);
            Box::new(Rows { matrix: matrix.clone(), n, k, m: cx.src[1].dims[0] }) as Box<dyn Step>
        };
        Ok(cx.values[0].map(step))
    }
}

struct Rows {
    matrix: Tensor,
    n: usize,
    k: usize,
    m: usize,
}

impl Rows {
    fn row_bytes(&self) -> usize {
        self.matrix.dtype().bytes_of(self.k).expect("rows are whole blocks")
    }
}

impl Step for Rows {
    fn kernel(&self) -> String {
        format!("rows_{}", self.matrix.dtype())
    }

    fn units(&self) -> usize {
        self.m
    }

    /// The bytes of a row.
    fn scratch_bytes(&self) -> usize {
        self.row_bytes()
    }

    fn reads(&self, i: usize) -> bool {
        i == 1
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        // SAFETY: the caller vouches for as much scratch memory as asked for.
        let bytes = unsafe { slice::from_raw_parts_mut(scratch, self.row_bytes()) };
        for unit in units {
            // SAFETY: a unit reads its number and writes its row, which no other does.
            let (id, y) = unsafe {
                let y = dst.cast::<f32>().add(unit * self.k);
                (*src[1].cast::<i32>().add(unit), slice::from_raw_parts_mut(y, self.k))
            };
            self.matrix.storage().read_at(row(id, self.n)? * bytes.len(), bytes)?;
            dequantize(self.matrix.dtype(), bytes, y)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;

    fn look_up(matrix: Tensor, ids: &[i32]) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let matrix = cx.constant(matrix)?;
        let ids = cx.constant(Tensor::from_slice(&[ids.len()], ids)?)?;
        let y = cx.op(Embedding, &[matrix, ids])?;
        Ok(cx.constant_value(y).unwrap().as_slice().unwrap().to_vec())
    }

    #[test]
    fn rows_by_number() {
        let matrix = Tensor::from_slice(&[3, 2], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert_eq!(look_up(matrix.clone(), &[2, 0, 2]).unwrap(), [5.0, 6.0, 1.0, 2.0, 5.0, 6.0]);
        for id in [3, -1, i32::MIN] {
            let e = look_up(matrix.clone(), &[0, id]).unwrap_err();
            assert_eq!(e, GraphError::IndexOutOfRange { op: OP, index: id.into(), extent: 3 });
        }
        let halves = [1.5f32, -2.0].map(half::f16::from_f32);
        let matrix = Tensor::from_slice(&[2, 1], &halves).unwrap();
        assert_eq!(look_up(matrix, &[1, 0]).unwrap(), [-2.0, 1.5]);
        let block: Vec<u8> =
            half::f16::from_f32(0.5).to_le_bytes().into_iter().chain(0..32).collect();
        let matrix = Tensor::from_bytes(DType::Q8_0, &[1, 32], &block).unwrap();
        let want: Vec<f32> = (0..32).map(|q| q as f32 / 2.0).collect();
        assert_eq!(look_up(matrix, &[0]).unwrap(), want);
    }

    #[test]
    fn other_types_are_refused() {
        let ints = Tensor::from_slice(&[1, 1], &[1i32]).unwrap();
        assert!(look_up(ints, &[0]).is_err());
        let row = Tensor::from_slice(&[1], &[1f32]).unwrap();
        assert!(look_up(row, &[0]).is_err());
    }
}
