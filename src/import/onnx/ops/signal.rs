//! Fourier transforms and what goes with them.

use core::f64::consts::TAU;

use tilewright_kernels::template::binary::BinaryOp;

use super::select::take;
use super::{NodeCx, OpRow, Outputs, cast};
use crate::graph::ops::dft::Dft;
use crate::graph::{GraphError, Info, TensorId};
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::import::onnx::data::{to_f32s, to_i64s};
use crate::tensor::{DType, Tensor};

const WINDOW: &[Attr] = &[Attr::int("output_datatype"), Attr::int("periodic")];

pub(super) const ROWS: &[OpRow] = &[
    OpRow::new("BlackmanWindow", (1, 1), WINDOW, |cx| {
        window(cx, |x| 0.42 - 0.5 * libm::cos(x) + 0.08 * libm::cos(2.0 * x))
    })
    .since(17)
    .known(&[0]),
    OpRow::new(
        "DFT",
        (1, 2),
        &[Attr::int("axis"), Attr::int("inverse"), Attr::int("onesided")],
        dft,
    )
    .since(17)
    .until(19)
    .known(&[1]),
    OpRow::new("DFT", (1, 3), &[Attr::int("inverse"), Attr::int("onesided")], dft)
        .since(20)
        .known(&[1, 2]),
    OpRow::new("HammingWindow", (1, 1), WINDOW, |cx| {
        window(cx, |x| 25.0 / 46.0 - 21.0 / 46.0 * libm::cos(x))
    })
    .since(17)
    .known(&[0]),
    OpRow::new("HannWindow", (1, 1), WINDOW, |cx| window(cx, |x| 0.5 - 0.5 * libm::cos(x)))
        .since(17)
        .known(&[0]),
    OpRow::new("MelWeightMatrix", (5, 5), &[Attr::int("output_datatype")], mel_weight_matrix)
        .since(17)
        .known(&[0, 1, 2, 3, 4]),
    OpRow::new("STFT", (2, 4), &[Attr::int("onesided")], stft).since(17).known(&[1, 3]),
];

/// The only element of an integer that must be known now; `None` if the input is absent.
fn whole(cx: &NodeCx<'_>, i: usize) -> Result<Option<i64>, NodeError> {
    let Some(t) = cx.constant_input(i)? else { return Ok(None) };
    match to_i64s(&t).as_deref() {
        Some(&[v]) => Ok(Some(v)),
        _ => Err(NodeError::invalid(format!("input {i} must be one integer"))),
    }
}

fn positive(cx: &NodeCx<'_>, i: usize, what: &str) -> Result<Option<usize>, NodeError> {
    let Some(v) = whole(cx, i)? else { return Ok(None) };
    match build::extent(v, what)? {
        0 => Err(NodeError::invalid(format!("{what} is 0"))),
        n => Ok(Some(n)),
    }
}

/// `f` of angles around a circle, one per element; of a symmetric window the last is the first.
fn window(cx: &mut NodeCx<'_>, f: impl Fn(f64) -> f64) -> Outputs {
    let size = build::extent(whole(cx, 0)?.ok_or(NodeError::NoInput(0))?, "size")?;
    cx.spend(&Info::plain(DType::F64, vec![size]))?;
    let turn = if cx.flag("periodic", true) { size } else { size.saturating_sub(1).max(1) };
    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    let values: Vec<f64> = (0..size).map(|i| f(TAU * i as f64 / turn as f64)).collect();
    let values = Tensor::from_slice(&[size], &values).map_err(GraphError::from)?;
    let values = cx.constant(values)?;
    let dtype = cast::dtype_of(cx.int("output_datatype", 1))?;
    Ok(vec![cast::to(cx, values, dtype)?])
}

fn dft(cx: &mut NodeCx<'_>) -> Outputs {
    let x = cx.input(0)?;
    let dims = cx.dims(x);
    let axis = match whole(cx, 2)? {
        Some(axis) => axis,
        None => cx.int("axis", if cx.opset() < 20 { 1 } else { -2 }),
    };
    let axis = build::axis(axis, dims.len())?;
    let (inverse, onesided) = (cx.flag("inverse", false), cx.flag("onesided", false));
    let extent = dims.get(axis).copied().unwrap_or(0);
    let length = match positive(cx, 1, "dft_length")? {
        Some(length) => length,
        None if inverse && onesided => extent.saturating_sub(1).saturating_mul(2),
        None => extent,
    };
    transform(cx, Dft { axis, length, inverse, onesided }, x)
}

/// The transform, counted among constants for what it keeps: a small file can ask for many.
fn transform(cx: &mut NodeCx<'_>, op: Dft, x: TensorId) -> Outputs {
    cx.spend(&op.kept())?;
    Ok(vec![cx.op(op, &[x])?])
}

/// Transforms of overlapping frames of signals `[batch, length, 1 or 2]`; exporters leave the 1 out.
fn stft(cx: &mut NodeCx<'_>) -> Outputs {
    let mut x = cx.input(0)?;
    let dims = cx.dims(x);
    let (batch, length, parts) = match dims[..] {
        [batch, length, parts] => (batch, length, parts),
        [batch, length] => (batch, length, 1),
        _ => {
            let what = format!("a signal {dims:?} must be [batch, length, 1 or 2]");
            return Err(NodeError::invalid(what));
        }
    };
    x = cx.reshape(x, &[batch, length, parts])?;
    let step = positive(cx, 1, "frame_step")?.ok_or(NodeError::NoInput(1))?;
    let window = cx.opt(2);
    let frame = match (positive(cx, 3, "frame_length")?, window.map(|w| cx.dims(w))) {
        (Some(n), None) => n,
        (None, Some(w)) => w.first().copied().unwrap_or(0),
        (Some(n), Some(w)) if w == [n] => n,
        (n, w) => return Err(NodeError::invalid(format!("frames of {n:?} for a window {w:?}"))),
    };
    let count = length.checked_sub(frame).map_or(0, |room| room / step + 1);
    if count == 0 || frame == 0 {
        return Err(NodeError::invalid(format!("frames of {frame} of a signal {dims:?}")));
    }
    let total = count.checked_mul(frame);
    let total = total.ok_or_else(|| NodeError::invalid("frames are too long"))?;
    let at = (0..total).map(|i| i / frame * step + i % frame);
    let frames = take(cx, x, 1, at, total)?;
    let mut frames = cx.reshape(frames, &[batch, count, frame, parts])?;
    if let Some(window) = window {
        let window = cx.reshape(window, &[frame, 1])?;
        frames = cx.binary(BinaryOp::Mul, frames, window)?;
    }
    // The other half of the frequencies follows for real signals only.
    let onesided = cx.flag("onesided", true);
    transform(cx, Dft { axis: 2, length: frame, inverse: false, onesided }, frames)
}

/// Triangles over the frequencies of a transform, evenly spaced in mels.
fn mel_weight_matrix(cx: &mut NodeCx<'_>) -> Outputs {
    let int = |cx: &NodeCx<'_>, i| whole(cx, i)?.ok_or(NodeError::NoInput(i));
    let float = |cx: &NodeCx<'_>, i| -> Result<f64, NodeError> {
        let t = cx.constant_input(i)?.ok_or(NodeError::NoInput(i))?;
        match to_f32s(&t).as_deref() {
            Some(&[v]) => Ok(f64::from(v)),
            _ => Err(NodeError::invalid(format!("input {i} must be one number"))),
        }
    };
    let bins = build::extent(int(cx, 0)?, "num_mel_bins")?;
    let length = build::extent(int(cx, 1)?, "dft_length")?;
    let rate = build::extent(int(cx, 2)?, "sample_rate")?;
    let (low, high) = (float(cx, 3)?, float(cx, 4)?);
    let rows = length / 2 + 1;
    cx.spend(&Info::plain(DType::F64, vec![rows, bins.saturating_add(2)]))?;
    let mel = |hertz: f64| 2595.0 * libm::log10(1.0 + hertz / 700.0);
    #[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
    let (step, scale) =
        ((mel(high) - mel(low)) / (bins as f64 + 2.0), (length as f64 + 1.0) / rate as f64);
    let mut corners = Vec::new();
    for i in 0..bins + 2 {
        #[allow(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
        let hertz = 700.0 * (libm::pow(10.0, (mel(low) + i as f64 * step) / 2595.0) - 1.0);
        let corner = (scale * hertz).floor();
        #[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
        let inside = (0.0..rows as f64).contains(&corner);
        if !inside {
            return Err(NodeError::invalid(format!("a frequency of {hertz} at {rate} samples")));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        corners.push(corner as usize);
    }
    let mut values = vec![0f64; rows * bins];
    for (bin, corner) in corners.windows(3).enumerate() {
        let &[left, centre, right] = corner else { continue };
        let mut set = |row: usize, value: f64| {
            if let Some(slot) = values.get_mut(row * bins + bin) {
                *slot = value;
            }
        };
        #[allow(clippy::cast_precision_loss, reason = "lengths are far below 2^53")]
        let share = |part: usize, of: usize| part as f64 / of as f64;
        if left == centre {
            set(centre, 1.0);
        } else {
            (left..=centre).for_each(|row| set(row, share(row - left, centre - left)));
        }
        (centre..right).for_each(|row| set(row, share(right - row, right - centre)));
    }
    let values = Tensor::from_slice(&[rows, bins], &values).map_err(GraphError::from)?;
    let values = cx.constant(values)?;
    let dtype = cast::dtype_of(cx.int("output_datatype", 1))?;
    Ok(vec![cast::to(cx, values, dtype)?])
}
