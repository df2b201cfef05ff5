//! Conformance of the convolution of bytes, for every row of the table: exact to the bit.

use super::conv::ConvParams;
use super::dot_row;
use super::qconv::{QconvParams, QconvPlan, reference};
use super::qmatmul_tests::{bytes, values};
use crate::pack::blocked_index;
use crate::quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
use crate::testing::{Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Activation, Dtype, Epilogue, Isa, KernelError};
use alloc::{vec, vec::Vec};

fn check(isa: Isa, p: &QconvParams, place: Place) {
    let plan = QconvPlan::new(isa, p).unwrap();
    let c = &p.conv;
    let taps = c.c_in / c.groups * c.kernel[0] * c.kernel[1];
    let mut numbers = Numbers::new((c.c_in * 31 + c.c_out * 7 + c.w_in) as u64);
    let (x, mut w) = (numbers.bytes(plan.x_len()), numbers.bytes(c.c_out * taps));
    // A zero point that keeps the weights in the range of i8, or any with wide ones.
    let middle = if p.w == Dtype::U8 { 128 } else { 0 };
    let zeros: Vec<i32> = match (p.terms > 1, c.c_out % 2) {
        (false, 0) => vec![middle],
        (false, _) => {
            w.iter_mut().for_each(|w| *w = if p.w == Dtype::U8 { *w / 2 + 60 } else { *w });
            (0..c.c_out).map(|k| if p.w == Dtype::U8 { 90 + k as i32 % 9 } else { 0 }).collect()
        }
        (true, 0) => vec![if p.w == Dtype::U8 { 3 } else { -128 }],
        (true, _) => {
            (0..c.c_out).map(|k| if p.w == Dtype::U8 { k as i32 % 255 } else { 99 }).collect()
        }
    };
    let bias: Vec<i32> = numbers.bytes(c.c_out).iter().map(|x| i32::from(*x) * 97 - 9999).collect();
    let size = 200.0 * (taps as f32).sqrt();
    let scales: Vec<f32> =
        (0..c.c_out).map(|n| [1.0 / size, 0.5 / 128.0, 0.37 / size][n % 3]).collect();
    let shifts = numbers.floats(c.c_out);
    let columns = QuantColumns {
        bias: if c.h_in.is_multiple_of(3) { &[] } else { &bias },
        zero_point: p.x_zero_point,
        scales: if c.h_in.is_multiple_of(2) { &scales } else { &scales[..1] },
        shifts: if c.w_in.is_multiple_of(2) { &[] } else { &shifts },
    };

    let (mut packed, mut after) = (vec![0; plan.weights_len()], vec![0; plan.columns_len()]);
    plan.pack_weights(bytes(p.w, &w), &zeros, &mut packed).unwrap();
    plan.pack_columns(&packed, &columns, &mut after).unwrap();
    let guarded = Buffer::new(&x, place);
    let mut scratch = Buffer::output(plan.scratch_len() * 4, Place::PageEnd);
    let mut local = Buffer::output(plan.local_len() * 4, Place::PageEnd);
    let dtype = p.output.dtype();
    let mut run = |reversed: bool| {
        let mut y = Buffer::output(plan.y_len() * dtype.size(), place);
        let (x, scratch) = (guarded.as_ptr(), scratch.as_mut_ptr().cast());
        let local = local.as_mut_ptr().cast();
        // SAFETY: the operands have the lengths that the plan asks for, and words are aligned.
        unsafe {
            plan.run_convert(x, scratch, 0..plan.convert_units());
            for unit in 0..plan.units() {
                let unit = if reversed { plan.units() - 1 - unit } else { unit };
                let (w, e) = (packed.as_ptr(), after.as_ptr());
                plan.run(x, scratch, w, e, y.as_mut_ptr(), local, unit..unit + 1);
            }
        }
        y
    };
    let y = run(false);
    let found = values(dtype, &y);
    let expected = reference(p, bytes(p.x, &x), bytes(p.w, &w), &zeros, &columns);
    for (i, exact) in expected.iter().enumerate() {
        let shape = [c.n, c.c_out, c.h_out, c.w_out];
        let (h, w) = (i / c.w_out % c.h_out, i % c.w_out);
        let (image, k) = (i / c.w_out / c.h_out / c.c_out, i / c.w_out / c.h_out % c.c_out);
        let at = blocked_index(shape, [image, k, h, w]);
        let relu = c.epilogue.activation == Activation::Relu;
        let exact = if relu { exact.max(0.0) } else { *exact };
        assert_eq!(found[at], exact, "{} at {i}: {p:?}", plan.kernel_name());
    }
    assert!(y[..] == run(true)[..], "{p:?}");
}

/// The types in turn.
fn vary(conv: ConvParams, i: usize) -> QconvParams {
    let x = if i.is_multiple_of(2) { Dtype::U8 } else { Dtype::I8 };
    let outputs = [QuantOutput::u8(131), QuantOutput::I32, QuantOutput::i8(-7), QuantOutput::F32];
    QconvParams {
        x_zero_point: if x == Dtype::U8 { [131, 0, 255][i % 3] } else { [-9, 127, -128][i % 3] },
        w: if i / 2 % 3 == 2 { Dtype::U8 } else { Dtype::I8 },
        terms: [1, 1, 3][i / 3 % 3],
        small: i / 2 % 2 == 1,
        output: outputs[i / 2 % 4],
        ..QconvParams::new(conv, x, 0)
    }
}

fn shapes(isa: Isa) {
    let mut i = 0;
    let mut check = |conv: ConvParams| {
        for _ in 0..3 {
            i += 1;
            check(isa, &vary(conv.clone(), i), Place::ALL[i % 3]);
            check(isa, &vary(conv.clone().direct(), i), Place::ALL[i % 3]);
        }
    };
    for size in [1, 5, 6, 7, 12, 13, 14, 27] {
        for (c_in, c_out) in [(16, 32), (3, 16), (17, 70)] {
            check(ConvParams::new([1, c_in, size, size], c_out, [1, 1]));
            check(ConvParams::new([1, c_in, size, size], c_out, [3, 3]).pads([1; 4]));
        }
    }
    for (c_in, c_out) in [(40, 100), (16, 130)] {
        let conv = ConvParams::new([2, c_in, 9, 8], c_out, [3, 3]);
        check(conv.clone());
        check(conv.clone().pads([0, 1, 1, 0]).stride([2, 2]));
        check(conv.clone().pads([2, 2, 2, 2]).dilation([2, 2]));
        check(conv.pads([1, 2, 3, 0]).stride([1, 3]));
    }
    for (c_in, w) in [(1, 10), (3, 70), (4, 9), (5, 11), (12, 8)] {
        let conv = ConvParams::new([2, c_in, 9, w], 40, [3, 3]).pads([1, 0, 1, 2]).interleaved();
        check(conv.clone());
        check(conv.stride([2, 2]));
    }
    check(ConvParams::new([1, 20, 12, 10], 24, [10, 4]).pads([4, 1, 5, 1]).stride([2, 2]));
    check(ConvParams::new([1, 20, 7, 9], 33, [1, 1]).stride([2, 2]));
    check(ConvParams::new([2, 64, 5, 6], 32, [3, 3]).pads([1; 4]).groups(2));
    check(ConvParams::new([1, 48, 4, 4], 96, [1, 1]).groups(3));
}

/// Groups that do not fill blocks of channels: several in a block, one in several, more or fewer outputs than
/// inputs, one channel each.
fn groups(isa: Isa) {
    let mut i = 0;
    for (c_in, c_out, groups) in [
        (12, 48, 2),
        (24, 24, 3),
        (32, 32, 8),
        (72, 48, 3),
        (36, 90, 2),
        (20, 40, 20),
        (23, 23, 23),
        (200, 40, 5),
        (6, 4, 2),
        (48, 16, 1),
    ] {
        let conv = ConvParams::new([2, c_in, 5, 7], c_out, [3, 3]).groups(groups);
        for conv in [
            conv.clone(),
            conv.clone().pads([1; 4]).stride([2, 2]),
            conv.pads([2, 1, 1, 2]).dilation([1, 2]),
            ConvParams::new([1, c_in, 4, 6], c_out, [1, 1]).groups(groups),
        ] {
            i += 1;
            check(isa, &vary(conv, i), Place::ALL[i % 3]);
        }
    }
}

/// Blocks of tiles and parts of panels, images whose last tiles are cut, margins of several pixels.
fn winograd(isa: Isa) {
    let mut i = 0;
    for (c_in, size, c_out) in [
        (32, [8, 8], 64),
        (64, [13, 9], 100),
        (40, [3, 2], 144),
        (320, [7, 6], 33),
        (48, [2, 5], 48),
    ] {
        let conv = ConvParams::new([2, c_in, size[0], size[1]], c_out, [3, 3]);
        for pads in [[1; 4], [2, 3, 1, 4], [4, 1, 2, 2]] {
            for _ in 0..3 {
                i += 1;
                let p = vary(conv.clone().pads(pads), i);
                let name = QconvPlan::new(isa, &p).unwrap().kernel_name();
                let wide = dot_row(isa, Dtype::I8).word.is_wide();
                assert_eq!(name.starts_with("winograd"), wide, "{name} {p:?}");
                check(isa, &p, Place::ALL[i % 3]);
            }
        }
    }
}

/// The largest sums: as many channels as still have room, and one more, all bytes at the ends of their range.
fn largest(isa: Isa) {
    for (terms, most) in [(1, 1827), (2, 917)] {
        for c_in in [most, most + 1] {
            let conv = ConvParams::new([1, c_in, 4, 4], 32, [3, 3]);
            let p = QconvParams { terms, small: true, ..QconvParams::new(conv, Dtype::U8, 0) };
            let plan = QconvPlan::new(isa, &p).unwrap();
            let fits = dot_row(isa, Dtype::I8).word.is_wide() && c_in == most;
            assert_eq!(plan.kernel_name().starts_with("winograd"), fits, "{isa} {c_in}");
            let x = vec![255u8; plan.x_len()];
            let w = vec![-128i8; 32 * c_in * 9];
            let zero = if terms > 1 { 127 } else { 0 };
            let (mut packed, mut after) =
                (vec![0; plan.weights_len()], vec![0; plan.columns_len()]);
            plan.pack_weights(Bytes::I8(&w), &[zero], &mut packed).unwrap();
            let columns = QuantColumns { bias: &[], zero_point: 0, scales: &[], shifts: &[] };
            plan.pack_columns(&packed, &columns, &mut after).unwrap();
            let mut scratch = vec![0; plan.scratch_len() + plan.local_len()];
            let mut y = vec![0; plan.y_len()];
            let result = QuantResult::I32(&mut y);
            plan.compute(Bytes::U8(&x), &packed, &after, &mut scratch, result).unwrap();
            let sum = 255 * (-128 - zero) * 9 * c_in as i32;
            assert!(y.iter().all(|y| *y == sum), "{isa} {c_in}: {} for {sum}", y[0]);
        }
    }
}

fn activations(isa: Isa) {
    let relu = Epilogue { activation: Activation::Relu, residual: false };
    let conv = ConvParams::new([1, 16, 6, 7], 20, [3, 3]).epilogue(relu);
    let p = QconvParams { output: QuantOutput::F32, ..QconvParams::new(conv, Dtype::U8, 3) };
    check(isa, &p, Place::PageEnd);
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        conformance! { @ $id $isa shapes groups winograd largest activations }
    };
    (@ $id:ident $isa:ident $($test:ident)*) => {
        mod $id {
            use super::*;
            $(#[test]
            fn $test() {
                if !skip(Isa::$isa) {
                    super::$test(Isa::$isa);
                }
            })*
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance, i8);
tilewright_intrinsics::for_each_tile!(conformance, tiles);

#[test]
fn wrong_parameters_are_named() {
    let conv = ConvParams::new([1, 16, 4, 4], 16, [3, 3]);
    let p = QconvParams::new(conv.clone(), Dtype::U8, 0);
    let refused = |p: &QconvParams| QconvPlan::new(Isa::Scalar, p).unwrap_err();
    let invalid = |p: &QconvParams, name: &str| {
        let found = refused(p);
        let named = matches!(found, KernelError::InvalidParam { param, .. } if param == name);
        assert!(named, "{found}");
    };
    invalid(&QconvParams { x: Dtype::F32, ..p.clone() }, "type");
    invalid(&QconvParams { x_zero_point: 256, ..p.clone() }, "zero point");
    let large = ConvParams::new([1, 66_000, 1, 1], 1, [1, 1]);
    invalid(&QconvParams { conv: large, ..p.clone() }, "filter size");
    let unsupported = |conv: ConvParams| {
        let found = refused(&QconvParams { conv, ..p.clone() });
        assert!(matches!(found, KernelError::Unsupported { .. }), "{found}");
    };
    unsupported(conv.transposed());
    unsupported(ConvParams::new([1, 13, 5, 5], 8, [1, 1]).interleaved());
    let plan = QconvPlan::new(Isa::Scalar, &p).unwrap();
    let mut w = vec![0; plan.weights_len()];
    assert!(plan.pack_weights(Bytes::I8(&[0; 2303]), &[], &mut w).is_err());
    assert!(plan.pack_weights(Bytes::I8(&[-1; 2304]), &[127], &mut w).is_ok());
    assert!(plan.pack_weights(Bytes::I8(&[-2; 2304]), &[127], &mut w).is_err());
    invalid(&QconvParams { terms: 4, ..p.clone() }, "terms");
}

#[test]
fn each_of_two_channels_has_its_zero_point() {
    let p = QconvParams::new(ConvParams::new([1, 16, 1, 1], 2, [1, 1]), Dtype::U8, 0);
    for isa in Isa::available() {
        let plan = QconvPlan::new(isa, &p).unwrap();
        let packed = |second: i8, zeros: &[i32]| {
            let weights: Vec<i8> = [-2, second].iter().flat_map(|w| [*w; 16]).collect();
            let mut packed = vec![0; plan.weights_len()];
            plan.pack_weights(Bytes::I8(&weights), zeros, &mut packed).unwrap();
            packed
        };
        // Those of the first channel would not fit the other's.
        assert_eq!(packed(-1, &[0, 127]), packed(-128, &[]), "{isa}");
    }
}
