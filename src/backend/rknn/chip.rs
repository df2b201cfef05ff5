//! The chips: cores, limits, and the blocks that matrices lie in.

use super::RknnError;
use tilewright_kernels::CellForm;

/// How a product is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Numbers {
    /// Operands in half precision, sums in single.
    #[default]
    F16,
    /// Both operands rounded to 8 bits, activations with a scale per row, weights with one per
    /// column; sums are exact.
    I8,
    /// The same with 4 bits, on chips that have it: errors of some 20 %, for research only.
    I4,
}

impl Numbers {
    /// Number of the combination of types in the interface.
    pub(super) fn code(self) -> i32 {
        match self {
            Self::F16 => 1,
            Self::I8 => 2,
            Self::I4 => 10,
        }
    }

    /// Its name in settings and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::I8 => "i8",
            Self::I4 => "i4",
        }
    }

    /// What elements of A and B are.
    pub(super) fn form(self) -> CellForm {
        match self {
            Self::F16 => CellForm::F16,
            Self::I8 => CellForm::I8,
            Self::I4 => CellForm::I4,
        }
    }

    /// Bytes of so many elements of A or B.
    pub(super) fn bytes(self, elements: usize) -> usize {
        self.form().bytes(elements)
    }

    /// The largest integer that elements become; `None` for floats.
    pub(super) fn most(self) -> Option<f32> {
        match self {
            Self::F16 => None,
            Self::I8 => Some(127.0),
            Self::I4 => Some(7.0),
        }
    }

    /// Bytes of an element of C.
    pub(super) fn result_bytes(self) -> usize {
        match self {
            Self::F16 | Self::I8 => 4,
            Self::I4 => 2,
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
    k_max: usize,
    /// Columns come in multiples of this, those of 4 bits in ones of [`N_UNIT_I4`].
    n_unit: usize,
    f16: Blocks,
    i8: Blocks,
    /// Whether products of 4 bits exist.
    has_i4: bool,
}

/// Most rows of B of 4 bits: 7 * 7 * 640 is the last even number of units that 16 bits surely hold.
const K_MAX_I4: usize = 640;

const N_UNIT_I4: usize = 64;
const I4: Blocks = Blocks { a: 32, sn: 64, sk: 32, c: 8 };

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
    has_i4: false,
};

const CHIPS: [Chip; 5] = [
    Chip {
        name: "rk3588",
        cores: 3,
        k_max: 8192,
        n_unit: 32,
        f16: blocks(8, 16, 32),
        i8: blocks(16, 32, 32),
        has_i4: true,
    },
    Chip {
        name: "rk3576",
        cores: 2,
        k_max: 4096,
        n_unit: 32,
        f16: blocks(8, 16, 32),
        i8: blocks(16, 32, 32),
        has_i4: false,
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
        has_i4: false,
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
            Numbers::I4 => I4,
        }
    }

    /// Whether it computes with them.
    pub(super) fn has(&self, numbers: Numbers) -> bool {
        numbers != Numbers::I4 || self.has_i4
    }

    /// Most rows of B in one context.
    pub(super) fn k_max(&self, numbers: Numbers) -> usize {
        if numbers == Numbers::I4 { K_MAX_I4 } else { self.k_max }
    }

    /// Columns come in multiples of this.
    pub(super) fn n_unit(&self, numbers: Numbers) -> usize {
        if numbers == Numbers::I4 { N_UNIT_I4 } else { self.n_unit }
    }
}
