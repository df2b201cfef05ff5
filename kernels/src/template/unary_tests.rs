//! Reference and conformance tests of the element-wise functions.

use super::unary::{UnaryKernel, UnaryOp, UnaryParams, UnaryPlan};
use crate::testing::{Guarded, Numbers, Place, maximum, skip};
use crate::{Activation, Isa, KernelError};
use alloc::{vec, vec::Vec};
use tilewright_intrinsics::soft;

/// The error function: 2 / sqrt(pi) e^(-x^2) sum of 2^n x^(2n+1) / (2n+1)!!, all terms positive.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a > 6.0 || x.is_nan() {
        return if x.is_nan() { x } else { x.signum() };
    }
    let (mut term, mut sum, mut n) = (a, a, 1.0);
    while term > sum * 1e-17 && n < 400.0 {
        term *= 2.0 * a * a / (2.0 * n + 1.0);
        sum += term;
        n += 1.0;
    }
    (sum * (-a * a).exp() * core::f64::consts::FRAC_2_SQRT_PI).copysign(x)
}

/// The function from its definition.
fn reference(op: UnaryOp, x: f64) -> f64 {
    let clamp01 = |v: f64| if v.is_nan() { v } else { v.clamp(0.0, 1.0) };
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let softplus = |v: f64| if v > 30.0 { v + (-v).exp() } else { v.exp().ln_1p() };
    let or = |positive: f64, other: f64| if x > 0.0 { positive } else { other };
    match op {
        UnaryOp::Relu => maximum(x, 0.0),
        UnaryOp::LeakyRelu { alpha } => or(x, f64::from(alpha) * x),
        UnaryOp::Clip { min, max } if !x.is_nan() => x.clamp(min.into(), max.into()),
        UnaryOp::Clip { .. } => x,
        UnaryOp::Sigmoid => sigmoid(x),
        UnaryOp::HardSigmoid { alpha, beta } => clamp01(f64::from(alpha) * x + f64::from(beta)),
        UnaryOp::HardSwish => x * clamp01(x / 6.0 + 0.5),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Reciprocal => 1.0 / x,
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Sign => {
            if x == 0.0 || x.is_nan() {
                x
            } else {
                x.signum()
            }
        }
        UnaryOp::Square => x * x,
        UnaryOp::Erf => erf(x),
        UnaryOp::Gelu => 0.5 * x * (1.0 + erf(x * core::f64::consts::FRAC_1_SQRT_2)),
        UnaryOp::GeluTanh => {
            let u = (2.0 / core::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + u.tanh())
        }
        UnaryOp::Silu { alpha } => x * sigmoid(f64::from(alpha) * x),
        UnaryOp::Softplus => softplus(x),
        UnaryOp::Softsign => x / (1.0 + x.abs()),
        UnaryOp::Mish => x * softplus(x).tanh(),
        UnaryOp::Elu { alpha } => or(x, f64::from(alpha) * x.exp_m1()),
        UnaryOp::Celu { alpha } => or(x, f64::from(alpha) * (x / f64::from(alpha)).exp_m1()),
        UnaryOp::Selu { alpha, gamma } => f64::from(gamma) * or(x, f64::from(alpha) * x.exp_m1()),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Atan => x.atan(),
        UnaryOp::ThresholdedRelu { alpha } => {
            if x > f64::from(alpha) {
                x
            } else {
                0.0
            }
        }
        UnaryOp::Affine { scale, shift } => x * f64::from(scale) + f64::from(shift),
    }
}

/// Every function, with the bound in ulp of the result, and per `max(1, |x|)`.
fn cases() -> Vec<(UnaryOp, f64, f64)> {
    vec![
        (UnaryOp::Relu, 0.0, 0.0),
        (UnaryOp::LeakyRelu { alpha: 0.1 }, 0.5, 0.0),
        (UnaryOp::Clip { min: -1.5, max: 6.0 }, 0.0, 0.0),
        (UnaryOp::Sigmoid, 4.0, 0.0),
        (UnaryOp::HardSigmoid { alpha: 0.2, beta: 0.5 }, 1.0, 1e-7),
        (UnaryOp::HardSwish, 1.5, 2e-7),
        (UnaryOp::Tanh, 4.0, 0.0),
        (UnaryOp::Exp, 2.0, 0.0),
        (UnaryOp::Log, 2.0, 0.0),
        (UnaryOp::Sqrt, 0.5, 0.0),
        (UnaryOp::Reciprocal, 0.5, 0.0),
        (UnaryOp::Neg, 0.0, 0.0),
        (UnaryOp::Abs, 0.0, 0.0),
        (UnaryOp::Floor, 0.0, 0.0),
        (UnaryOp::Ceil, 0.0, 0.0),
        (UnaryOp::Round, 0.0, 0.0),
        (UnaryOp::Sign, 0.0, 0.0),
        (UnaryOp::Square, 0.5, 0.0),
        (UnaryOp::Erf, 4.0, 0.0),
        (UnaryOp::Gelu, 0.5, 3e-7),
        (UnaryOp::GeluTanh, 0.5, 3e-7),
        (UnaryOp::SILU, 5.0, 1.5e-45),
        // A power of two: no other rounding.
        (UnaryOp::Silu { alpha: 2.0 }, 5.0, 1.5e-45),
        (UnaryOp::Softplus, 4.0, 0.0),
        (UnaryOp::Softsign, 1.5, 0.0),
        (UnaryOp::Mish, 8.0, 1.5e-45),
        (UnaryOp::Elu { alpha: 1.3 }, 4.0, 0.0),
        (UnaryOp::Celu { alpha: 0.7 }, 5.0, 0.0),
        (UnaryOp::Selu { alpha: 1.673_263_2, gamma: 1.050_701 }, 5.0, 0.0),
        (UnaryOp::Sin, 3.0, 0.0),
        (UnaryOp::Cos, 3.0, 0.0),
        (UnaryOp::Atan, 3.0, 0.0),
        (UnaryOp::ThresholdedRelu { alpha: 0.5 }, 0.0, 0.0),
        (UnaryOp::Affine { scale: 1.7, shift: -0.3 }, 1.0, 2e-7),
    ]
}

/// Numbers of every magnitude, densely where the functions are not flat, and the special ones.
fn inputs() -> Vec<f32> {
    let step = if cfg!(debug_assertions) { 400_009 } else { 20_011 };
    // Quiet NaNs only: the compiler may take signalling ones for quiet, so what a comparison with
    // one gives differs between targets.
    let quiet = |x: f32| if x.is_nan() { f32::from_bits(x.to_bits() | 1 << 22) } else { x };
    let mut list: Vec<f32> =
        (0..=u32::MAX).step_by(step).map(|bits| quiet(f32::from_bits(bits))).collect();
    let dense = if cfg!(debug_assertions) { 20_000 } else { 400_000 };
    list.extend((0..dense).map(|i| (i as f32 / dense as f32 - 0.5) * 40.0));
    list.extend((0..dense / 4).map(|i| (i as f32 / (dense / 4) as f32 - 0.5) * 220.0));
    list.extend((0..dense / 4).map(|i| 0.5 + i as f32 / (dense / 4) as f32));
    // Where sines and cosines are 0, and on both sides of where they leave their kernels.
    list.extend((0..dense / 4).map(|i| (i as f32 / (dense / 4) as f32 - 0.5) * 18_000.0));
    for turn in -6000..6000i16 {
        let zero = (f64::from(turn) * core::f64::consts::FRAC_PI_2) as f32;
        list.extend([zero.next_down(), zero, zero.next_up()]);
    }
    for x in [
        0.0,
        1e-45,
        f32::MIN_POSITIVE,
        1e-39,
        0.5,
        1.0,
        1.5,
        2.5,
        88.722_84,
        88.73,
        87.33,
        103.97,
        104.1,
        0.925,
        4.0,
        10.0,
        8_388_607.5,
        16_777_216.0,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
    ] {
        list.extend([x, -x]);
    }
    list
}

/// Distance in units in the last place of the exact value's `f32` neighbourhood.
fn ulp(exact: f64) -> f64 {
    let bits = (exact.abs() as f32).min(f32::MAX).to_bits();
    (f64::from(f32::from_bits(bits + 1)).min(f64::from(f32::MAX) * 2.0)
        - f64::from(f32::from_bits(bits)))
    .max(1e-45)
}

/// All values of f16 and of bf16.
fn halves() -> Vec<f32> {
    let quiet = |x: f32| if x.is_nan() { f32::from_bits(x.to_bits() | 1 << 22) } else { x };
    let of = |bits: u16| [soft::f32_from_f16(bits), f32::from_bits(u32::from(bits) << 16)];
    (0..=u16::MAX).flat_map(of).map(quiet).collect()
}

fn check(isa: Isa, (op, ulps, absolute): (UnaryOp, f64, f64), x: &[f32]) -> f64 {
    let plan = UnaryPlan::new(isa, &UnaryParams { op, len: x.len() }).unwrap();
    let mut y = vec![f32::NAN; x.len()];
    plan.compute(x, &mut y).unwrap();
    let mut worst = 0.0f64;
    for (&x, &y) in x.iter().zip(&y) {
        let exact = reference(op, f64::from(x));
        let name = plan.kernel_name();
        if exact.is_nan() || y.is_nan() {
            assert!(exact.is_nan() && y.is_nan(), "{name}({x:e}) = {y:e}, exactly {exact:e}");
        } else if exact.abs() > f64::from(f32::MAX) * 1.000_000_1 || y.is_infinite() {
            let rounded = exact as f32;
            let close = y == rounded
                || (exact.abs() > f64::from(f32::MAX) * 0.999_999
                    && y.abs() > f32::MAX * 0.999_999);
            assert!(close, "{name}({x:e}) = {y:e}, exactly {exact:e}");
        } else {
            let error = ((f64::from(y) - exact).abs() - absolute * f64::from(x.abs()).max(1.0))
                .max(0.0)
                / ulp(exact);
            // Half an ulp and a little: the reference itself is rounded.
            assert!(
                error <= ulps.max(0.5) + 1e-3 || (ulps == 0.0 && error == 0.0),
                "{name}({x:e}) = {y:e}, exactly {exact:e}: {error} ulp"
            );
            worst = worst.max(error);
        }
    }
    worst
}

/// Any length, anywhere, in place or not: nothing else is touched, and the position of an element
/// in its vector does not matter.
fn lengths(isa: Isa, op: UnaryOp, len: usize) {
    let kernel = UnaryKernel::new(isa, op).unwrap();
    let plan = UnaryPlan::new(isa, &UnaryParams { op, len }).unwrap();
    let values = Numbers::new(len as u64).floats(len);
    let mut expected = values.clone();
    for x in &mut expected {
        // SAFETY: one element, in place.
        unsafe { kernel.call(x, x, 1) };
    }
    let place = Place::ALL[len % 3];
    let mut x = Guarded::new(&values, place);
    let mut y = Guarded::output(len, place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's length, units of the plan, one thread.
        unsafe { plan.run(x.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    assert_eq!(bits(&y), bits(&expected), "{op:?} {len}");
    assert_eq!(&x[..], values);
    plan.compute_in_place(&mut x).unwrap();
    assert_eq!(bits(&x), bits(&expected), "{op:?} {len} in place");
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { 0 } else { x.to_bits() }).collect()
}

#[test]
fn reference_agrees_with_known_values() {
    for (op, x, y) in [
        (UnaryOp::Erf, 0.5, 0.520_499_877_813_046_5),
        (UnaryOp::Erf, -2.0, -0.995_322_265_018_952_7),
        (UnaryOp::Gelu, 1.0, 0.841_344_746_068_542_9),
        (UnaryOp::GeluTanh, 1.0, 0.841_191_990_608_304_4),
        (UnaryOp::Softplus, 0.0, core::f64::consts::LN_2),
        (UnaryOp::Mish, 1.0, 0.865_098_388_267_310_3),
        (UnaryOp::HardSwish, 1.0, 2.0 / 3.0),
        (UnaryOp::Selu { alpha: 2.0, gamma: 3.0 }, -1.0, 6.0 * ((-1.0f64).exp() - 1.0)),
        (UnaryOp::SILU, 1.0, 0.731_058_578_630_004_9),
        (UnaryOp::Silu { alpha: 0.5 }, 2.0, 2.0 * 0.731_058_578_630_004_9),
    ] {
        let found = reference(op, x);
        assert!((found - y).abs() < 1e-12, "{op:?}({x}) = {found}, not {y}");
    }
}

#[test]
fn special_values() {
    for isa in Isa::available() {
        let apply = |op: UnaryOp, x: f32| {
            let (mut y, plan) =
                ([0.0; 40], UnaryPlan::new(isa, &UnaryParams { op, len: 40 }).unwrap());
            plan.compute(&[x; 40], &mut y).unwrap();
            assert!(y.iter().all(|v| v.to_bits() == y[0].to_bits()), "{isa} {op:?}");
            y[0]
        };
        assert!(apply(UnaryOp::Relu, f32::NAN).is_nan());
        assert_eq!(apply(UnaryOp::ThresholdedRelu { alpha: 0.0 }, f32::NAN).to_bits(), 0);
        assert_eq!(apply(UnaryOp::Relu, -0.0), 0.0);
        assert_eq!(apply(UnaryOp::Relu, f32::NEG_INFINITY), 0.0);
        assert!(apply(UnaryOp::Clip { min: 0.0, max: 6.0 }, f32::NAN).is_nan());
        assert_eq!(apply(UnaryOp::Clip { min: 0.0, max: 6.0 }, f32::INFINITY), 6.0);
        assert_eq!(apply(UnaryOp::Sigmoid, f32::NEG_INFINITY), 0.0);
        assert_eq!(apply(UnaryOp::Tanh, f32::INFINITY), 1.0);
        assert_eq!(apply(UnaryOp::Tanh, -0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(apply(UnaryOp::Log, 0.0), f32::NEG_INFINITY);
        assert!(apply(UnaryOp::Log, -1.0).is_nan());
        assert_eq!(apply(UnaryOp::Sin, -0.0).to_bits(), (-0.0f32).to_bits());
        assert!(apply(UnaryOp::Cos, f32::INFINITY).is_nan());
        assert_eq!(apply(UnaryOp::Atan, f32::NEG_INFINITY), -core::f32::consts::FRAC_PI_2);
        assert_eq!(apply(UnaryOp::Atan, -0.0).to_bits(), (-0.0f32).to_bits());
    }
}

#[test]
fn every_activation_but_none_has_a_function() {
    assert_eq!(UnaryOp::from_activation(Activation::None), None);
    assert_eq!(UnaryOp::from_activation(Activation::Relu), Some(UnaryOp::Relu));
    let elu = UnaryOp::from_activation(Activation::Elu { alpha: 2.0 });
    assert_eq!(elu, Some(UnaryOp::Elu { alpha: 2.0 }));
}

#[test]
fn short_slices_are_errors() {
    let plan = UnaryPlan::new(Isa::Scalar, &UnaryParams { op: UnaryOp::Exp, len: 3 }).unwrap();
    let expected = KernelError::InvalidLength { op: "unary", operand: "y", expected: 3, found: 2 };
    assert_eq!(plan.compute(&[0.0; 3], &mut [0.0; 2]), Err(expected));
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn accuracy_is_within_the_stated_bounds() {
                if skip(Isa::$isa) {
                    return;
                }
                let x = inputs();
                for case in cases() {
                    let worst = check(Isa::$isa, case, &x);
                    std::eprintln!("{:?}: {worst:.2} ulp (bound {})", case.0, case.1);
                }
            }

            #[test]
            fn every_half_is_within_the_stated_bounds() {
                if skip(Isa::$isa) {
                    return;
                }
                let x = halves();
                for case in cases() {
                    let worst = check(Isa::$isa, case, &x);
                    std::eprintln!("{:?}: {worst:.2} ulp (bound {})", case.0, case.1);
                }
            }

            #[test]
            fn any_length_and_place_touches_nothing_else() {
                if skip(Isa::$isa) {
                    return;
                }
                for (op, ..) in cases() {
                    for len in (0..70).chain([4095, 4096, 4097, 9001]) {
                        lengths(Isa::$isa, op, len);
                    }
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

/// For Miri, which is some thousand times slower: every border and tail once.
#[test]
fn small_shapes() {
    for isa in Isa::available() {
        for len in [1, 37] {
            lengths(isa, UnaryOp::Tanh, len);
            lengths(isa, UnaryOp::Sin, len);
        }
    }
}
