//! Weights of few bits, as numbers.
//!
//! Sources: the texts of `MatMulNBits` and `MatMulBnb4` of ONNX Runtime's domain `com.microsoft`; for the values of
//! four-bit codes Dettmers et al., "QLoRA" (2023), appendix E (NF4), and the library bitsandbytes (FP4).

use super::elements::{expect_dtype, floats, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// `(q - zero) * scale` for numbers `q` of few bits in blocks along rows, as the weights of
/// `com.microsoft`'s `MatMulNBits`. Operands: `[rows, blocks, block * bits / 8]` of `u8`, the low
/// bits first; scales (floats), one per block; and zero points, as floats one per block or as `u8`
/// packed like the weights (each row padded to bytes), if there are some. Without, the middle
/// number is zero.
///
/// With a [`Code`] that is not linear, operands are `u8`, two numbers of a table per byte, the first in the high
/// bits, without padding at the ends of rows or blocks; and scales, one per block of all numbers.
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
    /// What numbers of so many bits mean.
    pub code: Code,
}

/// What a number of few bits means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Code {
    /// Itself.
    #[default]
    Linear,
    /// A float of four bits: sign, and one of eight values.
    Fp4,
    /// One of 16 quantiles of the normal distribution.
    Nf4,
}

/// Twelfths.
const FP4: [f64; 8] = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];

const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

impl Code {
    /// The value of four bits; `None` if numbers are themselves.
    fn value(self, bits: u8) -> Option<f64> {
        let bits = usize::from(bits & 15);
        match self {
            Self::Linear => None,
            Self::Fp4 => {
                let size = FP4[bits & 7] / 12.0;
                Some(if bits > 7 { -size } else { size })
            }
            Self::Nf4 => Some(f64::from(NF4[bits])),
        }
    }
}

const OP: &str = "unpack_bits";

impl UnpackBits {
    pub(super) fn blocks(&self) -> usize {
        self.columns.div_ceil(self.block)
    }

    /// The number that means 0, of each block of each row.
    pub(super) fn zeros(&self, zeros: Option<&View<'_>>) -> Result<Vec<f64>, GraphError> {
        let blocks = self.blocks();
        Ok(match zeros {
            Some(z) if z.dtype == DType::F32 => floats(z, OP)?,
            Some(z) => {
                let row = (blocks * self.bits).div_ceil(8).max(1);
                let rows = z.bytes.chunks_exact(row).take(self.rows);
                rows.flat_map(|row| (0..blocks).map(|block| self.number(row, block))).collect()
            }
            None => vec![f64::from(1u32 << (self.bits - 1)); self.rows * blocks],
        })
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
        if self.code != Code::Linear {
            let count = self.rows.checked_mul(self.columns);
            let fits = count.is_some_and(|n| {
                let blocks = n.checked_div(self.block);
                let blocks = blocks.map(|b| b + usize::from(!n.is_multiple_of(self.block)));
                w.elements() == n.div_ceil(2) && Some(scales.elements()) == blocks
            });
            if !fits || self.bits != 4 || src.len() > 2 {
                let rule = "two numbers per byte and a scale per block must fit rows and columns";
                let shapes = [("weights", &w.dims[..]), ("scales", &scales.dims)];
                return Err(GraphError::mismatch(OP, rule, &shapes));
            }
            return Ok(Info::plain(DType::F32, vec![self.rows, self.columns]));
        }
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
        if self.code != Code::Linear {
            let values = (0..self.rows * self.columns).map(|i| {
                let byte = src[0].bytes[i / 2];
                let bits = if i.is_multiple_of(2) { byte >> 4 } else { byte };
                self.code.value(bits).unwrap_or(0.0) * scales[i / self.block]
            });
            return write_floats(dst, OP, values);
        }
        let zeros = self.zeros(src.get(2))?;
        let values = (0..self.rows * self.columns).map(|i| {
            let (row, column) = (i / self.columns, i % self.columns);
            let block = row * blocks + column / self.block;
            let q = self.number(src[0].bytes, block * self.block + column % self.block);
            (q - zeros[block]) * scales[block]
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
        let op = UnpackBits { bits: 4, rows: 1, columns: 3, block: 2, code: Code::Linear };
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

    #[test]
    fn codes_of_four_bits() {
        let mut cx = Context::new();
        let w = Tensor::from_slice(&[2], &[0x0fu8, 0xa3]).unwrap();
        let scales = Tensor::from_slice(&[2], &[1.0f32, 3.0]).unwrap();
        let [w, scales] = [w, scales].map(|t| cx.constant(t).unwrap());
        let op = UnpackBits { bits: 4, rows: 1, columns: 3, block: 2, code: Code::Nf4 };
        let mut run = |op: UnpackBits, src: &[_]| {
            let y = cx.op(op, src)?;
            Ok::<_, GraphError>(cx.constant_value(y).unwrap().as_slice::<f32>()?.to_vec())
        };
        assert_eq!(run(op, &[w, scales]).unwrap(), [-1.0, 1.0, 0.738_336_9]);
        let fp4 = UnpackBits { code: Code::Fp4, ..op };
        assert_eq!(run(fp4, &[w, scales]).unwrap(), [0.0, -0.25, -2.0]);
        for bad in [
            UnpackBits { bits: 8, ..op },
            UnpackBits { block: 0, ..op },
            UnpackBits { rows: usize::MAX, ..op },
            UnpackBits { columns: 5, ..op },
        ] {
            assert!(run(bad, &[w, scales]).is_err());
        }
        assert!(run(op, &[w, scales, scales]).is_err());
    }
}
