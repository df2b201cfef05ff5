//! Every operator that has kernels, at sizes around those of tiles and vectors.

use half::f16;
use tilewright::backend::opencl::{Options, Vendor, WEIGHT_FORMATS};
use tilewright::graph::ops::attention::{Attention, Rows};
use tilewright::graph::ops::best::Best;
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::block_matmul::BlockMatMul;
use tilewright::graph::ops::concat::Concat;
use tilewright::graph::ops::embedding::Embedding;
use tilewright::graph::ops::glu::{Glu, GluOp};
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::norm::{Norm, NormOp};
use tilewright::graph::ops::reduce::{Reduce, ReduceOp};
use tilewright::graph::ops::rope::{Rope, RopeStyle};
use tilewright::graph::ops::softmax::Softmax;
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{Context, TensorId};
use tilewright::tensor::block::quantize_q8_0;
use tilewright::{DType, Tensor};
use tilewright_kernels::{Activation, BinaryOp};

use super::*;

/// Whether all of the grid is computed, some two minutes of a processor: `TILEWRIGHT_OPENCL_GRID=full`.
pub(super) fn full() -> bool {
    std::env::var_os("TILEWRIGHT_OPENCL_GRID").is_some_and(|v| v == "full")
}

/// All of a list, or its first half.
pub(super) fn some<T, const N: usize>(list: [T; N]) -> Vec<T> {
    let most = if full() { N } else { N.div_ceil(2) };
    list.into_iter().take(most).collect()
}

/// Sizes around the tiles and vectors of the device at hand and of others.
fn sizes() -> Vec<usize> {
    match full() {
        true => (1..=36).chain([47, 48, 49, 63, 64, 65, 70, 127, 128, 129, 257]).collect(),
        false => vec![1, 2, 3, 7, 16, 17, 31, 33, 70],
    }
}

/// Rounding of a sum of `k` products of numbers up to 1.
pub(super) fn sum_bound(k: usize) -> f32 {
    8.0 * f32::EPSILON * (k as f32).sqrt().max(1.0)
}

/// An operator with its operands on the device, as inputs, and with all but the first as constants.
pub(super) fn check(
    device: &Arc<OpenClDevice>,
    what: &str,
    bound: f32,
    src: &[Tensor],
    build: &dyn Fn(&mut Context, &[TensorId]) -> TensorId,
) {
    let expected = reference(src, build);
    for (how, constant) in [("inputs", false), ("constants", true)] {
        if constant && src.len() < 2 {
            continue;
        }
        let found = on_device(device, src, &|i| constant && i > 0, build);
        assert_close(&found, &expected, bound, &format!("{what}, {how}"));
    }
}

pub(super) fn op(
    op: impl Into<tilewright::graph::Op>,
) -> impl Fn(&mut Context, &[TensorId]) -> TensorId {
    let op = op.into();
    move |cx, src| cx.op(op.clone(), src).unwrap()
}

#[test]
fn functions_of_one_number() {
    let Some(device) = shared() else { return };
    use UnaryOp::*;
    let all = [
        Relu,
        LeakyRelu { alpha: 0.1 },
        Clip { min: -0.5, max: 0.25 },
        Sigmoid,
        HardSigmoid { alpha: 0.3, beta: 0.4 },
        HardSwish,
        Tanh,
        Exp,
        Neg,
        Abs,
        Floor,
        Ceil,
        Round,
        Square,
        Erf,
        Gelu,
        GeluTanh,
        Silu { alpha: 1.702 },
        Softplus,
        Softsign,
        Mish,
        Sin,
        Cos,
        Atan,
        Elu { alpha: 0.7 },
    ];
    for function in all {
        for n in sizes() {
            let mut values: Vec<f32> = noise(n, 3).iter().map(|v| v * 8.0).collect();
            values[0] = [0.0, -0.0, 0.5, 2.5, -1.5][n % 5];
            let x = Tensor::from_slice(&[n], &values).unwrap();
            check(&device, &format!("{function:?} {n}"), 1e-5, &[x], &op(Unary::new(function)));
        }
    }
    for function in [Log, Sqrt, Reciprocal] {
        let x: Vec<f32> = noise(100, 4).iter().map(|v| v.abs() + 0.01).collect();
        let x = Tensor::from_slice(&[100], &x).unwrap();
        check(&device, &format!("{function:?}"), 1e-5, &[x], &op(Unary::new(function)));
    }
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 0.0, 1e-40];
    let odd = Tensor::from_slice(&[odd.len()], &odd).unwrap();
    for function in [Relu, Abs, Neg, Floor, Tanh, Sigmoid, Clip { min: -1.0, max: 1.0 }] {
        check(
            &device,
            &format!("{function:?} odd"),
            1e-5,
            core::slice::from_ref(&odd),
            &op(Unary::new(function)),
        );
    }
}

#[test]
fn pairs_broadcast() {
    let Some(device) = shared() else { return };
    use BinaryOp::*;
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[33], &[33]),
        (&[2, 3, 4, 5], &[2, 3, 4, 5]),
        (&[2, 3, 4, 17], &[3, 1, 1]),
        (&[5, 1, 20], &[7, 1]),
        (&[1], &[40]),
        (&[4, 19], &[]),
        (&[2, 1, 3, 1], &[1, 5, 1, 70]),
        (&[3, 2, 16], &[16]),
    ];
    for kind in [Add, Sub, Mul, Div, Min, Max, PRelu] {
        for (i, (a, b)) in shapes.into_iter().enumerate() {
            let shifted = |dims: &[usize], seed| {
                let v: Vec<f32> =
                    noise(dims.iter().product(), seed).iter().map(|v| v + 1.5).collect();
                Tensor::from_slice(dims, &v).unwrap()
            };
            let (x, y) = (tensor(a, i as u32), shifted(b, 9));
            let build = op(Binary { op: kind, activation: Activation::Relu });
            check(&device, &format!("{kind:?} {a:?} {b:?}"), 1e-6, &[x, y], &build);
        }
    }
    let (x, y) = (tensor(&[40], 1), tensor(&[40], 2));
    let positive: Vec<f32> = x.as_slice::<f32>().unwrap().iter().map(|v| v.abs() + 0.1).collect();
    let x = Tensor::from_slice(&[40], &positive).unwrap();
    check(&device, "pow", 1e-5, &[x, y], &op(Binary::new(Pow)));
}

#[test]
fn rows_become_rows_or_numbers() {
    let Some(device) = shared() else { return };
    rows_or_numbers(&device);
}

fn rows_or_numbers(device: &Arc<OpenClDevice>) {
    for n in sizes() {
        for axis in 0..3 {
            let x = tensor(&[3, n, 5], 1);
            for log in [false, true] {
                let build = op(Softmax { log, ..Softmax::along(axis) });
                check(
                    device,
                    &format!("softmax {n} {axis}"),
                    1e-5,
                    core::slice::from_ref(&x),
                    &build,
                );
            }
            let mut hidden = x.as_slice::<f32>().unwrap().to_vec();
            hidden[5 * n..10 * n].fill(f32::NEG_INFINITY);
            let hidden = Tensor::from_slice(&[3, n, 5], &hidden).unwrap();
            let build = op(Softmax { guarded: true, ..Softmax::along(axis) });
            check(device, &format!("guarded softmax {n} {axis}"), 1e-5, &[hidden], &build);
            for kind in [
                ReduceOp::Sum,
                ReduceOp::Mean,
                ReduceOp::Max,
                ReduceOp::Min,
                ReduceOp::L1,
                ReduceOp::L2,
                ReduceOp::SumSquare,
                ReduceOp::Prod,
            ] {
                let build = op(Reduce { op: kind, axis, count: 1 });
                check(
                    device,
                    &format!("{kind:?} {n} {axis}"),
                    1e-5,
                    core::slice::from_ref(&x),
                    &build,
                );
            }
        }
        for kind in [NormOp::Layer, NormOp::Rms] {
            let norm = Norm { op: kind, axis: 1, epsilon: 1e-5, by_parts: false };
            let (x, scale, bias) = (tensor(&[4, n], 2), tensor(&[n], 3), tensor(&[n], 4));
            let what = format!("{kind:?} {n}");
            check(device, &what, 1e-4, core::slice::from_ref(&x), &op(norm));
            check(device, &what, 1e-4, &[x.clone(), scale.clone()], &op(norm));
            check(device, &what, 1e-4, &[x, scale, bias], &op(norm));
            let parts = Norm { axis: 2, by_parts: true, ..norm };
            let (x, scale) = (tensor(&[2, 3, 4 * n], 5), tensor(&[3, 4], 6));
            check(
                device,
                &format!("{what} by parts"),
                1e-4,
                &[x, scale.clone(), scale],
                &op(parts),
            );
        }
    }
}

#[test]
fn the_best_of_rows() {
    let Some(device) = shared() else { return };
    best_of_rows(&device);
}

fn best_of_rows(device: &Arc<OpenClDevice>) {
    // One part of a row, several, many; few different values, so that there are ties.
    for n in [64, 1000, 1025, 5000, 70_000] {
        for k in [1, 7, 40, 64] {
            let coarse: Vec<f32> = noise(2 * n, 3).iter().map(|v| (v * 500.0).round()).collect();
            let x = Tensor::from_slice(&[2, n], &coarse).unwrap();
            check(device, &format!("best {n} {k}"), 0.0, &[x], &op(Best { k }));
        }
    }
    let mut x = noise(3000, 1);
    (x[17], x[2000], x[2999]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
    let x = Tensor::from_slice(&[1, 3000], &x).unwrap();
    check(device, "best", 0.0, &[x], &op(Best { k: 3 }));
    let x = Tensor::from_slice(&[1, 3], &[f32::NEG_INFINITY; 3]).unwrap();
    check(device, "best", 0.0, &[x], &op(Best { k: 2 }));
}

#[test]
fn gates_and_rotations() {
    let Some(device) = shared() else { return };
    for n in sizes() {
        for kind in [GluOp::Silu, GluOp::Gelu, GluOp::GeluTanh] {
            let (gate, up) = (tensor(&[2, n], 1), tensor(&[2, n], 2));
            check(&device, &format!("{kind:?} {n}"), 1e-5, &[gate, up], &op(Glu { op: kind }));
        }
    }
    for style in [RopeStyle::Interleaved, RopeStyle::Half] {
        for (size, rotated) in [(8, 8), (24, 18), (5, 4), (64, 0)] {
            let (x, table) = (tensor(&[3, 2 * size], 1), tensor(&[3, rotated], 2));
            let build = op(Rope { style, size });
            check(&device, &format!("{style:?} {size} {rotated}"), 1e-6, &[x, table], &build);
        }
    }
}

#[test]
fn products_of_matrices() {
    let Some(device) = shared() else { return };
    for m in some([1, 2, 7, 9, 3, 5, 16, 33]) {
        for n in sizes() {
            for k in some([1, 5, 32, 67, 4, 16, 31, 128]) {
                let (a, b) = (tensor(&[m, k], 1), tensor(&[k, n], 2));
                let (bias, more) = (tensor(&[n], 3), tensor(&[m, n], 4));
                let bound = sum_bound(k);
                let what = format!("{m} {n} {k}");
                check(&device, &what, bound, &[a.clone(), b.clone()], &op(MatMul::default()));
                let full = MatMul {
                    bias: true,
                    residual: true,
                    activation: Activation::Relu,
                    ..MatMul::default()
                };
                check(
                    &device,
                    &what,
                    bound,
                    &[a.clone(), b, bias.clone(), more.clone()],
                    &op(full.clone()),
                );
                let rows = MatMul { transposed_b: true, ..full };
                let b = tensor(&[n, k], 2);
                check(&device, &format!("{what} by rows"), bound, &[a, b, bias, more], &op(rows));
            }
        }
    }
    for (a, b) in [
        (&[2, 3, 4, 5][..], &[3, 5, 6][..]),
        (&[4, 1, 7, 9], &[1, 3, 9, 33]),
        (&[5, 7, 9], &[9, 20]),
    ] {
        let (x, y) = (tensor(a, 1), tensor(b, 2));
        check(&device, &format!("{a:?} {b:?}"), 1e-5, &[x, y], &op(MatMul::default()));
    }
}

pub(super) fn weights(dtype: DType, n: usize, k: usize) -> Tensor {
    let values = noise(n * k, 7);
    let bytes: Vec<u8> = match dtype {
        DType::F32 => bytemuck::cast_slice(&values).to_vec(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::Q8_0 => {
            let mut out = vec![0; dtype.bytes_of(n * k).unwrap()];
            quantize_q8_0(&values, &mut out).unwrap();
            out
        }
        // Any bytes are quants; scales, where they lie, are small halves.
        _ => {
            let (size, block) = (dtype.block_bytes(), dtype.block_elems());
            let mut out: Vec<u8> =
                (0..n * k / block * size).map(|i| (i * 73 % 253 + i / 253) as u8).collect();
            let halves: &[usize] = match dtype {
                DType::Q4_0 | DType::Q5_0 => &[0],
                DType::Q6_K => &[208],
                _ => &[0, 2],
            };
            for (b, block) in out.chunks_exact_mut(size).enumerate() {
                for &at in halves {
                    let d = f16::from_f32(0.001 + (b % 7) as f32 * 0.0007);
                    block[at..at + 2].copy_from_slice(&d.to_le_bytes());
                }
            }
            out
        }
    };
    Tensor::from_bytes(dtype, &[n, k], &bytes).unwrap()
}

fn weights_by_rows(device: &Arc<OpenClDevice>) {
    for dtype in WEIGHT_FORMATS {
        let block = dtype.block_elems();
        let lengths = match (block, full()) {
            (1, false) => vec![1, 31, 64, 172],
            (1, true) => vec![1, 2, 31, 32, 33, 63, 64, 65, 172, 300],
            (_, false) => vec![block, 3 * block],
            (_, true) => vec![block, 2 * block, 3 * block, 5 * block],
        };
        for k in lengths {
            for m in some([1, 2, 5, 3, 4, 9]) {
                for n in some([1, 4, 9, 33, 2, 8, 16, 65]) {
                    let w = weights(dtype, n, k);
                    let what = format!("{dtype} {m} {n} {k}");
                    // What 8 bits hold without rounding: kernels keep no more of activations that meet blocks.
                    let steps =
                        noise(m * k, 1).into_iter().enumerate().map(|(i, v)| match i % 32 {
                            0 => 1.0,
                            _ => (v * 127.0).round() / 127.0,
                        });
                    let x = Tensor::from_slice(&[m, k], &steps.collect::<Vec<f32>>()).unwrap();
                    let src = [x, w.clone(), tensor(&[n], 2)];
                    let most = reference(&src[..2], &op(BlockMatMul { bias: false }));
                    let most =
                        most.as_slice::<f32>().unwrap().iter().fold(1f32, |m, v| m.max(v.abs()));
                    let build = op(BlockMatMul { bias: true });
                    check(device, &what, sum_bound(k) * most, &src, &build);
                    if m == 2 {
                        let ids = Tensor::from_slice(&[3], &[0i32, n as i32 - 1, 0]).unwrap();
                        let expected = reference(&[w.clone(), ids.clone()], &op(Embedding));
                        let found = on_device(device, &[w, ids], &|i| i == 0, &op(Embedding));
                        assert_close(&found, &expected, 1e-6, &format!("rows of {what}"));
                    }
                }
            }
        }
    }
}

#[test]
fn products_with_weights_of_language_models() {
    if let Some(device) = shared() {
        weights_by_rows(&device);
    }
}

/// Products with what is computed around them, as in a layer of a language model: a norm before two or four of
/// them, a gate, a sum; all results side by side.
fn layer(dtype: DType, bias: bool, k: usize) -> impl Fn(&mut Context, &[TensorId]) -> TensorId {
    move |cx, src| {
        let constant = |cx: &mut Context, value: Tensor| cx.constant(value).unwrap();
        let scale = constant(cx, tensor(&[k], 3));
        let norm = Norm { op: NormOp::Rms, axis: 1, epsilon: 1e-5, by_parts: false };
        let normed = cx.op(norm, &[src[0], scale]).unwrap();
        let product = |cx: &mut Context, x: TensorId, n: usize, bias: bool| {
            let mut src = vec![x, constant(cx, weights(dtype, n, k))];
            if bias {
                src.push(constant(cx, tensor(&[n], n as u32)));
            }
            cx.op(BlockMatMul { bias }, &src).unwrap()
        };
        let mut all: Vec<TensorId> = [9, 33, 1, 4].map(|n| product(cx, normed, n, bias)).to_vec();
        let (gate, up) = (product(cx, src[0], 13, bias), product(cx, src[0], 13, bias));
        all.push(cx.op(Glu { op: GluOp::Silu }, &[gate, up]).unwrap());
        let (one, other) = (product(cx, src[0], 13, bias), all[4]);
        all.push(cx.op(Binary::new(BinaryOp::Add), &[one, other]).unwrap());
        // A norm that is read otherwise too stays what it is.
        let scale = constant(cx, tensor(&[k], 4));
        let normed = cx.op(norm, &[src[0], scale]).unwrap();
        all.extend([product(cx, normed, 5, bias), normed]);
        cx.op(Concat { axis: 1 }, &all).unwrap()
    }
}

/// All cases, or one of them.
fn layers(fused: &Arc<OpenClDevice>, only: Option<usize>) {
    let plain = open(Options { fuse: false, ..options() }).unwrap();
    // Each takes a driver a dozen kernels to build: one row, a tile that is not full, more than a tile.
    let cases = [
        (DType::F16, 1, false),
        (DType::F16, 9, true),
        (DType::Q8_0, 1, true),
        (DType::Q8_0, 3, false),
    ];
    for (case, (dtype, m, bias)) in cases.into_iter().enumerate() {
        if only.is_some_and(|only| only % cases.len() != case) {
            continue;
        }
        let k = if dtype.block_elems() == 1 { 93 } else { 512 };
        let (x, build) = (tensor(&[m, k], 1), layer(dtype, bias, k));
        let found = on_device(fused, core::slice::from_ref(&x), &|_| false, &build);
        // The same roundings to 8 bits, save where sums in another order lead to another step.
        let (expected, share) = match dtype.block_elems() {
            1 => (reference(core::slice::from_ref(&x), &build), sum_bound(k)),
            _ => (on_device(&plain, core::slice::from_ref(&x), &|_| false, &build), 1e-3),
        };
        let most = expected.as_slice::<f32>().unwrap().iter().fold(1f32, |m, v| m.max(v.abs()));
        assert_close(&found, &expected, share * most, &format!("{dtype} {m} {bias}"));
    }
}

#[test]
fn products_with_what_is_around_them() {
    if let Some(device) = open(Options { fuse: true, ..options() }) {
        layers(&device, None);
    }
}

/// Every row of the table of shapes: work-items that share sums, short vectors.
#[test]
fn shapes_of_kernels_for_other_devices() {
    let vendors = [Vendor::Nvidia, Vendor::Amd, Vendor::Intel, Vendor::Adreno, Vendor::Mali];
    for (i, vendor) in vendors.into_iter().enumerate() {
        let options = Options { shaped_for: Some(vendor), ..options() };
        let Some(device) = open(options) else { return };
        let all = vendor == Vendor::Mali || full();
        if all {
            weights_by_rows(&device);
            windows::convolutions(&device, if full() { 400 } else { 24 });
            rows_or_numbers(&device);
            best_of_rows(&device);
            attention(&device);
            products_of_many_rows(&device);
        }
        layers(&device, if all { None } else { Some(i) });
        for n in if all { sizes() } else { vec![3, 33] } {
            let norm = Norm { op: NormOp::Layer, axis: 1, epsilon: 1e-5, by_parts: false };
            let src = [tensor(&[4, n], 2), tensor(&[n], 3), tensor(&[n], 4)];
            check(&device, &format!("{vendor:?} norm {n}"), 1e-4, &src, &op(norm));
            let src = [tensor(&[9, 20], 1), tensor(&[20, n], 2)];
            let what = format!("{vendor:?} matmul {n}");
            check(&device, &what, 1e-5, &src, &op(MatMul::default()));
        }
    }
}

/// Long sums, which work-items share, and many rows, of which groups compute tiles.
fn products_of_many_rows(device: &Arc<OpenClDevice>) {
    for (batch, m, n, k) in [(1, 3, 5, 300), (1, 9, 70, 320), (1, 20, 130, 64), (2, 70, 33, 96)] {
        let (a, b) = (tensor(&[batch, m, k], 1), tensor(&[batch, k, n], 2));
        let (bias, more) = (tensor(&[n], 3), tensor(&[batch, m, n], 4));
        let product = MatMul {
            bias: true,
            residual: true,
            activation: Activation::Relu,
            ..MatMul::default()
        };
        let (what, bound) = (format!("{batch} {m} {n} {k}"), sum_bound(k));
        let src = [a.clone(), b, bias.clone(), more.clone()];
        check(device, &what, bound, &src, &op(product.clone()));
        let rows = MatMul { transposed_b: true, ..product };
        let b = tensor(&[batch, n, k], 2);
        check(device, &format!("{what} by rows"), bound, &[a, b, bias, more], &op(rows));
    }
}

#[test]
fn attention_of_networks() {
    let Some(device) = shared() else { return };
    attention(&device);
}

/// Of a few keys, and of more than a work-group has work-items.
fn attention(device: &Arc<OpenClDevice>) {
    for (keys, size, values) in [(1, 4, 4), (20, 16, 8), (33, 5, 7), (300, 12, 300)] {
        let (batch, heads, queries) = (2, 3, 4);
        let rows = |n: usize, size: usize| Rows {
            offset: 0,
            batch: heads * n * size,
            head: n * size,
            row: size,
        };
        let attention = Attention {
            batch,
            heads,
            queries,
            keys,
            size,
            values,
            rows: [rows(queries, size), rows(keys, size), rows(keys, values)],
            scale: 0.3,
            by_head: keys == 20,
            guarded: keys == 33,
        };
        let mut src = vec![
            tensor(&[batch, heads, queries, size], 1),
            tensor(&[batch, heads, keys, size], 2),
            tensor(&[batch, heads, keys, values], 3),
        ];
        check(device, &format!("{attention:?}"), 1e-5, &src, &op(attention));
        for mask in [&[1, 1, queries, keys][..], &[batch, 1, 1, keys], &[keys]] {
            src.truncate(3);
            src.push(tensor(mask, 4));
            check(device, &format!("{attention:?} {mask:?}"), 1e-5, &src, &op(attention));
        }
        src.push(tensor(&[batch, heads, 1, keys], 5));
        check(device, &format!("{attention:?}, two masks"), 1e-5, &src, &op(attention));
        if attention.guarded {
            // All keys hidden from one query.
            let hidden = |i: usize| if i / keys == 1 { f32::NEG_INFINITY } else { 0.5 };
            let mask: Vec<f32> = (0..queries * keys).map(hidden).collect();
            src[4] = Tensor::from_slice(&[queries, keys], &mask).unwrap();
            check(device, &format!("{attention:?}, hidden"), 1e-5, &src, &op(attention));
        }
    }
}
