//! Conformance of the matrix product kernels, for every row of the table.

use super::matmul::{MatmulForm, MatmulParams, MatmulPlan, reference};
use super::matmul_tile::kernels;
use crate::testing::{
    Guarded, Numbers, Place, activation_error, assert_close, maximum, skip, tolerance,
};
use crate::{Activation, Algorithm, Choice, Dtype, Epilogue, Isa, KernelError};
use alloc::{vec, vec::Vec};

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => maximum(x, 0.0),
        Activation::Clip { min, max } => x.max(min.into()).min(max.into()),
        Activation::LeakyRelu { alpha } if x < 0.0 => x * f64::from(alpha),
        Activation::LeakyRelu { .. } => x,
        Activation::Tanh => x.tanh(),
        _ => panic!("no reference"),
    }
}

/// What a shape is tested with: all candidates, and blocks that are small enough to be several.
fn choices(isa: Isa, p: &MatmulParams) -> Vec<Choice> {
    let mut list = MatmulPlan::candidates(isa, p).unwrap();
    let first = list[0];
    for algorithm in [Algorithm::Direct, Algorithm::Packed] {
        if algorithm == Algorithm::Packed && p.blocked() {
            continue;
        }
        if p.k > 16 && p.form != MatmulForm::Transposed {
            list.push(Choice { algorithm, chunk: 16, ..first });
            list.push(Choice { algorithm, chunk: p.k.min(32), block: p.m.div_ceil(3), ..first });
        }
        list.push(Choice { algorithm, chunk: p.k, block: 1, ..first });
    }
    list
}

/// One shape, one set of values, one placement of the operands, one way or all of them.
fn check(isa: Isa, p: &MatmulParams, place: Place, exact: bool, all: bool) {
    let plan = MatmulPlan::new(isa, p).unwrap();
    let mut numbers = Numbers::new((p.m * 31 + p.n * 7 + p.k) as u64);
    let mut some = |len| if exact { numbers.integers(len) } else { numbers.floats(len) };
    let (a, b, bias) = (some(plan.a_len()), some(plan.b_len()), some(p.n.max(p.m)));
    let residual = some(plan.c_len());
    let expected = reference(p, &a, &b, &bias);
    let [a, b, residual] = [a, b, residual].map(|x| Guarded::new(&x, place));
    assert_eq!(plan.choice(), MatmulPlan::candidates(isa, p).unwrap()[0]);
    for choice in if all { choices(isa, p) } else { vec![plan.choice()] } {
        let plan = MatmulPlan::with_choice(isa, p, &choice).unwrap();
        assert_eq!(plan.choice(), choice);
        check_plan(&plan, [&a, &b, &residual], &bias, &expected, place, exact);
    }
}

fn check_plan(
    plan: &MatmulPlan,
    [a, b, residual]: [&Guarded; 3],
    bias: &[f32],
    expected: &[f64],
    place: Place,
    exact: bool,
) {
    let p = plan.params();
    let mut packed = Guarded::output(plan.weights_len(), place);
    let mut packed_bias = Guarded::output(plan.bias_len(), place);
    plan.pack_weights(b, &mut packed).unwrap();
    plan.pack_bias(bias, &mut packed_bias).unwrap();
    let given = p.epilogue.residual.then_some(&**residual);
    let mut c = Guarded::output(plan.c_len(), place);
    plan.compute(a, &packed, &packed_bias, given, &mut c).unwrap();

    let costly = p.epilogue.activation.in_tile().is_none();
    let allowed = if exact && !costly { 0.0 } else { tolerance(Dtype::F32, p.k + 2) };
    let mut written = vec![false; plan.c_len()];
    for (i, exact) in expected.iter().enumerate() {
        let (row, column) = match p.form {
            MatmulForm::Transposed => (i % p.n, i / p.n % p.m),
            _ => (i / p.n % p.m, i % p.n),
        };
        let in_product = match p.form {
            MatmulForm::Blocked => column / 16 * p.c_row + row * 16 + column % 16,
            _ => row * p.c_row + column,
        };
        let at = i / p.n / p.m * p.c_batch + in_product;
        let sum = exact + if p.epilogue.residual { f64::from(residual[at]) } else { 0.0 };
        assert_close(
            c[at],
            activate(p.epilogue.activation, sum),
            allowed + if costly { activation_error(sum) } else { 0.0 },
            (plan.kernel_name(), plan.choice(), at, p),
        );
        written[at] = true;
        if p.blocked() && column + 1 == p.n {
            for lane in at + 1..at + 16 - column % 16 {
                let sum = if p.epilogue.residual { f64::from(residual[lane]) } else { 0.0 };
                let expected = activate(p.epilogue.activation, sum);
                assert_close(c[lane], expected, allowed + activation_error(sum), (at, lane, p));
                written[lane] = true;
            }
        }
    }
    // Between the rows nothing is touched.
    assert!(c.iter().zip(&written).all(|(c, written)| *written || c.is_nan()), "{p:?}");

    // The same bits, however the units are divided and in whatever order they run, and whether B is
    // packed before or by the units.
    let units = plan.units();
    let (a, b, w) = (a.as_ptr(), b.as_ptr(), packed.as_ptr());
    let (bias, residual) = (packed_bias.as_ptr(), residual.as_ptr());
    for split in [units, 2, 3] {
        let mut again = [(); 2].map(|()| Guarded::output(plan.c_len(), place));
        let mut scratch = Guarded::output(plan.scratch_len(), place);
        let mut plain_scratch = Guarded::output(plan.plain_scratch_len(), place);
        for i in (0..split).rev() {
            let part = i * units / split..(i + 1) * units / split;
            let [one, two] = again.each_mut().map(|c| c.as_mut_ptr());
            // SAFETY: the operands are those of `compute` above, with scratch memory as asked for.
            unsafe {
                plan.run(a, w, bias, residual, one, scratch.as_mut_ptr(), part.clone());
                plan.run_plain(a, b, bias, residual, two, plain_scratch.as_mut_ptr(), part);
            }
        }
        for again in &again {
            let same = c.iter().zip(&**again).all(|(x, y)| x.to_bits() == y.to_bits());
            assert!(same, "{split} {:?} {p:?}", plan.choice());
        }
    }
}

fn check_both(isa: Isa, p: &MatmulParams) {
    check(isa, p, Place::ALL[(p.m + p.n + p.k) % 3], true, false);
    check(isa, p, Place::PageEnd, false, true);
}

/// 1, the tile, its neighbours and twice it, in each dimension.
fn sizes(isa: Isa) {
    let kernels = kernels(isa);
    let most =
        |f: fn(&crate::KernelInfo) -> usize| kernels.iter().map(|k| f(&k.info)).max().unwrap_or(1);
    let (mr, nr) = (most(|i| i.w_ob()), most(|i| i.c_ob()));
    let around = |n: usize| [1, n.saturating_sub(1).max(1), n, n + 1, 2 * n + 1];
    for m in around(mr) {
        for n in around(nr) {
            for k in [1, 3, 4, 5, 37] {
                check_both(isa, &MatmulParams::new(m, k, n));
            }
        }
    }
    for n in 1..=2 * nr + 1 {
        for m in [1, 2, 4, mr] {
            check(isa, &MatmulParams::new(m, 6, n), Place::PageEnd, true, false);
        }
    }
    for m in 1..=2 * mr + 1 {
        check_both(isa, &MatmulParams::new(m, 9, 20).b_transposed());
        check_both(isa, &MatmulParams::new(m, 35, 20).a_transposed());
    }
}

/// Several blocks of each dimension, as the rules make them.
fn blocks(isa: Isa) {
    for (m, k, n) in [(130, 820, 33), (50, 530, 40), (1, 1000, 300), (4, 700, 131)] {
        let p = MatmulParams::new(m, k, n);
        check(isa, &p, Place::Aligned, true, true);
        check(isa, &p.clone().b_transposed(), Place::PageEnd, true, false);
        check(isa, &p.a_transposed(), Place::Misaligned, true, false);
    }
}

fn strides_and_batches(isa: Isa) {
    for m in [1, 3, 17] {
        for n in [1, 7, 16, 45] {
            let p = MatmulParams::new(m, 13, n);
            check_both(isa, &MatmulParams { a_row: 20, b_row: n + 3, c_row: n + 5, ..p.clone() });
            check_both(isa, &MatmulParams { b_row: 15, ..p.clone().b_transposed() });
            check_both(isa, &MatmulParams { a_row: m + 2, ..p.clone().a_transposed() });
            check_both(isa, &p.clone().a_transposed().b_transposed().batch(2));
            check_both(isa, &p.clone().batch(3));
            check_both(isa, &p.clone().b_transposed().batch(3));
            check_both(isa, &MatmulParams { b_batch: 0, ..p.clone().batch(4) });
            check_both(isa, &MatmulParams { a_batch: 0, c_batch: m * n + 9, ..p.batch(2) });
        }
    }
}

fn epilogues(isa: Isa) {
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Clip { min: -0.5, max: 6.0 },
        Activation::LeakyRelu { alpha: 0.25 },
        Activation::Tanh,
    ];
    for activation in activations {
        for residual in [false, true] {
            for (m, n) in [(1, 1), (1, 130), (4, 50), (30, 40)] {
                check_both(
                    isa,
                    &MatmulParams::new(m, 21, n).epilogue(Epilogue { activation, residual }),
                );
            }
        }
    }
}

fn blocked(isa: Isa) {
    if !super::matmul_cut::has_blocks(kernels(isa)) {
        return;
    }
    let p = |m: usize, k: usize, n: usize| MatmulParams {
        a_row: m * 16,
        c_row: m * 16,
        form: MatmulForm::Blocked,
        ..MatmulParams::new(m, k, n).b_transposed()
    };
    for m in 1..=30 {
        for (k, n) in [(1, 1), (16, 16), (37, 20), (9, 100)] {
            check_both(isa, &p(m, k, n));
        }
    }
    for (m, k, n) in [(1usize, 300usize, 150usize), (5, 820, 33), (130, 820, 40), (50, 21, 64)] {
        let (a_batch, c_batch) = (k.div_ceil(16) * 16 * m, n.div_ceil(16) * 16 * m + 5);
        let apart = MatmulParams { a_row: m * 16 + 4, c_row: m * 16 + 7, ..p(m, k, n) };
        check_both(isa, &apart);
        let several = MatmulParams { batch: 2, a_batch, c_batch, ..p(m, k, n) };
        check_both(isa, &several);
        for activation in [Activation::Clip { min: -0.5, max: 6.0 }, Activation::Tanh] {
            let epilogue = Epilogue { activation, residual: true };
            check_both(isa, &p(m, k, n).epilogue(epilogue));
        }
    }
    let transposed = MatmulParams { a_transposed: true, a_row: 160, ..p(5, 5, 5) };
    let refused = MatmulPlan::new(isa, &transposed);
    assert!(matches!(refused, Err(KernelError::Unsupported { .. })), "{refused:?}");
}

fn forms(isa: Isa) {
    for (m, n) in [(1, 1), (1, 40), (5, 3), (14, 33), (30, 100), (70, 20)] {
        let p = MatmulParams::new(m, 21, n).batch(2);
        check_both(isa, &MatmulParams { form: MatmulForm::RowBias, ..p.clone() });
        let activation = Activation::Tanh;
        let p = p.epilogue(Epilogue { activation, residual: false });
        let turned = MatmulParams { form: MatmulForm::Transposed, c_row: m + 3, ..p };
        let turned = MatmulParams { c_batch: n * (m + 3) + 1, ..turned };
        check_both(isa, &turned);
        check_both(isa, &MatmulParams { a_row: m, a_transposed: true, ..turned });
    }
    let p = MatmulParams { form: MatmulForm::Transposed, ..MatmulParams::new(3, 4, 3) };
    let residual = p.epilogue(Epilogue { residual: true, ..Epilogue::default() });
    let found = MatmulPlan::new(isa, &residual).map(|plan| plan.choice());
    assert!(matches!(found, Err(KernelError::Unsupported { .. })), "{found:?}");
}

fn specials(isa: Isa) {
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (m, at) in [(5, 7), (1, 18)] {
            let p = MatmulParams::new(m, 20, 19);
            for choice in choices(isa, &p) {
                let plan = MatmulPlan::with_choice(isa, &p, &choice).unwrap();
                let (mut a, mut b) = (vec![1.0; m * 20], vec![1.0; 380]);
                a[at] = special;
                b[200] = special;
                let (mut packed, bias) =
                    (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
                plan.pack_weights(&b, &mut packed).unwrap();
                let mut c: Vec<f32> = vec![0.0; m * 19];
                plan.compute(&a, &packed, &bias, None, &mut c).unwrap();
                for (i, (c, exact)) in c.iter().zip(reference(&p, &a, &b, &[])).enumerate() {
                    assert_close(*c, exact, 0.0, (special, choice, i));
                }
            }
        }
    }
}

/// Equal columns of B have equal results for a single row, wherever they lie.
fn equal_columns(isa: Isa) {
    let k = 83;
    for n in (1..300).step_by(7) {
        let p = MatmulParams::new(1, k, n);
        let mut numbers = Numbers::new(5);
        let a = numbers.floats(k);
        let b: Vec<f32> = numbers.floats(k).into_iter().flat_map(|x| vec![x; n]).collect();
        for choice in MatmulPlan::candidates(isa, &p).unwrap() {
            let plan = MatmulPlan::with_choice(isa, &p, &choice).unwrap();
            let (mut packed, bias) = (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
            plan.pack_weights(&b, &mut packed).unwrap();
            let mut c = vec![0.0; n];
            plan.compute(&a, &packed, &bias, None, &mut c).unwrap();
            assert!(c.iter().all(|x| x == &c[0]), "{n} {choice}: {c:?}");
        }
    }
}

fn random_shapes(isa: Isa) {
    use proptest::prelude::*;
    let strategy = (
        1usize..40,
        1usize..150,
        1usize..60,
        1usize..4,
        [any::<bool>(), any::<bool>()],
        [0usize..4, 0..4, 0..4],
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 100,
        ..ProptestConfig::default()
    });
    let result = runner.run(&strategy, |(m, n, k, batch, [a_transposed, b_transposed], extra)| {
        let mut p = MatmulParams::new(m, k, n);
        if a_transposed {
            p = p.a_transposed();
        }
        if b_transposed {
            p = p.b_transposed();
        }
        p.b_row += extra[0];
        p.a_row += extra[1];
        p.c_row += extra[2];
        p.batch = batch;
        (p.a_batch, p.c_batch) =
            (p.a_row * if a_transposed { k } else { m }, m * p.c_row + extra[1]);
        p.a_batch += extra[0];
        p.b_batch = p.b_row * if b_transposed { n } else { k };
        check(isa, &p, Place::PageEnd, true, true);
        Ok(())
    });
    result.unwrap();
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        conformance! { @ $id $isa sizes blocks strides_and_batches epilogues forms blocked specials equal_columns random_shapes }
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
fn wrong_parameters_are_named() {
    let p = MatmulParams::new(2, 3, 4);
    let invalid = |p: &MatmulParams, name: &str| {
        let found = MatmulPlan::new(Isa::Scalar, p).unwrap_err();
        assert!(
            matches!(found, KernelError::InvalidParam { param, .. } if param == name),
            "{found}"
        );
    };
    invalid(&MatmulParams { k: 0, ..p.clone() }, "size");
    invalid(&MatmulParams { a_row: 2, ..p.clone() }, "row stride");
    invalid(&MatmulParams { c_row: 3, ..p.clone() }, "row stride");
    invalid(&MatmulParams { b_row: 3, ..p.clone() }, "row stride");
    invalid(&MatmulParams { a_row: 1, ..p.clone().a_transposed() }, "row stride");
    invalid(&MatmulParams { batch: 2, c_batch: 7, ..p.clone() }, "c_batch");
    let side = 1 << (usize::BITS - 12);
    let huge = MatmulParams::new(side, side, 1);
    assert!(matches!(MatmulPlan::new(Isa::Scalar, &huge), Err(KernelError::TooLarge { .. })));
    let plan = MatmulPlan::new(Isa::Scalar, &p).unwrap();
    let (mut w, b) = (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
    assert!(plan.pack_weights(&[0.0; 11], &mut w).is_err());
    assert!(plan.compute(&[0.0; 5], &w, &b, None, &mut [0.0; 8]).is_err());
    assert!(plan.compute(&[0.0; 6], &w, &b, None, &mut [0.0; 7]).is_err());
}

#[test]
fn choices_that_do_not_fit_are_refused() {
    let p = MatmulParams::new(20, 40, 50);
    let good = MatmulPlan::candidates(Isa::Scalar, &p).unwrap()[0];
    let refused = |p: &MatmulParams, choice: Choice| {
        let found = MatmulPlan::with_choice(Isa::Scalar, p, &choice).map(|plan| plan.choice());
        let invalid = matches!(found, Err(KernelError::InvalidParam { param: "choice", .. }));
        assert!(invalid, "{choice} {found:?}");
    };
    let [_, rows, columns] = good.tile;
    for tile in [[2, rows, columns], [1, 0, columns], [1, 17, columns], [1, rows, 31], [0; 3]] {
        refused(&p, Choice { tile, ..good });
    }
    for chunk in [0, 1, 15, 17, 41, 48, usize::MAX] {
        refused(&p, Choice { chunk, ..good });
    }
    for block in [0, 21, usize::MAX] {
        refused(&p, Choice { block, ..good });
    }
    refused(&p, Choice { algorithm: Algorithm::Winograd2, ..good });
}

/// For Miri, which is some thousand times slower: every border and tail once.
#[test]
fn small_shapes() {
    for isa in Isa::available() {
        check(isa, &MatmulParams::new(1, 5, 19), Place::Misaligned, true, false);
        check(isa, &MatmulParams::new(3, 5, 19).b_transposed(), Place::PageEnd, true, false);
    }
}
