//! Integers with scales.

use tilewright_kernels::template::binary::BinaryOp;

use super::{NodeCx, OpRow, Outputs, cast, conv, matmul, reduce, windows};
use crate::graph::ops::matmul::MatMul;
use crate::graph::ops::pad::Pad;
use crate::graph::ops::qconv::QConv;
use crate::graph::ops::qmatmul::QMatMul;
use crate::graph::ops::quant_range::QuantRange;
use crate::graph::ops::quantize::Quantize;
use crate::graph::ops::reduce::ReduceOp;
use crate::graph::ops::requantize::Requantize;
use crate::graph::ops::scaled_matmul::ScaledMatMul;
use crate::graph::{GraphError, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::to_f32s;
use crate::tensor::{DType, Tensor};

const CONV: &[Attr] = &[
    Attr::string("auto_pad").one_of(&["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]),
    Attr::ints("dilations"),
    Attr::int("group"),
    Attr::ints("kernel_shape"),
    Attr::ints("pads"),
    Attr::ints("strides"),
];

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("ConvInteger", (2, 4), CONV, conv_integer).since(10),
    OpRow::new("DynamicQuantizeLinear", (1, 1), &[], dynamic_quantize_linear)
        .since(11)
        .outputs(3, 3),
    OpRow::new("MatMulInteger", (2, 4), &[], |cx| Ok(vec![product(cx, [0, 2], [1, 3])?])).since(10),
    OpRow::new("QLinearConv", (8, 9), CONV, qlinear_conv).since(10),
    OpRow::new("QLinearMatMul", (8, 8), &[], qlinear_matmul).since(10),
    OpRow::new(
        "QuantizeLinear",
        (2, 3),
        &[
            Attr::int("axis").since(13),
            Attr::int("block_size").since(21),
            Attr::int("output_dtype").since(21),
            Attr::int("precision").since(23).only(&[0, 1]),
            // About 8-bit floats.
            Attr::int("saturate").since(19),
        ],
        quantize_linear,
    )
    .since(10),
];

pub(super) fn quantize_linear(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, scale) = (cx.input(0)?, cx.input(1)?);
    let block = build::extent(cx.int("block_size", 0), "block_size")?;
    let axis = if cx.rank(scale) == 0 || cx.dims(scale) == [1] && block == 0 {
        None
    } else {
        Some(build::axis(cx.int("axis", 1), cx.rank(x))?)
    };
    let to = match (cx.opt(2), cx.int("output_dtype", 0)) {
        (Some(zero), 0) => cx.dtype(zero),
        (None, 0) => DType::U8,
        (_, number) => cast::dtype_of(number)?,
    };
    let src: Vec<TensorId> = [x, scale].into_iter().chain(cx.opt(2)).collect();
    Ok(vec![cx.op(Quantize { axis, block, to }, &src)?])
}

/// `u8` with the scale that makes use of all numbers, 0 included.
fn dynamic_quantize_linear(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let (y, scale, offset) = dynamic(cx, x)?;
    Ok(vec![y, scale, offset])
}

/// `x` as `u8`, the scale and the zero point.
pub(super) fn dynamic(
    cx: &mut NodeCx<'_>,
    x: TensorId,
) -> Result<(TensorId, TensorId, TensorId), NodeError> {
    let found = cx.op(QuantRange, &[x])?;
    let [scale, offset] = [0, 1].map(|i| cx.slice(found, 0, i, 1, 1));
    let (scale, offset) = (cx.reshape(scale?, &[])?, cx.reshape(offset?, &[])?);
    let offset = cast::to(cx, offset, DType::U8)?;
    let y = cx.op(Quantize { axis: None, block: 0, to: DType::U8 }, &[x, scale, offset])?;
    Ok((y, scale, offset))
}

/// `x` as `i32` with a zero point taken off, which may have one element per index of an axis:
/// `shape` is what it then becomes.
fn centred(
    cx: &mut NodeCx<'_>,
    x: TensorId,
    zero: Option<TensorId>,
    shape: impl Fn(&[usize]) -> Vec<usize>,
) -> Result<TensorId, NodeError> {
    if !matches!(cx.dtype(x), DType::I8 | DType::U8) {
        return Err(NodeError::unsupported(format!("an integer operand of {}", cx.dtype(x))));
    }
    let wide = cast::to(cx, x, DType::I32)?;
    let Some(zero) = zero else { return Ok(wide) };
    if cx.dtype(zero) != cx.dtype(x) {
        let (zero, x) = (cx.dtype(zero), cx.dtype(x));
        return Err(NodeError::invalid(format!("a zero point of {zero} for {x}")));
    }
    let zero = cast::to(cx, zero, DType::I32)?;
    let dims = cx.dims(zero);
    let dims = if dims == [1] { vec![] } else { shape(&dims) };
    let zero = cx.reshape(zero, &dims)?;
    let y = cx.binary(BinaryOp::Sub, wide, zero)?;
    if cx.dims(y) != cx.dims(x) {
        let (zero, x) = (cx.dims(zero), cx.dims(x));
        return Err(NodeError::invalid(format!("a zero point {zero:?} for {x:?}")));
    }
    Ok(y)
}

/// A list as a column.
fn column(dims: &[usize]) -> Vec<usize> {
    match *dims {
        [n] => vec![n, 1],
        _ => dims.to_vec(),
    }
}

/// The product in `i32` of two integer inputs, each with the number of its zero point.
pub(super) fn product(
    cx: &mut NodeCx<'_>,
    [a, zero]: [usize; 2],
    b: [usize; 2],
) -> Result<TensorId, NodeError> {
    let (a, zero) = (cx.input(a)?, cx.opt(zero));
    product_of(cx, a, zero, b)
}

/// As [`product`], for a first operand that is no input.
pub(super) fn product_of(
    cx: &mut NodeCx<'_>,
    a: TensorId,
    a_zero: Option<TensorId>,
    [b, b_zero]: [usize; 2],
) -> Result<TensorId, NodeError> {
    let (b, b_zero) = (cx.input(b)?, cx.opt(b_zero));
    if let Some(y) = known_product(cx, a, a_zero, b, b_zero)? {
        return Ok(y);
    }
    if let Some(y) = shifted_product(cx, [a, b], [a_zero, b_zero])? {
        return Ok(y);
    }
    let a = centred(cx, a, a_zero, column)?;
    let b = centred(cx, b, b_zero, <[usize]>::to_vec)?;
    matmul::product(cx, a, b)
}

/// The elements of a small integer type, if they are known now; none of an absent input.
fn known_integers(cx: &NodeCx<'_>, id: Option<TensorId>) -> Option<Vec<i32>> {
    let Some(id) = id else { return Some(Vec::new()) };
    let t = cx.value(id)?;
    Some(match t.dtype() {
        DType::I8 => t.as_slice::<i8>().ok()?.iter().map(|&v| i32::from(v)).collect(),
        DType::U8 => t.as_slice::<u8>().ok()?.iter().map(|&v| i32::from(v)).collect(),
        _ => return None,
    })
}

/// Whether a zero point is one number, of the type of what it belongs to, or absent.
fn is_single(cx: &NodeCx<'_>, x: TensorId, zero: Option<TensorId>) -> bool {
    zero.is_none_or(|z| cx.dims(z).iter().all(|&d| d == 1) && cx.dtype(z) == cx.dtype(x))
}

/// The only zero point, if it is known now.
fn known_zero(cx: &NodeCx<'_>, id: Option<TensorId>) -> Option<i32> {
    match known_integers(cx, id)?[..] {
        [] => Some(0),
        [zero] => Some(zero),
        _ => None,
    }
}

/// Sums of products as they are.
fn sums(x_zero: i32, w_zeros: Vec<i32>) -> Requantize {
    let bounds = [i32::MIN, i32::MAX];
    Requantize { x_zero, w_zeros, scales: Vec::new(), to: DType::I32, zero: 0, bounds }
}

/// The product with known zero points, or with known weights, of which kernels compute the sums.
fn known_product(
    cx: &mut NodeCx<'_>,
    a: TensorId,
    a_zero: Option<TensorId>,
    b: TensorId,
    b_zero: Option<TensorId>,
) -> Result<Option<TensorId>, NodeError> {
    let Some((zeros, _)) = columns(cx, a, b, b_zero, false) else { return Ok(None) };
    let product = MatMul::default();
    if !is_single(cx, a, a_zero) {
        return Ok(None);
    }
    if let Some(zero) = known_zero(cx, a_zero) {
        let op = QMatMul { product, quant: sums(zero, zeros) };
        return Ok(Some(cx.op(op, &[a, b])?));
    }
    let Some(a_zero) = a_zero.filter(|_| cx.value(b).is_some()) else { return Ok(None) };
    let op = ScaledMatMul { w_zeros: zeros, ..ScaledMatMul::default() };
    Ok(Some(cx.op(op, &[a, b, a_zero])?))
}

/// The product of two matrices of bytes with one zero point each, of which a run knows at least one: those are taken
/// off the sums of the bytes as they are. Sums wrap around meanwhile, which those of the result do not.
fn shifted_product(
    cx: &mut NodeCx<'_>,
    [a, b]: [TensorId; 2],
    zeros: [Option<TensorId>; 2],
) -> Result<Option<TensorId>, NodeError> {
    let single = is_single(cx, a, zeros[0]) && is_single(cx, b, zeros[1]);
    if !bytes_meet(cx, a, b) || !single {
        return Ok(None);
    }
    let k = cx.dims(a).last().copied().unwrap_or(0);
    let Some(k) = i32::try_from(k).ok().filter(|&k| k <= MOST_TERMS) else { return Ok(None) };
    let number =
        |cx: &mut NodeCx<'_>, zero: Option<TensorId>| -> Result<Option<TensorId>, NodeError> {
            let Some(zero) = zero else { return Ok(None) };
            let zero = cast::to(cx, zero, DType::I32)?;
            Ok(Some(cx.reshape(zero, &[])?))
        };
    let [of_a, of_b] = [number(cx, zeros[0])?, number(cx, zeros[1])?];
    // What is left of (a - s) (b - t), summed: a b - t a - s (b - k t).
    let quant = sums(0, Vec::new());
    let mut y = cx.op(QMatMul { product: MatMul::default(), quant }, &[a, b])?;
    if let Some(of_b) = of_b {
        let rows = summed(cx, a, 1)?;
        let excess = cx.binary(BinaryOp::Mul, rows, of_b)?;
        y = cx.binary(BinaryOp::Sub, y, excess)?;
    }
    if let Some(of_a) = of_a {
        let mut columns = summed(cx, b, 2)?;
        if let Some(of_b) = of_b {
            let k = cx.constant(Tensor::from_slice(&[], &[k]).map_err(GraphError::from)?)?;
            let each = cx.binary(BinaryOp::Mul, of_b, k)?;
            columns = cx.binary(BinaryOp::Sub, columns, each)?;
        }
        let excess = cx.binary(BinaryOp::Mul, columns, of_a)?;
        y = cx.binary(BinaryOp::Sub, y, excess)?;
    }
    Ok(Some(y))
}

/// Bytes summed along an axis, counted from the last as 1.
fn summed(cx: &mut NodeCx<'_>, x: TensorId, axis: usize) -> Result<TensorId, NodeError> {
    let axes = [cx.rank(x) - axis];
    let wide = cast::to(cx, x, DType::I32)?;
    reduce::over(cx, ReduceOp::Sum, wide, &axes, true)
}

/// Most products whose sums kernels compute.
const MOST_TERMS: i32 = i32::MAX / (255 * 255);

/// Whether kernels multiply these: matrices of bytes, of which the second is one for all of the first, or both are
/// as many.
fn bytes_meet(cx: &NodeCx<'_>, a: TensorId, b: TensorId) -> bool {
    let bytes = |id| matches!(cx.dtype(id), DType::I8 | DType::U8);
    let (a_dims, b_dims) = (cx.dims(a), cx.dims(b));
    let ([of_a @ .., _, _], [of_b @ .., _, _]) = (&a_dims[..], &b_dims[..]) else { return false };
    bytes(a) && bytes(b) && (of_b.is_empty() || of_a == of_b)
}

/// Zero points and number of the columns of a matrix of bytes, by which bytes are multiplied; `transposed` if its
/// columns are rows.
fn columns(
    cx: &NodeCx<'_>,
    a: TensorId,
    b: TensorId,
    b_zero: Option<TensorId>,
    transposed: bool,
) -> Option<(Vec<i32>, usize)> {
    let &[.., rows, columns] = &cx.dims(b)[..] else { return None };
    let columns = if transposed { rows } else { columns };
    let zeros = known_integers(cx, b_zero)?;
    let fits = zeros.len() <= 1 || b_zero.is_some_and(|z| cx.dims(z) == [columns]);
    let same = b_zero.is_none_or(|z| cx.dtype(z) == cx.dtype(b));
    (bytes_meet(cx, a, b) && fits && same).then_some((zeros, columns))
}

/// How sums with known scales become the bytes of the result; `channels` is how many scales the
/// weights may have.
fn known_result(
    cx: &NodeCx<'_>,
    sums: Requantize,
    [a_scale, b_scale]: [usize; 2],
    [scale, zero]: [usize; 2],
    channels: usize,
) -> Option<Requantize> {
    let floats = |i: usize| Some(to_f32s(cx.value(cx.opt(i)?)?)?.into_owned());
    let (a, b, y) = (floats(a_scale)?, floats(b_scale)?, floats(scale)?);
    let (&[a], &[y]) = (&a[..], &y[..]) else { return None };
    let scales: Vec<f32> = b.iter().map(|b| a * b / y).collect();
    let sound = scales.iter().all(|s| s.is_finite());
    let list = b.len() == 1 || cx.opt(b_scale).is_some_and(|s| cx.dims(s) == [channels]);
    let to = cx.dtype(cx.opt(zero)?);
    let bounds = match to {
        DType::I8 => [-128, 127],
        DType::U8 => [0, 255],
        _ => return None,
    };
    let zero = known_zero(cx, cx.opt(zero))?;
    (sound && list).then_some(Requantize { scales, to, zero, bounds, ..sums })
}

/// `acc * a_scale * b_scale`, in units of the result's scale.
fn requantized(
    cx: &mut NodeCx<'_>,
    acc: TensorId,
    [a, b]: [TensorId; 2],
    [scale, zero]: [usize; 2],
) -> Result<TensorId, NodeError> {
    let acc = cast::to(cx, acc, DType::F32)?;
    let (a, b) = (cast::to(cx, a, DType::F32)?, cast::to(cx, b, DType::F32)?);
    let factor = cx.binary(BinaryOp::Mul, a, b)?;
    let value = cx.binary(BinaryOp::Mul, acc, factor)?;
    let (scale, zero) = (cx.input(scale)?, cx.input(zero)?);
    if cx.dims(value) != cx.dims(acc) {
        let (factor, acc) = (cx.dims(factor), cx.dims(acc));
        return Err(NodeError::invalid(format!("scales {factor:?} for {acc:?}")));
    }
    let op = Quantize { axis: None, block: 0, to: cx.dtype(zero) };
    cx.op(op, &[value, scale, zero])
}

/// Input `i`, a scale: of one element a number, else as `shape` makes it.
fn scale(
    cx: &mut NodeCx<'_>,
    i: usize,
    shape: impl Fn(&[usize]) -> Vec<usize>,
) -> Result<TensorId, NodeError> {
    let x = cx.input(i)?;
    let dims = cx.dims(x);
    let dims = if dims == [1] { vec![] } else { shape(&dims) };
    cx.reshape(x, &dims)
}

fn qlinear_matmul(cx: &mut NodeCx<'_>) -> Outputs {
    let (a, b, a_zero, b_zero) = (cx.input(0)?, cx.input(3)?, cx.opt(2), cx.opt(5));
    if let Some((zeros, count)) = columns(cx, a, b, b_zero, false)
        && a_zero.is_none_or(|z| cx.dtype(z) == cx.dtype(a))
        && let Some(zero) = known_zero(cx, a_zero)
        && let Some(quant) = known_result(cx, sums(zero, zeros), [1, 4], [6, 7], count)
    {
        return Ok(vec![cx.op(QMatMul { product: MatMul::default(), quant }, &[a, b])?]);
    }
    let acc = product(cx, [0, 2], [3, 5])?;
    let scales = [scale(cx, 1, column)?, scale(cx, 4, <[usize]>::to_vec)?];
    Ok(vec![requantized(cx, acc, scales, [6, 7])?])
}

/// `alpha * a_scale * b_scale * (a * b + c)`, quantised if there is a scale for that, else as f32. The
/// bias is one of integers in units of the product.
pub(super) fn qgemm(cx: &mut NodeCx<'_>) -> Outputs {
    let (mut a, mut b, a_zero, b_zero) = (cx.input(0)?, cx.input(3)?, cx.opt(2), cx.opt(5));
    for (name, id) in [("a", a), ("b", b)] {
        if cx.rank(id) != 2 {
            let dims = cx.dims(id);
            return Err(NodeError::invalid(format!("{name} must be a matrix, found {dims:?}")));
        }
    }
    let (alpha, bias, transposed_b) = (cx.float("alpha", 1.0), cx.opt(6), cx.flag("transB", false));
    if cx.flag("transA", false) {
        a = cx.transpose(a, &[1, 0])?;
    }
    if let Some((zeros, n)) = columns(cx, a, b, b_zero, transposed_b)
        && a_zero.is_none_or(|z| cx.dtype(z) == cx.dtype(a))
        && let Some(zero) = known_zero(cx, a_zero)
        && let Some(quant) = gemm_result(cx, sums(zero, zeros), alpha, n)
        && bias.is_none_or(|c| {
            cx.value(c).is_some() && matches!(cx.dims(c)[..], [k] | [1, k] if k == n)
        })
    {
        let bias = bias.map(|c| cx.reshape(c, &[n])).transpose()?;
        let product = MatMul { transposed_b, bias: bias.is_some(), ..MatMul::default() };
        let src: Vec<TensorId> = [a, b].into_iter().chain(bias).collect();
        return Ok(vec![cx.op(QMatMul { product, quant }, &src)?]);
    }
    a = centred(cx, a, a_zero, column)?;
    // One zero point, or one per column.
    b = centred(cx, b, b_zero, if transposed_b { column } else { <[usize]>::to_vec })?;
    let op = MatMul { transposed_b, ..MatMul::default() };
    let mut acc = cx.op(op, &[a, b])?;
    if let Some(c) = bias {
        let dims = cx.dims(acc);
        acc = cx.binary(BinaryOp::Add, acc, c)?;
        if cx.dims(acc) != dims {
            let c = cx.dims(c);
            return Err(NodeError::invalid(format!("c {c:?} does not broadcast to {dims:?}")));
        }
    }
    let scales = [scale(cx, 1, column)?, scale(cx, 4, <[usize]>::to_vec)?];
    let scales = [matmul::scaled(cx, scales[0], alpha)?, scales[1]];
    match (cx.opt(7), cx.opt(8)) {
        (Some(_), Some(_)) => Ok(vec![requantized(cx, acc, scales, [7, 8])?]),
        (None, None) => {
            let acc = cast::to(cx, acc, DType::F32)?;
            let factor = cx.binary(BinaryOp::Mul, scales[0], scales[1])?;
            Ok(vec![cx.binary(BinaryOp::Mul, acc, factor)?])
        }
        _ => Err(NodeError::unsupported("a result with only one of scale and zero point")),
    }
}

/// How the known scales of a `QGemm` make its result of sums.
fn gemm_result(cx: &NodeCx<'_>, sums: Requantize, alpha: f32, n: usize) -> Option<Requantize> {
    let quant = match (cx.opt(7), cx.opt(8)) {
        (Some(_), Some(_)) => known_result(cx, sums, [1, 4], [7, 8], n)?,
        (None, None) => {
            let floats = |i: usize| Some(to_f32s(cx.value(cx.opt(i)?)?)?.into_owned());
            let (a, b) = (floats(1)?, floats(4)?);
            let &[a] = &a[..] else { return None };
            let list = b.len() == 1 || cx.opt(4).is_some_and(|s| cx.dims(s) == [n]);
            let scales: Vec<f32> = b.iter().map(|b| a * b).collect();
            list.then_some(Requantize { scales, to: DType::F32, ..sums })?
        }
        _ => return None,
    };
    let scales: Vec<f32> = quant.scales.iter().map(|s| alpha * s).collect();
    scales.iter().all(|s| s.is_finite()).then_some(Requantize { scales, ..quant })
}

/// A list with an element per filter, to go along the first of `rank` axes.
fn per_filter(dims: &[usize], rank: usize) -> Vec<usize> {
    match *dims {
        [n] => [&[n], &vec![1; rank.saturating_sub(1)][..]].concat(),
        _ => dims.to_vec(),
    }
}

/// The convolution of two integer inputs in `i32`.
fn convolved(
    cx: &mut NodeCx<'_>,
    (x, x_zero): (TensorId, usize),
    [w, w_zero]: [usize; 2],
    bias: Option<TensorId>,
) -> Result<TensorId, NodeError> {
    let (x_zero, w, w_zero) = (cx.opt(x_zero), cx.input(w)?, cx.opt(w_zero));
    if let Some(quant) = known_windows(cx, x, x_zero, w, w_zero) {
        let conv = conv::operator(cx, &cx.dims(x), &cx.dims(w), bias.is_some())?;
        let src: Vec<TensorId> = [x, w].into_iter().chain(bias).collect();
        return cx.op(QConv { conv, quant }, &src);
    }
    if let (Some(zero), Some(zeros)) = (x_zero, filter_zeros(cx, x, w, w_zero))
        && is_single(cx, x, x_zero)
    {
        return shifted_windows(cx, [x, zero], (w, w_zero), zeros, bias);
    }
    let rank = cx.rank(w);
    let x = centred(cx, x, x_zero, <[usize]>::to_vec)?;
    let w = centred(cx, w, w_zero, |d| per_filter(d, rank))?;
    let groups = build::extent(cx.int("group", 1), "group")?;
    let src: Vec<TensorId> = [x, w].into_iter().chain(bias).collect();
    windows::convolution(cx, &src, groups)
}

/// The sums of a convolution that kernels may compute: of one or two spatial dimensions, with known
/// weights and zero points.
fn known_windows(
    cx: &NodeCx<'_>,
    x: TensorId,
    x_zero: Option<TensorId>,
    w: TensorId,
    w_zero: Option<TensorId>,
) -> Option<Requantize> {
    let zero = known_zero(cx, x_zero)?;
    let zeros = filter_zeros(cx, x, w, w_zero)?;
    x_zero.is_none_or(|z| cx.dtype(z) == cx.dtype(x)).then(|| sums(zero, zeros))
}

/// The zero points of known filters with which kernels convolve bytes.
fn filter_zeros(
    cx: &NodeCx<'_>,
    x: TensorId,
    w: TensorId,
    w_zero: Option<TensorId>,
) -> Option<Vec<i32>> {
    let bytes = |id| matches!(cx.dtype(id), DType::I8 | DType::U8);
    let (zeros, filters) = (known_integers(cx, w_zero)?, cx.dims(w).first().copied()?);
    let list = zeros.len() <= 1 || w_zero.is_some_and(|z| cx.dims(z) == [filters]);
    let fits = list && w_zero.is_none_or(|z| cx.dtype(z) == cx.dtype(w));
    (bytes(x) && bytes(w) && fits && cx.value(w).is_some() && matches!(cx.rank(x), 3 | 4))
        .then_some(zeros)
}

/// A convolution whose activations have a zero point that is not known yet. They are padded with it, and
/// it is taken off the sums: then it occurs in each as often as a filter has weights.
fn shifted_windows(
    cx: &mut NodeCx<'_>,
    [x, zero]: [TensorId; 2],
    (w, w_zero): (TensorId, Option<TensorId>),
    zeros: Vec<i32>,
    bias: Option<TensorId>,
) -> Result<TensorId, NodeError> {
    let mut conv = conv::operator(cx, &cx.dims(x), &cx.dims(w), bias.is_some())?;
    let (rank, zero) = (cx.rank(x), cx.reshape(zero, &[])?);
    let mut padded = x;
    if conv.pads != [0; 4] {
        // Of one dimension there are columns only.
        let pads = |[rows, columns]: [usize; 2]| match rank {
            3 => vec![0, 0, columns],
            _ => vec![0, 0, rows, columns],
        };
        let [top, left, bottom, right] = conv.pads;
        let pad = Pad { before: pads([top, left]), after: pads([bottom, right]) };
        padded = cx.op(pad, &[x, zero])?;
        conv.pads = [0; 4];
    }
    let src: Vec<TensorId> = [padded, w].into_iter().chain(bias).collect();
    let y = cx.op(QConv { conv, quant: sums(0, zeros) }, &src)?;
    let weights = centred(cx, w, w_zero, |d| per_filter(d, rank))?;
    let axes: Vec<usize> = (1..rank).collect();
    let weights = reduce::over(cx, ReduceOp::Sum, weights, &axes, true)?;
    let filters = cx.dims(weights).first().copied().unwrap_or(0);
    let weights = cx.reshape(weights, &per_filter(&[filters], rank - 1))?;
    let zero = cast::to(cx, zero, DType::I32)?;
    let excess = cx.binary(BinaryOp::Mul, weights, zero)?;
    cx.binary(BinaryOp::Sub, y, excess)
}

fn conv_integer(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![convolved(cx, (x, 2), [1, 3], None)?])
}

fn qlinear_conv(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    Ok(vec![qlinear_conv_of(cx, x)?])
}

/// The convolution of `x` with the node's other inputs.
pub(super) fn qlinear_conv_of(cx: &mut NodeCx<'_>, x: TensorId) -> Result<TensorId, NodeError> {
    let (bias, x_zero, w, w_zero) = (cx.opt(8), cx.opt(2), cx.input(3)?, cx.opt(5));
    let filters = cx.dims(w).first().copied().unwrap_or(0);
    if let Some(sums) = known_windows(cx, x, x_zero, w, w_zero)
        && let Some(quant) = known_result(cx, sums, [1, 4], [6, 7], filters)
    {
        let conv = conv::operator(cx, &cx.dims(x), &cx.dims(w), bias.is_some())?;
        let src: Vec<TensorId> = [x, w].into_iter().chain(bias).collect();
        return cx.op(QConv { conv, quant }, &src);
    }
    let acc = convolved(cx, (x, 2), [3, 5], bias)?;
    let rank = cx.rank(acc).saturating_sub(1);
    let scales = [scale(cx, 1, <[usize]>::to_vec)?, scale(cx, 4, |d| per_filter(d, rank))?];
    requantized(cx, acc, scales, [6, 7])
}
