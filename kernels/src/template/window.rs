//! What depthwise convolution and pooling share: where the taps of a sliding window lie, the tiles
//! of an output row, and the template of their microkernels.
//!
//! An output row of a block of 16 channels is cut into tiles of up to `w_ob` pixels of nearly equal
//! widths. For each output row the plan knows which filter rows lie in the image; a kernel
//! walks the rows and the tiles of one width, and loads a tile's input columns once per filter row.
//! Nothing is padded: rows outside are not visited, columns outside are not loaded.

use super::matmul::SHARED_PANELS;
use crate::epilogue::TileActivation;
use crate::error::{MOST_TILED, checked_len};
use crate::{C_BLOCK, Dtype, KernelError, KernelInfo, QuantOutput};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

/// Sizes of a windowed op on a blocked tensor, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowSizes {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) input: [usize; 2],
    pub(crate) output: [usize; 2],
    pub(crate) kernel: [usize; 2],
    pub(crate) stride: [usize; 2],
    pub(crate) dilation: [usize; 2],
    pub(crate) pads: [usize; 4],
}

/// Tiles of one width in an output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TileRun {
    /// First output column.
    pub(crate) first: usize,
    /// Pixels of a tile.
    pub(crate) width: usize,
    /// Number of tiles.
    pub(crate) count: usize,
}

/// The planned geometry, as the kernels read it.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) sizes: WindowSizes,
    pub(crate) x_len: usize,
    pub(crate) y_len: usize,
    /// Per output row: the filter rows that lie in the image.
    pub(crate) rows: Box<[Range<usize>]>,
    /// The tiles of a row; the second run is empty if all have one width.
    pub(crate) runs: [TileRun; 2],
    /// Per tile of a row and filter column: the pixels whose tap lies in the image.
    pub(crate) cols: Box<[Range<u8>]>,
    /// Output rows that are computed at a time.
    call_rows: usize,
    /// Whether threads share out blocks of channels, else rows.
    by_blocks: bool,
    /// Done before STORE, unless it is the leaky one.
    pub(crate) activation: TileActivation,
    /// Divisors of an average per output row and column; their product counts.
    pub(crate) divisors: [Box<[f32]>; 2],
}

/// Positions `i` in `0..len` with `0 <= start + i * step < end`.
fn inside(start: isize, step: usize, len: usize, end: usize) -> Range<usize> {
    let from = (start.min(0).unsigned_abs()).div_ceil(step).min(len);
    let to = (end as isize - start).max(0).unsigned_abs().div_ceil(step).min(len);
    from..to.max(from)
}

/// The largest part of `left` units of outer times inner ones from unit `start` on that is some outer ones by some
/// inner ones.
pub(crate) fn rectangle(
    start: usize,
    left: usize,
    [outer, inner]: [usize; 2],
) -> (Range<usize>, Range<usize>) {
    let (row, at) = (start / inner, start % inner);
    if at == 0 && left >= inner {
        return (row..outer.min(row + left / inner), 0..inner);
    }
    (row..row + 1, at..inner.min(at + left))
}

impl Window {
    /// Checks the sizes and plans tiles of up to `w_ob` pixels. `ceil` allows outputs rounded up.
    pub(crate) fn new(
        op: &'static str,
        s: WindowSizes,
        ceil: bool,
        w_ob: usize,
    ) -> Result<Self, KernelError> {
        let invalid = |param, expected| KernelError::InvalidParam { op, param, expected };
        for axis in 0..2 {
            if s.kernel[axis] == 0 || s.stride[axis] == 0 || s.dilation[axis] == 0 {
                return Err(invalid("kernel, stride and dilation", "at least 1"));
            }
            if s.stride[axis] > isize::MAX as usize / 8 {
                return Err(KernelError::TooLarge { op });
            }
            if s.input[axis] == 0 || s.output[axis] == 0 {
                return Err(invalid("input and output size", "at least 1"));
            }
            let span = s.dilation[axis]
                .checked_mul(s.kernel[axis] - 1)
                .filter(|&n| n < isize::MAX as usize / 8)
                .ok_or(KernelError::TooLarge { op })?;
            let padded = s.input[axis]
                .checked_add(s.pads[axis])
                .and_then(|n| n.checked_add(s.pads[axis + 2]))
                .filter(|&n| n < isize::MAX as usize / 8)
                .ok_or(KernelError::TooLarge { op })?;
            let (floor, up) = match padded.checked_sub(span + 1) {
                Some(room) => (room / s.stride[axis] + 1, room.div_ceil(s.stride[axis]) + 1),
                // The only window reaches past the padding.
                None if ceil && span + 1 - padded < s.stride[axis] => (1, 1),
                None => return Err(invalid("kernel", "no larger than the padded input")),
            };
            if s.output[axis] != floor && !(ceil && s.output[axis] == up) {
                return Err(invalid("output size", "what input, kernel, stride and pads give"));
            }
        }
        let blocks = s.c.div_ceil(C_BLOCK);
        let x_len = checked_len(op, &[s.n, blocks, s.input[0], s.input[1], C_BLOCK])?;
        let y_len = checked_len(op, &[s.n, blocks, s.output[0], s.output[1], C_BLOCK])?;
        checked_len(op, &[s.kernel[0], s.kernel[1], C_BLOCK, blocks.max(1)])?;
        let tiles = s.output[1].div_ceil(w_ob);
        // So long the table below may be.
        if tiles.saturating_mul(s.kernel[1]) > MOST_TILED {
            return Err(KernelError::TooLarge { op });
        }

        let start = |o: usize, axis: usize| (o * s.stride[axis]) as isize - s.pads[axis] as isize;
        let rows = (0..s.output[0])
            .map(|y| inside(start(y, 0), s.dilation[0], s.kernel[0], s.input[0]))
            .collect();
        let (narrow, wide) = (s.output[1] / tiles, s.output[1] % tiles);
        let runs = [
            TileRun { first: 0, width: (narrow + 1).min(w_ob), count: wide },
            TileRun { first: wide * (narrow + 1), width: narrow, count: tiles - wide },
        ];
        let mut cols = Vec::with_capacity(tiles * s.kernel[1]);
        for run in &runs {
            for x in (0..run.count).map(|i| run.first + i * run.width) {
                cols.extend((0..s.kernel[1]).map(|k| {
                    let at = start(x, 1) + (k * s.dilation[1]) as isize;
                    let pixels = inside(at, s.stride[1], run.width, s.input[1]);
                    pixels.start as u8..pixels.end as u8
                }));
            }
        }
        let by_blocks = s.c / SHARED_PANELS > s.input[0] * s.input[1];
        // 32 KiB of output stay in the L1 cache for what follows.
        let call_rows = (512 / s.output[1]).clamp(1, s.output[0]);
        Ok(Self {
            sizes: s,
            x_len,
            y_len,
            rows,
            runs,
            cols: cols.into(),
            call_rows,
            by_blocks,
            activation: TileActivation::None,
            divisors: Default::default(),
        })
    }

    /// Images times blocks of channels.
    pub(crate) fn planes(&self) -> usize {
        self.sizes.n * self.sizes.c.div_ceil(C_BLOCK)
    }

    /// Channels of a plane: those of its block that exist.
    pub(crate) fn channels(&self, plane: usize) -> usize {
        let c = self.sizes.c;
        (c - plane % c.div_ceil(C_BLOCK) * C_BLOCK).min(C_BLOCK)
    }

    /// Independent units of work: output rows of an image, of each all blocks of channels, or the other way round
    /// for small maps of many channels. Threads that share them out get what those of a 1 x 1 convolution get, and so
    /// find in their own caches most of what they need.
    pub(crate) fn units(&self) -> usize {
        self.planes() * self.sizes.output[0]
    }

    /// Calls `f` with planes and output rows, as many at a time as is good, for all of some units.
    pub(crate) fn for_each(&self, units: Range<usize>, mut f: impl FnMut(usize, Range<usize>)) {
        let (blocks, height) = (self.sizes.c.div_ceil(C_BLOCK), self.sizes.output[0]);
        let mut unit = units.start;
        while unit < units.end {
            let (image, within) = (unit / (blocks * height), unit % (blocks * height));
            let left = units.end - unit;
            let (rows, blocks_now) = if self.by_blocks {
                let (blocks, rows) = rectangle(within, left, [blocks, height]);
                (rows, blocks)
            } else {
                rectangle(within, left, [height, blocks])
            };
            unit += rows.len() * blocks_now.len();
            for block in blocks_now {
                for first in rows.clone().step_by(self.call_rows) {
                    let end = rows.end.min(first + self.call_rows);
                    f(image * blocks + block, first..end);
                }
            }
        }
    }

    /// The divisors of an average: taps of each output row and column that count. Those in the
    /// image, or with `padding` those in the padded image; at least 1.
    pub(crate) fn count_taps(&mut self, padding: bool) {
        let s = &self.sizes;
        self.divisors = [0, 1].map(|axis| {
            (0..s.output[axis])
                .map(|o| {
                    let first = (o * s.stride[axis]) as isize - s.pads[axis] as isize;
                    let (first, end) = if padding {
                        (
                            first + s.pads[axis] as isize,
                            s.input[axis] + s.pads[axis] + s.pads[axis + 2],
                        )
                    } else {
                        (first, s.input[axis])
                    };
                    inside(first, s.dilation[axis], s.kernel[axis], end).len().max(1) as f32
                })
                .collect()
        });
    }

    /// The kernels of the two runs of tiles: made for the filter if there are such.
    pub(crate) fn kernels<T: Copy>(
        &self,
        all: &'static [&'static [WindowKernel<T>]],
    ) -> [WindowKernel<T>; 2] {
        let s = &self.sizes;
        let square = s.kernel[0] == s.kernel[1] && s.dilation[1] == 1;
        self.runs.map(|run| {
            // Such a kernel tests only as many columns on each side as half of its filter.
            let left = (run.first * s.stride[1]) as isize - s.pads[1] as isize;
            let end = (run.first + run.count * run.width) as isize - 1;
            let right = end * s.stride[1] as isize - s.pads[1] as isize + s.kernel[1] as isize;
            let edge = (s.kernel[1] / 2) as isize;
            let near = left >= -edge && right <= s.input[1] as isize + edge;
            // The last kernel of each width takes any window.
            let list = all[run.width - 1];
            let fits = |k: &&WindowKernel<T>| {
                square && near && k.made_for == Some([s.kernel[1], s.stride[1]])
            };
            *list.iter().find(fits).unwrap_or(&list[list.len() - 1])
        })
    }

    /// Runs the kernels of both runs of tiles. When there are two, few rows at a time, so that the
    /// second finds the input rows in the first-level cache.
    ///
    /// # Safety
    ///
    /// That of [`WindowFn`], for the tiles of both runs.
    pub(crate) unsafe fn run<T>(&self, kernels: &[WindowKernel<T>; 2], mut args: WindowArgs<T>) {
        let end = args.rows.end;
        let step = if self.runs[0].count == 0 { end } else { 4 };
        for y in args.rows.step_by(step) {
            for (run, kernel) in kernels.iter().enumerate() {
                if self.runs[run].count > 0 {
                    args = WindowArgs { rows: y..(y + step).min(end), run, ..args };
                    // SAFETY: the caller's duties; the kernels were chosen for the runs' widths.
                    unsafe { (kernel.run)(self, &args) };
                }
            }
        }
    }
}

/// What one call of a kernel works on: tiles of one width in some rows of a plane.
pub(crate) struct WindowArgs<T = f32> {
    /// The input plane, `[h, w, 16]`.
    pub(crate) x: *const T,
    /// Weights of the channel block, `[f_h, f_w, 16]`.
    pub(crate) weights: *const f32,
    /// Bias of the channel block; of bytes, what `qdepthwise` prepares.
    pub(crate) bias: *const f32,
    /// The plane that is added, or null.
    pub(crate) residual: *const f32,
    /// The output plane.
    pub(crate) y: *mut T,
    /// Output rows.
    pub(crate) rows: Range<usize>,
    /// Which of the two runs of tiles.
    pub(crate) run: usize,
    /// Channels of the plane; vectors past them are left as they are.
    pub(crate) channels: usize,
    /// Of bytes: how they are read and written.
    pub(crate) bytes: ByteWindow,
}

/// The least float whose last bit is 1, and its bits.
const UNIT: (i32, u32) = (1 << 23, 0x4b00_0000);

/// How a windowed op reads and writes bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ByteWindow {
    /// What `VLOAD8` takes: the bits that are flipped, and the subtrahend.
    pub(crate) read: [f32; 2],
    /// Of an average: the scale of the input over that of the output.
    pub(crate) scale: f32,
    /// Bounds of a result before its zero point is added.
    pub(crate) bounds: [f32; 2],
    /// The zero point of the output.
    pub(crate) zero: f32,
}

impl ByteWindow {
    /// What makes unsigned bytes of those read, and the other way round, by flipping bits.
    pub(crate) fn flip(&self) -> u8 {
        self.read[0].to_bits() as u8
    }

    /// [`flip`](Self::flip), and the zero point as it is read, in all four bytes of the bits of a number.
    #[cfg(any(
        all(
            any(feature = "sse41", feature = "avx2", feature = "avx512vnni"),
            target_arch = "x86_64"
        ),
        all(feature = "wasm-simd", target_arch = "wasm32"),
        all(feature = "neon", target_arch = "aarch64")
    ))]
    pub(crate) fn masks(&self) -> [f32; 2] {
        let flip = self.flip();
        let pad = (self.read[1] as i32 - UNIT.0) as u8 ^ flip;
        [flip, pad].map(|byte| f32::from_bits(u32::from_ne_bytes([byte; 4])))
    }

    /// For bytes of a type with a zero point; `None` if the output is not bytes.
    pub(crate) fn new(x: Dtype, zero: i32, scale: f32, output: QuantOutput) -> Option<Self> {
        let flip = if x == Dtype::I8 { 128 } else { 0 };
        let [y_zero, min, max] = output.range()?;
        Some(Self {
            read: [f32::from_bits(UNIT.1 | flip as u32), (UNIT.0 + flip + zero) as f32],
            scale,
            bounds: [(min - y_zero) as f32, (max - y_zero) as f32],
            zero: y_zero as f32,
        })
    }
}

/// A microkernel.
///
/// # Safety
///
/// * The CPU has the instructions of the kernel's ISA.
/// * The planes have the sizes that the window says; `x` (and, for a convolution, `residual`
///   unless null, `weights` and `bias`) are readable, `y` is writable in the rows of the call and
///   the columns of its tiles, and no other thread writes there.
/// * The tiles of the run have the kernel's width; its taps and step are the window's.
pub(crate) type WindowFn<T = f32> = unsafe fn(&Window, &WindowArgs<T>);

/// A microkernel and what it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowKernel<T: 'static = f32> {
    pub(crate) info: KernelInfo,
    /// Rows and columns of the (square) filter and the column stride it is made for; `None` if any.
    pub(crate) made_for: Option<[usize; 2]>,
    pub(crate) run: WindowFn<T>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The units of planes and rows that parts of all units are made of, in both orders.
    #[test]
    fn parts_are_covered_once() {
        for (c, height) in [(40, 3), (16 * 30, 3), (33, 1), (16 * 20, 2)] {
            let sizes = WindowSizes {
                n: 2,
                c,
                input: [height, 4],
                output: [height, 4],
                kernel: [3; 2],
                stride: [1; 2],
                dilation: [1; 2],
                pads: [1; 4],
            };
            let window = Window::new("test", sizes, false, 4).unwrap();
            assert_eq!(window.by_blocks, c >= 16 * 20 && height < 3 || c >= 16 * 30);
            let units = window.units();
            for parts in 1..9 {
                let mut met = alloc::vec![0; units];
                for part in 0..parts {
                    let units = part * units / parts..(part + 1) * units / parts;
                    let mut count = 0;
                    window.for_each(units.clone(), |plane, rows| {
                        count += rows.len();
                        rows.for_each(|row| met[plane * height + row] += 1);
                    });
                    assert_eq!(count, units.len());
                }
                assert!(met.iter().all(|&n| n == 1), "{c} {height} {parts}");
            }
        }
    }
}
