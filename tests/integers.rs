//! Networks of quantised tensors: integers where integers can do it, and the same bits everywhere.

#[path = "integers/edges.rs"]
mod edges;
#[path = "integers/pairs.rs"]
mod pairs;

use tilewright::backend::cpu::Executor;
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::concat::Concat;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::dequantize::Dequantize;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::pool::{Pool, PoolKind};
use tilewright::graph::ops::quantize::Quantize;
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{Context, TensorId, passes};
use tilewright::{DType, Isa, Tensor};
use tilewright_kernels::template::binary::BinaryOp;

/// Builds quantised networks: `u8` or `i8` activations, `i8` weights with a scale per channel.
struct Builder<'a> {
    cx: &'a mut Context,
    to: DType,
    seed: u32,
}

/// Scale and zero point of an activation.
#[derive(Clone, Copy)]
struct Scale(f32, i32);

impl Builder<'_> {
    fn random(&mut self) -> u32 {
        self.seed = self.seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.seed >> 8
    }

    fn constant(&mut self, tensor: Tensor) -> TensorId {
        self.cx.constant(tensor).unwrap()
    }

    fn zero(&mut self, zero: i32) -> TensorId {
        let tensor = match self.to {
            DType::I8 => Tensor::from_slice(&[], &[zero as i8]),
            _ => Tensor::from_slice(&[], &[zero as u8]),
        };
        self.constant(tensor.unwrap())
    }

    /// The zero point that is `z` steps above the least number.
    fn scale(&self, scale: f32, z: i32) -> Scale {
        Scale(scale, if self.to == DType::I8 { z - 128 } else { z })
    }

    fn real(&mut self, x: TensorId, Scale(scale, zero): Scale) -> TensorId {
        let scale = self.constant(Tensor::from_slice(&[], &[scale]).unwrap());
        let zero = self.zero(zero);
        self.cx.op(Dequantize { axis: None, block: 0 }, &[x, scale, zero]).unwrap()
    }

    fn integer(&mut self, x: TensorId, Scale(scale, zero): Scale) -> TensorId {
        let scale = self.constant(Tensor::from_slice(&[], &[scale]).unwrap());
        let zero = self.zero(zero);
        self.cx.op(Quantize { axis: None, block: 0, to: self.to }, &[x, scale, zero]).unwrap()
    }

    /// Weights along `axis`, and the scales of their channels.
    fn weights(&mut self, dims: &[usize], axis: usize) -> (TensorId, Vec<f32>) {
        let values: Vec<i8> =
            (0..dims.iter().product()).map(|_| (self.random() % 255) as i8).collect();
        let scales: Vec<f32> =
            (0..dims[axis]).map(|_| 0.002 + (self.random() % 100) as f32 * 1e-5).collect();
        let w = self.constant(Tensor::from_slice(dims, &values).unwrap());
        let s = self.constant(Tensor::from_slice(&[dims[axis]], &scales).unwrap());
        (self.cx.op(Dequantize { axis: Some(axis), block: 0 }, &[w, s]).unwrap(), scales)
    }

    /// A bias of integers whose scale is that of the sums.
    fn bias(&mut self, x: Scale, scales: &[f32]) -> TensorId {
        let values: Vec<i32> =
            scales.iter().map(|_| (self.random() % 4001) as i32 - 2000).collect();
        let scales: Vec<f32> = scales.iter().map(|s| s * x.0).collect();
        let b = self.constant(Tensor::from_slice(&[scales.len()], &values).unwrap());
        let s = self.constant(Tensor::from_slice(&[scales.len()], &scales).unwrap());
        self.cx.op(Dequantize { axis: Some(0), block: 0 }, &[b, s]).unwrap()
    }

    fn conv(&mut self, x: (TensorId, Scale), w: &[usize], conv: Conv, y: Scale) -> TensorId {
        let (weights, scales) = self.weights(w, 0);
        let bias = self.bias(x.1, &scales);
        let real = self.real(x.0, x.1);
        let sum = self.cx.op(Conv { bias: true, ..conv }, &[real, weights, bias]).unwrap();
        let positive = self.cx.op(Unary::new(UnaryOp::Relu), &[sum]).unwrap();
        self.integer(positive, y)
    }
}

const IMAGE: [usize; 4] = [2, 5, 11, 9];

/// Convolutions of all kinds, a residual, pools, a dense layer.
fn network(cx: &mut Context, to: DType, image: TensorId) -> TensorId {
    let mut b = Builder { cx, to, seed: 7 };
    let (first, second) = (b.scale(0.02, 100), b.scale(0.05, 30));
    let pads = [1; 4];
    let same = Conv { pads, ..Conv::default() };
    let y = b.conv((image, first), &[32, 5, 3, 3], same.clone(), second);
    let third = b.scale(0.08, 5);
    let deep = Conv { groups: 32, stride: [2, 2], ..same.clone() };
    let z = b.conv((y, second), &[32, 1, 3, 3], deep, third);
    let grouped = Conv { groups: 2, dilation: [2, 1], pads: [2, 1, 2, 1], ..Conv::default() };
    let fourth = b.scale(0.11, 0);
    let u = b.conv((z, third), &[32, 16, 3, 3], grouped, fourth);
    // A residual, with ReLU where zero is the least number.
    let (p, q) = (b.real(z, third), b.real(u, fourth));
    let sum = b.cx.op(Binary::new(BinaryOp::Add), &[p, q]).unwrap();
    let sum = b.cx.op(Unary::new(UnaryOp::Relu), &[sum]).unwrap();
    let fifth = b.scale(0.14, 0);
    let sum = b.integer(sum, fifth);
    let real = b.real(sum, fifth);
    let half = Pool { window: [2; 2], stride: [1; 2], ..Pool::global(PoolKind::Max, [1, 1]) };
    let most = b.cx.op(half, &[real]).unwrap();
    let most = b.integer(most, fifth);
    let real = b.real(most, fifth);
    let mean = Pool::global(PoolKind::Average { include_pad: false }, [5, 4]);
    let mean = b.cx.op(mean, &[real]).unwrap();
    let sixth = b.scale(0.05, 3);
    let mean = b.integer(mean, sixth);
    let real = b.real(mean, sixth);
    let flat = b.cx.reshape(real, &[2, 32]).unwrap();
    let flat = b.integer(flat, sixth);
    let real = b.real(flat, sixth);
    let (w, scales) = b.weights(&[32, 10], 1);
    let bias = b.bias(sixth, &scales);
    let dense = b.cx.op(MatMul::default(), &[real, w]).unwrap();
    let dense = b.cx.op(Binary::new(BinaryOp::Add), &[dense, bias]).unwrap();
    let last = b.scale(0.03, 120);
    b.integer(dense, last)
}

fn image(to: DType) -> Tensor {
    let mut state = 3u32;
    let bytes: Vec<u8> = (0..IMAGE.iter().product::<usize>())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    Tensor::from_bytes(to, &IMAGE, &bytes).unwrap()
}

fn steps(t: &Tensor) -> Vec<i32> {
    match t.dtype() {
        DType::I8 => t.as_slice::<i8>().unwrap().iter().map(|v| i32::from(*v)).collect(),
        _ => t.as_slice::<u8>().unwrap().iter().map(|v| i32::from(*v)).collect(),
    }
}

/// What a network gives in numbers all the way, by every operator's definition, and in integers, by the references.
fn defined(
    to: DType,
    network: impl Fn(&mut Context, DType, TensorId) -> TensorId,
) -> (Vec<i32>, Vec<i32>) {
    let by = |integers: bool| {
        let mut cx = Context::new();
        if integers {
            cx.keep_quantized();
        }
        let x = cx.constant(image(to)).unwrap();
        let y = network(&mut cx, to, x);
        if integers {
            passes::use_integers(&mut cx, &[y]).unwrap();
            passes::fold_constants(&mut cx, &[y]).unwrap();
        }
        steps(cx.constant_value(y).expect("all is constant"))
    };
    (by(false), by(true))
}

#[test]
fn every_isa_and_thread_count_gives_the_bits_of_the_references() {
    for to in [DType::I8, DType::U8] {
        let (in_numbers, expected) = defined(to, network);
        let furthest = in_numbers.iter().zip(&expected).map(|(a, b)| (a - b).abs()).max().unwrap();
        assert!(furthest <= 2, "{to}: {in_numbers:?} {expected:?}");
        // The network says something: results differ from each other.
        assert!(expected.iter().max().unwrap() - expected.iter().min().unwrap() > 20);

        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for threads in [1, 3] {
                let mut cx = Context::new();
                cx.keep_quantized();
                let x = cx.input("x", to, &IMAGE).unwrap();
                let y = network(&mut cx, to, x);
                passes::optimize(&mut cx, &[y], threads).unwrap();
                let mut executor = Executor::new(isa, threads).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                let floats: Vec<_> = plan.nodes().filter(|n| n.info.dtype == DType::F32).collect();
                assert!(floats.is_empty(), "{isa}: {floats:?}");
                let slow: Vec<_> = plan.nodes().filter(|n| n.kernel == "reference").collect();
                assert!(slow.is_empty(), "{isa}: {slow:?}");
                for _ in 0..2 {
                    let found = executor.run(&plan, &[&image(to)], None).unwrap();
                    assert_eq!(steps(&found[0]), expected, "{to} on {isa}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn sums_become_numbers_where_they_are_not_quantised_as_they_are() {
    // A tanh between, a scale that is not constant, a result that somebody else reads too; a layer with a bias whose
    // result is not quantised at all; a product of what the run brings.
    let to = DType::U8;
    let build = |cx: &mut Context, [x, step]: [TensorId; 2], change: usize| {
        let mut b = Builder { cx, to, seed: 1 };
        let (scale, result) = (b.scale(0.02, 100), b.scale(0.05, 30));
        let real = b.real(x, scale);
        if change == 4 {
            let (w, _) = b.weights(&[9, 6], 1);
            let row: Vec<f32> = (0..6).map(|i| i as f32 * 0.3 - 0.8).collect();
            let bias = b.constant(Tensor::from_slice(&[6], &row).unwrap());
            let y = b.cx.op(MatMul::default(), &[real, w]).unwrap();
            let y = b.cx.op(Binary::new(BinaryOp::Add), &[bias, y]).unwrap();
            return vec![y];
        }
        if change == 5 {
            let columns = b.cx.transpose(real, &[0, 1, 3, 2]).unwrap();
            return vec![b.cx.op(MatMul::default(), &[real, columns]).unwrap()];
        }
        let (w, scales) = b.weights(&[16, 5, 3, 3], 0);
        let bias = b.bias(scale, &scales);
        let conv = Conv { bias: true, ..Conv::default() };
        let sum = b.cx.op(conv, &[real, w, bias]).unwrap();
        let y = match change {
            0 => b.cx.op(Unary::new(UnaryOp::Tanh), &[sum]).unwrap(),
            _ => sum,
        };
        let y = if change == 1 {
            b.cx.op(Quantize { axis: None, block: 0, to }, &[y, step]).unwrap()
        } else {
            b.integer(y, result)
        };
        if change == 2 { vec![y, sum] } else { vec![y] }
    };
    for (change, kinds) in [
        (0, &["qconv", "tanh", "quantize"][..]),
        (1, &["qconv", "quantize"]),
        (2, &["qconv", "quantize"]),
        (3, &["qconv"]),
        (4, &["qmatmul"]),
        (5, &["qmatmul"]),
    ] {
        let given = [image(to), Tensor::from_slice(&[], &[0.05f32]).unwrap()];
        let mut cx = Context::new();
        let src = given.clone().map(|t| cx.constant(t).unwrap());
        let expected = build(&mut cx, src, change);
        let expected: Vec<_> =
            expected.iter().map(|&y| cx.constant_value(y).unwrap().clone()).collect();
        let mut cx = Context::new();
        cx.keep_quantized();
        let src =
            [cx.input("x", to, &IMAGE), cx.input("step", DType::F32, &[])].map(Result::unwrap);
        let outputs = build(&mut cx, src, change);
        passes::optimize(&mut cx, &outputs, 1).unwrap();
        let order = cx.build_forward(&outputs).unwrap();
        let ops: Vec<_> = order.iter().map(|&id| cx.record(id).op().name()).collect();
        assert!(kinds.iter().all(|kind| ops.contains(kind)), "{change}: {ops:?}");
        assert!(!ops.contains(&"conv") && !ops.contains(&"matmul"), "{change}: {ops:?}");
        let mut executor = Executor::new(Isa::best(), 2).unwrap();
        let plan = executor.plan(&mut cx, &outputs).unwrap();
        let given = &[&given[0], &given[1]][..if change == 1 { 2 } else { 1 }];
        let found = executor.run(&plan, given, None).unwrap();
        for (found, expected) in found.iter().zip(&expected) {
            if expected.dtype() == DType::F32 {
                let [a, b] = [found, expected].map(|t| t.as_slice::<f32>().unwrap());
                // Half a unit of the sums for a rounded bias, and the rounding of sums.
                let near = a.iter().zip(&*b).all(|(a, b)| (a - b).abs() < 4e-5 + 1e-6 * b.abs());
                assert!(near, "{change}: {a:?} {b:?}");
            } else {
                let near =
                    steps(found).iter().zip(steps(expected)).all(|(a, b)| (a - b).abs() <= 1);
                assert!(near, "{change}");
            }
        }
    }
}

/// The kernels that a network of one image becomes, and its result.
fn computed(
    isa: Isa,
    to: DType,
    network: impl Fn(&mut Context, DType, TensorId) -> TensorId,
) -> (Vec<String>, Vec<i32>) {
    let mut cx = Context::new();
    cx.keep_quantized();
    let x = cx.input("x", to, &IMAGE).unwrap();
    let y = network(&mut cx, to, x);
    passes::optimize(&mut cx, &[y], 2).unwrap();
    let mut executor = Executor::new(isa, 2).unwrap();
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    let kernels = plan.nodes().map(|n| n.kernel.to_string()).collect();
    let found = executor.run(&plan, &[&image(to)], None).unwrap();
    (kernels, steps(&found[0]))
}

/// Checks that a network becomes kernels of these names, so many of each, which give what the numbers give, to the bit.
fn exact(network: impl Fn(&mut Context, DType, TensorId) -> TensorId, names: &[(&str, usize)]) {
    for to in [DType::I8, DType::U8] {
        let mut cx = Context::new();
        let x = cx.constant(image(to)).unwrap();
        let y = network(&mut cx, to, x);
        let expected = steps(cx.constant_value(y).expect("all is constant"));
        assert!(expected.iter().max().unwrap() - expected.iter().min().unwrap() > 20);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (kernels, found) = computed(isa, to, &network);
            for (name, count) in names {
                let named = kernels.iter().filter(|k| k.starts_with(name)).count();
                assert_eq!(named, *count, "{isa}: {kernels:?}");
            }
            assert_eq!(found, expected, "{to} on {isa}");
        }
    }
}

#[test]
fn functions_of_one_byte_are_tables() {
    // Hard swish; swish, written out and quantised in between; GELU from the error function, of which a
    // constant operand is quantised too; another scale.
    let network = |cx: &mut Context, to: DType, x: TensorId| {
        let mut b = Builder { cx, to, seed: 3 };
        let [wide, fine, gate] = [b.scale(0.05, 100), b.scale(0.021, 20), b.scale(1.0 / 256.0, 0)];
        let real = b.real(x, wide);
        let y = b.cx.op(Unary::new(UnaryOp::HardSwish), &[real]).unwrap();
        let y = b.integer(y, fine);
        let real = b.real(y, fine);
        let open = b.cx.op(Unary::new(UnaryOp::Sigmoid), &[real]).unwrap();
        let open = b.integer(open, gate);
        let open = b.real(open, gate);
        let y = b.cx.op(Binary::new(BinaryOp::Mul), &[real, open]).unwrap();
        let y = b.integer(y, fine);
        let real = b.real(y, fine);
        let root = b.constant(Tensor::from_slice(&[1, 1], &[2f32.sqrt()]).unwrap());
        let half = b.zero(if to == DType::I8 { 127 } else { 255 });
        let half = b.real(half, b.scale(0.5 / 255.0, 0));
        let scaled = b.cx.op(Binary::new(BinaryOp::Div), &[real, root]).unwrap();
        let erf = b.cx.op(Unary::new(UnaryOp::Erf), &[scaled]).unwrap();
        let one = b.constant(Tensor::from_slice(&[], &[1f32]).unwrap());
        let sum = b.cx.op(Binary::new(BinaryOp::Add), &[erf, one]).unwrap();
        let y = b.cx.op(Binary::new(BinaryOp::Mul), &[real, sum]).unwrap();
        let y = b.cx.op(Binary::new(BinaryOp::Mul), &[y, half]).unwrap();
        let y = b.integer(y, fine);
        let real = b.real(y, fine);
        b.integer(real, wide)
    };
    // One function of another is one too.
    exact(network, &[("lookup_i8", 1), ("", 1)]);
}

#[test]
fn operands_of_other_scales_are_joined_as_bytes() {
    // Of five dimensions, along the channels: one part has the scale of the result, one a finer one, one a coarser one,
    // with which some numbers saturate.
    let network = |cx: &mut Context, to: DType, x: TensorId| {
        let mut b = Builder { cx, to, seed: 3 };
        let x = b.cx.reshape(x, &[2, 5, 11, 3, 3]).unwrap();
        let scales = [b.scale(0.05, 100), b.scale(0.021, 20), b.scale(0.17, 130)];
        let parts = scales.map(|scale| b.real(x, scale));
        let all = b.cx.op(Concat { axis: 1 }, &parts).unwrap();
        b.integer(all, scales[0])
    };
    exact(network, &[("lookup_i8", 2), ("", 3)]);
}

#[test]
fn what_only_moves_stays_bytes() {
    // Transposed, cut and given another scale, cut again to its first rows; and rows times themselves.
    let network = |cx: &mut Context, to: DType, x: TensorId| {
        let mut b = Builder { cx, to, seed: 3 };
        let [scale, other, sums] = [b.scale(0.05, 100), b.scale(0.03, 90), b.scale(2.5, 60)];
        let real = b.real(x, scale);
        let y = b.cx.transpose(real, &[0, 2, 3, 1]).unwrap();
        let y = b.integer(y, scale);
        let y = b.real(y, scale);
        let y = b.cx.slice(y, 3, 1, 3, 1).unwrap();
        let y = b.integer(y, other);
        let y = b.real(y, other);
        let y = b.cx.slice(y, 0, 1, 1, 1).unwrap();
        let y = b.cx.expand(y, &[2, 11, 9, 3]).unwrap();
        let y = b.integer(y, other);
        let rows = b.cx.reshape(real, &[2, 55, 9]).unwrap();
        let rows = b.integer(rows, scale);
        let rows = b.real(rows, scale);
        let columns = b.cx.transpose(rows, &[0, 2, 1]).unwrap();
        let product = b.cx.op(MatMul::default(), &[rows, columns]).unwrap();
        [y, b.integer(product, sums)]
    };
    for to in [DType::I8, DType::U8] {
        let mut cx = Context::new();
        let x = cx.constant(image(to)).unwrap();
        let expected = network(&mut cx, to, x).map(|y| steps(cx.constant_value(y).unwrap()));
        assert!(expected.iter().all(|y| y.iter().max().unwrap() - y.iter().min().unwrap() > 20));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut cx = Context::new();
            cx.keep_quantized();
            let x = cx.input("x", to, &IMAGE).unwrap();
            let outputs = network(&mut cx, to, x);
            passes::optimize(&mut cx, &outputs, 2).unwrap();
            let mut executor = Executor::new(isa, 2).unwrap();
            let plan = executor.plan(&mut cx, &outputs).unwrap();
            let kernels: Vec<_> = plan.nodes().map(|n| n.kernel.clone()).collect();
            assert!(plan.nodes().all(|n| n.info.dtype != DType::F32), "{isa}: {kernels:?}");
            // Rows of the product are read as they lie.
            let copies = kernels.iter().filter(|k| k.starts_with("copy_1b")).count();
            assert_eq!(copies, 3, "{isa}: {kernels:?}");
            let found = executor.run(&plan, &[&image(to)], None).unwrap();
            assert_eq!(steps(&found[0]), expected[0], "{to} on {isa}");
            let near = steps(&found[1]).iter().zip(&expected[1]).all(|(a, b)| (a - b).abs() <= 1);
            assert!(near, "{to} on {isa}");
        }
    }
}

#[test]
fn weights_with_a_scale_per_row_may_be_transposed() {
    // As exporters from PyTorch write a dense layer whose weights are quantised.
    let to = DType::U8;
    let network = |cx: &mut Context, x: TensorId| {
        let mut b = Builder { cx, to, seed: 11 };
        let (first, last) = (b.scale(0.02, 100), b.scale(0.02, 128));
        let real = b.real(x, first);
        let (w, _) = b.weights(&[7, 9], 0);
        let w = b.cx.transpose(w, &[1, 0]).unwrap();
        let y = b.cx.op(MatMul::default(), &[real, w]).unwrap();
        b.integer(y, last)
    };
    let mut cx = Context::new();
    let x = cx.constant(image(to)).unwrap();
    let y = network(&mut cx, x);
    let expected = steps(cx.constant_value(y).unwrap());
    let mut cx = Context::new();
    cx.keep_quantized();
    let x = cx.input("x", to, &IMAGE).unwrap();
    let y = network(&mut cx, x);
    passes::optimize(&mut cx, &[y], 1).unwrap();
    let mut executor = Executor::new(Isa::best(), 1).unwrap();
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    let ops: Vec<_> = plan.nodes().map(|n| n.op.to_owned()).collect();
    assert_eq!(ops.iter().filter(|op| *op == "qmatmul").count(), 1, "{ops:?}");
    let found = steps(&executor.run(&plan, &[&image(to)], None).unwrap()[0]);
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1));
    assert!(found.iter().max().unwrap() - found.iter().min().unwrap() > 20);
}

/// Two convolutions, a maximum between that is not quantised, a sum of unsigned and signed bytes: results are bytes
/// between bounds, as exporters write fewer than eight bits; a bias has a type and scale of its own.
fn of_few_bits(cx: &mut Context, to: DType, x: TensorId) -> TensorId {
    let mut b = Builder { cx, to, seed: 9 };
    let first = b.scale(0.02, 100);
    let real = b.real(x, first);
    let pool = Pool {
        window: [3; 2],
        stride: [2; 2],
        pads: [1; 4],
        ..Pool::global(PoolKind::Max, [1; 2])
    };
    let most = b.cx.op(pool, &[real]).unwrap();
    let (w, _) = b.weights(&[20, 5, 3, 3], 0);
    let values: Vec<i8> = (0..20).map(|i| (i * 13 % 256) as i8).collect();
    let bias = b.constant(Tensor::from_slice(&[20], &values).unwrap());
    let step = b.constant(Tensor::from_slice(&[], &[0.011f32]).unwrap());
    let bias = b.cx.op(Dequantize { axis: None, block: 0 }, &[bias, step]).unwrap();
    let conv = Conv { pads: [1; 4], bias: true, ..Conv::default() };
    let y = b.cx.op(conv, &[most, w, bias]).unwrap();
    let y = b.cx.op(Unary::new(UnaryOp::Relu), &[y]).unwrap();
    let clip = |b: &mut Builder<'_>, x: TensorId, [low, high]: [i32; 2]| {
        let [low, high] = [low, high].map(|bound| b.zero(bound));
        let x = b.cx.op(Binary::new(BinaryOp::Max), &[x, low]).unwrap();
        b.cx.op(Binary::new(BinaryOp::Min), &[high, x]).unwrap()
    };
    b.to = DType::U8;
    let second = Scale(0.2, 0);
    let y = b.integer(y, second);
    let y = clip(&mut b, y, [0, 15]);
    let y = b.real(y, second);
    let (w, _) = b.weights(&[20, 20, 1, 1], 0);
    let z = b.cx.op(Conv::default(), &[y, w]).unwrap();
    b.to = DType::I8;
    let third = Scale(0.3, 0);
    let z = b.integer(z, third);
    let z = clip(&mut b, z, [-8, 7]);
    let z = b.real(z, third);
    let sum = b.cx.op(Binary::new(BinaryOp::Add), &[y, z]).unwrap();
    let sum = b.cx.op(Unary::new(UnaryOp::Relu), &[sum]).unwrap();
    b.to = to;
    // Zero is the middle of signed bytes and the least of unsigned ones.
    let sum = b.integer(sum, Scale(0.25, 0));
    clip(&mut b, sum, [0, 15])
}

#[test]
fn results_of_fewer_bits_stay_bytes() {
    for to in [DType::I8, DType::U8] {
        let (in_numbers, expected) = defined(to, of_few_bits);
        assert!((0..16).all(|v| expected.contains(&v)), "{expected:?}");
        // A step of the second tensor is 0.8 of the last, one of the third 1.2.
        let furthest = in_numbers.iter().zip(&expected).map(|(a, b)| (a - b).abs()).max().unwrap();
        let apart = in_numbers.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert!(furthest <= 2 && apart < expected.len() / 50, "{furthest} {apart}");
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (kernels, found) = computed(isa, to, of_few_bits);
            let slow = ["reference", "quantize", "dequantize", "lookup", "max_", "min_", "conv_"];
            let is_slow = |k: &String| slow.iter().any(|name| k.starts_with(name));
            assert!(!kernels.iter().any(is_slow), "{isa}: {kernels:?}");
            let is_byte = |k: &&String| k.starts_with("qmax_pool") || k.starts_with("qadd");
            assert_eq!(kernels.iter().filter(is_byte).count(), 2, "{isa}: {kernels:?}");
            assert_eq!(found, expected, "{to} on {isa}");
        }
    }
}

#[test]
fn maxima_of_another_scale_and_type_are_of_bytes() {
    let network = |cx: &mut Context, to: DType, x: TensorId| {
        let mut b = Builder { cx, to, seed: 3 };
        let (from, into) = (b.scale(0.02, 100), Scale(0.031, 7));
        let real = b.real(x, from);
        let shape = Pool { window: [3; 2], stride: [2, 1], ..Pool::global(PoolKind::Max, [1; 2]) };
        let pool = Pool { pads: [1, 2, 0, 1], ..shape };
        let most = b.cx.op(pool, &[real]).unwrap();
        b.to = DType::I8;
        b.integer(most, into)
    };
    exact(network, &[("qmax_pool", 1), ("lookup_i8", 1)]);
}

#[test]
fn bounds_of_bytes_that_others_read_are_a_table() {
    let network = |cx: &mut Context, to: DType, x: TensorId| {
        let b = &mut Builder { cx, to, seed: 3 };
        let [low, high] = [b.zero(20), b.zero(90)];
        let y = b.cx.op(Binary::new(BinaryOp::Min), &[high, x]).unwrap();
        b.cx.op(Binary::new(BinaryOp::Max), &[y, low]).unwrap()
    };
    exact(network, &[("lookup_i8", 1), ("", 1)]);
}

#[test]
fn integers_of_16_bits_are_computed_as_numbers() {
    // A convolution whose operand and result are of 16 bits: the bits of the definitions, up to a rounding of sums.
    let network = |cx: &mut Context, x: TensorId| {
        let mut b = Builder { cx, to: DType::U16, seed: 5 };
        let rounded = |b: &mut Builder<'_>, x: TensorId, scale: f32, zero: u16| {
            let scale = b.constant(Tensor::from_slice(&[], &[scale]).unwrap());
            let zero = b.constant(Tensor::from_slice(&[], &[zero]).unwrap());
            let to = Quantize { axis: None, block: 0, to: DType::U16 };
            let y = b.cx.op(to, &[x, scale, zero]).unwrap();
            b.cx.op(Dequantize { axis: None, block: 0 }, &[y, scale, zero]).unwrap()
        };
        let x = rounded(&mut b, x, 1e-4, 40_000);
        let (w, _) = b.weights(&[24, 5, 3, 3], 0);
        let y = b.cx.op(Conv { pads: [1; 4], ..Conv::default() }, &[x, w]).unwrap();
        rounded(&mut b, y, 3e-4, 30_000)
    };
    let x: Vec<f32> = steps(&image(DType::I8)).iter().map(|&v| v as f32 * 0.0171).collect();
    let x = Tensor::from_slice(&IMAGE, &x).unwrap();
    let mut cx = Context::new();
    let id = cx.constant(x.clone()).unwrap();
    let y = network(&mut cx, id);
    let expected = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let mut cx = Context::new();
        cx.keep_quantized();
        let id = cx.input("x", DType::F32, &IMAGE).unwrap();
        let y = network(&mut cx, id);
        passes::optimize(&mut cx, &[y], 2).unwrap();
        let mut executor = Executor::new(isa, 2).unwrap();
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        let kernels: Vec<_> = plan.nodes().map(|n| n.kernel.clone()).collect();
        assert!(!kernels.iter().any(|k| k == "reference"), "{isa}: {kernels:?}");
        assert_eq!(kernels.iter().filter(|k| *k == "fake_quantize").count(), 2, "{kernels:?}");
        let found = executor.run(&plan, &[&x], None).unwrap();
        let found = found[0].as_slice::<f32>().unwrap();
        let near = found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 3.1e-4);
        assert!(near && found.iter().any(|v| *v != 0.0), "{isa}");
    }
}
