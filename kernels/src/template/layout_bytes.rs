//! Layout changes of tensors of bytes between plain `[n, c, h, w]` and blocked
//! `[n, ceil(c / 16), h, w, 16]`, and from plain to interleaved `[n, h, w, c]`.
//!
//! Networks of bytes change layout at their borders, and where an operator wants what lies otherwise: channels that are
//! shuffled, or joined in numbers that fill no blocks.

use super::byte_turns::ByteTurns;
use crate::error::{check_len, checked_len};
use crate::{C_BLOCK, Isa, KernelError};
use core::ops::Range;

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
    turns: ByteTurns,
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
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, op: ByteLayoutOp, [n, c, space]: [usize; 3]) -> Result<Self, KernelError> {
        checked_len(OP, &[n, c.div_ceil(C_BLOCK), C_BLOCK, space])?;
        Ok(Self { turns: ByteTurns::new(isa)?, op, n, c, space })
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
                    self.interleave(x, y);
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
                    self.block_channels(x, y);
                } else {
                    let x = core::slice::from_raw_parts(x.add(blocked), blocked_len);
                    let y = core::slice::from_raw_parts_mut(y.add(plain), plain_len);
                    self.unblock_channels(x, y);
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

    /// The channels of an image to pixels of as many bytes.
    fn interleave(&self, x: &[u8], y: &mut [u8]) {
        if let (3, Some((first, rest))) = (self.c, x.split_at_checked(self.space)) {
            let (second, third) = rest.split_at(self.space);
            let colours = first.iter().zip(second).zip(third);
            for (y, ((a, b), c)) in y.as_chunks_mut::<3>().0.iter_mut().zip(colours) {
                *y = [*a, *b, *c];
            }
        } else if self.space > 0 {
            self.turns.transpose(self.c, x, self.space, y, self.c);
        }
    }

    /// Up to 16 channels to one block.
    fn block_channels(&self, x: &[u8], y: &mut [u8]) {
        if !x.is_empty() {
            self.turns.fill_rows(x.len() / self.space, x, self.space, y);
        }
    }

    /// One block to up to 16 channels.
    fn unblock_channels(&self, x: &[u8], y: &mut [u8]) {
        if !y.is_empty() {
            self.turns.transpose(self.space, x, C_BLOCK, y, self.space);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn there_and_back() {
        let sizes = [(1, 1, 1), (2, 3, 5), (1, 16, 300), (2, 37, 257), (1, 32, 256), (1, 20, 17)];
        for (isa, (n, c, space)) in Isa::available().flat_map(|isa| sizes.map(|size| (isa, size))) {
            let plan = |op| ByteLayoutPlan::new(isa, op, [n, c, space]);
            let x: Vec<u8> = (0..n * c * space).map(|i| (i * 7 + i / 251) as u8).collect();
            let there = plan(ByteLayoutOp::Block).unwrap();
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
            let side = plan(ByteLayoutOp::Interleave).unwrap();
            side.compute(&x, &mut y).unwrap();
            for (i, v) in y.iter().enumerate() {
                let (lane, p, image) = (i % c, i / c % space, i / c / space);
                assert_eq!(*v, x[(image * c + lane) * space + p], "{n} {c} {space} at {i}");
            }
            let back = plan(ByteLayoutOp::Unblock).unwrap();
            let mut y = vec![0; back.y_len()];
            back.compute(&blocked, &mut y).unwrap();
            assert_eq!(x, y);
            assert!(back.compute(&blocked[1..], &mut y).is_err());
        }
        assert!(ByteLayoutPlan::new(Isa::Scalar, ByteLayoutOp::Block, [usize::MAX, 2, 2]).is_err());
    }
}
