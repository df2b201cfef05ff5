//! From numbers between quantisations to operators on integers.
//!
//! Quantised networks are written as float operators between `Dequantize` and `Quantize`. Where the
//! integers that go in and come out are known, and their scales are constants, an operator on integers
//! computes the same within one step of the result, in a fraction of the time.

use tilewright_kernels::template::binary::BinaryOp;
use tilewright_kernels::{Activation, C_BLOCK, QbinaryOp};

use super::super::ops::binary::Binary;
use super::super::ops::conv::Conv;
use super::super::ops::fake_quantize::FakeQuantize;
use super::super::ops::matmul::MatMul;
use super::super::ops::pool::{Pool, PoolKind};
use super::super::ops::qbinary::{QBinary, repeated};
use super::super::ops::qconv::QConv;
use super::super::ops::qmatmul::QMatMul;
use super::super::ops::qpool::QPool;
use super::super::ops::quantize::Quantize;
use super::super::ops::requantize::Requantize;
use super::super::{Context, GraphError, Op, PerRecord, TensorId};
use super::moves::move_bytes;
use super::{lookup, order, pattern, use_counts};
use crate::tensor::{DType, Tensor};

/// Replaces convolutions, products, poolings, sums and moves of dequantised tensors, whose results are
/// quantised, by operators on integers. Activations between them become bounds of the result; other
/// functions of one dequantised tensor become tables of 256 bytes.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_integers(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    move_bytes(cx, outputs)?;
    let order = cx.build_forward(outputs)?;
    let uses = use_counts(cx, &order, outputs);
    // What is quantised becomes an operator on bytes there.
    let records = order.iter().map(|&id| cx.record(id));
    let quantized_later = records.filter(|r| matches!(r.op(), Op::Quantize(_)));
    let ends: PerRecord<()> = quantized_later.map(|r| (r.src()[0], ())).collect();
    for id in order {
        if let Some(op) = order::largest_bytes(cx, id) {
            let src = cx.record(id).src().to_vec();
            cx.rewrite(id, op.into(), src)?;
        }
        if let Some((op, x)) = as_numbers(cx, id) {
            cx.rewrite(id, op.into(), vec![x])?;
        }
        if !ends.contains(id)
            && let Some((op, src)) = order::largest_dequantized(cx, id)?
        {
            cx.rewrite(id, op.into(), src)?;
        }
        if let Some((op, src)) = order::clipped(cx, &uses, id)? {
            cx.rewrite(id, op, src)?;
        }
        let Some(result) = quantized(cx, id) else { continue };
        if let Some(x) = unchanged(cx, id, &result) {
            cx.rewrite_as_view(id, "reshape", x);
            continue;
        }
        if let Some((table, x)) = lookup::table(cx, id)? {
            cx.rewrite(id, table.into(), vec![x])?;
            continue;
        }
        let mut pass = Pass { cx, uses: &uses, result, step: result.scale };
        if let Some((op, src)) = pass.replacement(id)? {
            cx.rewrite(id, op, src)?;
        }
    }
    // What is left computes numbers that are not quantised as they are. Last ones first, as a sum with a bias
    // takes in the product before it.
    let order = cx.build_forward(outputs)?;
    let steps = pattern::steps(cx, &order);
    for id in order.into_iter().rev() {
        let mut pass = Pass { cx, uses: &uses, result: NUMBERS, step: steps[id.index()] };
        if let Some((op, src)) = pass.numbers(id)? {
            cx.rewrite(id, op, src)?;
        }
    }
    Ok(())
}

/// Lets products of two operands that a run quantises be of integers where they are not part of something larger that
/// has a kernel, such as attention. For a graph whose constants are folded.
///
/// # Errors
/// What the operators refuse; an error here is a mistake of the pass.
pub fn use_integer_products(cx: &mut Context, outputs: &[TensorId]) -> Result<(), GraphError> {
    for id in cx.build_forward(outputs)? {
        let record = cx.record(id);
        let Op::MatMul(product) = record.op().clone() else { continue };
        let bare = product.activation == Activation::None && !product.residual && !product.bias;
        if !bare || record.value().is_some() || record.dtype() != DType::F32 {
            continue;
        }
        let src = record.src().to_vec();
        let [a, b] = [0, 1].map(|i| cx.dims(src[i]));
        // Others have kernels of floats alone.
        let pairs = b.len() == 2 || a[..a.len() - 2] == b[..b.len() - 2];
        if !pairs || a[a.len() - 1] > MOST_TERMS {
            continue;
        }
        let mut pass = Pass { cx, uses: &[], result: NUMBERS, step: f32::INFINITY };
        if let Some((op, src)) = pass.matmul(&product, &src, None, [i32::MIN, i32::MAX])? {
            cx.rewrite(id, op, src)?;
        }
    }
    Ok(())
}

/// Terms for which a sum of products of bytes stays in the range of its type, whatever their zero points: longer sums
/// are left to floats.
const MOST_TERMS: usize = i32::MAX as usize / (255 * 255);

/// A tensor that is quantised to 16 bits and dequantised, as one operator on the numbers: no operator computes with
/// those integers.
fn as_numbers(cx: &Context, id: TensorId) -> Option<(FakeQuantize, TensorId)> {
    let back = dequantized(cx, id)?;
    let Op::Quantize(Quantize { axis: None, block: 0, to }) = *cx.record(back.x).op() else {
        return None;
    };
    let range = match to {
        DType::I16 => [-32_768, 32_767],
        DType::U16 => [0, 65_535],
        _ => return None,
    };
    let (scales, zeros) = parameters(cx, back.x)?;
    let same = back.single()?;
    let x = cx.record(back.x).src()[0];
    let floats = [x, id].iter().all(|&x| cx.dtype(x) == DType::F32);
    let fits = floats && cx.record(back.x).value().is_none();
    let own = Scaled { x, scales, zeros, axis: None }.single()?;
    (fits && own == same).then(|| (FakeQuantize::new(same.0, same.1, range), x))
}

/// Integers with a scale.
pub(super) struct Scaled {
    /// The integers.
    pub(super) x: TensorId,
    scales: Vec<f32>,
    zeros: Vec<i32>,
    /// The axis that has one scale per index.
    pub(super) axis: Option<usize>,
}

impl Scaled {
    /// Scale and zero point, if they are the same for all elements.
    pub(super) fn single(&self) -> Option<(f32, i32)> {
        match (&self.scales[..], &self.zeros[..]) {
            ([scale], []) => Some((*scale, 0)),
            ([scale], [zero]) => Some((*scale, *zero)),
            _ => None,
        }
    }

    /// The numbers, of constants of one dimension.
    fn numbers(&self, cx: &Context) -> Option<Vec<f32>> {
        let values = integers(cx.constant_value(self.x)?)?;
        let (scales, zeros) = (self.scales.len(), self.zeros.len());
        let fits = |n: usize| n == 1 || n == values.len();
        let number = |(i, v): (usize, i32)| {
            let zero = if zeros == 0 { 0 } else { self.zeros[i % zeros] };
            (v.wrapping_sub(zero)) as f32 * self.scales[i % scales]
        };
        let known = fits(scales) && (zeros == 0 || fits(zeros));
        known.then(|| values.into_iter().enumerate().map(number).collect())
    }
}

/// The integers that a quantised tensor was before it was dequantised.
fn unchanged(cx: &Context, id: TensorId, result: &Target) -> Option<TensorId> {
    let x = dequantized(cx, cx.record(id).src()[0])?;
    let same = x.single()? == (result.scale, result.zero) && cx.dtype(x.x) == result.to;
    (same && cx.record(x.x).is_contiguous()).then_some(x.x)
}

/// What a result is quantised with.
#[derive(Clone, Copy)]
struct Target {
    to: DType,
    scale: f32,
    zero: i32,
}

/// Sums that become numbers.
const NUMBERS: Target = Target { to: DType::F32, scale: 1.0, zero: 0 };

/// The constants behind the first operand of a conversion: scales and zero points.
pub(super) fn parameters(cx: &Context, id: TensorId) -> Option<(Vec<f32>, Vec<i32>)> {
    let src = cx.record(id).src();
    let scales = cx.constant_value(*src.get(1)?)?.as_slice::<f32>().ok()?.to_vec();
    let zeros = match src.get(2) {
        Some(&zero) => integers(cx.constant_value(zero)?)?,
        None => Vec::new(),
    };
    let sound = scales.iter().all(|s| s.is_finite() && *s > 0.0);
    (sound && !scales.is_empty()).then_some((scales, zeros))
}

/// Elements of a small integer type.
pub(super) fn integers(t: &Tensor) -> Option<Vec<i32>> {
    match t.dtype() {
        DType::I8 => Some(t.as_slice::<i8>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::U8 => Some(t.as_slice::<u8>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::I16 => Some(t.as_slice::<i16>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::U16 => Some(t.as_slice::<u16>().ok()?.iter().map(|v| i32::from(*v)).collect()),
        DType::I32 => Some(t.as_slice::<i32>().ok()?.to_vec()),
        _ => None,
    }
}

/// The integers behind a dequantised tensor.
pub(super) fn dequantized(cx: &Context, id: TensorId) -> Option<Scaled> {
    let Op::Dequantize(op) = cx.record(id).op() else { return None };
    if op.block != 0 || cx.record(id).value().is_some() {
        return None;
    }
    let (scales, zeros) = parameters(cx, id)?;
    let axis = op.axis.filter(|_| scales.len() > 1 || zeros.len() > 1);
    Some(Scaled { x: cx.record(id).src()[0], scales, zeros, axis })
}

/// What a quantised tensor is quantised with.
fn quantized(cx: &Context, id: TensorId) -> Option<Target> {
    let Op::Quantize(op) = cx.record(id).op() else { return None };
    let bytes = matches!(op.to, DType::I8 | DType::U8);
    if op.block != 0 || !bytes || cx.record(id).value().is_some() {
        return None;
    }
    match parameters(cx, id)? {
        (scales, zeros) if scales.len() == 1 && zeros.len() <= 1 => {
            let zero = zeros.first().copied().unwrap_or(0);
            Some(Target { to: op.to, scale: scales[0], zero })
        }
        _ => None,
    }
}

/// Work on one quantised result.
struct Pass<'a> {
    cx: &'a mut Context,
    uses: &'a [usize],
    result: Target,
    /// The step that the result is quantised with, there or later; infinite if it is not.
    step: f32,
}

/// An operator and its operands, in place of a record.
pub(super) type Replacement = Option<(Op, Vec<TensorId>)>;

impl Pass<'_> {
    fn replacement(&mut self, id: TensorId) -> Result<Replacement, GraphError> {
        let mut y = self.cx.record(id).src()[0];
        let range = if self.result.to == DType::I8 { [-128, 127] } else { [0, 255] };
        let mut bounds = range;
        // Activations become bounds; those of one another too.
        while let (Op::Unary(op), true) = (self.cx.record(y).op(), self.is_sole(y)) {
            let Some(limits) = op.op.activation().and_then(limits) else { break };
            let [low, high] = limits.map(|v| self.integer(v));
            bounds = [bounds[0].max(low).min(range[1]), bounds[1].min(high).max(range[0])];
            y = self.cx.record(y).src()[0];
        }
        if bounds[0] > bounds[1] || !(self.is_sole(y) || dequantized(self.cx, y).is_some()) {
            return Ok(None);
        }
        let plain = bounds == range;
        let src = self.cx.record(y).src().to_vec();
        match self.cx.record(y).op().clone() {
            Op::Conv(conv) => self.conv(&conv, &src, bounds),
            Op::MatMul(product) => self.matmul(&product, &src, None, bounds),
            Op::Binary(Binary { op, activation: Activation::None }) => {
                let biased = if op == BinaryOp::Add { self.biased(&src, bounds)? } else { None };
                Ok(biased.or_else(|| self.pair(op, [src[0], src[1]], bounds)))
            }
            Op::Pool(pool) if plain => self.pool(&pool, &src),
            Op::Concat(op) if plain => Ok(self.joined(&src)?.map(|src| (op.into(), src))),
            _ => Ok(None),
        }
    }

    /// A convolution or product of activations and known weights that were quantised, whose result was not: of
    /// integers, too, with sums that become numbers.
    fn numbers(&mut self, id: TensorId) -> Result<Replacement, GraphError> {
        let record = self.cx.record(id);
        if record.value().is_some() || record.dtype() != DType::F32 {
            return Ok(None);
        }
        let (src, all) = (record.src().to_vec(), [i32::MIN, i32::MAX]);
        match record.op().clone() {
            Op::Conv(conv) if self.are_weighted(&src) => {
                let one_or_two = matches!(self.cx.dims(src[0]).len(), 3 | 4);
                // Each output reads at least a block of channels: of smaller groups, mostly zeros.
                let dense = conv.groups == 1 || self.cx.dims(src[1])[1] >= C_BLOCK;
                if one_or_two && dense { self.conv(&conv, &src, all) } else { Ok(None) }
            }
            Op::MatMul(product)
                if self.are_weighted(&src)
                    && !product.residual
                    && self.cx.dims(src[1]).len() == 2 =>
            {
                self.matmul(&product, &src, None, all)
            }
            Op::Binary(Binary { op: BinaryOp::Add, activation: Activation::None }) => {
                let weighted = |&y: &TensorId| {
                    let product = self.cx.record(y);
                    matches!(product.op(), Op::MatMul(op) if !op.residual)
                        && self.are_weighted(product.src())
                        && self.cx.dims(product.src()[1]).len() == 2
                };
                if src.iter().any(weighted) { self.biased(&src, all) } else { Ok(None) }
            }
            _ => Ok(None),
        }
    }

    /// Whether the first two operands are dequantised, those of a run and constant weights.
    fn are_weighted(&self, src: &[TensorId]) -> bool {
        let constant =
            |i: usize| dequantized(self.cx, src[i]).map(|x| self.cx.record(x.x).is_constant());
        // Weights of products have two dimensions.
        let [x, w] = [0, 1].map(|i| self.cx.dims(src[i]));
        let terms = if w.len() == 2 { x[x.len() - 1] } else { w[1..].iter().product() };
        [0, 1].map(constant) == [Some(false), Some(true)] && terms <= MOST_TERMS
    }

    fn is_sole(&self, id: TensorId) -> bool {
        self.uses.get(id.index()) == Some(&1) && self.cx.record(id).value().is_none()
    }

    /// The integer that stands for a number in the result.
    fn integer(&self, v: f32) -> i32 {
        let steps = (v / self.result.scale).round_ties_even();
        // The conversion saturates.
        (steps as i32).saturating_add(self.result.zero)
    }

    /// How sums become results; `None` if a factor of theirs is no number.
    fn requantize(&self, x: (f32, i32), w: &Scaled, bounds: [i32; 2]) -> Option<Requantize> {
        let quant = Requantize {
            x_zero: x.1,
            w_zeros: if w.zeros.iter().all(|z| *z == 0) { Vec::new() } else { w.zeros.clone() },
            scales: w.scales.iter().map(|s| x.0 * s / self.result.scale).collect(),
            to: self.result.to,
            zero: self.result.zero,
            bounds,
        };
        quant.scales.iter().all(|s| s.is_finite()).then_some(quant)
    }

    /// A bias in units of the sums: constant integers of that scale, or numbers, quantised or not, that are rounded
    /// where that moves no result by much. `None` if it or the sums with it may not fit 32 bits.
    fn bias(
        &mut self,
        id: TensorId,
        x: f32,
        w: &Scaled,
        k: usize,
    ) -> Result<Option<TensorId>, GraphError> {
        let unit = |i: usize| x * if w.scales.len() == 1 { w.scales[0] } else { w.scales[i] };
        // What a sum of products leaves of 32 bits.
        let signed = self.cx.dtype(w.x) == DType::I8 && w.zeros.iter().all(|z| *z == 0);
        let terms = self.cx.dims(w.x).iter().product::<usize>() / k.max(1);
        let longest = terms as i64 * 255 * if signed { 128 } else { 255 };
        let room = (i64::from(i32::MAX) - longest).max(0);
        let quantized = dequantized(self.cx, id);
        if let Some(found) = &quantized {
            let i32s = self.cx.constant_value(found.x).is_some_and(|t| t.dtype() == DType::I32);
            let zero = found.zeros.iter().all(|z| *z == 0);
            let same = |i: usize| {
                let own = if found.scales.len() == 1 { found.scales[0] } else { found.scales[i] };
                (own - unit(i)).abs() <= 1e-5 * unit(i)
            };
            let fits = self.cx.dims(found.x) == [k] && i32s && zero;
            if fits && found.scales.len() <= k && (0..k).all(same) {
                let held = self.cx.constant_value(found.x).and_then(integers).unwrap_or_default();
                let held = held.iter().all(|&b| i64::from(b).abs() <= room);
                return Ok(held.then_some(found.x));
            }
        }
        let values = match &quantized {
            Some(found) => found.numbers(self.cx).filter(|_| self.cx.dims(found.x) == [k]),
            None => self
                .cx
                .constant_value(id)
                .filter(|t| t.dims() == [k])
                .and_then(|t| Some(t.as_slice::<f32>().ok()?.to_vec())),
        };
        let Some(values) = values else { return Ok(None) };
        let steps: Vec<f32> =
            values.iter().enumerate().map(|(i, v)| (v / unit(i)).round_ties_even()).collect();
        // Numbers that the sums cannot hold stay numbers, and such that would be off by a part of a result's step.
        let near = |(i, (v, s)): (usize, (&f32, &f32))| (v - s * unit(i)).abs() <= 0.25 * self.step;
        let held = |s: &f32| f64::from(s.abs()) <= room as f64;
        if !steps.iter().all(held) || !values.iter().zip(&steps).enumerate().all(near) {
            return Ok(None);
        }
        let steps: Vec<i32> = steps.into_iter().map(|s| s as i32).collect();
        Ok(Some(self.cx.constant(Tensor::from_slice(&[k], &steps)?)?))
    }

    fn conv(
        &mut self,
        conv: &Conv,
        src: &[TensorId],
        bounds: [i32; 2],
    ) -> Result<Replacement, GraphError> {
        let (x, w) = (dequantized(self.cx, src[0]), dequantized(self.cx, src[1]));
        let (Some(x), Some(w)) = (x, w) else { return Ok(None) };
        let plain = conv.activation == Activation::None && !conv.residual;
        let (Some(single), true) = (x.single(), plain && conv.transposed.is_none()) else {
            return Ok(None);
        };
        let k = self.cx.dims(w.x)[0];
        if w.axis.is_some_and(|axis| axis != 0) || !self.bytes(&[x.x, w.x]) {
            return Ok(None);
        }
        let mut operands = vec![x.x, w.x];
        if conv.bias {
            let Some(bias) = self.bias(src[2], single.0, &w, k)? else { return Ok(None) };
            operands.push(bias);
        }
        let Some(quant) = self.requantize(single, &w, bounds) else { return Ok(None) };
        Ok(Some((QConv { conv: conv.clone(), quant }.into(), operands)))
    }

    fn matmul(
        &mut self,
        product: &MatMul,
        src: &[TensorId],
        bias: Option<TensorId>,
        bounds: [i32; 2],
    ) -> Result<Replacement, GraphError> {
        let (a, b) = (dequantized(self.cx, src[0]), dequantized(self.cx, src[1]));
        let (Some(a), Some(mut b)) = (a, b) else { return Ok(None) };
        let Some(single) = a.single().filter(|_| product.activation == Activation::None) else {
            return Ok(None);
        };
        let mut product = product.clone();
        if b.axis.is_none()
            && let Some(rows) = self.transposed_rows(b.x)?
        {
            (b.x, product.transposed_b) = (rows, !product.transposed_b);
        }
        let dims = self.cx.dims(b.x);
        let columns = if product.transposed_b { dims.len() - 2 } else { dims.len() - 1 };
        if b.axis.is_some_and(|axis| axis != columns) || !self.bytes(&[a.x, b.x]) {
            return Ok(None);
        }
        let mut operands = vec![a.x, b.x];
        let bias = bias.or_else(|| product.bias.then(|| src[2]));
        if let Some(bias) = bias {
            let n = dims[columns];
            let Some(bias) = self.bias(bias, single.0, &b, n)? else { return Ok(None) };
            operands.push(bias);
        }
        product.bias = bias.is_some();
        let Some(quant) = self.requantize(single, &b, bounds) else { return Ok(None) };
        Ok(Some((QMatMul { product, quant }.into(), operands)))
    }

    /// Bytes whose last two axes are the other way round, where that copies whole rows, or nothing, and what is
    /// asked for would gather each byte.
    fn transposed_rows(&mut self, id: TensorId) -> Result<Option<TensorId>, GraphError> {
        let (mut tables, mut from) = (Vec::new(), id);
        while let (Op::Lookup(op), None) = (self.cx.record(from).op(), self.cx.record(from).value())
        {
            tables.push(op.clone());
            from = self.cx.record(from).src()[0];
        }
        let record = self.cx.record(from);
        if !matches!(record.op(), Op::Cont(_)) || record.value().is_some() {
            return Ok(None);
        }
        let view = record.src()[0];
        let strides = self.cx.record(view).shape().strides();
        let mut axes: Vec<usize> = (0..strides.len()).collect();
        match strides[..] {
            [.., 1, last] if last > 1 => axes.swap(strides.len() - 2, strides.len() - 1),
            _ => return Ok(None),
        }
        let view = self.cx.transpose(view, &axes)?;
        let mut rows = self.cx.cont(view)?;
        for table in tables.into_iter().rev() {
            rows = self.cx.op(table, &[rows])?;
        }
        Ok(Some(rows))
    }

    /// A product to which something is added.
    fn biased(&mut self, src: &[TensorId], bounds: [i32; 2]) -> Result<Replacement, GraphError> {
        for (y, bias) in [(src[0], src[1]), (src[1], src[0])] {
            if let Op::MatMul(product) = self.cx.record(y).op().clone()
                && self.is_sole(y)
                && !product.bias
            {
                let operands = self.cx.record(y).src().to_vec();
                return self.matmul(&product, &operands, Some(bias), bounds);
            }
        }
        Ok(None)
    }

    /// A sum, difference or product of two tensors of bytes, the one of the result's shape first.
    fn pair(&self, op: BinaryOp, src: [TensorId; 2], bounds: [i32; 2]) -> Replacement {
        let (op, sign) = match op {
            BinaryOp::Add => (QbinaryOp::Add, 1.0),
            BinaryOp::Sub => (QbinaryOp::Add, -1.0),
            BinaryOp::Mul => (QbinaryOp::Mul, 1.0),
            _ => return None,
        };
        let (a, b) = (dequantized(self.cx, src[0])?, dequantized(self.cx, src[1])?);
        let ((a_scale, a_zero), (b_scale, b_zero)) = (a.single()?, b.single()?);
        let mut operands = [(a.x, a_scale, a_zero), (b.x, sign * b_scale, b_zero)];
        let fits = |[a, b]: [TensorId; 2]| repeated(&self.cx.dims(a), &self.cx.dims(b)).is_some();
        if !fits([a.x, b.x]) {
            operands.swap(0, 1);
        }
        let ([(a, a_scale, a_zero), (b, b_scale, b_zero)], result) = (operands, self.result);
        let (scales, zeros) = ([a_scale, b_scale, result.scale], [a_zero, b_zero, result.zero]);
        let op = QBinary { op, scales, zeros, to: result.to, bounds };
        let constant = [a, b].iter().all(|&x| self.cx.record(x).is_constant());
        (self.bytes(&[a, b]) && fits([a, b]) && op.is_sound() && !constant)
            .then(|| (op.into(), vec![a, b]))
    }

    fn pool(&mut self, pool: &Pool, src: &[TensorId]) -> Result<Replacement, GraphError> {
        let Some(x) = dequantized(self.cx, src[0]) else { return Ok(None) };
        let Some((scale, x_zero)) = x.single().filter(|_| self.bytes(&[x.x])) else {
            return Ok(None);
        };
        let (of, Target { to, scale: y_scale, zero }) = (self.cx.dtype(x.x), self.result);
        let ratio = scale / y_scale;
        let same = ratio == 1.0 && x_zero == zero;
        let is_max = pool.kind == PoolKind::Max;
        if is_max && (of != to || !same) && order::has_pixels(pool) {
            let table = lookup::rescaled(of, (scale, x_zero), to, (y_scale, zero));
            let most = self.cx.op(order::maximum(pool), &[x.x])?;
            return Ok(Some((table.into(), vec![most])));
        }
        let fits = of == to && (same || !is_max && ratio.is_finite());
        let op = QPool { pool: pool.clone(), x_zero, zero, scale: ratio };
        Ok(fits.then(|| (op.into(), vec![x.x])))
    }

    /// The integers behind operands, quantised as the result.
    fn joined(&mut self, src: &[TensorId]) -> Result<Option<Vec<TensorId>>, GraphError> {
        let own = |&id: &TensorId| {
            let x = dequantized(self.cx, id)?;
            let (scale, zero) = x.single()?;
            let same = (scale, zero) == (self.result.scale, self.result.zero);
            let same = same && self.cx.dtype(x.x) == self.result.to;
            let fits = same || self.bytes(&[x.x]);
            fits.then_some((x.x, (!same).then_some((scale, zero))))
        };
        let Some(found) = src.iter().map(own).collect::<Option<Vec<_>>>() else { return Ok(None) };
        let mut operands = Vec::new();
        for (x, other) in found {
            operands.push(match other {
                None => x,
                Some(from) => {
                    let Target { to, scale, zero } = self.result;
                    let table = lookup::rescaled(self.cx.dtype(x), from, to, (scale, zero));
                    self.cx.op(table, &[x])?
                }
            });
        }
        Ok(Some(operands))
    }

    fn bytes(&self, ids: &[TensorId]) -> bool {
        ids.iter().all(|&id| matches!(self.cx.dtype(id), DType::I8 | DType::U8))
    }
}

/// The bounds that an activation is; `None` for one that is more.
fn limits(activation: Activation) -> Option<[f32; 2]> {
    match activation {
        Activation::Relu => Some([0.0, f32::INFINITY]),
        Activation::Clip { min, max } => Some([min, max]),
        _ => None,
    }
}
