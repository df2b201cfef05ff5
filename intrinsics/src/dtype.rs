//! Element types that kernels exist for.

/// Element type of a kernel's operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// IEEE 754 binary32, accumulated in binary32.
    F32,
}

impl Dtype {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 => 4,
        }
    }

    /// The name used in kernel names and tables, for instance `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
        }
    }
}
