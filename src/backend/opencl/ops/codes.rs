//! The numbers that kernels know functions by (`cl/common.cl`).

use tilewright_kernels::Activation;
use tilewright_kernels::template::binary::BinaryOp;

use super::Arg;
use crate::graph::ops::glu::{self, GluOp};
use crate::graph::ops::unary::UnaryOp;

/// A function with its two numbers.
#[derive(Clone, Copy, Default)]
pub(super) struct Function(i32, [f32; 2]);

impl Function {
    /// What a kernel is built with for it.
    pub(super) fn definition(self) -> String {
        format!("-DKIND={}", self.0)
    }

    /// Its numbers, as arguments.
    pub(super) fn numbers(self) -> [Arg; 2] {
        self.1.map(Arg::Float)
    }

    /// That of a gated unit.
    pub(super) fn gate(op: GluOp) -> Self {
        unary(glu::function(op)).expect("devices have the functions of gates")
    }
}

/// A function as kernels know it; `None` if they do not have it.
pub(super) fn unary(op: UnaryOp) -> Option<Function> {
    let with = |code, a, b| Some(Function(code, [a, b]));
    let plain = |code| with(code, 0.0, 0.0);
    match op {
        UnaryOp::Relu => plain(1),
        UnaryOp::Clip { min, max } => with(2, min, max),
        UnaryOp::LeakyRelu { alpha } => with(3, alpha, 0.0),
        UnaryOp::Sigmoid => plain(4),
        UnaryOp::Tanh => plain(5),
        UnaryOp::HardSigmoid { alpha, beta } => with(6, alpha, beta),
        UnaryOp::HardSwish => plain(7),
        UnaryOp::Silu { alpha } => with(8, alpha, 0.0),
        UnaryOp::Gelu => plain(9),
        UnaryOp::GeluTanh => plain(10),
        UnaryOp::Elu { alpha } => with(11, alpha, 0.0),
        UnaryOp::Exp => plain(12),
        UnaryOp::Log => plain(13),
        UnaryOp::Sqrt => plain(14),
        UnaryOp::Reciprocal => plain(15),
        UnaryOp::Neg => plain(16),
        UnaryOp::Abs => plain(17),
        UnaryOp::Floor => plain(18),
        UnaryOp::Ceil => plain(19),
        UnaryOp::Round => plain(20),
        UnaryOp::Square => plain(21),
        UnaryOp::Erf => plain(22),
        UnaryOp::Softplus => plain(23),
        UnaryOp::Softsign => plain(24),
        UnaryOp::Mish => plain(25),
        UnaryOp::Sin => plain(26),
        UnaryOp::Cos => plain(27),
        UnaryOp::Atan => plain(28),
        _ => None,
    }
}

/// An activation as kernels know it; `None` if they do not have it.
pub(super) fn activation(activation: Activation) -> Option<Function> {
    UnaryOp::from_activation(activation).map_or(Some(Function::default()), unary)
}

/// A function of two numbers.
pub(super) fn binary(op: BinaryOp) -> Option<i32> {
    Some(match op {
        BinaryOp::Add => 0,
        BinaryOp::Sub => 1,
        BinaryOp::Mul => 2,
        BinaryOp::Div => 3,
        BinaryOp::Min => 4,
        BinaryOp::Max => 5,
        BinaryOp::Pow => 6,
        BinaryOp::PRelu => 7,
        _ => return None,
    })
}
