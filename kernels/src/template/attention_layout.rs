//! How keys and values lie in a cache.
//!
//! Keys are stored by groups of 16 positions: a panel `[size][16]`, so that the scores of 16 keys are
//! one vector and need no sum across lanes. Values are stored by groups of 64 positions: panels
//! `[64][width]` of some columns, so that a few rows of sums stay in registers while a panel is read
//! from its beginning to its end. Rows of values are filled up with zeros to a multiple of 16. Head
//! after head, all keys before all values. Q8_0 has an f16 scale for each position and run of 32
//! elements; the scales of a group and run lie before the run's bytes.

use super::attention::AttentionParams;
use crate::KernelError;

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheType {
    /// Numbers as they are.
    F32,
    /// IEEE binary16, rounded to nearest even.
    F16,
    /// Bytes with an f16 scale for each run of 32: ggml's Q8_0, apart from the order.
    Q8_0,
}

impl CacheType {
    /// Its name, for instance `q8_0`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8_0 => "q8_0",
        }
    }
}

/// Positions of a group of keys.
pub(crate) const GROUP: usize = 16;
/// Positions of a group of values.
pub(crate) const VALUES: usize = 4 * GROUP;
/// Elements that share a scale.
pub(crate) const RUN: usize = 32;
/// Bytes of a run of a group of keys: scales, then `[32][16]`.
pub(crate) const KEY_RUN: usize = (2 + RUN) * GROUP;
/// Bytes of a run of a group of values: scales, then `[64][32]`.
pub(crate) const VALUE_RUN: usize = (2 + RUN) * VALUES;

/// Where the parts of a cache lie, in bytes from its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) kind: CacheType,
    /// Groups of values of a head.
    groups: usize,
    /// Bytes of a group of keys.
    pub(crate) k_group: usize,
    /// Bytes of a group of values.
    pub(crate) v_group: usize,
    /// Of the first value.
    values_at: usize,
    /// Elements of a row of values.
    pub(crate) v_row: usize,
    /// Columns of a panel of values; the last one has what is left.
    pub(crate) v_width: usize,
    /// Of the whole.
    pub(crate) bytes: usize,
}

impl Layout {
    /// The layout whose panels of values are as wide as the tiles that read them.
    pub(crate) fn new(
        op: &'static str,
        p: &AttentionParams,
        width: usize,
    ) -> Result<Self, KernelError> {
        let kind = p.cache;
        let (pad, v_width) = if kind == CacheType::Q8_0 { (RUN, RUN) } else { (GROUP, width) };
        let groups = p.capacity.div_ceil(VALUES);
        let row = |size: usize| size.checked_next_multiple_of(pad);
        let bytes = |elements: usize, positions: usize| match kind {
            CacheType::F32 => elements.checked_mul(4 * positions),
            CacheType::F16 => elements.checked_mul(2 * positions),
            CacheType::Q8_0 => (elements / RUN).checked_mul((2 + RUN) * positions),
        };
        let k_elements = if kind == CacheType::Q8_0 { row(p.size) } else { Some(p.size) };
        let sizes = || {
            let v_row = row(p.values)?;
            let (k_group, v_group) = (bytes(k_elements?, GROUP)?, bytes(v_row, VALUES)?);
            let all = groups.checked_mul(p.kv_heads)?;
            let values_at = all.checked_mul(k_group.checked_mul(VALUES / GROUP)?)?;
            let bytes = values_at.checked_add(all.checked_mul(v_group)?)?;
            let fits = bytes <= isize::MAX as usize / 8;
            let layout = Self { kind, groups, k_group, v_group, values_at, v_row, v_width, bytes };
            fits.then_some(layout)
        };
        sizes().ok_or(KernelError::TooLarge { op })
    }

    /// Of the keys of the group of a position of a head.
    pub(crate) fn keys(&self, head: usize, position: usize) -> usize {
        (head * self.groups * (VALUES / GROUP) + position / GROUP) * self.k_group
    }

    /// Of the values of the group of a position of a head.
    pub(crate) fn values(&self, head: usize, position: usize) -> usize {
        self.values_at + (head * self.groups + position / VALUES) * self.v_group
    }
}

/// Bytes from the beginning of a group of values to the panel that begins with a column.
#[inline(always)]
pub(crate) const fn panel_at(kind: CacheType, column: usize) -> usize {
    match kind {
        CacheType::F32 => 4 * VALUES * column,
        CacheType::F16 => 2 * VALUES * column,
        CacheType::Q8_0 => VALUE_RUN * (column / RUN),
    }
}
