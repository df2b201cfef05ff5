//! Softmax and its logarithm over one axis of `[outer, axis, inner]`.
//!
//! The maximum of the axis is subtracted first, so nothing overflows. With `inner` of 1 the vectors
//! lie along the axis, else along `inner`; many short rows are transposed to columns on the stack. An axis with a NaN, with +inf, or of -inf only becomes
//! NaN, as the formula gives.

use super::{fold_lanes, in_turns};
use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// Sizes of a softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftmaxParams {
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// Length of the axis.
    pub axis: usize,
    /// Product of the dimensions after the axis.
    pub inner: usize,
    /// `x - max - ln(sum)` instead of `e^(x - max) / sum`.
    pub log: bool,
    /// An axis that would become NaN becomes 0.
    pub guarded: bool,
}

/// A softmax of fixed sizes.
#[derive(Clone, Debug)]
pub struct SoftmaxPlan {
    isa: Isa,
    params: SoftmaxParams,
    kernel: SoftmaxFn,
    name: &'static str,
    len: usize,
    /// Rows per unit (`inner` of 1), else elements of `inner` per unit.
    per_unit: usize,
}

/// Elements of a unit, about.
const UNIT: usize = 4096;

impl SoftmaxPlan {
    /// Plans a softmax.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`]; [`KernelError::Unsupported`] for the logarithm
    /// in builds with the feature `few-kernels`.
    pub fn new(isa: Isa, params: &SoftmaxParams) -> Result<Self, KernelError> {
        isa.require()?;
        let &SoftmaxParams { outer, axis, inner, log, guarded: _ } = params;
        let len = checked_len("softmax", &[outer, axis, inner])?;
        checked_len("softmax", &[outer, inner])?;
        let along = match inner {
            1 if axis <= SHORT && outer >= 4 => Along::Short,
            1 => Along::Rows,
            _ => Along::Columns,
        };
        let what = "the logarithm in a build with few kernels";
        let (kernel, name) =
            kernel(isa, along, log).ok_or(KernelError::Unsupported { op: "softmax", what })?;
        let per_unit = (UNIT / axis.max(1)).max(1);
        let per_unit =
            if along == Along::Rows { per_unit } else { per_unit.next_multiple_of(COLUMNS) };
        Ok(Self { isa, params: *params, kernel, name, len, per_unit })
    }

    /// Elements of source and destination.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match self.params.inner {
            _ if self.len == 0 => 0,
            1 => self.params.outer.div_ceil(self.per_unit),
            inner => self.params.outer * inner.div_ceil(self.per_unit),
        }
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
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let SoftmaxParams { outer, axis, inner, guarded, .. } = self.params;
        let per_outer = inner.div_ceil(self.per_unit);
        for unit in units {
            let (at, len) = if inner == 1 {
                let row = unit * self.per_unit;
                (row * axis, self.per_unit.min(outer - row))
            } else {
                let (o, i) = (unit / per_outer, unit % per_outer * self.per_unit);
                (o * axis * inner + i, self.per_unit.min(inner - i))
            };
            let (x, y) = (x.wrapping_add(at), y.wrapping_add(at));
            // SAFETY: the ISA is available; rows and columns lie in the operands by construction,
            // and the caller owns the operands.
            unsafe { (self.kernel)(x, y, axis, len, inner) };
            if guarded {
                let next = if inner == 1 { axis } else { 1 };
                for first in (0..len).map(|i| y.wrapping_add(i * next)) {
                    // SAFETY: the elements that the kernel wrote. The sum is in all of a row or column, so they
                    // are NaN together.
                    unsafe {
                        if (*first).is_nan() {
                            (0..axis).for_each(|k| *first.add(k * inner) = 0.0);
                        }
                    }
                }
            }
        }
    }

    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len("softmax", "x", self.len, x.len())?;
        check_len("softmax", "y", self.len, y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// How the vectors lie.
#[derive(Clone, Copy, PartialEq)]
enum Along {
    Rows,
    Columns,
    Short,
}

/// Elements of the longest short row.
const SHORT: usize = 12;

/// `(x, y, axis, len, inner)`: `len` rows of `axis` elements (`inner` of 1), or `len` columns whose
/// elements are `inner` apart. `axis` is at least 1.
///
/// # Safety
///
/// The CPU has the instructions; those elements are readable at the first pointer and writable at
/// the second, which may be the same.
type SoftmaxFn = unsafe fn(*const f32, *mut f32, usize, usize, usize);

/// Rows of scores, which become weights of a softmax that are not divided by their sums yet: where they are summed up
/// next, there are fewer results to divide.
#[derive(Clone, Copy, Debug)]
pub struct RowWeights(WeightsFn);

/// `(x, [rows, axis], factor, shares)`.
///
/// # Safety
///
/// The CPU has the instructions; `rows * axis` elements may be read and written at the first pointer, `rows` be
/// written at the last. Neither extent is 0.
type WeightsFn = unsafe fn(*mut f32, [usize; 2], f32, *mut f32);

/// Weights are powers of 2, and 0 where the exponent is this or less.
pub(crate) const FAR: f32 = -127.0;

impl RowWeights {
    /// The kernel of an instruction set.
    ///
    /// # Errors
    ///
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa) -> Result<Self, KernelError> {
        isa.require()?;
        let isa = isa.serving(Dtype::F32);
        macro_rules! row {
            ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
                if isa == Isa::$isa {
                    return Ok(Self($id::weights));
                }
            };
        }
        tilewright_intrinsics::for_each_tile!(row);
        Ok(Self(scalar_f32::weights))
    }

    /// Replaces the elements of each of some rows at `x` by `e^(factor * (x - max))`, and writes one over their sum to
    /// `shares`: NaN where softmax is NaN. Weights are within `2^-20 * (1 + |factor * (x - max)|)` of their size, 0
    /// where they would be subnormal.
    ///
    /// # Safety
    ///
    /// `x` may be read and written for `rows * axis` elements, and `shares` be written for `rows`. Neither extent
    /// is 0; `factor` is positive and finite.
    pub unsafe fn run(&self, x: *mut f32, [rows, axis]: [usize; 2], factor: f32, shares: *mut f32) {
        // SAFETY: `new` checked the ISA; the rest is the caller's.
        unsafe { (self.0)(x, [rows, axis], factor * core::f32::consts::LOG2_E, shares) };
    }
}

/// Columns that are worked on together; their maxima and sums lie on the stack.
const COLUMNS: usize = 64;

/// What was found of each of some columns several times, and of `rest` more of their elements, becomes one number
/// per column, as often as before.
///
/// # Safety
///
/// `n` values may be read and written, `rest` elements are readable at `more`; no more than there are values.
#[inline(never)]
unsafe fn merge(
    values: *mut f32,
    n: usize,
    more: *const f32,
    rest: usize,
    columns: usize,
    both: fn(f32, f32) -> f32,
) {
    // SAFETY: the caller's promises.
    let (values, more) = unsafe {
        (core::slice::from_raw_parts_mut(values, n), core::slice::from_raw_parts(more, rest))
    };
    values.iter_mut().zip(more).for_each(|(a, b)| *a = both(*a, *b));
    let (first, others) = values.split_at_mut(columns);
    for other in others.chunks_exact(columns) {
        first.iter_mut().zip(other).for_each(|(a, b)| *a = both(*a, *b));
    }
    others.chunks_exact_mut(columns).for_each(|other| other.copy_from_slice(first));
}

macro_rules! softmax_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use crate::template::layout::{Job, $id::transpose};
            #[cfg(not(feature = "few-kernels"))]
            use crate::template::reduce::$id::log_sum_exp;
            use crate::template::reduce::$id::{max, sum};
            use tilewright_intrinsics::{$tile as tile, each};

            pub(super) const KERNELS: [[Option<(SoftmaxFn, &str)>; 2]; 3] = [
                [
                    Some((rows::<false>, concat!("softmax_f32_rows_", $l, "_", stringify!($isa_name)))),
                    softmax_log!((rows::<true>, concat!("log_softmax_f32_rows_", $l, "_", stringify!($isa_name)))),
                ],
                [
                    Some((columns::<false>, concat!("softmax_f32_columns_", $l, "_", stringify!($isa_name)))),
                    softmax_log!((columns::<true>, concat!("log_softmax_f32_columns_", $l, "_", stringify!($isa_name)))),
                ],
                [
                    Some((short::<false>, concat!("softmax_f32_short_rows_", $l, "_", stringify!($isa_name)))),
                    softmax_log!((short::<true>, concat!("log_softmax_f32_short_rows_", $l, "_", stringify!($isa_name)))),
                ],
            ];

            $(#[target_feature(enable = $f)])*
            unsafe fn rows<const LOG: bool>(x: *const f32, y: *mut f32, axis: usize, len: usize, _: usize) {
                for row in in_turns(0..len, axis, $l) {
                    let (x, y) = (x.wrapping_add(row * axis), y.wrapping_add(row * axis));
                    let m = softmax_most!($l axis, x);
                    #[cfg(not(feature = "few-kernels"))]
                    if LOG {
                        let mut value = 0.0;
                        softmax_pass!($l axis, x y, |v, i| tile!(VSUB v, m));
                        // SAFETY: the row that was just written, one result.
                        unsafe { log_sum_exp::rows(y, &raw mut value, axis, 1, 1) };
                        let m = tile!(VSET value);
                        softmax_pass!($l axis, y y, |v, i| tile!(VSUB v, m));
                        continue;
                    }
                    let mut total = tile!(VZERO);
                    softmax_pass!($l axis, x y, |v, i| {
                        let e = tile!(MATH EXP_WEIGHT tile!(VSUB v, m));
                        total = tile!(VADD total, e);
                        e
                    });
                    let r = tile!(VDIV tile!(VSET 1.0f32), fold_lanes!(total, |p, q| tile!(VADD p, q)));
                    softmax_pass!($l axis, y y, |v, i| tile!(VMUL v, r));
                }
            }

            #[allow(clippy::approx_constant, reason = "a coefficient of a polynomial is near ln 2")]
            $(#[target_feature(enable = $f)])*
            pub(super) unsafe fn weights(x: *mut f32, [len, axis]: [usize; 2], factor: f32, shares: *mut f32) {
                let (factor, far) = (tile!(VSET factor), tile!(VSET FAR));
                for row in in_turns(0..len, axis, $l) {
                    let x = x.wrapping_add(row * axis);
                    let m = softmax_most!($l axis, x);
                    let mut total = tile!(VZERO);
                    softmax_pass!($l axis, x x, |v, i| {
                        let v = tile!(VMUL factor, tile!(VSUB v, m));
                        let e = tile!(MATH EXP2_WEIGHT tile!(VSCALABLE far, v));
                        total = tile!(VADD total, e);
                        e
                    });
                    let share = tile!(VDIV tile!(VSET 1.0f32), fold_lanes!(total, |p, q| tile!(VADD p, q)));
                    // SAFETY: the caller owns one share per row.
                    unsafe { *shares.add(row) = tile!(LANES_OF share)[0] };
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn short<const LOG: bool>(x: *const f32, y: *mut f32, axis: usize, len: usize, _: usize) {
                let mut columns_of = [0.0; SHORT * COLUMNS];
                let t = columns_of.as_mut_ptr();
                for at in (0..len).step_by(COLUMNS) {
                    let n = (len - at).min(COLUMNS);
                    let (x, y) = (x.wrapping_add(at * axis), y.wrapping_add(at * axis));
                    // SAFETY: `n` rows of `axis` elements are readable at `x` and writable at `y`;
                    // `axis <= SHORT` rows of `COLUMNS` elements lie on the stack.
                    unsafe {
                        transpose(x, t, &Job { rows: n, cols: axis, out: n, x: axis, y: COLUMNS });
                        columns::<LOG>(t, t, axis, n, COLUMNS);
                        transpose(t, y, &Job { rows: axis, cols: n, out: axis, x: COLUMNS, y: axis });
                    }
                }
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn columns<const LOG: bool>(x: *const f32, y: *mut f32, axis: usize, len: usize, inner: usize) {
                // All of a few columns are rows of as many elements as fit, each column several times.
                let folds = if !LOG && len == inner && inner <= COLUMNS / 2 { COLUMNS / inner } else { 1 };
                let rest = axis % folds * inner;
                let (axis, len, inner) = (axis / folds, len * folds, inner * folds);
                for at in (0..len).step_by(COLUMNS) {
                    let (x, y) = (x.wrapping_add(at), y.wrapping_add(at));
                    let n = (len - at).min(COLUMNS);
                    let mut values = [0.0; COLUMNS];
                    let m = values.as_mut_ptr();
                    // SAFETY: `n` columns of `axis` elements, `n` results.
                    unsafe { max::columns(x, m, axis, n, inner) };
                    let (x_rest, y_rest) = (x.wrapping_add(axis * inner), y.wrapping_add(axis * inner));
                    if folds > 1 {
                        // SAFETY: `rest` elements behind those rows.
                        unsafe { merge(m, n, x_rest, rest, n / folds, f32::max) };
                    }
                    #[cfg(not(feature = "few-kernels"))]
                    if LOG {
                        for k in (0..axis).map(|k| k * inner) {
                            let (x, y) = (x.wrapping_add(k), y.wrapping_add(k));
                            softmax_pass!($l n, x y, |v, i| tile!(VSUB v, tile!(VLOAD m, i)));
                        }
                        // SAFETY: the columns that were just written, `n` results.
                        unsafe { log_sum_exp::columns(y, m, axis, n, inner) };
                        for k in (0..axis).map(|k| k * inner) {
                            let y = y.wrapping_add(k);
                            softmax_pass!($l n, y y, |v, i| tile!(VSUB v, tile!(VLOAD m, i)));
                        }
                        continue;
                    }
                    // The last row is what folding left over.
                    for k in 0..=axis {
                        let (n, k) = (if k < axis { n } else { rest }, k * inner);
                        let (x, y) = (x.wrapping_add(k), y.wrapping_add(k));
                        softmax_pass!($l n, x y, |v, i| tile!(MATH EXP_WEIGHT tile!(VSUB v, tile!(VLOAD m, i))));
                    }
                    // SAFETY: the columns that were just written, `n` results.
                    unsafe { sum::columns(y, m, axis, n, inner) };
                    if folds > 1 {
                        // SAFETY: `rest` elements behind those rows.
                        unsafe { merge(m, n, y_rest, rest, n / folds, |a, b| a + b) };
                    }
                    let one = tile!(VSET 1.0f32);
                    softmax_pass!($l COLUMNS, m m, |v, i| tile!(VDIV one, v));
                    for k in 0..=axis {
                        let (n, y) = (if k < axis { n } else { rest }, y.wrapping_add(k * inner));
                        softmax_pass!($l n, y y, |v, i| tile!(VMUL v, tile!(VLOAD m, i)));
                    }
                }
            }
        }
    };
}

/// A kernel of the logarithm of a softmax, if the build has them.
macro_rules! softmax_log {
    ($kernel:expr) => {
        if cfg!(feature = "few-kernels") { None } else { Some($kernel) }
    };
}

/// The largest of `n` elements, in all lanes; what is no number is passed over, as it makes the sum NaN.
macro_rules! softmax_most {
    ($l:tt $n:expr, $x:ident) => {{
        let (mut at, mut parts) = (0, [tile!(VSET f32::NEG_INFINITY); 4]);
        while $n - at >= 4 * $l {
            let x = $x.wrapping_add(at);
            each!(k in 4 { parts[k] = tile!(VMAX tile!(VLOAD x, k), parts[k]); });
            at += 4 * $l;
        }
        while $n - at >= $l {
            parts[0] = tile!(VMAX tile!(VLOAD $x.wrapping_add(at), 0), parts[0]);
            at += $l;
        }
        if at < $n {
            let last = tile!(VLOAD_OR $x.wrapping_add(at), ($n - at), f32::NEG_INFINITY);
            parts[1] = tile!(VMAX last, parts[1]);
        }
        let (a, b) = (tile!(VMAX parts[0], parts[1]), tile!(VMAX parts[2], parts[3]));
        fold_lanes!(tile!(VMAX a, b), |p, q| tile!(VMAX p, q))
    }};
}

/// Replaces each vector `v` (number `i`) of `n` elements by a value. Of the last one, lanes without an element are -inf,
/// which have no weight.
macro_rules! softmax_pass {
    ($l:tt $n:expr, $x:ident $y:ident, |$v:ident, $i:ident| $value:expr) => {{
        const L: usize = $l;
        let whole = $n / L;
        let rest = $n - whole * L;
        for $i in 0..whole {
            let $v = tile!(VLOAD $x, $i);
            let z = $value;
            tile!(VSTORE $y, $i, z);
        }
        if rest > 0 {
            let ($i, x, y) = (whole, $x.wrapping_add(whole * L), $y.wrapping_add(whole * L));
            let _ = $i;
            let $v = tile!(VLOAD_OR x, rest, f32::NEG_INFINITY);
            let z = $value;
            tile!(VSTORE_TAIL y, rest, z);
        }
    }};
}

tilewright_intrinsics::for_each_tile!(softmax_row);

fn kernel(isa: Isa, along: Along, log: bool) -> Option<(SoftmaxFn, &'static str)> {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS[along as usize][usize::from(log)];
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNELS[along as usize][usize::from(log)]
}
