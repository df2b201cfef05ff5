//! Convolutions.

use tilewright_kernels::Activation;

use super::{NodeCx, OpRow, Outputs, windows};
use crate::graph::TensorId;
use crate::graph::ops::conv::Conv;
use crate::import::NodeError;
use crate::import::onnx::attr::Attr;
use crate::import::onnx::build;
use crate::tensor::DType;

pub(super) const AUTO_PAD: Attr =
    Attr::string("auto_pad").one_of(&["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]);

pub(super) const ROWS: &[OpRow] = &[OpRow::new(
    "Conv",
    (2, 3),
    &[
        AUTO_PAD,
        Attr::ints("dilations"),
        Attr::int("group"),
        Attr::ints("kernel_shape"),
        Attr::ints("pads"),
        Attr::ints("strides"),
    ],
    conv,
)];

/// Where a window goes over an image of one or two dimensions; a missing height is 1.
pub(super) struct Window {
    /// `[h, w]` of the input.
    pub(super) input: [usize; 2],
    /// `[h, w]` of the window.
    pub(super) size: [usize; 2],
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    /// Explicit padding: top, left, bottom, right.
    pub(super) pads: [usize; 4],
    /// Whether padding is to be derived, and whether an odd cell goes to the end.
    pub(super) same: Option<bool>,
}

impl Window {
    /// Reads the attributes that convolutions and pools share. `size` has one or two extents.
    pub(super) fn read(cx: &NodeCx<'_>, x: &[usize], size: &[usize]) -> Result<Self, NodeError> {
        let spatial = x.get(2..).unwrap_or_default();
        let rank = spatial.len();
        if !(1..=2).contains(&rank) {
            return Err(match rank {
                0 => NodeError::invalid(format!("x {x:?} has no spatial dimension")),
                _ => NodeError::unsupported(format!("x {x:?} of {rank} spatial dimensions")),
            });
        }
        if size.len() != rank {
            return Err(NodeError::invalid(format!("window {size:?} does not fit x {x:?}")));
        }
        if let Some(declared) = cx.ints("kernel_shape") {
            let same = declared.len() == rank
                && declared.iter().zip(size).all(|(&d, &s)| usize::try_from(d) == Ok(s));
            if !same {
                let what = format!("kernel_shape {declared:?} differs from the weights' {size:?}");
                return Err(NodeError::invalid(what));
            }
        }
        let auto = cx.string("auto_pad", "NOTSET");
        let pads = match auto.as_str() {
            "NOTSET" => pairs(&list(cx, "pads", 2 * rank, 0, true)?, 0),
            _ => [0; 4],
        };
        Ok(Self {
            input: pair(spatial, 1),
            size: pair(size, 1),
            stride: pair(&list(cx, "strides", rank, 1, false)?, 1),
            dilation: pair(&list(cx, "dilations", rank, 1, false)?, 1),
            pads,
            same: match auto.as_str() {
                "SAME_UPPER" => Some(true),
                "SAME_LOWER" => Some(false),
                _ => None,
            },
        })
    }

    /// Cells from the first tap of a window to one past its last; `None` on overflow.
    pub(super) fn reach(&self, i: usize) -> Option<usize> {
        let (size, dilation) = (*self.size.get(i)?, *self.dilation.get(i)?);
        size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)
    }

    /// Padding so that the output has `ceil(input / stride)` cells, where asked for.
    pub(super) fn resolve_same(&mut self) -> Result<(), NodeError> {
        let Some(upper) = self.same else { return Ok(()) };
        let mut pads = [0; 4];
        for i in 0..2 {
            let total = (|| {
                let (input, stride) = (*self.input.get(i)?, *self.stride.get(i)?);
                let last = input.div_ceil(stride).checked_sub(1)?.checked_mul(stride)?;
                Some(last.checked_add(self.reach(i)?)?.saturating_sub(input))
            })();
            let total = total.ok_or_else(too_large)?;
            split(&mut pads, i, total, upper);
        }
        self.pads = pads;
        Ok(())
    }
}

pub(super) fn too_large() -> NodeError {
    NodeError::invalid("the window or its distances are too large")
}

/// Halves padding along dimension `i`; an odd cell goes to the end if `upper`.
pub(super) fn split(pads: &mut [usize; 4], i: usize, total: usize, upper: bool) {
    let (small, large) = (total / 2, total - total / 2);
    let (begin, end) = if upper { (small, large) } else { (large, small) };
    for (at, value) in [(i, begin), (i + 2, end)] {
        if let Some(slot) = pads.get_mut(at) {
            *slot = value;
        }
    }
}

/// `[h, w]` from one or two values.
pub(super) fn pair(list: &[usize], height: usize) -> [usize; 2] {
    match *list {
        [w] => [height, w],
        [h, w, ..] => [h, w],
        [] => [height, height],
    }
}

/// `[top, left, bottom, right]` from begins, then ends, of one or two dimensions.
fn pairs(list: &[usize], height: usize) -> [usize; 4] {
    match *list {
        [left, right] => [height, left, height, right],
        [top, left, bottom, right] => [top, left, bottom, right],
        _ => [0; 4],
    }
}

/// A list of `len` numbers, `default` each if the attribute is absent.
pub(super) fn list(
    cx: &NodeCx<'_>,
    name: &str,
    len: usize,
    default: usize,
    zero: bool,
) -> Result<Vec<usize>, NodeError> {
    let Some(given) = cx.ints(name) else { return Ok(vec![default; len]) };
    let out: Option<Vec<usize>> =
        given.iter().map(|&v| usize::try_from(v).ok().filter(|&v| zero || v > 0)).collect();
    match out {
        Some(out) if out.len() == len => Ok(out),
        _ if given.len() != len => {
            Err(NodeError::invalid(format!("{name} {given:?} must have {len} elements")))
        }
        _ if given.iter().any(|&v| v < 0) && zero => {
            Err(NodeError::unsupported(format!("negative {name} {given:?}")))
        }
        _ => Err(NodeError::invalid(format!("{name} {given:?} must be positive"))),
    }
}

pub(super) fn groups(cx: &NodeCx<'_>) -> Result<usize, NodeError> {
    build::extent(cx.int("group", 1), "group")
}

/// Whether the kernels do not serve the rank or the type of `x`.
pub(super) fn without_kernel(cx: &NodeCx<'_>, x: TensorId) -> bool {
    cx.rank(x) > 4 || cx.dtype(x) != DType::F32
}

pub(super) fn conv(cx: &mut NodeCx<'_>) -> Outputs {
    let (x, w) = (cx.input(0)?, cx.input(1)?);
    let (xd, wd) = (cx.dims(x), cx.dims(w));
    let bias = cx.opt(2);
    if without_kernel(cx, x) {
        let src: Vec<_> = [x, w].into_iter().chain(bias).collect();
        let groups = groups(cx)?;
        return Ok(vec![windows::convolution(cx, &src, groups)?]);
    }
    let op = operator(cx, &xd, &wd, bias.is_some())?;
    let src: Vec<_> = [x, w].into_iter().chain(bias).collect();
    Ok(vec![cx.op(op, &src)?])
}

/// The convolution that the node's attributes describe, for these extents of x and weights.
pub(super) fn operator(
    cx: &NodeCx<'_>,
    x: &[usize],
    w: &[usize],
    bias: bool,
) -> Result<Conv, NodeError> {
    let mut window = Window::read(cx, x, w.get(2..).unwrap_or_default())?;
    window.resolve_same()?;
    Ok(Conv {
        stride: window.stride,
        dilation: window.dilation,
        pads: window.pads,
        groups: groups(cx)?,
        transposed: None,
        bias,
        residual: false,
        activation: Activation::None,
    })
}
