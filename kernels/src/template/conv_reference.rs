//! Convolution from its definition, in `f64`.

use super::conv::ConvParams;
use alloc::{vec, vec::Vec};

/// `y = conv(x) + bias` (no epilogue) of plain tensors: `x` `[n, c_in, h_in, w_in]`, `weights` in
/// ONNX order, `bias` `[c_out]` or empty, result `[n, c_out, h_out, w_out]`.
///
/// Written from the definition of ONNX `Conv` and `ConvTranspose`, one product at a time; it shares
/// no code with the kernels, and is what they are tested against.
///
/// # Panics
///
/// If a slice is shorter than its shape says.
pub fn reference(p: &ConvParams, x: &[f32], weights: &[f32], bias: &[f32]) -> Vec<f64> {
    let (cg, kg) = (p.c_in / p.groups, p.c_out / p.groups);
    let [fh, fw] = p.kernel;
    let mut y = vec![0.0f64; p.n * p.c_out * p.h_out * p.w_out];
    for n in 0..p.n {
        for k in 0..p.c_out {
            let b = bias.get(k).map_or(0.0, |&b| f64::from(b));
            y[(n * p.c_out + k) * p.h_out * p.w_out..][..p.h_out * p.w_out].fill(b);
            for cc in 0..cg {
                let c = k / kg * cg + cc;
                for r in 0..fh {
                    for s in 0..fw {
                        let at = if p.transposed {
                            ((c * kg + k % kg) * fh + r) * fw + s
                        } else {
                            ((k * cg + cc) * fh + r) * fw + s
                        };
                        add_tap(p, [n, c, k, r, s], f64::from(weights[at]), x, &mut y);
                    }
                }
            }
        }
    }
    y
}

/// Adds the products of one weight with every pixel it meets.
fn add_tap(p: &ConvParams, [n, c, k, r, s]: [usize; 5], weight: f64, x: &[f32], y: &mut [f64]) {
    let x = &x[(n * p.c_in + c) * p.h_in * p.w_in..];
    let y = &mut y[(n * p.c_out + k) * p.h_out * p.w_out..];
    // Of a convolution `small` is the output, of a transposed one the input: either way
    // `large = small * stride + tap * dilation - pad`.
    let (small, large) = if p.transposed {
        ([p.h_in, p.w_in], [p.h_out, p.w_out])
    } else {
        ([p.h_out, p.w_out], [p.h_in, p.w_in])
    };
    for i in 0..small[0] {
        for j in 0..small[1] {
            let row = i * p.stride[0] + r * p.dilation[0];
            let col = j * p.stride[1] + s * p.dilation[1];
            let (Some(row), Some(col)) = (row.checked_sub(p.pads[0]), col.checked_sub(p.pads[1]))
            else {
                continue;
            };
            if row < large[0] && col < large[1] {
                let (s, l) = (i * small[1] + j, row * large[1] + col);
                let (from, to) = if p.transposed { (s, l) } else { (l, s) };
                y[to] += f64::from(x[from]) * weight;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_hand_computed_convolutions() {
        let p = ConvParams::new([1, 1, 3, 3], 1, [2, 2]);
        let x = [1., 2., 3., 4., 5., 6., 7., 8., 9.];
        assert_eq!(reference(&p, &x, &[1., 2., 3., 4.], &[0.5]), [37.5, 47.5, 67.5, 77.5]);
        let p = p.stride([2, 2]).pads([1, 0, 0, 1]);
        assert_eq!(reference(&p, &x, &[1., 2., 3., 4.], &[]), [11., 9., 67., 33.]);
    }

    #[test]
    fn narrow_image_keeps_to_its_columns() {
        // SMaLL reads the next row here: 16 channels of ones, 4 x 1 image, 3 x 3 same.
        let p = ConvParams::new([1, 16, 4, 1], 1, [3, 3]).pads([1; 4]);
        let y = reference(&p, &[1.0; 64], &[1.0; 16 * 9], &[]);
        assert_eq!(y, [32., 48., 48., 32.]);
    }

    #[test]
    fn transposed_scatters_each_input() {
        let p = ConvParams::new([1, 1, 2, 2], 1, [2, 2]).transposed().stride([2, 2]);
        let y = reference(&p, &[1., 2., 3., 4.], &[1., 2., 3., 4.], &[]);
        assert_eq!(y, [1., 2., 2., 4., 3., 4., 6., 8., 3., 6., 4., 8., 9., 12., 12., 16.]);
    }

    #[test]
    fn groups_do_not_mix() {
        let p = ConvParams::new([1, 4, 1, 1], 2, [1, 1]).groups(2);
        assert_eq!(reference(&p, &[1., 10., 100., 1000.], &[1., 2., 3., 4.], &[]), [21., 4300.]);
    }
}
