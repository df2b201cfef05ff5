//! References and conformance tests of reductions and softmax.

use super::reduce::{ReduceOp, ReduceParams, ReducePlan};
use super::softmax::{RowWeights, SoftmaxParams, SoftmaxPlan};
use crate::testing::{Guarded, Numbers, Place, assert_close, maximum, minimum, skip, tolerance};
use crate::{Dtype, Isa, KernelError};
use alloc::{vec, vec::Vec};

const OPS: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Prod,
    ReduceOp::L1,
    ReduceOp::L2,
    ReduceOp::SumSquare,
    ReduceOp::LogSumExp,
];

/// The reduction of some numbers by its definition.
fn reduced(op: ReduceOp, x: &[f64]) -> f64 {
    let sum = |f: &dyn Fn(f64) -> f64| x.iter().map(|&v| f(v)).sum::<f64>();
    match op {
        ReduceOp::Sum => sum(&|v| v),
        ReduceOp::Mean => sum(&|v| v) / x.len() as f64,
        ReduceOp::Max => x.iter().copied().fold(f64::NEG_INFINITY, maximum),
        ReduceOp::Min => x.iter().copied().fold(f64::INFINITY, minimum),
        ReduceOp::Prod => x.iter().product(),
        ReduceOp::L1 => sum(&f64::abs),
        ReduceOp::L2 => sum(&|v| v * v).sqrt(),
        ReduceOp::SumSquare => sum(&|v| v * v),
        ReduceOp::LogSumExp => sum(&f64::exp).ln(),
    }
}

/// The elements along the axis at `(outer, inner)`.
fn line(x: &[f32], axis: usize, inner: usize, o: usize, i: usize) -> Vec<f64> {
    (0..axis).map(|a| f64::from(x[(o * axis + a) * inner + i])).collect()
}

fn check_reduce(isa: Isa, op: ReduceOp, [outer, axis, inner]: [usize; 3], place: Place) {
    let plan = ReducePlan::new(isa, &ReduceParams { op, outer, axis, inner }).unwrap();
    let mut x = Numbers::new((axis * 7 + inner) as u64).floats(plan.x_len());
    if op == ReduceOp::Prod {
        x.iter_mut().for_each(|v| *v = 1.0 + *v / 16.0);
    }
    let gx = Guarded::new(&x, place);
    let mut y = Guarded::output(plan.y_len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gx.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    for o in 0..outer {
        for i in 0..inner {
            let exact = reduced(op, &line(&x, axis, inner, o, i));
            let allowed = match op {
                ReduceOp::Max | ReduceOp::Min => 0.0,
                // Each factor rounds the product by half an epsilon at most.
                ReduceOp::Prod => exact.abs() * axis as f64 * f64::from(f32::EPSILON),
                // Partial sums only grow: rounding errors are relative to the result.
                ReduceOp::L1 | ReduceOp::L2 | ReduceOp::SumSquare => {
                    exact * ((axis as f64).sqrt() + 4.0) * f64::from(f32::EPSILON)
                }
                ReduceOp::LogSumExp => tolerance(Dtype::F32, axis) + 2e-6,
                _ => tolerance(Dtype::F32, axis),
            };
            let what = (plan.kernel_name(), [outer, axis, inner], o, i);
            assert_close(y[o * inner + i], exact, allowed, what);
        }
    }
    let mut again = vec![0.0; plan.y_len()];
    plan.compute(&x, &mut again).unwrap();
    assert_eq!(&y[..], again);
}

fn check_softmax(isa: Isa, log: bool, [outer, axis, inner]: [usize; 3], place: Place, scale: f32) {
    let plan =
        SoftmaxPlan::new(isa, &SoftmaxParams { outer, axis, inner, log, guarded: false }).unwrap();
    let mut x = Numbers::new((axis * 7 + inner) as u64).floats(plan.len());
    x.iter_mut().for_each(|v| *v *= scale);
    let gx = Guarded::new(&x, place);
    let mut y = Guarded::output(plan.len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gx.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    for o in 0..outer {
        for i in 0..inner {
            let line = line(&x, axis, inner, o, i);
            let max = reduced(ReduceOp::Max, &line);
            let sum: f64 = line.iter().map(|v| (v - max).exp()).sum();
            for (a, v) in line.iter().enumerate() {
                let found = y[(o * axis + a) * inner + i];
                let what = (plan.kernel_name(), [outer, axis, inner], o, a, i);
                if log {
                    // The difference to the maximum is rounded first.
                    let allowed = (v - max).abs() * 2e-7 + tolerance(Dtype::F32, axis) + 1e-6;
                    assert_close(found, v - max - sum.ln(), allowed, what);
                } else {
                    let share = (v - max).exp();
                    let exact = share / sum;
                    // Relative: the exponent's rounding, the exponential, the sum, the division.
                    let eps = f64::from(f32::EPSILON);
                    let relative = eps * ((v - max).abs() + 4.0 + (axis as f64).sqrt());
                    let subnormal = share < f64::from(f32::MIN_POSITIVE);
                    let lost = if subnormal { exact } else { 1e-44 };
                    assert_close(found, exact, exact * relative + lost, what);
                }
            }
        }
    }
    let mut again = Guarded::new(&x, place);
    let in_place = again.as_mut_ptr();
    // SAFETY: an operand of the plan's length, in place, one thread.
    unsafe { plan.run(in_place, in_place, 0..plan.units()) };
    assert_eq!(&y[..], &again[..]);
}

#[test]
fn hand_computed() {
    for isa in Isa::available() {
        let reduce = |op, outer, axis, inner, x: &[f32]| {
            let plan = ReducePlan::new(isa, &ReduceParams { op, outer, axis, inner }).unwrap();
            let mut y = vec![f32::NAN; plan.y_len()];
            plan.compute(x, &mut y).unwrap();
            y
        };
        assert_eq!(reduce(ReduceOp::Sum, 2, 3, 1, &[1., 2., 3., 4., 5., 6.]), [6.0, 15.0]);
        assert_eq!(reduce(ReduceOp::Mean, 1, 3, 2, &[1., 2., 3., 4., 5., 6.]), [3.0, 4.0]);
        assert_eq!(reduce(ReduceOp::L2, 1, 2, 1, &[3., -4.]), [5.0]);
        assert_eq!(reduce(ReduceOp::L1, 1, 2, 1, &[3., -4.]), [7.0]);
        // A NaN goes through, wherever it lies, beside infinities as well.
        for (op, end) in [(ReduceOp::Max, f32::INFINITY), (ReduceOp::Min, f32::NEG_INFINITY)] {
            for (axis, inner) in [(150, 1), (7, 70)] {
                for at in 0..axis * inner {
                    for others in [3.0, end, -end] {
                        let mut x = vec![others; axis * inner];
                        x[at] = f32::NAN;
                        for (i, y) in reduce(op, 1, axis, inner, &x).into_iter().enumerate() {
                            assert!(
                                if i == at % inner { y.is_nan() } else { y == others },
                                "{isa} {at}"
                            );
                        }
                    }
                }
            }
        }
        // Nothing at all.
        assert_eq!(reduce(ReduceOp::Sum, 2, 0, 1, &[]), [0.0; 2]);
        assert_eq!(reduce(ReduceOp::Max, 1, 0, 2, &[]), [f32::NEG_INFINITY; 2]);
        assert_eq!(reduce(ReduceOp::Prod, 0, 3, 2, &[]), [0.0; 0]);
        // No overflow, and the limits.
        assert_eq!(reduce(ReduceOp::LogSumExp, 1, 2, 1, &[1000.0, 0.0]), [1000.0]);
        let low = f32::NEG_INFINITY;
        assert_eq!(reduce(ReduceOp::LogSumExp, 1, 3, 1, &[low; 3]), [low]);
        assert_eq!(
            reduce(ReduceOp::LogSumExp, 1, 1, 3, &[low, f32::INFINITY, 0.0]),
            [low, f32::INFINITY, 0.0]
        );
    }
}

/// Weights times their row's share are a softmax of `factor * x`, and nothing else is touched.
#[test]
fn weights_of_rows() {
    for isa in Isa::available() {
        let shapes = [(1, 1, 1.0), (3, 7, 0.125), (2, 64, 2.0), (5, 197, 0.25), (2, 33, 1.0)];
        for ((rows, axis, factor), place) in shapes.into_iter().zip(Place::ALL.into_iter().cycle())
        {
            let x: Vec<f32> =
                (0..rows * axis).map(|i| (i * 37 % 101) as f32 * 0.3 - 15.0).collect();
            let mut y = Guarded::new(&x, place);
            let mut shares = Guarded::output(rows, place);
            // SAFETY: so many rows, and as many shares.
            unsafe {
                RowWeights::new(isa).unwrap().run(
                    y.as_mut_ptr(),
                    [rows, axis],
                    factor,
                    shares.as_mut_ptr(),
                )
            };
            y.check();
            shares.check();
            for ((x, y), share) in x.chunks(axis).zip(y.chunks(axis)).zip(shares.iter()) {
                let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exponents: Vec<f64> =
                    x.iter().map(|x| f64::from(factor) * f64::from(x - most)).collect();
                let sum: f64 = exponents.iter().map(|t| t.exp()).sum();
                for (y, t) in y.iter().zip(&exponents) {
                    let (found, want) = (f64::from(*y), t.exp());
                    let bound =
                        want * (1.0 + t.abs()) / f64::from(1 << 20) + f64::from(f32::MIN_POSITIVE);
                    assert!((found - want).abs() <= bound, "{isa:?} {axis} {found} {want}");
                }
                assert!(
                    (f64::from(*share) * sum - 1.0).abs() < 1e-5,
                    "{isa:?} {axis} {share} {sum}"
                );
            }
        }
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut x, mut share) = ([wrong, wrong, wrong], 0.0);
            // SAFETY: one row.
            unsafe {
                RowWeights::new(isa).unwrap().run(x.as_mut_ptr(), [1, 3], 1.0, &raw mut share)
            };
            assert!(share.is_nan(), "{isa:?} {wrong}");
        }
        let (mut x, mut share) = ([f32::NEG_INFINITY, 3.0, f32::MIN], 0.0);
        // SAFETY: one row.
        unsafe { RowWeights::new(isa).unwrap().run(x.as_mut_ptr(), [1, 3], 1.0, &raw mut share) };
        assert_eq!((x, share), ([0.0, 1.0, 0.0], 1.0));
    }
}

#[test]
fn softmax_of_large_and_special_numbers() {
    for isa in Isa::available() {
        for (outer, inner) in [(2, 1), (1, 2)] {
            let run = |guarded: bool, x: [f32; 4]| {
                let params = SoftmaxParams { outer, axis: 2, inner, log: false, guarded };
                let mut y = [0.5; 4];
                SoftmaxPlan::new(isa, &params).unwrap().compute(&x, &mut y).unwrap();
                y
            };
            let softmax = |x| run(false, x);
            // Both axes are (100, 100): no overflow, equal shares.
            assert_eq!(softmax([100.0; 4]), [0.5; 4]);
            assert_eq!(softmax([f32::MAX; 4]), [0.5; 4]);
            assert!(softmax([f32::NAN; 4]).iter().all(|y| y.is_nan()));
            assert!(softmax([f32::NEG_INFINITY; 4]).iter().all(|y| y.is_nan()));
            for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                // One of two axes has it, or has it twice.
                let mut x = [100.0; 4];
                (x[0], x[inner]) = (wrong, if wrong < 0.0 { wrong } else { 100.0 });
                let mut want = [0.5; 4];
                (want[0], want[inner]) = (0.0, 0.0);
                assert_eq!(run(true, x), want, "{isa:?} {wrong}");
                assert_eq!(run(false, x).iter().filter(|y| y.is_nan()).count(), 2);
            }
        }
        let params = SoftmaxParams { outer: 1, axis: 3, inner: 1, log: false, guarded: true };
        let mut y = [0.5; 3];
        SoftmaxPlan::new(isa, &params)
            .unwrap()
            .compute(&[f32::NEG_INFINITY, 3.0, 3.0], &mut y)
            .unwrap();
        assert_eq!(y, [0.0, 0.5, 0.5]);
    }
}

/// Shares of softmax that would be subnormal before they are divided by the sum are 0, along whichever axis.
#[test]
fn softmax_of_far_numbers_has_no_subnormals() {
    let numbers =
        [0.0, -80.0, -87.0, -89.0, -97.0, -100.0, -120.0, -1e4, f32::MIN, f32::NEG_INFINITY];
    for isa in Isa::available() {
        for (axis, inner) in [(10, 1), (40, 1), (10, 3), (40, 100)] {
            let x: Vec<f32> = (0..axis * inner)
                .map(|i| if i / inner < 10 { numbers[i / inner] } else { -100.0 })
                .collect();
            let params = SoftmaxParams { outer: 1, axis, inner, log: false, guarded: false };
            let mut y = vec![f32::NAN; x.len()];
            SoftmaxPlan::new(isa, &params).unwrap().compute(&x, &mut y).unwrap();
            for (i, (&x, &y)) in x.iter().zip(&y).enumerate() {
                let what = (isa, axis, inner, i);
                if x < -88.0 {
                    assert_eq!(y, 0.0, "{what:?}");
                } else {
                    let exact = f64::from(x).exp();
                    assert_close(y, exact, exact * 1e-5, what);
                }
            }
        }
    }
}

#[test]
fn bad_sizes_are_errors() {
    let params = ReduceParams { op: ReduceOp::Sum, outer: usize::MAX, axis: 0, inner: 2 };
    assert_eq!(
        ReducePlan::new(Isa::Scalar, &params).unwrap_err(),
        KernelError::TooLarge { op: "reduce" }
    );
    let params = SoftmaxParams { outer: 3, axis: usize::MAX, inner: 2, log: false, guarded: false };
    assert_eq!(
        SoftmaxPlan::new(Isa::Scalar, &params).unwrap_err(),
        KernelError::TooLarge { op: "softmax" }
    );
    let plan = SoftmaxPlan::new(Isa::Scalar, &SoftmaxParams { axis: 2, ..params }).unwrap();
    assert!(matches!(
        plan.compute(&[0.0; 11], &mut [0.0; 12]),
        Err(KernelError::InvalidLength { .. })
    ));
}

fn shapes() -> Vec<[usize; 3]> {
    let mut list: Vec<[usize; 3]> = (1..=70).map(|axis| [3, axis, 1]).collect();
    list.extend([[1, 1000, 1], [5, 129, 1], [700, 10, 1], [2, 9000, 1], [9001, 1, 1]]);
    list.extend((2..=70).map(|inner| [2, inner % 7 + 1, inner]));
    list.extend([2, 3, 4, 5, 13, 16, 31, 32, 33].map(|inner| [2, 197, inner]));
    list.extend([[1, 300, 49], [2, 5, 1000], [1, 1, 5], [3, 2, 129]]);
    list
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn reductions() {
                if skip(Isa::$isa) {
                    return;
                }
                for op in OPS {
                    for (i, shape) in shapes().into_iter().enumerate() {
                        check_reduce(Isa::$isa, op, shape, Place::ALL[i % 3]);
                    }
                }
            }

            #[test]
            fn softmax() {
                if skip(Isa::$isa) {
                    return;
                }
                for log in [false, true] {
                    for (i, shape) in shapes().into_iter().enumerate() {
                        check_softmax(Isa::$isa, log, shape, Place::ALL[i % 3], 1.0);
                        check_softmax(Isa::$isa, log, shape, Place::ALL[(i + 1) % 3], 80.0);
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
        for shape in [[2, 19, 1], [2, 3, 5]] {
            check_reduce(isa, ReduceOp::Sum, shape, Place::Misaligned);
            check_softmax(isa, false, shape, Place::PageEnd, 1.0);
        }
    }
}
