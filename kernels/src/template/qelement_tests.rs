//! References and conformance of the conversions between floats and bytes, and of sums of bytes.

use super::qelement::{DequantizePlan, QaddParams, QaddPlan, QuantizeParams, QuantizePlan};
use super::qmatmul_tests::{bytes, values};
use crate::quant::{Bytes, QuantOutput, QuantResult};
use crate::testing::{Guarded, Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Dtype, Isa};
use alloc::{vec, vec::Vec};

fn range(dtype: Dtype) -> (f64, f64) {
    if dtype == Dtype::I8 { (-128.0, 127.0) } else { (0.0, 255.0) }
}

/// The byte that a quotient or a sum becomes.
fn quantized(x: f32, zero: i32, dtype: Dtype) -> f64 {
    let (least, most) = range(dtype);
    if x.is_nan() {
        least
    } else {
        (f64::from(x).round_ties_even() + f64::from(zero)).clamp(least, most)
    }
}

/// Scales and zero points of an axis.
fn parameters(axis: usize, dtype: Dtype) -> (Vec<f32>, Vec<i32>) {
    let low = if dtype == Dtype::I8 { 128 } else { 0 };
    let scales = (0..axis).map(|i| [0.25, 0.037, 1e-3][i % 3]).collect();
    (scales, (0..axis).map(|i| (i * 61 % 256) as i32 - low).collect())
}

fn check_conversions(isa: Isa, [outer, axis, inner]: [usize; 3], dtype: Dtype, place: Place) {
    let params = QuantizeParams { outer, axis, inner, dtype };
    let what = (isa, params);
    let (scales, zeros) = parameters(axis, dtype);
    let of = |i: usize| (scales[i / inner % axis], zeros[i / inner % axis]);
    let mut x = Numbers::new((axis * 7 + inner) as u64).floats(outer * axis * inner);
    x.iter_mut().enumerate().for_each(|(i, v)| *v *= of(i).0 * 300.0);
    let special =
        [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.125, 0.375, -0.125, f32::MAX, -0.0];
    x.iter_mut().step_by(3).zip(special).for_each(|(x, v)| *x = v);
    let plan = QuantizePlan::new(isa, &params).unwrap();
    let mut packed = vec![0.0; plan.parameters_len()];
    plan.pack(&scales, &zeros, &mut packed).unwrap();
    let packed = Guarded::new(&packed, place);
    let (gx, mut y) = (Guarded::new(&x, place), Buffer::output(x.len(), place));
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gx.as_ptr(), packed.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    for (i, (x, y)) in x.iter().zip(values(dtype, &y)).enumerate() {
        let (scale, zero) = of(i);
        assert_eq!(y, quantized(x / scale, zero, dtype), "{what:?} {i}: {x}");
    }

    let plan = DequantizePlan::new(isa, &params).unwrap();
    let b = Numbers::new(outer as u64).bytes(x.len());
    let (gb, mut y) = (Buffer::new(&b, place), Guarded::output(b.len(), place));
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gb.as_ptr(), packed.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    for (i, y) in y.iter().enumerate() {
        let (scale, zero) = of(i);
        assert_eq!(*y, (bytes(dtype, &b).get(i) - zero) as f32 * scale, "{what:?} {i}");
    }
}

fn check_add(isa: Isa, len: usize, dtypes: [Dtype; 2], output: QuantOutput, place: Place) {
    let signed = dtypes.map(|dtype| dtype == Dtype::I8);
    let scales = if signed[0] { [0.02, 0.05, 0.04] } else { [0.5, 0.25, 0.5] };
    let zero_points = [if signed[0] { -3 } else { 128 }, if signed[1] { 17 } else { 0 }];
    let params = QaddParams { len, dtypes, scales, zero_points, output };
    let plan = QaddPlan::new(isa, &params).unwrap();
    let mut numbers = Numbers::new(len as u64);
    let (a, b) = (numbers.bytes(len), numbers.bytes(len));
    let (ga, mut gb) = (Buffer::new(&a, place), Buffer::new(&b, place));
    let mut y = Buffer::output(len, place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(ga.as_ptr(), gb.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    let [zero, min, max] = output.range().unwrap();
    for (i, y) in values(output.dtype(), &y).into_iter().enumerate() {
        let part = |x: &[u8], k: usize| {
            (bytes(dtypes[k], x).get(i) - zero_points[k]) as f32 * (scales[k] / scales[2])
        };
        let exact = quantized(part(&a, 0) + part(&b, 1), zero, output.dtype());
        assert_eq!(y, exact.clamp(f64::from(min), f64::from(max)), "{isa} {params:?} {i}");
    }
    let in_place = gb.as_mut_ptr();
    // SAFETY: operands of the plan's length, the result in place of one, one thread.
    unsafe { plan.run(ga.as_ptr(), in_place, in_place, 0..plan.units()) };
    assert!(gb[..] == y[..]);
}

const TYPES: [Dtype; 2] = [Dtype::I8, Dtype::U8];

fn elements(isa: Isa) {
    for (i, dtype) in (0..40).flat_map(|i| TYPES.map(|dtype| (i, dtype))) {
        let place = Place::ALL[i % 3];
        check_conversions(isa, [1, 1, i + 1], dtype, place);
        check_conversions(isa, [2, 5, i + 1], dtype, place);
        check_conversions(isa, [3, i + 1, 1], dtype, place);
        let other = TYPES[i / 2 % 2];
        let output = match (i / 4 % 2, dtype) {
            (0, Dtype::I8) => QuantOutput::i8(-128),
            (0, _) => QuantOutput::u8(255),
            (_, Dtype::I8) => QuantOutput::U8 { zero_point: 0, min: 0, max: 97 },
            _ => QuantOutput::I8 { zero_point: -5, min: -5, max: 127 },
        };
        check_add(isa, i, [dtype, other], output, place);
    }
    for dtype in TYPES {
        check_conversions(isa, [2, 3, 8193], dtype, Place::PageEnd);
        check_conversions(isa, [2, 8199, 1], dtype, Place::PageEnd);
        check_add(isa, 20_001, [dtype; 2], QuantOutput::u8(3), Place::PageEnd);
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn elements_are_exact() {
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
    for isa in Isa::available() {
        let one = QuantizeParams { outer: 1, axis: 1, inner: 5, dtype: Dtype::U8 };
        let plan = QuantizePlan::new(isa, &one).unwrap();
        let (mut p, mut y) = (vec![0.0; 2], [0; 5]);
        plan.pack(&[2.0], &[10], &mut p).unwrap();
        plan.compute(&[1.0, 3.0, -5.0, 1e9, -1e9], &p, QuantResult::U8(&mut y)).unwrap();
        assert_eq!(y, [10, 12, 8, 255, 0]);
        let plan = DequantizePlan::new(isa, &one).unwrap();
        let mut x = [0.0; 5];
        plan.compute(Bytes::U8(&y), &p, &mut x).unwrap();
        assert_eq!(x, [0.0, 4.0, -4.0, 490.0, -20.0]);
        let (scales, zero_points, output) = ([0.5, 1.0, 2.0], [0, -1], QuantOutput::i8(3));
        let params = QaddParams { len: 3, dtypes: [Dtype::I8; 2], scales, zero_points, output };
        let (a, b, mut y) = ([4, 127, -128], [2, 127, -128], [0; 3]);
        let plan = QaddPlan::new(isa, &params).unwrap();
        plan.compute(Bytes::I8(&a), Bytes::I8(&b), QuantResult::I8(&mut y)).unwrap();
        // 4 / 4 + 3 / 2 is 2.5, to the even 2; 31.75 + 64; -32 - 63.5.
        assert_eq!(y, [5, 99, -93]);
    }
}

#[test]
fn wrong_parameters_are_errors() {
    let one = QuantizeParams { outer: 1, axis: 2, inner: 5, dtype: Dtype::U8 };
    assert!(QuantizePlan::new(Isa::Scalar, &QuantizeParams { dtype: Dtype::F32, ..one }).is_err());
    assert!(QuantizePlan::new(Isa::Scalar, &QuantizeParams { outer: usize::MAX, ..one }).is_err());
    let plan = DequantizePlan::new(Isa::Scalar, &one).unwrap();
    let mut p = [0.0; 4];
    assert!(plan.pack(&[1.0], &[], &mut p).is_err());
    assert!(plan.pack(&[1.0, 0.0], &[], &mut p).is_err());
    assert!(plan.pack(&[1.0, f32::NAN], &[], &mut p).is_err());
    assert!(plan.pack(&[1.0, 2.0], &[1, 256], &mut p).is_err());
    assert!(plan.pack(&[1.0, 2.0], &[1], &mut p).is_err());
    assert!(plan.pack(&[1.0, 2.0], &[], &mut p).is_ok());
    assert!(plan.compute(Bytes::I8(&[0; 10]), &p, &mut [0.0; 10]).is_err());
    assert!(plan.compute(Bytes::U8(&[0; 9]), &p, &mut [0.0; 10]).is_err());
    let (scales, zero_points, output) = ([1.0; 3], [0; 2], QuantOutput::i8(0));
    let add = QaddParams { len: 4, dtypes: [Dtype::I8; 2], scales, zero_points, output };
    let refused = |p: QaddParams| QaddPlan::new(Isa::Scalar, &p).is_err();
    assert!(refused(QaddParams { scales: [1.0, 1.0, 0.0], ..add }));
    assert!(refused(QaddParams { scales: [1e30, 1.0, 1e-30], ..add }));
    assert!(refused(QaddParams { zero_points: [0, 128], ..add }));
    assert!(refused(QaddParams { dtypes: [Dtype::I8, Dtype::I32], ..add }));
    assert!(refused(QaddParams { output: QuantOutput::F32, ..add }));
    let none = QuantOutput::I8 { zero_point: 0, min: 1, max: 0 };
    assert!(refused(QaddParams { output: none, ..add }));
}
