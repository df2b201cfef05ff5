//! What is computed element by element between bytes and bytes, as a table.

use std::collections::HashMap;

use super::super::ops::lookup::Lookup;
use super::super::ops::requantize::is_bytes;
use super::super::{Context, GraphError, Op, TensorId};
use crate::tensor::{DType, Tensor};

/// Most records that are looked at for one table.
const MOST: usize = 48;

/// The tensor of bytes of which the quantised tensor `id` is a function element by element, and that
/// function as its references compute it: activations, sums and products with constants, also of what was
/// quantised in between, in any number.
///
/// # Errors
/// What the references refuse.
pub(super) fn table(cx: &Context, id: TensorId) -> Result<Option<(Lookup, TensorId)>, GraphError> {
    let mut cone = Cone { cx, bytes: None, order: Vec::new(), budget: MOST };
    let found = cone.compute(id);
    let (Some(bytes), true) = (cone.bytes, found) else { return Ok(None) };
    let numbers: [u8; 256] = core::array::from_fn(|i| i as u8);
    let values = match cx.dtype(bytes) {
        DType::I8 => Tensor::from_slice(&[256], &numbers.map(|b| b as i8))?,
        _ => Tensor::from_slice(&[256], &numbers)?,
    };
    // A graph of constants computes itself.
    let mut own = Context::new();
    let mut known = HashMap::from([(bytes, own.constant(values)?)]);
    for &id in &cone.order {
        let record = cx.record(id);
        let made = match (cx.constant_value(id), record.src()) {
            // Zero points and scales of one element lie in the way of nothing as scalars.
            (Some(value), _) => own.constant(value.reshaped(&[])?)?,
            (None, src) => {
                let src: Vec<TensorId> = src.iter().map(|s| known[s]).collect();
                own.op(record.op().clone(), &src)?
            }
        };
        known.insert(id, made);
    }
    let Some(value) = own.constant_value(known[&id]) else { return Ok(None) };
    let Ok(table) = <[u8; 256]>::try_from(value.bytes()) else { return Ok(None) };
    Ok(Some((Lookup { table: Box::new(table), to: cx.dtype(id) }, bytes)))
}

/// Bytes of one scale and zero point as those of others: dequantised, and quantised again.
pub(super) fn rescaled(of: DType, from: (f32, i32), to: DType, result: (f32, i32)) -> Lookup {
    let ((x_scale, x_zero), (scale, zero)) = (from, result);
    let [low, high] = if to == DType::I8 { [-128, 127] } else { [0, 255] };
    let table = core::array::from_fn(|i| {
        let x = if of == DType::I8 { i32::from(i as u8 as i8) } else { i as i32 };
        let quotient = ((x - x_zero) as f32 * x_scale / scale).round_ties_even();
        // Conversions saturate, and nothing is NaN: scales are positive and finite.
        (quotient as i32).saturating_add(zero).clamp(low, high) as u8
    });
    Lookup { table: Box::new(table), to }
}

/// What a tensor is computed from, operands first.
struct Cone<'a> {
    cx: &'a Context,
    /// The tensor that everything is a function of.
    bytes: Option<TensorId>,
    order: Vec<TensorId>,
    /// Records that may yet be looked at, which also bounds the depth.
    budget: usize,
}

impl Cone<'_> {
    /// Adds a tensor and what it needs; `false` if it is not a function of one tensor of bytes.
    fn add(&mut self, id: TensorId) -> bool {
        if self.bytes == Some(id) || self.order.contains(&id) {
            return true;
        }
        let (bytes, len) = (self.bytes, self.order.len());
        if self.compute(id) {
            return true;
        }
        self.order.truncate(len);
        let free =
            bytes.is_none() && is_bytes(self.cx.dtype(id)) && !self.cx.record(id).is_constant();
        self.bytes = if free { Some(id) } else { bytes };
        free
    }

    /// Adds a tensor that an operator computes element by element, and what it needs.
    fn compute(&mut self, id: TensorId) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let record = self.cx.record(id);
        let inside = match record.op() {
            _ if record.value().is_some() => self.is_single(id),
            Op::Quantize(op) => op.axis.is_none() && self.add_all(id),
            Op::Dequantize(op) => op.axis.is_none() && self.add_all(id),
            Op::Unary(_) | Op::Binary(_) | Op::Lookup(_) => self.add_all(id),
            _ => false,
        };
        if inside {
            self.order.push(id);
        }
        inside
    }

    /// Adds the operands of a record, if its elements are computed of those at their places and of single
    /// constants.
    fn add_all(&mut self, id: TensorId) -> bool {
        let (dims, src) = (self.cx.dims(id), self.cx.record(id).src());
        src.iter().all(|&s| (self.cx.dims(s) == dims || self.is_single(s)) && self.add(s))
    }

    /// Whether a tensor is one constant number, perhaps still quantised.
    fn is_single(&self, id: TensorId) -> bool {
        let record = self.cx.record(id);
        let constant = |id: TensorId| self.cx.record(id).is_constant();
        let known = match record.op() {
            Op::Dequantize(_) => record.src().iter().all(|&s| constant(s)),
            _ => constant(id),
        };
        known && self.cx.dims(id).iter().all(|&n| n == 1)
    }
}
