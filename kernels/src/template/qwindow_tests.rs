//! Conformance of depthwise convolution and pooling of bytes, for every row of the table: exact to the
//! bit.

use super::depthwise::DepthwiseParams;
use super::pool::{PoolOp, PoolParams};
use super::qdepthwise::{QdepthwiseParams, QdepthwisePlan};
use super::qmatmul_tests::{bytes, values};
use super::qpool::{QpoolParams, QpoolPlan};
use super::{qdepthwise, qpool};
use crate::pack::blocked_index;
use crate::quant::{Bytes, QuantColumns, QuantOutput};
use crate::testing::{Numbers, Place, skip};
use crate::testing_bytes::Buffer;
use crate::{Activation, Dtype, Epilogue, Isa, KernelError};
use alloc::{vec, vec::Vec};

/// Compares a blocked result with a plain one.
fn compare(found: &[f64], expected: &[f64], shape: [usize; 4], what: impl core::fmt::Debug) {
    let [_, c, h, w] = shape;
    for (i, exact) in expected.iter().enumerate() {
        let at = [i / w / h / c, i / w / h % c, i / w % h, i % w];
        assert_eq!(found[blocked_index(shape, at)], *exact, "at {at:?}: {what:?}");
    }
}

fn check_depthwise(isa: Isa, p: &QdepthwiseParams, place: Place) {
    let c = &p.conv;
    let low = if p.w == Dtype::I8 { 128 } else { 0 };
    let zeros: Vec<i32> = match c.w_in % 3 {
        _ if p.terms == 1 => vec![128 - low],
        0 => vec![],
        1 => vec![131 - low],
        _ => (0..c.c).map(|k| (k * 37 % 256) as i32 - low).collect(),
    };
    let plan = QdepthwisePlan::new(isa, p).unwrap();
    let taps = c.kernel[0] * c.kernel[1];
    let mut numbers = Numbers::new((c.c * 31 + c.w_in * 7 + taps) as u64);
    let (x, w) = (numbers.bytes(plan.x_len()), numbers.bytes(c.c * taps));
    // Also so large that only the rounding to f32 can hold the sum.
    let bias: Vec<i32> = (0..c.c as i32)
        .map(|k| [k * 97 - 999, i32::MAX - k, i32::MIN + k * 3][k as usize % 3])
        .collect();
    let size = 200.0 * (taps as f32).sqrt();
    let scales: Vec<f32> = (0..c.c).map(|k| [1.0 / size, 3e-8, 0.37 / size][k % 3]).collect();
    let columns = QuantColumns {
        bias: if c.h_in.is_multiple_of(3) { &[] } else { &bias },
        zero_point: p.x_zero_point,
        scales: if c.h_in.is_multiple_of(2) { &scales } else { &scales[..1] },
        shifts: &[],
    };
    let (mut packed, mut after) = (vec![0.0; plan.weights_len()], vec![0.0; plan.columns_len()]);
    plan.pack_weights(bytes(p.w, &w), &zeros, &mut packed).unwrap();
    plan.pack_columns(&columns, &mut after).unwrap();
    let guarded = Buffer::new(&x, place);
    let run = |reversed: bool| {
        let mut y = Buffer::output(plan.y_len(), place);
        for unit in 0..plan.units() {
            let unit = if reversed { plan.units() - 1 - unit } else { unit };
            let (w, e) = (packed.as_ptr(), after.as_ptr());
            // SAFETY: operands of the plan's lengths, units of the plan, one thread.
            unsafe { plan.run(guarded.as_ptr(), w, e, y.as_mut_ptr(), unit..unit + 1) };
        }
        y
    };
    let y = run(false);
    let expected = qdepthwise::reference(p, bytes(p.x, &x), bytes(p.w, &w), &zeros, &columns);
    let found = values(p.output.dtype(), &y);
    compare(&found, &expected, [c.n, c.c, c.h_out, c.w_out], (plan.kernel_name(), p));
    assert!(y[..] == run(true)[..], "{p:?}");
}

fn check_pool(isa: Isa, p: &QpoolParams, place: Place) {
    let plan = QpoolPlan::new(isa, p).unwrap();
    let s = &p.pool;
    let x = Numbers::new((s.c * 31 + s.w_in) as u64).bytes(plan.x_len());
    let guarded = Buffer::new(&x, place);
    let mut y = Buffer::output(plan.y_len(), place);
    for unit in (0..plan.units()).rev() {
        // SAFETY: operands of the plan's lengths, units of the plan, one thread.
        unsafe { plan.run(guarded.as_ptr(), y.as_mut_ptr(), unit..unit + 1) };
    }
    let expected = qpool::reference(p, bytes(p.dtype, &x));
    let found = values(p.dtype, &y);
    compare(&found, &expected, [s.n, s.c, s.h_out, s.w_out], (plan.kernel_name(), p));
}

/// Window, stride, dilation and pads.
type Shape = ([usize; 2], [usize; 2], [usize; 2], [usize; 4]);

const SHAPES: [Shape; 14] = [
    ([3, 3], [1, 1], [1, 1], [1; 4]),
    ([3, 3], [2, 2], [1, 1], [0, 0, 1, 1]),
    ([3, 3], [2, 2], [1, 1], [1; 4]),
    ([2, 2], [2, 2], [1, 1], [0; 4]),
    ([3, 3], [1, 1], [1, 1], [2, 2, 1, 2]),
    ([5, 5], [1, 1], [1, 1], [2; 4]),
    ([5, 5], [2, 2], [1, 1], [1, 1, 2, 2]),
    ([4, 5], [1, 1], [2, 1], [3, 4, 1, 3]),
    ([1, 5], [1, 2], [1, 1], [0, 2, 0, 2]),
    ([9, 5], [3, 1], [1, 1], [4, 0, 4, 0]),
    ([5, 4], [1, 2], [1, 1], [2, 1, 0, 2]),
    ([3, 3], [1, 1], [2, 2], [2; 4]),
    ([1, 7], [3, 1], [1, 1], [0, 3, 0, 3]),
    ([1, 1], [1, 1], [1, 1], [0; 4]),
];

fn extents(input: [usize; 2], (kernel, stride, dilation, pads): Shape) -> Option<[usize; 2]> {
    let mut out = [0; 2];
    for i in 0..2 {
        let reach = dilation[i] * (kernel[i] - 1) + 1;
        out[i] = (input[i] + pads[i] + pads[i + 2]).checked_sub(reach)? / stride[i] + 1;
    }
    Some(out)
}

/// Every shape on every width, with types, zero points and channels in turn.
fn each_case(mut check: impl FnMut(usize, usize, [usize; 2], [usize; 2], Shape)) {
    let mut i = 0;
    for shape in SHAPES {
        for w in (1..20).chain([33]) {
            let input = [[5, 6, 8, 4][w % 4], w];
            if let Some(output) = extents(input, shape) {
                i += 1;
                check(i, [16, 3, 33, 20][i % 4], input, output, shape);
            }
        }
    }
}

fn depthwises(isa: Isa) {
    each_case(|i, c, input, output, (kernel, stride, dilation, pads)| {
        let epilogue = Epilogue::default();
        let (n, [h_in, w_in], [h_out, w_out]) = (1 + i % 2, input, output);
        let conv = DepthwiseParams {
            n,
            c,
            h_in,
            w_in,
            h_out,
            w_out,
            kernel,
            stride,
            dilation,
            pads,
            epilogue,
        };
        let x = if i.is_multiple_of(2) { Dtype::U8 } else { Dtype::I8 };
        let p = QdepthwiseParams {
            conv,
            x,
            x_zero_point: if x == Dtype::U8 {
                [131, 0, 255][i % 3]
            } else {
                [-9, 127, -128][i % 3]
            },
            w: if i / 2 % 3 == 2 { Dtype::U8 } else { Dtype::I8 },
            terms: 1,
            output: [
                QuantOutput::u8(131),
                QuantOutput::i8(-7),
                QuantOutput::U8 { zero_point: 3, min: 3, max: 200 },
            ][i / 2 % 3],
        };
        for terms in [1, 3] {
            check_depthwise(isa, &QdepthwiseParams { terms, ..p }, Place::ALL[i % 3]);
        }
    });
}

fn pools(isa: Isa) {
    let averages = [false, true].map(|count_include_pad| PoolOp::Average { count_include_pad });
    let check =
        |i: usize, op, c, [h_in, w_in]: [usize; 2], [h_out, w_out]: [usize; 2], shape: Shape| {
            let (kernel, stride, dilation, pads) = shape;
            let n = 1 + i % 2;
            let pool =
                PoolParams { op, n, c, h_in, w_in, h_out, w_out, kernel, stride, dilation, pads };
            let p = if i.is_multiple_of(2) {
                let (x_zero_point, y_zero_point) = ([131, 0, 255][i % 3], [3, 255, 128][i % 3]);
                QpoolParams { pool, dtype: Dtype::U8, x_zero_point, y_zero_point, scale: 1.37 }
            } else {
                let (x_zero_point, y_zero_point) = ([-9, 127, -128][i % 3], [0, -128, 5][i % 3]);
                QpoolParams { pool, dtype: Dtype::I8, x_zero_point, y_zero_point, scale: 0.73 }
            };
            check_pool(isa, &p, Place::ALL[i % 3]);
        };
    for op in [PoolOp::Max, averages[0], averages[1]] {
        each_case(|i, c, input, output, shape| check(i, op, c, input, output, shape));
        for (i, side) in (1..9).chain([17]).enumerate() {
            check(i, op, 40, [side, side], [1, 1], ([side, side], [1, 1], [1, 1], [0; 4]));
        }
        // Rounded up: the last windows reach beyond the padded image.
        check(1, op, 5, [7, 8], [4, 4], ([2, 3], [2, 2], [1, 1], [0; 4]));
        check(2, op, 5, [2, 1], [1, 1], ([3, 2], [2, 2], [1, 1], [0; 4]));
    }
}

macro_rules! conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn depthwise_convolutions_are_exact() {
                if !skip(Isa::$isa) {
                    depthwises(Isa::$isa);
                }
            }

            #[test]
            fn pools_are_exact() {
                if !skip(Isa::$isa) {
                    pools(Isa::$isa);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(conformance);

macro_rules! dot_conformance {
    ($id:ident: $tile:ident, $isa:ident, $($rest:tt)*) => {
        mod $id {
            use super::*;

            #[test]
            fn depthwise_convolutions_by_integers_are_exact() {
                if qdepthwise::integers(Isa::$isa).next().is_some() && !skip(Isa::$isa) {
                    depthwises(Isa::$isa);
                }
            }
        }
    };
}
tilewright_intrinsics::for_each_tile!(dot_conformance, i8);

fn depthwise_params() -> QdepthwiseParams {
    let conv = DepthwiseParams {
        n: 1,
        c: 5,
        h_in: 4,
        w_in: 9,
        h_out: 4,
        w_out: 9,
        kernel: [3, 3],
        stride: [1, 1],
        dilation: [1, 1],
        pads: [1; 4],
        epilogue: Epilogue::default(),
    };
    let (x, w, output) = (Dtype::U8, Dtype::I8, QuantOutput::u8(7));
    QdepthwiseParams { conv, x, x_zero_point: 3, w, terms: 1, output }
}

/// For Miri, which is some thousand times slower.
#[test]
fn small_shapes() {
    for isa in Isa::available() {
        check_depthwise(isa, &depthwise_params(), Place::Misaligned);
        let op = PoolOp::Average { count_include_pad: true };
        let pool = PoolParams {
            op,
            n: 1,
            c: 3,
            h_in: 3,
            w_in: 5,
            h_out: 2,
            w_out: 3,
            kernel: [3, 3],
            stride: [2, 2],
            dilation: [1, 1],
            pads: [1; 4],
        };
        check_pool(isa, &QpoolParams::new(pool, Dtype::I8), Place::Aligned);
        let max = PoolParams { op: PoolOp::Max, ..pool };
        check_pool(isa, &QpoolParams::new(max, Dtype::U8), Place::PageEnd);
    }
}

#[test]
fn wrong_parameters_are_named() {
    let p = depthwise_params();
    let refused = |p: QdepthwiseParams| QdepthwisePlan::new(Isa::Scalar, &p).unwrap_err();
    let invalid = |p: QdepthwiseParams, name: &str| {
        let found = refused(p);
        let named = matches!(found, KernelError::InvalidParam { param, .. } if param == name);
        assert!(named, "{found}");
    };
    invalid(QdepthwiseParams { x: Dtype::F32, ..p }, "type");
    invalid(QdepthwiseParams { x_zero_point: -1, ..p }, "zero point");
    invalid(QdepthwiseParams { terms: 4, ..p }, "terms");
    let conv = DepthwiseParams { kernel: [37, 7], ..p.conv };
    invalid(QdepthwiseParams { conv, ..p }, "filter size");
    let conv = DepthwiseParams { h_out: 5, ..p.conv };
    invalid(QdepthwiseParams { conv, ..p }, "output size");
    let unsupported = |p: QdepthwiseParams| {
        let found = refused(p);
        assert!(matches!(found, KernelError::Unsupported { .. }), "{found}");
    };
    unsupported(QdepthwiseParams { output: QuantOutput::F32, ..p });
    let epilogue = Epilogue { activation: Activation::Relu, residual: false };
    unsupported(QdepthwiseParams { conv: DepthwiseParams { epilogue, ..p.conv }, ..p });
    let plan = QdepthwisePlan::new(Isa::Scalar, &p).unwrap();
    let mut packed = vec![0.0; plan.weights_len()];
    let weights = vec![0; p.conv.c * p.conv.kernel[0] * p.conv.kernel[1]];
    assert!(plan.pack_weights(Bytes::I8(&weights), &[], &mut packed).is_ok());
    assert!(plan.pack_weights(Bytes::I8(&weights[1..]), &[], &mut packed).is_err());
    assert!(plan.pack_weights(Bytes::I8(&weights), &[], &mut packed[1..]).is_err());
    assert!(plan.pack_weights(Bytes::I8(&weights), &[0; 2], &mut packed).is_err());
    let mut columns = vec![0.0; plan.columns_len()];
    let other = QuantColumns { zero_point: 4, scales: &[1.0], ..QuantColumns::default() };
    assert!(plan.pack_columns(&other, &mut columns).is_err());
    let infinite = QuantColumns { zero_point: 3, scales: &[f32::INFINITY], ..other };
    assert!(plan.pack_columns(&infinite, &mut columns).is_err());
    let whole = PoolParams {
        op: PoolOp::Average { count_include_pad: false },
        n: 1,
        c: 1,
        h_in: 300,
        w_in: 300,
        h_out: 1,
        w_out: 1,
        kernel: [300, 300],
        stride: [1, 1],
        dilation: [1, 1],
        pads: [0; 4],
    };
    let pool = QpoolParams::new(whole, Dtype::U8);
    assert!(QpoolPlan::new(Isa::Scalar, &pool).is_err());
    assert!(QpoolPlan::new(Isa::Scalar, &QpoolParams { dtype: Dtype::F32, ..pool }).is_err());
    let nan = QpoolParams {
        scale: f32::NAN,
        ..QpoolParams::new(PoolParams { op: PoolOp::Max, ..whole }, Dtype::U8)
    };
    assert!(QpoolPlan::new(Isa::Scalar, &nan).is_err());
}
