//! Operators on bytes.

use super::{Arg, Call, Lower, Result, args, ints};
use crate::backend::opencl::programs::BYTES;
use crate::graph::GraphError;
use crate::graph::ops::dequantize::Dequantize;
use crate::graph::ops::pool::PoolKind;
use crate::graph::ops::qbinary::{QBinary, repeated};
use crate::graph::ops::qconv::QConv;
use crate::graph::ops::qmatmul::QMatMul;
use crate::graph::ops::qpool::QPool;
use crate::graph::ops::quantize::Quantize;
use crate::graph::ops::requantize::Requantize;
use crate::tensor::{DType, Tensor};
use tilewright_kernels::QbinaryOp;

/// Work-items of a group.
const GROUP: usize = 16;

/// Products of bytes that a sum of 32 bits holds, whatever they are.
const MOST: usize = i32::MAX as usize / (255 * 255);

/// The kernels' name of a type.
fn name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::I8 => Some("char"),
        DType::U8 => Some("uchar"),
        DType::I32 => Some("int"),
        DType::F32 => Some("float"),
        _ => None,
    }
}

fn bounds(dtype: DType) -> [i32; 2] {
    if dtype == DType::I8 { [-128, 127] } else { [0, 255] }
}

/// The definitions for types of activations, weights and result; `None` if kernels do not have them.
fn types(x: DType, w: DType, y: DType) -> Option<String> {
    Some(format!("-DVEC=1 -DX={} -DW={} -DY={}", name(x)?, name(w)?, name(y)?))
}

/// How sums become results, as arguments: zero points and scales in memory, then numbers.
fn finish(
    cx: &Lower<'_>,
    quant: &Requantize,
) -> core::result::Result<([Arg; 2], [Arg; 7]), GraphError> {
    let zeros = if quant.w_zeros.is_empty() { &[0][..] } else { &quant.w_zeros[..] };
    let scales = if quant.scales.is_empty() { &[1.0][..] } else { &quant.scales[..] };
    let to = match quant.to {
        DType::I32 => 2,
        DType::F32 => 1,
        _ => 0,
    };
    let step = |len: usize| Arg::Int(i32::from(len > 1));
    let [low, high] = quant.bounds;
    let memory = [Arg::Memory(cx.upload(zeros)?), Arg::Memory(cx.upload(scales)?)];
    let numbers = [
        Arg::Int(quant.x_zero),
        step(zeros.len()),
        step(scales.len()),
        Arg::Int(to),
        Arg::Int(low),
        Arg::Int(high),
        Arg::Int(quant.zero),
    ];
    Ok((memory, numbers))
}

pub(super) fn conv(op: &QConv, cx: &Lower<'_>) -> Result {
    let conv = &op.conv;
    let s = conv.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
    let g = conv.groups;
    let (c, k) = (s.c / g, s.k / g);
    let [[h, w], [o_h, o_w], [f_h, f_w]] = [s.input, s.output, s.window];
    let Some(definitions) = types(cx.src[0].dtype, cx.src[1].dtype, cx.dst.dtype) else {
        return Ok(None);
    };
    let [s_h, s_w] = conv.stride;
    let [d_h, d_w] = conv.dilation;
    let sizes =
        [s.n, g, c, k, h, w, o_h, o_w, f_h, f_w, s_h, s_w, d_h, d_w, conv.pads[0], conv.pads[1]];
    let Some(sizes) = ints(sizes).filter(|_| c * f_h * f_w <= MOST) else { return Ok(None) };
    let ([zeros, scales], numbers) = finish(cx, &op.quant)?;
    let bias = if conv.bias { Arg::Src(2) } else { Arg::Absent };
    let args = args![
        [Arg::Src(0), Arg::Src(1), bias, zeros, scales, Arg::Dst],
        sizes,
        [Arg::Int(conv.bias.into())],
        numbers
    ];
    let (global, local) = cx.spread([o_w, o_h, s.n * s.k], GROUP);
    Ok(Some(Call { family: BYTES, definitions, kernel: "qconv", args, global, local }.into()))
}

pub(super) fn matmul(op: &QMatMul, cx: &Lower<'_>) -> Result {
    let s = op.product.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
    let Some(definitions) = types(cx.src[0].dtype, cx.src[1].dtype, cx.dst.dtype) else {
        return Ok(None);
    };
    let b_dims = &cx.src[1].dims;
    let (m, n, k) = (s.m * s.batch.iter().product::<usize>(), s.n, s.k);
    let one_matrix =
        b_dims[..b_dims.len() - 2].iter().all(|&d| d == 1) && cx.src[0].elements() == m * k;
    let (row, column) = if op.product.transposed_b { (1, k) } else { (n, 1) };
    let Some(sizes) = ints([m, n, k, row, column]).filter(|_| one_matrix && k <= MOST) else {
        return Ok(None);
    };
    let ([zeros, scales], numbers) = finish(cx, &op.quant)?;
    let bias = if op.product.bias { Arg::Src(2) } else { Arg::Absent };
    let args = args![
        [Arg::Src(0), Arg::Src(1), bias, zeros, scales, Arg::Dst],
        sizes,
        [Arg::Int(op.product.bias.into())],
        numbers
    ];
    let (global, local) = cx.spread([n, m, 1], GROUP);
    Ok(Some(Call { family: BYTES, definitions, kernel: "qmatmul", args, global, local }.into()))
}

pub(super) fn binary(op: &QBinary, cx: &Lower<'_>) -> Result {
    let definitions = types(cx.src[0].dtype, cx.src[1].dtype, cx.dst.dtype);
    let dims = repeated(&cx.src[0].dims, &cx.src[1].dims);
    let (Some(definitions), Some([_, repeats, inner])) = (definitions, dims) else {
        return Ok(None);
    };
    let Some(sizes) = ints([cx.dst.elements(), repeats, inner]) else { return Ok(None) };
    let [a, b] = op.op.factors(op.scales);
    let [low, high] = op.bounds;
    let numbers = [
        Arg::Int((op.op == QbinaryOp::Mul).into()),
        Arg::Float(a),
        Arg::Float(b),
        Arg::Int(op.zeros[0]),
        Arg::Int(op.zeros[1]),
        Arg::Int(op.zeros[2]),
        Arg::Int(low),
        Arg::Int(high),
    ];
    let args = args![[Arg::Src(0), Arg::Src(1), Arg::Dst], sizes, numbers];
    let (global, local) = cx.spread([cx.dst.elements(), 1, 1], GROUP);
    Ok(Some(Call { family: BYTES, definitions, kernel: "qbinary", args, global, local }.into()))
}

pub(super) fn pool(op: &QPool, cx: &Lower<'_>) -> Result {
    let dtype = cx.dst.dtype;
    let Some(definitions) = types(dtype, dtype, dtype) else { return Ok(None) };
    let spatial = |d: &[usize]| if d.len() == 3 { [1, d[2]] } else { [d[2], d[3]] };
    let ([h, w], [o_h, o_w]) = (spatial(&cx.src[0].dims), spatial(&cx.dst.dims));
    let planes = cx.dst.dims[0] * cx.dst.dims[1];
    let pool = &op.pool;
    let kind = match pool.kind {
        PoolKind::Max => 0,
        PoolKind::Average { include_pad: false } => 1,
        PoolKind::Average { include_pad: true } => 2,
    };
    let ([f_h, f_w], [s_h, s_w]) = (pool.window, pool.stride);
    let ([d_h, d_w], [top, left, bottom, right]) = (pool.dilation, pool.pads);
    let sizes = [planes, h, w, o_h, o_w, f_h, f_w, s_h, s_w, d_h, d_w, top, left, bottom, right];
    let Some(sizes) = ints(sizes).filter(|_| f_h * f_w <= MOST) else { return Ok(None) };
    let [low, high] = bounds(dtype);
    let numbers = [
        Arg::Int(kind),
        Arg::Int(op.x_zero),
        Arg::Int(op.zero),
        Arg::Float(op.scale),
        Arg::Int(low),
        Arg::Int(high),
    ];
    let args = args![[Arg::Src(0), Arg::Dst], sizes, numbers];
    let (global, local) = cx.spread([o_w, o_h, planes], GROUP);
    Ok(Some(Call { family: BYTES, definitions, kernel: "qpool", args, global, local }.into()))
}

/// Scales and zero points in memory, with the extent of their axis and the elements that share one.
type Parameters = ([Arg; 2], [usize; 2]);

/// Scales and zero points that are constants, on the device, with the extent of their axis and the
/// elements that share one; `None` where kernels do not have it.
fn parameters(
    cx: &Lower<'_>,
    axis: Option<usize>,
    block: usize,
) -> core::result::Result<Option<Parameters>, GraphError> {
    let dims = &cx.dst.dims;
    let scales = cx.values[1].and_then(|s| s.as_slice::<f32>().ok());
    let Some(scales) = scales.filter(|_| block == 0) else { return Ok(None) };
    let zeros = match cx.src.get(2) {
        None => Some(vec![0; scales.len()]),
        Some(_) => cx.values[2].and_then(integers),
    };
    let (extent, inner) = match axis {
        None => (1, cx.dst.elements()),
        Some(axis) => (dims[axis], dims[axis + 1..].iter().product()),
    };
    let sound = scales.iter().all(|s| s.is_finite() && *s > 0.0) && scales.len() == extent;
    let Some(zeros) = zeros.filter(|z| sound && z.len() == extent) else { return Ok(None) };
    let memory = [Arg::Memory(cx.upload(&scales)?), Arg::Memory(cx.upload(&zeros)?)];
    Ok(Some((memory, [extent, inner])))
}

fn integers(t: &Tensor) -> Option<Vec<i32>> {
    match t.dtype() {
        DType::I8 => Some(t.as_slice::<i8>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::U8 => Some(t.as_slice::<u8>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::I32 => Some(t.as_slice::<i32>().ok()?.to_vec()),
        _ => None,
    }
}

pub(super) fn quantize(op: &Quantize, cx: &Lower<'_>) -> Result {
    let bytes = matches!(op.to, DType::I8 | DType::U8) && cx.src[0].dtype == DType::F32;
    let Some(([scales, zeros], places)) =
        (if bytes { parameters(cx, op.axis, op.block)? } else { None })
    else {
        return Ok(None);
    };
    let n = cx.dst.elements();
    let (Some(sizes), Some(definitions)) =
        (ints([n, places[0], places[1]]), types(op.to, op.to, op.to))
    else {
        return Ok(None);
    };
    let [low, high] = bounds(op.to);
    let operands = [Arg::Src(0), scales, zeros, Arg::Dst];
    let args = args![operands, sizes, [Arg::Int(low), Arg::Int(high)]];
    let (global, local) = cx.spread([n, 1, 1], GROUP);
    Ok(Some(Call { family: BYTES, definitions, kernel: "quantize", args, global, local }.into()))
}

pub(super) fn dequantize(op: &Dequantize, cx: &Lower<'_>) -> Result {
    let from = cx.src[0].dtype;
    let known = matches!(from, DType::I8 | DType::U8) && cx.dst.dtype == DType::F32;
    let Some(([scales, zeros], places)) =
        (if known { parameters(cx, op.axis, op.block)? } else { None })
    else {
        return Ok(None);
    };
    let n = cx.dst.elements();
    let (Some(sizes), Some(definitions)) =
        (ints([n, places[0], places[1]]), types(from, from, from))
    else {
        return Ok(None);
    };
    let args = args![[Arg::Src(0), scales, zeros, Arg::Dst], sizes];
    let (global, local) = cx.spread([n, 1, 1], GROUP);
    Ok(Some(Call { family: BYTES, definitions, kernel: "dequantize", args, global, local }.into()))
}
