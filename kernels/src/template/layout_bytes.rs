//! Layout changes of tensors of bytes between plain `[n, c, h, w]` and blocked
//! `[n, ceil(c / 16), h, w, 16]`, and from plain to interleaved `[n, h, w, c]`.
//!
//! Networks of bytes change layout at their borders only, where a picture comes in or a few numbers
//! go out, so this is portable code.

use crate::error::{check_len, checked_len};
use crate::{C_BLOCK, KernelError};
use core::ops::Range;
use tilewright_intrinsics::each;

const OP: &str = "layout of bytes";

/// What becomes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteLayoutOp {
    /// Plain to blocked.
    Block,
    /// Blocked to plain.
    Unblock,
    /// Plain to interleaved.
    Interleave,
}

/// A change of layout of fixed sizes.
#[derive(Clone, Copy, Debug)]
pub struct ByteLayoutPlan {
    op: ByteLayoutOp,
    n: usize,
    c: usize,
    space: usize,
}

impl ByteLayoutPlan {
    /// Plans a change for `n` images of `c` channels of `space` pixels.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`].
    pub fn new(op: ByteLayoutOp, n: usize, c: usize, space: usize) -> Result<Self, KernelError> {
        checked_len(OP, &[n, c.div_ceil(C_BLOCK), C_BLOCK, space])?;
        Ok(Self { op, n, c, space })
    }

    /// Bytes of the plain tensor.
    fn plain(&self) -> usize {
        self.n * self.c * self.space
    }

    /// Bytes of the blocked tensor.
    fn blocked(&self) -> usize {
        self.n * self.c.div_ceil(C_BLOCK) * C_BLOCK * self.space
    }

    /// Bytes of the operand.
    pub fn x_len(&self) -> usize {
        if self.op == ByteLayoutOp::Unblock { self.blocked() } else { self.plain() }
    }

    /// Bytes of the result.
    pub fn y_len(&self) -> usize {
        if self.op == ByteLayoutOp::Block { self.blocked() } else { self.plain() }
    }

    /// The name of the kernel.
    pub fn kernel_name(&self) -> &'static str {
        match self.op {
            ByteLayoutOp::Block => "block_bytes",
            ByteLayoutOp::Unblock => "unblock_bytes",
            ByteLayoutOp::Interleave => "interleave_bytes",
        }
    }

    /// Independent units of work: blocks of channels, or images.
    pub fn units(&self) -> usize {
        if self.op == ByteLayoutOp::Interleave { self.n } else { self.n * self.c.div_ceil(C_BLOCK) }
    }

    /// Computes units `units`. Lanes past the last channel become 0.
    ///
    /// # Safety
    ///
    /// * `x` has [`x_len`](Self::x_len) readable, `y` [`y_len`](Self::y_len) writable bytes that do
    ///   not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const u8, y: *mut u8, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let blocks = self.c.div_ceil(C_BLOCK);
        for unit in units {
            if self.op == ByteLayoutOp::Interleave {
                let len = self.c * self.space;
                // SAFETY: the image of this unit, in operands that the caller vouches for.
                unsafe {
                    let x = core::slice::from_raw_parts(x.add(unit * len), len);
                    let y = core::slice::from_raw_parts_mut(y.add(unit * len), len);
                    interleave(x, y, self.c, self.space);
                }
                continue;
            }
            let (image, block) = (unit / blocks, unit % blocks);
            let channels = (self.c - block * C_BLOCK).min(C_BLOCK);
            let plain = (image * self.c + block * C_BLOCK) * self.space;
            let blocked = unit * self.space * C_BLOCK;
            let (plain_len, blocked_len) = (channels * self.space, C_BLOCK * self.space);
            // SAFETY: the channels of this block, which lie in the operands that the caller vouches
            // for; the result's belong to this unit alone.
            unsafe {
                if self.op == ByteLayoutOp::Block {
                    let x = core::slice::from_raw_parts(x.add(plain), plain_len);
                    let y = core::slice::from_raw_parts_mut(y.add(blocked), blocked_len);
                    block_channels(x, y, self.space);
                } else {
                    let x = core::slice::from_raw_parts(x.add(blocked), blocked_len);
                    let y = core::slice::from_raw_parts_mut(y.add(plain), plain_len);
                    unblock_channels(x, y, self.space);
                }
            }
        }
    }

    /// Computes `y` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short.
    pub fn compute(&self, x: &[u8], y: &mut [u8]) -> Result<(), KernelError> {
        check_len(OP, "x", self.x_len(), x.len())?;
        check_len(OP, "y", self.y_len(), y.len())?;
        // SAFETY: the lengths were checked, slices do not overlap, this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// `c` channels of `space` pixels to pixels of `c` bytes.
fn interleave(x: &[u8], y: &mut [u8], c: usize, space: usize) {
    if let (3, Some((first, rest))) = (c, x.split_at_checked(space)) {
        let (second, third) = rest.split_at(space);
        let colours = first.iter().zip(second).zip(third);
        for (y, ((a, b), c)) in y.as_chunks_mut::<3>().0.iter_mut().zip(colours) {
            *y = [*a, *b, *c];
        }
        return;
    }
    if space == 0 {
        return;
    }
    transpose_bytes(c, x, space, y, c);
}

/// Up to 16 channels of `space` pixels to one block.
fn block_channels(x: &[u8], y: &mut [u8], space: usize) {
    if x.is_empty() {
        return;
    }
    let channels = x.len() / space;
    if channels < C_BLOCK {
        y.fill(0);
    }
    transpose_bytes(channels, x, space, y, C_BLOCK);
}

/// One block to up to 16 channels of `space` pixels.
fn unblock_channels(x: &[u8], y: &mut [u8], space: usize) {
    if !y.is_empty() {
        transpose_bytes(space, x, C_BLOCK, y, space);
    }
}

/// Copies rows of `row` bytes, which in the source are columns: a row's bytes are `step` apart, rows are neighbours. In
/// `dst`, which ends with the last of them or before the next, rows are `apart` bytes apart, and `src` reaches as far.
///
/// # Panics
///
/// Where `src` ends before.
pub fn transpose_bytes(row: usize, src: &[u8], step: usize, dst: &mut [u8], apart: usize) {
    let rows = dst.len().div_ceil(apart);
    let mut first = 0;
    for size in [8, 4, 1] {
        while rows - first >= size {
            let mut at = 0;
            while at < row {
                let (src, dst) = (&src[first + at * step..], &mut dst[first * apart + at..]);
                at += match (size, row - at) {
                    (8, 8..) => turn_block(8, src, step, dst, apart),
                    (4.., 4..) => {
                        let second = if size == 8 { &[0, 4][..] } else { &[0] };
                        for &k in second {
                            turn_block(4, &src[k..], step, &mut dst[k * apart..], apart);
                        }
                        4
                    }
                    _ => {
                        (0..size).for_each(|k| dst[k * apart] = src[k]);
                        1
                    }
                };
            }
            first += size;
        }
    }
}

/// Transposes a block: `n` columns, 8 or 4, of as many bytes become as many rows. Gives `n`. Inlined, as the number is a
/// constant there.
#[inline(always)]
fn turn_block(n: usize, src: &[u8], step: usize, dst: &mut [u8], row: usize) -> usize {
    const INSIDE: &str = "columns have as many bytes";
    let mut words = [0u64; 8];
    each!(k in 8 { if k < n {
        let src = &src[k * step..];
        words[k] = match n {
            8 => u64::from_le_bytes(*src.first_chunk().expect(INSIDE)),
            _ => u32::from_le_bytes(*src.first_chunk().expect(INSIDE)).into(),
        };
    } });
    transpose_words(&mut words);
    each!(k in 8 { if k < n {
        let (dst, bytes) = (&mut dst[k * row..], words[k].to_le_bytes());
        match n {
            8 => dst[..8].copy_from_slice(&bytes),
            _ => dst[..4].copy_from_slice(&bytes[..4]),
        }
    } });
    n
}

/// Byte `k` of word `i` becomes byte `i` of word `k`, by exchanging halves of ever smaller squares.
#[inline(always)]
fn transpose_words(w: &mut [u64; 8]) {
    macro_rules! exchange {
        ($apart:literal, $low:literal) => {
            each!(i in 8 { if i & $apart == 0 {
                let differ = ((w[i] >> (8 * $apart)) ^ w[i | $apart]) & $low;
                w[i | $apart] ^= differ;
                w[i] ^= differ << (8 * $apart);
            } });
        };
    }
    exchange!(4, 0x0000_0000_ffff_ffff);
    exchange!(2, 0x0000_ffff_0000_ffff);
    exchange!(1, 0x00ff_00ff_00ff_00ff);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn there_and_back() {
        for (n, c, space) in [(1, 1, 1), (2, 3, 5), (1, 16, 300), (2, 37, 257), (1, 32, 256)] {
            let x: Vec<u8> = (0..n * c * space).map(|i| (i * 7 + i / 251) as u8).collect();
            let there = ByteLayoutPlan::new(ByteLayoutOp::Block, n, c, space).unwrap();
            let mut blocked = vec![0xa5; there.y_len()];
            there.compute(&x, &mut blocked).unwrap();
            let blocks = c.div_ceil(16);
            for (i, v) in blocked.iter().enumerate() {
                let (lane, p, block) = (i % 16, i / 16 % space, i / 16 / space % blocks);
                let (image, k) = (i / 16 / space / blocks, block * 16 + lane);
                let expected = if k < c { x[(image * c + k) * space + p] } else { 0 };
                assert_eq!(*v, expected, "{n} {c} {space} at {i}");
            }
            let mut y = vec![0; n * c * space];
            let side = ByteLayoutPlan::new(ByteLayoutOp::Interleave, n, c, space).unwrap();
            side.compute(&x, &mut y).unwrap();
            for (i, v) in y.iter().enumerate() {
                let (lane, p, image) = (i % c, i / c % space, i / c / space);
                assert_eq!(*v, x[(image * c + lane) * space + p], "{n} {c} {space} at {i}");
            }
            let back = ByteLayoutPlan::new(ByteLayoutOp::Unblock, n, c, space).unwrap();
            let mut y = vec![0; back.y_len()];
            back.compute(&blocked, &mut y).unwrap();
            assert_eq!(x, y);
            assert!(back.compute(&blocked[1..], &mut y).is_err());
        }
        assert!(ByteLayoutPlan::new(ByteLayoutOp::Block, usize::MAX, 2, 2).is_err());
    }
}
