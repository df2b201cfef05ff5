//! The arena of a plan against the least memory that its tensors need, found here from the operations
//! of the plan alone.

use tilewright::backend::cpu::{Executor, Plan};
use tilewright::graph::ops::binary::Binary;
use tilewright::graph::ops::concat::Concat;
use tilewright::graph::ops::conv::Conv;
use tilewright::graph::ops::pool::{Pool, PoolKind};
use tilewright::graph::ops::unary::{Unary, UnaryOp};
use tilewright::graph::{Context, TensorId, passes};
use tilewright::{DType, Isa, Tensor};
use tilewright_kernels::template::binary::BinaryOp;

/// A network under construction.
struct Net {
    cx: Context,
    input: [usize; 4],
}

impl Net {
    fn new(input: [usize; 4]) -> (Self, TensorId) {
        let mut cx = Context::new();
        let x = cx.input("x", DType::F32, &input).unwrap();
        (Self { cx, input }, x)
    }

    /// A convolution and a relu.
    fn conv(&mut self, x: TensorId, channels: usize, kernel: usize, stride: usize) -> TensorId {
        let c = self.cx.dims(x)[1];
        self.op(x, [channels, c, kernel, kernel], 1, stride)
    }

    fn depthwise(&mut self, x: TensorId, stride: usize) -> TensorId {
        let c = self.cx.dims(x)[1];
        self.op(x, [c, 1, 3, 3], c, stride)
    }

    fn op(&mut self, x: TensorId, filter: [usize; 4], groups: usize, stride: usize) -> TensorId {
        let w = Tensor::zeros(DType::F32, &filter).unwrap();
        let w = self.cx.constant(w).unwrap();
        let (stride, pads) = ([stride; 2], [filter[2] / 2; 4]);
        let y = self.cx.op(Conv { groups, stride, pads, ..Conv::default() }, &[x, w]).unwrap();
        self.cx.op(Unary::new(UnaryOp::Relu), &[y]).unwrap()
    }

    fn add(&mut self, x: TensorId, y: TensorId) -> TensorId {
        self.cx.op(Binary::new(BinaryOp::Add), &[x, y]).unwrap()
    }

    fn concat(&mut self, parts: &[TensorId]) -> TensorId {
        self.cx.op(Concat { axis: 1 }, parts).unwrap()
    }

    fn pool(&mut self, x: TensorId) -> TensorId {
        let half = Pool::global(PoolKind::Max, [1, 1]);
        self.cx.op(Pool { window: [2; 2], stride: [2; 2], ..half }, &[x]).unwrap()
    }

    fn plan(mut self, y: TensorId) -> (Plan, usize) {
        passes::optimize(&mut self.cx, &[y], 1).unwrap();
        let executor = Executor::new(Isa::Scalar, 1).unwrap();
        let plan = executor.plan(&mut self.cx, &[y]).unwrap();
        (plan, self.input.iter().product::<usize>() * 4)
    }
}

fn residual() -> (Plan, usize) {
    let (mut net, x) = Net::new([1, 16, 56, 56]);
    let mut x = net.conv(x, 32, 3, 1);
    for (channels, stride) in [(32, 1), (64, 2), (64, 1), (128, 2), (128, 1)] {
        let y = net.conv(x, channels, 3, stride);
        let y = net.conv(y, channels, 3, 1);
        let skip = if stride == 1 { x } else { net.conv(x, channels, 1, stride) };
        x = net.add(y, skip);
    }
    net.plan(x)
}

fn inverted() -> (Plan, usize) {
    let (mut net, x) = Net::new([1, 16, 64, 64]);
    let mut x = net.conv(x, 16, 3, 2);
    for (channels, stride) in [(16, 1), (32, 2), (32, 1), (48, 2), (48, 1), (48, 1)] {
        let c = net.cx.dims(x)[1];
        let wide = net.conv(x, 6 * c, 1, 1);
        let wide = net.depthwise(wide, stride);
        let y = net.conv(wide, channels, 1, 1);
        x = if stride == 1 && c == channels { net.add(x, y) } else { y };
    }
    net.plan(x)
}

fn inception() -> (Plan, usize) {
    let (mut net, x) = Net::new([1, 16, 48, 48]);
    let mut x = net.conv(x, 32, 3, 1);
    for (i, c) in [32, 48, 64].into_iter().enumerate() {
        let a = net.conv(x, c, 1, 1);
        let b = net.conv(x, c / 2, 1, 1);
        let b = net.conv(b, 2 * c, 3, 1);
        let d = net.conv(x, 16, 1, 1);
        let d = net.conv(d, c, 5, 1);
        x = net.concat(&[a, b, d]);
        x = if i == 1 { net.pool(x) } else { x };
    }
    net.plan(x)
}

fn dense() -> (Plan, usize) {
    let (mut net, x) = Net::new([1, 16, 32, 32]);
    let mut x = net.conv(x, 64, 3, 1);
    for _ in 0..8 {
        let y = net.conv(x, 64, 1, 1);
        let y = net.conv(y, 16, 3, 1);
        x = net.concat(&[x, y]);
    }
    net.plan(x)
}

/// Down with a tensor kept at each scale, then back with it.
fn u_net() -> (Plan, usize) {
    let (mut net, x) = Net::new([1, 16, 64, 64]);
    let (mut x, mut kept) = (x, Vec::new());
    for c in [16, 32, 64, 128] {
        x = net.conv(x, c, 3, 1);
        x = net.conv(x, c, 3, 1);
        kept.push(x);
        x = net.pool(x);
    }
    while let Some(skip) = kept.pop() {
        let c = net.cx.dims(skip)[1];
        let from = net.cx.dims(x)[1];
        let w = Tensor::zeros(DType::F32, &[from, c, 2, 2]).unwrap();
        let w = net.cx.constant(w).unwrap();
        let up = Conv { stride: [2; 2], transposed: Some([0; 2]), ..Conv::default() };
        x = net.cx.op(up, &[x, w]).unwrap();
        x = net.concat(&[x, skip]);
        x = net.conv(x, c, 3, 1);
    }
    net.plan(x)
}

/// Bytes of results that must exist between two operations, the most over all of them; while one runs, if what
/// `joins` is computed where it ends up, all of which is there with the first part; and if it is copied. What the caller
/// gets at the end lies elsewhere.
fn needed(plan: &Plan, joins: bool) -> [usize; 3] {
    let nodes: Vec<_> = plan.nodes().collect();
    let bytes = |i: usize| match i + 1 == nodes.len() {
        true => 0,
        false => nodes[i].info.stored_bytes().unwrap(),
    };
    let last = |i: usize| (i..nodes.len()).rfind(|&j| nodes[j].inputs.contains(&i)).unwrap_or(i);
    // An operation with several inputs reads what they are joined to.
    let joined = nodes.iter().map(|node| &node.inputs).filter(|parts| joins && parts.len() > 1);
    let first =
        |i: usize| joined.clone().filter(|parts| parts.contains(&i)).flatten().copied().min();
    let (mut between, mut during, mut copied) = (0, 0, 0);
    for step in 0..nodes.len() {
        let alive =
            |until: usize| (0..=step).filter(|&i| last(i) >= until).map(bytes).sum::<usize>();
        between = between.max(alive(step + 1));
        let all = (0..nodes.len()).filter(|&i| first(i).unwrap_or(i) <= step && last(i) >= step);
        during = during.max(all.map(bytes).sum());
        let whole: usize = match joins && nodes[step].inputs.len() > 1 {
            true => nodes[step].inputs.iter().map(|&i| bytes(i)).sum(),
            false => 0,
        };
        copied = copied.max(alive(step)).max(whole + alive(step) - bytes(step));
    }
    [between, during, copied]
}

#[test]
fn arenas_are_hardly_larger_than_what_must_be_kept() {
    let nets = [residual(), inverted(), inception(), dense(), u_net()];
    for (i, (plan, input)) in nets.into_iter().enumerate() {
        let [between, during, copied] = needed(&plan, i > 1);
        let (bound, arena) = (plan.arena_bound(), plan.arena_bytes());
        assert!(between <= bound && bound <= during + input, "{i}: {between} {bound} {during}");
        assert!(bound <= copied + input, "{i}: {bound} {copied}");
        assert!(arena >= bound && arena <= bound + bound / 10, "{i}: {arena} for {bound}");
    }
}
