//! Conformance of Winograd's algorithm, for every row of the table.

use super::conv::{ConvParams, ConvPlan, reference};
use super::conv_tests::{check_plan, conv, each_index, same, to_layout};
use crate::testing::{Numbers, Place, skip};
use crate::{Activation, Algorithm, Choice, Epilogue, Isa, KernelError, pack};
use alloc::{vec, vec::Vec};

/// The stated error bound, in parts of the root mean square of the outputs.
const BOUND: f64 = 2e-5;

/// Whether a choice is Winograd's.
fn is_winograd(choice: &Choice) -> bool {
    matches!(choice.algorithm, Algorithm::Winograd2 | Algorithm::Winograd4)
}

/// The candidates that are Winograd's.
fn plans(isa: Isa, p: &ConvParams) -> Vec<ConvPlan> {
    let choices = ConvPlan::candidates(isa, p).unwrap();
    let plan = |choice: &Choice| ConvPlan::with_choice(isa, p, choice).unwrap();
    choices.iter().filter(|c| is_winograd(c)).map(plan).collect()
}

/// Each plan of a shape, the placement changing from one to the next.
fn check_each(p: &ConvParams, plans: &[ConvPlan]) {
    // The inputs are uniform in -1 to 1, so a product has the variance 1/9.
    let rms = ((9 * p.c_in) as f64 / 9.0).sqrt();
    for (i, plan) in plans.iter().enumerate() {
        let place = Place::ALL[(p.w_in + p.c_in + i) % 3];
        check_plan(plan, place, false, BOUND * rms);
        check_plan(plan, Place::PageEnd, true, BOUND * rms * 6.0);
    }
}

fn check_candidates(isa: Isa, p: &ConvParams) {
    let plans = plans(isa, p);
    assert!(plans.len() >= if p.c_in > 512 { 1 } else { 2 });
    check_each(p, &plans);
}

fn borders(isa: Isa) {
    for h in 1..=9 {
        for w in 1..=9 {
            check_candidates(isa, &same(conv(5, [h, w], 20, [3, 3])));
        }
    }
    for pads in [[0; 4], [2; 4], [1, 0, 0, 1], [0, 2, 1, 0], [2, 1, 0, 2], [0, 0, 2, 2], [5; 4]] {
        for size in [[3, 4], [6, 5], [8, 11]] {
            check_candidates(isa, &conv(18, size, 33, [3, 3]).pads(pads));
        }
    }
}

fn channels(isa: Isa) {
    for c in [1, 3, 15, 16, 17, 31, 40] {
        for k in [1, 15, 16, 17, 33, 48, 50] {
            check_candidates(isa, &same(conv(c, [5, 6], k, [3, 3])));
        }
    }
    check_candidates(isa, &same(conv(513, [3, 5], 20, [3, 3])));
}

/// Blocks of every length, whole and in parts.
fn blocks(isa: Isa) {
    let p = ConvParams { n: 2, ..same(conv(17, [13, 18], 40, [3, 3])) };
    for algorithm in [Algorithm::Winograd2, Algorithm::Winograd4] {
        let candidates = ConvPlan::candidates(isa, &p).unwrap();
        let found = candidates.iter().find(|c| c.algorithm == algorithm).unwrap();
        for block in [1, 2, 3, 5, 8, 11, 13, 14, 17, 27, 40] {
            let plans: Vec<ConvPlan> = (1..=24)
                .map(|w_ob| Choice { tile: [1, w_ob, found.tile[2]], block, ..*found })
                .filter_map(|choice| ConvPlan::with_choice(isa, &p, &choice).ok())
                .collect();
            assert!(!plans.is_empty(), "block {block}");
            for plan in plans {
                check_plan(&plan, Place::Misaligned, false, BOUND * (p.c_in as f64).sqrt());
            }
        }
    }
}

fn epilogues(isa: Isa) {
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Clip { min: -0.5, max: 6.0 },
        Activation::LeakyRelu { alpha: 0.25 },
        Activation::Sigmoid,
        Activation::HardSwish,
    ];
    for activation in activations {
        for residual in [false, true] {
            let epilogue = Epilogue { activation, residual };
            let p = same(conv(20, [7, 9], 40, [3, 3])).epilogue(epilogue);
            check_candidates(isa, &p);
            check_candidates(isa, &ConvParams { n: 3, ..p });
        }
    }
}

/// Numbers of mean 0 and variance 1, nearly normal.
fn normal(numbers: &mut Numbers, len: usize) -> Vec<f32> {
    let uniform = numbers.floats(12 * len);
    uniform.chunks_exact(12).map(|x| x.iter().sum::<f32>() * 0.5).collect()
}

fn error_bound(isa: Isa) {
    for c in [16, 64, 256, 512, 1024] {
        let p = same(conv(c, [12, 12], 32, [3, 3]));
        let mut numbers = Numbers::new(c as u64);
        let x = normal(&mut numbers, c * 144);
        let weights = normal(&mut numbers, 32 * c * 9);
        let expected = reference(&p, &x, &weights, &[]);
        let rms = (expected.iter().map(|y| y * y).sum::<f64>() / expected.len() as f64).sqrt();
        for plan in plans(isa, &p) {
            let mut packed = vec![0.0; plan.weights_len()];
            plan.pack_weights(&weights, &mut packed).unwrap();
            let mut y = vec![0.0; plan.y_len()];
            let blocked = to_layout(&p, plan.x_len(), &x);
            plan.compute(&blocked, &packed, &[0.0; 32], None, &mut y).unwrap();
            let mut error = 0.0f64;
            each_index([1, 32, 12, 12], |at| {
                let exact = expected[pack::plain_index([1, 32, 12, 12], at)];
                let y = y[pack::blocked_index([1, 32, 12, 12], at)];
                error = error.max((f64::from(y) - exact).abs() / rms);
            });
            let choice = plan.choice();
            std::println!("{isa} {} channels, {choice}: {error:.1e}", c);
            assert!(error <= BOUND, "{isa} {c} {choice}: {error:e}");
        }
    }
}

/// A NaN or an infinity reaches no tile that does not see it, and a NaN past the last channel none
/// at all (which every test of this file checks).
fn specials(isa: Isa) {
    let p = same(conv(3, [13, 14], 17, [3, 3]));
    let shape = [1, 17, 13, 14];
    let mut numbers = Numbers::new(7);
    let (x, weights) = (numbers.floats(3 * 13 * 14), numbers.floats(17 * 27));
    for plan in plans(isa, &p) {
        let m = if plan.choice().algorithm == Algorithm::Winograd4 { 4 } else { 2 };
        let mut packed = vec![0.0; plan.weights_len()];
        plan.pack_weights(&weights, &mut packed).unwrap();
        let run = |x: &[f32]| {
            let mut y = vec![0.0; plan.y_len()];
            let x = to_layout(&p, plan.x_len(), x);
            plan.compute(&x, &packed, &[0.0; 32], None, &mut y).unwrap();
            y
        };
        let plain = run(&x);
        for special in [f32::NAN, f32::INFINITY] {
            let mut x = x.clone();
            x[pack::plain_index([1, 3, 13, 14], [0, 1, 6, 7])] = special;
            let y = run(&x);
            each_index(shape, |at| {
                let i = pack::blocked_index(shape, at);
                // The inputs of a tile begin one before its first output.
                let sees =
                    |i: usize, at: usize| (at / m * m..at / m * m + m + 2).contains(&(i + 1));
                if sees(6, at[2]) && sees(7, at[3]) {
                    assert!(at[2].abs_diff(6) > 1 || at[3].abs_diff(7) > 1 || !y[i].is_finite());
                } else {
                    assert_eq!(y[i].to_bits(), plain[i].to_bits(), "{special} {at:?}");
                }
            });
        }
    }
}

fn choices(isa: Isa) {
    let shapes = [
        same(conv(16, [48, 48], 16, [3, 3])),
        same(conv(64, [24, 24], 64, [3, 3])),
        same(conv(128, [6, 6], 256, [3, 3])),
        same(conv(300, [7, 6], 48, [3, 3])),
        same(conv(3, [9, 20], 33, [5, 5])).interleaved(),
        conv(40, [14, 14], 80, [1, 1]),
        conv(18, [4, 5], 20, [3, 3]).stride([2, 2]).transposed(),
        same(conv(32, [9, 9], 32, [3, 3])).groups(2),
    ];
    for p in shapes {
        let choices = ConvPlan::candidates(isa, &p).unwrap();
        assert_eq!(choices[0], ConvPlan::new(isa, &p).unwrap().choice(), "{p:?}");
        for (i, choice) in choices.iter().enumerate() {
            assert!(!choices[..i].contains(choice), "{choice} twice");
            let plan = ConvPlan::with_choice(isa, &p, choice).unwrap();
            assert_eq!(plan.choice(), *choice, "{p:?}");
            if p.h_in < 20 {
                check_plan(&plan, Place::Aligned, false, BOUND * (p.c_in as f64).sqrt() * 3.0);
            }
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        conformance! { @ $id $isa borders channels blocks epilogues error_bound specials choices }
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
tilewright_intrinsics::for_each_tile!(conformance);

#[test]
fn choices_that_do_not_fit_are_errors() {
    let p = same(conv(64, [24, 24], 64, [3, 3]));
    let good = |p: &ConvParams| {
        let choices = ConvPlan::candidates(Isa::Scalar, p).unwrap();
        *choices.iter().find(|c| c.algorithm == Algorithm::Winograd4).unwrap()
    };
    let refused = |p: &ConvParams, choice: Choice| {
        let found = ConvPlan::with_choice(Isa::Scalar, p, &choice).unwrap_err();
        assert!(
            matches!(found, KernelError::InvalidParam { param: "choice", .. }),
            "{found} {choice}"
        );
    };
    let choice = good(&p);
    refused(&p, Choice { block: 0, ..choice });
    refused(&p, Choice { block: 37, ..choice });
    refused(&p, Choice { chunk: 16, ..choice });
    refused(&p, Choice { tile: [1, 12, 4096], ..choice });
    refused(&p, Choice { tile: [1, 12, 0], ..choice });
    refused(&p, Choice { algorithm: Algorithm::Packed, ..choice });
    refused(&p, Choice { algorithm: Algorithm::Direct, ..choice });
    refused(&p.clone().direct(), choice);
    refused(&p.clone().interleaved(), choice);
    refused(&p.clone().groups(2), choice);
    refused(&p.clone().stride([2, 1]), choice);
    refused(&p.clone().dilation([1, 2]), choice);
    refused(&conv(64, [24, 24], 64, [1, 3]), choice);
    refused(&same(conv(513, [24, 24], 64, [3, 3])), Choice { chunk: 513, ..choice });
    let direct = ConvPlan::new(Isa::Scalar, &p.clone().direct()).unwrap().choice();
    refused(&p, Choice { chunk: 0, ..direct });
    refused(&p, Choice { chunk: 100, ..direct });
    refused(&p, Choice { tile: [0, 0, 0], ..direct });
    refused(&p, Choice { block: 1, ..direct });
}
