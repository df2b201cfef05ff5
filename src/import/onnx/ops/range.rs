//! Sequences of numbers.

use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::GraphError;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::{to_f32s, to_i64s};
use crate::tensor::{DType, Tensor};

pub(super) const ROWS: &[OpRow] =
    &[OpRow::new("Range", (3, 3), &[Attr::int("stash_type").since(27)], range)
        .since(11)
        .known(&[0, 1, 2])];

/// `start`, `start + delta`, ... below `limit` (above, for a negative delta).
pub(super) fn range(cx: &mut NodeCx<'_>) -> Outputs {
    /// No shape arithmetic needs more.
    const MOST: u32 = 1 << 24;
    let number = |cx: &NodeCx<'_>, i| cx.constant_input(i)?.ok_or(NodeError::NoInput(i));
    let (start, limit) = (number(cx, 0)?, number(cx, 1)?);
    let dtype = start.dtype();
    // ONNX Runtime's own operator may have none.
    let delta = match cx.constant_input(2)? {
        Some(delta) => delta,
        None => build::scalar_tensor(dtype, 1.0)?,
    };
    let too_long = || NodeError::unsupported(format!("a range of more than {MOST} elements"));
    if let (Some(a), Some(b), Some(d)) = (to_i64s(&start), to_i64s(&limit), to_i64s(&delta)) {
        let (Some(&a), Some(&b), Some(&d)) = (a.first(), b.first(), d.first()) else {
            return Err(NodeError::invalid("start, limit and delta must be numbers"));
        };
        if d == 0 {
            return Err(NodeError::invalid("delta is 0"));
        }
        let (a, b, d) = (i128::from(a), i128::from(b), i128::from(d));
        let count = ((b - a) / d + i128::from((b - a) % d != 0)).max(0);
        let count = if (b - a).signum() == d.signum() { count } else { 0 };
        let count = u32::try_from(count).ok().filter(|&c| c <= MOST);
        let count = count.ok_or_else(too_long)?;
        // Each element lies between start and limit, so it fits.
        let element = |i: u32| i64::try_from(a + i128::from(i) * d).unwrap_or_default();
        let values: Vec<i64> = (0..count).map(element).collect();
        let values = Tensor::from_slice(&[values.len()], &values).map_err(GraphError::from)?;
        let values = cx.constant(values)?;
        return Ok(vec![cast::to(cx, values, dtype)?]);
    }
    let float = |t: &Tensor| {
        let first = match dtype {
            DType::F64 => t.as_slice::<f64>().ok().and_then(|v| v.first().copied()),
            _ => to_f32s(t).and_then(|v| v.first().copied()).map(f64::from),
        };
        first.ok_or_else(|| NodeError::invalid("start, limit and delta must be numbers"))
    };
    let (a, b, d) = (float(&start)?, float(&limit)?, float(&delta)?);
    let count = ((b - a) / d).ceil().max(0.0);
    if count.is_nan() || count > f64::from(MOST) {
        return Err(too_long());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    let values: Vec<f64> = (0..count as u32).map(|i| a + f64::from(i) * d).collect();
    let values = Tensor::from_slice(&[values.len()], &values).map_err(GraphError::from)?;
    let values = cx.constant(values)?;
    Ok(vec![cast::to(cx, values, dtype)?])
}
