//! Max and average pooling over one or two spatial dimensions.

use super::elements::maximum;
use super::windows::count_along;
use super::{LayoutRule, Operator, RuleCx, expect_operands};
use crate::graph::{GraphError, Info, Layout, LowerCx, Step, View, ViewMut};
use crate::tensor::DType;

mod lower;

/// How a window becomes one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// The largest value; padding never wins.
    Max,
    /// The mean; `include_pad` counts padding cells as zeros instead of leaving them out.
    Average {
        /// Whether padding counts.
        include_pad: bool,
    },
}

/// Pooling, as ONNX `MaxPool` and `AveragePool`. Operand: `x [n, c, spatial...]`; one spatial
/// dimension counts as a height of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// What is computed.
    pub kind: PoolKind,
    /// Window, `[h, w]`.
    pub window: [usize; 2],
    /// Distance of windows.
    pub stride: [usize; 2],
    /// Distance of taps.
    pub dilation: [usize; 2],
    /// Virtual pixels: top, left, bottom, right.
    pub pads: [usize; 4],
    /// Whether a last window that reaches past the padded input counts.
    pub ceil: bool,
}

impl Pool {
    /// Pooling over the whole map, as ONNX `GlobalMaxPool` and `GlobalAveragePool`.
    pub fn global(kind: PoolKind, map: [usize; 2]) -> Self {
        let one = [1; 2];
        Self { kind, window: map, stride: one, dilation: one, pads: [0; 4], ceil: false }
    }

    fn output(&self, x: &[usize]) -> Result<[usize; 2], GraphError> {
        if !matches!(x.len(), 3 | 4) {
            return Err(GraphError::mismatch(
                self.name(),
                "x must have 1 or 2 spatial dimensions",
                &[("x", x)],
            ));
        }
        if self.stride.contains(&0) || self.dilation.contains(&0) || self.window.contains(&0) {
            return Err(GraphError::InvalidAttribute {
                op: self.name(),
                attribute: "kernel_shape, strides, dilations",
                reason: "must not be 0".to_owned(),
            });
        }
        let input = spatial(x);
        let mut output = [0; 2];
        for i in 0..2 {
            output[i] = self.output_extent(i, input[i]).ok_or_else(|| {
                let rule = "the window must fit into the padded input";
                GraphError::mismatch(self.name(), rule, &[("x", x), ("window", &self.window)])
            })?;
        }
        Ok(output)
    }

    fn output_extent(&self, i: usize, input: usize) -> Option<usize> {
        let reach = self.dilation[i].checked_mul(self.window[i] - 1)?.checked_add(1)?;
        let pads = [self.pads[i], self.pads[i + 2]];
        count_along(input, pads, reach, self.stride[i], self.ceil)
    }

    /// Cells of the window at `out` along dimension `i` that lie inside the input, and the number
    /// that lies inside the padded input.
    fn cells(&self, i: usize, out: usize, input: usize) -> (Vec<usize>, usize) {
        let start = out * self.stride[i];
        let (before, padded) = (self.pads[i], self.pads[i] + input + self.pads[i + 2]);
        let at = (0..self.window[i]).map(|t| start + t * self.dilation[i]);
        let inside: Vec<usize> =
            at.clone().filter(|&p| p >= before && p < before + input).map(|p| p - before).collect();
        (inside, at.filter(|&p| p < padded).count())
    }

    pub(super) fn eval_as<T: Copy>(
        &self,
        xdims: &[usize],
        x: &[T],
        y: &mut [T],
        reduce: impl Fn(&mut dyn Iterator<Item = T>, usize) -> T,
    ) -> Result<(), GraphError> {
        self.each(xdims, y.len(), &mut |i, taps, counted| {
            y[i] = reduce(&mut taps.map(|at| x[at]), counted);
        })
    }

    /// Calls `f` for each output, with the positions of its inputs and how many taps count in an average.
    fn each(
        &self,
        xdims: &[usize],
        outputs: usize,
        f: &mut dyn FnMut(usize, &mut dyn Iterator<Item = usize>, usize),
    ) -> Result<(), GraphError> {
        let ([h, w], [oh, ow]) = (spatial(xdims), self.output(xdims)?);
        for i in 0..outputs {
            let (ox, oy, plane) = (i % ow, i / ow % oh, i / (ow * oh));
            let (rows, padded_rows) = self.cells(0, oy, h);
            let (cols, padded_cols) = self.cells(1, ox, w);
            let counted = match self.kind {
                PoolKind::Average { include_pad: true } => padded_rows * padded_cols,
                _ => rows.len() * cols.len(),
            };
            let row = |r: &usize| (plane * h + r) * w;
            let mut taps = rows.iter().flat_map(|r| cols.iter().map(move |c| row(r) + c));
            f(i, &mut taps, counted);
        }
        Ok(())
    }
}

fn spatial(dims: &[usize]) -> [usize; 2] {
    if dims.len() == 3 { [1, dims[2]] } else { [dims[2], dims[3]] }
}

impl Operator for Pool {
    fn name(&self) -> &'static str {
        match self.kind {
            PoolKind::Max => "max_pool",
            PoolKind::Average { .. } => "average_pool",
        }
    }

    fn infer(&self, src: &[Info]) -> Result<Info, GraphError> {
        expect_operands(self.name(), src, 1..=1, "x")?;
        let x = &src[0];
        let output = self.output(&x.dims)?;
        let mut dims = x.dims[..2].to_vec();
        dims.extend_from_slice(if x.dims.len() == 3 { &output[1..] } else { &output });
        let known = match self.kind {
            PoolKind::Max => matches!(x.dtype, DType::F32 | DType::F64 | DType::I8 | DType::U8),
            PoolKind::Average { .. } => matches!(x.dtype, DType::F32 | DType::F64),
        };
        if !known {
            return Err(GraphError::UnsupportedDType { op: self.name(), dtype: x.dtype });
        }
        Ok(Info::plain(x.dtype, dims))
    }

    fn eval(&self, src: &[View<'_>], dst: &mut ViewMut<'_>) -> Result<(), GraphError> {
        let (x, dims, op) = (&src[0], src[0].dims, self.name());
        match (self.kind, x.dtype) {
            (PoolKind::Average { .. }, DType::F32) => {
                self.eval_as(dims, x.slice::<f32>(op)?, dst.slice(op)?, |values, count| {
                    (values.map(f64::from).sum::<f64>() / count as f64) as f32
                })
            }
            (PoolKind::Average { .. }, DType::F64) => {
                self.eval_as(dims, x.slice::<f64>(op)?, dst.slice(op)?, |values, count| {
                    values.sum::<f64>() / count as f64
                })
            }
            (PoolKind::Max, DType::F32) => {
                self.eval_as(dims, x.slice::<f32>(op)?, dst.slice(op)?, |values, _| {
                    values.fold(f32::NEG_INFINITY, maximum)
                })
            }
            (PoolKind::Max, DType::F64) => {
                self.eval_as(dims, x.slice::<f64>(op)?, dst.slice(op)?, |values, _| {
                    values.fold(f64::NEG_INFINITY, maximum)
                })
            }
            (PoolKind::Max, DType::I8) => {
                self.eval_as(dims, x.slice::<i8>(op)?, dst.slice(op)?, |values, _| {
                    values.fold(i8::MIN, i8::max)
                })
            }
            _ => self.eval_as(dims, x.slice::<u8>(op)?, dst.slice(op)?, |values, _| {
                values.fold(u8::MIN, u8::max)
            }),
        }
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Box<dyn Step>>, GraphError> {
        lower::lower(self, cx)
    }

    fn layout_rule(&self, cx: &RuleCx<'_>) -> LayoutRule {
        if cx.src[0].layout == Layout::Plain && lower::is_for_plain(self, &cx.src[0], cx.dst) {
            LayoutRule::Plain
        } else if cx.src[0].dtype == DType::F32 && cx.dst.elements() > 0 {
            LayoutRule::Blocked(vec![(0, Layout::Blocked)])
        } else {
            LayoutRule::Plain
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Context;
    use crate::tensor::Tensor;

    fn eval(op: Pool, dims: &[usize], x: &[f32]) -> Result<(Vec<usize>, Vec<f32>), GraphError> {
        let mut cx = Context::new();
        let x = cx.constant(Tensor::from_slice(dims, x).unwrap()).unwrap();
        let y = cx.op(op, &[x])?;
        let value = cx.constant_value(y).unwrap();
        Ok((value.dims(), value.as_slice::<f32>().unwrap().to_vec()))
    }

    fn pool(kind: PoolKind, window: usize, stride: usize, pad: usize) -> Pool {
        Pool {
            window: [window; 2],
            stride: [stride; 2],
            pads: [pad; 4],
            ..Pool::global(kind, [1, 1])
        }
    }

    #[test]
    fn padding_never_wins_a_maximum() {
        let (dims, y) = eval(pool(PoolKind::Max, 3, 2, 1), &[1, 1, 5, 5], &[-1.0; 25]).unwrap();
        assert_eq!((dims, y), (vec![1, 1, 3, 3], vec![-1.0; 9]));
    }

    #[test]
    fn averages_count_padding_only_when_asked() {
        let corner = |include_pad| {
            let op = pool(PoolKind::Average { include_pad }, 3, 1, 1);
            eval(op, &[1, 1, 3, 3], &[1.0; 9]).unwrap().1[0]
        };
        assert_eq!(corner(false), 1.0);
        assert_eq!(corner(true), 4.0 / 9.0);
    }

    #[test]
    fn ceil_mode_leaves_out_windows_behind_the_input() {
        let op = Pool { ceil: true, ..pool(PoolKind::Max, 2, 2, 0) };
        let x: Vec<f32> = (0..9).map(|v| v as f32).collect();
        assert_eq!(eval(op, &[1, 1, 3, 3], &x).unwrap().1, [4.0, 5.0, 7.0, 8.0]);
        let op = Pool { ceil: true, ..pool(PoolKind::Max, 1, 2, 0) };
        assert_eq!(eval(op, &[1, 1, 3, 3], &x).unwrap().0, [1, 1, 2, 2]);
        assert!(eval(pool(PoolKind::Max, 5, 3, 0), &[1, 1, 2, 2], &[0.0; 4]).is_err());
        // The only window, which reaches past the input.
        let op = Pool { ceil: true, ..pool(PoolKind::Max, 3, 2, 0) };
        assert_eq!(eval(op, &[1, 1, 2, 2], &x[..4]).unwrap().1, [3.0]);
    }
}
