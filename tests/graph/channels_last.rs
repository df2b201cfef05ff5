//! Networks of tokens: copies that bring channels behind the pixels and back, around operators of blocks.

use super::{constant, floats, isas, leaf, noise};
use tilewright::Tensor;
use tilewright::backend::cpu::compute;
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::concat::Concat;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{Context, Op, TensorId, passes};
use tilewright_kernels::template::binary::BinaryOp;

type Build = fn(&mut Context, TensorId) -> TensorId;

/// Two images of 5 x 4 tokens of 32 channels.
const TOKENS: [usize; 3] = [2, 20, 32];

fn to_pixels(cx: &mut Context, tokens: TensorId) -> TensorId {
    let channels = *cx.dims(tokens).last().unwrap();
    let x = cx.transpose(tokens, &[0, 2, 1]).unwrap();
    cx.reshape(x, &[2, channels, 5, 4]).unwrap()
}

fn to_tokens(cx: &mut Context, pixels: TensorId) -> TensorId {
    let channels = cx.dims(pixels)[1];
    let x = cx.reshape(pixels, &[2, channels, 20]).unwrap();
    cx.transpose(x, &[0, 2, 1]).unwrap()
}

fn depthwise(cx: &mut Context, x: TensorId) -> TensorId {
    let w = constant(cx, &[32, 1, 3, 3], 1);
    cx.op(Conv { groups: 32, pads: [1; 4], ..Conv::default() }, &[x, w]).unwrap()
}

fn product(cx: &mut Context, x: TensorId) -> TensorId {
    let w = constant(cx, &[32, 32], 2);
    cx.op(MatMul::default(), &[x, w]).unwrap()
}

/// As Segformer's and PVT's feed-forward layers have it: the activation stands behind the copy.
fn mixer(cx: &mut Context, x: TensorId) -> TensorId {
    let x = product(cx, x);
    let x = to_pixels(cx, x);
    let x = depthwise(cx, x);
    let x = to_tokens(cx, x);
    let half = cx.constant(Tensor::from_slice(&[], &[0.5f32]).unwrap()).unwrap();
    let root = cx.constant(Tensor::from_slice(&[], &[core::f32::consts::SQRT_2]).unwrap()).unwrap();
    let one = cx.constant(Tensor::from_slice(&[], &[1.0f32]).unwrap()).unwrap();
    let y = cx.op(Binary::new(BinaryOp::Div), &[x, root]).unwrap();
    let y = cx.op(Unary::new(UnaryOp::Erf), &[y]).unwrap();
    let y = cx.op(Binary::new(BinaryOp::Add), &[y, one]).unwrap();
    let y = cx.op(Binary::new(BinaryOp::Mul), &[x, y]).unwrap();
    let y = cx.op(Binary::new(BinaryOp::Mul), &[y, half]).unwrap();
    product(cx, y)
}

/// There and back, with nothing between.
fn undone(cx: &mut Context, x: TensorId) -> TensorId {
    let x = product(cx, x);
    let x = to_pixels(cx, x);
    let x = to_tokens(cx, x);
    product(cx, x)
}

/// A skip connection around what works on tokens, and readers of both orders.
fn skip(cx: &mut Context, x: TensorId) -> TensorId {
    let x = to_pixels(cx, x);
    let x = depthwise(cx, x);
    let y = to_tokens(cx, x);
    let y = product(cx, y);
    let y = to_pixels(cx, y);
    let y = cx.op(Binary::new(BinaryOp::Add), &[x, y]).unwrap();
    let z = cx.op(Concat { axis: 1 }, &[y, x]).unwrap();
    let w = constant(cx, &[48, 64, 1, 1], 3);
    cx.op(Conv::default(), &[z, w]).unwrap()
}

/// Element by element between a copy and a convolution.
fn follows(cx: &mut Context, x: TensorId) -> TensorId {
    let x = to_pixels(cx, x);
    let x = cx.op(Unary::new(UnaryOp::Tanh), &[x]).unwrap();
    let w = constant(cx, &[40, 32, 3, 3], 4);
    cx.op(Conv { pads: [1; 4], ..Conv::default() }, &[x, w]).unwrap()
}

/// Rows and columns of a matrix that are no pixels and channels.
fn other_orders(cx: &mut Context, x: TensorId) -> TensorId {
    let y = cx.transpose(x, &[1, 2, 0]).unwrap();
    let y = cx.reshape(y, &[20, 32, 2, 1]).unwrap();
    let w = constant(cx, &[32, 1, 3, 3], 5);
    let y = cx.op(Conv { groups: 32, pads: [1; 4], ..Conv::default() }, &[y, w]).unwrap();
    let y = cx.transpose(y, &[2, 0, 1, 3]).unwrap();
    cx.reshape(y, &TOKENS).unwrap()
}

#[test]
fn results_are_those_of_the_definition_with_fewer_copies() {
    // Of each how many copies are left, and how many changes of layout there are.
    let cases: [(Build, [usize; 2]); 5] = [
        (mixer, [0, 2]),
        (undone, [0, 0]),
        (skip, [0, 4]),
        (follows, [0, 2]),
        (other_orders, [2, 0]),
    ];
    for (case, (build, wanted)) in cases.into_iter().enumerate() {
        let mut cx = Context::new();
        let x = constant(&mut cx, &TOKENS, 9);
        let folded = build(&mut cx, x);
        let want = floats(cx.constant_value(folded).unwrap());
        let x = leaf(&mut cx, &TOKENS, &noise(TOKENS.iter().product(), 9));
        let y = build(&mut cx, x);
        let mut optimized = cx.clone();
        passes::optimize(&mut optimized, &[y], 2).unwrap();
        for isa in isas() {
            for cx in [&cx, &optimized] {
                let got = floats(&compute(cx, &[y], isa, 2).unwrap()[0]);
                assert_eq!(got.len(), want.len());
                for (i, (a, b)) in got.iter().zip(&want).enumerate() {
                    assert!((a - b).abs() < 1e-4, "case {case} {isa}: {a} for {b} at {i}");
                }
            }
        }
        let outputs = passes::assign_layouts(&mut optimized, &[y]).unwrap();
        let order = optimized.build_forward(&outputs).unwrap();
        let count =
            |is: fn(&Op) -> bool| order.iter().filter(|&&id| is(optimized.record(id).op())).count();
        let found =
            [count(|op| matches!(op, Op::Cont(_))), count(|op| matches!(op, Op::Relayout(_)))];
        assert_eq!(found, wanted, "case {case}");
        let unary = count(|op| matches!(op, Op::Unary(_)));
        assert_eq!(unary, usize::from(case == 3), "case {case}: activations in epilogues");
    }
}
