//! What the chips compute, and how their matrices lie in memory.

use crate::abi::{IoAttr, MatmulInfo, Shape, TensorAttr};

/// Element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Element {
    F32,
    F16,
    I8,
    I16,
    I32,
    I4,
}

impl Element {
    pub(crate) fn bits(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 32,
            Self::F16 | Self::I16 => 16,
            Self::I8 => 8,
            Self::I4 => 4,
        }
    }

    /// Its number in the interface.
    fn code(self) -> i32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::I8 => 2,
            Self::I16 => 4,
            Self::I32 => 6,
            Self::I4 => 10,
        }
    }
}

/// Element types of A, B and C of a combination.
pub(crate) fn elements(kind: i32) -> Option<[Element; 3]> {
    use Element::{F16, F32, I4, I8, I16, I32};
    Some(match kind {
        1 => [F16, F16, F32],
        2 => [I8, I8, I32],
        3 => [I8, I8, I8],
        4 => [F16, F16, F16],
        5 => [F16, I8, F32],
        7 => [F16, I4, F32],
        8 => [F16, I4, F16],
        9 => [I8, I8, F32],
        10 => [I4, I4, I16],
        11 => [I8, I4, I32],
        _ => return None,
    })
}

/// Versions whose symbols or structures differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// 1.6.0: five calls of products, 24 bytes of [`MatmulInfo`].
    V1_6,
    /// 2.0.0b0: quantisation, lists of shapes under a name that 2.1 withdrew.
    V2_0,
    /// 2.1.0 and later.
    V2_1,
}

/// The first version that knows a combination.
fn since(kind: i32) -> Version {
    match kind {
        1 | 2 | 10 => Version::V1_6,
        9 => Version::V2_1,
        _ => Version::V2_0,
    }
}

/// A chip with its NPU.
#[derive(Debug)]
pub(crate) struct Chip {
    pub(crate) name: &'static str,
    pub(crate) cores: u32,
    kinds: &'static [i32],
    /// Bytes of one cell of A; a cell of C has 16.
    a_cell: usize,
    /// Columns and rows of a block of B, by the element type of A: f16, i8, i4.
    b_block: [[usize; 2]; 3],
    /// Most rows of B, and after how many its native form begins anew.
    k_max: Option<usize>,
    k_segment: Option<usize>,
    /// What N must be a multiple of.
    n_unit: usize,
    /// Whether B may be given transposed.
    transposed: bool,
}

/// What K must be a multiple of.
const K_UNIT: usize = 32;

/// What N must be a multiple of for products of 4 bits, and the most columns of those and others.
const N_UNIT_I4: usize = 64;
const N_MAX_I4: usize = 8192;
const N_MAX: usize = 4096;

const CHIPS: [Chip; 5] = [
    Chip {
        name: "rk3588",
        cores: 3,
        kinds: &[1, 2, 3, 4, 9, 10],
        a_cell: 16,
        b_block: [[16, 32], [32, 32], [64, 32]],
        k_max: None,
        k_segment: Some(8192),
        n_unit: 32,
        transposed: true,
    },
    Chip {
        name: "rk3576",
        cores: 2,
        kinds: &[1, 2, 4, 5, 7, 8, 11],
        a_cell: 16,
        b_block: [[16, 32], [32, 32], [64, 32]],
        k_max: None,
        k_segment: Some(4096),
        n_unit: 32,
        transposed: true,
    },
    Chip {
        name: "rk3562",
        cores: 1,
        kinds: &[1, 2],
        a_cell: 16,
        b_block: [[8, 32], [16, 32], [0, 0]],
        k_max: Some(10240),
        k_segment: None,
        n_unit: 16,
        transposed: true,
    },
    RK356X,
    Chip { name: "rk3566", ..RK356X },
];

const RK356X: Chip = Chip {
    name: "rk3568",
    cores: 1,
    kinds: &[1, 2],
    a_cell: 8,
    b_block: [[8, 16], [16, 32], [0, 0]],
    k_max: Some(10240),
    k_segment: None,
    n_unit: 16,
    transposed: false,
};

impl Chip {
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        CHIPS.iter().find(|chip| chip.name == name)
    }

    /// The matrices of a product, if the chip and the version compute it.
    pub(crate) fn matrices(
        &self,
        info: &MatmulInfo,
        version: Version,
        any_n: bool,
    ) -> Option<Matrices> {
        let types = elements(info.kind).filter(|_| self.kinds.contains(&info.kind))?;
        let size = |x: i32| usize::try_from(x).ok().filter(|&x| x > 0);
        let (m, k, n) = (size(info.shape.m)?, size(info.shape.k)?, size(info.shape.n)?);
        let i4 = types[0] == Element::I4;
        let (n_unit, n_max) = if i4 { (N_UNIT_I4, N_MAX_I4) } else { (self.n_unit, N_MAX) };
        let fits = since(info.kind) <= version
            && k.is_multiple_of(K_UNIT)
            && n.is_multiple_of(n_unit)
            && self.k_max.is_none_or(|max| k <= max)
            && (any_n || n <= n_max);
        let b_layout = match info.b_layout {
            // 4 bits need the native form.
            0 if !i4 => Layout::Normal,
            1 => Layout::Native,
            2 if self.transposed && version >= Version::V2_1 && !i4 => Layout::Transposed,
            _ => return None,
        };
        let ac_layout = match info.ac_layout {
            0 => Layout::Normal,
            1 => Layout::Native,
            _ => return None,
        };
        let by_type = match types[0] {
            Element::F16 => 0,
            Element::I8 => 1,
            _ => 2,
        };
        let [sn, sk] = self.b_block[by_type];
        let cell = |bytes: usize, of: Element| bytes * 8 / of.bits();
        let matrix = |element, layout, rows, columns| Matrix {
            element,
            layout,
            rows,
            columns,
            form: Form::Cells(0),
        };
        let a = Form::Cells(cell(self.a_cell, types[0]));
        let c = Form::Cells(cell(16, types[2]));
        let b = Form::Blocks { sn, sk, segment: self.k_segment.unwrap_or(usize::MAX) };
        fits.then(|| Matrices {
            a: Matrix { form: a, ..matrix(types[0], ac_layout, m, k) },
            b: Matrix { form: b, ..matrix(types[1], b_layout, k, n) },
            c: Matrix { form: c, ..matrix(types[2], ac_layout, m, n) },
        })
    }
}

/// Order of the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Normal,
    Native,
    Transposed,
}

/// The native order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `[columns / n, rows, n]`.
    Cells(usize),
    /// `[columns / sn, rows / sk, sn, sk]`, for each `segment` rows after the other.
    Blocks { sn: usize, sk: usize, segment: usize },
}

/// One matrix of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    pub(crate) element: Element,
    pub(crate) layout: Layout,
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    form: Form,
}

impl Matrix {
    /// Where the element of a row and column is, counted in elements.
    pub(crate) fn index(&self, row: usize, column: usize) -> usize {
        match (self.layout, self.form) {
            (Layout::Normal, _) => row * self.columns + column,
            (Layout::Transposed, _) => column * self.rows + row,
            (Layout::Native, Form::Cells(n)) => (column / n) * self.rows * n + row * n + column % n,
            (Layout::Native, Form::Blocks { sn, sk, segment }) => {
                let first = row / segment.min(self.rows) * segment.min(self.rows);
                let (row, rows) = (row - first, segment.min(self.rows - first));
                let block = column / sn * rows.div_ceil(sk) + row / sk;
                let whole = first * self.columns.next_multiple_of(sn);
                whole + (block * sn + column % sn) * sk + row % sk
            }
        }
    }

    fn dims(&self) -> Vec<usize> {
        match (self.layout, self.form) {
            (Layout::Normal, _) => vec![self.rows, self.columns],
            (Layout::Transposed, _) => vec![self.columns, self.rows],
            (Layout::Native, Form::Cells(n)) => vec![self.columns.div_ceil(n), self.rows, n],
            (Layout::Native, Form::Blocks { sn, sk, .. }) => {
                vec![self.columns.div_ceil(sn), self.rows.div_ceil(sk), sn, sk]
            }
        }
    }

    /// Bytes of the matrix.
    pub(crate) fn bytes(&self) -> usize {
        self.dims().iter().product::<usize>() * self.element.bits() / 8
    }

    /// Writes what the caller is told. What lies behind the extents in use is not touched.
    fn describe(&self, name: u8, attr: &mut TensorAttr) {
        attr.name = [0; 256];
        attr.name[0] = name;
        let dims = self.dims();
        attr.n_dims = dims.len() as u32;
        for (to, dim) in attr.dims.iter_mut().zip(dims) {
            *to = dim as u32;
        }
        attr.size = self.bytes() as u32;
        attr.kind = self.element.code();
    }
}

/// The three matrices of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrices {
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) c: Matrix,
}

impl Matrices {
    pub(crate) fn shape(&self) -> Shape {
        let [m, k, n] = [self.a.rows, self.b.rows, self.b.columns].map(|x| x as i32);
        Shape { m, k, n }
    }

    /// Whether all sizes fit the 32 bits that tell them.
    pub(crate) fn fit(&self) -> bool {
        [self.a, self.b, self.c].iter().all(|m| m.bytes() < 1 << 31)
    }

    pub(crate) fn describe(&self, io: &mut IoAttr) {
        self.a.describe(b'A', &mut io.a);
        self.b.describe(b'B', &mut io.b);
        self.c.describe(b'C', &mut io.c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrices(chip: &str, kind: i32, [m, k, n]: [i32; 3]) -> Matrices {
        let info = MatmulInfo {
            shape: Shape { m, k, n },
            kind,
            b_layout: 1,
            b_quant: 0,
            ac_layout: 1,
            ac_quant: 0,
            domain: 0,
            group: 0,
            reserved: [0; 34],
        };
        Chip::named(chip).unwrap().matrices(&info, Version::V2_1, true).unwrap()
    }

    /// Positions worked out by hand from the formulas.
    #[test]
    fn native_positions() {
        assert_eq!(matrices("rk3588", 1, [2, 32, 32]).a.index(1, 9), 25);
        assert_eq!(matrices("rk3588", 2, [3, 32, 32]).a.index(1, 20), 68);
        assert_eq!(matrices("rk3566", 1, [3, 32, 32]).a.index(2, 9), 33);
        assert_eq!(matrices("rk3588", 10, [2, 64, 64]).a.index(1, 37), 101);
        assert_eq!(matrices("rk3588", 1, [1, 64, 32]).b.index(40, 17), 1576);
        assert_eq!(matrices("rk3588", 2, [1, 64, 64]).b.index(33, 33), 3105);
        assert_eq!(matrices("rk3566", 1, [1, 32, 16]).b.index(17, 9), 401);
        assert_eq!(matrices("rk3588", 10, [1, 64, 128]).b.index(40, 70), 6344);
        assert_eq!(matrices("rk3562", 1, [1, 64, 16]).b.index(40, 9), 808);
        assert_eq!(matrices("rk3588", 1, [2, 32, 32]).c.index(1, 5), 13);
        assert_eq!(matrices("rk3588", 10, [2, 32, 64]).c.index(1, 9), 25);
    }

    #[test]
    fn every_element_has_a_place_of_its_own() {
        for (chip, kind, shape) in [
            ("rk3588", 1, [3, 96, 64]),
            ("rk3588", 10, [2, 64, 128]),
            ("rk3576", 11, [2, 4096 + 64, 32]),
            ("rk3568", 2, [5, 64, 48]),
            ("rk3562", 1, [1, 32, 16]),
        ] {
            let all = matrices(chip, kind, shape);
            for matrix in [all.a, all.b, all.c] {
                let mut seen = vec![false; matrix.rows * matrix.columns];
                for row in 0..matrix.rows {
                    for column in 0..matrix.columns {
                        let seen = &mut seen[matrix.index(row, column)];
                        assert!(!*seen, "{chip} {kind} {matrix:?}");
                        *seen = true;
                    }
                }
                assert_eq!(matrix.bytes(), seen.len() * matrix.element.bits() / 8);
            }
        }
    }

    #[test]
    fn one_row_lies_as_it_is() {
        let all = matrices("rk3588", 1, [1, 64, 64]);
        assert!((0..64).all(|i| all.a.index(0, i) == i && all.c.index(0, i) == i));
    }
}
