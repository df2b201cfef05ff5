//! Rows of `f32` as columns of cells, of halves, bytes or half bytes: the layouts in which the NPU of some chips reads
//! matrices.
//!
//! `[rows, k]` becomes `[k / cell, height, cell]`: a cell is what one row has of a column. Each row is divided by a
//! number of its own first. Eight rows are written at a time, so that what a column gets is whole cache lines, which
//! large results send past the caches: read before they are written, those lines would cost as much again.

use super::cells_tile::{CellsKernel, PackArgs, PackFn, SumFn, kernel};
use crate::error::{check_len, checked_len};
use crate::{Isa, KernelError};
use core::ops::Range;

/// Rows of a unit.
pub(super) const GROUP: usize = 8;

/// Bytes of a line of caches. A column of a group has one at least.
const LINE: usize = 64;

/// Elements that are converted at a time: `k` is filled up with zeros to a multiple of it.
pub(super) const STEP: usize = 32;

/// Sizes of the largest element of a row of halves that needs no division: above, sums of products
/// overflow early, below, elements lose bits.
const LARGE: f32 = 16384.0;
const SMALL: f32 = 1.0 / 64.0;

const OP: &str = "cells";

/// What elements become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellForm {
    /// Halves, of rows divided by a power of two if their largest element is above 2^14 or below 2^-6.
    F16,
    /// Signed bytes, of rows divided by a 127th of their largest element; to nearest, ties to even.
    I8,
    /// Signed numbers of 4 bits, two in a byte, the first in its lower half, of rows divided by a 7th of their
    /// largest element; to nearest, ties to even.
    I4,
}

impl CellForm {
    /// Bytes of so many elements, an even number.
    pub const fn bytes(self, elements: usize) -> usize {
        match self {
            Self::F16 => elements * 2,
            Self::I8 => elements,
            Self::I4 => elements / 2,
        }
    }

    /// What the largest element of a row of integers becomes.
    const fn most(self) -> f32 {
        match self {
            Self::I4 => 7.0,
            _ => 127.0,
        }
    }
}

/// Sizes of a matrix and of its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CellsParams {
    /// Rows that exist.
    pub rows: usize,
    /// Elements of a row that exist.
    pub k: usize,
    /// Elements of a row of the result, a multiple of 32; those past `k` are 0.
    pub padded: usize,
    /// Rows of the result; those past `rows` are left as they are.
    pub height: usize,
    /// Elements of a cell: 4, 8, 16 or 32, of 8 bytes at least, 32 of 4 bits.
    pub cell: usize,
    /// What elements become.
    pub form: CellForm,
    /// Whether what is written goes past the caches, for results that are larger than those, or that something
    /// else than the CPU reads. Only where whole groups of rows begin at a multiple of 64 bytes.
    pub past_caches: bool,
}

/// A conversion ready to run. Its units are groups of eight rows.
///
/// ```
/// use tilewright_kernels::{CellForm, CellsParams, CellsPlan, Isa};
///
/// let params = CellsParams {
///     rows: 1,
///     k: 2,
///     padded: 32,
///     height: 1,
///     cell: 8,
///     form: CellForm::I8,
///     past_caches: false,
/// };
/// let plan = CellsPlan::new(Isa::Scalar, &params)?;
/// let (mut out, mut scales) = ([0u8; 32], [0.0]);
/// plan.compute(&[1.0, -0.5], 2, &mut out, &mut scales)?;
/// assert_eq!((out[0] as i8, out[1] as i8, scales[0]), (127, -64, 1.0 / 127.0));
/// # Ok::<(), tilewright_kernels::KernelError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct CellsPlan {
    params: CellsParams,
    kernel: &'static CellsKernel,
    pack: PackFn,
    sum: SumFn,
}

impl CellsPlan {
    /// Checks the sizes and chooses the kernels.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`], [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &CellsParams) -> Result<Self, KernelError> {
        isa.require()?;
        let &CellsParams { rows, k, padded, height, cell, form, .. } = params;
        let invalid = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if rows > height {
            return invalid("rows", "at most the height");
        }
        if k > padded || !padded.is_multiple_of(STEP) {
            return invalid("padded", "a multiple of 32, at least k");
        }
        checked_len(OP, &[padded, height, 2])?;
        let kernel = kernel(isa);
        let ([halves, bytes, nibbles], [of_halves, of_integers]) = (kernel.packs, kernel.sums);
        let (pack, sum) = match form {
            CellForm::F16 => (halves, of_halves),
            CellForm::I8 => (bytes, of_integers),
            CellForm::I4 => (nibbles, of_integers),
        };
        let fits = cell <= STEP && (form != CellForm::I4 || cell == STEP);
        if !fits || ![8, 16, 32, 64].contains(&form.bytes(cell)) {
            return invalid("cell", "4, 8, 16 or 32 elements, of 8 bytes at least");
        }
        Ok(Self { params: *params, kernel, pack, sum })
    }

    /// Bytes of the result.
    pub fn out_len(&self) -> usize {
        self.params.form.bytes(self.params.padded * self.params.height)
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.rows.div_ceil(GROUP)
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.kernel.name
    }

    /// Converts units `units`: rows `stride` elements apart become cells of `out`, and the number by which
    /// each was divided goes to `scales`: not a number where an element is not finite; the cells of
    /// that row then hold anything. Allocates nothing.
    ///
    /// # Safety
    ///
    /// * `x` is readable for `k` elements of each row, `out` is writable for
    ///   [`out_len`](Self::out_len) bytes, `scales` for an element per row; they do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(
        &self,
        x: *const f32,
        stride: usize,
        out: *mut u8,
        scales: *mut f32,
        units: Range<usize>,
    ) {
        debug_assert!(units.end <= self.units());
        for unit in units {
            let args = self.unit(x, stride, out, scales, unit);
            // SAFETY: the rows of a unit exist, and so do their cells; `new` checked the CPU.
            unsafe { (self.pack)(&args) };
        }
    }

    /// What a kernel gets for a unit.
    fn unit(
        &self,
        x: *const f32,
        stride: usize,
        out: *mut u8,
        scales: *mut f32,
        unit: usize,
    ) -> PackArgs {
        let CellsParams { rows, k, padded, height, cell, form, past_caches } = self.params;
        let first = unit * GROUP;
        let rows = GROUP.min(rows - first);
        let out = out.wrapping_add(form.bytes(first * cell));
        let column = form.bytes(height * cell);
        let lines = out.addr().is_multiple_of(LINE) && column.is_multiple_of(LINE);
        PackArgs {
            x: x.wrapping_add(first * stride),
            stride,
            rows,
            k,
            padded,
            cell: form.bytes(cell),
            out,
            column,
            past_caches: past_caches && rows == GROUP && lines,
            scales: scales.wrapping_add(first),
        }
    }

    /// Converts all rows on this thread; see [`run`](Self::run).
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short.
    pub fn compute(
        &self,
        x: &[f32],
        stride: usize,
        out: &mut [u8],
        scales: &mut [f32],
    ) -> Result<(), KernelError> {
        self.check(x, stride, out, scales)?;
        let (out, scales) = (out.as_mut_ptr(), scales.as_mut_ptr());
        // SAFETY: lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), stride, out, scales, 0..self.units()) };
        Ok(())
    }

    /// The same; also adds the elements of each column as they become to `sums`, and their sizes to `sizes`, in
    /// single precision. Gives for integers what rounding loses: the sum of the squares of what it changes,
    /// and that of the squares of the elements.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short.
    pub fn compute_summed(
        &self,
        x: &[f32],
        stride: usize,
        out: &mut [u8],
        scales: &mut [f32],
        sums: &mut [f32],
        sizes: &mut [f32],
    ) -> Result<[f64; 2], KernelError> {
        self.check(x, stride, out, scales)?;
        check_len(OP, "sums", self.params.padded, sums.len())?;
        check_len(OP, "sizes", self.params.padded, sizes.len())?;
        let (out, scales) = (out.as_mut_ptr(), scales.as_mut_ptr());
        let (sums, sizes) = (sums.as_mut_ptr(), sizes.as_mut_ptr());
        let mut lost = [0.0; 2];
        for unit in 0..self.units() {
            let args = self.unit(x.as_ptr(), stride, out, scales, unit);
            // SAFETY: lengths were checked, slices do not overlap; `new` checked the CPU.
            let more = unsafe {
                (self.pack)(&args);
                (self.sum)(&args, sums, sizes)
            };
            lost.iter_mut().zip(more).for_each(|(all, more)| *all += more);
        }
        Ok(lost)
    }

    fn check(
        &self,
        x: &[f32],
        stride: usize,
        out: &[u8],
        scales: &[f32],
    ) -> Result<(), KernelError> {
        let CellsParams { rows, k, .. } = self.params;
        let needed = rows.checked_sub(1).map_or(0, |n| n.saturating_mul(stride).saturating_add(k));
        check_len(OP, "x", needed, x.len())?;
        check_len(OP, "out", self.out_len(), out.len())?;
        check_len(OP, "scales", rows, scales.len())
    }
}

/// A power of two that brings elements of this size near 1.
fn power_of_two(most: f32) -> f32 {
    if most == 0.0 || (SMALL..=LARGE).contains(&most) {
        return 1.0;
    }
    // From its bits: subnormal sizes are brought up as far as the exponent reaches.
    let e = ((most.to_bits() >> 23) as i32 - 127).clamp(-125, 125);
    f32::from_bits(((e + 127) as u32) << 23)
}

/// What a row is divided by, and what it is multiplied by for that, from the size of its largest element.
pub(super) fn scale(form: CellForm, most: f32) -> (f32, f32) {
    match form {
        CellForm::F16 => {
            let scale = power_of_two(most);
            (scale, 1.0 / scale)
        }
        CellForm::I8 | CellForm::I4 => {
            let scale = most / form.most();
            (scale, inverse(scale))
        }
    }
}

/// What elements are multiplied by, to be divided by a scale.
pub(super) fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}
