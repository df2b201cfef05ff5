//! Reference and conformance tests of the element-wise functions of two operands.

use super::binary::{BinaryOp, BinaryParams, BinaryPlan};
use crate::testing::{Guarded, Numbers, Place, assert_close, maximum, minimum, skip};
use crate::{Activation, Isa, KernelError};
use alloc::{vec, vec::Vec};

fn value(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Min => minimum(a, b),
        BinaryOp::Max => maximum(a, b),
        BinaryOp::Pow => a.powf(b),
        BinaryOp::PRelu => {
            if a > 0.0 {
                a
            } else {
                a * b
            }
        }
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => maximum(x, 0.0),
        Activation::Clip { min, max } => x.clamp(min.into(), max.into()),
        Activation::LeakyRelu { alpha } => {
            if x > 0.0 {
                x
            } else {
                x * f64::from(alpha)
            }
        }
        Activation::Tanh => x.tanh(),
        _ => panic!("no reference"),
    }
}

/// Shape and values of the result, by numpy's rules.
fn reference(p: &BinaryParams<'_>, a: &[f32], b: &[f32]) -> (Vec<usize>, Vec<f64>) {
    let rank = p.a.len().max(p.b.len());
    let pad = |shape: &[usize]| [vec![1; rank - shape.len()], shape.to_vec()].concat();
    let (sa, sb) = (pad(p.a), pad(p.b));
    let dims: Vec<usize> = (0..rank).map(|i| if sa[i] == 1 { sb[i] } else { sa[i] }).collect();
    let at = |shape: &[usize], index: &[usize]| {
        shape.iter().zip(index).fold(0, |at, (&n, &i)| at * n + if n == 1 { 0 } else { i })
    };
    let mut y = Vec::new();
    let mut index = vec![0; rank];
    for _ in 0..dims.iter().product() {
        let (x, z) = (a[at(&sa, &index)], b[at(&sb, &index)]);
        y.push(activate(p.activation, value(p.op, x.into(), z.into())));
        for i in (0..rank).rev() {
            index[i] += 1;
            if index[i] < dims[i] {
                break;
            }
            index[i] = 0;
        }
    }
    (dims, y)
}

const OPS: [BinaryOp; 8] = [
    BinaryOp::Add,
    BinaryOp::Sub,
    BinaryOp::Mul,
    BinaryOp::Div,
    BinaryOp::Min,
    BinaryOp::Max,
    BinaryOp::Pow,
    BinaryOp::PRelu,
];

const ACTIVATIONS: [Activation; 5] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { min: -0.4, max: 0.7 },
    Activation::LeakyRelu { alpha: 0.2 },
    Activation::Tanh,
];

fn check(isa: Isa, p: &BinaryParams<'_>, place: Place) {
    let plan = BinaryPlan::new(isa, p).unwrap();
    let mut numbers = Numbers::new(plan.y_len() as u64);
    let (mut a, b) = (numbers.floats(plan.a_len()), numbers.floats(plan.b_len()));
    if p.op == BinaryOp::Pow {
        a.iter_mut().for_each(|x| *x = x.abs() + 0.01);
    }
    let (dims, expected) = reference(p, &a, &b);
    assert_eq!(plan.y_dims(), dims);
    assert_eq!(plan.y_len(), expected.len());
    let (ga, gb) = (Guarded::new(&a, place), Guarded::new(&b, place));
    let mut y = Guarded::output(plan.y_len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(ga.as_ptr(), gb.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    for (i, (&y, &exact)) in y.iter().zip(&expected).enumerate() {
        // One rounding of the value, and what the activation adds.
        let allowed = exact.abs().max(f64::from(f32::MIN_POSITIVE)) * 3e-7;
        assert!((f64::from(y) - exact).abs() <= allowed, "{p:?} at {i}: {y}, exactly {exact}");
    }
    let mut again = vec![f32::NAN; plan.y_len()];
    plan.compute(&a, &b, &mut again).unwrap();
    assert_eq!(&y[..], again);
    if plan.a_len() == plan.y_len() {
        let mut in_place = Guarded::new(&a, place);
        let x = in_place.as_mut_ptr();
        // SAFETY: the first operand has the result's length and is the result.
        unsafe { plan.run(x, gb.as_ptr(), x, 0..plan.units()) };
        assert_eq!(&in_place[..], again, "{p:?} in place");
    }
    if plan.b_len() == plan.y_len() {
        let mut in_place = Guarded::new(&b, place);
        let x = in_place.as_mut_ptr();
        // SAFETY: the second operand has the result's length and is the result.
        unsafe { plan.run(ga.as_ptr(), x, x, 0..plan.units()) };
        assert_eq!(&in_place[..], again, "{p:?} in place");
    }
}

#[test]
fn hand_computed() {
    for isa in Isa::available() {
        let p =
            BinaryParams { op: BinaryOp::Sub, a: &[2, 1], b: &[3], activation: Activation::Relu };
        let plan = BinaryPlan::new(isa, &p).unwrap();
        let mut y = [f32::NAN; 6];
        plan.compute(&[1.0, 2.0], &[0.5, 1.5, -4.0], &mut y).unwrap();
        assert_eq!(y, [0.5, 0.0, 5.0, 1.5, 0.5, 6.0]);
        assert_eq!(plan.y_dims(), [2, 3]);
    }
}

#[test]
fn powers_have_the_special_cases_of_ieee() {
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        2.0,
        -2.0,
        0.5,
        -0.5,
        3.0,
        -3.0,
        1e-40,
        1e30,
        -1e30,
        88.5,
        127.3,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        16_777_216.0,
        1e9,
        0.999_999,
        1.000_001,
    ];
    for &a in &values {
        for &b in &values {
            let (found, exact) = (super::binary_pow::pow(a, b), a.powf(b));
            let close = (f64::from(found) - f64::from(a).powf(b.into())).abs()
                <= f64::from(exact.abs()) * 6.1e-8 + 0.71e-45;
            assert!(
                close || found == exact || found.is_nan() && exact.is_nan(),
                "{a} ^ {b} = {found}, not {exact}"
            );
        }
    }
    let mut numbers = Numbers::new(3);
    for (a, b) in numbers.floats(20_000).into_iter().zip(numbers.floats(20_000)) {
        let (a, b) = ((a * 60.0).exp2(), b * 3.0);
        let exact = f64::from(a).powf(b.into());
        let (found, bound) = (super::binary_pow::pow(a, b), exact.abs() * 6.1e-8 + 0.71e-45);
        let close = (f64::from(found) - exact).abs() <= bound || f64::from(found) == exact;
        assert!(
            close || exact > f32::MAX.into() && found == f32::INFINITY,
            "{a} ^ {b} = {found}, not {exact}"
        );
    }
}

#[test]
fn shapes_that_do_not_broadcast_are_errors() {
    let plan = |a: &[usize], b: &[usize]| {
        BinaryPlan::new(
            Isa::Scalar,
            &BinaryParams { op: BinaryOp::Add, a, b, activation: Activation::None },
        )
    };
    assert!(matches!(plan(&[2, 3], &[4]), Err(KernelError::InvalidParam { param: "shapes", .. })));
    assert!(matches!(plan(&[1; 9], &[4]), Err(KernelError::InvalidParam { param: "shapes", .. })));
    assert!(matches!(plan(&[usize::MAX, 8], &[1]), Err(KernelError::TooLarge { .. })));
    assert!(matches!(plan(&[usize::MAX, 1], &[1, usize::MAX]), Err(KernelError::TooLarge { .. })));
    assert_eq!(plan(&[0, 3], &[3]).unwrap().units(), 0);
    assert_eq!(plan(&[], &[]).unwrap().y_len(), 1);
}

/// Every pair of some numbers, of infinities and of NaN, in every lane, with one operand repeated and without.
#[test]
fn special_values() {
    let values = [1.5, -2.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
    for isa in Isa::available() {
        for op in [BinaryOp::Min, BinaryOp::Max, BinaryOp::Add] {
            for activation in [Activation::None, Activation::Relu] {
                for (b_len, i) in [1, 37].into_iter().flat_map(|len| (0..7).map(move |i| (len, i)))
                {
                    let a: Vec<f32> = values.into_iter().cycle().take(37).collect();
                    let b = vec![values[i]; b_len];
                    let p = BinaryParams { op, a: &[37], b: &[b_len], activation };
                    let (plan, mut y) = (BinaryPlan::new(isa, &p).unwrap(), [0.0; 37]);
                    plan.compute(&a, &b, &mut y).unwrap();
                    for (y, a) in y.into_iter().zip(a) {
                        let exact = activate(activation, value(op, a.into(), b[0].into()));
                        assert_close(y, exact, 0.0, (plan.kernel_name(), a, b[0], activation));
                    }
                }
            }
        }
    }
}

fn same_length(isa: Isa) {
    for op in OPS {
        for len in (1..=35).chain([63, 64, 65, 127, 131, 8192, 16385, 20_001]) {
            let place = Place::ALL[len % 3];
            let activation = ACTIVATIONS[len % 5];
            check(isa, &BinaryParams { op, a: &[len], b: &[len], activation }, place);
            check(isa, &BinaryParams { op, a: &[len], b: &[1], activation }, place);
            check(isa, &BinaryParams { op, a: &[], b: &[len], activation }, place);
        }
    }
}

fn broadcast(isa: Isa) {
    let shapes: [(&[usize], &[usize]); 20] = [
        (&[3, 17], &[17]),
        (&[3, 17], &[3, 1]),
        (&[3, 1], &[1, 17]),
        (&[2, 3, 4, 5], &[3, 1, 1]),
        (&[2, 3, 4, 5], &[2, 1, 4, 1]),
        (&[1, 3, 1, 5], &[2, 1, 4, 1]),
        (&[5], &[2, 3, 4, 5]),
        (&[7, 1, 1], &[7, 33, 2]),
        (&[2, 2, 49, 16], &[1, 2, 1, 16]),
        (&[2, 2, 49, 16], &[2, 2, 1, 16]),
        (&[1, 1, 600, 16], &[1, 1, 1, 16]),
        (&[16], &[3, 16]),
        (&[2, 1, 2, 1, 2, 1, 2, 1], &[1, 3, 1, 3, 1, 3, 1, 3]),
        (&[1, 1], &[1, 1, 1]),
        (&[1], &[]),
        (&[100, 3], &[3]),
        (&[2, 20_000], &[20_000]),
        (&[2, 20_000], &[2, 1]),
        (&[20_000, 2], &[2]),
        (&[300, 1], &[1, 70]),
    ];
    for (i, (a, b)) in shapes.into_iter().enumerate() {
        for op in [BinaryOp::Add, BinaryOp::Sub, BinaryOp::PRelu] {
            for activation in ACTIVATIONS {
                check(isa, &BinaryParams { op, a, b, activation }, Place::ALL[i % 3]);
                check(isa, &BinaryParams { op, a: b, b: a, activation }, Place::ALL[(i + 1) % 3]);
            }
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn same_length_and_scalars() {
                if !skip(Isa::$isa) {
                    same_length(Isa::$isa);
                }
            }

            #[test]
            fn broadcasting() {
                if !skip(Isa::$isa) {
                    broadcast(Isa::$isa);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);
