//! Conformance of the matrix product kernels, for every row of the table.

use super::matmul::{MatmulParams, MatmulPlan, reference};
use crate::testing::{Guarded, Numbers, Place, activation_error, assert_close, skip, tolerance};
use crate::{Activation, Dtype, Epilogue, Isa, KernelError};
use alloc::{vec, vec::Vec};

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Clip { min, max } => x.max(min.into()).min(max.into()),
        Activation::LeakyRelu { alpha } if x < 0.0 => x * f64::from(alpha),
        Activation::LeakyRelu { .. } => x,
        Activation::Tanh => x.tanh(),
        _ => panic!("no reference"),
    }
}

/// One shape, one set of values, one placement of the operands.
fn check(isa: Isa, p: &MatmulParams, place: Place, exact: bool) {
    let plan = MatmulPlan::new(isa, p).unwrap();
    let mut numbers = Numbers::new((p.m * 31 + p.n * 7 + p.k) as u64);
    let mut some = |len| if exact { numbers.integers(len) } else { numbers.floats(len) };
    let (a, b, bias) = (some(plan.a_len()), some(plan.b_len()), some(p.n));
    let residual = some(plan.c_len());
    let mut packed = Guarded::output(plan.weights_len(), place);
    let mut packed_bias = Guarded::output(plan.bias_len(), place);
    plan.pack_weights(&Guarded::new(&b, place), &mut packed).unwrap();
    plan.pack_bias(&bias, &mut packed_bias).unwrap();
    let (guarded_a, residual) = (Guarded::new(&a, place), Guarded::new(&residual, place));
    let given = p.epilogue.residual.then_some(&*residual);
    let mut c = Guarded::output(plan.c_len(), place);
    plan.compute(&guarded_a, &packed, &packed_bias, given, &mut c).unwrap();

    let expected = reference(p, &a, &b, &bias);
    let costly = p.epilogue.activation.in_tile().is_none();
    let allowed = if exact && !costly { 0.0 } else { tolerance(Dtype::F32, p.k + 2) };
    let mut written = vec![false; plan.c_len()];
    for (i, exact) in expected.iter().enumerate() {
        let at = i / p.n / p.m * p.c_batch + i / p.n % p.m * p.c_row + i % p.n;
        let sum = exact + if p.epilogue.residual { f64::from(residual[at]) } else { 0.0 };
        assert_close(
            c[at],
            activate(p.epilogue.activation, sum),
            allowed + if costly { activation_error(sum) } else { 0.0 },
            (plan.kernel_name(), at, p),
        );
        written[at] = true;
    }
    // Between the rows nothing is touched.
    assert!(c.iter().zip(&written).all(|(c, written)| *written || c.is_nan()), "{p:?}");

    // The same bits, however the units are divided and in whatever order they run.
    let mut again = Guarded::output(plan.c_len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: the operands are those of `compute` above.
        unsafe {
            let (a, w, b) = (guarded_a.as_ptr(), packed.as_ptr(), packed_bias.as_ptr());
            plan.run(a, w, b, residual.as_ptr(), again.as_mut_ptr(), unit..unit + 1);
        }
    }
    assert!(c.iter().zip(&*again).all(|(x, y)| x.to_bits() == y.to_bits()), "{p:?}");
}

fn check_both(isa: Isa, p: &MatmulParams) {
    check(isa, p, Place::ALL[(p.m + p.n + p.k) % 3], true);
    check(isa, p, Place::PageEnd, false);
}

/// 1, the tile, its neighbours and twice it, in each dimension.
fn sizes(isa: Isa) {
    let kernels = super::matmul::kernels(isa);
    let most =
        |f: fn(&crate::KernelInfo) -> usize| kernels.iter().map(|k| f(&k.info)).max().unwrap_or(1);
    let (mr, nr) = (most(|i| i.w_ob), most(|i| i.c_ob));
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
            check(isa, &MatmulParams::new(m, 6, n), Place::PageEnd, true);
        }
    }
    for m in 1..=2 * mr + 1 {
        check_both(isa, &MatmulParams::new(m, 9, 20).b_transposed());
    }
}

fn strides_and_batches(isa: Isa) {
    for m in [1, 3, 17] {
        for n in [1, 7, 16, 45] {
            let p = MatmulParams::new(m, 13, n);
            check_both(isa, &MatmulParams { a_row: 20, b_row: n + 3, c_row: n + 5, ..p.clone() });
            check_both(isa, &MatmulParams { b_row: 15, ..p.clone().b_transposed() });
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
                    &MatmulParams::new(m, 11, n).epilogue(Epilogue { activation, residual }),
                );
            }
        }
    }
}

fn specials(isa: Isa) {
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let p = MatmulParams::new(5, 3, 19);
        let plan = MatmulPlan::new(isa, &p).unwrap();
        let (mut a, b) = (vec![1.0; 15], vec![1.0; 57]);
        a[7] = special;
        let (mut packed, bias) = (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
        plan.pack_weights(&b, &mut packed).unwrap();
        let mut c: Vec<f32> = vec![0.0; 95];
        plan.compute(&a, &packed, &bias, None, &mut c).unwrap();
        for (i, (c, exact)) in c.iter().zip(reference(&p, &a, &b, &[])).enumerate() {
            assert_close(*c, exact, 0.0, (special, i));
        }
    }
}

fn random_shapes(isa: Isa) {
    use proptest::prelude::*;
    let strategy =
        (1usize..40, 1usize..150, 1usize..60, 1usize..4, any::<bool>(), [0usize..4, 0..4, 0..4]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        ..ProptestConfig::default()
    });
    let result = runner.run(&strategy, |(m, n, k, batch, transposed, extra)| {
        let mut p = MatmulParams::new(m, k, n);
        if transposed {
            p = p.b_transposed();
        }
        p.b_row += extra[0];
        p.a_row += extra[1];
        p.c_row += extra[2];
        p.batch = batch;
        (p.a_batch, p.c_batch) = (m * p.a_row + extra[0], m * p.c_row + extra[1]);
        p.b_batch = p.b_row * if transposed { n } else { k };
        check(isa, &p, Place::PageEnd, true);
        Ok(())
    });
    result.unwrap();
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        conformance! { @ $id $isa sizes strides_and_batches epilogues specials random_shapes }
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
