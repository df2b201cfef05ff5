//! Conformance of the product of bytes, for every row of the table: exact to the bit.

use super::matmul::MatmulParams;
use super::qmatmul::{QmatmulParams, QmatmulPlan, reference};
use crate::quant::{Bytes, QuantColumns, QuantOutput, QuantResult};
use crate::testing::{Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Activation, Dtype, Isa, KernelError};
use alloc::{vec, vec::Vec};

pub(super) fn bytes<'a>(dtype: Dtype, x: &'a [u8]) -> Bytes<'a> {
    match dtype {
        Dtype::U8 => Bytes::U8(x),
        // SAFETY: the same bytes as signed ones.
        _ => Bytes::I8(unsafe { core::slice::from_raw_parts(x.as_ptr().cast(), x.len()) }),
    }
}

/// The elements of a result in memory, as their values.
pub(super) fn values(dtype: Dtype, y: &[u8]) -> Vec<f64> {
    let word = |b: &[u8]| i32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    match dtype {
        Dtype::I8 => y.iter().map(|y| f64::from(*y as i8)).collect(),
        Dtype::U8 => y.iter().map(|y| f64::from(*y)).collect(),
        Dtype::I32 => y.chunks_exact(4).map(|b| f64::from(word(b))).collect(),
        _ => y.chunks_exact(4).map(|b| f64::from(f32::from_bits(word(b) as u32))).collect(),
    }
}

fn check(isa: Isa, p: &QmatmulParams, place: Place) {
    let plan = QmatmulPlan::new(isa, p).unwrap();
    let s = &p.sizes;
    let mut numbers = Numbers::new((s.m * 31 + s.n * 7 + s.k) as u64);
    let (a, b) = (numbers.bytes(plan.a_len()), numbers.bytes(plan.b_len()));
    let zero = |dtype, x: u8| if dtype == Dtype::I8 { i32::from(x as i8) } else { i32::from(x) };
    let zeros: Vec<i32> = match (p.b_zero_point, s.n % 2) {
        (false, _) => vec![],
        (true, 0) => numbers.bytes(1).iter().map(|x| zero(p.b, *x)).collect(),
        (true, _) => numbers.bytes(s.n).iter().map(|x| zero(p.b, *x)).collect(),
    };
    let bias: Vec<i32> = numbers.bytes(s.n).iter().map(|x| i32::from(*x) * 97 - 9999).collect();
    // Some results are clamped, most are not, and many products are halves.
    let size = 200.0 * (s.k as f32).sqrt();
    let scales: Vec<f32> =
        (0..s.n).map(|n| [1.0 / size, 0.5 / 128.0, 0.37 / size, 0.0][n % 4]).collect();
    let shifts = numbers.floats(s.n);
    let columns = QuantColumns {
        bias: if s.m.is_multiple_of(3) { &[] } else { &bias },
        zero_point: zero(p.a, numbers.bytes(1)[0]),
        scales: if s.m.is_multiple_of(2) { &scales } else { &scales[..1] },
        shifts: if s.k.is_multiple_of(2) { &[] } else { &shifts },
    };

    let mut packed = vec![0; plan.weights_len()];
    let mut after = vec![0; plan.columns_len()];
    plan.pack_weights(bytes(p.b, &b), &zeros, &mut packed).unwrap();
    plan.pack_columns(&packed, &columns, &mut after).unwrap();
    let guarded = Buffer::new(&a, place);
    let mut scratch = Buffer::output(plan.scratch_len() * 4, Place::PageEnd);
    let dtype = p.output.dtype();
    let mut run = |reversed: bool| {
        let mut c = Buffer::output(plan.c_len() * dtype.size(), place);
        let (a, scratch) = (guarded.as_ptr(), scratch.as_mut_ptr().cast());
        // SAFETY: the operands have the lengths that the plan asks for, and words are aligned.
        unsafe {
            plan.run_convert(a, scratch, 0..plan.convert_units());
            for unit in 0..plan.units() {
                let unit = if reversed { plan.units() - 1 - unit } else { unit };
                let (w, e) = (packed.as_ptr(), after.as_ptr());
                plan.run(a, scratch, w, e, c.as_mut_ptr(), unit..unit + 1);
            }
        }
        c
    };
    let c = run(false);
    let found = values(dtype, &c);
    let expected = reference(p, bytes(p.a, &a), bytes(p.b, &b), &zeros, &columns);
    let mut written = vec![false; plan.c_len()];
    for (i, exact) in expected.iter().enumerate() {
        let at = i / s.n / s.m * s.c_batch + i / s.n % s.m * s.c_row + i % s.n;
        let exact = if s.epilogue.activation == Activation::Relu { exact.max(0.0) } else { *exact };
        assert_eq!(found[at], exact, "{} at {at}: {p:?}", plan.kernel_name());
        written[at] = true;
    }
    // Between the rows nothing is touched.
    let size = dtype.size();
    assert!((0..c.len()).all(|i| written[i / size] || c[i] == Buffer::FILL), "{p:?}");
    // The same bits, in whatever order the units run.
    assert!(c[..] == run(true)[..], "{p:?}");
}

const OUTPUTS: [QuantOutput; 5] = [
    QuantOutput::I32,
    QuantOutput::F32,
    QuantOutput::i8(-7),
    QuantOutput::u8(131),
    QuantOutput::U8 { zero_point: 3, min: 3, max: 200 },
];

/// All combinations of types in turn, so that neighbouring sizes differ in them.
fn vary(p: QmatmulParams, i: usize) -> QmatmulParams {
    QmatmulParams {
        a: if i.is_multiple_of(2) { Dtype::U8 } else { Dtype::I8 },
        b: if i / 2 % 4 == 3 { Dtype::U8 } else { Dtype::I8 },
        b_zero_point: i / 3 % 3 == 1,
        small: i / 2 % 2 == 1,
        output: OUTPUTS[i / 2 % 5],
        ..p
    }
}

fn sizes(isa: Isa) {
    let kernels = super::dot_tile::row(isa, Dtype::I8).kernels;
    let most =
        |f: fn(&crate::KernelInfo) -> usize| kernels.iter().map(|k| f(&k.info)).max().unwrap_or(1);
    let (mr, nr) = (most(|i| i.w_ob()), most(|i| i.c_ob()));
    let around = |n: usize| [1, n.saturating_sub(1).max(1), n, n + 1, 2 * n + 1];
    let mut i = 0;
    for m in around(mr) {
        for n in around(nr) {
            for k in [1, 3, 4, 37, 48] {
                i += 1;
                check(isa, &vary(QmatmulParams::new(m, k, n, Dtype::U8), i), Place::ALL[i % 3]);
            }
        }
    }
    for n in 1..=2 * nr + 1 {
        check(isa, &vary(QmatmulParams::new(1 + n % mr, 20, n, Dtype::U8), n), Place::PageEnd);
    }
    for m in 1..=2 * mr + 1 {
        for b in [false, true] {
            let mut p = QmatmulParams::new(m, 12, 20, Dtype::U8);
            p.sizes.b_transposed = b;
            p.sizes.b_row = if b { 12 } else { 20 };
            check(isa, &vary(p, m), Place::PageEnd);
        }
    }
}

fn every_type(isa: Isa) {
    for i in 0..60 {
        let (a, b) = ([Dtype::U8, Dtype::I8][i % 2], [Dtype::I8, Dtype::U8][i / 2 % 2]);
        let (b_zero_point, output) = (i / 4 % 3 == 1, OUTPUTS[i / 12]);
        for (m, k, n) in [(5, 9, 21), (4, 64, 20)] {
            let p = QmatmulParams::new(m, k, n, a);
            check(isa, &QmatmulParams { b, b_zero_point, output, ..p }, Place::Misaligned);
        }
    }
}

fn strides_and_batches(isa: Isa) {
    for (i, (m, n)) in [(1, 1), (1, 45), (3, 16), (17, 7), (17, 45)].into_iter().enumerate() {
        for k in [12, 13] {
            let with = |sizes| QmatmulParams { sizes, ..QmatmulParams::new(m, k, n, Dtype::U8) };
            let p = MatmulParams::new(m, k, n);
            let all = [
                MatmulParams { a_row: 20, b_row: n + 3, c_row: n + 5, ..p.clone() },
                MatmulParams { b_row: 15, ..p.clone().b_transposed() },
                p.clone().batch(3),
                p.clone().b_transposed().batch(3),
                MatmulParams { b_batch: 0, ..p.clone().batch(4) },
                MatmulParams { a_batch: 0, c_batch: m * n + 9, ..p.batch(2) },
            ];
            for (j, sizes) in all.into_iter().enumerate() {
                check(isa, &vary(with(sizes.clone()), i + j), Place::PageEnd);
                check(isa, &with(sizes), Place::Misaligned);
            }
        }
    }
}

/// The largest sums that are allowed: what saturates in a 16-bit step does so here.
fn extremes(isa: Isa) {
    for (a, x, zero) in [(Dtype::U8, 255, 0), (Dtype::U8, 0, 255), (Dtype::I8, 0x80, 127)] {
        for y in [0x7f_u8, 0x80] {
            for (k, small) in [(4, false), (3000, false), (4, true), (3000, true)] {
                let p = QmatmulParams { small, ..QmatmulParams::new(3, k, 33, a) };
                let plan = QmatmulPlan::new(isa, &p).unwrap();
                let (x, y) = (vec![x; 3 * k], vec![y; k * 33]);
                let (mut w, mut e) = (vec![0; plan.weights_len()], vec![0; plan.columns_len()]);
                let columns = QuantColumns { zero_point: zero, ..QuantColumns::default() };
                plan.pack_weights(bytes(p.b, &y), &[], &mut w).unwrap();
                plan.pack_columns(&w, &columns, &mut e).unwrap();
                let (mut scratch, mut c) = (vec![0; plan.scratch_len()], vec![0; 99]);
                let result = QuantResult::I32(&mut c);
                plan.compute(bytes(a, &x), &w, &e, &mut scratch, result).unwrap();
                let expected = reference(&p, bytes(a, &x), bytes(p.b, &y), &[], &columns);
                assert!(c.iter().zip(&expected).all(|(c, e)| f64::from(*c) == *e), "{a:?} {zero}");
            }
        }
    }
}

/// Packed weights that no plan has packed give any result, from memory that is theirs.
fn anything_packed(isa: Isa) {
    for fill in [-1, i32::MIN, i32::MAX, 1, 40] {
        for (m, n) in [(1, 8), (7, 33), (12, 64)] {
            let p = QmatmulParams { small: true, ..QmatmulParams::new(m, 37, n, Dtype::U8) };
            let plan = QmatmulPlan::new(isa, &p).unwrap();
            let (a, w) = (vec![9; plan.a_len()], [fill; 1].repeat(plan.weights_len()));
            let w: Vec<u8> = w.into_iter().flat_map(i32::to_ne_bytes).collect();
            let (weights, e) = (Buffer::new(&w, Place::PageEnd), vec![0; plan.columns_len()]);
            let mut scratch = Buffer::output(plan.scratch_len() * 4, Place::PageEnd);
            let mut c = Buffer::output(plan.c_len() * 4, Place::PageEnd);
            let a = Buffer::new(&a, Place::PageEnd);
            let scratch = scratch.as_mut_ptr().cast();
            // SAFETY: operands of the plan's lengths, of which the weights are anything.
            unsafe {
                plan.run_convert(a.as_ptr(), scratch, 0..plan.convert_units());
                let (w, units) = (weights.as_ptr().cast(), 0..plan.units());
                plan.run(a.as_ptr(), scratch, w, e.as_ptr(), c.as_mut_ptr(), units);
            }
        }
    }
}

/// Products that no integer holds, and that saturate at either end.
fn extreme_scales(isa: Isa) {
    let outputs =
        [QuantOutput::u8(0), QuantOutput::u8(255), QuantOutput::i8(127), QuantOutput::i8(-128)];
    for output in OUTPUTS[2..].iter().chain(&outputs) {
        let p = QmatmulParams { output: *output, ..QmatmulParams::new(13, 9, 83, Dtype::U8) };
        let plan = QmatmulPlan::new(isa, &p).unwrap();
        let mut numbers = Numbers::new(7);
        let (a, b) = (numbers.bytes(plan.a_len()), numbers.bytes(plan.b_len()));
        let all = [3e38, -3e38, 1e6, -1e6, 33e3, -33e3, 2.0, 0.0, 1e-40];
        let scales: Vec<f32> = (0..83).map(|n| all[n % 9]).collect();
        let columns = QuantColumns { scales: &scales, ..QuantColumns::default() };
        let (mut w, mut e) = (vec![0; plan.weights_len()], vec![0; plan.columns_len()]);
        plan.pack_weights(bytes(p.b, &b), &[], &mut w).unwrap();
        plan.pack_columns(&w, &columns, &mut e).unwrap();
        let mut scratch = vec![0; plan.scratch_len()];
        let (mut signed, mut unsigned) = (vec![0; 13 * 83], vec![0; 13 * 83]);
        let found: Vec<f64> = if output.dtype() == Dtype::I8 {
            let result = QuantResult::I8(&mut signed);
            plan.compute(bytes(p.a, &a), &w, &e, &mut scratch, result).unwrap();
            signed.iter().map(|c| f64::from(*c)).collect()
        } else {
            let result = QuantResult::U8(&mut unsigned);
            plan.compute(bytes(p.a, &a), &w, &e, &mut scratch, result).unwrap();
            unsigned.iter().map(|c| f64::from(*c)).collect()
        };
        assert_eq!(
            found,
            reference(&p, bytes(p.a, &a), bytes(p.b, &b), &[], &columns),
            "{output:?}"
        );
    }
}

fn activations(isa: Isa) {
    let mut p = QmatmulParams::new(5, 10, 37, Dtype::I8);
    p.output = QuantOutput::F32;
    p.sizes.epilogue.activation = Activation::Relu;
    check(isa, &p, Place::PageEnd);
}

fn random_shapes(isa: Isa) {
    let mut numbers = Numbers::new(5);
    for i in 0..100 {
        let r: Vec<usize> = numbers.bytes(6).into_iter().map(usize::from).collect();
        let mut p = QmatmulParams::new(1 + r[0] % 40, 1 + r[1] % 90, 1 + r[2] % 150, Dtype::U8);
        p.sizes.b_row += r[3] % 4;
        p.sizes.a_row += r[4] % 4;
        p.sizes.c_row += r[5] % 4;
        check(isa, &vary(p, i), Place::PageEnd);
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        conformance! { @ $id $isa sizes every_type strides_and_batches extremes anything_packed extreme_scales activations random_shapes }
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
    let p = QmatmulParams::new(2, 3, 4, Dtype::U8);
    let invalid = |p: &QmatmulParams, name: &str| {
        let found = QmatmulPlan::new(Isa::Scalar, p).unwrap_err();
        let named = matches!(found, KernelError::InvalidParam { param, .. } if param == name);
        assert!(named, "{found}");
    };
    invalid(&QmatmulParams { a: Dtype::F32, ..p.clone() }, "type");
    invalid(&QmatmulParams::new(0, 3, 4, Dtype::U8), "size");
    invalid(&QmatmulParams::new(1, 65_794, 1, Dtype::U8), "k");
    invalid(&QmatmulParams { b: Dtype::U8, ..QmatmulParams::new(1, 33_026, 1, Dtype::U8) }, "k");
    let output = QuantOutput::I8 { zero_point: 0, min: 3, max: 2 };
    invalid(&QmatmulParams { output, ..p.clone() }, "min");
    let mut active = p.clone();
    active.sizes.epilogue.activation = Activation::Relu;
    invalid(&active, "activation");
    let plan = QmatmulPlan::new(Isa::Scalar, &p).unwrap();
    let (mut w, mut e) = (vec![0; plan.weights_len()], vec![0; plan.columns_len()]);
    assert!(plan.pack_weights(Bytes::I8(&[0; 11]), &[], &mut w).is_err());
    assert!(plan.pack_weights(Bytes::U8(&[0; 12]), &[], &mut w).is_err());
    assert!(plan.pack_weights(Bytes::I8(&[0; 12]), &[1], &mut w).is_err());
    let wrong = QuantColumns { zero_point: -1, ..QuantColumns::default() };
    assert!(plan.pack_columns(&w, &wrong, &mut e).is_err());
    let wrong = QuantColumns { scales: &[f32::NAN], ..QuantColumns::default() };
    assert!(plan.pack_columns(&w, &wrong, &mut e).is_err());
    let mut scratch = vec![0; plan.scratch_len()];
    let mut c = [0; 8];
    let mut compute =
        |a, n: usize| plan.compute(a, &w, &e, &mut scratch, QuantResult::I32(&mut c[..n])).is_ok();
    assert!(compute(Bytes::U8(&[0; 6]), 8));
    assert!(!compute(Bytes::U8(&[0; 5]), 8));
    assert!(!compute(Bytes::I8(&[0; 6]), 8));
    assert!(!compute(Bytes::U8(&[0; 6]), 7));
}
