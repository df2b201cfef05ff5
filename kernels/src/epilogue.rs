//! What happens to a result between the reduction and the next op.

use crate::template::unary::UnaryOp;

/// A function applied to each element.
///
/// The vector code for all of them is in [`template::unary`](crate::template::unary). NaN stays NaN.
/// Two are equal if they are the same to the bit.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum Activation {
    /// `x`.
    #[default]
    None,
    /// `max(0, x)`.
    Relu,
    /// `min(max(x, min), max)`.
    Clip {
        /// Lower bound.
        min: f32,
        /// Upper bound.
        max: f32,
    },
    /// `x` if positive, else `alpha * x`. `alpha` is finite.
    LeakyRelu {
        /// Slope of the negative side.
        alpha: f32,
    },
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `min(max(alpha * x + beta, 0), 1)`.
    HardSigmoid {
        /// Slope.
        alpha: f32,
        /// Offset.
        beta: f32,
    },
    /// `x * min(max(x / 6 + 1/2, 0), 1)`.
    HardSwish,
    /// `x * sigmoid(alpha * x)`.
    Silu {
        /// Factor inside: 1 for SiLU itself, 1.702 for QuickGELU.
        alpha: f32,
    },
    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    Gelu,
    /// The approximation of GELU by `tanh`.
    GeluTanh,
    /// `x` if positive, else `alpha * (exp(x) - 1)`.
    Elu {
        /// Scale of the negative side.
        alpha: f32,
    },
}

/// What a kernel does with a finished tile before it stores it: adds the residual, then applies
/// the activation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Epilogue {
    /// The activation, applied last.
    pub activation: Activation,
    /// Whether a tensor of the output's shape and layout is added before the activation.
    pub residual: bool,
}

/// An activation as the microkernels do it, in registers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TileActivation {
    /// Nothing.
    None,
    /// `x > 0 ? x : 0`.
    Relu,
    /// `min(max(x, lo), hi)`.
    Clamp { lo: f32, hi: f32 },
    /// `max(x, 0) + alpha * min(x, 0)`.
    Leaky { alpha: f32 },
}

impl PartialEq for Activation {
    fn eq(&self, other: &Self) -> bool {
        UnaryOp::from_activation(*self) == UnaryOp::from_activation(*other)
    }
}

impl Activation {
    /// The form in registers, or `None` where a pass of the unary kernel must follow.
    pub(crate) fn in_tile(self) -> Option<TileActivation> {
        match self {
            Self::None => Some(TileActivation::None),
            Self::Relu => Some(TileActivation::Relu),
            Self::Clip { min, max } => Some(TileActivation::Clamp { lo: min, hi: max }),
            Self::LeakyRelu { alpha } => Some(TileActivation::Leaky { alpha }),
            _ => None,
        }
    }

    /// The same, if it is one of a few instructions: where kernels are many and small, a leaky one is left to a pass
    /// of its own.
    #[cfg(any(feature = "alloc", test))]
    pub(crate) fn short_in_tile(self) -> Option<TileActivation> {
        self.in_tile().filter(|activation| !matches!(activation, TileActivation::Leaky { .. }))
    }
}
