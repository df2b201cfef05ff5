//! Recurrent layers.

use super::{NodeCx, OpRow, Outputs, cast, contrib};
use crate::graph::TensorId;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::recurrent::{Cell, Function, Recurrent};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::tensor::DType;
use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

const DIRECTIONS: &[&str] = &["forward", "reverse", "bidirectional"];
const ALPHA: Attr = Attr::floats("activation_alpha");
const BETA: Attr = Attr::floats("activation_beta");
const ACTIVATIONS: Attr = Attr::strings("activations");
const CLIP: Attr = Attr::float("clip");
const DIRECTION: Attr = Attr::string("direction").one_of(DIRECTIONS);
const HIDDEN: Attr = Attr::int("hidden_size");
const LAYOUT: Attr = Attr::int("layout").since(14).only(&[0, 1]);

/// Whether all steps are a result, which the outputs tell as well.
const SEQUENCE: Attr = Attr::int("output_sequence").until(6);

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new(
        "GRU",
        (3, 6),
        &[
            ALPHA,
            BETA,
            ACTIVATIONS,
            CLIP,
            DIRECTION,
            HIDDEN,
            LAYOUT,
            Attr::int("linear_before_reset"),
            SEQUENCE,
        ],
        |cx| {
            let reset_after = cx.flag("linear_before_reset", false);
            given(cx, Cell::Gru { reset_after }, &["Sigmoid", "Tanh"])
        },
    )
    .outputs(2, 2),
    OpRow::new(
        "LSTM",
        (3, 8),
        &[
            ALPHA,
            BETA,
            ACTIVATIONS,
            CLIP,
            DIRECTION,
            HIDDEN,
            Attr::int("input_forget"),
            LAYOUT,
            SEQUENCE,
        ],
        |cx| {
            let coupled = cx.flag("input_forget", false);
            given(cx, Cell::Lstm { coupled }, &["Sigmoid", "Tanh", "Tanh"])
        },
    )
    .outputs(3, 3),
    OpRow::new(
        "RNN",
        (3, 6),
        &[ALPHA, BETA, ACTIVATIONS, CLIP, DIRECTION, HIDDEN, LAYOUT, SEQUENCE],
        |cx| given(cx, Cell::Rnn, &["Tanh"]),
    )
    .outputs(2, 2),
    contrib::row(
        "DynamicQuantizeLSTM",
        (12, 12),
        &[ALPHA, BETA, ACTIVATIONS, CLIP, DIRECTION, HIDDEN, Attr::int("input_forget")],
        dynamic_lstm,
    )
    .outputs(3, 3),
];

/// A layer of the weights that the node has.
fn given(cx: &mut NodeCx<'_>, cell: Cell, defaults: &[&str]) -> Outputs {
    let weights = [cx.input(1)?, cx.input(2)?];
    layer(cx, cell, defaults, weights)
}

/// An LSTM whose weights are bytes, `[directions, inputs, gates]`, each matrix or each of its columns with a
/// scale and a zero point. It is computed in f32: ONNX Runtime also rounds what is multiplied with them to bytes,
/// by ranges of the data, which is less exact.
fn dynamic_lstm(cx: &mut NodeCx<'_>) -> Outputs {
    let mut weights = Vec::new();
    for (i, scale) in [(1, 8), (2, 10)] {
        let w = cx.input(i)?;
        let mut parts = vec![cast::to(cx, w, DType::F32)?];
        for part in [cx.input(scale)?, cx.input(scale + 1)?] {
            let dims = match cx.dims(part)[..] {
                [directions] => vec![directions, 1, 1],
                [directions, columns] => vec![directions, 1, columns],
                _ => {
                    let rule = format!("a scale or zero point of {:?}", cx.dims(part));
                    return Err(NodeError::invalid(rule));
                }
            };
            let part = cast::to(cx, part, DType::F32)?;
            parts.push(cx.reshape(part, &dims)?);
        }
        let &[w, scale, zero] = &parts[..] else { return Err(NodeError::NoInput(i)) };
        if cx.rank(w) != 3 {
            return Err(NodeError::invalid(format!("weights {:?}", cx.dims(w))));
        }
        let w = cx.binary(BinaryOp::Sub, w, zero)?;
        let w = cx.binary(BinaryOp::Mul, w, scale)?;
        weights.push(cx.transpose(w, &[0, 2, 1])?);
    }
    let &[w, r] = &weights[..] else { return Err(NodeError::NoInput(1)) };
    let coupled = cx.flag("input_forget", false);
    layer(cx, Cell::Lstm { coupled }, &["Sigmoid", "Tanh", "Tanh"], [w, r])
}

/// The product of all inputs with their weights, then the recurrence.
fn layer(cx: &mut NodeCx<'_>, cell: Cell, defaults: &[&str], weights: [TensorId; 2]) -> Outputs {
    let batch_first = cx.int("layout", 0) == 1;
    let (mut x, [w, r]) = (cx.input(0)?, weights);
    let reverse = match cx.string("direction", "forward").as_str() {
        "forward" => vec![false],
        "reverse" => vec![true],
        _ => vec![false, true],
    };
    let directions = reverse.len();
    for (name, id) in [("X", x), ("W", w), ("R", r)] {
        let dims = cx.dims(id);
        if dims.len() != 3 || (name != "X" && dims.first() != Some(&directions)) {
            let rule = format!("{name} {dims:?} for {directions} directions");
            return Err(NodeError::invalid(rule));
        }
    }
    let hidden = cx.dims(r).last().copied().unwrap_or(0);
    let declared = cx.int("hidden_size", i64::try_from(hidden).unwrap_or(0));
    if usize::try_from(declared) != Ok(hidden) {
        let what = format!("hidden_size {declared} with recurrent weights for {hidden}");
        return Err(NodeError::invalid(what));
    }
    if batch_first {
        x = cx.transpose(x, &[1, 0, 2])?;
    }
    let functions = functions(cx, directions, cell.functions(), defaults)?;
    let reset_after = cell == Cell::Gru { reset_after: true };
    let bias = cx.opt(3);
    let mut operands = Vec::new();
    for d in 0..directions {
        operands.push(gates(cx, cell, (x, w, bias), d, hidden)?);
    }
    operands.push(r);
    if let Some(b) = bias.filter(|_| reset_after) {
        // The part of the recurrent bias that the reset gate works on.
        operands.push(cx.slice(b, 1, hidden.saturating_mul(5), hidden, 1)?);
    }
    let lengths = cx.opt(4);
    operands.extend(lengths);
    let mut state = |cx: &mut NodeCx<'_>, i: usize| -> Result<bool, NodeError> {
        let Some(mut id) = cx.opt(i) else { return Ok(false) };
        if batch_first && cx.rank(id) == 3 {
            id = cx.transpose(id, &[1, 0, 2])?;
        }
        operands.push(id);
        Ok(true)
    };
    let lstm = matches!(cell, Cell::Lstm { .. });
    let (has_state, has_cell) = (state(cx, 5)?, lstm && state(cx, 6)?);
    let peepholes = cx.opt(7).filter(|_| lstm);
    operands.extend(peepholes);
    let clip = cx.has("clip").then(|| cx.float("clip", 0.0));
    let op = Recurrent {
        cell,
        hidden,
        reverse,
        functions,
        clip,
        bias: reset_after && bias.is_some(),
        lengths: lengths.is_some(),
        state: has_state,
        cell_state: has_cell,
        peepholes: peepholes.is_some(),
    };
    let y = cx.op(op, &operands)?;
    results(cx, y, cell, batch_first)
}

/// What the inputs add to the gates of a direction: `x * w + bias`, `[time, batch, gates * hidden]`.
fn gates(
    cx: &mut NodeCx<'_>,
    cell: Cell,
    (x, w, bias): (TensorId, TensorId, Option<TensorId>),
    d: usize,
    hidden: usize,
) -> Result<TensorId, NodeError> {
    let (xd, wd) = (cx.dims(x), cx.dims(w));
    let (&[time, batch, inputs], &[_, width, columns]) = (&xd[..], &wd[..]) else {
        return Err(NodeError::invalid(format!("X {xd:?} with W {wd:?}")));
    };
    let expected = hidden.checked_mul(cell.gates());
    if inputs != columns || expected != Some(width) {
        let what = format!("X {xd:?} with W {wd:?} for {} gates of {hidden}", cell.gates());
        return Err(NodeError::invalid(what));
    }
    let rows = time.checked_mul(batch);
    let rows = rows.ok_or_else(|| NodeError::invalid(format!("X {xd:?} is too large")))?;
    let x = cx.reshape(x, &[rows, inputs])?;
    let w = cx.slice(w, 0, d, 1, 1)?;
    let w = cx.reshape(w, &[width, inputs])?;
    let mut src = vec![x, w];
    let mut sum = None;
    if let Some(b) = bias {
        let dims = cx.dims(b);
        let fits = matches!(dims[..], [n, both] if d < n && width.checked_mul(2) == Some(both));
        if !fits {
            return Err(NodeError::invalid(format!("B {dims:?} for {width} sums")));
        }
        let b = cx.slice(b, 0, d, 1, 1)?;
        let b = cx.reshape(b, &[2 * width])?;
        // With `linear_before_reset` the last recurrent bias goes elsewhere.
        let both = if cell == (Cell::Gru { reset_after: true }) { 2 * hidden } else { width };
        let inner = cx.slice(b, 0, 0, both, 1)?;
        let recurrent = cx.slice(b, 0, width, both, 1)?;
        let mut total = cx.binary(BinaryOp::Add, inner, recurrent)?;
        if both < width {
            let last = cx.slice(b, 0, both, width - both, 1)?;
            total = cx.op(Concat { axis: 0 }, &[total, last])?;
        }
        sum = Some(total);
    }
    let known = sum.filter(|&s| cx.value(s).is_some());
    src.extend(known);
    let op = MatMul { transposed_b: true, bias: known.is_some(), ..MatMul::default() };
    let mut y = cx.op(op, &src)?;
    if let Some(s) = sum.filter(|_| known.is_none()) {
        y = cx.binary(BinaryOp::Add, y, s)?;
    }
    cx.reshape(y, &[time, batch, width])
}

/// The outputs of a node, from states of all steps of time and the last ones.
fn results(cx: &mut NodeCx<'_>, y: TensorId, cell: Cell, batch_first: bool) -> Outputs {
    let dims = cx.dims(y);
    let &[rows, directions, batch, hidden] = &dims[..] else {
        return Err(NodeError::invalid(format!("a result of shape {dims:?}")));
    };
    let time = rows.saturating_sub(cell.states());
    let all = cx.slice(y, 0, 0, time, 1)?;
    let mut out = vec![if batch_first { cx.transpose(all, &[2, 0, 1, 3])? } else { all }];
    for i in time..rows {
        let state = cx.slice(y, 0, i, 1, 1)?;
        let state = cx.reshape(state, &[directions, batch, hidden])?;
        out.push(if batch_first { cx.transpose(state, &[1, 0, 2])? } else { state });
    }
    Ok(out)
}

/// The functions of each direction. Parameters go to the functions that have them, in order.
fn functions(
    cx: &NodeCx<'_>,
    directions: usize,
    each: usize,
    defaults: &[&str],
) -> Result<Vec<Vec<Function>>, NodeError> {
    let given = cx.strings("activations");
    let names: Vec<String> = match given {
        Some(names) => names,
        None => (0..directions).flat_map(|_| defaults).map(|n| (*n).to_owned()).collect(),
    };
    if names.len() != directions * each {
        let what = format!("{} activations for {directions} times {each}", names.len());
        return Err(NodeError::invalid(what));
    }
    let [alphas, betas] =
        ["activation_alpha", "activation_beta"].map(|n| cx.floats(n).unwrap_or_default());
    let (mut alphas, mut betas) = (alphas.into_iter(), betas.into_iter());
    let all = names.iter().map(|name| function(name, &mut alphas, &mut betas));
    let all: Vec<Function> = all.collect::<Result<_, _>>()?;
    Ok(all.chunks(each.max(1)).map(<[Function]>::to_vec).collect())
}

fn function(
    name: &str,
    alphas: &mut impl Iterator<Item = f32>,
    betas: &mut impl Iterator<Item = f32>,
) -> Result<Function, NodeError> {
    let mut alpha = |default: f32| alphas.next().unwrap_or(default);
    let mut beta = |default: f32| betas.next().unwrap_or(default);
    Ok(match name.to_ascii_lowercase().as_str() {
        "relu" => UnaryOp::Relu.into(),
        "tanh" => UnaryOp::Tanh.into(),
        "sigmoid" => UnaryOp::Sigmoid.into(),
        "softsign" => UnaryOp::Softsign.into(),
        "softplus" => UnaryOp::Softplus.into(),
        "affine" => UnaryOp::Affine { scale: alpha(1.0), shift: beta(0.0) }.into(),
        "leakyrelu" => UnaryOp::LeakyRelu { alpha: alpha(0.01) }.into(),
        "thresholdedrelu" => UnaryOp::ThresholdedRelu { alpha: alpha(1.0) }.into(),
        "elu" => UnaryOp::Elu { alpha: alpha(1.0) }.into(),
        "hardsigmoid" => UnaryOp::HardSigmoid { alpha: alpha(0.2), beta: beta(0.5) }.into(),
        "scaledtanh" => Function { op: UnaryOp::Tanh, before: beta(1.0), after: alpha(1.0) },
        _ => {
            let name = crate::import::error::short(name);
            return Err(NodeError::unsupported(format!("activation {name}")));
        }
    })
}
