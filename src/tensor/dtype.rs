//! Element types: sizes, blocks and names.

use core::fmt;

/// Type of a tensor's elements.
///
/// Block-quantised types keep `block_elems` elements in `block_bytes` bytes (ggml's layouts); every
/// other type has blocks of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(non_camel_case_types, reason = "names as ggml spells them")]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper 16 bits of an IEEE single.
    BF16,
    /// IEEE double precision.
    F64,
    /// Signed 8-bit integer.
    I8,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
    /// One byte, 0 or 1.
    Bool,
    /// 32 four-bit values with one f16 scale.
    Q4_0,
    /// 32 four-bit values with an f16 scale and an f16 minimum.
    Q4_1,
    /// 32 five-bit values with one f16 scale.
    Q5_0,
    /// 32 five-bit values with an f16 scale and an f16 minimum.
    Q5_1,
    /// 32 eight-bit values with one f16 scale.
    Q8_0,
    /// 256 two-bit values in groups of 16, each with a four-bit scale and minimum.
    Q2_K,
    /// 256 three-bit values in groups of 16, each with a six-bit scale.
    Q3_K,
    /// 256 four-bit values in groups of 32, each with a six-bit scale and minimum.
    Q4_K,
    /// 256 five-bit values in groups of 32, each with a six-bit scale and minimum.
    Q5_K,
    /// 256 six-bit values in groups of 16, each with an eight-bit scale.
    Q6_K,
    /// 32 indices into a table of 16 values, with one f16 scale.
    IQ4_NL,
    /// 256 indices into that table in groups of 32, each with a six-bit scale.
    IQ4_XS,
    /// 32 four-bit floats, with one power of two (OCP Microscaling Formats 1.0).
    MXFP4,
    /// 256 values of three sizes, in groups of 32, each with a three-bit scale: eight are a point of a grid.
    IQ1_S,
    /// The same in groups of 16.
    IQ1_M,
    /// 256 values of six, in groups of 32, each with a four-bit scale: eight are a point of a grid of 256, and signs.
    IQ2_XXS,
    /// The same in groups of 16, with a grid of 512.
    IQ2_XS,
    /// The same in groups of 16, with a grid of 1024.
    IQ2_S,
    /// 256 values of sixteen, in groups of 32, each with a four-bit scale: four are a point of a grid of 256, and signs.
    IQ3_XXS,
    /// The same with a grid of 512.
    IQ3_S,
    /// 256 values of -1, 0 and 1, five in a byte, with one f16 scale.
    TQ1_0,
    /// 256 such values of two bits, with one f16 scale.
    TQ2_0,
    /// 128 values of -1 and 1 with one f16 scale, a bit each.
    Q1_0,
    /// 64 two-bit values from -1 to 2 with one f16 scale, four per byte in their order.
    Q2_0,
    /// 32 four-bit values behind an f32 scale and an f32 offset, two per byte in their order. Of no file: what
    /// `MatMulNBits` of ONNX Runtime's domain multiplies by.
    U4,
}

impl DType {
    /// Every type, in declaration order.
    pub const ALL: [Self; 38] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::F64,
        Self::I8,
        Self::U8,
        Self::I16,
        Self::U16,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
        Self::Bool,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::MXFP4,
        Self::IQ1_S,
        Self::IQ1_M,
        Self::IQ2_XXS,
        Self::IQ2_XS,
        Self::IQ2_S,
        Self::IQ3_XXS,
        Self::IQ3_S,
        Self::TQ1_0,
        Self::TQ2_0,
        Self::Q1_0,
        Self::Q2_0,
        Self::U4,
    ];

    /// Elements in one block: 1, or 32 or 256 for the block-quantised types.
    pub const fn block_elems(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::IQ4_NL | Self::MXFP4 | Self::U4 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
            Self::IQ1_S | Self::IQ1_M | Self::IQ2_XXS | Self::IQ2_XS | Self::IQ2_S => 256,
            Self::IQ3_XXS | Self::IQ3_S | Self::TQ1_0 | Self::TQ2_0 => 256,
            Self::Q1_0 => 128,
            Self::Q2_0 => 64,
            _ => 1,
        }
    }

    /// Bytes of one block; for plain types the bytes of one element.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::Bool => 1,
            Self::F16 | Self::BF16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
            Self::MXFP4 => 17,
            Self::Q4_0 | Self::IQ4_NL | Self::Q1_0 | Self::Q2_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 | Self::U4 => 24,
            Self::Q8_0 => 34,
            Self::IQ1_S => 50,
            Self::TQ1_0 => 54,
            Self::IQ1_M => 56,
            Self::IQ2_XXS | Self::TQ2_0 => 66,
            Self::IQ2_XS => 74,
            Self::IQ2_S => 82,
            Self::Q2_K => 84,
            Self::IQ3_XXS => 98,
            Self::Q3_K | Self::IQ3_S => 110,
            Self::IQ4_XS => 136,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Whether one element stands in every block.
    pub const fn is_plain(self) -> bool {
        self.block_elems() == 1
    }

    /// Whether the type is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16 | Self::F64)
    }

    /// Bytes of `elements` contiguous elements, or `None` on overflow or when `elements` is not a
    /// whole number of blocks.
    pub const fn bytes_of(self, elements: usize) -> Option<usize> {
        if !elements.is_multiple_of(self.block_elems()) {
            return None;
        }
        (elements / self.block_elems()).checked_mul(self.block_bytes())
    }

    /// The printable name, that of ggml where it has one: `f32`, `i64`, `q4_0`, `q6_K`, `iq4_nl`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I16 => "i16",
            Self::U16 => "u16",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
            Self::Bool => "bool",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2_K => "q2_K",
            Self::Q3_K => "q3_K",
            Self::Q4_K => "q4_K",
            Self::Q5_K => "q5_K",
            Self::Q6_K => "q6_K",
            Self::IQ4_NL => "iq4_nl",
            Self::IQ4_XS => "iq4_xs",
            Self::MXFP4 => "mxfp4",
            Self::IQ1_S => "iq1_s",
            Self::IQ1_M => "iq1_m",
            Self::IQ2_XXS => "iq2_xxs",
            Self::IQ2_XS => "iq2_xs",
            Self::IQ2_S => "iq2_s",
            Self::IQ3_XXS => "iq3_xxs",
            Self::IQ3_S => "iq3_s",
            Self::TQ1_0 => "tq1_0",
            Self::TQ2_0 => "tq2_0",
            Self::Q1_0 => "q1_0",
            Self::Q2_0 => "q2_0",
            Self::U4 => "u4",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that stands for one [`DType`] in typed access to tensor data.
///
/// Sealed: the implementations below are all there are, and each is plain old data, so any byte
/// pattern read from a file is a valid value (`bool` is read as `u8` for that reason).
pub trait Element: sealed::Sealed + Copy + Default + PartialEq + fmt::Debug + 'static {
    /// The type's tag.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => { $(
        impl sealed::Sealed for $t {}
        impl Element for $t { const DTYPE: DType = DType::$d; }
    )* };
}
elements! {
    f32 => F32, f64 => F64, i8 => I8, u8 => U8, i16 => I16, u16 => U16,
    i32 => I32, u32 => U32, i64 => I64, u64 => U64,
    half::f16 => F16, half::bf16 => BF16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_ggml() {
        for (dtype, elems, bytes) in [
            (DType::F32, 1, 4),
            (DType::F16, 1, 2),
            (DType::BF16, 1, 2),
            (DType::I8, 1, 1),
            (DType::I16, 1, 2),
            (DType::I32, 1, 4),
            (DType::I64, 1, 8),
            (DType::Q4_0, 32, 18),
            (DType::Q4_1, 32, 20),
            (DType::Q5_0, 32, 22),
            (DType::Q5_1, 32, 24),
            (DType::Q8_0, 32, 34),
            (DType::Q2_K, 256, 84),
            (DType::Q3_K, 256, 110),
            (DType::Q4_K, 256, 144),
            (DType::Q5_K, 256, 176),
            (DType::Q6_K, 256, 210),
            (DType::IQ4_NL, 32, 18),
            (DType::IQ4_XS, 256, 136),
            (DType::MXFP4, 32, 17),
            (DType::IQ1_S, 256, 50),
            (DType::IQ1_M, 256, 56),
            (DType::IQ2_XXS, 256, 66),
            (DType::IQ2_XS, 256, 74),
            (DType::IQ2_S, 256, 82),
            (DType::IQ3_XXS, 256, 98),
            (DType::IQ3_S, 256, 110),
            (DType::TQ1_0, 256, 54),
            (DType::TQ2_0, 256, 66),
            (DType::Q1_0, 128, 18),
            (DType::Q2_0, 64, 18),
            (DType::U4, 32, 24),
        ] {
            assert_eq!((dtype.block_elems(), dtype.block_bytes()), (elems, bytes), "{dtype}");
        }
    }

    #[test]
    fn bytes_of_refuses_overflow_and_partial_blocks() {
        assert_eq!(DType::I64.bytes_of(usize::MAX / 4), None);
        assert_eq!(DType::Q8_0.bytes_of(33), None);
        assert_eq!(DType::Q8_0.bytes_of(64), Some(68));
        assert_eq!(DType::F32.bytes_of(0), Some(0));
    }
}
