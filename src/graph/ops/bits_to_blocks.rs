//! Weights of few bits, as blocks that products take.

use half::f16;

use super::unpack_bits::{Code, UnpackBits};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::DType;

/// What [`UnpackBits`] makes floats of, with the same operands, as a block-quantised type: the weights of
/// [`super::block_matmul::BlockMatMul`]. Numbers stay as they are. [`DType::U4`] keeps scales, too;
/// [`DType::Q4_0`], [`DType::Q4_1`] and [`DType::Q8_0`] round them, and offsets, to f16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitsToBlocks {
    /// What the operands are.
    pub from: UnpackBits,
    /// `U4` and `Q4_1` of 4 bits; `Q4_0` of 4 and `Q8_0` of 8 if there are no zero points.
    pub to: DType,
}

const OP: &str = "bits_to_blocks";

/// Numbers of a block of the result.
const BLOCK: usize = 32;

impl BitsToBlocks {
    /// Whether numbers, with zero points or without, are whole blocks of the type.
    pub fn fits(&self, zeros: bool) -> bool {
        let bits = match self.to {
            DType::U4 | DType::Q4_1 => 4,
            DType::Q4_0 if !zeros => 4,
            DType::Q8_0 if !zeros => 8,
            _ => return false,
        };
        let UnpackBits { columns, block, .. } = self.from;
        let whole = |n: usize| n > 0 && n.is_multiple_of(BLOCK);
        self.from.bits == bits && self.from.code == Code::Linear && whole(columns) && whole(block)
    }

    /// Whether halves are scales as good as these: none is too large, or so small that it would lose digits.
    pub fn has_halves(scales: &[f32]) -> bool {
        let least = f16::MIN_POSITIVE.to_f32();
        // Times the largest zero point.
        let most = f16::MAX.to_f32() / 16.0;
        scales.iter().all(|s| *s == 0.0 || (least..=most).contains(&s.abs()))
    }
}

/// Sixteen numbers of four bits, two per byte in their order, as bytes.
fn apart(bytes: &[u8; 8]) -> [u64; 2] {
    [0, 4].map(|at| {
        let word = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let x = u64::from(word);
        let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
        let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
        (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
    })
}

/// Packed numbers as ggml orders them: 16 in the low halves of bytes, 16 in the high ones.
fn in_halves(q: &[u8], out: &mut [u8]) {
    let ([low, high], []) = q.as_chunks::<8>() else { return };
    for (out, (low, high)) in out.chunks_exact_mut(8).zip(apart(low).into_iter().zip(apart(high))) {
        out.copy_from_slice(&(low | high << 4).to_le_bytes());
    }
}

impl Operator for BitsToBlocks {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "weights, scales and perhaps zero points")?;
        if !self.fits(src.len() > 2) {
            let reason = format!("{} does not hold {:?}", self.to, self.from);
            return Err(GraphError::InvalidAttribute { op: OP, attribute: "to", reason });
        }
        Ok(Info::plain(self.to, self.from.infer(src)?.dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let UnpackBits { bits, columns, block, .. } = self.from;
        let (scales, zeros) = (src[1].slice::<f32>(OP)?, self.from.zeros(src.get(2))?);
        let (of_row, packed) = (self.from.blocks(), block / 8 * bits);
        let blocks = dst.bytes.chunks_exact_mut(self.to.block_bytes());
        for (i, out) in blocks.enumerate() {
            let (row, column) = (i / (columns / BLOCK), i % (columns / BLOCK) * BLOCK);
            let at = row * of_row + column / block;
            let q = &src[0].bytes[at * packed + column % block / 8 * bits..][..BLOCK / 8 * bits];
            let (scale, offset) = (scales[at], (-zeros[at] * f64::from(scales[at])) as f32);
            let half = |x: f32| f16::from_f32(x).to_le_bytes();
            match self.to {
                DType::U4 => {
                    out[..4].copy_from_slice(&scale.to_le_bytes());
                    out[4..8].copy_from_slice(&offset.to_le_bytes());
                    out[8..].copy_from_slice(q);
                }
                DType::Q8_0 => {
                    out[..2].copy_from_slice(&half(scale));
                    out[2..].iter_mut().zip(q).for_each(|(out, q)| *out = q ^ 128);
                }
                to => {
                    out[..2].copy_from_slice(&half(scale));
                    let head = to.block_bytes() - BLOCK / 2;
                    if head > 2 {
                        out[2..4].copy_from_slice(&half(offset));
                    }
                    in_halves(q, &mut out[head..]);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::{Tensor, block};

    /// Blocks mean what the operands mean, for zero points of each kind and blocks of several of 32.
    #[test]
    fn blocks_are_the_numbers() {
        for (bits, block, zeros, to) in [
            (4, 32, 0, DType::U4),
            (4, 64, 1, DType::U4),
            (4, 32, 2, DType::U4),
            (4, 96, 0, DType::Q4_0),
            (4, 32, 1, DType::Q4_1),
            (4, 128, 2, DType::Q4_1),
            (8, 64, 0, DType::Q8_0),
        ] {
            let (rows, columns) = (3, 160_usize);
            let from = UnpackBits { bits, rows, columns, block, code: Code::Linear };
            let blocks = columns.div_ceil(block);
            let mut cx = Context::new();
            let bytes =
                |n: usize, by: usize| (0..n).map(|i| (i * by % 251) as u8).collect::<Vec<_>>();
            let w = bytes(rows * blocks * block / 8 * bits, 37);
            let scales: Vec<f32> =
                (0..rows * blocks).map(|i| [0.5, -0.25, 0.125, 0.0][i % 4]).collect();
            let zero_bytes = (blocks * bits).div_ceil(8) * rows;
            let float_zeros: Vec<f32> = (0..rows * blocks).map(|i| i as f32 / 2.0).collect();
            let mut src = vec![
                Tensor::from_slice(&[w.len()], &w).unwrap(),
                Tensor::from_slice(&[scales.len()], &scales).unwrap(),
            ];
            match zeros {
                0 => {}
                1 => src.push(Tensor::from_slice(&[zero_bytes], &bytes(zero_bytes, 91)).unwrap()),
                _ => src.push(Tensor::from_slice(&[float_zeros.len()], &float_zeros).unwrap()),
            }
            let src: Vec<_> = src.into_iter().map(|t| cx.constant(t).unwrap()).collect();
            let want = cx.op(from, &src).unwrap();
            let want = cx.constant_value(want).unwrap().as_slice::<f32>().unwrap().to_vec();
            let found = cx.op(BitsToBlocks { from, to }, &src).unwrap();
            let found = cx.constant_value(found).unwrap();
            let mut floats = vec![0.0; rows * columns];
            block::dequantize(to, found.bytes(), &mut floats).unwrap();
            assert_eq!(floats, want, "{from:?} {to}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let from = UnpackBits { bits: 4, rows: 1, columns: 64, block: 32, code: Code::Linear };
        let op = BitsToBlocks { from, to: DType::U4 };
        assert!(op.fits(false) && op.fits(true));
        assert!(!BitsToBlocks { to: DType::Q4_0, ..op }.fits(true));
        assert!(!BitsToBlocks { to: DType::Q8_0, ..op }.fits(false));
        assert!(!BitsToBlocks { to: DType::Q4_K, ..op }.fits(false));
        for bad in [
            UnpackBits { bits: 8, ..from },
            UnpackBits { columns: 48, ..from },
            UnpackBits { columns: 0, ..from },
            UnpackBits { block: 16, ..from },
            UnpackBits { code: Code::Nf4, ..from },
        ] {
            assert!(!BitsToBlocks { from: bad, ..op }.fits(false), "{bad:?}");
        }
        assert!(BitsToBlocks::has_halves(&[0.0, 1.0, -0.001, 4000.0]));
        for bad in [1e-6, 1e5, f32::NAN, f32::INFINITY] {
            assert!(!BitsToBlocks::has_halves(&[bad]), "{bad}");
        }
    }
}
