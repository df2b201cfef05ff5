//! The kernels of [`super::cells`].

use super::cells::{CellForm, GROUP, STEP, inverse, scale};
use crate::detect::follows_streams;
use crate::{Dtype, Isa};

/// Some rows, at most [`GROUP`].
pub(super) struct PackArgs {
    pub(super) x: *const f32,
    /// Elements between two rows.
    pub(super) stride: usize,
    pub(super) rows: usize,
    pub(super) k: usize,
    pub(super) padded: usize,
    /// Bytes of a cell: 8, 16, 32 or 64.
    pub(super) cell: usize,
    /// The first row's cell of the first column.
    pub(super) out: *mut u8,
    /// Bytes between two columns.
    pub(super) column: usize,
    /// Whether there is a whole group of rows, at whole lines, which go past the caches.
    pub(super) past_caches: bool,
    pub(super) scales: *mut f32,
}

/// # Safety
///
/// The CPU has the instructions; the rows are readable, their cells and scales writable.
pub(super) type PackFn = unsafe fn(&PackArgs);

/// Adds what elements become to the sums (the first pointer), and their sizes to those of sizes (the second), one per
/// element of a row of the result. Gives, for integers, squares of what rounding changes, and of the elements. Apart
/// from what packs: only constant weights are summed, when they are loaded.
///
/// # Safety
///
/// As for [`PackFn`], which has written the scales; `padded` sums and as many sizes are readable and writable.
pub(super) type SumFn = unsafe fn(&PackArgs, *mut f32, *mut f32) -> [f64; 2];

#[derive(Debug)]
pub(super) struct CellsKernel {
    pub(super) name: &'static str,
    /// Of halves, bytes and nibbles.
    pub(super) packs: [PackFn; 3],
    /// Of halves, and of integers.
    pub(super) sums: [SumFn; 2],
}

/// Elements as they are converted, and what columns get of them from a group of rows.
#[repr(align(64))]
struct Lines<const BYTES: usize>([u8; BYTES]);

/// [`CellForm`] as a parameter of kernels.
const F16: u8 = 0;
const I8: u8 = 1;
const I4: u8 = 2;

macro_rules! cells_row {
    // Memory is as fast by half as wide vectors.
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, $($rest:tt)*) => {};
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;

            pub(super) const KERNEL: CellsKernel = CellsKernel {
                name: concat!("cells_", stringify!($isa_name)),
                packs: [pack::<F16>, pack::<I8>, pack::<I4>],
                sums: [sum::<F16>, sum::<I8>],
            };

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

            /// Converts [`STEP`] elements to `to`, the vectors to these places there.
            $(#[target_feature(enable = $f)])*
            unsafe fn convert<const FORM: u8>(
                x: *const f32,
                factor: f32,
                to: *mut u8,
                places: &[usize; STEP / L],
            ) {
                let factors = tile!(VSET factor);
                for (j, place) in places.iter().enumerate() {
                    let to = to.wrapping_add(*place);
                    let v = tile!(VMUL tile!(VLOAD x, j), factors);
                    if FORM != F16 {
                        // The factor takes no element past the greatest integer by as much as half a step.
                        tile!(VSTORE8 to, tile!(VROUND v));
                    } else {
                        let to = to.cast::<u16>();
                        tile!(VSTORE16 to, v);
                    }
                }
            }

            /// The same as a function of its own, for nibbles: of vectors that it knows a compiler takes bytes one by one.
            $(#[target_feature(enable = $f)])*
            #[inline(never)]
            unsafe fn convert_apart<const FORM: u8>(
                x: *const f32,
                factor: f32,
                to: *mut u8,
                places: &[usize; STEP / L],
            ) {
                // SAFETY: the caller's duties.
                unsafe { convert::<FORM>(x, factor, to, places) };
            }

            /// The [`STEP`] elements of a row from `at` on: there, or a copy in `rest` whose end is zeros.
            ///
            /// # Safety
            /// `x` is readable for `k` elements.
            unsafe fn step(x: *const f32, at: usize, k: usize, rest: &mut [f32; STEP]) -> *const f32 {
                if at + STEP <= k {
                    return x.wrapping_add(at);
                }
                let n = k.saturating_sub(at);
                rest.fill(0.0);
                // SAFETY: so many elements of the row are there.
                unsafe { rest.as_mut_ptr().copy_from_nonoverlapping(x.wrapping_add(at), n) };
                rest.as_ptr()
            }

            /// A [`SumFn`].
            $(#[target_feature(enable = $f)])*
            unsafe fn sum<const FORM: u8>(
                a: &PackArgs,
                sums: *mut f32,
                sizes: *mut f32,
            ) -> [f64; 2] {
                let [mut changed, mut squares] = [[tile!(VZERO); STEP / L]; 2];
                let mut rest = [0.0f32; STEP];
                let mut line = [0u16; STEP];
                let line = line.as_mut_ptr();
                for at in (0..a.padded).step_by(STEP) {
                    let [mut added, mut sized] = [[tile!(VZERO); STEP / L]; 2];
                    for r in 0..a.rows {
                        let x = a.x.wrapping_add(r * a.stride);
                        // SAFETY: a row of the caller's, and there is a scale for each.
                        let (x, scale) = unsafe { (step(x, at, a.k, &mut rest), *a.scales.add(r)) };
                        let (factors, less) = (tile!(VSET inverse(scale)), tile!(VSET -scale));
                        for j in 0..STEP / L {
                            let given = tile!(VLOAD x, j);
                            let v = tile!(VMUL given, factors);
                            let v = if FORM == F16 {
                                let half = line.wrapping_add(j * L);
                                tile!(VSTORE16 half, v);
                                tile!(VLOAD16 half)
                            } else {
                                let v = tile!(VROUND v);
                                let lost = tile!(VFMA v, less, given);
                                changed[j] = tile!(VFMA lost, lost, changed[j]);
                                squares[j] = tile!(VFMA given, given, squares[j]);
                                v
                            };
                            added[j] = tile!(VADD added[j], v);
                            sized[j] = tile!(VADD sized[j], tile!(VABS v));
                        }
                    }
                    for j in 0..STEP / L {
                        for (to, more) in [(sums, added[j]), (sizes, sized[j])] {
                            let to = to.wrapping_add(at + j * L);
                            tile!(VSTORE to, 0, tile!(VADD tile!(VLOAD to, 0), more));
                        }
                    }
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

            /// Where byte `at` of what a row becomes goes, in cells that are `apart` bytes apart.
            fn place(at: usize, cell: usize, apart: usize) -> usize {
                (at >> cell.trailing_zeros()) * apart + at % cell
            }

            /// Sends columns of a group, `bytes` of each row, past the caches, `apart` bytes apart. Nothing from null.
            $(#[target_feature(enable = $f)])*
            unsafe fn send(
                (from, to): (*const u8, *mut u8),
                cell: usize,
                bytes: usize,
                apart: usize,
            ) {
                let columns = if from.is_null() { 0 } else { bytes / cell };
                for c in 0..columns {
                    let from = from.wrapping_add(c * GROUP * cell).cast::<f32>();
                    let to = to.wrapping_add(c * apart).cast::<f32>();
                    for j in 0..GROUP * cell / (4 * L) {
                        tile!(VSTREAM to, j, tile!(VLOAD from, j));
                    }
                }
            }

            /// Bytes that a vector becomes, of each form before nibbles are put together.
            const VECTOR: [usize; 3] = [2 * L, L, L];

            /// What elements of each row are multiplied by; writes the scales. Meanwhile the first halves of as many
            /// rows from `group` on are fetched.
            $(#[target_feature(enable = $f)])*
            #[inline(never)]
            unsafe fn factors(a: &PackArgs, form: CellForm, group: *const f32) -> [f32; GROUP] {
                let mut factors = [0.0f32; GROUP];
                for (r, to) in factors.iter_mut().enumerate().take(a.rows) {
                    let next = group.wrapping_add(r / 2 * a.stride + r % 2 * (a.k / 2));
                    let x = a.x.wrapping_add(r * a.stride);
                    // SAFETY: a row of the caller's.
                    let most = unsafe { largest(x, a.k, next) };
                    let (scale, factor) = if most.is_nan() { (most, 0.0) } else { scale(form, most) };
                    *to = factor;
                    // SAFETY: the caller has a place for each row.
                    unsafe { *a.scales.add(r) = scale };
                }
                factors
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn pack<const FORM: u8>(a: &PackArgs) {
                let form = match FORM {
                    F16 => CellForm::F16,
                    I8 => CellForm::I8,
                    _ => CellForm::I4,
                };
                let (bytes, cell) = (form.bytes(STEP), a.cell);
                let apart = if a.past_caches { GROUP * cell } else { a.column };
                // Whether each vector's elements are of one cell: smaller cells are cut out of a line.
                let vector = VECTOR[FORM as usize];
                let whole = FORM != I4 && cell.is_multiple_of(vector);
                let places = core::array::from_fn(|j| {
                    if whole { place(j * vector, cell, apart) } else { j * vector }
                });
                // Rows are read twice, from memory and from the L2 cache. So that memory is never idle, half of the next
                // rows is fetched while the largest elements of these are looked for, in ascending order, the other
                // half while these are written. Where the machine does so by itself, that would cost bytes a fifth.
                let ahead = if a.rows == GROUP && !follows_streams() { GROUP } else { 0 };
                let group = a.x.wrapping_add(ahead * a.stride);
                // SAFETY: as the caller promises.
                let factors = unsafe { factors(a, form, group) };
                // Columns of two steps in turn: lines are sent off when the stores that made them are done.
                let (mut line, mut columns) = (Lines([0; 2 * STEP]), Lines([0; 4 * STEP * GROUP]));
                let (line, columns) = (line.0.as_mut_ptr(), columns.0.as_mut_ptr());
                let mut made: (*const u8, *mut u8) = (core::ptr::null(), core::ptr::null_mut());
                let mut rest = [0.0f32; STEP];
                // Without a bound that the loop over rows could be unrolled by.
                let factors = factors.as_ptr();
                let (mut next, mut column) = (group.wrapping_add(GROUP / 2 * a.stride), 0);
                for at in (0..a.padded).step_by(STEP) {
                    let out = a.out.wrapping_add(place(form.bytes(at), cell, a.column));
                    let lines = columns.wrapping_add(at / STEP % 2 * 2 * STEP * GROUP);
                    let to = if a.past_caches { lines } else { out };
                    for r in 0..a.rows {
                        tile!(VPREFETCH next, column + r * (STEP / 2));
                        let x = a.x.wrapping_add(r * a.stride);
                        // SAFETY: a row of the caller's.
                        let x = unsafe { step(x, at, a.k, &mut rest) };
                        let to = to.wrapping_add(r * cell);
                        // SAFETY: there is a factor for each row; the elements are there; the line has room for
                        // what they become, and so have the cells of this row.
                        unsafe {
                            let (to, factor) = (if whole { to } else { line }, *factors.add(r));
                            if FORM == I4 {
                                convert_apart::<FORM>(x, factor, to, &places);
                            } else {
                                convert::<FORM>(x, factor, to, &places);
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
                        // Cells of nibbles hold a line; others that are smaller than a vector have eight bytes.
                        let cells = if whole || FORM == I4 { 0 } else { bytes / 8 };
                        // SAFETY: the cells of this row, in columns that exist.
                        unsafe {
                            if FORM == I4 {
                                to.cast::<[u8; STEP / 2]>().write(line.cast::<[u8; STEP / 2]>().read());
                            }
                            for c in 0..cells {
                                let part = line.add(c * 8).cast::<[u8; 8]>().read();
                                to.add(c * apart).cast::<[u8; 8]>().write(part);
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
                        unsafe { send(made, cell, bytes, a.column) };
                        made = (lines, out);
                    }
                }
                if a.past_caches {
                    // SAFETY: as above.
                    unsafe { send(made, cell, bytes, a.column) };
                    tile!(VSTREAMED);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(cells_row);

/// The kernels of an instruction set, or of the nearest of its bases.
pub(super) fn kernel(isa: Isa) -> &'static CellsKernel {
    let served = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes 16, $($rest:tt)*) => {};
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if served == Isa::$isa {
                return &$id::KERNEL;
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    served.base().map_or(&scalar_f32::KERNEL, kernel)
}
