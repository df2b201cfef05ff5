//! Speed of depthwise and first convolution, pooling, element-wise ops, softmax, norms, ops on bytes and layout
//! conversions on one thread: minimum and median time, GB/s of operands read and written once, GFLOP/s and its share
//! of the FMA peak that a loop in the same process reaches at the same time.
//!
//! `cargo bench -p tilewright-kernels --bench windows [PART OF A NAME]...` prints one table per
//! available instruction set, or for the one that `TILEWRIGHT_ISA` names.

use core::hint::black_box;
use core::ops::{Deref, DerefMut};
use std::time::Instant;
use tilewright_kernels::template::conv_first::FirstConvPlan;
use tilewright_kernels::{
    Activation, BinaryOp, BinaryParams, BinaryPlan, Bytes, ConvParams, DepthwiseParams,
    DepthwisePlan, DequantizePlan, Dtype, Epilogue, Isa, LayoutOp, LayoutParams, LayoutPlan,
    LookupPlan, NormAffine, NormOp, NormParams, NormPlan, PoolOp, PoolParams, PoolPlan, QbinaryOp,
    QbinaryParams, QbinaryPlan, QdepthwiseParams, QdepthwisePlan, QpoolParams, QpoolPlan,
    QuantColumns, QuantOutput, QuantResult, QuantizeParams, QuantizePlan, SoftmaxParams,
    SoftmaxPlan, UnaryOp, UnaryParams, UnaryPlan, bench,
};

/// One op of one shape.
struct Case {
    name: String,
    /// Elements read and written.
    elements: usize,
    flop: usize,
    run: Box<dyn FnMut()>,
}

/// Numbers from -1 to 1, the first at a multiple of 64 bytes, as an arena places its tensors.
struct Operand {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

fn operand(len: usize) -> Operand {
    let memory: Vec<f32> = (0..len + 16).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
    let start = memory.as_ptr().align_offset(64);
    Operand { memory, start, len }
}

impl Deref for Operand {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Operand {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

fn depthwise(isa: Isa, c: usize, size: usize, k: usize, stride: usize) -> Case {
    let out = (size + k / 2 * 2 - k) / stride + 1;
    let params = DepthwiseParams {
        n: 1,
        c,
        h_in: size,
        w_in: size,
        h_out: out,
        w_out: out,
        kernel: [k; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pads: [k / 2; 4],
        epilogue: Epilogue { activation: Activation::Relu, residual: false },
    };
    let plan = DepthwisePlan::new(isa, &params).expect("a valid shape");
    let (x, mut y) = (operand(plan.x_len()), operand(plan.y_len()));
    let (weights, bias) = (operand(plan.weights_len()), operand(plan.bias_len()));
    Case {
        name: format!("depthwise{k}x{k}s{stride}/{c}x{size}/{}", plan.kernel_name()),
        elements: x.len() + y.len(),
        flop: 2 * k * k * c * out * out,
        run: Box::new(move || {
            plan.compute(&x, &weights, &bias, None, &mut y).expect("operands of the plan")
        }),
    }
}

/// The first convolution of a small network: a picture, to 8 channels.
fn first(isa: Isa, size: usize) -> Case {
    let p = ConvParams::new([1, 3, size, size], 8, [3, 3]).stride([2, 2]).pads([0, 0, 1, 1]);
    let p = p.epilogue(Epilogue { activation: Activation::Relu, residual: false });
    let plan = FirstConvPlan::new(isa, &p).expect("a valid shape");
    let (x, mut y) = (operand(plan.x_len()), operand(plan.y_len()));
    let (weights, bias) = (operand(plan.weights_len()), operand(plan.bias_len()));
    let mut scratch = operand(plan.scratch_len());
    Case {
        name: format!("first3x3s2/3x{size}/{}", plan.kernel_name()),
        elements: x.len() + y.len(),
        flop: 2 * 27 * 8 * p.h_out * p.w_out,
        run: Box::new(move || {
            let (x, w, b) = (x.as_ptr(), weights.as_ptr(), bias.as_ptr());
            let (y, scratch) = (y.as_mut_ptr(), scratch.as_mut_ptr());
            // SAFETY: operands of the plan's lengths; this thread runs all units.
            unsafe { plan.run(x, w, b, y, scratch, 0..plan.units()) };
        }),
    }
}

fn pool(isa: Isa, op: PoolOp, c: usize, size: usize, k: usize, stride: usize, pad: usize) -> Case {
    let out = (size + 2 * pad - k) / stride + 1;
    let params = PoolParams {
        op,
        n: 1,
        c,
        h_in: size,
        w_in: size,
        h_out: out,
        w_out: out,
        kernel: [k; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pads: [pad; 4],
    };
    let plan = PoolPlan::new(isa, &params).expect("a valid shape");
    let (x, mut y) = (operand(plan.x_len()), operand(plan.y_len()));
    Case {
        name: format!("pool{k}x{k}s{stride}/{c}x{size}/{}", plan.kernel_name()),
        elements: x.len() + y.len(),
        flop: k * k * y.len(),
        run: Box::new(move || plan.compute(&x, &mut y).expect("operands of the plan")),
    }
}

fn add_relu(isa: Isa, c: usize, size: usize) -> Case {
    let len = c * size * size;
    let shape = [len];
    let params =
        BinaryParams { op: BinaryOp::Add, a: &shape, b: &shape, activation: Activation::Relu };
    let plan = BinaryPlan::new(isa, &params).expect("a valid shape");
    let (a, b, mut y) = (operand(len), operand(len), operand(len));
    Case {
        name: format!("add+relu/{c}x{size}/{}", plan.kernel_name()),
        elements: 3 * len,
        flop: len,
        run: Box::new(move || plan.compute(&a, &b, &mut y).expect("operands of the plan")),
    }
}

fn unary(isa: Isa, op: UnaryOp, len: usize) -> Case {
    let plan = UnaryPlan::new(isa, &UnaryParams { op, len }).expect("a valid length");
    let (x, mut y) = (operand(len), operand(len));
    Case {
        name: format!("unary/{len}/{}", plan.kernel_name()),
        elements: 2 * len,
        flop: len,
        run: Box::new(move || plan.compute(&x, &mut y).expect("operands of the plan")),
    }
}

fn softmax(isa: Isa, outer: usize, axis: usize, inner: usize) -> Case {
    let params = SoftmaxParams { outer, axis, inner, log: false, guarded: false };
    let plan = SoftmaxPlan::new(isa, &params).expect("a valid shape");
    let (x, mut y) = (operand(plan.len()), operand(plan.len()));
    Case {
        name: format!("softmax/{outer}x{axis}x{inner}/{}", plan.kernel_name()),
        elements: x.len() + y.len(),
        flop: x.len(),
        run: Box::new(move || plan.compute(&x, &mut y).expect("operands of the plan")),
    }
}

fn norm(isa: Isa, op: NormOp, rows: usize, len: usize) -> Case {
    let affine = NormAffine::Elements { bias: op == NormOp::Layer };
    let params = NormParams { op, rows, len, epsilon: 1e-5, affine };
    let plan = NormPlan::new(isa, &params).expect("a valid shape");
    let (x, mut y) = (operand(plan.len()), operand(plan.len()));
    let (scale, bias) = (operand(len), operand(len));
    Case {
        name: format!("norm/{rows}x{len}/{}", plan.kernel_name()),
        elements: x.len() + y.len(),
        flop: 8 * x.len(),
        run: Box::new(move || {
            plan.compute(&x, &scale, &bias, &mut y).expect("operands of the plan");
        }),
    }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7919 % 251) as u8).collect()
}

fn qdepthwise(isa: Isa, c: usize, size: usize, k: usize, stride: usize) -> Case {
    let out = (size - 1) / stride + 1;
    let conv = DepthwiseParams {
        n: 1,
        c,
        h_in: size,
        w_in: size,
        h_out: out,
        w_out: out,
        kernel: [k; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pads: [k / 2; 4],
        epilogue: Epilogue::default(),
    };
    let (x, w, output) = (Dtype::U8, Dtype::I8, QuantOutput::u8(128));
    let p = QdepthwiseParams { conv, x, x_zero_point: 128, w, terms: 1, output };
    let plan = QdepthwisePlan::new(isa, &p).expect("a valid shape");
    let (x, mut y) = (bytes(plan.x_len()), bytes(plan.y_len()));
    let weights = vec![1.0; plan.weights_len()];
    let mut columns = vec![0.0; plan.columns_len()];
    let scales = QuantColumns { zero_point: 128, scales: &[0.1], ..QuantColumns::default() };
    plan.pack_columns(&scales, &mut columns).expect("scales of the plan");
    Case {
        name: format!("qdepthwise{k}x{k}s{stride}/{c}x{size}/{}", plan.kernel_name()),
        elements: (x.len() + y.len()) / 4,
        flop: 2 * k * k * c * out * out,
        run: Box::new(move || {
            plan.compute(Bytes::U8(&x), &weights, &columns, QuantResult::U8(&mut y))
                .expect("operands of the plan");
        }),
    }
}

fn qpool(isa: Isa, op: PoolOp, c: usize, size: usize, window: [usize; 3]) -> Case {
    let [k, stride, pad] = window;
    let out = (size + 2 * pad - k) / stride + 1;
    let pool = PoolParams {
        op,
        n: 1,
        c,
        h_in: size,
        w_in: size,
        h_out: out,
        w_out: out,
        kernel: [k; 2],
        stride: [stride; 2],
        dilation: [1; 2],
        pads: [pad; 4],
    };
    let plan = QpoolPlan::new(isa, &QpoolParams::new(pool, Dtype::U8)).expect("a valid shape");
    let (x, mut y) = (bytes(plan.x_len()), bytes(plan.y_len()));
    Case {
        name: format!("qpool{k}x{k}s{stride}/{c}x{size}/{}", plan.kernel_name()),
        elements: (x.len() + y.len()) / 4,
        flop: k * k * y.len(),
        run: Box::new(move || {
            plan.compute(Bytes::U8(&x), QuantResult::U8(&mut y)).expect("operands of the plan");
        }),
    }
}

/// Lookup, sum, product with a number for each pixel of 16 channels, quantisation and dequantisation of so many elements.
fn qelements(isa: Isa, len: usize) -> [Case; 5] {
    let (scales, zero_points, output) = ([0.1, 0.2, 0.3], [128; 2], QuantOutput::u8(128));
    let (op, dims, dtypes) = (QbinaryOp::Add, [1, 1, len], [Dtype::U8; 2]);
    let params = QbinaryParams { op, dims, dtypes, scales, zero_points, output };
    let add = QbinaryPlan::new(isa, &params).expect("a valid shape");
    let params = QbinaryParams { op: QbinaryOp::Mul, dims: [1, len / 16, 16], ..params };
    let scale = QbinaryPlan::new(isa, &params).expect("a valid shape");
    let one = QuantizeParams { outer: 1, axis: 1, inner: len, dtype: Dtype::U8 };
    let quantize = QuantizePlan::new(isa, &one).expect("a valid shape");
    let dequantize = DequantizePlan::new(isa, &one).expect("a valid shape");
    let lookup = LookupPlan::new(isa, len, &core::array::from_fn(|i| !i as u8)).expect("a table");
    let (a, b, mut y, mut z) = (bytes(len), bytes(len), bytes(len), bytes(len));
    let (numbers, mut found) = (bytes(len), bytes(len));
    let (x, mut floats, parameters) = (operand(len), operand(len), [0.1, 128.0]);
    let case = |name: &str, bytes: usize, run: Box<dyn FnMut()>| Case {
        name: format!("{name}/{len}"),
        elements: bytes * len / 4,
        flop: len,
        run,
    };
    let c = b.clone();
    [
        case(
            lookup.kernel_name(),
            2,
            Box::new({
                let lookup = lookup.clone();
                move || lookup.compute(&numbers, &mut found).expect("operands")
            }),
        ),
        case(
            add.kernel_name(),
            3,
            Box::new({
                let add = add.clone();
                move || {
                    add.compute(Bytes::U8(&a), Bytes::U8(&b), QuantResult::U8(&mut y))
                        .expect("operands");
                }
            }),
        ),
        case(
            scale.kernel_name(),
            2,
            Box::new({
                let (a, gate, mut y) = (bytes(len), bytes(16), bytes(len));
                move || {
                    scale
                        .compute(Bytes::U8(&a), Bytes::U8(&gate), QuantResult::U8(&mut y))
                        .expect("operands");
                }
            }),
        ),
        case(
            quantize.kernel_name(),
            5,
            Box::new({
                let quantize = quantize.clone();
                move || {
                    quantize.compute(&x, &parameters, QuantResult::U8(&mut z)).expect("operands")
                }
            }),
        ),
        case(
            dequantize.kernel_name(),
            5,
            Box::new({
                let dequantize = dequantize.clone();
                move || {
                    dequantize.compute(Bytes::U8(&c), &parameters, &mut floats).expect("operands")
                }
            }),
        ),
    ]
}

fn layout(isa: Isa, op: LayoutOp, c: usize, size: usize) -> Case {
    let plan = LayoutPlan::new(isa, &LayoutParams { op, n: 1, c, h: size, w: size })
        .expect("a valid shape");
    let (x, mut y) = (operand(plan.x_len()), operand(plan.y_len()));
    Case {
        name: format!("{op:?}/{c}x{size}/{}", plan.kernel_name()),
        elements: x.len() + y.len(),
        flop: 0,
        run: Box::new(move || plan.compute(&x, &mut y).expect("operands of the plan")),
    }
}

fn cases(isa: Isa) -> Vec<Case> {
    let mut list = Vec::new();
    for (c, size, k, stride) in [
        (32, 112, 3, 1),
        (128, 56, 3, 1),
        (512, 14, 3, 1),
        (128, 6, 3, 1),
        (24, 48, 3, 1),
        (64, 112, 3, 2),
        (96, 28, 5, 1),
    ] {
        list.push(depthwise(isa, c, size, k, stride));
    }
    list.push(first(isa, 96));
    let average = PoolOp::Average { count_include_pad: false };
    list.push(pool(isa, PoolOp::Max, 64, 112, 2, 2, 0));
    list.push(pool(isa, PoolOp::Max, 64, 112, 3, 2, 1));
    list.push(pool(isa, average, 64, 112, 3, 2, 1));
    list.push(pool(isa, average, 1024, 7, 7, 1, 0));
    list.push(add_relu(isa, 64, 56));
    list.push(add_relu(isa, 256, 14));
    for op in [UnaryOp::Relu, UnaryOp::Sigmoid, UnaryOp::Tanh, UnaryOp::Exp, UnaryOp::Gelu] {
        list.push(unary(isa, op, 4096));
    }
    for (outer, axis, inner) in [(1, 1000, 1), (64, 1000, 1), (4420, 2, 1), (1, 21, 4096)] {
        list.push(softmax(isa, outer, axis, inner));
    }
    for (c, size, stride) in [(32, 112, 1), (128, 56, 1), (512, 14, 1), (64, 112, 2)] {
        list.push(qdepthwise(isa, c, size, 3, stride));
    }
    for (c, size, stride) in [(240, 14, 1), (576, 7, 1), (96, 28, 2)] {
        list.push(qdepthwise(isa, c, size, 5, stride));
    }
    list.push(qpool(isa, PoolOp::Max, 64, 112, [2, 2, 0]));
    list.push(qpool(isa, PoolOp::Max, 64, 112, [3, 2, 1]));
    list.push(qpool(isa, average, 64, 112, [3, 2, 1]));
    list.push(qpool(isa, average, 1024, 7, [7, 1, 0]));
    list.extend(qelements(isa, 1 << 16));
    for (rows, len) in [(196, 192), (128, 768), (1, 4096)] {
        list.push(norm(isa, NormOp::Layer, rows, len));
        list.push(norm(isa, NormOp::Rms, rows, len));
    }
    for (c, size) in [(64, 24), (128, 52), (32, 208), (3, 224)] {
        list.push(layout(isa, LayoutOp::NchwToBlocked, c, size));
        list.push(layout(isa, LayoutOp::BlockedToNchw, c, size));
    }
    list
}

fn seconds(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// Minimum and median of the case, and the peak in FLOP/s, over interleaved samples of about 0.1 ms.
fn measure(isa: Isa, case: &mut Case) -> (f64, f64, f64) {
    let once = seconds(|| (case.run)()).min(seconds(|| (case.run)()));
    let repeats = (1e-4 / once).clamp(1.0, 1e5) as u32;
    let (mut samples, mut peak) = (Vec::new(), 0.0f64);
    for _ in 0..200 {
        samples.push(seconds(|| (0..repeats).for_each(|_| (case.run)())) / f64::from(repeats));
        let mut flop = 0.0;
        let time = seconds(|| flop = bench::peak(black_box(isa), 5_000).expect("an available set"));
        peak = peak.max(flop / time);
    }
    samples.sort_by(f64::total_cmp);
    (samples[0], samples[samples.len() / 2], peak)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let measured = args.iter().any(|arg| arg == "--bench");
    let filters: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let isas: Vec<Isa> = match std::env::var_os("TILEWRIGHT_ISA") {
        Some(_) => vec![Isa::select().expect("TILEWRIGHT_ISA names an available instruction set")],
        None => Isa::available().filter(|&isa| isa != Isa::Scalar || !measured).collect(),
    };
    for isa in isas {
        let mut list = cases(isa);
        list.retain(|c| filters.is_empty() || filters.iter().any(|f| c.name.contains(f.as_str())));
        if !measured {
            // As a test: each case once.
            list.iter_mut().for_each(|case| (case.run)());
            continue;
        }
        println!("{isa}: min ms, median ms, GB/s, GFLOP/s, share of peak");
        for case in &mut list {
            let (min, median, peak) = measure(isa, case);
            println!(
                "{:62} {:9.4} {:9.4} {:7.1} {:7.1} {:6.1} %",
                case.name,
                min * 1e3,
                median * 1e3,
                case.elements as f64 * 4.0 / min / 1e9,
                case.flop as f64 / min / 1e9,
                case.flop as f64 / min / peak * 100.0
            );
        }
    }
}
