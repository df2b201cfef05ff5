//! Rotary position embeddings (Su et al., 2021): pairs of elements of each head turn by angles that a
//! table gives.
//!
//! A row of the table has the cosines of all pairs, then the sines: it is made once per position, in
//! double precision, for all heads and layers, and holds whatever scaling of frequencies and of the
//! result there is.

use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// Which elements of a head turn together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Neighbours `2i, 2i + 1`: Llama in GGUF files.
    Interleaved,
    /// `i` and `i + rotated / 2`: NeoX, Qwen, Gemma, Phi.
    Half,
}

/// Sizes of a rotation: `x [rows, heads * size]` by a table `[rows, rotated]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RopeParams {
    /// Which elements turn together.
    pub style: RopeStyle,
    /// Rows, each with its own row of the table.
    pub rows: usize,
    /// Heads of a row.
    pub heads: usize,
    /// Elements of a head.
    pub size: usize,
    /// Elements of a head that turn, an even number; those behind stay what they are.
    pub rotated: usize,
    /// Distances of rows of `x` and of the result, in elements.
    pub strides: [usize; 2],
}

/// A rotation of fixed sizes.
#[derive(Clone, Debug)]
pub struct RopePlan {
    isa: Isa,
    params: RopeParams,
    kernel: RopeFn,
    name: &'static str,
    rows_per_unit: usize,
}

const OP: &str = "rope";

/// Elements of a unit, about.
const UNIT: usize = 8192;

impl RopePlan {
    /// Plans a rotation.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for `rotated` and `strides`, [`KernelError::TooLarge`],
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &RopeParams) -> Result<Self, KernelError> {
        isa.require()?;
        let p = params;
        let wrong = |param, expected| Err(KernelError::InvalidParam { op: OP, param, expected });
        if !p.rotated.is_multiple_of(2) || p.rotated > p.size {
            return wrong("rotated", "even and no more than the elements of a head");
        }
        let row = checked_len(OP, &[p.heads, p.size])?;
        checked_len(OP, &[p.rows, p.rotated])?;
        for stride in p.strides {
            checked_len(OP, &[p.rows, stride])?;
            if stride < row && p.rows > 1 {
                return wrong("strides", "at least the elements of a row");
            }
        }
        let (kernel, name) = kernel(isa, p.style);
        let rows_per_unit = (UNIT / row.max(1)).max(1);
        Ok(Self { isa, params: *p, kernel, name, rows_per_unit })
    }

    /// Elements of `x` (0) and of the result (1) from the first to the last.
    pub fn operand_len(&self, i: usize) -> usize {
        let p = &self.params;
        match p.rows {
            0 => 0,
            rows => (rows - 1) * p.strides[i] + p.heads * p.size,
        }
    }

    /// Elements of the table.
    pub fn table_len(&self) -> usize {
        self.params.rows * self.params.rotated
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.rows.div_ceil(self.rows_per_unit)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.name
    }

    /// Computes some units.
    ///
    /// # Safety
    ///
    /// * The operands have [`operand_len`](Self::operand_len) and
    ///   [`table_len`](Self::table_len) readable and writable elements; `y` is `x`, with the same
    ///   stride, or overlaps no operand.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, x: *const f32, table: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let p = &self.params;
        let end = (units.end * self.rows_per_unit).min(p.rows);
        for row in units.start * self.rows_per_unit..end {
            let (x, y) = (x.wrapping_add(row * p.strides[0]), y.wrapping_add(row * p.strides[1]));
            // SAFETY: the ISA is available; the row lies in the operands of the caller.
            unsafe { (self.kernel)(p, x, table.wrapping_add(row * p.rotated), y) };
        }
    }

    /// Computes all units on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, x: &[f32], table: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "x", self.operand_len(0), x.len())?;
        check_len(OP, "table", self.table_len(), table.len())?;
        check_len(OP, "y", self.operand_len(1), y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), table.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// Turns a row.
///
/// # Safety
/// The CPU has the instructions; the row is readable and writable, its row of the table readable.
type RopeFn = unsafe fn(&RopeParams, *const f32, *const f32, *mut f32);

/// Pairs whose cosines and sines lie on the stack as neighbours need them.
const CHUNK: usize = 64;

/// 0 for the first of two neighbours, 1 for the second.
static SECOND: [f32; 16] =
    [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0];

macro_rules! rope_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            const L: usize = $l;

            pub(super) const INTERLEAVED: (RopeFn, &str) =
                (interleaved, concat!("rope_interleaved_f32_", $l, "_", stringify!($isa_name)));
            pub(super) const HALF: (RopeFn, &str) =
                (half, concat!("rope_half_f32_", $l, "_", stringify!($isa_name)));

            $(#[target_feature(enable = $f)])*
            unsafe fn half(p: &RopeParams, x: *const f32, table: *const f32, y: *mut f32) {
                let pairs = p.rotated / 2;
                for head in 0..p.heads {
                    let (x, y) = (x.wrapping_add(head * p.size), y.wrapping_add(head * p.size));
                    for at in (0..pairs).step_by(L) {
                        let n = (pairs - at).min(L);
                        let (u, v) = (x.wrapping_add(at), x.wrapping_add(pairs + at));
                        let (c, s) = (table.wrapping_add(at), table.wrapping_add(pairs + at));
                        let (a, b) = (y.wrapping_add(at), y.wrapping_add(pairs + at));
                        if n == L {
                            let (u, v) = (tile!(VLOAD u, 0), tile!(VLOAD v, 0));
                            let (c, s) = (tile!(VLOAD c, 0), tile!(VLOAD s, 0));
                            tile!(VSTORE a, 0, tile!(VSUB tile!(VMUL u, c), tile!(VMUL v, s)));
                            tile!(VSTORE b, 0, tile!(VFMA u, s, tile!(VMUL v, c)));
                        } else {
                            let (u, v) = (tile!(VLOAD_TAIL u, n), tile!(VLOAD_TAIL v, n));
                            let (c, s) = (tile!(VLOAD_TAIL c, n), tile!(VLOAD_TAIL s, n));
                            let first = tile!(VSUB tile!(VMUL u, c), tile!(VMUL v, s));
                            let second = tile!(VFMA u, s, tile!(VMUL v, c));
                            tile!(VSTORE_TAIL a, n, first);
                            tile!(VSTORE_TAIL b, n, second);
                        }
                    }
                }
                // SAFETY: the caller's row.
                unsafe { keep_rest(p, x, y) };
            }

            $(#[target_feature(enable = $f)])*
            unsafe fn interleaved(p: &RopeParams, x: *const f32, table: *const f32, y: *mut f32) {
                let pairs = p.rotated / 2;
                let second = tile!(VGT tile!(VLOAD SECOND.as_ptr(), 0), tile!(VZERO));
                for chunk in (0..pairs).step_by(CHUNK) {
                    let count = (pairs - chunk).min(CHUNK);
                    let (mut cos, mut sin) = ([0.0f32; 2 * CHUNK], [0.0f32; 2 * CHUNK]);
                    for i in 0..count {
                        // SAFETY: the table has a cosine and a sine for each pair.
                        let (c, s) = unsafe { (*table.add(chunk + i), *table.add(pairs + chunk + i)) };
                        [cos[2 * i], cos[2 * i + 1]] = [c; 2];
                        [sin[2 * i], sin[2 * i + 1]] = [-s, s];
                    }
                    for head in 0..p.heads {
                        let from = head * p.size + 2 * chunk;
                        if L == 1 {
                            for i in 0..count {
                                let at = from + 2 * i;
                                // SAFETY: a pair of the caller's row.
                                unsafe {
                                    let (u, v) = (*x.add(at), *x.add(at + 1));
                                    *y.add(at) = u * cos[2 * i] + v * sin[2 * i];
                                    *y.add(at + 1) = v * cos[2 * i + 1] + u * sin[2 * i + 1];
                                }
                            }
                            continue;
                        }
                        for at in (0..2 * count).step_by(L) {
                            let n = (2 * count - at).min(L);
                            let (x, y) = (x.wrapping_add(from + at), y.wrapping_add(from + at));
                            let (c, s) = (cos.as_ptr().wrapping_add(at), sin.as_ptr().wrapping_add(at));
                            let u = if n == L { tile!(VLOAD x, 0) } else { tile!(VLOAD_TAIL x, n) };
                            let v = tile!(VSEL second, tile!(VPREV u, u), tile!(VNEXT u, u));
                            let turned = tile!(VFMA v, tile!(VLOAD s, 0), tile!(VMUL u, tile!(VLOAD c, 0)));
                            if n == L { tile!(VSTORE y, 0, turned) } else { tile!(VSTORE_TAIL y, n, turned) }
                        }
                    }
                }
                // SAFETY: the caller's row.
                unsafe { keep_rest(p, x, y) };
            }
        }
    };
}

/// Copies what does not turn.
///
/// # Safety
/// The row is readable and writable.
unsafe fn keep_rest(p: &RopeParams, x: *const f32, y: *mut f32) {
    if p.rotated == p.size || x == y.cast_const() {
        return;
    }
    for head in 0..p.heads {
        let at = head * p.size + p.rotated;
        // SAFETY: the rest of a head; `x` and `y` overlap only if they are the same.
        unsafe { y.add(at).copy_from_nonoverlapping(x.add(at), p.size - p.rotated) };
    }
}

tilewright_intrinsics::for_each_tile!(rope_row);

fn kernel(isa: Isa, style: RopeStyle) -> (RopeFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    let of = |interleaved, half| match style {
        RopeStyle::Interleaved => interleaved,
        RopeStyle::Half => half,
    };
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return of($id::INTERLEAVED, $id::HALF);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    of(scalar_f32::INTERLEAVED, scalar_f32::HALF)
}
