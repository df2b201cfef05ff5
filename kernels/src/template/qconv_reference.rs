//! The convolution of bytes from its definition, in `i64`.

use super::conv::InputLayout;
use super::qconv::QconvParams;
use super::qmatmul_reference::finish;
use crate::pack::blocked_index;
use crate::quant::{Bytes, QuantColumns};
use alloc::{vec, vec::Vec};

/// The results, plain `[n, c_out, h_out, w_out]`, before an activation; bytes and sums exactly, `f32`
/// as its value. `x` is in its layout, `w` and its zero points are as for the plan.
///
/// Shares no code with the kernels; they are tested against it.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn reference(
    p: &QconvParams,
    x: Bytes<'_>,
    w: Bytes<'_>,
    w_zero_points: &[i32],
    columns: &QuantColumns<'_>,
) -> Vec<f64> {
    let c = &p.conv;
    let (c_group, k_group) = (c.c_in / c.groups, c.c_out / c.groups);
    let mut y = vec![0.0; c.n * c.c_out * c.h_out * c.w_out];
    for (i, y) in y.iter_mut().enumerate() {
        let (row, column) = (i / c.w_out % c.h_out, i % c.w_out);
        let (image, k) = (i / c.w_out / c.h_out / c.c_out, i / c.w_out / c.h_out % c.c_out);
        let one_or_own = |all: &[i32]| match all {
            [] => 0,
            [one] => *one,
            all => all[k],
        };
        let mut sum = columns.bias.get(k).map_or(0, |b| i64::from(*b));
        for tap in 0..c_group * c.kernel[0] * c.kernel[1] {
            let (r, s) = (tap / c.kernel[1] % c.kernel[0], tap % c.kernel[1]);
            let h = (row * c.stride[0] + r * c.dilation[0]) as isize - c.pads[0] as isize;
            let w_at = (column * c.stride[1] + s * c.dilation[1]) as isize - c.pads[1] as isize;
            let inside = (0..c.h_in as isize).contains(&h) && (0..c.w_in as isize).contains(&w_at);
            if !inside {
                continue;
            }
            let channel = k / k_group * c_group + tap / c.kernel[1] / c.kernel[0];
            let (h, w_at) = (h as usize, w_at as usize);
            let at = match c.input {
                InputLayout::Interleaved => {
                    ((image * c.h_in + h) * c.w_in + w_at) * c.c_in + channel
                }
                InputLayout::Blocked => {
                    let shape = [c.n, c.c_in, c.h_in, c.w_in];
                    blocked_index(shape, [image, channel, h, w_at])
                }
            };
            let weight = w.get(k * c_group * c.kernel[0] * c.kernel[1] + tap);
            sum += i64::from(x.get(at) - p.x_zero_point)
                * i64::from(weight - one_or_own(w_zero_points));
        }
        let scale = match columns.scales {
            [] => 0.0,
            [one] => *one,
            all => all[k],
        };
        *y = finish(p.output, sum, scale, columns.shifts.get(k).copied().unwrap_or(0.0));
    }
    y
}
