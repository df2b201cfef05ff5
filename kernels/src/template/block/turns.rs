//! Products of a single column on machines that read several streams faster than one: panels of several parts of
//! the weights take turns, with their sums in memory meanwhile.

use super::tile::{BlockArgs, SUMMED, SUMS};
use super::{BlockMatmulPlan, BlockOperands};
use core::ops::Range;

/// Bytes of weights in a turn, or one block if it is larger. Twice as many were slower.
const TURN: usize = 1024;

impl BlockMatmulPlan {
    /// Whether several panels are multiplied in turns.
    pub(super) fn takes_turns(&self) -> bool {
        let streams = self.row.streams;
        self.streams && streams > 1 && self.params.m == 1 && !self.in_place
    }

    /// Multiplies some panels, a few blocks of one from each of several parts of them in turn; returns how many,
    /// as a few may be left.
    ///
    /// # Safety
    ///
    /// As for [`run_panels`](Self::run_panels), and [`takes_turns`](Self::takes_turns).
    #[inline(never)]
    pub(super) unsafe fn turns(&self, operands: &BlockOperands, panels: Range<usize>) -> usize {
        let (lanes, bytes, streams) = (self.row.lanes, self.panel_bytes(), self.row.streams);
        let blocks = self.params.k / self.params.format.held().elements();
        let Some(kernel) = self.way.single() else { return 0 };
        let (block, words) = (bytes / blocks, self.tile_at(1) / blocks);
        // Of floats a multiple of the steps that a kernel adds up side by side: the order of sums stays the same.
        let turn = (TURN / block).max(1);
        let part = panels.len() / streams;
        let mut args = BlockArgs {
            w: operands.weights,
            panel: bytes,
            x: operands.workspace,
            blocks,
            codes: self.params.format.codes(),
            bias: operands.bias,
            o: operands.y,
            o_step: self.params.n,
            columns: 1,
            tail: lanes,
            ahead: if self.follows { 0 } else { kernel.ahead },
            sums: core::ptr::null_mut(),
            last: false,
        };
        for first in panels.start..panels.start + part {
            let mut sums = [0.0f32; SUMMED];
            let mut at = 0;
            while at < blocks {
                args.last = at + turn >= blocks;
                args.blocks = turn.min(blocks - at);
                args.x = operands.workspace.wrapping_add(at * words);
                for stream in 0..streams {
                    let panel = first + stream * part;
                    args.w = operands.weights.wrapping_add(panel * bytes + at * block);
                    args.bias = self.bias_at(operands, panel * lanes);
                    args.o = operands.y.wrapping_add(panel * lanes);
                    args.tail = lanes.min(self.params.n - panel * lanes);
                    args.sums = sums.as_mut_ptr().wrapping_add(stream * SUMS * lanes);
                    // SAFETY: the panel has these blocks, the column and the results exist, and the caller vouches
                    // for the memory; there are as many sums, as `SUMMED` is enough for; `new` checked that the CPU
                    // has the instructions.
                    unsafe { (kernel.run)(&args) };
                }
                at += turn;
            }
        }
        part * streams
    }
}
