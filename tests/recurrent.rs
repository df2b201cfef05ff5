//! Recurrent layers with kernels, against the reference that the graph folds constants with.

use tilewright::backend::cpu::Executor;
use tilewright::graph::ops::recurrent::{Cell, Function, Recurrent};
use tilewright::graph::ops::unary::UnaryOp;
use tilewright::graph::{Context, TensorId};
use tilewright::{DType, Isa, Tensor};

/// Values that look random, the same on every machine.
fn noise(dims: &[usize], seed: u32) -> Tensor {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let data: Vec<f32> = (0..dims.iter().product())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state as f32 / u32::MAX as f32 - 0.5) * 2.0
        })
        .collect();
    Tensor::from_slice(dims, &data).unwrap()
}

#[derive(Clone, Copy, Debug)]
struct Case {
    cell: Cell,
    directions: usize,
    time: usize,
    batch: usize,
    hidden: usize,
    /// Whether all optional operands are there.
    full: bool,
}

impl Case {
    fn op(self) -> Recurrent {
        let lstm = matches!(self.cell, Cell::Lstm { .. });
        let odd = Function { op: UnaryOp::Tanh, before: 0.7, after: 1.2 };
        let all: [Function; 3] = [
            UnaryOp::Sigmoid.into(),
            UnaryOp::Tanh.into(),
            if self.full { odd } else { UnaryOp::Tanh.into() },
        ];
        let functions = match self.cell {
            Cell::Rnn => vec![all[2]],
            _ => all[..self.cell.functions()].to_vec(),
        };
        Recurrent {
            cell: self.cell,
            hidden: self.hidden,
            reverse: [self.directions == 1 && self.full, true][..self.directions].to_vec(),
            functions: vec![functions; self.directions],
            clip: self.full.then_some(0.8),
            bias: self.full && self.cell == Cell::Gru { reset_after: true },
            lengths: self.full,
            state: self.full,
            cell_state: self.full && lstm,
            peepholes: self.full && lstm,
        }
    }

    /// The operands: what the inputs add, then the weights, then the rest.
    fn operands(self) -> Vec<Tensor> {
        let Self { directions, time, batch, hidden, .. } = self;
        let width = self.cell.gates() * hidden;
        let mut all: Vec<Tensor> =
            (0..directions).map(|d| noise(&[time, batch, width], 1 + d as u32)).collect();
        all.push(noise(&[directions, width, hidden], 9));
        let op = self.op();
        if op.bias {
            all.push(noise(&[directions, hidden], 10));
        }
        if op.lengths {
            let lengths: Vec<i32> =
                (0..batch).map(|b| ((b * 3 + time - 1) % (time + 1)) as i32).collect();
            all.push(Tensor::from_slice(&[batch], &lengths).unwrap());
        }
        let states = usize::from(op.state) + usize::from(op.cell_state);
        all.extend((0..states).map(|i| noise(&[directions, batch, hidden], 20 + i as u32)));
        if op.peepholes {
            all.push(noise(&[directions, 3 * hidden], 30));
        }
        all
    }

    fn reference(self) -> Tensor {
        let mut cx = Context::new();
        let src: Vec<TensorId> =
            self.operands().into_iter().map(|t| cx.constant(t).unwrap()).collect();
        let y = cx.op(self.op(), &src).unwrap();
        cx.constant_value(y).unwrap().clone()
    }

    fn run(self, isa: Isa, threads: usize) -> Tensor {
        let mut cx = Context::new();
        let operands = self.operands();
        let src: Vec<TensorId> = operands
            .iter()
            .enumerate()
            .map(|(i, t)| match i == self.directions {
                true => cx.constant(t.clone()).unwrap(),
                false => cx.input(&i.to_string(), t.dtype(), &t.dims()).unwrap(),
            })
            .collect();
        let y = cx.op(self.op(), &src).unwrap();
        let mut executor = Executor::new(isa, threads).unwrap();
        let plan = executor.plan(&mut cx, &[y]).unwrap();
        assert!(plan.nodes().all(|n| n.kernel != "reference"), "{self:?}");
        let names = plan.input_names().map(|n| &operands[n.parse::<usize>().unwrap()]);
        let leaves: Vec<&Tensor> = names.collect();
        executor.run(&plan, &leaves, None).unwrap();
        executor.run(&plan, &leaves, None).unwrap().remove(0)
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for cell in [
        Cell::Rnn,
        Cell::Gru { reset_after: false },
        Cell::Gru { reset_after: true },
        Cell::Lstm { coupled: false },
        Cell::Lstm { coupled: true },
    ] {
        for directions in [1, 2] {
            for (time, batch, hidden) in [(1, 1, 1), (3, 1, 17), (4, 3, 5), (2, 8, 32), (5, 20, 3)]
            {
                for full in [false, true] {
                    cases.push(Case { cell, directions, time, batch, hidden, full });
                }
            }
        }
    }
    cases
}

#[test]
fn kernels_agree_with_the_reference_on_any_number_of_threads() {
    for case in cases() {
        let expected = case.reference();
        let expected = expected.as_slice::<f32>().unwrap();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let one = case.run(isa, 1);
            let found = one.as_slice::<f32>().unwrap();
            for (i, (a, b)) in found.iter().zip(&*expected).enumerate() {
                let bound = 1e-5 * (1.0 + b.abs());
                assert!((a - b).abs() <= bound, "{case:?} on {isa:?}: {i}: {a}, not {b}");
            }
            assert_eq!(one.bytes(), case.run(isa, 3).bytes(), "{case:?} on {isa:?}");
        }
    }
}

#[test]
fn a_length_beyond_the_sequence_is_an_error_of_the_run() {
    let mut cx = Context::new();
    let op = Recurrent {
        lengths: true,
        ..Case { cell: Cell::Rnn, directions: 1, time: 2, batch: 1, hidden: 1, full: false }.op()
    };
    let x = cx.input("x", DType::F32, &[2, 1, 1]).unwrap();
    let r = cx.constant(noise(&[1, 1, 1], 1)).unwrap();
    let l = cx.input("l", DType::I32, &[1]).unwrap();
    let y = cx.op(op, &[x, r, l]).unwrap();
    let mut executor = Executor::new(Isa::select().unwrap(), 1).unwrap();
    let plan = executor.plan(&mut cx, &[y]).unwrap();
    let x = noise(&[2, 1, 1], 2);
    for length in [3, -1, i32::MAX] {
        let l = Tensor::from_slice(&[1], &[length]).unwrap();
        let leaves: Vec<&Tensor> =
            plan.input_names().map(|n| if n == "x" { &x } else { &l }).collect();
        let e = executor.run(&plan, &leaves, None).unwrap_err().to_string();
        assert!(e.contains("length"), "{e}");
    }
}
