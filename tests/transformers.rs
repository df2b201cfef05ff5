//! Layers of transformers, written out as exporters do: recognised, and equal to their definition.

use tilewright::backend::cpu::Executor;
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::matmul::MatMul;
use tilewright::graph::ops::reduce::{Reduce, ReduceOp};
use tilewright::graph::ops::select::Select;
use tilewright::graph::ops::softmax::Softmax;
use tilewright::graph::ops::special::Special;
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{Context, TensorId, passes};
use tilewright::{DType, Isa, Tensor};
use tilewright_kernels::template::binary::BinaryOp;

/// Values that look random, the same on every machine.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 2.0
    };
    (0..len).map(|_| next()).collect()
}

/// What a layer's attention looks like.
#[derive(Clone, Copy, Debug)]
struct Form {
    batch: usize,
    tokens: usize,
    heads: usize,
    size: usize,
    /// One product for q, k and v.
    joint: bool,
    mask: Mask,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mask {
    None,
    Keys,
    Causal,
}

struct Net {
    cx: Context,
    seed: u32,
}

impl Net {
    fn constant(&mut self, dims: &[usize]) -> TensorId {
        self.seed += 1;
        let data = noise(dims.iter().product(), self.seed);
        self.cx.constant(Tensor::from_slice(dims, &data).unwrap()).unwrap()
    }

    fn number(&mut self, value: f32) -> TensorId {
        self.cx.constant(Tensor::from_slice(&[], &[value]).unwrap()).unwrap()
    }

    fn pair(&mut self, op: BinaryOp, a: TensorId, b: TensorId) -> TensorId {
        self.cx.op(Binary::new(op), &[a, b]).unwrap()
    }

    fn with(&mut self, op: BinaryOp, a: TensorId, value: f32) -> TensorId {
        let value = self.number(value);
        self.pair(op, a, value)
    }

    fn dense(&mut self, x: TensorId, k: usize, n: usize) -> TensorId {
        let (w, b) = (self.constant(&[k, n]), self.constant(&[n]));
        let y = self.cx.op(MatMul::default(), &[x, w]).unwrap();
        self.pair(BinaryOp::Add, b, y)
    }

    fn norm(&mut self, x: TensorId, width: usize) -> TensorId {
        let mean = |net: &mut Self, x| {
            let dims = net.cx.dims(x);
            let op = Reduce { op: ReduceOp::Mean, axis: 2, count: 1 };
            let y = net.cx.op(op, &[x]).unwrap();
            net.cx.reshape(y, &[dims[0], dims[1], 1]).unwrap()
        };
        let middle = mean(self, x);
        let centred = self.pair(BinaryOp::Sub, x, middle);
        let square = self.cx.op(Unary::new(UnaryOp::Square), &[centred]).unwrap();
        let variance = mean(self, square);
        let sum = self.with(BinaryOp::Add, variance, 1e-5);
        let root = self.cx.op(Unary::new(UnaryOp::Sqrt), &[sum]).unwrap();
        let y = self.pair(BinaryOp::Div, centred, root);
        let (scale, bias) = (self.constant(&[width]), self.constant(&[width]));
        let y = self.pair(BinaryOp::Mul, y, scale);
        self.pair(BinaryOp::Add, y, bias)
    }

    fn heads(&mut self, x: TensorId, f: Form) -> TensorId {
        let x = self.cx.reshape(x, &[f.batch, f.tokens, f.heads, f.size]).unwrap();
        self.cx.transpose(x, &[0, 2, 1, 3]).unwrap()
    }

    /// q, k and v as `[batch, heads, tokens, size]`.
    fn operands(&mut self, x: TensorId, f: Form) -> [TensorId; 3] {
        let width = f.heads * f.size;
        if !f.joint {
            return [0; 3].map(|_| {
                let y = self.dense(x, width, width);
                self.heads(y, f)
            });
        }
        let y = self.dense(x, width, 3 * width);
        let y = self.cx.reshape(y, &[f.batch, f.tokens, 3, f.heads, f.size]).unwrap();
        let y = self.cx.transpose(y, &[2, 0, 3, 1, 4]).unwrap();
        [0, 1, 2].map(|i| {
            let part = self.cx.slice(y, 0, i, 1, 1).unwrap();
            self.cx.reshape(part, &[f.batch, f.heads, f.tokens, f.size]).unwrap()
        })
    }

    fn attention(&mut self, x: TensorId, f: Form) -> TensorId {
        let [mut q, k, v] = self.operands(x, f);
        let scale = (f.size as f32).sqrt();
        if f.joint {
            q = self.with(BinaryOp::Mul, q, 1.0 / scale);
        }
        let k = self.cx.transpose(k, &[0, 1, 3, 2]).unwrap();
        let mut scores = self.cx.op(MatMul::default(), &[q, k]).unwrap();
        if !f.joint {
            scores = self.with(BinaryOp::Div, scores, scale);
        }
        let n = f.tokens;
        let mask = match f.mask {
            Mask::None => None,
            Mask::Keys => Some((
                vec![f.batch, 1, 1, n],
                (0..f.batch * n).map(|i| i % 3 == 2).collect::<Vec<_>>(),
            )),
            Mask::Causal => Some((vec![n, n], (0..n * n).map(|i| i % n > i / n).collect())),
        };
        if let Some((dims, hidden)) = mask {
            let data: Vec<f32> = hidden.iter().map(|&h| if h { f32::MIN } else { 0.0 }).collect();
            let mask = self.cx.constant(Tensor::from_slice(&dims, &data).unwrap()).unwrap();
            scores = self.pair(BinaryOp::Add, scores, mask);
        }
        let weights = self.cx.op(Softmax::along(3), &[scores]).unwrap();
        let y = self.cx.op(MatMul::default(), &[weights, v]).unwrap();
        let y = self.cx.transpose(y, &[0, 2, 1, 3]).unwrap();
        self.cx.reshape(y, &[f.batch, f.tokens, f.heads * f.size]).unwrap()
    }

    fn layer(&mut self, x: TensorId, f: Form) -> TensorId {
        let width = f.heads * f.size;
        let y = self.norm(x, width);
        let y = self.attention(y, f);
        let y = self.dense(y, width, width);
        let x = self.pair(BinaryOp::Add, x, y);
        let y = self.norm(x, width);
        let y = self.dense(y, width, 2 * width);
        let inner = self.with(BinaryOp::Div, y, core::f32::consts::SQRT_2);
        let inner = self.cx.op(Unary::new(UnaryOp::Erf), &[inner]).unwrap();
        let sum = self.with(BinaryOp::Add, inner, 1.0);
        let y = self.pair(BinaryOp::Mul, y, sum);
        let y = self.with(BinaryOp::Mul, y, 0.5);
        let y = self.dense(y, 2 * width, width);
        self.pair(BinaryOp::Add, y, x)
    }
}

fn forms() -> Vec<Form> {
    let small = Form { batch: 2, tokens: 5, heads: 2, size: 3, joint: false, mask: Mask::Keys };
    vec![
        small,
        Form { joint: true, mask: Mask::None, ..small },
        Form { batch: 1, heads: 3, mask: Mask::Causal, ..small },
        // Two blocks of queries, the second one shorter.
        Form { batch: 1, tokens: 171, heads: 2, size: 20, joint: true, mask: Mask::Causal },
        Form { batch: 2, tokens: 197, heads: 3, size: 8, joint: false, mask: Mask::Keys },
    ]
}

fn built(f: Form, constant: bool) -> (Context, TensorId, Tensor) {
    let dims = [f.batch, f.tokens, f.heads * f.size];
    let data = Tensor::from_slice(&dims, &noise(dims.iter().product(), 99)).unwrap();
    let mut net = Net { cx: Context::new(), seed: 0 };
    let x = match constant {
        true => net.cx.constant(data.clone()).unwrap(),
        false => net.cx.input("x", DType::F32, &dims).unwrap(),
    };
    let y = net.layer(x, f);
    (net.cx, y, data)
}

#[test]
fn layers_become_few_operators() {
    for f in forms() {
        let (mut cx, y, _) = built(f, false);
        passes::optimize(&mut cx, &[y], 1).unwrap();
        let order = cx.build_forward(&[y]).unwrap();
        let names = order.into_iter().map(|id| cx.record(id).op().name());
        let ops: Vec<&str> = names.filter(|n| !["leaf", "reshape"].contains(n)).collect();
        let products = vec!["matmul"; if f.joint { 1 } else { 3 }];
        let rest = ["attention", "matmul", "layer_norm", "matmul", "matmul"];
        assert_eq!(ops, [&["layer_norm"], &products[..], &rest].concat(), "{f:?}");
    }
}

#[test]
fn layers_equal_their_definition() {
    for f in forms() {
        // Of constants everything is computed by the references, before any pass.
        let (cx, y, _) = built(f, true);
        let want = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut first: Option<Vec<f32>> = None;
            for threads in [1, 2, 5] {
                let (mut cx, y, x) = built(f, false);
                passes::optimize(&mut cx, &[y], threads).unwrap();
                let mut executor = Executor::new(isa, threads).unwrap();
                let plan = executor.plan(&mut cx, &[y]).unwrap();
                let got = executor.run(&plan, &[&x], None).unwrap();
                let got = got[0].as_slice::<f32>().unwrap().to_vec();
                let most = want.iter().fold(0f32, |most, v| most.max(v.abs()));
                for (a, b) in got.iter().zip(&want) {
                    assert!((a - b).abs() <= 1e-5 * most, "{isa} {f:?}: {a} {b}");
                }
                assert_eq!(
                    *first.get_or_insert_with(|| got.clone()),
                    got,
                    "{isa}, {threads} threads"
                );
            }
        }
    }
}

/// Attention by itself: extents before the last two of queries, keys and values, those of masks, and what
/// is done to the weights and the result.
struct Alone {
    lead: Vec<usize>,
    /// Queries, keys, elements of a key, elements of a value.
    sizes: [usize; 4],
    masks: Vec<Vec<usize>>,
    /// Extents in which the last mask is added.
    apart: Option<Vec<usize>>,
    /// NaN becomes 0.
    guarded: bool,
    /// Heads and tokens change places.
    turned: bool,
}

fn alone() -> Vec<Alone> {
    let plain = || Alone {
        lead: vec![2, 3],
        sizes: [5, 7, 4, 6],
        masks: Vec::new(),
        apart: None,
        guarded: false,
        turned: false,
    };
    vec![
        plain(),
        Alone { lead: vec![6], ..plain() },
        Alone { lead: vec![6], masks: vec![vec![6, 5, 7]], ..plain() },
        Alone { masks: vec![vec![1, 1, 5, 7]], guarded: true, turned: true, ..plain() },
        Alone { masks: vec![vec![2, 1, 1, 7]], guarded: true, ..plain() },
        Alone { lead: vec![1, 4, 3], turned: true, ..plain() },
        Alone { lead: vec![2, 4, 3], masks: vec![vec![3, 5, 7]], turned: true, ..plain() },
        // A bias for each head and a mask for each window, as those of shifted windows are written.
        Alone {
            lead: vec![4, 3],
            masks: vec![vec![1, 3, 5, 7], vec![1, 4, 1, 5, 7]],
            apart: Some(vec![1, 4, 3, 5, 7]),
            turned: true,
            ..plain()
        },
        Alone { sizes: [300, 290, 8, 16], masks: vec![vec![300, 290]], guarded: true, ..plain() },
    ]
}

/// The network, its result, and values for its inputs; of constants it has the result's value.
fn attention_alone(f: &Alone, constant: bool) -> (Context, TensorId, Vec<Tensor>) {
    let [queries, keys, size, values] = f.sizes;
    let mut net = Net { cx: Context::new(), seed: 7 };
    let tensors: Vec<Tensor> = [(queries, size), (keys, size), (keys, values)]
        .iter()
        .zip(3..)
        .map(|(&(rows, size), seed)| {
            let dims = [&f.lead[..], &[rows, size]].concat();
            Tensor::from_slice(&dims, &noise(dims.iter().product(), seed)).unwrap()
        })
        .collect();
    let cx = &mut net.cx;
    let [q, k, v] = [0, 1, 2].map(|i| match constant {
        true => cx.constant(tensors[i].clone()).unwrap(),
        false => cx.input(["q", "k", "v"][i], DType::F32, &tensors[i].dims()).unwrap(),
    });
    let rank = f.lead.len() + 2;
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    let k = net.cx.transpose(k, &axes).unwrap();
    let product = net.cx.op(MatMul::default(), &[q, k]).unwrap();
    let mut scores = net.with(BinaryOp::Mul, product, 0.4);
    for (i, dims) in f.masks.iter().enumerate() {
        // All keys are hidden from some queries if their weights are guarded.
        let hidden = |at: usize| at / keys % 3 == 1 && f.guarded || at.is_multiple_of(5);
        let data: Vec<f32> = (0..dims.iter().product())
            .map(|at| if hidden(at) { f32::NEG_INFINITY } else { at as f32 % 4.0 })
            .collect();
        let mask = net.cx.constant(Tensor::from_slice(dims, &data).unwrap()).unwrap();
        let before = net.cx.dims(scores);
        let apart = f.apart.as_ref().filter(|_| i + 1 == f.masks.len());
        if let Some(apart) = apart {
            scores = net.cx.reshape(scores, apart).unwrap();
        }
        scores = net.pair(BinaryOp::Add, scores, mask);
        scores = net.cx.reshape(scores, &before).unwrap();
    }
    let mut weights = net.cx.op(Softmax::along(rank - 1), &[scores]).unwrap();
    if f.guarded {
        let special = Special { nan: true, positive: false, negative: false };
        let wrong = net.cx.op(special, &[weights]).unwrap();
        let zero = net.number(0.0);
        weights = net.cx.op(Select, &[wrong, zero, weights]).unwrap();
    }
    let mut y = net.cx.op(MatMul::default(), &[weights, v]).unwrap();
    if f.turned {
        let mut axes: Vec<usize> = (0..rank).collect();
        axes.swap(rank - 3, rank - 2);
        y = net.cx.transpose(y, &axes).unwrap();
        y = net.cx.cont(y).unwrap();
    }
    (net.cx, y, tensors)
}

#[test]
fn attention_is_one_operator_however_it_is_written() {
    for f in alone() {
        let (cx, y, _) = attention_alone(&f, true);
        let want = cx.constant_value(y).unwrap().as_slice::<f32>().unwrap().to_vec();
        assert!(want.iter().all(|v| !v.is_nan()) && want.contains(&0.0) == f.guarded);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (mut cx, y, tensors) = attention_alone(&f, false);
            let dims = cx.dims(y);
            passes::optimize(&mut cx, &[y], 2).unwrap();
            let order = cx.build_forward(&[y]).unwrap();
            let names = order.into_iter().map(|id| cx.record(id).op().name());
            let ops: Vec<&str> =
                names.filter(|n| !["leaf", "reshape", "transpose"].contains(n)).collect();
            assert_eq!(ops, ["attention"], "{:?} {:?}", f.lead, f.masks);
            let mut executor = Executor::new(isa, 2).unwrap();
            let plan = executor.plan(&mut cx, &[y]).unwrap();
            let inputs: Vec<&Tensor> = tensors.iter().collect();
            let got = executor.run(&plan, &inputs, None).unwrap();
            assert_eq!(got[0].dims(), dims);
            for (a, b) in got[0].as_slice::<f32>().unwrap().iter().zip(&want) {
                assert!((a - b).abs() <= 1e-5, "{isa} {:?} {:?}: {a} {b}", f.lead, f.masks);
            }
        }
    }
}

/// Of no keys the definition has NaN, and of no queries nothing: neither is for the kernels.
#[test]
fn attention_without_queries_or_keys_is_left_as_it_is() {
    for sizes in [[0, 7, 4, 6], [5, 0, 4, 6]] {
        let f = Alone { sizes, ..alone().swap_remove(0) };
        let (mut cx, y, _) = attention_alone(&f, false);
        passes::optimize(&mut cx, &[y], 1).unwrap();
        let order = cx.build_forward(&[y]).unwrap();
        assert!(order.into_iter().all(|id| cx.record(id).op().name() != "attention"));
    }
}

/// What replaces NaN behind a softmax is part of it, unless something else reads the one or the other.
#[test]
fn a_guard_becomes_part_of_its_softmax() {
    let x: Vec<f32> =
        (0..24).map(|i| if i < 4 || i % 4 == 1 { f32::NEG_INFINITY } else { i as f32 }).collect();
    let x = Tensor::from_slice(&[2, 3, 4], &x).unwrap();
    let run = |cx: &mut Context, outputs: &[TensorId], isa: Isa| {
        let mut executor = Executor::new(isa, 1).unwrap();
        let plan = executor.plan(cx, outputs).unwrap();
        let y = executor.run(&plan, &[&x], None).unwrap().swap_remove(0);
        y.as_slice::<f32>().unwrap().to_vec()
    };
    for (axis, read_by_others) in [(2, 0), (1, 0), (2, 1), (2, 2)] {
        let mut net = Net { cx: Context::new(), seed: 0 };
        let scores = net.cx.input("x", DType::F32, &x.dims()).unwrap();
        let weights = net.cx.op(Softmax::along(axis), &[scores]).unwrap();
        let special = Special { nan: true, positive: false, negative: false };
        let wrong = net.cx.op(special, &[weights]).unwrap();
        let zero = net.number(0.0);
        let y = net.cx.op(Select, &[wrong, zero, weights]).unwrap();
        let outputs = &[vec![y], vec![y, weights], vec![y, wrong]][read_by_others];
        let want = run(&mut net.cx, outputs, Isa::Scalar);
        // Whole rows, and whole columns.
        let hidden = if axis == 2 { 0..4 } else { 1..2 };
        assert!(want[hidden].iter().all(|&v| v == 0.0) && want.iter().all(|v| !v.is_nan()));
        passes::optimize(&mut net.cx, outputs, 1).unwrap();
        let order = net.cx.build_forward(outputs).unwrap();
        let kept = order.into_iter().any(|id| net.cx.record(id).op().name() == "where");
        assert_eq!(kept, read_by_others > 0);
        let got = run(&mut net.cx, outputs, Isa::best());
        assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() <= 1e-6), "{got:?} {want:?}");
    }
}
