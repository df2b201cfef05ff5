//! Recurrent layers: what follows the product of the inputs with their weights.

mod lower;

use super::unary::{UnaryOp, apply};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// What is computed at each step of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// One gate, whose value is the new state.
    Rnn,
    /// Gates update, reset, new (ONNX `zrh`).
    Gru {
        /// Whether the reset gate works on the product with the recurrent weights, not on the state
        /// that enters it (ONNX `linear_before_reset`).
        reset_after: bool,
    },
    /// Gates input, output, forget, cell (ONNX `iofc`).
    Lstm {
        /// Whether the forget gate is one minus the input gate (ONNX `input_forget`).
        coupled: bool,
    },
}

impl Cell {
    /// Number of gates.
    pub fn gates(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }

    /// Number of functions: one per kind of gate, for an LSTM also the one of the new state.
    pub fn functions(self) -> usize {
        match self {
            Self::Rnn => 1,
            Self::Gru { .. } => 2,
            Self::Lstm { .. } => 3,
        }
    }

    /// Tensors that a step of time hands to the next.
    pub fn states(self) -> usize {
        if matches!(self, Self::Lstm { .. }) { 2 } else { 1 }
    }
}

/// `after * op(before * x)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Function {
    /// The function.
    pub op: UnaryOp,
    /// Factor of the argument.
    pub before: f32,
    /// Factor of the result.
    pub after: f32,
}

impl From<UnaryOp> for Function {
    fn from(op: UnaryOp) -> Self {
        Self { op, before: 1.0, after: 1.0 }
    }
}

/// The recurrence of an RNN, GRU or LSTM, in one or two directions, as ONNX defines them (opset 22).
///
/// Operands, with `g` gates: for each direction what the inputs add to the gates, biases included,
/// `[time, batch, g * hidden]`; the recurrent weights `[directions, g * hidden, hidden]`; then those
/// flagged, in the order of the fields: `bias [directions, hidden]`, `lengths i32 [batch]`,
/// `state [directions, batch, hidden]`, `cell_state`, the same, and `peepholes
/// [directions, 3 * hidden]`.
///
/// Result: `[time + states, directions, batch, hidden]`: the states at each step of time, zeros past
/// the length of a sequence, then the last ones, then for an LSTM the last cell states.
#[derive(Clone, Debug, PartialEq)]
pub struct Recurrent {
    /// What is computed at each step.
    pub cell: Cell,
    /// Elements of a state.
    pub hidden: usize,
    /// For each direction, whether it goes from the last step to the first.
    pub reverse: Vec<bool>,
    /// The functions of each direction, [`Cell::functions`] of them.
    pub functions: Vec<Vec<Function>>,
    /// Largest magnitude of the functions' arguments.
    pub clip: Option<f32>,
    /// Whether there is a bias inside of the reset gate ([`Cell::Gru`] with `reset_after`).
    pub bias: bool,
    /// Whether sequences have lengths of their own.
    pub lengths: bool,
    /// Whether there are initial states; else they are 0.
    pub state: bool,
    /// Whether there are initial cell states; else they are 0.
    pub cell_state: bool,
    /// Whether gates look at the cell state.
    pub peepholes: bool,
}

const OP: &str = "recurrent";

/// Positions of the operands.
struct Operands {
    weights: usize,
    bias: Option<usize>,
    lengths: Option<usize>,
    state: Option<usize>,
    cell_state: Option<usize>,
    peepholes: Option<usize>,
    count: usize,
}

/// Extents.
#[derive(Clone, Copy)]
struct Sizes {
    time: usize,
    batch: usize,
    directions: usize,
    gates: usize,
    hidden: usize,
}

impl Recurrent {
    fn operands(&self) -> Operands {
        let weights = self.reverse.len();
        let mut count = weights + 1;
        let mut next = |flag: bool| {
            flag.then(|| {
                count += 1;
                count - 1
            })
        };
        let bias = next(self.bias);
        let lengths = next(self.lengths);
        let state = next(self.state);
        let cell_state = next(self.cell_state);
        let peepholes = next(self.peepholes);
        Operands { weights, bias, lengths, state, cell_state, peepholes, count }
    }

    /// The extents, if all operands have those that they must have.
    fn sizes(&self, dims: &[&[usize]]) -> Result<Sizes, GraphError> {
        let at = self.operands();
        let mismatch = |rule| {
            let named: Vec<(&str, &[usize])> = dims.iter().map(|d| ("operand", *d)).collect();
            Err(GraphError::mismatch(OP, rule, &named))
        };
        if dims.len() != at.count {
            let (expected, found) = ("those flagged", dims.len());
            return Err(GraphError::OperandCount { op: OP, expected, found });
        }
        let directions = self.reverse.len();
        let &[time, batch, _] = dims[0] else {
            return mismatch("what the inputs add must have 3 dimensions");
        };
        let (hidden, gates) = (self.hidden, self.cell.gates());
        let Some(width) = hidden.checked_mul(gates) else {
            return mismatch("the hidden size is too large");
        };
        if dims[..directions].iter().any(|d| **d != [time, batch, width]) {
            return mismatch("what the inputs add must be [time, batch, gates * hidden]");
        }
        if dims[at.weights] != [directions, width, hidden] {
            return mismatch("weights must be [directions, gates * hidden, hidden]");
        }
        let fits = |i: Option<usize>, expected: &[usize]| i.is_none_or(|i| dims[i] == expected);
        let state = [directions, batch, hidden];
        if !fits(at.bias, &[directions, hidden])
            || !fits(at.lengths, &[batch])
            || !fits(at.state, &state)
            || !fits(at.cell_state, &state)
            || !fits(at.peepholes, &[directions, hidden.saturating_mul(3)])
        {
            return mismatch("optional operands must have the shapes of the layer");
        }
        Ok(Sizes { time, batch, directions, gates, hidden })
    }

    fn check(&self) -> Result<(), GraphError> {
        let invalid = |attribute, reason: String| {
            Err(GraphError::InvalidAttribute { op: OP, attribute, reason })
        };
        let directions = self.reverse.len();
        if directions == 0 || self.functions.len() != directions {
            return invalid("functions", format!("{} for {directions}", self.functions.len()));
        }
        if self.functions.iter().any(|f| f.len() != self.cell.functions()) {
            return invalid("functions", format!("each direction has {}", self.cell.functions()));
        }
        let lstm = matches!(self.cell, Cell::Lstm { .. });
        let reset_after = self.cell == Cell::Gru { reset_after: true };
        if (!lstm && (self.cell_state || self.peepholes)) || (!reset_after && self.bias) {
            return invalid("operands", format!("not for {:?}", self.cell));
        }
        Ok(())
    }

    /// The value of a gate from the sum that enters it.
    fn gate(&self, direction: usize, function: usize, x: f64) -> f64 {
        let clipped = match self.clip.map(f64::from) {
            Some(c) if x > c => c,
            Some(c) if x < -c => -c,
            _ => x,
        };
        self.unclipped(direction, function, clipped)
    }

    fn unclipped(&self, direction: usize, function: usize, x: f64) -> f64 {
        let f = self.functions[direction][function];
        f64::from(f.after) * apply(f.op, f64::from(f.before) * x)
    }

    /// One step of time of one sequence: the new states from those before. `add` is what the inputs
    /// add, `weights` those of the direction, `[gates * hidden, hidden]`.
    fn step(&self, d: usize, add: &[f64], weights: &[f64], more: &More<'_>, s: &mut State) {
        let n = self.hidden;
        let product = |row: usize, h: &[f64]| -> f64 {
            weights[row * n..][..n].iter().zip(h).map(|(w, h)| w * h).sum()
        };
        let peephole =
            |gate: usize, j: usize, c: f64| more.peepholes.map_or(0.0, |p| p[gate * n + j] * c);
        let h = s.h.clone();
        let sum = |gate: usize, j: usize| add[gate * n + j] + product(gate * n + j, &h);
        match self.cell {
            Cell::Rnn => {
                for j in 0..n {
                    s.h[j] = self.gate(d, 0, sum(0, j));
                }
            }
            Cell::Gru { reset_after } => {
                let update: Vec<f64> = (0..n).map(|j| self.gate(d, 0, sum(0, j))).collect();
                let reset: Vec<f64> = (0..n).map(|j| self.gate(d, 0, sum(1, j))).collect();
                let damped: Vec<f64> = reset.iter().zip(&h).map(|(r, h)| r * h).collect();
                for j in 0..n {
                    let inner = if reset_after {
                        reset[j] * (product(2 * n + j, &h) + more.bias.map_or(0.0, |b| b[j]))
                    } else {
                        product(2 * n + j, &damped)
                    };
                    let new = self.gate(d, 1, add[2 * n + j] + inner);
                    s.h[j] = (1.0 - update[j]) * new + update[j] * h[j];
                }
            }
            Cell::Lstm { coupled } => {
                for j in 0..n {
                    let c = s.c[j];
                    let input = self.gate(d, 0, sum(0, j) + peephole(0, j, c));
                    let forget = if coupled {
                        1.0 - input
                    } else {
                        self.gate(d, 0, sum(2, j) + peephole(2, j, c))
                    };
                    s.c[j] = forget * c + input * self.gate(d, 1, sum(3, j));
                    let output = self.gate(d, 0, sum(1, j) + peephole(1, j, s.c[j]));
                    s.h[j] = output * self.unclipped(d, 2, s.c[j]);
                }
            }
        }
    }
}

/// Optional operands of one direction.
struct More<'a> {
    bias: Option<&'a [f64]>,
    peepholes: Option<&'a [f64]>,
}

/// The states of one sequence.
struct State {
    h: Vec<f64>,
    c: Vec<f64>,
}

/// The elements in double precision.
fn doubles(x: &View<'_>) -> Result<Vec<f64>, GraphError> {
    match x.dtype {
        DType::F64 => Ok(x.slice::<f64>(OP)?.to_vec()),
        _ => Ok(x.slice::<f32>(OP)?.iter().map(|&v| f64::from(v)).collect()),
    }
}

/// Steps of each sequence, none longer than `time`.
fn lengths(given: Option<&[i32]>, batch: usize, time: usize) -> Result<Vec<usize>, GraphError> {
    (0..batch).map(|b| given.map_or(Ok(time), |l| length(l[b], time))).collect()
}

fn length(given: i32, time: usize) -> Result<usize, GraphError> {
    let index = i64::from(given);
    usize::try_from(given).ok().filter(|&l| l <= time).ok_or(GraphError::IndexOutOfRange {
        op: "lengths of sequences",
        index,
        extent: time,
    })
}

impl Operator for Recurrent {
    fn name(&self) -> &'static str {
        match self.cell {
            Cell::Rnn => "rnn",
            Cell::Gru { .. } => "gru",
            Cell::Lstm { .. } => "lstm",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        self.check()?;
        expect_operands(OP, src, 2..=usize::MAX, "2 or more")?;
        let dims: Vec<&[usize]> = src.iter().map(|s| &s.dims[..]).collect();
        let s = self.sizes(&dims)?;
        let lengths = self.operands().lengths;
        let dtype = src[0].dtype;
        for (i, operand) in src.iter().enumerate() {
            let expected = if Some(i) == lengths { DType::I32 } else { dtype };
            if operand.dtype != expected || !matches!(dtype, DType::F32 | DType::F64) {
                return Err(GraphError::UnsupportedDType { op: OP, dtype: operand.dtype });
            }
        }
        let rows = s.time + self.cell.states();
        Ok(Info::plain(dtype, vec![rows, s.directions, s.batch, s.hidden]))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let dims: Vec<&[usize]> = src.iter().map(|s| s.dims).collect();
        let size = self.sizes(&dims)?;
        let Sizes { time, batch, directions, gates, hidden } = size;
        let at = self.operands();
        let given = at.lengths.map(|i| src[i].slice::<i32>(OP)).transpose()?;
        let lengths = lengths(given, batch, time)?;
        let weights = doubles(&src[at.weights])?;
        let optional = |i: Option<usize>| i.map(|i| doubles(&src[i])).transpose();
        let (bias, peepholes) = (optional(at.bias)?, optional(at.peepholes)?);
        let (first, first_cell) = (optional(at.state)?, optional(at.cell_state)?);
        let mut out = vec![0.0; dst.dims.iter().product()];
        let row = |t: usize, d: usize, b: usize| ((t * directions + d) * batch + b) * hidden;
        for d in 0..directions {
            let add = doubles(&src[d])?;
            let weights = &weights[d * gates * hidden * hidden..][..gates * hidden * hidden];
            let more = More {
                bias: bias.as_ref().map(|v| &v[d * hidden..][..hidden]),
                peepholes: peepholes.as_ref().map(|v| &v[d * 3 * hidden..][..3 * hidden]),
            };
            for (b, &length) in lengths.iter().enumerate() {
                let initial = |v: &Option<Vec<f64>>| match v {
                    Some(v) => v[row(0, d, b)..][..hidden].to_vec(),
                    None => vec![0.0; hidden],
                };
                let mut state = State { h: initial(&first), c: initial(&first_cell) };
                for i in 0..length {
                    let t = if self.reverse[d] { length - 1 - i } else { i };
                    let add = &add[(t * batch + b) * gates * hidden..][..gates * hidden];
                    self.step(d, add, weights, &more, &mut state);
                    out[row(t, d, b)..][..hidden].copy_from_slice(&state.h);
                }
                out[row(time, d, b)..][..hidden].copy_from_slice(&state.h);
                if self.cell.states() == 2 {
                    out[row(time + 1, d, b)..][..hidden].copy_from_slice(&state.c);
                }
            }
        }
        if dst.dtype == DType::F64 {
            dst.slice::<f64>(OP)?.copy_from_slice(&out);
        } else {
            for (y, v) in dst.slice::<f32>(OP)?.iter_mut().zip(out) {
                *y = v as f32;
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        lower::lower(self, cx)
    }

    fn macs(&self, src: &[Info], _dst: &Info) -> u64 {
        let dims: Vec<&[usize]> = src.iter().map(|s| &s.dims[..]).collect();
        self.sizes(&dims).map_or(0, |s| {
            [s.time, s.batch, s.directions, s.gates, s.hidden, s.hidden]
                .iter()
                .fold(1u64, |n, &x| n.saturating_mul(x as u64))
        })
    }
}

#[cfg(test)]
mod tests;
