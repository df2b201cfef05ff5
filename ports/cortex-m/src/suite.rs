//! The checks: each op against sums in double precision that share no code with its kernels, with
//! margins around what it writes.

use alloc::{vec, vec::Vec};
use tilewright_kernels::template::{conv, matmul, qmatmul};
use tilewright_kernels::{
    Activation, Bytes, ConvParams, ConvPlan, DepthwiseParams, DepthwisePlan, Dtype, Epilogue, Isa,
    LayoutOp, LayoutParams, LayoutPlan, MatmulParams, MatmulPlan, NormAffine, NormOp, NormParams,
    NormPlan, PoolOp, PoolParams, PoolPlan, QmatmulParams, QmatmulPlan, QpoolParams, QpoolPlan,
    QuantColumns, QuantOutput, QuantResult, ReduceOp, ReduceParams, ReducePlan, SoftmaxParams,
    SoftmaxPlan, UnaryOp, UnaryParams, UnaryPlan, pack,
};

/// An op and its check.
type Check = (&'static str, fn(Isa));

/// Each op with its check.
pub(crate) const SUITE: [Check; 11] = [
    ("layout", layouts),
    ("conv", convs),
    ("matmul", matmuls),
    ("qmatmul", qmatmuls),
    ("depthwise", depthwises),
    ("pool", pools),
    ("qpool", qpools),
    ("unary", unaries),
    ("reduce", reductions),
    ("softmax", softmaxes),
    ("norm", norms),
];

const MARGIN: usize = 16;
const POISON: u32 = 0xffa5_a5a5;

/// An output between margins that nothing may write.
struct Output {
    data: Vec<f32>,
}

impl Output {
    fn new(len: usize) -> Self {
        let mut data = vec![f32::from_bits(POISON); len + 2 * MARGIN];
        data[MARGIN..MARGIN + len].fill(f32::NAN);
        Self { data }
    }

    fn inside(&mut self) -> &mut [f32] {
        let end = self.data.len() - MARGIN;
        &mut self.data[MARGIN..end]
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let (head, rest) = self.data.split_at(MARGIN);
        let mut margins = head.iter().chain(&rest[rest.len() - MARGIN..]);
        assert!(margins.all(|x| x.to_bits() == POISON), "a margin was written");
    }
}

/// Integers from -3 to 3: their sums of products are exact.
fn numbers(seed: usize, len: usize) -> Vec<f32> {
    let mut state = (seed as u32).wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        (state >> 24) % 7
    };
    (0..len).map(|_| next() as f32 - 3.0).collect()
}

fn close(y: f32, exact: f64, allowed: f64, what: &str) {
    assert!((f64::from(y) - exact).abs() <= allowed, "{what}: {y} instead of {exact}");
}

fn each(shape: [usize; 4], mut f: impl FnMut([usize; 4])) {
    let [n, c, h, w] = shape;
    for i in 0..n * c * h * w {
        f([i / (c * h * w), i / (h * w) % c, i / w % h, i % w]);
    }
}

fn blocked(shape: [usize; 4], plain: &[f32]) -> Vec<f32> {
    let mut x = vec![f32::NAN; pack::blocked_len(shape)];
    each(shape, |at| x[pack::blocked_index(shape, at)] = plain[pack::plain_index(shape, at)]);
    x
}

fn layouts(isa: Isa) {
    for shape in [[1, 3, 5, 7], [2, 16, 3, 3], [1, 37, 2, 5]] {
        let [n, c, h, w] = shape;
        let x = numbers(c, n * c * h * w);
        let run = |op, x: &[f32]| {
            let plan = LayoutPlan::new(isa, &LayoutParams { op, n, c, h, w }).unwrap();
            let mut y = Output::new(plan.y_len());
            plan.compute(x, y.inside()).unwrap();
            y.inside().to_vec()
        };
        let packed = run(LayoutOp::NchwToBlocked, &x);
        let nhwc = run(LayoutOp::NchwToNhwc, &x);
        each(shape, |at| {
            let exact = x[pack::plain_index(shape, at)];
            assert_eq!(packed[pack::blocked_index(shape, at)], exact);
            assert_eq!(nhwc[pack::interleaved_index(shape, at)], exact);
        });
        assert_eq!(run(LayoutOp::BlockedToNchw, &packed), x);
        assert_eq!(run(LayoutOp::BlockedToNhwc, &packed), nhwc);
        assert_eq!(run(LayoutOp::NhwcToNchw, &nhwc), x);
    }
}

fn convs(isa: Isa) {
    let relu = Epilogue { activation: Activation::Relu, residual: false };
    let cases = [
        ConvParams::new([1, 3, 9, 8], 16, [3, 3]).pads([1; 4]).interleaved(),
        ConvParams::new([1, 16, 7, 7], 32, [3, 3]).pads([1; 4]),
        ConvParams::new([2, 20, 6, 5], 21, [1, 1]),
        ConvParams::new([1, 33, 9, 9], 17, [3, 3]).stride([2, 2]).pads([1; 4]),
        ConvParams::new([1, 16, 8, 8], 16, [5, 3]).dilation([1, 2]).pads([2; 4]),
        ConvParams::new([1, 16, 5, 6], 16, [3, 3]).transposed().stride([2, 2]),
    ];
    for (i, p) in cases.into_iter().enumerate() {
        // Winograd's sums are not exact.
        let p = if i % 2 == 0 { p } else { ConvParams { epilogue: relu, ..p } }.direct();
        let (x_shape, y_shape) = ([p.n, p.c_in, p.h_in, p.w_in], [p.n, p.c_out, p.h_out, p.w_out]);
        let x = numbers(i, x_shape.iter().product());
        let weights = numbers(i + 100, p.c_out * p.c_in * p.kernel[0] * p.kernel[1]);
        let bias = numbers(i + 200, p.c_out);
        let plan = ConvPlan::new(isa, &p).unwrap();
        let mut w = Output::new(plan.weights_len());
        let mut b = Output::new(plan.bias_len());
        plan.pack_weights(&weights, w.inside()).unwrap();
        plan.pack_bias(&bias, b.inside()).unwrap();
        let input = if p.input == conv::InputLayout::Interleaved {
            let mut input = vec![0.0; x.len()];
            each(x_shape, |at| {
                input[pack::interleaved_index(x_shape, at)] = x[pack::plain_index(x_shape, at)];
            });
            input
        } else {
            blocked(x_shape, &x)
        };
        let mut y = Output::new(plan.y_len());
        plan.compute(&input, w.inside(), b.inside(), None, y.inside()).unwrap();
        let exact = conv::reference(&p, &x, &weights, &bias);
        each(y_shape, |at| {
            let mut exact = exact[pack::plain_index(y_shape, at)];
            if i % 2 == 1 {
                exact = exact.max(0.0);
            }
            close(y.inside()[pack::blocked_index(y_shape, at)], exact, 0.0, plan.kernel_name());
        });
    }
}

fn matmuls(isa: Isa) {
    for (m, k, n) in [(1, 37, 50), (4, 16, 16), (5, 7, 19), (3, 64, 33), (8, 5, 1)] {
        let dense = MatmulParams::new(m, k, n);
        for p in [dense.clone(), dense.clone().b_transposed(), dense.batch(2)] {
            let plan = MatmulPlan::new(isa, &p).unwrap();
            let (a, b) = (numbers(m, plan.a_len()), numbers(n, plan.b_len()));
            let bias = numbers(k, n);
            let mut w = Output::new(plan.weights_len());
            let mut c = Output::new(plan.c_len());
            let mut packed_bias = Output::new(plan.bias_len());
            plan.pack_weights(&b, w.inside()).unwrap();
            plan.pack_bias(&bias, packed_bias.inside()).unwrap();
            plan.compute(&a, w.inside(), packed_bias.inside(), None, c.inside()).unwrap();
            for (c, exact) in c.inside().iter().zip(matmul::reference(&p, &a, &b, &bias)) {
                close(*c, exact, 0.0, plan.kernel_name());
            }
        }
    }
}

fn qmatmuls(isa: Isa) {
    for (m, k, n) in [(1, 37, 50), (4, 16, 16), (5, 7, 19), (3, 64, 33), (8, 5, 1)] {
        for output in [QuantOutput::I32, QuantOutput::i8(-3)] {
            let p = QmatmulParams { output, ..QmatmulParams::new(m, k, n, Dtype::U8) };
            let plan = QmatmulPlan::new(isa, &p).unwrap();
            let mut state = 1u32;
            let mut byte = || {
                state = state.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
                (state >> 24) as u8
            };
            let a: Vec<u8> = (0..plan.a_len()).map(|_| byte()).collect();
            let b: Vec<i8> = (0..plan.b_len()).map(|_| byte() as i8).collect();
            let bias: Vec<i32> = (0..n).map(|_| i32::from(byte()) * 100).collect();
            let columns =
                QuantColumns { bias: &bias, zero_point: 131, scales: &[0.002], shifts: &[] };
            let (a, b) = (Bytes::U8(&a), Bytes::I8(&b));
            let mut weights = vec![0; plan.weights_len()];
            let mut packed = vec![0; plan.columns_len()];
            let mut scratch = vec![0; plan.scratch_len()];
            plan.pack_weights(b, &[], &mut weights).unwrap();
            plan.pack_columns(&weights, &columns, &mut packed).unwrap();
            let exact = qmatmul::reference(&p, a, b, &[], &columns);
            let (mut sums, mut bytes) = (vec![0i32; plan.c_len()], vec![0i8; plan.c_len()]);
            let c = match output {
                QuantOutput::I32 => QuantResult::I32(&mut sums),
                _ => QuantResult::I8(&mut bytes),
            };
            plan.compute(a, &weights, &packed, &mut scratch, c).unwrap();
            for (i, exact) in exact.iter().enumerate() {
                let found = if output == QuantOutput::I32 { sums[i] } else { bytes[i].into() };
                assert_eq!(f64::from(found), *exact, "{}", plan.kernel_name());
            }
        }
    }
}

/// Input pixel of a tap, if it is in the image.
fn tap(
    out: [usize; 2],
    tap: [usize; 2],
    stride: usize,
    pad: usize,
    size: [usize; 2],
) -> Option<[usize; 2]> {
    let at = |i: usize| (out[i] * stride + tap[i]).checked_sub(pad).filter(|&x| x < size[i]);
    Some([at(0)?, at(1)?])
}

fn depthwises(isa: Isa) {
    for (c, size, kernel, stride) in [(16, [7, 9], 3, 1), (20, [8, 8], 3, 2), (5, [6, 11], 5, 1)] {
        let pad = kernel / 2;
        let out = size.map(|s: usize| (s + 2 * pad - kernel) / stride + 1);
        let p = DepthwiseParams {
            n: 1,
            c,
            h_in: size[0],
            w_in: size[1],
            h_out: out[0],
            w_out: out[1],
            kernel: [kernel; 2],
            stride: [stride; 2],
            dilation: [1, 1],
            pads: [pad; 4],
            epilogue: Epilogue::default(),
        };
        let (x_shape, y_shape) = ([1, c, size[0], size[1]], [1, c, out[0], out[1]]);
        let x = numbers(c, c * size[0] * size[1]);
        let (weights, bias) = (numbers(kernel, c * kernel * kernel), numbers(stride, c));
        let plan = DepthwisePlan::new(isa, &p).unwrap();
        let mut w = Output::new(plan.weights_len());
        let mut b = Output::new(plan.bias_len());
        let mut y = Output::new(plan.y_len());
        plan.pack_weights(&weights, w.inside()).unwrap();
        plan.pack_bias(&bias, b.inside()).unwrap();
        plan.compute(&blocked(x_shape, &x), w.inside(), b.inside(), None, y.inside()).unwrap();
        each(y_shape, |at| {
            let mut exact = f64::from(bias[at[1]]);
            for i in 0..kernel * kernel {
                let at_tap = [i / kernel, i % kernel];
                if let Some([h, w]) = tap([at[2], at[3]], at_tap, stride, pad, size) {
                    let x = x[pack::plain_index(x_shape, [0, at[1], h, w])];
                    exact += f64::from(x) * f64::from(weights[at[1] * kernel * kernel + i]);
                }
            }
            close(y.inside()[pack::blocked_index(y_shape, at)], exact, 0.0, "depthwise");
        });
    }
}

/// Square windows; those of 3 x 3 with a pixel of padding.
fn pool_params(op: PoolOp, c: usize, size: [usize; 2], kernel: usize, stride: usize) -> PoolParams {
    let pad = usize::from(kernel == 3);
    let out = size.map(|s| (s + 2 * pad - kernel) / stride + 1);
    PoolParams {
        op,
        n: 1,
        c,
        h_in: size[0],
        w_in: size[1],
        h_out: out[0],
        w_out: out[1],
        kernel: [kernel; 2],
        stride: [stride; 2],
        dilation: [1, 1],
        pads: [pad; 4],
    }
}

fn pools(isa: Isa) {
    for (c, size, kernel, stride) in [(16, [8, 8], 2, 2), (20, [7, 9], 3, 2), (3, [5, 6], 3, 1)] {
        for op in [PoolOp::Max, PoolOp::Average { count_include_pad: false }] {
            let p = pool_params(op, c, size, kernel, stride);
            let (x_shape, y_shape) = ([1, c, size[0], size[1]], [1, c, p.h_out, p.w_out]);
            let x = numbers(c + kernel, c * size[0] * size[1]);
            let plan = PoolPlan::new(isa, &p).unwrap();
            let mut y = Output::new(plan.y_len());
            plan.compute(&blocked(x_shape, &x), y.inside()).unwrap();
            each(y_shape, |at| {
                let (mut most, mut sum, mut count) = (f64::NEG_INFINITY, 0.0, 0.0);
                for i in 0..kernel * kernel {
                    let at_tap = [i / kernel, i % kernel];
                    if let Some([h, w]) = tap([at[2], at[3]], at_tap, stride, p.pads[0], size) {
                        let x = f64::from(x[pack::plain_index(x_shape, [0, at[1], h, w])]);
                        (most, sum, count) = (most.max(x), sum + x, count + 1.0);
                    }
                }
                let exact = if op == PoolOp::Max { most } else { sum / count };
                close(y.inside()[pack::blocked_index(y_shape, at)], exact, 1e-6, "pool");
            });
        }
    }
}

/// Maxima of bytes; averages are the sums that `pools` looks at.
fn qpools(isa: Isa) {
    for (c, size, kernel, stride) in [(16, [8, 8], 2, 2), (20, [7, 9], 3, 2), (3, [5, 6], 3, 1)] {
        for dtype in [Dtype::I8, Dtype::U8] {
            let p = pool_params(PoolOp::Max, c, size, kernel, stride);
            let plan = QpoolPlan::new(isa, &QpoolParams::new(p, dtype)).unwrap();
            let (x_shape, y_shape) = ([1, c, size[0], size[1]], [1, c, p.h_out, p.w_out]);
            let least = if dtype == Dtype::I8 { -128 } else { 0 };
            let x: Vec<i16> = (0..plan.x_len()).map(|i| (i * 151 % 256) as i16 + least).collect();
            // Between margins that nothing may write.
            let len = plan.y_len() + 2 * MARGIN;
            let inside = MARGIN..MARGIN + plan.y_len();
            let y: Vec<i16> = if dtype == Dtype::I8 {
                let x: Vec<i8> = x.iter().map(|&v| v as i8).collect();
                let mut signed = vec![77; len];
                let result = QuantResult::I8(&mut signed[inside.clone()]);
                plan.compute(Bytes::I8(&x), result).unwrap();
                signed.into_iter().map(i16::from).collect()
            } else {
                let x: Vec<u8> = x.iter().map(|&v| v as u8).collect();
                let mut unsigned = vec![77; len];
                let result = QuantResult::U8(&mut unsigned[inside.clone()]);
                plan.compute(Bytes::U8(&x), result).unwrap();
                unsigned.into_iter().map(i16::from).collect()
            };
            let mut margins = y[..inside.start].iter().chain(&y[inside.end..]);
            assert!(margins.all(|&byte| byte == 77), "a margin was written");
            each(y_shape, |at| {
                let seen = (0..kernel * kernel).filter_map(|i| {
                    let [h, w] =
                        tap([at[2], at[3]], [i / kernel, i % kernel], stride, p.pads[0], size)?;
                    Some(x[pack::blocked_index(x_shape, [0, at[1], h, w])])
                });
                assert_eq!(Some(y[MARGIN + pack::blocked_index(y_shape, at)]), seen.max());
            });
        }
    }
}

fn unaries(isa: Isa) {
    let x: Vec<f32> = (-200..=200).map(|i| i as f32 * 0.037).collect();
    let sigmoid = |x: f64| 1.0 / (1.0 + libm::exp(-x));
    let cases: [(UnaryOp, &dyn Fn(f64) -> f64); 7] = [
        (UnaryOp::Relu, &|x| x.max(0.0)),
        (UnaryOp::Exp, &libm::exp),
        (UnaryOp::Tanh, &libm::tanh),
        (UnaryOp::Sigmoid, &sigmoid),
        (UnaryOp::SILU, &|x| x * sigmoid(x)),
        (UnaryOp::Erf, &libm::erf),
        (UnaryOp::Round, &libm::rint),
    ];
    for (op, exact) in cases {
        let plan = UnaryPlan::new(isa, &UnaryParams { op, len: x.len() }).unwrap();
        let mut y = Output::new(x.len());
        plan.compute(&x, y.inside()).unwrap();
        for (x, y) in x.iter().zip(y.inside()) {
            let exact = exact(f64::from(*x));
            // `UnaryOp` states 5 ulp or less for each.
            close(*y, exact, 5.0 * f64::from(f32::EPSILON) * exact.abs().max(1e-3), "unary");
        }
    }
    let positive: Vec<f32> = (1..400).map(|i| i as f32 * 0.37).collect();
    let plan =
        UnaryPlan::new(isa, &UnaryParams { op: UnaryOp::Sqrt, len: positive.len() }).unwrap();
    let mut y = Output::new(positive.len());
    plan.compute(&positive, y.inside()).unwrap();
    for (x, y) in positive.iter().zip(y.inside()) {
        assert_eq!(*y, libm::sqrtf(*x));
    }
}

fn reductions(isa: Isa) {
    for (outer, axis, inner) in [(3, 50, 1), (2, 7, 5), (1, 1, 9)] {
        for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Mean] {
            let x = numbers(axis, outer * axis * inner);
            let plan = ReducePlan::new(isa, &ReduceParams { op, outer, axis, inner }).unwrap();
            let mut y = Output::new(outer * inner);
            plan.compute(&x, y.inside()).unwrap();
            for (i, y) in y.inside().iter().enumerate() {
                let at = |k: usize| f64::from(x[(i / inner * axis + k) * inner + i % inner]);
                let sum: f64 = (0..axis).map(at).sum();
                let exact = match op {
                    ReduceOp::Sum => sum,
                    ReduceOp::Mean => sum / axis as f64,
                    _ => (0..axis).map(at).fold(f64::NEG_INFINITY, f64::max),
                };
                close(*y, exact, 1e-6, "reduce");
            }
        }
    }
}

fn softmaxes(isa: Isa) {
    for (outer, axis, inner) in [(3, 50, 1), (5, 4, 1), (2, 7, 5)] {
        let x = numbers(axis, outer * axis * inner);
        let params = SoftmaxParams { outer, axis, inner, log: false, guarded: false };
        let plan = SoftmaxPlan::new(isa, &params).unwrap();
        let mut y = Output::new(x.len());
        plan.compute(&x, y.inside()).unwrap();
        for (i, y) in y.inside().iter().enumerate() {
            let row = i / (axis * inner) * axis * inner + i % inner;
            let at = |k: usize| libm::exp(f64::from(x[row + k * inner]));
            let exact = libm::exp(f64::from(x[i])) / (0..axis).map(at).sum::<f64>();
            close(*y, exact, 1e-6, "softmax");
        }
    }
}

fn norms(isa: Isa) {
    for (rows, len) in [(3, 50), (5, 4)] {
        let (x, scale) = (numbers(len, rows * len), numbers(rows, len));
        let affine = NormAffine::Elements { bias: false };
        let params = NormParams { op: NormOp::Layer, rows, len, epsilon: 0.5, affine };
        let plan = NormPlan::new(isa, &params).unwrap();
        let mut y = Output::new(x.len());
        plan.compute(&x, &scale, &[], y.inside()).unwrap();
        for (i, y) in y.inside().iter().enumerate() {
            let row = || x[i / len * len..][..len].iter().map(|v| f64::from(*v));
            let mean = row().sum::<f64>() / len as f64;
            let variance = row().map(|v| (v - mean) * (v - mean)).sum::<f64>() / len as f64;
            let exact = (f64::from(x[i]) - mean) / libm::sqrt(variance + 0.5);
            close(*y, exact * f64::from(scale[i % len]), 1e-5, "norm");
        }
    }
}
