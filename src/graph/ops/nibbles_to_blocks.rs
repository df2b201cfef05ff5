//! Dequantised weights of four bits, as blocks that products take.

use super::dequantize::scale_dims;
use super::elements::{expect_dtype, floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};
use crate::tensor::{DType, Tensor};

/// What [`super::dequantize::Dequantize`] makes floats of, with the same operands, as [`DType::U4`] with a row per
/// output: the weights of [`super::block_matmul::BlockMatMul`]. Scales and offsets are those of the operands.
///
/// Operands: numbers of four bits as `i8` from -8 to 7, or `u8` to 15, of a matrix whose blocks lie along `axis`; scales
/// of f32; and zero points like the numbers, if there are some. Of other numbers there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NibblesToBlocks {
    /// The axis that a product adds up: 0 of `[k, n]`, or 1 of `[n, k]`.
    pub axis: usize,
    /// Numbers that share a scale: some times 32.
    pub block: usize,
}

const OP: &str = "nibbles_to_blocks";

/// Numbers of a block of the result.
const BLOCK: usize = 32;

impl NibblesToBlocks {
    /// Extents of the result, if such a matrix has whole blocks.
    pub fn rows(&self, x: &[usize]) -> Option<[usize; 2]> {
        let &[a, b] = x else { return None };
        let [k, n] = if self.axis == 0 { [a, b] } else { [b, a] };
        let whole = |n: usize| n > 0 && n.is_multiple_of(BLOCK);
        (self.axis < 2 && whole(k) && whole(self.block)).then_some([n, k])
    }

    /// Whether numbers have four bits.
    pub fn holds(x: &Tensor) -> bool {
        // From the least number on.
        let least = if x.dtype() == DType::I8 { 8 } else { 0 };
        matches!(x.dtype(), DType::I8 | DType::U8)
            && x.bytes().iter().all(|q| q.wrapping_add(least) < 16)
    }
}

impl Operator for NibblesToBlocks {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "x, scale and perhaps a zero point")?;
        let (x, scale) = (&src[0], &src[1]);
        expect_dtype(OP, x, |d| matches!(d, DType::I8 | DType::U8))?;
        expect_dtype(OP, scale, |d| d == DType::F32)?;
        let wanted = scale_dims(&x.dims, Some(self.axis), self.block);
        let fits = |s: &Info| wanted.as_ref() == Some(&s.dims);
        let zero = src.get(2);
        let Some(rows) = self
            .rows(&x.dims)
            .filter(|_| fits(scale) && zero.is_none_or(|z| fits(z) && z.dtype == x.dtype))
        else {
            let rule = "a matrix in whole blocks of 32, with one scale and zero point for each";
            return Err(GraphError::mismatch(OP, rule, &[("x", &x.dims), ("scale", &scale.dims)]));
        };
        Ok(Info::plain(DType::U4, rows.to_vec()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let &[n, k] = dst.dims else { return Ok(()) };
        let (q, scales) = (src[0].bytes, src[1].slice::<f32>(OP)?);
        let zeros = src.get(2).map(|z| floats(z, OP)).transpose()?;
        let least = if src[0].dtype == DType::I8 { 8u8 } else { 0 };
        // How far apart elements are along a row of the result, and along a column.
        let step = |k: usize| if self.axis == 0 { [n, 1] } else { [1, k] };
        let ([along, across], [next, down]) = (step(k), step(k.div_ceil(self.block)));
        let bytes = DType::U4.block_bytes();
        // Some rows at a time, as numbers that lie beside each other may be of several.
        for first in (0..n).step_by(64) {
            for block in 0..k / BLOCK {
                for row in first..n.min(first + 64) {
                    let out = &mut dst.bytes[(row * (k / BLOCK) + block) * bytes..][..bytes];
                    let at = block * BLOCK / self.block * next + row * down;
                    let zero = zeros.as_ref().map_or(0.0, |z| z[at]) + f64::from(least);
                    let offset = (-zero * f64::from(scales[at])) as f32;
                    out[..4].copy_from_slice(&scales[at].to_le_bytes());
                    out[4..8].copy_from_slice(&offset.to_le_bytes());
                    let from = block * BLOCK * along + row * across;
                    let number = |i: usize| q[from + i * along].wrapping_add(least) & 15;
                    for (i, out) in out[8..].iter_mut().enumerate() {
                        *out = number(2 * i) | number(2 * i + 1) << 4;
                    }
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
    use crate::graph::ops::dequantize::Dequantize;
    use crate::tensor::block;

    /// Blocks mean what the dequantised matrix does, along each axis, with signs and without.
    #[test]
    fn blocks_are_the_numbers() {
        let (k, n) = (96_usize, 70);
        for (axis, signed, zeros) in [
            (0, true, false),
            (0, true, true),
            (1, true, true),
            (1, false, false),
            (0, false, true),
        ] {
            let dims = if axis == 0 { [k, n] } else { [n, k] };
            let of_block = if axis == 0 { [k.div_ceil(64), n] } else { [n, k.div_ceil(64)] };
            let mut cx = Context::new();
            let numbers = |count: usize, by: usize| {
                let all = (0..count).map(|i| (i * by % 251 % 16) as u8);
                all.map(|q| if signed { q.wrapping_sub(8) } else { q }).collect::<Vec<u8>>()
            };
            let tensor = |dims: &[usize], bytes: Vec<u8>| match signed {
                true => {
                    let signed: Vec<i8> = bytes.into_iter().map(|b| b as i8).collect();
                    Tensor::from_slice(dims, &signed).unwrap()
                }
                false => Tensor::from_slice(dims, &bytes).unwrap(),
            };
            let blocks = of_block[0] * of_block[1];
            let scales: Vec<f32> = (0..blocks).map(|i| [0.5, -0.25, 0.125, 0.0][i % 4]).collect();
            let x = tensor(&dims, numbers(k * n, 37));
            assert!(NibblesToBlocks::holds(&x));
            let mut src = vec![x, Tensor::from_slice(&of_block, &scales).unwrap()];
            src.extend(zeros.then(|| tensor(&of_block, numbers(blocks, 91))));
            let src: Vec<_> = src.into_iter().map(|t| cx.constant(t).unwrap()).collect();
            let floats = cx.op(Dequantize { axis: Some(axis), block: 64 }, &src).unwrap();
            let floats = cx.constant_value(floats).unwrap().as_slice::<f32>().unwrap().to_vec();
            let at = |row: usize, i: usize| if axis == 0 { i * n + row } else { row * k + i };
            let want: Vec<f32> = (0..n * k).map(|i| floats[at(i / k, i % k)]).collect();
            let found = cx.op(NibblesToBlocks { axis, block: 64 }, &src).unwrap();
            let mut y = vec![0.0; n * k];
            block::dequantize(DType::U4, cx.constant_value(found).unwrap().bytes(), &mut y)
                .unwrap();
            assert_eq!(y, want, "axis {axis}, signed {signed}, zeros {zeros}");
        }
    }

    #[test]
    fn other_matrices_are_refused() {
        let op = NibblesToBlocks { axis: 0, block: 32 };
        assert_eq!(op.rows(&[64, 5]), Some([5, 64]));
        assert_eq!(NibblesToBlocks { axis: 1, ..op }.rows(&[5, 64]), Some([5, 64]));
        for bad in [&[48, 5][..], &[0, 5], &[64], &[64, 5, 1]] {
            assert_eq!(op.rows(bad), None, "{bad:?}");
        }
        assert_eq!(NibblesToBlocks { block: 16, ..op }.rows(&[64, 5]), None);
        assert!(!NibblesToBlocks::holds(&Tensor::from_slice(&[2], &[3u8, 16]).unwrap()));
        assert!(!NibblesToBlocks::holds(&Tensor::from_slice(&[2], &[-9i8, 1]).unwrap()));
        assert!(!NibblesToBlocks::holds(&Tensor::from_slice(&[1], &[1i32]).unwrap()));
    }
}
