//! Conformance tests of gated linear units.

use super::glu::{GluOp, GluParams, GluPlan};
use crate::testing::{Guarded, Numbers, Place, activation_error, assert_close, skip};
use crate::{Isa, KernelError};

/// The function from its definition.
fn function(op: GluOp, x: f64) -> f64 {
    match op {
        GluOp::Silu => x / (1.0 + (-x).exp()),
        GluOp::GeluTanh => {
            let z = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + z.tanh())
        }
        // By the trapezoidal rule on the density: smooth and of finite support in `f64`.
        GluOp::Gelu => {
            let steps = 4000;
            let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * core::f64::consts::PI).sqrt();
            let (from, width) = (-12.0f64, (x + 12.0) / f64::from(steps));
            let at = |i: i32| density(from + f64::from(i) * width);
            let inner: f64 = (1..steps).map(at).sum();
            // The end correction of Euler and Maclaurin, whose density has the derivative -x f(x).
            let ends = (at(0) + at(steps)) / 2.0 + width / 12.0 * (x * at(steps));
            x * width * (inner + ends)
        }
    }
}

fn check(isa: Isa, p: GluParams, place: Place) {
    let plan = GluPlan::new(isa, &p).unwrap();
    let mut numbers = Numbers::new((p.rows * 31 + p.len) as u64);
    let mut gate = numbers.floats(plan.operand_len(0));
    gate.iter_mut().for_each(|x| *x *= 9.0);
    let up = numbers.floats(plan.operand_len(1));
    let (gate, up) = (Guarded::new(&gate, place), Guarded::new(&up, place));
    let mut y = Guarded::output(plan.operand_len(2), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gate.as_ptr(), up.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    for row in 0..p.rows {
        for i in 0..p.len {
            let [g, u, o] = p.strides.map(|stride| row * stride + i);
            let (g, u) = (f64::from(gate[g]), f64::from(up[u]));
            let exact = function(p.op, g) * u;
            let allowed = activation_error(g) * u.abs() + exact.abs() * f64::from(f32::EPSILON);
            assert_close(y[o], exact, allowed, (plan.kernel_name(), p, row, i));
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        #[test]
        fn $id() {
            if skip(Isa::$isa) {
                return;
            }
            for op in [GluOp::Silu, GluOp::GeluTanh, GluOp::Gelu] {
                for (i, len) in [0, 1, 3, 16, 31, 64, 77].into_iter().enumerate() {
                    check(Isa::$isa, GluParams::new(op, 3, len), Place::ALL[i % 3]);
                    let halves = GluParams {
                        strides: [2 * len + 1, 2 * len + 1, len + 2],
                        ..GluParams::new(op, 2, len)
                    };
                    check(Isa::$isa, halves, Place::ALL[(i + 1) % 3]);
                }
            }
            check(Isa::$isa, GluParams::new(GluOp::Silu, 1, 8193), Place::PageEnd);
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

#[test]
fn rows_must_not_overlap_and_operands_must_be_long_enough() {
    let p = GluParams { strides: [4, 4, 3], ..GluParams::new(GluOp::Silu, 2, 4) };
    let wrong = GluPlan::new(Isa::Scalar, &p).unwrap_err();
    assert!(matches!(wrong, KernelError::InvalidParam { param: "strides", .. }), "{wrong:?}");
    let plan = GluPlan::new(Isa::Scalar, &GluParams::new(GluOp::Silu, 2, 4)).unwrap();
    assert!(plan.compute(&[0.0; 8], &[0.0; 7], &mut [0.0; 8]).is_err());
    assert!(plan.compute(&[0.0; 8], &[0.0; 8], &mut [0.0; 8]).is_ok());
}
