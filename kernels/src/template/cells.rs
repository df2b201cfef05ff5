//! Rows of `f32` as columns of cells, of halves, bytes or half bytes: the layouts in which the NPU of some chips reads
//! matrices.
//!
//! `[rows, k]` becomes `[k / cell, height, cell]`: a cell is what one row has of a column. Each row is divided by a
//! number of its own first. Eight rows are written at a time, so that what a column gets is whole cache lines, which
//! large results send past the caches: read before they are written, those lines would cost as much again.

use crate::detect::follows_streams;
use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// Rows of a unit.
const GROUP: usize = 8;

/// Elements that are converted at a time: `k` is filled up with zeros to a multiple of it.
const STEP: usize = 32;

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
    /// Without sums, and with them.
    pack: [PackFn; 2],
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
        let packs = match form {
            CellForm::F16 => &kernel.halves[..],
            CellForm::I8 => &kernel.bytes[..],
            CellForm::I4 => &kernel.nibbles[..],
        };
        let sizes = [8, 16, 32, 64];
        let fits = cell <= STEP && (form != CellForm::I4 || cell == STEP);
        let found = sizes.iter().position(|&bytes| fits && bytes == form.bytes(cell));
        let Some(&pack) = found.and_then(|i| packs.get(i)) else {
            return invalid("cell", "4, 8, 16 or 32 elements, of 8 bytes at least");
        };
        Ok(Self { params: *params, kernel, pack })
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
            unsafe { (self.pack[0])(&args) };
        }
    }

    /// What a kernel gets for a unit, without sums.
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
            out,
            column,
            past_caches: past_caches && rows == GROUP && lines,
            scales: scales.wrapping_add(first),
            sums: core::ptr::null_mut(),
            sizes: core::ptr::null_mut(),
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
            let args = PackArgs { sums, sizes, ..self.unit(x.as_ptr(), stride, out, scales, unit) };
            // SAFETY: lengths were checked, slices do not overlap; `new` checked the CPU.
            let more = unsafe { (self.pack[1])(&args) };
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

/// Some rows, at most [`GROUP`].
struct PackArgs {
    x: *const f32,
    /// Elements between two rows.
    stride: usize,
    rows: usize,
    k: usize,
    padded: usize,
    /// The first row's cell of the first column.
    out: *mut u8,
    /// Bytes between two columns.
    column: usize,
    /// Whether there is a whole group of rows, at whole lines, which go past the caches.
    past_caches: bool,
    scales: *mut f32,
    /// Per element of a row of the result, what is added to; null where nothing is.
    sums: *mut f32,
    sizes: *mut f32,
}

/// Gives, with sums, squares of what rounding to integers changes, and of the elements.
///
/// # Safety
///
/// The CPU has the instructions; the rows are readable, their cells and scales writable; so are, with sums,
/// those.
type PackFn = unsafe fn(&PackArgs) -> [f64; 2];

#[derive(Debug)]
struct CellsKernel {
    name: &'static str,
    /// For cells of 8, 16, 32 and 64 bytes.
    halves: [[PackFn; 2]; 4],
    /// For cells of 8, 16 and 32 bytes.
    bytes: [[PackFn; 2]; 3],
    /// For cells of 8 and 16 bytes, of which there are none of 8.
    nibbles: [[PackFn; 2]; 2],
}

/// Bytes of a line of caches. A column of a group has one at least.
const LINE: usize = 64;

/// Elements as they are converted, and what columns get of them from a group of rows.
#[repr(align(64))]
struct Lines<const BYTES: usize>([u8; BYTES]);

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
            let inverse = 1.0 / scale;
            (scale, if inverse.is_finite() { inverse } else { 0.0 })
        }
    }
}

/// [`CellForm`] as a parameter of kernels.
const F16: u8 = 0;
const I8: u8 = 1;
const I4: u8 = 2;

macro_rules! cells_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;

            pub(super) const KERNEL: CellsKernel = CellsKernel {
                name: concat!("cells_", stringify!($isa_name)),
                halves: [both::<8, F16>(), both::<16, F16>(), both::<32, F16>(), both::<64, F16>()],
                bytes: [both::<8, I8>(), both::<16, I8>(), both::<32, I8>()],
                nibbles: [both::<8, I4>(), both::<16, I4>()],
            };

            const fn both<const CELL: usize, const FORM: u8>() -> [PackFn; 2] {
                [pack::<CELL, FORM, false>, pack::<CELL, FORM, true>]
            }

            /// The size of the largest of `k` elements; not a number if one is not finite. Meanwhile half as many
            /// elements are fetched from `next` on.
            $(#[target_feature(enable = $f)])*
            unsafe fn largest(x: *const f32, k: usize, next: *const f32) -> f32 {
                let zero = tile!(VZERO);
                let (mut most, mut bad) = ([zero; 2], [zero; 2]);
                let pairs = k / (2 * L);
                for i in 0..pairs {
                    if (i * 2 * L).is_multiple_of(STEP) {
                        tile!(VPREFETCH next, i * L);
                    }
                    for j in 0..2 {
                        let v = tile!(VLOAD x, 2 * i + j);
                        most[j] = tile!(VMAX tile!(VABS v), most[j]);
                        // What is not finite, times 0, is not a number.
                        bad[j] = tile!(VFMA v, zero, bad[j]);
                    }
                }
                for at in (pairs * 2 * L..k).step_by(L) {
                    let v = tile!(VLOAD_TAIL x.wrapping_add(at), L.min(k - at));
                    most[0] = tile!(VMAX tile!(VABS v), most[0]);
                    bad[0] = tile!(VFMA v, zero, bad[0]);
                }
                let (mut sizes, mut nothing) = ([0.0f32; L], [0.0f32; L]);
                let (s, n) = (sizes.as_mut_ptr(), nothing.as_mut_ptr());
                tile!(VSTORE s, 0, tile!(VMAX most[0], most[1]));
                tile!(VSTORE n, 0, tile!(VADD bad[0], bad[1]));
                let most = sizes.iter().fold(0.0f32, |most, x| if *x > most { *x } else { most });
                if nothing.iter().all(|x| *x == 0.0) { most } else { f32::NAN }
            }

            /// Converts [`STEP`] elements to cells `apart` bytes apart. Gives them (to load them again after the stores
            /// takes time), and integers as floats.
            $(#[target_feature(enable = $f)])*
            unsafe fn convert<const CELL: usize, const FORM: u8>(
                x: *const f32,
                factor: f32,
                to: *mut u8,
                apart: usize,
            ) -> [[tile!(VTYPE); STEP / L]; 2] {
                let factors = tile!(VSET factor);
                let (mut given, mut values) = ([tile!(VZERO); STEP / L], [tile!(VZERO); STEP / L]);
                for j in 0..STEP / L {
                    let to = to.wrapping_add(place::<CELL, FORM>(j, apart));
                    given[j] = tile!(VLOAD x, j);
                    let v = tile!(VMUL given[j], factors);
                    if FORM != F16 {
                        // The factor takes no element past the greatest integer by as much as half a step.
                        values[j] = tile!(VROUND v);
                        tile!(VSTORE8 to, values[j]);
                    } else {
                        let to = to.cast::<u16>();
                        tile!(VSTORE16 to, v);
                    }
                }
                [given, values]
            }

            /// Where the elements of vector `j` go in cells that are `apart` bytes apart.
            const fn place<const CELL: usize, const FORM: u8>(j: usize, apart: usize) -> usize {
                let at = j * VECTOR[FORM as usize];
                at / CELL * apart + at % CELL
            }

            /// Sends columns of a group, `bytes` of each row, past the caches, `apart` bytes apart. Nothing from null.
            $(#[target_feature(enable = $f)])*
            unsafe fn send<const CELL: usize>(
                (from, to): (*const u8, *mut u8),
                bytes: usize,
                apart: usize,
            ) {
                let columns = if from.is_null() { 0 } else { bytes / CELL };
                for c in 0..columns {
                    let from = from.wrapping_add(c * GROUP * CELL).cast::<f32>();
                    let to = to.wrapping_add(c * apart).cast::<f32>();
                    for j in 0..GROUP * CELL / (4 * L) {
                        tile!(VSTREAM to, j, tile!(VLOAD from, j));
                    }
                }
            }

            /// Bytes that a vector becomes, of each form before nibbles are put together.
            const VECTOR: [usize; 3] = [2 * L, L, L];

            $(#[target_feature(enable = $f)])*
            unsafe fn pack<const CELL: usize, const FORM: u8, const SUMS: bool>(
                a: &PackArgs,
            ) -> [f64; 2] {
                let form = match FORM {
                    F16 => CellForm::F16,
                    I8 => CellForm::I8,
                    _ => CellForm::I4,
                };
                let bytes = form.bytes(STEP);
                // Whether each vector's elements are of one cell: smaller cells are cut out of a line.
                let whole = FORM != I4 && CELL.is_multiple_of(VECTOR[FORM as usize]);
                let mut factors = [[0.0f32; 2]; GROUP];
                // Rows are read twice, from memory and from the L2 cache. So that memory is never idle, half of the next
                // rows is fetched while the largest elements of these are looked for, in ascending order, the other
                // half while these are written. Where the machine does so by itself, that would cost bytes a fifth.
                let ahead = if a.rows == GROUP && !follows_streams() { GROUP } else { 0 };
                let group = a.x.wrapping_add(ahead * a.stride);
                for r in 0..a.rows {
                    let next = group.wrapping_add(r / 2 * a.stride + r % 2 * (a.k / 2));
                    let x = a.x.wrapping_add(r * a.stride);
                    // SAFETY: a row of the caller's.
                    let most = unsafe { largest(x, a.k, next) };
                    let (scale, factor) = if most.is_nan() { (most, 0.0) } else { scale(form, most) };
                    factors[r] = [factor, -scale];
                    // SAFETY: the caller has a place for each row.
                    unsafe { *a.scales.add(r) = scale };
                }
                let [mut changed, mut squares] = [[tile!(VZERO); STEP / L]; 2];
                // Columns of two steps in turn: lines are sent off when the stores that made them are done.
                let (mut line, mut columns) = (Lines([0; 2 * STEP]), Lines([0; 4 * STEP * GROUP]));
                let (line, columns) = (line.0.as_mut_ptr(), columns.0.as_mut_ptr());
                let mut made: (*const u8, *mut u8) = (core::ptr::null(), core::ptr::null_mut());
                let mut rest = [0.0f32; STEP];
                // Without a bound that the rows could be unrolled by: sums would not stay in registers.
                let factors = factors.as_ptr();
                let (mut next, mut column) = (group.wrapping_add(GROUP / 2 * a.stride), 0);
                for at in (0..a.padded).step_by(STEP) {
                    let out = a.out.wrapping_add(form.bytes(at) / CELL * a.column);
                    let lines = columns.wrapping_add(at / STEP % 2 * 2 * STEP * GROUP);
                    let (to, apart) =
                        if a.past_caches { (lines, GROUP * CELL) } else { (out, a.column) };
                    let [mut sums, mut sizes] = [[tile!(VZERO); STEP / L]; 2];
                    for r in 0..a.rows {
                        let x = a.x.wrapping_add(r * a.stride + at);
                        tile!(VPREFETCH next, column + r * (STEP / 2));
                        let x = if at + STEP <= a.k {
                            x
                        } else {
                            let n = a.k.saturating_sub(at);
                            rest.fill(0.0);
                            // SAFETY: so many elements of the row are there.
                            unsafe { rest.as_mut_ptr().copy_from_nonoverlapping(x, n) };
                            rest.as_ptr()
                        };
                        let to = to.wrapping_add(r * CELL);
                        let (to_cells, cells_apart) = if whole { (to, apart) } else { (line, CELL) };
                        // SAFETY: there is a factor for each row; the elements are there; the line has room for
                        // what they become, and so have the cells of this row.
                        let ([given, values], less) = unsafe {
                            let [factor, less] = *factors.add(r);
                            (convert::<CELL, FORM>(x, factor, to_cells, cells_apart), tile!(VSET less))
                        };
                        if SUMS {
                            for j in 0..STEP / L {
                                let v = if FORM == F16 {
                                    let at = place::<CELL, FORM>(j, cells_apart);
                                    let p = to_cells.wrapping_add(at).cast::<u16>();
                                    tile!(VLOAD16 p)
                                } else {
                                    values[j]
                                };
                                sums[j] = tile!(VADD sums[j], v);
                                sizes[j] = tile!(VADD sizes[j], tile!(VABS v));
                                if FORM != F16 {
                                    let lost = tile!(VFMA v, less, given[j]);
                                    changed[j] = tile!(VFMA lost, lost, changed[j]);
                                    squares[j] = tile!(VFMA given[j], given[j], squares[j]);
                                }
                            }
                        }
                        if FORM == I4 {
                            for i in 0..STEP / 2 {
                                // SAFETY: the line has 32 bytes; each is read before it is written.
                                unsafe {
                                    let [low, high] = [*line.add(2 * i), *line.add(2 * i + 1)];
                                    *line.add(i) = low & 15 | high << 4;
                                }
                            }
                        }
                        for c in 0..if whole { 0 } else { bytes / CELL } {
                            // SAFETY: the cells of this row, in columns that exist.
                            unsafe {
                                let cell = line.add(c * CELL).cast::<[u8; CELL]>().read();
                                to.add(c * apart).cast::<[u8; CELL]>().write(cell);
                            }
                        }
                    }
                    column += STEP / 2 * GROUP;
                    if column >= a.k {
                        column -= a.k;
                        next = next.wrapping_add(a.stride);
                    }
                    if a.past_caches {
                        // SAFETY: what was made is whole columns, and lines of the result's.
                        unsafe { send::<CELL>(made, bytes, a.column) };
                        made = (lines, out);
                    }
                    if SUMS {
                        for j in 0..STEP / L {
                            for (to, more) in [(a.sums, sums[j]), (a.sizes, sizes[j])] {
                                let to = to.wrapping_add(at + j * L);
                                tile!(VSTORE to, 0, tile!(VADD tile!(VLOAD to, 0), more));
                            }
                        }
                    }
                }
                if a.past_caches {
                    // SAFETY: as above.
                    unsafe { send::<CELL>(made, bytes, a.column) };
                    tile!(VSTREAMED);
                }
                let total = |parts: [tile!(VTYPE); STEP / L]| {
                    let mut lanes = [0.0f32; STEP];
                    let to = lanes.as_mut_ptr();
                    for (j, part) in parts.into_iter().enumerate() {
                        tile!(VSTORE to, j, part);
                    }
                    lanes.iter().map(|x| f64::from(*x)).sum::<f64>()
                };
                [total(changed), total(squares)]
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(cells_row);

fn kernel(isa: Isa) -> &'static CellsKernel {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return &$id::KERNEL;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    &scalar_f32::KERNEL
}
