//! Weights of few bits, as numbers.

use super::elements::{expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// `(q - zero) * scale` for numbers `q` of few bits in blocks along rows, as the weights of
/// `com.microsoft`'s `MatMulNBits`. Operands: `[rows, blocks, block * bits / 8]` of `u8`, the low
/// bits first; scales (floats), one per block; and zero points, as floats one per block or as `u8`
/// packed like the weights (each row padded to bytes), if there are some. Without, the middle
/// number is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpackBits {
    /// 2, 4 or 8.
    pub bits: usize,
    /// Rows of the result.
    pub rows: usize,
    /// Columns of the result.
    pub columns: usize,
    /// Numbers that share a scale.
    pub block: usize,
}

const OP: &str = "unpack_bits";

impl UnpackBits {
    fn blocks(&self) -> usize {
        self.columns.div_ceil(self.block)
    }

    /// Number `i` of packed bytes.
    fn number(&self, bytes: &[u8], i: usize) -> f64 {
        let at = i * self.bits;
        let mask = ((1u16 << self.bits) - 1) as u8;
        f64::from(bytes[at / 8] >> (at % 8) & mask)
    }
}

impl Operator for UnpackBits {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "weights, scales and perhaps zero points")?;
        let (w, scales) = (&src[0], &src[1]);
        expect_dtype(OP, w, |d| d == DType::U8)?;
        expect_dtype(OP, scales, |d| d == DType::F32)?;
        let known = matches!(self.bits, 2 | 4 | 8) && self.block > 0;
        let bits = self.block.checked_mul(self.bits).filter(|b| known && b.is_multiple_of(8));
        let fits = bits.is_some_and(|bits| {
            let blocks = self.blocks();
            let scale_count = self.rows.checked_mul(blocks);
            let zero_bytes =
                blocks.checked_mul(self.bits).and_then(|b| b.div_ceil(8).checked_mul(self.rows));
            let zeros = src.get(2).is_none_or(|z| match z.dtype {
                DType::U8 => Some(z.elements()) == zero_bytes,
                DType::F32 => Some(z.elements()) == scale_count,
                _ => false,
            });
            let count = scale_count.and_then(|n| n.checked_mul(bits / 8));
            Some(w.elements()) == count && Some(scales.elements()) == scale_count && zeros
        });
        if !fits {
            let rule = "weights, scales and zero points must fit rows, columns and blocks";
            let shapes = [("weights", &w.dims[..]), ("scales", &scales.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        Ok(Info::plain(DType::F32, vec![self.rows, self.columns]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (blocks, scales) = (self.blocks(), floats(&src[1], OP)?);
        let float_zeros = match src.get(2) {
            Some(z) if z.dtype == DType::F32 => Some(floats(z, OP)?),
            _ => None,
        };
        let zero_row = (blocks * self.bits).div_ceil(8);
        let values = (0..self.rows * self.columns).map(|i| {
            let (row, column) = (i / self.columns, i % self.columns);
            let block = column / self.block;
            let zero = match (&float_zeros, src.get(2)) {
                (Some(zeros), _) => zeros[row * blocks + block],
                (None, Some(z)) => self.number(&z.bytes[row * zero_row..], block),
                (None, None) => f64::from(1u32 << (self.bits - 1)),
            };
            let q = self
                .number(src[0].bytes, (row * blocks + block) * self.block + column % self.block);
            (q - zero) * scales[row * blocks + block]
        });
        write_floats(dst, OP, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    #[test]
    fn nibbles() {
        let mut cx = Context::new();
        let w = Tensor::from_slice(&[1, 2, 1], &[0x91u8, 0x0f]).unwrap();
        let scales = Tensor::from_slice(&[2], &[1.0f32, 0.5]).unwrap();
        let zeros = Tensor::from_slice(&[1], &[0x21u8]).unwrap();
        let [w, scales, zeros] = [w, scales, zeros].map(|t| cx.constant(t).unwrap());
        let op = UnpackBits { bits: 4, rows: 1, columns: 3, block: 2 };
        let mut run = |op: UnpackBits, src: &[_]| {
            let y = cx.op(op, src)?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<f32>()?.to_vec())
        };
        assert_eq!(run(op, &[w, scales]).unwrap(), [-7.0, 1.0, 3.5]);
        assert_eq!(run(op, &[w, scales, zeros]).unwrap(), [0.0, 8.0, 6.5]);
        for bad in [
            UnpackBits { bits: 3, ..op },
            UnpackBits { block: 0, ..op },
            UnpackBits { rows: usize::MAX, ..op },
            UnpackBits { columns: 5, ..op },
        ] {
            assert!(run(bad, &[w, scales]).is_err());
        }
    }
}
