//! Reductions over one axis: `[outer, axis, inner]` to `[outer, inner]`.
//!
//! With `inner` of 1 a row is folded by four vectors of partial results. Else the vectors lie along
//! `inner` and walk the axis. Partial results are combined in an order that depends on the lengths
//! and the instruction set only.

use super::fold_lanes;
use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// What becomes of the numbers along the axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum; 0 if there are none.
    Sum,
    /// The sum divided by the count; NaN if there are none.
    Mean,
    /// The largest; -inf if there are none, NaN if one is NaN.
    Max,
    /// The smallest; inf if there are none, NaN if one is NaN.
    Min,
    /// The product; 1 if there are none.
    Prod,
    /// The sum of absolute values.
    L1,
    /// The square root of the sum of squares.
    L2,
    /// The sum of squares.
    SumSquare,
    /// `ln` of the sum of `e^x`, with the maximum taken out, so that it does not overflow.
    LogSumExp,
}

impl ReduceOp {
    /// Whether this build has kernels of it. Those with the feature `few-kernels` have them of sums, means,
    /// the largest and the smallest.
    pub fn has_kernel(self) -> bool {
        !cfg!(feature = "few-kernels")
            || matches!(self, Self::Sum | Self::Mean | Self::Max | Self::Min)
    }
}

/// Sizes of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReduceParams {
    /// The operation.
    pub op: ReduceOp,
    /// Product of the dimensions before the axis.
    pub outer: usize,
    /// Length of the axis (of several neighbouring axes, the product).
    pub axis: usize,
    /// Product of the dimensions after the axis.
    pub inner: usize,
}

/// A reduction of fixed sizes.
#[derive(Clone, Debug)]
pub struct ReducePlan {
    isa: Isa,
    params: ReduceParams,
    kernel: ReduceFn,
    name: &'static str,
    x_len: usize,
    /// Rows per unit (`inner` of 1), else elements of `inner` per unit.
    per_unit: usize,
}

/// Elements read in a unit, about.
const UNIT: usize = 8192;

impl ReducePlan {
    /// Plans a reduction.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`]; [`KernelError::Unsupported`] if
    /// [`ReduceOp::has_kernel`] is false.
    pub fn new(isa: Isa, params: &ReduceParams) -> Result<Self, KernelError> {
        isa.require()?;
        let &ReduceParams { op, outer, axis, inner } = params;
        let x_len = checked_len("reduce", &[outer, axis, inner])?;
        checked_len("reduce", &[outer, inner])?;
        let what = "this function in a build with few kernels";
        let (kernel, name) =
            kernel(isa, op, inner == 1).ok_or(KernelError::Unsupported { op: "reduce", what })?;
        // Whole cache lines of `inner`.
        let per_unit = (UNIT / axis.max(1)).max(1);
        let per_unit = if inner == 1 { per_unit } else { per_unit.next_multiple_of(64) };
        Ok(Self { isa, params: *params, kernel, name, x_len, per_unit })
    }

    /// Elements of the source.
    pub fn x_len(&self) -> usize {
        self.x_len
    }

    /// Elements of the result.
    pub fn y_len(&self) -> usize {
        self.params.outer * self.params.inner
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match self.params.inner {
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
    /// * `x` has [`x_len`](Self::x_len) readable elements, `y` [`y_len`](Self::y_len) writable
    ///   ones; they do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let ReduceParams { outer, axis, inner, .. } = self.params;
        let per_outer = inner.div_ceil(self.per_unit);
        for unit in units {
            let (x_at, y_at, len) = if inner == 1 {
                let row = unit * self.per_unit;
                (row * axis, row, self.per_unit.min(outer - row))
            } else {
                let (o, i) = (unit / per_outer, unit % per_outer * self.per_unit);
                (o * axis * inner + i, o * inner + i, self.per_unit.min(inner - i))
            };
            // SAFETY: the ISA is available; rows and columns lie in the operands by construction,
            // and the caller owns the operands.
            unsafe { (self.kernel)(x.wrapping_add(x_at), y.wrapping_add(y_at), axis, len, inner) };
        }
    }

    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len("reduce", "x", self.x_len, x.len())?;
        check_len("reduce", "y", self.y_len(), y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// `(x, y, axis, len, inner)`: reduces `len` rows of `axis` elements (`inner` of 1), or `len`
/// columns whose elements are `inner` apart.
///
/// # Safety
///
/// The CPU has the instructions; those elements are readable, `len` results are writable.
type ReduceFn = unsafe fn(*const f32, *mut f32, usize, usize, usize);

macro_rules! reduce_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        pub(crate) mod $id {
            use super::*;
            use tilewright_intrinsics::{$tile as tile, each};
            // start; what fills a partial vector; step; join of two partial results; end, with `m` the
            // maximum where it is asked for and `n` the count.
            reduce_kernels! { $feat $l $isa_name
                sum Sum 0.0, 0.0, none, |t, x, m| tile!(VADD t, x), |p, q| tile!(VADD p, q), |t, n| t;
                mean Mean 0.0, 0.0, none, |t, x, m| tile!(VADD t, x), |p, q| tile!(VADD p, q), |t, n| tile!(VDIV t, n);
                max Max f32::NEG_INFINITY, f32::NEG_INFINITY, none, |t, x, m| tile!(VMAXIMUM x, t),
                    |p, q| tile!(VMAXIMUM p, q), |t, n| t;
                min Min f32::INFINITY, f32::INFINITY, none, |t, x, m| tile!(VMINIMUM x, t),
                    |p, q| tile!(VMINIMUM p, q), |t, n| t;
                #[cfg(not(feature = "few-kernels"))]
                prod Prod 1.0, 1.0, none, |t, x, m| tile!(VMUL t, x), |p, q| tile!(VMUL p, q), |t, n| t;
                #[cfg(not(feature = "few-kernels"))]
                l1 L1 0.0, 0.0, none, |t, x, m| tile!(VADD t, tile!(VABS x)), |p, q| tile!(VADD p, q), |t, n| t;
                #[cfg(not(feature = "few-kernels"))]
                l2 L2 0.0, 0.0, none, |t, x, m| tile!(VFMA x, x, t), |p, q| tile!(VADD p, q), |t, n| tile!(VSQRT t);
                #[cfg(not(feature = "few-kernels"))]
                sum_square SumSquare 0.0, 0.0, none, |t, x, m| tile!(VFMA x, x, t), |p, q| tile!(VADD p, q), |t, n| t;
                #[cfg(not(feature = "few-kernels"))]
                log_sum_exp LogSumExp 0.0, f32::NEG_INFINITY, max,
                    |t, x, m| tile!(VADD t, tile!(MATH EXP tile!(VSUB x, m))),
                    |p, q| tile!(VADD p, q), |t, n| tile!(MATH LOG t);
            }
        }
    };
}

macro_rules! reduce_kernels {
    ($feat:tt $l:tt $isa_name:ident $($(#[$when:meta])? $name:ident $variant:ident $start:expr, $pad:expr, $before:ident,
        |$t:ident, $x:ident, $m:ident| $step:expr, |$p:ident, $q:ident| $join:expr,
        |$u:ident, $n:ident| $end:expr;)*) => {
        $($(#[$when])? pub(crate) mod $name {
            use super::*;
            reduce_rows! { $feat $l $start, $pad, $before, |$t, $x, $m| $step, |$p, $q| $join, |$u, $n| $end }
            reduce_columns! { $feat $l $start, $before, |$t, $x, $m| $step, |$u, $n| $end }
        })*

        pub(super) fn kernel(op: ReduceOp, rows: bool) -> Option<(ReduceFn, &'static str)> {
            match op {
                $($(#[$when])? ReduceOp::$variant => Some(if rows { (
                    $name::rows,
                    concat!("reduce_", stringify!($name), "_f32_rows_", $l, "_u4_", stringify!($isa_name)),
                ) } else { (
                    $name::columns,
                    concat!("reduce_", stringify!($name), "_f32_columns_", $l, "_u4_", stringify!($isa_name)),
                ) }),)*
                #[cfg(feature = "few-kernels")]
                _ => None,
            }
        }
    };
}

/// The maximum of a row, or of a vector of columns, that an earlier pass left in the result; 0
/// where it is infinite.
macro_rules! reduce_max {
    (none $load:expr) => { tile!(VZERO) };
    (max $load:expr) => {{
        let m = $load;
        tile!(VSEL tile!(VGT tile!(VSET f32::INFINITY), tile!(VABS m)), m, tile!(VZERO))
    }};
}

macro_rules! reduce_before {
    (none $pass:ident($($arg:expr),*)) => {};
    (max $pass:ident($($arg:expr),*)) => {
        // SAFETY: the arguments of this call.
        unsafe { super::max::$pass($($arg),*) }
    };
}

/// What takes four vectors at a time, where a step is so short that one alone would wait for its sum.
macro_rules! reduce_wide {
    (none { $($body:tt)* }) => { $($body)* };
    (max { $($body:tt)* }) => {};
}

macro_rules! reduce_after {
    (none $t:expr, $m:ident) => { $t };
    (max $t:expr, $m:ident) => { tile!(VADD $m, $t) };
}

macro_rules! reduce_rows {
    ([$($f:tt)*] $l:tt $start:expr, $pad:expr, $before:ident, |$t:ident, $x:ident, $m:ident| $step:expr,
     |$p:ident, $q:ident| $join:expr, |$u:ident, $n:ident| $end:expr) => {
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn rows(x: *const f32, y: *mut f32, axis: usize, len: usize, _: usize) {
            reduce_before!($before rows(x, y, axis, len, 1));
            let $n = tile!(VSET axis as f32);
            let _ = $n;
            for row in 0..len {
                let (x, y) = (x.wrapping_add(row * axis), y.wrapping_add(row));
                let $m = reduce_max!($before tile!(VSPLAT y, 0));
                let _ = $m;
                tile!(DEF v [1 x 4 x 1]);
                tile!(FILL v [1 x 4 x 1] $start);
                let mut i = 0;
                reduce_wide! { $before {
                    while axis - i >= 4 * $l {
                        let xs = x.wrapping_add(i);
                        each!(k in 4 { let ($t, $x) = (v[k][0], tile!(VLOAD xs, k)); v[k][0] = $step; });
                        i += 4 * $l;
                    }
                } }
                while axis - i >= $l {
                    let ($t, $x) = (v[0][0], tile!(VLOAD x.wrapping_add(i), 0));
                    v[0][0] = $step;
                    i += $l;
                }
                if i < axis {
                    let ($t, $x) = (v[1][0], tile!(VLOAD_OR x.wrapping_add(i), (axis - i), $pad));
                    v[1][0] = $step;
                }
                each!(k in 2 { let ($p, $q) = (v[k][0], v[k + 2][0]); v[k][0] = $join; });
                let ($p, $q) = (v[0][0], v[1][0]);
                let $u = fold_lanes!($join, |$p, $q| $join);
                let z = reduce_after!($before $end, $m);
                // SAFETY: the caller owns one result per row.
                unsafe { *y = tile!(LANES_OF z)[0] };
            }
        }
    };
}

macro_rules! reduce_columns {
    ([$($f:tt)*] $l:tt $start:expr, $before:ident, |$t:ident, $x:ident, $m:ident| $step:expr,
     |$u:ident, $n:ident| $end:expr) => {
        $(#[target_feature(enable = $f)])*
        pub(crate) unsafe fn columns(x: *const f32, y: *mut f32, axis: usize, len: usize, inner: usize) {
            reduce_before!($before columns(x, y, axis, len, inner));
            let $n = tile!(VSET axis as f32);
            let _ = $n;
            let mut i = 0;
            reduce_wide! { $before {
                while len - i >= 4 * $l {
                    let (mut xs, ys) = (x.wrapping_add(i), y.wrapping_add(i));
                    tile!(DEF v [1 x 4 x 1]);
                    tile!(FILL v [1 x 4 x 1] $start);
                    let mut m = [tile!(VZERO); 4];
                    each!(k in 4 { m[k] = reduce_max!($before tile!(VLOAD ys, k)); });
                    for _ in 0..axis {
                        each!(k in 4 {
                            let ($t, $x, $m) = (v[k][0], tile!(VLOAD xs, k), m[k]);
                            let _ = $m;
                            v[k][0] = $step;
                        });
                        xs = xs.wrapping_add(inner);
                    }
                    each!(k in 4 {
                        let ($u, $m) = (v[k][0], m[k]);
                        let _ = $m;
                        let z = reduce_after!($before $end, $m);
                        tile!(VSTORE ys, k, z);
                    });
                    i += 4 * $l;
                }
            } }
            while i < len {
                let (mut xs, ys) = (x.wrapping_add(i), y.wrapping_add(i));
                let count = (len - i).min($l);
                let mut v = tile!(VSET $start);
                let $m = reduce_max!($before reduce_load!($l ys, count));
                let _ = $m;
                for _ in 0..axis {
                    let ($t, $x) = (v, reduce_load!($l xs, count));
                    v = $step;
                    xs = xs.wrapping_add(inner);
                }
                let $u = v;
                let z = reduce_after!($before $end, $m);
                if count == $l {
                    tile!(VSTORE ys, 0, z);
                } else {
                    tile!(VSTORE_TAIL ys, count, z);
                }
                i += $l;
            }
        }
    };
}

/// A vector, or the first `count` elements of one.
macro_rules! reduce_load {
    ($l:tt $p:ident, $count:ident) => {
        if $count == $l { tile!(VLOAD $p, 0) } else { tile!(VLOAD_TAIL $p, $count) }
    };
}

tilewright_intrinsics::for_each_tile!(reduce_row);

fn kernel(isa: Isa, op: ReduceOp, rows: bool) -> Option<(ReduceFn, &'static str)> {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::kernel(op, rows);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::kernel(op, rows)
}
