//! Transposed convolutions.

use tilewright_kernels::Activation;

use super::conv::{AUTO_PAD, Window, groups, list, pair, split, too_large, without_kernel};
use super::{NodeCx, OpRow, Outputs, windows};
use crate::graph::ops::conv::Conv;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;

pub(super) const ROWS: &[OpRow] = &[OpRow::new(
    "ConvTranspose",
    (2, 3),
    &[
        AUTO_PAD,
        Attr::ints("dilations"),
        Attr::int("group"),
        Attr::ints("kernel_shape"),
        Attr::ints("output_padding"),
        Attr::ints("output_shape"),
        Attr::ints("pads"),
        Attr::ints("strides"),
    ],
    conv_transpose,
)];

/// `output_shape` and `SAME_*` determine padding from the size of the output; what is left over
/// or missing becomes padding or extra cells at one end.
fn conv_transpose(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    if without_kernel(cx, x) {
        let groups = groups(cx)?;
        return windows::transposed(cx, groups);
    }
    let (xd, wd) = (cx.dims(x), cx.dims(w));
    let mut window = Window::read(cx, &xd, wd.get(2..).unwrap_or_default())?;
    let rank = xd.len().saturating_sub(2);
    let mut extra = pair(&list(cx, "output_padding", rank, 0, true)?, 0);
    let wanted = match cx.ints("output_shape") {
        Some(shape) => {
            // Some exporters give batch and channels, too.
            let spatial = shape.get(shape.len().saturating_sub(rank)..).unwrap_or_default();
            let spatial: Result<Vec<usize>, NodeError> =
                spatial.iter().map(|&d| build::extent(d, "output_shape")).collect();
            let spatial = spatial?;
            if spatial.len() != rank {
                let what = format!("output_shape {shape:?} must have {rank} elements");
                return Err(NodeError::invalid(what));
            }
            Some(pair(&spatial, 1))
        }
        None if window.same.is_some() => {
            let mut out = [0; 2];
            for ((out, &input), &stride) in out.iter_mut().zip(&window.input).zip(&window.stride) {
                *out = input.checked_mul(stride).ok_or_else(too_large)?;
            }
            Some(out)
        }
        None => None,
    };
    if let Some(wanted) = wanted {
        // The specification puts the odd cell at the end for SAME_UPPER only.
        let upper = window.same == Some(true);
        let mut pads = [0; 4];
        for i in 0..2 {
            let sizes = (|| {
                let (input, stride) = (*window.input.get(i)?, *window.stride.get(i)?);
                let full = input.checked_sub(1)?.checked_mul(stride)?;
                let full = full.checked_add(window.reach(i)?)?.checked_add(*extra.get(i)?)?;
                Some((full, *wanted.get(i)?))
            })();
            let (full, wanted) = sizes.ok_or_else(too_large)?;
            split(&mut pads, i, full.saturating_sub(wanted), upper);
            if let Some(extra) = extra.get_mut(i) {
                *extra = extra.checked_add(wanted.saturating_sub(full)).ok_or_else(too_large)?;
            }
        }
        window.pads = pads;
    }
    let bias = cx.opt(2);
    let op = Conv {
        stride: window.stride,
        dilation: window.dilation,
        pads: window.pads,
        groups: groups(cx)?,
        transposed: Some(extra),
        bias: bias.is_some(),
        residual: false,
        activation: Activation::None,
    };
    let src: Vec<_> = [x, w].into_iter().chain(bias).collect();
    Ok(vec![cx.op(op, &src)?])
}
