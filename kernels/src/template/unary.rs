//! Element-wise functions of one operand.
//!
//! One kernel per function, made from the body in `unary_list!` for every instruction set. The
//! elementary functions are `tile!(MATH ...)`, whose accuracy `tilewright-intrinsics` states.
//!
//! The bound of each function, stated at its variant, is in units in the last place (ulp) of the exact
//! result and holds on every instruction set. It is tested on all values of f16 and bf16, and on about a
//! million others. Where a bound has a part in `|x|`, the exact result may be so near to 0 that ulp say
//! nothing. Functions without one are exact.
//!
//! NaN gives NaN, except in [`UnaryOp::ThresholdedRelu`], which compares: there it gives 0. Functions of the form `x * f(x)` give NaN at -inf, as their definition does.

use super::unary_list::unary_list;
use crate::error::{check_len, checked_len};
use crate::{Activation, Dtype, Isa, KernelError};
use core::ops::Range;

/// A function of one number. Two are equal if they are the same to the bit: a parameter 0 is another than -0.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum UnaryOp {
    /// `max(0, x)`; a NaN stays.
    Relu,
    /// `x > 0 ? x : alpha * x`, correctly rounded.
    LeakyRelu {
        /// Slope below zero.
        alpha: f32,
    },
    /// `min(max(x, min), max)`; a NaN stays.
    Clip {
        /// Lower bound.
        min: f32,
        /// Upper bound; wins over `min`.
        max: f32,
    },
    /// `1 / (1 + e^-x)`. 4 ulp.
    Sigmoid,
    /// `max(0, min(1, alpha * x + beta))`. 1 ulp and `1e-7 * max(1, |x|)`.
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// `x * max(0, min(1, x / 6 + 1 / 2))`. 1.5 ulp and `2e-7 * max(1, |x|)`.
    HardSwish,
    /// `tanh x`. 4 ulp.
    Tanh,
    /// `e^x`. 2 ulp.
    Exp,
    /// `ln x`. 2 ulp.
    Log,
    /// Square root, correctly rounded.
    Sqrt,
    /// `1 / x`, correctly rounded.
    Reciprocal,
    /// `-x`.
    Neg,
    /// `|x|`.
    Abs,
    /// Largest integer not above `x`.
    Floor,
    /// Smallest integer not below `x`.
    Ceil,
    /// Nearest integer, ties to even.
    Round,
    /// -1, 0 or 1; NaN for NaN.
    Sign,
    /// `x * x`, correctly rounded.
    Square,
    /// Error function. 4 ulp.
    Erf,
    /// `x / 2 * (1 + erf(x / sqrt 2))`. 0.5 ulp and `3e-7 * max(1, |x|)`.
    Gelu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`. 0.5 ulp and `3e-7 * max(1, |x|)`.
    GeluTanh,
    /// `x * sigmoid(alpha * x)`. 5 ulp, and `2^-149 * |x|` where the sigmoid is denormal, for an `alpha` that is a
    /// power of two; for others a relative `2^-24 * |alpha * x|` more.
    Silu {
        /// Factor inside.
        alpha: f32,
    },
    /// `ln(1 + e^x)`. 4 ulp.
    Softplus,
    /// `x / (1 + |x|)`. 1.5 ulp.
    Softsign,
    /// `x * tanh(softplus(x))`. 8 ulp, and `2^-149 * |x|`.
    Mish,
    /// `x > 0 ? x : alpha * (e^x - 1)`. 4 ulp.
    Elu {
        /// Scale below zero.
        alpha: f32,
    },
    /// `x > 0 ? x : alpha * (e^(x / alpha) - 1)`. 5 ulp.
    Celu {
        /// Scale below zero.
        alpha: f32,
    },
    /// `gamma * (x > 0 ? x : alpha * (e^x - 1))`. 5 ulp.
    Selu {
        /// Scale below zero, before `gamma`.
        alpha: f32,
        /// Scale of everything.
        gamma: f32,
    },
    /// `sin x`. 3 ulp.
    Sin,
    /// `cos x`. 3 ulp.
    Cos,
    /// Arc tangent of `x`. 3 ulp.
    Atan,
    /// `x > alpha ? x : 0`.
    ThresholdedRelu {
        /// The threshold.
        alpha: f32,
    },
    /// `x * scale + shift`. 1 ulp and `2e-7 * max(1, |x|)` for a scale and a shift from -2 to 2.
    Affine {
        /// Factor.
        scale: f32,
        /// Summand.
        shift: f32,
    },
}

/// `$body` for the operation `$op` of an activation: a place of its own for each, so that a build which asks
/// for kernels there contains those of activations, and no others.
macro_rules! each_activation {
    ($activation:expr, $op:ident => $body:expr) => {
        activations!(each_activation @ $activation, $op => $body)
    };
    (@ $activation:expr, $op:ident => $body:expr; $($name:ident $({ $($field:ident),* })?),*) => {
        match $activation {
            Activation::None => None,
            $(Activation::$name $({ $($field),* })? => {
                let $op = UnaryOp::$name $({ $($field),* })?;
                Some($body)
            })*
        }
    };
}

/// Calls `$then! { $args; activations }` with the functions that are activations.
macro_rules! activations {
    ($then:ident $($args:tt)*) => { $then! { $($args)*;
        Relu, Clip { min, max }, LeakyRelu { alpha }, Sigmoid, Tanh, HardSigmoid { alpha, beta },
        HardSwish, Silu { alpha }, Gelu, GeluTanh, Elu { alpha } } };
}

/// The activation that a function is, if it is one.
macro_rules! activation_of {
    ($op:expr; $($name:ident $({ $($field:ident),* })?),*) => {
        match $op {
            $(UnaryOp::$name $({ $($field),* })? => Some(Activation::$name $({ $($field),* })?),)*
            _ => None,
        }
    };
}

impl UnaryOp {
    /// `x * sigmoid(x)`.
    pub const SILU: Self = Self::Silu { alpha: 1.0 };

    /// The function of an activation; `None` for [`Activation::None`].
    pub fn from_activation(activation: Activation) -> Option<Self> {
        each_activation!(activation, op => op)
    }

    /// The activation that is the same function, if there is one.
    pub fn activation(self) -> Option<Activation> {
        activations!(activation_of self)
    }

    /// Whether this build has a kernel of it. Those with the feature `few-kernels` have them for activations.
    pub fn has_kernel(self) -> bool {
        !cfg!(feature = "few-kernels") || self.activation().is_some()
    }

    /// The function for the arguments that its kernel is not for, if there are such.
    fn elsewhere(self) -> Option<Elsewhere> {
        match self {
            Self::Sin => Some(libm::sinf),
            Self::Cos => Some(libm::cosf),
            _ => None,
        }
    }

    /// The two parameters of the kernel.
    fn params(self) -> [f32; 2] {
        match self {
            Self::LeakyRelu { alpha }
            | Self::Silu { alpha }
            | Self::Elu { alpha }
            | Self::ThresholdedRelu { alpha } => [alpha, 0.0],
            Self::Celu { alpha } => [alpha, 1.0 / alpha],
            Self::Clip { min, max } => [min, max],
            Self::HardSigmoid { alpha, beta } => [alpha, beta],
            Self::Selu { alpha, gamma } => [alpha * gamma, gamma],
            Self::Affine { scale, shift } => [scale, shift],
            _ => [0.0; 2],
        }
    }
}

impl PartialEq for UnaryOp {
    fn eq(&self, other: &Self) -> bool {
        let bits = |op: &Self| op.params().map(f32::to_bits);
        core::mem::discriminant(self) == core::mem::discriminant(other) && bits(self) == bits(other)
    }
}

/// # Safety
///
/// The CPU has the instructions; `len` elements are readable at the first pointer and writable at
/// the second; the two are equal or do not overlap.
type UnaryFn = unsafe fn(*const f32, *mut f32, usize, &[f32; 2]);

/// The function for the arguments that its kernel is not for.
type Elsewhere = fn(f32) -> f32;

/// The microkernel of a function, with its parameters.
#[derive(Clone, Copy, Debug)]
pub struct UnaryKernel {
    run: UnaryFn,
    params: [f32; 2],
    elsewhere: Option<Elsewhere>,
    name: &'static str,
}

/// Where sines and cosines are by kernels: in `-TURNS..=TURNS`. Beyond it a period needs more digits.
const TURNS: f32 = 8192.0;

impl UnaryKernel {
    /// The kernel of `op`.
    ///
    /// # Errors
    ///
    /// [`KernelError::IsaUnavailable`]; [`KernelError::Unsupported`] if [`UnaryOp::has_kernel`] is false.
    pub fn new(isa: Isa, op: UnaryOp) -> Result<Self, KernelError> {
        isa.require()?;
        if !cfg!(feature = "few-kernels") {
            return Ok(kernel(isa, op));
        }
        let what = "this function in a build with few kernels";
        op.activation()
            .and_then(|activation| activation_kernel(isa, activation))
            .ok_or(KernelError::Unsupported { op: "unary", what })
    }

    /// Its name, for instance `tanh_f32_16_u1_avx512`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Applies the function to `len` elements at `x` and writes them to `y`.
    ///
    /// # Safety
    ///
    /// `x` has `len` readable elements and `y` `len` writable ones; they are the same or do not
    /// overlap.
    #[inline]
    pub unsafe fn call(&self, x: *const f32, y: *mut f32, len: usize) {
        match self.elsewhere {
            // Builds with few kernels have none for periodic functions.
            // SAFETY: `new` checked the ISA; the caller owns the operands.
            Some(elsewhere) if !cfg!(feature = "few-kernels") => unsafe {
                self.call_turning(elsewhere, x, y, len);
            },
            // SAFETY: as above.
            _ => unsafe { (self.run)(x, y, len, &self.params) },
        }
    }

    /// As [`call`](Self::call), with what `elsewhere` says for arguments that are not in `-TURNS..=TURNS`.
    ///
    /// # Safety
    ///
    /// That of [`call`](Self::call).
    unsafe fn call_turning(&self, elsewhere: Elsewhere, x: *const f32, y: *mut f32, len: usize) {
        let outside = |v: f32| !(-TURNS..=TURNS).contains(&v);
        // The result may lie where the arguments are, which are needed after it.
        let mut run = [0.0f32; 256];
        for start in (0..len).step_by(run.len()) {
            let run = &mut run[..(len - start).min(256)];
            let y = y.wrapping_add(start);
            // SAFETY: `new` checked the ISA; the caller owns the operands, which are longer than
            // `start` and the run; nobody else knows the run.
            unsafe {
                x.wrapping_add(start).copy_to_nonoverlapping(run.as_mut_ptr(), run.len());
                (self.run)(run.as_ptr(), y, run.len(), &self.params);
            }
            if run.iter().fold(false, |any, &v| any | outside(v)) {
                for (i, &v) in run.iter().enumerate().filter(|&(_, &v)| outside(v)) {
                    // SAFETY: as above.
                    unsafe { y.wrapping_add(i).write(elsewhere(v)) };
                }
            }
        }
    }
}

/// Sizes of an element-wise function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnaryParams {
    /// The function.
    pub op: UnaryOp,
    /// Elements. Of a blocked tensor, all of them: what is past the channels does no harm.
    pub len: usize,
}

/// An element-wise function on a run of elements.
#[derive(Clone, Debug)]
pub struct UnaryPlan {
    kernel: UnaryKernel,
    isa: Isa,
    len: usize,
}

/// Elements of a unit.
const UNIT: usize = 4096;

impl UnaryPlan {
    /// Plans a function.
    ///
    /// # Errors
    ///
    /// [`KernelError::TooLarge`], and as [`UnaryKernel::new`].
    pub fn new(isa: Isa, params: &UnaryParams) -> Result<Self, KernelError> {
        let len = checked_len("unary", &[params.len])?;
        Ok(Self { kernel: UnaryKernel::new(isa, params.op)?, isa, len })
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
        self.len.div_ceil(UNIT)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The kernel that does the work.
    pub fn kernel_name(&self) -> &'static str {
        self.kernel.name
    }

    /// Computes units `units`.
    ///
    /// # Safety
    ///
    /// * `x` has [`len`](Self::len) readable elements, `y` as many writable ones; they are the
    ///   same or do not overlap.
    /// * `units` lies in `0..self.units()`, and no other thread runs any of them now.
    #[inline]
    pub unsafe fn run(&self, x: *const f32, y: *mut f32, units: Range<usize>) {
        debug_assert!(units.end <= self.units());
        let start = units.start * UNIT;
        let len = (units.end * UNIT).min(self.len).saturating_sub(start);
        // SAFETY: the run lies in the operands, which the caller owns.
        unsafe { self.kernel.call(x.wrapping_add(start), y.wrapping_add(start), len) };
    }

    /// Computes `y` from `x` on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if a slice is too short.
    pub fn compute(&self, x: &[f32], y: &mut [f32]) -> Result<(), KernelError> {
        check_len("unary", "x", self.len, x.len())?;
        check_len("unary", "y", self.len, y.len())?;
        // SAFETY: the lengths were checked; slices do not overlap; this thread runs all units.
        unsafe { self.run(x.as_ptr(), y.as_mut_ptr(), 0..self.units()) };
        Ok(())
    }

    /// Replaces `x` by the result on this thread.
    ///
    /// # Errors
    ///
    /// [`KernelError::InvalidLength`] if the slice is too short.
    pub fn compute_in_place(&self, x: &mut [f32]) -> Result<(), KernelError> {
        check_len("unary", "x", self.len, x.len())?;
        let x = x.as_mut_ptr();
        // SAFETY: the length was checked; source and destination are the same.
        unsafe { self.run(x, x, 0..self.units()) };
        Ok(())
    }
}

/// The kernel that follows the tiles, for an activation that they do not do.
pub(crate) fn post_kernel(
    isa: Isa,
    activation: Activation,
) -> Result<Option<UnaryKernel>, KernelError> {
    if activation.in_tile().is_some() {
        return Ok(None);
    }
    isa.require()?;
    Ok(activation_kernel(isa, activation))
}

/// The kernel of an activation for an instruction set that the caller has found available.
pub(crate) fn activation_kernel(isa: Isa, activation: Activation) -> Option<UnaryKernel> {
    each_activation!(activation, op => kernel(isa, op))
}

macro_rules! unary_row {
    ($id:ident: $tile:ident, $isa:ident, $isa_name:ident, $dtype:ident, $feat:tt, lanes $l:tt, $($rest:tt)*) => {
        mod $id {
            use super::*;
            use tilewright_intrinsics::{each, $tile as tile};
            unary_list! { unary_kernels $feat $l $isa_name }
        }
    };
}

macro_rules! unary_kernels {
    ($feat:tt $l:tt $isa_name:ident; $($name:ident $variant:ident x $u:tt |$x:ident, $a:ident, $b:ident| $body:expr;)*) => {
        $(unary_kernel! { $name $feat $l $u |$x, $a, $b| $body })*

        #[inline(always)]
        pub(super) fn kernel(op: UnaryOp) -> (UnaryFn, &'static str) {
            match op {
                $(UnaryOp::$variant { .. } => (
                    $name,
                    concat!(stringify!($name), "_f32_", $l, "_u", $u, "_", stringify!($isa_name)),
                ),)*
            }
        }
    };
}

macro_rules! unary_kernel {
    ($name:ident [$($f:tt)*] $l:tt $u:tt |$x:ident, $a:ident, $b:ident| $body:expr) => {
        $(#[target_feature(enable = $f)])*
        unsafe fn $name(x: *const f32, y: *mut f32, len: usize, p: &[f32; 2]) {
            let ($a, $b) = (tile!(VSET p[0]), tile!(VSET p[1]));
            let _ = ($a, $b);
            let mut i = 0;
            while len - i >= $u * $l {
                let (xs, ys) = (x.wrapping_add(i), y.wrapping_add(i));
                let mut v = [tile!(VZERO); $u];
                each!(k in $u { v[k] = tile!(VLOAD xs, k); });
                each!(k in $u { let $x = v[k]; let z = $body; tile!(VSTORE ys, k, z); });
                i += $u * $l;
            }
            while len - i >= $l {
                let (xs, ys) = (x.wrapping_add(i), y.wrapping_add(i));
                let $x = tile!(VLOAD xs, 0);
                let z = $body;
                tile!(VSTORE ys, 0, z);
                i += $l;
            }
            if i < len {
                let (xs, ys) = (x.wrapping_add(i), y.wrapping_add(i));
                let $x = tile!(VLOAD_TAIL xs, (len - i));
                let z = $body;
                tile!(VSTORE_TAIL ys, (len - i), z);
            }
        }
    };
}

tilewright_intrinsics::for_each_tile!(unary_row);

/// The kernel of a function for an instruction set that the caller has found available.
#[inline(always)]
fn kernel(isa: Isa, op: UnaryOp) -> UnaryKernel {
    let (params, elsewhere) = (op.params(), op.elsewhere());
    let isa = isa.serving(Dtype::F32);
    macro_rules! row {
        ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
            if isa == Isa::$isa {
                let (run, name) = $id::kernel(op);
                return UnaryKernel { run, params, elsewhere, name };
            }
        };
    }
    tilewright_intrinsics::for_each_tile!(row);
    let (run, name) = scalar_f32::kernel(op);
    UnaryKernel { run, params, elsewhere, name }
}
