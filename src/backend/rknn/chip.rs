//! The chips: cores, limits, and the blocks that matrices lie in.

use super::RknnError;

/// How a product is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// Operands in half precision, sums in single.
    #[default]
    F16,
    /// Both operands rounded to 8 bits, activations with a scale per row, weights with one per
    /// column; sums are exact.
    I8,
}

impl Numbers {
    /// Number of the combination of types in the interface.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::F16 => 1,
            Self::I8 => 2,
        }
    }

    /// Bytes of an element of A and B.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::I8 => 1,
        }
    }
}

/// Blocks of the native layouts, in elements: A is `[k / a, m, a]`, B `[n / sn, k / sk, sn, sk]` and
/// C `[n / c, m, c]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) a: usize,
    pub(super) sn: usize,
    pub(super) sk: usize,
    pub(super) c: usize,
}

/// A chip with an NPU.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chip {
    pub(super) name: &'static str,
    pub(super) cores: usize,
    /// Most rows of B in one context: past them some chips cut B, and one is said to be wrong.
    pub(super) k_max: usize,
    /// Columns come in multiples of this.
    pub(super) n_unit: usize,
    f16: Blocks,
    i8: Blocks,
}

/// Rows of B come in multiples of this.
pub(super) const K_UNIT: usize = 32;

/// Most columns of B in one context, by the manual.
pub(super) const N_MAX: usize = 4096;

const fn blocks(a: usize, sn: usize, sk: usize) -> Blocks {
    Blocks { a, sn, sk, c: 4 }
}

const RK356X: Chip = Chip {
    name: "rk3568",
    cores: 1,
    k_max: 10240,
    n_unit: 16,
    f16: blocks(4, 8, 16),
    i8: blocks(8, 16, 32),
};

const CHIPS: [Chip; 5] = [
    Chip {
        name: "rk3588",
        cores: 3,
        k_max: 8192,
        n_unit: 32,
        f16: blocks(8, 16, 32),
        i8: blocks(16, 32, 32),
    },
    Chip {
        name: "rk3576",
        cores: 2,
        k_max: 4096,
        n_unit: 32,
        f16: blocks(8, 16, 32),
        i8: blocks(16, 32, 32),
    },
    RK356X,
    Chip { name: "rk3566", ..RK356X },
    Chip {
        name: "rk3562",
        cores: 1,
        k_max: 10240,
        n_unit: 16,
        f16: blocks(8, 8, 32),
        i8: blocks(16, 16, 32),
    },
];

impl Chip {
    /// The chip of this name, or the one that the device tree names.
    pub(super) fn find(name: Option<&str>) -> Result<&'static Self, RknnError> {
        let named = |name: &str| CHIPS.iter().find(|chip| chip.name == name);
        if let Some(name) = name {
            return named(name).ok_or_else(|| RknnError::Setting {
                name: "TILEWRIGHT_RKNN_CHIP",
                value: name.to_owned(),
                expected: "rk3588, rk3576, rk3568, rk3566 or rk3562",
            });
        }
        let tree = std::fs::read("/proc/device-tree/compatible").unwrap_or_default();
        let tree = String::from_utf8_lossy(&tree);
        let mut names = tree.split('\0').filter_map(|entry| entry.strip_prefix("rockchip,"));
        // Variants of a chip have a letter behind its number.
        let chip = names.find_map(|n| CHIPS.iter().find(|chip| n.starts_with(chip.name)));
        chip.ok_or(RknnError::UnknownChip)
    }

    pub(super) fn blocks(&self, numbers: Numbers) -> Blocks {
        match numbers {
            Numbers::F16 => self.f16,
            Numbers::I8 => self.i8,
        }
    }
}
