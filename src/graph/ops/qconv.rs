//! Convolution of bytes.

use core::ops::Range;
use std::sync::Arc;

use tilewright_kernels::{Activation, QconvParams, QconvPlan, QdepthwiseParams, QdepthwisePlan};

use super::byte_product::Product;
use super::conv::lower::{conv_params, depthwise_params};
use super::conv::{Conv, Sizes};
use super::requantize::{Requantize, as_bytes, bias, byte, is_bytes, kernel_type, small, words};
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::{AlignedBytes, DType};

/// Convolution of bytes, exact, as ONNX `QLinearConv` and `ConvInteger`.
///
/// Operands: `x [n, c, spatial...]` and weights `[k, c / groups, window...]`, each of `i8` or `u8`,
/// one or two spatial dimensions; then `bias [k]` of `i32` if [`Conv::bias`].
#[derive(Clone, Debug, PartialEq)]
pub struct QConv {
    /// Windows and groups; neither transposed, nor with a residual or an activation.
    pub conv: Conv,
    /// How sums become results.
    pub quant: Requantize,
}

const OP: &str = "qconv";

impl QConv {
    fn bias_operand(&self) -> Option<usize> {
        self.conv.bias.then_some(2)
    }

    /// Whether a kernel computes this, if weights and bias are constants.
    fn has_kernel(&self, src: &[Info], constant: &[bool]) -> bool {
        let Ok(s) = self.conv.sizes(&src[0].dims, &src[1].dims) else { return false };
        let taps = s.window[0].saturating_mul(s.window[1]);
        // Sizes for which a sum cannot leave the range of its type.
        let short =
            (s.c / self.conv.groups).saturating_mul(taps) <= i32::MAX as usize / (255 * 255);
        constant[1..].iter().all(|c| *c)
            && s.n * s.output[0] * s.output[1] > 0
            && (self.is_depthwise(&s) || short)
    }

    /// Whether the kernels of one channel per group compute this: they have results of bytes only, and sums of
    /// few taps.
    fn is_depthwise(&self, s: &Sizes) -> bool {
        let few = s.window[0].saturating_mul(s.window[1]) < 259;
        self.conv.is_depthwise(s) && is_bytes(self.quant.to) && few
    }
}

impl Operator for QConv {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "x, weights and a bias as flagged")?;
        if let Some(bad) = src[..2].iter().find(|s| !is_bytes(s.dtype)) {
            return Err(GraphError::UnsupportedDType { op: OP, dtype: bad.dtype });
        }
        let conv = &self.conv;
        if conv.transposed.is_some() || conv.residual || conv.activation != Activation::None {
            let what = "a transposed convolution, a residual or an activation".to_owned();
            return Err(GraphError::Unsupported { op: OP, what });
        }
        let s = conv.sizes(&src[0].dims, &src[1].dims)?;
        self.quant.check(OP, s.k)?;
        if let Some(bias) = self.bias_operand().map(|i| &src[i])
            && (bias.dims != [s.k] || bias.dtype != DType::I32)
        {
            return Err(GraphError::mismatch(
                OP,
                "the bias must have one i32 per output channel",
                &[("weights", &src[1].dims), ("bias", &bias.dims)],
            ));
        }
        let mut dims = vec![s.n, s.k];
        dims.extend_from_slice(if src[0].dims.len() == 3 { &s.output[1..] } else { &s.output });
        Ok(Info::plain(self.quant.to, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let s = self.conv.sizes(src[0].dims, src[1].dims)?;
        let bias = match self.bias_operand() {
            Some(i) => Some(src[i].slice::<i32>(OP)?),
            None => None,
        };
        let (cg, kg) = (s.c / self.conv.groups, s.k / self.conv.groups);
        let [oh, ow] = s.output;
        self.quant.write(OP, dst, |i| {
            let (ox, oy, k, n) = (i % ow, i / ow % oh, i / (ow * oh) % s.k, i / (ow * oh * s.k));
            let (w_zero, x_zero) = (i64::from(self.quant.w_zero(k)), i64::from(self.quant.x_zero));
            let mut sum = bias.map_or(0, |b| i64::from(b[k]));
            for r in 0..s.window[0] {
                let Some(iy) = self.conv.source(0, oy, r, s.input[0]) else { continue };
                for q in 0..s.window[1] {
                    let Some(ix) = self.conv.source(1, ox, q, s.input[1]) else { continue };
                    for c in 0..cg {
                        let channel = n * s.c + k / kg * cg + c;
                        let x = byte(&src[0], (channel * s.input[0] + iy) * s.input[1] + ix);
                        let w = byte(&src[1], ((k * cg + c) * s.window[0] + r) * s.window[1] + q);
                        sum += (x - x_zero) * (w - w_zero);
                    }
                }
            }
            (sum, k)
        })
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        let constant: Vec<bool> = cx.values.iter().map(Option::is_some).collect();
        if cx.dst.layout != Layout::Blocked || !self.has_kernel(cx.src, &constant) {
            return Ok(None);
        }
        let s = self.conv.sizes(&cx.src[0].dims, &cx.src[1].dims)?;
        let bias = bias(cx, self.bias_operand())?;
        let (q, op) = (&self.quant, &self.conv);
        let [x, w] = [0, 1].map(|i| kernel_type(cx.src[i].dtype));
        let zeros = format!("{:?}", q.w_zeros);
        let terms = q.terms(cx.values[1].expect("checked"));
        if self.is_depthwise(&s) {
            let conv = depthwise_params(op, &s);
            let params =
                QdepthwiseParams { conv, x, x_zero_point: q.x_zero, w, terms, output: q.output() };
            let plan = QdepthwisePlan::new(cx.isa, &params)?;
            // What the zero point of the input adds is part of the weights where there are dot products.
            let format =
                format!("qdepthwise {} {terms} {zeros} {x:?} {}", plan.weights_len(), q.x_zero);
            let bytes = plan.weights_len() * size_of::<f32>();
            let weights = cx.pack(1, &format, bytes, &|source, out| {
                let out = bytemuck::cast_slice_mut(out);
                Ok(plan.pack_weights(as_bytes(source), &q.w_zeros, out)?)
            })?;
            let columns = words(plan.columns_len(), |out| {
                let out = bytemuck::cast_slice_mut(out);
                Ok(plan.pack_columns(&q.columns(&bias), out)?)
            })?;
            return Ok(Some(Box::new(Depthwise { plan, weights, columns })));
        }
        let conv = conv_params(op, &s, cx.src[0].layout);
        let small = terms == 1 && small(cx, &q.w_zeros)?;
        let (x_zero_point, output) = (q.x_zero, q.output());
        let params = QconvParams { conv, x, x_zero_point, w, terms, small, output };
        let plan = Arc::new(QconvPlan::new(cx.isa, &params)?);
        let format = format!(
            "qconv {:?} {terms} {zeros} g{} {:?} {:?} {}",
            plan.packing(),
            op.groups,
            op.dilation,
            cx.src[0].layout,
            cx.isa
        );
        let weights =
            cx.pack(1, &format, plan.weights_len() * size_of::<i32>(), &|source, out| {
                let out = bytemuck::cast_slice_mut(out);
                Ok(plan.pack_weights(as_bytes(source), &q.w_zeros, out)?)
            })?;
        let columns = words(plan.columns_len(), |out| {
            Ok(plan.pack_columns(bytemuck::cast_slice(&weights), &q.columns(&bias), out)?)
        })?;
        Ok(Some(Box::new(Product { plan, weights, columns })))
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if self.has_kernel(cx.src, cx.constant) {
            // Blocks would be filled up to 16 channels, what is interleaved to 4.
            let channels = cx.src[0].dims[1];
            let few =
                channels <= 12 && cx.src[0].layout != Layout::Blocked && self.conv.groups == 1;
            let x = if few { Layout::Interleaved } else { Layout::Blocked };
            LayoutRule::Blocked(vec![(0, x)])
        } else {
            LayoutRule::Plain
        }
    }

    fn macs(&self, src: &[Info], dst: &Info) -> u64 {
        self.conv.macs(src, dst)
    }
}

struct Depthwise {
    plan: QdepthwisePlan,
    weights: Arc<AlignedBytes>,
    columns: Arc<AlignedBytes>,
}

impl Step for Depthwise {
    fn kernel(&self) -> String {
        self.plan.kernel_name().to_owned()
    }

    fn units(&self) -> usize {
        self.plan.units()
    }

    fn reads(&self, i: usize) -> bool {
        i == 0
    }

    #[allow(unsafe_code)]
    unsafe fn run(
        &self,
        src: &[*const u8],
        dst: *mut u8,
        _scratch: *mut u8,
        units: Range<usize>,
    ) -> Result<(), GraphError> {
        let (weights, columns) = (self.weights.as_ptr().cast(), self.columns.as_ptr().cast());
        // SAFETY: the plan was made for operand and result, and packed weights and columns itself;
        // units and CPU are as the caller promises.
        unsafe { self.plan.run(src[0], weights, columns, dst, units) };
        Ok(())
    }
}
