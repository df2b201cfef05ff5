//! Conformance of the convolution kernels, for every row of the table.

use super::conv::{ConvParams, ConvPlan, InputLayout, reference};
use crate::testing::{
    Guarded, Numbers, Place, activation_error, assert_close, maximum, skip, tolerance,
};
use crate::{Activation, Dtype, Epilogue, Isa, KernelError, pack};
use alloc::{vec, vec::Vec};

/// Plain to the layout of the input; lanes that are no channel are NaN.
pub(super) fn to_layout(p: &ConvParams, len: usize, plain: &[f32]) -> Vec<f32> {
    let shape = [p.n, p.c_in, p.h_in, p.w_in];
    let mut x = vec![f32::NAN; len];
    each_index(shape, |at| {
        let to = match p.input {
            InputLayout::Blocked => pack::blocked_index(shape, at),
            InputLayout::Interleaved => pack::interleaved_index(shape, at),
        };
        x[to] = plain[pack::plain_index(shape, at)];
    });
    x
}

pub(super) fn each_index(shape: [usize; 4], mut f: impl FnMut([usize; 4])) {
    for n in 0..shape[0] {
        for c in 0..shape[1] {
            for h in 0..shape[2] {
                for w in 0..shape[3] {
                    f([n, c, h, w]);
                }
            }
        }
    }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => maximum(x, 0.0),
        Activation::Clip { min, max } => x.max(min.into()).min(max.into()),
        Activation::LeakyRelu { alpha } if x < 0.0 => x * f64::from(alpha),
        Activation::LeakyRelu { .. } => x,
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        _ => panic!("no reference"),
    }
}

/// One shape, one set of values, one placement of the operands, as defined.
fn check(isa: Isa, p: &ConvParams, place: Place, exact: bool) {
    let p = &p.clone().direct();
    let k = p.c_in / p.groups * p.kernel[0] * p.kernel[1];
    let costly = p.epilogue.activation.in_tile().is_none();
    let allowed = if exact && !costly { 0.0 } else { tolerance(Dtype::F32, k + 2) };
    check_plan(&ConvPlan::new(isa, p).unwrap(), place, exact, allowed);
}

/// One plan on integers or on other numbers, with the error allowed in the sums.
pub(super) fn check_plan(plan: &ConvPlan, place: Place, exact: bool, allowed: f64) {
    let p = plan.params();
    let mut numbers = Numbers::new((p.c_in * 31 + p.w_in * 7 + p.c_out) as u64);
    let mut some = |len| if exact { numbers.integers(len) } else { numbers.floats(len) };
    let (x_shape, y_shape) = ([p.n, p.c_in, p.h_in, p.w_in], [p.n, p.c_out, p.h_out, p.w_out]);
    let x = some(x_shape.iter().product());
    let weights = some(p.c_out * p.c_in / p.groups * p.kernel[0] * p.kernel[1]);
    let bias = some(p.c_out);
    let residual = some(y_shape.iter().product());

    let mut packed = Guarded::output(plan.weights_len(), place);
    let mut packed_bias = Guarded::output(plan.bias_len(), place);
    plan.pack_weights(&weights, &mut packed).unwrap();
    plan.pack_bias(&bias, &mut packed_bias).unwrap();
    let blocked_x = Guarded::new(&to_layout(p, plan.x_len(), &x), place);
    let mut added = Guarded::output(plan.y_len(), place);
    each_index(y_shape, |at| {
        added[pack::blocked_index(y_shape, at)] = residual[pack::plain_index(y_shape, at)];
    });
    let mut y = Guarded::output(plan.y_len(), place);
    let given = p.epilogue.residual.then_some(&*added);
    plan.compute(&blocked_x, &packed, &packed_bias, given, &mut y).unwrap();

    let expected = reference(p, &x, &weights, &bias);
    let costly = p.epilogue.activation.in_tile().is_none();
    let name = plan.kernel_name();
    each_index(y_shape, |at| {
        let plain = pack::plain_index(y_shape, at);
        let sum =
            expected[plain] + if p.epilogue.residual { f64::from(residual[plain]) } else { 0.0 };
        let y = y[pack::blocked_index(y_shape, at)];
        let allowed = allowed + if costly { activation_error(sum) } else { 0.0 };
        let what = (name, plan.choice(), at, p);
        assert_close(y, activate(p.epilogue.activation, sum), allowed, what);
    });

    // The same bits, however the units are divided and in whatever order they run.
    let mut again = Guarded::output(plan.y_len(), place);
    let mut scratch = Guarded::output(plan.scratch_len(), place);
    for unit in (0..plan.units()).rev() {
        let residual = given.map_or(core::ptr::null(), <[f32]>::as_ptr);
        // SAFETY: the operands are those of `compute` above.
        unsafe {
            let (x, w, b) = (blocked_x.as_ptr(), packed.as_ptr(), packed_bias.as_ptr());
            let (y, scratch) = (again.as_mut_ptr(), scratch.as_mut_ptr());
            plan.run(x, w, b, residual, y, scratch, unit..unit + 1);
        }
    }
    each_index(y_shape, |at| {
        let i = pack::blocked_index(y_shape, at);
        assert_eq!(y[i].to_bits(), again[i].to_bits(), "{:?} {at:?} {p:?}", plan.choice());
    });
}

/// A shape with exact and with random values, the placement changing from shape to shape.
fn check_both(isa: Isa, p: &ConvParams) {
    let place = Place::ALL[(p.w_in + p.c_in + p.c_out + p.kernel[1]) % 3];
    check(isa, p, place, true);
    check(isa, p, Place::PageEnd, false);
}

pub(super) fn conv(c_in: usize, size: [usize; 2], c_out: usize, kernel: [usize; 2]) -> ConvParams {
    ConvParams::new([1, c_in, size[0], size[1]], c_out, kernel)
}

/// Padding that keeps the size at stride 1; the odd one at the end.
pub(super) fn same(p: ConvParams) -> ConvParams {
    let [h, w] = [0, 1].map(|i| p.dilation[i] * (p.kernel[i] - 1));
    p.pads([h / 2, w / 2, h - h / 2, w - w / 2])
}

/// SMaLL's grid: `C_i, H, W, k, stride, C_o`, valid and same.
fn small_grid(isa: Isa) {
    let valid = [
        (3, 3, 3, 1, 1, 16),
        (3, 3, 3, 3, 1, 16),
        (16, 1, 1, 1, 1, 16),
        (16, 1, 6, 1, 1, 16),
        (16, 3, 3, 3, 1, 16),
        (16, 3, 8, 3, 1, 16),
        (16, 30, 30, 3, 1, 16),
        (16, 1, 6, 1, 1, 96),
        (16, 3, 8, 3, 1, 96),
        (96, 1, 6, 1, 1, 16),
        (96, 3, 8, 3, 1, 16),
        (96, 30, 30, 1, 1, 96),
    ];
    let padded = [
        (3, 1, 1, 1, 1, 16),
        (3, 3, 3, 1, 1, 16),
        (16, 3, 3, 3, 1, 16),
        (16, 3, 3, 3, 2, 16),
        (16, 3, 8, 3, 1, 16),
        (16, 3, 8, 3, 1, 96),
        (16, 3, 13, 3, 2, 16),
        (16, 3, 13, 3, 2, 96),
        (96, 3, 8, 3, 1, 16),
        (96, 3, 13, 3, 2, 16),
        (96, 30, 30, 3, 2, 96),
    ];
    for (shapes, pad) in [(&valid[..], false), (&padded[..], true)] {
        for &(c, h, w, k, stride, c_out) in shapes {
            let p = conv(c, [h, w], c_out, [k, k]);
            let p = if pad { same(p) } else { p }.stride([stride, stride]);
            check(isa, &p, Place::Aligned, true);
            if c < 16 {
                check(isa, &p.interleaved(), Place::PageEnd, true);
            }
        }
    }
}

/// Every output width up to twice the widest tile and one more, and every height of a tile.
fn widths(isa: Isa) {
    let kernels = super::conv::kernels(isa);
    let widest = kernels.iter().map(|k| k.info.w_ob()).max().unwrap_or(1);
    for w in 1..=2 * widest + 1 {
        check_both(isa, &same(conv(5, [2, w], 16, [3, 3])));
        check_both(isa, &conv(17, [1, w], 40, [1, 1]));
        if w <= 6 {
            for h in 1..=9 {
                check_both(isa, &same(conv(18, [h, w], 48, [3, 3])));
            }
        }
    }
}

fn channels(isa: Isa) {
    for c in [1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 33, 40, 255, 256, 257, 300] {
        for k in [1, 15, 16, 17, 33, 50] {
            let p = conv(c, [3, 5], k, [3, 2]).pads([1, 0, 0, 1]);
            check_both(isa, &p);
            check_both(isa, &p.interleaved());
        }
    }
}

fn strides_and_dilations(isa: Isa) {
    for stride in [[1, 1], [2, 2], [3, 3], [1, 2], [3, 1]] {
        for dilation in [[1, 1], [2, 2], [1, 2], [3, 1]] {
            for pads in [[0; 4], [1, 2, 0, 1], [0, 0, 3, 2], [2; 4]] {
                let p = conv(6, [9, 11], 20, [3, 3]).stride(stride).dilation(dilation).pads(pads);
                check_both(isa, &p);
                check_both(isa, &p.interleaved());
            }
        }
    }
}

fn filters(isa: Isa) {
    for k in 1..=13 {
        check_both(isa, &same(conv(3, [13, 14], 16, [k, k])).interleaved());
        check_both(isa, &same(conv(4, [2, 9], 16, [1, k])));
        check_both(isa, &same(conv(4, [9, 2], 16, [k, 1])));
        // The image is smaller than the filter.
        check_both(isa, &same(conv(17, [2, 3], 33, [k, k])));
    }
}

fn transposed(isa: Isa) {
    for kernel in [[1, 1], [2, 2], [3, 3], [4, 4], [5, 2]] {
        for stride in [[1, 1], [2, 2], [3, 2]] {
            for (pads, dilation) in [([0; 4], [1, 1]), ([1, 0, 0, 1], [2, 1]), ([0; 4], [2, 3])] {
                let p = conv(18, [4, 5], 20, kernel)
                    .stride(stride)
                    .dilation(dilation)
                    .transposed()
                    .pads(pads);
                if p.h_out == 0 || p.w_out == 0 {
                    continue;
                }
                let (h, w) = (p.h_out + stride[0] - 1, p.w_out + stride[1] - 1);
                check_both(isa, &p);
                check_both(isa, &p.clone().output(h, w));
                check_both(isa, &p.clone().interleaved());
                check_both(isa, &p.groups(2));
            }
        }
    }
}

/// A transposed convolution whose outputs all lie between the filter's taps.
fn no_taps(isa: Isa) {
    let p = conv(1, [2, 2], 17, [4, 1]).stride([1, 2]).transposed().pads([0, 1, 0, 1]);
    assert_eq!(p.w_out, 1);
    check_both(isa, &p);
}

fn groups(isa: Isa) {
    for (c_in, c_out, groups) in [
        (2, 4, 2),
        (32, 32, 2),
        (64, 96, 2),
        (96, 96, 3),
        (12, 12, 3),
        (24, 8, 4),
        (20, 40, 20),
        (40, 20, 20),
        (48, 144, 3),
    ] {
        let p = same(conv(c_in, [4, 7], c_out, [3, 3])).groups(groups);
        check_both(isa, &p);
        check_both(isa, &p.interleaved());
    }
}

fn epilogues(isa: Isa) {
    let activations = [
        Activation::None,
        Activation::Relu,
        Activation::Clip { min: -0.5, max: 6.0 },
        Activation::LeakyRelu { alpha: 0.25 },
        Activation::LeakyRelu { alpha: -2.0 },
        Activation::Sigmoid,
        Activation::HardSwish,
    ];
    for activation in activations {
        for residual in [false, true] {
            let p = same(conv(20, [3, 15], 40, [3, 3])).epilogue(Epilogue { activation, residual });
            check_both(isa, &p);
            check_both(isa, &ConvParams { n: 3, ..p.clone() });
            check_both(isa, &p.transposed().stride([2, 2]));
            let p = conv(300, [2, 3], 20, [1, 1]).epilogue(Epilogue { activation, residual });
            check_both(isa, &p);
        }
    }
}

/// A NaN or an infinity reaches the outputs whose window holds it, and no others.
fn specials(isa: Isa) {
    let p = same(conv(2, [5, 29], 16, [3, 3]))
        .epilogue(Epilogue { activation: Activation::Relu, residual: false });
    let plan = ConvPlan::new(isa, &p).unwrap();
    let mut packed = vec![0.0; plan.weights_len()];
    plan.pack_weights(&[1.0; 16 * 2 * 9], &mut packed).unwrap();
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0] {
        for w in 0..29 {
            let mut x = vec![1.0; 2 * 5 * 29];
            x[pack::plain_index([1, 2, 5, 29], [0, 1, 2, w])] = special;
            let mut y = vec![0.0; plan.y_len()];
            plan.compute(&to_layout(&p, plan.x_len(), &x), &packed, &[0.0; 16], None, &mut y)
                .unwrap();
            let expected = reference(&p, &x, &[1.0; 16 * 2 * 9], &[]);
            each_index([1, 16, 5, 29], |at| {
                let exact = expected[pack::plain_index([1, 16, 5, 29], at)];
                assert_close(
                    y[pack::blocked_index([1, 16, 5, 29], at)],
                    maximum(exact, 0.0),
                    0.0,
                    (special, w, at),
                );
            });
        }
    }
}

fn random_shapes(isa: Isa) {
    use proptest::prelude::*;
    let pair = |most: usize| [1..=most, 1..=most];
    let strategy = (
        (1usize..=2, 1usize..=40, 1usize..=70, pair(12)),
        (pair(4), pair(3), pair(2), [0usize..3, 0..3, 0..3, 0..3]),
        (any::<bool>(), any::<bool>(), 1usize..=3),
    );
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 200,
        ..ProptestConfig::default()
    });
    let result = runner.run(
        &strategy,
        |((n, c, k, size), (kernel, stride, dilation, pads), (inter, trans, groups))| {
            let p = ConvParams::new([n, c * groups, size[0], size[1]], k * groups, kernel);
            let mut p = p.stride(stride).dilation(dilation).pads(pads).groups(groups);
            p.transposed = trans;
            p.input = if inter { InputLayout::Interleaved } else { InputLayout::Blocked };
            let p = p.inferred();
            if p.h_out > 0 && p.w_out > 0 && !(groups > 1 && c == 1 && k == 1) {
                check(isa, &p, Place::PageEnd, true);
            }
            Ok(())
        },
    );
    result.unwrap();
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        conformance! { @ $id $isa small_grid widths channels strides_and_dilations filters transposed no_taps
            groups epilogues specials random_shapes }
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
    let error = |p: &ConvParams| ConvPlan::new(Isa::Scalar, p).unwrap_err();
    let p = conv(4, [5, 5], 8, [3, 3]);
    let invalid = |p: &ConvParams, name: &str| {
        let found = error(p);
        assert!(
            matches!(found, KernelError::InvalidParam { param, .. } if param == name),
            "{found}"
        );
    };
    invalid(&ConvParams { n: 0, ..p.clone() }, "size");
    invalid(&ConvParams { stride: [0, 1], ..p.clone() }, "stride and dilation");
    invalid(&p.clone().groups(3), "groups");
    invalid(&p.clone().output(4, 3), "output size");
    // SMaLL computes 1 431 655 765 here.
    invalid(&conv(1, [2, 2], 1, [5, 5]).stride([3, 3]), "output size");
    let leaky = Activation::LeakyRelu { alpha: f32::NAN };
    invalid(&p.clone().epilogue(Epilogue { activation: leaky, residual: false }), "alpha");
    assert!(matches!(
        error(&conv(4, [5, 5], 4, [3, 3]).groups(4)),
        KernelError::Unsupported { .. }
    ));
    let huge = ConvParams { pads: [usize::MAX / 4; 4], ..p.clone() }.inferred();
    assert!(matches!(error(&huge), KernelError::TooLarge { .. }));
    let huge = [
        conv(1 << 30, [1 << 20, 1 << 20], 1 << 20, [1, 1]),
        // Tables of tiles would have terabytes.
        conv(1, [1, (1 << 28) + 1], 1, [1, 3]),
        conv(usize::MAX, [1, 1], 1, [1, 1]),
    ];
    for p in huge {
        assert!(matches!(error(&p), KernelError::TooLarge { .. }));
    }
}

#[test]
fn short_operands_are_errors() {
    let p = same(conv(3, [4, 4], 8, [3, 3]));
    let plan = ConvPlan::new(Isa::Scalar, &p).unwrap();
    let (x, w, b) =
        (vec![0.0; plan.x_len()], vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
    let mut y = vec![0.0; plan.y_len()];
    assert!(plan.compute(&x[1..], &w, &b, None, &mut y).is_err());
    assert!(plan.compute(&x, &w[1..], &b, None, &mut y).is_err());
    assert!(plan.compute(&x, &w, &b[1..], None, &mut y).is_err());
    let expected = KernelError::InvalidLength {
        op: "conv",
        operand: "output",
        expected: y.len(),
        found: y.len() - 1,
    };
    assert_eq!(plan.compute(&x, &w, &b, None, &mut y[1..]), Err(expected));
    assert!(plan.pack_weights(&[0.0; 8 * 27 - 1], &mut vec![0.0; plan.weights_len()]).is_err());
    let plan =
        ConvPlan::new(Isa::Scalar, &p.epilogue(Epilogue { residual: true, ..Epilogue::default() }))
            .unwrap();
    assert!(plan.compute(&x, &w, &b, None, &mut y).is_err());
}

/// For Miri, which is some thousand times slower: every border and tail once.
#[test]
fn small_shapes() {
    for isa in Isa::available() {
        let p = conv(3, [4, 5], 5, [3, 3]).pads([1; 4]);
        check(isa, &p, Place::Misaligned, true);
        check(isa, &p.interleaved().stride([2, 2]), Place::PageEnd, true);
    }
}
