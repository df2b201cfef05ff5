//! Convolution of columns along rows, each with taps of its own, over rows that lie in two places: the short
//! convolutions of language models, whose first rows see those of an earlier run.

use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// Sizes of a convolution along rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapsParams {
    /// Rows of the operand and of the result.
    pub rows: usize,
    /// Taps: each row sees itself and as many before it, less one.
    pub taps: usize,
    /// Columns.
    pub width: usize,
}

/// A convolution along rows of fixed sizes.
#[derive(Clone, Debug)]
pub struct TapsPlan {
    isa: Isa,
    params: TapsParams,
    kernel: TapsFn,
    name: &'static str,
}

const OP: &str = "taps";

/// Columns of a unit, about: rows of them stay in the nearest cache.
const UNIT: usize = 512;

impl TapsPlan {
    /// Plans a convolution along rows.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] without taps, [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &TapsParams) -> Result<Self, KernelError> {
        isa.require()?;
        let p = params;
        if p.taps == 0 {
            return Err(KernelError::InvalidParam {
                op: OP,
                param: "taps",
                expected: "one or more",
            });
        }
        checked_len(OP, &[p.rows, p.width])?;
        checked_len(OP, &[p.taps, p.width])?;
        let (kernel, name) = kernel(isa);
        Ok(Self { isa, params: *p, kernel, name })
    }

    /// Elements of the operands in their order, and of the result: rows before the first one, rows, weights.
    pub fn operand_len(&self, i: usize) -> usize {
        let TapsParams { rows, taps, width } = self.params;
        width * [taps - 1, rows, taps, rows][i.min(3)]
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.width.div_ceil(UNIT)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.name
    }

    /// Computes some units. Weights are `[taps, width]`, the last row for the own row.
    ///
    /// # Safety
    ///
    /// * The operands have [`operand_len`](Self::operand_len) readable elements, the result `y` writable ones
    ///   that overlap none of them.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(
        &self,
        [before, x, weights]: [*const f32; 3],
        y: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        let columns = units.start * UNIT..(units.end * UNIT).min(self.params.width);
        for first in columns.clone().step_by(UNIT) {
            let columns = first..(first + UNIT).min(columns.end);
            // SAFETY: the ISA is available; the columns lie in the operands of the caller.
            unsafe { (self.kernel)(&self.params, [before, x, weights], y, columns) };
        }
    }

    /// Computes all units on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(
        &self,
        before: &[f32],
        x: &[f32],
        weights: &[f32],
        y: &mut [f32],
    ) -> Result<(), KernelError> {
        check_len(OP, "before", self.operand_len(0), before.len())?;
        check_len(OP, "x", self.operand_len(1), x.len())?;
        check_len(OP, "weights", self.operand_len(2), weights.len())?;
        check_len(OP, "y", self.operand_len(3), y.len())?;
        let operands = [before.as_ptr(), x.as_ptr(), weights.as_ptr()];
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(operands, y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// Computes some columns of all rows.
///
/// # Safety
/// The CPU has the instructions; the operands are as [`TapsPlan::run`] says, and have those columns.
type TapsFn = unsafe fn(&TapsParams, [*const f32; 3], *mut f32, Range<usize>);

macro_rules! taps_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::{$tile as tile, each};

            const L: usize = $l;
            pub(super) const KERNEL: (TapsFn, &str) =
                (columns, concat!("taps_f32_4x", $l, "_", stringify!($isa_name)));

            $(#[target_feature(enable = $f)])*
            unsafe fn columns(
                p: &TapsParams,
                [before, x, weights]: [*const f32; 3],
                y: *mut f32,
                columns: Range<usize>,
            ) {
                let (history, width) = (p.taps - 1, p.width);
                for row in 0..p.rows {
                    // What tap `tap` multiplies.
                    let seen = |tap: usize| match row + tap {
                        at if at < history => before.wrapping_add(at * width),
                        at => x.wrapping_add((at - history) * width),
                    };
                    let (mut column, y) = (columns.start, y.wrapping_add(row * width));
                    while column + 4 * L <= columns.end {
                        let mut sums = tile!(ZEROS [tile!(VTYPE); 4]);
                        for tap in 0..p.taps {
                            let (x, w) = (seen(tap).wrapping_add(column), weights.wrapping_add(tap * width + column));
                            each!(j in 4 { sums[j] = tile!(VFMA tile!(VLOAD x, j), tile!(VLOAD w, j), sums[j]); });
                        }
                        let y = y.wrapping_add(column);
                        each!(j in 4 { tile!(VSTORE y, j, sums[j]); });
                        column += 4 * L;
                    }
                    while column < columns.end {
                        let (n, mut sum) = ((columns.end - column).min(L), tile!(VZERO));
                        for tap in 0..p.taps {
                            let (x, w) = (seen(tap).wrapping_add(column), weights.wrapping_add(tap * width + column));
                            sum = tile!(VFMA tile!(VLOAD_TAIL x, n), tile!(VLOAD_TAIL w, n), sum);
                        }
                        let y = y.wrapping_add(column);
                        tile!(VSTORE_TAIL y, n, sum);
                        column += L;
                    }
                }
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(taps_row);

fn kernel(isa: Isa) -> (TapsFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNEL;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNEL
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Guarded, Numbers, Place, assert_close, skip, tolerance};

    fn check(isa: Isa, p: TapsParams, place: Place) {
        let plan = TapsPlan::new(isa, &p).unwrap();
        let mut numbers = Numbers::new((p.rows * 31 + p.width * 7 + p.taps) as u64);
        let x = [0, 1, 2].map(|i| numbers.floats(plan.operand_len(i)));
        let guarded = [0, 1, 2].map(|i| Guarded::new(&x[i], place));
        let mut y = Guarded::output(plan.operand_len(3), place);
        let to = y.as_mut_ptr();
        for unit in (0..plan.units()).rev() {
            // SAFETY: operands of the plan's lengths, units of the plan, one thread.
            unsafe { plan.run([0, 1, 2].map(|i| guarded[i].as_ptr()), to, unit..unit + 1) };
        }
        for (i, &y) in y.iter().enumerate() {
            let (row, column) = (i / p.width, i % p.width);
            let seen = |tap: usize| {
                let at = (row + tap) * p.width + column;
                let [before, x, _] = &x;
                f64::from(if at < before.len() { before[at] } else { x[at - before.len()] })
            };
            let of_tap = |tap: usize| seen(tap) * f64::from(x[2][tap * p.width + column]);
            let exact: f64 = (0..p.taps).map(of_tap).sum();
            assert_close(y, exact, tolerance(Dtype::F32, p.taps), (plan.kernel_name(), p, i));
        }
    }

    macro_rules! conformance {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            #[test]
            fn $id() {
                if skip(Isa::$isa) {
                    return;
                }
                let widths = [1, 3, 16, 31, 64, 77, 513, 0];
                for (i, width) in widths.into_iter().enumerate() {
                    for (rows, taps) in [(1, 1), (1, 4), (2, 4), (7, 3), (0, 2)] {
                        check(Isa::$isa, TapsParams { rows, taps, width }, Place::ALL[i % 3]);
                    }
                }
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(conformance);

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let p = TapsParams { rows: 2, taps: 3, width: 4 };
        let wrong = |p: TapsParams| TapsPlan::new(Isa::Scalar, &p).unwrap_err();
        let e = wrong(TapsParams { taps: 0, ..p });
        assert!(matches!(e, KernelError::InvalidParam { param: "taps", .. }), "{e:?}");
        for huge in [TapsParams { rows: usize::MAX, ..p }, TapsParams { taps: usize::MAX, ..p }] {
            assert!(matches!(wrong(huge), KernelError::TooLarge { .. }), "{huge:?}");
        }
        let plan = TapsPlan::new(Isa::Scalar, &p).unwrap();
        assert!(plan.compute(&[0.0; 8], &[0.0; 8], &[0.0; 12], &mut [0.0; 8]).is_ok());
        assert!(plan.compute(&[0.0; 7], &[0.0; 8], &[0.0; 12], &mut [0.0; 8]).is_err());
        assert!(plan.compute(&[0.0; 8], &[0.0; 8], &[0.0; 11], &mut [0.0; 8]).is_err());
    }
}
