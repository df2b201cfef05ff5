//! Sums and products of bytes, element by element, of two tensors or of one and rows of another that repeat: exact.
//!
//! * A sum (ONNX Runtime's `QLinearAdd`): `clamp(round((a - a_zero_point) * (a_scale / y_scale) + (b - b_zero_point) *
//!   (b_scale / y_scale)) + y_zero_point)`, quotients, products and sum each rounded to `f32`, ties to even. Other
//!   runtimes fold the zero points into a constant, which may differ by one step where the sum is near the middle
//!   of two.
//! * A product (`QLinearMul`): `clamp(round((a - a_zero_point) * (b - b_zero_point) * (a_scale * b_scale / y_scale)) +
//!   y_zero_point)`, the same way.

use super::qelement::{UNIT, byte_window, check_scale, qelement_bytes, qelement_pass};
use super::qmatmul::check_type;
use super::window::ByteWindow;
use crate::error::{check_len, checked_len};
use crate::quant::{Bytes, QuantOutput, QuantResult};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// What two bytes become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QbinaryOp {
    /// Their sum.
    Add,
    /// Their product.
    Mul,
}

impl QbinaryOp {
    /// What each operand of a sum is multiplied by, or a product, and 1; of the scales of operands and result.
    pub fn factors(self, [a, b, y]: [f32; 3]) -> [f32; 2] {
        match self {
            Self::Add => [a / y, b / y],
            Self::Mul => [a * b / y, 1.0],
        }
    }
}

/// A sum or product of two tensors of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QbinaryParams {
    /// What is computed.
    pub op: QbinaryOp,
    /// Extents `[outer, repeats, inner]` of `a` and of the result; `b` has `[outer, inner]`. Of blocked tensors all
    /// elements: what is past the channels does no harm.
    pub dims: [usize; 3],
    /// Types of the operands: [`Dtype::I8`] or [`Dtype::U8`].
    pub dtypes: [Dtype; 2],
    /// Scales of the operands and of the result, finite; that of the result greater than 0, those of operands not 0:
    /// a difference is the sum with a negative scale.
    pub scales: [f32; 3],
    /// Zero points of the operands.
    pub zero_points: [i32; 2],
    /// The result: bytes.
    pub output: QuantOutput,
}

/// A sum or product of two tensors of bytes, of fixed sizes.
#[derive(Clone, Debug)]
pub struct QbinaryPlan {
    isa: Isa,
    dims: [usize; 3],
    /// Rows of `inner` elements of a unit, where rows repeat.
    rows: usize,
    dtypes: [Dtype; 3],
    kernel: QbinaryFn,
    name: &'static str,
    pair: Pair,
}

const OP: &str = "qbinary";

/// Copies of a byte that repeats along a row: whole vectors of every instruction set.
const COPIES: usize = 64;

impl QbinaryPlan {
    /// Plans a sum or product.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for what is not as said, and scales whose ratio `f32` does not
    /// hold; [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, p: &QbinaryParams) -> Result<Self, KernelError> {
        isa.require()?;
        let len = checked_len(OP, &p.dims)?;
        // Fewer than all, but where there are none.
        checked_len(OP, &[p.dims[0], p.dims[2]])?;
        let factors = p.op.factors(p.scales);
        check_scale(OP, p.scales[2])?;
        p.scales.iter().chain(&factors).try_for_each(|s| check_scale(OP, s.abs()))?;
        let ([a_type, b_type], [a, b]) = (p.dtypes, p.zero_points);
        let (a, b) = (byte_window(OP, a_type, a)?, byte_window(OP, b_type, b)?);
        p.output.check(OP)?;
        let (param, expected) = ("output", "i8 or u8");
        let y = ByteWindow::new(p.output.dtype(), 0, 1.0, p.output)
            .ok_or(KernelError::InvalidParam { op: OP, param, expected })?;
        let pair = Pair { a: a.read, b: b.read, factors, bounds: y.bounds, zero: y.zero };
        let [outer, repeats, inner] = p.dims;
        let dims = if repeats == 1 { [1, 1, len] } else { [outer, repeats, inner] };
        let rows = (UNIT / inner.max(1)).max(1);
        let (kernel, name) = kernels(isa, p.op);
        let dtypes = [a_type, b_type, p.output.dtype()];
        Ok(Self { isa, dims, rows, dtypes, kernel, name, pair })
    }

    /// Elements of the first operand and of the result.
    pub fn len(&self) -> usize {
        self.dims.iter().product()
    }

    /// Elements of the second operand.
    pub fn b_len(&self) -> usize {
        self.dims[0] * self.dims[2]
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        match self.dims {
            [_, 1, len] => len.div_ceil(UNIT),
            [_, _, 0] => 0,
            [outer, repeats, _] => (outer * repeats).div_ceil(self.rows),
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
    /// * `a` has [`len`](Self::len) readable bytes, `b` has [`b_len`](Self::b_len), and `y` as many writable ones as
    ///   `a`; `y` may be an operand of as many bytes, else they do not overlap it.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, a: *const u8, b: *const u8, y: *mut u8, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let [outer, repeats, inner] = self.dims;
        let run = |at: usize, b: *const u8, sizes: [usize; 2]| {
            // SAFETY: the ISA is available; the rows lie in the operands by construction, and the caller owns the
            // operands.
            unsafe { (self.kernel)(a.wrapping_add(at), b, y.wrapping_add(at), sizes, &self.pair) };
        };
        if repeats == 1 {
            let at = units.start * UNIT;
            let len = (units.end * UNIT).min(inner).saturating_sub(at);
            return run(at, b.wrapping_add(at), [1, len]);
        }
        let (mut row, end) =
            (units.start * self.rows, (units.end * self.rows).min(outer * repeats));
        while row < end {
            let rows = (repeats - row % repeats).min(end - row);
            let b = b.wrapping_add(row / repeats * inner);
            if inner == 1 {
                // SAFETY: `b` has an element for each of `outer`.
                let copies = [unsafe { *b }; COPIES];
                let whole = rows / COPIES;
                run(row, copies.as_ptr(), [whole, COPIES]);
                run(row + whole * COPIES, copies.as_ptr(), [1, rows % COPIES]);
            } else {
                run(row * inner, b, [rows, inner]);
            }
            row += rows;
        }
    }

    /// Computes `y` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if an operand is too short, [`KernelError::InvalidParam`] if it
    /// has another type than the plan was made for.
    pub fn compute(
        &self,
        a: Bytes<'_>,
        b: Bytes<'_>,
        mut y: QuantResult<'_>,
    ) -> Result<(), KernelError> {
        let (dtype, y, y_len) = y.parts();
        let found = [("type of a", a.dtype()), ("type of b", b.dtype()), ("type of y", dtype)];
        for (dtype, (param, found)) in self.dtypes.into_iter().zip(found) {
            check_type(OP, param, dtype, found)?;
        }
        let (len, b_len) = (self.len(), self.b_len());
        for (operand, len, found) in [("a", len, a.len()), ("b", b_len, b.len()), ("y", len, y_len)]
        {
            check_len(OP, operand, len, found)?;
        }
        // SAFETY: types and lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(a.as_ptr(), b.as_ptr(), y, 0..self.units()) };
        Ok(())
    }
}

/// How two bytes become one.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// How the operands are read: what `VLOAD8` takes.
    a: [f32; 2],
    b: [f32; 2],
    /// What they are multiplied by.
    factors: [f32; 2],
    /// Of the result before its zero point is added.
    bounds: [f32; 2],
    zero: f32,
}

/// Of first operand, second operand, result, and so many rows of so many elements.
///
/// # Safety
///
/// The CPU has the instructions; so many bytes are readable at the first pointer and writable at the third, and those
/// of one row readable at the second; the third may be one of the others where there is one row, or the first.
type QbinaryFn = unsafe fn(*const u8, *const u8, *mut u8, [usize; 2], &Pair);

/// The kernels of one instruction set, and their names: of sums and of products.
type Kernels = [(QbinaryFn, &'static str); 2];

macro_rules! qbinary_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, [$($f:tt)*], lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::$tile as tile;

            pub(super) const KERNELS: Kernels = [
                (qbinary::<false>, concat!("qadd_i8_", $l, "_", stringify!($isa_name))),
                (qbinary::<true>, concat!("qmul_i8_", $l, "_", stringify!($isa_name))),
            ];

            $(#[target_feature(enable = $f)])*
            unsafe fn qbinary<const MUL: bool>(
                a: *const u8,
                b: *const u8,
                y: *mut u8,
                [rows, inner]: [usize; 2],
                p: &Pair,
            ) {
                let (a_mask, a_zero) = (tile!(VSET p.a[0]), tile!(VSET p.a[1]));
                let (b_mask, b_zero) = (tile!(VSET p.b[0]), tile!(VSET p.b[1]));
                let (a_factor, b_factor) = (tile!(VSET p.factors[0]), tile!(VSET p.factors[1]));
                let (least, most) = (tile!(VSET p.bounds[0]), tile!(VSET p.bounds[1]));
                let zero = tile!(VSET p.zero);
                qelement_pass!($l inner, |i, n| {
                    let b = b.wrapping_add(i * L);
                    let b = qelement_bytes!($l b, n, b_mask, b_zero);
                    let b = if MUL { b } else { tile!(VMUL b, b_factor) };
                    for row in 0..rows {
                        let at = row * inner + i * L;
                        let (a, y) = (a.wrapping_add(at), y.wrapping_add(at));
                        let a = qelement_bytes!($l a, n, a_mask, a_zero);
                        let q = if MUL {
                            // Of bytes, exact.
                            tile!(VMUL tile!(VMUL a, b), a_factor)
                        } else {
                            tile!(VADD tile!(VMUL a, a_factor), b)
                        };
                        let q = tile!(VMIN tile!(VMAX q, least), most);
                        let q = tile!(VADD tile!(VROUND q), zero);
                        if n == L { tile!(VSTORE8 y, q); } else { tile!(VSTORE8_TAIL y, n, q); }
                    }
                });
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(qbinary_row);

fn kernels(isa: Isa, op: QbinaryOp) -> (QbinaryFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::KERNELS[op as usize];
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::KERNELS[op as usize]
}
