//! Fusion of what follows a convolution or a matrix product into its epilogue.

use std::sync::Arc;

use tilewright_kernels::Activation;
use tilewright_kernels::template::binary::BinaryOp;

use super::super::ops::binary::Binary;
use super::super::ops::conv::Conv;
use super::super::ops::matmul::MatMul;
use super::super::ops::scaled_matmul::ScaledMatMul;
use super::super::ops::unary;
use super::super::{Context, GraphError, Op, TensorId};
use super::use_counts;
use crate::tensor::DType;

/// Folds constants added to or multiplied with a convolution or matrix product into weights and
/// bias, zero padding into a convolution's, and lets the epilogue add a residual and apply an
/// activation.
///
/// Folding changes results by rounding only; the rest keeps every bit.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn fuse(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    let order = cx.build_forward(outputs)?;
    let mut uses = use_counts(cx, &order, outputs);
    for id in order {
        if cx.record(id).value().is_some() {
            continue;
        }
        let fused = match &*cx.record(id).shared_op() {
            Op::Binary(op) => fuse_binary(cx, id, op, &uses)?,
            Op::Unary(op) => match op.op.activation() {
                Some(activation) => fuse_activation(cx, id, activation, &uses)?,
                None => None,
            },
            Op::Conv(conv) => fuse_pad(cx, id, conv, &uses)?,
            _ => None,
        };
        if let Some((op, src)) = fused {
            // New constants have no entry yet, and need none: they are never fused into.
            uses.resize(cx.len(), 1);
            for &s in &src {
                uses[s.index()] += 1;
            }
            for s in cx.record(id).src().to_vec() {
                uses[s.index()] -= 1;
            }
            cx.rewrite(id, op, src)?;
        }
    }
    Ok(())
}

type Fused = Option<(Op, Vec<TensorId>)>;

/// The producer of `id` if nobody else uses it.
fn sole(cx: &Context, id: TensorId, uses: &[usize]) -> Option<Arc<Op>> {
    let alone = uses[id.index()] == 1 && cx.record(id).value().is_none();
    alone.then(|| cx.record(id).shared_op())
}

/// The tensor whose elements `id` has in another order or shape, each once, if nobody else reads what lies between.
fn moved(cx: &Context, mut id: TensorId, uses: &[usize]) -> TensorId {
    loop {
        let record = cx.record(id);
        let &[from] = record.src() else { return id };
        let moves = matches!(record.op(), Op::View("transpose" | "reshape") | Op::Cont(_));
        if !moves || uses[id.index()] != 1 || record.value().is_some() {
            return id;
        }
        id = from;
    }
}

fn fuse_activation(
    cx: &mut Context,
    id: TensorId,
    activation: Activation,
    uses: &[usize],
) -> Result<Fused, GraphError> {
    let x = cx.record(id).src()[0];
    let from = moved(cx, x, uses);
    let fused = activated(cx, from, activation, uses);
    if from == x {
        return Ok(fused);
    }
    // What is activated before it is moved need not be again.
    if let Some((op, src)) = fused {
        cx.rewrite(from, op, src)?;
        cx.rewrite_as_view(id, "reshape", x);
    }
    Ok(None)
}

/// The producer of `x` with an activation behind it.
fn activated(cx: &Context, x: TensorId, activation: Activation, uses: &[usize]) -> Fused {
    let src = cx.record(x).src().to_vec();
    let f32_only = cx.dtype(x) == DType::F32;
    match sole(cx, x, uses).as_deref() {
        Some(Op::Conv(op)) if op.activation == Activation::None => {
            Some((Conv { activation, ..op.clone() }.into(), src))
        }
        Some(Op::MatMul(op)) if op.activation == Activation::None && f32_only => {
            Some((MatMul { activation, ..op.clone() }.into(), src))
        }
        Some(Op::ScaledMatMul(op)) if op.activation == Activation::None && f32_only => {
            Some((ScaledMatMul { activation, ..op.clone() }.into(), src))
        }
        Some(Op::Binary(op)) if op.activation == Activation::None && f32_only => {
            Some((Binary { activation, ..*op }.into(), src))
        }
        _ => None,
    }
}

fn fuse_binary(
    cx: &mut Context,
    id: TensorId,
    op: &Binary,
    uses: &[usize],
) -> Result<Fused, GraphError> {
    let src = cx.record(id).src().to_vec();
    for (x, other) in [(src[0], src[1]), (src[1], src[0])] {
        // `c - x` and `c / x` are not affine in x.
        if x == src[1] && !matches!(op.op, BinaryOp::Add | BinaryOp::Mul) {
            continue;
        }
        if cx.dims(x) != cx.dims(id) {
            continue;
        }
        let fused = match sole(cx, x, uses).as_deref() {
            Some(Op::Conv(conv)) => fuse_into_conv(cx, x, conv, other, op)?,
            Some(Op::MatMul(product)) => fuse_into_matmul(cx, x, product, other, op)?,
            Some(Op::ScaledMatMul(product)) => fuse_into_scaled(cx, x, product, other, op)?,
            _ => None,
        };
        if fused.is_some() {
            return Ok(fused);
        }
    }
    Ok(None)
}

fn fuse_into_conv(
    cx: &mut Context,
    x: TensorId,
    conv: &Conv,
    other: TensorId,
    op: &Binary,
) -> Result<Fused, GraphError> {
    if conv.activation != Activation::None || conv.residual {
        return Ok(None);
    }
    let mut src = cx.record(x).src().to_vec();
    let dims = cx.dims(x);
    let k = dims[1];
    if let Some(channels) = channel_constant(cx, other, &dims)? {
        if cx.constant_value(src[1]).is_none() || (conv.bias && cx.constant_value(src[2]).is_none())
        {
            return Ok(None);
        }
        match op.op {
            BinaryOp::Add | BinaryOp::Sub => {
                let bias = match src.get(2) {
                    Some(&bias) => cx.op(Binary::new(op.op), &[bias, channels])?,
                    None if op.op == BinaryOp::Add => channels,
                    None => cx.op(unary::Unary::new(unary::UnaryOp::Neg), &[channels])?,
                };
                src.truncate(2);
                src.push(bias);
            }
            BinaryOp::Mul => {
                // Weights are [k, c / g, window] or, transposed, [c, k / g, window].
                let mut wdims = vec![1; cx.dims(src[1]).len()];
                if conv.transposed.is_some() {
                    if conv.groups != 1 {
                        return Ok(None);
                    }
                    wdims[1] = k;
                } else {
                    wdims[0] = k;
                }
                let scale = cx.reshape(channels, &wdims)?;
                src[1] = cx.op(Binary::new(BinaryOp::Mul), &[src[1], scale])?;
                if conv.bias {
                    src[2] = cx.op(Binary::new(BinaryOp::Mul), &[src[2], channels])?;
                }
            }
            _ => return Ok(None),
        }
        let bias = src.len() > 2;
        return Ok(Some((Conv { bias, activation: op.activation, ..conv.clone() }.into(), src)));
    }
    if op.op == BinaryOp::Add && cx.constant_value(other).is_none() && cx.dims(other) == dims {
        src.push(other);
        return Ok(Some((
            Conv { residual: true, activation: op.activation, ..conv.clone() }.into(),
            src,
        )));
    }
    Ok(None)
}

fn fuse_into_matmul(
    cx: &mut Context,
    x: TensorId,
    product: &MatMul,
    other: TensorId,
    op: &Binary,
) -> Result<Fused, GraphError> {
    if product.activation != Activation::None || op.op != BinaryOp::Add || product.residual {
        return Ok(None);
    }
    let dims = cx.dims(x);
    let mut src = cx.record(x).src().to_vec();
    if cx.constant_value(other).is_none() {
        let added = cx.dims(other) == dims && cx.dtype(other) == DType::F32;
        let fused = MatMul { residual: true, activation: op.activation, ..product.clone() };
        src.push(other);
        return Ok(added.then(|| (fused.into(), src)));
    }
    if !is_row(cx, other, &dims) || product.bias {
        return Ok(None);
    }
    let n = cx.dims(other).iter().product();
    src.push(cx.reshape(other, &[n])?);
    Ok(Some((MatMul { bias: true, activation: op.activation, ..product.clone() }.into(), src)))
}

/// A constant row that is added to numbers that a product of bytes has made of its sums.
fn fuse_into_scaled(
    cx: &mut Context,
    x: TensorId,
    product: &ScaledMatMul,
    other: TensorId,
    op: &Binary,
) -> Result<Fused, GraphError> {
    let taken = product.bias || product.activation != Activation::None;
    let dims = cx.dims(x);
    if taken || op.op != BinaryOp::Add || cx.dtype(x) != DType::F32 || !is_row(cx, other, &dims) {
        return Ok(None);
    }
    let mut src = cx.record(x).src().to_vec();
    let n = cx.dims(other).iter().product();
    src.push(cx.reshape(other, &[n])?);
    Ok(Some((
        ScaledMatMul { bias: true, activation: op.activation, ..product.clone() }.into(),
        src,
    )))
}

/// Whether a constant has one element per column of a product of extents `dims`.
fn is_row(cx: &Context, id: TensorId, dims: &[usize]) -> bool {
    let (row, n) = (cx.dims(id), *dims.last().expect("a product has two dimensions or more"));
    let one = row.iter().rev().enumerate().all(|(i, &d)| d == if i == 0 { n } else { 1 });
    cx.constant_value(id).is_some() && one && !row.is_empty() && row.len() <= dims.len()
}

/// Zero padding of the spatial dimensions becomes the convolution's own.
fn fuse_pad(cx: &Context, id: TensorId, conv: &Conv, uses: &[usize]) -> Result<Fused, GraphError> {
    let mut src = cx.record(id).src().to_vec();
    let producer = sole(cx, src[0], uses);
    let Some(Op::Pad(pad)) = producer.as_deref() else { return Ok(None) };
    let rank = cx.dims(src[0]).len();
    let spatial_only = pad.before[..2] == [0, 0] && pad.after[..2] == [0, 0];
    let &[x, value] = cx.record(src[0]).src() else { return Ok(None) };
    let zero = cx.constant_value(value).is_some_and(|v| v.bytes().iter().all(|&b| b == 0));
    if !zero || !spatial_only || conv.transposed.is_some() {
        return Ok(None);
    }
    let amounts = |v: &[usize]| if rank == 3 { [0, v[2]] } else { [v[2], v[3]] };
    let (begin, end) = (amounts(&pad.before), amounts(&pad.after));
    let mut pads = conv.pads;
    for (pad, more) in pads.iter_mut().zip(begin.into_iter().chain(end)) {
        let Some(sum) = pad.checked_add(more) else { return Ok(None) };
        *pad = sum;
    }
    src[0] = x;
    Ok(Some((Conv { pads, ..conv.clone() }.into(), src)))
}

/// A constant that repeats over everything but the channel axis of `dims`, as one element per
/// channel.
fn channel_constant(
    cx: &mut Context,
    id: TensorId,
    dims: &[usize],
) -> Result<Option<TensorId>, GraphError> {
    let own = cx.dims(id);
    let Some(missing) = dims.len().checked_sub(own.len()) else { return Ok(None) };
    let fits = own.iter().enumerate().all(|(i, &d)| d == 1 || (i + missing == 1 && d == dims[1]));
    if cx.constant_value(id).is_none() || !fits {
        return Ok(None);
    }
    let count = own.iter().product();
    let flat = cx.reshape(id, &[count])?;
    if count == dims[1] {
        return Ok(Some(flat));
    }
    let wide = cx.expand(flat, &[dims[1]])?;
    Ok(Some(cx.cont(wide)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    /// Of other types than f32 a product has no activation of its own.
    #[test]
    fn products_of_doubles_keep_their_activations_apart() {
        for (dtype, fused) in [(DType::F32, true), (DType::F64, false), (DType::I32, false)] {
            let mut cx = Context::new();
            let x = cx.input("x", dtype, &[1, 2]).unwrap();
            let w = cx.constant(Tensor::zeros(dtype, &[2, 2]).unwrap()).unwrap();
            let y = cx.op(MatMul::default(), &[x, w]).unwrap();
            let y = cx.relu(y).unwrap();
            fuse(&mut cx, &[y]).unwrap();
            assert_eq!(matches!(&*cx.record(y).shared_op(), Op::MatMul(_)), fused, "{dtype}");
        }
    }
}
