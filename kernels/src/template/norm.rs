//! Normalisation of rows: layer norm (Ba et al., 2016) and RMS norm (Zhang and Sennrich, 2019).
//!
//! A row is read three times: for its mean, for its deviations from that, and for the result. The
//! deviations are summed as they are and squared, and what the first sum has lost by rounding is
//! taken from mean and variance (the corrected two-pass algorithm of Chan, Golub and LeVeque, 1983):
//! a row with a large offset loses no digits. Instance and group norm are layer norms of rows that
//! hold several channels, with [`NormAffine::Parts`].
//!
//! Sums are in `f32`: a row whose sum of squares leaves its range gives 0, infinities or NaN. A row
//! with a NaN or an infinity becomes NaN (RMS norm: an infinity becomes NaN, other numbers 0).

use super::{fold_lanes, in_turns};
use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// What a row is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormOp {
    /// The mean is subtracted first; the divisor is `sqrt(variance + epsilon)`.
    Layer,
    /// The divisor is `sqrt(mean square + epsilon)`.
    Rms,
}

/// What a row is multiplied by, and what is added to it, at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormAffine {
    /// Nothing.
    None,
    /// `scale [len]` and perhaps `bias [len]`, the same for all rows.
    Elements {
        /// Whether there is a bias.
        bias: bool,
    },
    /// `scale [groups, parts]` and perhaps `bias [groups, parts]`: row `r` is cut into `parts` equal
    /// runs, and run `p` takes the numbers at `[r % groups, p]`.
    Parts {
        /// Rows until the numbers begin again; not 0.
        groups: usize,
        /// Runs of a row; a divisor of its length.
        parts: usize,
        /// Whether there is a bias.
        bias: bool,
    },
}

/// Sizes of a normalisation: `[rows, len]` to the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormParams {
    /// The operation.
    pub op: NormOp,
    /// Rows, each normalised on its own.
    pub rows: usize,
    /// Elements of a row.
    pub len: usize,
    /// Added under the root; finite, not negative.
    pub epsilon: f32,
    /// What follows.
    pub affine: NormAffine,
}

/// A normalisation of fixed sizes.
#[derive(Clone, Debug)]
pub struct NormPlan {
    isa: Isa,
    params: NormParams,
    kernel: NormFn,
    name: &'static str,
    len: usize,
    rows_per_unit: usize,
}

/// Elements of a unit, about.
const UNIT: usize = 4096;

impl NormPlan {
    /// Plans a normalisation.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for `epsilon`, `groups` and `parts`, [`KernelError::TooLarge`],
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &NormParams) -> Result<Self, KernelError> {
        isa.require()?;
        let &NormParams { op, rows, len, epsilon, affine } = params;
        let total = checked_len("norm", &[rows, len])?;
        let wrong =
            |param, expected| Err(KernelError::InvalidParam { op: "norm", param, expected });
        if !(epsilon >= 0.0 && epsilon.is_finite()) {
            return wrong("epsilon", "finite and not negative");
        }
        if let NormAffine::Parts { groups, parts, .. } = affine {
            checked_len("norm", &[groups, parts])?;
            if groups == 0 {
                return wrong("groups", "at least 1");
            }
            if parts == 0 || !len.is_multiple_of(parts) {
                return wrong("parts", "a divisor of the length of a row");
            }
        }
        let (kernel, name) = kernel(isa, op);
        let rows_per_unit = (UNIT / len.max(1)).max(1);
        Ok(Self { isa, params: *params, kernel, name, len: total, rows_per_unit })
    }

    /// Elements of source and destination.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements of the scale; 0 if there is none.
    pub fn scale_len(&self) -> usize {
        match self.params.affine {
            NormAffine::None => 0,
            NormAffine::Elements { .. } => self.params.len,
            NormAffine::Parts { groups, parts, .. } => groups * parts,
        }
    }

    /// Elements of the bias; 0 if there is none.
    pub fn bias_len(&self) -> usize {
        match self.params.affine {
            NormAffine::Elements { bias: true } | NormAffine::Parts { bias: true, .. } => {
                self.scale_len()
            }
            _ => 0,
        }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        if self.len == 0 { 0 } else { self.params.rows.div_ceil(self.rows_per_unit) }
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.name
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` has [`len`](Self::len) readable elements, `y` as many writable ones; they are the
    ///   same or do not overlap.
    /// * `scale` and `bias` have [`scale_len`](Self::scale_len) and [`bias_len`](Self::bias_len)
    ///   readable elements that do not overlap `y`; where that is 0 they are not read.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(
        &self,
        x: *const f32,
        scale: *const f32,
        bias: *const f32,
        y: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let first = units.start * self.rows_per_unit;
        let end = (units.end * self.rows_per_unit).min(self.params.rows);
        let operands = Operands { x, scale, bias, y };
        // SAFETY: the ISA is available; the rows lie in the operands by construction, and the
        // caller owns the operands, which have the lengths that the parameters ask for.
        unsafe { (self.kernel)(&self.params, &operands, first..end) };
    }

    /// Computes `y` from `x` on this thread. Of `scale` and `bias`, those that there are not may be
    /// empty.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(
        &self,
        x: &[f32],
        scale: &[f32],
        bias: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len("norm", "x", self.len, x.len())?;
        check_len("norm", "scale", self.scale_len(), scale.len())?;
        check_len("norm", "bias", self.bias_len(), bias.len())?;
        check_len("norm", "y", self.len, y.len())?;
        let (x, y, all) = (x.as_ptr(), y.as_mut_ptr(), 0..self.units());
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x, scale.as_ptr(), bias.as_ptr(), y, all) };
        Ok(())
    }
}

/// Where the operands begin.
struct Operands {
    x: *const f32,
    scale: *const f32,
    bias: *const f32,
    y: *mut f32,
}

/// Normalises some rows, each of at least one element.
///
/// # Safety
///
/// The CPU has the instructions; the operands have the lengths that the parameters ask for, and
/// those rows of `y` are writable. `x` and `y` may be the same.
type NormFn = unsafe fn(&NormParams, &Operands, Range<usize>);

macro_rules! norm_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use crate::template::reduce::$id::sum;
            use tilewright_intrinsics::{$tile as tile, each};

            pub(super) const LAYER: (NormFn, &str) =
                (rows::<false>, concat!("layer_norm_f32_", $l, "_u4_", stringify!($isa_name)));
            pub(super) const RMS: (NormFn, &str) =
                (rows::<true>, concat!("rms_norm_f32_", $l, "_u4_", stringify!($isa_name)));

            $(#[target_feature(enable = $f)])*
            unsafe fn rows<const RMS: bool>(p: &NormParams, o: &Operands, rows: Range<usize>) {
                let len = p.len;
                for row in in_turns(rows, len, $l) {
                    let (x, y) = (o.x.wrapping_add(row * len), o.y.wrapping_add(row * len));
                    // SAFETY: a row of `len` elements is readable at `x`.
                    let [mean, rest, r] = unsafe { moments::<RMS>(x, len, p.epsilon) };
                    let m = tile!(VSET mean);
                    if let NormAffine::Elements { bias } = p.affine {
                        let (a, c) = (tile!(VSET r), tile!(VSET -rest * r));
                        let (scale, shift) = (o.scale, o.bias);
                        if bias {
                            norm_pass!($l len, x scale shift y, |v, s, b| {
                                tile!(VFMA tile!(VFMA tile!(VSUB v, m), a, c), s, b) });
                        } else {
                            norm_pass!($l len, x scale scale y, |v, s, b| {
                                let _ = b;
                                tile!(VMUL tile!(VFMA tile!(VSUB v, m), a, c), s) });
                        }
                        continue;
                    }
                    let (groups, parts, bias) = match p.affine {
                        NormAffine::Parts { groups, parts, bias } => (groups, parts, Some(bias)),
                        _ => (1, 1, None),
                    };
                    let run = len / parts;
                    for part in 0..parts {
                        let at = row % groups * parts + part;
                        // SAFETY: where the parameters have them, scale and bias have
                        // `groups * parts` elements.
                        let (s, b) = unsafe {
                            (bias.map_or(1.0, |_| *o.scale.add(at)),
                             if bias == Some(true) { *o.bias.add(at) } else { 0.0 })
                        };
                        let a = r * s;
                        let (a, c) = (tile!(VSET a), tile!(VSET b - rest * a));
                        let (x, y) = (x.wrapping_add(part * run), y.wrapping_add(part * run));
                        norm_pass!($l run, x x x y, |v, s, b| {
                            let _ = (s, b);
                            tile!(VFMA tile!(VSUB v, m), a, c) });
                    }
                }
            }

            /// The rounded mean, what is left of it, and one over the deviation.
            $(#[target_feature(enable = $f)])*
            unsafe fn moments<const RMS: bool>(x: *const f32, len: usize, epsilon: f32) -> [f32; 3] {
                let n = len as f32;
                let mut mean = 0.0;
                if !RMS {
                    // SAFETY: a row of `len` elements, one result.
                    unsafe { sum::rows(x, &raw mut mean, len, 1, 1) };
                    mean /= n;
                }
                let m = tile!(VSET mean);
                tile!(DEF s [1 x 4 x 1]);
                tile!(DEF q [1 x 4 x 1]);
                let mut i = 0;
                while len - i >= 4 * $l {
                    let xs = x.wrapping_add(i);
                    each!(k in 4 {
                        let d = tile!(VSUB tile!(VLOAD xs, k), m);
                        if !RMS { s[k][0] = tile!(VADD s[k][0], d); }
                        q[k][0] = tile!(VFMA d, d, q[k][0]);
                    });
                    i += 4 * $l;
                }
                while i < len {
                    let (xs, count) = (x.wrapping_add(i), (len - i).min($l));
                    let v = if count == $l { tile!(VLOAD xs, 0) } else { tile!(VLOAD_OR xs, count, mean) };
                    let d = tile!(VSUB v, m);
                    if !RMS { s[0][0] = tile!(VADD s[0][0], d); }
                    q[0][0] = tile!(VFMA d, d, q[0][0]);
                    i += $l;
                }
                let square = norm_fold!(q) / n;
                if RMS {
                    return [0.0, 0.0, norm_root!(square + epsilon)];
                }
                let rest = norm_fold!(s) / n;
                let variance = square - rest * rest;
                // A NaN stays.
                let variance = if variance < 0.0 { 0.0 } else { variance };
                [mean, rest, norm_root!(variance + epsilon)]
            }
        }
    };
}

/// The sum of all lanes of four vectors.
macro_rules! norm_fold {
    ($t:ident) => {{
        let (a, b) = (tile!(VADD $t[0][0], $t[2][0]), tile!(VADD $t[1][0], $t[3][0]));
        tile!(LANES_OF fold_lanes!(tile!(VADD a, b), |a, b| tile!(VADD a, b)))[0]
    }};
}

/// One over a square root.
macro_rules! norm_root {
    ($x:expr) => {
        1.0 / tile!(LANES_OF tile!(VSQRT tile!(VSET $x)))[0]
    };
}

/// Replaces each vector `v` of `n` elements at `x` by a value of it and the vectors beside it at
/// `s` and `b`.
macro_rules! norm_pass {
    ($l:tt $n:expr, $x:ident $s:ident $b:ident $y:ident, |$v:ident, $sv:ident, $bv:ident| $value:expr) => {{
        const L: usize = $l;
        let whole = $n / L;
        let rest = $n - whole * L;
        for i in 0..whole {
            let ($v, $sv, $bv) = (tile!(VLOAD $x, i), tile!(VLOAD $s, i), tile!(VLOAD $b, i));
            let z = $value;
            tile!(VSTORE $y, i, z);
        }
        if rest > 0 {
            let at = whole * L;
            let (x, s, b) = ($x.wrapping_add(at), $s.wrapping_add(at), $b.wrapping_add(at));
            let $v = tile!(VLOAD_TAIL x, rest);
            let ($sv, $bv) = (tile!(VLOAD_TAIL s, rest), tile!(VLOAD_TAIL b, rest));
            let z = $value;
            let y = $y.wrapping_add(at);
            tile!(VSTORE_TAIL y, rest, z);
        }
    }};
}

tilewright_intrinsics::for_each_tile!(norm_row);

fn kernel(isa: Isa, op: NormOp) -> (NormFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return if op == NormOp::Rms { $id::RMS } else { $id::LAYER };
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    if op == NormOp::Rms { scalar_f32::RMS } else { scalar_f32::LAYER }
}
