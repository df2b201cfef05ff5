//! Formats of weights: blocks of integers with scales, as GGML lays them out, and floats.

use super::grid::HELD;
use super::quantize::Record;

/// How the weights of a matrix are stored. Rows are along the reduction, and share no blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockFormat {
    /// `f32`.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an `f32`.
    Bf16,
    /// 32 values of 4 bits, one scale.
    Q4_0,
    /// 32 values of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 values of 5 bits, one scale.
    Q5_0,
    /// 32 values of 5 bits, a scale and a minimum.
    Q5_1,
    /// 32 values of 8 bits, one scale.
    Q8_0,
    /// 256 values of 2 bits, 16 with a scale and a minimum of 4 bits.
    Q2K,
    /// 256 values of 3 bits, 16 with a scale of 6 bits.
    Q3K,
    /// 256 values of 4 bits, 32 with a scale and a minimum of 6 bits.
    Q4K,
    /// 256 values of 5 bits, 32 with a scale and a minimum of 6 bits.
    Q5K,
    /// 256 values of 6 bits, 16 with a scale of 8 bits.
    Q6K,
    /// 32 indices into a table of 16 values, one scale.
    Iq4Nl,
    /// 256 indices into that table, 32 with a scale of 6 bits.
    Iq4Xs,
    /// 32 floats of 4 bits (1, 2 and 1 of sign, exponent and fraction), and a scale that is a power of two: the MXFP4
    /// of OCP's Microscaling Formats 1.0. A scale of 2^-127 counts as 0.
    Mxfp4,
    /// 256 values of -1, 0 and 1, an eighth more or less for 32 of them, which have a scale of 3 bits: eight of a grid
    /// of 2048 points.
    Iq1S,
    /// The same, with a scale for 16 and a side for 8 of them. The block's own scale is spread over theirs.
    Iq1M,
    /// 256 values of three sizes: eight of a grid of 256 points, and seven signs. 32 have a scale of 4 bits.
    Iq2Xxs,
    /// The same with 512 points. 16 have a scale.
    Iq2Xs,
    /// The same with 1024 points, and all signs.
    Iq2S,
    /// 256 values of eight sizes: four of a grid of 256 points, and seven signs of eight. 32 have a scale of 4 bits.
    Iq3Xxs,
    /// The same with other sizes, 512 points, and all signs.
    Iq3S,
    /// 256 values of -1, 0 and 1, five in a byte, and a scale.
    Tq1,
    /// 256 such values of 2 bits, and a scale.
    Tq2,
    /// 128 values of -1 and 1, a bit each, and a scale.
    Q1_0,
    /// 64 values of 2 bits, from -1 to 2, and a scale.
    Q2_0,
    /// 32 values of 4 bits, a scale and an offset, both `f32` and before them: `scale * q + offset`. The first value
    /// of a byte is in its low bits. Of no file format, but what operators of ONNX Runtime's domain hold.
    /// Activations stay `f32`.
    U4,
}

/// The values of [`BlockFormat::Iq4Nl`] and [`BlockFormat::Iq4Xs`].
pub(super) const IQ4_NL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of [`BlockFormat::Mxfp4`].
pub(super) const MXFP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockFormat {
    /// Every format.
    pub const ALL: [Self; 28] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Tq1,
        Self::Tq2,
        Self::Q1_0,
        Self::Q2_0,
        Self::U4,
    ];

    /// The name, that of the file format in small letters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
            Self::Iq1S => "iq1_s",
            Self::Iq1M => "iq1_m",
            Self::Iq2Xxs => "iq2_xxs",
            Self::Iq2Xs => "iq2_xs",
            Self::Iq2S => "iq2_s",
            Self::Iq3Xxs => "iq3_xxs",
            Self::Iq3S => "iq3_s",
            Self::Tq1 => "tq1_0",
            Self::Tq2 => "tq2_0",
            Self::Q1_0 => "q1_0",
            Self::Q2_0 => "q2_0",
            Self::U4 => "u4",
        }
    }

    /// Values in a block: the size of a row is a multiple of it.
    pub const fn elements(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Iq4Nl | Self::Mxfp4 | Self::U4 => 32,
            Self::Q2_0 => 64,
            Self::Q1_0 => 128,
            _ => 256,
        }
    }

    /// Bytes of a block of the file.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Mxfp4 => 17,
            Self::Q4_0 | Self::Iq4Nl | Self::Q1_0 | Self::Q2_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 | Self::U4 => 24,
            Self::Q8_0 => 34,
            Self::Iq1S => 50,
            Self::Tq1 => 54,
            Self::Iq1M => 56,
            Self::Iq2Xxs | Self::Tq2 => 66,
            Self::Iq2Xs => 74,
            Self::Iq2S => 82,
            Self::Q2K => 84,
            Self::Iq3Xxs => 98,
            Self::Q3K | Self::Iq3S => 110,
            Self::Iq4Xs => 136,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// The format itself; or of those that panels hold alike, in another form than the file, the one that kernels and
    /// tables have an entry for.
    pub(super) const fn held(self) -> Self {
        match self {
            Self::Tq1 | Self::Tq2 => Self::Q2_0,
            _ if self.codes().is_some() => Self::Iq3S,
            _ => self,
        }
    }

    /// Whether panels hold a block otherwise than word by word as it lies in the file.
    pub(super) const fn is_recoded(self) -> bool {
        self.codes().is_some() || matches!(self, Self::Tq1 | Self::Tq2 | Self::Q1_0 | Self::Q2_0)
    }

    /// Bytes in a panel of what is a block of the file.
    pub const fn held_bytes(self) -> usize {
        match self {
            Self::Tq1 | Self::Tq2 => 4 * Self::Q2_0.bytes(),
            _ if self.codes().is_some() => HELD,
            _ => self.bytes(),
        }
    }

    /// Writes the f16 of a block of the file, its scales, its minimum, or the value: number `j` is `bits(j)`.
    #[cfg(any(test, not(any(target_family = "wasm", miri))))]
    pub(crate) fn set_halves(self, block: &mut [u8], bits: impl Fn(usize) -> u16) {
        let offsets: &[u16] = match self {
            Self::Mxfp4 => &[],
            Self::Iq1M => {
                for i in 0..4 {
                    let four = (bits(0) >> (4 * i) & 15) as u8;
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | four << 4;
                }
                return;
            }
            Self::Tq1 => &[52],
            Self::Tq2 => &[64],
            // The second of these holds bits of scales.
            Self::Iq4Xs => &[0],
            _ => self.halves(),
        };
        for (j, &at) in offsets.iter().enumerate() {
            block[usize::from(at)..][..2].copy_from_slice(&bits(j).to_le_bytes());
        }
    }

    /// What activations become, for an instruction set that takes signed weights of 8 bits plus `bias`, and a
    /// single column of them or several.
    pub(super) const fn record(self, bias: i32, single: bool) -> Record {
        match self {
            Self::U4 if single => Record::FloatSum,
            Self::F32 | Self::F16 | Self::Bf16 | Self::U4 => Record::Float,
            Self::Q4_0 => Record::Zero(8),
            Self::Q5_0 => Record::Zero(16),
            Self::Q8_0 | Self::Iq4Nl | Self::Iq4Xs | Self::Mxfp4 => Record::Zero(bias),
            Self::Q3K => Record::Zero16(4),
            Self::Q6K => Record::Zero16(32),
            Self::Q2K => Record::Sum16,
            Self::Tq1 | Self::Tq2 | Self::Q1_0 | Self::Q2_0 => Record::Zero(1),
            _ => match self.codes() {
                Some(codes) => Record::Zero16(codes.zero),
                None => Record::Sum,
            },
        }
    }

    /// Offsets in a held block of the halves, of [`half_bytes`](Self::half_bytes) each, that become the first vectors of a
    /// packed block.
    pub(super) const fn halves(self) -> &'static [u16] {
        match self {
            Self::F32 | Self::U4 => &[],
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K | Self::Iq4Xs => &[0, 2],
            Self::Q2K => &[80, 82],
            Self::Q3K => &[108],
            Self::Q6K => &[208],
            _ => &[0],
        }
    }

    /// Bytes of each of those: the scale of one format is the exponent alone.
    pub(super) const fn half_bytes(self) -> usize {
        if matches!(self, Self::Mxfp4) { 1 } else { 2 }
    }

    /// Offsets in a held block of the words that become the vectors behind those, in the order in which
    /// kernels use them.
    pub(super) const fn words(self) -> &'static [u16] {
        const Q3K: [u16; 27] = {
            let mut list = [0; 27];
            let mut i = 0;
            while i < 27 {
                list[i] = if i < 3 { 96 + 4 * i as u16 } else { 4 * i as u16 - 12 };
                i += 1;
            }
            list
        };
        match self {
            Self::F16 | Self::Bf16 => &[],
            Self::F32 => &[0],
            Self::Mxfp4 => const { &ascending::<4>(1) },
            Self::Q4_0 | Self::Iq4Nl | Self::Q1_0 | Self::Q2_0 => const { &ascending::<4>(2) },
            Self::Q4_1 => const { &ascending::<4>(4) },
            Self::Q5_0 => const { &ascending::<5>(2) },
            Self::Q5_1 => const { &ascending::<5>(4) },
            Self::Q8_0 => const { &ascending::<8>(2) },
            Self::U4 => const { &ascending::<6>(0) },
            Self::Q2K => const { &ascending::<20>(0) },
            Self::Q3K => &Q3K,
            Self::Iq4Xs => const { &ascending::<33>(4) },
            Self::Q4K => const { &ascending::<35>(4) },
            Self::Q5K => const { &ascending::<43>(4) },
            Self::Q6K => const { &q6_k() },
            _ => const { &ascending::<34>(2) },
        }
    }

    /// The word in a block whose bit `j` belongs to value `j`: packed, bit `j` lies at `8 (j % 4) + j / 4`.
    pub(super) const fn fifth_bits(self) -> Option<u16> {
        match self {
            Self::Q5_0 => Some(2),
            Self::Q5_1 => Some(4),
            _ => None,
        }
    }
}

/// Offsets of words in a row.
const fn ascending<const N: usize>(from: u16) -> [u16; N] {
    let mut list = [from; N];
    let mut i = 0;
    while i < N {
        list[i] = from + 4 * i as u16;
        i += 1;
    }
    list
}

/// The scales; then for each half of a block, each half of its quarters and each word of those, the upper
/// bits of all quarters, the lower ones of quarters 0 and 2 and those of quarters 1 and 3.
const fn q6_k() -> [u16; 52] {
    let mut list = [0; 52];
    let mut i = 0;
    while i < 52 {
        list[i] = if i < 4 {
            192 + 4 * i as u16
        } else {
            let (word, part) = ((i as u16 - 4) / 3, (i as u16 - 4) % 3);
            let (h, at) = (word / 8, word % 8 * 4);
            match part {
                0 => 128 + 32 * h + at,
                1 => 64 * h + at,
                _ => 64 * h + 32 + at,
            }
        };
        i += 1;
    }
    list
}
