//! Element-wise functions of two operands with broadcasting, and a fused activation.
//!
//! A plan merges the dimensions of the two shapes as far as both operands allow and leaves loops
//! around a run of elements that a kernel walks with vectors: both operands contiguous, or one of
//! them a single number. The two innermost dimensions are walked inside the kernel, so short runs
//! (16 channels of a blocked tensor against a vector of channels) cost no call each.

use super::unary::{self, UnaryKernel};
use crate::error::{check_len, checked_len};
use crate::{Activation, C_BLOCK, Dtype, Isa, KernelError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
    /// The smaller; NaN if either is NaN.
    Min,
    /// The larger; NaN if either is NaN.
    Max,
    /// `a` to the power `b`, within 1 ulp; NaN for negative `a` unless `b` is an integer.
    Pow,
    /// `a > 0 ? a : a * b`.
    PRelu,
}

impl BinaryOp {
    /// Whether this build has a kernel of it. Those with the feature `few-kernels` have none of powers and of
    /// [`BinaryOp::PRelu`].
    pub fn has_kernel(self) -> bool {
        !cfg!(feature = "few-kernels") || !matches!(self, Self::Pow | Self::PRelu)
    }
}

/// Shapes and function of an element-wise op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BinaryParams<'a> {
    /// The function.
    pub op: BinaryOp,
    /// Shape of the first operand, slowest first, up to 8 dimensions.
    pub a: &'a [usize],
    /// Shape of the second operand. The shapes are aligned at their ends; a dimension of 1 (or a
    /// missing one) repeats along the other operand's.
    pub b: &'a [usize],
    /// Applied to the result.
    pub activation: Activation,
}

/// An element-wise op of fixed shapes.
#[derive(Clone, Debug)]
pub struct BinaryPlan {
    isa: Isa,
    kernel: BinaryFn,
    name: &'static str,
    after: Option<UnaryKernel>,
    a_len: usize,
    b_len: usize,
    y_len: usize,
    y_dims: Box<[usize]>,
    /// Outer loops, slowest first.
    loops: Box<[Loop]>,
    rows: Rows,
    /// Rows in all, rows per unit, and elements of a row per unit (all of them, or one row per unit).
    total: usize,
    per_unit: usize,
    part: usize,
}

/// A loop around the kernel: its count and how far the operands move in each turn.
#[derive(Clone, Copy, Debug)]
struct Loop {
    count: usize,
    a: usize,
    b: usize,
}

/// What a kernel walks: `rows` rows of `len` results.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: usize,
    len: usize,
    a_row: usize,
    b_row: usize,
    y_row: usize,
    run: Run,
    /// Whether negative results become 0.
    relu: bool,
}

/// How the operands lie along a row.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Run {
    Both,
    /// The first operand is one number.
    SplatA,
    /// The second operand is one number.
    SplatB,
}

/// Most dimensions of a shape.
const MAX_RANK: usize = 8;
/// Elements of a unit, about.
const UNIT: usize = 8192;
/// Whether kernels apply [`Activation::Relu`] themselves, which is twice the code.
const FUSES_RELU: bool = !cfg!(feature = "few-kernels");

impl BinaryPlan {
    /// Plans an op.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidParam`] if the shapes do not broadcast or have more than 8
    /// dimensions, [`KernelError::TooLarge`], [`KernelError::IsaUnavailable`], [`KernelError::Unsupported`]
    /// if [`BinaryOp::has_kernel`] is false.
    pub fn new(isa: Isa, params: &BinaryParams<'_>) -> Result<Self, KernelError> {
        isa.require()?;
        let invalid =
            |expected| KernelError::InvalidParam { op: "binary", param: "shapes", expected };
        let rank = params.a.len().max(params.b.len());
        if rank > MAX_RANK {
            return Err(invalid("of at most 8 dimensions"));
        }
        let dim =
            |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
        let mut y_dims = Vec::with_capacity(rank);
        // Merged dimensions, slowest first: (count, in a, in b).
        let mut dims: Vec<(usize, bool, bool)> = Vec::with_capacity(rank + 2);
        for i in 0..rank {
            let (a, b) = (dim(params.a, i), dim(params.b, i));
            if a != b && a != 1 && b != 1 {
                return Err(invalid("equal or 1 in each dimension"));
            }
            let n = if a == 1 { b } else { a };
            y_dims.push(n);
            match dims.last_mut() {
                _ if n == 1 => {}
                Some(d) if (d.1, d.2) == (a != 1, b != 1) => d.0 = d.0.saturating_mul(n),
                _ => dims.push((n, a != 1, b != 1)),
            }
        }
        let (a_len, b_len) = (checked_len("binary", params.a)?, checked_len("binary", params.b)?);
        let y_len = checked_len("binary", &y_dims)?;
        let (len, in_a, in_b) = dims.pop().unwrap_or((1, true, true));
        let run = match (in_a, in_b) {
            (false, _) => Run::SplatA,
            (_, false) => Run::SplatB,
            _ => Run::Both,
        };
        let (mut a_step, mut b_step) = (if in_a { len } else { 1 }, if in_b { len } else { 1 });
        let mut loops: Vec<Loop> = dims
            .iter()
            .rev()
            .map(|&(count, in_a, in_b)| {
                let step = Loop {
                    count,
                    a: if in_a { a_step } else { 0 },
                    b: if in_b { b_step } else { 0 },
                };
                a_step *= if in_a { count } else { 1 };
                b_step *= if in_b { count } else { 1 };
                step
            })
            .collect();
        let inner = if loops.is_empty() { Loop { count: 1, a: 0, b: 0 } } else { loops.remove(0) };
        loops.reverse();
        let relu = FUSES_RELU && params.activation == Activation::Relu;
        let after = if relu { None } else { unary::activation_kernel(isa, params.activation) };
        let what = "this function in a build with few kernels";
        let (kernel, name) =
            kernel(isa, params.op).ok_or(KernelError::Unsupported { op: "binary", what })?;
        let (per_unit, part) =
            if len > 2 * UNIT { (1, UNIT) } else { ((UNIT / len.max(1)).max(1), len.max(1)) };
        Ok(Self {
            isa,
            kernel,
            name,
            after,
            a_len,
            b_len,
            y_len,
            y_dims: y_dims.into(),
            loops: loops.into(),
            rows: Rows {
                rows: inner.count,
                len,
                a_row: inner.a,
                b_row: inner.b,
                y_row: len,
                run,
                relu,
            },
            total: if y_len == 0 { 0 } else { y_len / len },
            per_unit,
            part,
        })
    }

    /// Elements of the first operand.
    pub fn a_len(&self) -> usize {
        self.a_len
    }

    /// Elements of the second operand.
    pub fn b_len(&self) -> usize {
        self.b_len
    }

    /// Elements of the result.
    pub fn y_len(&self) -> usize {
        self.y_len
    }

    /// Shape of the result, slowest first.
    pub fn y_dims(&self) -> &[usize] {
        &self.y_dims
    }

    /// Independent units of work.
    pub fn units(&self) -> usize {
        self.total.div_ceil(self.per_unit) * self.rows.len.div_ceil(self.part)
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
    /// * `a` and `b` have [`a_len`](Self::a_len) and [`b_len`](Self::b_len) readable elements, `y`
    ///   [`y_len`](Self::y_len) writable ones. `y` does not overlap an operand, unless it is that
    ///   operand and the operand has as many elements.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    pub unsafe fn run(&self, a: *const f32, b: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let parts = self.rows.len.div_ceil(self.part);
        for unit in units {
            let at = unit % parts * self.part;
            let len = self.part.min(self.rows.len - at);
            let mut row = unit / parts * self.per_unit;
            let end = (row + self.per_unit).min(self.total);
            while row < end {
                let (turn, first) = (row / self.rows.rows, row % self.rows.rows);
                let rows = (self.rows.rows - first).min(end - row);
                let (mut a_at, mut b_at) = (first * self.rows.a_row, first * self.rows.b_row);
                let mut rest = turn;
                for step in self.loops.iter().rev() {
                    a_at += rest % step.count * step.a;
                    b_at += rest % step.count * step.b;
                    rest /= step.count;
                }
                a_at += if self.rows.run == Run::SplatA { 0 } else { at };
                b_at += if self.rows.run == Run::SplatB { 0 } else { at };
                let y = y.wrapping_add(row * self.rows.y_row + at);
                let job = Rows { rows, len, ..self.rows };
                // SAFETY: the ISA is available; the rows lie in the operands by construction of the
                // steps, and the caller owns the operands.
                unsafe { (self.kernel)(a.wrapping_add(a_at), b.wrapping_add(b_at), y, &job) };
                if let Some(after) = &self.after {
                    // Rows are whole, or there is one: either way one run of results.
                    // SAFETY: the run was just written; the operation is in place.
                    unsafe { after.call(y, y, (rows - 1) * self.rows.y_row + len) };
                }
                row += rows;
            }
        }
    }

    /// Computes `y` from `a` and `b` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, a: &[f32], b: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len("binary", "a", self.a_len, a.len())?;
        check_len("binary", "b", self.b_len, b.len())?;
        check_len("binary", "y", self.y_len, y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(a.as_ptr(), b.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }
}

/// # Safety
///
/// The CPU has the instructions; the rows of the job are readable at the first two pointers and
/// writable at the third, which may be one of the first two.
type BinaryFn = unsafe fn(*const f32, *const f32, *mut f32, &Rows);

macro_rules! binary_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, c_vec $v:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::{each, $tile as tile};
            #[cfg(not(feature = "few-kernels"))]
            binary_powers! { $feat $l }
            binary_kernels! { $feat $l $v $isa_name
                add Add |p, q| tile!(VADD p, q);
                sub Sub |p, q| tile!(VSUB p, q);
                mul Mul |p, q| tile!(VMUL p, q);
                div Div |p, q| tile!(VDIV p, q);
                min Min |p, q| tile!(VMINIMUM p, q);
                max Max |p, q| tile!(VMAXIMUM p, q);
                #[cfg(not(feature = "few-kernels"))]
                prelu PRelu |p, q| tile!(VSEL tile!(VGT p, tile!(VZERO)), p, tile!(VMUL p, q));
                #[cfg(not(feature = "few-kernels"))]
                power Pow |p, q| {
                    let (base, mut lanes) = (tile!(LANES_OF p), tile!(LANES_OF q));
                    powers(&base, &mut lanes);
                    let lanes = lanes.as_ptr();
                    tile!(VLOAD lanes, 0)
                };
            }
        }
    };
}

#[cfg(not(feature = "few-kernels"))]
macro_rules! binary_powers {
    ([$($f:tt)*] $l:tt) => {
        /// In a function of its own, as it would be written out for each vector of each loop: 300 KB.
        #[inline(never)]
        $(#[target_feature(enable = $f)])*
        fn powers(base: &[f32; $l], exponents: &mut [f32; $l]) {
            crate::template::binary_pow::powers(base, exponents);
        }
    };
}

macro_rules! binary_kernels {
    ($feat:tt $l:tt $v:tt $isa_name:ident
     $($(#[$when:meta])? $name:ident $variant:ident |$p:ident, $q:ident| $body:expr;)*) => {
        $($(#[$when])? binary_kernel! { $name $feat $l $v |$p, $q| $body })*

        pub(super) fn kernel(op: BinaryOp) -> Option<(BinaryFn, &'static str)> {
            match op {
                $($(#[$when])? BinaryOp::$variant => Some((
                    $name,
                    concat!(stringify!($name), "_f32_", $l, "_u4_", stringify!($isa_name)),
                )),)*
                #[cfg(feature = "few-kernels")]
                _ => None,
            }
        }
    };
}

macro_rules! binary_kernel {
    ($name:ident [$($f:tt)*] $l:tt $v:tt |$p:ident, $q:ident| $body:expr) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(a: *const f32, b: *const f32, y: *mut f32, rows: &Rows) {
            if FUSES_RELU && rows.relu {
                binary_rows!($l $v a b y rows |$p, $q| {
                    let z = $body;
                    tile!(VMAX tile!(VZERO), z)
                });
            } else {
                binary_rows!($l $v a b y rows |$p, $q| $body);
            }
        }
    };
}

macro_rules! binary_rows {
    ($l:tt $v:tt $a:ident $b:ident $y:ident $rows:ident |$p:ident, $q:ident| $body:expr) => {
        if $rows.run == Run::Both && $rows.len == C_BLOCK {
            for r in 0..$rows.rows {
                let (a, b) = ($a.wrapping_add(r * $rows.a_row), $b.wrapping_add(r * $rows.b_row));
                let y = $y.wrapping_add(r * $rows.y_row);
                binary_pass!($v a both, b both, y |$p, $q| $body);
            }
        } else {
            for r in 0..$rows.rows {
                let (a, b) = ($a.wrapping_add(r * $rows.a_row), $b.wrapping_add(r * $rows.b_row));
                let y = $y.wrapping_add(r * $rows.y_row);
                match $rows.run {
                    Run::Both => { binary_run!($l $rows.len, a both, b both, y |$p, $q| $body); }
                    Run::SplatA => {
                        let a = tile!(VSPLAT a, 0);
                        binary_run!($l $rows.len, a splat, b both, y |$p, $q| $body);
                    }
                    Run::SplatB => {
                        let b = tile!(VSPLAT b, 0);
                        binary_run!($l $rows.len, a both, b splat, y |$p, $q| $body);
                    }
                }
            }
        }
    };
}

macro_rules! binary_run {
    ($l:tt $len:expr, $a:ident $how_a:ident, $b:ident $how_b:ident, $y:ident |$p:ident, $q:ident| $body:expr) => {{
        let (len, mut i) = ($len, 0);
        #[cfg(not(feature = "few-kernels"))]
        while len - i >= 4 * $l {
            binary_at!(a, $a $how_a, i);
            binary_at!(b, $b $how_b, i);
            let y = $y.wrapping_add(i);
            binary_pass!(4 a $how_a, b $how_b, y |$p, $q| $body);
            i += 4 * $l;
        }
        while len - i >= $l {
            binary_at!(a, $a $how_a, i);
            binary_at!(b, $b $how_b, i);
            let y = $y.wrapping_add(i);
            binary_pass!(1 a $how_a, b $how_b, y |$p, $q| $body);
            i += $l;
        }
        if i < len {
            binary_at!(a, $a $how_a, i);
            binary_at!(b, $b $how_b, i);
            let y = $y.wrapping_add(i);
            let $p = binary_tail!($how_a a, (len - i));
            let $q = binary_tail!($how_b b, (len - i));
            let z = $body;
            tile!(VSTORE_TAIL y, (len - i), z);
        }
    }};
}

/// Declares an operand at element `i` of its row.
macro_rules! binary_at {
    ($a:ident, $p:ident both, $i:ident) => {
        let $a = $p.wrapping_add($i);
    };
    ($a:ident, $p:ident splat, $i:ident) => {
        let $a = $p;
    };
}

/// The partial vector at the end of a row.
macro_rules! binary_tail {
    (both $p:ident, $n:expr) => { tile!(VLOAD_TAIL $p, $n) };
    (splat $p:ident, $n:expr) => { $p };
}

/// One vector of an operand.
macro_rules! binary_load {
    (both $p:ident, $i:expr) => { tile!(VLOAD $p, $i) };
    (splat $p:ident, $i:expr) => { $p };
}

/// `n` whole vectors: all loads first, as the destination may be an operand.
macro_rules! binary_pass {
    ($n:tt $a:ident $how_a:ident, $b:ident $how_b:ident, $y:ident |$p:ident, $q:ident| $body:expr) => {
        let mut v = [(tile!(VZERO), tile!(VZERO)); $n];
        each!(k in $n { v[k] = (binary_load!($how_a $a, k), binary_load!($how_b $b, k)); });
        each!(k in $n { let ($p, $q) = v[k]; let z = $body; tile!(VSTORE $y, k, z); });
    };
}

tilewright_intrinsics::for_each_tile!(binary_row);

fn kernel(isa: Isa, op: BinaryOp) -> Option<(BinaryFn, &'static str)> {
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
