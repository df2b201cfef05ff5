//! Conformance of `pointwise` with the definition, on plain tensors.

use super::conv::ConvParams;
use super::pointwise::PointwisePlan;
use crate::testing::{
    Guarded, Numbers, Place, activation_error, assert_close, maximum, skip, tolerance,
};
use crate::{Activation, Choice, Dtype, Epilogue, Isa, KernelError};
use alloc::vec::Vec;

fn check(isa: Isa, p: &ConvParams, place: Place) {
    let plan = PointwisePlan::new(isa, p).unwrap_or_else(|e| panic!("{p:?}: {e}"));
    check_plan(&plan, place);
}

fn check_plan(plan: &PointwisePlan, place: Place) {
    let p = plan.params();
    let mut numbers = Numbers::new((p.c_in * 31 + p.c_out * 7 + p.h_in) as u64);
    let pixels = p.h_in * p.w_in;
    let [x, weights, bias, residual] =
        [plan.x_len(), p.c_in * p.c_out, p.c_out, plan.y_len()].map(|len| numbers.floats(len));
    let mut packed = Guarded::output(plan.weights_len(), place);
    let mut packed_bias = Guarded::output(plan.bias_len(), place);
    plan.pack_weights(&weights, &mut packed).unwrap();
    plan.pack_bias(&bias, &mut packed_bias).unwrap();
    let [gx, gr] = [&x, &residual].map(|values| Guarded::new(values, place));
    let given = p.epilogue.residual.then_some(&*gr);
    let mut y = Guarded::output(plan.y_len(), place);
    plan.compute(&gx, &packed, &packed_bias, given, &mut y).unwrap();

    let costly = p.epilogue.activation.in_tile().is_none();
    for (i, &found) in y.iter().enumerate() {
        let (image, k, pixel) = (i / pixels / p.c_out, i / pixels % p.c_out, i % pixels);
        let mut sum = f64::from(bias[k]);
        for c in 0..p.c_in {
            let x = x[(image * p.c_in + c) * pixels + pixel];
            sum += f64::from(x) * f64::from(weights[k * p.c_in + c]);
        }
        sum += if p.epilogue.residual { f64::from(residual[i]) } else { 0.0 };
        let exact = match p.epilogue.activation {
            Activation::Relu => maximum(sum, 0.0),
            Activation::Tanh => sum.tanh(),
            _ => sum,
        };
        let more = if costly { activation_error(sum) } else { 0.0 };
        let allowed = tolerance(Dtype::F32, p.c_in + 2) + more;
        assert_close(found, exact, allowed, (plan.kernel_name(), p, i));
    }

    // The same bits, however the units are divided and in whatever order they run.
    let mut again = Guarded::output(plan.y_len(), place);
    let mut scratch = Guarded::output(plan.scratch_len(), place);
    for unit in (0..plan.units()).rev() {
        let (x, w, b, r) = (gx.as_ptr(), packed.as_ptr(), packed_bias.as_ptr(), gr.as_ptr());
        let (y, scratch) = (again.as_mut_ptr(), scratch.as_mut_ptr());
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(x, w, b, r, y, scratch, unit..unit + 1) };
    }
    assert!(y.iter().zip(&*again).all(|(a, b)| a.to_bits() == b.to_bits()), "{p:?}");
}

/// Maps that fill vectors and maps that do not, few and many channels: both forms of the product.
fn shapes(isa: Isa) {
    for [h, w] in
        [[1, 16], [1, 17], [3, 7], [7, 7], [4, 8], [5, 20], [14, 14], [1, 130], [8, 16], [5, 32]]
    {
        for (c_in, c_out) in [(1, 1), (3, 16), (16, 5), (33, 70), (130, 40), (70, 200)] {
            let n = 1 + (h + c_in) % 2;
            let p = ConvParams::new([n, c_in, h, w], c_out, [1, 1]);
            check(isa, &p, Place::ALL[(h + c_out) % 3]);
            check(isa, &p, Place::PageEnd);
        }
    }
}

/// Both forms of the product in all ways, and, of a residual, the one that has it.
fn candidates(isa: Isa) {
    for residual in [false, true] {
        let epilogue = Epilogue { activation: Activation::Relu, residual };
        let p = ConvParams::new([2, 40, 7, 7], 70, [1, 1]).epilogue(epilogue);
        let choices = PointwisePlan::candidates(isa, &p).unwrap();
        assert_eq!(choices[0], PointwisePlan::new(isa, &p).unwrap().choice());
        for choice in choices {
            let plan = PointwisePlan::with_choice(isa, &p, &choice).unwrap();
            check_plan(&plan, Place::PageEnd);
        }
        let strange = Choice { tile: [1, 5, 5], ..PointwisePlan::new(isa, &p).unwrap().choice() };
        assert!(PointwisePlan::with_choice(isa, &p, &strange).is_err());
    }
}

fn epilogues(isa: Isa) {
    for activation in [Activation::Relu, Activation::Tanh] {
        for residual in [false, true] {
            for (c_in, c_out) in [(3, 5), (150, 160)] {
                let p = ConvParams::new([1, c_in, 7, 7], c_out, [1, 1]);
                check(isa, &p.epilogue(Epilogue { activation, residual }), Place::PageEnd);
            }
        }
    }
}

macro_rules! suite {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;
            suite! { tests $isa shapes candidates epilogues }
        }
    };
    (tests $isa:ident $($name:ident)*) => { $(
        #[test]
        fn $name() {
            if !skip(Isa::$isa) {
                super::$name(Isa::$isa);
            }
        }
    )* };
}
tilewright_intrinsics::for_each_tile!(suite);

#[test]
fn what_has_no_kernel_is_refused_by_name() {
    let p = ConvParams::new([1, 4, 8, 8], 4, [1, 1]);
    let others: Vec<ConvParams> = [
        p.clone().stride([2, 1]),
        p.clone().pads([0, 1, 0, 0]),
        p.clone().groups(2),
        ConvParams::new([1, 4, 8, 8], 4, [1, 2]),
        ConvParams::new([1, 4, 3, 5], 4, [1, 1]),
    ]
    .into();
    for other in others {
        assert!(!PointwisePlan::supports(&other), "{other:?}");
        let refused = PointwisePlan::new(Isa::Scalar, &other);
        let named = matches!(refused, Err(KernelError::Unsupported { op: "pointwise", .. }));
        assert!(named, "{refused:?}");
    }
    assert!(PointwisePlan::new(Isa::Scalar, &ConvParams { c_in: 0, ..p.clone() }).is_err());
    let plan = PointwisePlan::new(Isa::Scalar, &p).unwrap();
    assert!(plan.pack_weights(&[0.0; 15], &mut [0.0; 256]).is_err());
    assert!(plan.compute(&[], &[], &[], None, &mut []).is_err());
}
