//! Depthwise convolution and pooling of bytes from their definitions, in `i64`.

use super::pool::PoolOp;
use super::qdepthwise::QdepthwiseParams;
use super::qmatmul_reference::finish;
use super::qpool::QpoolParams;
use crate::pack::blocked_index;
use crate::quant::{Bytes, QuantColumns, QuantOutput};
use alloc::{vec, vec::Vec};

/// The results, plain `[n, c, h_out, w_out]`. `x` is blocked, `w` and its zero points are as for the
/// plan.
///
/// Shares no code with the kernels; they are tested against it.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn depthwise(
    p: &QdepthwiseParams,
    x: Bytes<'_>,
    w: Bytes<'_>,
    w_zero_points: &[i32],
    columns: &QuantColumns<'_>,
) -> Vec<f64> {
    let c = &p.conv;
    let mut y = vec![0.0; c.n * c.c * c.h_out * c.w_out];
    for (i, y) in y.iter_mut().enumerate() {
        let (column, row) = (i % c.w_out, i / c.w_out % c.h_out);
        let (image, k) = (i / c.w_out / c.h_out / c.c, i / c.w_out / c.h_out % c.c);
        let w_zero = match w_zero_points {
            [] => 0,
            [one] => *one,
            all => all[k],
        };
        let mut sum = columns.bias.get(k).map_or(0, |b| i64::from(*b));
        for (r, s) in (0..c.kernel[0]).flat_map(|r| (0..c.kernel[1]).map(move |s| (r, s))) {
            let h = (row * c.stride[0] + r * c.dilation[0]) as isize - c.pads[0] as isize;
            let v = (column * c.stride[1] + s * c.dilation[1]) as isize - c.pads[1] as isize;
            if (0..c.h_in as isize).contains(&h) && (0..c.w_in as isize).contains(&v) {
                let at = [image, k, h as usize, v as usize];
                let pixel = x.get(blocked_index([c.n, c.c, c.h_in, c.w_in], at));
                let weight = w.get((k * c.kernel[0] + r) * c.kernel[1] + s);
                sum += i64::from(pixel - p.x_zero_point) * i64::from(weight - w_zero);
            }
        }
        let scale = match columns.scales {
            [one] => *one,
            all => all[k],
        };
        *y = finish(p.output, sum, scale, 0.0);
    }
    y
}

/// The results, plain `[n, c, h_out, w_out]`; `x` is blocked.
///
/// Shares no code with the kernels; they are tested against it.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn pool(p: &QpoolParams, x: Bytes<'_>) -> Vec<f64> {
    let s = &p.pool;
    let mut y = vec![0.0; s.n * s.c * s.h_out * s.w_out];
    let (least, output) = match x {
        Bytes::I8(_) => (i64::from(i8::MIN), QuantOutput::i8(p.y_zero_point as i8)),
        Bytes::U8(_) => (0, QuantOutput::u8(p.y_zero_point as u8)),
    };
    for (i, y) in y.iter_mut().enumerate() {
        let (column, row) = (i % s.w_out, i / s.w_out % s.h_out);
        let (image, c) = (i / s.w_out / s.h_out / s.c, i / s.w_out / s.h_out % s.c);
        let (mut sum, mut largest, mut inside, mut padded) = (0, least, 0, 0);
        for (r, q) in (0..s.kernel[0]).flat_map(|r| (0..s.kernel[1]).map(move |q| (r, q))) {
            let h = row * s.stride[0] + r * s.dilation[0];
            let v = column * s.stride[1] + q * s.dilation[1];
            let in_padded =
                h < s.h_in + s.pads[0] + s.pads[2] && v < s.w_in + s.pads[1] + s.pads[3];
            padded += i64::from(in_padded);
            let (h, v) = (h as isize - s.pads[0] as isize, v as isize - s.pads[1] as isize);
            if (0..s.h_in as isize).contains(&h) && (0..s.w_in as isize).contains(&v) {
                let at = [image, c, h as usize, v as usize];
                let pixel = x.get(blocked_index([s.n, s.c, s.h_in, s.w_in], at));
                largest = largest.max(i64::from(pixel));
                sum += i64::from(pixel - p.x_zero_point);
                inside += 1;
            }
        }
        *y = match s.op {
            PoolOp::Max => largest as f64,
            PoolOp::Average { count_include_pad } => {
                let count = if count_include_pad { padded } else { inside };
                finish(output, sum, p.scale / count.max(1) as f32, 0.0)
            }
        };
    }
    y
}
