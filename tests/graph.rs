//! Graphs built by hand: ggml's semantics, both modes, fusion, layouts and the executor.

#[path = "graph/channels_last.rs"]
mod channels_last;
use std::sync::Arc;

use tilewright::backend::cpu::{Executor, compute, evaluator};
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::block_matmul::BlockMatMul;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::dequantize::Dequantize;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::pool::{Pool, PoolKind};
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{ConstCache, Context, GraphError, Layout, Op, TensorId, passes};
use tilewright::{DType, Isa, Tensor};
use tilewright_kernels::template::binary::BinaryOp;

fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
}

/// Values that look random, the same on every machine.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 - 0.5) * 2.0
        })
        .collect()
}

fn constant(cx: &mut Context, dims: &[usize], seed: u32) -> TensorId {
    let data = noise(dims.iter().product(), seed);
    cx.constant(Tensor::from_slice(dims, &data).unwrap()).unwrap()
}

fn leaf(cx: &mut Context, dims: &[usize], data: &[f32]) -> TensorId {
    let id = cx.input("x", DType::F32, dims).unwrap();
    cx.set_value(id, Tensor::from_slice(dims, data).unwrap()).unwrap();
    id
}

fn floats(t: &Tensor) -> Vec<f32> {
    t.as_slice::<f32>().unwrap().to_vec()
}

/// conv - relu - conv + residual - relu - pool - scale - dense, as networks have it.
fn network(cx: &mut Context, x: TensorId) -> TensorId {
    let conv = |pads| Conv { pads: [pads; 4], ..Conv::default() };
    let w1 = constant(cx, &[20, 3, 3, 3], 1);
    let b1 = constant(cx, &[1, 20, 1, 1], 2);
    let y = cx.op(conv(1), &[x, w1]).unwrap();
    let y = cx.op(Binary::new(BinaryOp::Add), &[y, b1]).unwrap();
    let y = cx.op(Unary::new(UnaryOp::Relu), &[y]).unwrap();
    let w2 = constant(cx, &[20, 20, 3, 3], 3);
    let s2 = constant(cx, &[20, 1, 1], 4);
    let z = cx.op(conv(1), &[y, w2]).unwrap();
    let z = cx.op(Binary::new(BinaryOp::Mul), &[z, s2]).unwrap();
    let z = cx.op(Binary::new(BinaryOp::Add), &[y, z]).unwrap();
    let z = cx.op(Unary::new(UnaryOp::HardSwish), &[z]).unwrap();
    let dw = constant(cx, &[20, 1, 3, 3], 5);
    let z = cx.op(Conv { groups: 20, ..conv(1) }, &[z, dw]).unwrap();
    let z = cx.op(Unary::new(UnaryOp::Clip { min: 0.0, max: 6.0 }), &[z]).unwrap();
    let half = Pool { window: [2; 2], stride: [2; 2], ..Pool::global(PoolKind::Max, [1, 1]) };
    let z = cx.op(half, &[z]).unwrap();
    let mean = Pool::global(PoolKind::Average { include_pad: false }, [4, 3]);
    let z = cx.op(mean, &[z]).unwrap();
    let z = cx.reshape(z, &[2, 20]).unwrap();
    let w3 = constant(cx, &[20, 7], 6);
    let b3 = constant(cx, &[7], 7);
    let z = cx.op(MatMul::default(), &[z, w3]).unwrap();
    cx.op(Binary::new(BinaryOp::Add), &[z, b3]).unwrap()
}

const IMAGE: [usize; 4] = [2, 3, 9, 7];

fn run(isa: Isa, threads: usize, fused: bool) -> Vec<f32> {
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &IMAGE).unwrap();
    let y = network(&mut cx, x);
    if fused {
        passes::fuse(&mut cx, &[y]).unwrap();
    }
    let mut executor = Executor::new(isa, threads).unwrap();
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    let image = Tensor::from_slice(&IMAGE, &noise(IMAGE.iter().product(), 9)).unwrap();
    let first = executor.run(&plan, &[&image], None).unwrap();
    let second = executor.run(&plan, &[&image], None).unwrap();
    assert_eq!(floats(&first[0]), floats(&second[0]), "a second run gives the same");
    floats(&first[0])
}

#[test]
fn every_isa_thread_count_and_fusion_agrees() {
    // The reference: every constant fold uses the references, so a constant input folds it all.
    let mut cx = Context::new();
    let image = Tensor::from_slice(&IMAGE, &noise(IMAGE.iter().product(), 9)).unwrap();
    let x = cx.constant(image).unwrap();
    let y = network(&mut cx, x);
    let want = floats(cx.constant_value(y).expect("all is constant"));
    for isa in isas() {
        for fused in [false, true] {
            let one = run(isa, 1, fused);
            for (a, b) in one.iter().zip(&want) {
                assert!((a - b).abs() < 2e-4 * b.abs().max(1.0), "{isa} fused {fused}: {a} {b}");
            }
            for threads in [2, 3, 5] {
                assert_eq!(run(isa, threads, fused), one, "{isa} on {threads} threads");
            }
        }
    }
}

#[test]
fn fusion_leaves_only_what_epilogues_cannot_do() {
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &IMAGE).unwrap();
    let y = network(&mut cx, x);
    passes::fuse(&mut cx, &[y]).unwrap();
    let ops: Vec<&str> = cx
        .build_forward(&[y])
        .unwrap()
        .into_iter()
        .map(|id| cx.record(id).op().name())
        .filter(|n| *n != "leaf")
        .collect();
    let want = ["conv", "conv", "conv", "max_pool", "average_pool", "reshape", "matmul"];
    assert_eq!(ops, want);
}

#[test]
fn layouts_change_at_the_borders_only() {
    let mut cx = Context::new();
    let x = cx.input("x", DType::F32, &IMAGE).unwrap();
    let y = network(&mut cx, x);
    passes::fuse(&mut cx, &[y]).unwrap();
    let outputs = passes::assign_layouts(&mut cx, &[y]).unwrap();
    let changes: Vec<Layout> = cx
        .build_forward(&outputs)
        .unwrap()
        .into_iter()
        .filter(|&id| matches!(cx.record(id).op(), Op::Relayout(_)))
        .map(|id| cx.record(id).layout())
        .collect();
    // In: the picture's three channels interleaved. Out: pooled to one pixel, two images of 20
    // channels, so the unused lanes of the first lie between them.
    assert_eq!(changes, [Layout::Interleaved, Layout::Plain]);
}

#[test]
fn immediate_and_lazy_mode_build_the_same_graph_and_equal_bits() {
    for isa in isas() {
        let data = noise(IMAGE.iter().product(), 9);
        let build = |cx: &mut Context| {
            let x = leaf(cx, &IMAGE, &data);
            network(cx, x)
        };
        let mut lazy = Context::new();
        let y = build(&mut lazy);
        assert!(lazy.record(y).value().is_none());
        let want = compute(&lazy, &[y], isa, 2).unwrap();
        let mut now = Context::immediate(evaluator(isa));
        let z = build(&mut now);
        assert_eq!(floats(now.record(z).value().expect("computed at once")), floats(&want[0]));
        assert_eq!(now.len(), lazy.len());
        assert_eq!(
            (now.record(z).op(), now.record(z).src()),
            (lazy.record(y).op(), lazy.record(y).src())
        );
    }
}

#[test]
fn plans_of_one_model_share_packed_weights() {
    let cache = Arc::new(ConstCache::default());
    let weights = Tensor::from_slice(&[16, 16, 3, 3], &noise(16 * 16 * 9, 1)).unwrap();
    cache.keep(weights.storage());
    let executor = Executor::new(Isa::Scalar, 1).unwrap();
    let mut sizes = Vec::new();
    // All wide enough for one algorithm: another one has another order.
    for width in [20, 33, 47] {
        let mut cx = Context::with_cache(cache.clone());
        let w = cx.constant(weights.clone()).unwrap();
        let x = cx.input("x", DType::F32, &[1, 16, 8, width]).unwrap();
        let y = cx.op(Conv::default(), &[x, w]).unwrap();
        executor.plan(&mut cx, &[y]).unwrap();
        sizes.push(cache.packed_bytes());
    }
    assert!(sizes[0] >= 16 * 16 * 9 * 4);
    assert_eq!(sizes[0], sizes[2], "{sizes:?}");
}

#[test]
fn plans_with_other_output_phases_pack_anew() {
    // One output row, then one output column: as many weights, in another order.
    let cache = Arc::new(ConstCache::default());
    let data = noise(16 * 16 * 4, 1);
    let weights = Tensor::from_slice(&[16, 16, 2, 2], &data).unwrap();
    cache.keep(weights.storage());
    let op = Conv { stride: [2, 2], transposed: Some([0, 0]), ..Conv::default() };
    for isa in isas() {
        for (pads, dims) in [([0, 0, 1, 0], [1, 16, 1, 3]), ([0, 0, 0, 1], [1, 16, 3, 1])] {
            let mut cx = Context::with_cache(cache.clone());
            let w = cx.constant(weights.clone()).unwrap();
            let (op, x) = (Conv { pads, ..op.clone() }, noise(48, 2));
            let constant = cx.constant(Tensor::from_slice(&dims, &x).unwrap()).unwrap();
            let want = cx.op(op.clone(), &[constant, w]).unwrap();
            let want = floats(cx.constant_value(want).unwrap());
            let x = leaf(&mut cx, &dims, &x);
            let y = cx.op(op, &[x, w]).unwrap();
            let got = floats(&compute(&cx, &[y], isa, 1).unwrap()[0]);
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4), "{isa} {dims:?}");
        }
    }
}

// ggml's conventions.

fn ggml(ne: &[usize], data: &[f32], cx: &mut Context) -> TensorId {
    let id = cx.new_tensor(DType::F32, ne).unwrap();
    let dims: Vec<usize> = ne.iter().rev().copied().collect();
    cx.set_value(id, Tensor::from_slice(&dims, data).unwrap()).unwrap();
    id
}

fn value(cx: &Context, id: TensorId) -> Vec<f32> {
    floats(&compute(cx, &[id], Isa::select().unwrap(), 2).unwrap()[0])
}

#[test]
fn mul_mat_contracts_the_fastest_dimension_of_both() {
    let mut cx = Context::new();
    // a: 2 rows of 3, b: 1 row of 3.
    let a = ggml(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut cx);
    let b = ggml(&[3, 1], &[1.0, 0.0, -1.0], &mut cx);
    let y = cx.mul_mat(a, b).unwrap();
    assert_eq!(&cx.record(y).shape().ne()[..2], &[2, 1]);
    assert_eq!(value(&cx, y), [-2.0, -2.0]);
    let m = ggml(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut cx);
    let y = cx.matmul_mn(a, m).unwrap();
    assert_eq!(value(&cx, y), [22.0, 28.0, 49.0, 64.0]);
    let text = cx.mul_mat(a, m).unwrap_err().to_string();
    assert!(
        text.contains("mul_mat") && text.contains("[2, 3]") && text.contains("[3, 2]"),
        "{text}"
    );
    let t = cx.permute(a, &[1, 0]).unwrap();
    assert!(matches!(cx.mul_mat(t, b), Err(GraphError::Unsupported { op: "mul_mat", .. })));
}

#[test]
fn mul_mat_shares_a_among_neighbouring_matrices_of_b() {
    let mut cx = Context::new();
    let a = ggml(&[1, 1, 2], &[10.0, 100.0], &mut cx);
    let b = ggml(&[1, 1, 4], &[1.0, 2.0, 3.0, 4.0], &mut cx);
    let y = cx.mul_mat(a, b).unwrap();
    assert_eq!(value(&cx, y), [10.0, 20.0, 300.0, 400.0]);
}

#[test]
fn second_operands_repeat() {
    let mut cx = Context::new();
    let a = ggml(&[4, 2], &[0.0; 8], &mut cx);
    let b = ggml(&[2, 1], &[1.0, 2.0], &mut cx);
    let y = cx.add(a, b).unwrap();
    assert_eq!(value(&cx, y), [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let bad = ggml(&[3, 1], &[0.0; 3], &mut cx);
    let text = cx.add(a, bad).unwrap_err().to_string();
    assert!(text.contains("add") && text.contains("[2, 4]") && text.contains("[1, 3]"), "{text}");
    assert!(cx.add(b, a).is_err(), "the first operand never repeats");
}

#[test]
fn permute_moves_axis_i_to_axes_i() {
    let mut cx = Context::new();
    let a = ggml(&[4, 3, 2], &noise(24, 3), &mut cx);
    let p = cx.permute(a, &[2, 0, 1, 3]).unwrap();
    let (ne, nb) = (*cx.record(p).shape().ne(), *cx.record(p).shape().nb());
    assert_eq!((&ne[..4], &nb[..3]), (&[3, 2, 4, 1][..], &[16, 48, 4][..]));
    assert!(cx.record(p).view_offset() == Some(0) && !cx.record(p).is_contiguous());
    let c = cx.cont(p).unwrap();
    let (flat, moved) = (noise(24, 3), value(&cx, c));
    for k in 0..4 {
        for i in 0..2 {
            for j in 0..3 {
                assert_eq!(moved[k * 6 + i * 3 + j], flat[i * 12 + j * 4 + k]);
            }
        }
    }
    assert!(cx.permute(a, &[0, 0, 1, 2]).is_err());
    assert!(cx.permute(a, &[0, 1, 2, 9]).is_err());
    assert!(cx.permute(a, &[0, 1, 2, usize::MAX]).is_err());
}

#[test]
fn views_stay_inside_what_they_look_at() {
    let mut cx = Context::new();
    let a = ggml(&[4, 3], &[0.0; 12], &mut cx);
    assert!(cx.view(a, &[2, 2], &[16, 4], 24).is_ok());
    assert!(cx.view(a, &[2, 2], &[16, 4], 28).is_err());
    assert!(cx.view(a, &[usize::MAX, 2], &[16, 4], 0).is_err());
    assert!(cx.reshape(a, &[5, 2]).is_err());
    let first = cx.slice(a, 1, 1, 2, 1).unwrap();
    let view_of_view = cx.slice(first, 0, 2, 1, 1).unwrap();
    let x = cx.relu(view_of_view).unwrap();
    assert_eq!(cx.dims(x), [1, 2]);
    assert!(cx.slice(a, 0, 2, 2, 1).is_err());
}

#[test]
fn unset_leaves_and_cut_off_names() {
    let mut cx = Context::new();
    let a = cx.input("weights.3", DType::F32, &[4]).unwrap();
    let y = cx.relu(a).unwrap();
    let e = compute(&cx, &[y], Isa::Scalar, 1).unwrap_err();
    assert_eq!(e, GraphError::UnsetLeaf("weights.3".into()));
}

#[test]
fn relu_of_nan_is_nan_fused_or_not() {
    for isa in isas() {
        let mut cx = Context::new();
        let x = leaf(&mut cx, &[1, 16, 1, 1], &[f32::NAN; 16]);
        let w = constant(&mut cx, &[16, 16, 1, 1], 1);
        let convolved = cx.op(Conv::default(), &[x, w]).unwrap();
        let ys = [x, convolved].map(|x| cx.relu(x).unwrap());
        passes::fuse(&mut cx, &ys).unwrap();
        for y in compute(&cx, &ys, isa, 1).unwrap() {
            assert!(floats(&y).iter().all(|y| y.is_nan()), "{isa}");
        }
    }
}

#[test]
fn deep_graphs_do_not_overflow_the_stack() {
    let mut cx = Context::new();
    let mut x = leaf(&mut cx, &[1], &[1.0]);
    for _ in 0..100_000 {
        x = cx.scale(x, 1.0).unwrap();
    }
    assert_eq!(cx.build_forward(&[x]).unwrap().len(), 100_001);
}

#[test]
fn transpositions_copy_every_element() {
    for isa in isas() {
        for (dims, axes) in [
            (&[2, 37, 5, 9][..], &[0, 2, 3, 1][..]),
            (&[3, 4, 17, 3], &[0, 3, 1, 2]),
            (&[2, 3, 4, 5], &[3, 2, 1, 0]),
            (&[1, 40], &[1, 0]),
        ] {
            let data = noise(dims.iter().product(), 4);
            let mut cx = Context::new();
            let x = leaf(&mut cx, dims, &data);
            let y = cx.transpose(x, axes).unwrap();
            let got = floats(&compute(&cx, &[y], isa, 3).unwrap()[0]);
            let c = cx.constant(Tensor::from_slice(dims, &data).unwrap()).unwrap();
            let want = cx.transpose(c, axes).unwrap();
            assert_eq!(got, floats(cx.constant_value(want).unwrap()), "{isa} {dims:?} {axes:?}");
        }
    }
}

#[test]
fn channel_factors_stay_blocked() {
    // Squeeze and excitation: a map times one factor per image and channel.
    let build = |cx: &mut Context, x: TensorId| {
        let w = constant(cx, &[20, 20, 1, 1], 1);
        let y = cx.op(Conv::default(), &[x, w]).unwrap();
        let mean = Pool::global(PoolKind::Average { include_pad: false }, [3, 4]);
        let s = cx.op(mean, &[y]).unwrap();
        let v = constant(cx, &[20, 20, 1, 1], 2);
        let s = cx.op(Conv::default(), &[s, v]).unwrap();
        let s = cx.op(Unary::new(UnaryOp::Sigmoid), &[s]).unwrap();
        cx.op(Binary::new(BinaryOp::Mul), &[s, y]).unwrap()
    };
    let (dims, data) = ([2, 20, 3, 4], noise(480, 5));
    let mut cx = Context::new();
    let x = cx.constant(Tensor::from_slice(&dims, &data).unwrap()).unwrap();
    let folded = build(&mut cx, x);
    let want = floats(cx.constant_value(folded).unwrap());
    let x = leaf(&mut cx, &dims, &data);
    let y = build(&mut cx, x);
    for isa in isas() {
        let got = floats(&compute(&cx, &[y], isa, 2).unwrap()[0]);
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4), "{isa}");
    }
    let outputs = passes::assign_layouts(&mut cx, &[y]).unwrap();
    let order = cx.build_forward(&outputs).unwrap();
    let changes = order.iter().filter(|&&id| matches!(cx.record(id).op(), Op::Relayout(_)));
    assert_eq!(changes.count(), 2, "one in, one out");
}

/// Operators whose kernels of plain tensors serve where nothing around them is blocked, and what
/// comes of them beside a convolution that is.
#[test]
fn lone_windows_and_pointwise_convolutions_stay_plain() {
    type Build = fn(&mut Context, TensorId) -> TensorId;
    let pointwise: Build = |cx, x| {
        let (w, b) = (constant(cx, &[40, 20, 1, 1], 1), constant(cx, &[40], 2));
        let y = cx.op(Conv { bias: true, ..Conv::default() }, &[x, w, b]).unwrap();
        cx.relu(y).unwrap()
    };
    let depthwise: Build = |cx, x| {
        let w = constant(cx, &[20, 1, 3, 3], 3);
        cx.op(Conv { groups: 20, pads: [1; 4], ..Conv::default() }, &[x, w]).unwrap()
    };
    let pool: Build = |cx, x| {
        let (window, stride) = ([3; 2], [2; 2]);
        let op = Pool { window, stride, pads: [1; 4], ..Pool::global(PoolKind::Max, [1; 2]) };
        cx.op(op, &[x]).unwrap()
    };
    let beside: Build = |cx, x| {
        let (v, w) = (constant(cx, &[24, 20, 1, 1], 4), constant(cx, &[20, 24, 3, 3], 5));
        let y = cx.op(Conv::default(), &[x, v]).unwrap();
        cx.op(Conv::default(), &[y, w]).unwrap()
    };
    for (build, conversions) in [(pointwise, 0), (depthwise, 0), (pool, 0), (beside, 2)] {
        let (dims, data) = ([2, 20, 7, 7], noise(1960, 6));
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(&dims, &data).unwrap()).unwrap();
        let folded = build(&mut cx, x);
        let want = floats(cx.constant_value(folded).unwrap());
        let x = leaf(&mut cx, &dims, &data);
        let y = build(&mut cx, x);
        for isa in isas() {
            let got = floats(&compute(&cx, &[y], isa, 2).unwrap()[0]);
            assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4), "{isa}");
        }
        let outputs = passes::assign_layouts(&mut cx, &[y]).unwrap();
        let order = cx.build_forward(&outputs).unwrap();
        let changes = order.iter().filter(|&&id| matches!(cx.record(id).op(), Op::Relayout(_)));
        assert_eq!(changes.count(), conversions);
    }
}

#[test]
fn empty_tensors_run() {
    let mut cx = Context::new();
    let a = leaf(&mut cx, &[0, 3], &[]);
    let y = cx.relu(a).unwrap();
    let w = constant(&mut cx, &[3, 2], 1);
    let z = cx.op(MatMul::default(), &[y, w]).unwrap();
    let out = compute(&cx, &[z], Isa::select().unwrap(), 2).unwrap();
    assert_eq!(out[0].dims(), [0, 2]);
    // A part of nothing, which begins behind its end.
    let x = leaf(&mut cx, &[3, 1, 8, 0], &[]);
    let part = cx.slice(x, 2, 5, 2, 1).unwrap();
    let out = compute(&cx, &[part], Isa::select().unwrap(), 1).unwrap();
    assert_eq!(out[0].dims(), [3, 1, 2, 0]);
    let x = cx.constant(Tensor::from_slice::<f32>(&[4, 0], &[]).unwrap()).unwrap();
    let part = cx.slice(x, 0, 3, 1, 1).unwrap();
    assert_eq!(cx.constant_value(part).unwrap().dims(), [1, 0]);
}

#[test]
fn transposed_convolution_matches_its_reference() {
    for isa in isas() {
        for (groups, stride, pads, extra) in
            [(1, [2, 2], [1, 1, 1, 1], [1, 1]), (2, [3, 1], [0, 2, 1, 0], [0, 0])]
        {
            let op = Conv { groups, stride, pads, transposed: Some(extra), ..Conv::default() };
            let mut cx = Context::new();
            let data = noise(6 * 5 * 4, 8);
            let w = constant(&mut cx, &[6, 4, 3, 3], 2);
            let x = cx.constant(Tensor::from_slice(&[1, 6, 5, 4], &data).unwrap()).unwrap();
            let want = cx.op(op.clone(), &[x, w]).unwrap();
            let want = floats(cx.constant_value(want).unwrap());
            let x = leaf(&mut cx, &[1, 6, 5, 4], &data);
            let y = cx.op(op, &[x, w]).unwrap();
            let got = floats(&compute(&cx, &[y], isa, 2).unwrap()[0]);
            for (a, b) in got.iter().zip(&want) {
                assert!((a - b).abs() < 1e-4, "{isa} {groups} {stride:?}: {a} {b}");
            }
        }
    }
}

/// A convolution whose result is large, and what reads it.
fn large_conv(cx: &mut Context, pool: &Pool, twice: bool) -> Vec<TensorId> {
    let x = cx.input("x", DType::F32, &[1, 3, 259, 260]).unwrap();
    let (w, b) = (constant(cx, &[20, 3, 3, 3], 1), constant(cx, &[20], 2));
    let conv = Conv { pads: [1; 4], bias: true, ..Conv::default() };
    let y = cx.op(conv, &[x, w, b]).unwrap();
    let y = cx.op(Unary::new(UnaryOp::Relu), &[y]).unwrap();
    let z = cx.op(pool.clone(), &[y]).unwrap();
    if twice { vec![z, y] } else { vec![z] }
}

#[test]
fn a_large_convolution_and_its_pooling_become_one() {
    let half = Pool { window: [2; 2], stride: [2; 2], ..Pool::global(PoolKind::Max, [1, 1]) };
    let overlapping = Pool { window: [3; 2], ..half.clone() };
    let padded = Pool { pads: [0, 0, 1, 1], ..half.clone() };
    let ceil = Pool { ceil: true, ..half.clone() };
    let average = Pool { kind: PoolKind::Average { include_pad: false }, ..half.clone() };
    let fused = |pool: &Pool, twice: bool, threads: usize| {
        let mut cx = Context::new();
        let outputs = large_conv(&mut cx, pool, twice);
        passes::fuse(&mut cx, &outputs).unwrap();
        passes::fuse_neighbours(&mut cx, &outputs, threads).unwrap();
        matches!(cx.record(outputs[0]).op(), Op::ConvPool(_))
    };
    assert!(fused(&half, false, 1) && fused(&half, false, 4));
    assert!(!fused(&half, true, 1) && !fused(&half, false, 5));
    for other in [overlapping, padded, ceil, average] {
        assert!(!fused(&other, false, 1), "{other:?}");
    }
    let x = Tensor::from_slice(&[1, 3, 259, 260], &noise(3 * 259 * 260, 9)).unwrap();
    for isa in isas() {
        let run = |threads: usize, join: bool| {
            let mut cx = Context::new();
            let outputs = large_conv(&mut cx, &half, false);
            passes::fuse(&mut cx, &outputs).unwrap();
            if join {
                passes::fuse_neighbours(&mut cx, &outputs, threads).unwrap();
            }
            let mut executor = Executor::new(isa, threads).unwrap();
            let plan = executor.plan(&mut cx, &outputs).unwrap();
            floats(&executor.run(&plan, &[&x], None).unwrap()[0])
        };
        let apart = run(1, false);
        assert!(run(1, true) == apart && run(3, true) == apart, "{isa}");
    }
}

#[test]
fn bytes_become_floats_by_kernels_as_by_the_reference() {
    let dims = [3, 5, 67];
    let bytes: Vec<u8> = (0..3 * 5 * 67).map(|i| (i * 89 % 256) as u8).collect();
    for (dtype, axis) in [(DType::U8, None), (DType::I8, Some(1)), (DType::U8, Some(2))] {
        let x = Tensor::from_bytes(dtype, &dims, &bytes).unwrap();
        let op = Dequantize { axis, block: 0 };
        let parameters = axis.map_or(vec![], |axis| vec![dims[axis]]);
        let count = parameters.iter().product::<usize>();
        let build = |cx: &mut Context, x: TensorId| {
            let scales: Vec<f32> = (0..count).map(|i| 0.1 + i as f32).collect();
            let zeros: Vec<u8> = (0..count).map(|i| (i * 77 % 256) as u8).collect();
            let scale = cx.constant(Tensor::from_slice(&parameters, &scales).unwrap()).unwrap();
            let zero = Tensor::from_bytes(dtype, &parameters, &zeros).unwrap();
            let zero = cx.constant(zero).unwrap();
            cx.op(op, &[x, scale, zero]).unwrap()
        };
        let mut cx = Context::new();
        let constant = cx.constant(x.clone()).unwrap();
        let y = build(&mut cx, constant);
        let want = floats(cx.constant_value(y).unwrap());
        for isa in isas() {
            let mut cx = Context::new();
            let input = cx.input("x", dtype, &dims).unwrap();
            let y = build(&mut cx, input);
            let mut executor = Executor::new(isa, 2).unwrap();
            let plan = executor.plan(&mut cx, &[y]).unwrap();
            assert!(plan.nodes().any(|node| node.kernel.starts_with("dequantize")), "{isa}");
            assert_eq!(floats(&executor.run(&plan, &[&x], None).unwrap()[0]), want, "{isa}");
        }
    }
}

#[test]
fn products_that_read_one_tensor_prepare_it_once() {
    let [m, k] = [3, 64];
    let x = noise(m * k, 1);
    for isa in isas() {
        let mut cx = Context::new();
        let input = cx.input("x", DType::F32, &[m, k]).unwrap();
        let product = |cx: &mut Context, x: TensorId, n: usize, seed: u32| {
            let w = constant(cx, &[n, k], seed);
            cx.op(BlockMatMul { bias: false }, &[x, w]).unwrap()
        };
        // Between the two that share, a tensor that could take the memory of what they share.
        let a = product(&mut cx, input, 40, 2);
        let other = cx.op(Unary::new(UnaryOp::Relu), &[input]).unwrap();
        let b = product(&mut cx, other, 24, 3);
        let c = product(&mut cx, input, 24, 4);
        let mut executor = Executor::new(isa, 2).unwrap();
        let plan = executor.plan(&mut cx, &[a, b, c]).unwrap();
        assert_eq!(plan.nodes().filter(|n| n.op == "prepare").count(), 2, "{isa}");
        let given = Tensor::from_slice(&[m, k], &x).unwrap();
        let results = executor.run(&plan, &[&given], None).unwrap();
        let relu: Vec<f32> = x.iter().map(|v| v.max(0.0)).collect();
        for ((result, (n, seed)), x) in
            results.iter().zip([(40, 2), (24, 3), (24, 4)]).zip([&x, &relu, &x])
        {
            let w = noise(n * k, seed);
            let want = |i: usize| -> f32 {
                let (x, w) = (&x[i / n * k..][..k], &w[i % n * k..][..k]);
                x.iter().zip(w).map(|(a, b)| a * b).sum()
            };
            let near = |(i, y): (usize, &f32)| (y - want(i)).abs() < 1e-4;
            assert!(floats(result).iter().enumerate().all(near), "{isa}: {n} columns");
        }
    }
}
