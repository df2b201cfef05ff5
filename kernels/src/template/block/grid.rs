//! Formats of one to three bits. Values are points of grids, of eight or four numbers each, found by an index: in panels
//! they are held as codes of four bits, which one kernel looks up for all such formats.

use super::BlockFormat;

/// Points of the grids of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, and of IQ1_S and IQ1_M, one behind the other, little
/// endian: of eight numbers, two bits for each; of four, four. `tests/block_vectors.py` writes them, from the Python
/// package `gguf`.
static POINTS: &[u8; 2 * 4608] = include_bytes!("grids.bin");

/// Where each begins.
const IQ2_XXS: usize = 0;
const IQ2_XS: usize = 256;
const IQ2_S: usize = 768;
const IQ3_XXS: usize = 1792;
const IQ3_S: usize = 2048;
const IQ1: usize = 2560;

/// Bytes of a held block: its scale, sixteen of four bits (those of the first sixteen values of each 32 in one word,
/// those of the others in the next), and codes in the order of Q4_0.
pub(super) const HELD: usize = 138;

/// What codes of four bits stand for.
#[derive(Debug)]
pub(crate) struct Codes {
    /// Values plus `zero`, from 0 to 127.
    pub(crate) values: [u8; 16],
    pub(crate) zero: i32,
    /// What the scale of a block is multiplied by: a value is that, times an odd number, `2 s + 1` of a scale of 16,
    /// times one of these.
    pub(crate) factor: f32,
}

/// Codes of sizes, in order, then of their negatives.
const fn signed(sizes: &[i8], factor: f32) -> Codes {
    let (mut values, zero, mut i) = ([0; 16], sizes[sizes.len() - 1], 0);
    while i < sizes.len() {
        (values[i], values[8 + i]) = ((zero + sizes[i]) as u8, (zero - sizes[i]) as u8);
        i += 1;
    }
    Codes { values, zero: zero as i32, factor }
}

static SIZES_2: Codes = signed(&[8, 25, 43], 0.125);
static SIZES_3: Codes = signed(&[4, 12, 20, 28, 36, 44, 52, 62], 0.25);
static ODD: Codes = signed(&[1, 3, 5, 7, 9, 11, 13, 15], 1.0);
/// Minus one, zero and one, an eighth more, or less for codes from eight on.
static SHIFTED: Codes =
    Codes { values: [2, 10, 18, 0, 0, 0, 0, 0, 0, 8, 16, 0, 0, 0, 0, 0], zero: 9, factor: 0.125 };

impl BlockFormat {
    /// What codes of a held block stand for; of other formats, nothing.
    pub(super) const fn codes(self) -> Option<&'static Codes> {
        match self {
            Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S => Some(&SIZES_2),
            Self::Iq3Xxs => Some(&SIZES_3),
            Self::Iq3S => Some(&ODD),
            Self::Iq1S | Self::Iq1M => Some(&SHIFTED),
            _ => None,
        }
    }

    /// Brings a block of the file into the form in which panels hold it, of as many bytes as `held` has.
    pub(super) fn recode(self, block: &[u8], held: &mut [u8]) {
        // What follows for each format: to ask which it is for every eight values took half of the time.
        match self {
            Self::Iq1S => Self::Iq1S.recode_grid(block, held),
            Self::Iq1M => Self::Iq1M.recode_grid(block, held),
            Self::Iq2Xxs => Self::Iq2Xxs.recode_grid(block, held),
            Self::Iq2Xs => Self::Iq2Xs.recode_grid(block, held),
            Self::Iq2S => Self::Iq2S.recode_grid(block, held),
            Self::Iq3Xxs => Self::Iq3Xxs.recode_grid(block, held),
            Self::Iq3S => Self::Iq3S.recode_grid(block, held),
            _ => self.recode_bits(block, held),
        }
    }

    #[inline(always)]
    fn recode_grid(self, block: &[u8], held: &mut [u8]) {
        let block = &block[..self.bytes()];
        held[..2].copy_from_slice(&self.scale(block));
        let mut scales = [0u32; 2];
        for i in 0..16 {
            scales[i % 2] |= self.scale_of_16(block, i) << (i / 2 * 4);
        }
        held[2..6].copy_from_slice(&scales[0].to_le_bytes());
        held[6..10].copy_from_slice(&scales[1].to_le_bytes());
        for (i, to) in held[10..].as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let first = i / 2 * 4 + i % 2;
            let codes = self.eight(block, first) | self.eight(block, first + 2) << 4;
            *to = codes.to_le_bytes();
        }
    }

    /// The f16 of the whole block.
    fn scale(self, block: &[u8]) -> [u8; 2] {
        if self != Self::Iq1M {
            return [block[0], block[1]];
        }
        // Four bits of each word of scales.
        let four = |i: usize| block[49 + 2 * i] >> 4;
        [four(0) | four(1) << 4, four(2) | four(3) << 4]
    }

    /// `s` of a scale, of which sixteen values have one.
    #[inline(always)]
    fn scale_of_16(self, block: &[u8], i: usize) -> u32 {
        let nibble = |at: usize, i: usize| u32::from(block[at + i / 2] >> (i % 2 * 4) & 15);
        match self {
            Self::Iq2Xxs => nibble(9 + i / 2 * 8, 1),
            Self::Iq2Xs => nibble(66, i),
            Self::Iq2S => nibble(74, i),
            Self::Iq3Xxs => nibble(69 + i / 2 * 4, 1),
            Self::Iq3S => nibble(106, i / 2),
            Self::Iq1S => nibble(35 + i / 2 * 2, 1) & 7,
            _ => u32::from(two(block, 48 + i / 4 * 2)) >> (i % 4 * 3) & 7,
        }
    }

    /// Codes of eight values, in bytes.
    #[inline(always)]
    fn eight(self, block: &[u8], i: usize) -> u64 {
        let byte = |at: usize| usize::from(block[at + i]);
        let (group, part) = (i / 4, i % 4);
        // Seven of eight signs, of which an even number is negative.
        let even = |signs: u32| {
            let signs = signs & 127;
            signs | (signs.count_ones() % 2) << 7
        };
        match self {
            Self::Iq2Xxs => {
                let at = 2 + 8 * group;
                let signs = even(four(block, at + 4) >> (7 * part));
                pairs_apart(point(IQ2_XXS, usize::from(block[at + part]))) | signs_apart(signs)
            }
            Self::Iq2Xs => {
                let word = two(block, 2 + 2 * i);
                let signs = even(u32::from(word >> 9));
                pairs_apart(point(IQ2_XS, usize::from(word & 511))) | signs_apart(signs)
            }
            Self::Iq2S => {
                let high = usize::from(block[66 + group] >> (2 * part) & 3);
                let at = byte(2) | high << 8;
                pairs_apart(point(IQ2_S, at)) | signs_apart(byte(34) as u32)
            }
            Self::Iq3Xxs | Self::Iq3S => {
                let whole = self == Self::Iq3Xxs;
                let (high, signs) = if whole {
                    (0, even(four(block, 66 + 4 * group) >> (7 * part)))
                } else {
                    (usize::from(block[66 + group] >> (2 * part)), byte(74) as u32)
                };
                let grid = if whole { IQ3_XXS } else { IQ3_S };
                let first = point(grid, byte(2 + i) | (high & 1) << 8);
                let second = point(grid, byte(3 + i) | (high >> 1 & 1) << 8);
                fours_apart(first) | fours_apart(second) << 32 | signs_apart(signs)
            }
            _ => {
                let (at, low, high) = if self == Self::Iq1S {
                    let word = two(block, 34 + 2 * group);
                    (2, word >> (3 * part) & 7, word >> 15)
                } else {
                    let four = u16::from(block[32 + i / 2] >> (i % 2 * 4));
                    (0, four & 7, four >> 3 & 1)
                };
                let less = u64::from(high) * 0x0808_0808_0808_0808;
                pairs_apart(point(IQ1, byte(at) | usize::from(low) << 8)) | less
            }
        }
    }

    /// The numbers of a block of the file, [`elements`](Self::elements) of [`bytes`](Self::bytes), where it is of one
    /// of the formats whose names begin with `Iq1`, `Iq2`, `Iq3` and `Tq`, or `Q1_0` or `Q2_0`; returns whether it is.
    ///
    /// # Panics
    ///
    /// If `block` or `out` is shorter.
    pub fn dequantize_few_bits(self, block: &[u8], out: &mut [f32]) -> bool {
        if self.is_recoded() {
            let mut held = [0; HELD];
            self.recode(block, &mut held[..self.held_bytes()]);
            self.held_values(&held, &mut out[..self.elements()]);
        }
        self.is_recoded()
    }

    /// The numbers of a held block of those formats.
    pub(super) fn held_values(self, held: &[u8], out: &mut [f32]) {
        let Some(codes) = self.codes() else { return self.values_of_bits(held, out) };
        let half = tilewright_intrinsics::soft::f32_from_f16(two(held, 0));
        let d = half * codes.factor;
        for (j, out) in out.iter_mut().enumerate() {
            let (g, t) = (j / 32, j % 32);
            let scale = four(held, 2 + t / 16 * 4) >> (4 * g) & 15;
            let code = held[10 + 16 * g + t % 16] >> (t / 16 * 4) & 15;
            let value = i32::from(codes.values[usize::from(code)]) - codes.zero;
            *out = d * (2 * scale + 1) as f32 * value as f32;
        }
    }
}

fn two(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn four(bytes: &[u8], at: usize) -> u32 {
    u32::from(two(bytes, at)) | u32::from(two(bytes, at + 2)) << 16
}

fn point(grid: usize, index: usize) -> u64 {
    two(POINTS, 2 * (grid + index)).into()
}

/// Eight numbers of two bits into bytes.
fn pairs_apart(x: u64) -> u64 {
    let x = (x | x << 24) & 0x0000_00ff_0000_00ff;
    let x = (x | x << 12) & 0x000f_000f_000f_000f;
    (x | x << 6) & 0x0303_0303_0303_0303
}

/// Four numbers of four bits into bytes.
fn fours_apart(x: u64) -> u64 {
    let x = (x | x << 8) & 0x00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f
}

/// Eight bits into the fourth of each byte.
fn signs_apart(signs: u32) -> u64 {
    let bits = (u64::from(signs) * 0x0101_0101_0101_0101) & 0x8040_2010_0804_0201;
    (bits + 0x7f7f_7f7f_7f7f_7f7f) >> 4 & 0x0808_0808_0808_0808
}
