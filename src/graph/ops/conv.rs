//! Convolution and transposed convolution over one or two spatial dimensions.

use tilewright_kernels::template::conv_first::FirstConvPlan;
use tilewright_kernels::template::plane::PlanePlan;
use tilewright_kernels::template::pointwise::PointwisePlan;
use tilewright_kernels::{Activation, C_BLOCK};

use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

pub(super) mod lower;

/// Convolution (cross-correlation, as ONNX `Conv`) or its transpose (`ConvTranspose`).
///
/// Operands: `x [n, c, spatial...]`, weights `[k, c / groups, window...]` (transposed: `[c, k /
/// groups, window...]`), then `bias [k]` if [`Conv::bias`], then a tensor of the result's shape if
/// [`Conv::residual`], which is added before the activation. One spatial dimension counts as a
/// height of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Distance of windows, `[h, w]`; transposed: distance of outputs.
    pub stride: [usize; 2],
    /// Distance of taps.
    pub dilation: [usize; 2],
    /// Virtual zero pixels: top, left, bottom, right.
    pub pads: [usize; 4],
    /// Groups of channels that do not mix.
    pub groups: usize,
    /// Extra rows and columns at the end of a transposed convolution's result; `None` for a
    /// convolution that is not transposed.
    pub transposed: Option<[usize; 2]>,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether there is a tensor to add.
    pub residual: bool,
    /// Applied last.
    pub activation: Activation,
}

impl Default for Conv {
    fn default() -> Self {
        Self {
            stride: [1; 2],
            dilation: [1; 2],
            pads: [0; 4],
            groups: 1,
            transposed: None,
            bias: false,
            residual: false,
            activation: Activation::None,
        }
    }
}

/// Sizes of one convolution with the height made explicit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) n: usize,
    pub(crate) c: usize,
    pub(crate) k: usize,
    pub(crate) input: [usize; 2],
    pub(crate) window: [usize; 2],
    pub(crate) output: [usize; 2],
}

const OP: &str = "conv";

impl Conv {
    /// Position of the tensor to add among the operands.
    pub fn residual_operand(&self) -> Option<usize> {
        self.residual.then_some(2 + usize::from(self.bias))
    }

    pub(crate) fn sizes(&self, x: &[usize], w: &[usize]) -> Result<Sizes, GraphError> {
        let mismatch = |rule| GraphError::mismatch(OP, rule, &[("x", x), ("weights", w)]);
        if !matches!(x.len(), 3 | 4) || x.len() != w.len() {
            return Err(mismatch("x and weights must both have 1 or both 2 spatial dimensions"));
        }
        let spatial =
            |dims: &[usize]| if dims.len() == 3 { [1, dims[2]] } else { [dims[2], dims[3]] };
        let (input, window) = (spatial(x), spatial(w));
        let g = self.groups;
        let attribute = |attribute, reason: &str| {
            Err(GraphError::InvalidAttribute { op: OP, attribute, reason: reason.to_owned() })
        };
        if g == 0 {
            return attribute("group", "must not be 0");
        }
        if self.stride.contains(&0) || self.dilation.contains(&0) {
            return attribute("strides, dilations", "must not be 0");
        }
        if window.contains(&0) {
            return Err(mismatch("the window must not be empty"));
        }
        let (c, k) = if self.transposed.is_some() {
            (w[0], w[1].checked_mul(g).ok_or_else(|| mismatch("k overflows"))?)
        } else {
            (w[1].checked_mul(g).ok_or_else(|| mismatch("c overflows"))?, w[0])
        };
        if c != x[1] || c % g != 0 || k % g != 0 {
            return Err(mismatch("channels and groups of x and weights must agree"));
        }
        let mut output = [0; 2];
        for i in 0..2 {
            output[i] = self
                .output_extent(i, input[i], window[i])
                .ok_or_else(|| mismatch("the window must fit into the padded input"))?;
        }
        Ok(Sizes { n: x[0], c, k, input, window, output })
    }

    /// Output rows (`i` = 0) or columns (`i` = 1); `None` if the window does not fit.
    fn output_extent(&self, i: usize, input: usize, window: usize) -> Option<usize> {
        let reach = self.dilation[i].checked_mul(window - 1)?.checked_add(1)?;
        let pads = self.pads[i].checked_add(self.pads[i + 2])?;
        match self.transposed {
            None => {
                let padded = input.checked_add(pads)?;
                Some(padded.checked_sub(reach)? / self.stride[i] + 1)
            }
            Some(extra) => self.stride[i]
                .checked_mul(input.checked_sub(1)?)?
                .checked_add(reach)?
                .checked_add(extra[i])?
                .checked_sub(pads),
        }
    }

    /// Whether there is a kernel for plain tensors, which needs weights and bias that are constants.
    fn on_planes(&self, s: &Sizes) -> bool {
        self.is_depthwise(s) && PlanePlan::depthwise_pays(&lower::depthwise_params(self, s))
    }

    /// Whether each channel has one filter of its own.
    pub(super) fn is_depthwise(&self, s: &Sizes) -> bool {
        self.transposed.is_none() && self.groups == s.c && s.c == s.k && s.c > 1
    }
}

impl Operator for Conv {
    fn name(&self) -> &'static str {
        if self.transposed.is_some() { "conv_transpose" } else { OP }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=4, "x, weights, bias and residual as flagged")?;
        let (x, w) = (&src[0], &src[1]);
        if let Some(bad) = src.iter().find(|s| s.dtype != DType::F32) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        let s = self.sizes(&x.dims, &w.dims)?;
        if self.bias && src[2].dims != [s.k] {
            return Err(GraphError::mismatch(
                OP,
                "the bias must have one element per output channel",
                &[("weights", &w.dims), ("bias", &src[2].dims)],
            ));
        }
        let mut dims = vec![s.n, s.k];
        dims.extend_from_slice(if x.dims.len() == 3 { &s.output[1..] } else { &s.output });
        if let Some(i) = self.residual_operand()
            && src[i].dims != dims
        {
            return Err(GraphError::mismatch(
                OP,
                "the tensor to add must have the result's shape",
                &[("result", &dims), ("residual", &src[i].dims)],
            ));
        }
        Ok(Info::plain(DType::F32, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let s = self.sizes(src[0].dims, src[1].dims)?;
        let (x, w) = (src[0].slice::<f32>(OP)?, src[1].slice::<f32>(OP)?);
        let bias = if self.bias { Some(src[2].slice::<f32>(OP)?) } else { None };
        let residual = match self.residual_operand() {
            Some(i) => Some(src[i].slice::<f32>(OP)?),
            None => None,
        };
        let y = dst.slice::<f32>(OP)?;
        let (cg, kg) = (s.c / self.groups, s.k / self.groups);
        let [oh, ow] = s.output;
        for (i, y) in y.iter_mut().enumerate() {
            let (ox, oy, k, n) = (i % ow, i / ow % oh, i / (ow * oh) % s.k, i / (ow * oh * s.k));
            let g = k / kg;
            let mut sum = bias.map_or(0.0, |b| f64::from(b[k]));
            for r in 0..s.window[0] {
                let Some(iy) = self.source(0, oy, r, s.input[0]) else { continue };
                for q in 0..s.window[1] {
                    let Some(ix) = self.source(1, ox, q, s.input[1]) else { continue };
                    for c in 0..cg {
                        let xi = ((n * s.c + g * cg + c) * s.input[0] + iy) * s.input[1] + ix;
                        let filter = if self.transposed.is_some() {
                            (g * cg + c) * kg + k % kg
                        } else {
                            k * cg + c
                        };
                        let wi = (filter * s.window[0] + r) * s.window[1] + q;
                        sum += f64::from(x[xi]) * f64::from(w[wi]);
                    }
                }
            }
            let sum = sum as f32 + residual.map_or(0.0, |r| r[i]);
            *y = super::unary::activate(self.activation, sum);
        }
        Ok(())
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        lower::lower(self, cx)
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let plain = cx.src[0].layout == Layout::Plain;
        match self.sizes(&cx.src[0].dims, &cx.src[1].dims) {
            Ok(s) if plain && self.has_kernel(cx.constant, cx.dst) && self.is_first(&s) => {
                LayoutRule::Blocked(Vec::new())
            }
            _ => self.usual_layouts(cx),
        }
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        // Each weight meets each pixel of the output (transposed: of the input) once.
        let pixels = if self.transposed.is_some() { src[0].ncs() } else { dst.ncs() };
        let weights: usize = src[1].dims.iter().product();
        weights as u64 * (pixels.0 * pixels.2) as u64
    }
}

impl Conv {
    /// The layouts of all kernels but those that [`is_first`](Self::is_first) is about.
    pub(super) fn usual_layouts(&self, cx: &RuleCx<'_>) -> LayoutRule {
        let Ok(s) = self.sizes(&cx.src[0].dims, &cx.src[1].dims) else { return LayoutRule::Plain };
        if !self.has_kernel(cx.constant, cx.dst) {
            return LayoutRule::Plain;
        }
        let plain = |i: usize| cx.src[i].layout == Layout::Plain;
        if plain(0) && self.is_constant(cx.constant) && self.on_planes(&s) {
            return LayoutRule::Plain;
        }
        // Between others on blocks the kernels of blocks are faster.
        let alone = plain(0) && self.residual_operand().is_none_or(plain);
        let pointwise = || PointwisePlan::supports(&lower::conv_params(self, &s, Layout::Plain));
        if alone && pointwise() && (cx.plain_result)() {
            return LayoutRule::Plain;
        }
        // Few channels fill a small part of a block: reading them interleaved keeps the image
        // dense. A network's picture input is the usual case.
        let few = s.c < C_BLOCK && cx.src[0].layout != Layout::Blocked && !self.is_depthwise(&s);
        let x = if few && self.groups == 1 { Layout::Interleaved } else { Layout::Blocked };
        let mut wishes = vec![(0, x)];
        wishes.extend(self.residual_operand().map(|i| (i, Layout::Blocked)));
        LayoutRule::Blocked(wishes)
    }

    /// Whether there are kernels for a plain image of few channels and so few results.
    fn is_first(&self, s: &Sizes) -> bool {
        !self.is_depthwise(s) && FirstConvPlan::pays(&lower::conv_params(self, s, Layout::Plain))
    }

    /// Whether a kernel computes this. It may need weights and bias that are packed ahead.
    fn has_kernel(&self, constant: &[bool], dst: &Info) -> bool {
        (lower::RUN_TIME || self.is_constant(constant)) && dst.elements() > 0
    }

    /// Whether weights and bias are constants, which are packed ahead; others are packed in each run.
    pub(super) fn is_constant(&self, constant: &[bool]) -> bool {
        constant[1] && (!self.bias || constant[2])
    }

    /// Input row or column that tap `tap` of output `out` reads, if it lies inside the input.
    pub(super) fn source(&self, i: usize, out: usize, tap: usize, input: usize) -> Option<usize> {
        let at = if self.transposed.is_some() {
            let shifted = (out + self.pads[i]).checked_sub(tap * self.dilation[i])?;
            shifted.is_multiple_of(self.stride[i]).then_some(shifted / self.stride[i])?
        } else {
            (out * self.stride[i] + tap * self.dilation[i]).checked_sub(self.pads[i])?
        };
        (at < input).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn eval(op: Conv, src: &[(&[usize], &[f32])]) -> Result<(Vec<usize>, Vec<f32>), GraphError> {
        let mut cx = Context::new();
        let ids: Vec<_> = src
            .iter()
            .map(|(d, v)| cx.constant(Tensor::from_slice(d, v).unwrap()).unwrap())
            .collect();
        let y = cx.op(op, &ids)?;
        let value = cx.constant_value(y).unwrap();
        Ok((value.dims(), value.as_slice::<f32>().unwrap().to_vec()))
    }

    #[test]
    fn same_padding_on_an_image_narrower_than_the_window() {
        let w = vec![1.0; 9];
        let op = Conv { pads: [1; 4], ..Conv::default() };
        let (dims, y) = eval(op, &[(&[1, 1, 4, 1], &[1.0; 4]), (&[1, 1, 3, 3], &w)]).unwrap();
        assert_eq!((dims, y), (vec![1, 1, 4, 1], vec![2.0, 3.0, 3.0, 2.0]));
    }

    #[test]
    fn groups_strides_bias_and_one_dimension() {
        let op = Conv { stride: [1, 2], groups: 2, bias: true, ..Conv::default() };
        let x = [1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0];
        let (dims, y) = eval(
            op,
            &[(&[1, 2, 4], &x), (&[2, 1, 2], &[1.0, 1.0, 1.0, -1.0]), (&[2], &[0.5, 0.0])],
        )
        .unwrap();
        assert_eq!((dims, y), (vec![1, 2, 2], vec![3.5, 7.5, -10.0, -10.0]));
    }

    #[test]
    fn transposed_spreads_each_input() {
        // One dimension of the ONNX convtranspose example: stride 2, window of ones.
        let op = Conv { stride: [1, 2], transposed: Some([0, 1]), ..Conv::default() };
        let (dims, y) =
            eval(op, &[(&[1, 1, 3], &[1.0, 2.0, 3.0]), (&[1, 1, 3], &[1.0; 3])]).unwrap();
        assert_eq!((dims, y), (vec![1, 1, 8], vec![1.0, 1.0, 3.0, 2.0, 5.0, 3.0, 3.0, 0.0]));
    }

    #[test]
    fn refusals_name_the_shapes() {
        let window =
            eval(Conv::default(), &[(&[1, 1, 2, 2], &[0.0; 4]), (&[1, 1, 3, 3], &[0.0; 9])]);
        let text = window.unwrap_err().to_string();
        assert!(text.contains("[1, 1, 2, 2]") && text.contains("[1, 1, 3, 3]"), "{text}");
        assert!(eval(Conv::default(), &[(&[1, 2, 2], &[0.0; 4]), (&[1, 1, 1], &[0.0])]).is_err());
        let op = Conv { stride: [0, 1], ..Conv::default() };
        assert!(eval(op, &[(&[1, 1, 1], &[0.0]), (&[1, 1, 1], &[0.0])]).is_err());
    }
}
