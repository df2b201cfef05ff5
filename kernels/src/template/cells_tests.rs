//! Conversions against the definition, element by element, on every instruction set.

use super::cells::{CellForm, CellsParams, CellsPlan, scale};
use crate::Isa;
use crate::testing::{Guarded as Floats, Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use std::vec;
use tilewright_intrinsics::soft;

/// An element as it becomes, and the same as it is stored.
fn reference(form: CellForm, x: f32, scale: f32) -> (f64, u16) {
    match form {
        CellForm::F16 => {
            let half = soft::f16_from_f32(x / scale);
            (f64::from(soft::f32_from_f16(half)), half)
        }
        CellForm::I8 | CellForm::I4 => {
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            let byte = soft::round(x * inverse) as i8;
            let mask = if form == CellForm::I4 { 15 } else { 255 };
            (f64::from(byte), u16::from(byte as u8 & mask))
        }
    }
}

fn check(isa: Isa, params: &CellsParams, place: Place) {
    let &CellsParams { rows, k, padded, height, cell, form, .. } = params;
    let stride = k + 3;
    let count = if rows == 0 { 0 } else { (rows - 1) * stride + k };
    let mut x = Numbers::new((rows * 64 + k) as u64).floats(count);
    // One row is small, one large.
    x.iter_mut().skip(stride).take(k).for_each(|x| *x *= 1e-6);
    x.iter_mut().skip(2 * stride).take(k).for_each(|x| *x *= 1e9);
    let plan = CellsPlan::new(isa, params).unwrap();
    let (own, mut out) = (Floats::new(&x, place), Buffer::output(plan.out_len(), place));
    out.fill(0xa5);
    let mut scales = vec![0.0; rows];
    for unit in (0..plan.units()).rev() {
        let (to, scales) = (out.as_mut_ptr(), scales.as_mut_ptr());
        // SAFETY: operands of the plan's length, units of the plan, one thread.
        unsafe { plan.run(own.as_ptr(), stride, to, scales, unit..unit + 1) };
    }
    let stored = |at: usize| match form {
        CellForm::F16 => u16::from_ne_bytes([out[2 * at], out[2 * at + 1]]),
        CellForm::I8 => u16::from(out[at]),
        CellForm::I4 => u16::from(out[at / 2] >> (at % 2 * 4) & 15),
    };
    let untouched = match form {
        CellForm::F16 => 0xa5a5,
        CellForm::I8 => 0xa5,
        // 5 and 10 in turn.
        CellForm::I4 => 5,
    };
    let (mut sums, mut sizes) = (vec![0f64; padded], vec![0f64; padded]);
    for m in 0..height {
        let row = &x[(m * stride).min(count)..][..if m < rows { k } else { 0 }];
        let most = row.iter().fold(0f32, |most, x| most.max(x.abs()));
        for at in 0..padded {
            let found = stored((at / cell * height + m) * cell + at % cell);
            if m >= rows {
                let whole = if form == CellForm::I4 { at % 2 == 1 } else { false };
                let whole = if whole { found == 10 } else { found == untouched };
                assert!(whole, "{isa} {params:?}: row {m} is written");
                continue;
            }
            let given = row.get(at).copied().unwrap_or(0.0);
            let (value, expected) = reference(form, given, scales[m]);
            assert_eq!(found, expected, "{isa} {params:?} row {m}, element {at}: {given}");
            sums[at] += value;
            sizes[at] += value.abs();
        }
        if m < rows {
            let expected = scale(form, most).0;
            assert_eq!(scales[m], expected, "{isa} {params:?} row {m}");
        }
    }
    summed(params, &plan, &x, &out, [&sums, &sizes]);
}

/// The same with sums, which are added to what is there, and what rounding has lost.
fn summed(
    params: &CellsParams,
    plan: &CellsPlan,
    x: &[f32],
    out: &[u8],
    [sums, sizes]: [&[f64]; 2],
) {
    let &CellsParams { rows, k, form, .. } = params;
    let stride = k + 3;
    let (mut again, mut scales) = (out.to_vec(), vec![0.0; rows]);
    let (mut s, mut z) = (vec![1f32; sums.len()], vec![2f32; sums.len()]);
    let found = plan.compute_summed(x, stride, &mut again, &mut scales, &mut s, &mut z).unwrap();
    assert_eq!(again, out, "{plan:?}");
    for at in 0..sums.len() {
        let bound = (sizes[at] + 2.0) * 1e-5;
        assert!((f64::from(s[at]) - 1.0 - sums[at]).abs() <= bound, "{plan:?}");
        assert!((f64::from(z[at]) - 2.0 - sizes[at]).abs() <= bound, "{plan:?}");
    }
    if form != CellForm::F16 {
        let mut lost = [0.0; 2];
        for (row, &scale) in x.chunks(stride).zip(&scales) {
            for &x in row.iter().take(k) {
                let off = f64::from(x) - reference(form, x, scale).0 * f64::from(scale);
                lost = [lost[0] + off * off, lost[1] + f64::from(x) * f64::from(x)];
            }
        }
        for (found, expected) in found.into_iter().zip(lost) {
            // The kernel takes them in single precision.
            let bound = expected * 1e-4 + lost[1] * 1e-12;
            assert!((found - expected).abs() <= bound, "{params:?}: {found} {expected}");
        }
    }
}

fn all(isa: Isa) {
    use CellForm::{F16, I4, I8};
    let forms = [(F16, 4), (F16, 8), (F16, 16), (F16, 32), (I8, 8), (I8, 16), (I8, 32), (I4, 32)];
    for (i, (form, cell)) in forms.into_iter().enumerate() {
        let heights = [(3, 4), (1, 1), (0, 1), (8, 8), (17, 17), (9, 16)];
        let lengths = [(31, 32), (70, 96), (0, 32), (1, 32), (32, 32), (96, 96)];
        // Fewer where an interpreter runs the tests.
        let (some, few) = if cfg!(miri) { (1, 2) } else { (heights.len(), lengths.len()) };
        for (rows, height) in heights.into_iter().take(some) {
            for (k, padded) in lengths.into_iter().take(few) {
                let past_caches = false;
                let params = CellsParams { rows, k, padded, height, cell, form, past_caches };
                check(isa, &params, Place::ALL[(i + rows) % 3]);
                let past = CellsParams { past_caches: true, ..params };
                [Place::Aligned, Place::Misaligned].into_iter().for_each(|p| check(isa, &past, p));
            }
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn small_shapes() {
                if !skip(Isa::$isa) {
                    all(Isa::$isa);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

#[test]
fn what_is_not_finite_has_no_scale() {
    for isa in Isa::available() {
        for (form, bad) in [(CellForm::F16, f32::NAN), (CellForm::I8, f32::INFINITY)] {
            for at in [0, 16, 33, 66] {
                let (rows, past_caches) = (2, false);
                let (k, padded, height, cell) = (67, 96, 2, 32);
                let params = CellsParams { rows, k, padded, height, cell, form, past_caches };
                let plan = CellsPlan::new(isa, &params).unwrap();
                let mut x = [1.0; 134];
                x[67 + at] = bad;
                let (mut out, mut scales) = (vec![0; plan.out_len()], [0.0; 2]);
                plan.compute(&x, 67, &mut out, &mut scales).unwrap();
                assert!(scales[0] > 0.0 && scales[1].is_nan(), "{isa} {at}: {scales:?}");
            }
        }
    }
}

#[test]
fn wrong_parameters() {
    let (rows, height, k, padded, cell) = (2, 2, 30, 32, 8);
    let (form, past_caches) = (CellForm::F16, false);
    let good = CellsParams { rows, k, padded, height, cell, form, past_caches };
    for bad in [
        CellsParams { rows: 3, ..good },
        CellsParams { k: 33, ..good },
        CellsParams { padded: 48, ..good },
        CellsParams { cell: 5, ..good },
        CellsParams { cell: 4, form: CellForm::I8, ..good },
        CellsParams { cell: 64, form: CellForm::I8, ..good },
        CellsParams { height: usize::MAX / 2, ..good },
    ] {
        assert!(CellsPlan::new(Isa::Scalar, &bad).is_err(), "{bad:?}");
    }
    let plan = CellsPlan::new(Isa::Scalar, &good).unwrap();
    let (mut out, mut scales) = ([0; 128], [0.0; 2]);
    assert!(plan.compute(&[0.0; 60], 30, &mut out, &mut scales).is_ok());
    assert!(plan.compute(&[0.0; 59], 30, &mut out, &mut scales).is_err());
    assert!(plan.compute(&[0.0; 60], 30, &mut out[1..], &mut scales).is_err());
    assert!(plan.compute(&[0.0; 60], 30, &mut out, &mut scales[1..]).is_err());
    let mut add = |sums: &mut [f32], sizes: &mut [f32]| {
        plan.compute_summed(&[0.0; 60], 30, &mut out, &mut scales, sums, sizes).is_ok()
    };
    assert!(add(&mut [0.0; 32], &mut [0.0; 32]));
    assert!(!add(&mut [0.0; 31], &mut [0.0; 32]) && !add(&mut [0.0; 32], &mut [0.0; 31]));
}
