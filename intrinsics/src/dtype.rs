//! Element types that kernels exist for.

/// Element type of a kernel's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 binary32, accumulated in binary32.
    F32,
    /// IEEE 754 binary16, accumulated in binary32.
    F16,
    /// The upper half of a binary32, accumulated in binary32.
    Bf16,
    /// Signed bytes, accumulated in 32 bits.
    I8,
    /// Unsigned bytes, accumulated in 32 bits.
    U8,
    /// 32-bit sums of products of bytes.
    I32,
    /// Blocks of integers with their scales, as bytes: weights of language models.
    Block,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I8 | Self::U8 | Self::Block => 1,
        }
    }

    /// The name used in kernel names and tables, for instance `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::Block => "block",
        }
    }
}

/// What the 32 bits hold that one lane of a dot product takes from each operand: consecutive
/// elements of the reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Word {
    /// Four bytes, those of the left operand unsigned, those of the right one signed.
    U8x4,
    /// The same, but neighbouring products are added up in 16 bits, which saturate: in the right operand
    /// no two neighbours add up to more than 128, and what is left of those that would is a step of its own.
    U8x4Saturating,
    /// As [`Word::U8x4`], but in the right operand the words of each column of two steps of the reduction lie
    /// side by side, and reductions have a multiple of four words.
    U8x4Pairs,
    /// Four signed bytes.
    S8x4,
    /// Two signed 16-bit integers, in the range of a byte.
    S16x2,
    /// The same, but in each vector of the right operand the first ones of all lanes lie before the
    /// second ones.
    S16x2Halves,
    /// Two f16, in the right operand as [`Word::S16x2Halves`].
    F16x2Halves,
    /// Two bf16.
    Bf16x2,
    /// One `f32`.
    F32x1,
}

impl Word {
    /// Whether bytes become 16-bit integers.
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::S16x2 | Self::S16x2Halves)
    }

    /// Elements per word.
    pub const fn group(self) -> usize {
        match self {
            Self::U8x4 | Self::U8x4Saturating | Self::U8x4Pairs | Self::S8x4 => 4,
            Self::S16x2 | Self::S16x2Halves | Self::F16x2Halves | Self::Bf16x2 => 2,
            Self::F32x1 => 1,
        }
    }

    /// Whether in each vector of the right operand the first elements of all lanes lie before the
    /// second ones.
    pub const fn in_halves(self) -> bool {
        matches!(self, Self::S16x2Halves | Self::F16x2Halves)
    }

    /// Whether sums of neighbouring products saturate.
    pub const fn saturates(self) -> bool {
        matches!(self, Self::U8x4Saturating)
    }

    /// Words of the reduction that a kernel takes at once: what there is not is zero.
    pub const fn step(self) -> usize {
        match self {
            Self::U8x4Pairs => 4,
            _ => 1,
        }
    }

    /// Words of a column that lie side by side in the right operand.
    pub const fn side_by_side(self) -> usize {
        match self {
            Self::U8x4Pairs => 2,
            _ => 1,
        }
    }
}
