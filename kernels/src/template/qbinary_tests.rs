//! References and conformance of sums and products of bytes.

use super::qbinary::{QbinaryOp, QbinaryParams, QbinaryPlan};
use super::qelement_tests::{TYPES, quantized};
use super::qmatmul_tests::{bytes, values};
use crate::quant::{Bytes, QuantOutput, QuantResult};
use crate::testing::{Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Dtype, Isa};

const OPS: [QbinaryOp; 2] = [QbinaryOp::Add, QbinaryOp::Mul];

fn check(isa: Isa, params: QbinaryParams, place: Place) {
    let plan = QbinaryPlan::new(isa, &params).unwrap();
    let QbinaryParams { op, dims: [_, repeats, inner], dtypes, scales, zero_points, output } =
        params;
    let mut numbers = Numbers::new(plan.len() as u64);
    let (a, b) = (numbers.bytes(plan.len()), numbers.bytes(plan.b_len()));
    let (mut ga, mut gb) = (Buffer::new(&a, place), Buffer::new(&b, place));
    let mut y = Buffer::output(a.len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(ga.as_ptr(), gb.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    let [zero, min, max] = output.range().unwrap();
    let part = |x: &[u8], k: usize, i: usize| (bytes(dtypes[k], x).get(i) - zero_points[k]) as f32;
    for (i, y) in values(output.dtype(), &y).into_iter().enumerate() {
        let row = i / inner;
        let (a, b) = (part(&a, 0, i), part(&b, 1, row / repeats * inner + i % inner));
        let exact = match op {
            QbinaryOp::Add => a * (scales[0] / scales[2]) + b * (scales[1] / scales[2]),
            QbinaryOp::Mul => a * b * (scales[0] * scales[1] / scales[2]),
        };
        let exact = quantized(exact, zero, output.dtype());
        assert_eq!(y, exact.clamp(f64::from(min), f64::from(max)), "{isa} {params:?} {i}");
    }
    // The result in the place of an operand of its length.
    let first = ga.as_mut_ptr();
    if repeats == 1 {
        let second = gb.as_mut_ptr();
        // SAFETY: operands of the plan's length, the result in place of one, one thread.
        unsafe { plan.run(first, second, second, 0..plan.units()) };
        assert!(gb[..] == y[..]);
        gb = Buffer::new(&b, place);
    }
    // SAFETY: as before.
    unsafe { plan.run(first, gb.as_ptr(), first, 0..plan.units()) };
    assert!(ga[..] == y[..]);
}

/// Parameters by number: types, outputs and scales change.
fn params(i: usize, op: QbinaryOp, dims: [usize; 3]) -> QbinaryParams {
    let dtypes = [TYPES[i % 2], TYPES[i / 2 % 2]];
    let output = match (i / 4 % 2, dtypes[0]) {
        (0, Dtype::I8) => QuantOutput::i8(-128),
        (0, _) => QuantOutput::u8(255),
        (_, Dtype::I8) => QuantOutput::U8 { zero_point: 0, min: 0, max: 97 },
        _ => QuantOutput::I8 { zero_point: -5, min: -5, max: 127 },
    };
    let signed = dtypes.map(|dtype| dtype == Dtype::I8);
    let zero_points = [if signed[0] { -3 } else { 128 }, if signed[1] { 17 } else { 0 }];
    let fine = if op == QbinaryOp::Add { 1.0 } else { 0.25 };
    let scales = match i % 3 {
        0 => [0.02, 0.05, 0.04],
        1 => [0.5, 0.25 * fine, 0.5],
        _ => [0.3, -0.04 * fine, 0.5],
    };
    QbinaryParams { op, dims, dtypes, scales, zero_points, output }
}

fn elements(isa: Isa) {
    for (i, op) in (0..40).flat_map(|i| OPS.map(|op| (i, op))) {
        let place = Place::ALL[i % 3];
        check(isa, params(i, op, [1, 1, i]), place);
        // Rows of few elements, blocks of channels, one for a row.
        check(isa, params(i, op, [3, 1 + i % 7, i + 1]), place);
        check(isa, params(i + 1, op, [2, i + 2, 16]), place);
        check(isa, params(i + 2, op, [3, 5 * i + 2, 1]), place);
    }
    // More than a unit of each.
    for (i, op) in [(0, OPS[0]), (1, OPS[1])] {
        for dims in [[1, 1, 20_001], [5, 1, 4_001], [3, 9_001, 1], [2, 600, 16], [2, 3, 9_001]] {
            check(isa, params(i, op, dims), Place::PageEnd);
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn sums_and_products_are_exact() {
                if !skip(Isa::$isa) {
                    elements(Isa::$isa);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

#[test]
fn small_shapes_by_hand() {
    let (scales, zero_points, output) = ([0.5, 1.0, 2.0], [0, -1], QuantOutput::i8(3));
    let dtypes = [Dtype::I8; 2];
    let sum =
        QbinaryParams { op: QbinaryOp::Add, dims: [1, 1, 3], dtypes, scales, zero_points, output };
    for isa in Isa::available() {
        let (a, b, mut y) = ([4, 127, -128], [2, 127, -128], [0; 3]);
        let plan = QbinaryPlan::new(isa, &sum).unwrap();
        plan.compute(Bytes::I8(&a), Bytes::I8(&b), QuantResult::I8(&mut y)).unwrap();
        // 4 / 4 + 3 / 2 is 2.5, to the even 2; 31.75 + 64; -32 - 63.5.
        assert_eq!(y, [5, 99, -93]);
        let gate = QbinaryParams { op: QbinaryOp::Mul, dims: [1, 3, 1], ..sum };
        let plan = QbinaryPlan::new(isa, &gate).unwrap();
        plan.compute(Bytes::I8(&a), Bytes::I8(&b[..1]), QuantResult::I8(&mut y)).unwrap();
        // A quarter of 12, of 381, and of -384.
        assert_eq!(y, [6, 98, -93]);
    }
}

#[test]
fn wrong_parameters_are_errors() {
    let (scales, zero_points, output) = ([1.0; 3], [0; 2], QuantOutput::i8(0));
    let dtypes = [Dtype::I8; 2];
    let sum =
        QbinaryParams { op: QbinaryOp::Add, dims: [1, 2, 2], dtypes, scales, zero_points, output };
    let refused = |p: QbinaryParams| QbinaryPlan::new(Isa::Scalar, &p).is_err();
    assert!(!refused(sum));
    assert!(!refused(QbinaryParams { scales: [1.0, -1.0, 1.0], ..sum }));
    assert!(refused(QbinaryParams { scales: [1.0, 1.0, 0.0], ..sum }));
    assert!(refused(QbinaryParams { scales: [1.0, 1.0, -1.0], ..sum }));
    assert!(refused(QbinaryParams { scales: [1.0, 0.0, 1.0], ..sum }));
    assert!(refused(QbinaryParams { scales: [1.0, f32::NAN, 1.0], ..sum }));
    assert!(refused(QbinaryParams { scales: [1e30, 1.0, 1e-30], ..sum }));
    let tiny = QbinaryParams { scales: [1e-30, 1e-30, 1.0], ..sum };
    assert!(refused(QbinaryParams { op: QbinaryOp::Mul, ..tiny }));
    assert!(refused(QbinaryParams { zero_points: [0, 128], ..sum }));
    assert!(refused(QbinaryParams { dtypes: [Dtype::I8, Dtype::I32], ..sum }));
    assert!(refused(QbinaryParams { output: QuantOutput::F32, ..sum }));
    let none = QuantOutput::I8 { zero_point: 0, min: 1, max: 0 };
    assert!(refused(QbinaryParams { output: none, ..sum }));
    assert!(refused(QbinaryParams { dims: [usize::MAX, 0, 2], ..sum }));
    let plan = QbinaryPlan::new(Isa::Scalar, &sum).unwrap();
    let mut y = [0; 4];
    let mut run = |a: &[i8], b: Bytes<'_>| plan.compute(Bytes::I8(a), b, QuantResult::I8(&mut y));
    assert!(run(&[0; 3], Bytes::I8(&[0; 2])).is_err());
    assert!(run(&[0; 4], Bytes::I8(&[0; 1])).is_err());
    assert!(run(&[0; 4], Bytes::U8(&[0; 2])).is_err());
    assert!(run(&[0; 4], Bytes::I8(&[0; 2])).is_ok());
}
