//! Gated linear units: a function of one operand times the other (Shazeer, 2020).

use crate::error::{check_len, checked_len};
use crate::{Dtype, Isa, KernelError};
use core::ops::Range;

/// The function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GluOp {
    /// `x * sigmoid(x)`: SwiGLU.
    Silu,
    /// GELU by its approximation with tanh: GeGLU as Gemma has it.
    GeluTanh,
    /// GELU by the error function.
    Gelu,
}

/// Sizes of a gated linear unit: `y[i, j] = op(gate[i, j]) * up[i, j]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GluParams {
    /// The function of the gate.
    pub op: GluOp,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub len: usize,
    /// Distances of rows of gate, up and result, in elements. Halves of one row are gate and up as far
    /// apart as both together are long.
    pub strides: [usize; 3],
}

impl GluParams {
    /// Rows side by side.
    pub fn new(op: GluOp, rows: usize, len: usize) -> Self {
        Self { op, rows, len, strides: [len; 3] }
    }
}

/// A gated linear unit of fixed sizes.
#[derive(Clone, Debug)]
pub struct GluPlan {
    isa: Isa,
    params: GluParams,
    kernel: GluFn,
    name: &'static str,
    /// Runs of a row.
    runs: usize,
}

const OP: &str = "glu";

/// Elements of a unit, about.
const UNIT: usize = 4096;

impl GluPlan {
    /// Plans a gated linear unit.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] for rows that overlap, [`KernelError::TooLarge`],
    /// [`KernelError::IsaUnavailable`].
    pub fn new(isa: Isa, params: &GluParams) -> Result<Self, KernelError> {
        isa.require()?;
        for stride in params.strides {
            checked_len(OP, &[params.rows, stride])?;
            if stride < params.len && params.rows > 1 {
                let (param, expected) = ("strides", "at least the elements of a row");
                return Err(KernelError::InvalidParam { op: OP, param, expected });
            }
        }
        checked_len(OP, &[params.rows, params.len])?;
        let (kernel, name) = kernel(isa, params.op);
        let runs = params.len.div_ceil(UNIT);
        Ok(Self { isa, params: *params, kernel, name, runs })
    }

    /// Elements of operand `i` (gate, up, result) from its first to its last.
    pub fn operand_len(&self, i: usize) -> usize {
        match self.params.rows {
            0 => 0,
            rows => (rows - 1) * self.params.strides[i] + self.params.len,
        }
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.params.rows * self.runs
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
    /// * The operands have [`operand_len`](Self::operand_len) readable and writable elements; the
    ///   result is one of the others, element by element, or overlaps none.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, gate: *const f32, up: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let GluParams { len, strides: [g, u, o], .. } = self.params;
        for unit in units {
            let (row, run) = (unit / self.runs, unit % self.runs);
            let [first, end] = [run, run + 1].map(|run| run * len / self.runs);
            let at = |stride: usize| row * stride + first;
            let (gate, up) = (gate.wrapping_add(at(g)), up.wrapping_add(at(u)));
            // SAFETY: the ISA is available; the run lies in the operands of the caller.
            unsafe { (self.kernel)(gate, up, y.wrapping_add(at(o)), end - first) };
        }
    }

    /// Computes all units on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, gate: &[f32], up: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len(OP, "gate", self.operand_len(0), gate.len())?;
        check_len(OP, "up", self.operand_len(1), up.len())?;
        check_len(OP, "y", self.operand_len(2), y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(gate.as_ptr(), up.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// `(gate, up, y, n)`
///
/// # Safety
/// The CPU has the instructions; so many elements are readable and writable there.
type GluFn = unsafe fn(*const f32, *const f32, *mut f32, usize);

macro_rules! glu_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::{each, $tile as tile};

            const L: usize = $l;
            glu_kernel! { silu SILU $feat }
            glu_kernel! { gelu_tanh GELU_TANH $feat }
            glu_kernel! { gelu GELU $feat }

            pub(super) fn kernel(op: GluOp) -> (GluFn, &'static str) {
                match op {
                    GluOp::Silu => (silu, concat!("glu_silu_f32_", $l, "_", stringify!($isa_name))),
                    GluOp::GeluTanh => {
                        (gelu_tanh, concat!("glu_gelu_tanh_f32_", $l, "_", stringify!($isa_name)))
                    }
                    GluOp::Gelu => (gelu, concat!("glu_gelu_f32_", $l, "_", stringify!($isa_name))),
                }
            }
        }
    };
}

macro_rules! glu_kernel {
    ($name:ident $f:ident [$($feat:tt)*]) => {
        $(#[target_feature(enable = $feat)])*
        unsafe fn $name(gate: *const f32, up: *const f32, y: *mut f32, n: usize) {
            let mut at = 0;
            // Two at a time: for four there are not enough registers.
            while at + 2 * L <= n {
                let (gate, up, y) = (gate.wrapping_add(at), up.wrapping_add(at), y.wrapping_add(at));
                each!(i in 2 {
                    let x = tile!(VMUL tile!(MATH $f tile!(VLOAD gate, i)), tile!(VLOAD up, i));
                    tile!(VSTORE y, i, x);
                });
                at += 2 * L;
            }
            while at < n {
                let (gate, up, y) = (gate.wrapping_add(at), up.wrapping_add(at), y.wrapping_add(at));
                let count = (n - at).min(L);
                let x = tile!(MATH $f tile!(VLOAD_TAIL gate, count));
                let x = tile!(VMUL x, tile!(VLOAD_TAIL up, count));
                tile!(VSTORE_TAIL y, count, x);
                at += L;
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(glu_row);

fn kernel(isa: Isa, op: GluOp) -> (GluFn, &'static str) {
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                return $id::kernel(op);
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    scalar_f32::kernel(op)
}
