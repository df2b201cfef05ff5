//! References and conformance tests of depthwise convolution and pooling.

use super::depthwise::{DepthwiseParams, DepthwisePlan};
use super::pool::{PoolOp, PoolParams, PoolPlan};
use crate::testing::{
    Guarded, Numbers, Place, activation_error, assert_close, maximum, skip, tolerance,
};
use crate::{Activation, C_BLOCK, Dtype, Epilogue, Isa, KernelError};
use alloc::{vec, vec::Vec};

/// Index of a pixel in a blocked tensor.
fn at([c, h, w]: [usize; 3], n: usize, k: usize, y: usize, x: usize) -> usize {
    (((n * c.div_ceil(C_BLOCK) + k / C_BLOCK) * h + y) * w + x) * C_BLOCK + k % C_BLOCK
}

/// Makes lanes that are no channel NaN.
fn spoil(values: &mut [f32], c: usize, pixels: usize) {
    for (i, v) in values.iter_mut().enumerate() {
        let block = i / (pixels * C_BLOCK) % c.div_ceil(C_BLOCK);
        if block * C_BLOCK + i % C_BLOCK >= c {
            *v = f32::NAN;
        }
    }
}

/// The taps of output pixel `(y, x)`: filter row and column, input row and column, each with
/// whether it lies in the image.
fn taps(
    p: &PoolParams,
    y: usize,
    x: usize,
) -> impl Iterator<Item = ([usize; 2], [isize; 2], bool)> + use<> {
    let p = *p;
    (0..p.kernel[0] * p.kernel[1]).map(move |i| {
        let (r, s) = (i / p.kernel[1], i % p.kernel[1]);
        let row = (y * p.stride[0] + r * p.dilation[0]) as isize - p.pads[0] as isize;
        let column = (x * p.stride[1] + s * p.dilation[1]) as isize - p.pads[1] as isize;
        let inside = row >= 0 && column >= 0 && row < p.h_in as isize && column < p.w_in as isize;
        ([r, s], [row, column], inside)
    })
}

/// The value of an output pixel of channel `k`, by the definition.
fn pooled(p: &PoolParams, x: &[f32], n: usize, k: usize, oy: usize, ox: usize) -> f64 {
    let shape = [p.c, p.h_in, p.w_in];
    let value = |[r, c]: [isize; 2]| f64::from(x[at(shape, n, k, r as usize, c as usize)]);
    match p.op {
        PoolOp::Max => {
            taps(p, oy, ox).filter(|t| t.2).fold(f64::NEG_INFINITY, |m, t| maximum(m, value(t.1)))
        }
        PoolOp::Average { count_include_pad } => {
            let counts = |t: &([usize; 2], [isize; 2], bool)| {
                let (bottom, right) = (p.h_in + p.pads[2], p.w_in + p.pads[3]);
                t.2 || count_include_pad && t.1[0] < bottom as isize && t.1[1] < right as isize
            };
            let count = taps(p, oy, ox).filter(counts).count().max(1);
            taps(p, oy, ox).filter(|t| t.2).map(|t| value(t.1)).sum::<f64>() / count as f64
        }
    }
}

fn check_pool(isa: Isa, p: &PoolParams, place: Place, values: Option<f32>) {
    let plan = PoolPlan::new(isa, p).unwrap_or_else(|e| panic!("{p:?}: {e}"));
    let mut x = Numbers::new((p.w_in * 31 + p.c) as u64).floats(plan.x_len());
    if let Some(value) = values {
        x.fill(value);
    }
    spoil(&mut x, p.c, p.h_in * p.w_in);
    let gx = Guarded::new(&x, place);
    let mut y = Guarded::output(plan.y_len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gx.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    let allowed = match p.op {
        PoolOp::Max => 0.0,
        PoolOp::Average { .. } => tolerance(Dtype::F32, p.kernel[0] * p.kernel[1]),
    };
    for n in 0..p.n {
        for k in 0..p.c {
            for oy in 0..p.h_out {
                for ox in 0..p.w_out {
                    let found = y[at([p.c, p.h_out, p.w_out], n, k, oy, ox)];
                    let exact = pooled(p, &x, n, k, oy, ox);
                    assert_close(found, exact, allowed, (plan.kernel_name(), p, n, k, oy, ox));
                }
            }
        }
    }
    // Lanes that are no channel stay as they were.
    let mut again = Guarded::output(plan.y_len(), place);
    plan.compute(&x, &mut again).unwrap();
    let bits = |v: &[f32]| -> Vec<u32> { v.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(&y), bits(&again));
}

/// A pool of one image with symmetric pads; output rounded down, or up.
fn pool(
    op: PoolOp,
    c: usize,
    size: [usize; 2],
    k: [usize; 2],
    stride: [usize; 2],
    pads: [usize; 4],
    up: bool,
) -> PoolParams {
    let mut p = PoolParams {
        op,
        n: 1,
        c,
        h_in: size[0],
        w_in: size[1],
        h_out: 0,
        w_out: 0,
        kernel: k,
        stride,
        dilation: [1, 1],
        pads,
    };
    (p.h_out, p.w_out) = (output(&p, 0, up), output(&p, 1, up));
    p
}

fn output(p: &PoolParams, axis: usize, up: bool) -> usize {
    let room = [p.h_in, p.w_in][axis] + p.pads[axis] + p.pads[axis + 2];
    let more = if up { p.stride[axis] - 1 } else { 0 };
    (room + more - p.dilation[axis] * (p.kernel[axis] - 1) - 1) / p.stride[axis] + 1
}

const POOLS: [PoolOp; 3] = [
    PoolOp::Max,
    PoolOp::Average { count_include_pad: false },
    PoolOp::Average { count_include_pad: true },
];

fn pools(isa: Isa) {
    for op in POOLS {
        // SMaLL's grid.
        for (c, h, w) in [(16, 3, 3), (16, 3, 13), (16, 30, 30), (96, 30, 30), (96, 3, 13)] {
            for pads in [[0; 4], [0, 0, 1, 1], [1; 4]] {
                check_pool(
                    isa,
                    &pool(op, c, [h, w], [3, 3], [2, 2], pads, false),
                    Place::Aligned,
                    None,
                );
            }
        }
        // Every width up to twice the widest tile, common and uncommon windows, odd channels.
        for w in 1..=19 {
            for (k, stride, pad) in [
                ([2, 2], [2, 2], 1),
                ([3, 3], [1, 1], 1),
                ([3, 3], [2, 2], 1),
                ([1, 4], [3, 3], 2),
                ([5, 2], [2, 1], 1),
                ([2, 2], [1, 1], 0),
                ([1, 1], [1, 1], 0),
                ([1, 1], [3, 2], 0),
                ([13, 13], [1, 1], 6),
            ] {
                for up in [false, true] {
                    let size = [w % 5 + 1, w];
                    // Rounded up, the only window may be larger than the padded image.
                    let more = |i: usize| if up { stride[i] - 1 } else { 0 };
                    if (0..2).all(|i| size[i] + 2 * pad + more(i) >= k[i]) {
                        let p = pool(op, w + 5, size, k, stride, [pad; 4], up);
                        check_pool(isa, &p, Place::ALL[w % 3], None);
                    }
                }
            }
        }
        // Asymmetric pads, dilation, several images.
        for (pads, dilation) in [
            ([0, 1, 2, 0], [1, 1]),
            ([1, 0, 0, 2], [2, 2]),
            ([2, 2, 2, 2], [2, 3]),
            ([0, 3, 1, 0], [1, 2]),
        ] {
            for k in 1..=4 {
                let mut p = pool(op, 20, [9, 11], [k, k], [1, 2], pads, false);
                (p.n, p.dilation) = (2, dilation);
                (p.h_out, p.w_out) = (output(&p, 0, false), output(&p, 1, false));
                check_pool(isa, &p, Place::PageEnd, None);
            }
        }
        // Global pooling, and windows larger than the image.
        for (h, w) in [(1, 1), (1, 2), (3, 3), (7, 7), (5, 25), (8, 8), (13, 1), (40, 41)] {
            check_pool(
                isa,
                &pool(op, 35, [h, w], [h, w], [1, 1], [0; 4], false),
                Place::ALL[h % 3],
                None,
            );
            check_pool(
                isa,
                &pool(op, 3, [h, w], [h + 2, w + 2], [1, 1], [1; 4], false),
                Place::ALL[h % 3],
                None,
            );
        }
        // Several units in a plane.
        check_pool(
            isa,
            &pool(op, 16, [70, 61], [3, 3], [1, 1], [1; 4], false),
            Place::PageEnd,
            None,
        );
        check_pool(
            isa,
            &pool(op, 16, [1, 700], [1, 3], [1, 1], [0, 1, 0, 1], false),
            Place::PageEnd,
            None,
        );
    }
}

fn pool_values(isa: Isa) {
    // Padding must not take part in a maximum.
    let p = pool(PoolOp::Max, 16, [5, 5], [3, 3], [2, 2], [1; 4], false);
    check_pool(isa, &p, Place::Aligned, Some(-1.0));
    let plan = PoolPlan::new(isa, &p).unwrap();
    let mut y = vec![0.0; plan.y_len()];
    plan.compute(&vec![-1.0; plan.x_len()], &mut y).unwrap();
    assert_eq!(y, vec![-1.0; 9 * 16]);
    // Infinities; a NaN goes through.
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        check_pool(isa, &p, Place::Aligned, Some(value));
    }
    check_pool(
        isa,
        &pool(PoolOp::Max, 16, [6, 6], [6, 6], [1, 1], [0; 4], false),
        Place::Aligned,
        Some(f32::NAN),
    );
    // A NaN alone reaches the windows that hold it, and no others.
    for (size, window) in [([6, 6], 6), ([7, 9], 2), ([7, 9], 3), ([3, 40], 3)] {
        let p = pool(
            PoolOp::Max,
            16,
            size,
            [window; 2],
            [if window == 6 { 1 } else { 2 }; 2],
            [0; 4],
            false,
        );
        let plan = PoolPlan::new(isa, &p).unwrap();
        for hole in 0..size[0] * size[1] {
            let mut x = Numbers::new(9).floats(plan.x_len());
            x[hole * 16 + 3] = f32::NAN;
            let mut y = vec![0.0; plan.y_len()];
            plan.compute(&x, &mut y).unwrap();
            for (oy, ox, k) in
                (0..p.h_out * p.w_out * 16).map(|i| (i / 16 / p.w_out, i / 16 % p.w_out, i % 16))
            {
                let found = y[at([16, p.h_out, p.w_out], 0, k, oy, ox)];
                assert_close(
                    found,
                    pooled(&p, &x, 0, k, oy, ox),
                    0.0,
                    (plan.kernel_name(), hole, oy, ox, k),
                );
            }
        }
    }
    // The mean of ones is one at every border, or what counting the padding makes of it.
    for (include, corner) in [(false, 1.0), (true, 4.0 / 9.0)] {
        let op = PoolOp::Average { count_include_pad: include };
        let plan =
            PoolPlan::new(isa, &pool(op, 16, [5, 5], [3, 3], [1, 1], [1; 4], false)).unwrap();
        let mut y = vec![0.0; plan.y_len()];
        plan.compute(&vec![1.0; plan.x_len()], &mut y).unwrap();
        assert_eq!((y[0], y[12 * 16]), (corner, 1.0));
    }
}

#[test]
fn impossible_sizes_are_errors() {
    let good = pool(PoolOp::Max, 16, [2, 9], [2, 2], [2, 2], [0; 4], false);
    let new = |p: PoolParams| PoolPlan::new(Isa::Scalar, &p).map(|plan| plan.units());
    assert!(new(good).is_ok());
    for bad in [
        PoolParams { kernel: [0, 2], ..good },
        PoolParams { stride: [0, 2], ..good },
        PoolParams { dilation: [1, 0], ..good },
        PoolParams { h_in: 0, ..good },
        PoolParams { w_out: 0, ..good },
        PoolParams { w_out: 6, ..good },
        // The kernel is larger than the image: no size at all, not a huge one.
        PoolParams { kernel: [5, 5], stride: [3, 3], ..good },
    ] {
        assert!(matches!(new(bad), Err(KernelError::InvalidParam { .. })), "{bad:?}");
    }
    for bad in [
        PoolParams { dilation: [usize::MAX, 1], ..good },
        PoolParams { pads: [usize::MAX, 0, 0, 0], ..good },
        PoolParams { stride: [usize::MAX, 2], h_out: 1, ..good },
        PoolParams { n: usize::MAX, ..good },
        // A table of the pixels of each tap would have gigabytes.
        PoolParams { kernel: [2, 1 << 30], pads: [0, 1 << 29, 0, 1 << 29], w_out: 5, ..good },
    ] {
        assert!(matches!(new(bad), Err(KernelError::TooLarge { .. })), "{bad:?}");
    }
    assert_eq!(new(PoolParams { n: 0, ..good }), Ok(0));
}

/// The same sizes as a pool, for the list of taps.
fn as_pool(p: &DepthwiseParams) -> PoolParams {
    let &DepthwiseParams { n, c, h_in, w_in, h_out, w_out, kernel, stride, dilation, pads, .. } = p;
    PoolParams { op: PoolOp::Max, n, c, h_in, w_in, h_out, w_out, kernel, stride, dilation, pads }
}

fn activate(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => maximum(x, 0.0),
        Activation::Clip { min, max } => x.clamp(min.into(), max.into()),
        Activation::LeakyRelu { alpha } => {
            if x > 0.0 {
                x
            } else {
                x * f64::from(alpha)
            }
        }
        Activation::Silu { alpha } => x / (1.0 + (-f64::from(alpha) * x).exp()),
        _ => panic!("no reference"),
    }
}

fn check_depthwise(isa: Isa, p: &DepthwiseParams, place: Place, exact: bool) {
    let plan = DepthwisePlan::new(isa, p).unwrap_or_else(|e| panic!("{p:?}: {e}"));
    let mut numbers = Numbers::new((p.w_in * 31 + p.c) as u64);
    let mut some = |len| if exact { numbers.integers(len) } else { numbers.floats(len) };
    let [fh, fw] = p.kernel;
    let (mut x, weights, bias) = (some(plan.x_len()), some(p.c * fh * fw), some(p.c));
    let mut residual = some(plan.y_len());
    spoil(&mut x, p.c, p.h_in * p.w_in);
    spoil(&mut residual, p.c, p.h_out * p.w_out);
    let (gx, gr) = (Guarded::new(&x, place), Guarded::new(&residual, place));
    let mut gw = Guarded::output(plan.weights_len(), place);
    let mut gb = Guarded::output(plan.bias_len(), place);
    plan.pack_weights(&weights, &mut gw).unwrap();
    plan.pack_bias(&bias, &mut gb).unwrap();
    let mut y = Guarded::output(plan.y_len(), place);
    let added = p.epilogue.residual.then_some(&*gr);
    plan.compute(&gx, &gw, &gb, added, &mut y).unwrap();

    let cheap = p.epilogue.activation.in_tile().is_some();
    let allowed = if exact && cheap { 0.0 } else { tolerance(Dtype::F32, fh * fw + 2) };
    for n in 0..p.n {
        for k in 0..p.c {
            for oy in 0..p.h_out {
                for ox in 0..p.w_out {
                    let to = at([p.c, p.h_out, p.w_out], n, k, oy, ox);
                    let mut sum = f64::from(bias[k]);
                    for ([r, s], [row, column], inside) in taps(&as_pool(p), oy, ox) {
                        if inside {
                            let x =
                                x[at([p.c, p.h_in, p.w_in], n, k, row as usize, column as usize)];
                            sum += f64::from(x) * f64::from(weights[(k * fh + r) * fw + s]);
                        }
                    }
                    sum += if p.epilogue.residual { f64::from(residual[to]) } else { 0.0 };
                    let value = activate(p.epilogue.activation, sum);
                    let allowed = allowed + if cheap { 0.0 } else { activation_error(sum) };
                    assert_close(y[to], value, allowed, (plan.kernel_name(), p, n, k, oy, ox));
                }
            }
        }
    }
    // The same bits unit by unit, backwards, with the residual in the output.
    let mut again = if p.epilogue.residual {
        Guarded::new(&gr, place)
    } else {
        Guarded::output(plan.y_len(), place)
    };
    for unit in (0..plan.units()).rev() {
        let y = again.as_mut_ptr();
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(gx.as_ptr(), gw.as_ptr(), gb.as_ptr(), y, y, unit..unit + 1) };
    }
    let bits = |v: &[f32]| -> Vec<u32> { v.iter().map(|x| x.to_bits()).collect() };
    assert_eq!(bits(&y), bits(&again));
}

fn depthwise(
    c: usize,
    size: [usize; 2],
    k: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pads: [usize; 4],
    epilogue: Epilogue,
) -> DepthwiseParams {
    let mut p = pool(PoolOp::Max, c, [1 << 12, 1 << 12], k, stride, pads, false);
    (p.h_in, p.w_in, p.dilation) = (size[0], size[1], dilation);
    DepthwiseParams {
        n: 1,
        c,
        h_in: size[0],
        w_in: size[1],
        h_out: output(&p, 0, false),
        w_out: output(&p, 1, false),
        kernel: k,
        stride,
        dilation,
        pads,
        epilogue,
    }
}

const EPILOGUES: [Epilogue; 6] = [
    Epilogue { activation: Activation::None, residual: false },
    Epilogue { activation: Activation::Relu, residual: false },
    Epilogue { activation: Activation::Clip { min: 0.0, max: 6.0 }, residual: true },
    Epilogue { activation: Activation::LeakyRelu { alpha: 0.5 }, residual: true },
    Epilogue { activation: Activation::Silu { alpha: 1.702 }, residual: false },
    Epilogue { activation: Activation::None, residual: true },
];

fn same(k: usize, dilation: usize) -> (usize, usize) {
    let span = dilation * (k - 1);
    (span / 2, span - span / 2)
}

fn depthwises(isa: Isa) {
    let none = EPILOGUES[0];
    // SMaLL's grid, valid and same.
    for (c, h, w) in
        [(16, 3, 3), (16, 3, 8), (16, 30, 30), (96, 3, 8), (96, 30, 30), (16, 3, 13), (96, 3, 13)]
    {
        for stride in [1, 2] {
            for pads in [[0; 4], [1; 4], [0, 0, 1, 1]] {
                let p = depthwise(c, [h, w], [3, 3], [stride; 2], [1, 1], pads, none);
                check_depthwise(isa, &p, Place::Aligned, true);
            }
        }
    }
    // Every width up to twice the widest tile, kernel sizes to 13, strides to 3, dilation to 2.
    for w in 1..=17 {
        for (k, stride, dilation) in [
            (3, 1, 1),
            (3, 2, 1),
            (5, 1, 1),
            (5, 2, 1),
            (3, 3, 1),
            (2, 1, 1),
            (4, 2, 1),
            (7, 1, 1),
            (13, 1, 1),
            (3, 1, 2),
            (5, 2, 2),
            (1, 1, 1),
            (1, 2, 1),
        ] {
            let (a, b) = same(k, dilation);
            let e = EPILOGUES[(w + k) % 6];
            let p = depthwise(
                w + 3,
                [w % 4 + 1, w],
                [k; 2],
                [stride; 2],
                [dilation; 2],
                [a, a, b, b],
                e,
            );
            check_depthwise(isa, &p, Place::ALL[w % 3], true);
            check_depthwise(isa, &p, Place::ALL[(w + 1) % 3], false);
        }
    }
    // Rectangular windows, asymmetric pads, several images and units.
    for (i, e) in EPILOGUES.into_iter().enumerate() {
        let mut p = depthwise(20, [9, 11], [4, 3], [1, 2], [2, 1], [0, 2, 1, 0], e);
        p.n = 2;
        check_depthwise(isa, &p, Place::ALL[i % 3], false);
        let mut p = depthwise(33, [70, 53], [3, 3], [1, 1], [1, 1], [1; 4], e);
        p.n = 2;
        check_depthwise(isa, &p, Place::ALL[i % 3], true);
    }
}

#[test]
fn depthwise_operands_are_checked() {
    let p = depthwise(17, [4, 4], [3, 3], [1, 1], [1, 1], [1; 4], EPILOGUES[5]);
    let plan = DepthwisePlan::new(Isa::Scalar, &p).unwrap();
    let (w, b) = (vec![0.0; plan.weights_len()], vec![0.0; plan.bias_len()]);
    let (x, mut y) = (vec![0.0; plan.x_len()], vec![0.0; plan.y_len()]);
    assert!(matches!(
        plan.compute(&x, &w, &b, None, &mut y),
        Err(KernelError::InvalidParam { param: "residual", .. })
    ));
    let r = vec![0.0; plan.y_len() - 1];
    let short = plan.compute(&x, &w, &b, Some(&r), &mut y);
    assert!(matches!(short, Err(KernelError::InvalidLength { operand: "residual", .. })));
    assert!(plan.pack_weights(&[0.0; 17 * 9 - 1], &mut [0.0; 512]).is_err());
    assert!(plan.pack_bias(&[0.0; 16], &mut [0.0; 32]).is_err());
    let mut bias = [1.0; 32];
    plan.pack_bias(&[], &mut bias).unwrap();
    assert_eq!(bias, [0.0; 32]);
}

#[test]
fn depthwise_hand_computed() {
    // A 4 x 1 image of ones under a 3 x 3 filter of ones: 2, 3, 3, 2.
    for isa in Isa::available() {
        let p = depthwise(16, [4, 1], [3, 3], [1, 1], [1, 1], [1; 4], EPILOGUES[0]);
        let plan = DepthwisePlan::new(isa, &p).unwrap();
        let (mut w, mut y) = (vec![0.0; plan.weights_len()], vec![f32::NAN; plan.y_len()]);
        plan.pack_weights(&[1.0; 144], &mut w).unwrap();
        plan.compute(&[1.0; 64], &w, &[0.5; 16], None, &mut y).unwrap();
        assert_eq!([y[0], y[16], y[32], y[63]], [2.5, 3.5, 3.5, 2.5]);
    }
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(if cfg!(debug_assertions) { 16 } else { 128 }))]

    /// Any sizes, on every instruction set of this machine.
    #[test]
    fn random_windows(
        c in 1usize..40,
        size in [1usize..20, 1usize..40],
        kernel in [1usize..6, 1usize..6],
        stride in [1usize..4, 1usize..4],
        dilation in [1usize..3, 1usize..3],
        pads in [0usize..4, 0usize..4, 0usize..4, 0usize..4],
        kind in 0usize..6,
    ) {
        let fits = |i: usize| size[i] + pads[i] + pads[i + 2] > dilation[i] * (kernel[i] - 1);
        proptest::prop_assume!(fits(0) && fits(1));
        for isa in Isa::available() {
            let place = Place::ALL[kind % 3];
            let p = depthwise(c, size, kernel, stride, dilation, pads, EPILOGUES[kind]);
            check_depthwise(isa, &p, place, kind % 2 == 0);
            let p = PoolParams { op: POOLS[kind % 3], ..as_pool(&p) };
            check_pool(isa, &p, place, None);
        }
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn pooling() {
                if !skip(Isa::$isa) {
                    pools(Isa::$isa);
                }
            }

            #[test]
            fn pooling_of_special_values() {
                if !skip(Isa::$isa) {
                    pool_values(Isa::$isa);
                }
            }

            #[test]
            fn depthwise_convolution() {
                if !skip(Isa::$isa) {
                    depthwises(Isa::$isa);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

/// For Miri, which is some thousand times slower: every border and tail once.
#[test]
fn small_shapes() {
    for isa in Isa::available() {
        // All lanes are channels: those that are not hold NaN, whose bits Miri chooses at random.
        let p = depthwise(16, [4, 5], [3, 3], [1, 1], [1, 1], [1; 4], EPILOGUES[2]);
        check_depthwise(isa, &p, Place::Misaligned, true);
        for op in POOLS {
            check_pool(isa, &PoolParams { op, ..as_pool(&p) }, Place::PageEnd, None);
        }
    }
}
