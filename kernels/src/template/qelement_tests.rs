//! References and conformance of the conversions between floats and bytes.

use super::qelement::{DequantizePlan, QuantizeParams, QuantizePlan};
use super::qmatmul_tests::{bytes, values};
use crate::quant::{Bytes, QuantResult};
use crate::testing::{Guarded, Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Dtype, Isa};
use alloc::{vec, vec::Vec};

fn range(dtype: Dtype) -> (f64, f64) {
    if dtype == Dtype::I8 { (-128.0, 127.0) } else { (0.0, 255.0) }
}

/// The byte that a quotient or a sum becomes.
pub(super) fn quantized(x: f32, zero: i32, dtype: Dtype) -> f64 {
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

pub(super) const TYPES: [Dtype; 2] = [Dtype::I8, Dtype::U8];

fn elements(isa: Isa) {
    for (i, dtype) in (0..40).flat_map(|i| TYPES.map(|dtype| (i, dtype))) {
        let place = Place::ALL[i % 3];
        check_conversions(isa, [1, 1, i + 1], dtype, place);
        check_conversions(isa, [2, 5, i + 1], dtype, place);
        check_conversions(isa, [3, i + 1, 1], dtype, place);
    }
    for dtype in TYPES {
        check_conversions(isa, [2, 3, 8193], dtype, Place::PageEnd);
        check_conversions(isa, [2, 8199, 1], dtype, Place::PageEnd);
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
}
