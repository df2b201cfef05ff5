//! Operators of the domain `com.microsoft` that exporters and optimisers of models write.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::template::unary::UnaryOp;

use super::{
    MANY, NodeCx, OpRow, Outputs, cast, constant, contrib_quantized, conv, matmul, normalize, pool,
    quantize,
};
use crate::graph::TensorId;
use crate::graph::ops::concat::Concat;
use crate::graph::ops::dequantize::Dequantize;
use crate::graph::ops::norm::{Norm, NormOp};
use crate::graph::ops::pool::PoolKind;
use crate::graph::ops::quantize::Quantize;
use crate::graph::ops::unpack_bits::{Code, UnpackBits};
use crate::import::NodeError;
use crate::import::error::short;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

const AXIS: &[Attr] = &[Attr::int("axis")];

/// A row of the domain.
pub(super) const fn row(
    name: &'static str,
    inputs: (u8, u8),
    attrs: &'static [Attr],
    build: fn(&mut NodeCx<'_>) -> Outputs,
) -> OpRow {
    OpRow::new(name, inputs, attrs, build).domain("com.microsoft").since(1)
}

pub(super) const ROWS: &[OpRow] = &[
    row("BiasGelu", (2, 2), &[], |cx| biased(cx, UnaryOp::Gelu)),
    row("DequantizeLinear", (2, 3), AXIS, constant::dequantize_linear),
    row("DynamicQuantizeMatMul", (3, 5), &[], dynamic_quantize_matmul),
    row("FastGelu", (1, 2), &[], |cx| biased(cx, UnaryOp::GeluTanh)),
    row(
        "FusedConv",
        (2, 4),
        &[
            Attr::string("activation"),
            Attr::floats("activation_params"),
            conv::AUTO_PAD,
            Attr::ints("dilations"),
            Attr::int("group"),
            Attr::ints("kernel_shape"),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        fused_conv,
    ),
    row(
        "FusedGemm",
        (2, 3),
        &[
            Attr::string("activation"),
            Attr::float("activation_alpha"),
            Attr::float("activation_beta"),
            Attr::float("activation_gamma"),
            Attr::float("alpha"),
            Attr::float("beta"),
            Attr::int("transA"),
            Attr::int("transB"),
        ],
        fused_gemm,
    ),
    row(
        "FusedMatMul",
        (2, 2),
        &[
            Attr::float("alpha"),
            Attr::int("transA"),
            Attr::int("transB"),
            Attr::int("transBatchA"),
            Attr::int("transBatchB"),
        ],
        fused_matmul,
    ),
    row("Gelu", (1, 1), &[], |cx| biased(cx, UnaryOp::Gelu)),
    row("MatMulIntegerToFloat", (4, 7), &[], |cx| {
        let acc = quantize::product(cx, [0, 4], [1, 5])?;
        let (a, b) = (cx.input(2)?, cx.input(3)?);
        Ok(vec![scaled_to_float(cx, acc, [a, b], 6)?])
    }),
    row(
        "MatMulNBits",
        (3, 6),
        &[
            Attr::int("K").required(),
            Attr::int("N").required(),
            Attr::int("accuracy_level"),
            Attr::int("bits").only(&[2, 4, 8]),
            Attr::int("block_size").required(),
            // Other ways of packing are those of accelerators.
            Attr::int("weight_prepacked").only(&[0]),
        ],
        matmul_nbits,
    ),
    row(
        "QGemm",
        (6, 9),
        &[Attr::float("alpha"), Attr::int("transA"), Attr::int("transB")],
        quantize::qgemm,
    ),
    row("QLinearAdd", (7, 8), &[], qlinear_add),
    row(
        "QLinearAveragePool",
        (4, 5),
        &[
            conv::AUTO_PAD,
            Attr::int("ceil_mode"),
            Attr::int("channels_last").only(&[0, 1]),
            Attr::int("count_include_pad"),
            Attr::ints("kernel_shape").required(),
            Attr::ints("pads"),
            Attr::ints("strides"),
        ],
        |cx| {
            let x = read(cx, 0, 1, 2)?;
            let include_pad = cx.flag("count_include_pad", false);
            let (kind, last) = (PoolKind::Average { include_pad }, cx.flag("channels_last", false));
            let y = by_pixel(cx, x, last, |cx, x| pool::pool_of(cx, x, kind))?;
            write(cx, y, 3, 4)
        },
    ),
    row("QLinearConcat", (5, MANY), &[Attr::int("axis").required()], qlinear_concat),
    row("QLinearGlobalAveragePool", (4, 5), &[Attr::int("channels_last").only(&[0, 1])], |cx| {
        let (x, last) = (read(cx, 0, 1, 2)?, cx.flag("channels_last", false));
        let kind = PoolKind::Average { include_pad: false };
        let y = by_pixel(cx, x, last, |cx, x| pool::global_of(cx, x, kind))?;
        write(cx, y, 3, 4)
    }),
    row("QLinearLeakyRelu", (4, 5), &[Attr::float("alpha")], |cx| {
        let alpha = cx.float("alpha", 0.01);
        qlinear_unary(cx, UnaryOp::LeakyRelu { alpha })
    }),
    row("QLinearMul", (7, 8), &[], qlinear_mul),
    row("QLinearSigmoid", (4, 5), &[], |cx| qlinear_unary(cx, UnaryOp::Sigmoid)),
    row("QLinearSoftmax", (5, 5), &[Attr::int("axis"), Attr::int("opset").required()], |cx| {
        let x = read(cx, 0, 1, 2)?;
        let (axis, old) = (cx.int("axis", -1), cx.int("opset", 13) < 13);
        let y = normalize::softmax_of(cx, x, axis, old, false)?;
        write(cx, y, 3, 4)
    }),
    row("QuantizeLinear", (2, 3), AXIS, quantize::quantize_linear),
    row("SkipLayerNormalization", (3, 5), &[Attr::float("epsilon")], |cx| {
        skip_norm(cx, NormOp::Layer, 4)
    })
    .outputs(4, 4),
    row("SkipSimplifiedLayerNormalization", (3, 4), &[Attr::float("epsilon")], |cx| {
        skip_norm(cx, NormOp::Rms, 3)
    })
    .outputs(4, 4),
    row("QuickGelu", (1, 1), &[Attr::float("alpha")], |cx| {
        let (x, alpha) = (cx.input(0)?, cx.float("alpha", 1.702));
        let gate = cx.unary(UnaryOp::Affine { scale: alpha, shift: 0.0 }, x)?;
        let gate = cx.unary(UnaryOp::Sigmoid, gate)?;
        Ok(vec![cx.binary(BinaryOp::Mul, x, gate)?])
    }),
];

/// A sum of two tensors and a bias, normalised row by row; the sum is the fourth output.
fn skip_norm(cx: &mut NodeCx<'_>, op: NormOp, bias: usize) -> Outputs {
    let (x, skip) = (cx.input(0)?, cx.input(1)?);
    if cx.wants(1) || cx.wants(2) {
        return Err(NodeError::unsupported("mean and deviation as outputs"));
    }
    let mut sum = cx.binary(BinaryOp::Add, x, skip)?;
    if let Some(bias) = cx.opt(bias) {
        sum = cx.binary(BinaryOp::Add, sum, bias)?;
    }
    let dims = cx.dims(sum);
    if dims != cx.dims(x) {
        let (skip, x) = (cx.dims(skip), cx.dims(x));
        return Err(NodeError::invalid(format!("skip {skip:?} and bias for x {x:?}")));
    }
    let axis = build::axis(-1, dims.len())?;
    let mut src = vec![sum, cx.input(2)?];
    src.extend(cx.opt(3).filter(|_| op == NormOp::Layer));
    let y = cx.op(Norm { op, axis, epsilon: cx.float("epsilon", 1e-12), by_parts: false }, &src)?;
    // Nobody reads the second and the third.
    Ok(vec![y, y, y, sum])
}

/// A function of the first input, plus the second if there is one.
fn biased(cx: &mut NodeCx<'_>, op: UnaryOp) -> Outputs {
    let mut x = cx.input(0)?;
    if let Some(bias) = cx.opt(1) {
        x = cx.binary(BinaryOp::Add, x, bias)?;
    }
    Ok(vec![cx.unary(op, x)?])
}

/// The function that an attribute names, if it names one, with its parameters.
fn activated(
    cx: &mut NodeCx<'_>,
    y: TensorId,
    params: &[Option<f32>],
) -> Result<TensorId, NodeError> {
    let param = |i: usize, default: f32| params.get(i).copied().flatten().unwrap_or(default);
    let op = match cx.string("activation", "").as_str() {
        "" => return Ok(y),
        "Relu" => UnaryOp::Relu,
        "Tanh" => UnaryOp::Tanh,
        "Sigmoid" => UnaryOp::Sigmoid,
        "LeakyRelu" => UnaryOp::LeakyRelu { alpha: param(0, 0.01) },
        "Clip" => UnaryOp::Clip { min: param(0, f32::NEG_INFINITY), max: param(1, f32::INFINITY) },
        "HardSigmoid" => UnaryOp::HardSigmoid { alpha: param(0, 0.2), beta: param(1, 0.5) },
        other => return Err(NodeError::unsupported(format!("activation {}", short(other)))),
    };
    cx.unary(op, y)
}

/// Bias, then a tensor to add, then the activation.
fn fused_conv(cx: &mut NodeCx<'_>) -> Outputs {
    let mut out = conv::conv(cx)?;
    let y = out.pop().ok_or(NodeError::NoInput(0))?;
    let y = match cx.opt(3) {
        Some(z) => cx.binary(BinaryOp::Add, y, z)?,
        None => y,
    };
    let params: Vec<Option<f32>> =
        cx.floats("activation_params").unwrap_or_default().into_iter().map(Some).collect();
    Ok(vec![activated(cx, y, &params)?])
}

fn fused_gemm(cx: &mut NodeCx<'_>) -> Outputs {
    let mut out = matmul::gemm(cx)?;
    let y = out.pop().ok_or(NodeError::NoInput(0))?;
    let names = ["activation_alpha", "activation_beta", "activation_gamma"];
    let params = names.map(|n| cx.has(n).then(|| cx.float(n, 0.0)));
    Ok(vec![activated(cx, y, &params)?])
}

pub(super) fn fused_matmul(cx: &mut NodeCx<'_>) -> Outputs {
    let (mut a, mut b) = (cx.input(0)?, cx.input(1)?);
    let sides = [("transA", "transBatchA", &mut a), ("transB", "transBatchB", &mut b)];
    for (flag, batch, side) in sides {
        let rank = cx.rank(*side);
        let (flag, batch) = (cx.flag(flag, false), cx.flag(batch, false));
        if rank < 2 || !flag && !batch {
            continue;
        }
        let mut order: Vec<usize> = (0..rank).collect();
        if batch {
            // The first dimension comes behind the others of the batch, as rows.
            order.rotate_left(1);
            order.swap(rank - 1, rank - 2);
        }
        if flag {
            order.swap(rank - 1, rank - 2);
        }
        *side = cx.transpose(*side, &order)?;
    }
    let y = matmul::product(cx, a, b)?;
    let alpha = cx.float("alpha", 1.0);
    Ok(vec![matmul::scaled(cx, y, alpha)?])
}

/// A function of pictures whose channels come last, if they do, `[n, .., c]`.
pub(super) fn by_pixel(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    last: bool,
    function: impl FnOnce(&mut NodeCx<'_>, TensorId) -> Result<TensorId, NodeError>,
) -> Result<TensorId, NodeError> {
    let rank = cx.rank(x);
    if !last || rank < 3 {
        return function(cx, x);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    if let Some((_, inner)) = order.split_first_mut() {
        inner.rotate_right(1);
    }
    let x = cx.transpose(x, &order)?;
    let y = function(cx, x)?;
    // Back, and once more.
    if let Some((_, inner)) = order.split_first_mut() {
        inner.rotate_left(2);
    }
    cx.transpose(y, &order)
}

/// Input `i` with scale and zero point as floats.
pub(super) fn read(
    cx: &mut NodeCx<'_>,
    i: usize,
    scale: usize,
    zero: usize,
) -> Result<TensorId, NodeError> {
    let (x, scale) = (cx.input(i)?, cx.input(scale)?);
    let src: Vec<TensorId> = [x, scale].into_iter().chain(cx.opt(zero)).collect();
    cx.op(Dequantize { axis: None, block: 0 }, &src)
}

/// Floats as integers of the type of input 0.
pub(super) fn write(cx: &mut NodeCx<'_>, y: TensorId, scale: usize, zero: usize) -> Outputs {
    write_as(cx, y, scale, zero, 0)
}

pub(super) fn write_as(
    cx: &mut NodeCx<'_>,
    y: TensorId,
    scale: usize,
    zero: usize,
    like: usize,
) -> Outputs {
    let to = cx.dtype(cx.input(like)?);
    let src: Vec<TensorId> = [y, cx.input(scale)?].into_iter().chain(cx.opt(zero)).collect();
    Ok(vec![cx.op(Quantize { axis: None, block: 0, to }, &src)?])
}

fn qlinear_unary(cx: &mut NodeCx<'_>, op: UnaryOp) -> Outputs {
    let x = read(cx, 0, 1, 2)?;
    let y = cx.unary(op, x)?;
    write(cx, y, 3, 4)
}

fn qlinear_add(cx: &mut NodeCx<'_>) -> Outputs {
    let (a, b) = (read(cx, 0, 1, 2)?, read(cx, 3, 4, 5)?);
    let y = cx.binary(BinaryOp::Add, a, b)?;
    write(cx, y, 6, 7)
}

/// The product of integers is exact, and scaled once: of factors that are rounded before, some products
/// would be a step apart, and in a deep network one step becomes many.
fn qlinear_mul(cx: &mut NodeCx<'_>) -> Outputs {
    let one = cx.scalar(DType::F32, 1.0)?;
    let integers = |cx: &mut NodeCx<'_>, x, zero| {
        let src: Vec<TensorId> = [cx.input(x)?, one].into_iter().chain(cx.opt(zero)).collect();
        cx.op(Dequantize { axis: None, block: 0 }, &src)
    };
    let (a, b) = (integers(cx, 0, 2)?, integers(cx, 3, 5)?);
    let product = cx.binary(BinaryOp::Mul, a, b)?;
    let scale = |cx: &mut NodeCx<'_>, i| {
        let scale = cx.input(i)?;
        cx.reshape(scale, &[])
    };
    let (a, b, y) = (scale(cx, 1)?, scale(cx, 4)?, scale(cx, 6)?);
    let factor = cx.binary(BinaryOp::Mul, a, b)?;
    let factor = cx.binary(BinaryOp::Div, factor, y)?;
    let scaled = cx.binary(BinaryOp::Mul, product, factor)?;
    let to = cx.dtype(cx.input(0)?);
    let src: Vec<TensorId> = [scaled, one].into_iter().chain(cx.opt(7)).collect();
    Ok(vec![cx.op(Quantize { axis: None, block: 0, to }, &src)?])
}

/// Scale and zero point of the result, then each operand with its own.
fn qlinear_concat(cx: &mut NodeCx<'_>) -> Outputs {
    let parts = cx.input_count().saturating_sub(2);
    if !parts.is_multiple_of(3) {
        return Err(NodeError::invalid(format!("{parts} inputs after scale and zero point")));
    }
    let parts = (0..parts / 3).map(|i| read(cx, 2 + 3 * i, 3 + 3 * i, 4 + 3 * i));
    let parts = parts.collect::<Result<Vec<_>, _>>()?;
    let &first = parts.first().ok_or(NodeError::NoInput(2))?;
    let axis = build::axis(cx.int("axis", 0), cx.rank(first))?;
    let y = if parts.len() == 1 { first } else { cx.op(Concat { axis }, &parts)? };
    write_as(cx, y, 0, 1, 2)
}

/// `acc * a * b`, plus input `bias` if there is one.
pub(super) fn scaled_to_float(
    cx: &mut NodeCx<'_>,
    acc: TensorId,
    [a, b]: [TensorId; 2],
    bias: usize,
) -> Result<TensorId, NodeError> {
    let acc = cast::to(cx, acc, DType::F32)?;
    let scale = cx.binary(BinaryOp::Mul, a, b)?;
    let scale = if cx.dims(scale) == [1] { cx.reshape(scale, &[])? } else { scale };
    let mut y = cx.binary(BinaryOp::Mul, acc, scale)?;
    if let Some(bias) = cx.opt(bias) {
        y = cx.binary(BinaryOp::Add, y, bias)?;
    }
    Ok(y)
}

/// The first operand becomes `u8` for the product.
fn dynamic_quantize_matmul(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (x, scale, zero) = quantize::dynamic(cx, x)?;
    let acc = quantize::product_of(cx, x, Some(zero), [1, 3])?;
    let b = cx.input(2)?;
    Ok(vec![scaled_to_float(cx, acc, [scale, b], 4)?])
}

/// Weights of few bits in blocks of a row; a row per output.
fn matmul_nbits(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w, scales) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
    let extent = |cx: &NodeCx<'_>, name: &str, default| build::extent(cx.int(name, default), name);
    let op = UnpackBits {
        bits: extent(cx, "bits", 4)?,
        rows: extent(cx, "N", 0)?,
        columns: extent(cx, "K", 0)?,
        block: extent(cx, "block_size", 0)?,
        code: Code::Linear,
    };
    let scales = cast::to(cx, scales, DType::F32)?;
    if let Some(to) = contrib_quantized::blocks(cx, op)? {
        return Ok(vec![contrib_quantized::block_product(cx, op, to, [x, w, scales])?]);
    }
    let w = match cx.opt(4) {
        Some(groups) => {
            let zeros = cx.opt(3);
            contrib_quantized::grouped_weights(cx, op, [w, scales, groups], zeros)?
        }
        None => {
            let src: Vec<TensorId> = [w, scales].into_iter().chain(cx.opt(3)).collect();
            cx.op(op, &src)?
        }
    };
    let w = cx.transpose(w, &[1, 0])?;
    let mut y = matmul::product(cx, x, w)?;
    if let Some(bias) = cx.opt(5) {
        y = cx.binary(BinaryOp::Add, y, bias)?;
    }
    Ok(vec![y])
}
