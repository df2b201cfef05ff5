//! Weights from the order of the file into panels, and rows of panels as numbers.

use super::format::{IQ4_NL, MXFP4};
use super::gather::ORDERS;
use super::grid::HELD;
use super::{BlockFormat, BlockMatmulPlan, OP};
use crate::KernelError;
use crate::error::check_len;
use core::ops::Range;
use tilewright_intrinsics::soft;

/// Bytes of the largest block.
const MOST: usize = 256;

/// Whether a build has kernels for panels of four rows.
const FOUR: bool =
    cfg!(any(feature = "sse41", not(any(target_arch = "x86", target_arch = "x86_64"))));

/// Rows of the largest panel.
const LANES_MOST: usize = 16;

impl BlockMatmulPlan {
    /// Packs some panels: `source` are their rows, [`row_bytes`](Self::row_bytes) each, as the file has
    /// them, and `dst` their [`panel_bytes`](Self::panel_bytes) each.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if there are no such panels or weights are taken in place,
    /// [`KernelError::InvalidLength`] if
    /// `source` or `dst` is too short.
    pub fn pack(
        &self,
        panels: Range<usize>,
        source: &[u8],
        dst: &mut [u8],
    ) -> Result<(), KernelError> {
        if panels.start > panels.end || panels.end > self.panels() || self.in_place {
            let (param, expected) = ("panels", "among those of the plan");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        let lanes = self.panel_rows();
        let rows =
            (panels.end * lanes).min(self.params().n) - (panels.start * lanes).min(self.params().n);
        let (row_bytes, panel_bytes) = (self.row_bytes(), self.panel_bytes());
        check_len(OP, "source", rows * row_bytes, source.len())?;
        check_len(OP, "packed weights", panels.len() * panel_bytes, dst.len())?;
        let sources = source[..rows * row_bytes].chunks(self.source_bytes());
        for (source, dst) in sources.zip(dst.chunks_exact_mut(panel_bytes)) {
            self.pack_one(source, dst);
        }
        Ok(())
    }

    /// One panel of the rows that `source` has.
    pub(super) fn pack_one(&self, source: &[u8], dst: &mut [u8]) {
        let (format, row_bytes) = (self.params().format, self.row_bytes());
        if !format.is_recoded() {
            return self.pack_rows(format, row_bytes, source, dst);
        }
        let (bytes, held) = (format.bytes(), format.held_bytes());
        let mut blocks = [0; HELD * LANES_MOST];
        for (b, dst) in dst.chunks_exact_mut(held * self.panel_rows()).enumerate() {
            let rows = source.chunks_exact(row_bytes);
            let count = rows.len();
            for (row, block) in rows.zip(blocks.chunks_exact_mut(held)) {
                format.recode(&row[b * bytes..][..bytes], block);
            }
            self.pack_rows(format.held(), held, &blocks[..count * held], dst);
        }
    }

    /// One panel of rows with blocks as panels hold them, so many bytes each.
    fn pack_rows(&self, format: BlockFormat, row_bytes: usize, source: &[u8], dst: &mut [u8]) {
        let (lanes, blocks) = (self.panel_rows(), row_bytes / format.held_bytes());
        if let Some(gather) = self.row.gather
            && ORDERS[format as usize].count > 0
            && source.len() == lanes * row_bytes
            && dst.len() == lanes * row_bytes
        {
            let (rows, to) = (source.as_ptr(), dst.as_mut_ptr());
            // SAFETY: `new` checked that the CPU has the instructions; both have all rows of a panel.
            return unsafe { gather(rows, row_bytes, to, blocks, format, self.flip()) };
        }
        // What moves one number at a time takes as long as its code is general.
        match (format, lanes) {
            (BlockFormat::F32, 16) => floats::<4, 16>(row_bytes, source, dst),
            (BlockFormat::F32, 8) => floats::<4, 8>(row_bytes, source, dst),
            (BlockFormat::F16 | BlockFormat::Bf16, 16) => floats::<2, 16>(row_bytes, source, dst),
            (BlockFormat::F16 | BlockFormat::Bf16, 8) => floats::<2, 8>(row_bytes, source, dst),
            (BlockFormat::F32, 4) if FOUR => floats::<4, 4>(row_bytes, source, dst),
            (BlockFormat::F16 | BlockFormat::Bf16, 4) if FOUR => {
                floats::<2, 4>(row_bytes, source, dst);
            }
            _ => self.pack_panel(format, row_bytes, source, dst),
        }
    }

    /// One panel of as many rows as `source` has, in `format`; those that it has not are zero.
    fn pack_panel(&self, format: BlockFormat, row_bytes: usize, source: &[u8], dst: &mut [u8]) {
        let (bytes, lanes) = (format.held_bytes(), self.panel_rows());
        let (halves, words) = (format.halves(), format.words());
        let (half, flip, fifth) = (format.half_bytes(), self.flip(), format.fifth_bits());
        let missing = [0; MOST];
        for (b, dst) in dst.chunks_exact_mut(bytes * lanes).enumerate() {
            let (to_halves, to_words) = dst.split_at_mut(half * lanes * halves.len());
            for r in 0..lanes {
                let block = source.get(r * row_bytes + b * bytes..);
                let row = block.and_then(|block| block.get(..bytes)).unwrap_or(&missing[..bytes]);
                let places = to_halves.chunks_exact_mut(half).skip(r).step_by(lanes);
                for (&at, to) in halves.iter().zip(places) {
                    to.copy_from_slice(&row[usize::from(at)..][..half]);
                }
                let places = to_words.as_chunks_mut::<4>().0.iter_mut().skip(r).step_by(lanes);
                for (&at, to) in words.iter().zip(places) {
                    let word = word(row, at) ^ flip;
                    let word = if Some(at) == fifth { bits_apart(word) } else { word };
                    *to = word.to_le_bytes();
                }
            }
        }
    }

    /// Packs panels of weights in the order of the file, each into whole words.
    ///
    /// # Safety
    ///
    /// The rows of the panels are readable at `rows`, `to` is writable for as many times
    /// [`packed_len`](Self::packed_len), initialised and used by nobody else.
    pub(super) unsafe fn pack_here(&self, rows: *const u8, to: *mut f32, panels: Range<usize>) {
        let lanes = self.panel_rows();
        for (i, panel) in panels.enumerate() {
            let count = lanes.min(self.params().n - panel * lanes);
            let from = rows.wrapping_add(i * self.source_bytes());
            let to = to.wrapping_add(i * self.packed_len()).cast::<u8>();
            // SAFETY: the caller vouches for both.
            unsafe {
                let source = core::slice::from_raw_parts(from, count * self.row_bytes());
                self.pack_one(source, core::slice::from_raw_parts_mut(to, self.panel_bytes()));
            }
        }
    }

    /// What turns a word of the file into a packed one: signed bytes into those plus 128.
    fn flip(&self) -> u32 {
        if self.params().format == BlockFormat::Q8_0 && self.row.bias != 0 {
            0x8080_8080
        } else {
            0
        }
    }

    /// The numbers of a row of the packed weights.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if there is no such row, [`KernelError::InvalidLength`] if `packed` or
    /// `out`, which takes `k` numbers, is too short.
    pub fn row(&self, packed: &[u8], row: usize, out: &mut [f32]) -> Result<(), KernelError> {
        let (params, lanes) = (self.params(), self.panel_rows());
        if row >= params.n {
            let (param, expected) = ("row", "less than n");
            return Err(KernelError::InvalidParam { op: OP, param, expected });
        }
        check_len(OP, "packed weights", self.packed_bytes(), packed.len())?;
        check_len(OP, "row", params.k, out.len())?;
        if self.in_place {
            let blocks = packed[row * self.row_bytes()..].chunks_exact(params.format.bytes());
            for (block, out) in
                blocks.zip(out[..params.k].chunks_exact_mut(params.format.elements()))
            {
                params.format.numbers(block, out);
            }
            return Ok(());
        }
        let (format, r) = (params.format, row % lanes);
        let panel = &packed[row / lanes * self.panel_bytes()..][..self.panel_bytes()];
        let held = format.held();
        let (half, flip, fifth) = (held.half_bytes(), self.flip(), held.fifth_bits());
        let blocks = panel.chunks_exact(held.held_bytes() * lanes);
        for (packed, out) in blocks.zip(out[..params.k].chunks_exact_mut(held.elements())) {
            let mut block = [0; MOST];
            let (halves, words) = packed.split_at(half * lanes * held.halves().len());
            for (i, &at) in held.halves().iter().enumerate() {
                let from = (i * lanes + r) * half;
                block[usize::from(at)..][..half].copy_from_slice(&halves[from..from + half]);
            }
            for (i, &at) in held.words().iter().enumerate() {
                let word = word(words, (i * lanes + r) as u16 * 4) ^ flip;
                let word = if Some(at) == fifth { bits_together(word) } else { word };
                block[usize::from(at)..][..4].copy_from_slice(&word.to_le_bytes());
            }
            format.held_numbers(&block, out);
        }
        Ok(())
    }
}

/// One panel of numbers of so many bytes.
fn floats<const BYTES: usize, const LANES: usize>(row_bytes: usize, source: &[u8], dst: &mut [u8]) {
    let rows: [&[[u8; BYTES]]; LANES] = core::array::from_fn(|r| {
        let row = source.get(r * row_bytes..).and_then(|rows| rows.get(..row_bytes));
        row.unwrap_or_default().as_chunks().0
    });
    for (k, to) in dst.as_chunks_mut::<BYTES>().0.as_chunks_mut::<LANES>().0.iter_mut().enumerate()
    {
        *to = rows.map(|row| row.get(k).copied().unwrap_or([0; BYTES]));
    }
}

/// The word at an offset.
fn word(bytes: &[u8], at: u16) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[usize::from(at)..][..4]);
    u32::from_le_bytes(word)
}

/// Bit `j` to where kernels have it: `8 (j % 4) + j / 4`.
pub(super) fn bits_apart(word: u32) -> u32 {
    // Of every fourth bit a byte, in steps that halve the gaps between the bits.
    let byte = |i: u32| {
        let bits = word >> i & 0x1111_1111;
        let bits = (bits | bits >> 3) & 0x0303_0303;
        let bits = (bits | bits >> 6) & 0x000f_000f;
        (bits | bits >> 12) & 0xff
    };
    (0..4).fold(0, |bytes, i| bytes | byte(i) << (8 * i))
}

/// The opposite.
fn bits_together(word: u32) -> u32 {
    (0..32).fold(0, |bits, j| bits | (word >> (j % 4 * 8 + j / 4) & 1) << j)
}

impl BlockFormat {
    /// The numbers of a block of the file.
    fn numbers(self, block: &[u8], out: &mut [f32]) {
        if !self.dequantize_few_bits(block, out) {
            self.held_numbers(block, out);
        }
    }

    /// The numbers of a block as panels hold it.
    fn held_numbers(self, block: &[u8], out: &mut [f32]) {
        if self.is_recoded() {
            return self.held_values(block, out);
        }
        let half = |at: usize| soft::f32_from_f16(u16::from_le_bytes([block[at], block[at + 1]]));
        let word = |at: usize| word(block, at as u16);
        let nibble = |at: usize, j: usize| f32::from(block[at + j % 16] >> (j / 16 * 4) & 15);
        let fifth = |at: usize, j: usize| (word(at) >> j & 1) as f32 * 16.0;
        // Scale and minimum of group `g` of 32.
        let six = |g: usize| {
            let b = |i: usize| block[4 + i];
            if g < 4 {
                return (f32::from(b(g) & 63), f32::from(b(g + 4) & 63));
            }
            let scale = b(g + 4) & 15 | b(g - 4) >> 6 << 4;
            (f32::from(scale), f32::from(b(g + 4) >> 4 | b(g) >> 6 << 4))
        };
        for (j, out) in out.iter_mut().enumerate() {
            let (h, t) = (j / 128, j % 128);
            let two = |at: usize| block[at + 32 * h + t % 32] >> (2 * (t / 32)) & 3;
            *out = match self {
                Self::F32 => f32::from_bits(word(0)),
                Self::F16 => half(0),
                Self::Bf16 => {
                    f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16)
                }
                Self::Q4_0 => half(0) * (nibble(2, j) - 8.0),
                Self::Q4_1 => half(0) * nibble(4, j) + half(2),
                Self::Q5_0 => half(0) * (nibble(6, j) + fifth(2, j) - 16.0),
                Self::Q5_1 => half(0) * (nibble(8, j) + fifth(4, j)) + half(2),
                Self::Q8_0 => half(0) * f32::from(block[2 + j] as i8),
                Self::Iq4Nl => half(0) * f32::from(IQ4_NL[nibble(2, j) as usize]),
                Self::Mxfp4 => {
                    let scale = f32::from_bits(u32::from(block[0]) << 23) * 0.5;
                    scale * f32::from(MXFP4[nibble(1, j) as usize])
                }
                Self::U4 => {
                    let q = block[8 + j / 2] >> (j % 2 * 4) & 15;
                    f32::from_bits(word(0)) * f32::from(q) + f32::from_bits(word(4))
                }
                Self::Iq4Xs => {
                    let g = j / 32;
                    let low = word(4) >> (4 * g) & 15;
                    let high = u32::from(u16::from_le_bytes([block[2], block[3]])) >> (2 * g) & 3;
                    let q = IQ4_NL[nibble(8 + 16 * g, j % 32) as usize];
                    half(0) * ((low | high << 4) as f32 - 32.0) * f32::from(q)
                }
                Self::Q2K => {
                    let s = block[j / 16];
                    half(80) * f32::from(s & 15) * f32::from(two(16)) - half(82) * f32::from(s >> 4)
                }
                Self::Q3K => {
                    let i = j / 16;
                    let low = block[96 + i % 8] >> (i / 8 * 4) & 15;
                    let scale = low | (block[104 + i % 4] >> (2 * (i / 4)) & 3) << 4;
                    let bit = block[j % 32] >> (j / 32) & 1;
                    let q = i16::from(two(32)) - if bit == 0 { 4 } else { 0 };
                    half(108) * (f32::from(scale) - 32.0) * f32::from(q)
                }
                Self::Q4K | Self::Q5K => {
                    let (g, l) = (j / 32, j % 32);
                    let (scale, min) = six(g);
                    let at = if self == Self::Q4K { 16 } else { 48 };
                    let mut q = block[at + 32 * (g / 2) + l] >> (g % 2 * 4) & 15;
                    if self == Self::Q5K {
                        q |= (block[16 + l] >> g & 1) << 4;
                    }
                    half(0) * scale * f32::from(q) - half(2) * min
                }
                _ => {
                    let (quarter, l) = (t / 32, t % 32);
                    let low = block[64 * h + l + 32 * (quarter & 1)] >> (quarter / 2 * 4) & 15;
                    let q = low | (block[128 + 32 * h + l] >> (2 * quarter) & 3) << 4;
                    let scale = block[192 + 8 * h + l / 16 + 2 * quarter] as i8;
                    half(208) * f32::from(scale) * (f32::from(q) - 32.0)
                }
            };
        }
    }
}
