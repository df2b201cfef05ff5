//! Reference and conformance tests of the normalisations.

use super::norm::{NormAffine, NormOp, NormParams, NormPlan};
use crate::testing::{Guarded, Numbers, Place, assert_close, skip};
use crate::{Isa, KernelError};
use alloc::{vec, vec::Vec};

/// The normalised row before scale and bias, by the definition.
fn normalised(op: NormOp, x: &[f64], epsilon: f64) -> Vec<f64> {
    let mean = if op == NormOp::Rms { 0.0 } else { x.iter().sum::<f64>() / x.len() as f64 };
    let square = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().map(|v| (v - mean) / (square + epsilon).sqrt()).collect()
}

/// Where element `i` of row `row` has its scale and bias.
fn affine_at(affine: NormAffine, len: usize, row: usize, i: usize) -> Option<(usize, bool)> {
    match affine {
        NormAffine::None => None,
        NormAffine::Elements { bias } => Some((i, bias)),
        NormAffine::Parts { groups, parts, bias } => {
            Some((row % groups * parts + i / (len / parts), bias))
        }
    }
}

fn check(isa: Isa, params: NormParams, offset: f32, place: Place) {
    let plan = NormPlan::new(isa, &params).unwrap();
    let NormParams { op, rows, len, epsilon, affine } = params;
    let mut numbers = Numbers::new((rows * 131 + len) as u64);
    let mut x = numbers.floats(rows * len);
    x.iter_mut().for_each(|v| *v += offset);
    let (scale, bias) = (numbers.floats(plan.scale_len()), numbers.floats(plan.bias_len()));
    let (gx, gs, gb) =
        (Guarded::new(&x, place), Guarded::new(&scale, place), Guarded::new(&bias, place));
    let mut y = Guarded::output(rows * len, place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe {
            plan.run(gx.as_ptr(), gs.as_ptr(), gb.as_ptr(), y.as_mut_ptr(), unit..unit + 1);
        }
    }
    let eps = f64::from(f32::EPSILON);
    for row in 0..rows {
        let line: Vec<f64> = x[row * len..][..len].iter().map(|v| f64::from(*v)).collect();
        for (i, z) in normalised(op, &line, epsilon.into()).into_iter().enumerate() {
            let (s, b) = affine_at(affine, len, row, i).map_or((1.0, 0.0), |(at, with_bias)| {
                (f64::from(scale[at]), if with_bias { f64::from(bias[at]) } else { 0.0 })
            });
            // Sums of squares and of deviations round once per step of a vector's lane.
            let allowed =
                eps * ((len as f64).sqrt() + 6.0) * (z.abs() + 1.0) * s.abs() + eps * b.abs();
            let what = (plan.kernel_name(), params, offset, row, i);
            assert_close(y[row * len + i], z * s + b, allowed, what);
        }
    }
    let mut again = Guarded::new(&x, place);
    let in_place = again.as_mut_ptr();
    // SAFETY: operands of the plan's lengths, in place, one thread.
    unsafe { plan.run(in_place, gs.as_ptr(), gb.as_ptr(), in_place, 0..plan.units()) };
    assert_eq!(&y[..], &again[..]);
}

fn affines(len: usize) -> Vec<NormAffine> {
    let mut list = vec![
        NormAffine::None,
        NormAffine::Elements { bias: false },
        NormAffine::Elements { bias: true },
        NormAffine::Parts { groups: 2, parts: 1, bias: true },
        NormAffine::Parts { groups: 3, parts: len, bias: false },
    ];
    if len.is_multiple_of(3) {
        list.push(NormAffine::Parts { groups: 1, parts: 3, bias: true });
    }
    list
}

const OPS: [NormOp; 2] = [NormOp::Layer, NormOp::Rms];

#[test]
fn hand_computed() {
    for isa in Isa::available() {
        let norm = |op, affine, x: &[f32], scale: &[f32], bias: &[f32]| {
            let params = NormParams { op, rows: 2, len: x.len() / 2, epsilon: 0.0, affine };
            let mut y = vec![f32::NAN; x.len()];
            NormPlan::new(isa, &params).unwrap().compute(x, scale, bias, &mut y).unwrap();
            y
        };
        let x = [1.0, 3.0, 1000.0, 1002.0];
        let elements = NormAffine::Elements { bias: true };
        assert_eq!(norm(NormOp::Layer, NormAffine::None, &x, &[], &[]), [-1.0, 1.0, -1.0, 1.0]);
        let y = norm(NormOp::Layer, elements, &x, &[2.0, 3.0], &[10.0, 20.0]);
        assert_eq!(y, [8.0, 23.0, 8.0, 23.0]);
        let parts = NormAffine::Parts { groups: 2, parts: 1, bias: true };
        let y = norm(NormOp::Layer, parts, &x, &[2.0, 3.0], &[10.0, 20.0]);
        assert_eq!(y, [8.0, 12.0, 17.0, 23.0]);
        let x = [1.0, -7.0, -5.0, 5.0];
        let y = norm(NormOp::Rms, NormAffine::Elements { bias: false }, &x, &[5.0, 1.0], &[]);
        assert_eq!(y, [1.0, -1.4, -5.0, 1.0]);
    }
}

#[test]
fn equal_numbers_special_numbers_and_nothing() {
    for isa in Isa::available() {
        let norm = |op, epsilon, x: &[f32]| {
            let params =
                NormParams { op, rows: 1, len: x.len(), epsilon, affine: NormAffine::None };
            let mut y = vec![f32::NAN; x.len()];
            NormPlan::new(isa, &params).unwrap().compute(x, &[], &[], &mut y).unwrap();
            y
        };
        assert_eq!(norm(NormOp::Layer, 1e-5, &[1e6; 77]), [0.0; 77]);
        assert_eq!(norm(NormOp::Rms, 1e-5, &[0.0; 5]), [0.0; 5]);
        assert!(norm(NormOp::Layer, 1e-5, &[1.0, f32::NAN, 2.0]).iter().all(|v| v.is_nan()));
        assert!(norm(NormOp::Layer, 1e-5, &[1.0, f32::INFINITY]).iter().all(|v| v.is_nan()));
        let y = norm(NormOp::Rms, 0.0, &[1.0, f32::INFINITY]);
        assert!(y[0] == 0.0 && y[1].is_nan());
        assert!(norm(NormOp::Layer, 0.0, &[]).is_empty());
    }
}

#[test]
fn wrong_parameters_are_errors() {
    let params = NormParams {
        op: NormOp::Layer,
        rows: 2,
        len: 6,
        epsilon: 1e-5,
        affine: NormAffine::Elements { bias: true },
    };
    let error = |params: NormParams| NormPlan::new(Isa::Scalar, &params).unwrap_err();
    let parts = |groups, parts| NormAffine::Parts { groups, parts, bias: false };
    for (wrong, param) in [
        (NormParams { epsilon: -1e-9, ..params }, "epsilon"),
        (NormParams { epsilon: f32::NAN, ..params }, "epsilon"),
        (NormParams { affine: parts(0, 1), ..params }, "groups"),
        (NormParams { affine: parts(1, 4), ..params }, "parts"),
        (NormParams { affine: parts(1, 0), ..params }, "parts"),
    ] {
        let KernelError::InvalidParam { op: "norm", param: found, .. } = error(wrong) else {
            panic!("{wrong:?}");
        };
        assert_eq!(found, param);
    }
    let large = NormParams { rows: usize::MAX, ..params };
    assert_eq!(error(large), KernelError::TooLarge { op: "norm" });
    let plan = NormPlan::new(Isa::Scalar, &params).unwrap();
    let short = plan.compute(&[0.0; 12], &[1.0; 6], &[0.0; 5], &mut [0.0; 12]);
    let expected =
        KernelError::InvalidLength { op: "norm", operand: "bias", expected: 6, found: 5 };
    assert_eq!(short, Err(expected));
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn rows_of_any_length() {
                if skip(Isa::$isa) {
                    return;
                }
                let lens = (1..70).chain([127, 128, 129, 192, 255, 384, 768, 1000, 4099]);
                for len in lens {
                    let rows = if len < 70 { 5 } else { 2 };
                    for (op, affine) in OPS
                        .into_iter()
                        .flat_map(|op| affines(len).into_iter().map(move |a| (op, a)))
                    {
                        let params = NormParams { op, rows, len, epsilon: 1e-5, affine };
                        check(Isa::$isa, params, 0.0, Place::ALL[len % 3]);
                    }
                }
            }

            #[test]
            fn an_offset_costs_no_digits() {
                if skip(Isa::$isa) {
                    return;
                }
                for (len, offset) in [(64, 1e3), (769, 1e4), (12_544, -3e4)] {
                    let affine = NormAffine::Elements { bias: true };
                    let params =
                        NormParams { op: NormOp::Layer, rows: 3, len, epsilon: 1e-6, affine };
                    check(Isa::$isa, params, offset, Place::Aligned);
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
        for affine in affines(9) {
            let params = NormParams { op: NormOp::Layer, rows: 3, len: 9, epsilon: 1e-5, affine };
            check(isa, params, 0.0, Place::Misaligned);
        }
    }
}
