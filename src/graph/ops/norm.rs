//! Layer norm and RMS norm over the last axes; with several channels per row also instance and
//! group norm.

pub use tilewright_kernels::template::norm::NormOp;
use tilewright_kernels::template::norm::{NormAffine, NormParams, NormPlan};

use super::elements::{floats, write_floats};
use super::plan_step::PlanStep;
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

/// `(x - mean) / sqrt(variance + epsilon)` of each row, or `x / sqrt(mean square + epsilon)`, times a
/// scale, plus a bias. A row is everything from [`Norm::axis`] on.
///
/// Operands: `x` of floats, perhaps `scale`, perhaps `bias` of the scale's shape. The scale is as long
/// as a row and has its extents, or, if [`Norm::by_parts`], is `[g, p]`: `g` is the extent of the axis
/// before the row, and the row is cut into `p` equal runs that have one number each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// What a row is divided by.
    pub op: NormOp,
    /// The first axis of a row.
    pub axis: usize,
    /// Added under the root; finite, not negative.
    pub epsilon: f32,
    /// Whether the scale is per run of a row.
    pub by_parts: bool,
}

/// Sizes of one normalisation; row `r` has its scale at `r % groups`.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    len: usize,
    groups: usize,
    parts: usize,
}

impl Norm {
    fn sizes(&self, x: &[usize], scale: Option<&[usize]>) -> Result<Sizes, GraphError> {
        let mismatch = |rule| {
            let shapes = [("x", x), ("scale", scale.unwrap_or_default())];
            Err(GraphError::mismatch(self.name(), rule, &shapes))
        };
        let Some((outer, row)) = x.split_at_checked(self.axis) else {
            return mismatch("the axis must exist");
        };
        let (rows, len) = (outer.iter().product(), row.iter().product::<usize>());
        let (groups, parts) = match (scale, outer.last()) {
            (None, _) => (1, 1),
            (Some(scale), _) if !self.by_parts => {
                if scale != row {
                    return mismatch("the scale must have the extents of a row");
                }
                (1, len)
            }
            (Some(&[g, p]), Some(&before)) if g == before && p > 0 && len.is_multiple_of(p) => {
                (g, p)
            }
            _ => return mismatch("the scale must have one element per run of a row"),
        };
        Ok(Sizes { rows, len, groups: groups.max(1), parts })
    }
}

impl Operator for Norm {
    fn name(&self) -> &'static str {
        match self.op {
            NormOp::Layer => "layer_norm",
            NormOp::Rms => "rms_norm",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=3, "x, perhaps a scale, perhaps a bias")?;
        let x = &src[0];
        let wrong = src.iter().find(|s| !x.dtype.is_float() || s.dtype != x.dtype);
        if let Some(wrong) = wrong {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: wrong.dtype });
        }
        if !(self.epsilon >= 0.0 && self.epsilon.is_finite()) {
            let reason = "must be finite and not negative".to_owned();
            let (op, attribute) = (self.name(), "epsilon");
            return Err(GraphError::InvalidAttribute { op, attribute, reason });
        }
        let scale = src.get(1).map(|s| &s.dims[..]);
        self.sizes(&x.dims, scale)?;
        if let Some(bias) = src.get(2).filter(|b| Some(&b.dims[..]) != scale) {
            let rule = "scale and bias must have the same shape";
            let shapes = [("scale", scale.unwrap_or_default()), ("bias", &bias.dims)];
            return Err(GraphError::mismatch(self.name(), rule, &shapes));
        }
        Ok(Info::plain(x.dtype, x.dims.clone()))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let name = self.name();
        let Sizes { len, groups, parts, .. } =
            self.sizes(src[0].dims, src.get(1).map(|s| s.dims))?;
        let operand = |i: usize| src.get(i).map(|s| floats(s, name)).transpose();
        let (x, scale, bias) = (floats(&src[0], name)?, operand(1)?, operand(2)?);
        let mut y = Vec::with_capacity(x.len());
        for (row, x) in x.chunks_exact(len.max(1)).enumerate() {
            let at = |i: usize| row % groups * parts + i * parts / len;
            for (i, v) in self.row(x).into_iter().enumerate() {
                let v = scale.as_ref().map_or(v, |s| v * s[at(i)]);
                y.push(bias.as_ref().map_or(v, |b| v + b[at(i)]));
            }
        }
        write_floats(dst, name, y)
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        if cx.dst.dtype != DType::F32 || cx.dst.elements() == 0 {
            return Ok(None);
        }
        let scale = cx.src.get(1).map(|s| &s.dims[..]);
        let Sizes { rows, len, groups, parts } = self.sizes(&cx.src[0].dims, scale)?;
        let bias = cx.src.len() > 2;
        let affine = match scale {
            None => NormAffine::None,
            Some(_) if groups == 1 && parts == len => NormAffine::Elements { bias },
            Some(_) => NormAffine::Parts { groups, parts, bias },
        };
        let params = NormParams { op: self.op, rows, len, epsilon: self.epsilon, affine };
        Ok(Some(Box::new(PlanStep(NormPlan::new(cx.isa, &params)?))))
    }
}

impl Norm {
    /// A row from the definition, without scale and bias.
    fn row(&self, x: &[f64]) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = if self.op == NormOp::Rms { 0.0 } else { x.iter().sum::<f64>() / n };
        let square = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let deviation = (square + f64::from(self.epsilon)).sqrt();
        x.iter().map(|v| (v - mean) / deviation).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    const LAYER: Norm = Norm { op: NormOp::Layer, axis: 1, epsilon: 0.0, by_parts: false };

    fn norm(op: Norm, src: &[(&[usize], &[f32])]) -> Result<Vec<f32>, GraphError> {
        let mut cx = Context::new();
        let src: Vec<_> = src
            .iter()
            .map(|(d, v)| cx.constant(Tensor::from_slice(d, v).unwrap()).unwrap())
            .collect();
        let y = cx.op(op, &src)?;
        Ok(cx.constant_value(y).unwrap().as_slice().unwrap().to_vec())
    }

    #[test]
    fn rows_with_and_without_scale() {
        let x = (&[2, 2][..], &[1.0, 3.0, 7.0, 5.0][..]);
        assert_eq!(norm(LAYER, &[x]).unwrap(), [-1.0, 1.0, 1.0, -1.0]);
        let (scale, bias) = ((&[2][..], &[2.0, 3.0][..]), (&[2][..], &[10.0, 20.0][..]));
        assert_eq!(norm(LAYER, &[x, scale]).unwrap(), [-2.0, 3.0, 2.0, -3.0]);
        assert_eq!(norm(LAYER, &[x, scale, bias]).unwrap(), [8.0, 23.0, 12.0, 17.0]);
        let rms = Norm { op: NormOp::Rms, epsilon: 4.0, ..LAYER };
        assert_eq!(
            norm(rms, &[(&[1, 2], &[4.0, -8.0])]).unwrap(),
            [4.0 / 44f32.sqrt(), -8.0 / 44f32.sqrt()]
        );
        let groups = Norm { by_parts: true, axis: 2, ..LAYER };
        let x = (&[1, 2, 4][..], &[1.0, 3.0, 1.0, 3.0, 5.0, 7.0, 7.0, 5.0][..]);
        let scale = (&[2, 2][..], &[1.0, 2.0, 3.0, 4.0][..]);
        let want = [-1.0, 1.0, -2.0, 2.0, -3.0, 3.0, 4.0, -4.0];
        assert_eq!(norm(groups, &[x, scale]).unwrap(), want);
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let x = (&[2, 2][..], &[0.0; 4][..]);
        let one = (&[1][..], &[1.0][..]);
        assert!(norm(LAYER, &[x, one]).is_err());
        assert!(norm(LAYER, &[x, (&[2], &[1.0; 2]), one]).is_err());
        assert!(norm(Norm { axis: 3, ..LAYER }, &[x]).is_err());
        assert!(norm(Norm { epsilon: -1.0, ..LAYER }, &[x]).is_err());
        let parts = Norm { by_parts: true, ..LAYER };
        assert!(norm(parts, &[x, (&[3, 1], &[1.0; 3])]).is_err());
        assert!(norm(parts, &[x, (&[2, 0], &[])]).is_err());
        assert!(norm(LAYER, &[(&[2, 0], &[])]).unwrap().is_empty());
    }
}
