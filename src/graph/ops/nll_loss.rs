//! The negative log likelihood of labels.

use super::elements::{expect_dtype, floats, integers, is_index, position, write_floats};
use super::{Operator, expect_operands};
use crate::graph::{GraphError, Info, View, ViewMut};

/// How losses become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossReduction {
    /// Not at all.
    None,
    /// They are summed up.
    Sum,
    /// The sum is divided by that of the weights.
    Mean,
}

/// `-weight[t] * x[n, t, ...]` for labels `t [n, ...]`, as ONNX `NegativeLogLikelihoodLoss`.
/// Operands: `x [n, c, ...]`, labels (`i64` or `i32`), and weights `[c]`, if there are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NllLoss {
    /// How losses become one.
    pub reduction: LossReduction,
    /// A label without a loss.
    pub ignore: Option<i64>,
}

const OP: &str = "nll_loss";

impl Operator for NllLoss {
    fn name(&self) -> &'static str {
        OP
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(OP, src, 2..=3, "x, labels and perhaps weights")?;
        let (x, labels) = (&src[0], &src[1]);
        expect_dtype(OP, x, |d| d.is_float())?;
        expect_dtype(OP, labels, is_index)?;
        let classes = x.dims.get(1).copied();
        let weights = match src.get(2) {
            Some(w) => {
                expect_dtype(OP, w, |d| d == x.dtype)?;
                Some(w.dims.as_slice()) == classes.map(|c| vec![c]).as_deref()
            }
            None => true,
        };
        let without = classes.map(|_| [&x.dims[..1], &x.dims[2..]].concat());
        if without.as_ref() != Some(&labels.dims) || !weights {
            let rule = "there must be a label for each element but the classes, a weight per class";
            let shapes = [("x", &x.dims[..]), ("labels", &labels.dims)];
            return Err(GraphError::mismatch(OP, rule, &shapes));
        }
        let dims = if self.reduction == LossReduction::None { labels.dims.clone() } else { vec![] };
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, labels) = (floats(&src[0], OP)?, integers(&src[1], OP)?);
        let classes = src[0].dims[1];
        let inner: usize = src[0].dims[2..].iter().product();
        let weights = match src.get(2) {
            Some(w) => floats(w, OP)?,
            None => vec![1.0; classes],
        };
        let (mut losses, mut total) = (Vec::with_capacity(labels.len()), 0.0);
        for (i, &label) in labels.iter().enumerate() {
            if self.ignore == Some(label) {
                losses.push(0.0);
                continue;
            }
            // Labels do not count from the end.
            let class = position(OP, label.max(-1), classes).ok().filter(|_| label >= 0);
            let class = class.ok_or(GraphError::IndexOutOfRange {
                op: OP,
                index: label,
                extent: classes,
            })?;
            losses.push(-weights[class] * x[(i / inner * classes + class) * inner + i % inner]);
            total += weights[class];
        }
        match self.reduction {
            LossReduction::None => write_floats(dst, OP, losses),
            LossReduction::Sum => write_floats(dst, OP, [losses.iter().sum::<f64>()]),
            LossReduction::Mean => write_floats(dst, OP, [losses.iter().sum::<f64>() / total]),
        }
    }
}
